//! Many keys: our table, and `governor`'s DashMap with its defaults.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock, Reference};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate_core::key::Seed;
use tollgate_core::table::{Config, OwnedTable, Request, Table};
use tollgate_core::{Decision, Limit};

use crate::Options;
use crate::count;
use crate::keys::{KEY_BYTES, Sequence, key};
use crate::measure::{Contender, Plan, Round, interleaved};
use crate::memory;
use crate::report::Row;

const HOT: usize = 1_000;
const MANY: usize = 1_000_000;
/// A table of 1 MB.
const HOT_CAPACITY: u64 = 1 << 16;
/// 1,000 keys are 80.6 % of it.
const TIGHT_CAPACITY: u64 = 1_240;
/// 1,000,000 keys are 80.6 % of it.
const CAPACITY: u64 = 1_240_000;
/// Room for every request of a run. The bucket does not refill meanwhile, so
/// what is left tells exactly what was charged.
const BURST: u32 = 40_000_000;
const LIMIT: &str = "1000/d burst 40000000";
const TOKEN: Duration = Duration::from_millis(86_400);
const START_NS: u64 = 1_000_000_000;
/// How far the caller's clock moves between two decisions.
const STEP_NS: u64 = 100;
const PEER: &str = "governor keyed (DashMap, defaults; quanta clock)";

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    prove();
    let hot = Sequence::uniform as fn(usize, usize) -> Sequence;
    let in_cache = Plan { threads: 0, rounds: options.rounds(150), calls: 1 << 13 };
    let in_memory = Plan { threads: 0, rounds: options.rounds(40), calls: 100_000 };
    let workloads = [
        Workload {
            id: "hot",
            what: "1,000 hot keys in a table of 1 MB",
            keys: HOT,
            capacity: HOT_CAPACITY,
            goal: Some(0.45),
            batch_goal: None,
            sequence: hot,
            length: 1 << 14,
            plan: in_cache,
        },
        Workload {
            id: "tight",
            what: "1,000 hot keys in a table that they fill to 80.6 %",
            keys: HOT,
            capacity: TIGHT_CAPACITY,
            goal: None,
            batch_goal: None,
            sequence: hot,
            length: 1 << 14,
            plan: in_cache,
        },
        Workload {
            id: "uniform",
            what: "1,000,000 keys, uniform, 80.6 % full",
            keys: MANY,
            capacity: CAPACITY,
            goal: Some(0.4),
            batch_goal: Some(0.28),
            sequence: hot,
            length: 2_000_000,
            plan: in_memory,
        },
        Workload {
            id: "zipf",
            what: "1,000,000 keys, Zipf, 80.6 % full",
            keys: MANY,
            capacity: CAPACITY,
            goal: Some(0.4),
            batch_goal: Some(0.28),
            sequence: Sequence::zipf,
            length: 2_000_000,
            plan: in_memory,
        },
    ];
    for workload in &workloads {
        if !options.wants(&format!("table/{}/", workload.id)) {
            continue;
        }
        let sequence = (workload.sequence)(workload.keys, workload.length);
        let shared = Shared::new(&sequence, workload.keys, workload.capacity);
        for threads in [1, 2] {
            if options.wants(&workload.row_id(threads, "")) {
                rows.extend(compare(&shared, workload, threads));
            }
        }
    }
    if options.wants("table/instructions") {
        rows.extend(instructions(options));
    }
    if options.wants("table/bytes") {
        rows.extend(bytes());
    }
    rows
}

/// Which keys come, how often, and how full our table is.
struct Workload {
    id: &'static str,
    what: &'static str,
    keys: usize,
    capacity: u64,
    /// Of keys that are checked one by one, and in batches.
    goal: Option<f64>,
    batch_goal: Option<f64>,
    sequence: fn(usize, usize) -> Sequence,
    length: usize,
    /// For any number of threads.
    plan: Plan,
}

impl Workload {
    fn row_id(&self, threads: usize, kind: &str) -> String {
        format!("table/{}/{threads}-thread{}{kind}", self.id, if threads == 1 { "" } else { "s" })
    }
}

/// Both limiters with the same keys in them.
struct Shared<'s> {
    sequence: &'s Sequence,
    keys: usize,
    table: OwnedTable,
    limit: Limit,
    governor: DefaultKeyedRateLimiter<String>,
}

impl<'s> Shared<'s> {
    fn new(sequence: &'s Sequence, keys: usize, capacity: u64) -> Shared<'s> {
        let limit: Limit = LIMIT.parse().expect("a legal limit");
        let shared = Shared {
            sequence,
            keys,
            table: table(capacity),
            limit,
            governor: RateLimiter::keyed(quota(BURST)),
        };
        let table = shared.table();
        for number in 0..keys {
            let key = key(number);
            assert!(table.check(key.as_bytes(), &limit, 1, START_NS).allowed);
            assert!(shared.governor.check_key(&key).is_ok());
        }
        shared
    }

    fn table(&self) -> Table<'_> {
        view(&self.table)
    }

    fn part(&self, round: Round) -> (&[String], u64) {
        let start = self.sequence.start(round.thread, round.number, round.calls);
        let now = START_NS + (round.number * round.calls) as u64 * STEP_NS;
        (&self.sequence.keys[start..start + round.calls], now)
    }

    fn ours(&self, round: Round) -> usize {
        let (keys, mut now) = self.part(round);
        let (table, limit) = (self.table(), &self.limit);
        let mut admitted = 0;
        for key in keys {
            let decision = black_box(&table).check(key.as_bytes(), black_box(limit), 1, now);
            admitted += usize::from(decision.allowed);
            black_box(&decision);
            now += STEP_NS;
        }
        admitted
    }

    /// The loop alone.
    fn empty(&self, round: Round) -> usize {
        let (keys, mut now) = self.part(round);
        let (table, limit) = (self.table(), &self.limit);
        let mut admitted = 0;
        for key in keys {
            black_box((&table, limit));
            black_box(key.as_bytes());
            admitted += usize::from(black_box(now) != 0);
            now += STEP_NS;
        }
        admitted
    }

    fn clocked(&self, clock: &DefaultClock, round: Round) -> usize {
        let (keys, _) = self.part(round);
        let (table, limit, start) = (self.table(), &self.limit, clock.now());
        let mut admitted = 0;
        for key in keys {
            let now = START_NS + u64::from(clock.now().duration_since(start));
            let decision = black_box(&table).check(key.as_bytes(), black_box(limit), 1, now);
            admitted += usize::from(decision.allowed);
            black_box(&decision);
        }
        admitted
    }

    fn batch<const N: usize>(&self, round: Round) -> usize {
        let (keys, mut now) = self.part(round);
        let (table, limit) = (self.table(), &self.limit);
        let mut decisions = [NO_DECISION; N];
        let mut admitted = 0;
        for keys in keys.chunks(N) {
            let mut requests = [Request { key: &[], limit, cost: 1 }; N];
            for (request, key) in requests.iter_mut().zip(keys) {
                *request = Request { key: key.as_bytes(), limit: black_box(limit), cost: 1 };
            }
            let count = keys.len();
            black_box(&table).check_batch(&requests[..count], now, &mut decisions);
            for decision in &decisions[..count] {
                admitted += usize::from(decision.allowed);
                black_box(decision);
            }
            now += N as u64 * STEP_NS;
        }
        admitted
    }

    fn governor(&self, round: Round) -> usize {
        let (keys, _) = self.part(round);
        let mut admitted = 0;
        for key in keys {
            let answer = black_box(&self.governor).check_key(key);
            admitted += usize::from(answer.is_ok());
            let _ = black_box(&answer);
        }
        admitted
    }

    /// Every unit that was charged is missing from its bucket, and no other.
    fn verify(&self, charged: &[u32]) {
        let table = self.table();
        for (number, &charged) in charged.iter().enumerate() {
            let left = table.peek(key(number).as_bytes(), &self.limit, 0, START_NS).remaining;
            assert_eq!(left, u64::from(BURST - charged), "key {number}: units were lost or made");
        }
        assert_eq!(table.stats().evictions, 0, "a table with room evicted");
    }
}

fn compare(shared: &Shared<'_>, workload: &Workload, threads: usize) -> Vec<Row> {
    let plan = Plan { threads, ..workload.plan };
    let clock = DefaultClock::default();
    // Each run starts from the buckets' present state.
    let before = shared.remaining();
    let contenders: [Contender<'_>; 5] = [
        &|round| shared.ours(round),
        &|round| shared.governor(round),
        &|round| shared.clocked(&clock, round),
        &|round| shared.batch::<8>(round),
        &|round| shared.batch::<16>(round),
    ];
    let times = interleaved(plan, &contenders);
    let mut charged: Vec<u32> = before.iter().map(|&left| BURST - left).collect();
    for number in 0..=plan.rounds {
        for thread in 0..plan.threads {
            let start = shared.sequence.start(thread, number, plan.calls);
            for &key in &shared.sequence.numbers[start..start + plan.calls] {
                charged[key as usize] += 4; // ours takes part four times
            }
        }
    }
    shared.verify(&charged);
    let on =
        if threads == 1 { "1 thread".to_owned() } else { format!("{threads} pinned threads, per thread") };
    let row = |kind: &str, text: &str, time, goal| {
        let what = format!("table, {KEY_BYTES}-byte string keys, {}, {on}, {text}", workload.what);
        Row { goal, ..Row::new(&workload.row_id(threads, kind), &what, "ns", time, times[1], PEER) }
    };
    let batch = workload.batch_goal;
    vec![
        row("", "caller's now", times[0], workload.goal),
        row("/same-clock", "ours reads the peer's clock for each decision", times[2], None),
        row("/batch-8", "caller's now, 8 keys checked in one call", times[3], batch),
        row("/batch-16", "caller's now, 16 keys checked in one call", times[4], batch),
    ]
}

impl Shared<'_> {
    fn remaining(&self) -> Vec<u32> {
        let table = self.table();
        let left = |number| table.peek(key(number).as_bytes(), &self.limit, 0, START_NS).remaining;
        (0..self.keys).map(|number| u32::try_from(left(number)).unwrap_or(0)).collect()
    }
}

fn instructions(options: &Options) -> Vec<Row> {
    let calls = if options.quick { 8_192 } else { 81_920 };
    let (Some(ours), Some(batch), Some(peer)) = (
        count::instructions("hot", "hot-empty", calls),
        count::instructions("hot-batch", "hot-empty", calls),
        count::instructions("hot-governor", "hot-empty", calls),
    ) else {
        return Vec::new();
    };
    let what =
        "table, 23-byte string keys, 1,000 hot in a table of 1 MB, instructions (callgrind; loop taken off)";
    vec![
        Row::absolute("table/instructions", what, "instructions", ours, 200.0),
        Row::new("table/instructions/governor", what, "instructions", ours, peer, PEER),
        Row::new(
            "table/instructions/batch-8",
            "the same, 8 keys in one call",
            "instructions",
            batch,
            ours,
            "ours, one by one",
        ),
    ]
}

/// What [`count::instructions`] runs, by name.
pub(crate) fn counted(name: &str, round: Round) -> Option<usize> {
    let sequence = Sequence::uniform(HOT, 1 << 14);
    let shared = Shared::new(&sequence, HOT, HOT_CAPACITY);
    let call: Contender<'_> = match name {
        "hot" => &|round| shared.ours(round),
        "hot-batch" => &|round| shared.batch::<8>(round),
        "hot-empty" => &|round| shared.empty(round),
        "hot-governor" => &|round| shared.governor(round),
        _ => return None,
    };
    let calls = round.calls.min(8_192);
    let rounds = round.calls.checked_div(calls).unwrap_or(0);
    Some((0..rounds).map(|number| count::counted(call, Round { number, calls, ..round })).sum())
}

/// Bytes a key of both, with 1,000,000 keys in them and none refused.
fn bytes() -> Vec<Row> {
    let limit: Limit = LIMIT.parse().expect("a legal limit");
    let config = config(CAPACITY);
    let owned = table(CAPACITY);
    let table = view(&owned);
    for number in 0..MANY {
        let decision = table.check(key(number).as_bytes(), &limit, 2, START_NS);
        assert_eq!(decision.remaining, u64::from(BURST) - 2, "a first-time key met another's bucket");
    }
    for number in 0..MANY {
        let decision = table.peek(key(number).as_bytes(), &limit, 0, START_NS);
        assert_eq!(decision.remaining, u64::from(BURST) - 2, "a key was lost");
    }
    assert_eq!(table.stats().evictions, 0);
    assert!(MANY as f64 / table.stats().capacity as f64 >= 0.8);
    let ours = config.size().expect("a legal configuration") as f64 / MANY as f64;
    let before = memory::in_use();
    let governor: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota(BURST));
    for number in 0..MANY {
        assert!(governor.check_key(&key(number)).is_ok());
    }
    assert_eq!(governor.len(), MANY);
    let peer = (memory::in_use() - before) as f64 / MANY as f64;
    let what = "bytes a key, 1,000,000 keys of 23 bytes at 80.6 % occupancy, none refused or evicted";
    vec![
        Row::absolute("table/bytes", what, "bytes", ours, 20.0),
        Row::new("table/bytes/governor", what, "bytes", ours, peer, "governor keyed (DashMap, defaults)"),
    ]
}

/// What is measured limits: each key is admitted its burst and not one more.
fn prove() {
    let limit: Limit = "5/d".parse().expect("a legal limit");
    let owned = table(2 * HOT as u64);
    let (table, governor) = (view(&owned), RateLimiter::keyed(quota(5)));
    let (mut ours, mut batched, mut peer) = (0, 0, 0);
    for number in 0..HOT {
        let key = key(number);
        for _ in 0..8 {
            ours += usize::from(table.check(key.as_bytes(), &limit, 1, START_NS).allowed);
            peer += usize::from(governor.check_key(&key).is_ok());
        }
        let other = format!("{key}, batched");
        let mut decisions = [NO_DECISION; 8];
        table.check_batch(
            &[Request { key: other.as_bytes(), limit: &limit, cost: 1 }; 8],
            START_NS,
            &mut decisions,
        );
        batched += decisions.iter().filter(|decision| decision.allowed).count();
    }
    assert_eq!((ours, batched, peer), (5 * HOT, 5 * HOT, 5 * HOT));
}

const NO_DECISION: Decision =
    Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };

fn config(capacity: u64) -> Config {
    Config { capacity, rows: 0, row_entries: 0 }
}

fn table(capacity: u64) -> OwnedTable {
    OwnedTable::new(config(capacity), Seed([0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210]))
        .expect("a legal table")
}

fn view(table: &OwnedTable) -> Table<'_> {
    table.table().expect("a table that was just made")
}

fn quota(burst: u32) -> Quota {
    let burst = NonZeroU32::new(burst).expect("not zero");
    Quota::with_period(TOKEN).expect("not zero").allow_burst(burst)
}
