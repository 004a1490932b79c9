//! Tokens fetched ahead, and denials remembered: why a hot key does not ask
//! the store each time.
//!
//! Each key that was asked of the store has a *pot*: units that the store gave
//! on top of what a request needed (a grant), until when they may be spent,
//! and what the store last said. A request that finds enough in its pot is
//! admitted without asking; one that comes before the wait of an earlier
//! denial is over is denied without asking.
//!
//! What may be spent here was taken from the store before, so instances
//! together never admit more than it granted. How much is fetched follows the
//! demand: as much as half the lease's time has been seen to use, at most
//! twice as much as the time before, and never more than `lease.max` a grant.
//! When a quarter is left, more is fetched before anyone has to wait; sooner,
//! at three quarters, where answers take so long that more than that is used
//! until they come. A request that finds nothing in the pot meanwhile waits
//! for what is under way, as long as that is enough for all that wait
//! ([`queue`]); the first for which it is not asks by itself, and brings a grant
//! along. So a hot key has a call for each grant, not for each request. A store
//! that gave less than it was asked for has little to spare: then each request
//! asks, as nobody knows for how many it will do.
//! What is unspent when its time is over goes back.
//!
//! A pot holds the units of two grants apart, the older of which is spent
//! first, so that each goes back with the age and the number of its own call.
//! A denial is remembered until its wait is over; but the first of a row no
//! longer than others may hold what they have fetched, since what they give
//! back is there before.
//!
//! The number of pots is fixed; the least recently used one of a set of
//! [`WAYS`] makes room, and what it held is lost, not spent.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::decision::Decision;
use crate::policy::Lease;
use crate::time::Nanos;
use due::Due;
use pot::Pot;
pub use queue::{Turn, Waiter};

mod due;
mod pot;
mod queue;

/// Pots that a key may be in.
const WAYS: usize = 8;
/// Limits of one policy whose last answer is remembered one by one.
pub const TOLD: usize = 4;
/// The least demand that is worth a grant.
const FEW: u64 = 2;
/// A denial is remembered for at most so long, then asked again: 1 h.
const MAX_MEMORY: Nanos = 3_600_000_000_000;

/// What the store last said of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Units that were left in the store.
    pub remaining: u64,
    /// When the limit is whole again, by the host's clock.
    pub reset_at: Nanos,
}

/// What a pot says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// It was paid from the pot. `low`: it is time to fetch more.
    Taken {
        /// Units left in the pot.
        left: u64,
        /// Fetch more, without waiting for it.
        low: bool,
    },
    /// The store denied this cost, and the wait is not over.
    Denied {
        /// The end of the wait.
        until: Nanos,
        /// Which of the policy's limits denied.
        by: usize,
    },
    /// Only the store can tell.
    Ask,
}

/// A denial, to be remembered.
#[derive(Clone, Copy, Debug)]
pub struct Denial {
    /// The number of the call that told it.
    pub id: u64,
    /// Requests of at least this cost are denied ...
    pub cost: u64,
    /// ... by this one of the policy's limits ...
    pub by: usize,
    /// ... until then.
    pub until: Nanos,
    /// Does the limit bring one unit after the other, so that there is no
    /// more than this cost then?
    pub one_by_one: bool,
    /// Others may give back what they have fetched: the first denial of a row
    /// is remembered for no longer than this.
    pub recheck: Nanos,
}

/// What an answer brings into a pot.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Units that came on top.
    pub units: u64,
    /// When the call was sent.
    pub asked_at: Nanos,
    /// The number of the call.
    pub id: u64,
    /// How long the units may be spent.
    pub ttl: Nanos,
    /// May units of several calls go back as those of the oldest? Not those of
    /// a log, which knows each by its call.
    pub merges: bool,
}

/// Units whose time is over, to be given back to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unspent {
    /// Which pot they were in.
    pub place: usize,
    /// Whose pot that was.
    pub key: u64,
    /// How many.
    pub units: u64,
    /// When they were asked for.
    pub asked_at: Nanos,
    /// By which call.
    pub id: u64,
}

/// A fixed number of pots.
#[derive(Debug)]
pub struct Leases {
    pots: Box<[Pot]>,
    evicted: u64,
    due: Due,
}

impl Leases {
    /// Room for about `capacity` keys (rounded up to a power of two, at least
    /// [`WAYS`] and at most 2^24). Allocates; nothing else here does.
    #[must_use]
    pub fn new(capacity: usize) -> Leases {
        let count = capacity.clamp(WAYS, 1 << 24).next_power_of_two();
        let mut pots = Vec::new();
        pots.resize(count, Pot::default());
        Leases { pots: pots.into_boxed_slice(), evicted: 0, due: Due::new(count) }
    }

    /// How many pots there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pots.len()
    }

    /// Is there no pot? There always is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pots.is_empty()
    }

    /// Pots that were given to another key while they held unspent units.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Pays `cost` from the key's pot, if it can.
    #[inline]
    pub fn spend(&mut self, key: u64, cost: u64, now: Nanos) -> Spend {
        let Some(pot) = self.find(key) else { return Spend::Ask };
        pot.touched = now;
        let said = pot.say(cost, now);
        if let Spend::Taken { .. } = said {
            pot.take(cost, now);
            pot.spent = pot.spent.saturating_add(cost);
        }
        said
    }

    /// What [`spend`](Self::spend) would say; nothing is taken.
    #[must_use]
    pub fn peek(&self, key: u64, cost: u64, now: Nanos) -> Spend {
        let pot = self.place(key).and_then(|place| self.pots.get(place));
        pot.map_or(Spend::Ask, |pot| pot.say(cost, now))
    }

    /// What the store last said, and when.
    #[must_use]
    pub fn told(&self, key: u64) -> Option<(&[Told; TOLD], Nanos)> {
        let pot = self.pots.get(self.place(key)?)?;
        (pot.told_at > 0).then_some((&pot.told, pot.told_at))
    }

    /// The call `id`, of a request of `cost`, is about to be sent; how many
    /// units to fetch on top, so that the pot then holds what the demand asks
    /// for. 0 while another call of this key fetches, unless that is not enough
    /// for who waits. [`ended`](Self::ended) is told how many there were.
    pub fn ask(
        &mut self,
        key: u64,
        cost: u64,
        lease: Option<Lease>,
        id: u64,
        deadline: Nanos,
        now: Nanos,
    ) -> u64 {
        let Some(place) = self.claim(key, now) else { return 0 };
        let Some(pot) = self.pots.get_mut(place) else { return 0 };
        if pot.one_by_one && pot.denied_from > 0 && cost >= pot.denied_cost {
            // One asks whether the wait is over; until it knows, it is not.
            (pot.denied_until, pot.again_id) = (deadline, id);
        }
        let Some(lease) = lease else { return 0 };
        let until = deadline.max(now.saturating_add(1));
        let is_urgent = pot.asking_id != 0 && pot.asking_until > now;
        let more = match is_urgent {
            false => pot.wanted(lease, now),
            true if cost > 0 && pot.live(now) < cost && (pot.urgent_until <= now || !pot.is_poor) => pot.size,
            true => 0,
        };
        pot.spent = pot.spent.saturating_add(cost);
        pot.coming = pot.coming.saturating_add(more);
        match (more, is_urgent) {
            (0, _) => {}
            (_, false) => {
                (pot.asking_until, pot.asking_id) = (until, id);
                pot.spent_then = pot.spent;
            }
            (_, true) => (pot.urgent_until, pot.urgent_id) = (until, id),
        }
        more
    }

    /// The store admitted: what came on top goes into the pot, and what it
    /// said is remembered. The units of an earlier grant for which there is no
    /// room any more, to be given back.
    pub fn grant(&mut self, key: u64, grant: &Grant, decisions: &[Decision], now: Nanos) -> Option<Unspent> {
        let place = self.claim(key, now)?;
        let pot = self.pots.get_mut(place)?;
        pot.tell(decisions, now);
        if pot.asking_id == grant.id {
            // A store that has none to spare is not asked for more at once.
            let pause = if grant.units == 0 { now.saturating_add(grant.ttl / 16) } else { 0 };
            (pot.asking_until, pot.asking_id) = (pause, 0);
            let used = pot.spent.saturating_add(pot.promised).saturating_sub(pot.spent_then);
            pot.used_meanwhile = used;
        }
        if pot.urgent_id == grant.id {
            (pot.urgent_until, pot.urgent_id) = (0, 0);
        }
        pot.forgive();
        if grant.units == 0 {
            return None;
        }
        let over = pot.put(grant);
        self.due.note(place, &mut self.pots);
        over.map(|lot| lot.unspent(place, key))
    }

    /// No request of at least this cost fits before then: it was denied, or
    /// the one before took the last.
    pub fn deny(&mut self, key: u64, denial: &Denial, decisions: &[Decision], now: Nanos) {
        let Some(place) = self.claim(key, now) else { return };
        let Some(pot) = self.pots.get_mut(place) else { return };
        pot.tell(decisions, now);
        pot.unanswered(denial.id);
        if pot.denied_from == 0 {
            pot.denied_from = now.max(1);
        }
        let again = pot.denied_from.saturating_add(denial.recheck);
        let memory = if now < again { again } else { now.saturating_add(MAX_MEMORY) };
        pot.denied_until = denial.until.min(memory).min(now.saturating_add(MAX_MEMORY));
        pot.retry_at = denial.until;
        pot.one_by_one = denial.one_by_one;
        pot.denied_cost = denial.cost;
        pot.denied_by = denial.by.min(usize::from(u8::MAX)) as u8; // at most MAX_LAYERS
    }

    /// Units that were paid with a call and are not needed, because another
    /// limit denied: they wait in the pot for the next request. False if there
    /// is no pot to put them into, or no room in it.
    pub fn put_back(&mut self, key: u64, grant: &Grant) -> bool {
        let Some(place) = self.place(key).filter(|_| grant.units > 0) else { return false };
        let Some(pot) = self.pots.get_mut(place).filter(|pot| pot.has_room(grant)) else { return false };
        pot.spent = pot.spent.saturating_sub(grant.units);
        let _ = pot.put(grant); // there is room
        self.due.note(place, &mut self.pots);
        true
    }

    /// Units that were paid from the pot and are not needed.
    pub fn unspend(&mut self, key: u64, units: u64) {
        let Some(place) = self.place(key) else { return };
        let Some(pot) = self.pots.get_mut(place) else { return };
        let [older, newer] = &mut pot.lots;
        let lot = if older.units > 0 { older } else { newer };
        lot.units = lot.units.saturating_add(units);
        pot.spent = pot.spent.saturating_sub(units);
        pot.forgive();
        self.due.note(place, &mut self.pots);
    }

    /// Units of the key go back to the store: what was denied may be admitted.
    pub fn forgive(&mut self, key: u64) {
        if let Some(pot) = self.find(key) {
            pot.forgive();
        }
    }

    /// The call `id` was not answered; it may have been one to fetch more.
    pub fn unanswered(&mut self, key: u64, id: u64) {
        if let Some(pot) = self.find(key) {
            pot.unanswered(id);
        }
    }

    /// The call `id`, which was to bring `more` units, was not sent after all.
    pub fn not_sent(&mut self, key: u64, id: u64, more: u64) {
        self.ended(key, more, 0);
        self.unanswered(key, id);
    }

    /// The fallback decided a request of this key.
    pub fn fell_back(&mut self, key: u64, now: Nanos) {
        let place = self.claim(key, now);
        if let Some(pot) = place.and_then(|place| self.pots.get_mut(place)) {
            pot.fell_back = true;
        }
    }

    /// Has the fallback decided something, of which the store has to be told,
    /// or was the store not heard since `back_at`, when it had been away; and is
    /// it not being told? Then it is, until `deadline`.
    pub fn take_fell_back(&mut self, key: u64, deadline: Nanos, back_at: Nanos, now: Nanos) -> bool {
        let has_to = |pot: &&mut Pot| pot.fell_back || pot.told_at > 0 && pot.told_at < back_at;
        let Some(pot) = self.find(key).filter(has_to).filter(|pot| pot.owing_until <= now) else {
            return false;
        };
        (pot.fell_back, pot.owing_until) = (false, deadline);
        true
    }

    /// The next pot, from this place on, whose fallback has decided something
    /// that the store is not being told: its place, and whose it is.
    #[must_use]
    pub fn fell_back_from(&self, place: usize) -> Option<(usize, u64)> {
        let mut pots = self.pots.iter().enumerate().skip(place);
        pots.find(|(_, pot)| pot.fell_back).map(|(place, pot)| (place, pot.key))
    }

    /// Dates what the store last said later, by as long as that is ago and at
    /// most by `span`, once: while grants were spent nobody heard what others
    /// took meanwhile, so what time gives back is taken for spent as well.
    pub fn redate(&mut self, key: u64, span: Nanos, now: Nanos) {
        let Some(pot) = self.find(key).filter(|pot| !pot.redated && pot.told_at > 0) else { return };
        let span = now.saturating_sub(pot.told_at).min(span);
        for told in &mut pot.told {
            told.reset_at = told.reset_at.saturating_add(span);
        }
        pot.redated = true;
    }

    /// The store was told, or it was not.
    pub fn owing(&mut self, key: u64, was_told: bool) {
        if let Some(pot) = self.find(key) {
            pot.owing_until = 0;
            pot.fell_back |= !was_told;
        }
    }

    /// What was denied may be admitted: the limits have changed.
    pub fn forget_denials(&mut self) {
        self.pots.iter_mut().for_each(Pot::forgive);
    }

    /// Where the key's pot is, if it has one: the place of what a host keeps
    /// beside the pots.
    #[must_use]
    pub fn place(&self, key: u64) -> Option<usize> {
        let set = self.set(key);
        let ways = self.pots.get(set..set + WAYS)?;
        ways.iter().position(|pot| pot.key == key).map(|way| set + way)
    }

    /// When units are over first that were not spent; they may have been by
    /// then. None when no pot holds any.
    #[must_use]
    pub fn next_over(&self) -> Option<Nanos> {
        self.due.first(&self.pots).map(|(at, _)| at)
    }

    /// Units whose time is over at `now`, those first that were over first.
    /// They stay until [`went_back`](Self::went_back) is told.
    pub fn over(&mut self, now: Nanos) -> Option<Unspent> {
        while let Some((_, place)) = self.due.first(&self.pots).filter(|(at, _)| *at <= now) {
            let pot = self.pots.get(place)?;
            if let Some(lot) = pot.lots.iter().find(|lot| lot.units > 0 && lot.expires_at <= now) {
                return Some(lot.unspent(place, pot.key));
            }
            self.due.pass(&mut self.pots);
        }
        None
    }

    /// These units are not the pot's any more.
    pub fn went_back(&mut self, unspent: &Unspent) {
        let Some(pot) = self.pots.get_mut(unspent.place).filter(|pot| pot.key == unspent.key) else { return };
        if let Some(lot) = pot.lots.iter_mut().find(|lot| lot.units > 0 && lot.id == unspent.id) {
            lot.units = 0;
            pot.size = pot.size.min(pot.spent);
            pot.forgive();
        }
    }

    /// The units of all pots that may still be spent.
    #[must_use]
    pub fn held(&self, now: Nanos) -> u64 {
        self.pots.iter().fold(0, |sum: u64, pot| sum.saturating_add(pot.live(now)))
    }

    fn set(&self, key: u64) -> usize {
        // The number of pots is a power of two.
        (key as usize).wrapping_mul(WAYS) & (self.pots.len() - 1) & !(WAYS - 1)
    }

    #[inline]
    fn find(&mut self, key: u64) -> Option<&mut Pot> {
        let set = self.set(key);
        self.pots.get_mut(set..set + WAYS)?.iter_mut().find(|pot| pot.key == key)
    }

    /// The key's pot, or one that is made its own: the least worth of those
    /// for which nobody waits.
    fn claim(&mut self, key: u64, now: Nanos) -> Option<usize> {
        if let Some(place) = self.place(key) {
            return Some(place);
        }
        let set = self.set(key);
        let ways = self.pots.get(set..set + WAYS)?;
        let worth = |pot: &Pot| (pot.key != 0, pot.live(now) > 0, pot.touched);
        let ways = ways.iter().enumerate().filter(|(_, pot)| pot.front().is_none());
        let (way, pot) = ways.min_by_key(|(_, pot)| worth(pot))?;
        if pot.lots.iter().any(|lot| lot.units > 0) {
            self.evicted += 1;
        }
        let place = set + way;
        let turn = pot.turn; // the place's, not the key's
        *self.pots.get_mut(place)? = Pot { key, touched: now, turn, ..Pot::default() };
        Some(place)
    }
}

#[cfg(test)]
mod tests;
