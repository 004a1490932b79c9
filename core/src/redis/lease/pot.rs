//! One key's pot: what was fetched for it and not spent, and what the store
//! said of it.

use super::due::Turn;
use super::{FEW, Grant, Spend, TOLD, Told, Unspent};
use crate::decision::Decision;
use crate::policy::Lease;
use crate::time::Nanos;

/// A key's grant and memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pot {
    pub(super) key: u64,
    /// The older grant, and the newer one.
    pub(super) lots: [Lot; 2],
    /// Until when a denial is remembered.
    pub(super) denied_until: Nanos,
    /// When a request fits, as far as the store knew.
    pub(super) retry_at: Nanos,
    /// Of a row of denials, whose limit brings one unit after the other: the
    /// request that asks again, while the others wait for what it is told.
    pub(super) again_id: u64,
    pub(super) one_by_one: bool,
    /// When the first denial of this row was told; 0 after an admission.
    pub(super) denied_from: Nanos,
    /// Requests of at least this cost are denied until then.
    pub(super) denied_cost: u64,
    pub(super) denied_by: u8,
    /// A call for more is under way until it is answered or this is over.
    pub(super) asking_until: Nanos,
    /// Which one.
    pub(super) asking_id: u64,
    /// The same of a request that found the pot empty meanwhile.
    pub(super) urgent_until: Nanos,
    pub(super) urgent_id: u64,
    /// What was spent when the last call for more was sent, and the units that
    /// were while it was under way.
    pub(super) spent_then: u64,
    pub(super) used_meanwhile: u64,
    pub(super) touched: Nanos,
    pub(super) told_at: Nanos,
    /// Was what is told dated anew?
    pub(super) redated: bool,
    /// Units spent since `since`.
    pub(super) spent: u64,
    pub(super) since: Nanos,
    pub(super) size: u64,
    /// Has the fallback decided something that the store has not heard of?
    pub(super) fell_back: bool,
    /// The store is being told, until it answers or this is over.
    pub(super) owing_until: Nanos,
    /// Units that calls under way were told to bring.
    pub(super) coming: u64,
    /// Units that those need who wait.
    pub(super) promised: u64,
    /// Who waits, the first and the last; 0 is nobody.
    pub(super) first_waiting: u32,
    pub(super) last_waiting: u32,
    /// Did the last call bring less than it was told to?
    pub(super) is_poor: bool,
    pub(super) told: [Told; TOLD],
    /// Its turn to be looked at.
    pub(super) turn: Turn,
}

/// Units of one grant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lot {
    pub(super) units: u64,
    /// When the grant was asked for.
    pub(super) asked_at: Nanos,
    pub(super) expires_at: Nanos,
    /// The call that it came with; 0 of none.
    pub(super) id: u64,
}

impl Pot {
    pub(super) fn tell(&mut self, decisions: &[Decision], now: Nanos) {
        (self.told_at, self.redated) = (now.max(1), false);
        for (told, decision) in self.told.iter_mut().zip(decisions) {
            let reset_at = now.saturating_add(decision.reset_after);
            *told = Told { remaining: decision.remaining, reset_at };
        }
    }

    /// What it says to a request of this cost.
    #[inline]
    pub(super) fn say(&self, cost: u64, now: Nanos) -> Spend {
        let live = self.live(now);
        if live >= cost.max(1) {
            let left = live - cost; // at least cost
            return Spend::Taken { left, low: left <= self.mark() && self.asking_until <= now };
        }
        if now < self.denied_until && cost >= self.denied_cost {
            let until = self.retry_at.max(self.denied_until);
            return Spend::Denied { until, by: usize::from(self.denied_by) };
        }
        Spend::Ask
    }

    /// Units that may be spent.
    #[inline]
    pub(super) fn live(&self, now: Nanos) -> u64 {
        let [older, newer] = &self.lots;
        older.live(now).saturating_add(newer.live(now))
    }

    /// When the first of its units are over.
    pub(super) fn first_over(&self) -> Option<Nanos> {
        self.lots.iter().filter(|lot| lot.units > 0).map(|lot| lot.expires_at).min()
    }

    /// Takes units that are live, the older ones first.
    #[inline]
    pub(super) fn take(&mut self, units: u64, now: Nanos) {
        let mut left = units;
        for lot in &mut self.lots {
            let taken = lot.live(now).min(left);
            lot.units -= taken; // live is at most all
            left -= taken;
        }
    }

    /// How many units the pot should have on top of what it has.
    pub(super) fn wanted(&mut self, lease: Lease, now: Nanos) -> u64 {
        if self.asking_until > now {
            return 0;
        }
        let elapsed = now.saturating_sub(self.since);
        if self.since == 0 || elapsed > lease.ttl.saturating_mul(4) {
            (self.size, self.spent) = (0, 0); // a key that was quiet begins anew
        } else if elapsed > 0 {
            let horizon = u128::from(lease.ttl / 2);
            let demand = u128::from(self.spent) * horizon / u128::from(elapsed);
            let grown = self.size.saturating_mul(2).saturating_add(FEW);
            let demand = u64::try_from(demand).unwrap_or(u64::MAX);
            // Less is likely to go back unspent, which is a call too.
            self.size = if demand < FEW { 0 } else { demand.min(grown).min(lease.max) };
            self.spent = 0;
        }
        self.since = now;
        // What is used until the answer comes is fetched on top.
        self.size.saturating_sub(self.live(now).saturating_sub(self.used_meanwhile))
    }

    /// When no more than this is left it is time to fetch.
    pub(super) fn mark(&self) -> u64 {
        (self.size / 4).max(self.used_meanwhile.min(self.size - self.size / 4))
    }

    /// Nothing is denied from memory.
    pub(super) fn forgive(&mut self) {
        (self.denied_until, self.retry_at, self.denied_from, self.again_id) = (0, 0, 0, 0);
    }

    pub(super) fn unanswered(&mut self, id: u64) {
        if self.asking_id == id {
            (self.asking_until, self.asking_id) = (0, 0);
        }
        if self.urgent_id == id {
            (self.urgent_until, self.urgent_id) = (0, 0);
        }
        if self.again_id == id {
            (self.denied_until, self.again_id) = (0, 0);
        }
    }

    pub(super) fn has_room(&self, grant: &Grant) -> bool {
        grant.merges || self.lots.iter().any(|lot| lot.units == 0 || lot.id == grant.id)
    }

    /// Puts a grant beside the one before; the one before that has to go.
    pub(super) fn put(&mut self, grant: &Grant) -> Option<Lot> {
        let Grant { units, asked_at, id, ttl, merges } = *grant;
        let [older, newer] = &mut self.lots;
        if newer.id == id {
            newer.units = newer.units.saturating_add(units); // more of the same call
            return None;
        }
        if older.units > 0 && older.id == id {
            older.units = older.units.saturating_add(units); // no two lots have one number
            return None;
        }
        if merges && older.units > 0 && newer.units > 0 {
            newer.units = newer.units.saturating_add(older.units);
            (newer.asked_at, newer.id, older.units) = (older.asked_at, older.id, 0); // the greater age
        }
        let lot = Lot { units, asked_at, expires_at: asked_at.saturating_add(ttl), id };
        let over = if newer.units > 0 { core::mem::replace(older, *newer) } else { Lot::default() };
        *newer = lot;
        (over.units > 0).then_some(over)
    }
}

impl Lot {
    #[inline]
    pub(super) fn live(&self, now: Nanos) -> u64 {
        if now < self.expires_at { self.units } else { 0 }
    }

    pub(super) fn unspent(&self, place: usize, key: u64) -> Unspent {
        Unspent { place, key, units: self.units, asked_at: self.asked_at, id: self.id }
    }
}
