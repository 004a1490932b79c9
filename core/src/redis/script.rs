//! The calls: one Lua script per algorithm.

use crate::decision::Decision;
use crate::limit::Limit;
use crate::time::Nanos;

/// One limit that a call asks, under its key.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The Redis key, whole; all keys of a call share one hash tag.
    pub key: &'a [u8],
    /// The limit.
    pub limit: &'a Limit,
}

/// What a call does to all of its limits, all or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes `cost` units of each limit, or of none.
    Check {
        /// Units that this request asks for; 0 takes nothing and always "fits".
        cost: u64,
        /// Units wanted on top, as a lease: as many as there are, up to this,
        /// are taken from every limit when `cost` was admitted.
        more: u64,
        /// At most one part in so many of what is left after `cost` is given
        /// as a lease; at least 1.
        share: u64,
        /// Units that were admitted without asking, while the store was away:
        /// charged first, whether they fit or not.
        owed: u64,
        /// A number that no other call has: names the holds of a concurrency
        /// limit, and the entries of a log.
        id: u64,
    },
    /// Gives back units that were taken `age` ago and not used.
    GiveBack {
        /// How many.
        units: u64,
        /// Nanoseconds since they were taken, rounded up.
        age: Nanos,
        /// The `id` of the call that took them.
        id: u64,
    },
}

/// One call: a script, its keys and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The limits, at most [`MAX_LAYERS`](crate::limiter::MAX_LAYERS), at least one.
    pub asks: &'a [Ask<'a>],
    /// What is done to them.
    pub op: Op,
}

/// A script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ScriptId {
    /// To be completed.
    TokenBucket = 0,
}

impl ScriptId {
    /// All, in the order of their numbers.
    pub const ALL: &'static [ScriptId] = &[ScriptId::TokenBucket];

    /// The Lua source.
    #[must_use]
    pub fn source(self) -> &'static str {
        ""
    }

    /// The SHA-1 of the source, in hexadecimal: what EVALSHA takes.
    #[must_use]
    pub fn sha1(self) -> &'static [u8; 40] {
        &[b'0'; 40]
    }
}

impl Call<'_> {
    /// Which script it runs.
    #[must_use]
    pub fn script(&self) -> ScriptId {
        ScriptId::TokenBucket
    }

    /// Calls `each` with every argument behind the script: the number of keys,
    /// the keys, the rest. Their number does not depend on `each`.
    pub fn arguments(&self, each: &mut dyn FnMut(&[u8])) {
        let _ = each;
    }
}

/// The reply is not what the script gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply has {0} integers that make no answer")]
pub struct Malformed(pub usize);

/// Reads the reply to a [`Op::Check`] of `limits`: one decision each, and the
/// units that were given on top.
///
/// # Errors
/// The integers are not what the script gives.
pub fn decode(
    limits: &mut dyn Iterator<Item = &Limit>,
    integers: &[i64],
    decisions: &mut [Decision],
) -> Result<u64, Malformed> {
    let _ = (limits, decisions);
    Err(Malformed(integers.len()))
}
