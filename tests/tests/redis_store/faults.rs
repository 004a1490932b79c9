//! While the store is slow, gone, or comes and goes.

use proptest::prelude::*;
use tollgate_core::Nanos;
use tollgate_core::redis::breaker::State;
use tollgate_core::redis::sim::{NetworkConfig, Outage, OutageKind};
use tollgate_core::time::SECOND;

use super::cluster::{Cluster, MS, kind, lease, limit, policy, rules, select, setting, token_bucket};

fn outage(from: Nanos, to: Nanos, kind: OutageKind) -> Outage {
    Outage { from, to, kind, instance: None }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Law 13: whatever becomes of the store, each request is answered once,
    /// in time; and at once where the breaker is open. Who cancels is told
    /// nothing.
    #[test]
    fn every_request_is_answered_in_time(
        setting in setting(), lease in lease(), loss in 0u32..200_000, timeout in 1u64..=20, shards in 1u32..=3,
        outages in prop::collection::vec((0u64..20_000, 1u64..3_000, kind()), 0..4),
        choice in prop::sample::select(vec!["local", "allow", "deny"]),
    ) {
        let more = format!(
            r#""timeout": "{timeout}ms", "on_store_error": "{choice}", "shards": {shards} {lease}"#
        );
        let slow = r#""timeout": "15ms", "dry_run": true"#;
        let rules = rules(&[
            policy("p", &token_bucket("30/s", 30), &more),
            policy("q", &limit("fixed_window", "7/s"), slow),
            policy("r", &limit("sliding_log", "9/s"), r#""timeout": "2ms""#),
        ]);
        let selection = select(&rules, "u");
        let mut cluster = setting.cluster();
        cluster.world.network().set(NetworkConfig { loss, ..setting.network });
        let start = cluster.world.now();
        for (from, span, kind) in outages {
            let from = start + from * MS;
            cluster.world.network().plan(outage(from, from + span * MS, kind));
        }
        for (gap, instance, drawn) in &setting.schedule {
            cluster.run_for(gap * MS);
            let is_open = cluster.world.instance(*instance).unwrap().state() != State::Closed;
            let number = cluster.ask(*instance, &rules, &selection);
            prop_assert!(!is_open || cluster.asked[number].told.is_some(), "the breaker is open");
            if drawn % 7 == 0 {
                cluster.run_for(drawn % 5 * MS);
                cluster.cancel(number);
            }
        }
        cluster.settle();
        for asked in &cluster.asked {
            if let Some((at, _)) = &asked.told {
                prop_assert!(at - asked.at <= timeout.max(15) * MS, "{:?}", asked);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The store is back: within a second it is asked again. While it is away
    /// there is one probe at a time, of each instance.
    #[test]
    fn the_store_is_in_use_again_within_a_second(
        seed in any::<u64>(), instances in 1usize..=4, kind in kind(), away in 500u64..=5_000,
    ) {
        let rules = rules(&[policy("p", &token_bucket("1000/s", 1000), r#""timeout": "5ms""#)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(instances, seed);
        let start = cluster.world.now();
        let end = start + (1_000 + away) * MS;
        cluster.world.network().plan(outage(start + 1_000 * MS, end, kind));
        let mut probes = 0;
        while cluster.world.now() < end + SECOND {
            for instance in 0..instances {
                cluster.ask(instance, &rules, &selection);
            }
            cluster.run_for(2 * MS);
            let sent = cluster.world.network().probes() - probes;
            prop_assert!(sent <= instances as u64, "one at a time");
            probes += sent;
        }
        // The first wait is 100 ms, the longest 500 ms: as many as fit, and one more.
        prop_assert!(probes <= instances as u64 * (away / 250 + 6), "{} probes in {} ms", probes, away);
        for instance in 0..instances {
            prop_assert_eq!(cluster.world.instance(instance).unwrap().state(), State::Closed);
        }
        let commands = cluster.world.store().commands();
        let number = cluster.ask(0, &rules, &selection);
        cluster.settle();
        prop_assert!(cluster.world.store().commands() > commands);
        prop_assert!(!cluster.answer(number).is_degraded(0));
    }

    /// Case 20: a store that comes and goes each two seconds, under overload,
    /// hands out one burst more, however often it does.
    #[test]
    fn a_flapping_store_hands_out_one_burst_more(
        seed in any::<u64>(), instances in 1usize..=6, rate in 5u64..=50, burst in 10u64..=100,
        max in prop_oneof![Just(0u64), 1u64..=100], kind in kind(),
    ) {
        let lease = if max > 0 { format!(r#", "lease": {{ "max": {max}, "ttl": "1s" }}"#) } else { String::new() };
        let text = token_bucket(&format!("{rate}/s"), burst);
        let rules = rules(&[policy("p", &text, &format!(r#""timeout": "5ms" {lease}"#))]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(instances, seed);
        let start = cluster.world.now();
        for flap in 0..6 {
            let from = start + (4 * flap + 2) * SECOND;
            cluster.world.network().plan(outage(from, from + 2 * SECOND, kind));
        }
        for step in 0..26_000u64 / 5 {
            cluster.ask(usize::try_from(step).unwrap() % instances, &rules, &selection);
            cluster.run_for(5 * MS);
        }
        let span = cluster.world.now() - start;
        let most = burst + u64::try_from(u128::from(span) * u128::from(rate) / u128::from(SECOND)).unwrap() + burst;
        prop_assert!(cluster.admitted() <= most, "{} > {}", cluster.admitted(), most);
    }

    /// The same where it comes back without its memory each time, as a server
    /// does that writes nothing to disk: it is told what it forgot. Of that a
    /// part may have been handed out before.
    #[test]
    fn a_flapping_store_that_forgets_is_told_what_it_forgot(
        seed in any::<u64>(), instances in 1usize..=6, rate in 5u64..=50, burst in 10u64..=200,
        away in prop::sample::select(vec![300u64, 1_000, 2_000]),
    ) {
        let text = token_bucket(&format!("{rate}/s"), burst);
        let rules = rules(&[policy("p", &text, r#""timeout": "5ms""#)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(instances, seed);
        let start = cluster.world.now();
        for flap in 0..4 {
            let to = start + 4 * (flap + 1) * SECOND;
            cluster.world.network().plan(outage(to - away * MS, to, OutageKind::Refused));
            cluster.world.flush_at(to - 1);
        }
        for step in 0..18_000u64 / 5 {
            cluster.ask(usize::try_from(step).unwrap() % instances, &rules, &selection);
            cluster.run_for(5 * MS);
        }
        let span = cluster.world.now() - start;
        let time = u64::try_from(u128::from(span) * u128::from(rate) / u128::from(SECOND)).unwrap();
        let most = burst + time + burst + 4 * burst.div_ceil(4);
        let least = burst + time * 2 / 3;
        prop_assert!((least..=most).contains(&cluster.admitted()), "{}: {} {}", cluster.admitted(), least, most);
    }

    /// The same of a limit that fills slowly: its denials are remembered for as long as the store is
    /// away, and nobody has to decide alone.
    #[test]
    fn a_store_that_forgets_what_is_remembered_is_told(
        seed in any::<u64>(), instances in 1usize..=4, minutes in 1u64..=10, burst in 10u64..=100,
        away in prop::sample::select(vec![300u64, 1_000, 2_000]),
        choice in prop::sample::select(vec!["local", "allow", "deny"]),
    ) {
        let text = token_bucket(&format!("{burst}/{}s", 60 * minutes), burst);
        let rules = rules(&[policy("p", &text, &format!(r#""timeout": "5ms", "on_store_error": "{choice}""#))]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(instances, seed);
        let start = cluster.world.now();
        for flap in 0..10 {
            let to = start + 4 * (flap + 1) * SECOND;
            cluster.world.network().plan(outage(to - away * MS, to, OutageKind::Refused));
            cluster.world.flush_at(to);
        }
        let mut degraded = 0;
        for step in 0..42_000u64 / 5 {
            let number = cluster.ask(usize::try_from(step).unwrap() % instances, &rules, &selection);
            cluster.run_for(5 * MS);
            let told = &cluster.asked[number].told;
            degraded += u64::from(told.as_ref().is_some_and(|(_, answer)| answer.allowed && answer.is_degraded(0)));
        }
        let span = cluster.world.now() - start;
        let time = u64::try_from(u128::from(span) * u128::from(burst) / u128::from(60 * minutes * SECOND)).unwrap();
        // An instance tells its part; what those know that do not ask yet is handed out once more.
        let others = 10 * (burst - burst / instances as u64);
        let most = burst + time + burst + others + if choice == "allow" { degraded } else { 0 };
        prop_assert!(cluster.admitted() <= most, "{choice}: {} > {}", cluster.admitted(), most);
    }

    /// Case 17: every instance falls back to its piece, and the pieces add up.
    #[test]
    fn pieces_of_a_dead_store_add_up(
        seed in any::<u64>(), instances in 1usize..=10, burst in 1u64..=60, user in "[a-z]{1,8}",
    ) {
        let burst = burst.max(instances as u64);
        let rules = rules(&[policy("p", &token_bucket("1/h", burst), r#""timeout": "5ms""#)]);
        let selection = select(&rules, &user);
        let mut cluster = Cluster::of(instances, seed);
        let start = cluster.world.now();
        cluster.world.network().plan(outage(start, Nanos::MAX, OutageKind::Refused));
        let mut each = vec![0u64; instances];
        for step in 0..instances * 70 {
            let number = cluster.ask(step % instances, &rules, &selection);
            each[step % instances] += u64::from(cluster.answer(number).allowed);
        }
        prop_assert_eq!(each.iter().sum::<u64>(), burst, "{:?}", &each);
        let piece = burst / instances as u64;
        prop_assert!(each.iter().all(|each| (piece..=piece + 1).contains(each)), "{:?}", &each);
    }
}

/// Case 17, in its numbers.
#[test]
fn three_instances_share_ten_as_four_three_and_three() {
    let rules = rules(&[policy("p", &token_bucket("10/h", 10), r#""timeout": "5ms""#)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(3, 1);
    let start = cluster.world.now();
    cluster.world.network().plan(outage(start, Nanos::MAX, OutageKind::Lost));
    let mut each = [0; 3];
    for step in 0..90 {
        let number = cluster.ask(step % 3, &rules, &selection);
        cluster.run_for(6 * MS);
        each[step % 3] += u64::from(cluster.answer(number).allowed);
    }
    each.sort_unstable();
    assert_eq!(each, [3, 3, 4]);
}

/// Case 17: 10/s over 20 instances is a half each second for each. At no time
/// ten at once, and in the long run the whole rate.
#[test]
fn twenty_instances_share_ten_as_fractions() {
    let rules = rules(&[policy("p", &token_bucket("10/s", 10), r#""timeout": "5ms""#)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(20, 1);
    let start = cluster.world.now();
    cluster.world.network().plan(outage(start, Nanos::MAX, OutageKind::Refused));
    for _ in 0..60_000 / 10 {
        for instance in 0..20 {
            cluster.ask(instance, &rules, &selection);
        }
        cluster.run_for(10 * MS);
    }
    let admissions: Vec<Nanos> = cluster.admissions().map(|(at, _)| at).collect();
    let total = admissions.len() as u64;
    assert!((590..=610).contains(&total), "{total} in a minute at 10/s");
    for from in &admissions {
        let within = admissions.iter().filter(|at| (*from..from + SECOND).contains(at)).count();
        assert!(within <= 20, "{within} within a second");
    }
}

/// A denial that the store told lasts while the store is away.
#[test]
fn a_fallback_carries_over_what_was_spent() {
    let rules = rules(&[policy("p", &token_bucket("30/h", 30), r#""timeout": "5ms""#)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(3, 1);
    for step in 0..36 {
        cluster.ask(step % 3, &rules, &selection);
        cluster.run_for(2 * MS);
    }
    assert_eq!(cluster.admitted(), 30);
    let now = cluster.world.now();
    cluster.world.network().plan(outage(now, Nanos::MAX, OutageKind::Refused));
    for step in 0..300 {
        cluster.ask(step % 3, &rules, &selection);
        cluster.run_for(2 * MS);
    }
    assert_eq!(cluster.admitted(), 30);
}

/// A store that carries out every call, and answers later than a request waits: the pieces are all
/// that is handed out, however often they are told to it.
#[test]
fn pieces_are_handed_out_once_while_the_store_is_too_late() {
    for (instances, one_way) in [(2, 3), (5, 6), (20, 6), (20, 12)] {
        for (limit, burst, rate) in [
            (token_bucket("100/s", 100), 100, 100),
            (limit("leaky_bucket", "100/s"), 100, 100),
            (limit("fixed_window", "100/h"), 100, 0),
            (limit("sliding_window", "100/h"), 100, 0),
            (limit("sliding_log", "100/h"), 100, 0),
        ] {
            let rules = rules(&[policy("p", &limit, r#""timeout": "5ms""#)]);
            let selection = select(&rules, "u");
            let mut cluster = Cluster::of(instances, 7);
            cluster.world.network().set(NetworkConfig { latency: one_way * MS, ..NetworkConfig::default() });
            let start = cluster.world.now();
            for number in 0..6_000 {
                cluster.ask(number * 7 % instances, &rules, &selection);
                cluster.run_for(MS / 2);
            }
            let seconds = (cluster.world.now() - start).div_ceil(SECOND);
            let most = burst + rate * seconds;
            let admitted = cluster.admitted();
            let said = format!("{admitted} of {most}: {instances} instances, {one_way} ms, {limit}");
            assert!((burst * 9 / 10..=most).contains(&admitted), "{said}");
        }
    }
}

/// A store that was stopped and goes on has lost nothing: it is told what was admitted without it,
/// once, and the whole rate is admitted from then on.
#[test]
fn a_store_that_was_stopped_is_told_once() {
    for (instances, away) in [(1, 500), (3, 946), (4, 950), (4, 5_000), (20, 946)] {
        let rules = rules(&[policy("p", &token_bucket("1000/s", 1000), r#""timeout": "5ms""#)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(instances, 0);
        let start = cluster.world.now();
        let end = start + (1_000 + away) * MS;
        cluster.world.network().plan(outage(start + 1_000 * MS, end, OutageKind::Stopped));
        let mut admitted = 0;
        for step in 0.. {
            cluster.ask(step % instances, &rules, &selection);
            cluster.run_for(MS / 2);
            if cluster.world.now() < end + SECOND {
                admitted = cluster.admitted();
            } else if cluster.world.now() >= end + 2 * SECOND {
                break;
            }
        }
        let owed: u64 = cluster.world.store().books().map(|(_, book)| book.owed).sum();
        let within = cluster.admitted() - admitted;
        let said = format!("{within} in a second, {owed} told: {instances} instances, away for {away} ms");
        assert!((950..=1_050).contains(&within), "{said}");
        assert!(owed <= 1_100, "{said}");
    }
}

/// Who waits for what another call brings waits no longer than it would have
/// for its own, whatever becomes of that call, which may have more time.
#[test]
fn who_waits_for_a_call_that_is_lost_is_told_in_time() {
    for kind in [OutageKind::Lost, OutageKind::Stopped, OutageKind::Refused, OutageKind::Failing] {
        let more = r#""timeout": "5ms", "lease": { "max": 50, "ttl": "1s" }"#;
        let rules = rules(&[policy("p", &token_bucket("100000/s", 100_000), more)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(1, 7);
        let begin = cluster.world.now() + 100 * MS;
        cluster.world.network().plan(outage(begin, begin + 200 * MS, kind));
        for round in 0..600 {
            for _ in 0..20 {
                cluster.ask(0, &rules, &selection);
            }
            cluster.run_for(MS / 2);
            assert!(round < 200 || cluster.world.waiting() <= 20 * 11, "they are told");
        }
        let waiting = cluster.world.waiting();
        cluster.run_for(5 * MS);
        assert_eq!(cluster.world.waiting(), 0, "of {waiting}");
        let waited = cluster.asked.iter().filter(|asked| asked.pending.is_some());
        let times = waited.clone().filter_map(|asked| Some(asked.told.as_ref()?.0 - asked.at));
        assert_eq!(times.clone().count(), waited.count(), "each is told");
        assert!(times.clone().max().is_some_and(|longest| longest <= 5 * MS), "{:?} ns", times.max());
    }
}

/// Requests that cost nothing find out as others do that the store is away.
#[test]
fn calls_that_cost_nothing_open_the_breaker() {
    let more = r#""timeout": "50ms", "cost": 0"#;
    let rules = rules(&[policy("p", &token_bucket("1000/s", 1000), more)]);
    let selection = select(&rules, "u");
    let mut cluster = Cluster::of(1, 7);
    let begin = cluster.world.now();
    cluster.world.network().plan(outage(begin, begin + 20 * SECOND, OutageKind::Stopped));
    for _ in 0..100 {
        cluster.ask(0, &rules, &selection);
        cluster.run_for(100 * MS);
    }
    let seen = cluster.world.metrics(0).unwrap();
    assert!(seen.opened > 0 && seen.timeouts > 0, "{seen:?}");
    assert!(cluster.asked[99].told.as_ref().is_some_and(|(at, _)| at - cluster.asked[99].at <= MS));
}

/// Who is denied because the store is away has done nothing to be punished for.
#[test]
fn an_outage_strikes_nobody() {
    for kind in [OutageKind::Refused, OutageKind::Stopped, OutageKind::Failing] {
        let more = r#""timeout": "5ms", "on_store_error": "deny", "penalty": { "base": "60s", "max": "1h" }"#;
        let rules = rules(&[policy("p", &token_bucket("500/h", 500), more)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(1, 7);
        let begin = cluster.world.now();
        cluster.world.network().plan(outage(begin, begin + 2 * SECOND, kind));
        for _ in 0..50 {
            let number = cluster.ask(0, &rules, &selection);
            cluster.run_for(10 * MS);
            let told = cluster.asked[number].told.as_ref().expect("in time").1;
            let decision = told.decision().expect("a limit");
            assert!(decision.is_unavailable() && decision.retry_after <= SECOND, "{kind:?}: {decision:?}");
        }
        cluster.run_for(5 * SECOND);
        let mut admitted = 0;
        for _ in 0..8 {
            let number = cluster.ask(0, &rules, &selection);
            cluster.run_for(20 * MS);
            admitted += u64::from(cluster.asked[number].told.as_ref().expect("in time").1.allowed);
        }
        assert_eq!(admitted, 8, "{kind:?}");
    }
}
