//! Decisions without the store, as a policy's `on_store_error` says.
//!
//! `local` counts in the host's table, under this instance's
//! [piece](super::super::share) of the limit. It carries over what the store
//! last told of the key, so a store that comes and goes does not hand out a
//! burst each time; and when the store is back it is charged what it has
//! [not heard of](super::untold), as far as the piece has yet to recover from
//! that.
//!
//! An instance whose piece of a bucket is less than one unit (10 in 20
//! pieces) admits one unit for each time that its share of the rate takes to
//! bring it, from the first request on: a *knock* that is denied, and says
//! when to come back.

use super::super::share::{Piece, Share};
use super::flight::{Group, Held, Paid};
use super::untold::Untold;
use super::{Host, Store};
use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::limiter::MAX_LAYERS;
use crate::local::LocalStore;
use crate::metrics::StoreEvent;
use crate::policy::check::{Answer, NONE};
use crate::policy::{OnStoreError, Outcome};
use crate::table::{Hold, Tally};
use crate::time::{NEVER, Nanos, SECOND};

/// When to come back, where a store that is away is the reason: 1 s.
const COME_BACK: Nanos = SECOND;
impl Store {
    /// Decides a group; says how it was paid.
    pub(super) fn fall_back(
        &mut self,
        group: &Group,
        layers: &[Option<Held>],
        dry: u16,
        answer: &mut Answer,
        host: &mut Host<'_, '_>,
    ) -> Paid {
        answer.degraded |= group.mask();
        let held = || (group.first..).zip(layers.iter().skip(group.first).take(group.count).flatten());
        let is_dry = dry >> group.first & 1 == 1;
        let denied = if is_dry { Outcome::WouldDeny } else { Outcome::Denied };
        match group.on_store_error {
            OnStoreError::Allow => {
                host.metrics.count(StoreEvent::FallbackAllow);
                for (at, held) in held() {
                    answer.set(at, unknown(&held.limit), Outcome::Admitted);
                }
                Paid::Nothing
            }
            OnStoreError::Deny => {
                host.metrics.count(StoreEvent::FallbackDeny);
                for (at, _) in held() {
                    let decision = Decision {
                        allowed: false,
                        retry_after: COME_BACK,
                        reset_after: COME_BACK,
                        ..NONE // no limit was asked
                    };
                    answer.set(at, decision, denied);
                }
                Paid::Nothing
            }
            OnStoreError::Local => {
                host.metrics.count(StoreEvent::FallbackLocal);
                self.carry_over(group, layers, host);
                self.leases.fell_back(group.pot, host.now);
                self.remember_origin(layers, &Group { piece: 0, ..*group });
                let pieces: [_; MAX_LAYERS] = core::array::from_fn(|at| {
                    let held = layers.get(at).filter(|_| group.mask() >> at & 1 == 1)?.as_ref()?;
                    Some(self.piece(&held.limit, group))
                });
                let admits = |at: usize, held: &Held| match pieces.get(at) {
                    Some(Some(piece)) => ask(host.table, held, piece, Take::Peek, host.now).0,
                    _ => NONE,
                };
                let mut all = true;
                for (at, held) in held() {
                    let decision = admits(at, held);
                    all &= decision.allowed;
                    answer.set(at, decision, if decision.allowed { Outcome::Admitted } else { denied });
                }
                if !all {
                    let spared = if is_dry { Outcome::Admitted } else { Outcome::Spared };
                    for at in group.first..group.first + group.count {
                        if answer.outcomes.get(at) == Some(&Outcome::Admitted) {
                            answer.set(at, answer.decisions.get(at).copied().unwrap_or(NONE), spared);
                        }
                    }
                    // A knock is remembered.
                    for (at, held) in held() {
                        if let Some(Some(piece @ Piece::Fraction(_))) = pieces.get(at) {
                            let _ = ask(host.table, held, piece, Take::Knock, host.now);
                        }
                    }
                    return Paid::Nothing;
                }
                for (at, held) in held() {
                    let Some(Some(piece)) = pieces.get(at) else { continue };
                    let (decision, hold) = ask(host.table, held, piece, Take::Charge, host.now);
                    if !decision.allowed {
                        // Another worker was quicker: what the limits before were charged goes back.
                        answer.set(at, decision, denied);
                        let before = Group { count: at - group.first, ..*group };
                        self.undo_fallback(&before, layers, &mut answer.holds, host);
                        if !is_dry {
                            group.spare(answer);
                        }
                        return Paid::Nothing;
                    }
                    if let Some(untold) = untold(host.table, held, piece) {
                        untold.add(held.cost, decision.reset_after, host.now);
                    }
                    if let Some(room) = answer.holds.get_mut(at) {
                        *room = hold;
                    }
                    answer.set(at, decision, Outcome::Admitted);
                }
                Paid::Local
            }
        }
    }

    /// This instance's piece of a limit, in this region. Which instances have
    /// the remainder differs from key to key, and is the same for all.
    fn piece(&self, limit: &Limit, group: &Group) -> Piece {
        let regional = match self.region.of_limit(limit) {
            Ok(Piece::Some(limit) | Piece::Fraction(limit)) => limit,
            _ => return Piece::Nothing,
        };
        let share = match self.instance {
            Some(instance) => {
                let by = group.text.as_bytes().iter().map(|byte| u64::from(*byte)).sum();
                Share::nth(instance, self.instances).map(|share| share.rotated(by))
            }
            None => Share::nth(0, self.instances), // the first has the floor of the division
        };
        share.and_then(|share| share.of_limit(&regional)).unwrap_or(Piece::Nothing)
    }

    /// Charges this machine's piece with what the store last told, unless it
    /// owes as much already.
    pub(super) fn carry_over(&mut self, group: &Group, layers: &[Option<Held>], host: &mut Host<'_, '_>) {
        self.leases.redate(group.pot, group.lease.map_or(0, |lease| lease.ttl), host.now);
        for (index, held) in layers.iter().skip(group.first).take(group.count).flatten().enumerate() {
            let Piece::Some(piece) = self.piece(&held.limit, group) else { continue };
            if piece.algorithm() == Algorithm::Concurrency {
                continue; // units in flight elsewhere are not this machine's
            }
            let told = self.told_debt(group, index, &held.limit, host.now).div_ceil(self.instances.max(1));
            let missing = told.saturating_sub(debt(host.table, held.fingerprint, &piece, host.now));
            if missing > 0 {
                let left = host.table.peek_fingerprint(held.fingerprint, &piece, 0, host.now).remaining;
                let cost = missing.min(left);
                let _ = host.table.check_fingerprint(held.fingerprint, &piece, cost, host.now);
            }
        }
    }

    /// Units that this machine admitted and the store has not heard of, as far
    /// as its piece has yet to recover from them.
    pub(super) fn owed(&self, group: &Group, held: &Held, host: &Host<'_, '_>) -> u64 {
        let piece = self.piece(&held.limit, group);
        let (Piece::Some(limit), Some(untold)) = (piece, untold(host.table, held, &piece)) else { return 0 };
        untold.units(host.now).min(debt(host.table, held.fingerprint, &limit, host.now))
    }

    /// The store is being told of so many: no other worker has to.
    pub(super) fn is_told(&self, held: &Held, group: &Group, units: u64, host: &Host<'_, '_>) {
        if let Some(untold) = untold(host.table, held, &self.piece(&held.limit, group)) {
            untold.take(units, host.now);
        }
    }

    /// It does not answer: they are to be told again, for as long as the piece
    /// has yet to recover from them.
    pub(super) fn is_not_told(&self, held: &Held, group: &Group, units: u64, host: &Host<'_, '_>) {
        let piece = self.piece(&held.limit, group);
        if let (Piece::Some(limit), Some(untold)) = (piece, untold(host.table, held, &piece)) {
            let span = host.table.peek_fingerprint(held.fingerprint, &limit, 0, host.now).reset_after;
            untold.add(units, span, host.now);
        }
    }

    /// Units that the store knew of when it was last heard and does not know
    /// now: it came back without its memory. This machine tells what its piece
    /// was charged for them; all machines together tell all.
    pub(super) fn forgotten(&self, group: &Group, held: &Held, said: &Decision, host: &Host<'_, '_>) -> u64 {
        let Piece::Some(piece) = self.piece(&held.limit, group) else { return 0 };
        if group.pieces > 1 || piece.algorithm() == Algorithm::Concurrency {
            return 0;
        }
        let counted = self.counted(&held.limit, 0, 1);
        let took = host.now.saturating_sub(group.asked_at);
        let expected = expected_after(group.expected, &counted, took, said.reset_after);
        let known = spent(&counted, said.remaining, said.reset_after);
        // What others gave back is no loss.
        if known >= expected - expected / 8 {
            return 0;
        }
        let charged = debt(host.table, held.fingerprint, &piece, host.now);
        let told = self.reminded(held, group, host).map_or(0, |told| told.units(host.now));
        (expected - known).min(charged.saturating_sub(told))
    }

    /// What the store is being reminded of under this machine's piece.
    pub(super) fn reminded<'h, 'm>(
        &self,
        held: &Held,
        group: &Group,
        host: &Host<'h, 'm>,
    ) -> Option<Untold<'h, 'm>> {
        let Piece::Some(piece) = self.piece(&held.limit, group) else { return None };
        Untold::reminded(host.table, held.fingerprint, &piece)
    }

    /// What the store said was spent of a limit, less what time has given back:
    /// of a region's part, and of a divided key as if all pieces were as its
    /// first.
    pub(super) fn told_debt(&self, group: &Group, index: usize, limit: &Limit, now: Nanos) -> u64 {
        let Some((told, _)) = self.leases.told(group.pot) else { return 0 };
        let Some(told) = told.get(index).filter(|told| told.reset_at > now) else { return 0 };
        let counted = self.counted(limit, 0, group.pieces);
        let debt = spent(&counted, told.remaining, told.reset_at - now);
        debt.saturating_mul(u64::from(group.pieces)).min(limit.burst())
    }

    /// Gives back what a fallback was charged.
    pub(super) fn undo_fallback(
        &self,
        group: &Group,
        layers: &[Option<Held>],
        holds: &mut [Hold],
        host: &mut Host<'_, '_>,
    ) {
        let all = layers.iter().zip(holds).skip(group.first).take(group.count);
        for (held, hold) in all.filter_map(|(held, hold)| Some((held.as_ref()?, hold))) {
            let piece = self.piece(&held.limit, group);
            if let Piece::Some(limit) = &piece {
                host.table.refund_fingerprint(held.fingerprint, limit, held.cost, host.now);
            }
            if let Some(untold) = untold(host.table, held, &piece) {
                untold.take(held.cost, host.now);
            }
            host.table.release(hold);
            *hold = Hold::default();
        }
    }
}

/// What is done with a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    Peek,
    Charge,
    /// As a peek, but a piece of less than a unit remembers that it was asked.
    Knock,
}

fn ask(table: &dyn LocalStore, held: &Held, piece: &Piece, take: Take, now: Nanos) -> (Decision, Hold) {
    let (key, cost) = (held.fingerprint, held.cost);
    let decision = match piece {
        Piece::Nothing => Decision {
            allowed: cost == 0,
            remaining: 0,
            retry_after: if cost == 0 { 0 } else { COME_BACK },
            reset_after: COME_BACK,
            ..unknown(&held.limit)
        },
        Piece::Fraction(limit) => knock(table, key, limit, cost, take, now),
        Piece::Some(limit) if limit.algorithm() == Algorithm::Concurrency && take == Take::Charge => {
            let (decision, hold) = table.acquire_fingerprint(key, limit, cost, now);
            return (whole(decision, held), hold);
        }
        Piece::Some(limit) if !table.is_countable(limit) => unknown(limit), // told when rules are taken up
        Piece::Some(limit) if take == Take::Charge => table.check_fingerprint(key, limit, cost, now),
        Piece::Some(limit) => table.peek_fingerprint(key, limit, cost, now),
    };
    (whole(decision, held), Hold::default())
}

/// What the store has not heard of, beside this piece. None of units in flight,
/// which are over before it could, nor of a fraction, which is none.
fn untold<'t, 'm>(table: &'t (dyn LocalStore + 'm), held: &Held, piece: &Piece) -> Option<Untold<'t, 'm>> {
    match piece {
        Piece::Some(limit) if limit.algorithm() != Algorithm::Concurrency => {
            Untold::admitted(table, held.fingerprint, limit)
        }
        _ => None,
    }
}

/// The limit as clients know it; and a cost that only the whole limit fits is
/// worth another try.
fn whole(decision: Decision, held: &Held) -> Decision {
    let is_over = decision.retry_after == NEVER && held.cost <= held.limit.burst();
    let retry_after = if is_over { COME_BACK } else { decision.retry_after };
    Decision { limit: held.limit.limit(), retry_after, ..decision }
}

/// A piece that brings one unit in each `wait`, and has none to begin with.
/// It remembers the last knock or admission, for twice as long.
fn knock(
    table: &dyn LocalStore,
    key: Fingerprint,
    limit: &Limit,
    cost: u64,
    take: Take,
    now: Nanos,
) -> Decision {
    let wait = u64::try_from(u128::from(limit.token).div_ceil(u128::from(limit.tick))).unwrap_or(NEVER - 1);
    let decision = |left: Nanos| Decision {
        allowed: cost == 0 || (cost == 1 && left == 0),
        remaining: u64::from(left == 0),
        retry_after: if cost <= 1 { left } else { COME_BACK },
        reset_after: left,
        ..unknown(limit)
    };
    let Ok(count) = Limit::new(Algorithm::FixedWindow, 1, limit.period()) else { return decision(wait) };
    let mut told = decision(wait);
    table.tally(key, &count, now, &mut |tally, now| {
        let since = tally.forgotten_at.saturating_sub(wait.saturating_mul(2));
        // What has yet to begin was not written by us.
        let is_known = tally.count > 0 && tally.forgotten_at > now && since <= now;
        let left = if is_known { since.saturating_add(wait).saturating_sub(now) } else { wait };
        told = decision(left);
        let begins = match take {
            Take::Peek => false,
            Take::Charge => told.allowed && cost > 0,
            Take::Knock => !is_known && cost == 1,
        };
        let forgotten_at = now.saturating_add(wait.saturating_mul(2)).min(NEVER - 1);
        begins.then_some(Tally { count: 1, forgotten_at })
    });
    told
}

/// Units that were spent of a limit that says so much of itself.
fn spent(limit: &Limit, remaining: u64, reset_after: Nanos) -> u64 {
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let units = u128::from(reset_after) * u128::from(limit.tick);
            u64::try_from(units.div_ceil(u128::from(limit.token))).unwrap_or(u64::MAX)
        }
        _ => limit.burst().saturating_sub(remaining),
    }
}

/// What the store is to know of units that it knew so long ago: a stopped one
/// may answer late, and has lost nothing for that.
fn expected_after(expected: u64, limit: &Limit, took: Nanos, reset_after: Nanos) -> u64 {
    let units = match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            u128::from(took) * u128::from(limit.tick) / u128::from(limit.token).max(1)
        }
        // It may be another window by now.
        Algorithm::FixedWindow if limit.period().saturating_sub(reset_after) <= took => return 0,
        _ => u128::from(took) * u128::from(limit.burst()) / u128::from(limit.period()).max(1),
    };
    expected.saturating_sub(u64::try_from(units).unwrap_or(u64::MAX))
}

/// Units that a bucket or window of the table has yet to recover from.
fn debt(table: &dyn LocalStore, key: Fingerprint, limit: &Limit, now: Nanos) -> u64 {
    limit.burst().saturating_sub(table.peek_fingerprint(key, limit, 0, now).remaining)
}

/// A limit of which nothing is known.
fn unknown(limit: &Limit) -> Decision {
    Decision { limit: limit.limit(), remaining: limit.burst(), ..NONE }
}
