//! Law 6: the request path allocates nothing. An allocator that counts, by thread, stands in for the
//! system's; every public function that a request can reach runs between two readings of it, under
//! each algorithm: admitted, denied, evicting another key, and carried to a changed limit.

use core::fmt::{self, Write};
use core::mem::size_of;
use std::ptr::{null, null_mut};

use tollgate::*;
use tollgate_core::algorithm::{
    concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use tollgate_core::bucket::LogBucket;
use tollgate_core::http::{self, Family};
use tollgate_core::key::Seed;
use tollgate_core::limiter::{MAX_LAYERS, check_all, give_back};
use tollgate_core::metrics::{Counters, Histogram, Json, Prometheus, Report, Top, TopKeys};
use tollgate_core::policy::{self, Attributes, KeyRoom, Rules, check, record};
use tollgate_core::table::{Config, Hold, Line, OwnedTable, Request};
use tollgate_core::{Algorithm, Bucket, Decision, Limit};
use tollgate_tests::counting::{Counting, calls};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `path`, which must neither allocate nor free.
fn without_allocating<R>(what: &str, path: impl FnOnce() -> R) -> R {
    let before = calls();
    let result = path();
    let calls = calls() - before;
    assert_eq!(calls, 0, "{what} called the allocator");
    result
}

/// Limits of each algorithm that admit three at once, and another rate of each: a token of whole
/// nanoseconds and one that is not, arithmetic in 64 bits and in 128.
const LIMITS: [(&str, &str); 9] = [
    ("100/s burst 3", "10/s burst 3"),
    ("700/m burst 3", "1500/s burst 2"),
    ("4294967295/3660d burst 3", "1/3660d burst 3"),
    ("leaky_bucket 700/m burst 3", "leaky_bucket 3/s burst 3"),
    ("fixed_window 3/m", "fixed_window 2/h"),
    ("fixed_window 3/m anchor first_request", "fixed_window 3/s anchor first_request"),
    ("sliding_window 3/m", "sliding_window 2/m"),
    ("sliding_log 3/m", "sliding_log 2/m"),
    ("concurrency 3/m", "concurrency 2/m"),
];
/// The rate at which arithmetic needs 128 bits: its bucket holds more than 2^62 units.
const WIDE: &str = "4294967295/316223999999999999ns burst 4294967295";
const NOW: u64 = 1_000_000_000_000_000;
/// More keys than the tables below have places for.
const KEYS: u64 = 200;

fn pairs() -> Vec<(Limit, Limit)> {
    LIMITS.iter().map(|(first, second)| (first.parse().unwrap(), second.parse().unwrap())).collect()
}

fn small_table() -> OwnedTable {
    OwnedTable::new(Config { capacity: 8, rows: 4, row_entries: 3 }, Seed([1, 2])).unwrap()
}

#[test]
fn pure_algorithms_allocate_nothing() {
    for (limit, other) in pairs() {
        without_allocating("an algorithm", || match limit.algorithm() {
            Algorithm::TokenBucket => {
                let (tat, first) = token_bucket::decide(Default::default(), &limit, NOW, 3);
                let (tat, second) = token_bucket::decide(tat, &limit, NOW, 1);
                assert!(first.allowed && !second.allowed);
                let tat = token_bucket::carry(tat, token_bucket::Rate::of(&limit), &other, NOW);
                let _ = token_bucket::refund(tat, &other, NOW, 1, NOW);
            }
            Algorithm::LeakyBucket => {
                let (tat, first) = leaky_bucket::decide(Default::default(), &limit, NOW, 3);
                let (_, second) = leaky_bucket::decide(tat, &limit, NOW, 1);
                assert!(first.allowed && !second.allowed);
            }
            Algorithm::FixedWindow => {
                let (window, first) = fixed_window::decide(Default::default(), &limit, NOW, 3);
                let (window, second) = fixed_window::decide(window, &limit, NOW, 1);
                assert!(first.allowed && !second.allowed);
                let _ = fixed_window::refund(window, &limit, NOW, 1, NOW);
            }
            Algorithm::SlidingWindow => {
                let (windows, first) = sliding_window::decide(Default::default(), &limit, NOW, 3);
                let (windows, second) = sliding_window::decide(windows, &limit, NOW, 1);
                assert!(first.allowed && !second.allowed);
                let _ = sliding_window::refund(windows, &limit, NOW, 1, NOW);
            }
            Algorithm::SlidingLog => {
                let (entry, first) = sliding_log::decide(&ShortLog::default(), &limit, NOW, 3);
                let log = ShortLog(entry.unwrap_or_default());
                let (_, second) = sliding_log::decide(&log, &limit, NOW, 1);
                assert!(first.allowed && !second.allowed);
                let _ = sliding_log::refund(&log, &limit, 1, NOW);
            }
            Algorithm::Concurrency => {
                let (_, first) = concurrency::decide(core::iter::empty(), &limit, NOW, 3);
                let (_, second) = concurrency::decide([NOW + 1; 3].into_iter(), &limit, NOW, 1);
                assert!(first.allowed && !second.allowed);
            }
        });
    }
}

/// A log of three entries, of which the newest was made.
#[derive(Default)]
struct ShortLog(sliding_log::Entry);

impl sliding_log::Log for ShortLog {
    fn len(&self) -> usize {
        3
    }

    fn entry(&self, age: usize) -> sliding_log::Entry {
        if age == 2 { self.0 } else { sliding_log::Entry::default() }
    }

    fn floor(&self) -> u64 {
        0
    }
}

#[test]
fn buckets_allocate_nothing() {
    for (limit, other) in pairs() {
        without_allocating("a bucket", || {
            let Ok(mut bucket) = Bucket::new(limit) else { return };
            for now in [NOW, 0, u64::MAX] {
                let _ = bucket.check(0, now);
                while bucket.check(1, now).allowed {}
                let _ = bucket.peek(1, now);
                bucket.refund(1, now);
                assert!(bucket.set_limit(other, now).is_ok());
                let _ = bucket.check(1, now);
                assert!(bucket.set_limit(limit, now).is_ok());
            }
        });
    }
    let wide: Limit = WIDE.parse().unwrap();
    without_allocating("a wide bucket", || {
        let bucket = Bucket::new(wide).map_err(drop);
        let Ok(bucket) = bucket else { panic!() };
        assert!(bucket.check(u64::from(u32::MAX), NOW).allowed);
        assert!(!bucket.check(1, NOW).allowed);
        bucket.refund(7, NOW);
    });
}

#[test]
fn a_sliding_log_allocates_nothing() {
    let limit: Limit = "sliding_log 3/m".parse().unwrap();
    without_allocating("a log", || {
        let lines = [Line::default()];
        let Ok(log) = LogBucket::new(limit, &lines) else { panic!() };
        while log.check(1, NOW).allowed {}
        let _ = log.peek(1, NOW);
        log.refund(1, NOW);
        assert!(log.check(1, NOW).allowed);
    });
}

#[test]
fn tables_allocate_nothing() {
    for (limit, other) in pairs() {
        let owned = small_table();
        let table = owned.table().unwrap();
        without_allocating("a table", || {
            assert!(table.accepts(&limit).is_ok());
            for key in 0..KEYS {
                let key = key.to_le_bytes();
                if limit.algorithm() == Algorithm::Concurrency {
                    holds(&table, &key, &limit, &other);
                    continue;
                }
                for _ in 0..3 {
                    assert!(table.check(&key, &limit, 1, NOW).allowed);
                }
                assert!(!table.check(&key, &limit, 1, NOW).allowed);
                let _ = table.peek(&key, &limit, 1, NOW);
                let _ = table.check_fingerprint(table.fingerprint(&key), &limit, 1, NOW);
                table.refund(&key, &limit, 2, NOW);
                let _ = table.check(&key, &other, 1, NOW); // carried
                table.refund(&key, &other, 1, NOW);
            }
            let _ = table.live(NOW);
        });
        let stats = table.stats();
        assert!(stats.evictions + stats.row_evictions > 0, "{limit}: nothing was evicted");
    }
}

fn holds(table: &tollgate_core::Table<'_>, key: &[u8], limit: &Limit, other: &Limit) {
    let (first, hold) = table.acquire(key, limit, 3, NOW);
    let (second, none) = table.acquire(key, limit, 1, NOW);
    assert!(first.allowed && !second.allowed);
    table.release(&none);
    table.release(&hold);
    let _ = table.check(key, limit, 1, NOW);
    let _ = table.peek(key, limit, 1, NOW);
    table.refund(key, limit, 1, NOW);
    let _ = table.acquire(key, other, 1, NOW); // and kept, so that rows fill
}

#[test]
fn layers_and_batches_allocate_nothing() {
    let (owned, limits) = (small_table(), pairs());
    let table = owned.table().unwrap();
    let mut decisions = [table.peek(b"", &limits[0].0, 0, NOW); MAX_LAYERS];
    let mut held = [Hold::default(); MAX_LAYERS];
    let mut outcomes = [0; 2];
    without_allocating("layers", || {
        for key in 0..KEYS {
            let key = key.to_le_bytes();
            let mut requests = [Request { key: &key, limit: &limits[0].0, cost: 1 }; LIMITS.len()];
            for (request, (limit, _)) in requests.iter_mut().zip(&limits) {
                request.limit = limit;
            }
            for _ in 0..4 {
                let verdict = check_all(&table, &requests, NOW, &mut decisions, &mut held);
                let allowed = verdict.is_some_and(|verdict| verdict.allowed);
                outcomes[usize::from(allowed)] += 1;
                if allowed && key[0] % 2 == 0 {
                    give_back(&table, &requests, &mut held, NOW);
                }
            }
            table.check_batch(&requests, NOW, &mut decisions);
        }
    });
    assert!(outcomes.iter().all(|&times| times > 0), "{outcomes:?}");
}

#[test]
fn answers_and_counters_allocate_nothing() {
    let counters = Counters::default();
    let mut buffer = [0; 1024];
    for (limit, _) in pairs() {
        let denied = Decision {
            allowed: false,
            limit: 3,
            remaining: 0,
            retry_after: 1_500_000_000,
            reset_after: 1_500_000_000,
            delay: 0,
        };
        let admitted = Decision { allowed: true, retry_after: 0, delay: 5, ..denied };
        let never = Decision { retry_after: u64::MAX, ..denied };
        without_allocating("an answer", || {
            for decision in [admitted, denied, never] {
                for family in Family::ALL {
                    assert!(http::fields(family, "orders\"", &limit, &decision, &mut buffer).is_ok());
                    let _ = http::fields(family, "orders", &limit, &decision, &mut []);
                }
                assert!(http::problem(429, "orders\"", &decision, &mut buffer).is_ok());
                assert!(http::problem(429, "orders", &decision, &mut []).is_err());
                counters.record(&decision, false);
                counters.record(&decision, true);
            }
            counters.record_error();
            let _ = counters.snapshot();
        });
    }
}

/// Text on the stack, for a limit to print itself into.
struct Text([u8; 256], usize);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.0.get_mut(self.1..self.1 + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.1 += text.len();
        Ok(())
    }
}

#[test]
fn limits_are_read_and_written_without_allocating() {
    let bad = ["", "100", "100/q", "1/1.0000000001s", "0/s", "fixed_window 3/s burst 4", "hourly 3/s"];
    without_allocating("a limit's text", || {
        for text in LIMITS.iter().flat_map(|pair| [pair.0, pair.1]).chain([WIDE]).chain(bad) {
            let mut written = Text([0; 256], 0);
            let done = match Limit::parse(text, Algorithm::TokenBucket) {
                Ok(limit) => write!(written, "{limit}"),
                Err(error) => write!(written, "{error}"),
            };
            assert!(done.is_ok() && written.1 > 0);
        }
    });
}

#[repr(C, align(64))]
struct Memory([u8; 1 << 16]);

fn c_limit(text: &str) -> tollgate_limit {
    let mut limit = tollgate_limit { opaque: [0; _] };
    // SAFETY: the pointers lead to what their types say.
    let status =
        unsafe { tollgate_limit_parse(text.as_ptr().cast(), text.len(), 0, &raw mut limit, null_mut(), 0) };
    assert_eq!(status, TOLLGATE_OK);
    limit
}

#[test]
fn buckets_of_the_c_abi_allocate_nothing() {
    let mut memory = Memory([0; _]);
    for (first, second) in LIMITS {
        without_allocating("a bucket of the C ABI", || {
            let (limit, other) = (c_limit(first), c_limit(second));
            let (mut size, mut align) = (0, 0);
            let (mut bucket, mut decision) = (null_mut(), tollgate_decision::default());
            let (bucket, decision) = (&raw mut bucket, &raw mut decision);
            let place = (&raw mut memory).cast();
            // SAFETY: the pointers lead to what their types say; the memory stays the bucket's.
            unsafe {
                if tollgate_bucket_layout(&raw const limit, &raw mut size, &raw mut align) != TOLLGATE_OK {
                    return; // concurrency needs a table
                }
                assert_eq!(tollgate_bucket_init(place, size, &raw const limit, bucket), TOLLGATE_OK);
                assert_eq!(tollgate_bucket_attach(place, size, bucket), TOLLGATE_OK);
                for _ in 0..3 {
                    assert_eq!(tollgate_bucket_check(*bucket, 1, NOW, decision), TOLLGATE_OK);
                    assert_eq!((*decision).allowed, 1);
                }
                assert_eq!(tollgate_bucket_check(*bucket, 1, NOW, decision), TOLLGATE_OK);
                assert_eq!((*decision).allowed, 0);
                assert_eq!(tollgate_bucket_peek(*bucket, 1, NOW, decision), TOLLGATE_OK);
                assert_eq!(tollgate_bucket_refund(*bucket, 1, NOW), TOLLGATE_OK);
                assert_eq!(tollgate_bucket_set_limit(*bucket, &raw const other, NOW), TOLLGATE_OK);
                assert_eq!(tollgate_bucket_check(*bucket, 1, NOW, decision), TOLLGATE_OK);
            }
        });
    }
}

#[test]
fn tables_of_the_c_abi_allocate_nothing() {
    let mut memory = Memory([0; _]);
    without_allocating("a table of the C ABI", || {
        let config = tollgate_table_config {
            struct_size: size_of::<tollgate_table_config>() as u32, // a few bytes
            flags: 0,
            capacity: 8,
            rows: 4,
            row_entries: 3,
            seed: [3, 4],
        };
        let mut view = tollgate_table { opaque: [0; _] };
        let (table, place) = (&raw mut view, (&raw mut memory).cast());
        let (mut needed, mut align, mut capacity, mut live) = (0, 0, 0, 0);
        // SAFETY: the pointers lead to what their types say; the memory stays the table's.
        unsafe {
            let size = size_of::<Memory>();
            assert_eq!(
                tollgate_table_layout(&raw const config, &raw mut needed, &raw mut align),
                TOLLGATE_OK
            );
            assert_eq!(tollgate_table_capacity(size, 0, 0, &raw mut capacity), TOLLGATE_OK);
            assert_eq!(tollgate_table_init(place, size, &raw const config, table), TOLLGATE_OK);
            assert_eq!(tollgate_table_attach(place, size, &raw const config, table), TOLLGATE_OK);
            for (first, second) in LIMITS {
                let (limit, other) = (c_limit(first), c_limit(second));
                assert_eq!(tollgate_table_accepts(table, &raw const limit), TOLLGATE_OK);
                (0..KEYS).for_each(|key| one_key(table, key, &limit, &other));
            }
            let mut stats = tollgate_table_stats::default();
            assert_eq!(tollgate_table_stats_read(table, &raw mut stats), TOLLGATE_OK);
            assert_eq!(tollgate_table_live(table, NOW, &raw mut live), TOLLGATE_OK);
            assert!(stats.evictions > 0 && stats.row_evictions > 0);
        }
    });
}

/// # Safety
/// `table` is a view of a table in memory.
unsafe fn one_key(table: *const tollgate_table, key: u64, limit: &tollgate_limit, other: &tollgate_limit) {
    let key = key.to_le_bytes();
    let key = key.as_ptr().cast();
    let mut decisions = [tollgate_decision::default(); 2];
    let mut held = [tollgate_hold::default(); 2];
    let (answers, holds, mut tightest) = (decisions.as_mut_ptr(), held.as_mut_ptr(), 0);
    let request = tollgate_request { key, key_len: 8, limit, cost: 1 };
    let asked = [request, tollgate_request { key: null(), key_len: 0, ..request }];
    let asked = asked.as_ptr();
    // SAFETY: the pointers lead to what their types say, by the caller's contract for `table`.
    unsafe {
        for _ in 0..4 {
            assert_eq!(tollgate_table_check(table, key, 8, limit, 1, NOW, answers), TOLLGATE_OK);
        }
        assert_eq!(tollgate_table_peek(table, key, 8, limit, 1, NOW, answers), TOLLGATE_OK);
        assert_eq!(tollgate_table_refund(table, key, 8, limit, 3, NOW), TOLLGATE_OK);
        let all = tollgate_table_check_all(table, asked, 2, NOW, answers, holds, &raw mut tightest);
        assert_eq!(all, TOLLGATE_OK);
        assert_eq!(tollgate_table_refund_all(table, asked, 2, NOW), TOLLGATE_OK);
        assert_eq!(tollgate_table_release(table, holds), TOLLGATE_OK);
        assert_eq!(tollgate_table_check_batch(table, asked, 2, NOW, answers), TOLLGATE_OK);
        let acquired = tollgate_table_acquire(table, key, 8, limit, 1, NOW, answers, holds);
        assert!(matches!(acquired, TOLLGATE_OK | TOLLGATE_ERR_UNSUPPORTED));
        assert_eq!(tollgate_table_check(table, key, 8, other, 1, NOW, answers), TOLLGATE_OK);
    }
}

#[test]
fn answers_of_the_c_abi_allocate_nothing() {
    without_allocating("an answer of the C ABI", || {
        let counters = tollgate_counters { opaque: [0; _] };
        let mut snapshot = tollgate_counters_snapshot::default();
        let empty = tollgate_http_field { name: null(), name_len: 0, value: null(), value_len: 0 };
        let mut fields = [empty; TOLLGATE_HTTP_FIELDS_MAX];
        let mut text = [0; TOLLGATE_HTTP_PROBLEM_SIZE];
        let (mut len, mut number) = (0, 0);
        let (room, size) = (text.as_mut_ptr(), text.len());
        let denied = tollgate_decision { retry_after_ns: 1, ..Default::default() };
        let (decision, name) = (&raw const denied, c"orders".as_ptr());
        let limit = c_limit("100/s");
        let limit = &raw const limit;
        // SAFETY: the pointers lead to what their types say.
        unsafe {
            for family in TOLLGATE_FIELDS_OFF..=TOLLGATE_FIELDS_RATELIMIT {
                let written = tollgate_http_fields(
                    family,
                    name,
                    6,
                    limit,
                    decision,
                    room,
                    size,
                    fields.as_mut_ptr(),
                    &raw mut len,
                );
                assert_eq!(written, TOLLGATE_OK);
            }
            assert_eq!(tollgate_http_problem(429, name, 6, decision, room, size, &raw mut len), TOLLGATE_OK);
            assert_eq!(tollgate_counters_record(&raw const counters, decision, 0), TOLLGATE_OK);
            assert_eq!(tollgate_counters_error(&raw const counters), TOLLGATE_OK);
            assert_eq!(tollgate_counters_read(&raw const counters, &raw mut snapshot), TOLLGATE_OK);
            let mut config = tollgate_limit_config {
                struct_size: size_of::<tollgate_limit_config>() as u32, // a few bytes
                algorithm: 0,
                limit: 0,
                period_ns: 0,
                burst: 0,
                anchor: 0,
                reserved: 0,
            };
            let mut made = tollgate_limit { opaque: [0; _] };
            assert_eq!(tollgate_limit_init(&raw const config, &raw mut made, room, size), TOLLGATE_ERR_RANGE);
            assert_eq!(tollgate_limit_describe(limit, &raw mut config), TOLLGATE_OK);
            assert_eq!(tollgate_limit_init(&raw const config, &raw mut made, room, size), TOLLGATE_OK);
            assert_eq!(tollgate_limit_format(limit, room, size, &raw mut len), TOLLGATE_OK);
            let bad = tollgate_limit_parse(c"x".as_ptr(), 1, 0, &raw mut made, room, size);
            assert_eq!(bad, TOLLGATE_ERR_PARSE);
            let name = tollgate_algorithm_str(TOLLGATE_CONCURRENCY);
            assert_eq!(tollgate_algorithm_parse(name, 11, &raw mut number), TOLLGATE_OK);
            assert!(!tollgate_status_str(0).is_null() && !tollgate_version().is_null());
            assert_eq!(tollgate_abi_version(), TOLLGATE_ABI_VERSION);
        }
    });
}

#[test]
fn a_rules_file_is_obeyed_and_told_of_without_allocating() {
    const RULES: &str = r#"{
      "headers": "ratelimit",
      "identity": { "api_key": { "header": "x-key" }, "user": { "header": "x-user", "required": true },
                    "ip": { "trusted_proxies": ["10.0.0.0/8"], "header": "forwarded" } },
      "policies": [
        { "name": "a", "match": { "path": "/*", "header": { "x-key": true } }, "key": ["api_key", "ip", "path"],
          "cost": { "header": "x-cost", "max": 5 }, "limits": [ { "rate": "9/m" }, { "algorithm": "sliding_log", "rate": "8/m" } ],
          "overrides": [ { "key": ["gold", "192.0.2.1", "/"], "limits": [ { "rate": "10/m" } ] } ] },
        { "name": "b", "key": ["user"], "limits": [ { "rate": "4/m" } ], "penalty": {} },
        { "name": "c", "dry_run": true, "limits": [ { "algorithm": "fixed_window", "rate": "3/d" } ] } ] }"#;
    let rules = Rules::parse(RULES, Seed([1, 2])).unwrap();
    let owned = small_table();
    let table = owned.table().unwrap();
    let counters: Vec<Counters> = (0..3).map(|_| Counters::default()).collect();
    let (top, latency) = (TopKeys::<8>::default(), Histogram::default());
    let long = vec![0xFF; 100_000];
    let mut buffer = vec![0; 1 << 16];
    without_allocating("a rules file", || {
        for round in 0..40u64 {
            let key = if round % 2 == 0 { &b"gold"[..] } else { &long[..] };
            let user = (round % 5 != 0).then_some(&b"u\r\n"[..]);
            let forwarded = Some(&b"for=6.6.6.6, for=\"192.0.2.1:80\";host=\"a,b\""[..]);
            let headers = [Some(key), user, forwarded, Some(&b"2"[..])];
            let peer = Some([10, 0, 0, 1].into());
            let request =
                Attributes { route: b"", method: b"GET", host: b"h", path: b"/", peer, headers: &headers };
            let mut room = KeyRoom::new();
            let selection = match rules.select(&request, &mut room) {
                Ok(selection) => selection,
                Err(missing) => {
                    assert!(http::missing_problem(missing.header, &mut buffer).is_ok());
                    assert!(http::missing_fields(missing.header, &mut buffer).is_ok());
                    assert!(http::grpc_missing(missing.header, &mut buffer).is_ok());
                    continue;
                }
            };
            let mut answer = check(&rules, &table, &selection, NOW + round);
            record(&rules, &table, &selection, &answer, &counters, Some(&top));
            latency.record(round * 1_000);
            assert!(rules.write_fields(&selection, &answer, &mut buffer).is_ok());
            assert!(rules.write_problem(&selection, &answer, &mut buffer).is_ok());
            if let Some(decision) = answer.decision() {
                assert!(http::grpc_denial("b", decision, &mut buffer).is_ok());
            }
            if round % 7 == 0 {
                policy::give_back(&table, &selection, &mut answer, NOW + round);
            }
        }
        let mut tops = [Top::default(); 8];
        let len = top.top(&mut tops);
        assert!(len > 0, "something was denied");
        top.age();
        let latency = latency.snapshot();
        let policies = [("a", counters[0].snapshot()), ("b", counters[1].snapshot())];
        let report = Report { policies: &policies, evictions: 0, latency: Some(&latency), top: &tops[..len] };
        let mut out = Prometheus::new(&mut buffer);
        report.prometheus(&mut out);
        assert!(out.finish().is_ok());
        let mut out = Json::new(&mut buffer);
        out.object(None, |out| report.json(out));
        assert!(out.finish().is_ok());
    });
}
