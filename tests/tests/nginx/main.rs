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
mod redis_cases;
mod redis_cluster;
mod redis_config;
mod redis_exact;
mod redis_fault_table;
mod redis_faults;
mod redis_support;
mod reload;
mod rules_answers;
mod rules_cases;
mod rules_match;
mod rules_reload;
mod rules_scale;
mod rules_support;
mod sharing;
mod subrequests;
