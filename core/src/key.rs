//! Keys as 64-bit fingerprints: SipHash-1-3 under a secret seed, so that a
//! client cannot choose keys that meet in one place.
//! (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.)

use core::hash::Hasher;
use siphasher::sip::SipHasher13;

/// The secret of a table, drawn by the host from the system's random source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub [u64; 2]);

/// A key as the table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub u64);

impl Seed {
    /// The fingerprint of a key: any bytes, of any length.
    #[inline]
    #[must_use]
    pub fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write(key);
        Fingerprint(hasher.finish())
    }
}
