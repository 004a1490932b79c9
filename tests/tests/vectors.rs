//! Every step of every vector, through each implementation.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use tollgate::*;
use tollgate_core::algorithm::{sliding_window, token_bucket};
use tollgate_core::bucket::{Bucket, LogBucket};
use tollgate_core::key::Seed;
use tollgate_core::table::{Config, Line, OwnedTable};
use tollgate_core::{Algorithm, Anchor, Decision, Limit, Nanos};
use tollgate_tests::shared_pages::{Paged, Shared};
use tollgate_tests::subject::{Pure, Subject, Turns};
use tollgate_tests::vectors::{self, Vector};

/// What `retry_after` and `reset_after` may add to the exact value.
const TOLERANCE: Nanos = 1_000;

/// Plays all vectors through what `make` makes of each limit.
fn play_all<A: FnMut(u64, Nanos) -> Decision>(way: &str, make: impl Fn(&Vector) -> A) {
    let vectors = vectors::all();
    let outcomes: Vec<_> = vectors.iter().map(|vector| vector.play(TOLERANCE, make(vector))).collect();
    let failures: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    let steps: usize = outcomes.iter().flatten().sum();
    let mut report = String::new();
    for failure in &failures {
        report.push_str(failure);
        report.push('\n');
    }
    assert!(failures.is_empty(), "{way}: {} of {} vectors differ\n{report}", failures.len(), vectors.len());
    println!("{way}: {} vectors, {steps} steps", vectors.len());
}

#[test]
fn pure_functions_answer_every_step() {
    play_all("pure functions", |vector| {
        let mut state = Pure::new(vector.limit());
        move |cost, now| state.check(cost, now)
    });
}

#[test]
fn a_single_bucket_answers_every_step() {
    play_all("single bucket", |vector| -> Box<dyn FnMut(u64, Nanos) -> Decision> {
        let limit = vector.limit();
        if limit.algorithm() == Algorithm::SlidingLog {
            let count = usize::try_from(LogBucket::lines(&limit)).unwrap();
            let lines: &'static [Line] =
                Vec::leak(std::iter::repeat_with(Line::default).take(count).collect());
            let bucket = LogBucket::new(limit, lines).unwrap();
            return Box::new(move |cost, now| bucket.check(cost, now));
        }
        let bucket = Bucket::new(limit).unwrap();
        Box::new(move |cost, now| bucket.check(cost, now))
    });
}

fn table_config(limit: &Limit) -> Config {
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::Concurrency => {
            Config { capacity: 64, rows: 8, row_entries: limit.limit() }
        }
        _ => Config { capacity: 64, rows: 0, row_entries: 0 },
    }
}

#[test]
fn the_keyed_table_answers_every_step() {
    play_all("keyed table", |vector| {
        let limit = vector.limit();
        let table = OwnedTable::new(table_config(&limit), Seed([1, 2])).unwrap();
        move |cost, now| {
            let table = table.table().unwrap();
            // Neighbours come and go at the same instants.
            let _ = table.check(b"neighbour", &limit, cost, now);
            let peeked = table.peek(b"the key", &limit, cost, now);
            let checked = table.check(b"the key", &limit, cost, now);
            assert_eq!(peeked, checked, "a peek tells what the check will say");
            checked
        }
    });
}

#[test]
fn a_batch_answers_every_step() {
    play_all("batch", |vector| {
        let limit = vector.limit();
        let table = OwnedTable::new(table_config(&limit), Seed([3, 4])).unwrap();
        move |cost, now| {
            let request = |key| tollgate_core::table::Request { key, limit: &limit, cost };
            let requests = [request(b"a"), request(b"b"), request(b"c"), request(b"d")];
            let mut answers = [Bucket::new("1/s".parse().unwrap()).unwrap().peek(1, 0); 4];
            table.table().unwrap().check_batch(&requests, now, &mut answers);
            assert!(answers.iter().all(|answer| *answer == answers[0]));
            answers[2]
        }
    });
}

/// As Envoy's workers count: in pages that they exchange whole, each now and then finding that
/// another was first.
#[test]
fn shared_pages_answer_every_step() {
    play_all("shared pages", |vector| {
        let shared = Shared::losing_one_in(3);
        let worker = |key| Paged::new(shared.clone(), vector.limit(), key);
        let mut neighbour = worker(b"neighbour");
        let mut workers = [worker(b"the key"), worker(b"the key")];
        let mut turn = 0;
        move |cost, now| {
            let _ = neighbour.check(cost, now);
            turn += 1;
            workers[turn % 2].check(cost, now)
        }
    });
}

/// Pages that are what a machine counts by itself.
#[test]
fn local_pages_answer_every_step() {
    play_all("local pages", |vector| {
        let mut turns = Turns::new(vector.limit(), b"the key");
        move |cost, now| Subject::check(&mut turns, cost, now)
    });
}

/// Memory of a layout that C asked for.
struct Memory {
    start: *mut c_void,
    layout: Layout,
}

impl Memory {
    fn new(size: usize, align: usize) -> Memory {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the size is not zero.
        Memory { start: unsafe { alloc_zeroed(layout) }.cast(), layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.cast(), self.layout) };
    }
}

fn c_limit(vector: &Vector) -> tollgate_limit {
    let limit = vector.limit();
    let config = tollgate_limit_config {
        struct_size: u32::try_from(size_of::<tollgate_limit_config>()).unwrap(),
        algorithm: limit.algorithm() as u32,
        limit: limit.limit(),
        period_ns: limit.period(),
        burst: vector.limit.burst.unwrap_or(0),
        anchor: u32::from(limit.anchor() == Anchor::FirstRequest),
        reserved: 0,
    };
    let mut made = MaybeUninit::uninit();
    // SAFETY: all pointers are of live objects.
    let status =
        unsafe { tollgate_limit_init(&raw const config, made.as_mut_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(status, TOLLGATE_OK);
    // SAFETY: written on success.
    unsafe { made.assume_init() }
}

fn from_c(status: tollgate_status, decision: tollgate_decision) -> Decision {
    assert_eq!(status, TOLLGATE_OK);
    Decision {
        allowed: decision.allowed == 1,
        limit: decision.limit,
        remaining: decision.remaining,
        retry_after: decision.retry_after_ns,
        reset_after: decision.reset_after_ns,
        delay: decision.delay_ns,
    }
}

#[test]
fn the_c_bucket_answers_every_step() {
    play_all("C ABI, bucket", |vector| {
        let limit = c_limit(vector);
        let (mut size, mut align) = (0, 0);
        // SAFETY: all pointers are of live objects.
        let status = unsafe { tollgate_bucket_layout(&raw const limit, &raw mut size, &raw mut align) };
        assert_eq!(status, TOLLGATE_OK);
        let memory = Memory::new(size, align);
        let mut bucket = std::ptr::null_mut();
        // SAFETY: memory of the layout that was asked for.
        let status = unsafe { tollgate_bucket_init(memory.start, size, &raw const limit, &raw mut bucket) };
        assert_eq!(status, TOLLGATE_OK);
        move |cost, now| {
            let _alive = &memory;
            let mut decision = tollgate_decision::default();
            // SAFETY: the bucket lives in `memory`.
            let status = unsafe { tollgate_bucket_check(bucket, cost, now, &raw mut decision) };
            from_c(status, decision)
        }
    });
}

#[test]
fn the_c_table_answers_every_step() {
    play_all("C ABI, table", |vector| {
        let limit = c_limit(vector);
        let inner = table_config(&vector.limit());
        let config = tollgate_table_config {
            struct_size: u32::try_from(size_of::<tollgate_table_config>()).unwrap(),
            flags: 0,
            capacity: inner.capacity,
            rows: inner.rows,
            row_entries: inner.row_entries,
            seed: [5, 6],
        };
        let (mut size, mut align) = (0, 0);
        // SAFETY: all pointers are of live objects.
        let status = unsafe { tollgate_table_layout(&raw const config, &raw mut size, &raw mut align) };
        assert_eq!(status, TOLLGATE_OK);
        let memory = Memory::new(size, align);
        let mut table = tollgate_table { opaque: [0; 32] };
        // SAFETY: memory of the layout that was asked for.
        let status = unsafe { tollgate_table_init(memory.start, size, &raw const config, &raw mut table) };
        assert_eq!(status, TOLLGATE_OK);
        move |cost, now| {
            let _alive = &memory;
            let mut decision = tollgate_decision::default();
            let key = b"the key";
            // SAFETY: the table lives in `memory`.
            let status = unsafe {
                tollgate_table_check(
                    &raw const table,
                    key.as_ptr().cast(),
                    key.len(),
                    &raw const limit,
                    cost,
                    now,
                    &raw mut decision,
                )
            };
            from_c(status, decision)
        }
    });
}

#[test]
fn a_wrong_answer_is_noticed() {
    let vector = &vectors::all()[0];
    let limit = vector.limit();
    let right = |cost, now| match limit.algorithm() {
        Algorithm::SlidingWindow => {
            sliding_window::decide(sliding_window::Windows::default(), &limit, now, cost).1
        }
        _ => token_bucket::decide(token_bucket::Tat::default(), &limit, now, cost).1,
    };
    let wrong: [fn(&mut Decision); 4] =
        [|d| d.allowed = !d.allowed, |d| d.remaining += 1, |d| d.delay += 1, |d| d.limit += 1];
    for spoil in wrong {
        let spoilt = |cost, now| {
            let mut decision = right(cost, now);
            spoil(&mut decision);
            decision
        };
        assert!(vector.play(TOLERANCE, spoilt).is_err());
    }
}
