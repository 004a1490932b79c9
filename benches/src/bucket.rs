//! One bucket: ours, a bare compare-and-swap, and `governor`.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock, FakeRelativeClock, Reference};
use governor::{Quota, RateLimiter};
use tollgate_core::{Bucket, Limit};

use crate::Options;
use crate::count;
use crate::measure::{Contender, Plan, Round, interleaved};
use crate::report::Row;

/// 100,000,000 a second: a token every 10 ns, and a second's worth of burst.
const TOKEN_NS: u64 = 10;
const BURST: u32 = 100_000_000;
/// How far the caller's clock moves between two decisions: less than a token,
/// so that the bucket is neither full nor empty.
const STEP_NS: u64 = 7;
/// How far apart rounds are: the bucket is full again.
const ROUND_NS: u64 = 10_000_000_000;

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    prove();
    if options.wants("bucket/1-thread") {
        rows.extend(one_thread(options));
    }
    if options.wants("bucket/instructions") {
        rows.extend(instructions(options));
    }
    if options.wants("bucket/2-threads") {
        rows.push(two_threads(options));
    }
    rows
}

fn one_thread(options: &Options) -> Vec<Row> {
    let plan = Plan { threads: 1, rounds: options.rounds(400), calls: 50_000 };
    let (bucket, fraction, bare) = (bucket(), fraction(), Bare::new());
    let (real, fake) = (RateLimiter::direct(quota()), fake());
    let (quanta, instant) = (DefaultClock::default(), Instant::now());
    let (clocked, timed) = (self::bucket(), self::bucket());
    let times = interleaved(
        plan,
        &[
            &|round| ours(&bucket, round),
            &|round| bare.calls(round),
            &|round| governor(&real, round),
            &|round| {
                let start = quanta.now();
                under_clock(&clocked, round, || quanta.now().duration_since(start).into())
            },
            &|round| {
                under_clock(&timed, round, || instant.elapsed().as_nanos() as u64) // 584 years
            },
            &|round| governor(&fake, round),
            &|round| ours(&fraction, round),
            &|round| denied(&bucket, round),
        ],
    );
    let &[ours, bare, real, clocked, timed, fake, fraction, denied] = times.as_slice() else {
        return Vec::new();
    };
    let what = "single bucket, full decision, all fields used, caller's now, 1 thread";
    vec![
        Row::absolute("bucket/1-thread/ns", what, "ns", ours, 6.0),
        Row::new(
            "bucket/1-thread/cas",
            what,
            "ns",
            ours,
            bare,
            "bare AtomicU64 compare-and-swap GCRA, caller's now",
        )
        .goal(1.3),
        Row::new(
            "bucket/1-thread/governor",
            what,
            "ns",
            ours,
            real,
            "governor direct, default clock (quanta)",
        )
        .goal(0.4),
        Row::new(
            "bucket/1-thread/same-clock",
            "the same, ours reads the peer's clock for each decision",
            "ns",
            clocked,
            real,
            "governor direct, default clock (quanta)",
        ),
        Row::new(
            "bucket/1-thread/instant",
            "the same, ours reads std::time::Instant for each decision",
            "ns",
            timed,
            real,
            "governor direct, default clock (quanta)",
        ),
        Row::new("bucket/1-thread/fake-clock", what, "ns", ours, fake, "governor direct, FakeRelativeClock"),
        Row::new(
            "bucket/1-thread/fraction",
            "the same, 700 a minute: tokens of a fraction of a nanosecond, a 16-byte slot",
            "ns",
            fraction,
            ours,
            "ours, whole nanoseconds",
        ),
        Row::new(
            "bucket/1-thread/denied",
            "the same, every request denied",
            "ns",
            denied,
            ours,
            "ours, allowed",
        ),
    ]
}

fn two_threads(options: &Options) -> Row {
    let plan = Plan { threads: 2, rounds: options.rounds(1_500), calls: 50_000 };
    let (bucket, fake) = (bucket(), fake());
    let times = interleaved(plan, &[&|round| ours(&bucket, round), &|round| governor(&fake, round)]);
    // The bucket was in debt all the time, so the debt of the last round is exact.
    let (calls, last) = (plan.calls as u64, start(plan.rounds));
    let debt = bucket.peek(0, last + calls * STEP_NS).reset_after;
    assert_eq!(debt, calls * (2 * TOKEN_NS - STEP_NS), "two threads lost or made tokens");
    Row::new(
        "bucket/2-threads",
        "single bucket, full decision, caller's now, 2 pinned threads on the same bucket, per thread",
        "ns",
        times[0],
        times[1],
        "governor direct, FakeRelativeClock",
    )
    .goal(1.0)
}

fn instructions(options: &Options) -> Vec<Row> {
    let calls = if options.quick { 20_000 } else { 200_000 };
    let count = |name| count::instructions(name, "empty", calls);
    let (Some(ours), Some(bare), Some(denied), Some(fraction)) =
        (count("bucket"), count("bare"), count("denied"), count("fraction"))
    else {
        return Vec::new();
    };
    let what = "single bucket, full decision, instructions (callgrind; loop taken off)";
    vec![
        Row::absolute("bucket/instructions", what, "instructions", ours, 45.0),
        Row::new(
            "bucket/instructions/cas",
            what,
            "instructions",
            ours,
            bare,
            "bare AtomicU64 compare-and-swap GCRA",
        ),
        Row::new(
            "bucket/instructions/denied",
            "the same, denied",
            "instructions",
            denied,
            ours,
            "ours, allowed",
        ),
        Row::new(
            "bucket/instructions/fraction",
            "the same, 700 a minute: a 16-byte slot",
            "instructions",
            fraction,
            ours,
            "ours, whole nanoseconds",
        ),
    ]
}

/// What [`count::instructions`] runs, by name.
pub(crate) fn counted(name: &str, round: Round) -> Option<usize> {
    let (bucket, fraction, bare) = (bucket(), fraction(), Bare::new());
    let contender: Contender<'_> = match name {
        "bucket" => &|round| ours(&bucket, round),
        "fraction" => &|round| ours(&fraction, round),
        "bare" => &|round| bare.calls(round),
        "denied" => &|round| denied(&bucket, round),
        "empty" => &empty,
        _ => return None,
    };
    Some(count::counted(contender, round))
}

fn start(number: usize) -> u64 {
    (number as u64 + 1) * ROUND_NS
}

/// The bucket is behind a `black_box` in every loop of this file: its limit
/// is read anew for each decision, as when requests come from elsewhere.
fn ours(bucket: &Bucket, round: Round) -> usize {
    let mut now = start(round.number);
    let mut admitted = 0;
    for _ in 0..round.calls {
        let decision = black_box(bucket).check(1, now);
        admitted += usize::from(decision.allowed);
        black_box(&decision);
        now += STEP_NS;
    }
    admitted
}

/// Asks for more than the bucket holds.
fn denied(bucket: &Bucket, round: Round) -> usize {
    let mut now = start(round.number);
    let mut denied = 0;
    for _ in 0..round.calls {
        let decision = black_box(bucket).check(u64::from(BURST) + 1, now);
        denied += usize::from(!decision.allowed);
        black_box(&decision);
        now += STEP_NS;
    }
    denied
}

fn under_clock(bucket: &Bucket, round: Round, now: impl Fn() -> u64) -> usize {
    let mut admitted = 0;
    for _ in 0..round.calls {
        let decision = black_box(bucket).check(1, now());
        admitted += usize::from(decision.allowed);
        black_box(&decision);
    }
    admitted
}

/// The loop alone.
fn empty(round: Round) -> usize {
    let bucket = bucket();
    let mut now = start(round.number);
    let mut admitted = 0;
    for _ in 0..round.calls {
        black_box(&bucket);
        admitted += usize::from(black_box(now) != 0);
        now += STEP_NS;
    }
    admitted
}

type Direct<C> = RateLimiter<
    governor::state::NotKeyed,
    governor::state::InMemoryState,
    C,
    governor::middleware::NoOpMiddleware<<C as Clock>::Instant>,
>;

fn governor<C: Clock>(limiter: &Direct<C>, round: Round) -> usize {
    let mut admitted = 0;
    for _ in 0..round.calls {
        let answer = black_box(limiter).check();
        admitted += usize::from(answer.is_ok());
        let _ = black_box(&answer);
    }
    admitted
}

fn bucket() -> Bucket {
    made("100000000/s burst 100000000")
}

/// 700 a minute, with as much room.
fn fraction() -> Bucket {
    made("700/m burst 100000000")
}

fn made(limit: &str) -> Bucket {
    let limit: Limit = limit.parse().expect("a legal limit");
    Bucket::new(limit).expect("a token bucket needs no rows")
}

fn quota() -> Quota {
    let burst = NonZeroU32::new(BURST).expect("not zero");
    Quota::with_period(Duration::from_nanos(TOKEN_NS)).expect("not zero").allow_burst(burst)
}

/// A governor whose clock is a number in memory. It stands still while a
/// round is measured: moving it would cost the peer another atomic operation.
fn fake() -> Direct<FakeRelativeClock> {
    // Room for every round, as nothing refills.
    let quota = Quota::with_period(Duration::from_nanos(TOKEN_NS)).expect("not zero");
    RateLimiter::direct_with_clock(quota.allow_burst(NonZeroU32::MAX), FakeRelativeClock::default())
}

/// The least that an honest GCRA does: one instant, one compare-and-swap.
struct Bare {
    tat: AtomicU64,
    token: u64,
    span: u64,
}

impl Bare {
    fn new() -> Bare {
        Bare { tat: AtomicU64::new(0), token: TOKEN_NS, span: TOKEN_NS * u64::from(BURST) }
    }

    #[inline]
    fn check(&self, now: u64) -> bool {
        let mut seen = self.tat.load(Ordering::Relaxed);
        loop {
            let next = seen.max(now) + self.token;
            if next - now > self.span {
                return false;
            }
            match self.tat.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => seen = other,
            }
        }
    }

    fn calls(&self, round: Round) -> usize {
        let mut now = start(round.number);
        let mut admitted = 0;
        for _ in 0..round.calls {
            let allowed = black_box(self).check(now);
            admitted += usize::from(allowed);
            black_box(&allowed);
            now += STEP_NS;
        }
        admitted
    }
}

/// What is measured limits: each admits its burst and not one more.
fn prove() {
    let mut now = 1_000_000_000;
    let bucket = made("10/s burst 1000");
    let admitted = |now| (0..3000).filter(|_| bucket.check(1, now).allowed).count();
    assert_eq!(admitted(now), 1000);
    now += 500_000_000;
    assert_eq!(admitted(now), 5);
    let bare = Bare { tat: AtomicU64::new(0), token: 100_000_000, span: 100_000_000_000 };
    assert_eq!((0..3000).filter(|_| bare.check(now)).count(), 1000);
    let quota = Quota::with_period(Duration::from_secs(3600)).expect("not zero");
    let governor = RateLimiter::direct(quota.allow_burst(NonZeroU32::new(1000).expect("not zero")));
    assert_eq!((0..3000).filter(|_| governor.check().is_ok()).count(), 1000);
}
