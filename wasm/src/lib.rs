//! Tollgate's core for JavaScript, by wasm-bindgen.
//!
//! Two modules are built from this crate: a small one (limits, buckets, keyed
//! limiters), and with the feature `full` one that has rules, replay and the
//! simulated cluster as well. Nothing is computed here: each function takes
//! JavaScript's values, refuses what is not legal with an `Error` that says
//! what, where and the range, asks the core, and gives plain objects back.
//! No input panics, and an object that refused something is as it was.
//!
//! The types are written down in `package/tollgate.d.ts`, and a test holds
//! them against what the modules export.

mod bucket;
mod limit;
mod limiter;
mod value;

#[cfg(feature = "full")]
mod cluster;
#[cfg(feature = "full")]
mod replay;
#[cfg(feature = "full")]
mod rules;

pub use bucket::Bucket;
pub use limit::Limit;
pub use limiter::Limiter;

#[cfg(feature = "full")]
pub use cluster::Cluster;
#[cfg(feature = "full")]
pub use replay::Replay;
#[cfg(feature = "full")]
pub use rules::Rules;
