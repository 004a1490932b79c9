//! The laws of a limit that many instances share, in virtual time: the real
//! [`Store`](tollgate_core::redis::store::Store) in each instance, a network
//! and a server that are played from a seed.

/// Each instance counts in a table what it counts by itself.
const PAGES: u32 = 0;

mod cluster;
mod ends;
mod faults;
mod leases;
mod pieces;
mod policies;
