//! Every interleaving of a few threads on the table's slots, tried by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p tollgate-core --test loom --release`.
//! A slot is then a mutex held for one operation, and loom tries each order of
//! those operations with up to a few preemptions. Counters of the header are
//! plain atomics: nothing is decided by them but how far a walk goes, which
//! never changes in tables this small.
#![cfg(loom)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::sync::Arc;
use loom::thread;
use tollgate_core::key::Seed;
use tollgate_core::slot::death;
use tollgate_core::table::{Config, Header, Line, Table};
use tollgate_core::{Limit, Nanos};

const SECOND: Nanos = 1_000_000_000;
const NOW: Nanos = 1_000 * SECOND;

/// The memory of one table.
struct Memory {
    header: &'static Header,
    lines: Vec<Line>,
}

thread_local! {
    /// Headers are made once and not on the small stacks of loom's threads;
    /// making a table resets them. No scenario has more tables than these.
    static HEADERS: ([&'static Header; 2], Cell<usize>) =
        ([(); 2].map(|()| &*Box::leak(Box::<Header>::default())), Cell::new(0));
}

impl Memory {
    fn new(capacity: u64, rows: u64, row_entries: u64) -> Arc<Memory> {
        let config = Config { capacity, rows, row_entries };
        let lines = (0..config.lines().unwrap()).map(|_| Line::default()).collect();
        let header = HEADERS.with(|(headers, turn)| headers[turn.replace(turn.get() ^ 1)]);
        let memory = Memory { header, lines };
        Table::init(memory.header, &memory.lines, config, Seed([5, 6]), true).unwrap();
        Arc::new(memory)
    }

    fn table(&self) -> Table<'_> {
        Table::attach(self.header, &self.lines, None).unwrap()
    }
}

/// Tries every interleaving with at most so many preemptions, and tells how
/// many there were.
fn every_order(what: &str, preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let orders = std::sync::Arc::new(AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&orders);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    HEADERS.with(|_| ()); // made here, on a large stack
    let began = std::time::Instant::now();
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    println!("{what}: {} orders, {:.1?}", orders.load(Ordering::Relaxed), began.elapsed());
}

/// Runs threads to their end and adds up what each was admitted.
fn admitted(memory: &Arc<Memory>, threads: Vec<Box<dyn FnOnce(&Table<'_>) -> u64 + Send>>) -> u64 {
    let running: Vec<_> = threads
        .into_iter()
        .map(|body| {
            let memory = Arc::clone(memory);
            thread::spawn(move || body(&memory.table()))
        })
        .collect();
    running.into_iter().map(|thread| thread.join().unwrap()).sum()
}

fn check(key: &'static [u8], limit: Limit, now: Nanos) -> Box<dyn FnOnce(&Table<'_>) -> u64 + Send> {
    Box::new(move |table| u64::from(table.check(key, &limit, 1, now).allowed))
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// A full table of idle buckets, none of which is `key`'s.
fn idle_table() -> Arc<Memory> {
    let memory = Memory::new(4, 0, 0);
    for other in 0..4u8 {
        assert!(memory.table().check(&[other], &limit("1/s"), 1, NOW - 10 * SECOND).allowed);
    }
    assert_eq!(memory.table().stats().used, 4);
    memory
}

#[test]
fn two_threads_bring_the_same_new_key() {
    for (text, burst) in [("1/m", 1), ("1/m burst 2", 2), ("fixed_window 1/m", 1), ("7/m burst 1", 1)] {
        every_order("two threads, one new key", 4, move || {
            let memory = Memory::new(4, 0, 0);
            let limit = limit(text);
            let total = admitted(&memory, vec![check(b"key", limit, NOW), check(b"key", limit, NOW)]);
            assert_eq!(total, burst.min(2));
            assert_eq!(memory.table().live(NOW), 1, "one settled slot");
            assert_eq!(memory.table().stats().evictions, 0);
        });
    }
}

#[test]
fn three_threads_bring_the_same_new_key() {
    every_order("three threads, one new key", 3, || {
        let memory = Memory::new(4, 0, 0);
        let limit = limit("1/m burst 2");
        let total = admitted(&memory, (0..3).map(|_| check(b"key", limit, NOW)).collect());
        assert_eq!(total, 2);
        assert_eq!(memory.table().live(NOW), 1);
    });
}

#[test]
fn two_threads_bring_the_same_new_key_into_a_table_of_idle_buckets() {
    every_order("one new key, idle table", 4, || {
        let memory = idle_table();
        let limit = limit("1/m");
        let total = admitted(&memory, vec![check(b"key", limit, NOW), check(b"key", limit, NOW)]);
        assert_eq!(total, 1);
        assert_eq!(memory.table().live(NOW), 1);
        assert_eq!(memory.table().stats().evictions, 0);
    });
}

#[test]
fn two_keys_race_for_slots() {
    every_order("two new keys, unused and idle", 3, || {
        for memory in [Memory::new(4, 0, 0), idle_table()] {
            let limit = limit("1/m");
            let total = admitted(&memory, vec![check(b"one", limit, NOW), check(b"two", limit, NOW)]);
            assert_eq!(total, 2);
            let table = memory.table();
            assert!(!table.check(b"one", &limit, 1, NOW).allowed);
            assert!(!table.check(b"two", &limit, 1, NOW).allowed);
            assert_eq!(table.stats().evictions, 0);
        }
    });
}

#[test]
fn an_idle_slot_is_taken_while_its_owner_returns() {
    every_order("idle slot, owner returns", 4, || {
        let memory = idle_table();
        let limit = limit("1/s");
        // Two keys for the slots of four idle ones, one of which comes back.
        let total = admitted(
            &memory,
            vec![check(&[0], limit, NOW), check(b"new", limit, NOW), check(&[0], limit, NOW)],
        );
        assert_eq!(total, 2);
        assert_eq!(memory.table().live(NOW), 2);
        assert_eq!(memory.table().stats().evictions, 0);
    });
}

#[test]
fn an_eviction_meets_a_charge() {
    every_order("eviction against charge", 4, || {
        let memory = Memory::new(4, 0, 0);
        let long = limit("1/h burst 2");
        for other in 0..4u8 {
            assert!(memory.table().check(&[other], &long, 1, NOW + u64::from(other)).allowed);
        }
        // Key 0 is nearest to idle; it is charged while a fifth key evicts.
        let total = admitted(&memory, vec![check(&[0], long, NOW + 10), check(b"new", long, NOW + 10)]);
        assert_eq!(total, 2);
        let stats = memory.table().stats();
        assert!(stats.evictions >= 1, "each loss is counted");
        // Whoever is still there has not forgotten what it was charged.
        let table = memory.table();
        let spent: u64 = [&[0u8][..], &[1], &[2], &[3], b"new"]
            .iter()
            .map(|key| 2 - table.peek(key, &long, 0, NOW + 10).remaining)
            .sum();
        assert!(spent + 2 * stats.evictions >= 6, "{spent} spent, {} evicted", stats.evictions);
    });
}

#[test]
fn a_refund_meets_a_charge() {
    for text in ["1/m burst 2", "fixed_window 2/m", "7/m burst 2"] {
        every_order("refund against charge", 4, move || {
            let memory = Memory::new(4, 0, 0);
            let limit = limit(text);
            assert!(memory.table().check(b"key", &limit, 2, NOW).allowed);
            let give = Box::new(move |table: &Table<'_>| {
                table.refund(b"key", &limit, 1, NOW);
                0
            });
            let total = admitted(&memory, vec![give, check(b"key", limit, NOW)]);
            assert_eq!(memory.table().peek(b"key", &limit, 0, NOW).remaining, 1 - total);
        });
    }
}

#[test]
fn a_sliding_window_at_its_boundary_with_a_clock_behind() {
    // A limit of 2 a second; one thread is still in the window before.
    every_order("sliding window, clock behind", 4, || {
        let memory = Memory::new(8, 0, 0);
        let limit = limit("sliding_window 2/s");
        assert!(memory.table().check(b"key", &limit, 1, NOW - 2).allowed);
        let total = 1 + admitted(
            &memory,
            vec![check(b"key", limit, NOW - 1), check(b"key", limit, NOW), check(b"key", limit, NOW)],
        );
        // Nothing of the window before has left by the boundary.
        assert_eq!(total, 2);
        assert_eq!(memory.table().peek(b"key", &limit, 0, NOW).remaining, 0);
    });
}

#[test]
fn a_sliding_window_whose_key_is_new_at_the_boundary() {
    every_order("sliding window, new key at the boundary", 4, || {
        let memory = Memory::new(4, 0, 0);
        let limit = limit("sliding_window 1/s");
        let total = admitted(&memory, vec![check(b"key", limit, NOW - 1), check(b"key", limit, NOW)]);
        assert_eq!(total, 1);
    });
}

#[test]
fn two_threads_append_to_one_log() {
    every_order("log, two appends", 4, || {
        let memory = Memory::new(4, 1, 2);
        let limit = limit("sliding_log 1/m");
        let total = admitted(&memory, vec![check(b"key", limit, NOW), check(b"key", limit, NOW)]);
        assert_eq!(total, 1);
    });
}

#[test]
fn two_threads_append_to_a_log_that_goes_round() {
    every_order("log, two appends at the ring's edge", 4, || {
        let memory = Memory::new(4, 1, 2);
        let limit = limit("sliding_log 2/s");
        for at in [NOW - 2 * SECOND, NOW - 2 * SECOND, NOW - 10] {
            assert!(memory.table().check(b"key", &limit, 1, at).allowed);
        }
        let total = admitted(&memory, vec![check(b"key", limit, NOW), check(b"key", limit, NOW)]);
        assert_eq!(total, 1);
        assert_eq!(memory.table().peek(b"key", &limit, 0, NOW).remaining, 0);
    });
}

#[test]
fn an_idle_row_is_taken_while_its_owner_appends() {
    every_order("idle log taken, owner appends", 4, || {
        let memory = Memory::new(4, 2, 1);
        let limit = limit("sliding_log 1/s");
        for other in [b"one", b"two"] {
            assert!(memory.table().check(other, &limit, 1, NOW - 10 * SECOND).allowed);
        }
        let twice = Box::new(move |table: &Table<'_>| {
            (0..2).filter(|_| table.check(b"one", &limit, 1, NOW).allowed).count() as u64
        });
        let total = admitted(&memory, vec![twice, check(b"new", limit, NOW)]);
        let stats = memory.table().stats();
        assert_eq!(total, 2 + stats.row_evictions, "one each, unless a live row was evicted and counted");
    });
}

#[test]
fn an_idle_row_is_taken_while_its_owner_takes_a_hold() {
    every_order("idle holds taken, owner acquires", 4, || {
        let memory = Memory::new(4, 2, 1);
        let limit = limit("concurrency 1/s");
        for other in [b"one", b"two"] {
            assert!(memory.table().acquire(other, &limit, 1, NOW - 10 * SECOND).0.allowed);
        }
        let twice = Box::new(move |table: &Table<'_>| {
            (0..2).filter(|_| table.acquire(b"one", &limit, 1, NOW).0.allowed).count() as u64
        });
        let other =
            Box::new(move |table: &Table<'_>| u64::from(table.acquire(b"new", &limit, 1, NOW).0.allowed));
        let total = admitted(&memory, vec![twice, other]);
        assert_eq!(total, 2 + memory.table().stats().row_evictions);
    });
}

#[test]
fn a_log_takes_the_row_of_holds_while_its_owner_returns() {
    every_order("holds' row taken by a log", 3, || {
        let memory = Memory::new(4, 1, 2);
        let (held, log) = (limit("concurrency 1/s"), limit("sliding_log 1/s"));
        assert!(memory.table().acquire(b"one", &held, 1, NOW - 10 * SECOND).0.allowed);
        let back =
            Box::new(move |table: &Table<'_>| u64::from(table.acquire(b"one", &held, 1, NOW).0.allowed));
        let twice = Box::new(move |table: &Table<'_>| {
            (0..2).filter(|_| table.check(b"new", &log, 1, NOW).allowed).count() as u64
        });
        let total = admitted(&memory, vec![back, twice]);
        let evictions = memory.table().stats().row_evictions;
        assert!((2..=2 + evictions).contains(&total), "{total} admitted, {evictions} evicted");
    });
}

#[test]
fn acquire_meets_acquire_and_release() {
    every_order("acquire, acquire, release", 3, || {
        let memory = Memory::new(4, 1, 2);
        let limit = limit("concurrency 2/m");
        let (_, first) = memory.table().acquire(b"key", &limit, 1, NOW);
        assert_eq!(first.units, 1);
        let acquire = move || -> Box<dyn FnOnce(&Table<'_>) -> u64 + Send> {
            Box::new(move |table| u64::from(table.acquire(b"key", &limit, 1, NOW).0.allowed))
        };
        let release = Box::new(move |table: &Table<'_>| {
            table.release(&first);
            0
        });
        let total = admitted(&memory, vec![acquire(), acquire(), release]);
        assert!((1..=2).contains(&total));
        assert_eq!(memory.table().peek(b"key", &limit, 0, NOW).remaining, 2 - total);
    });
}

/// One thread dies before each of its steps in turn, while another brings the
/// same key: what was charged stays charged, and a slot is lost at most, until
/// its mark is old.
#[test]
fn a_thread_dies_before_each_of_its_steps() {
    for text in ["1/h", "fixed_window 1/d", "sliding_window 1/d"] {
        let sliding = text.starts_with("sliding");
        for steps in 0..36 {
            every_order("death in a claim", 3, move || {
                let memory = Memory::new(8, 0, 0);
                let limit = limit(text);
                let dying = {
                    let memory = Arc::clone(&memory);
                    thread::spawn(move || {
                        death::after(steps, || memory.table().check(b"key", &limit, 1, NOW).allowed)
                    })
                };
                let other = memory.table().check(b"key", &limit, 1, NOW).allowed;
                let told = dying.join().unwrap();
                let table = memory.table();
                let later = table.check(b"key", &limit, 1, NOW).allowed;
                let total = u32::from(other) + u32::from(later) + u32::from(told == Some(true));
                // Who died may have been charged and not have told.
                assert!(total == 1 || (total == 0 && told.is_none()), "{total} admitted");
                assert!(!table.check(b"key", &limit, 1, NOW).allowed);
                assert_eq!(table.live(NOW), if sliding { 2 } else { 1 });
                // All other slots serve, but one at most.
                let long: Limit = "1/h".parse().unwrap();
                for key in 0..if sliding { 5u8 } else { 6 } {
                    assert!(table.check(&[key], &long, 1, NOW).allowed);
                }
                assert_eq!(table.stats().evictions, 0);
                // And that one too when its mark is old.
                assert!(table.check(b"late", &long, 1, NOW + 2 * SECOND).allowed);
                assert_eq!(table.stats().evictions, 0);
            });
        }
    }
}

#[test]
fn a_thread_dies_while_it_takes_a_row() {
    let orders = |text: &'static str| {
        for steps in 0..40 {
            every_order("death in a row", 3, move || {
                let memory = Memory::new(4, 2, 1);
                let limit = limit(text);
                let ask = move |table: &Table<'_>, now| match text.starts_with("sliding") {
                    true => table.check(b"key", &limit, 1, now).allowed,
                    false => table.acquire(b"key", &limit, 1, now).0.allowed,
                };
                let dying = {
                    let memory = Arc::clone(&memory);
                    thread::spawn(move || death::after(steps, || ask(&memory.table(), NOW)))
                };
                let other = ask(&memory.table(), NOW);
                let told = dying.join().unwrap();
                let table = memory.table();
                let later = ask(&table, NOW);
                let total = u32::from(other) + u32::from(later) + u32::from(told == Some(true));
                assert!(total == 1 || (total == 0 && told.is_none()), "{total} admitted");
                assert_eq!(table.stats().row_evictions, 0);
                // Usable as before when all is idle.
                assert!(ask(&table, NOW + 100 * SECOND));
                assert!(!ask(&table, NOW + 100 * SECOND));
            });
        }
    };
    orders("sliding_log 1/s");
    orders("concurrency 1/s");
}
