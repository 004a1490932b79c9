//! When deadlines are looked at: not as soon as a worker goes on that stood
//! still.
//!
//! A worker that makes a plugin, or is kept from running by a busy machine,
//! stands still for some milliseconds. What Redis answered meanwhile is in a
//! socket, and comes to the filter through a proxy, a listener and a stream,
//! each of which takes a turn of the host's loop; the tick is there at the
//! first. So a tick that comes late lets a few more pass, in which what came
//! meanwhile is read. After them it is looked, late or not, but for one that
//! stood still for longer yet: a worker that is always late has deadlines, too.

use tollgate_core::time::Nanos;

/// So many ticks pass.
const PASSED: u32 = 3;
const MILLISECOND: Nanos = 1_000_000;

/// The ticks of a plugin.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    /// When the last one came; 0 before the first.
    came_at: Nanos,
    /// Ticks that pass yet, this one among them.
    left: u32,
    /// How long it stood still before them.
    longest: Nanos,
}

impl Ticks {
    /// A tick comes, which should so many milliseconds after the last: are
    /// deadlines looked at?
    pub(crate) fn is_look(&mut self, after: u32, now: Nanos) -> bool {
        let stood = now.saturating_sub(self.came_at);
        self.came_at = now.max(1);
        self.left = self.left.saturating_sub(1);
        let is_late = stood >= Nanos::from(after.saturating_add(1)).saturating_mul(MILLISECOND);
        // Twice as long as before, so that this has an end.
        if is_late && stood / 2 >= self.longest {
            (self.left, self.longest) = (PASSED.saturating_add(1), stood);
        }
        if self.left <= 1 {
            self.longest = 0;
        }
        self.left <= 1
    }

    /// Does the host send none?
    pub(crate) fn are_missing(&self) -> bool {
        self.came_at == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(ticks: &mut Ticks, after: &[u64]) -> Vec<bool> {
        let span = |after: &u64| after.saturating_mul(MILLISECOND);
        after.iter().map(|after| ticks.is_look(1, ticks.came_at.saturating_add(span(after)))).collect()
    }

    #[test]
    fn ticks_that_come_in_time_look() {
        let mut ticks = Ticks::default();
        assert!(ticks.are_missing());
        ticks.is_look(1, 1_000_000 * MILLISECOND);
        assert!(!ticks.are_missing());
        looks(&mut ticks, &[1; 10]);
        assert_eq!(looks(&mut ticks, &[1; 10]), [true; 10]);
    }

    #[test]
    fn a_late_tick_lets_a_few_pass_and_then_it_is_looked() {
        let mut ticks = Ticks::default();
        looks(&mut ticks, &[1; 10]);
        assert_eq!(looks(&mut ticks, &[9, 1, 1, 1, 1]), [false, false, false, true, true]);
    }

    #[test]
    fn who_is_always_late_looks_but_not_after_the_longest_stop() {
        let mut ticks = Ticks::default();
        looks(&mut ticks, &[1; 10]);
        let each = [false, false, false, true];
        assert_eq!(looks(&mut ticks, &[4; 8]), [each, each].concat());
        assert_eq!(
            looks(&mut ticks, &[4, 4, 4, 50, 1, 1, 1, 4]),
            [false, false, false, false, false, false, true, false]
        );
        let growing: Vec<u64> = (0..64).map(|tick| 2 + tick % 7 * tick).collect();
        assert!(looks(&mut ticks, &growing).iter().filter(|look| **look).count() > 8, "however it grows");
    }
}
