//! Several limits at once: all are charged, or none.
//!
//! Every limit is read first, and nothing is charged when one of them denies.
//! A limit that other requests used up between the reading and the charging
//! denies then, and those charged before it are refunded.

use crate::decision::Decision;
use crate::limit::Algorithm;
use crate::local::LocalStore;
use crate::table::{Hold, Request};
use crate::time::Nanos;

/// The most limits of one request.
pub const MAX_LAYERS: usize = 16;

/// What several limits said together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The index of the answer that stands for all: of those that deny, the
    /// one that takes longest; else the one that leaves least.
    pub tightest: usize,
    /// Did all admit, and were all charged?
    pub allowed: bool,
}

/// Asks up to [`MAX_LAYERS`] limits; `decisions[i]` and `holds[i]` answer
/// `requests[i]`. Nothing if there is no request, more than
/// [`MAX_LAYERS`], or too little room for the answers.
///
/// When one denies, nothing of the others is charged, and their decisions tell
/// what they hold. Two requests for the same key and limit are
/// two charges.
pub fn check_all<T: LocalStore + ?Sized>(
    table: &T,
    requests: &[Request<'_>],
    now: Nanos,
    decisions: &mut [Decision],
    holds: &mut [Hold],
) -> Option<Verdict> {
    let count = requests.len();
    let decisions = decisions.get_mut(..count)?;
    let holds = holds.get_mut(..count)?;
    if count == 0 || count > MAX_LAYERS {
        return None;
    }
    holds.fill(Hold::default());
    if count > 1 {
        for (request, decision) in requests.iter().zip(decisions.iter_mut()) {
            *decision =
                table.peek_fingerprint(table.fingerprint(request.key), request.limit, request.cost, now);
        }
        if decisions.iter().any(|decision| !decision.allowed) {
            spare(table, requests, now, decisions);
            return Some(verdict(decisions));
        }
    }
    for index in 0..count {
        let (before, rest) = holds.split_at_mut(index);
        let (Some(request), Some(decision), Some(hold)) =
            (requests.get(index), decisions.get_mut(index), rest.first_mut())
        else {
            return None;
        };
        if request.limit.algorithm() == Algorithm::Concurrency {
            (*decision, *hold) =
                table.acquire_fingerprint(table.fingerprint(request.key), request.limit, request.cost, now);
        } else {
            *decision =
                table.check_fingerprint(table.fingerprint(request.key), request.limit, request.cost, now);
        }
        if !decision.allowed {
            give_back(table, requests.get(..index)?, before, now);
            spare(table, requests, now, decisions);
            return Some(verdict(decisions));
        }
    }
    Some(verdict(decisions))
}

/// Gives back what [`check_all`] charged at `now`, holds included.
pub fn give_back<T: LocalStore + ?Sized>(
    table: &T,
    requests: &[Request<'_>],
    holds: &mut [Hold],
    now: Nanos,
) {
    for request in requests {
        table.refund_fingerprint(table.fingerprint(request.key), request.limit, request.cost, now);
    }
    for hold in holds {
        table.release(hold);
        *hold = Hold::default();
    }
}

/// Limits that admitted and were not charged: what they hold now.
fn spare<T: LocalStore + ?Sized>(
    table: &T,
    requests: &[Request<'_>],
    now: Nanos,
    decisions: &mut [Decision],
) {
    for (request, decision) in requests.iter().zip(decisions).filter(|(_, decision)| decision.allowed) {
        *decision = table.peek_fingerprint(table.fingerprint(request.key), request.limit, 0, now);
    }
}

fn verdict(decisions: &[Decision]) -> Verdict {
    let mut all = decisions.iter().enumerate();
    let Some(first) = all.next() else { return Verdict { tightest: 0, allowed: true } };
    let (tightest, decision) =
        all.fold(first, |best, next| if next.1.is_tighter_than(best.1) { next } else { best });
    Verdict { tightest, allowed: decision.allowed }
}
