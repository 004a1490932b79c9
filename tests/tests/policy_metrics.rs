//! What a rules document's answers mean to metrics.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::key::{Fingerprint, Seed};
use tollgate_core::metrics::{Counters, Histogram, Json, Label, Prometheus, Report, Snapshot, Top, TopKeys};
use tollgate_core::policy::{Attributes, KeyRoom, Rules, check, record};
use tollgate_core::table::{Config, OwnedTable};
use tollgate_core::time::SECOND;

const RULES: &str = r#"{
  "identity": { "api_key": { "header": "x-key" }, "user": { "header": "x-user" } },
  "policies": [
    { "name": "a", "key": ["api_key", "user", "ip", "header:authorization"],
      "limits": [ { "rate": "2/s" }, { "rate": "1000/d" } ] },
    { "name": "dry", "dry_run": true, "limits": [ { "rate": "1/s" }, { "rate": "1/m" } ] },
    { "name": "slow", "limits": [ { "rate": "100/s" }, { "algorithm": "leaky_bucket", "rate": "10/s" } ] } ] }"#;

#[test]
fn a_policy_counts_a_request_once_and_tells_whom_it_denied() {
    let rules = Rules::parse(RULES, Seed([1, 2])).unwrap();
    assert_eq!(rules.headers(), ["x-key", "x-user", "authorization"]);
    let table = OwnedTable::new(Config { capacity: 64, rows: 0, row_entries: 0 }, Seed([3, 4])).unwrap();
    let table = table.table().unwrap();
    let counters: Vec<Counters> = (0..3).map(|_| Counters::default()).collect();
    let top = TopKeys::<8>::default();
    let headers = [Some(&b"secret"[..]), Some(&b"j\r\nX: y"[..]), Some(&b"Basic c2VjcmV0"[..])];
    let request = Attributes {
        route: b"",
        method: b"GET",
        host: b"h",
        path: b"/",
        peer: "2001:db8::7".parse().ok(),
        headers: &headers,
    };
    for _ in 0..5 {
        let mut room = KeyRoom::new();
        let selection = rules.select(&request, &mut room).unwrap();
        let answer = check(&rules, &table, &selection, 1_000 * SECOND);
        record(&rules, &table, &selection, &answer, &counters, Some(&top));
    }
    let told: Vec<Snapshot> = counters.iter().map(Counters::snapshot).collect();
    let none = Snapshot::default();
    assert_eq!(told[0], Snapshot { allowed: 2, rejected: 3, ..none });
    assert_eq!(told[1], Snapshot { allowed: 1, rejected_dry_run: 4, ..none });
    assert_eq!(told[2], Snapshot { allowed: 2, delayed: 1, ..none });
    let mut tops = [Top::default(); 8];
    assert_eq!((top.top(&mut tops), tops[0].count), (1, 3));
    assert_eq!(
        tops[0].label.as_str(),
        "a api_key=sha256:2bb80d53,user=j\\u{d}\\u{a}X: y,ip=2001:db8::/64,authorization=sha256:e54151d4"
    );
}

/// What processes share.
#[repr(C)]
struct Shared {
    top: TopKeys<16>,
    latency: Histogram,
    counters: Counters,
    hits: AtomicU64,
}

fn shared() -> &'static Shared {
    // SAFETY: a new anonymous mapping; nothing is replaced, and it stays.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Shared>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: pages are aligned, all of it is atomics, and zeros are ready for use.
    unsafe { &*start.cast::<Shared>() }
}

fn hit(shared: &Shared, key: u64) {
    shared.top.record(Fingerprint((key + 1) << 16), || {
        let mut label = Label::new("p");
        let _ = write!(label, "key={key}");
        label
    });
    shared.latency.record(key % 5_000);
    shared.hits.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn processes_that_are_killed_leave_metrics_of_use() {
    let shared = shared();
    for round in 0..200u64 {
        // SAFETY: the child calls nothing but atomics of its own memory and the shared one.
        let child = unsafe { libc::fork() };
        assert_ne!(child, -1);
        if child == 0 {
            for i in 0u64.. {
                // Half of the hits are three keys', the rest are seen once.
                hit(shared, if i % 2 == 0 { i / 2 % 3 } else { 1_000 + round * 100_000_000 + i });
            }
        }
        std::thread::sleep(std::time::Duration::from_micros(500 + round * 37 % 1_000));
        // SAFETY: our own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    let hits = shared.hits.load(Ordering::Relaxed);
    (0..300).for_each(|i| hit(shared, i % 3));
    let mut tops = [Top::default(); 16];
    let len = shared.top.top(&mut tops);
    let tops = &tops[..len];
    for key in 0..3 {
        let place = tops.iter().position(|top| top.id == key + 1).expect("it has a sixth of all hits");
        assert!(place < 3, "{tops:#?}");
        assert_eq!(tops[place].label.rest(), format!("key={key}"), "it is labelled again");
        let off = tops[place].count.abs_diff(hits / 6);
        assert!(off <= hits / 16 + 1_000, "{} of {hits}", tops[place].count);
    }
    // At most one hit of each process was counted in one place only.
    assert!(shared.latency.snapshot().count().abs_diff(hits + 300) <= 200);
    let report = Report {
        policies: &[("p", shared.counters.snapshot())],
        evictions: 0,
        latency: Some(&shared.latency.snapshot()),
        top: tops,
    };
    let mut buffer = vec![0; 1 << 16];
    let mut out = Prometheus::new(&mut buffer);
    report.prometheus(&mut out);
    assert!(out.finish().is_ok());
    let mut out = Json::new(&mut buffer);
    out.object(None, |out| report.json(out));
    let len = out.finish().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&buffer[..len]).unwrap();
    assert_eq!(json["limited"].as_array().unwrap().len(), tops.len());
}
