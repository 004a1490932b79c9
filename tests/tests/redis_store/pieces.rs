//! Shards and regions: pieces that add up.

use proptest::prelude::*;
use tollgate_core::redis::share::Share;
use tollgate_core::redis::sim::{Outage, OutageKind};

use super::cluster::{Cluster, MS, limit, policy, rules, select, token_bucket};

fn algorithm(which: usize, units: u64) -> String {
    match which {
        0 => token_bucket(&format!("{units}/h"), units),
        1 => limit("fixed_window", &format!("{units}/h")),
        2 => limit("sliding_window", &format!("{units}/h")),
        _ => limit("sliding_log", &format!("{units}/h")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// A divided key admits what the whole would, to the unit, whoever asks
    /// which piece first.
    #[test]
    fn shards_add_up(
        seed in any::<u64>(), which in 0usize..4, units in 1u64..=100, shards in 1u64..=16,
        instances in 1usize..=4, max in 0u64..=20,
    ) {
        let shards = shards.min(units);
        let lease = if max > 0 { format!(r#", "lease": {{ "max": {max}, "ttl": "1s" }}"#) } else { String::new() };
        let more = format!(r#""timeout": "100ms", "shards": {shards} {lease}"#);
        let rules = rules(&[policy("p", &algorithm(which, units), &more)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(instances, seed);
        for _ in 0..400 {
            for instance in 0..instances {
                cluster.ask(instance, &rules, &selection);
            }
            cluster.run_for(25 * MS);
        }
        cluster.settle();
        prop_assert_eq!(cluster.admitted(), units, "{:?}", cluster.books());
    }

    /// Regions that each have a Redis of their own: their parts add up, before
    /// and after the shares are changed.
    #[test]
    fn regions_add_up(
        seed in any::<u64>(), which in 0usize..4, units in 4u64..=100,
        before in [1u64..=5, 1u64..=5, 1u64..=5], after in [1u64..=5, 1u64..=5, 1u64..=5], changes in any::<bool>(),
    ) {
        let rules = rules(&[policy("p", &algorithm(which, units), r#""timeout": "100ms""#)]);
        let selection = select(&rules, "u");
        let mut total = 0;
        for region in 0..3 {
            let mut cluster = Cluster::of(2, seed);
            for instance in 0..2 {
                cluster.world.set_region(instance, Share::weighted(&before, region).unwrap());
            }
            if changes {
                for instance in 0..2 {
                    cluster.world.set_region(instance, Share::weighted(&after, region).unwrap());
                }
            }
            for step in 0..240 {
                cluster.ask(step % 2, &rules, &selection);
                cluster.run_for(4 * MS);
            }
            cluster.settle();
            total += cluster.admitted();
        }
        // A bucket's part of less than one unit may hold one.
        prop_assert!(total == units || (which == 0 && total < units + 3), "{} of {}", total, units);
    }

    /// A share that is changed while requests come: what is spent stays spent.
    #[test]
    fn a_region_that_grows_admits_the_difference(
        seed in any::<u64>(), which in 0usize..4, first in 1u64..=10, more in 0u64..=10,
    ) {
        let rules = rules(&[policy("p", &algorithm(which, 60), r#""timeout": "100ms""#)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(1, seed);
        for parts in [first, first + more] {
            cluster.world.set_region(0, Share::new(0, parts, 20).unwrap());
            for _ in 0..80 {
                cluster.ask(0, &rules, &selection);
                cluster.run_for(2 * MS);
            }
        }
        cluster.settle();
        prop_assert_eq!(cluster.admitted(), 60 * (first + more) / 20);
    }

    /// A region's instances fall back to their pieces of its part.
    #[test]
    fn a_region_without_its_store_keeps_its_part(
        seed in any::<u64>(), which in 0usize..4, parts in 1u64..=10, shards in 1u64..=4, spend in 0usize..=10,
    ) {
        let more = format!(r#""timeout": "100ms", "shards": {shards}"#);
        let rules = rules(&[policy("p", &algorithm(which, 80), &more)]);
        let selection = select(&rules, "u");
        let mut cluster = Cluster::of(2, seed);
        for instance in 0..2 {
            cluster.world.set_region(instance, Share::new(0, parts, 10).unwrap());
        }
        for step in 0..spend {
            cluster.ask(step % 2, &rules, &selection);
            cluster.run_for(4 * MS);
        }
        let from = cluster.world.now();
        let spent = cluster.admitted();
        let kind = OutageKind::Refused;
        cluster.world.network().plan(Outage { from, to: u64::MAX, kind, instance: None });
        for step in 0..400 {
            cluster.ask(step % 2, &rules, &selection);
        }
        let part = 8 * parts;
        let total = cluster.admitted();
        // What was last told of one piece is taken for all of them.
        let known = spent * 2 * shards + 2 * shards;
        prop_assert!(total <= part + spent, "{} of {}", total, part);
        prop_assert!(total + known >= part, "{} of {}, {} spent before", total, part, spent);
    }
}
