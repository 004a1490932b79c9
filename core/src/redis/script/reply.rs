//! What a script replied.
//!
//! | integers | |
//! |---|---|
//! | `debt` | one token bucket, admitted: microseconds until it is full |
//! | `−1 − debt`, `wait` | one token bucket, denied; both in microseconds |
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
        [debt] if debt >= 0 => {
            let limit = limits.next()?;
            *decisions.first_mut()? = bucket(limit, debt, 0)?;
            return limits.next().is_none().then_some(0);
        }
        [debt, wait] if debt < 0 && wait > 0 => {
            let limit = limits.next()?;
            *decisions.first_mut()? = bucket(limit, -(debt + 1), wait)?; // debt < 0: no overflow
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

/// What a token bucket says of a debt.
fn bucket(limit: &Limit, debt: i64, wait: i64) -> Option<Decision> {
    let debt = nanos(debt)?;
    let spent = u128::from(debt) * u128::from(limit.tick);
    let left = limit.wide_capacity().saturating_sub(spent) / u128::from(limit.token);
    Some(Decision {
        allowed: wait == 0,
        limit: limit.limit(),
        remaining: u64::try_from(left).ok()?,
        retry_after: nanos(wait)?,
        reset_after: debt,
        delay: 0,
    })
}

/// Of microseconds; a span that is too long is cut, and is not [`NEVER`].
fn nanos(micros: i64) -> Option<Nanos> {
    u64::try_from(micros).ok().map(|micros| micros.saturating_mul(1_000).min(NEVER - 1))
}
