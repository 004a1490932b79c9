//! Every answer is exact: each field of each decision equals that of an
//! oracle in rational numbers, whatever the limit, the costs and the times,
//! and in whichever way the account is kept.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Limit, Nanos};
use tollgate_tests::oracle::Oracle;
use tollgate_tests::strategies::{self, Clock, Cost, Tick};
use tollgate_tests::subject::every_way;

/// What is asked of an account.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Check(Cost),
    Peek(Cost),
    Refund(Cost),
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        8 => strategies::cost().prop_map(Ask::Check),
        1 => strategies::cost().prop_map(Ask::Peek),
        1 => strategies::cost().prop_map(Ask::Refund),
    ]
}

/// Plays one traffic through every way at once, each beside its own oracle.
fn play(limit: Limit, start: Nanos, traffic: &[(Tick, Ask)]) -> Result<(), TestCaseError> {
    for (way, mut subject) in every_way(limit) {
        let mut oracle = Oracle::new(limit);
        let mut clock = Clock { now: start, told: (start, 0, 0) };
        for (step, &(tick, ask)) in traffic.iter().enumerate() {
            clock.tick(tick, &limit);
            let now = clock.now;
            let (got, expected) = match ask {
                Ask::Check(cost) => {
                    let cost = cost.of(&limit);
                    (subject.check(cost, now), oracle.check(cost, now))
                }
                Ask::Peek(cost) => {
                    let cost = cost.of(&limit);
                    let Some(got) = subject.peek(cost, now) else { continue };
                    (got, oracle.peek(cost, now))
                }
                Ask::Refund(cost) => {
                    if subject.refund(cost.of(&limit), now) {
                        oracle.refund(cost.of(&limit), now);
                    }
                    continue;
                }
            };
            prop_assert_eq!(got, expected, "{}, {}, step {} ({:?}) at {}", way, limit, step, ask, now);
            clock.told = (oracle.held(now), got.retry_after, got.reset_after);
        }
    }
    Ok(())
}

fn traffic(ticks: impl Strategy<Value = Tick>) -> impl Strategy<Value = Vec<(Tick, Ask)>> {
    proptest::collection::vec((ticks, ask()), 1..40)
}

macro_rules! exact {
    ($($name:ident: $algorithm:ident,)*) => {
        mod a_clock_that_runs {
            use super::*;
            proptest! {
                $(
                    #[test]
                    fn $name(
                        limit in strategies::limit_of(Algorithm::$algorithm),
                        start in strategies::start(),
                        traffic in traffic(strategies::forward()),
                    ) {
                        play(limit, start, &traffic)?;
                    }
                )*
            }
        }

        mod a_clock_that_steps_back_stands_still {
            use super::*;
            proptest! {
                $(
                    #[test]
                    fn $name(
                        limit in strategies::limit_of(Algorithm::$algorithm),
                        start in strategies::start(),
                        traffic in traffic(strategies::jitter()),
                    ) {
                        play(limit, start, &traffic)?;
                    }
                )*
            }
        }
    };
}

exact! {
    token_bucket: TokenBucket,
    leaky_bucket: LeakyBucket,
    fixed_window: FixedWindow,
    sliding_window: SlidingWindow,
    sliding_log: SlidingLog,
    concurrency: Concurrency,
}
