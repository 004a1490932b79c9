//! What this machine admitted by itself and the store has not heard of.
//!
//! It is a count beside each piece, in the host's table, where all workers of
//! a machine see it. The piece itself cannot tell: it is also charged for what
//! the store knows, and it stays charged when the store was told. Were it
//! freed then, a store that hears everything and answers too late would have
//! the piece handed out anew each time.
//!
//! The count is void when the piece is whole again, since nothing is owed
//! then.

use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit, MAX_LIMIT};
use crate::local::LocalStore;
use crate::table::Tally;
use crate::time::{NEVER, Nanos};

/// Told apart from the piece, whose key it has.
const ADMITTED: u64 = 0x5E77_1ED0_ACC0_0A75;
const REMINDED: u64 = 0x1057_3E30_7145_700D;

/// What is counted beside a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Untold<'t, 'm> {
    table: &'t (dyn LocalStore + 'm),
    key: Fingerprint,
    count: Limit,
}

impl<'t, 'm> Untold<'t, 'm> {
    /// Units that the fallback admitted under this piece of a limit.
    pub(super) fn admitted(
        table: &'t (dyn LocalStore + 'm),
        key: Fingerprint,
        piece: &Limit,
    ) -> Option<Self> {
        Self::new(table, Fingerprint(key.0 ^ ADMITTED), piece)
    }

    /// Units of which a store that has lost its memory is being told by one of
    /// the workers, so that no other one tells them too.
    pub(super) fn reminded(
        table: &'t (dyn LocalStore + 'm),
        key: Fingerprint,
        piece: &Limit,
    ) -> Option<Self> {
        Self::new(table, Fingerprint(key.0 ^ REMINDED), piece)
    }

    /// Twice a burst is as good as more: no more than one is ever owed.
    fn new(table: &'t (dyn LocalStore + 'm), key: Fingerprint, piece: &Limit) -> Option<Self> {
        let most = piece.burst().saturating_mul(2).min(MAX_LIMIT);
        let count = Limit::new(Algorithm::FixedWindow, most, piece.period()).ok()?;
        Some(Untold { table, key, count })
    }

    pub(super) fn units(&self, now: Nanos) -> u64 {
        let mut units = 0;
        self.table.tally(self.key, &self.count, now, &mut |tally, now| {
            units = valid(tally, now);
            None
        });
        units
    }

    /// So many more, which are void after `span`, or later if others were.
    pub(super) fn add(&self, units: u64, span: Nanos, now: Nanos) {
        if units == 0 {
            return;
        }
        self.table.tally(self.key, &self.count, now, &mut |tally, now| {
            let count = valid(tally, now).saturating_add(units).min(self.count.limit());
            let until = now.saturating_add(span).min(NEVER - 1);
            let forgotten_at = if tally.count > 0 { until.max(tally.forgotten_at) } else { until };
            Some(Tally { count, forgotten_at })
        });
    }

    /// So many fewer: they were told, or given back.
    pub(super) fn take(&self, units: u64, now: Nanos) {
        if units == 0 {
            return;
        }
        self.table.tally(self.key, &self.count, now, &mut |tally, now| {
            let left = valid(tally, now);
            let rest = Tally { count: left.saturating_sub(units), ..tally };
            (left > 0).then_some(rest)
        });
    }
}

fn valid(tally: Tally, now: Nanos) -> u64 {
    if tally.forgotten_at > now { tally.count } else { 0 }
}
