//! # Tollgate's core
//!
//! A rate limiter answers one question, many millions of times a second: may
//! this request pass now, and if not, when? This crate answers it exactly,
//! without a clock, an allocator, a lock or any I/O of its own:
//!
//! - a [`Limit`] is parsed once and is then valid ("100/s burst 200");
//! - an [`algorithm`] is a pure function from a state, a limit, an instant and
//!   a cost to a new state and a [`Decision`];
//! - a [`Bucket`] is one such state that threads share;
//! - an `account` (of the feature `alloc`) is one that a single thread keeps, and can be looked into;
//! - a [`Table`](table::Table) is a fixed number of them, by key, in memory
//!   that the caller gives and that threads *and processes* may share;
//! - [`limiter`] charges several limits at once, all or none;
//! - `policy` (a feature) reads the rules file that says all of this for a gateway;
//! - `pages` (of the feature `redis`) counts for workers that share no memory, only small blobs;
//! - `replay` (a feature) asks a log of the rules;
//! - `client` (a feature, and the one part with threads, sockets and a clock) shares limits through Redis;
//! - [`http`] writes the answer as header fields and a problem body.
//!
//! ```
//! use tollgate_core::{Bucket, Limit};
//!
//! let limit: Limit = "2/s burst 5".parse()?;
//! let bucket = Bucket::new(limit)?;
//! let now = 1_000_000_000; // nanoseconds of your monotonic clock
//! let allowed = (0..10).filter(|_| bucket.check(1, now).allowed).count();
//! assert_eq!(allowed, 5);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! ## What is promised
//!
//! 1. In any interval no key is admitted more than burst + limit × interval / period.
//! 2. Waiting `retry_after` and asking the same again is admitted, when nobody else came.
//! 3. A denial changes nothing.
//! 4. Several limits are charged all or none.
//! 5. A clock that goes back, stands, or is far ahead grants nothing extra.
//! 6. A decision allocates nothing and takes no lock.
//! 7. A process killed at any instruction leaves a shared table usable.
//! 8. Memory is what was configured; overflow evicts what is nearest to idle and counts it.
//! 9. A changed limit holds from the next request on; tokens already spent stay spent.
//!
//! Law 1 is a bucket's; windows keep the bounds of their own definition (a
//! fixed window may admit twice the limit around a boundary).
//!
//! No function of this crate panics.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "alloc", feature = "policy"))]
extern crate alloc;
#[cfg(any(test, loom, feature = "client"))]
extern crate std;

#[cfg(feature = "alloc")]
pub mod account;
pub mod algorithm;
pub mod bucket;
#[cfg(feature = "client")]
pub mod client;
pub mod decision;
pub mod http;
pub mod key;
pub mod limit;
pub mod limiter;
pub mod local;
pub mod metrics;
#[cfg(feature = "redis")]
pub mod pages;
#[cfg(feature = "policy")]
pub mod policy;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "replay")]
pub mod replay;
pub mod slot;
pub mod table;
pub mod time;

pub use bucket::Bucket;
pub use decision::Decision;
pub use limit::{Algorithm, Anchor, Limit, LimitError};
pub use table::Table;
pub use time::{NEVER, Nanos};
