//! Calls go out, and their answers come in.

use super::super::lease::{Denial, Grant, Spend};
use super::super::script::{self, Ask, Call, Op};
use super::super::share::{Piece, Share};
use super::asks;
use super::background::Origin;
use super::flight::{Flight, Group, Held, NOBODY, PROBE, Paid, Phase, of_ticket, ticket};
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
        let Some((place, _, group)) = self.group_of(ticket) else {
            return self.answered(ticket, &mut [], 0, host);
        };
        let mut limits = [None; MAX_LAYERS];
        self.limits_of(place, &group, &mut limits); // of what is owed, one
        let mut decisions = [NONE; MAX_LAYERS];
        let count = if group.owed.is_some() { 1 } else { group.count };
        let Some(decisions) = decisions.get_mut(..count) else { return };
        match script::decode(&mut limits.iter().flatten(), integers, decisions) {
            Ok(units) => self.answered(ticket, decisions, units, host),
            Err(_) if group.owed.is_some() => self.answered(ticket, &mut [], 0, host),
            Err(_) => self.failed(ticket, Failure::Key, host),
        }
    }

    /// What a call was answered with, read: one decision for each of its
    /// limits, and the units that came on top.
    pub fn answered(&mut self, ticket: u64, decisions: &mut [Decision], units: u64, host: &mut Host<'_, '_>) {
        if ticket == PROBE {
            self.breaker.probe_succeeded(host.now);
            return self.note_breaker(host.metrics);
        }
        host.metrics.count(StoreEvent::Reply);
        self.give_back_rest(host); // there is room for a call again
        let Some((place, index, group)) = self.group_of(ticket) else { return };
        if host.now <= group.wanted_by {
            self.breaker.succeeded(host.now);
        }
        host.metrics.latency.record(host.now.saturating_sub(group.asked_at));
        if group.owed.is_some() {
            self.owed_is_told(place, &group, Some(decisions.first()), host);
        } else if decisions.len() == group.count {
            self.settle(place, index, group, decisions, units, host);
        } else {
            self.unanswered(place, index, &group, host);
        }
    }

    /// A call has no answer, and will have none.
    pub fn failed(&mut self, ticket: u64, failure: Failure, host: &mut Host<'_, '_>) {
        if ticket == PROBE {
            self.breaker.probe_failed(host.now);
            return self.note_breaker(host.metrics);
        }
        let event = match failure {
            Failure::Timeout => StoreEvent::Timeout,
            Failure::Store => StoreEvent::Failure,
            Failure::Key => StoreEvent::KeyFailure,
        };
        host.metrics.count(event);
        let Some((place, index, group)) = self.group_of(ticket) else { return };
        if failure != Failure::Key {
            self.note_failure(&group, host);
        }
        if group.owed.is_some() {
            self.owed_is_told(place, &group, None, host);
        } else {
            if failure == Failure::Timeout {
                self.release_late(place, &group, host);
            }
            self.unanswered(place, index, &group, host);
        }
    }

    fn unanswered(&mut self, place: usize, index: usize, group: &Group, host: &mut Host<'_, '_>) {
        self.leases.unanswered(group.pot(), group.id);
        self.decide_alone(place, index, group, host);
        self.land_if_done(place, host);
    }

    /// Asks every group that has to be asked.
    pub(super) fn ask_all(&mut self, place: usize, host: &mut Host<'_, '_>) {
        for index in 0..MAX_LAYERS {
            let group = self.flights.get(place).and_then(|flight| *flight.groups.get(index)?);
            let Some(group) = group.filter(|group| group.paid == Paid::Asked) else { continue };
            if let Some(flight) = self.flights.get_mut(place) {
                flight.unanswered += 1;
            }
            self.ask(place, index, group, host);
        }
    }

    /// Asks one group; decides without the store if it cannot be asked.
    fn ask(&mut self, place: usize, index: usize, mut group: Group, host: &mut Host<'_, '_>) {
        if self.has_no_part(place, &group) {
            let mut decisions = [NOTHING; MAX_LAYERS];
            let decisions = decisions.get_mut(..group.count).unwrap_or(&mut []);
            return self.settle(place, index, group, decisions, 0, host);
        }
        if self.breaker.allows(host.now) {
            self.charge_fallback(place, &group, host);
            group.id = self.id();
            group.asked_at = host.now;
            let lease = group.lease.filter(|_| !self.drained && self.leasable(place, &group));
            let more = self.leases.ask(group.pot(), group.cost, lease, group.id, group.deadline, host.now);
            self.set_group(place, index, group);
            let op = Op::Check { cost: group.cost, more, share: self.reserve(), owed: 0, id: group.id };
            if self.send(place, index, &group, op, host) {
                return;
            }
            host.metrics.count(StoreEvent::Failure); // as one that was sent: nobody is asked
            self.leases.unanswered(group.pot(), group.id);
            self.note_failure(&group, host);
        } else {
            self.look_around(host);
        }
        self.decide_alone(place, index, &group, host);
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
        let Some(place) = self.claim_flight(Phase::Background, 0, host.now) else {
            return self.leases.unanswered(group.pot(), group.id);
        };
        if let Some(flight) = self.flights.get_mut(place) {
            for (room, held) in flight.layers.iter_mut().skip(group.first).zip(layers) {
                *room = Some(held);
            }
            flight.unanswered = 1;
        }
        self.set_group(place, 0, group);
        let op = Op::Check { cost: 0, more, share: self.reserve(), owed: 0, id: group.id };
        if self.send(place, 0, &group, op, host) {
            host.metrics.count(StoreEvent::Prefetch);
        } else {
            self.leases.unanswered(group.pot(), group.id);
            self.free_flight(place);
        }
    }

    /// What an answer means for its group.
    fn settle(
        &mut self,
        place: usize,
        index: usize,
        mut group: Group,
        decisions: &mut [Decision],
        units: u64,
        host: &mut Host<'_, '_>,
    ) {
        let by = decisions.iter().enumerate().filter(|(_, decision)| !decision.allowed);
        let by = by.max_by_key(|(_, decision)| decision.retry_after).map(|(by, decision)| (by, *decision));
        let pot = group.pot();
        match by {
            None => {
                let ttl = group.lease.map_or(0, |lease| lease.ttl);
                let merges = !self.has(place, &group, Algorithm::SlidingLog);
                let grant = Grant { units, asked_at: group.asked_at, id: group.id, ttl, merges };
                if let Some(over) = self.leases.grant(pot, &grant, decisions, host.now) {
                    let _ = self.return_units(&over, host); // there is no room for them
                }
                if units > 0 {
                    self.remember_origin(place, &group);
                    self.give_back_rest(host);
                } else if group.cost > 0 {
                    self.remember_next(place, &group, decisions, host.now);
                }
                group.paid = Paid::Call;
                for decision in &mut *decisions {
                    decision.remaining = decision.remaining.saturating_add(units);
                }
            }
            Some((by, denial)) => {
                if denial.retry_after != NEVER && !self.has(place, &group, Algorithm::Concurrency) {
                    let until = host.now.saturating_add(denial.retry_after);
                    let denial = self.denial(place, &group, by, until);
                    self.leases.deny(pot, &denial, decisions, host.now);
                } else {
                    self.leases.unanswered(pot, group.id);
                }
                if self.next_piece(place, index, &mut group, host) {
                    return;
                }
                if group.paid != Paid::Pot {
                    group.paid = Paid::Nothing;
                }
            }
        }
        self.set_group(place, index, group);
        let Some(flight) = self.flights.get_mut(place) else { return };
        flight.unanswered = flight.unanswered.saturating_sub(1);
        let is_dry = flight.dry >> group.first & 1 == 1;
        for (at, decision) in (group.first..).zip(decisions) {
            let limit =
                flight.layers.get(at).and_then(|held| held.as_ref()).map_or(0, |held| held.limit.limit());
            let outcome = match (decision.allowed || group.paid == Paid::Pot, by.is_none(), is_dry) {
                (true, true, _) => Outcome::Admitted,
                (true, false, _) if group.paid == Paid::Pot => Outcome::Admitted,
                (true, false, true) => Outcome::Admitted,
                (true, false, false) => Outcome::Spared,
                (false, _, true) => Outcome::WouldDeny,
                (false, _, false) => Outcome::Denied,
            };
            let allowed = decision.allowed || group.paid == Paid::Pot;
            let retry_after = if allowed { 0 } else { decision.retry_after };
            flight.answer.set(at, Decision { limit, allowed, retry_after, ..*decision }, outcome);
        }
        if group.paid == Paid::Call && self.has(place, &group, Algorithm::Concurrency) {
            self.hold(place, &group, host.now);
        }
        self.land_if_done(place, host);
    }

    /// A piece of a divided key denied: another may still have some. True if
    /// that one was asked; when its pot paid, `group.paid` says so.
    fn next_piece(&mut self, place: usize, index: usize, group: &mut Group, host: &mut Host<'_, '_>) -> bool {
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
                    self.ask(place, index, *group, host);
                    // When it could not be asked it is decided by now.
                    self.land_if_done(place, host);
                    return true;
                }
            }
        }
        false
    }

    /// Encodes and sends a call about a group.
    pub(super) fn send(
        &mut self,
        place: usize,
        index: usize,
        group: &Group,
        op: Op,
        host: &mut Host<'_, '_>,
    ) -> bool {
        let mut limits = [None; MAX_LAYERS];
        self.limits_of(place, group, &mut limits);
        let number = match self.flights.get(place) {
            Some(flight) if matches!(op, Op::Check { .. }) => ticket(place, flight.generation, index),
            _ => NOBODY,
        };
        send(number, group, &limits, op, host)
    }

    /// The next request of this cost cannot fit before then: the store need
    /// not be asked.
    fn remember_next(&mut self, place: usize, group: &Group, decisions: &[Decision], now: Nanos) {
        let mut limits = [None; MAX_LAYERS];
        self.limits_of(place, group, &mut limits);
        let waits = limits.iter().flatten().zip(decisions).enumerate();
        let waits =
            waits.filter_map(|(by, (limit, decision))| Some((next_fit(limit, decision, group.cost)?, by)));
        if let Some((wait, by)) = waits.max() {
            let denial = self.denial(place, group, by, now.saturating_add(wait));
            self.leases.deny(group.pot(), &denial, decisions, now);
        }
    }

    fn denial(&self, place: usize, group: &Group, by: usize, until: Nanos) -> Denial {
        // Alone, nobody else gives back what the store has not.
        let is_alone = self.instances.saturating_mul(self.workers) == 1;
        let lease = group.lease.filter(|_| !is_alone);
        let recheck = lease.map_or(Nanos::MAX, |lease| lease.ttl.saturating_add(GIVEN_BACK));
        let held = self.flights.get(place).and_then(|flight| flight.layers.get(group.first + by)?.as_ref());
        let one_by_one = held.is_some_and(|held| {
            matches!(held.limit.algorithm(), Algorithm::TokenBucket | Algorithm::SlidingWindow)
        });
        // Where units come faster than answers do, all may ask.
        let one_by_one = one_by_one && (group.lease.is_some() || is_slow(group, until));
        Denial { id: group.id, cost: group.cost, by, until, one_by_one, recheck }
    }

    pub(super) fn remember_origin(&mut self, place: usize, group: &Group) {
        let mut limits = [None; MAX_LAYERS];
        self.limits_of(place, group, &mut limits);
        let origin = Origin::new(group, &limits);
        if let Some(room) = self.leases.place(group.pot()).and_then(|at| self.origins.get_mut(at)) {
            *room = origin;
        }
    }

    /// The limits that the store counts: this region's part, and of a divided
    /// key the piece.
    pub(super) fn limits_of(&self, place: usize, group: &Group, limits: &mut [Option<Limit>; MAX_LAYERS]) {
        let Some(flight) = self.flights.get(place) else { return };
        let held = flight.layers.iter().skip(group.first).take(group.count).flatten();
        for (room, held) in limits.iter_mut().zip(held) {
            *room = Some(self.counted(&held.limit, group.piece, group.pieces));
        }
    }

    /// Has this region, or this piece of a divided key, no unit of a limit?
    fn has_no_part(&self, place: usize, group: &Group) -> bool {
        if self.region.is_whole() || group.cost == 0 {
            return false; // rules have no more pieces than units
        }
        let Some(flight) = self.flights.get(place) else { return false };
        let held = flight.layers.iter().skip(group.first).take(group.count).flatten();
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
        held.into_iter().any(|held| is_nothing(&held.limit))
    }

    /// A limit as the store counts it.
    pub(super) fn counted(&self, limit: &Limit, piece: u32, pieces: u32) -> Limit {
        let regional = part(limit, self.region);
        let share = Share::nth(u64::from(piece), u64::from(pieces));
        share.map_or(regional, |share| part(&regional, share))
    }

    /// A limit that cannot be carried ahead: a queue's places are its own, and
    /// units in flight are released one by one.
    pub(super) fn leasable(&self, place: usize, group: &Group) -> bool {
        !self.has(place, group, Algorithm::Concurrency) && !self.has(place, group, Algorithm::LeakyBucket)
    }

    pub(super) fn has(&self, place: usize, group: &Group, algorithm: Algorithm) -> bool {
        let Some(flight) = self.flights.get(place) else { return false };
        let mut held = flight.layers.iter().skip(group.first).take(group.count).flatten();
        held.any(|held| held.limit.algorithm() == algorithm)
    }

    fn group_of(&self, ticket: u64) -> Option<(usize, usize, Group)> {
        let (place, generation, index) = of_ticket(ticket)?;
        let flight = self.flights.get(place)?;
        let group = (*flight.groups.get(index)?)?;
        let is_its_own = flight.generation == generation && flight.phase != Phase::Free;
        (is_its_own && group.paid == Paid::Asked).then_some((place, index, group))
    }

    pub(super) fn set_group(&mut self, place: usize, index: usize, group: Group) {
        if let Some(room) = self.flights.get_mut(place).and_then(|flight| flight.groups.get_mut(index)) {
            *room = Some(group);
        }
    }

    fn note_failure(&mut self, group: &Group, host: &mut Host<'_, '_>) {
        self.breaker.failed(host.now);
        self.probe_key = group.text.probe();
        if group.owed.is_none() {
            self.patience = group.deadline.saturating_sub(group.asked_at).max(1_000_000);
        }
        self.note_breaker(host.metrics);
    }

    /// Decides a group as its policy says for a store that is away.
    fn decide_alone(&mut self, place: usize, index: usize, group: &Group, host: &mut Host<'_, '_>) {
        let Some(flight) = self.flights.get_mut(place) else { return };
        flight.unanswered = flight.unanswered.saturating_sub(1);
        if flight.phase == Phase::Background {
            return;
        }
        let Flight { layers, dry, answer, .. } = *flight;
        let mut answer = answer;
        let paid = self.fall_back(group, &layers, dry, &mut answer, host);
        if let Some(flight) = self.flights.get_mut(place) {
            flight.answer = answer;
        }
        self.set_group(place, index, Group { paid, ..*group });
    }
}

/// Sends a call about these limits.
pub(super) fn send(
    ticket: u64,
    group: &Group,
    limits: &[Option<Limit>; MAX_LAYERS],
    op: Op,
    host: &mut Host<'_, '_>,
) -> bool {
    let limits = limits.iter().flatten();
    let send = |asks: &[Ask<'_>]| host.transport.send(ticket, &Call { asks, op }, group.deadline, host.now);
    let is_sent =
        asks::with::<MAX_LAYERS, _>(&group.text, group.piece_number(), limits, send).unwrap_or(false);
    if is_sent {
        host.metrics.count(StoreEvent::Call);
    }
    is_sent
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
