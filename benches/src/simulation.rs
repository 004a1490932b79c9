//! A cluster in virtual time: how exact a shared limit is, and what it costs
//! the server, by the size of leases.
//!
//! The instances are the real thing; the network and the server are played
//! ([`tollgate_core::redis::sim`]), from a seed. The numbers are so the same
//! each time, on every machine, and say nothing of speed.
//!
//! `make bench` runs a part of it, `make simulate` all, which also draws
//! `docs/cluster-wide.svg`.

use std::fs;
use std::io;
use std::process::ExitCode;

use serde::Serialize;
use tollgate_core::key::Seed;
use tollgate_core::policy::{Attributes, KeyRoom, Rules};
use tollgate_core::redis::sim::{NetworkConfig, Outage, OutageKind, Random, World, WorldConfig};
use tollgate_core::redis::store::StoreConfig;
use tollgate_core::table::Config;

use crate::report::Row;
use crate::{Options, folder};

mod chart;

const KEYS: usize = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// Of each key.
const LIMIT: u64 = 500;
const BURST: u64 = 500;
/// Requests that are offered to all instances together.
const OFFERED: u64 = 50_000;
/// A key is saturated that is offered so many percent of what its limit admits.
const SATURATED: u64 = 150;
/// A key is hot that is offered so much a second, and stays within its limit.
const HOT: core::ops::Range<u64> = 50..350;
const LEASES: [u64; 6] = [0, 2, 5, 10, 50, 1000];
const INSTANCES: [usize; 3] = [20, 200, 2000];

/// What is simulated.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    name: &'static str,
    instances: usize,
    lease: u64,
    seconds: u64,
    network: NetworkConfig,
    outage: Option<OutageKind>,
}

/// What became of it.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    name: String,
    instances: usize,
    lease_max: u64,
    seconds: u64,
    requests: u64,
    /// Calls that the server carried out.
    commands: u64,
    commands_per_100_requests: f64,
    /// Of those keys alone that are hot, and within their limit.
    hot_keys: usize,
    hot_commands_per_100_requests: f64,
    /// Of all requests for hot keys, in percent, those that were denied.
    hot_denied_percent: f64,
    /// Of all requests, in percent, those that waited for an answer.
    waited_percent: f64,
    saturated_keys: usize,
    /// Admitted, in percent of what the limits admit: of all saturated keys
    /// together, the least of them, the most of them.
    accuracy_percent: f64,
    least_percent: f64,
    most_percent: f64,
    /// The longest time that a request waited, in milliseconds.
    longest_wait_ms: f64,
}

const CALM: NetworkConfig = NetworkConfig { seed: 1, latency: 250_000, jitter: 250_000, loss: 0 };

pub(crate) fn rows(_: &Options) -> Vec<Row> {
    let of = |lease| {
        let (name, network) = ("part", CALM);
        run(Scenario { name, instances: 20, lease, seconds: 5, network, outage: None })
    };
    let outcomes: Vec<Outcome> = [0, 10, 50].into_iter().map(of).collect();
    if let Err(error) = write("simulation-part.json", &outcomes) {
        eprintln!("{error}");
    }
    let [without, _, with] = &outcomes[..] else { return Vec::new() };
    let setting =
        "20 instances, 1,000,000 keys by Zipf, 50,000 requests/s offered, leases of up to 50, simulated";
    let off = (with.accuracy_percent - 100.0).abs();
    vec![
        Row::absolute(
            "simulation/accuracy",
            &format!("off the limit, saturated keys; {setting}"),
            "%",
            off,
            1.0,
        ),
        Row::absolute(
            "simulation/most",
            &format!("the most that a key admitted; {setting}"),
            "% of limit",
            with.most_percent,
            100.0,
        ),
        Row::new(
            "simulation/commands",
            &format!("Redis commands, hot keys; {setting}"),
            "per 100 requests",
            with.hot_commands_per_100_requests,
            without.hot_commands_per_100_requests,
            "the same without leases",
        ),
    ]
}

/// All of it: the table, the file, the figure.
pub(crate) fn sweep() -> ExitCode {
    println!("{HEADING}");
    let mut outcomes = Vec::new();
    for instances in INSTANCES {
        for lease in LEASES {
            let (name, network) = ("lease size", CALM);
            outcomes.push(told(run(Scenario { name, instances, lease, seconds: 8, network, outage: None })));
        }
    }
    let base = Scenario { name: "", instances: 20, lease: 50, seconds: 20, network: CALM, outage: None };
    let far = NetworkConfig { latency: 10 * MS, jitter: 5 * MS, ..CALM };
    let lossy = NetworkConfig { loss: 10_000, ..CALM };
    for scenario in [
        Scenario { name: "20 to 30 ms there and back", network: far, ..base },
        Scenario { name: "2% of calls unanswered", network: lossy, ..base },
        Scenario { name: "refused for 5 s", outage: Some(OutageKind::Refused), ..base },
        Scenario { name: "stopped for 5 s", outage: Some(OutageKind::Stopped), ..base },
        Scenario { name: "cut off for 5 s", outage: Some(OutageKind::Lost), ..base },
    ] {
        outcomes.push(told(run(scenario)));
    }
    let drawn = write("simulation.json", &outcomes).map_err(|error| error.to_string());
    match drawn.and_then(|()| chart::draw(&outcomes, "docs/cluster-wide.svg")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

const HEADING: &str = "| scenario | instances | lease | commands per 100 requests, all keys | hot keys | hot keys denied | waited | admitted, of the limit | least | most | longest wait |\n\
|---|---|---|---|---|---|---|---|---|---|---|";

fn told(outcome: Outcome) -> Outcome {
    println!(
        "| {} | {} | {} | {:.1} | {:.1} | {:.2}% | {:.1}% | {:.2}% | {:.2}% | {:.2}% | {:.1} ms |",
        outcome.name,
        outcome.instances,
        outcome.lease_max,
        outcome.commands_per_100_requests,
        outcome.hot_commands_per_100_requests,
        outcome.hot_denied_percent,
        outcome.waited_percent,
        outcome.accuracy_percent,
        outcome.least_percent,
        outcome.most_percent,
        outcome.longest_wait_ms,
    );
    outcome
}

fn write(name: &str, outcomes: &[Outcome]) -> io::Result<()> {
    fs::create_dir_all(folder())?;
    let mut text = serde_json::to_string_pretty(outcomes)?;
    text.push('\n');
    fs::write(folder().join(name), text)
}

fn rules(lease: u64) -> Rules {
    let lease =
        if lease > 0 { format!(r#", "lease": {{ "max": {lease}, "ttl": "1s" }}"#) } else { String::new() };
    let text = format!(
        r#"{{ "identity": {{ "tenant": {{ "header": "x-tenant" }} }},
             "policies": [ {{ "name": "t", "key": ["tenant"], "store": "redis", "timeout": "50ms",
                              "limits": [ {{ "rate": "{LIMIT}/s", "burst": {BURST} }} ] {lease} }} ] }}"#
    );
    Rules::parse(&text, Seed([1, 2])).expect("legal rules")
}

fn run(scenario: Scenario) -> Outcome {
    let Scenario { name, instances, lease, seconds, network, outage } = scenario;
    let rules = rules(lease);
    let many = instances > 200;
    let store = StoreConfig {
        pots: if many { 128 } else { 4096 },
        waiting: if many { 16 } else { 128 },
        holds: 0,
        ..StoreConfig::default()
    };
    let capacity = if outage.is_some() { 1 << 17 } else { 64 };
    let table = Config { capacity, rows: 0, row_entries: 0 };
    let config = WorldConfig { instances, store, table, network, ahead: SECOND, ..WorldConfig::default() };
    let mut world = World::new(&config).expect("a legal world");
    let start = world.now();
    if let Some(kind) = outage {
        let (from, to) = (start + 5 * SECOND, start + 10 * SECOND);
        world.network().plan(Outage { from, to, kind, instance: None });
    }
    let zipf = Zipf::new(KEYS);
    let mut random = Random::new(network.seed);
    let mut room = KeyRoom::new();
    let requests = OFFERED * seconds;
    let mut asked: Vec<(u32, u64)> = Vec::with_capacity(usize::try_from(requests).expect("64 bits"));
    let (mut offered, mut admitted) = (vec![0u64; KEYS], vec![0u64; KEYS]);
    let (mut waited, mut longest) = (0u64, 0u64);
    let mut key = String::new();
    for number in 0..requests {
        let spread = random.below(SECOND / OFFERED);
        world.run_to(start + number * (SECOND / OFFERED) + spread);
        let tenant = zipf.draw(&mut random);
        offered[tenant] += 1;
        asked.push((u32::try_from(tenant).expect("a million"), world.now()));
        key.clear();
        std::fmt::Write::write_fmt(&mut key, format_args!("t{tenant}")).expect("a string takes all");
        let headers = [Some(key.as_bytes())];
        let request =
            Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &headers };
        let selection = rules.select(&request, &mut room).expect("the tenant is told");
        let instance = usize::try_from(random.below(instances as u64)).expect("64 bits");
        waited += u64::from(world.check(instance, &rules, &selection, number).is_some());
        note(&mut world, &asked, &mut admitted, &mut longest);
    }
    world.run_for(SECOND);
    note(&mut world, &asked, &mut admitted, &mut longest);
    let most = BURST + LIMIT * seconds;
    let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
    let mut hot = (0, 0, 0, 0);
    for tenant in 0..1000 {
        let asked = offered[tenant];
        if HOT.contains(&(asked / seconds)) {
            let book = world.store().book(format!("tg:{{t{tenant}}}:t").as_bytes()).unwrap_or_default();
            let (keys, calls, requests, denied) = hot;
            hot = (keys + 1, calls + book.calls, requests + asked, denied + asked - admitted[tenant]);
        }
    }
    let saturated: Vec<f64> = offered
        .iter()
        .zip(&admitted)
        .filter(|(offered, _)| **offered * 100 >= most * SATURATED)
        .map(|(_, admitted)| percent(*admitted, most))
        .collect();
    assert!(!saturated.is_empty(), "no key is saturated");
    Outcome {
        name: name.to_owned(),
        instances,
        lease_max: lease,
        seconds,
        requests,
        commands: world.store().commands(),
        commands_per_100_requests: percent(world.store().commands(), requests),
        hot_keys: hot.0,
        hot_commands_per_100_requests: percent(hot.1, hot.2),
        hot_denied_percent: percent(hot.3, hot.2),
        waited_percent: percent(waited, requests),
        saturated_keys: saturated.len(),
        accuracy_percent: saturated.iter().sum::<f64>() / saturated.len() as f64,
        least_percent: saturated.iter().copied().fold(f64::MAX, f64::min),
        most_percent: saturated.iter().copied().fold(0.0, f64::max),
        longest_wait_ms: longest as f64 / MS as f64,
    }
}

fn note(world: &mut World, asked: &[(u32, u64)], admitted: &mut [u64], longest: &mut u64) {
    for told in world.answers() {
        let (tenant, at) = asked[usize::try_from(told.user).expect("64 bits")];
        admitted[tenant as usize] += u64::from(told.answer.allowed);
        *longest = (*longest).max(told.at - at);
    }
}

/// Keys of which the n-th is asked 1/n as often as the first.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: usize) -> Zipf {
        let mut sum = 0.0;
        let upto = (1..=keys).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Zipf(upto.collect())
    }

    fn draw(&self, random: &mut Random) -> usize {
        let whole = self.0.last().copied().unwrap_or(1.0);
        let at = random.draw() as f64 / u64::MAX as f64 * whole;
        self.0.partition_point(|upto| *upto < at).min(self.0.len() - 1)
    }
}
