use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::format;

const MS: Nanos = 1_000_000;

/// What becomes of 10,000 requests, one each 30 µs, whose calls are answered
/// after so many others, and bring as many units as they were told to, at most
/// `gives` in all.
struct Run {
    leases: Leases,
    under_way: VecDeque<(usize, u64, Grant)>,
    /// Who waits, and since which request.
    waiting: VecDeque<usize>,
    behind: usize,
    gives: u64,
    calls: usize,
    admitted: u64,
    /// The longest that any of them waited.
    longest: usize,
}

impl Run {
    fn of(behind: usize, gives: u64) -> Run {
        let (leases, under_way, waiting) = (Leases::new(8), VecDeque::new(), VecDeque::new());
        let mut run = Run { leases, under_way, waiting, behind, gives, calls: 0, admitted: 0, longest: 0 };
        (0..10_000 + 3 * behind).for_each(|number| run.step(number, number < 10_000));
        assert!(run.under_way.is_empty() && run.waiting.is_empty());
        run
    }

    fn step(&mut self, number: usize, is_request: bool) {
        let now = (1 + number as u64) * 30_000;
        while let Some((_, more, grant)) = self.under_way.pop_front_if(|(at, ..)| *at <= number) {
            self.leases.ended(7, more, grant.units);
            assert!(self.leases.grant(7, &grant, &[], now).is_none(), "nothing goes back");
            self.serve(number, now);
            assert!(self.leases.held(now) <= 100, "two grants at most");
        }
        if !is_request {
            return;
        }
        match self.leases.spend(7, 1, now) {
            Spend::Taken { low, .. } => {
                self.admitted += 1;
                if low {
                    self.call(0, number, now);
                }
            }
            Spend::Denied { .. } => {}
            Spend::Ask => {
                let own = Waiter::new(number as u32 + 1).unwrap();
                match self.leases.wait(7, 1, own, now) {
                    Some(_) => self.waiting.push_back(number),
                    None => self.call(1, number, now),
                }
            }
        }
    }

    fn serve(&mut self, number: usize, now: Nanos) {
        while let Some(since) = self.waiting.front().copied() {
            let turn = self.leases.turn(7, 1, now);
            if turn == Turn::Waits {
                return;
            }
            self.waiting.pop_front();
            let behind = self.waiting.front().and_then(|next| Waiter::new(*next as u32 + 1));
            self.leases.leave(7, 1, None, behind);
            self.longest = self.longest.max(number - since);
            match turn {
                Turn::Told(Spend::Taken { .. }) => self.admitted += 1,
                Turn::Told(said) => panic!("{said:?}"),
                _ => self.call(1, number, now),
            }
        }
    }

    fn call(&mut self, cost: u64, number: usize, now: Nanos) {
        let id = 2 * self.calls as u64 + 1;
        let lease = Some(Lease { max: 50, ttl: 1000 * MS });
        let more = self.leases.ask(7, cost, lease, id, now + 50 * MS, now);
        assert!(more <= 50);
        if cost + more == 0 {
            return;
        }
        self.calls += 1;
        self.admitted += cost;
        let units = more.min(self.gives);
        self.gives -= units;
        let grant = Grant { units, asked_at: now, id, ttl: 1000 * MS, merges: true };
        self.under_way.push_back((number + self.behind, more, grant));
    }
}

#[test]
fn a_hot_key_asks_for_few_of_its_requests_however_late_the_answers_are() {
    for behind in [1, 10, 40, 64, 200] {
        let run = Run::of(behind, u64::MAX);
        assert_eq!(run.admitted, 10_000, "each is paid");
        assert!(run.calls <= 500 + behind, "{} calls, answers {behind} requests behind", run.calls);
        assert!(run.longest <= behind, "nobody waits longer than for a call of its own: {}", run.longest);
    }
}

#[test]
fn who_waits_for_units_that_do_not_come_asks_by_itself() {
    for (behind, gives) in [(10, 0), (40, 30), (64, 777), (200, 5_000)] {
        let run = Run::of(behind, gives);
        assert_eq!(run.admitted, 10_000, "each was paid, or asked");
        assert!(run.longest <= behind, "for one call, and its own: {}", run.longest);
        assert!(run.calls as u64 >= 10_000 - gives);
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
