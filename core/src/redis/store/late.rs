//! An answer that comes after its deadline, with units that the store has
//! charged: they are not lost.
//!
//! Whoever had asked is decided without the store by then. But the call may
//! have been told to bring more, for the pot. So its answer is waited for on,
//! by nobody: as long as the connection lives, what it brings goes into the
//! pot, and from there back when its time is over. The units of the request
//! itself stay charged: whether it was admitted without them, or denied by
//! another limit, is not asked again.

use super::super::lease::TOLD;
use super::flight::{Flight, Group, Held, Paid, Phase, ticket};
use super::{Host, Store};

/// A call that was given up.
pub(super) struct Late {
    group: Group,
    layers: [Option<Held>; TOLD],
}

impl Late {
    /// None where it brings nothing for a pot.
    pub(super) fn of(flight: &Flight, index: usize) -> Option<Late> {
        let group = flight.groups.get(index).filter(|group| group.more > 0 && group.count <= TOLD)?;
        let mut layers = [None; TOLD];
        layers.iter_mut().zip(group.held(&flight.layers)).for_each(|(room, held)| *room = *held);
        // It asks for nothing, and no other piece in its place.
        let (cost, more, tried, paid) = (0, 0, group.pieces, Paid::Asked);
        Some(Late { group: Group { is_late: true, cost, more, tried, paid, ..*group }, layers })
    }
}

impl Store {
    /// The call of this ticket was given up; its answer may still come.
    pub(super) fn wait_on(&mut self, given_up: u64, late: &Late, host: &mut Host<'_, '_>) {
        let Some(place) = self.claim_flight(Phase::Background, 0, host.now) else { return };
        self.with_flight(place, |store, flight| {
            flight.board(&late.group, late.layers.into_iter().flatten());
            if !host.transport.wait_on(given_up, ticket(place, flight.generation, 0)) {
                store.free_flight(place, flight);
            }
        });
    }
}
