//! A plugin ends because its listener is exchanged: what it has fetched ahead goes back to Redis.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::over::Over;
use tollgate_tests::redis::Server;
use tollgate_tests::redis_proxy::{Proxy, Weather};

use super::support::{count, in_redis, statistic};

/// 50,000 a day are one in 1.728 s.
fn plugin(more: &str) -> String {
    in_redis(r#"{ "rate": "50000/d" }"#, &format!(r#", "timeout": "2s"{more}"#), "")
}

fn with_lease(seconds: u32) -> String {
    plugin(&format!(r#", "lease": {{ "max": 50, "ttl": "{seconds}s" }}"#))
}

fn get(envoy: &Envoy, admitted: &mut u64) -> u64 {
    let answer = envoy.get("/", &[("x-user", "a")]);
    *admitted += u64::from(answer.status == 200);
    answer.number("x-ratelimit-remaining")
}

/// On one connection after the other, each for as long as Envoy keeps it; until it is over.
fn load(envoy: &Envoy, is_over: &AtomicBool) -> u64 {
    let mut admitted = 0;
    while !is_over.load(Ordering::Relaxed) {
        let mut conn = envoy.connect();
        let mut is_open = true;
        while is_open && !is_over.load(Ordering::Relaxed) {
            conn.request("GET", "/", &[("x-user", "a")]);
            let answer = conn.response_to("GET"); // none: it was closed meanwhile
            admitted += u64::from(answer.as_ref().is_some_and(|answer| answer.status == 200));
            is_open = answer.is_some_and(|answer| answer.header("connection") != Some("close"));
            thread::sleep(Duration::from_millis(1));
        }
    }
    admitted
}

#[test]
fn plugins_that_end_under_load_leave_nothing_behind() {
    let server = Server::start(&[]);
    let mut setup = Setup::new(&with_lease(60)).redis(server.port());
    setup.watched = true;
    let envoy = setup.start();
    statistic(&envoy, "tollgate_store_connected", 1);
    let (start, is_over) = (Instant::now(), AtomicBool::new(false));
    let admitted = thread::scope(|scope| {
        let over = Over(&is_over);
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| load(&envoy, &is_over))).collect();
        for seconds in 61..=63 {
            thread::sleep(Duration::from_millis(1200)); // the one before has drained: 1 s
            envoy.update(&with_lease(seconds));
        }
        thread::sleep(Duration::from_millis(1200));
        envoy.update(&plugin("")); // and from then on nothing is fetched ahead
        thread::sleep(Duration::from_millis(500));
        drop(over);
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    });
    all_come_back(&envoy, admitted, start);
}

/// A fetch is on its way when its plugin ends: it is waited for, and goes back.
#[test]
fn a_plugin_that_ends_waits_for_what_it_asked() {
    const LATE: Duration = Duration::from_millis(1800);
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let mut setup = Setup::new(&with_lease(60)).redis(proxy.port());
    setup.watched = true;
    let envoy = setup.start();
    statistic(&envoy, "tollgate_store_connected", 1);
    let start = Instant::now();
    let mut conn = envoy.connect();
    let mut ask = || {
        conn.request("GET", "/", &[("x-user", "a")]);
        conn.response_to("GET").is_some_and(|answer| answer.status == 200)
    };
    assert!((0..200).all(|_| ask()), "by now 50 are fetched at once");
    proxy.set(Weather::Late(LATE));
    let (admitted, late_since) = thread::scope(|scope| {
        let last = scope.spawn(|| (0..).take_while(|_| ask()).count()); // it waits until it is cut off
        statistic(&envoy, "tollgate_store_waiting", 1);
        let late_since = Instant::now();
        thread::sleep(Duration::from_millis(100)); // what Redis said is on its way
        proxy.set(Weather::Clear);
        envoy.update(&plugin("")); // the old one has drained after 1 s
        let lasts = last.join().expect("no panic");
        (200 + lasts as u64, late_since)
    });
    until_drained(&envoy);
    println!("drained {:?} after Redis was asked, which answered after {LATE:?}", late_since.elapsed());
    all_come_back(&envoy, admitted, start);
}

/// The old listener is gone, and its plugin is not asked again.
fn until_drained(envoy: &Envoy) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let stats = envoy.admin("/stats?filter=listener_manager");
        if count(&stats, "listener_modified") == 1 && count(&stats, "total_listeners_draining") == 0 {
            return;
        }
        assert!(Instant::now() < end, "{stats}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// What Redis has left, and what was admitted since, are all that there were and came.
fn all_come_back(envoy: &Envoy, mut admitted: u64, start: Instant) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let left = get(envoy, &mut admitted);
        let came = u64::try_from(start.elapsed().as_millis()).unwrap() / 1728;
        println!("{admitted} admitted and {left} left of 50000 and {came} that came since");
        assert!(admitted + left <= 50_000 + came + 1, "more than there were");
        // A unit's age is rounded up: all that came back may be short of one.
        if admitted + left + 1 >= 50_000 + came {
            break;
        }
        assert!(Instant::now() < end, "{} are missing", 50_000 + came - admitted - left);
        thread::sleep(Duration::from_millis(100));
    }
}

/// What a plugin admitted while Redis was away, and nobody asked it about since, is told when it ends.
#[test]
fn a_plugin_that_ends_tells_what_it_admitted_alone() {
    let server = Server::start(&[]);
    let plugin =
        |timeout: u32| in_redis(r#"{ "rate": "50000/d" }"#, &format!(r#", "timeout": "{timeout}ms""#), "");
    let mut setup = Setup::new(&plugin(50)).redis(server.port());
    setup.watched = true;
    let envoy = setup.start();
    statistic(&envoy, "tollgate_store_connected", 1);
    let (start, mut admitted) = (Instant::now(), 0);
    get(&envoy, &mut admitted);
    server.stop();
    (0..100).for_each(|_| _ = get(&envoy, &mut admitted));
    server.cont();
    statistic(&envoy, "tollgate_store_breaker_open", 0);
    assert_eq!(admitted, 101, "on_store_error is local");
    envoy.update(&plugin(2000));
    until_drained(&envoy);
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let left = get(&envoy, &mut admitted);
        let came = u64::try_from(start.elapsed().as_millis()).unwrap() / 1728;
        println!("{admitted} admitted and {left} left of 50000 and {came} that came since");
        if admitted + left <= 50_000 + came + 1 {
            break;
        }
        assert!(Instant::now() < end, "{} above the limit", admitted + left - 50_000 - came);
        thread::sleep(Duration::from_millis(200));
    }
}
