//! Groups that wait for units which other requests' calls bring into their pot
//! ([`queue`](super::super::lease::queue)).
//!
//! They lie in their flights, each with the one behind it; the pot knows the
//! first and the last. Whenever a call of a pot is over those who wait for it
//! are served, as far as its units go. One that has waited for as long as its
//! own call might have taken is decided without the store.

use super::super::lease::{Spend, Turn, Waiter};
use super::flight::{Flight, Group, Paid, Phase};
use super::{Host, Store};
use crate::limiter::MAX_LAYERS;
use crate::metrics::StoreEvent;
use crate::policy::check::NONE;
use crate::time::Nanos;

/// A group of a flight, as a number.
fn waiter(place: usize, index: usize) -> Waiter {
    Waiter::MIN.saturating_add((place << 4 | index) as u32) // a place is below 2^16, a group below 2^4
}

fn of_waiter(waiter: Waiter) -> (usize, usize) {
    let number = (waiter.get() - 1) as usize;
    (number >> 4, number & 0xF)
}

impl Store {
    /// Lets a group wait, whose flight is taken out, if enough for it is under
    /// way.
    pub(super) fn wait(&mut self, place: usize, index: usize, group: &mut Group, now: Nanos) -> bool {
        let own = waiter(place, index);
        let Some(before) = self.leases.wait(group.pot(), group.cost, own, now) else { return false };
        (group.paid, group.behind) = (Paid::Waits, None);
        if let Some(before) = before.and_then(|before| self.waiting_group(before)) {
            before.behind = Some(own);
        }
        self.wait_until = if self.waits == 0 { group.deadline } else { self.wait_until.min(group.deadline) };
        self.waits += 1;
        true
    }

    /// A call of this pot is over: those who wait for it are told, as far as
    /// they can be, the first ones first. Those for whom nothing is under way
    /// any more ask.
    pub(super) fn serve(&mut self, pot: u64, host: &mut Host<'_, '_>) {
        while let Some(first) = self.leases.first_waiting(pot) {
            let (place, index) = of_waiter(first);
            let is_done = self.with_flight(place, |store, flight| {
                let Some(group) = flight.groups.get_mut(index) else { return false };
                let turn = match flight.phase {
                    Phase::Abandoned => None,
                    _ => Some(store.leases.turn(pot, group.cost, host.now)),
                };
                if turn == Some(Turn::Waits) {
                    return false;
                }
                store.leases.leave(pot, group.cost, None, group.behind);
                store.waits = store.waits.saturating_sub(1);
                group.paid = Paid::Nothing;
                match turn {
                    Some(Turn::Told(said)) => store.told(place, flight, index, said, host),
                    Some(_) => {
                        store.ask(place, flight, index, host);
                        store.land_if_done(place, flight, host); // when it could not be asked
                    }
                    None => {
                        flight.unanswered = flight.unanswered.saturating_sub(1);
                        store.land_if_done(place, flight, host);
                    }
                }
                true
            });
            if is_done != Some(true) {
                return;
            }
        }
    }

    /// Its pot has paid for a group that waited, or knows that it is denied.
    fn told(
        &mut self,
        place: usize,
        flight: &mut Flight,
        index: usize,
        said: Spend,
        host: &mut Host<'_, '_>,
    ) {
        let Flight { groups, layers, .. } = &mut *flight;
        let Some(group) = groups.get_mut(index) else { return };
        let pot = (group.pot(), group.pieces);
        let mut decisions = [NONE; MAX_LAYERS];
        for (at, (room, held)) in decisions.iter_mut().zip(group.held(layers).iter().flatten()).enumerate() {
            *room = self.remembered(&held.limit, group.cost, &said, pot, at, host.now);
        }
        let decisions = decisions.get(..group.count).unwrap_or(&[]);
        let is_paid = matches!(said, Spend::Taken { .. });
        if is_paid {
            host.metrics.count(StoreEvent::LeaseHit);
            group.paid = Paid::Pot;
        } else {
            host.metrics.count(StoreEvent::DenialHit);
            if self.next_piece(place, flight, index, host) {
                return;
            }
        }
        flight.unanswered = flight.unanswered.saturating_sub(1);
        flight.take(index, decisions, is_paid);
        self.land_if_done(place, flight, host);
    }

    /// Those who have waited for long enough are decided without the store.
    pub(super) fn give_up_waiting(&mut self, host: &mut Host<'_, '_>) {
        if self.waits == 0 || host.now < self.wait_until {
            return;
        }
        let (mut left, mut until) = (self.waits, Nanos::MAX);
        for place in 0..self.flights.len() {
            if left == 0 {
                break;
            }
            self.with_flight(place, |store, flight| {
                for index in 0..flight.group_count {
                    let Some(group) = flight.groups.get(index) else { continue };
                    if group.paid != Paid::Waits {
                        continue;
                    }
                    left = left.saturating_sub(1);
                    if host.now < group.deadline {
                        until = until.min(group.deadline);
                        continue;
                    }
                    store.leave(waiter(place, index), group);
                    store.decide_alone(flight, index, host);
                    store.land_if_done(place, flight, host);
                }
            });
        }
        self.wait_until = until;
    }

    /// A group is not to wait any more, whose flight is taken out.
    fn leave(&mut self, own: Waiter, group: &Group) {
        let mut before = None;
        let mut next = self.leases.first_waiting(group.pot());
        while let Some(waiter) = next.filter(|waiter| *waiter != own) {
            before = next;
            next = self.waiting_group(waiter).and_then(|group| group.behind);
        }
        self.leases.leave(group.pot(), group.cost, before, group.behind);
        if let Some(before) = before.and_then(|before| self.waiting_group(before)) {
            before.behind = group.behind;
        }
        self.waits = self.waits.saturating_sub(1);
    }

    fn waiting_group(&mut self, waiter: Waiter) -> Option<&mut Group> {
        let (place, index) = of_waiter(waiter);
        self.flights.get_mut(place)?.as_mut()?.groups.get_mut(index)
    }
}
