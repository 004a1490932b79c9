//! Rounds: short, in turn, and the median of them.
//!
//! The machine is shared and its clock speed moves, so contenders are never
//! measured one after the other. Each round runs all of them once, beginning
//! with another one each time, and the medians over the rounds are compared.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// One thread's part of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// 0, or 1 on two threads.
    pub(crate) thread: usize,
    /// Counts the rounds of all contenders.
    pub(crate) number: usize,
    /// Decisions to make.
    pub(crate) calls: usize,
}

/// Somebody who makes decisions; the answer is how many were admitted.
pub(crate) type Contender<'a> = &'a (dyn Fn(Round) -> usize + Sync);

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) threads: usize,
    pub(crate) rounds: usize,
    pub(crate) calls: usize,
}

/// The median nanoseconds a call, per thread, of each contender. Every call
/// of every round must have been admitted.
pub(crate) fn interleaved(plan: Plan, contenders: &[Contender<'_>]) -> Vec<f64> {
    let mut times = vec![Vec::with_capacity(plan.rounds); contenders.len()];
    for number in 0..=plan.rounds {
        for turn in 0..contenders.len() {
            let index = (turn + number) % contenders.len();
            let time = round(plan, number, contenders[index]);
            if number > 0 {
                times[index].push(time); // the first only warms up
            }
        }
    }
    times.iter_mut().map(|times| median(times)).collect()
}

fn round(plan: Plan, number: usize, contender: Contender<'_>) -> f64 {
    let arrived = AtomicUsize::new(0);
    let part = |thread: usize| {
        pin(thread);
        arrived.fetch_add(1, Ordering::SeqCst);
        while arrived.load(Ordering::SeqCst) < plan.threads {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        let admitted = contender(Round { thread, number, calls: plan.calls });
        let time = start.elapsed();
        assert_eq!(admitted, plan.calls, "a limit that had room denied");
        time.as_nanos() as f64 / plan.calls as f64
    };
    let total: f64 = thread::scope(|scope| {
        let others: Vec<_> = (1..plan.threads).map(|thread| scope.spawn(move || part(thread))).collect();
        let first = part(0);
        first + others.into_iter().map(|other| other.join().expect("a round failed")).sum::<f64>()
    });
    total / plan.threads as f64
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Keeps the calling thread on one processor.
fn pin(thread: usize) {
    // SAFETY: a question with no arguments but its name.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let processors = usize::try_from(processors).unwrap_or(1).clamp(1, 1024);
    // SAFETY: cpu_set_t is plain bits, for which all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index is below the number of processors, which is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(thread % processors, &mut set) };
    // SAFETY: the set is initialised and its size is right. Failing only makes the numbers noisier.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}
