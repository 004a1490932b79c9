//! 200,000 requests that are counted in Redis, one in ten of whose clients hang up while they wait:
//! no VM fails, memory stays what it was, and every call to Redis is accounted for.
//!
//! `make soak-envoy`; `TOLLGATE_SOAK_REQUESTS` is another number.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::nginx::Conn;
use tollgate_tests::over::Over;
use tollgate_tests::redis::Server;

const CLIENTS: u64 = 16;
const PLUGIN: &str = r#"{
  "redis": { "cluster": "tollgate_bridge", "workers": 2 },
  "rules": { "identity": { "user": { "header": "x-user" } },
             "policies": [ { "name": "all", "key": ["user"], "store": "redis", "timeout": "2s",
                             "on_store_error": "deny", "limits": [ { "rate": "20/s" } ] } ] } }"#;

#[derive(Default)]
struct Seen {
    admitted: AtomicU64,
    denied: AtomicU64,
    left: AtomicU64,
}

impl Seen {
    /// Admitted, denied, left.
    fn all(&self) -> [u64; 3] {
        [&self.admitted, &self.denied, &self.left].map(|count| count.load(Ordering::Relaxed))
    }
}

#[test]
fn one_in_ten_of_200_000_clients_hangs_up() {
    let (requests, server) = (requests(), Server::start(&[]));
    let envoy = connected(PLUGIN, &server);
    let (seen, began) = (Seen::default(), Instant::now());
    send(&envoy, &seen, 0, requests / 4);
    let warm = envoy.resident_kib();
    send(&envoy, &seen, requests / 4, requests);
    let (now, took) = (envoy.resident_kib(), began.elapsed());

    let end = Instant::now() + Duration::from_secs(20);
    let calls = || {
        let ended = ["replies", "timeouts", "failures", "key_failures"]
            .map(|name| of(&envoy, &format!("store.{name}")));
        (of(&envoy, "store.calls"), ended.iter().sum::<u64>(), ended)
    };
    let [admitted, denied, left] = seen.all();
    // What is counted is told ten times a second, by each worker on its own.
    let counted = || of(&envoy, "policy.all.allowed") + of(&envoy, "policy.all.denied");
    let is_told = || counted() >= admitted + denied && of(&envoy, "store.waiting") == 0;
    while !is_told() || calls().0 != calls().1 {
        assert!(Instant::now() < end, "not accounted for: {:?}, {} answers", calls(), counted());
        thread::sleep(Duration::from_millis(200));
    }
    let (made, _, [replies, timeouts, failures, of_keys]) = calls();
    let given = of(&envoy, "store.give_backs");
    println!("{requests} requests in {took:.1?}: {admitted} admitted, {denied} denied, {left} hung up");
    println!(
        "{made} calls: {replies} replies, {timeouts} timeouts, {failures} and {of_keys} failures; {given} give back"
    );
    println!("resident: {warm} KiB after a quarter, {now} KiB at the end");
    assert_eq!(admitted + denied + left, requests);
    let counted = counted();
    assert!((admitted + denied..=requests).contains(&counted), "{counted} were answered");
    assert_eq!(of(&envoy, "store.breaker_open"), 0);
    assert!(given > 0 && given <= left, "{given} of {left}");
    assert!(now < warm + 8192, "{warm} KiB, then {now} KiB");
    assert_eq!(envoy.get("/", &[("x-user", "sane")]).status, 200);
}

/// Of those who leave, units in flight come back, in either store: they would last an hour else, and
/// after so many nobody were admitted any more.
#[test]
fn units_in_flight_of_those_who_leave_come_back() {
    let requests = requests() / 5;
    let policy = |name: &str, store: &str| {
        format!(
            r#"{{ "name": "{name}", "key": ["global"], "store": "{store}", "timeout": "2s",
                 "limits": [ {{ "algorithm": "concurrency", "rate": "200/h" }} ] }}"#
        )
    };
    let plugin = format!(
        r#"{{ "redis": {{ "cluster": "tollgate_bridge", "workers": 2 }},
              "rules": {{ "identity": {{ "user": {{ "header": "x-user" }} }}, "policies": [ {}, {} ] }} }}"#,
        policy("here", "local"),
        policy("there", "redis")
    );
    let server = Server::start(&[]);
    let envoy = connected(&plugin, &server);
    let (seen, began) = (Seen::default(), Instant::now());
    let (most, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(held(&server), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
        });
        let over = Over(&is_over);
        send(&envoy, &seen, 0, requests);
        drop(over);
    });
    let [admitted, denied, left] = seen.all();
    println!(
        "{requests} requests in flight, in {:.1?}: {admitted} admitted, {denied} denied, {left} hung up; at most {} held",
        began.elapsed(),
        most.load(Ordering::Relaxed)
    );
    assert_eq!((admitted + left, denied), (requests, 0));
    assert_eq!(of(&envoy, "store.breaker_open"), 0);
    // Redis holds none any more. That it did, the keys that were seen meanwhile tell.
    let end = Instant::now() + Duration::from_secs(20);
    while held(&server) > 0 {
        assert!(Instant::now() < end, "{} units are still held", held(&server));
        thread::sleep(Duration::from_millis(100));
    }
    assert!(most.load(Ordering::Relaxed) > 0, "none was ever held");
}

/// Units in flight that Redis knows of.
fn held(server: &Server) -> u64 {
    let mut redis = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("tg:*#hold").query(&mut redis).expect("keys");
    keys.iter().map(|key| redis::cmd("ZCARD").arg(key).query::<u64>(&mut redis).expect("a number")).sum()
}

fn requests() -> u64 {
    std::env::var("TOLLGATE_SOAK_REQUESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000)
}

/// An Envoy whose two workers reach this Redis.
fn connected(plugin: &str, server: &Server) -> Envoy {
    let envoy = Setup::new(plugin).concurrency(2).redis(server.port()).start();
    let end = Instant::now() + Duration::from_secs(20);
    while of(&envoy, "store.connected") < 2 {
        assert!(Instant::now() < end, "the store is not reached");
        thread::sleep(Duration::from_millis(50));
    }
    envoy
}

fn send(envoy: &Envoy, seen: &Seen, from: u64, to: u64) {
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut conn = envoy.connect();
                for number in (from..to).filter(|number| number % CLIENTS == client) {
                    let user = (number % 1000).to_string();
                    conn.request("GET", "/", &[("x-user", &user)]);
                    if (number / CLIENTS).is_multiple_of(10) {
                        conn = Conn::open(envoy.port()); // the one before is closed, answered or not
                        seen.left.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    match conn.response_to("GET").expect("an answer").status {
                        200 => seen.admitted.fetch_add(1, Ordering::Relaxed),
                        429 | 503 => seen.denied.fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other}"),
                    };
                }
            });
        }
    });
}

fn of(envoy: &Envoy, name: &str) -> u64 {
    let stats = envoy.admin("/stats?filter=wasmcustom.tollgate");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("wasmcustom.tollgate.{name}: ")));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
