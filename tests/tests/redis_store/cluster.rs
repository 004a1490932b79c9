//! A cluster as the laws see it: what was asked, what was told, and when.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate_core::Nanos;
use tollgate_core::key::Seed;
use tollgate_core::policy::{Answer, Attributes, KeyRoom, Rules, Selection};
use tollgate_core::redis::sim::{Book, NetworkConfig, OutageKind, World, WorldConfig};
use tollgate_core::redis::store::{Pending, StoreConfig};
use tollgate_core::time::SECOND;

pub(crate) const MS: Nanos = 1_000_000;

/// A rules document of these policies, which may count by `user`.
pub(crate) fn rules(policies: &[String]) -> Rules {
    let text = format!(
        r#"{{ "identity": {{ "user": {{ "header": "x-user" }}, "tenant": {{ "header": "x-tenant" }} }},
             "policies": [ {} ] }}"#,
        policies.join(",")
    );
    Rules::parse(&text, Seed([1, 2])).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
}

/// A policy that counts by user in Redis; `more` is further members.
pub(crate) fn policy(name: &str, limits: &str, more: &str) -> String {
    let comma = if more.is_empty() { "" } else { "," };
    format!(
        r#"{{ "name": "{name}", "key": ["user"], "store": "redis", "limits": [ {limits} ] {comma} {more} }}"#
    )
}

pub(crate) fn token_bucket(rate: &str, burst: u64) -> String {
    format!(r#"{{ "rate": "{rate}", "burst": {burst} }}"#)
}

pub(crate) fn limit(algorithm: &str, rate: &str) -> String {
    format!(r#"{{ "algorithm": "{algorithm}", "rate": "{rate}" }}"#)
}

/// The limits that a user's request must pass.
pub(crate) fn select<'r>(rules: &'r Rules, user: &str) -> Selection<'r> {
    let headers: Vec<_> = rules.headers().iter().map(|_| Some(user.as_bytes())).collect();
    let request =
        Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &headers };
    rules.select(&request, Box::leak(Box::new(KeyRoom::new()))).expect("every identity is told")
}

/// One request, and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) instance: usize,
    pub(crate) at: Nanos,
    pub(crate) cost: u64,
    pub(crate) pending: Option<Pending>,
    pub(crate) cancelled: bool,
    pub(crate) told: Option<(Nanos, Answer)>,
}

/// A world with a record of what was asked.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) asked: Vec<Asked>,
}

impl Cluster {
    pub(crate) fn new(config: &WorldConfig) -> Cluster {
        let config = &WorldConfig { pages: crate::PAGES, ..*config };
        Cluster { world: World::new(config).expect("a legal world"), asked: Vec::new() }
    }

    /// Some instances on a calm network.
    pub(crate) fn of(instances: usize, seed: u64) -> Cluster {
        let network = NetworkConfig { seed, ..NetworkConfig::default() };
        Cluster::new(&WorldConfig { instances, network, ..WorldConfig::default() })
    }

    /// Asks; the number of the request.
    pub(crate) fn ask(&mut self, instance: usize, rules: &Rules, selection: &Selection<'_>) -> usize {
        let cost = selection.layers().next().map_or(1, |layer| layer.cost);
        let number = self.asked.len();
        let at = self.world.now();
        self.asked.push(Asked { instance, at, cost, pending: None, cancelled: false, told: None });
        let pending = self.world.check(instance, rules, selection, number as u64);
        self.asked[number].pending = pending;
        self.note();
        assert_eq!(pending.is_none(), self.asked[number].told.is_some(), "it waits, or it is answered");
        number
    }

    pub(crate) fn cancel(&mut self, number: usize) {
        let asked = &mut self.asked[number];
        if let (Some(pending), None) = (asked.pending, &asked.told) {
            asked.cancelled = true;
            self.world.cancel(self.asked[number].instance, pending);
        }
        self.note();
    }

    pub(crate) fn run_for(&mut self, span: Nanos) {
        self.world.run_for(span);
        self.note();
    }

    /// Everything that is under way comes to its end, and every instance gives
    /// back what it has not spent.
    pub(crate) fn settle(&mut self) {
        self.run_for(5 * SECOND);
        for instance in 0..self.world.instances() {
            self.world.drain(instance);
        }
        self.run_for(5 * SECOND);
        assert_eq!((self.world.waiting(), self.world.held()), (0, 0), "nothing waits, nothing is held");
        for instance in 0..self.world.instances() {
            let metrics = self.world.metrics(instance).unwrap();
            assert_eq!(metrics.waiting, 0, "the gauge of instance {instance}");
        }
        for (number, asked) in self.asked.iter().enumerate() {
            assert!(asked.told.is_some() != asked.cancelled, "{number}: {asked:?}");
        }
    }

    fn note(&mut self) {
        for told in self.world.answers() {
            let asked = &mut self.asked[usize::try_from(told.user).unwrap()];
            assert_eq!(asked.instance, told.instance);
            assert!(!asked.cancelled, "a request that was cancelled is told nothing");
            assert!(asked.told.is_none(), "a request is answered once");
            asked.told = Some((told.at, told.answer));
        }
    }

    /// Units of all admitted requests.
    pub(crate) fn admitted(&self) -> u64 {
        self.admissions().map(|(_, cost)| cost).sum()
    }

    pub(crate) fn admissions(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let told = self.asked.iter().filter_map(|asked| Some((asked.told.as_ref()?, asked.cost)));
        told.filter(|((_, answer), _)| answer.allowed).map(|((at, _), cost)| (*at, cost))
    }

    pub(crate) fn answer(&self, number: usize) -> &Answer {
        &self.asked[number].told.as_ref().expect("it was answered").1
    }

    /// The books of all keys, by text.
    pub(crate) fn books(&self) -> BTreeMap<String, Book> {
        let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
        self.world.store().books().map(|(key, book)| (text(key), book)).collect()
    }

    /// Units that the store granted and has not got back, of all keys.
    pub(crate) fn granted(&self) -> u64 {
        self.world.store().books().map(|(_, book)| book.charged - book.given_back.min(book.charged)).sum()
    }
}

/// What a law is tried with.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) instances: usize,
    pub(crate) network: NetworkConfig,
    /// Milliseconds before each request, its instance, and which of what else
    /// is drawn.
    pub(crate) schedule: Vec<(u64, usize, u64)>,
}

impl Setting {
    pub(crate) fn cluster(&self) -> Cluster {
        let store = StoreConfig { pots: 16, waiting: 32, holds: 16, ..StoreConfig::default() };
        let (instances, network) = (self.instances, self.network);
        Cluster::new(&WorldConfig { instances, store, network, ahead: SECOND, ..WorldConfig::default() })
    }
}

/// From 1 to 8 instances, up to 4 ms one way, and requests in bursts and with
/// rests between them.
pub(crate) fn setting() -> impl Strategy<Value = Setting> {
    let gap = prop_oneof![5 => Just(0u64), 5 => 1u64..=5, 3 => 5u64..=100, 1 => 100u64..=3000];
    let request = (gap, 0usize..8, 0u64..1000);
    (1usize..=8, any::<u64>(), 0..=3 * MS, 0..=MS, prop::collection::vec(request, 1..400)).prop_map(
        |(instances, seed, latency, jitter, mut schedule)| {
            for (_, instance, _) in &mut schedule {
                *instance %= instances;
            }
            Setting { instances, network: NetworkConfig { seed, latency, jitter, loss: 0 }, schedule }
        },
    )
}

/// A lease of any size and time, or none.
pub(crate) fn lease() -> impl Strategy<Value = String> {
    let max = prop_oneof![1u64..=10, 1u64..=1000];
    let ttl = prop_oneof![Just(1000u64), 20u64..=3000];
    prop_oneof![
        1 => Just(String::new()),
        4 => (max, ttl).prop_map(|(max, ttl)| format!(r#", "lease": {{ "max": {max}, "ttl": "{ttl}ms" }}"#)),
    ]
}

/// How the store may be away.
pub(crate) fn kind() -> impl Strategy<Value = OutageKind> {
    prop::sample::select(vec![
        OutageKind::Refused,
        OutageKind::Failing,
        OutageKind::Lost,
        OutageKind::Stopped,
    ])
}
