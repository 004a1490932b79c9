//! Redis without the bridge: each call is a POST that Envoy makes a TCP connection of.

use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::redis::Server;

use super::support::{admitted, connected_by_post, count, in_post};

fn statuses(envoy: &Envoy, count: usize, user: &str) -> Vec<u16> {
    let mut conn = envoy.connect();
    (0..count)
        .map(|_| {
            conn.request("GET", "/", &[("x-user", user)]);
            conn.response_to("GET").expect("an answer").status
        })
        .collect()
}

#[test]
fn redis_counts_for_all_workers_and_all_envoys() {
    let server = Server::start(&[]);
    let plugin = in_post(r#"{ "rate": "100/d" }"#, r#", "on_store_error": "deny", "timeout": "2s""#, "");
    let start = || Setup::new(&plugin).concurrency(2).redis_by_post(server.port()).start();
    let (one, two) = (start(), start());
    connected_by_post(&one, 2);
    connected_by_post(&two, 2);
    let sum: u64 = std::thread::scope(|scope| {
        let envoys = [&one, &two];
        let threads = envoys.map(|envoy| scope.spawn(move || admitted(envoy, 20, 10, &[("x-user", "a")])));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(sum, 100);
}

/// As with the bridge: what was fetched ahead and what is denied cost Redis nothing.
#[test]
fn leases_and_remembered_denials_ask_nobody() {
    let server = Server::start(&[]);
    let more = r#", "on_store_error": "deny", "timeout": "2s", "lease": { "max": 50, "ttl": "10s" }"#;
    let plugin = in_post(r#"{ "rate": "1000/d" }"#, more, "");
    let envoy = Setup::new(&plugin).redis_by_post(server.port()).start();
    connected_by_post(&envoy, 1);
    let seen = statuses(&envoy, 1200, "a");
    assert_eq!(seen.iter().filter(|status| **status == 200).count(), 1000);
    std::thread::sleep(Duration::from_millis(300)); // counts are told ten times a second
    let stats = envoy.admin("/stats?filter=wasmcustom.tollgate.store");
    let [calls, leases, denials] =
        ["store.calls", "store.lease_hits", "store.denial_hits"].map(|name| count(&stats, name));
    println!("1,200 requests by POST: {calls} calls, {leases} of a lease, {denials} denials remembered");
    assert!(calls < 150, "{calls} calls");
    assert!(leases > 800 && denials > 150, "{leases} of a lease, {denials} denials");
}

#[test]
fn without_redis_each_policy_does_what_it_says_and_redis_is_found_when_it_comes() {
    for (choice, most) in [("allow", 40), ("deny", 0), ("local", 10)] {
        let mut server = Server::start(&[]);
        server.kill();
        let more = format!(r#", "on_store_error": "{choice}", "timeout": "50ms""#);
        let plugin = in_post(r#"{ "rate": "20/d" }"#, &more, r#", "instances": 2"#);
        let envoy = Setup::new(&plugin).redis_by_post(server.port()).start();
        let count = statuses(&envoy, 40, "a").iter().filter(|status| **status == 200).count();
        assert_eq!(count, most, "{choice}");
        server.restart();
        let end = Instant::now() + Duration::from_secs(10);
        let key = |user: &str| format!("tg:{{{user}}}:all");
        for number in 0.. {
            assert!(Instant::now() < end, "{choice}: not asked again");
            let user = format!("later-{number}");
            assert_eq!(statuses(&envoy, 1, &user).len(), 1);
            let is_there: bool =
                redis::cmd("EXISTS").arg(key(&user)).query(&mut server.connection()).expect("a reply");
            if is_there {
                break;
            }
        }
    }
}

#[test]
fn redis_that_loses_its_scripts_fails_nobody() {
    let server = Server::start(&[]);
    let plugin = in_post(r#"{ "rate": "300/d" }"#, r#", "on_store_error": "deny", "timeout": "2s""#, "");
    let envoy = Setup::new(&plugin).redis_by_post(server.port()).start();
    connected_by_post(&envoy, 1);
    let mut admitted = 0;
    for _ in 0..40 {
        let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut server.connection()).expect("a reply");
        admitted += statuses(&envoy, 10, "d").iter().filter(|status| **status == 200).count();
    }
    assert_eq!(admitted, 300);
}

/// The password is in the environment, not in a configuration that the admin interface shows.
#[test]
fn a_password_is_said_in_every_call() {
    let server = Server::start(&["--requirepass", "right"]);
    let more = r#", "on_store_error": "deny", "timeout": "2s""#;
    let plugin = in_post(r#"{ "rate": "20/d" }"#, more, r#", "password_env": "REDIS_WORD""#);
    let setup = Setup::new(&plugin).redis_by_post(server.port());
    let envoy = setup.clone().environment(&[("REDIS_WORD", "right")]).start();
    connected_by_post(&envoy, 1);
    let count = |envoy: &Envoy| statuses(envoy, 30, "a").iter().filter(|status| **status == 200).count();
    assert_eq!(count(&envoy), 20);
    assert!(!envoy.admin("/config_dump").contains("\"right\""));

    let wrong = setup.clone().environment(&[("REDIS_WORD", "wrong")]).start();
    assert_eq!(count(&wrong), 0, "as on_store_error says");
    let end = Instant::now() + Duration::from_secs(10);
    while !wrong.log().contains("on_store_error says: auth (WRONGPASS") {
        assert!(Instant::now() < end, "{}", wrong.log());
        assert_eq!(count(&wrong), 0);
    }

    let log = setup.refused();
    assert!(log.contains("redis.password_env: the VM has no variable \"REDIS_WORD\""), "{log}");
}
