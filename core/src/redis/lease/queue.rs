//! Who waits for units that are under way.
//!
//! A pot knows how many units the calls under way were told to bring, and how
//! many those need who wait already. As long as there are more of the former,
//! one more can wait: it is paid when they are there, in the order in which
//! the requests came, and no call is sent for it. It waits no longer than if
//! it had asked by itself, for the call is on its way already.
//!
//! The store may have less than it is asked for. Then all that wait and were
//! not paid ask by themselves at once, and until a call brings all that it was
//! told to nobody waits for another's.
//!
//! A pot keeps who is first and who is last; the caller keeps who comes behind
//! whom ([`Waiter`]). A pot for which somebody waits is not given to another
//! key.

use core::num::NonZeroU32;

use super::pot::Pot;
use super::{Leases, Spend};
use crate::time::Nanos;

/// One who waits, by a number of the caller's.
pub type Waiter = NonZeroU32;

/// What those who wait are told, the first of them first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It was paid, or is denied; never [`Spend::Ask`].
    Told(Spend),
    /// It has to ask by itself.
    Asks,
    /// It goes on waiting.
    Waits,
}

impl Leases {
    /// Lets a request of this cost wait, if enough for it is under way: it is
    /// the last one then. Who was last before, if anybody was. One that costs
    /// nothing waits for no units.
    pub fn wait(&mut self, key: u64, cost: u64, waiter: Waiter, now: Nanos) -> Option<Option<Waiter>> {
        let pot = self.find(key).filter(|pot| cost > 0 && pot.coming > 0 && !pot.is_poor)?;
        let promised = pot.promised.saturating_add(cost);
        if promised > pot.live(now).saturating_add(pot.coming) {
            return None;
        }
        let before = Waiter::new(pot.last_waiting);
        if before.is_none() {
            pot.first_waiting = waiter.get();
        }
        (pot.last_waiting, pot.promised) = (waiter.get(), promised);
        Some(before)
    }

    /// Who waits first.
    #[must_use]
    pub fn first_waiting(&self, key: u64) -> Option<Waiter> {
        self.pots.get(self.place(key)?)?.front()
    }

    /// A call is over that was told to bring `more` units, and brought these.
    pub fn ended(&mut self, key: u64, more: u64, units: u64) {
        let Some(pot) = self.find(key).filter(|_| more > 0) else { return };
        pot.coming = pot.coming.saturating_sub(more);
        pot.is_poor = units < more;
    }

    /// What the first one that waits is told, whose request has this cost.
    pub fn turn(&mut self, key: u64, cost: u64, now: Nanos) -> Turn {
        let Some(pot) = self.find(key) else { return Turn::Asks };
        match pot.say(cost, now) {
            Spend::Ask if !pot.is_poor && pot.promised <= pot.live(now).saturating_add(pot.coming) => {
                Turn::Waits
            }
            Spend::Ask => Turn::Asks,
            said @ Spend::Taken { .. } => {
                pot.take(cost, now);
                pot.spent = pot.spent.saturating_add(cost);
                Turn::Told(said)
            }
            said @ Spend::Denied { .. } => Turn::Told(said),
        }
    }

    /// One leaves: `before` is who waits before it, if anybody does, and
    /// `behind` who does behind it.
    pub fn leave(&mut self, key: u64, cost: u64, before: Option<Waiter>, behind: Option<Waiter>) {
        let Some(pot) = self.find(key) else { return };
        pot.promised = pot.promised.saturating_sub(cost);
        let number = |waiter: Option<Waiter>| waiter.map_or(0, Waiter::get);
        if before.is_none() {
            pot.first_waiting = number(behind);
        }
        if behind.is_none() {
            pot.last_waiting = number(before);
        }
    }
}

impl Pot {
    pub(super) fn front(&self) -> Option<Waiter> {
        Waiter::new(self.first_waiting)
    }
}
