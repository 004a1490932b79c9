//! A worker stands still, as on a machine that has too much to do: what Redis said meanwhile counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::over::Over;
use tollgate_tests::redis::Server;

use super::support::{count, in_redis, statistic};

/// Redis answers in time, and is not there only as long as Envoy is not.
const TIMEOUT: &str = r#", "timeout": "50ms""#;
const STILL: Duration = Duration::from_millis(200);

/// One request after the other, each of which asks; until it is over.
fn load(envoy: &Envoy, client: u32, is_over: &AtomicBool) -> u32 {
    let mut conn = envoy.connect();
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        conn.request("GET", "/", &[("x-user", &format!("{client}-{number}"))]);
        assert_eq!(conn.response_to("GET").expect("an answer").status, 200);
    }
    number
}

#[test]
fn an_answer_that_came_while_the_worker_stood_still_is_in_time() {
    let server = Server::start(&[]);
    let envoy = Setup::new(&in_redis(r#"{ "rate": "1000/s" }"#, TIMEOUT, "")).redis(server.port()).start();
    statistic(&envoy, "tollgate_store_connected", 1);
    let is_over = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let (envoy, is_over) = (&envoy, &is_over);
        let over = Over(is_over);
        let clients: Vec<_> =
            (0..8).map(|client| scope.spawn(move || load(envoy, client, is_over))).collect();
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(100));
            envoy.stop();
            thread::sleep(STILL);
            envoy.cont();
        }
        drop(over);
        clients.into_iter().map(|client| client.join().expect("a client")).sum::<u32>()
    });
    statistic(&envoy, "tollgate_store_waiting", 0);
    let stats = envoy.admin("/stats?filter=wasmcustom.tollgate.store");
    println!("{sent} requests, {} decided without Redis", count(&stats, "store.fallback_local"));
    assert_eq!(count(&stats, "store.fallback_local"), 0, "{stats}");
}

/// Redis stood still, and answers all that wait at once, more than a host can go on with within each
/// other.
#[test]
fn all_that_wait_may_be_answered_at_once() {
    for (rate, rest) in [("1000000/h", 200), ("1/h", 429)] {
        let server = Server::start(&[]);
        let limits = format!(r#"{{ "rate": "{rate}" }}"#);
        let plugin = in_redis(&limits, r#", "timeout": "5s""#, r#", "waiting": 2048"#);
        let envoy = Setup::new(&plugin).redis(server.port()).start();
        statistic(&envoy, "tollgate_store_connected", 1);
        let mut conns: Vec<_> = (0..600).map(|_| envoy.connect()).collect();
        server.stop();
        for conn in &mut conns {
            conn.request("GET", "/", &[("x-user", "a")]);
        }
        thread::sleep(Duration::from_millis(150)); // the link gives up what says nothing for longer
        server.cont();
        let statuses = conns.iter_mut().map(|conn| conn.response_to("GET").expect("an answer").status);
        let as_the_rest = statuses.filter(|status| *status == rest).count();
        assert!(as_the_rest >= 598, "{as_the_rest}: where Redis was too late, one more by itself");
        statistic(&envoy, "tollgate_store_waiting", 0);
    }
}
