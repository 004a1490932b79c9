//! The laws of `redis_store` that rest on what an instance counts by itself,
//! where that lies in pages and not in a table: an Envoy's.

/// So many pages of each instance.
const PAGES: u32 = 4;

#[path = "../redis_store/cluster.rs"]
mod cluster;
#[path = "../redis_store/faults.rs"]
mod faults;
#[path = "../redis_store/pieces.rs"]
mod pieces;
#[path = "../redis_store/policies.rs"]
mod policies;
