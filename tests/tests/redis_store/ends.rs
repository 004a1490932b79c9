//! An instance ends: what it admitted by itself is told, and what comes late is not lost.

use proptest::prelude::*;
use tollgate_core::policy::{Rules, Selection};
use tollgate_core::redis::breaker::State;
use tollgate_core::redis::sim::{NetworkConfig, Outage, OutageKind, WorldConfig};
use tollgate_core::time::SECOND;

use super::cluster::{Cluster, MS, Setting, kind, lease, policy, rules, select, setting, token_bucket};

const USERS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// What is admitted of a limit that is never reached and brings nothing back, while the store comes
/// and goes; then it is there for two seconds in which nobody asks, and all instances end.
struct Run {
    cluster: Cluster,
    rules: Rules,
}

impl Run {
    fn new(setting: &Setting, loss: u32, outages: &[(u64, u64, OutageKind)], more: &str) -> Run {
        let limits = [token_bucket("1/30d", 1700), token_bucket("2/30d", 1500)].join(", ");
        let rules = rules(&[policy("p", &limits, more)]);
        let selections: Vec<Selection<'_>> = USERS.iter().map(|user| select(&rules, user)).collect();
        let mut cluster = setting.cluster();
        cluster.world.network().set(NetworkConfig { loss, ..setting.network });
        let start = cluster.world.now();
        for (from, span, kind) in outages {
            let from = start + from * MS;
            let outage = Outage { from, to: from + span * MS, kind: *kind, instance: None };
            cluster.world.network().plan(outage);
        }
        for (gap, instance, drawn) in &setting.schedule {
            cluster.run_for(gap * MS);
            let user = usize::try_from(*drawn).unwrap() % USERS.len();
            cluster.ask(*instance, &rules, &selections[user]);
        }
        let now = cluster.world.now();
        cluster.world.network().heal(now);
        cluster.world.network().set(NetworkConfig { loss: 0, ..setting.network });
        cluster.run_for(2_000 * MS);
        cluster.settle();
        drop(selections);
        Run { cluster, rules }
    }

    /// Of each limit that lies in the store: what it knows of, less what came back.
    fn known(&self) -> Vec<u64> {
        let limits = self.rules.policies()[0].limits().len();
        let mut known = vec![0; limits];
        for (key, book) in self.cluster.books() {
            let index = usize::from(key.ends_with(":1"));
            known[index] += book.charged + book.owed - book.given_back;
        }
        known
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// However the store came and went: it knows of all that was admitted, when it can be told.
    #[test]
    fn what_was_admitted_alone_is_told_by_who_ends(
        setting in setting(), lease in lease(), loss in 0u32..200_000,
        outages in prop::collection::vec((0u64..3_000, 1u64..2_000, kind()), 0..4),
    ) {
        let run = Run::new(&setting, loss, &outages, &format!(r#""timeout": "10ms" {lease}"#));
        let admitted = run.cluster.admitted();
        for known in run.known() {
            prop_assert!(known >= admitted, "{} of {}: {:?}", known, admitted, run.cluster.books());
        }
    }

    /// Each unit once, where no call is in doubt.
    #[test]
    fn what_was_admitted_alone_is_told_once(
        setting in setting(), outages in prop::collection::vec((0u64..3_000, 1u64..2_000), 1..4),
    ) {
        let outages: Vec<_> = outages.into_iter().map(|(from, span)| (from, span, OutageKind::Refused)).collect();
        let run = Run::new(&setting, 0, &outages, r#""timeout": "20ms""#);
        let admitted = run.cluster.admitted();
        for known in run.known() {
            prop_assert_eq!(known, admitted, "{:?}", run.cluster.books());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A store that was stopped answers all that it was asked, too late: what it granted is there
    /// all the same. Of a request that was denied meanwhile one unit stays charged.
    #[test]
    fn what_is_granted_too_late_is_not_lost(
        setting in setting(), max in 1u64..=100,
        stops in prop::collection::vec((0u64..3_000, 1u64..500), 1..6),
    ) {
        let stops: Vec<_> = stops.into_iter().map(|(from, span)| (from, span, OutageKind::Stopped)).collect();
        let lease = format!(r#""timeout": "10ms", "on_store_error": "deny", "lease": {{ "max": {max}, "ttl": "1h" }}"#);
        let run = Run::new(&setting, 0, &stops, &lease);
        let count = |instance: usize| run.cluster.world.metrics(instance).unwrap().timeouts;
        let doubtful: u64 = (0..setting.instances).map(count).sum();
        let admitted = run.cluster.admitted();
        for known in run.known() {
            prop_assert!(known >= admitted, "{} of {}", known, admitted);
            prop_assert!(known <= admitted + doubtful, "{} of {} and {}", known, admitted, doubtful);
        }
    }
}

/// A request that waited for another's call may ask when its own time is nearly over. What is known
/// of the store by that is little, and a probe has as long as any call.
#[test]
fn a_store_whose_answers_take_most_of_the_timeout_is_in_use_again() {
    let network = NetworkConfig { latency: 4 * MS, jitter: MS / 2, ..NetworkConfig::default() };
    let rules = rules(&[policy(
        "p",
        &token_bucket("100000/s", 100_000),
        r#""timeout": "10ms", "lease": { "max": 10, "ttl": "1s" }"#,
    )]);
    let selection = select(&rules, "u");
    for seed in 0..200 {
        let network = NetworkConfig { seed, loss: 300_000, ..network };
        let mut cluster = Cluster::new(&WorldConfig { network, ..WorldConfig::default() });
        let opened = |cluster: &Cluster| cluster.world.metrics(0).unwrap().opened;
        for step in 0..3_000u64 {
            for _ in 0..step * (seed + 7) % 11 {
                cluster.ask(0, &rules, &selection);
            }
            cluster.run_for(MS);
            if opened(&cluster) > 0 {
                break;
            }
        }
        cluster.world.network().set(NetworkConfig { loss: 0, ..network });
        cluster.run_for(SECOND);
        assert_eq!(cluster.world.instance(0).unwrap().state(), State::Closed, "{seed}");
    }
}
