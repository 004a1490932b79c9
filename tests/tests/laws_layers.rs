//! Law 4: several limits are charged all or none.

use proptest::prelude::*;
use tollgate_core::key::Seed;
use tollgate_core::limiter::{MAX_LAYERS, check_all, give_back};
use tollgate_core::table::{Config, Hold, OwnedTable, Request};
use tollgate_core::{Decision, Limit, Nanos};
use tollgate_tests::oracle::Oracle;
use tollgate_tests::strategies;

const NOTHING: Decision =
    Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };

fn table() -> OwnedTable {
    OwnedTable::new(Config { capacity: 256, rows: 64, row_entries: 64 }, Seed([1, 2])).unwrap()
}

proptest! {
    #[test]
    fn law_4_all_layers_are_charged_or_none(
        limits in proptest::collection::vec(strategies::limit(), 1..6),
        asks in proptest::collection::vec((0u64..=2_000, proptest::collection::vec(1u64..=4, 6)), 1..20),
    ) {
        let owned = table();
        let table = owned.table().unwrap();
        let keys: Vec<[u8; 1]> = (0u8..).take(limits.len()).map(|layer| [layer]).collect();
        let mut oracles: Vec<Oracle> = limits.iter().map(|&limit| Oracle::new(limit)).collect();
        let mut now: Nanos = 1_000_000_000_000;
        for (share, costs) in asks {
            now += limits[0].period() / 1_000 * share;
            let requests: Vec<Request<'_>> = keys
                .iter()
                .zip(&limits)
                .zip(&costs)
                .map(|((key, limit), &cost)| Request { key, limit, cost })
                .collect();
            let mut decisions = vec![NOTHING; limits.len()];
            let mut holds = vec![Hold::default(); limits.len()];
            let verdict = check_all(&table, &requests, now, &mut decisions, &mut holds).unwrap();
            let mut expected: Vec<Decision> =
                oracles.iter().zip(&costs).map(|(oracle, &cost)| oracle.peek(cost, now)).collect();
            let all = expected.iter().all(|decision| decision.allowed);
            if !all {
                // A layer that admitted and was not charged tells what it holds.
                for (decision, oracle) in expected.iter_mut().zip(&oracles).filter(|(d, _)| d.allowed) {
                    *decision = oracle.peek(0, now);
                }
            }
            prop_assert_eq!(verdict.allowed, all);
            prop_assert_eq!(&decisions, &expected);
            if all {
                for (oracle, &cost) in oracles.iter_mut().zip(&costs) {
                    let _ = oracle.check(cost, now);
                }
                let least = decisions.iter().map(|decision| decision.remaining).min();
                prop_assert_eq!(Some(decisions[verdict.tightest].remaining), least);
            } else {
                prop_assert!(!decisions[verdict.tightest].allowed);
                let longest =
                    decisions.iter().filter(|d| !d.allowed).map(|decision| decision.retry_after).max();
                prop_assert_eq!(Some(decisions[verdict.tightest].retry_after), longest);
                prop_assert!(holds.iter().all(|hold| hold.units == 0));
            }
            // The accounts are what they must be, whether all were charged or none.
            for ((key, limit), oracle) in keys.iter().zip(&limits).zip(&oracles) {
                prop_assert_eq!(table.peek(key, limit, 1, now), oracle.peek(1, now), "{}", limit);
            }
        }
    }

    #[test]
    fn what_was_charged_is_given_back_whole(
        limits in proptest::collection::vec(strategies::limit(), 1..6),
        now in strategies::start(),
    ) {
        let owned = table();
        let table = owned.table().unwrap();
        let keys: Vec<[u8; 1]> = (0u8..).take(limits.len()).map(|layer| [layer]).collect();
        let requests: Vec<Request<'_>> =
            keys.iter().zip(&limits).map(|(key, limit)| Request { key, limit, cost: limit.burst() }).collect();
        let mut decisions = vec![NOTHING; limits.len()];
        let mut holds = vec![Hold::default(); limits.len()];
        for _ in 0..3 {
            let verdict = check_all(&table, &requests, now, &mut decisions, &mut holds).unwrap();
            prop_assert!(verdict.allowed);
            give_back(&table, &requests, &mut holds, now);
        }
    }
}

#[test]
fn the_same_key_and_limit_twice_is_two_charges_or_none() {
    let limit: Limit = "3/m".parse().unwrap();
    let owned = table();
    let table = owned.table().unwrap();
    let twice = [Request { key: b"key", limit: &limit, cost: 1 }; 2];
    let (mut decisions, mut holds) = ([NOTHING; 2], [Hold::default(); 2]);
    assert!(check_all(&table, &twice, 1, &mut decisions, &mut holds).unwrap().allowed);
    assert_eq!(table.peek(b"key", &limit, 0, 1).remaining, 1);
    assert!(!check_all(&table, &twice, 1, &mut decisions, &mut holds).unwrap().allowed);
    assert_eq!(table.peek(b"key", &limit, 0, 1).remaining, 1, "the first of the two was given back");
}

#[test]
fn too_many_layers_none_and_too_little_room_are_refused() {
    let limit: Limit = "3/m".parse().unwrap();
    let owned = table();
    let table = owned.table().unwrap();
    let many = [Request { key: b"key", limit: &limit, cost: 1 }; MAX_LAYERS + 1];
    let (mut decisions, mut holds) = ([NOTHING; MAX_LAYERS + 1], [Hold::default(); MAX_LAYERS + 1]);
    assert!(check_all(&table, &many, 1, &mut decisions, &mut holds).is_none());
    assert!(check_all(&table, &[], 1, &mut decisions, &mut holds).is_none());
    assert!(check_all(&table, &many[..2], 1, &mut decisions[..1], &mut holds).is_none());
    assert!(check_all(&table, &many[..2], 1, &mut decisions, &mut holds[..1]).is_none());
    assert_eq!(table.peek(b"key", &limit, 0, 1).remaining, 3);
}

/// Threads that ask two layers, one of which is the narrower: what the wider
/// one was charged is what the narrower one admitted.
#[test]
fn law_4_holds_when_threads_race() {
    let (narrow, wide): (Limit, Limit) = ("50/h".parse().unwrap(), "1000/h".parse().unwrap());
    for _ in 0..20 {
        let owned = table();
        let admitted: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let table = owned.table().unwrap();
                        let requests = [
                            Request { key: b"wide", limit: &wide, cost: 1 },
                            Request { key: b"narrow", limit: &narrow, cost: 1 },
                        ];
                        let (mut decisions, mut holds) = ([NOTHING; 2], [Hold::default(); 2]);
                        (0..50)
                            .filter(|_| {
                                check_all(&table, &requests, 1, &mut decisions, &mut holds)
                                    .is_some_and(|verdict| verdict.allowed)
                            })
                            .count() as u64
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let table = owned.table().unwrap();
        assert_eq!(admitted, 50);
        assert_eq!(table.peek(b"wide", &wide, 0, 1).remaining, 950);
    }
}
