//! The Lua scripts on a real Redis: the vectors, the pure functions' answers to any traffic, and
//! what every key must be.

use std::cell::RefCell;
use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tollgate_core::algorithm::token_bucket::{self, Tat};
use tollgate_core::redis::script::{Ask, Op, accepts};
use tollgate_core::time::SECOND;
use tollgate_core::{Algorithm, Anchor, Decision, Limit, NEVER, Nanos};
use tollgate_tests::scripts::{Answer, Scripts, take};
use tollgate_tests::strategies::{Clock, cost, forward, jitter, limit_of};
use tollgate_tests::subject::{Pure, Subject};
use tollgate_tests::vectors::{self, Vector};

/// What `retry_after` and `reset_after` may add to the exact value.
const TOLERANCE: Nanos = 1_000_000;

/// Plays all vectors through what `answer` makes of a step.
fn play_all(way: &str, answer: impl Fn(&mut Scripts, &Vector, &Limit, u64) -> Decision) {
    let mut world = World::new();
    let vectors = vectors::all();
    let mut failures = Vec::new();
    let mut steps = 0;
    for vector in &vectors {
        let limit = vector.limit();
        let played = vector.play(TOLERANCE, |cost, now| {
            world.at(&vector.name, now);
            let decision = answer(&mut world.scripts, vector, &limit, cost);
            world.keep(&vector.name, &limit, decision.reset_after);
            decision
        });
        match played {
            Ok(count) => steps += count,
            Err(failure) => failures.push(failure),
        }
    }
    assert!(
        failures.is_empty(),
        "{way}: {} of {} differ\n{}",
        failures.len(),
        vectors.len(),
        failures.join("\n")
    );
    println!("{way}: {} vectors, {steps} steps", vectors.len());
}

#[test]
fn single_scripts_answer_every_step() {
    play_all("single scripts", |scripts, vector, limit, cost| {
        scripts.ask(&vector.name, limit, take(cost)).decisions[0]
    });
}

#[test]
fn several_limits_at_once_answer_every_step() {
    let wide: Limit = "4294967295/1us".parse().unwrap();
    play_all("multi", |scripts, vector, limit, cost| {
        let beside = format!("{}:beside", vector.name);
        let asks = [Ask { key: beside.as_bytes(), limit: &wide }, Ask { key: vector.name.as_bytes(), limit }];
        scripts.check(&asks, take(cost)).expect("an answer").decisions[1]
    });
}

/// Where random traffic begins: in 2026, at an odd nanosecond or a whole microsecond.
const START: Nanos = 1_790_000_000_123_456_000;
/// Seconds after which the short form of a bucket's state tells the same instants again.
const ROUND: u64 = 300_000;
/// The latest instant of random traffic, in the year 2255: microseconds are exact below 2^53.
const END: Nanos = 9_000_000_000 * SECOND;
const MILLI: Nanos = 1_000_000;
/// Milliseconds that a call may take on a machine with other work.
const SLACK: u64 = 100;

/// Scripts on a server whose keys expire by the test's clock, and must have a TTL after each call.
struct World {
    scripts: Scripts,
    expiries: HashMap<String, Nanos>,
    now: Nanos,
    /// Milliseconds that `at` has given the key.
    left: u64,
}

impl World {
    fn new() -> World {
        World { scripts: Scripts::new(true), expiries: HashMap::new(), now: 0, left: 0 }
    }

    /// Lets time pass for this key as it would on a real clock.
    fn at(&mut self, key: &str, now: Nanos) {
        self.now = now;
        self.left = 0;
        self.scripts.at(now);
        let Some(&expiry) = self.expiries.get(key) else { return };
        if now >= expiry {
            let _: i64 = self.scripts.command(&["DEL", key]);
        } else {
            self.left = (expiry - now).div_ceil(MILLI);
            self.scripts.lives.push((key.to_owned(), self.left));
        }
    }

    /// The key has a TTL: of at most twice the time that its limit takes or its debt lasts, and of
    /// no less than its debt.
    fn keep(&mut self, key: &str, limit: &Limit, debt: Nanos) {
        self.keep_for(key, limit, debt, debt);
    }

    fn keep_for(&mut self, key: &str, limit: &Limit, debt: Nanos, least: Nanos) {
        let ttl = *self.scripts.ttls.last().unwrap();
        let Ok(millis) = u64::try_from(ttl) else {
            assert_eq!(ttl, -2, "a key without a TTL");
            self.expiries.remove(key);
            return;
        };
        let most = 2 * full(limit).max(debt).div_ceil(MILLI);
        let is_as_it_was = self.left > 0 && (self.left.saturating_sub(SLACK)..=self.left).contains(&millis);
        assert!(is_as_it_was || (1..=most).contains(&millis), "{ttl} ms of TTL for {limit:?}");
        let expiry = match self.expiries.get(key) {
            Some(&before) if is_as_it_was => before,
            // Redis expires a key in the millisecond after its last.
            _ => self.now + (millis + 1) * MILLI,
        };
        assert!(
            expiry - self.now + SLACK * MILLI >= least,
            "a TTL of {ttl} ms does not cover {least} ns of {limit:?}"
        );
        self.expiries.insert(key.to_owned(), expiry);
    }

    fn ask(&mut self, key: &str, limit: &Limit, op: Op, now: Nanos) -> Answer {
        self.at(key, now);
        let answer = self.scripts.ask(key, limit, op);
        self.keep(key, limit, answer.decisions[0].reset_after);
        answer
    }
}

/// Nanoseconds in which an empty bucket fills, or of a period.
fn full(limit: &Limit) -> Nanos {
    if !matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
        return limit.period();
    }
    let span = (u128::from(limit.burst()) * u128::from(limit.period())).div_ceil(limit.limit().into());
    u64::try_from(span).unwrap()
}

/// Is it what the pure function says? Waits may be told a little longer.
fn same(pure: &Decision, script: &Decision) -> bool {
    let near = |exact: Nanos, told: Nanos| {
        exact == told || (exact != NEVER && told != NEVER && told >= exact && told - exact <= TOLERANCE)
    };
    (pure.allowed, pure.limit, pure.remaining) == (script.allowed, script.limit, script.remaining)
        && (pure.delay == script.delay || pure.delay > 1 << 53 && pure.delay.abs_diff(script.delay) < 1_000)
        && near(pure.retry_after, script.retry_after)
        && near(pure.reset_after, script.reset_after)
}

/// Nanoseconds that the script of this limit tells apart.
fn grain(limit: &Limit) -> Nanos {
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket if full(limit) <= 1 << 50 => 1,
        Algorithm::FixedWindow => 1,
        Algorithm::SlidingWindow if limit.period() <= 4_000_000 * SECOND => 1,
        Algorithm::SlidingLog if limit.period() <= 4_000_000 * SECOND => 1,
        _ => 1_000,
    }
}

/// Runs random cases; each has a key of its own.
fn cases<S: Strategy>(
    count: u32,
    strategy: &S,
    mut case: impl FnMut(&mut World, &str, S::Value) -> Result<(), TestCaseError>,
) where
    S::Value: std::fmt::Debug,
{
    let world = RefCell::new(World::new());
    let number = RefCell::new(0u32);
    let case = RefCell::new(&mut case);
    let config = ProptestConfig {
        cases: count,
        max_shrink_iters: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(strategy, |value| {
        *number.borrow_mut() += 1;
        let key = format!("{{t}}:{}", number.borrow());
        (case.borrow_mut())(&mut world.borrow_mut(), &key, value)
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// A limit that scripts take, of any algorithm.
fn accepted() -> impl Strategy<Value = Limit> {
    proptest::sample::select(&Algorithm::ALL[..])
        .prop_flat_map(limit_of)
        .prop_filter("a limit that scripts take", |limit| accepts(limit).is_ok())
}

/// Anywhere in the round of the short form.
fn start() -> impl Strategy<Value = Nanos> {
    (0..ROUND).prop_map(|seconds| START + seconds * SECOND)
}

/// A slow bucket once gave a third token of two a day away, for some hours of some days.
#[test]
fn a_bucket_admits_its_burst_at_every_hour_of_every_day() {
    let mut scripts = Scripts::new(true);
    for limit in ["1/d", "2/d", "5/d", "24/d", "1/h burst 26", "1/20h", "1/26h", "100/d burst 108", "10/s"] {
        let limit: Limit = limit.parse().unwrap();
        for hour in 0..=ROUND.div_ceil(3_600) {
            let mut now = START + hour * 3_600 * SECOND;
            let mut pure = Pure::new(limit);
            let key = format!("{{t}}:{limit}:{hour}");
            for step in 0..limit.burst() + 4 {
                scripts.at(now);
                let got = scripts.ask(&key, &limit, take(1)).decisions[0];
                let expected = pure.check(1, now);
                assert!(same(&expected, &got), "{limit}, hour {hour}, step {step}: {expected:?}, {got:?}");
                now += if got.allowed { 0 } else { got.retry_after };
            }
        }
    }
}

#[test]
fn any_traffic_is_answered_as_by_the_pure_function() {
    let steps = proptest::collection::vec((forward(), cost(), 0u8..8), 1..25);
    let wide: Limit = "4294967295/1us".parse().unwrap();
    cases(
        700,
        &(accepted(), steps, any::<bool>(), any::<bool>(), start()),
        |world, key, (limit, steps, fine, beside, start)| {
            let grain = if fine { grain(&limit) } else { 1_000 };
            let mut pure = Pure::new(limit);
            let mut clock = Clock { now: start + if grain == 1 { 789 } else { 0 }, told: (0, 0, 0) };
            for (tick, cost, refund) in steps {
                clock.tick(tick, &limit);
                clock.now = clock.now / grain * grain;
                let ends = match limit.algorithm() {
                    Algorithm::Concurrency => clock.now + limit.period(), // of the hold
                    _ => clock.now,
                };
                if ends > END {
                    break;
                }
                let cost = cost.of(&limit);
                let expected = pure.check(cost, clock.now);
                world.at(key, clock.now);
                let got = if beside {
                    let other = format!("{key}:beside");
                    let asks = [
                        Ask { key: other.as_bytes(), limit: &wide },
                        Ask { key: key.as_bytes(), limit: &limit },
                    ];
                    let answer = world.scripts.check(&asks, take(cost)).unwrap();
                    if !answer.decisions[0].allowed {
                        break; // a cost that the wide limit refuses
                    }
                    answer.decisions[1]
                } else {
                    world.scripts.ask(key, &limit, take(cost)).decisions[0]
                };
                world.keep(key, &limit, got.reset_after);
                prop_assert!(
                    same(&expected, &got),
                    "{limit:?} at {} cost {cost}\npure   {expected:?}\nscript {got:?}",
                    clock.now
                );
                clock.told = (clock.now, expected.retry_after, expected.reset_after);
                if refund == 0 && expected.allowed && cost > 0 && limit.algorithm() != Algorithm::Concurrency
                {
                    pure.refund(cost, clock.now);
                    world.at(key, clock.now);
                    world.scripts.give_back(key, &limit, cost, 0, 0);
                    world.keep_for(key, &limit, got.reset_after, 0);
                }
            }
            Ok(())
        },
    );
}

/// What the pure functions say of a check with all its parts, of a bucket or a window.
struct Model {
    limit: Limit,
    tat: Tat,
}

impl Model {
    /// Charges more than a burst, as nobody asked: a larger burst means the same state.
    fn owe(&mut self, units: u64, now: Nanos) {
        let most = (1u128 << 62) * u128::from(self.limit.limit()) / u128::from(self.limit.period());
        let wide =
            self.limit.with_burst(u64::try_from(most).unwrap_or(u64::MAX).min(u32::MAX.into())).unwrap();
        let (tat, decision) = token_bucket::decide(self.tat, &wide, now, units);
        assert!(decision.allowed, "the test owes too much");
        self.tat = tat;
    }

    fn check(&mut self, op: Op, now: Nanos) -> (Decision, u64) {
        let Op::Check { cost, more, share, owed, .. } = op else { panic!("a check") };
        self.owe(owed, now);
        let (tat, mut decision) = token_bucket::decide(self.tat, &self.limit, now, cost);
        self.tat = tat;
        if !decision.allowed {
            return (decision, 0);
        }
        let granted = more.min(decision.remaining / share);
        let (tat, after) = token_bucket::decide(self.tat, &self.limit, now, granted);
        self.tat = tat;
        decision = Decision { allowed: true, retry_after: 0, ..after };
        (decision, granted)
    }
}

#[test]
fn debts_leases_refunds_and_changed_limits_are_those_of_the_pure_bucket() {
    // Of whole microseconds, of a part of one, and slow.
    let rates = [
        "10/s",
        "1000/s",
        "100000/d",
        "7/s",
        "1500/s",
        "700/m",
        "4999/h",
        "999983/30d",
        "1/30d",
        "3/1us",
        "2/d",
        "24/d",
    ];
    let limit = (proptest::sample::select(rates.to_vec()), 1u64..60).prop_map(|(rate, burst)| {
        let limit: Limit = rate.parse().unwrap();
        limit.with_burst(burst).unwrap()
    });
    let step = (forward(), 0u64..9, 0u64..40, 1u64..5, prop_oneof![4 => Just(0u64), 1 => 1u64..30], 0u8..10);
    let steps = proptest::collection::vec(step, 1..25);
    cases(700, &(limit.clone(), limit, steps, start()), |world, key, (limit, other, steps, start)| {
        let mut model = Model { limit, tat: Tat::default() };
        let mut clock = Clock { now: start, told: (0, 0, 0) };
        for (tick, cost, more, share, owed, also) in steps {
            let limit = model.limit;
            clock.tick(tick, &limit);
            clock.now = micros(clock.now);
            if clock.now > END {
                break;
            }
            let op = Op::Check { cost, more, share, owed, id: 1 };
            let (expected, granted) = model.check(op, clock.now);
            let got = world.ask(key, &limit, op, clock.now);
            prop_assert!(
                same(&expected, &got.decisions[0]) && granted == got.granted,
                "{limit:?} at {} {op:?}\npure   {expected:?} {granted}\nscript {got:?}",
                clock.now
            );
            clock.told = (clock.now, expected.retry_after.min(NEVER / 4), expected.reset_after);
            match also {
                0 | 1 => {
                    // Given back later than it was taken.
                    let age = u64::from(also) * micros(limit.period() / 3);
                    let now = clock.now + age;
                    model.tat = token_bucket::refund(model.tat, &limit, now, cost + granted, clock.now);
                    world.at(key, now);
                    world.scripts.give_back(key, &limit, cost + granted, age, 1);
                    world.keep_for(key, &limit, got.decisions[0].reset_after, 0);
                    clock.now = now;
                }
                2 => {
                    let from = token_bucket::Rate::of(&limit);
                    let next = if limit == other { model.limit } else { other };
                    let tat = token_bucket::carry(model.tat, from, &next, clock.now);
                    let (_, pure) = token_bucket::decide(tat, &next, clock.now, 0);
                    let read = world.ask(key, &next, take(0), clock.now).decisions[0];
                    // The script may round up a little more.
                    let more = pure.remaining.abs_diff(read.remaining);
                    prop_assert!(
                        read.remaining <= pure.remaining && more <= 1,
                        "{limit:?} to {next:?}\npure   {pure:?}\nscript {read:?}"
                    );
                    break; // from here on they may differ by a microsecond
                }
                _ => {}
            }
        }
        Ok(())
    });
}

/// Redis's clock has whole microseconds.
fn micros(span: Nanos) -> Nanos {
    span / 1_000 * 1_000
}

#[test]
fn tokens_spent_stay_spent_when_a_limit_changes() {
    let mut world = World::new();
    let limits =
        ["10/s", "20/s", "7/s burst 30", "1/h burst 12", "1500/s burst 15", "1/30d burst 10", "999983/30d"];
    for (i, from) in limits.iter().enumerate() {
        for (j, to) in limits.iter().enumerate() {
            let (from, to): (Limit, Limit) = (from.parse().unwrap(), to.parse().unwrap());
            let key = format!("{{t}}:{i}:{j}");
            world.ask(&key, &from, take(3), START);
            for _ in 0..2 {
                let read = world.ask(&key, &to, take(0), START).decisions[0];
                assert_eq!(read.remaining, to.burst() - 3, "{from:?} to {to:?}");
            }
            let next = world.ask(&key, &to, take(1), START).decisions[0];
            assert_eq!((next.allowed, next.remaining), (true, to.burst() - 4));
        }
    }
    for (from, to) in
        [("fixed_window 10/m", "fixed_window 20/h"), ("sliding_window 10/m", "sliding_window 20/h")]
    {
        let (from, to): (Limit, Limit) = (from.parse().unwrap(), to.parse().unwrap());
        world.ask(from_key(&from), &from, take(3), START);
        assert_eq!(world.ask(from_key(&from), &to, take(1), START).decisions[0].remaining, 16);
    }
}

fn from_key(limit: &Limit) -> &'static str {
    limit.algorithm().name()
}

#[test]
fn a_clock_that_steps_back_grants_nothing_extra() {
    let limits = [
        "10/s burst 20",
        "7/s burst 20",
        "1500/s burst 40",
        "leaky_bucket 10/s",
        "fixed_window 10/s",
        "sliding_window 10/s",
        "sliding_log 10/s",
    ];
    let limit = proptest::sample::select(limits.to_vec()).prop_map(|limit| limit.parse::<Limit>().unwrap());
    let steps = proptest::collection::vec((jitter(), 1u64..4), 1..40);
    cases(300, &(limit, steps), |world, key, (limit, steps)| {
        let mut clock = Clock { now: START, told: (START, 0, 0) };
        // The bucket that a clock which stands still instead would have had.
        let mut pure = Pure::new(limit);
        let (mut first, mut latest, mut admitted, mut most) = (START, START, 0, 0);
        for (tick, cost) in steps {
            clock.tick(tick, &limit);
            latest = latest.max(micros(clock.now));
            first = first.min(micros(clock.now));
            world.at(key, micros(clock.now));
            let got = world.scripts.ask(key, &limit, take(cost)).decisions[0];
            // A key that was written while the clock was behind ends by that clock.
            world.keep_for(key, &limit, got.reset_after, 0);
            clock.told = (clock.now, got.retry_after.min(NEVER / 4), got.reset_after);
            admitted += if got.allowed { cost } else { 0 };
            // At most what a burst and the time since the start give; a fixed window twice a burst at a boundary.
            let time = u128::from(latest - first) * u128::from(limit.limit()) / u128::from(limit.period());
            let windows = u128::from(latest / limit.period() - first / limit.period() + 1);
            let bound = match limit.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => u128::from(limit.burst()) + time,
                _ => windows * u128::from(limit.limit()),
            };
            prop_assert!(u128::from(admitted) <= bound, "{admitted} of {bound} under {limit:?}");
            most += u64::from(pure.check(cost, latest).allowed);
        }
        prop_assert!(most > 0);
        Ok(())
    });
}

/// Case 10: a key that had no end would deny for ever, one that ended at once would forget.
#[test]
fn every_key_has_a_ttl_at_every_rate() {
    let mut world = World::new();
    for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        for (units, period) in [
            (1, 1_000),
            (4_294_967_295, 1_000),
            (1, 3_660 * 86_400 * SECOND),
            (10, SECOND),
            (1500, SECOND),
            (7, 1_001),
        ] {
            let limit = Limit::new(algorithm, units, period).unwrap();
            let mut limits = vec![limit];
            if algorithm == Algorithm::FixedWindow {
                limits.push(limit.with_anchor(Anchor::FirstRequest).unwrap());
                limits.push("fixed_window 5/month".parse().unwrap());
            }
            for (at, limit) in limits.into_iter().enumerate() {
                let key = format!("{{t}}:{number}:{units}:{period}:{at}");
                let most = 2 * full(&limit).div_ceil(MILLI);
                let legal = |ttl: i64| ttl > 0 && u64::try_from(ttl).unwrap() <= most;
                for cost in [1, limit.burst().min(3), limit.burst(), 1] {
                    world.scripts.at(START);
                    let _: i64 = world.scripts.command(&["PERSIST", &key]); // the test's own
                    let answer = world.scripts.ask(&key, &limit, take(cost));
                    assert!(legal(world.scripts.ttls[0]), "{limit:?}: {} ms", world.scripts.ttls[0]);
                    // Lost, and found by whoever comes next, admitted or not.
                    let _: i64 = world.scripts.command(&["PERSIST", &key]);
                    let again = world.scripts.ask(&key, &limit, take(if answer.allowed() { 0 } else { 1 }));
                    assert!(
                        legal(world.scripts.ttls[0]),
                        "{limit:?}: {} ms, {again:?}",
                        world.scripts.ttls[0]
                    );
                }
                let _: i64 = world.scripts.command(&["PERSIST", &key]);
                world.scripts.give_back(&key, &limit, 1, 0, 1);
                assert!(legal(world.scripts.ttls[0]) || world.scripts.ttls[0] == -2, "{limit:?}");
            }
        }
    }
}

#[test]
fn leases_of_any_size_admit_exactly_the_limit() {
    let mut scripts = Scripts::new(true);
    for (round, more) in [0, 1, 3, 7, 50, u64::MAX].into_iter().enumerate() {
        for (number, limit) in [
            "10/s",
            "7/s burst 10",
            "fixed_window 10/s",
            "sliding_window 10/s",
            "sliding_log 10/s",
            "leaky_bucket 10/s",
            "concurrency 10/s",
        ]
        .iter()
        .enumerate()
        {
            let limit: Limit = limit.parse().unwrap();
            let key = format!("{{t}}:{round}:{number}");
            let mut admitted = 0;
            for _instance in 0..12 {
                let answer = scripts.ask(&key, &limit, Op::Check { cost: 1, more, share: 1, owed: 0, id: 0 });
                admitted += u64::from(answer.allowed()) + answer.granted;
                assert!(answer.granted <= more);
            }
            assert_eq!(admitted, 10, "{limit:?}, leases of {more}");
        }
    }
    // A share of what is left, and no more.
    let limit: Limit = "100/s".parse().unwrap();
    let answer = scripts.ask("{t}:share", &limit, Op::Check { cost: 1, more: 50, share: 4, owed: 0, id: 0 });
    assert_eq!((answer.granted, answer.decisions[0].remaining), (24, 75));
}

#[test]
fn several_limits_are_charged_all_or_none() {
    let mut scripts = Scripts::new(true);
    let texts = [
        "10/s burst 20",
        "7/s burst 9",
        "leaky_bucket 10/s",
        "fixed_window 8/s",
        "sliding_window 6/s",
        "sliding_log 7/s",
        "concurrency 9/s",
    ];
    let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
    let keys: Vec<String> = (0..limits.len()).map(|number| format!("{{t}}:{number}")).collect();
    let asks: Vec<Ask<'_>> =
        keys.iter().zip(&limits).map(|(key, limit)| Ask { key: key.as_bytes(), limit }).collect();
    let remaining = |answer: &Answer| -> Vec<u64> { answer.decisions.iter().map(|d| d.remaining).collect() };
    for left in (0..6).rev() {
        let answer = scripts.check(&asks, take(1)).unwrap();
        assert!(answer.allowed());
        assert_eq!(answer.decisions[4].remaining, left);
    }
    let denied = scripts.check(&asks, take(1)).unwrap();
    let admit: Vec<bool> = denied.decisions.iter().map(|d| d.allowed).collect();
    assert_eq!(admit, [true, true, true, true, false, true, true]);
    assert_eq!(remaining(&denied), [14, 3, 4, 2, 0, 1, 3]);
    assert_eq!(remaining(&scripts.check(&asks, take(0)).unwrap()), [14, 3, 4, 2, 0, 1, 3]);
    // What was admitted elsewhere is charged to all, and even where it does not fit.
    let owed = scripts.check(&asks, Op::Check { cost: 1, more: 9, share: 1, owed: 3, id: 0 }).unwrap();
    assert_eq!((owed.allowed(), owed.granted, remaining(&owed)), (false, 0, vec![11, 0, 1, 0, 0, 0, 0]));
    // Together they grant what the tightest has, and a leaky bucket or a hold is no lease.
    scripts.at(100 * SECOND);
    let two = [asks[0], asks[1]];
    let lease = scripts.check(&two, Op::Check { cost: 2, more: 50, share: 1, owed: 0, id: 0 }).unwrap();
    assert_eq!((lease.granted, remaining(&lease)), (7, vec![11, 0]));
    let held =
        scripts.check(&[asks[0], asks[6]], Op::Check { cost: 1, more: 5, share: 1, owed: 0, id: 0 }).unwrap();
    assert_eq!((held.allowed(), held.granted), (true, 0));
}

#[test]
fn a_refund_at_zero_is_not_lost() {
    let mut scripts = Scripts::new(true);
    for limit in [
        "10/s",
        "7/s burst 10",
        "leaky_bucket 10/s",
        "fixed_window 10/s",
        "sliding_window 10/s",
        "sliding_log 10/s",
    ] {
        let limit: Limit = limit.parse().unwrap();
        let key = format!("{{t}}:{:?}:{}", limit.algorithm(), limit.limit());
        for _ in 0..10 {
            assert!(
                scripts
                    .ask(&key, &limit, Op::Check { cost: 1, more: 0, share: 1, owed: 0, id: 77 })
                    .allowed()
            );
        }
        assert_eq!(scripts.ask(&key, &limit, take(0)).decisions[0].remaining, 0);
        scripts.give_back(&key, &limit, 3, 0, 77);
        assert_eq!(scripts.ask(&key, &limit, take(0)).decisions[0].remaining, 3, "{limit:?}");
        scripts.give_back(&key, &limit, 1_000, 0, 77);
        assert_eq!(scripts.ask(&key, &limit, take(0)).decisions[0].remaining, 10, "{limit:?}");
    }
}

#[test]
fn holds_end_with_their_time_or_their_holder() {
    let mut scripts = Scripts::new(true);
    let limit: Limit = "concurrency 5/10s".parse().unwrap();
    let hold = |id, cost| Op::Check { cost, more: 9, share: 1, owed: 0, id };
    let left = |scripts: &mut Scripts| scripts.ask("{t}", &limit, take(0)).decisions[0].remaining;
    scripts.at(START);
    assert!(scripts.ask("{t}", &limit, hold(1, 2)).allowed());
    scripts.at(START + 4 * SECOND);
    assert!(scripts.ask("{t}", &limit, hold(u64::MAX, 3)).allowed());
    let denied = scripts.ask("{t}", &limit, hold(3, 1)).decisions[0];
    assert_eq!((denied.allowed, denied.retry_after, denied.reset_after), (false, 6 * SECOND, 10 * SECOND));
    assert_eq!(scripts.ask("{t}", &limit, hold(3, 4)).decisions[0].retry_after, 10 * SECOND);
    scripts.give_back("{t}", &limit, 2, 0, 99); // nobody's
    assert_eq!(left(&mut scripts), 0);
    scripts.give_back("{t}", &limit, 1, 0, u64::MAX);
    assert_eq!(left(&mut scripts), 1);
    scripts.give_back("{t}", &limit, 2, 0, u64::MAX);
    assert_eq!(left(&mut scripts), 3);
    scripts.at(START + 10 * SECOND);
    assert_eq!(left(&mut scripts), 5);
}

#[test]
fn two_requests_of_one_instant_are_two_entries() {
    let mut scripts = Scripts::new(true);
    let limit: Limit = "sliding_log 3/s".parse().unwrap();
    let admitted = (0..5).filter(|_| scripts.ask("{t}", &limit, take(1)).allowed()).count();
    assert_eq!((admitted, scripts.command::<i64>(&["LLEN", "{t}"])), (3, 3));
}

/// What has left a log goes at once, however much it is: nobody else is kept
/// waiting for it.
#[test]
fn a_long_log_is_not_walked() {
    let mut scripts = Scripts::new(true);
    let limit: Limit = "sliding_log 2000/10s".parse().unwrap();
    for step in 0..500 {
        scripts.at(START + step * MILLI);
        assert!(scripts.ask("{t}", &limit, take(1)).allowed());
    }
    scripts.at(START + 9 * SECOND);
    assert!(scripts.ask("{t}", &limit, take(1)).allowed());
    let _: String = scripts.command(&["CONFIG", "RESETSTAT"]);
    scripts.at(START + 10 * SECOND + 498 * MILLI);
    assert_eq!(scripts.ask("{t}", &limit, take(1)).decisions[0].remaining, 2000 - 3);
    let stats: String = scripts.command(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let calls = calls.map(|(_, rest)| rest.split(',').next().unwrap().parse::<u64>().unwrap());
    assert!(calls.sum::<u64>() < 50, "{stats}");
}

#[test]
fn months_are_those_of_the_calendar() {
    let limit: Limit = "fixed_window 5/month".parse().unwrap();
    let mut world = World::new();
    for number in 0..400u64 {
        let now = number * 10_123_457 * SECOND;
        let key = format!("{{t}}:{number}");
        let expected = Pure::new(limit).check(2, now);
        let got = world.ask(&key, &limit, take(2), now).decisions[0];
        assert!(same(&expected, &got), "{now}: {expected:?} {got:?}");
    }
}

#[test]
fn redis_own_clock_is_read() {
    let mut scripts = Scripts::new(false);
    let texts = [
        "10/s burst 5",
        "7/s burst 5",
        "leaky_bucket 5/m",
        "fixed_window 5/d",
        "sliding_window 5/d",
        "sliding_log 5/d",
        "concurrency 5/d",
        "fixed_window 5/month",
    ];
    for text in texts {
        let limit: Limit = text.parse().unwrap();
        let key = format!("{{t}}:{}", text.replace(' ', "-"));
        let first = scripts.ask(&key, &limit, take(5)).decisions[0];
        assert!(first.allowed && first.remaining == 0 && first.reset_after > 0, "{text}: {first:?}");
        let second = scripts.ask(&key, &limit, take(5)).decisions[0];
        assert!(!second.allowed && second.retry_after <= first.reset_after, "{text}: {second:?}");
        assert!(scripts.pttl(&key) > 0, "{text}");
        scripts.give_back(&key, &limit, 5, MILLI, 1);
    }
    // Waiting as told is enough.
    let limit: Limit = "50/s burst 1".parse().unwrap();
    for _ in 0..5 {
        let _ = scripts.ask("{t}:wait", &limit, take(1));
        let denied = scripts.ask("{t}:wait", &limit, take(1)).decisions[0];
        std::thread::sleep(std::time::Duration::from_nanos(denied.retry_after));
        assert!(scripts.ask("{t}:wait", &limit, take(1)).allowed());
    }
}

#[test]
fn another_type_at_our_key_is_an_error() {
    let mut scripts = Scripts::new(false);
    let _: i64 = scripts.command(&["SADD", "{t}", "somebody's"]);
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 5, SECOND).unwrap();
        for cost in [0, 1] {
            let error = scripts.check(&[Ask { key: b"{t}", limit: &limit }], take(cost)).unwrap_err();
            assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        }
    }
}

#[test]
fn a_limit_that_no_script_counts_exactly_is_refused_with_the_range() {
    for text in [
        "999983/30d",
        "4999/h",
        "700/m",
        "1500/s",
        "1000000001/s",
        "100000/d",
        "1/month burst 3",
        "1/3660d",
        "4294967295/1us",
        "4294967295/3660d",
        "sliding_window 7/1001us",
    ] {
        let text = text.replace("/month", "/30d");
        assert_eq!(accepts(&text.parse().unwrap()), Ok(()), "{text}");
    }
    let odd = Limit::new(Algorithm::FixedWindow, 5, 30 * 86_400 * SECOND + 1).unwrap();
    assert!(accepts(&odd).unwrap_err().to_string().contains("whole seconds"));
    let odd =
        Limit::new(Algorithm::TokenBucket, u64::from(u32::MAX) - 1, 3_660 * 86_400 * SECOND - 1).unwrap();
    assert!(accepts(&odd).unwrap_err().to_string().contains("whole microseconds"));
}
