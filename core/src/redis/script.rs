//! The calls: one Lua script per algorithm, one round trip, Redis's own clock.
//!
//! Each file of `lua/` is the twin of a file of [`algorithm`](crate::algorithm)
//! and says so; a script is some of them, one after another. The answers are
//! those of the pure functions: both are held against the same vectors.
//!
//! - Everything is exact. Lua counts in doubles, which are exact below 2^53;
//!   the scripts keep every quantity below that, and [`accepts`] refuses the
//!   few limits whose quantities are not.
//! - Time is Redis's `TIME`, in one line of each script.
//! - A denial writes nothing, but gives a key that lost its TTL one.
//! - A key that a script has written has a TTL: of at most twice the time that
//!   the limit takes to fill or its window lasts, and where a debt is larger
//!   than that, as long as the debt.
//! - Only the keys in KEYS are touched, nothing newer than Redis 6.0 is used,
//!   and what is written follows from what was read, so that replicas agree.
//! - A key that holds another type than the script's is an error of Redis,
//!   `WRONGTYPE`. One of another algorithm, where the type is the same, counts
//!   as empty: an algorithm that was changed starts fresh.
//!
//! How the states look is said in each Lua file. What is sent, and lies in a
//! program, is the code alone: nearly half of the files is what people read.

mod arguments;
mod digest;
mod known;
mod reply;
mod strip;

pub use arguments::{Refused, accepts};
pub use known::Known;
pub use reply::{Malformed, decode};

use alloc::string::String;

use crate::limit::{Algorithm, Limit};
use crate::time::Nanos;

/// One limit that a call asks, under its key.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The Redis key, whole; all keys of a call differ and share one hash tag.
    pub key: &'a [u8],
    /// The limit; one that [`accepts`] takes.
    pub limit: &'a Limit,
}

/// What a call does to all of its limits, all or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes `cost` units of each limit, or of none.
    Check {
        /// Units that this request asks for; 0 takes nothing and always "fits".
        cost: u64,
        /// Units wanted on top, as a lease: as many as there are, up to this
        /// (and 2^20), are taken from every limit when `cost` was admitted.
        /// None where one of the limits is a leaky bucket, whose units each
        /// have a delay of their own, or a concurrency limit.
        more: u64,
        /// At most one part in so many of what is left after `cost` is given
        /// as a lease; at least 1.
        share: u64,
        /// Units that were admitted without asking, while the store was away:
        /// charged first, whether they fit or not; at most 2^32 − 1 at a time.
        owed: u64,
        /// A number that no other call has: names the holds of a concurrency
        /// limit. Of other limits it is not told.
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
///
/// The reply is one integer or a list of integers: for a check, what
/// [`decode`] reads.
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
    /// One token bucket.
    TokenBucket = 0,
    /// One leaky bucket.
    LeakyBucket = 1,
    /// One fixed window.
    FixedWindow = 2,
    /// One sliding window.
    SlidingWindow = 3,
    /// One sliding log.
    SlidingLog = 4,
    /// One concurrency limit.
    Concurrency = 5,
    /// Several limits, all or none.
    Multi = 6,
    /// Gives back, to any limits.
    GiveBack = 7,
}

/// Files of `lua/`, each as it is sent: without comments.
macro_rules! files {
    ($($file:ident = $name:literal;)+) => {$(
        const $file: &str = {
            const TEXT: &str = include_str!(concat!("lua/", $name, ".lua"));
            const SENT: [u8; strip::length(TEXT)] = strip::strip(TEXT);
            match core::str::from_utf8(&SENT) {
                Ok(text) => text,
                Err(_) => "", // cut at ends of lines, so it is UTF-8; a digest would tell
            }
        };
    )+};
}

files! {
    CLOCK = "clock";
    REQUEST = "request";
    BUCKET = "bucket";
    TOKEN_BUCKET = "token_bucket";
    WINDOW = "window";
    FIXED_WINDOW = "fixed_window";
    SLIDING_WINDOW = "sliding_window";
    SLIDING_LOG = "sliding_log";
    CONCURRENCY = "concurrency";
    CHECK = "check";
    GIVE_BACK = "give_back";
}

impl ScriptId {
    /// All, in the order of their numbers.
    pub const ALL: &'static [ScriptId] = &[
        ScriptId::TokenBucket,
        ScriptId::LeakyBucket,
        ScriptId::FixedWindow,
        ScriptId::SlidingWindow,
        ScriptId::SlidingLog,
        ScriptId::Concurrency,
        ScriptId::Multi,
        ScriptId::GiveBack,
    ];

    /// The Lua source, as it is sent: the files of `lua/` without the lines
    /// that only explain them, and without what stands before a line.
    #[must_use]
    pub fn source(self) -> String {
        self.parts().concat()
    }

    /// What the source is put together of. Most is in several scripts, and lies
    /// in a program once.
    #[must_use]
    pub const fn parts(self) -> &'static [&'static str] {
        match self {
            ScriptId::TokenBucket => &[TOKEN_BUCKET, REQUEST, BUCKET, CHECK],
            ScriptId::LeakyBucket => &[CLOCK, REQUEST, BUCKET, CHECK],
            ScriptId::FixedWindow => &[CLOCK, REQUEST, WINDOW, FIXED_WINDOW, CHECK],
            ScriptId::SlidingWindow => &[CLOCK, REQUEST, WINDOW, SLIDING_WINDOW, CHECK],
            ScriptId::SlidingLog => &[CLOCK, REQUEST, SLIDING_LOG, CHECK],
            ScriptId::Concurrency => &[CLOCK, REQUEST, CONCURRENCY, CHECK],
            ScriptId::Multi => &[
                CLOCK,
                REQUEST,
                BUCKET,
                WINDOW,
                FIXED_WINDOW,
                SLIDING_WINDOW,
                SLIDING_LOG,
                CONCURRENCY,
                CHECK,
            ],
            ScriptId::GiveBack => &[
                CLOCK,
                REQUEST,
                BUCKET,
                WINDOW,
                FIXED_WINDOW,
                SLIDING_WINDOW,
                SLIDING_LOG,
                CONCURRENCY,
                GIVE_BACK,
            ],
        }
    }

    /// The SHA-1 of the source, in hexadecimal: what EVALSHA takes.
    #[must_use]
    pub const fn sha1(self) -> &'static [u8; 40] {
        digest::of(self)
    }
}

impl Call<'_> {
    /// Which script it runs.
    #[must_use]
    pub fn script(&self) -> ScriptId {
        let algorithm = match (self.op, self.asks) {
            (Op::GiveBack { .. }, _) => return ScriptId::GiveBack,
            (_, [ask]) => ask.limit.algorithm(),
            _ => return ScriptId::Multi,
        };
        match algorithm {
            Algorithm::TokenBucket => ScriptId::TokenBucket,
            Algorithm::LeakyBucket => ScriptId::LeakyBucket,
            Algorithm::FixedWindow => ScriptId::FixedWindow,
            Algorithm::SlidingWindow => ScriptId::SlidingWindow,
            Algorithm::SlidingLog => ScriptId::SlidingLog,
            Algorithm::Concurrency => ScriptId::Concurrency,
        }
    }

    /// Calls `each` with every argument behind the script: the number of keys,
    /// the keys, the rest. Their number does not depend on `each`.
    pub fn arguments(&self, each: &mut dyn FnMut(&[u8])) {
        arguments::write(self, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list() {
        for (number, &script) in ScriptId::ALL.iter().enumerate() {
            assert_eq!(script as usize, number);
        }
    }

    #[test]
    fn each_script_reads_the_clock_in_one_line() {
        for &script in ScriptId::ALL {
            let source = script.source();
            assert_eq!(source.lines().filter(|line| line.contains("call('TIME')")).count(), 1, "{script:?}");
        }
    }
}
