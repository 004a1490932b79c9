//! Which connection a key belongs to.

/// Slots of a cluster.
pub const SLOTS: u16 = 16_384;
