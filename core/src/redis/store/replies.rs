//! Calls go out, and their answers come in.

use super::super::lease::{Denial, Grant, Spend};
use super::super::link::Refused;
use super::super::script::{self, Ask, Call, Op};
use super::super::share::{Piece, Share};
use super::asks;
use super::flight::{Flight, Group, Held, PROBE, Paid, Phase, of_ticket, ticket};
use super::late::Late;
use super::{Failure, Host, Store};
use crate::decision::Decision;
use crate::limit::{Algorithm, Limit};
use crate::limiter::MAX_LAYERS;
use crate::metrics::StoreEvent;
use crate::policy::Outcome;
use crate::policy::check::NONE;
use crate::time::{NEVER, Nanos};

/// What others fetched and did not spend is back so long after its time is
/// over: 0.5 s.
const GIVEN_BACK: Nanos = 500_000_000;

/// What is told where this region has no part of a limit: come back in a
/// second, when it may have one.
const NOTHING: Decision = Decision {
    allowed: false,
    limit: 0,
    remaining: 0,
    retry_after: 1_000_000_000,
    reset_after: 1_000_000_000,
    delay: 0,
};

impl Store {
    /// The integers that a call was answered with.
    pub fn replied(&mut self, ticket: u64, integers: &[i64], host: &mut Host<'_, '_>) {
        let Some((place, index)) = self.asked_by(ticket) else {
            return self.answered(ticket, &mut [], 0, host);
        };
        let Some(flight) = self.flight(place) else { return };
        let Some(group) = flight.groups.get(index) else { return };
        let is_owed = group.owed.is_some();
        let limits = self.limits_of(&flight.layers, group);
        let (mut one, mut many);
        let decisions = if group.count == 1 {
            one = [NONE; 1];
            &mut one[..]
        } else {
            many = [NONE; MAX_LAYERS];
            many.get_mut(..group.count).unwrap_or(&mut [])
        };
        let read = script::decode(&mut limits.iter(), integers, decisions);
        match read {
            Ok(units) => self.answered(ticket, decisions, units, host),
            Err(_) if is_owed => self.answered(ticket, &mut [], 0, host),
            Err(_) => self.failed(ticket, Failure::Key, host),
        }
    }

    /// What a call was answered with, read: one decision for each of its
    /// limits, and the units that came on top.
    pub fn answered(&mut self, ticket: u64, decisions: &mut [Decision], units: u64, host: &mut Host<'_, '_>) {
        if ticket == PROBE {
            self.breaker.probe_succeeded(host.now);
            self.note_breaker(host.metrics, host.now);
            return self.give_back_rest(host);
        }
        host.metrics.count(StoreEvent::Reply);
        self.give_back_rest(host); // there is room for a call again
        let Some((place, index)) = self.asked_by(ticket) else { return };
        let pot = self.with_flight(place, |store, flight| {
            let group = flight.groups.get(index)?;
            if host.now <= group.wanted_by {
                store.breaker.succeeded(host.now);
            }
            host.metrics.latency.record(host.now.saturating_sub(group.asked_at));
            if group.owed.is_some() {
                return None;
            }
            let pot = group.pot();
            store.leases.ended(pot, group.more, units);
            if decisions.len() == group.count {
                store.settle(place, flight, index, decisions, units, host);
            } else {
                store.unanswered(place, flight, index, host);
            }
            Some(pot)
        });
        match pot {
            Some(Some(pot)) => self.serve(pot, host),
            Some(None) => self.owed_is_told(place, Some(decisions.first()), host),
            None => {}
        }
    }

    /// A call has no answer, and will have none.
    pub fn failed(&mut self, ticket: u64, failure: Failure, host: &mut Host<'_, '_>) {
        if ticket == PROBE {
            self.breaker.probe_failed(host.now);
            return self.note_breaker(host.metrics, host.now);
        }
        let event = match failure {
            Failure::Timeout => StoreEvent::Timeout,
            Failure::Store => StoreEvent::Failure,
            Failure::Key => StoreEvent::KeyFailure,
        };
        let mut late = None;
        let Some((place, index)) = self.asked_by(ticket) else { return host.metrics.count(event) };
        let pot = self.with_flight(place, |store, flight| {
            let group = flight.groups.get(index)?;
            let pot = group.pot();
            if group.is_late {
                store.unanswered(place, flight, index, host); // it was counted when it was given up
                return Some(pot);
            }
            host.metrics.count(event);
            // A call that came late, of a request that had waited for others', had little time.
            let span = group.deadline.saturating_sub(group.asked_at);
            let is_short = span < group.deadline.saturating_sub(flight.started) / 2;
            if failure == Failure::Store || failure == Failure::Timeout && !is_short {
                store.note_failure(group, flight.started, host);
            }
            if group.owed.is_some() {
                return None;
            }
            if failure == Failure::Timeout {
                store.release_late(&flight.layers, group, host);
                late = Late::of(flight, index);
            }
            store.leases.ended(pot, group.more, 0);
            store.unanswered(place, flight, index, host);
            Some(pot)
        });
        match pot {
            Some(Some(pot)) => self.serve(pot, host),
            Some(None) => self.owed_is_told(place, None, host),
            None => {}
        }
        if let Some(late) = late {
            self.wait_on(ticket, &late, host);
        }
    }

    fn unanswered(&mut self, place: usize, flight: &mut Flight, index: usize, host: &mut Host<'_, '_>) {
        if let Some(group) = flight.groups.get(index) {
            self.leases.unanswered(group.pot(), group.id);
        }
        self.decide_alone(flight, index, host);
        self.land_if_done(place, flight, host);
    }

    /// Asks every group that has to be asked.
    pub(super) fn ask_all(&mut self, place: usize, flight: &mut Flight, host: &mut Host<'_, '_>) {
        for index in 0..flight.group_count {
            if flight.groups.get(index).is_some_and(|group| group.paid == Paid::Asked) {
                flight.unanswered += 1;
                self.ask(place, flight, index, host);
            }
        }
    }

    /// Asks one group, or lets it wait for what was asked before; decides
    /// without the store if neither can be.
    pub(super) fn ask(&mut self, place: usize, flight: &mut Flight, index: usize, host: &mut Host<'_, '_>) {
        let Flight { groups, layers, generation, started, .. } = &mut *flight;
        let (Some(group), started) = (groups.get_mut(index), *started) else { return };
        if self.has_no_part(layers, group) {
            let mut decisions = [NOTHING; MAX_LAYERS];
            let decisions = decisions.get_mut(..group.count).unwrap_or(&mut []);
            return self.settle(place, flight, index, decisions, 0, host);
        }
        if self.breaker.allows(host.now) {
            let lease = group.lease.filter(|_| !self.drained && group.is_leasable(layers));
            if lease.is_some() && self.wait(place, index, group, host.now) {
                return;
            }
            self.charge_fallback(layers, group, host);
            group.id = self.id();
            group.asked_at = host.now;
            group.paid = Paid::Asked;
            let more = self.leases.ask(group.pot(), group.cost, lease, group.id, group.deadline, host.now);
            group.more = more;
            let op = Op::Check { cost: group.cost, more, share: self.reserve(), owed: 0, id: group.id };
            let ticket = ticket(place, *generation, index);
            let Err(refused) = self.send(ticket, layers, group, op, host) else { return };
            self.leases.not_sent(group.pot(), group.id, more);
            if refused.is_store_failure() {
                host.metrics.count(StoreEvent::Failure); // as one that was sent: nobody is asked
                self.note_failure(group, started, host);
            }
        } else {
            self.look_around(host);
        }
        self.decide_alone(flight, index, host);
    }

    /// Fetches more for a pot that is low; nobody waits.
    pub(super) fn prefetch(
        &mut self,
        mut group: Group,
        layers: impl Iterator<Item = Held>,
        host: &mut Host<'_, '_>,
    ) {
        if self.drained || !self.breaker.allows(host.now) {
            return;
        }
        group.deadline = host.now.saturating_add(group.deadline.saturating_sub(host.now).max(50_000_000));
        group.wanted_by = group.deadline;
        (group.cost, group.paid, group.id, group.asked_at) = (0, Paid::Asked, self.id(), host.now);
        let more = self.leases.ask(group.pot(), 0, group.lease, group.id, group.deadline, host.now);
        if more == 0 {
            return;
        }
        group.more = more;
        let Some(place) = self.claim_flight(Phase::Background, 0, host.now) else {
            return self.leases.not_sent(group.pot(), group.id, more);
        };
        let op = Op::Check { cost: 0, more, share: self.reserve(), owed: 0, id: group.id };
        self.with_flight(place, |store, flight| {
            flight.board(&group, layers);
            let Flight { layers, groups: [group, ..], generation, .. } = &*flight;
            if store.send(ticket(place, *generation, 0), layers, group, op, host).is_ok() {
                host.metrics.count(StoreEvent::Prefetch);
            } else {
                store.leases.not_sent(group.pot(), group.id, more);
                store.free_flight(place, flight);
            }
        });
    }

    /// What an answer means for its group.
    fn settle(
        &mut self,
        place: usize,
        flight: &mut Flight,
        index: usize,
        decisions: &mut [Decision],
        units: u64,
        host: &mut Host<'_, '_>,
    ) {
        let by = decisions.iter().enumerate().filter(|(_, decision)| !decision.allowed);
        let by = by.max_by_key(|(_, decision)| decision.retry_after).map(|(by, decision)| (by, *decision));
        let Flight { groups, layers, .. } = &mut *flight;
        let Some(group) = groups.get_mut(index) else { return };
        let pot = group.pot();
        match by {
            None => {
                let ttl = group.lease.map_or(0, |lease| lease.ttl);
                let merges = !group.has(layers, Algorithm::SlidingLog);
                let grant = Grant { units, asked_at: group.asked_at, id: group.id, ttl, merges };
                if let Some(over) = self.leases.grant(pot, &grant, decisions, host.now) {
                    let _ = self.return_units(&over, host); // there is no room for them
                }
                if units > 0 {
                    self.remember_origin(layers, group);
                    self.give_back_rest(host);
                } else if group.cost > 0 {
                    self.remember_next(layers, group, decisions, host.now);
                }
                group.paid = Paid::Call;
                for decision in &mut *decisions {
                    decision.remaining = decision.remaining.saturating_add(units);
                }
            }
            Some((by, denial)) => {
                if group.is_late {
                    // What it says is past.
                } else if denial.retry_after != NEVER && !group.has(layers, Algorithm::Concurrency) {
                    let until = host.now.saturating_add(denial.retry_after);
                    let denial = self.denial(layers, group, by, until);
                    self.leases.deny(pot, &denial, decisions, host.now);
                } else {
                    self.leases.unanswered(pot, group.id);
                }
                group.paid = Paid::Nothing;
                if self.next_piece(place, flight, index, host) {
                    return;
                }
            }
        }
        flight.unanswered = flight.unanswered.saturating_sub(1);
        flight.take(index, decisions, by.is_none());
        let Flight { groups, layers, answer, .. } = &mut *flight;
        if let Some(group) = groups.get(index)
            && group.paid == Paid::Call
            && group.has(layers, Algorithm::Concurrency)
        {
            self.hold(layers, group, &mut answer.holds, host.now);
        }
        self.land_if_done(place, flight, host);
    }

    /// A piece of a divided key denied: another may still have some. True if
    /// that one was asked; when its pot paid, the group says so.
    pub(super) fn next_piece(
        &mut self,
        place: usize,
        flight: &mut Flight,
        index: usize,
        host: &mut Host<'_, '_>,
    ) -> bool {
        let Some(group) = flight.groups.get_mut(index) else { return false };
        while group.tried < group.pieces && host.now < group.deadline {
            group.tried += 1;
            group.piece = (group.piece + 1) % group.pieces;
            match self.leases.spend(group.pot(), group.cost, host.now) {
                Spend::Taken { .. } => {
                    host.metrics.count(StoreEvent::LeaseHit);
                    group.paid = Paid::Pot;
                    return false;
                }
                Spend::Denied { .. } => {}
                Spend::Ask => {
                    self.ask(place, flight, index, host);
                    // When it could not be asked it is decided by now.
                    self.land_if_done(place, flight, host);
                    return true;
                }
            }
        }
        false
    }

    /// Encodes and sends a call about a group.
    pub(super) fn send(
        &self,
        ticket: u64,
        layers: &[Option<Held>],
        group: &Group,
        op: Op,
        host: &mut Host<'_, '_>,
    ) -> Result<(), Refused> {
        let limits = self.limits_of(layers, group);
        let Host { transport, now, .. } = &mut *host;
        let send = |asks: &[Ask<'_>]| transport.send(ticket, &Call { asks, op }, group.deadline, *now);
        let sent = asks::with::<MAX_LAYERS, _>(&group.text, group.piece_number(), limits.iter(), send)
            .unwrap_or(Err(Refused::NotConnected)); // a group has a limit
        if sent.is_ok() {
            host.metrics.count(StoreEvent::Call);
        }
        sent
    }

    /// The next request of this cost cannot fit before then: the store need
    /// not be asked.
    fn remember_next(&mut self, layers: &[Option<Held>], group: &Group, decisions: &[Decision], now: Nanos) {
        if decisions.iter().all(|decision| decision.remaining >= group.cost) {
            return; // as nearly always
        }
        let limits = self.limits_of(layers, group);
        let waits = limits.iter().zip(decisions).enumerate();
        let waits =
            waits.filter_map(|(by, (limit, decision))| Some((next_fit(limit, decision, group.cost)?, by)));
        if let Some((wait, by)) = waits.max() {
            let denial = self.denial(layers, group, by, now.saturating_add(wait));
            self.leases.deny(group.pot(), &denial, decisions, now);
        }
    }

    fn denial(&self, layers: &[Option<Held>], group: &Group, by: usize, until: Nanos) -> Denial {
        // Alone, nobody else gives back what the store has not.
        let is_alone = self.instances.saturating_mul(self.workers) == 1;
        let lease = group.lease.filter(|_| !is_alone);
        let recheck = lease.map_or(Nanos::MAX, |lease| lease.ttl.saturating_add(GIVEN_BACK));
        let held = layers.get(group.first + by).and_then(|held| held.as_ref());
        let one_by_one = held.is_some_and(|held| {
            matches!(held.limit.algorithm(), Algorithm::TokenBucket | Algorithm::SlidingWindow)
        });
        // Where units come faster than answers do, all may ask.
        let one_by_one = one_by_one && (group.lease.is_some() || is_slow(group, until));
        Denial { id: group.id, cost: group.cost, by, until, one_by_one, recheck }
    }

    /// The limits of a group as the store counts them.
    pub(super) fn limits_of<'l>(&self, layers: &'l [Option<Held>], group: &Group) -> Limits<'l> {
        let held = group.held(layers);
        if group.pieces <= 1 && self.region.is_whole() {
            return Limits::Whole(held);
        }
        let mut parts = [None; MAX_LAYERS];
        for (room, held) in parts.iter_mut().zip(held.iter().flatten()) {
            *room = Some(self.counted(&held.limit, group.piece, group.pieces));
        }
        Limits::Parts(parts)
    }

    /// Has this region, or this piece of a divided key, no unit of a limit?
    fn has_no_part(&self, layers: &[Option<Held>], group: &Group) -> bool {
        if self.region.is_whole() || group.cost == 0 {
            return false; // rules have no more pieces than units
        }
        let share = Share::nth(u64::from(group.piece), u64::from(group.pieces));
        let is_nothing = |limit: &Limit| {
            let part = self.region.of_limit(limit);
            let whole = share.is_ok_and(|share| share.is_whole());
            match part {
                Ok(Piece::Nothing) => true,
                Ok(Piece::Some(part) | Piece::Fraction(part)) if !whole => {
                    matches!(share.and_then(|share| share.of_limit(&part)), Ok(Piece::Nothing))
                }
                _ => false,
            }
        };
        group.held(layers).iter().flatten().any(|held| is_nothing(&held.limit))
    }

    /// A limit as the store counts it.
    pub(super) fn counted(&self, limit: &Limit, piece: u32, pieces: u32) -> Limit {
        let regional = part(limit, self.region);
        let share = Share::nth(u64::from(piece), u64::from(pieces));
        share.map_or(regional, |share| part(&regional, share))
    }

    /// Is a call of this ticket not answered yet?
    #[must_use]
    pub fn awaits(&self, ticket: u64) -> bool {
        self.asked_by(ticket).is_some()
    }

    /// Who asked a call that is not answered: the flight's place, and which of
    /// its groups.
    fn asked_by(&self, ticket: u64) -> Option<(usize, usize)> {
        let (place, generation, index) = of_ticket(ticket)?;
        let flight = self.flight(place)?;
        let group = flight.groups.get(index).filter(|_| index < flight.group_count)?;
        let is_its_own = flight.generation == generation && flight.phase != Phase::Free;
        (is_its_own && group.paid == Paid::Asked).then_some((place, index))
    }

    /// The policy that a call under way is of, by its place among the rules'.
    pub(in crate::redis) fn policy_of(&self, ticket: u64) -> Option<usize> {
        let (place, index) = self.asked_by(ticket)?;
        let flight = self.flight(place)?;
        let layer = flight.layers.get(flight.groups.get(index)?.first)?;
        layer.as_ref().map(|held| held.policy)
    }

    fn note_failure(&mut self, group: &Group, started: Nanos, host: &mut Host<'_, '_>) {
        self.breaker.failed(host.now);
        self.probe_key = group.text.probe();
        if group.owed.is_none() {
            self.patience = group.deadline.saturating_sub(started).max(1_000_000);
        }
        self.note_breaker(host.metrics, host.now);
    }

    /// Decides a group as its policy says for a store that is away.
    pub(super) fn decide_alone(&mut self, flight: &mut Flight, index: usize, host: &mut Host<'_, '_>) {
        flight.unanswered = flight.unanswered.saturating_sub(1);
        if flight.phase == Phase::Background {
            return;
        }
        let Flight { groups, layers, answer, dry, .. } = flight;
        if let Some(group) = groups.get_mut(index) {
            group.paid = self.fall_back(group, layers, *dry, answer, host);
        }
    }
}

/// The limits of a group as the store counts them: as the rules have them, but
/// in a region's part, or a piece of a divided key.
#[expect(clippy::large_enum_variant, reason = "it is room on the stack, and few need it")]
pub(super) enum Limits<'l> {
    Whole(&'l [Option<Held>]),
    Parts([Option<Limit>; MAX_LAYERS]),
}

impl Limits<'_> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Limit> + Clone {
        let (whole, parts) = match self {
            Limits::Whole(held) => (*held, &[][..]),
            Limits::Parts(parts) => (&[][..], &parts[..]),
        };
        whole.iter().flatten().map(|held| &held.limit).chain(parts.iter().flatten())
    }
}

impl Flight {
    /// What the store said of a group, whose limits all admitted or did not.
    pub(super) fn take(&mut self, index: usize, decisions: &[Decision], all: bool) {
        let Some(group) = self.groups.get(index) else { return };
        let is_dry = self.dry >> group.first & 1 == 1;
        let is_paid = group.paid == Paid::Pot;
        let held = group.held(&self.layers).iter().flatten();
        for ((at, decision), held) in (group.first..).zip(decisions).zip(held) {
            let outcome = match (decision.allowed, all, is_dry) {
                _ if is_paid => Outcome::Admitted,
                (true, true, _) | (true, false, true) => Outcome::Admitted,
                (true, false, false) => Outcome::Spared,
                (false, _, true) => Outcome::WouldDeny,
                (false, _, false) => Outcome::Denied,
            };
            let allowed = decision.allowed || is_paid;
            let retry_after = if allowed { 0 } else { decision.retry_after };
            let limit = held.limit.limit();
            self.answer.set(at, Decision { limit, allowed, retry_after, ..*decision }, outcome);
        }
    }
}

/// Does the next unit take longer than an answer?
fn is_slow(group: &Group, until: Nanos) -> bool {
    until >= group.deadline
}

fn part(limit: &Limit, share: Share) -> Limit {
    if share.is_whole() {
        return *limit;
    }
    match share.of_limit(limit) {
        Ok(Piece::Some(piece) | Piece::Fraction(piece)) => piece,
        // Refused where the rules are taken up; the smallest limit is no more.
        Ok(Piece::Nothing) | Err(_) => smallest(limit),
    }
}

/// One unit in the longest period that there is.
fn smallest(limit: &Limit) -> Limit {
    Limit::new(limit.algorithm(), 1, crate::limit::MAX_PERIOD).unwrap_or(*limit)
}

/// How long after this admission no further request of the same cost fits;
/// none if that cannot be told, or is now.
fn next_fit(limit: &Limit, decision: &Decision, cost: u64) -> Option<Nanos> {
    if decision.remaining >= cost {
        return None;
    }
    match limit.algorithm() {
        Algorithm::FixedWindow => Some(decision.reset_after),
        Algorithm::TokenBucket => {
            // Full in reset_after; it fits when what is not needed is missing still.
            let spare = u128::from(limit.burst().saturating_sub(cost)) * u128::from(limit.token);
            let spare = spare / u128::from(limit.tick);
            Some(u64::try_from(u128::from(decision.reset_after).saturating_sub(spare)).unwrap_or(NEVER - 1))
        }
        _ => None,
    }
    .filter(|wait| *wait > 0)
}
