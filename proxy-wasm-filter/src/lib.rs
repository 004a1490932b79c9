//! Tollgate in a proxy-wasm host: Envoy, and others that speak the ABI 0.2.1.
//!
//! All decisions are `tollgate-core`'s. What is here moves header fields,
//! bytes and time between the core and the host:
//!
//! - [`abi`]: what the host offers, as functions that give a value or an
//!   error. The one file with unsafe code.
//! - [`exports`]: what the host calls.
//! - [`vm`]: the contexts of one VM, which is one worker.
//! - [`clock`]: what time it is.
//! - [`config`]: the plugin's configuration.
//! - [`filter`], [`request`], [`look`]: the rules of one plugin, a request's
//!   way through them, and what they look at.
//! - [`answer`]: what is said to it.
//! - [`stats`]: what is counted.
//! - [`pages`]: the blobs that the workers share.
//! - [`redis`]: the stream to Redis; [`frames`]: its other end, which a plugin
//!   of the role `bridge` is. [`posts`]: HTTP calls in its place. [`others`]:
//!   what the workers tell each other of it.
//!
//! The ABI is used as it is, without an SDK. A VM that panics once answers
//! 503 from then on, so nothing here may: an id that is not known, a status
//! that is not expected and a request that is gone are all ordinary. And the
//! host only calls what is exported: each function that is not there is two
//! crossings less for every request.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::panic,
    clippy::unreachable,
    clippy::arithmetic_side_effects,
    clippy::exit
)]

mod abi;
mod answer;
mod clock;
mod config;
mod exports;
mod filter;
mod frames;
mod look;
mod others;
mod pages;
mod posts;
mod redis;
mod request;
mod requests;
mod stats;
mod ticks;
mod vm;
