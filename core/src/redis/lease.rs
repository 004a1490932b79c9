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
//! twice as much as the time before, and never more than `lease.max` in a pot.
//! When a quarter is left, more is fetched before anyone has to wait.
//! What is unspent when its time is over goes back.
//!
//! The number of pots is fixed; the least recently used one of a set of
//! [`WAYS`] makes room, and what it held is lost, not spent.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::decision::Decision;
use crate::policy::Lease;
use crate::time::Nanos;

/// Pots that a key may be in.
const WAYS: usize = 8;
/// Limits of one policy whose last answer is remembered one by one.
pub const TOLD: usize = 4;
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

/// A key's grant and memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pot {
    key: u64,
    tokens: u64,
    /// Of `tokens`, at most so many are of the last grant.
    last_grant: u64,
    /// When the last grant was asked for.
    fetched_at: Nanos,
    expires_at: Nanos,
    /// The call that the last grant came with.
    id: u64,
    denied_until: Nanos,
    /// Requests of at least this cost are denied until then.
    denied_cost: u64,
    denied_by: u8,
    /// A call for more is under way until it is answered or this is over.
    asking_until: Nanos,
    touched: Nanos,
    told_at: Nanos,
    /// Units spent since `since`.
    spent: u64,
    since: Nanos,
    size: u64,
    /// Has the fallback admitted something that the store has not heard of?
    fell_back: bool,
    told: [Told; TOLD],
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

/// What an answer brings into a pot.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Units that came on top.
    pub units: u64,
    /// Units that were paid with the call itself.
    pub paid: u64,
    /// When the call was sent.
    pub asked_at: Nanos,
    /// The number of the call.
    pub id: u64,
    /// How long the units may be spent.
    pub ttl: Nanos,
}

/// Units whose time is over, to be given back to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unspent {
    /// Which pot they were in.
    pub place: usize,
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
    /// Where the next look for unspent units begins.
    hand: usize,
}

impl Leases {
    /// Room for about `capacity` keys (rounded up to a power of two, at least
    /// [`WAYS`] and at most 2^24). Allocates; nothing else here does.
    #[must_use]
    pub fn new(capacity: usize) -> Leases {
        let count = capacity.clamp(WAYS, 1 << 24).next_power_of_two();
        let mut pots = Vec::new();
        pots.resize(count, Pot::default());
        Leases { pots: pots.into_boxed_slice(), evicted: 0, hand: 0 }
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
        if pot.tokens >= cost.max(1) && now < pot.expires_at {
            pot.tokens -= cost;
            pot.spent = pot.spent.saturating_add(cost);
            let low = pot.tokens <= pot.size / 4 && pot.asking_until <= now;
            return Spend::Taken { left: pot.tokens, low };
        }
        if now < pot.denied_until && cost >= pot.denied_cost {
            return Spend::Denied { until: pot.denied_until, by: usize::from(pot.denied_by) };
        }
        pot.spent = pot.spent.saturating_add(cost);
        Spend::Ask
    }

    /// What the store last said, and when.
    #[must_use]
    pub fn told(&self, key: u64) -> Option<(&[Told; TOLD], Nanos)> {
        let pot = self.pots.get(self.place(key)?)?;
        (pot.told_at > 0).then_some((&pot.told, pot.told_at))
    }

    /// A call is about to be sent; how many units to fetch on top, so that the
    /// pot then holds what the demand asks for. 0 while another call of this
    /// key fetches.
    pub fn ask(&mut self, key: u64, lease: Option<Lease>, deadline: Nanos, now: Nanos) -> u64 {
        let Some(place) = self.claim(key, now) else { return 0 };
        let Some((pot, lease)) = self.pots.get_mut(place).zip(lease) else { return 0 };
        if pot.asking_until > now {
            return 0;
        }
        let elapsed = now.saturating_sub(pot.since);
        if pot.since == 0 || elapsed > lease.ttl.saturating_mul(4) {
            (pot.size, pot.spent) = (0, 0); // a key that was quiet begins anew
        } else if elapsed > 0 {
            let horizon = u128::from(lease.ttl / 2);
            let demand = u128::from(pot.spent) * horizon / u128::from(elapsed);
            let grown = pot.size.saturating_mul(2).saturating_add(1);
            let demand = u64::try_from(demand).unwrap_or(u64::MAX);
            pot.size = demand.min(grown).min(lease.max);
            pot.spent = 0;
        }
        pot.since = now;
        let held = if now < pot.expires_at { pot.tokens } else { 0 };
        let more = pot.size.saturating_sub(held);
        if more > 0 {
            pot.asking_until = deadline.max(now + 1);
        }
        more
    }

    /// The store admitted: what came on top goes into the pot, and what it
    /// said is remembered.
    pub fn grant(&mut self, key: u64, grant: &Grant, decisions: &[Decision], now: Nanos) {
        let Some(place) = self.claim(key, now) else { return };
        let Some(pot) = self.pots.get_mut(place) else { return };
        pot.tell(decisions, now);
        pot.asking_until = 0;
        pot.denied_until = 0;
        if grant.units > 0 {
            pot.put(grant, now);
        }
    }

    /// No request of at least this cost fits before `until`: it was denied, or
    /// the one before took the last.
    pub fn deny(&mut self, key: u64, cost: u64, by: usize, until: Nanos, decisions: &[Decision], now: Nanos) {
        let Some(place) = self.claim(key, now) else { return };
        let Some(pot) = self.pots.get_mut(place) else { return };
        pot.tell(decisions, now);
        pot.asking_until = 0;
        pot.denied_until = until.min(now.saturating_add(MAX_MEMORY));
        pot.denied_cost = cost;
        pot.denied_by = by.min(usize::from(u8::MAX)) as u8; // at most MAX_LAYERS
    }

    /// Units that were paid and are not needed, because another limit denied:
    /// they wait in the pot for the next request. False if there is no pot to
    /// put them into.
    pub fn put_back(&mut self, key: u64, grant: &Grant, now: Nanos) -> bool {
        let Some(pot) = self.find(key).filter(|_| grant.units > 0) else { return false };
        pot.spent = pot.spent.saturating_sub(grant.units);
        pot.put(grant, now);
        true
    }

    /// Units that were paid from the pot and are not needed.
    pub fn unspend(&mut self, key: u64, units: u64) {
        if let Some(pot) = self.find(key) {
            pot.tokens = pot.tokens.saturating_add(units);
            pot.spent = pot.spent.saturating_sub(units);
        }
    }

    /// The call that was to fetch more was not answered.
    pub fn unanswered(&mut self, key: u64) {
        if let Some(pot) = self.find(key) {
            pot.asking_until = 0;
        }
    }

    /// The fallback admitted a request of this key.
    pub fn fell_back(&mut self, key: u64, now: Nanos) {
        let place = self.claim(key, now);
        if let Some(pot) = place.and_then(|place| self.pots.get_mut(place)) {
            pot.fell_back = true;
        }
    }

    /// Has the fallback admitted since this was asked last?
    pub fn take_fell_back(&mut self, key: u64) -> bool {
        self.find(key).is_some_and(|pot| core::mem::take(&mut pot.fell_back))
    }

    /// Where the key's pot is, if it has one: the place of what a host keeps
    /// beside the pots.
    #[must_use]
    pub fn place(&self, key: u64) -> Option<usize> {
        let set = self.set(key);
        let ways = self.pots.get(set..set + WAYS)?;
        ways.iter().position(|pot| pot.key == key).map(|way| set + way)
    }

    /// Looks at up to `budget` pots, and takes out the first units found whose
    /// time is over. None when there are none among them.
    pub fn take_expired(&mut self, budget: &mut usize, now: Nanos) -> Option<Unspent> {
        while *budget > 0 {
            *budget -= 1;
            let place = self.hand;
            self.hand = (place + 1) % self.pots.len().max(1);
            let Some(pot) = self.pots.get_mut(place) else { continue };
            if pot.tokens > 0 && now >= pot.expires_at {
                // What is older than the last grant is let go: it has aged as long again.
                let units = pot.tokens.min(pot.last_grant);
                let unspent = Unspent { place, units, asked_at: pot.fetched_at, id: pot.id };
                pot.tokens = 0;
                pot.size = pot.size.min(pot.spent);
                if units > 0 {
                    return Some(unspent);
                }
            }
        }
        None
    }

    /// The units of all pots that may still be spent.
    #[must_use]
    pub fn held(&self, now: Nanos) -> u64 {
        let live = self.pots.iter().filter(|pot| now < pot.expires_at);
        live.fold(0, |sum: u64, pot| sum.saturating_add(pot.tokens))
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

    /// The key's pot, or one that is made its own.
    fn claim(&mut self, key: u64, now: Nanos) -> Option<usize> {
        if let Some(place) = self.place(key) {
            return Some(place);
        }
        let set = self.set(key);
        let ways = self.pots.get(set..set + WAYS)?;
        let worth = |pot: &Pot| (pot.key != 0, pot.tokens > 0 && now < pot.expires_at, pot.touched);
        let (way, pot) = ways.iter().enumerate().min_by_key(|(_, pot)| worth(pot))?;
        if pot.tokens > 0 {
            self.evicted += 1;
        }
        let place = set + way;
        *self.pots.get_mut(place)? = Pot { key, touched: now, ..Pot::default() };
        Some(place)
    }
}

impl Pot {
    fn tell(&mut self, decisions: &[Decision], now: Nanos) {
        self.told_at = now.max(1);
        for (told, decision) in self.told.iter_mut().zip(decisions) {
            let reset_at = now.saturating_add(decision.reset_after);
            *told = Told { remaining: decision.remaining, reset_at };
        }
    }

    fn put(&mut self, grant: &Grant, now: Nanos) {
        if now >= self.expires_at {
            self.tokens = 0; // what was left is too old
        }
        self.tokens = self.tokens.saturating_add(grant.units);
        self.last_grant = grant.units;
        self.fetched_at = grant.asked_at;
        self.expires_at = grant.asked_at.saturating_add(grant.ttl);
        self.id = grant.id;
    }
}
