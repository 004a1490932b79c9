//! What a call tells its script: words, and for the shortest way through a
//! token bucket, numbers worked out here so that the script need not.
//!
//! | word of a request | |
//! |---|---|
//! | cost, more, share, owed, id | of a check |
//! | units, seconds, nanoseconds, id | of a give-back: how many, since when |
//!
//! Before all of it stand the numbers of the shortest way, between a `+` and a
//! `|`: see `token_bucket.lua`.
//!
//! | first word | limit | further words |
//! |---|---|---|
//! | `t`, `l` | token or leaky bucket | unit in ns, parts of a unit (tick), units and parts of a token, burst, units and parts of a full bucket, first state of the short form or −1, TTL in ms |
//! | `f` | fixed window | limit, seconds and nanoseconds of the period, anchor |
//! | `w`, `s`, `c` | sliding window, sliding log, concurrency | limit, seconds and nanoseconds of the period |

use super::{Call, Op};
use crate::limit::{Algorithm, Limit, gcd};
use crate::time::{MAX_SPAN, Nanos, SECOND};

/// The largest count that a script is told: more than any burst.
const MOST: u64 = 1 << 32;
/// The largest lease.
const MOST_MORE: u64 = 1 << 20;
/// Buckets that fill in up to this (13 days) are counted in nanoseconds: of
/// those, a debt of 8 bursts is still exact.
const MOST_NANOS: Nanos = 1 << 50;
/// The most parts of a unit that a script multiplies exactly.
const MOST_PARTS: u128 = 1 << 33;
/// Windows up to this may have a period that is not of whole seconds: the
/// script multiplies it by 10.
const MOST_ODD: Nanos = 10 * 86_400 * SECOND;
/// The longest time to fill that the short form of a bucket's state can tell.
const MOST_SHORT: u64 = 26 * 3_600 * 1_000_000;
/// Microseconds that the short form of a bucket's state tells apart.
const ROUND: u64 = 300_000 * 1_000_000;
/// States of the short form, of one rate: 20 counts of tokens.
const SHORT: u64 = 20 * ROUND;
/// Tokens that are counted.
const COUNTED: u64 = 12;

/// A limit that no script can count exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A window of broken seconds that is too long.
    #[error(
        "period: a window of {0} ns cannot be kept in Redis; one of more than 10 days must be whole seconds"
    )]
    Window(Nanos),
    /// A slow bucket of broken microseconds.
    #[error(
        "period: {0} ns with this limit cannot be kept in Redis; \
         a bucket that takes more than 13 days to fill needs a period of whole microseconds or a smaller limit"
    )]
    Bucket(Nanos),
}

/// Can a script count this limit exactly?
///
/// All limits of whole seconds, and nearly all others.
///
/// # Errors
/// What it cannot, and what it could instead.
pub fn accepts(limit: &Limit) -> Result<(), Refused> {
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => match Pace::of(limit) {
            Some(_) => Ok(()),
            None => Err(Refused::Bucket(limit.period())),
        },
        Algorithm::FixedWindow | Algorithm::SlidingWindow
            if limit.period() > MOST_ODD && !limit.period().is_multiple_of(SECOND) =>
        {
            Err(Refused::Window(limit.period()))
        }
        _ => Ok(()),
    }
}

/// A bucket's rate as the scripts count it.
struct Pace {
    /// Nanoseconds of a unit.
    unit: u64,
    tick: u128,
    /// Parts of a token.
    token: u128,
}

impl Pace {
    fn of(limit: &Limit) -> Option<Pace> {
        let (tick, token) = (limit.tick, limit.token);
        if fill(limit) <= MOST_NANOS {
            return Some(Pace { unit: 1, tick: u128::from(tick), token: u128::from(token) });
        }
        // A microsecond brings a thousand times as much.
        let common = gcd(1_000, token);
        let (tick, token) = (u128::from(tick) * u128::from(1_000 / common), u128::from(token / common));
        (tick <= MOST_PARTS).then_some(Pace { unit: 1_000, tick, token })
    }
}

/// Nanoseconds, rounded up, in which an empty bucket fills.
fn fill(limit: &Limit) -> Nanos {
    let span = limit.wide_capacity().div_ceil(u128::from(limit.tick));
    u64::try_from(span).unwrap_or(MAX_SPAN) // a limit's is at most that
}

/// The TTL of a bucket, in milliseconds: twice the time to fill.
fn ttl(limit: &Limit) -> u64 {
    fill(limit).div_ceil(1_000_000) * 2
}

/// Where the states of the short form begin for this rate, and microseconds
/// of a token; see `bucket.lua`.
fn short(limit: &Limit) -> Option<(u64, u64)> {
    let micros = limit.token / 1_000;
    let is_whole = limit.tick == 1 && limit.token.is_multiple_of(1_000);
    if !is_whole || micros.saturating_mul(limit.burst()) > MOST_SHORT {
        return None;
    }
    let (mut rest, mut code, mut place) = (micros, 0, 1);
    for (prime, count) in [(2, 15), (3, 5), (5, 10), (7, 2)] {
        let mut power = 0;
        while power + 1 < count && rest.is_multiple_of(prime) {
            rest /= prime;
            power += 1;
        }
        code += power * place;
        place *= count;
    }
    (rest == 1).then_some(((code + 1) * SHORT, micros)) // at most 1500 * 6e12, below 2^53
}

/// One argument as it is written.
struct Words {
    text: [u8; 320],
    len: usize,
    /// Where the words begin.
    start: usize,
}

impl Words {
    fn new() -> Words {
        Words { text: [0; 320], len: 0, start: 0 }
    }

    fn text(&self) -> &[u8] {
        self.text.get(..self.len).unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) {
        if let Some(place) = self.text.get_mut(self.len..).and_then(|rest| rest.get_mut(..bytes.len())) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn word(&mut self, bytes: &[u8]) {
        if self.len > self.start {
            self.push(b" ");
        }
        self.push(bytes);
    }

    fn number(&mut self, number: impl itoa::Integer) {
        self.word(itoa::Buffer::new().format(number).as_bytes());
    }

    /// The numbers of `token_bucket.lua`, in front of all others.
    fn shortest_way(&mut self, limit: &Limit, cost: u64) {
        if limit.algorithm() != Algorithm::TokenBucket || !(1..=limit.burst()).contains(&cost) {
            return;
        }
        let Some((base, token)) = short(limit) else { return };
        let take = token * cost; // cost is at most the burst, which fills in a day or so
        self.push(b"+");
        self.start = self.len;
        self.number(base);
        self.number(take + cost.min(COUNTED) * ROUND);
        self.number(token * limit.burst() - take);
        if cost > 1 {
            self.number(cost);
        }
        self.push(b"|");
        self.start = self.len;
    }

    /// The number of a call is told to those that keep it.
    fn request(&mut self, op: Op, has_names: bool) {
        match op {
            Op::Check { cost, more, share, owed, id } => {
                self.number(cost.min(MOST));
                self.number(more.min(MOST_MORE));
                self.number(share.clamp(1, MOST));
                self.number(owed.min(MOST - 1));
                self.number(if has_names { id } else { 0 });
            }
            Op::GiveBack { units, age, id } => {
                self.number(units.min(MOST));
                self.number(age / SECOND);
                self.number(age % SECOND);
                self.number(if has_names { id } else { 0 });
            }
        }
    }

    fn limit(&mut self, limit: &Limit) {
        self.word(match limit.algorithm() {
            Algorithm::TokenBucket => b"t",
            Algorithm::LeakyBucket => b"l",
            Algorithm::FixedWindow => b"f",
            Algorithm::SlidingWindow => b"w",
            Algorithm::SlidingLog => b"s",
            Algorithm::Concurrency => b"c",
        });
        if matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            self.bucket(limit);
            return;
        }
        self.number(limit.limit());
        self.number(limit.period() / SECOND);
        self.number(limit.period() % SECOND);
        if limit.algorithm() == Algorithm::FixedWindow {
            self.number(limit.anchor() as u8);
        }
    }

    fn bucket(&mut self, limit: &Limit) {
        // One that is refused is told as one part of a microsecond more for a token: slower, never faster.
        let pace = Pace::of(limit).unwrap_or_else(|| Pace {
            unit: 1_000,
            tick: 1,
            token: (u128::from(limit.token) / (u128::from(limit.tick) * 1_000)).saturating_add(1),
        });
        let full = pace.token * u128::from(limit.burst()); // below 2^59 * 2^32
        self.number(pace.unit);
        self.number(pace.tick);
        self.number(pace.token / pace.tick);
        self.number(pace.token % pace.tick);
        self.number(limit.burst());
        self.number(full / pace.tick);
        self.number(full % pace.tick);
        match short(limit) {
            Some((base, _)) => self.number(base),
            None => self.number(-1),
        }
        self.number(ttl(limit));
    }
}

pub(super) fn write(call: &Call<'_>, each: &mut dyn FnMut(&[u8])) {
    each(itoa::Buffer::new().format(call.asks.len()).as_bytes());
    for ask in call.asks {
        each(ask.key);
    }
    write_behind_keys(call, each);
}

/// What stands behind the keys.
pub(super) fn write_behind_keys(call: &Call<'_>, each: &mut dyn FnMut(&[u8])) {
    let mut words = Words::new();
    let has_names = call.asks.iter().any(|ask| ask.limit.algorithm() == Algorithm::Concurrency);
    if let (Op::Check { cost, more: 0, owed: 0, .. }, [ask]) = (call.op, call.asks) {
        words.shortest_way(ask.limit, cost);
    }
    words.request(call.op, has_names);
    for (index, ask) in call.asks.iter().enumerate() {
        if index > 0 {
            (words.len, words.start) = (0, 0);
        }
        words.limit(ask.limit);
        each(words.text());
    }
}
