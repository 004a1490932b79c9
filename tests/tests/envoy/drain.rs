//! Envoy drains, is restarted, or loses the bridge, while requests wait for Redis: each is answered,
//! and counted once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::nginx::Conn;
use tollgate_tests::over::Over;
use tollgate_tests::redis::Server;

use super::support::{in_redis, statistic};

/// As many as these are admitted of [`WAITING`].
const LIMIT: usize = 20;
const WAITING: usize = 50;

fn plugin(more: &str) -> String {
    in_redis(r#"{ "rate": "20/d" }"#, &format!(r#", "on_store_error": "deny", "timeout": "2s"{more}"#), "")
}

/// What these requests are answered when this happens while Redis does not answer, which it does
/// again soon enough for the connections to live.
fn waiting_while(envoy: &Envoy, redis: &Server, user: &str, happens: impl FnOnce()) -> Vec<u16> {
    let sent = Barrier::new(WAITING + 1);
    thread::scope(|scope| {
        redis.stop();
        let clients: Vec<_> = (0..WAITING)
            .map(|_| {
                scope.spawn(|| {
                    let mut conn = envoy.connect();
                    conn.request("GET", "/", &[("x-user", user)]);
                    sent.wait();
                    conn.response_to("GET").map_or(0, |answer| answer.status)
                })
            })
            .collect();
        sent.wait();
        thread::sleep(Duration::from_millis(50)); // they are with Envoy
        happens();
        thread::sleep(Duration::from_millis(50));
        redis.cont();
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    })
}

fn are_answered_and_counted_once(statuses: &[u16], what: &str) {
    let of = |status: u16| statuses.iter().filter(|found| **found == status).count();
    println!("{what}: {} admitted, {} denied, of {WAITING} that waited", of(200), of(429));
    assert_eq!((of(200), of(429)), (LIMIT, WAITING - LIMIT), "{what}: {statuses:?}");
}

#[test]
fn who_waits_while_envoy_drains_is_answered() {
    for what in ["/drain_listeners?graceful", "/healthcheck/fail"] {
        let server = Server::start(&[]);
        let envoy = Setup::new(&plugin("")).redis(server.port()).start();
        statistic(&envoy, "tollgate_store_connected", 1);
        let statuses = waiting_while(&envoy, &server, "a", || envoy.tell(what));
        are_answered_and_counted_once(&statuses, what);
        statistic(&envoy, "tollgate_store_waiting", 0);
        if what == "/healthcheck/fail" {
            assert_eq!(envoy.get("/", &[("x-user", "b")]).status, 200, "whoever still comes");
        }
    }
}

#[test]
fn who_waits_while_the_listener_is_replaced_is_answered_by_the_rules_that_it_came_under() {
    let server = Server::start(&[]);
    let mut setup = Setup::new(&plugin("")).redis(server.port());
    setup.watched = true;
    let envoy = setup.start();
    statistic(&envoy, "tollgate_store_connected", 1);
    let new = plugin("").replace("20/d", "30/d");
    let statuses = waiting_while(&envoy, &server, "a", || {
        envoy.update(&new);
        thread::sleep(Duration::from_millis(100));
    });
    are_answered_and_counted_once(&statuses, "a listener that is replaced");
    let end = Instant::now() + Duration::from_secs(10);
    while envoy.get("/", &[("x-user", "probe")]).number("x-ratelimit-limit") != 30 {
        assert!(Instant::now() < end, "the new rules do not come");
        thread::sleep(Duration::from_millis(20));
    }
    // The counts are Redis's: of 30, 20 are spent.
    let statuses: Vec<u16> = (0..15).map(|_| envoy.get("/", &[("x-user", "a")]).status).collect();
    assert_eq!(statuses, [[200; 10].as_slice(), &[429; 5]].concat());
    // The old listener's plugin is gone after its drain time, and what it counted as open with it.
    statistic(&envoy, "tollgate_store_waiting", 0);
    statistic(&envoy, "tollgate_store_breaker_open", 0);
}

/// `--restart-epoch 1`: another process takes the sockets over.
#[test]
fn a_hot_restart_fails_nobody_and_redis_keeps_the_counts() {
    let server = Server::start(&[]);
    let mut setup = Setup::new(&plugin("")).concurrency(2).redis(server.port());
    setup.restartable = true;
    let mut old = setup.start();
    statistic(&old, "tollgate_store_connected", 2);
    let (port, over) = (old.port(), AtomicBool::new(false));
    let (mut new, waited, seen) = thread::scope(|scope| {
        let end_of_load = Over(&over);
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let mut conn = Conn::open(port);
                        conn.request("GET", "/", &[("x-user", "load"), ("connection", "close")]);
                        seen.push(conn.response_to("GET").map_or(0, |answer| answer.status));
                        thread::sleep(Duration::from_millis(2));
                    }
                    seen
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(200));
        let waited = waiting_while(&old, &server, "a", || ());
        let new = old.hot_restart(&plugin(""));
        let end = Instant::now() + Duration::from_secs(20);
        while !old.has_ended() {
            assert!(Instant::now() < end, "the old one stays");
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_millis(200));
        drop(end_of_load);
        let seen: Vec<u16> =
            clients.into_iter().flat_map(|client| client.join().expect("a client")).collect();
        (new, waited, seen)
    });
    are_answered_and_counted_once(&waited, "before a hot restart");
    let of = |status: u16| seen.iter().filter(|found| **found == status).count();
    println!("a hot restart: {} admitted, {} denied, of {}", of(200), of(429), seen.len());
    assert_eq!((of(200), of(429)), (LIMIT, seen.len() - LIMIT), "over both processes");
    assert_eq!(new.get("/", &[("x-user", "a")]).status, 429, "it was spent before");
    assert!(!new.has_ended());
}

/// The bridge is in an Envoy of its own here, which is killed, and comes again.
#[test]
fn a_bridge_that_goes_while_requests_wait_costs_no_answer() {
    let server = Server::start(&[]);
    let held = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = held.local_addr().expect("an address").port();
    drop(held);
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let mut far = Setup::new(&plugin("")).redis(server.port());
    far.listeners[0] = {
        let mut bridge = far.listeners[0].clone();
        bridge.as_object_mut().expect("a listener").remove("internal_listener");
        bridge["address"] = address.clone();
        bridge
    };
    let mut near = Setup::new(&plugin("")).redis(server.port());
    near.clusters[0]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] = address;

    let bridge = far.clone().start();
    let envoy = near.start();
    // Envoy's main thread has a plugin of its own, and reaches a bridge that is elsewhere.
    statistic(&envoy, "tollgate_store_connected", 2);
    assert_eq!(envoy.get("/", &[("x-user", "a")]).status, 200);
    let began = Instant::now();
    let statuses = waiting_while(&envoy, &server, "b", || drop(bridge));
    let waited = began.elapsed();
    assert_eq!(statuses, vec![503; WAITING], "as on_store_error says");
    assert_eq!(envoy.get("/", &[("x-user", "c")]).status, 503);
    let bridge = far.start();
    let back = Instant::now();
    let end = back + Duration::from_secs(10);
    for number in 0.. {
        if envoy.get("/", &[("x-user", &format!("d-{number}"))]).status == 200 {
            break;
        }
        assert!(Instant::now() < end, "never found again");
        thread::sleep(Duration::from_millis(5));
    }
    println!("a bridge that goes: all answered within {waited:?}, asked again after {:?}", back.elapsed());
    statistic(&envoy, "tollgate_store_waiting", 0);
    drop(bridge);
}
