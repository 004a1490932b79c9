//! How a key gets a slot, without a lock and never two of them.
//!
//! Two threads may bring the same new key at the same moment and choose
//! different slots. So a slot is taken in two steps: first it is marked
//! *pending*, with a nonce that makes the mark unique; then the whole walk is
//! read again, and only if the key is nowhere else is the mark settled.
//!
//! Whoever meets another pending slot of its own key removes it if it lies at
//! a higher place, or else gives up its own and settles the other's instead.
//! A thread that stops, or a process that dies, between the steps is
//! therefore in nobody's way, and somebody always gets on.
//!
//! Why a key is never settled twice: let A and B be two slots of it, each
//! marked before its walk was read and settled after. If A was marked first,
//! B's reading saw A's mark or A settled. Settled: B gave up. Marked: B
//! removed A's mark, so it could not be settled later (its nonce is gone), or
//! B gave up its own.

use crate::slot::{Slot, Word};
use crate::time::Nanos;

/// What a slot is to the key that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Never used by anybody: the walk ends here.
    Unused,
    /// This key's.
    Mine { settled: bool },
    /// Used before and free now.
    Spare,
    /// Another key's.
    Taken { idle_at: Nanos },
}

/// The slots that a key may be in, in the order of its walk.
pub(super) trait Candidates {
    /// How many.
    fn probes(&self) -> usize;
    /// The place of one; two keys that share a slot name it alike.
    fn id(&self, probe: usize) -> usize;
    /// The slot at a place.
    fn slot(&self, id: usize) -> Option<&Slot>;
    /// What its word means to this key.
    fn kind(&self, id: usize, word: Word, now: Nanos) -> Kind;
    /// A new, unique mark of this key.
    fn pending(&self, now: Nanos) -> Word;
    /// A used slot of nobody.
    fn free(&self) -> Word;
    /// An idle bucket of this key, in place of its mark.
    fn settled(&self, id: usize, pending: Word) -> Word;
    /// An unused slot was taken.
    fn count_used(&self);
    /// A slot in use was taken.
    fn count_eviction(&self);
}

/// What reading the whole walk found.
#[derive(Default)]
struct Survey {
    settled: Option<usize>,
    /// The lowest pending slot of this key.
    pending: Option<(usize, Word)>,
    /// The first slot that may be taken.
    open: Option<(usize, Word, Kind)>,
    /// The slot nearest to idle.
    victim: Option<(usize, Word, Nanos)>,
}

/// Gives the key a slot that holds `word(place)`. Nothing if it has one
/// already, or if another thread gave it one meanwhile: look again then.
pub(super) fn claim<C: Candidates>(c: &C, now: Nanos, word: impl Fn(usize) -> Word) -> Option<usize> {
    let survey = survey(c, now, None);
    if survey.settled.is_some() {
        return None;
    }
    if let Some((id, mark)) = survey.pending {
        settle(c, now, id, mark, c.settled(id, mark));
        return None;
    }
    let (id, old, kind) = survey.open.or_else(|| {
        let (id, old, idle_at) = survey.victim?;
        Some((id, old, Kind::Taken { idle_at }))
    })?;
    let mark = c.pending(now);
    c.slot(id)?.swap(old, mark).ok()?;
    match kind {
        Kind::Unused => c.count_used(),
        Kind::Taken { .. } => c.count_eviction(),
        Kind::Spare | Kind::Mine { .. } => {}
    }
    settle(c, now, id, mark, word(id)).then_some(id)
}

/// Settles a mark of this key as `word`, unless the key is elsewhere.
fn settle<C: Candidates>(c: &C, now: Nanos, mut id: usize, mut mark: Word, mut word: Word) -> bool {
    let own = (id, mark);
    loop {
        let survey = survey(c, now, Some(id));
        let other = survey.settled.is_some() || survey.pending.is_some_and(|(at, _)| at < id);
        if other {
            remove(c, id, mark);
        }
        match survey.pending {
            _ if survey.settled.is_some() => return false,
            Some((at, theirs)) if at < id => {
                // They go first: settle theirs.
                (id, mark, word) = (at, theirs, c.settled(at, theirs));
            }
            Some((at, theirs)) => remove(c, at, theirs), // and read again
            None => {
                let done = c.slot(id).is_some_and(|slot| slot.swap(mark, word).is_ok());
                return done && (id, mark) == own;
            }
        }
    }
}

fn remove<C: Candidates>(c: &C, id: usize, mark: Word) {
    if let Some(slot) = c.slot(id) {
        // If it is not there any more, somebody else has settled or removed it.
        let _ = slot.swap(mark, c.free());
    }
}

/// Reads the walk; `except` is a place to pass over.
fn survey<C: Candidates>(c: &C, now: Nanos, except: Option<usize>) -> Survey {
    let mut survey = Survey::default();
    for probe in 0..c.probes() {
        let id = c.id(probe);
        let Some(slot) = c.slot(id) else { continue };
        if Some(id) == except {
            continue;
        }
        let word = slot.load();
        let kind = c.kind(id, word, now);
        match kind {
            Kind::Mine { settled: true } => survey.settled = Some(id),
            Kind::Mine { settled: false } => {
                if survey.pending.is_none_or(|(lowest, _)| id < lowest) {
                    survey.pending = Some((id, word));
                }
            }
            Kind::Unused | Kind::Spare => {
                survey.open = survey.open.or(Some((id, word, kind)));
            }
            Kind::Taken { idle_at } => {
                if survey.victim.is_none_or(|(_, _, soonest)| idle_at < soonest) {
                    survey.victim = Some((id, word, idle_at));
                }
            }
        }
        if kind == Kind::Unused {
            break;
        }
    }
    survey
}
