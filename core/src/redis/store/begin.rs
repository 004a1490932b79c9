//! A request comes in: paid from memory, denied from memory, or asked.

use super::super::key;
use super::super::lease::{Spend, TOLD};
use super::flight::{Group, Held, Paid, Phase, pot_of};
use super::{Host, Pending, Progress, Store, is_remote};
use crate::algorithm::token_bucket::{self, Tat};
use crate::decision::Decision;
use crate::limit::{Algorithm, Limit};
use crate::limiter::{self, MAX_LAYERS};
use crate::local::LocalStore;
use crate::metrics::StoreEvent;
use crate::policy::check::{Asked, NONE};
use crate::policy::key::ROOM;
use crate::policy::{self, Layer, Outcome, Policy, Rules, Selection};
use crate::time::Nanos;

/// A group as memory has it.
#[derive(Clone, Copy)]
struct Seen {
    first: usize,
    count: usize,
    pot: u64,
    piece: u32,
    paid: Paid,
    /// More should be fetched.
    low: bool,
}

/// What becomes of a request under one limit.
#[expect(clippy::large_enum_variant, reason = "an answer is what it is there for; boxing would allocate")]
pub(crate) enum One {
    /// Memory knows what the limit says.
    Known(Decision, Outcome),
    /// It does not.
    Asked(Progress),
}

impl Store {
    /// Asks all limits of a selection, all or none. Allocates nothing.
    ///
    /// A request that has to wait is told by
    /// [`poll_answer`](Self::poll_answer), under the number `user`.
    pub fn check(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        user: u64,
        host: &mut Host<'_, '_>,
    ) -> Progress {
        let remote = rules.layers_of(selection, is_remote);
        if remote == 0 {
            return Progress::Answered(policy::check(rules, host.table, selection, host.now));
        }
        match self.one(rules, selection, user, host) {
            Some(One::Known(decision, outcome)) => {
                let mut answer = policy::check::empty(1);
                answer.set_only(&decision, outcome);
                return Progress::Answered(answer);
            }
            Some(One::Asked(progress)) => return progress,
            None => {}
        }
        let mut asked = Asked::new(rules, host.table, selection, remote, host.now);
        asked.before(selection);
        let mut seen = [None; MAX_LAYERS];
        if asked.answer.denied() {
            self.wait_for_limits(rules, selection, remote, &mut asked, host);
        } else {
            self.look_up(rules, selection, remote, &mut asked, &mut seen, host);
            if asked.answer.denied() {
                asked.strike(selection);
            } else {
                asked.enforced(selection);
            }
        }
        if asked.answer.denied() {
            self.undo_memory(&seen, selection, &mut asked);
        }
        let denied = asked.answer.denied();
        let asks = |seen: &&Seen| seen.paid == Paid::Asked;
        // A policy in dry run never keeps a denial waiting.
        let waits = !denied && seen.iter().flatten().any(|seen| asks(&seen));
        if !waits {
            let answer = asked.finish(selection);
            self.fetch_low(rules, selection, &seen, host);
            return Progress::Answered(answer);
        }
        match self.take_off(rules, selection, &seen, Some(&mut asked), user, host) {
            Some(progress) => progress,
            None => self.without_flight(rules, selection, &seen, asked, host),
        }
    }

    /// The most frequent request, which is under one limit: the same as below,
    /// without the care that several need.
    pub(crate) fn one(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        user: u64,
        host: &mut Host<'_, '_>,
    ) -> Option<One> {
        let layer = selection.layers().next().filter(|_| selection.len() == 1)?;
        let policy = rules.policies().get(layer.policy)?;
        let is_plain = policy.shards() <= 1 && !policy.dry_run() && policy.penalty().is_none();
        if !is_plain || !is_remote(policy) || layer.cost > layer.limit.burst() {
            return None;
        }
        let pot = mixed(self.hash.fingerprint(layer.key()).0, layer).max(1);
        let (first, count, piece) = (0, 1, 0);
        let said = self.leases.spend(pot, layer.cost, host.now);
        let (outcome, low) = match said {
            Spend::Ask => {
                let (paid, low) = (Paid::Asked, false);
                let seen = Seen { first, count, pot, piece, paid, low };
                return self.take_off(rules, selection, &[Some(seen)], None, user, host).map(One::Asked);
            }
            Spend::Taken { low, .. } => {
                host.metrics.count(StoreEvent::LeaseHit);
                (Outcome::Admitted, low)
            }
            Spend::Denied { .. } => {
                host.metrics.count(StoreEvent::DenialHit);
                (Outcome::Denied, false)
            }
        };
        let decision = self.remembered(layer.limit, layer.cost, &said, (pot, 1), 0, host.now);
        if low {
            let seen = Seen { first, count, pot, piece, paid: Paid::Pot, low };
            self.fetch_low(rules, selection, &[Some(seen)], host);
        }
        Some(One::Known(decision, outcome))
    }

    /// Every group, as far as memory can tell.
    fn look_up(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        remote: u16,
        asked: &mut Asked<'_, dyn LocalStore + '_>,
        seen: &mut [Option<Seen>; MAX_LAYERS],
        host: &mut Host<'_, '_>,
    ) {
        let mut layers = selection.layers().enumerate().peekable();
        let mut rooms = seen.iter_mut();
        while let Some((first, layer)) = layers.next() {
            if remote >> first & 1 == 0 {
                continue;
            }
            let mut fits = layer.cost <= layer.limit.burst();
            let mut pot = mixed(self.hash.fingerprint(layer.key()).0, layer);
            let mut count = 1;
            while let Some((_, next)) = layers.next_if(|(_, next)| next.policy == layer.policy) {
                pot = mixed(pot, next);
                fits &= next.cost <= next.limit.burst();
                count += 1;
            }
            let Some(policy) = rules.policies().get(layer.policy) else { continue };
            let dry = asked.dry >> first & 1 == 1;
            let members = selection.layers().skip(first).take(count);
            let (pot, piece, paid, low) = (pot.max(1), 0, Paid::Nothing, false);
            let group = Seen { first, count, pot, piece, paid, low };
            let group = if fits {
                self.look(policy, group, layer.cost, members, asked, dry, host)
            } else {
                for (place, layer) in members.enumerate() {
                    let fits = layer.cost <= layer.limit.burst();
                    let (decision, outcome) = if fits {
                        (whole(layer), spared(dry))
                    } else {
                        (Decision::never(layer.limit), denied(dry))
                    };
                    asked.answer.set(first + place, decision, outcome);
                }
                group
            };
            if let Some(room) = rooms.next() {
                *room = Some(group);
            }
        }
    }

    /// The first piece that pays; else one that may be asked; else a denial.
    #[expect(clippy::too_many_arguments, reason = "one request's whole context")]
    fn look<'r>(
        &mut self,
        policy: &Policy,
        mut group: Seen,
        cost: u64,
        members: impl Iterator<Item = &'r Layer<'r>> + Clone,
        asked: &mut Asked<'_, dyn LocalStore + '_>,
        dry: bool,
        host: &mut Host<'_, '_>,
    ) -> Seen {
        let pieces = policy.shards().max(1);
        let turn = if pieces > 1 { self.turn } else { 0 };
        self.turn = self.turn.wrapping_add(1);
        let mut soonest: Option<(Nanos, Spend, u32)> = None;
        let mut ask = None;
        for step in 0..pieces {
            let piece = turn.wrapping_add(step) % pieces;
            let said = self.leases.spend(pot_of(group.pot, piece), cost, host.now);
            match said {
                Spend::Taken { low, .. } => {
                    (group.piece, group.paid, group.low) = (piece, Paid::Pot, low);
                    host.metrics.count(StoreEvent::LeaseHit);
                    let pot = (pot_of(group.pot, piece), pieces);
                    for (place, layer) in members.enumerate() {
                        let decision = self.remembered(layer.limit, cost, &said, pot, place, host.now);
                        asked.answer.set(group.first + place, decision, Outcome::Admitted);
                    }
                    return group;
                }
                Spend::Ask => ask = ask.or(Some(piece)),
                Spend::Denied { until, .. } => {
                    if soonest.is_none_or(|(soonest, ..)| until < soonest) {
                        soonest = Some((until, said, piece));
                    }
                }
            }
        }
        if let Some(piece) = ask {
            (group.piece, group.paid) = (piece, Paid::Asked);
            return group;
        }
        let Some((_, said, piece)) = soonest else { return group };
        host.metrics.count(StoreEvent::DenialHit);
        let pot = (pot_of(group.pot, piece), pieces);
        for (place, layer) in members.enumerate() {
            let decision = self.remembered(layer.limit, cost, &said, pot, place, host.now);
            let outcome = if decision.allowed { spared(dry) } else { denied(dry) };
            asked.answer.set(group.first + place, decision, outcome);
        }
        group
    }

    /// Another limit denied: what was paid from pots goes back, and what was
    /// not asked is told as it was last heard.
    fn undo_memory(
        &mut self,
        seen: &[Option<Seen>],
        selection: &Selection<'_>,
        asked: &mut Asked<'_, dyn LocalStore + '_>,
    ) {
        for group in seen.iter().flatten() {
            let members = selection.layers().skip(group.first).take(group.count).enumerate();
            if asked.dry >> group.first & 1 == 1 {
                if group.paid == Paid::Asked {
                    for (place, layer) in members {
                        asked.answer.set(group.first + place, whole(layer), Outcome::Spared);
                    }
                }
                continue; // it counts on its own
            }
            for (place, layer) in members {
                let at = group.first + place;
                match group.paid {
                    Paid::Pot => {
                        let decision = asked.answer.decisions.get(at).copied().unwrap_or(NONE);
                        let remaining = decision.remaining.saturating_add(layer.cost);
                        asked.answer.set(at, Decision { remaining, ..decision }, Outcome::Spared);
                    }
                    Paid::Asked => asked.answer.set(at, whole(layer), Outcome::Spared),
                    _ => {}
                }
            }
            if let (Paid::Pot, Some(layer)) = (group.paid, selection.layers().nth(group.first)) {
                self.leases.unspend(pot_of(group.pot, group.piece), layer.cost);
            }
        }
    }

    /// Keeps the request until its groups are answered, and asks. None if
    /// there is no room to wait.
    fn take_off(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        seen: &[Option<Seen>],
        asked: Option<&mut Asked<'_, dyn LocalStore + '_>>,
        user: u64,
        host: &mut Host<'_, '_>,
    ) -> Option<Progress> {
        let place = self.claim_flight(Phase::Waiting, user, host.now)?;
        let timeout = self.timeout;
        let (is_decided, generation) = self.with_flight(place, |store, flight| {
            match asked {
                Some(asked) => {
                    asked.dry_run(selection);
                    (flight.dry, flight.answer) = (asked.dry, asked.answer);
                }
                None => flight.answer.reset(selection.len()),
            }
            for (room, (at, layer)) in flight.layers.iter_mut().zip(selection.layers().enumerate()) {
                *room = Some(held(rules, layer, seen, at, host));
            }
            for (room, seen) in flight.groups.iter_mut().zip(seen.iter().flatten()) {
                fill(room, rules, selection, seen, timeout, host.now);
                flight.group_count += 1;
            }
            flight.unanswered = 1; // not before all were asked
            store.ask_all(place, flight, host);
            flight.unanswered = flight.unanswered.saturating_sub(1);
            (store.conclude(place, flight, host), flight.generation)
        })?;
        if is_decided {
            // At once, without the store.
            return self.with_flight(place, |store, flight| {
                store.free_flight(place, flight);
                Progress::Answered(flight.answer)
            });
        }
        self.waiting += 1;
        host.metrics.count(StoreEvent::Waiting);
        Some(Progress::Waiting(Pending(super::flight::ticket(place, generation, 0))))
    }

    /// No room to wait: decided as if the store were away.
    fn without_flight(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        seen: &[Option<Seen>],
        mut asked: Asked<'_, dyn LocalStore + '_>,
        host: &mut Host<'_, '_>,
    ) -> Progress {
        let mut layers = [None; MAX_LAYERS];
        for (room, (at, layer)) in layers.iter_mut().zip(selection.layers().enumerate()) {
            *room = Some(held(rules, layer, seen, at, host));
        }
        let mut seen: [Option<Seen>; MAX_LAYERS] = core::array::from_fn(|at| *seen.get(at)?);
        let mut fell_back = [None; MAX_LAYERS];
        for (seen, room) in seen.iter_mut().flatten().zip(&mut fell_back) {
            if seen.paid == Paid::Asked {
                let group = room.insert(Group::default());
                fill(group, rules, selection, seen, self.timeout, host.now);
                seen.paid = self.fall_back(group, &layers, asked.dry, &mut asked.answer, host);
                group.paid = seen.paid;
            }
        }
        if asked.answer.denied() {
            // What this machine's limits were charged goes back.
            for (at, layer) in selection.layers().enumerate() {
                let is_local = layers.get(at).is_some_and(|held| held.is_some_and(|held| !held.remote));
                let charged = asked.answer.outcomes.get(at) == Some(&Outcome::Admitted);
                if is_local && charged && asked.dry >> at & 1 == 0 {
                    let hold = asked.answer.holds.get_mut(at..=at).unwrap_or(&mut []);
                    limiter::give_back(host.table, &[layer.request()], hold, host.now);
                }
            }
            for group in fell_back.iter().flatten().filter(|group| asked.dry >> group.first & 1 == 0) {
                if group.paid == Paid::Local {
                    self.undo_fallback(group, &layers, &mut asked.answer.holds, host);
                }
                group.spare(&mut asked.answer);
            }
            self.undo_memory(&seen, selection, &mut asked);
            asked.strike(selection);
        }
        Progress::Answered(asked.finish(selection))
    }

    /// A limit, as a pot speaks for it. One that paid: by what the store last
    /// said, and the units that are left. One that denies: as the store would
    /// say by now, had nobody else come; what it last said, later by the time
    /// that passed. That is known of whole buckets and fixed windows; of the
    /// others, and of parts, that no less is left. `pot` is the pot, and how
    /// many pieces its key has.
    pub(super) fn remembered(
        &self,
        limit: &Limit,
        cost: u64,
        said: &Spend,
        pot: (u64, u32),
        place: usize,
        now: Nanos,
    ) -> Decision {
        let told = self.leases.told(pot.0);
        let told = told.and_then(|(told, _)| told.get(place.min(TOLD - 1))).copied().unwrap_or_default();
        let (mut left, mut retry_after) = (told.remaining, 0);
        let reset_after = told.reset_at.saturating_sub(now);
        match *said {
            Spend::Denied { until, by } => {
                match limit.algorithm() {
                    _ if place >= TOLD => left = 0, // what is told there is another limit's
                    _ if pot.1 > 1 || !self.region.is_whole() => {} // of a part, no less is left
                    Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                        let tat = Tat { at: told.reset_at, part: 0 };
                        let (_, by_now) = token_bucket::decide(tat, limit, now, cost);
                        let spared = if by_now.allowed { cost } else { 0 };
                        // Its time may have been rounded up: no less is left than was.
                        left = left.max(by_now.remaining.saturating_add(spared));
                        retry_after = by_now.retry_after;
                    }
                    _ if reset_after == 0 => left = limit.burst(),
                    Algorithm::FixedWindow if left < cost => retry_after = reset_after,
                    _ => {}
                }
                if by == place {
                    left = left.min(cost.saturating_sub(1));
                    retry_after = retry_after.max(until.saturating_sub(now)).max(1);
                }
            }
            Spend::Taken { left: more, .. } => left = left.saturating_add(more),
            Spend::Ask => {}
        }
        let (allowed, remaining) = (retry_after == 0, left.min(limit.burst()));
        let reset_after = reset_after.max(retry_after);
        Decision { allowed, limit: limit.limit(), remaining, retry_after, reset_after, delay: 0 }
    }

    /// Fetches more for the pots that are low.
    fn fetch_low(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        seen: &[Option<Seen>],
        host: &mut Host<'_, '_>,
    ) {
        for seen in seen.iter().flatten().filter(|seen| seen.low) {
            let mut group = Group::default();
            if fill(&mut group, rules, selection, seen, self.timeout, host.now).is_some() {
                let limits = selection.layers().skip(seen.first).take(seen.count);
                let table = host.table;
                let held = |layer: &Layer<'_>| (*layer.limit, table.fingerprint(layer.key()));
                let layers = limits.map(|layer| Held::of(held(layer)));
                self.prefetch(group, layers, host);
            }
        }
    }
}

/// Takes the limit's own numbers into the pot's key: a pot of other limits is
/// another pot.
#[inline]
pub(super) fn mixed(pot: u64, layer: &Layer<'_>) -> u64 {
    let limit = layer.limit;
    let numbers = limit.limit() << 32 ^ limit.burst() ^ limit.period() ^ limit.meaning[0].rotate_left(17);
    (pot ^ numbers).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

fn held(rules: &Rules, layer: &Layer<'_>, seen: &[Option<Seen>], at: usize, host: &Host<'_, '_>) -> Held {
    let penalty = rules.policies().get(layer.policy).and_then(Policy::penalty);
    let mut groups = seen.iter().flatten();
    let seen = groups.find(|seen| (seen.first..seen.first + seen.count).contains(&at));
    Held {
        limit: *layer.limit,
        fingerprint: host.table.fingerprint(layer.key()),
        cost: layer.cost,
        remote: seen.is_some(),
        policy: layer.policy,
        index: layer.index,
        overridden: layer.overridden,
        penalty: penalty
            .map(|penalty| (host.table.fingerprint(layer.subject(&mut [0; ROOM]).as_slice()), penalty)),
    }
}

/// Writes a group where it lies. None, and nothing that matters is written, if
/// there is no such policy.
fn fill(
    room: &mut Group,
    rules: &Rules,
    selection: &Selection<'_>,
    seen: &Seen,
    timeout: Nanos,
    now: Nanos,
) -> Option<()> {
    let layer = selection.layers().nth(seen.first)?;
    let policy = rules.policies().get(layer.policy)?;
    key::write_base(rules, layer, &mut room.text);
    let deadline = now.saturating_add(policy.own_timeout().unwrap_or(timeout));
    (room.first, room.count) = (seen.first, seen.count);
    (room.pot, room.piece, room.paid) = (seen.pot, seen.piece, seen.paid);
    (room.pieces, room.tried) = (policy.shards().max(1), 1);
    (room.cost, room.id) = (layer.cost, 0);
    (room.owed, room.forgotten, room.expected) = (None, false, 0);
    (room.is_late, room.more, room.behind) = (false, 0, None);
    (room.asked_at, room.deadline, room.wanted_by) = (now, deadline, deadline);
    (room.lease, room.on_store_error) = (policy.lease(), policy.on_store_error());
    Some(())
}

/// A limit of which nothing is known.
fn whole(layer: &Layer<'_>) -> Decision {
    Decision { limit: layer.limit.limit(), remaining: layer.limit.burst(), ..NONE }
}

fn denied(dry: bool) -> Outcome {
    if dry { Outcome::WouldDeny } else { Outcome::Denied }
}

fn spared(dry: bool) -> Outcome {
    if dry { Outcome::Admitted } else { Outcome::Spared }
}
