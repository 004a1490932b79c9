//! What a request is counted under: the policy's name and the values of its
//! key, as bytes in which no value can pass for another.

use alloc::boxed::Box;
use core::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::limiter::MAX_LAYERS;

/// Longer values are counted by their digest, so that a long one costs no room.
const MAX_VALUE: usize = 64;
/// Room for a policy's name, a number, and eight values, each with its length.
pub(crate) const ROOM: usize = 640;

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

/// Room for the keys of one request's limits, used again and again or made
/// for each: most requests need the smaller part alone, and the other is not
/// touched until then.
#[derive(Clone, Debug)]
pub struct KeyRoom {
    few: [u8; 2 * ROOM],
    many: Option<[u8; MAX_LAYERS * ROOM]>,
}

impl KeyRoom {
    /// All of it.
    #[must_use]
    pub const fn new() -> KeyRoom {
        KeyRoom { few: [0; 2 * ROOM], many: None }
    }

    pub(super) fn pieces(&mut self) -> Pieces<'_> {
        Pieces { free: &mut self.few, many: Some(&mut self.many) }
    }
}

impl Default for KeyRoom {
    fn default() -> Self {
        KeyRoom::new()
    }
}

/// What is free of a [`KeyRoom`].
pub(super) struct Pieces<'k> {
    free: &'k mut [u8],
    /// Taken when the first part is full.
    many: Option<&'k mut Option<[u8; MAX_LAYERS * ROOM]>>,
}

impl<'k> Pieces<'k> {
    /// Room for a key, whatever is in it.
    fn key(&mut self) -> &mut [u8] {
        if self.free.len() < ROOM
            && let Some(many) = self.many.take()
        {
            self.free = many.get_or_insert([0; MAX_LAYERS * ROOM]);
        }
        self.free
    }

    /// A key that is written here.
    pub(super) fn write(&mut self) -> SubjectKey<'_> {
        SubjectKey::new(self.key())
    }

    /// So many bytes at the front are a key: they are not free any more.
    pub(super) fn keep(&mut self, len: usize) -> &'k mut [u8] {
        let free = core::mem::take(&mut self.free);
        let (key, rest) = free.split_at_mut_checked(len).unwrap_or_default();
        self.free = rest;
        key
    }
}

/// What the keys of a policy's limits begin with: its name, and the number of
/// the limit, 0.
pub(super) fn prefix(name: &str) -> Box<[u8]> {
    let mut bytes = [0; ROOM];
    let mut key = SubjectKey::new(&mut bytes);
    key.push(name.as_bytes());
    key.push(&[0]);
    key.as_slice().into()
}

/// The values of a key, one after the other, each behind its length.
#[derive(Debug)]
pub(crate) struct SubjectKey<'k> {
    bytes: &'k mut [u8],
    len: usize,
}

impl<'k> SubjectKey<'k> {
    /// A key without values, in [`ROOM`] bytes.
    pub(crate) fn new(bytes: &'k mut [u8]) -> SubjectKey<'k> {
        SubjectKey { bytes, len: 0 }
    }

    /// Adds a value.
    pub(crate) fn push(&mut self, value: &[u8]) {
        if value.len() <= MAX_VALUE {
            self.push_short(value);
        } else {
            self.push_digest(&digest(value));
        }
    }

    /// Adds a value of at most [`MAX_VALUE`] bytes.
    #[inline]
    fn push_short(&mut self, value: &[u8]) {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.split_first_mut());
        if let Some((len, room)) = room
            && let Some(room) = room.get_mut(..value.len())
        {
            *len = value.len() as u8; // at most 64
            room.copy_from_slice(value);
            self.len += 1 + value.len();
        }
    }

    /// Adds a value of a request.
    pub(super) fn push_value<'a>(&mut self, value: &'a [u8], digests: &mut Digests<'a>) {
        if value.len() <= MAX_VALUE {
            self.push_short(value);
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

    /// Adds bytes as they are: a key, or part of one.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        // 8 values of at most 65 bytes, a name of 65 and a number: always room.
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    /// Bytes that were added so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What was added so far.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}
