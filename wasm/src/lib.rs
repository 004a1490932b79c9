//! Tollgate's core for JavaScript, by wasm-bindgen.
//!
//! Three modules are built from this crate: a small one (limits, buckets, keyed
//! limiters), one of limits and traffic to compare them by, and with the feature
//! `full` one that has rules, replay and the simulated cluster as well. No limit
//! is computed here: each function takes JavaScript's values, refuses what is not legal
//! with an `Error` that says what, where and the range, asks the core, and
//! gives plain objects back. No input panics, and an object that refused
//! something is as it was.
//!
//! The types are written down in `package/*.d.ts`, and a test holds them
//! against what the modules export.

#![expect(unreachable_pub, reason = "JavaScript reaches them")]

mod bucket;
mod limit;
#[cfg(feature = "limiter")]
mod limiter;
#[cfg(feature = "traffic")]
mod traffic;
mod value;

#[cfg(feature = "full")]
mod cluster;
#[cfg(feature = "full")]
mod replay;
#[cfg(feature = "full")]
mod rules;
