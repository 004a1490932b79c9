//! The filter in a real Envoy 1.40.

mod answers;
mod clock;
mod config;
mod drain;
mod ends;
mod fault_table;
mod faults;
mod host_calls;
mod hostile;
mod leave;
mod observe;
mod places;
mod posts;
mod redis;
mod sharing;
mod spoilt;
mod still;
mod support;
mod update;
