//! A request that waits for the store, with all that is needed to answer it,
//! or to undo it, without the request itself.
//!
//! A flight has room for as many layers as a request may have, some KiB, of
//! which most requests use one. So it is filled and read where it lies, as far
//! as its counts go: what earlier requests left behind them is not cleared.
//! Who works on one takes it out of the store, as a pointer
//! ([`Store::with_flight`]), and may change the rest of the store meanwhile.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::super::key::KeyText;
use super::super::lease::{Grant, Waiter};
use super::Store;
use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::limiter::MAX_LAYERS;
use crate::policy::check::{Answer, NONE, empty};
use crate::policy::{Lease, OnStoreError, Outcome, Penalty};
use crate::time::Nanos;

/// The ticket of calls whose answer matters to nobody.
pub(in crate::redis) const NOBODY: u64 = 0;
/// The ticket of probes.
pub(super) const PROBE: u64 = 1;

/// What a flight is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// Nothing.
    #[default]
    Free,
    /// A request waits.
    Waiting,
    /// Its answer was not told yet.
    Ready,
    /// The client is gone: the answer only has to be undone.
    Abandoned,
    /// Nobody waits: it fetches ahead.
    Background,
}

#[derive(Debug)]
pub(super) struct Flight {
    pub(super) phase: Phase,
    /// Told apart from those that had this place before.
    pub(super) generation: u32,
    /// The next one in the list that it is in.
    pub(super) next: usize,
    pub(super) user: u64,
    /// Groups that were not answered yet.
    pub(super) unanswered: usize,
    pub(super) dry: u16,
    pub(super) started: Nanos,
    pub(super) answer: Answer,
    /// Those of its groups, and of its answer.
    pub(super) layers: [Option<Held>; MAX_LAYERS],
    /// The first so many of them.
    pub(super) groups: [Group; MAX_LAYERS],
    pub(super) group_count: usize,
}

/// One layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) limit: Limit,
    /// In the host's table.
    pub(super) fingerprint: Fingerprint,
    pub(super) cost: u64,
    /// Does it count in the store?
    pub(super) remote: bool,
    pub(super) policy: usize,
    /// Which of its limits.
    pub(super) index: usize,
    pub(super) overridden: bool,
    pub(super) penalty: Option<(Fingerprint, Penalty)>,
}

/// How a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Paid {
    /// It was asked, and the answer is not there.
    Asked,
    /// Not asked: it waits for what others' calls bring into its pot.
    Waits,
    /// From its pot.
    Pot,
    /// With the call.
    Call,
    /// In the host's table.
    Local,
    /// Not at all: denied, or let through.
    #[default]
    Nothing,
}

/// The limits of one policy for one subject.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    /// Its layers.
    pub(super) first: usize,
    pub(super) count: usize,
    /// The Redis key of its first limit, without a piece's number.
    pub(super) text: KeyText,
    /// Of its pot, or of its first piece's.
    pub(super) pot: u64,
    pub(super) pieces: u32,
    pub(super) piece: u32,
    /// Pieces that were looked at.
    pub(super) tried: u32,
    pub(super) paid: Paid,
    pub(super) cost: u64,
    /// Only this is told to the store: which of the limits, and the units
    /// that were admitted without it.
    pub(super) owed: Option<(usize, u64)>,
    /// Its call was given up, and is waited for by nobody.
    pub(super) is_late: bool,
    /// Units that its call was told to bring on top.
    pub(super) more: u64,
    /// Who waits behind it, where it waits.
    pub(super) behind: Option<Waiter>,
    /// They are units that the store knew of and has forgotten.
    pub(super) forgotten: bool,
    /// What the store knows then, if it knows what it knew.
    pub(super) expected: u64,
    pub(super) id: u64,
    pub(super) asked_at: Nanos,
    pub(super) deadline: Nanos,
    /// An answer that is later is none for a request: a store that gives such
    /// ones is not well.
    pub(super) wanted_by: Nanos,
    pub(super) lease: Option<Lease>,
    pub(super) on_store_error: OnStoreError,
}

impl Default for Flight {
    fn default() -> Self {
        Flight {
            phase: Phase::Free,
            generation: 1,
            next: 0,
            user: 0,
            unanswered: 0,
            dry: 0,
            started: 0,
            answer: empty(0),
            layers: [None; MAX_LAYERS],
            groups: [Group::default(); MAX_LAYERS],
            group_count: 0,
        }
    }
}

impl Flight {
    /// So many that are free, one behind the other.
    pub(super) fn fleet(count: usize) -> Box<[Option<Box<Flight>>]> {
        let mut flights = Vec::with_capacity(count);
        flights.extend((1..=count).map(|next| Some(Box::new(Flight { next, ..Flight::default() }))));
        flights.into_boxed_slice()
    }

    /// The one group of a flight that nobody waits for, and its layers.
    pub(super) fn board(&mut self, group: &Group, held: impl Iterator<Item = Held>) {
        for (room, held) in self.layers.iter_mut().zip(held) {
            *room = Some(held);
        }
        if let Some(room) = self.groups.first_mut() {
            *room = Group { first: 0, ..*group };
        }
        (self.group_count, self.unanswered) = (1, 1);
    }
}

impl Store {
    /// Takes a flight out, for as long as `step` takes.
    pub(super) fn with_flight<R>(
        &mut self,
        place: usize,
        step: impl FnOnce(&mut Store, &mut Flight) -> R,
    ) -> Option<R> {
        let mut flight = self.flights.get_mut(place)?.take()?;
        let done = step(self, &mut flight);
        if let Some(room) = self.flights.get_mut(place) {
            *room = Some(flight);
        }
        Some(done)
    }

    pub(super) fn flight(&self, place: usize) -> Option<&Flight> {
        self.flights.get(place)?.as_deref()
    }

    /// A free flight, of this phase from now on.
    pub(super) fn claim_flight(&mut self, phase: Phase, user: u64, now: Nanos) -> Option<usize> {
        let place = self.free;
        let flight = self.flights.get_mut(place)?.as_mut()?;
        self.free = flight.next;
        flight.generation = flight.generation.wrapping_add(1).max(1);
        (flight.phase, flight.user, flight.started) = (phase, user, now);
        (flight.unanswered, flight.dry, flight.group_count) = (0, 0, 0);
        flight.answer.reset(0);
        Some(place)
    }

    /// Another one may have it, once it is back in its place.
    pub(super) fn free_flight(&mut self, place: usize, flight: &mut Flight) {
        (flight.phase, flight.next) = (Phase::Free, self.free);
        self.free = place;
    }
}

impl Held {
    /// A limit, and its place in the host's table: of a call that is nobody's
    /// request.
    pub(super) fn of((limit, fingerprint): (Limit, Fingerprint)) -> Held {
        let (policy, index, overridden, penalty) = (0, 0, false, None);
        Held { limit, fingerprint, cost: 0, remote: true, policy, index, overridden, penalty }
    }
}

impl Group {
    /// The pot of the piece that is asked.
    pub(super) fn pot(&self) -> u64 {
        pot_of(self.pot, self.piece)
    }

    /// The number of the piece that is asked, of a divided key.
    pub(super) fn piece_number(&self) -> Option<u32> {
        (self.pieces > 1).then_some(self.piece)
    }

    /// Its layers, of those of its flight.
    pub(super) fn held<'l>(&self, layers: &'l [Option<Held>]) -> &'l [Option<Held>] {
        layers.get(self.first..self.first + self.count).unwrap_or(&[])
    }

    /// Is one of its limits counted so?
    pub(super) fn has(&self, layers: &[Option<Held>], algorithm: Algorithm) -> bool {
        self.held(layers).iter().flatten().any(|held| held.limit.algorithm() == algorithm)
    }

    /// May units be carried ahead? A queue's places are its own, and units in
    /// flight are released one by one.
    pub(super) fn is_leasable(&self, layers: &[Option<Held>]) -> bool {
        !self.has(layers, Algorithm::Concurrency) && !self.has(layers, Algorithm::LeakyBucket)
    }

    /// What it paid, to be put back.
    pub(super) fn grant(&self, merges: bool) -> Grant {
        let ttl = self.lease.map_or(0, |lease| lease.ttl);
        Grant { units: self.cost, asked_at: self.asked_at, id: self.id, ttl, merges }
    }

    /// Another group denied: what this one let through was not admitted.
    pub(super) fn spare(&self, answer: &mut Answer) {
        for at in self.first..self.first + self.count {
            if answer.outcomes.get(at) != Some(&Outcome::Admitted) {
                continue;
            }
            let decision = answer.decisions.get(at).copied().unwrap_or(NONE);
            let charged = if self.paid == Paid::Nothing { 0 } else { self.cost };
            let remaining = decision.remaining.saturating_add(charged);
            answer.set(at, Decision { remaining, delay: 0, ..decision }, Outcome::Spared);
        }
    }

    /// Its layers, as bits.
    pub(super) fn mask(&self) -> u16 {
        let ones = (1u32 << self.count) - 1; // at most MAX_LAYERS
        (ones << self.first) as u16
    }
}

/// The pot of a piece of a divided key.
#[inline]
pub(super) fn pot_of(pot: u64, piece: u32) -> u64 {
    (pot ^ u64::from(piece).wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1)
}

/// A ticket says which group of which flight it is for.
pub(super) fn ticket(place: usize, generation: u32, group: usize) -> u64 {
    u64::from(generation) << 32 | (place as u64) << 8 | group as u64 | 1 << 7 // a place is below 2^16, a group below 2^4
}

/// The flight's place, its generation, and the group.
pub(super) fn of_ticket(ticket: u64) -> Option<(usize, u32, usize)> {
    let group = ticket as usize & 0x7F; // the low bits
    (ticket & 1 << 7 != 0).then_some(((ticket >> 8) as usize & 0xFF_FFFF, (ticket >> 32) as u32, group))
}
