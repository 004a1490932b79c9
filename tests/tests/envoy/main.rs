//! The filter in a real Envoy 1.40.

mod answers;
mod config;
mod hostile;
mod observe;
mod redis;
mod sharing;
mod support;
mod update;
