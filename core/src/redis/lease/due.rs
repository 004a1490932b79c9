//! When units are over: the pots in the order in which that is so, the soonest
//! first.
//!
//! A heap of places, each of which stands in it once at most; a pot knows where
//! ([`Turn`]). Nobody looks at a pot before its turn: what is spent until then
//! leaves its turn as it is, and when that comes it ends, or moves to what came
//! since. So a pot that is always refilled costs one look for each time that a
//! grant lives, however often it is spent from.

use alloc::vec::Vec;

use super::pot::Pot;
use crate::time::Nanos;

#[derive(Debug)]
pub(super) struct Due {
    /// Places of pots. No pot is over before the one at half its own index.
    heap: Vec<u32>,
}

/// A pot's turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    at: Nanos,
    /// One more than its index in the heap; 0 where it has none.
    index: u32,
}

impl Due {
    /// For so many pots; at most 2^24. Allocates; nothing else here does.
    pub(super) fn new(pots: usize) -> Due {
        Due { heap: Vec::with_capacity(pots) }
    }

    /// Whose turn is next, and when.
    pub(super) fn first(&self, pots: &[Pot]) -> Option<(Nanos, usize)> {
        let place = *self.heap.first()? as usize;
        Some((pots.get(place)?.turn.at, place))
    }

    /// Units came into a pot.
    pub(super) fn note(&mut self, place: usize, pots: &mut [Pot]) {
        let Some(pot) = pots.get_mut(place) else { return };
        let Some(at) = pot.first_over() else { return };
        if pot.turn.index == 0 && self.heap.len() < self.heap.capacity() {
            self.heap.push(place as u32); // a place is below 2^24
            pot.turn = Turn { at, index: self.heap.len() as u32 };
        } else if at < pot.turn.at {
            pot.turn.at = at;
        } else {
            return;
        }
        let index = pot.turn.index as usize;
        self.up(index.saturating_sub(1), pots);
    }

    /// The first turn is over: the pot's next one is when more of it is over,
    /// if there is more.
    pub(super) fn pass(&mut self, pots: &mut [Pot]) {
        let Some(pot) = self.heap.first().and_then(|place| pots.get_mut(*place as usize)) else { return };
        if let Some(at) = pot.first_over() {
            pot.turn.at = at;
        } else {
            pot.turn = Turn::default();
            self.heap.swap_remove(0);
            self.settle(0, pots);
        }
        self.down(pots);
    }

    /// Towards the front, past all that are over later.
    fn up(&mut self, mut index: usize, pots: &mut [Pot]) {
        while index > 0 && self.at(index, pots) < self.at((index - 1) / 2, pots) {
            self.swap(index, (index - 1) / 2, pots);
            index = (index - 1) / 2;
        }
    }

    /// From the front, behind all that are over sooner.
    fn down(&mut self, pots: &mut [Pot]) {
        let mut index = 0;
        loop {
            let left = 2 * index + 1; // there are at most 2^24
            let sooner = if self.at(left + 1, pots) < self.at(left, pots) { left + 1 } else { left };
            if self.at(sooner, pots) >= self.at(index, pots) {
                return;
            }
            self.swap(index, sooner, pots);
            index = sooner;
        }
    }

    /// Behind the end, never.
    fn at(&self, index: usize, pots: &[Pot]) -> Nanos {
        let pot = self.heap.get(index).and_then(|place| pots.get(*place as usize));
        pot.map_or(Nanos::MAX, |pot| pot.turn.at)
    }

    fn swap(&mut self, one: usize, other: usize, pots: &mut [Pot]) {
        if one.max(other) < self.heap.len() {
            self.heap.swap(one, other);
            self.settle(one, pots);
            self.settle(other, pots);
        }
    }

    /// Tells the pot at this index where it stands.
    fn settle(&self, index: usize, pots: &mut [Pot]) {
        if let Some(pot) = self.heap.get(index).and_then(|place| pots.get_mut(*place as usize)) {
            pot.turn.index = index as u32 + 1; // at most 2^24
        }
    }
}
