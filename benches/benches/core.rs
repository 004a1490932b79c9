//! The pieces of a decision, one by one: `cargo bench -p tollgate-benches`.
//!
//! These are for whoever works on one of them. What is compared with peers,
//! and has goals, is `make bench`.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tollgate_core::key::{Fingerprinter, Seed};
use tollgate_core::table::{Config, OwnedTable, Table};
use tollgate_core::{Bucket, Limit};

const START_NS: u64 = 1_000_000_000;
const STEP_NS: u64 = 7;
const SEED: Seed = Seed([0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210]);
const KEY: &[u8] = b"tenant-00000000000012ab";

fn limit(text: &str) -> Limit {
    text.parse().expect("a legal limit")
}

fn table() -> OwnedTable {
    OwnedTable::new(Config { capacity: 4_096, rows: 64, row_entries: 1_000 }, SEED).expect("a legal table")
}

fn view(table: &OwnedTable) -> Table<'_> {
    table.table().expect("a table that was just made")
}

fn fingerprint(c: &mut Criterion) {
    let seeded = Fingerprinter::new(SEED);
    assert_ne!(seeded.fingerprint(KEY), seeded.fingerprint(&KEY[1..]));
    c.bench_function("fingerprint, 23 bytes", |b| b.iter(|| black_box(&seeded).fingerprint(black_box(KEY))));
}

fn parse(c: &mut Criterion) {
    assert_eq!(limit("100/s burst 200").burst(), 200);
    c.bench_function("limit text", |b| b.iter(|| black_box("100/s burst 200").parse::<Limit>()));
}

/// One bucket of each algorithm, half of whose requests are denied.
fn buckets(c: &mut Criterion) {
    for text in ["100000000/s", "700/m burst 1000000", "leaky_bucket", "fixed_window", "sliding_window"] {
        let limit = match tollgate_core::Algorithm::from_name(text) {
            Some(algorithm) => Limit::new(algorithm, 1_000, 1_000_000).expect("a legal limit"),
            None => limit(text),
        };
        let bucket = Bucket::new(limit).expect("no rows needed");
        let most = limit.burst();
        assert_eq!((0..2 * most).filter(|_| bucket.check(1, START_NS).allowed).count() as u64, most);
        let mut now = START_NS;
        c.bench_function(&format!("bucket, {text}"), |b| {
            b.iter(|| {
                now += STEP_NS;
                black_box(&bucket).check(1, now)
            });
        });
    }
}

/// One key of each algorithm in a table.
fn tables(c: &mut Criterion) {
    for algorithm in tollgate_core::Algorithm::ALL {
        let owned = table();
        let table = view(&owned);
        let limit = Limit::new(algorithm, 1_000, 1_000_000).expect("a legal limit");
        table.accepts(&limit).expect("rows of 1,000 entries");
        let mut now = START_NS;
        if algorithm != tollgate_core::Algorithm::Concurrency {
            let admitted = (0..2_000).filter(|_| table.check(KEY, &limit, 1, now).allowed).count();
            assert_eq!(admitted, 1_000);
        }
        c.bench_function(&format!("table, {}", algorithm.name()), |b| {
            b.iter(|| {
                now += STEP_NS;
                black_box(&table).check(black_box(KEY), black_box(&limit), 1, now)
            });
        });
    }
}

/// A key that was never seen, and room for it.
fn first_request(c: &mut Criterion) {
    let limit = limit("1000/d");
    let keys: Vec<String> = (0..1_000).map(|number| format!("tenant-{number:016x}")).collect();
    c.bench_function("table, 1,000 first requests", |b| {
        b.iter_batched_ref(
            table,
            |owned| {
                let table = view(owned);
                for key in &keys {
                    assert_eq!(table.check(key.as_bytes(), &limit, 1, START_NS).remaining, 999);
                }
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group! {
    name = core;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = fingerprint, parse, buckets, tables, first_request
}
criterion_main!(core);
