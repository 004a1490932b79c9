use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::format;

const MS: Nanos = 1_000_000;

/// Calls of 10,000 requests, one each 30 µs, whose answers come after so
/// many others.
fn calls(behind: usize) -> usize {
    let lease = Some(Lease { max: 50, ttl: 1000 * MS });
    let mut leases = Leases::new(8);
    let mut under_way: VecDeque<(usize, Grant)> = VecDeque::new();
    let (mut id, mut calls) = (1, 0);
    for number in 0..10_000 {
        let now = (1 + number as u64) * 30_000;
        while let Some((_, grant)) = under_way.pop_front_if(|(at, _)| *at <= number) {
            assert!(leases.grant(7, &grant, &[], now).is_none(), "nothing goes back");
            assert!(leases.held(now) <= 100, "two grants at most");
        }
        let cost = match leases.spend(7, 1, now) {
            Spend::Taken { low: false, .. } | Spend::Denied { .. } => continue,
            Spend::Taken { low: true, .. } => 0,
            Spend::Ask => 1,
        };
        let units = leases.ask(7, cost, lease, id, now + 50 * MS, now);
        assert!(units <= 50);
        if cost + units > 0 {
            calls += 1;
            under_way.push_back((
                number + behind,
                Grant { units, asked_at: now, id, ttl: 1000 * MS, merges: true },
            ));
            id += 2;
        }
    }
    calls
}

#[test]
fn a_hot_key_asks_for_few_of_its_requests_however_late_the_answers_are() {
    for (behind, most) in [(1, 400), (10, 400), (40, 500), (64, 2_000)] {
        let calls = calls(behind);
        assert!(calls <= most, "{calls} calls where answers are {behind} requests behind");
    }
}

/// A call may bring units twice: those on top, and those that it was for when
/// another limit denied. Between them others may have come.
#[test]
fn all_that_came_goes_back_whichever_call_brought_it_twice() {
    for merges in [true, false] {
        let mut leases = Leases::new(8);
        let grant = |id: u64| Grant { units: 1, asked_at: id * MS, id, ttl: 1000 * MS, merges };
        assert!(leases.grant(7, &grant(1), &[], 10 * MS).is_none());
        let kept = [2, 3, 1].into_iter().filter(|id| leases.put_back(7, &grant(*id))).count() as u64;
        let mut back = 0;
        for now in 1..=2_000 {
            while let Some(unspent) = leases.over(now * MS) {
                back += unspent.units;
                leases.went_back(&unspent);
            }
        }
        assert_eq!(back, 1 + kept, "{merges}");
    }
}

/// Every unit, by pot, and when it is over.
fn lots(leases: &Leases) -> impl Iterator<Item = (u64, Nanos)> + '_ {
    leases.pots.iter().flat_map(|pot| pot.lots.iter().map(|lot| (lot.units, lot.expires_at)))
}

proptest! {
    /// Nothing that is over stays, nothing is given back twice or too soon, and
    /// the order needs no more room than it was given: whatever becomes of
    /// pots, of which there are too few.
    #[test]
    fn what_is_over_comes_once_and_in_time(
        steps in prop::collection::vec((0u64..30, 0u8..4, 1u64..=9, 0u64..40, 1u64..400), 1..400),
    ) {
        let mut leases = Leases::new(8);
        let (mut now, mut put, mut back) = (1, 0, 0);
        for (id, (key, what, units, gap, ttl)) in (1..).zip(steps) {
            now += gap;
            let lost: u64 = lots(&leases).map(|(units, _)| units).sum();
            match what {
                0 => put -= u64::from(matches!(leases.spend(key, 1, now), Spend::Taken { .. })),
                1 if leases.place(key).is_some() => {
                    leases.unspend(key, units);
                    put += units;
                }
                _ => {
                    let merges = what == 2;
                    let grant = Grant { units, asked_at: now, id, ttl, merges };
                    let over = leases.grant(key, &grant, &[], now).map_or(0, |unspent| unspent.units);
                    // What an evicted pot held is lost.
                    put = lots(&leases).map(|(units, _)| units).sum::<u64>() + back;
                    prop_assert!(put - back + over <= lost + units);
                }
            }
            while let Some(unspent) = leases.over(now) {
                prop_assert!(unspent.units > 0);
                prop_assert_eq!(leases.over(now), Some(unspent), "it stays until it went back");
                leases.went_back(&unspent);
                back += unspent.units;
            }
            let left: u64 = lots(&leases).map(|(units, _)| units).sum();
            prop_assert_eq!(left + back, put);
            let first = lots(&leases).filter(|(units, _)| *units > 0).map(|(_, at)| at).min();
            prop_assert!(first.is_none_or(|at| at > now), "what is over has gone");
            prop_assert!(first.is_none_or(|at| leases.next_over().is_some_and(|next| next <= at)));
        }
    }
}

#[test]
fn a_look_says_what_a_request_would_hear_and_changes_nothing() {
    let mut leases = Leases::new(8);
    let grant = Grant { units: 2, asked_at: MS, id: 1, ttl: 1000 * MS, merges: true };
    assert!(leases.grant(7, &grant, &[], MS).is_none());
    let denial = Denial { id: 3, cost: 5, by: 0, until: 90 * MS, one_by_one: false, recheck: Nanos::MAX };
    leases.deny(7, &denial, &[], 2 * MS);
    let before = format!("{leases:?}");
    let looks = [2, 5, 3].map(|cost| leases.peek(7, cost, 3 * MS));
    assert_eq!(format!("{leases:?}"), before);
    let heard = [5, 3, 2].map(|cost| leases.spend(7, cost, 3 * MS));
    assert_eq!((looks[0], looks[1], looks[2]), (heard[2], heard[0], heard[1]));
    assert!(matches!(looks, [Spend::Taken { left: 0, .. }, Spend::Denied { .. }, Spend::Ask]), "{looks:?}");
}
