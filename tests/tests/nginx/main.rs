//! The NGINX module on a real NGINX: what a client, an operator and a configuration see.
//!
//! `return` answers before any limiter runs, so limited locations answer with `empty_gif` or a
//! proxied response.

mod algorithms;
mod config;
mod hostile;
mod http;
mod layers;
mod observe;
mod reload;
mod rules_match;
mod rules_support;
mod sharing;
mod subrequests;
