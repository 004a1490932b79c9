//! A request's last group was answered: what all of them mean, and what has
//! to be undone.

use super::super::script::Op;
use super::background::PATIENCE;
use super::flight::{Flight, Group, Held, Paid, Phase, of_ticket, ticket};
use super::{AnsweredLayer, Host, Pending, Store};
use crate::limit::Algorithm;
use crate::limiter::MAX_LAYERS;
use crate::metrics::StoreEvent;
use crate::policy::Outcome;
use crate::policy::check::Answer;
use crate::policy::penalty::Penalties;
use crate::table::Hold;
use crate::time::{NEVER, Nanos};

impl Store {
    /// The next request that waited and is answered: the number that it came
    /// with, and its answer.
    pub fn poll_answer(&mut self, host: &mut Host<'_, '_>) -> Option<(u64, Pending, Answer)> {
        loop {
            let place = self.ready;
            let flight = self.flights.get(place)?;
            self.ready = flight.next;
            let (phase, user) = (flight.phase, flight.user);
            let pending = Pending(ticket(place, flight.generation, 0));
            if phase == Phase::Ready {
                self.waiting = self.waiting.saturating_sub(1);
                host.metrics.uncount(StoreEvent::Waiting);
                return Some((user, pending, self.land(place)));
            }
            self.undo(place, host);
            self.free_flight(place);
        }
    }

    /// What a layer is about of the answer that [`poll_answer`](Self::poll_answer)
    /// told last; until anything else is asked.
    #[must_use]
    pub fn layer_of(&self, pending: Pending, layer: usize) -> Option<AnsweredLayer<'_>> {
        let (place, generation, _) = of_ticket(pending.0)?;
        let flight = self.flights.get(place).filter(|flight| flight.generation == generation)?;
        let Held { policy, index, overridden, limit, .. } = flight.layers.get(layer)?.as_ref()?;
        Some(AnsweredLayer { policy: *policy, index: *index, overridden: *overridden, limit })
    }

    /// The client is gone: nothing is told, and what its request was charged
    /// goes back. Nothing happens when it is not waiting any more.
    pub fn cancel(&mut self, pending: Pending, host: &mut Host<'_, '_>) {
        let Some((place, generation, _)) = of_ticket(pending.0) else { return };
        let Some(flight) = self.flights.get_mut(place) else { return };
        if flight.generation == generation && matches!(flight.phase, Phase::Waiting | Phase::Ready) {
            flight.phase = Phase::Abandoned;
            self.waiting = self.waiting.saturating_sub(1);
            host.metrics.uncount(StoreEvent::Waiting);
        }
    }

    /// Takes an answer out of its flight.
    pub(super) fn land(&mut self, place: usize) -> Answer {
        let answer = self.flights.get(place).map(|flight| flight.answer);
        self.free_flight(place);
        answer.unwrap_or_else(|| crate::policy::check::empty(0)) // the place is a flight's
    }

    /// When all groups are answered.
    pub(super) fn land_if_done(&mut self, place: usize, host: &mut Host<'_, '_>) {
        if self.conclude(place, host) {
            self.append_ready(place);
        }
    }

    /// When all groups are answered: what they mean together. True if there is
    /// somebody to be told.
    pub(super) fn conclude(&mut self, place: usize, host: &mut Host<'_, '_>) -> bool {
        let Some(flight) = self.flights.get(place).filter(|flight| flight.unanswered == 0) else {
            return false;
        };
        match flight.phase {
            Phase::Background => self.free_flight(place),
            Phase::Abandoned => {
                self.undo(place, host);
                self.free_flight(place);
            }
            Phase::Waiting => {
                if flight.answer.denied() {
                    self.undo(place, host);
                }
                if let Some(flight) = self.flights.get_mut(place) {
                    flight.strike(host);
                    flight.answer.conclude(flight.dry);
                    flight.phase = Phase::Ready;
                }
                return true;
            }
            Phase::Free | Phase::Ready => {}
        }
        false
    }

    /// Answers are told in the order in which they came.
    fn append_ready(&mut self, place: usize) {
        let end = self.flights.len();
        if let Some(flight) = self.flights.get_mut(place) {
            flight.next = end;
        }
        let mut last = self.ready;
        if last >= end {
            self.ready = place;
            return;
        }
        // Answers are told as they come, so the list is short.
        while let Some(flight) = self.flights.get(last).filter(|flight| flight.next < end) {
            last = flight.next;
        }
        if let Some(flight) = self.flights.get_mut(last) {
            flight.next = place;
        }
    }

    /// Gives back what the layers of a flight were charged, but for those that
    /// count on their own in a dry run of an answered request.
    fn undo(&mut self, place: usize, host: &mut Host<'_, '_>) {
        for index in 0..MAX_LAYERS {
            let Some(flight) = self.flights.get(place) else { return };
            let Some(group) = flight.groups.get(index).and_then(|group| *group) else { continue };
            if flight.phase == Phase::Abandoned || flight.dry >> group.first & 1 == 0 {
                self.undo_group(place, index, &group, host);
            }
        }
        if let Some(flight) = self.flights.get_mut(place) {
            flight.undo_local(host);
        }
    }

    fn undo_group(&mut self, place: usize, index: usize, group: &Group, host: &mut Host<'_, '_>) {
        match group.paid {
            Paid::Asked | Paid::Nothing => {}
            Paid::Pot => {
                self.leases.unspend(group.pot(), group.cost);
                self.give_back_rest(host);
            }
            Paid::Call => self.undo_call(place, group, host),
            Paid::Local => {
                let Some(flight) = self.flights.get(place) else { return };
                let (layers, mut holds) = (flight.layers, flight.answer.holds);
                self.undo_fallback(group, &layers, &mut holds, host);
                if let Some(flight) = self.flights.get_mut(place) {
                    flight.answer.holds = holds;
                }
            }
        }
        if let Some(flight) = self.flights.get_mut(place) {
            group.spare(&mut flight.answer);
        }
        // Once: an answer that was undone may be cancelled as well.
        self.set_group(place, index, Group { paid: Paid::Nothing, ..*group });
    }

    /// Units that came with a call wait in the pot, where there is one that
    /// they may wait in; else they go back to the store.
    fn undo_call(&mut self, place: usize, group: &Group, host: &mut Host<'_, '_>) {
        if let Some(flight) = self.flights.get_mut(place) {
            for at in group.first..group.first + group.count {
                let hold = flight.answer.holds.get_mut(at).map(core::mem::take);
                self.holds.forget(&hold.unwrap_or_default());
            }
        }
        if group.cost == 0 {
            return;
        }
        // It may have taken the last ones, after which others are denied.
        self.leases.forgive(group.pot());
        let lease = group.lease.is_some() && self.leasable(place, group);
        let merges = !self.has(place, group, Algorithm::SlidingLog);
        if lease && self.leases.put_back(group.pot(), &group.grant(merges)) {
            self.remember_origin(place, group);
            self.give_back_rest(host);
        } else {
            let age = host.now.saturating_sub(group.asked_at);
            let op = Op::GiveBack { units: group.cost, age, id: group.id };
            let deadline = host.now.saturating_add(PATIENCE);
            if self.send(place, 0, &Group { deadline, ..*group }, op, host) {
                host.metrics.count(StoreEvent::GiveBack);
            }
        }
    }

    /// Units in flight that the store counts, until the request is over.
    pub(super) fn hold(&mut self, place: usize, group: &Group, now: Nanos) {
        let mut limits = [None; MAX_LAYERS];
        self.limits_of(place, group, &mut limits);
        let Some(flight) = self.flights.get_mut(place) else { return };
        let places = (group.first..).zip(limits.iter().flatten()).enumerate();
        for (index, (at, limit)) in places {
            if limit.algorithm() != Algorithm::Concurrency {
                continue;
            }
            let key = group.text.of(group.piece_number(), index, limit.algorithm());
            let expires = now.saturating_add(limit.period());
            let hold = self.holds.keep(key, limit, group, expires, now);
            if let (Some(room), Some(hold)) = (flight.answer.holds.get_mut(at), hold) {
                *room = hold;
            }
        }
    }

    /// Gives back units in flight, the table's or the store's: the request is
    /// over. Nothing happens for a hold that was released, or has expired.
    pub fn release(&mut self, hold: &Hold, host: &mut Host<'_, '_>) {
        match self.holds.take(hold) {
            None => host.table.release(hold),
            Some(kept) if host.now < hold.expires && self.breaker.allows(host.now) => {
                if kept.give_back(host) {
                    host.metrics.count(StoreEvent::GiveBack);
                }
            }
            Some(_) => {} // it expires by itself
        }
    }
}

impl Flight {
    /// What this machine's limits were charged.
    fn undo_local(&mut self, host: &mut Host<'_, '_>) {
        let abandoned = self.phase == Phase::Abandoned;
        for (at, held) in self.layers.iter().enumerate() {
            let Some(held) = held.filter(|held| !held.remote) else { continue };
            let charged = self.answer.outcomes.get(at) == Some(&Outcome::Admitted);
            if !charged || (self.dry >> at & 1 == 1 && !abandoned) || at >= self.answer.count {
                continue;
            }
            host.table.refund_fingerprint(held.fingerprint, &held.limit, held.cost, self.started);
            if let Some(hold) = self.answer.holds.get_mut(at) {
                host.table.release(hold);
                *hold = Hold::default();
            }
            let decision = host.table.peek_fingerprint(held.fingerprint, &held.limit, 0, host.now);
            self.answer.set(at, decision, Outcome::Spared);
        }
    }

    /// A denial counts against the subject of each policy that denied and has
    /// a penalty, once.
    fn strike(&mut self, host: &mut Host<'_, '_>) {
        let mut struck = None;
        for at in 0..self.answer.count {
            let held: Option<&Held> = self.layers.get(at).and_then(|held| held.as_ref());
            let Some((held, (subject, penalty))) = held.and_then(|held| Some((held, held.penalty?))) else {
                continue;
            };
            let denied = self.answer.outcomes.get(at) == Some(&Outcome::Denied);
            let Some(decision) = self.answer.decisions.get_mut(at).filter(|_| denied) else { continue };
            if decision.retry_after == NEVER {
                continue; // no wait would help
            }
            let wait = match struck {
                Some((policy, wait)) if policy == held.policy => wait,
                _ => host.strike(subject, &penalty, host.now),
            };
            struck = Some((held.policy, wait));
            decision.retry_after = decision.retry_after.max(wait);
        }
    }
}
