//! Gateways that share one limit: the engine of each is the real one, and the
//! network and Redis are played, in virtual time (`tollgate_core::redis::sim`).
//!
//! Here are only the traffic that is offered and the sums of what became of it.

use js_sys::{Object, Uint8Array, Uint32Array};
use tollgate_core::key::Seed;
use tollgate_core::limit::Algorithm;
use tollgate_core::metrics::StoreSnapshot;
use tollgate_core::policy::{Attributes, KeyRoom, Rules};
use tollgate_core::redis::breaker::{BreakerConfig, State};
use tollgate_core::redis::sim::{NetworkConfig, Outage, OutageKind, World, WorldConfig};
use tollgate_core::redis::store::StoreConfig;
use tollgate_core::table::Config;
use tollgate_core::{Limit, Nanos};
use wasm_bindgen::prelude::*;

use crate::value::{self, Result, number, one_of, refuse, refused, set, whole};
use load::Load;
use settings::Settings;

mod load;
mod settings;

const MS: f64 = 1_000_000.0;
/// What becomes of calls while Redis is away.
const KINDS: [(&str, OutageKind); 4] = [
    ("refused", OutageKind::Refused),
    ("lost", OutageKind::Lost),
    ("failing", OutageKind::Failing),
    ("stopped", OutageKind::Stopped),
];

/// A cluster in virtual time.
#[wasm_bindgen]
pub struct Cluster {
    world: World,
    start: Nanos,
    settings: Settings,
    rules: Rules,
    table: Config,
    load: Load,
    total: Sums,
    /// What the limit of one key allows until `since`, in units.
    allowed: u64,
    since: Nanos,
    sent: u64,
    counted: StoreSnapshot,
}

/// What became of requests.
#[derive(Clone, Debug, Default)]
struct Sums {
    offered: u64,
    admitted: u64,
    denied: u64,
    asked: u64,
    lease: u64,
    denial: u64,
    fallback: u64,
    calls: u64,
    timeouts: u64,
    failures: u64,
}

#[wasm_bindgen]
impl Cluster {
    /// A cluster to which nothing has happened.
    #[wasm_bindgen(constructor)]
    pub fn new(options: &JsValue) -> Result<Cluster> {
        value::object("options", options)?;
        let given = |name: &str| value::given(options, name);
        let instances =
            given("instances").map_or(Ok(20), |given| whole("instances", &given, 1, 200))? as usize;
        let seed = given("seed").map_or(Ok(1), |given| whole("seed", &given, 0, value::MOST_EXACT))?;
        let mut settings = Settings::new()?;
        settings.read(options)?;
        let rules = settings.rules()?;
        let limit = settings.limit;
        let row_entries = if needs_rows(&limit) { limit.limit() } else { 0 };
        let keys = u64::from(settings.keys);
        let rows = if row_entries > 0 { (keys * 2).clamp(8, 64) } else { 0 };
        let table = Config { capacity: (keys * 2).clamp(256, 8192), rows, row_entries };
        let millis = |ms: f64| (ms * MS) as Nanos; // in range
        let [failures, window, open_for, max_open] = settings.breaker;
        let breaker = BreakerConfig {
            failures: failures as u32,
            window: millis(window),
            open_for: millis(open_for),
            max_open: millis(max_open),
        };
        let store = StoreConfig {
            pots: (settings.keys as usize * 2).clamp(64, if instances > 50 { 1024 } else { 4096 }),
            waiting: 512,
            holds: 64,
            breaker,
            ..StoreConfig::default()
        };
        let network = NetworkConfig { seed, ..settings.network() };
        let config = WorldConfig { instances, store, table, network, ..WorldConfig::default() };
        let world = World::new(&config).map_err(refused)?;
        let start = world.now();
        let load = Load::new(&settings, start, seed);
        Ok(Cluster {
            world,
            start,
            rules,
            table,
            load,
            total: Sums::default(),
            allowed: limit.burst(),
            since: start,
            sent: 0,
            counted: StoreSnapshot::default(),
            settings,
        })
    }

    /// Lets so many milliseconds of virtual time pass.
    pub fn step(&mut self, ms: &JsValue) -> Result<Object> {
        let ms = number("ms", ms, 0.001, 1000.0)?;
        let end = self.world.now().saturating_add((ms * MS) as Nanos);
        let mut step = Sums::default();
        let mut waits = Vec::new();
        let instances = self.world.instances();
        let mut by_instance = (vec![0u32; instances], vec![0u32; instances]);
        let mut room = KeyRoom::new();
        let mut name = String::new();
        while let Some(arrival) = self.load.next(end) {
            self.world.run_to(arrival.at);
            step.offered += 1;
            name.clear();
            name.push('t');
            name.push_str(&arrival.key.to_string());
            let headers = [Some(name.as_bytes())];
            let request = Attributes {
                route: b"",
                method: b"GET",
                host: b"",
                path: b"/",
                peer: None,
                headers: &headers,
            };
            // The header field is told: nothing can be missing.
            if let Ok(selection) = self.rules.select(&request, &mut room) {
                self.world.check(arrival.instance % instances, &self.rules, &selection, arrival.number);
            }
            note(&mut self.world, &mut self.load, &mut step, &mut waits, &mut by_instance);
        }
        self.world.run_to(end);
        note(&mut self.world, &mut self.load, &mut step, &mut waits, &mut by_instance);
        self.count(&mut step);
        Ok(self.sample(&step, waits, &by_instance))
    }

    /// Other settings from now on; what is not given stays, and nothing
    /// changes when one is refused.
    pub fn set(&mut self, settings: &JsValue) -> Result<()> {
        value::object("settings", settings)?;
        let mut next = self.settings.clone();
        next.read(settings)?;
        if next.breaker != self.settings.breaker {
            return Err(refuse("breaker: is set when a cluster begins"));
        }
        if next.keys > self.settings.keys && u64::from(next.keys) * 2 > self.table.capacity {
            return Err(refuse("keys: the instances have no room for so many; begin a new cluster"));
        }
        if needs_rows(&next.limit) && next.limit.limit() > self.table.row_entries {
            return Err(refuse("limit: the instances have no room for this algorithm; begin a new cluster"));
        }
        let rules = next.rules()?;
        if next.limit != self.settings.limit {
            // What was spent stays spent: a larger burst is allowed on top.
            let more = next.limit.burst().saturating_sub(self.settings.limit.burst());
            self.allowed = self.allowed_by_now().saturating_add(more);
            self.since = self.world.now();
        }
        self.world.network().set(next.network());
        self.load.set(&next, self.world.now());
        (self.rules, self.settings) = (rules, next);
        Ok(())
    }

    /// All that is in force.
    #[wasm_bindgen(getter)]
    pub fn settings(&self) -> Object {
        self.settings.told()
    }

    /// How many there are.
    #[wasm_bindgen(getter)]
    pub fn instances(&self) -> f64 {
        self.world.instances() as f64
    }

    /// Redis is away from now on.
    pub fn outage(&mut self, kind: &JsValue, ms: &JsValue, instance: &JsValue) -> Result<()> {
        let names = KINDS.map(|(name, _)| name);
        let place = if kind.is_undefined() { 0 } else { one_of("kind", kind, &names)? };
        let (_, kind) = KINDS.get(place).copied().unwrap_or(KINDS[0]);
        let from = self.world.now();
        let to = match ms.is_undefined() {
            true => Nanos::MAX,
            false => from.saturating_add((number("ms", ms, 0.0, 86_400_000.0)? * MS) as Nanos),
        };
        let most = self.world.instances() as u64 - 1; // there is one at least
        let instance = match instance.is_undefined() {
            true => None,
            false => Some(whole("instance", instance, 0, most)? as usize),
        };
        self.world.network().plan(Outage { from, to, kind, instance });
        Ok(())
    }

    /// Redis is there again.
    pub fn heal(&mut self) {
        let now = self.world.now();
        self.world.network().heal(now);
    }

    /// Redis forgets all.
    pub fn flush(&mut self) {
        self.world.flush_at(self.world.now());
    }
}

impl Cluster {
    /// What the instances counted in this step.
    fn count(&mut self, step: &mut Sums) {
        let mut now = StoreSnapshot::default();
        for instance in 0..self.world.instances() {
            let Some(of) = self.world.metrics(instance) else { continue };
            now.lease_hits += of.lease_hits;
            now.denial_hits += of.denial_hits;
            now.fallback_local += of.fallback_local + of.fallback_allow + of.fallback_deny;
            now.timeouts += of.timeouts;
            now.failures += of.failures;
        }
        let (before, sent) = (self.counted, self.world.network().sent());
        step.lease = now.lease_hits - before.lease_hits;
        step.denial = now.denial_hits - before.denial_hits;
        step.fallback = now.fallback_local - before.fallback_local;
        step.timeouts = now.timeouts - before.timeouts;
        step.failures = now.failures - before.failures;
        step.calls = sent - self.sent;
        let answers = step.admitted + step.denied;
        step.asked = answers.saturating_sub(step.lease + step.denial + step.fallback);
        (self.counted, self.sent) = (now, sent);
        let total = &mut self.total;
        for (sum, part) in [
            (&mut total.offered, step.offered),
            (&mut total.admitted, step.admitted),
            (&mut total.denied, step.denied),
            (&mut total.asked, step.asked),
            (&mut total.lease, step.lease),
            (&mut total.denial, step.denial),
            (&mut total.fallback, step.fallback),
            (&mut total.calls, step.calls),
        ] {
            *sum += part;
        }
    }

    /// Law 1: burst + limit × time / period, of one key.
    fn allowed_by_now(&self) -> u64 {
        let (limit, span) = (&self.settings.limit, self.world.now() - self.since);
        let units = u128::from(span) * u128::from(limit.limit()) / u128::from(limit.period());
        self.allowed.saturating_add(u64::try_from(units).unwrap_or(u64::MAX))
    }

    fn sample(&mut self, step: &Sums, mut waits: Vec<f64>, by: &(Vec<u32>, Vec<u32>)) -> Object {
        waits.sort_unstable_by(f64::total_cmp);
        let quantile = |part: f64| {
            let place = (waits.len() as f64 * part).ceil() as usize; // at most all
            waits.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let now = self.world.now();
        let object = Object::new();
        set(&object, "now", (now - self.start) as f64 / MS);
        sums(&object, step);
        set(&object, "timeouts", step.timeouts as f64);
        set(&object, "failures", step.failures as f64);
        set(&object, "p50", quantile(0.5));
        set(&object, "p99", quantile(0.99));
        set(&object, "max", waits.last().copied().unwrap_or(0.0));
        set(&object, "waiting", self.world.waiting() as f64);
        set(&object, "held", self.world.held() as f64);
        set(&object, "isOut", self.world.network().is_out(now));
        let breakers: Vec<u8> = (0..self.world.instances())
            .map(|instance| match self.world.instance(instance).map(|store| store.state()) {
                Some(State::Open) => 2,
                Some(State::HalfOpen) => 1,
                _ => 0,
            })
            .collect();
        set(&object, "breakers", Uint8Array::from(breakers.as_slice()));
        let instances = Object::new();
        set(&instances, "admitted", Uint32Array::from(by.0.as_slice()));
        set(&instances, "denied", Uint32Array::from(by.1.as_slice()));
        set(&object, "byInstance", instances);
        let allowed = self.allowed_by_now() as f64;
        let total = Object::new();
        sums(&total, &self.total);
        set(&total, "allowed", allowed * f64::from(self.settings.keys));
        set(&object, "total", total);
        let (key, of) = self.load.hottest();
        let hottest = Object::new();
        set(&hottest, "key", key as f64);
        set(&hottest, "offered", of.offered as f64);
        set(&hottest, "admitted", of.admitted as f64);
        set(&hottest, "allowed", allowed);
        set(&object, "hottest", hottest);
        object
    }
}

/// Takes the answers that there are.
fn note(
    world: &mut World,
    load: &mut Load,
    step: &mut Sums,
    waits: &mut Vec<f64>,
    by: &mut (Vec<u32>, Vec<u32>),
) {
    for told in world.answers() {
        let Some(asked_at) = load.answered(told.user, told.answer.allowed) else { continue };
        waits.push(told.at.saturating_sub(asked_at) as f64 / MS);
        let counts = if told.answer.allowed { &mut by.0 } else { &mut by.1 };
        if let Some(count) = counts.get_mut(told.instance) {
            *count += 1;
        }
        if told.answer.allowed {
            step.admitted += 1;
        } else {
            step.denied += 1;
        }
    }
}

fn sums(object: &Object, sums: &Sums) {
    for (name, sum) in [
        ("offered", sums.offered),
        ("admitted", sums.admitted),
        ("denied", sums.denied),
        ("asked", sums.asked),
        ("lease", sums.lease),
        ("denial", sums.denial),
        ("fallback", sums.fallback),
        ("calls", sums.calls),
    ] {
        set(object, name, sum as f64);
    }
}

fn needs_rows(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency)
}

/// A secret that no table of a simulation needs: the same each time.
fn seed() -> Seed {
    Seed([1, 2])
}
