//! The C ABI of Tollgate. `include/tollgate.h` is generated from this crate;
//! what a C programmer has to know stands in the comments of its functions.
//!
//! Each function checks its pointers, calls the core, and maps the answer.
//! All pointer handling is in `memory.rs`.

#![allow(non_camel_case_types)] // C names

mod bucket;
mod counters;
mod http;
mod limit;
mod memory;
mod observe;
mod rules;
mod status;
mod table;
mod text;

pub use bucket::*;
pub use counters::*;
pub use http::*;
pub use limit::*;
pub use observe::*;
pub use rules::*;
pub use status::*;
pub use table::*;
