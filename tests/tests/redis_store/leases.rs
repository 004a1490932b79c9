//! While the store is well: what instances admit together.

use proptest::prelude::*;
use tollgate_core::time::SECOND;
use tollgate_core::{Algorithm, Limit};

use super::cluster::{Cluster, MS, lease, limit, policy, rules, select, setting, token_bucket};

/// An algorithm that can be fetched ahead, with small numbers.
fn any_limit() -> impl Strategy<Value = String> {
    let period = prop::sample::select(vec!["s", "m", "h"]);
    (0usize..4, 4u64..=60, 4u64..=60, period).prop_map(|(which, units, burst, period)| {
        let rate = format!("{units}/{period}");
        match which {
            0 => token_bucket(&rate, burst),
            1 => limit("fixed_window", &rate),
            2 => limit("sliding_window", &rate),
            _ => limit("sliding_log", &rate),
        }
    })
}

/// Units that a limit admits within a span at most, from an empty beginning.
fn bound(limit: &Limit, span: u64) -> u64 {
    let (units, period) = (u128::from(limit.limit()), u128::from(limit.period()));
    let bound = match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            u128::from(limit.burst()) + u128::from(span) * units / period
        }
        // Windows: one for each that the span touches.
        _ => units * (u128::from(span) / period + 2),
    };
    u64::try_from(bound).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Law 10, at every moment; and law 1 for the whole of the time.
    #[test]
    fn instances_admit_no_more_than_was_granted(
        setting in setting(), text in any_limit(), lease in lease(), shards in 1u32..=4, cost in 1u64..=3,
    ) {
        let more = format!(r#""timeout": "100ms", "cost": {cost}, "shards": {shards} {lease}"#);
        let rules = rules(&[policy("p", &text, &more)]);
        let selection = select(&rules, "u");
        let limit = rules.policies()[0].limits()[0];
        let mut cluster = setting.cluster();
        let start = cluster.world.now();
        for (gap, instance, _) in &setting.schedule {
            cluster.run_for(gap * MS);
            cluster.ask(*instance, &rules, &selection);
            prop_assert!(cluster.admitted() + cluster.world.held() <= cluster.granted());
        }
        cluster.settle();
        // An age is the sender's: by as much as latencies differ, and once for
        // each time that units came back, the store may give a little more.
        let back = cluster.world.store().books().map(|(_, book)| book.given_back).sum::<u64>();
        let jitter = 2 * setting.network.jitter * back;
        let span = cluster.world.now() - start + jitter;
        prop_assert!(cluster.admitted() < bound(&limit, span) + u64::from(shards));
        prop_assert_eq!(cluster.admitted(), cluster.granted(), "all else came back: {:?}", cluster.books());
    }

    /// Law 1 for every interval, where nothing is fetched ahead: what differs
    /// between the store's time and the time of the answers is latency.
    #[test]
    fn without_leases_every_interval_is_within_the_limit(
        setting in setting(), units in 1u64..=60, burst in 1u64..=30, seconds in 1u64..=60, cost in 1u64..=3,
    ) {
        let text = token_bucket(&format!("{units}/{seconds}s"), burst);
        let rules = rules(&[policy("p", &text, &format!(r#""timeout": "100ms", "cost": {cost}"#))]);
        let selection = select(&rules, "u");
        let limit = rules.policies()[0].limits()[0];
        let mut cluster = setting.cluster();
        for (gap, instance, _) in &setting.schedule {
            cluster.run_for(gap * MS);
            cluster.ask(*instance, &rules, &selection);
        }
        cluster.settle();
        let mut admissions: Vec<_> = cluster.admissions().collect();
        admissions.sort_unstable();
        for (first, (from, _)) in admissions.iter().enumerate() {
            let mut sum = 0;
            for (to, cost) in &admissions[first..] {
                sum += cost;
                prop_assert!(sum <= bound(&limit, to - from + setting.network.jitter));
            }
        }
    }

    /// Nothing is stranded: what one instance fetched and did not need is
    /// spent by another.
    #[test]
    fn a_limit_of_ten_admits_ten(
        instances in 1usize..=8, seed in any::<u64>(), max in prop_oneof![1u64..=12, 1u64..=1000],
        which in 0usize..4, quiet in 0usize..8, gap in 1u64..=40,
    ) {
        let text = match which {
            0 => token_bucket("10/h", 10),
            1 => limit("fixed_window", "10/h"),
            2 => limit("sliding_window", "10/h"),
            _ => limit("sliding_log", "10/h"),
        };
        let more = format!(r#""timeout": "50ms", "lease": {{ "max": {max}, "ttl": "1s" }}"#);
        let rules = rules(&[policy("p", &text, &more)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(instances, seed);
        // All but the last keep asking for a while, then some have no more requests.
        for round in 0..30_000 / gap {
            for instance in 0..instances {
                if round * gap < 60 || instance >= quiet.min(instances - 1) {
                    cluster.ask(instance, &rules, &selection);
                }
            }
            cluster.run_for(gap * MS);
        }
        cluster.settle();
        prop_assert_eq!(cluster.admitted(), 10);
    }

    /// Who cancels leaves nothing behind.
    #[test]
    fn cancelling_gives_everything_back(setting in setting(), lease in lease(), patience in 0u64..=8) {
        let more = format!(r#""timeout": "100ms" {lease}"#);
        let second = policy("q", &limit("fixed_window", "7/m"), r#""timeout": "100ms""#);
        let rules = rules(&[policy("p", &token_bucket("20/m", 20), &more), second]);
        let selection = select(&rules, "u");
        let mut cluster = setting.cluster();
        for (gap, instance, drawn) in &setting.schedule {
            cluster.run_for(gap * MS);
            let number = cluster.ask(*instance, &rules, &selection);
            if drawn % 3 == 0 {
                cluster.run_for(patience * MS);
                cluster.cancel(number);
            }
        }
        cluster.settle();
        for (key, book) in cluster.books() {
            prop_assert_eq!(book.charged - book.given_back, cluster.admitted(), "{}", key);
        }
    }

    /// An instance may end at any moment: units that it had asked for and was
    /// not given yet go back when they come.
    #[test]
    fn who_ends_leaves_nothing_behind(
        setting in setting(), text in any_limit(), lease in lease(), shards in 1u32..=4, ends in 1u64..=200,
    ) {
        let rules = rules(&[policy("p", &text, &format!(r#""timeout": "100ms", "shards": {shards} {lease}"#))]);
        let selection = select(&rules, "u");
        let mut cluster = setting.cluster();
        let mut ended = vec![false; setting.instances];
        for (gap, instance, drawn) in &setting.schedule {
            cluster.run_for(gap * MS);
            if !ended[*instance] {
                cluster.ask(*instance, &rules, &selection);
                if drawn % ends == 0 {
                    ended[*instance] = true;
                    cluster.world.drain(*instance);
                }
            }
        }
        for instance in 0..setting.instances {
            cluster.world.drain(instance); // at once, and some a second time
        }
        cluster.run_for(SECOND);
        prop_assert_eq!((cluster.world.waiting(), cluster.world.held()), (0, 0));
        prop_assert_eq!(cluster.admitted(), cluster.granted(), "all else came back: {:?}", cluster.books());
    }

    /// Law 9: from the next request on; what was fetched under the old limit
    /// was charged, and stays spent.
    #[test]
    fn new_rules_hold_while_leases_are_out(
        setting in setting(), lease in lease(), from in 1u64..=100, to in 1u64..=100,
    ) {
        let of = |burst: u64| {
            rules(&[policy("p", &token_bucket("60/h", burst), &format!(r#""timeout": "100ms" {lease}"#))])
        };
        let (old, new) = (of(from), of(to));
        let (before, after) = (select(&old, "u"), select(&new, "u"));
        let mut cluster = setting.cluster();
        let start = cluster.world.now();
        let half = setting.schedule.len() / 2;
        for (number, (gap, instance, _)) in setting.schedule.iter().enumerate() {
            cluster.run_for(gap * MS);
            if number < half {
                cluster.ask(*instance, &old, &before);
            } else {
                cluster.ask(*instance, &new, &after);
            }
            prop_assert!(cluster.admitted() + cluster.world.held() <= cluster.granted());
        }
        cluster.settle();
        // Together never more than the larger of the two would have admitted.
        let span = cluster.world.now() - start + 2 * SECOND;
        prop_assert!(cluster.admitted() <= from.max(to) + span / (60 * SECOND) + 1);
    }
}

/// A flood that is over its limit costs the store next to nothing.
#[test]
fn a_flood_is_denied_from_memory() {
    let text = token_bucket("100/s", 100);
    let rules = rules(&[policy("p", &text, r#""timeout": "50ms", "lease": { "max": 50, "ttl": "1s" }"#)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(1, 7);
    for _ in 0..100_000 {
        cluster.ask(0, &rules, &selection);
        cluster.run_for(MS / 10);
    }
    cluster.settle();
    let admitted = cluster.admitted();
    assert!((1095..=1100).contains(&admitted), "{admitted}");
    let commands = cluster.world.store().commands();
    assert!(commands < 1_200, "{commands} commands for 100,000 requests");
}

/// A hot key that is within its limit: one call for many requests, and in the
/// steady state nobody waits.
#[test]
fn a_hot_key_is_fetched_ahead() {
    let text = token_bucket("10000/s", 10000);
    let rules = rules(&[policy("p", &text, r#""timeout": "50ms", "lease": { "max": 50, "ttl": "1s" }"#)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(1, 7);
    for _ in 0..2_000 {
        cluster.ask(0, &rules, &selection);
        cluster.run_for(MS / 5);
    }
    let (before, commands) = (cluster.asked.len(), cluster.world.store().commands());
    for _ in 0..10_000 {
        cluster.ask(0, &rules, &selection);
        cluster.run_for(MS / 5);
    }
    let waited = cluster.asked[before..].iter().filter(|asked| asked.pending.is_some()).count();
    assert_eq!(waited, 0);
    assert_eq!(cluster.admitted(), 12_000);
    let commands = cluster.world.store().commands() - commands;
    assert!(commands <= 10_000 / 25, "{commands} commands for 10,000 requests");
}

/// So many at once that a grant does not last until the next one comes: they
/// wait for what is under way. A call for each grant, not for each request,
/// and none waits longer than for a call of its own.
#[test]
fn who_finds_an_empty_pot_waits_for_what_is_under_way() {
    let text = token_bucket("1000000/s", 1_000_000);
    let rules = rules(&[policy("p", &text, r#""timeout": "50ms", "lease": { "max": 50, "ttl": "1s" }"#)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(1, 7);
    for _ in 0..500 {
        for _ in 0..64 {
            cluster.ask(0, &rules, &selection);
        }
        cluster.run_for(MS / 2);
    }
    cluster.settle();
    let waited = cluster.asked.iter().filter(|asked| asked.pending.is_some()).count();
    assert!(waited > 10_000, "{waited} of 32,000 waited: this is what is looked at");
    assert_eq!(cluster.admitted(), 32_000);
    let commands = cluster.world.store().commands();
    assert!(commands < 32_000 / 25, "{commands} commands for 32,000 requests");
    let longest = cluster.asked.iter().filter_map(|asked| Some(asked.told.as_ref()?.0 - asked.at)).max();
    assert!(longest.is_some_and(|longest| longest <= 2 * MS), "{longest:?} ns");
}

/// The store has less than they wait for: all are told in time, and no more
/// are admitted than there are.
#[test]
fn who_waits_for_more_than_there_is_is_told_in_time() {
    for (seed, there) in [(1, 500), (2, 1_234), (3, 5_000)] {
        let text = token_bucket(&format!("{there}/h"), there);
        let more = r#""timeout": "50ms", "lease": { "max": 50, "ttl": "1s" }"#;
        let rules = rules(&[policy("p", &text, more)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(3, seed);
        for round in 0..300 {
            for number in 0..40 {
                let asked = cluster.ask(number % 3, &rules, &selection);
                if (round + number) % 11 == 0 {
                    cluster.cancel(asked); // some do not wait for it
                }
            }
            cluster.run_for(MS / 2);
        }
        cluster.settle();
        assert_eq!(cluster.admitted(), cluster.granted(), "all else came back");
        assert!(cluster.admitted() <= there + 1, "{}", cluster.admitted());
        assert!(cluster.admitted() + 40 >= there, "{} of {there}", cluster.admitted());
        let times = cluster.asked.iter().filter_map(|asked| Some(asked.told.as_ref()?.0 - asked.at));
        assert!(times.clone().max().is_some_and(|longest| longest <= 6 * MS), "{:?} ns", times.max());
    }
}

/// It has no need of what others' calls bring, and none may be under way.
#[test]
fn who_costs_nothing_waits_for_no_units() {
    for lease in ["", r#", "lease": { "max": 50, "ttl": "1s" }"#] {
        let of = |cost: u64| {
            let more = format!(r#""timeout": "50ms", "cost": {cost}{lease}"#);
            rules(&[policy("p", &token_bucket("1000/s", 1000), &more)])
        };
        let (one, zero) = (of(1), of(0));
        let (paid, free) = (select(&one, "u"), select(&zero, "u"));
        let mut cluster = Cluster::of(1, 7);
        for round in 0..20 {
            for _ in 0..20 {
                cluster.ask(0, &one, &paid);
                cluster.ask(0, &zero, &free);
            }
            cluster.run_for(if round % 5 == 4 { 3 * SECOND } else { MS });
        }
        cluster.settle();
        let times = cluster.asked.iter().filter_map(|asked| Some(asked.told.as_ref()?.0 - asked.at));
        assert_eq!(times.clone().count(), 800);
        assert!(
            times.clone().max().is_some_and(|longest| longest <= 3 * MS),
            "{lease}: {:?} ns",
            times.max()
        );
        assert_eq!(cluster.admitted(), 400);
    }
}
