//! Traffic to compare limits by: seeded, and closed-loop, as clients that are
//! denied may come again, and when they do depends on the answer.

use std::collections::BinaryHeap;

use core::cmp::Reverse;
use js_sys::{Float64Array, Object, Uint8Array, Uint32Array};
use tollgate_core::account::{self, Account};
use tollgate_core::{Limit, Nanos};
use wasm_bindgen::prelude::*;

use crate::limit::limit;
use crate::value::{self, Result, boolean, given, number, object, one_of, refuse, refused, set, whole};

const SECOND: f64 = 1e9;
/// Of a client's number.
const CLIENT_BITS: u32 = 10;
/// The clock begins far from zero, at a whole multiple of most periods.
const START: Nanos = 1_000_000_000_000_000_000 / 86_400_000_000_000 * 86_400_000_000_000;
/// Attempts of one play.
const MOST_ATTEMPTS: usize = 2_000_000;
/// Attempts that are told one by one.
const MOST_EVENTS: usize = 20_000;
/// Units that all clients' logs together may keep.
const MOST_UNITS: u64 = 1 << 22;

const PRESETS: [&str; 7] =
    ["steady", "burst", "window_boundary", "retry_storm", "retry_jitter", "cron_spike", "abuser"];
const RETRIES: [&str; 5] = ["none", "immediate", "backoff", "jitter", "retry_after"];

/// All that is in force.
#[derive(Clone, Copy, Debug)]
struct Options {
    preset: usize,
    seconds: f64,
    rate: f64,
    clients: u64,
    is_random: bool,
    burst: u64,
    every: f64,
    at: f64,
    spread: f64,
    pair: bool,
    abuser: f64,
    retry: usize,
    backoff: f64,
    attempts: u64,
    seed: u64,
}

impl Options {
    /// What a preset means where nothing else is said.
    fn of(preset: usize) -> Options {
        let steady = Options {
            preset,
            seconds: 60.0,
            rate: 8.0,
            clients: 20,
            is_random: true,
            burst: 0,
            every: 0.0,
            at: 0.0,
            spread: 0.0,
            pair: false,
            abuser: 0.0,
            retry: 0,
            backoff: 1000.0,
            attempts: 1,
            seed: 1,
        };
        let storm =
            Options { rate: 4.0, clients: 100, burst: 100, at: 10.0, spread: 0.2, attempts: 20, ..steady };
        match preset {
            1 => Options { rate: 3.0, burst: 40, every: 15.0, at: 5.0, spread: 0.5, ..steady },
            2 => Options { rate: 0.0, burst: 100, every: 20.0, at: 20.0, spread: 0.5, pair: true, ..steady },
            3 => Options { retry: 1, backoff: 200.0, ..storm },
            4 => Options { retry: 3, backoff: 1000.0, ..storm },
            5 => Options { rate: 2.0, clients: 60, burst: 60, every: 20.0, at: 20.0, spread: 0.1, ..steady },
            6 => Options { rate: 6.0, abuser: 40.0, ..steady },
            _ => steady,
        }
    }
}

/// A first attempt: nanoseconds since the start, and below them the client.
fn arrival(seconds: f64, client: u64) -> u64 {
    let since = (seconds.max(0.0) * SECOND) as u64; // below 2^43: two hours
    since << CLIENT_BITS | client
}

/// When, and whose.
fn of_arrival(arrival: u64) -> (Nanos, u32) {
    (START + (arrival >> CLIENT_BITS), (arrival & ((1 << CLIENT_BITS) - 1)) as u32) // START is below 2^61
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    fn part(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / 9_007_199_254_740_992.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.part() * end as f64) as u64 // below end
    }
}

/// Requests, as they first come.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Traffic {
    options: Options,
    arrivals: Vec<u64>,
}

#[wasm_bindgen]
impl Traffic {
    /// Draws it.
    #[wasm_bindgen(constructor)]
    pub fn new(options: &JsValue) -> Result<Traffic> {
        let options = read(options)?;
        Ok(Traffic { options, arrivals: arrivals(&options)? })
    }

    /// All that is in force.
    #[wasm_bindgen(getter)]
    pub fn options(&self) -> Object {
        let (all, told) = (&self.options, Object::new());
        set(&told, "preset", PRESETS.get(all.preset).copied().unwrap_or_default());
        set(&told, "arrivals", if all.is_random { "random" } else { "even" });
        set(&told, "pair", all.pair);
        set(&told, "retry", RETRIES.get(all.retry).copied().unwrap_or_default());
        for (name, value) in [
            ("seconds", all.seconds),
            ("rate", all.rate),
            ("clients", all.clients as f64),
            ("burst", all.burst as f64),
            ("every", all.every),
            ("at", all.at),
            ("spread", all.spread),
            ("abuser", all.abuser),
            ("backoff", all.backoff),
            ("attempts", all.attempts as f64),
            ("seed", all.seed as f64),
        ] {
            set(&told, name, value);
        }
        told
    }

    /// First attempts.
    #[wasm_bindgen(getter)]
    pub fn requests(&self) -> f64 {
        self.arrivals.len() as f64
    }

    /// Plays it through one limit.
    pub fn play(&self, of: &JsValue, options: &JsValue) -> Result<Object> {
        let limit = limit(of)?;
        object("options", options)?;
        let key = given(options, "key").map_or(Ok(0), |key| one_of("key", &key, &["all", "client"]))?;
        let steps = given(options, "steps").map_or(Ok(300), |steps| whole("steps", &steps, 10, 2000))?;
        let keys = if key == 0 { 1 } else { self.options.clients };
        let account = Account::new(limit).map_err(refused)?;
        if account::memory(&limit) > 32 && limit.limit().saturating_mul(keys) > MOST_UNITS {
            let limit = limit.limit();
            return Err(refuse(&format!("limit: {keys} keys of {limit} units are more than {MOST_UNITS}")));
        }
        let mut accounts = Vec::new();
        accounts.resize(keys as usize, account); // at most 1000
        let mut play = Play::new(&self.options, limit, steps as usize); // at most 2000
        play.run(&self.arrivals, &mut accounts);
        Ok(play.told(keys))
    }
}

fn read(from: &JsValue) -> Result<Options> {
    object("options", from)?;
    let preset = given(from, "preset").map_or(Ok(0), |name| one_of("preset", &name, &PRESETS))?;
    let mut all = Options::of(preset);
    for (name, room, least, most) in [
        ("seconds", &mut all.seconds, 1.0, 3600.0),
        ("rate", &mut all.rate, 0.0, 10_000.0),
        ("every", &mut all.every, 0.0, 3600.0),
        ("at", &mut all.at, 0.0, 3600.0),
        ("spread", &mut all.spread, 0.0, 60.0),
        ("abuser", &mut all.abuser, 0.0, 10_000.0),
        ("backoff", &mut all.backoff, 1.0, 60_000.0),
    ] {
        if let Some(given) = given(from, name) {
            *room = number(name, &given, least, most)?;
        }
    }
    for (name, room, least, most) in [
        ("clients", &mut all.clients, 1, 1000),
        ("burst", &mut all.burst, 0, 100_000),
        ("attempts", &mut all.attempts, 1, 100),
        ("seed", &mut all.seed, 0, value::MOST_EXACT),
    ] {
        if let Some(given) = given(from, name) {
            *room = whole(name, &given, least, most)?;
        }
    }
    if let Some(given) = given(from, "arrivals") {
        all.is_random = one_of("arrivals", &given, &["even", "random"])? == 1;
    }
    if let Some(given) = given(from, "pair") {
        all.pair = boolean("pair", &given)?;
    }
    if let Some(given) = given(from, "retry") {
        all.retry = one_of("retry", &given, &RETRIES)?;
    }
    if all.every > 0.0 && all.every < 0.1 {
        return Err(refuse("every: is 0, or from 0.1 to 3600 seconds"));
    }
    Ok(all)
}

/// When requests first come, in order.
fn arrivals(all: &Options) -> Result<Vec<u64>> {
    let mut random = Random(all.seed);
    let mut list = Vec::new();
    for (rate, only) in [(all.rate, None), (all.abuser, Some(0))] {
        let count = (rate * all.seconds) as usize;
        for number in 0..count {
            let place = if all.is_random { random.part() } else { (number as f64 + 0.5) / count as f64 };
            let client = only.unwrap_or_else(|| random.below(all.clients));
            list.push(arrival(place * all.seconds, client));
        }
    }
    let mut burst_at = all.at;
    while all.burst > 0 && burst_at < all.seconds {
        for half in [-all.spread, 0.0].into_iter().skip(usize::from(!all.pair)) {
            if list.len() + all.burst as usize > MOST_ATTEMPTS {
                return Err(refuse(&format!("burst: these are more than {MOST_ATTEMPTS} requests")));
            }
            for number in 0..all.burst {
                let at = burst_at + half + all.spread * random.part();
                list.push(arrival(at, number % all.clients));
            }
        }
        if all.every == 0.0 {
            break;
        }
        burst_at += all.every;
    }
    Ok(sorted(list))
}

/// In ascending order. All that is sorted here is whole numbers and goes
/// through this one function: another sort would be some KiB of the module.
fn sorted(list: Vec<u64>) -> Vec<u64> {
    BinaryHeap::from(list).into_sorted_vec()
}

/// An attempt that is still to come: when, in which order, whose, when its
/// request came first, and how many were before it.
type Coming = Reverse<(Nanos, u64, u32, Nanos, u64)>;

/// What becomes of it under one limit.
#[derive(Debug)]
struct Play<'o> {
    options: &'o Options,
    limit: Limit,
    random: Random,
    series: Vec<Step>,
    by_client: Vec<(u32, u32)>,
    events: Vec<(f64, u32, u8)>,
    /// Admissions: by key, in order.
    admitted_at: Vec<Vec<Nanos>>,
    delays: Vec<u64>,
    waits: Vec<u64>,
    attempts: u64,
    retries: u64,
    gave_up: u64,
    requests: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    offered: u32,
    admitted: u32,
    delayed: u32,
    max_delay: f64,
}

impl<'o> Play<'o> {
    fn new(options: &'o Options, limit: Limit, steps: usize) -> Play<'o> {
        let clients = options.clients as usize; // at most 1000
        Play {
            options,
            limit,
            random: Random(options.seed ^ 0x5EED),
            series: vec![Step::default(); steps],
            by_client: vec![(0, 0); clients],
            events: Vec::new(),
            admitted_at: Vec::new(),
            delays: Vec::new(),
            waits: Vec::new(),
            attempts: 0,
            retries: 0,
            gave_up: 0,
            requests: 0,
        }
    }

    fn run(&mut self, arrivals: &[u64], accounts: &mut [Account]) {
        self.admitted_at.resize(accounts.len(), Vec::new());
        self.requests = arrivals.len() as u64;
        let end = START.saturating_add((self.options.seconds * SECOND) as u64);
        let mut again: BinaryHeap<Coming> = BinaryHeap::new();
        let mut first = arrivals.iter().map(|arrival| of_arrival(*arrival)).peekable();
        while (self.attempts as usize) < MOST_ATTEMPTS {
            let retry_at = again.peek().map(|Reverse(coming)| coming.0);
            let next = match (first.peek(), retry_at) {
                (Some((due, _)), at) if at.is_none_or(|at| *due <= at) => {
                    first.next().map(|(at, client)| (at, client, at, 0))
                }
                _ => again.pop().map(|Reverse((at, _, client, since, tries))| (at, client, since, tries)),
            };
            let Some((at, client, since, tries)) = next else { break };
            if at >= end {
                // Retries may come after the end: they are not played.
                self.gave_up += u64::from(tries > 0);
                continue;
            }
            let place = if accounts.len() == 1 { 0 } else { client as usize };
            let Some(account) = accounts.get_mut(place) else { continue };
            self.attempts += 1;
            self.retries += u64::from(tries > 0);
            let decision = account.check(1, at);
            self.count(at, client, decision.allowed, decision.delay);
            if decision.allowed {
                if let Some(list) = self.admitted_at.get_mut(place) {
                    list.push(at.saturating_add(decision.delay));
                }
                self.delays.push(decision.delay);
                self.waits.push((at - since).saturating_add(decision.delay));
            } else if let Some(wait) = self.wait(tries, decision.retry_after) {
                let order = self.attempts;
                again.push(Reverse((at.saturating_add(wait), order, client, since, tries + 1)));
            } else {
                self.gave_up += 1;
            }
        }
    }

    /// When a client comes again that was denied for the time after `tries`.
    fn wait(&mut self, tries: u64, retry_after: Nanos) -> Option<Nanos> {
        if tries + 1 >= self.options.attempts || retry_after == tollgate_core::NEVER {
            return None;
        }
        let backoff = (self.options.backoff * 1e6) as u64; // at most 60 s
        let doubled = backoff.saturating_mul(1 << tries.min(20)).min(600_000_000_000);
        match self.options.retry {
            1 => Some(backoff),
            2 => Some(doubled),
            3 => Some(retry_after.saturating_add(self.random.below(doubled))),
            4 => Some(retry_after.max(1)),
            _ => None,
        }
    }

    fn count(&mut self, at: Nanos, client: u32, allowed: bool, delay: Nanos) {
        let seconds = (at - START) as f64 / SECOND; // no attempt is before the start
        let place = (seconds / self.options.seconds * self.series.len() as f64) as usize;
        if let Some(step) = self.series.get_mut(place) {
            step.offered += 1;
            step.admitted += u32::from(allowed);
            step.delayed += u32::from(delay > 0);
            step.max_delay = step.max_delay.max(delay as f64 / 1e6);
        }
        if let Some((admitted, denied)) = self.by_client.get_mut(client as usize) {
            *admitted += u32::from(allowed);
            *denied += u32::from(!allowed);
        }
        if self.events.len() < MOST_EVENTS {
            self.events.push((seconds, client, if allowed { 1 + u8::from(delay > 0) } else { 0 }));
        }
    }

    /// The most that one key was admitted in any period, and where that began.
    fn worst(&mut self) -> (usize, f64) {
        let mut worst = (0, START);
        for list in core::mem::take(&mut self.admitted_at) {
            let list = sorted(list); // by their turn
            let mut from = 0;
            for (last, at) in list.iter().enumerate() {
                while list.get(from).is_some_and(|first| at - first >= self.limit.period()) {
                    from += 1;
                }
                let count = last + 1 - from;
                if count > worst.0 {
                    worst = (count, list.get(from).copied().unwrap_or(START));
                }
            }
        }
        (worst.0, (worst.1 - START) as f64 / SECOND)
    }

    fn told(mut self, keys: u64) -> Object {
        let told = Object::new();
        set(&told, "limit", self.limit.to_string().as_str());
        set(&told, "algorithm", self.limit.algorithm().name());
        set(&told, "memory", account::memory(&self.limit) as f64);
        set(&told, "keys", keys as f64);
        set(&told, "step", self.options.seconds / self.series.len() as f64);
        let column = |of: fn(&Step) -> u32| {
            Uint32Array::from(self.series.iter().map(of).collect::<Vec<u32>>().as_slice())
        };
        set(&told, "offered", column(|step| step.offered));
        set(&told, "admitted", column(|step| step.admitted));
        set(&told, "denied", column(|step| step.offered - step.admitted));
        set(&told, "delayed", column(|step| step.delayed));
        let longest: Vec<f64> = self.series.iter().map(|step| step.max_delay).collect();
        set(&told, "maxDelay", Float64Array::from(longest.as_slice()));
        let (totals, admitted) = (Object::new(), self.delays.len() as u64);
        let delayed = self.delays.iter().filter(|delay| **delay > 0).count() as u64;
        for (name, count) in [
            ("requests", self.requests),
            ("attempts", self.attempts),
            ("admitted", admitted),
            ("denied", self.attempts - admitted),
            ("retries", self.retries),
            ("gaveUp", self.gave_up),
            ("delayed", delayed),
        ] {
            set(&totals, name, count as f64);
        }
        set(&told, "totals", totals);
        set(&told, "delay", quantiles(core::mem::take(&mut self.delays)));
        set(&told, "wait", quantiles(core::mem::take(&mut self.waits)));
        let ((most, from), worst) = (self.worst(), Object::new());
        set(&worst, "admitted", most as f64);
        set(&worst, "from", from);
        set(&told, "worst", worst);
        let (admitted, denied): (Vec<u32>, Vec<u32>) = self.by_client.iter().copied().unzip();
        let by_client = Object::new();
        set(&by_client, "admitted", Uint32Array::from(admitted.as_slice()));
        set(&by_client, "denied", Uint32Array::from(denied.as_slice()));
        set(&told, "byClient", by_client);
        let events = Object::new();
        let seconds: Vec<f64> = self.events.iter().map(|event| event.0).collect();
        let clients: Vec<u32> = self.events.iter().map(|event| event.1).collect();
        let outcomes: Vec<u8> = self.events.iter().map(|event| event.2).collect();
        set(&events, "seconds", Float64Array::from(seconds.as_slice()));
        set(&events, "client", Uint32Array::from(clients.as_slice()));
        set(&events, "outcome", Uint8Array::from(outcomes.as_slice()));
        set(&told, "events", events);
        told
    }
}

/// Median, the 99th of a hundred, and the most, in milliseconds.
fn quantiles(times: Vec<u64>) -> Object {
    let times = sorted(times);
    let told = Object::new();
    for (name, part) in [("p50", 50), ("p99", 99), ("max", 100)] {
        let place = (times.len() * part / 100).min(times.len().saturating_sub(1)); // at most 2,000,000 of them
        set(&told, name, times.get(place).copied().unwrap_or(0) as f64 / 1e6);
    }
    told
}
