//! The C ABI of Tollgate. `include/tollgate.h` is generated from this crate;
//! what a C programmer has to know stands in the comments of its functions.
//!
//! Each function checks its pointers, calls the core, and maps the answer.
//! All pointer handling is in `memory.rs`.

#![allow(non_camel_case_types)] // C names

mod bucket;
#[cfg(feature = "client")]
mod client;
mod counters;
mod http;
mod limit;
mod link;
mod memory;
mod observe;
mod redis;
mod rules;
mod status;
mod store;
mod table;
mod text;

pub use bucket::*;
#[cfg(feature = "client")]
pub use client::*;
pub use counters::*;
pub use http::*;
pub use limit::*;
pub use link::*;
pub use observe::*;
pub use redis::*;
pub use rules::*;
pub use status::*;
pub use store::*;
pub use table::*;
