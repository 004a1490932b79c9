//! The store is back: it is told what was admitted without it, and what it
//! knew before, if it has lost its memory.

use super::super::script::{Ask, Call, Op};
use super::background::{Origin, PATIENCE};
use super::flight::{Group, Held, Paid, Phase, ticket};
use super::{Host, Store};
use crate::decision::Decision;
use crate::metrics::StoreEvent;
use crate::time::Nanos;

impl Store {
    /// Charges the store what the fallback admitted while it was away, and what
    /// it said itself before that, if it does not know any more. What it does
    /// not answer to is told again. False if not all could be sent.
    pub(super) fn charge_fallback(
        &mut self,
        layers: &[Option<Held>],
        group: &Group,
        host: &mut Host<'_, '_>,
    ) -> bool {
        let deadline = host.now.saturating_add(PATIENCE);
        if !self.leases.take_fell_back(group.pot, deadline, self.back_at, host.now) {
            return true;
        }
        self.carry_over(group, layers, host); // where only memory has answered meanwhile
        let mut was_told = true;
        let mut is_told = false;
        for (index, held) in group.held(layers).iter().flatten().enumerate() {
            let owed = self.owed(group, held, host);
            // With nothing owed it may still turn out to have lost its memory.
            let expected = self.told_debt(group, index, &held.limit, host.now).saturating_add(owed);
            if expected == 0 {
                continue;
            }
            let group = Group { expected, ..*group };
            let telling = self.tell_owed(&group, (index, owed), held, deadline, host);
            was_told &= telling;
            is_told |= telling;
        }
        if !(is_told && was_told) {
            self.leases.owing(group.pot, was_told);
        }
        was_told
    }

    /// Of a process that ends: the store is told what it admitted by itself, of
    /// keys that nobody may ask about any more. What there is no room for is
    /// told when there is.
    pub(super) fn tell_rest(&mut self, host: &mut Host<'_, '_>) {
        while self.breaker.allows(host.now)
            && let Some((place, pot)) = self.leases.fell_back_from(self.told_to)
        {
            if let Some((group, layers)) = self.origin(place, pot).map(Origin::group)
                && !self.charge_fallback(&layers, &group, host)
            {
                return;
            }
            self.told_to = place + 1;
        }
    }

    fn tell_owed(
        &mut self,
        group: &Group,
        owed: (usize, u64),
        held: &Held,
        deadline: Nanos,
        host: &mut Host<'_, '_>,
    ) -> bool {
        let Some(room) = self.claim_flight(Phase::Background, 0, host.now) else { return false };
        let (index, units) = owed;
        let (count, owed, asked_at, id, paid) = (1, Some(owed), host.now, self.id(), Paid::Asked);
        let group = Group { count, owed, asked_at, deadline, id, paid, ..*group };
        let is_sent = self.with_flight(room, |store, flight| {
            flight.board(&group, [*held].into_iter());
            let ticket = ticket(room, flight.generation, 0);
            let limit = &store.counted(&held.limit, group.piece, group.pieces);
            let key = group.text.of(group.piece_number(), index, limit.algorithm());
            let asks = [Ask { key: key.as_bytes(), limit }];
            let op = Op::Check { cost: 0, more: 0, share: 1, owed: units, id };
            let is_sent = host.transport.send(ticket, &Call { asks: &asks, op }, deadline, host.now).is_ok();
            if !is_sent {
                store.free_flight(room, flight);
            }
            is_sent
        });
        let is_sent = is_sent == Some(true);
        if is_sent {
            host.metrics.count(StoreEvent::Call);
            if !group.forgotten {
                self.is_told(held, &group, units, host);
            }
        }
        is_sent
    }

    /// The store was told, and said how it stands then; or it was not. If it
    /// turns out to have lost its memory, it is told of that as well.
    pub(super) fn owed_is_told(
        &mut self,
        place: usize,
        told: Option<Option<&Decision>>,
        host: &mut Host<'_, '_>,
    ) {
        // Its place may be wanted for telling more.
        let kept = self.with_flight(place, |store, flight| {
            store.free_flight(place, flight);
            Some((*flight.groups.first()?, (*flight.layers.first()?)?))
        });
        let Some(Some((group, held))) = kept else { return };
        let (index, owed) = group.owed.unwrap_or_default();
        self.leases.owing(group.pot, told.is_some());
        match told {
            None if group.forgotten => {
                if let Some(reminded) = self.reminded(&held, &group, host) {
                    reminded.take(owed, host.now);
                }
            }
            None => self.is_not_told(&held, &group, owed, host),
            Some(said) if !group.forgotten => {
                let forgotten = said.map_or(0, |said| self.forgotten(&group, &held, said, host));
                if forgotten > 0 {
                    self.tell_forgotten(&group, (index, forgotten), &held, host);
                }
            }
            _ => {}
        }
    }

    /// No other worker has to, for as long as the call may take.
    fn tell_forgotten(
        &mut self,
        group: &Group,
        (index, units): (usize, u64),
        held: &Held,
        host: &mut Host<'_, '_>,
    ) {
        let group = Group { forgotten: true, asked_at: host.now, ..*group };
        let deadline = host.now.saturating_add(PATIENCE);
        let Some(reminded) = self.reminded(held, &group, host) else { return };
        reminded.add(units, PATIENCE, host.now);
        if !self.tell_owed(&group, (index, units), held, deadline, host) {
            reminded.take(units, host.now);
        }
    }
}
