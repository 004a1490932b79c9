//! What a request is counted under: the policy's name and the values of its
//! key, as bytes in which no value can pass for another.

use core::net::IpAddr;

use sha2::{Digest, Sha256};

/// Longer values are counted by their digest, so that a long one costs no room.
const MAX_VALUE: usize = 64;
/// Room for a policy's name, a number, and eight values, each with its length.
const ROOM: usize = 640;

/// The SHA-256 of a value.
pub(super) fn digest(value: &[u8]) -> [u8; 32] {
    Sha256::digest(value).into()
}

/// The digests of one request's values: policies that count by the same value
/// share the work, which for a long one is most of it. Values are told apart
/// by where they lie.
#[derive(Default)]
pub(super) struct Digests<'a> {
    known: [Option<(&'a [u8], [u8; 32])>; 4],
    /// Where the next one goes.
    hand: usize,
}

impl<'a> Digests<'a> {
    fn of(&mut self, value: &'a [u8]) -> [u8; 32] {
        if let Some((_, digest)) = self.known.iter().flatten().find(|(known, _)| core::ptr::eq(*known, value))
        {
            return *digest;
        }
        let digest = digest(value);
        if let Some(room) = self.known.get_mut(self.hand) {
            *room = Some((value, digest));
            self.hand = (self.hand + 1) % self.known.len();
        }
        digest
    }
}

/// The values of a key, one after the other, each behind its length.
#[derive(Clone, Copy, Debug)]
pub struct SubjectKey {
    bytes: [u8; ROOM],
    len: usize,
}

impl Default for SubjectKey {
    fn default() -> Self {
        SubjectKey { bytes: [0; ROOM], len: 0 }
    }
}

impl SubjectKey {
    /// Adds a value.
    pub(super) fn push(&mut self, value: &[u8]) {
        if value.len() <= MAX_VALUE {
            self.put(&[value.len() as u8]); // at most 64
            self.put(value);
        } else {
            self.push_digest(&digest(value));
        }
    }

    /// Adds a value of a request.
    pub(super) fn push_value<'a>(&mut self, value: &'a [u8], digests: &mut Digests<'a>) {
        if value.len() <= MAX_VALUE {
            self.push(value);
        } else {
            self.push_digest(&digests.of(value));
        }
    }

    /// Adds a credential: always its digest.
    pub(super) fn push_credential<'a>(&mut self, value: &'a [u8], digests: &mut Digests<'a>) {
        self.push_digest(&digests.of(value));
    }

    /// Adds a digest, which no plain value can look like.
    pub(super) fn push_digest(&mut self, digest: &[u8; 32]) {
        self.put(&[0xFF]);
        self.put(digest);
    }

    /// Adds an address: its bytes, of which there are 4 or 16.
    pub(super) fn push_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.push(&v4.octets()),
            IpAddr::V6(v6) => self.push(&v6.octets()),
        }
    }

    /// Adds all that another key holds.
    pub(super) fn append(&mut self, other: &SubjectKey) {
        self.put(other.as_slice());
    }

    /// What was added so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    fn put(&mut self, bytes: &[u8]) {
        // 8 values of at most 65 bytes, a name of 65 and a number: always room.
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}
