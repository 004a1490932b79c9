//! Denials of subjects that have a penalty, in pages: a row holds how many
//! there were in a row and when they are forgotten, as a window's does. The
//! row is idle then.

use super::page;
use super::{Blobs, PAGE_SIZE, Pages, bytes_of, within};
use crate::algorithm::fixed_window::Window;
use crate::key::Fingerprint;
use crate::limit::Limit;
use crate::policy::Penalty;
use crate::policy::penalty::{self, struck, waits};
use crate::redis::state::State;
use crate::redis::store::Strikes;
use crate::table::Tally;
use crate::time::{Nanos, step_back};

impl<B: Blobs> Strikes for Pages<B> {
    fn wait(&mut self, subject: Fingerprint, penalty: &Penalty, now: Nanos) -> Option<Nanos> {
        let limit = penalty::limit(penalty)?;
        let read = self.blobs.read(within(subject, self.short)).ok()?;
        let bytes = bytes_of(&read);
        let now = step_back(now, page::latest(bytes));
        Some(waits(tally(bytes, subject, &limit, penalty, now), penalty, now))
    }

    fn strike(&mut self, subject: Fingerprint, penalty: &Penalty, now: Nanos) -> Option<Nanos> {
        let limit = penalty::limit(penalty)?;
        let counted = self.replace(within(subject, self.short), now, |_, page, bytes, now| {
            let (tally, delay) = struck(tally(bytes, subject, &limit, penalty, now), penalty, now);
            let count = u32::try_from(tally.count).unwrap_or(u32::MAX);
            let state = State::Window(Window { end: tally.forgotten_at, count });
            let row = core::iter::once((subject.0, &limit, &state));
            (delay, Some(page.write(bytes, &row, (now, now), PAGE_SIZE)))
        });
        counted.ok()
    }
}

/// What a page knows of a subject. Nobody waits for longer than the penalty's
/// `max`, so that what lies further ahead was not written by us.
fn tally(bytes: &[u8], subject: Fingerprint, limit: &Limit, penalty: &Penalty, now: Nanos) -> Tally {
    let last = now.saturating_add(penalty.max).saturating_add(penalty.max);
    match page::find(bytes, subject.0, limit, now) {
        Some((State::Window(Window { end, count }), _)) if end <= last => {
            Tally { count: count.into(), forgotten_at: end }
        }
        _ => Tally { count: 0, forgotten_at: 0 },
    }
}
