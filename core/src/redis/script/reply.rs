//! What a script replied.
//!
//! | integers | |
//! |---|---|
//! | `debt` | one token bucket, admitted: microseconds until it is full |
//! | `−1 − debt` | one token bucket, denied one token |
//! | `−1 − debt`, `wait` | one token bucket, denied more than one; both in microseconds |
//! | `granted`, then for each limit `fits`, `remaining`, `wait`, `reset`, `delay` | any; `wait` is −1 for never, and in microseconds as `reset` is; `delay` in nanoseconds |

use crate::decision::Decision;
use crate::limit::Limit;
use crate::time::{NEVER, Nanos};

/// The reply is not what the script gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply has {0} integers that make no answer")]
pub struct Malformed(pub usize);

/// Reads the reply to a [`Op::Check`](super::Op::Check) of `limits`: one
/// decision each, and the units that were given on top.
///
/// # Errors
/// The integers are not what the script gives, or `decisions` has too little room.
pub fn decode(
    limits: &mut dyn Iterator<Item = &Limit>,
    integers: &[i64],
    decisions: &mut [Decision],
) -> Result<u64, Malformed> {
    read(limits, integers, decisions).ok_or(Malformed(integers.len()))
}

fn read(
    limits: &mut dyn Iterator<Item = &Limit>,
    integers: &[i64],
    decisions: &mut [Decision],
) -> Option<u64> {
    let (granted, mut rest) = match *integers {
        [_] | [_, _] => {
            let limit = limits.next()?;
            *decisions.first_mut()? = bucket(limit, integers)?;
            return limits.next().is_none().then_some(0);
        }
        [granted, ref rest @ ..] => (u64::try_from(granted).ok()?, rest),
        [] => return None,
    };
    let mut decisions = decisions.iter_mut();
    for limit in limits {
        let (&[fits, remaining, wait, reset, delay], after) = rest.split_first_chunk::<5>()?;
        rest = after;
        let retry_after = if wait == -1 { NEVER } else { nanos(wait)? };
        if !(0..=1).contains(&fits) || (fits == 1) != (wait == 0) {
            return None;
        }
        *decisions.next()? = Decision {
            allowed: fits == 1,
            limit: limit.limit(),
            remaining: u64::try_from(remaining).ok()?,
            retry_after,
            reset_after: nanos(reset)?,
            delay: u64::try_from(delay).ok()?,
        };
    }
    rest.is_empty().then_some(granted)
}

/// What a token bucket says of its debt.
fn bucket(limit: &Limit, integers: &[i64]) -> Option<Decision> {
    let (debt, wait) = match *integers {
        [debt] if debt >= 0 => (nanos(debt)?, 0),
        [debt] => {
            let debt = nanos(-(debt + 1))?; // below 0: no overflow
            // What is missing of one token; only a rate of whole nanoseconds a token is answered so.
            let over = u128::from(debt) + u128::from(limit.token);
            (debt, u64::try_from(over.checked_sub(limit.wide_capacity())?).ok()?)
        }
        [debt, wait] if debt < 0 => (nanos(-(debt + 1))?, nanos(wait)?),
        _ => return None,
    };
    let is_denied = integers.first().is_some_and(|&debt| debt < 0);
    if is_denied != (wait > 0) || limit.tick != 1 {
        return None;
    }
    let remaining = match limit.capacity {
        0 => {
            let left = limit.wide_capacity().saturating_sub(u128::from(debt)) / u128::from(limit.token);
            u64::try_from(left).ok()?
        }
        capacity => capacity.saturating_sub(debt).checked_div(limit.token)?,
    };
    Some(Decision {
        allowed: !is_denied,
        limit: limit.limit(),
        remaining,
        retry_after: wait,
        reset_after: debt,
        delay: 0,
    })
}

/// Of microseconds; a span that is too long is cut, and is not [`NEVER`].
fn nanos(micros: i64) -> Option<Nanos> {
    u64::try_from(micros).ok().map(|micros| micros.saturating_mul(1_000).min(NEVER - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: Decision =
        Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };

    #[test]
    fn each_shape_of_reply_is_read() {
        let limit: Limit = "10/s burst 20".parse().unwrap();
        let mut answer = [NONE; 2];
        let mut read = |limits: &[Limit], integers: &[i64]| {
            decode(&mut limits.iter(), integers, &mut answer).map(|granted| (granted, answer[0]))
        };
        let allowed = Decision { allowed: true, limit: 10, remaining: 18, reset_after: 150_000_000, ..NONE };
        assert_eq!(read(&[limit], &[150_000]), Ok((0, allowed)));
        let denied = Decision {
            allowed: false,
            remaining: 0,
            retry_after: 50_000_000,
            reset_after: 1_950_000_000,
            ..allowed
        };
        assert_eq!(read(&[limit], &[-1_950_001]), Ok((0, denied)));
        let denied = Decision { retry_after: 150_000_000, ..denied };
        assert_eq!(read(&[limit], &[-1_950_001, 150_000]), Ok((0, denied)));
        let never = Decision { retry_after: NEVER, ..denied };
        assert_eq!(read(&[limit], &[7, 0, 0, -1, 1_950_000, 0]), Ok((7, never)));
        for (limits, integers) in [
            (&[limit][..], &[][..]),
            (&[limit, limit], &[150_000]),
            (&[limit], &[5, 1, 2, 3]),
            (&[limit, limit], &[0, 1, 0, 0, 0, 0]),
            (&[limit], &[0, 2, 0, 0, 0, 0]),
            (&[limit], &[5, 150_000]),
        ] {
            assert_eq!(read(limits, integers), Err(Malformed(integers.len())), "{integers:?}");
        }
    }

    proptest! {
        #[test]
        fn no_reply_panics(integers in proptest::collection::vec(any::<i64>(), 0..20), count in 1usize..4) {
            let limits: [Limit; 3] = ["1/1us", "leaky_bucket 7/m", "1/3660d"].map(|limit| limit.parse().unwrap());
            let _ = decode(&mut limits.iter().take(count), &integers, &mut [NONE; 2]);
        }
    }
}
