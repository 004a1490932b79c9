//! Asking a table all that the rules ask of one request.
//!
//! All enforced limits are charged together, or none is. A policy in dry run
//! is asked on its own: it counts what it would have done and never stands in
//! the way. A policy with a penalty makes a subject that is denied again and
//! again wait longer each time; while it waits, its limits are not asked.

use super::key::ROOM;
use super::model::{Penalty, Policy, Rules};
use super::penalty;
use super::select::{Layer, Selection};
use crate::decision::Decision;
use crate::limiter::{self, MAX_LAYERS};
use crate::local::LocalStore;
use crate::table::{Hold, Request};
use crate::time::{NEVER, Nanos};

/// What became of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Outcome {
    /// It admitted, and was charged.
    #[default]
    Admitted,
    /// It denied.
    Denied,
    /// It would have admitted, but another denied: nothing was charged.
    Spared,
    /// In dry run: it would have denied.
    WouldDeny,
}

/// The answer to one request.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// May it pass?
    pub allowed: bool,
    /// The layer whose decision is reported: of those that deny the one that
    /// takes longest, else the one that leaves least. None if nothing is
    /// enforced.
    pub tightest: Option<usize>,
    /// How long an admitted request has to wait.
    pub delay: Nanos,
    pub(crate) decisions: [Decision; MAX_LAYERS],
    pub(crate) outcomes: [Outcome; MAX_LAYERS],
    pub(crate) holds: [Hold; MAX_LAYERS],
    pub(crate) count: usize,
    /// Layers, one bit each, that the store should have decided and did not.
    pub(crate) degraded: u16,
}

const _: () = assert!(MAX_LAYERS <= u16::BITS as usize);

/// What stands where no decision was made.
pub(crate) const NONE: Decision =
    Decision { allowed: true, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };
/// Room for a decision: all zeros, so that room for many is filled at once.
const ROOM_FOR_ONE: Decision = Decision { allowed: false, ..NONE };

impl Default for Answer {
    /// To a request that no policy applies to.
    fn default() -> Self {
        empty(0)
    }
}

impl Answer {
    /// What each layer of the selection said, in its order.
    pub fn decisions(&self) -> &[Decision] {
        self.decisions.get(..self.count).unwrap_or(&[])
    }

    /// What became of each layer.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        self.outcomes.get(..self.count).unwrap_or(&[])
    }

    /// Units in flight, to be released when the request is over.
    #[must_use]
    pub fn holds(&self) -> &[Hold] {
        self.holds.get(..self.count).unwrap_or(&[])
    }

    /// Was this layer decided as `on_store_error` says, because the store that
    /// its policy counts in did not answer?
    #[must_use]
    pub fn is_degraded(&self, layer: usize) -> bool {
        self.degraded.checked_shr(layer as u32).unwrap_or(0) & 1 == 1 // layers are below MAX_LAYERS
    }

    /// The places of the layers that [`is_degraded`](Self::is_degraded) is said
    /// of; mostly none.
    pub fn degraded(&self) -> impl Iterator<Item = usize> {
        let count = if self.degraded == 0 { 0 } else { self.count };
        (0..count).filter(|place| self.is_degraded(*place))
    }

    /// One answer of two that are asked one after the other: `first` is that
    /// of the policies that are so, `second` that of the others, not asked
    /// when the first denied. What the first charged has been given back when
    /// the second denied.
    #[must_use]
    pub fn join(
        rules: &Rules,
        selection: &Selection<'_>,
        is_first: impl Fn(usize) -> bool,
        first: Option<&Answer>,
        second: Option<&Answer>,
    ) -> Answer {
        let dry = rules.layers_of(selection, Policy::dry_run);
        let is_denied = second.is_some_and(|answer| !answer.allowed);
        let mut joined = empty(selection.len());
        let mut next = [0, 0];
        for (place, layer) in selection.layers().enumerate() {
            let is_first = is_first(layer.policy);
            let [next_first, next_second] = &mut next;
            let (answer, from) = if is_first { (first, next_first) } else { (second, next_second) };
            let whole = Decision { limit: layer.limit.limit(), remaining: layer.limit.burst(), ..NONE };
            let told = answer.and_then(|answer| {
                Some((
                    *answer.decisions().get(*from)?,
                    *answer.outcomes().get(*from)?,
                    *answer.holds().get(*from)?,
                ))
            });
            let is_spared = is_first && is_denied && dry >> place & 1 == 0;
            let (decision, outcome, hold) = match told {
                None => (whole, Outcome::Spared, Hold::default()),
                Some((decision, Outcome::Admitted, _)) if is_spared => {
                    let remaining = decision.remaining.saturating_add(layer.cost).min(layer.limit.burst());
                    (Decision { remaining, delay: 0, ..decision }, Outcome::Spared, Hold::default())
                }
                Some(told) => told,
            };
            if answer.is_some_and(|answer| answer.is_degraded(*from)) {
                joined.degraded |= 1 << place; // fewer than MAX_LAYERS
            }
            *from += 1;
            joined.set(place, decision, outcome);
            if let Some(room) = joined.holds.get_mut(place) {
                *room = hold;
            }
        }
        joined.conclude(dry);
        joined
    }

    /// As new, where it lies: an answer of so many layers, none of which has
    /// said anything.
    pub(crate) fn reset(&mut self, count: usize) {
        (self.allowed, self.tightest, self.delay, self.degraded) = (true, None, 0, 0);
        self.count = count.min(MAX_LAYERS);
        let rooms = self.decisions.iter_mut().zip(&mut self.outcomes).zip(&mut self.holds);
        for ((decision, outcome), hold) in rooms.take(count) {
            (*decision, *outcome, *hold) = (NONE, Outcome::default(), Hold::default());
        }
    }

    /// The answer of the one limit that there is, in place of what was here.
    pub(crate) fn set_only(&mut self, decision: &Decision, outcome: Outcome) {
        let Answer { decisions: [room, ..], outcomes: [what, ..], holds: [hold, ..], .. } = self;
        // One field after the other: a copy of the whole is a call in a VM.
        let Decision { allowed, limit, remaining, retry_after, reset_after, delay } = *decision;
        (room.allowed, room.limit, room.remaining) = (allowed, limit, remaining);
        (room.retry_after, room.reset_after, room.delay) = (retry_after, reset_after, delay);
        *what = outcome;
        if hold.units > 0 {
            *hold = Hold::default();
        }
        (self.allowed, self.tightest, self.delay) = (allowed, Some(0), delay);
        (self.count, self.degraded) = (1, 0);
    }

    pub(crate) fn set(&mut self, place: usize, decision: Decision, outcome: Outcome) {
        if let (Some(room), Some(what)) = (self.decisions.get_mut(place), self.outcomes.get_mut(place)) {
            (*room, *what) = (decision, outcome);
        }
    }

    /// Did an enforced layer deny?
    pub(crate) fn denied(&self) -> bool {
        self.outcomes().contains(&Outcome::Denied)
    }

    /// Says what all layers together mean, once each has its outcome; `dry`
    /// has a bit for each layer of a policy in dry run.
    pub(crate) fn conclude(&mut self, dry: u16) {
        let denied = self.denied();
        self.allowed = !denied;
        let mut tightest = None;
        for place in (0..self.count).filter(|place| dry >> place & 1 == 0) {
            if tightest.is_none_or(|best| self.is_tighter(place, best)) {
                tightest = Some(place);
            }
            let delay = self.decisions.get(place).map_or(0, |decision| decision.delay);
            if !denied {
                self.delay = self.delay.max(delay);
            }
        }
        self.tightest = tightest;
    }

    /// Is this limit tighter than the other one? Only one that denied itself is
    /// violated, whatever its decision says.
    pub(crate) fn is_tighter(&self, place: usize, other: usize) -> bool {
        let said = |place: usize| self.decisions().get(place).zip(self.outcomes().get(place));
        let (Some((decision, outcome)), Some((before, other))) = (said(place), said(other)) else {
            return false;
        };
        match (*outcome == Outcome::Denied, *other == Outcome::Denied) {
            (true, true) => decision.retry_after > before.retry_after,
            (false, false) => decision.leaves_less_than(before),
            (denied, _) => denied,
        }
    }

    /// The decision that is reported.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decisions().get(self.tightest?)
    }
}

/// Asks all limits of a selection.
pub fn check<T: LocalStore + ?Sized>(
    rules: &Rules,
    table: &T,
    selection: &Selection<'_>,
    now: Nanos,
) -> Answer {
    let mut asked = Asked::new(rules, table, selection, 0, now);
    asked.before(selection);
    if !asked.answer.denied() {
        asked.enforced(selection);
    }
    asked.finish(selection)
}

/// Takes back what an admitted request was charged, because it failed for
/// another reason; holds are released as well.
pub fn give_back<T: LocalStore + ?Sized>(
    table: &T,
    selection: &Selection<'_>,
    answer: &mut Answer,
    now: Nanos,
) {
    let layers = selection.layers().zip(answer.outcomes).zip(&mut answer.holds);
    for ((layer, outcome), hold) in layers {
        if outcome == Outcome::Admitted {
            limiter::give_back(table, &[layer.request()], core::slice::from_mut(hold), now);
        }
    }
}

pub(crate) fn empty(count: usize) -> Answer {
    let mut answer = Answer {
        allowed: true,
        tightest: None,
        delay: 0,
        decisions: [ROOM_FOR_ONE; MAX_LAYERS],
        outcomes: [Outcome::Admitted; MAX_LAYERS],
        holds: [Hold::default(); MAX_LAYERS],
        count,
        degraded: 0,
    };
    for decision in answer.decisions.iter_mut().take(count) {
        decision.allowed = true;
    }
    answer
}

/// A request on its way through the limits that count on this machine.
pub(crate) struct Asked<'a, T: ?Sized> {
    rules: &'a Rules,
    table: &'a T,
    now: Nanos,
    /// Layers of policies in dry run, one bit each.
    pub(crate) dry: u16,
    /// Layers that are none of this machine's business.
    remote: u16,
    pub(crate) answer: Answer,
}

impl<'a, T: LocalStore + ?Sized> Asked<'a, T> {
    pub(crate) fn new(
        rules: &'a Rules,
        table: &'a T,
        selection: &Selection<'_>,
        remote: u16,
        now: Nanos,
    ) -> Asked<'a, T> {
        let dry = rules.layers_of(selection, Policy::dry_run);
        Asked { rules, table, now, dry, remote, answer: empty(selection.len()) }
    }

    fn is_dry(&self, place: usize) -> bool {
        self.dry >> place & 1 == 1
    }

    fn is_remote(&self, place: usize) -> bool {
        self.remote >> place & 1 == 1
    }

    fn penalty(&self, layer: &Layer<'_>) -> Option<Penalty> {
        self.rules.policies().get(layer.policy)?.penalty()
    }

    /// Before the limits are asked: subjects that still have to wait.
    pub(crate) fn before(&mut self, selection: &Selection<'_>) {
        for (place, layer) in selection.layers().enumerate() {
            if layer.index == 0 && !self.is_dry(place) {
                self.still_waits(place, layer);
            }
        }
    }

    fn still_waits(&mut self, place: usize, layer: &Layer<'_>) {
        let Some(penalty) = self.penalty(layer) else { return };
        let subject = self.table.fingerprint(layer.subject(&mut [0; ROOM]).as_slice());
        let wait = penalty::wait(self.table, subject, &penalty, self.now);
        if wait > 0 {
            let decision = self.now_of(place, layer, layer.cost);
            let retry_after = decision.retry_after.max(wait);
            self.answer.set(
                place,
                Decision { allowed: false, remaining: 0, retry_after, delay: 0, ..decision },
                Outcome::Denied,
            );
        }
    }

    /// What a limit says now, nothing being charged; of one that is none of
    /// this machine's business nothing is known.
    fn now_of(&self, place: usize, layer: &Layer<'_>, cost: u64) -> Decision {
        if self.is_remote(place) {
            return Decision { limit: layer.limit.limit(), remaining: layer.limit.burst(), ..NONE };
        }
        let key = self.table.fingerprint(layer.key());
        self.table.peek_fingerprint(key, layer.limit, cost, self.now)
    }

    fn dry(&mut self, place: usize, layer: &Layer<'_>) {
        let mut decisions = [NONE; 1];
        let hold = self.answer.holds.get_mut(place..=place).unwrap_or(&mut []);
        let verdict = limiter::check_all(self.table, &[layer.request()], self.now, &mut decisions, hold);
        let allowed = verdict.is_some_and(|verdict| verdict.allowed);
        let outcome = if allowed { Outcome::Admitted } else { Outcome::WouldDeny };
        self.answer.set(place, decisions[0], outcome);
    }

    /// All limits that are enforced, together.
    pub(crate) fn enforced(&mut self, selection: &Selection<'_>) {
        let Some(first) = selection.layers().next() else { return };
        let mut requests = [first.request(); MAX_LAYERS];
        let mut places = [0; MAX_LAYERS];
        let mut count = 0;
        for (place, layer) in selection.layers().enumerate() {
            if self.is_dry(place) || self.is_remote(place) {
                continue;
            }
            if let (Some(request), Some(room)) = (requests.get_mut(count), places.get_mut(count)) {
                (*request, *room) = (layer.request(), place);
                count += 1;
            }
        }
        let requests: &[Request<'_>] = requests.get(..count).unwrap_or(&[]);
        let mut decisions = [NONE; MAX_LAYERS];
        let mut holds = [Hold::default(); MAX_LAYERS];
        let Some(verdict) = limiter::check_all(self.table, requests, self.now, &mut decisions, &mut holds)
        else {
            return;
        };
        for ((place, decision), hold) in places.into_iter().zip(decisions).zip(holds).take(count) {
            let outcome = match (decision.allowed, verdict.allowed) {
                (true, true) => Outcome::Admitted,
                (true, false) => Outcome::Spared,
                (false, _) => Outcome::Denied,
            };
            if let Some(room) = self.answer.holds.get_mut(place) {
                *room = hold;
            }
            self.answer.set(place, decision, outcome);
        }
        self.strike(selection);
    }

    /// A denial counts against the subject of each policy that denied and has
    /// a penalty; once, whichever of its limits denied.
    pub(crate) fn strike(&mut self, selection: &Selection<'_>) {
        let mut struck = None;
        for (place, layer) in selection.layers().enumerate() {
            let Some(penalty) = self.penalty(layer) else { continue };
            let denied = self.answer.outcomes.get(place) == Some(&Outcome::Denied);
            let Some(decision) = self.answer.decisions.get_mut(place).filter(|_| denied) else { continue };
            if decision.retry_after == NEVER || decision.is_unavailable() {
                continue; // no wait would help, or it was no fault of the subject's
            }
            let wait = match struck {
                Some((policy, wait)) if policy == layer.policy => wait,
                _ => {
                    let subject = self.table.fingerprint(layer.subject(&mut [0; ROOM]).as_slice());
                    penalty::strike(self.table, subject, &penalty, self.now)
                }
            };
            struck = Some((layer.policy, wait));
            decision.retry_after = decision.retry_after.max(wait);
        }
    }

    /// Policies in dry run, each on its own.
    pub(crate) fn dry_run(&mut self, selection: &Selection<'_>) {
        for (place, layer) in selection.layers().enumerate() {
            if self.is_dry(place) && !self.is_remote(place) {
                self.dry(place, layer);
            }
        }
    }

    /// Policies in dry run, limits that were not asked as another denied, and
    /// the tightest.
    pub(crate) fn finish(mut self, selection: &Selection<'_>) -> Answer {
        self.dry_run(selection);
        let denied = self.answer.denied();
        for (place, layer) in selection.layers().enumerate() {
            let unasked = denied && self.answer.outcomes.get(place) == Some(&Outcome::Admitted);
            if unasked && !self.is_dry(place) && !self.is_remote(place) {
                let decision = self.now_of(place, layer, 0);
                self.answer.set(place, decision, Outcome::Spared);
            }
        }
        self.answer.conclude(self.dry);
        self.answer
    }
}
