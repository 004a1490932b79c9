//! Keys as 64-bit fingerprints, made with a secret seed.
//!
//! The hash is universal: for any two different keys of `n` bytes, chosen by
//! whoever does not know the seed, the chance that they meet is at most about
//! `n` in 2^60. That is a theorem, not a hope (Peters, "PolymurHash", 2023), and
//! it is enough here because fingerprints are never shown to clients, who
//! therefore learn nothing about the seed. It takes half the instructions of SipHash.

use core::fmt;

use polymur_hash::PolymurHash;

/// The secret of a table, drawn by the host from the system's random source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u64; 2]);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(secret)")
    }
}

/// A key as the table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub u64);

/// A seed, made ready.
#[derive(Clone)]
pub struct Fingerprinter(PolymurHash);

impl Fingerprinter {
    /// Prepares a seed; takes about a microsecond.
    #[must_use]
    pub fn new(seed: Seed) -> Fingerprinter {
        Fingerprinter(PolymurHash::from_u64x2_seed(seed.0[0], seed.0[1]))
    }

    /// The fingerprint of a key: any bytes, of any length.
    #[must_use]
    pub fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        Fingerprint(self.0.hash(key))
    }
}

impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprinter(secret)")
    }
}
