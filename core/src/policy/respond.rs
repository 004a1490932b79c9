//! An answer of the rules as HTTP.

use super::check::{Answer, Outcome};
use super::model::Rules;
use super::select::Selection;
use crate::http::{self, BufferTooSmall, Fields, Item};

impl Rules {
    /// Each enforced policy's part in an answer, in file order: the limit that
    /// stands for it is its tightest.
    pub fn items<'a>(
        &'a self,
        selection: &'a Selection<'a>,
        answer: &'a Answer,
    ) -> impl Iterator<Item = Item<'a>> + Clone {
        let layers = selection.layers().zip(answer.decisions()).zip(answer.outcomes());
        let enforced = layers.filter_map(move |((layer, decision), outcome)| {
            let policy = self.policies().get(layer.policy).filter(|policy| !policy.dry_run())?;
            // Only a limit that denied itself is violated.
            let rank = match outcome {
                Outcome::Denied => (true, decision.retry_after),
                _ => (false, u64::MAX - decision.remaining),
            };
            Some((
                layer.policy,
                rank,
                layer.index,
                Item { name: policy.name(), limit: layer.limit, decision },
            ))
        });
        let all = enforced.clone();
        enforced.filter_map(move |(policy, rank, index, item)| {
            let mut others = all.clone().filter(|other| other.0 == policy);
            let beaten = others.any(|other| other.1 > rank || (other.1 == rank && other.2 < index));
            (!beaten).then_some(item)
        })
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

    /// The status of a denial: another one if no waiting would help.
    #[must_use]
    pub fn status_of(&self, answer: &Answer) -> u16 {
        let over = answer.decision().is_some_and(|decision| !decision.can_ever_fit());
        if over { self.status_over() } else { self.status() }
    }
}
