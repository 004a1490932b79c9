//! An answer of the rules as HTTP.

use super::check::Answer;
use super::model::Rules;
use super::select::{Layer, Selection};
use crate::http::{self, BufferTooSmall, Fields, Item};

impl Rules {
    /// Each enforced policy's part in an answer, in file order: the limit that
    /// stands for it is its tightest.
    pub fn items<'a>(
        &'a self,
        selection: &'a Selection<'a>,
        answer: &'a Answer,
    ) -> impl Iterator<Item = Item<'a>> + Clone {
        Items { rules: self, selection, answer, next: 0 }
    }

    /// Writes the fields of an answer, of the family that the document asks
    /// for; with a denial also `Retry-After`.
    ///
    /// # Errors
    /// A buffer shorter than the values; [`LIST_SIZE`](http::LIST_SIZE) is
    /// always enough.
    pub fn write_fields(
        &self,
        selection: &Selection<'_>,
        answer: &Answer,
        buffer: &mut [u8],
    ) -> Result<Fields, BufferTooSmall> {
        http::fields_of(self.fields(), self.items(selection, answer), buffer)
    }

    /// Writes the problem body of a denial; its length, 0 if nothing denied.
    ///
    /// # Errors
    /// A buffer shorter than the body; [`LIST_SIZE`](http::LIST_SIZE) is
    /// always enough.
    pub fn write_problem(
        &self,
        selection: &Selection<'_>,
        answer: &Answer,
        buffer: &mut [u8],
    ) -> Result<usize, BufferTooSmall> {
        http::problem_of(self.status_of(answer), self.items(selection, answer), buffer)
    }

    /// The status of a denial: another one if no waiting would help, or if no
    /// limit could be asked.
    #[must_use]
    pub fn status_of(&self, answer: &Answer) -> u16 {
        match answer.decision() {
            Some(decision) if !decision.can_ever_fit() => self.status_over(),
            Some(decision) if decision.is_unavailable() => self.status_unavailable(),
            _ => self.status(),
        }
    }
}

/// The layers' parts, one after the other.
#[derive(Clone)]
struct Items<'a> {
    rules: &'a Rules,
    selection: &'a Selection<'a>,
    answer: &'a Answer,
    next: usize,
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        loop {
            let place = self.next;
            let layer = self.selection.layer(place)?;
            let decision = self.answer.decisions().get(place)?;
            self.next += 1; // at most MAX_LAYERS
            let policy = self.rules.policies().get(layer.policy)?;
            if !policy.dry_run() && (self.selection.len() == 1 || self.stands(place, layer)) {
                return Some(Item { name: policy.name(), limit: layer.limit, decision });
            }
        }
    }
}

impl Items<'_> {
    /// Is none of its policy's limits tighter?
    fn stands(&self, place: usize, layer: &Layer<'_>) -> bool {
        let mut others =
            self.selection.layers().enumerate().filter(|(_, other)| other.policy == layer.policy);
        !others.any(|(other_place, other)| {
            self.answer.is_tighter(other_place, place)
                || other.index < layer.index && !self.answer.is_tighter(place, other_place)
        })
    }
}
