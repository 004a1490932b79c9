//! Laws 1, 2, 3 and 5, each on its own: how much is ever admitted, when a
//! denied request fits, what a denial changes, and what a wild clock can do.

use num_rational::BigRational;
use proptest::prelude::*;
use tollgate_core::algorithm::token_bucket;
use tollgate_core::time::HORIZON;
use tollgate_core::{Algorithm, Bucket, Limit, NEVER, Nanos};
use tollgate_tests::oracle::Oracle;
use tollgate_tests::strategies::{self, Clock, Cost, Tick};
use tollgate_tests::subject::{Subject, every_way};

fn traffic(ticks: impl Strategy<Value = Tick>) -> impl Strategy<Value = Vec<(Tick, Cost)>> {
    proptest::collection::vec((ticks, strategies::cost()), 1..60)
}

/// Plays traffic; `each` sees what was asked and answered.
fn play(
    limit: &Limit,
    start: Nanos,
    traffic: &[(Tick, Cost)],
    subject: &mut dyn Subject,
    mut each: impl FnMut(u64, Nanos, tollgate_core::Decision, &mut dyn Subject) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut clock = Clock { now: start, told: (start, 0, 0) };
    for &(tick, cost) in traffic {
        clock.tick(tick, limit);
        let cost = cost.of(limit);
        let decision = subject.check(cost, clock.now);
        each(cost, clock.now, decision, subject)?;
        clock.told = (clock.now, decision.retry_after, decision.reset_after);
    }
    Ok(())
}

/// What an interval of `span` nanoseconds may admit at most.
fn allowance(limit: &Limit, span: Nanos) -> BigRational {
    let number = |n: u64| BigRational::from_integer(n.into());
    let windows = number((span / limit.period()) + 2) * number(limit.limit());
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            number(limit.burst()) + number(limit.limit()) * number(span) / number(limit.period())
        }
        // Each period's window, and the two that the interval cuts.
        Algorithm::FixedWindow | Algorithm::SlidingWindow => windows,
        Algorithm::SlidingLog | Algorithm::Concurrency => windows - number(limit.limit()),
    }
}

proptest! {
    #[test]
    fn law_1_no_interval_admits_more_than_burst_and_refill(
        limit in strategies::limit(),
        start in strategies::start(),
        traffic in traffic(strategies::forward()),
    ) {
        for (way, mut subject) in every_way(limit) {
            let mut admitted: Vec<(Nanos, u64)> = Vec::new();
            play(&limit, start, &traffic, subject.as_mut(), |cost, now, decision, _| {
                if decision.allowed && cost > 0 {
                    admitted.push((now.min(HORIZON), cost));
                }
                Ok(())
            })?;
            for (first, &(from, _)) in admitted.iter().enumerate() {
                let mut total = 0u64;
                for &(until, cost) in &admitted[first..] {
                    total += cost;
                    let most = allowance(&limit, until - from);
                    prop_assert!(
                        BigRational::from_integer(total.into()) <= most,
                        "{}, {}: {} in {} ns", way, limit, total, until - from
                    );
                }
            }
        }
    }

    #[test]
    fn law_2_waiting_retry_after_admits_and_a_nanosecond_less_does_not(
        limit in strategies::limit(),
        start in strategies::start(),
        traffic in traffic(strategies::forward()),
    ) {
        for (way, mut subject) in every_way(limit) {
            play(&limit, start, &traffic, subject.as_mut(), |cost, now, decision, subject| {
                prop_assert_eq!(decision.allowed, decision.retry_after == 0);
                prop_assert_eq!(decision.retry_after == NEVER, cost > limit.burst());
                let now = now.min(HORIZON);
                if decision.allowed || cost > limit.burst() || decision.retry_after > HORIZON - now {
                    return Ok(());
                }
                let then = now + decision.retry_after;
                if let (Some(early), Some(due)) = (subject.peek(cost, then - 1), subject.peek(cost, then)) {
                    prop_assert!(!early.allowed, "{}, {}: {} fits earlier", way, limit, cost);
                    prop_assert!(due.allowed, "{}, {}: {} does not fit when told", way, limit, cost);
                }
                Ok(())
            })?;
        }
    }

    #[test]
    fn reset_after_is_when_all_fits_again_and_no_later(
        limit in strategies::limit(),
        start in strategies::start(),
        traffic in traffic(strategies::forward()),
    ) {
        for (way, mut subject) in every_way(limit) {
            play(&limit, start, &traffic, subject.as_mut(), |_, now, decision, subject| {
                let now = now.min(HORIZON);
                if decision.reset_after > HORIZON - now {
                    return Ok(());
                }
                let then = now + decision.reset_after;
                if let Some(full) = subject.peek(limit.burst(), then) {
                    prop_assert!(full.allowed, "{}, {}: not full when told", way, limit);
                }
                // A sliding window lets go of its last unit before its end.
                if decision.reset_after > 0
                    && limit.algorithm() != Algorithm::SlidingWindow
                    && let Some(early) = subject.peek(limit.burst(), then - 1)
                {
                    prop_assert!(!early.allowed, "{}, {}: full earlier than told", way, limit);
                }
                Ok(())
            })?;
        }
    }

    #[test]
    fn law_3_a_denial_and_a_cost_of_0_change_nothing(
        limit in strategies::limit(),
        start in strategies::start(),
        traffic in traffic(strategies::forward()),
        probes in proptest::collection::vec((strategies::forward(), strategies::cost()), 4),
    ) {
        // Two accounts, one of which is never asked what the other was denied.
        for ((way, mut one), (_, mut two)) in every_way(limit).into_iter().zip(every_way(limit)) {
            let mut last = start;
            play(&limit, start, &traffic, one.as_mut(), |cost, now, decision, _| {
                last = now;
                if decision.allowed && cost > 0 {
                    let again = two.check(cost, now);
                    prop_assert_eq!(again, decision, "{}, {}", way, limit);
                }
                Ok(())
            })?;
            let mut clock = Clock { now: last, told: (last, 0, 0) };
            for &(tick, cost) in &probes {
                clock.tick(tick, &limit);
                let cost = cost.of(&limit);
                prop_assert_eq!(one.peek(cost, clock.now), two.peek(cost, clock.now), "{}, {}", way, limit);
            }
        }
    }

    #[test]
    fn law_5_no_clock_panics_or_grants_more_than_one_that_stands(
        limit in strategies::limit(),
        traffic in proptest::collection::vec((strategies::instant(), strategies::cost()), 1..60),
    ) {
        for (way, mut subject) in every_way(limit) {
            let mut oracle = Oracle::new(limit);
            for &(now, cost) in &traffic {
                let cost = cost.of(&limit);
                let decision = subject.check(cost, now);
                // A hold ends by the clock that it was taken by, wherever that stands.
                if decision.allowed && cost > 0 && limit.algorithm() != Algorithm::Concurrency {
                    let exact = oracle.check(cost, now);
                    prop_assert!(exact.allowed, "{}, {}: {} at {}", way, limit, cost, now);
                }
            }
        }
    }
}

#[test]
fn the_pure_token_bucket_takes_any_state() {
    let limits = ["1/us", "4294967295/us", "1000000001/s", "1/3660d", "4294967295/3660d"];
    for limit in limits.map(|text| text.parse::<Limit>().unwrap()) {
        for at in [0, 1, HORIZON - 1, HORIZON, HORIZON + 1, u64::MAX] {
            for part in [0, u32::MAX] {
                for now in [0, 1, HORIZON, u64::MAX] {
                    for cost in [0, 1, limit.burst(), limit.burst() + 1, u64::MAX] {
                        let (_, decision) =
                            token_bucket::decide(token_bucket::Tat { at, part }, &limit, now, cost);
                        assert!(decision.remaining <= limit.burst());
                    }
                }
            }
        }
    }
}

#[test]
fn law_1_threads_together_are_admitted_no_more_than_one() {
    for text in ["100/s", "leaky_bucket 7/m burst 100", "fixed_window 100/m", "sliding_window 100/m", "7/ms"]
    {
        let limit: Limit = text.parse().unwrap();
        for _ in 0..20 {
            let bucket = Bucket::new(limit).unwrap();
            let admitted: u64 = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| (0..200).filter(|_| bucket.check(1, 1_000).allowed).count() as u64)
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(admitted, limit.burst(), "{text}");
        }
    }
}
