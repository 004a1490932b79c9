//! Laws 7 and 8 on the keyed table: it answers as one account for each key
//! would, until it is full; then it counts what it forgets. It never grows.

use std::collections::HashMap;

use proptest::prelude::*;
use tollgate_core::key::Seed;
use tollgate_core::table::{Config, OwnedTable, Request, WINDOW};
use tollgate_core::time::SECOND;
use tollgate_core::{Decision, Limit, NEVER, Nanos};
use tollgate_tests::oracle::Oracle;

const NOTHING: Decision =
    Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };

fn table(capacity: u64) -> OwnedTable {
    OwnedTable::new(Config { capacity, rows: 0, row_entries: 0 }, Seed([7, 11])).unwrap()
}

fn limits() -> Vec<Limit> {
    ["2/s burst 3", "leaky_bucket 7/s burst 2", "fixed_window 3/s", "sliding_window 3/s", "700/m burst 2"]
        .map(|text| text.parse().unwrap())
        .to_vec()
}

/// What is asked of one of the keys.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Check(u8, usize, u64),
    Batch(u8, usize),
    Refund(u8, usize, u64),
    Run(Nanos),
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        8 => (0u8..24, 0usize..5, 0u64..=3).prop_map(|(key, limit, cost)| Ask::Check(key, limit, cost)),
        1 => (0u8..24, 0usize..5).prop_map(|(key, limit)| Ask::Batch(key, limit)),
        1 => (0u8..24, 0usize..5, 0u64..=3).prop_map(|(key, limit, cost)| Ask::Refund(key, limit, cost)),
        4 => prop_oneof![0u64..=SECOND / 10, 0u64..=2 * SECOND].prop_map(Ask::Run),
    ]
}

proptest! {
    #[test]
    fn a_table_answers_as_an_account_for_each_key_would_until_it_evicts(
        asks in proptest::collection::vec(ask(), 1..200),
        capacity in 1u64..=64,
    ) {
        let limits = limits();
        let owned = table(capacity);
        let table = owned.table().unwrap();
        let mut oracles: HashMap<(u8, usize), Oracle> = HashMap::new();
        let (mut now, mut forgiven) = (1_000_000 * SECOND, 0);
        for ask in asks {
            let (key, index, cost) = match ask {
                Ask::Run(span) => {
                    now += span;
                    continue;
                }
                Ask::Check(key, limit, cost) | Ask::Refund(key, limit, cost) => (key, limit, cost),
                Ask::Batch(key, limit) => (key, limit, 1),
            };
            let limit = limits[index];
            let name = [key, u8::try_from(index).unwrap()];
            let oracle = oracles.entry((key, index)).or_insert_with(|| Oracle::new(limit));
            if matches!(ask, Ask::Refund(..)) {
                oracle.refund(cost, now);
                table.refund(&name, &limit, cost, now);
                continue;
            }
            let exact = oracle.check(cost, now);
            let got = if matches!(ask, Ask::Batch(..)) {
                let mut decisions = [NOTHING];
                table.check_batch(&[Request { key: &name, limit: &limit, cost }], now, &mut decisions);
                decisions[0]
            } else {
                table.check(&name, &limit, cost, now)
            };
            if table.stats().evictions == 0 {
                prop_assert_eq!(got, exact, "{:?}, {} at {}", ask, limit, now);
            } else if got != exact {
                if limit.algorithm() == tollgate_core::Algorithm::SlidingWindow {
                    return Ok(()); // one of its two windows may be left
                }
                // A forgotten account has more, never less; it begins anew.
                prop_assert!(got.allowed || !exact.allowed, "{:?}, {} at {}", ask, limit, now);
                prop_assert!(got.remaining >= exact.remaining || got.allowed != exact.allowed);
                forgiven += 1;
                *oracle = Oracle::new(limit);
                let _ = oracle.check(if got.allowed { limit.burst() - got.remaining } else { 0 }, now);
            }
        }
        let stats = table.stats();
        prop_assert!(forgiven <= stats.evictions, "{} differ, {} evicted", forgiven, stats.evictions);
        prop_assert!(stats.used <= stats.capacity && stats.capacity == capacity.next_multiple_of(4));
    }

    #[test]
    fn keys_of_any_bytes_are_keys(
        keys in proptest::collection::hash_set(proptest::collection::vec(any::<u8>(), 0..64), 1..40),
    ) {
        let owned = table(256);
        let table = owned.table().unwrap();
        let limit: Limit = "2/h".parse().unwrap();
        for round in [true, true, false] {
            for key in &keys {
                prop_assert_eq!(table.check(key, &limit, 1, SECOND).allowed, round);
            }
        }
    }
}

#[test]
fn law_8_no_key_is_refused_and_none_evicted_at_80_percent() {
    let limit: Limit = "1/h".parse().unwrap();
    for seed in 0..3 {
        let config = Config { capacity: 125_000, rows: 0, row_entries: 0 };
        let owned = OwnedTable::new(config, Seed([seed, 3])).unwrap();
        let table = owned.table().unwrap();
        for key in 0..100_000u64 {
            assert!(table.check(&key.to_le_bytes(), &limit, 1, SECOND).allowed, "key {key} refused");
        }
        for key in 0..100_000u64 {
            assert!(!table.check(&key.to_le_bytes(), &limit, 1, SECOND).allowed, "key {key} forgotten");
        }
        assert_eq!((table.stats().evictions, table.live(SECOND)), (0, 100_000));
    }
}

#[test]
fn law_8_any_number_of_keys_takes_no_more_memory_and_is_counted() {
    let limit: Limit = "1/h".parse().unwrap();
    let owned = table(1_000);
    let table = owned.table().unwrap();
    for key in 0..200_000u64 {
        assert!(table.check(&key.to_le_bytes(), &limit, 1, SECOND + key).allowed, "a new key is admitted");
    }
    let stats = table.stats();
    assert_eq!((stats.capacity, stats.used), (1_000, 1_000));
    assert_eq!(stats.evictions, 200_000 - 1_000);
}

#[test]
fn law_8_what_is_evicted_is_nearest_to_idle_of_those_in_reach() {
    let (short, long): (Limit, Limit) = ("1/m".parse().unwrap(), "1/h".parse().unwrap());
    // So few lines that every key reaches all of them.
    let owned = table(WINDOW as u64 * 4);
    let table = owned.table().unwrap();
    let slots = WINDOW as u64 * 4;
    for key in 0..slots {
        let limit = if key % 2 == 0 { &short } else { &long };
        assert!(table.check(&key.to_le_bytes(), limit, 1, SECOND + key).allowed);
    }
    for key in slots..slots + slots / 2 {
        assert!(table.check(&key.to_le_bytes(), &long, 1, 2 * SECOND).allowed);
    }
    for key in (1..slots).step_by(2) {
        assert!(!table.check(&key.to_le_bytes(), &long, 1, 2 * SECOND).allowed, "key {key}, far from idle");
    }
    assert_eq!(table.stats().evictions, slots / 2);
}

#[test]
fn idle_slots_are_used_again_and_nothing_is_evicted() {
    let limit: Limit = "1/s".parse().unwrap();
    let owned = table(64);
    let table = owned.table().unwrap();
    for key in 0..100_000u64 {
        let now = 1_000 * SECOND + key / 32 * 2 * SECOND; // thirty-two at a time
        assert!(table.check(&key.to_le_bytes(), &limit, 1, now).allowed);
        assert!(!table.check(&key.to_le_bytes(), &limit, 1, now).allowed);
    }
    assert_eq!(table.stats().evictions, 0);
}

/// More rates than the list of classes holds: each key still has its account.
#[test]
fn more_rates_than_the_table_can_list_stay_correct() {
    for algorithm in ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window"] {
        let owned = table(40_000);
        let table = owned.table().unwrap();
        let limits: Vec<Limit> =
            (1..=5_000u64).map(|n| format!("{algorithm} 3/{}us", 1_000_000 + n).parse().unwrap()).collect();
        let mut oracles: Vec<Oracle> = limits.iter().map(|&limit| Oracle::new(limit)).collect();
        for now in [SECOND, SECOND, SECOND + 500_000_000, 2 * SECOND + 3, 9 * SECOND] {
            for (index, (limit, oracle)) in limits.iter().zip(&mut oracles).enumerate() {
                let key = index.to_le_bytes();
                assert_eq!(table.check(&key, limit, 2, now), oracle.check(2, now), "{limit}, key {index}");
            }
        }
        assert_eq!(table.stats().evictions, 0);
    }
}

/// One key under one unlisted rate after the other: an answer each time, and
/// no more than each new limit allows.
#[test]
fn a_key_that_moves_between_unlisted_rates_always_has_an_answer() {
    for algorithm in ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window"] {
        let owned = table(4);
        let table = owned.table().unwrap();
        let mut now = 1_000 * SECOND;
        for n in 1..5_000u64 {
            let limit: Limit = format!("{algorithm} 3/{}ms", n * 7 % 1_013 + 1).parse().unwrap();
            now += n * 1_000_003 % SECOND;
            let admitted = (0..5).filter(|_| table.check(b"key", &limit, 1, now).allowed).count();
            assert!(admitted <= 3, "{limit}");
        }
    }
}

#[test]
fn a_limit_that_the_table_cannot_hold_is_denied_for_ever() {
    let owned = table(4);
    let table = owned.table().unwrap();
    for text in ["sliding_log 3/s", "concurrency 3/s"] {
        let limit: Limit = text.parse().unwrap();
        assert!(table.accepts(&limit).is_err());
        for decision in [table.check(b"key", &limit, 1, 1), table.acquire(b"key", &limit, 1, 1).0] {
            assert_eq!((decision.allowed, decision.retry_after), (false, NEVER));
        }
        table.refund(b"key", &limit, 1, 1);
    }
}
