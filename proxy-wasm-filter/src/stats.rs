//! What is counted, as the host's statistics: Envoy shows them as
//! `wasmcustom.tollgate.…`, and at `/stats/prometheus` as `tollgate_…`.
//!
//! Requests are counted in the VM's memory, and told ten times a second: a
//! call to the host for each of them would cost as much as the decision. Only
//! how long a request waited for Redis is told at once.

use tollgate_core::metrics::{Counters, StoreSnapshot, TopKeys};
use tollgate_core::pages::Pages;
use tollgate_core::policy::{self, Answer, Rules, Selection};
use tollgate_core::time::Nanos;

use crate::abi::{self, MetricKind};
use crate::pages::HostPages;

/// What is counted is told so often: 100 ms.
const INTERVAL: Nanos = 100_000_000;

/// A plugin's counts.
#[derive(Debug)]
pub(crate) struct Stats {
    counters: Vec<Counters>,
    /// Requests that did not tell who they come from, and must.
    unidentified: u64,
    /// In the order in which [`tell`](Self::tell) goes through them.
    metrics: Vec<Metric>,
    wait: Option<u32>,
    told_at: Nanos,
}

/// One of the host's; none where the host has no such thing.
#[derive(Debug)]
struct Metric {
    id: Option<u32>,
    kind: MetricKind,
    told: u64,
}

impl Stats {
    /// Defines all of them; the host knows one that was defined before.
    pub(crate) fn new(rules: &Rules) -> Stats {
        let mut stats = Stats {
            counters: rules.policies().iter().map(|_| Counters::default()).collect(),
            unidentified: 0,
            metrics: Vec::new(),
            wait: abi::define_metric(MetricKind::Histogram, "tollgate.redis.wait_us").ok(),
            told_at: 0,
        };
        for policy in rules.policies() {
            for (what, _) in of_policy(&Counters::default()) {
                // The name as it is, dots too: what follows it never has one.
                stats.define(MetricKind::Counter, &["tollgate.policy.", policy.name(), ".", what].concat());
            }
        }
        for (name, kind, _) in of_plugin(&StoreSnapshot::default(), 0, [0, 0]) {
            stats.define(kind, name);
        }
        stats
    }

    fn define(&mut self, kind: MetricKind, name: &str) {
        self.metrics.push(Metric { id: abi::define_metric(kind, name).ok(), kind, told: 0 });
    }

    /// Counts an answer.
    pub(crate) fn answered(
        &mut self,
        rules: &Rules,
        pages: &Pages<HostPages>,
        selection: &Selection<'_>,
        answer: &Answer,
    ) {
        policy::record(rules, pages, selection, answer, &self.counters, None::<&TopKeys<1>>);
        let layers = answer.degraded().filter_map(|place| selection.layer(place));
        for counters in layers.filter_map(|layer| self.counters.get(layer.policy)) {
            counters.record_error();
        }
    }

    /// Counts a request without an identity.
    pub(crate) fn unidentified(&mut self) {
        self.unidentified = self.unidentified.saturating_add(1);
    }

    /// A request waited so long for Redis.
    pub(crate) fn waited(&self, span: Nanos) {
        if let Some(id) = self.wait {
            let _ = abi::record_metric(id, span / 1000);
        }
    }

    /// Tells the host what has changed. `pages` are rows evicted and exchanges
    /// that began anew.
    pub(crate) fn tell(&mut self, store: &StoreSnapshot, pages: [u64; 2], now: Nanos) {
        if now.saturating_sub(self.told_at) < INTERVAL {
            return;
        }
        self.told_at = now;
        let policies = self.counters.iter().flat_map(of_policy).map(|(_, value)| value);
        let plugin = of_plugin(store, self.unidentified, pages).into_iter().map(|(.., value)| value);
        for (metric, value) in self.metrics.iter_mut().zip(policies.chain(plugin)) {
            let Some(id) = metric.id.filter(|_| value != metric.told) else { continue };
            let change =
                i64::try_from(i128::from(value).saturating_sub(i128::from(metric.told))).unwrap_or(0);
            // Each worker adds its own: a gauge is the sum of theirs.
            if abi::increment_metric(id, change).is_ok() {
                metric.told = value;
            }
        }
    }

    /// The plugin ends: what it has open or waiting is not counted any more.
    pub(crate) fn end(&mut self) {
        for metric in self.metrics.iter_mut().filter(|metric| metric.kind == MetricKind::Gauge) {
            let change = i64::try_from(metric.told).unwrap_or(0).saturating_neg();
            if let Some(id) = metric.id.filter(|_| change != 0) {
                let _ = abi::increment_metric(id, change);
            }
            metric.told = 0;
        }
    }
}

fn of_policy(counters: &Counters) -> [(&'static str, u64); 4] {
    let counts = counters.snapshot();
    [
        ("allowed", counts.allowed),
        ("denied", counts.rejected),
        ("would_deny", counts.rejected_dry_run),
        ("store_errors", counts.errors),
    ]
}

fn of_plugin(
    store: &StoreSnapshot,
    unidentified: u64,
    [evicted, conflicts]: [u64; 2],
) -> [(&'static str, MetricKind, u64); 19] {
    use MetricKind::{Counter, Gauge};
    [
        ("tollgate.unidentified", Counter, unidentified),
        ("tollgate.pages.evicted", Counter, evicted),
        ("tollgate.pages.conflicts", Counter, conflicts),
        ("tollgate.store.calls", Counter, store.calls),
        ("tollgate.store.replies", Counter, store.replies),
        ("tollgate.store.lease_hits", Counter, store.lease_hits),
        ("tollgate.store.denial_hits", Counter, store.denial_hits),
        ("tollgate.store.prefetches", Counter, store.prefetches),
        ("tollgate.store.give_backs", Counter, store.give_backs),
        ("tollgate.store.timeouts", Counter, store.timeouts),
        ("tollgate.store.failures", Counter, store.failures),
        ("tollgate.store.key_failures", Counter, store.key_failures),
        ("tollgate.store.fallback_local", Counter, store.fallback_local),
        ("tollgate.store.fallback_allow", Counter, store.fallback_allow),
        ("tollgate.store.fallback_deny", Counter, store.fallback_deny),
        ("tollgate.store.connected", Counter, store.connected),
        ("tollgate.store.breaker_opened", Counter, store.opened),
        ("tollgate.store.breaker_open", Gauge, store.open),
        ("tollgate.store.waiting", Gauge, store.waiting),
    ]
}
