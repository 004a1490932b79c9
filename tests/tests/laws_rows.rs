//! Rows change hands between keys and kinds, and nothing of one owner counts
//! for the next: sliding logs and concurrency limits in one table.

use proptest::prelude::*;
use std::collections::HashMap;
use tollgate_core::key::Seed;
use tollgate_core::table::{Config, Hold, OwnedTable};
use tollgate_core::{Algorithm, Limit, Nanos};
use tollgate_tests::oracle::Oracle;

fn rows(rows: u64, row_entries: u64) -> OwnedTable {
    OwnedTable::new(Config { capacity: 4, rows, row_entries }, Seed([1, 2])).unwrap()
}

#[test]
fn a_log_takes_over_the_row_of_holds_and_the_other_way_round() {
    let log: Limit = "sliding_log 4/s".parse().unwrap();
    let held: Limit = "concurrency 4/s".parse().unwrap();
    for seed in 0..50 {
        let owned =
            OwnedTable::new(Config { capacity: 4, rows: 1, row_entries: 7 }, Seed([seed, 2])).unwrap();
        let table = owned.table().unwrap();
        for turn in 0..20u64 {
            let now = 10_000_000_000 * (turn + 1);
            let key = [u8::try_from(turn).unwrap()];
            for unit in 0..4 {
                assert!(table.acquire(&key, &held, 1, now + unit).0.allowed, "turn {turn}, unit {unit}");
            }
            assert!(!table.acquire(&key, &held, 1, now + 4).0.allowed);
            let now = now + 5_000_000_000;
            for unit in 0..4 {
                assert!(table.check(&key, &log, 1, now + unit).allowed, "turn {turn}, unit {unit}");
            }
            assert!(!table.check(&key, &log, 1, now + 4).allowed);
        }
        assert_eq!(table.stats().row_evictions, 0);
    }
}

#[test]
fn a_key_has_a_log_and_holds_at_the_same_time() {
    let log: Limit = "sliding_log 3/s".parse().unwrap();
    let held: Limit = "concurrency 2/s".parse().unwrap();
    let owned = rows(8, 4);
    let table = owned.table().unwrap();
    for unit in 0..2 {
        assert!(table.acquire(b"key", &held, 1, unit).0.allowed);
        assert!(table.check(b"key", &log, 1, unit).allowed);
    }
    assert!(!table.acquire(b"key", &held, 1, 2).0.allowed);
    assert!(table.check(b"key", &log, 1, 2).allowed);
    assert!(!table.check(b"key", &log, 1, 3).allowed);
}

#[test]
fn law_9_holds_taken_under_a_higher_limit_stay_taken_under_a_lower_one() {
    let ten: Limit = "concurrency 10/m".parse().unwrap();
    let five: Limit = "concurrency 5/m".parse().unwrap();
    let owned = rows(4, 10);
    let table = owned.table().unwrap();
    let holds: Vec<Hold> = (0..10).map(|_| table.acquire(b"key", &ten, 1, 1).1).collect();
    assert!(holds.iter().all(|hold| hold.units == 1));
    for hold in holds.iter().take(5) {
        table.release(hold);
    }
    let (decision, _) = table.acquire(b"key", &five, 1, 2);
    assert!(!decision.allowed, "five are in flight");
    table.release(&holds[5]);
    assert!(table.acquire(b"key", &five, 1, 3).0.allowed);
    assert!(!table.acquire(b"key", &five, 1, 4).0.allowed);
}

#[test]
fn releasing_what_was_never_held_changes_nothing() {
    let log: Limit = "sliding_log 3/s".parse().unwrap();
    let owned = rows(1, 3);
    let table = owned.table().unwrap();
    assert!(table.check(b"key", &log, 3, 7).allowed);
    for fingerprint in 0..100 {
        table.release(&Hold { row: 0, fingerprint, expires: 7, units: u64::MAX });
    }
    table.release(&Hold { row: u64::MAX, fingerprint: u64::MAX, expires: 7, units: u64::MAX });
    assert_eq!(table.peek(b"key", &log, 0, 8).remaining, 0);
}

/// What is asked of one of a few keys.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Log(u8, u64),
    Refund(u8, u64),
    Acquire(u8, u64),
    Release(usize),
    Run(Nanos),
}

fn ask() -> impl Strategy<Value = Ask> {
    let key = 0u8..6;
    prop_oneof![
        5 => (key.clone(), 0u64..=4).prop_map(|(key, cost)| Ask::Log(key, cost)),
        1 => (key.clone(), 0u64..=4).prop_map(|(key, cost)| Ask::Refund(key, cost)),
        5 => (key, 1u64..=4).prop_map(|(key, cost)| Ask::Acquire(key, cost)),
        3 => (0usize..20).prop_map(Ask::Release),
        4 => prop_oneof![0u64..=60, 0u64..=3_000].prop_map(Ask::Run),
    ]
}

proptest! {
    #[test]
    fn rows_that_change_hands_answer_as_a_row_for_each_key_would(
        asks in proptest::collection::vec(ask(), 1..150),
        row_count in 1u64..=12,
        seed in any::<u64>(),
    ) {
        let log = Limit::new(Algorithm::SlidingLog, 3, 1_000).unwrap();
        let held = Limit::new(Algorithm::Concurrency, 4, 1_500).unwrap();
        let owned = OwnedTable::new(Config { capacity: 4, rows: row_count, row_entries: 5 }, Seed([seed, 1])).unwrap();
        let table = owned.table().unwrap();
        let mut logs: HashMap<u8, Oracle> = HashMap::new();
        let mut accounts: HashMap<u8, Oracle> = HashMap::new();
        let mut holds: Vec<(u8, Hold)> = Vec::new();
        let mut now = 1_000_000;
        for ask in asks {
            match ask {
                Ask::Run(span) => now += span,
                Ask::Log(key, cost) => {
                    let exact = logs.entry(key).or_insert_with(|| Oracle::new(log)).check(cost, now);
                    let got = table.check(&[key], &log, cost, now);
                    if table.stats().row_evictions > 0 {
                        return Ok(()); // what follows is a new account
                    }
                    prop_assert_eq!(got, exact, "{:?} at {}", ask, now);
                }
                Ask::Refund(key, cost) => {
                    logs.entry(key).or_insert_with(|| Oracle::new(log)).refund(cost, now);
                    table.refund(&[key], &log, cost, now);
                }
                Ask::Acquire(key, cost) => {
                    let exact = accounts.entry(key).or_insert_with(|| Oracle::new(held)).check(cost, now);
                    let (got, hold) = table.acquire(&[key], &held, cost, now);
                    if table.stats().row_evictions > 0 {
                        return Ok(());
                    }
                    prop_assert_eq!(got, exact, "{:?} at {}", ask, now);
                    if got.allowed {
                        holds.push((key, hold));
                    }
                }
                Ask::Release(index) if !holds.is_empty() => {
                    let (key, hold) = holds.swap_remove(index % holds.len());
                    table.release(&hold);
                    if let Some(account) = accounts.get_mut(&key) {
                        account.release(hold.expires, hold.units);
                    }
                }
                Ask::Release(_) => {}
            }
        }
    }
}

/// Threads of two kinds and many keys over very few rows: nothing hangs, and
/// the rows still serve afterwards.
#[test]
fn many_threads_take_rows_from_one_another() {
    let log = Limit::new(Algorithm::SlidingLog, 3, 1_000).unwrap();
    let held = Limit::new(Algorithm::Concurrency, 3, 1_000).unwrap();
    let owned = rows(2, 3);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let owned = &owned;
            scope.spawn(move || {
                let table = owned.table().unwrap();
                for turn in 0..50_000u64 {
                    let key = [(turn % 5) as u8];
                    let now = turn * 300;
                    if (thread + turn / 64) % 2 == 0 {
                        let _ = table.check(&key, &log, 1, now);
                    } else {
                        let (_, hold) = table.acquire(&key, &held, 1, now);
                        if turn % 3 == 0 {
                            table.release(&hold);
                        }
                    }
                }
            });
        }
    });
    let table = owned.table().unwrap();
    let now = 1_000_000_000_000;
    for _ in 0..3 {
        assert!(table.check(b"after", &log, 1, now).allowed);
        assert!(table.acquire(b"after", &held, 1, now).0.allowed);
    }
    assert!(!table.check(b"after", &log, 1, now).allowed);
    assert!(!table.acquire(b"after", &held, 1, now).0.allowed);
}
