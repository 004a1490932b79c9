//! The filter in a real Envoy 1.40.

mod answers;
mod config;
mod hostile;
mod sharing;
mod support;
