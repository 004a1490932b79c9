//! The laws of `redis_store`, where what an instance counts by itself lies in
//! pages and not in a table, as an Envoy's does.

/// So many pages of each instance.
const PAGES: u32 = 4;

#[path = "../redis_store/cluster.rs"]
mod cluster;
#[path = "../redis_store/ends.rs"]
mod ends;
#[path = "../redis_store/faults.rs"]
mod faults;
#[path = "../redis_store/leases.rs"]
mod leases;
#[path = "../redis_store/pieces.rs"]
mod pieces;
#[path = "../redis_store/policies.rs"]
mod policies;
