//! The filter in a real Envoy 1.40.

mod answers;
mod config;
mod faults;
mod hostile;
mod observe;
mod places;
mod posts;
mod redis;
mod sharing;
mod support;
mod update;
