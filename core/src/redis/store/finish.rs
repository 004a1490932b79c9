//! A request's last group was answered: what all of them mean, and what has
//! to be undone.

use super::super::script::Op;
use super::background::PATIENCE;
use super::flight::{Flight, Group, Held, NOBODY, Paid, Phase, of_ticket, ticket};
use super::{AnsweredLayer, Host, Pending, Store};
use crate::limit::Algorithm;
use crate::metrics::StoreEvent;
use crate::policy::check::Answer;
use crate::policy::penalty;
use crate::policy::{Layer, Outcome, Selection};
use crate::table::Hold;
use crate::time::{NEVER, Nanos};

impl Store {
    /// The next request that waited and is answered: the number that it came
    /// with. [`answer`](Self::answer) has what it is told.
    pub fn poll_answer(&mut self, host: &mut Host<'_, '_>) -> Option<(u64, Pending)> {
        loop {
            let place = self.ready;
            let (next, phase, told) = {
                let flight = self.flight(place)?;
                let pending = Pending(ticket(place, flight.generation, 0));
                (flight.next, flight.phase, (flight.user, pending))
            };
            self.ready = next;
            self.with_flight(place, |store, flight| {
                if phase == Phase::Ready {
                    store.waiting = store.waiting.saturating_sub(1);
                    host.metrics.uncount(StoreEvent::Waiting);
                } else {
                    store.undo(flight, host);
                }
                store.free_flight(place, flight);
            });
            if phase == Phase::Ready {
                return Some(told);
            }
        }
    }

    /// The answer of the request that [`poll_answer`](Self::poll_answer) told
    /// last; until anything else is asked.
    #[must_use]
    pub fn answer(&self, pending: Pending) -> Option<&Answer> {
        let (place, generation, _) = of_ticket(pending.0)?;
        let flight = self.flight(place).filter(|flight| flight.generation == generation)?;
        Some(&flight.answer)
    }

    /// Writes what that answer is about, for who tells it. There are no keys:
    /// it cannot be asked again. False if nothing was told so.
    #[must_use]
    pub fn selection_of<'s>(&'s self, pending: Pending, selection: &mut Selection<'s>) -> bool {
        let flight = of_ticket(pending.0).and_then(|(place, generation, _)| {
            self.flight(place).filter(|flight| flight.generation == generation)
        });
        let Some(flight) = flight else { return false };
        let layers = flight.layers.iter().take(flight.answer.count).flatten();
        selection.asked_before(layers.map(|held| {
            Layer::asked_before(held.policy, held.index, &held.limit, held.cost, held.overridden)
        }));
        true
    }

    /// What a layer of that answer is about.
    #[must_use]
    pub fn layer_of(&self, pending: Pending, layer: usize) -> Option<AnsweredLayer<'_>> {
        let (place, generation, _) = of_ticket(pending.0)?;
        let flight = self.flight(place).filter(|flight| flight.generation == generation)?;
        let held = flight.layers.get(layer).filter(|_| layer < flight.answer.count)?.as_ref()?;
        let Held { policy, index, overridden, limit, .. } = held;
        Some(AnsweredLayer { policy: *policy, index: *index, overridden: *overridden, limit })
    }

    /// What a request waits for that was not answered yet: the tickets that its
    /// calls have, or will have should it have to ask, and when each has to be
    /// answered at the latest.
    pub fn due(&self, pending: Pending) -> impl Iterator<Item = (Nanos, u64)> {
        let place = of_ticket(pending.0).map(|(place, ..)| place);
        let flight = place.and_then(|place| Some((place, self.flight(place)?)));
        let flight = flight.filter(|(place, flight)| ticket(*place, flight.generation, 0) == pending.0);
        flight.into_iter().flat_map(|(place, flight)| {
            let groups = flight.groups.iter().take(flight.group_count).enumerate();
            let waits = groups.filter(|(_, group)| matches!(group.paid, Paid::Asked | Paid::Waits));
            waits.map(move |(index, group)| (group.deadline, ticket(place, flight.generation, index)))
        })
    }

    /// The client is gone: nothing is told, and what its request was charged
    /// goes back. Nothing happens when it is not waiting any more.
    pub fn cancel(&mut self, pending: Pending, host: &mut Host<'_, '_>) {
        let Some((place, generation, _)) = of_ticket(pending.0) else { return };
        let Some(Some(flight)) = self.flights.get_mut(place) else { return };
        if flight.generation == generation && matches!(flight.phase, Phase::Waiting | Phase::Ready) {
            flight.phase = Phase::Abandoned;
            self.waiting = self.waiting.saturating_sub(1);
            host.metrics.uncount(StoreEvent::Waiting);
        }
    }

    /// When all groups are answered.
    pub(super) fn land_if_done(&mut self, place: usize, flight: &mut Flight, host: &mut Host<'_, '_>) {
        if self.conclude(place, flight, host) {
            self.append_ready(place, flight);
        }
    }

    /// When all groups are answered: what they mean together. True if there is
    /// somebody to be told.
    pub(super) fn conclude(&mut self, place: usize, flight: &mut Flight, host: &mut Host<'_, '_>) -> bool {
        if flight.unanswered > 0 {
            return false;
        }
        match flight.phase {
            Phase::Background => self.free_flight(place, flight),
            Phase::Abandoned => {
                self.undo(flight, host);
                self.free_flight(place, flight);
            }
            Phase::Waiting => {
                if flight.answer.denied() {
                    self.undo(flight, host);
                }
                flight.strike(host);
                flight.answer.conclude(flight.dry);
                flight.phase = Phase::Ready;
                return true;
            }
            Phase::Free | Phase::Ready => {}
        }
        false
    }

    /// Answers are told in the order in which they came.
    fn append_ready(&mut self, place: usize, flight: &mut Flight) {
        let end = self.flights.len();
        flight.next = end;
        if self.ready >= end {
            self.ready = place;
        } else if let Some(Some(last)) = self.flights.get_mut(self.last_ready) {
            last.next = place;
        }
        self.last_ready = place;
    }

    /// Gives back what the layers of a flight were charged, but for those that
    /// count on their own in a dry run of an answered request.
    fn undo(&mut self, flight: &mut Flight, host: &mut Host<'_, '_>) {
        for index in 0..flight.group_count {
            let is_dry = flight.groups.get(index).is_some_and(|group| flight.dry >> group.first & 1 == 1);
            if flight.phase == Phase::Abandoned || !is_dry {
                self.undo_group(flight, index, host);
            }
        }
        flight.undo_local(host);
    }

    fn undo_group(&mut self, flight: &mut Flight, index: usize, host: &mut Host<'_, '_>) {
        let Flight { groups, layers, answer, .. } = flight;
        let Some(group) = groups.get_mut(index) else { return };
        match group.paid {
            Paid::Asked | Paid::Waits | Paid::Nothing => {}
            Paid::Pot => {
                self.leases.unspend(group.pot(), group.cost);
                self.give_back_rest(host);
            }
            Paid::Call => self.undo_call(layers, group, &mut answer.holds, host),
            Paid::Local => self.undo_fallback(group, layers, &mut answer.holds, host),
        }
        group.spare(answer);
        // Once: an answer that was undone may be cancelled as well.
        group.paid = Paid::Nothing;
    }

    /// Units that came with a call wait in the pot, where there is one that
    /// they may wait in; else they go back to the store.
    fn undo_call(
        &mut self,
        layers: &[Option<Held>],
        group: &mut Group,
        holds: &mut [Hold],
        host: &mut Host<'_, '_>,
    ) {
        for hold in holds.iter_mut().skip(group.first).take(group.count) {
            self.holds.forget(&core::mem::take(hold));
        }
        if group.cost == 0 {
            return;
        }
        // It may have taken the last ones, after which others are denied.
        self.leases.forgive(group.pot());
        let lease = group.lease.is_some() && group.is_leasable(layers);
        let merges = !group.has(layers, Algorithm::SlidingLog);
        if lease && self.leases.put_back(group.pot(), &group.grant(merges)) {
            self.remember_origin(layers, group);
            self.give_back_rest(host);
        } else {
            let age = host.now.saturating_sub(group.asked_at);
            let op = Op::GiveBack { units: group.cost, age, id: group.id };
            group.deadline = host.now.saturating_add(PATIENCE);
            if self.send(NOBODY, layers, group, op, host).is_ok() {
                host.metrics.count(StoreEvent::GiveBack);
            }
        }
    }

    /// Units in flight that the store counts, until the request is over.
    pub(super) fn hold(&mut self, layers: &[Option<Held>], group: &Group, holds: &mut [Hold], now: Nanos) {
        let limits = self.limits_of(layers, group);
        for (index, (limit, room)) in limits.iter().zip(holds.iter_mut().skip(group.first)).enumerate() {
            if limit.algorithm() != Algorithm::Concurrency {
                continue;
            }
            let key = group.text.of(group.piece_number(), index, limit.algorithm());
            let expires = now.saturating_add(limit.period());
            if let Some(hold) = self.holds.keep(key, limit, group, expires, now) {
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
        for (at, held) in self.layers.iter().take(self.answer.count).enumerate() {
            let Some(held) = held.as_ref().filter(|held| !held.remote) else { continue };
            let charged = self.answer.outcomes.get(at) == Some(&Outcome::Admitted);
            if !charged || (self.dry >> at & 1 == 1 && !abandoned) {
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
            if decision.retry_after == NEVER || decision.is_unavailable() {
                continue; // no wait would help, or it was no fault of the subject's
            }
            let wait = match struck {
                Some((policy, wait)) if policy == held.policy => wait,
                _ => penalty::strike(host.table, subject, &penalty, host.now),
            };
            struck = Some((held.policy, wait));
            decision.retry_after = decision.retry_after.max(wait);
        }
    }
}
