//! Concurrency: units in flight, given back by their holder or by expiry.
//!
//! Each unit is a hold with an expiry of its own, `period` after it was
//! taken; a holder that dies gives its units back by dying.

use crate::decision::Decision;
use crate::limit::Limit;
use crate::time::{NEVER, Nanos, held};

/// Decides one request, given the expiries of all holds (expired ones are
/// passed over). The expiry of the new hold, if it was admitted and charged.
pub fn decide<I>(holds: I, limit: &Limit, now: Nanos, cost: u64) -> (Option<Nanos>, Decision)
where
    I: Iterator<Item = Nanos> + Clone,
{
    let now = held(now);
    let live = holds.filter(|&expiry| expiry > now);
    let in_flight = live.clone().count() as u64;
    let allowed = cost == 0 || cost <= limit.limit().saturating_sub(in_flight);
    let count = if allowed { in_flight + cost } else { in_flight };
    let expiry = now + limit.period(); // now is held
    let last = live.clone().max().unwrap_or(now);
    let last = if allowed && cost > 0 { last.max(expiry) } else { last };
    let decision = Decision {
        allowed,
        limit: limit.limit(),
        remaining: limit.limit().saturating_sub(count),
        retry_after: match (allowed, cost > limit.limit()) {
            (true, _) => 0,
            (false, true) => NEVER,
            // Holds may go between two looks at them: then it is worth another try at once.
            (false, false) => nth(&live, in_flight - (limit.limit() - cost)).max(now + 1) - now,
        },
        reset_after: last - now,
        delay: 0,
    };
    ((allowed && cost > 0).then_some(expiry), decision)
}

/// The `n`-th smallest expiry (n from 1), without memory: by bisection of the
/// instant.
fn nth<I: Iterator<Item = Nanos> + Clone>(live: &I, n: u64) -> Nanos {
    let mut low = live.clone().min().unwrap_or(0);
    if n <= 1 {
        return low;
    }
    let mut high = live.clone().max().unwrap_or(low);
    while low < high {
        let middle = low + (high - low) / 2;
        if live.clone().filter(|&expiry| expiry <= middle).count() as u64 >= n {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
