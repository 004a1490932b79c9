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
    Spare { since: Nanos },
    /// Another key's.
    Taken { idle_at: Nanos },
}

/// The slots that a key may be in, in the order of its walk.
pub(super) trait Candidates {
    /// How many.
    fn probes(&self) -> usize;
    /// How many of them any key may be in by now.
    fn depth(&self) -> usize;
    /// Lets keys be in so many of them, from now on.
    fn deepen(&self, probes: usize);
    /// The place of one; two keys that share a slot name it alike.
    fn id(&self, probe: usize) -> usize;
    /// The slot at a place.
    fn slot(&self, id: usize) -> Option<&Slot>;
    /// What its word means to this key.
    fn kind(&self, id: usize, word: Word, now: Nanos) -> Kind;
    /// Puts a mark of this key into a slot that holds `old`, unless it changed.
    fn take(&self, id: usize, old: Word, mark: Word, is_idle: bool) -> bool;
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

/// What the taking of a slot adds to.
enum Counted {
    Used,
    Eviction,
    Nothing,
}

/// What reading the whole walk found.
#[derive(Default)]
struct Survey {
    settled: Option<usize>,
    /// The lowest pending slot of this key.
    pending: Option<(usize, Word)>,
    /// A slot that was never used.
    unused: Option<(usize, Word)>,
    /// The slot that has been idle longest.
    spare: Option<(usize, Word, Nanos)>,
    /// The slot nearest to idle.
    victim: Option<(usize, Word, Nanos)>,
}

impl Survey {
    /// Takes note of one slot; true if the walk ends with it.
    fn add(&mut self, id: usize, word: Word, kind: Kind) -> bool {
        match kind {
            Kind::Mine { settled: true } => self.settled = Some(id),
            Kind::Mine { settled: false } => {
                if self.pending.is_none_or(|(lowest, _)| id < lowest) {
                    self.pending = Some((id, word));
                }
            }
            Kind::Unused => self.unused = Some((id, word)),
            Kind::Spare { since } => keep_earliest(&mut self.spare, (id, word, since)),
            Kind::Taken { idle_at } => keep_earliest(&mut self.victim, (id, word, idle_at)),
        }
        kind == Kind::Unused
    }
}

fn keep_earliest(best: &mut Option<(usize, Word, Nanos)>, slot: (usize, Word, Nanos)) {
    if best.is_none_or(|(_, _, earliest)| slot.2 < earliest) {
        *best = Some(slot);
    }
}

/// Gives the key a slot that holds `word(place, what was there)`. Nothing if it has one
/// already, or if another thread gave it one meanwhile: look again then.
pub(super) fn claim<C: Candidates>(c: &C, now: Nanos, word: impl Fn(usize, Word) -> Word) -> Option<usize> {
    let depth = c.depth();
    let mut survey = survey(c, now, None, depth);
    if survey.settled.is_some() {
        return None;
    }
    if let Some((id, mark)) = survey.pending {
        settle(c, now, id, mark, c.settled(id, mark));
        return None;
    }
    if survey.unused.is_none() && survey.spare.is_none() {
        go_on(c, now, &mut survey, depth);
    }
    let is_idle = survey.unused.is_none() && survey.spare.is_some();
    let unused = survey.unused.map(|(id, old)| (id, old, Counted::Used));
    let spare = survey.spare.map(|(id, old, _)| (id, old, Counted::Nothing));
    let victim = survey.victim.map(|(id, old, _)| (id, old, Counted::Eviction));
    let (id, old, counted) = unused.or(spare).or(victim)?;
    let mark = c.pending(now);
    if !c.take(id, old, mark, is_idle) {
        return None;
    }
    match counted {
        Counted::Used => c.count_used(),
        Counted::Eviction => c.count_eviction(),
        Counted::Nothing => {}
    }
    settle(c, now, id, mark, word(id, old)).then_some(id)
}

/// Settles a mark of this key as `word`, unless the key is elsewhere.
fn settle<C: Candidates>(c: &C, now: Nanos, mut id: usize, mut mark: Word, mut word: Word) -> bool {
    let own = (id, mark);
    loop {
        let survey = survey(c, now, Some(id), c.depth());
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

/// Looks for a slot further on than any key has gone. Others' keys may be
/// there by the time it is taken, but this key is not: nobody has looked for
/// it there yet, and whoever does later finds the new depth first.
fn go_on<C: Candidates>(c: &C, now: Nanos, survey: &mut Survey, depth: usize) {
    // From where the survey ended: a slot of this walk must not be passed over
    // unused because another key has gone further meanwhile (I3).
    for probe in depth..c.probes() {
        let id = c.id(probe);
        let Some(slot) = c.slot(id) else { continue };
        let word = slot.load();
        survey.add(id, word, c.kind(id, word, now));
        if survey.unused.is_some() || survey.spare.is_some() {
            c.deepen(probe + 1);
            return;
        }
    }
    c.deepen(c.probes()); // for the victim
}

/// Reads the walk; `except` is a place to pass over.
fn survey<C: Candidates>(c: &C, now: Nanos, except: Option<usize>, depth: usize) -> Survey {
    let mut survey = Survey::default();
    for probe in 0..depth {
        let id = c.id(probe);
        let Some(slot) = c.slot(id) else { continue };
        if Some(id) == except {
            continue;
        }
        let word = slot.load();
        if survey.add(id, word, c.kind(id, word, now)) {
            break;
        }
    }
    survey
}
