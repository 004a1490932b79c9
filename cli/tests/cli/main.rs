//! The command, run as its users run it.

mod common;
mod envoy_config;
mod hostile;
mod oracle;
mod pages;
mod replay;
mod rules;
