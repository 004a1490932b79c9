//! Several policies at once, and what a request leaves behind when one denies.

use proptest::prelude::*;
use tollgate_core::policy::Outcome;
use tollgate_core::redis::sim::{Outage, OutageKind, WorldConfig};
use tollgate_core::redis::store::StoreConfig;
use tollgate_core::{Nanos, redis::sim::NetworkConfig};

use super::cluster::{Cluster, MS, lease, limit, policy, rules, select, setting, token_bucket};

/// Case 11: what one policy denied, another was not charged for.
#[test]
fn a_group_is_not_charged_for_what_a_route_denies() {
    for lease in ["", r#", "lease": { "max": 10, "ttl": "1s" }"#] {
        let more = format!(r#""timeout": "50ms" {lease}"#);
        let rules = rules(&[
            policy("group", &limit("fixed_window", "10/h"), &more),
            policy("route", &limit("fixed_window", "3/h"), &more),
        ]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(1, 3);
        for _ in 0..5 {
            cluster.ask(0, &rules, &selection);
        }
        cluster.settle();
        assert_eq!(cluster.admitted(), 3);
        let now = cluster.world.now();
        let left = cluster.world.store().peek(b"tg:{u}:group", now).unwrap().remaining;
        assert_eq!(left, 7, "{lease:?}");
    }
}

/// What went back may be taken at once: that a request had taken the last
/// unit is not remembered when another policy denied it.
#[test]
fn a_unit_that_went_back_is_not_denied_from_memory() {
    for lease in ["", r#", "lease": { "max": 10, "ttl": "1s" }"#] {
        let more = format!(r#""timeout": "50ms" {lease}"#);
        for of_group in [limit("fixed_window", "1/h"), token_bucket("1/h", 1)] {
            let group = policy("group", &of_group, &more);
            let route = policy("route", &limit("fixed_window", "1/h"), r#""timeout": "50ms""#);
            let (both, group, route) =
                (rules(&[group.clone(), route.clone()]), rules(&[group]), rules(&[route]));
            let mut cluster = Cluster::of(2, 3);
            cluster.ask(1, &route, &select(&route, "u"));
            cluster.run_for(50 * MS);
            let denied = cluster.ask(0, &both, &select(&both, "u"));
            cluster.run_for(5_000 * MS);
            let admitted = cluster.ask(0, &group, &select(&group, "u"));
            cluster.run_for(50 * MS);
            assert!(!cluster.answer(denied).allowed, "{lease:?}");
            assert!(cluster.answer(admitted).allowed, "{lease:?}: {:?}", cluster.answer(admitted));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Law 4: when all is settled, every unit that any policy was charged is
    /// one that was admitted, or went back.
    #[test]
    fn all_policies_are_charged_or_none(
        setting in setting(), leases in [lease(), lease(), lease()], units in [1u64..=30, 1u64..=30, 1u64..=30],
        local in 1u64..=30, shards in 1u32..=3,
    ) {
        let [a, b, c] = units;
        let shards = shards.min(u32::try_from(a).unwrap());
        let more = |lease: &str| format!(r#""timeout": "100ms" {lease}"#);
        let rules = rules(&[
            policy("a", &token_bucket(&format!("{a}/m"), a), &format!("{}, \"shards\": {shards}", more(&leases[0]))),
            policy("b", &format!("{}, {}", limit("fixed_window", &format!("{b}/h")), token_bucket("9/m", 9)), &more(&leases[1])),
            policy("c", &limit("sliding_log", &format!("{c}/m")), &more(&leases[2])),
            format!(r#"{{ "name": "here", "key": ["user"], "limits": [ {{ "rate": "{local}/h" }} ] }}"#),
        ]);
        let selection = select(&rules, "u");
        let mut cluster = setting.cluster();
        for (gap, instance, drawn) in &setting.schedule {
            cluster.run_for(gap * MS);
            let number = cluster.ask(*instance, &rules, &selection);
            if drawn % 10 == 0 {
                cluster.run_for(drawn % 6 * MS);
                cluster.cancel(number);
            }
        }
        cluster.settle();
        let mut pieces = 0;
        for (key, book) in cluster.books() {
            let charged = book.charged - book.given_back;
            if key.contains("}:a") {
                pieces += charged;
            } else {
                prop_assert_eq!(charged, cluster.admitted(), "{}", key);
            }
        }
        prop_assert_eq!(pieces, cluster.admitted(), "all pieces together");
        for asked in cluster.asked.iter().filter_map(|asked| asked.told.as_ref()) {
            let outcomes = asked.1.outcomes();
            let is_denied = outcomes.contains(&Outcome::Denied);
            prop_assert_eq!(asked.1.allowed, !is_denied);
            let admitted = outcomes.iter().filter(|outcome| **outcome == Outcome::Admitted).count();
            prop_assert_eq!(admitted, if is_denied { 0 } else { outcomes.len() }, "{:?}", outcomes);
        }
    }

    /// The same when no place is left to wait in: then a request is decided as
    /// if the store were away.
    #[test]
    fn without_room_to_wait_a_denial_is_one(
        seed in any::<u64>(), burst in 1u64..=20, local in 1u64..=20, requests in 1usize..=60,
    ) {
        let rules = rules(&[
            policy("p", &token_bucket(&format!("{burst}/h"), burst), r#""timeout": "5ms""#),
            policy("q", &token_bucket("1000/h", 1000), r#""timeout": "5ms""#),
            format!(r#"{{ "name": "here", "key": ["user"], "limits": [ {{ "rate": "{local}/h" }} ] }}"#),
            r#"{ "name": "seen", "key": ["user"], "dry_run": true, "limits": [ { "rate": "1000/h" } ] }"#.into(),
        ]);
        let selection = select(&rules, "u");
        let store = StoreConfig { pots: 8, waiting: 1, holds: 0, ..StoreConfig::default() };
        let network = NetworkConfig { seed, ..NetworkConfig::default() };
        let mut cluster = Cluster::new(&WorldConfig { store, network, ..WorldConfig::default() });
        // The only place is taken.
        let other = select(&rules, "v");
        cluster.ask(0, &rules, &other);
        for _ in 0..requests {
            let number = cluster.ask(0, &rules, &selection);
            let answer = cluster.answer(number);
            prop_assert!(answer.is_degraded(0) || !answer.allowed);
        }
        let most = burst.min(local).min(requests as u64);
        prop_assert_eq!(cluster.admitted(), most);
        let seen = cluster.answer(requests).decisions()[3];
        prop_assert_eq!(seen.remaining, 1000 - requests as u64, "a dry run is counted once");
    }
}

/// A policy in dry run is asked, and never stands in the way.
#[test]
fn a_dry_run_counts_and_never_denies() {
    let rules = rules(&[
        policy("seen", &limit("fixed_window", "3/h"), r#""timeout": "50ms", "dry_run": true"#),
        policy("p", &limit("fixed_window", "5/h"), r#""timeout": "50ms""#),
    ]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(2, 1);
    for step in 0..10 {
        cluster.ask(step % 2, &rules, &selection);
        cluster.run_for(3 * MS);
    }
    let outcomes: Vec<_> = (0..10).map(|number| cluster.answer(number).outcomes().to_vec()).collect();
    assert_eq!(cluster.admitted(), 5);
    assert!(outcomes[..3].iter().all(|of| *of == [Outcome::Admitted, Outcome::Admitted]));
    assert!(outcomes[3..5].iter().all(|of| *of == [Outcome::WouldDeny, Outcome::Admitted]), "{outcomes:?}");
    assert!(outcomes[5..].iter().all(|of| of[1] == Outcome::Denied), "{outcomes:?}");
}

/// Units in flight are released by who holds them, wherever they are counted.
#[test]
fn units_in_flight_are_released() {
    let rules = rules(&[policy("p", &limit("concurrency", "3/h"), r#""timeout": "50ms""#)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(2, 1);
    for round in 0..20 {
        let numbers: Vec<_> = (0..4)
            .map(|step| {
                let number = cluster.ask(step % 2, &rules, &selection);
                cluster.run_for(3 * MS);
                number
            })
            .collect();
        let allowed: Vec<_> = numbers.iter().map(|number| cluster.answer(*number).allowed).collect();
        assert_eq!(allowed, [true, true, true, false], "round {round}");
        for number in numbers {
            let (instance, hold) = (cluster.asked[number].instance, cluster.answer(number).holds()[0]);
            cluster.world.release(instance, &hold);
            cluster.world.release(instance, &hold); // a second time is nothing
        }
        cluster.run_for(3 * MS);
    }
}

/// Holds that last take no room of others': however many are released beside
/// them, each is.
#[test]
fn long_holds_do_not_keep_short_ones_from_being_released() {
    let rules = rules(&[policy("p", &limit("concurrency", "3/h"), r#""timeout": "50ms""#)]);
    let users: Vec<_> = (0..100).map(|user| format!("long-{user}")).collect();
    let store = StoreConfig { holds: 128, ..StoreConfig::default() };
    let mut cluster = Cluster::new(&WorldConfig { store, ..WorldConfig::default() });
    for user in &users {
        cluster.ask(0, &rules, &select(&rules, user));
    }
    cluster.run_for(50 * MS);
    for round in 0..300 {
        let number = cluster.ask(0, &rules, &select(&rules, "short"));
        cluster.run_for(3 * MS);
        assert!(cluster.answer(number).allowed, "round {round}");
        let hold = cluster.answer(number).holds()[0];
        cluster.world.release(0, &hold);
        cluster.run_for(3 * MS);
    }
}

/// A call that is carried out when nobody waits for it any more holds nothing.
#[test]
fn a_late_call_leaves_nothing_in_flight() {
    let rules = rules(&[policy("p", &limit("concurrency", "3/h"), r#""timeout": "5ms""#)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(1, 1);
    let (from, kind) = (cluster.world.now(), OutageKind::Stopped);
    cluster.world.network().plan(Outage { from, to: from + 300 * MS, kind, instance: None });
    let late: Vec<_> = (0..3).map(|_| cluster.ask(0, &rules, &selection)).collect();
    cluster.run_for(50 * MS);
    for number in late {
        let hold = cluster.answer(number).holds()[0];
        cluster.world.release(0, &hold);
    }
    cluster.run_for(2_000 * MS);
    let admitted = (0..3).map(|_| cluster.ask(0, &rules, &selection)).collect::<Vec<_>>();
    cluster.run_for(50 * MS);
    assert!(admitted.iter().all(|number| cluster.answer(*number).allowed));
}

/// As the policy says: each is obeyed, and told apart.
#[test]
fn every_choice_for_a_dead_store_is_obeyed() {
    for (choice, expected) in [("allow", 20), ("deny", 0), ("local", 6)] {
        let more = format!(r#""timeout": "5ms", "on_store_error": "{choice}""#);
        let rules = rules(&[policy("p", &token_bucket("12/h", 12), &more)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(2, 1);
        let from = cluster.world.now();
        let (to, kind) = (Nanos::MAX, OutageKind::Refused);
        cluster.world.network().plan(Outage { from, to, kind, instance: None });
        for _ in 0..20 {
            let number = cluster.ask(0, &rules, &selection);
            assert!(cluster.answer(number).is_degraded(0));
        }
        assert_eq!(cluster.admitted(), expected, "{choice}");
    }
}
