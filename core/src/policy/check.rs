//! Asking a table all that the rules ask of one request.
//!
//! All enforced limits are charged together, or none is. A policy in dry run
//! is asked on its own: it counts what it would have done and never stands in
//! the way. A policy with a penalty makes a subject that is denied again and
//! again wait longer each time; while it waits, its limits are not asked.

use super::model::{Penalty, Rules};
use super::penalty;
use super::select::{Layer, Selection};
use crate::decision::Decision;
use crate::limiter::{self, MAX_LAYERS};
use crate::table::{Hold, Request, Table};
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
    decisions: [Decision; MAX_LAYERS],
    outcomes: [Outcome; MAX_LAYERS],
    holds: [Hold; MAX_LAYERS],
    count: usize,
}

/// What stands where no decision was made.
const NONE: Decision =
    Decision { allowed: true, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };

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

    /// The decision that is reported.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decisions().get(self.tightest?)
    }
}

/// Asks all limits of a selection.
pub fn check(rules: &Rules, table: &Table<'_>, selection: &Selection<'_>, now: Nanos) -> Answer {
    let mut asked = Asked { rules, table, now, answer: empty(selection.len()) };
    asked.policies(selection, true);
    if !asked.denied() {
        asked.enforced(selection);
    }
    asked.policies(selection, false);
    asked.finish(selection)
}

/// Takes back what an admitted request was charged, because it failed for
/// another reason; holds are released as well.
pub fn give_back(table: &Table<'_>, selection: &Selection<'_>, answer: &mut Answer, now: Nanos) {
    let layers = selection.layers().zip(answer.outcomes).zip(&mut answer.holds);
    for ((layer, outcome), hold) in layers {
        if outcome == Outcome::Admitted {
            limiter::give_back(table, &[layer.request()], core::slice::from_mut(hold), now);
        }
    }
}

fn empty(count: usize) -> Answer {
    Answer {
        allowed: true,
        tightest: None,
        delay: 0,
        decisions: [NONE; MAX_LAYERS],
        outcomes: [Outcome::default(); MAX_LAYERS],
        holds: [Hold::default(); MAX_LAYERS],
        count,
    }
}

struct Asked<'a, 'm> {
    rules: &'a Rules,
    table: &'a Table<'m>,
    now: Nanos,
    answer: Answer,
}

impl Asked<'_, '_> {
    fn denied(&self) -> bool {
        self.answer.outcomes().contains(&Outcome::Denied)
    }

    fn is_dry(&self, layer: &Layer<'_>) -> bool {
        self.rules.policies().get(layer.policy).is_some_and(|policy| policy.dry_run())
    }

    fn penalty(&self, layer: &Layer<'_>) -> Option<Penalty> {
        self.rules.policies().get(layer.policy)?.penalty()
    }

    /// Before the limits are asked: subjects that still have to wait.
    /// Afterwards: policies in dry run, each on its own.
    fn policies(&mut self, selection: &Selection<'_>, before: bool) {
        for (place, layer) in selection.layers().enumerate() {
            if before && layer.index == 0 && !self.is_dry(layer) {
                self.still_waits(place, layer);
            } else if !before && self.is_dry(layer) {
                self.dry(place, layer);
            }
        }
    }

    fn still_waits(&mut self, place: usize, layer: &Layer<'_>) {
        let Some(penalty) = self.penalty(layer) else { return };
        let wait = penalty::wait(self.table, layer.subject(), &penalty, self.now);
        if wait > 0 {
            let decision = self.table.peek(layer.key(), layer.limit, layer.cost, self.now);
            let retry_after = decision.retry_after.max(wait);
            self.set(place, Decision { allowed: false, retry_after, delay: 0, ..decision }, Outcome::Denied);
        }
    }

    fn dry(&mut self, place: usize, layer: &Layer<'_>) {
        let mut decisions = [NONE; 1];
        let hold = self.answer.holds.get_mut(place..=place).unwrap_or(&mut []);
        let verdict = limiter::check_all(self.table, &[layer.request()], self.now, &mut decisions, hold);
        let allowed = verdict.is_some_and(|verdict| verdict.allowed);
        let outcome = if allowed { Outcome::Admitted } else { Outcome::WouldDeny };
        self.set(place, decisions[0], outcome);
    }

    /// All limits that are enforced, together.
    fn enforced(&mut self, selection: &Selection<'_>) {
        let Some(first) = selection.layers().next() else { return };
        let mut requests = [first.request(); MAX_LAYERS];
        let mut places = [0; MAX_LAYERS];
        let mut count = 0;
        for (place, layer) in selection.layers().enumerate() {
            if self.is_dry(layer) {
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
            self.set(place, decision, outcome);
        }
        self.strike(selection);
    }

    /// A denial counts against the subject of each policy that denied and has
    /// a penalty; once, whichever of its limits denied.
    fn strike(&mut self, selection: &Selection<'_>) {
        let mut struck = None;
        for (place, layer) in selection.layers().enumerate() {
            let Some(penalty) = self.penalty(layer) else { continue };
            let denied = self.answer.outcomes.get(place) == Some(&Outcome::Denied);
            let Some(decision) = self.answer.decisions.get_mut(place).filter(|_| denied) else { continue };
            if decision.retry_after == NEVER {
                continue; // no wait would help
            }
            let wait = match struck {
                Some((policy, wait)) if policy == layer.policy => wait,
                _ => penalty::strike(self.table, layer.subject(), &penalty, self.now),
            };
            struck = Some((layer.policy, wait));
            decision.retry_after = decision.retry_after.max(wait);
        }
    }

    fn set(&mut self, place: usize, decision: Decision, outcome: Outcome) {
        if let (Some(room), Some(what)) =
            (self.answer.decisions.get_mut(place), self.answer.outcomes.get_mut(place))
        {
            (*room, *what) = (decision, outcome);
        }
    }

    /// Limits that were not asked, as a subject has to wait, and the tightest.
    fn finish(mut self, selection: &Selection<'_>) -> Answer {
        let denied = self.denied();
        for (place, layer) in selection.layers().enumerate() {
            let unasked = denied && self.answer.outcomes.get(place) == Some(&Outcome::Admitted);
            if unasked && !self.is_dry(layer) {
                let decision = self.table.peek(layer.key(), layer.limit, 0, self.now);
                self.set(place, decision, Outcome::Spared);
            }
        }
        let mut answer = self.answer;
        answer.allowed = !denied;
        let enforced = selection.layers().zip(answer.decisions).zip(answer.outcomes).enumerate();
        let enforced = enforced.filter(|(_, ((layer, _), _))| {
            !self.rules.policies().get(layer.policy).is_some_and(|policy| policy.dry_run())
        });
        for (place, ((_, decision), outcome)) in enforced {
            let tighter = match answer.tightest.and_then(|best| answer.decisions.get(best)) {
                None => true,
                Some(best) if denied => {
                    outcome == Outcome::Denied && (best.allowed || decision.retry_after > best.retry_after)
                }
                Some(best) => decision.remaining < best.remaining,
            };
            if tighter {
                answer.tightest = Some(place);
            }
            if !denied {
                answer.delay = answer.delay.max(decision.delay);
            }
        }
        answer
    }
}
