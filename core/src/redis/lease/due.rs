//! When units are over: the pots in the order in which that is so, the soonest
//! first.
//!
//! A pot stands here once, at the time that is written in it too; an entry of
//! another time is one that was overtaken by an earlier one, and counts for
//! nothing. Nobody looks at a pot before its time: what is spent until then
//! leaves its entry behind, which is dropped, or moved to what came since, when
//! its time is over. So a pot that is always refilled costs one look for each
//! time that a grant lives, however often it is spent from.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use super::pot::Pot;
use crate::time::Nanos;

#[derive(Debug)]
pub(super) struct Due {
    heap: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// What it never grows beyond.
    room: usize,
}

impl Due {
    /// For so many pots; at most 2^24. Allocates; nothing else here does.
    pub(super) fn new(pots: usize) -> Due {
        let room = pots + pots / 4 + 1; // those that were overtaken are few
        Due { heap: BinaryHeap::with_capacity(room), room }
    }

    /// The units that are over first, unless they were spent.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Which pot that is.
    pub(super) fn place(&self) -> Option<usize> {
        self.heap.peek().map(|Reverse((_, place))| *place as usize)
    }

    /// Takes the first one off; was it the pot's own, the pot has none now.
    pub(super) fn pop(&mut self, pots: &mut [Pot]) {
        if let Some(Reverse((at, place))) = self.heap.pop()
            && let Some(pot) = pots.get_mut(place as usize)
            && pot.due == at
        {
            pot.due = 0;
        }
    }

    /// Units came into a pot.
    pub(super) fn note(&mut self, place: usize, pots: &mut [Pot]) {
        let Some(pot) = pots.get_mut(place) else { return };
        let Some(at) = pot.first_over().filter(|at| pot.due == 0 || *at < pot.due) else { return };
        if self.heap.len() >= self.room {
            let is_own = |at: Nanos, place: u32| pots.get(place as usize).is_some_and(|pot| pot.due == at);
            self.heap.retain(|Reverse((at, place))| is_own(*at, *place));
        }
        if let (true, Some(pot)) = (self.heap.len() < self.room, pots.get_mut(place)) {
            pot.due = at;
            self.heap.push(Reverse((at, place as u32))); // a place is below 2^24
        }
    }
}
