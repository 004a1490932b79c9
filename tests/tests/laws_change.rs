//! Law 9: a changed limit holds from the next request on, and tokens already
//! spent stay spent, one for one. And what a refund gives back.

use proptest::prelude::*;
use tollgate_core::bucket::Bucket;
use tollgate_core::key::Seed;
use tollgate_core::table::{Config, OwnedTable};
use tollgate_core::time::SECOND;
use tollgate_core::{Algorithm, Limit, Nanos};
use tollgate_tests::oracle::Oracle;
use tollgate_tests::strategies::{self, Clock, Cost, Tick};
use tollgate_tests::subject::every_way;

/// What happens to an account.
#[derive(Clone, Debug)]
enum Event {
    Check(Tick, Cost),
    Refund(Tick, Cost),
    Change(Limit),
}

/// Limits between which an account may move without a debt that no clock
/// could tell: a token is never longer than a day.
fn near_limit(algorithm: Algorithm) -> impl Strategy<Value = Limit> {
    let notable = [(1_500, SECOND), (700, 60 * SECOND), (4_999, 3_600 * SECOND), (1_000_000_001, SECOND)];
    let rate = prop_oneof![
        2 => proptest::sample::select(notable.to_vec()),
        3 => (1u64..=40, (1u64..=20).prop_map(|n| n * SECOND / 4)),
        1 => (1u64..=40, Just(5 * SECOND)),
        1 => (1u64..=1_000, 1_000u64..=3_600 * SECOND),
    ];
    (rate, 1u64..=50).prop_map(move |((units, period), burst)| {
        let limit = Limit::new(algorithm, units, period).unwrap();
        limit.with_burst(burst).unwrap_or(limit)
    })
}

fn event(algorithm: Algorithm) -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (strategies::forward(), strategies::cost()).prop_map(|(tick, cost)| Event::Check(tick, cost)),
        1 => (strategies::forward(), strategies::cost()).prop_map(|(tick, cost)| Event::Refund(tick, cost)),
        2 => near_limit(algorithm).prop_map(Event::Change),
    ]
}

fn play(first: Limit, events: &[Event], start: Nanos) -> Result<(), TestCaseError> {
    for (way, mut subject) in every_way(first) {
        let (mut oracle, mut limit) = (Oracle::new(first), first);
        let mut clock = Clock { now: start, told: (start, 0, 0) };
        for (step, event) in events.iter().enumerate() {
            match *event {
                Event::Check(tick, cost) => {
                    clock.tick(tick, &limit);
                    let (cost, now) = (cost.of(&limit), clock.now);
                    let (got, exact) = (subject.check(cost, now), oracle.check(cost, now));
                    prop_assert_eq!(got, exact, "{}, {} after {}, step {}", way, limit, first, step);
                    clock.told = (now, got.retry_after, got.reset_after);
                }
                Event::Refund(tick, cost) => {
                    clock.tick(tick, &limit);
                    subject.refund(cost.of(&limit), clock.now);
                    oracle.refund(cost.of(&limit), clock.now);
                }
                Event::Change(next) => {
                    if subject.set_limit(next, clock.now) {
                        oracle.set_limit(next, clock.now);
                        limit = next;
                    }
                }
            }
        }
    }
    Ok(())
}

macro_rules! law_9 {
    ($($name:ident: $algorithm:ident,)*) => {
        mod law_9_what_was_spent_stays_spent {
            use super::*;
            proptest! {
                $(
                    #[test]
                    fn $name(
                        first in near_limit(Algorithm::$algorithm),
                        events in proptest::collection::vec(event(Algorithm::$algorithm), 1..30),
                        start in 0u64..=1_000_000 * SECOND,
                    ) {
                        play(first, &events, start)?;
                    }
                )*
            }
        }
    };
}

law_9! {
    token_bucket: TokenBucket,
    leaky_bucket: LeakyBucket,
    fixed_window: FixedWindow,
    sliding_window: SlidingWindow,
}

fn table() -> OwnedTable {
    OwnedTable::new(Config { capacity: 64, rows: 0, row_entries: 0 }, Seed([1, 2])).unwrap()
}

#[test]
fn a_raised_rate_admits_when_it_told_it_would() {
    let (slow, fast): (Limit, Limit) = ("1/s burst 10".parse().unwrap(), "1000/s burst 10".parse().unwrap());
    let owned = table();
    let table = owned.table().unwrap();
    assert!(table.check(b"key", &slow, 10, SECOND).allowed);
    let denied = table.check(b"key", &fast, 1, SECOND);
    assert_eq!((denied.allowed, denied.retry_after), (false, 1_000_000));
    assert!(table.check(b"key", &fast, 1, SECOND + 1_000_000).allowed);
}

#[test]
fn a_count_above_a_lowered_limit_keeps_its_size() {
    for algorithm in ["fixed_window", "sliding_window"] {
        let [high, low] =
            ["100/m", "10/m"].map(|rate| format!("{algorithm} {rate}").parse::<Limit>().unwrap());
        let owned = table();
        let table = owned.table().unwrap();
        assert!(table.check(b"key", &high, 100, SECOND).allowed);
        assert!(!table.check(b"key", &low, 1, SECOND).allowed);
        table.refund(b"key", &low, 3, SECOND);
        assert_eq!(table.peek(b"key", &high, 0, SECOND).remaining, 3, "{algorithm}");
        assert_eq!(table.peek(b"key", &low, 0, SECOND).remaining, 0, "{algorithm}");
    }
}

#[test]
fn a_window_that_a_first_request_opened_is_not_opened_again_by_a_new_limit() {
    let [ten, twenty] = [10, 20]
        .map(|units| format!("fixed_window {units}/m anchor first_request").parse::<Limit>().unwrap());
    let owned = table();
    let table = owned.table().unwrap();
    let mut bucket = Bucket::new(ten).unwrap();
    assert!(table.check(b"key", &ten, 10, 5 * SECOND).allowed);
    assert!(bucket.check(10, 5 * SECOND).allowed);
    bucket.set_limit(twenty, 25 * SECOND).unwrap();
    for decision in [table.check(b"key", &twenty, 11, 25 * SECOND), bucket.check(11, 25 * SECOND)] {
        assert_eq!((decision.allowed, decision.retry_after), (false, 40 * SECOND));
    }
}

#[test]
fn another_algorithm_is_another_account_and_a_bad_change_changes_nothing() {
    let mut bucket = Bucket::new("5/s".parse().unwrap()).unwrap();
    assert!(bucket.check(5, 1).allowed);
    assert!(bucket.set_limit("sliding_log 5/s".parse().unwrap(), 1).is_err());
    assert!(!bucket.check(1, 1).allowed);
    bucket.set_limit("fixed_window 5/s".parse().unwrap(), 1).unwrap();
    assert!(bucket.check(5, 1).allowed);
}

/// What time has given back is not given back again.
#[test]
fn a_late_refund_admits_nobody_too_early() {
    for algorithm in Algorithm::ALL.into_iter().filter(|&a| a != Algorithm::Concurrency) {
        let limit = Limit::new(algorithm, 1, SECOND).unwrap();
        // A sliding window forgets a request after two of its windows at most.
        let later = if algorithm == Algorithm::SlidingWindow { 2 * SECOND } else { SECOND };
        for (way, mut subject) in every_way(limit) {
            assert!(subject.check(1, 10 * SECOND).allowed, "{way}: A");
            assert!(subject.check(1, 10 * SECOND + later).allowed, "{way}: B, when A has left");
            subject.refund(1, 10 * SECOND); // A failed
            assert!(!subject.check(1, 10 * SECOND + later).allowed, "{way}, {limit}: B is still there");
        }
    }
}

proptest! {
    #[test]
    fn a_refund_gives_back_exactly_and_never_above_the_burst(
        limit in strategies::limit(),
        start in strategies::start(),
        costs in proptest::collection::vec(strategies::cost(), 1..10),
        back in strategies::cost(),
    ) {
        for (way, mut subject) in every_way(limit) {
            let mut last = limit.burst();
            for cost in &costs {
                last = subject.check(cost.of(&limit), start).remaining;
            }
            let back = back.of(&limit);
            if subject.refund(back, start) {
                let now = subject.check(0, start).remaining;
                prop_assert_eq!(now, last.saturating_add(back).min(limit.burst()), "{}, {}", way, limit);
            }
        }
    }
}
