//! Limits that are counted in Redis, by the host's streams and redis_proxy.

use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::nginx::{Conn, Nginx};
use tollgate_tests::redis::Server;

use super::support::{admitted, in_redis, statistic};

/// Waits until the store is asked: until then a worker counts alone.
fn connected(port: u16, server: &Server) {
    let end = Instant::now() + Duration::from_secs(20);
    let mut number = 0;
    // Each worker has a stream of its own; a connection of the client's is one worker's.
    let mut seen = 0;
    while seen < 40 {
        assert!(Instant::now() < end, "the store is not reached");
        number += 1;
        let user = format!("warm-{port}-{number}");
        let mut conn = Conn::open(port);
        conn.request("GET", "/", &[("x-user", &user)]);
        let _ = conn.response_to("GET").expect("an answer");
        let is_there: bool = redis::cmd("EXISTS")
            .arg(format!("tg:{{{user}}}:all"))
            .query(&mut server.connection())
            .expect("a reply");
        if is_there {
            seen += 1;
        } else {
            seen = 0;
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn redis_counts_for_all_workers_and_all_envoys() {
    let server = Server::start(&[]);
    let plugin =
        in_redis(r#"{ "rate": "100/d" }"#, r#", "timeout": "500ms""#, r#", "instances": 2, "workers": 2"#);
    let start = || Setup::new(&plugin).concurrency(2).redis(server.port()).start();
    let (one, two) = (start(), start());
    connected(one.port(), &server);
    connected(two.port(), &server);
    let sum: u64 = thread::scope(|scope| {
        let envoys = [&one, &two];
        let threads = envoys.map(|envoy| scope.spawn(move || admitted(envoy, 20, 10, &[("x-user", "a")])));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(sum, 100);
}

#[test]
fn two_envoys_and_an_nginx_share_one_limit() {
    let server = Server::start(&[]);
    let plugin = in_redis(r#"{ "rate": "100/d" }"#, r#", "timeout": "500ms""#, "");
    let start = || Setup::new(&plugin).concurrency(2).redis(server.port()).start();
    let (one, two) = (start(), start());
    connected(one.port(), &server);
    connected(two.port(), &server);
    let rules = r#"{ "identity": { "user": { "header": "x-user" } }, "policies": [ { "name": "all", "key": ["user"],
        "store": "redis", "timeout": "500ms", "limits": [ { "rate": "100/d" } ] } ] }"#;
    let dir = std::env::temp_dir().join(format!("tollgate-envoy-rules-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    std::fs::write(dir.join("rules.json"), rules).expect("a file");
    let nginx = Nginx::start(&format!(
        "tollgate_redis 127.0.0.1:{}; tollgate_rules {}/rules.json; tollgate_zone main size=1m;
         server {{ listen 127.0.0.1:@port@; tollgate_policies zone=main; location / {{ empty_gif; }} }}",
        server.port(),
        dir.display()
    ));
    connected(nginx.port(1), &server);
    let ports = [one.port(), two.port(), nginx.port(1)];
    let admitted: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..30)
            .map(|number| {
                scope.spawn(move || {
                    let mut conn = Conn::open(ports[number % 3]);
                    let mut admitted = 0;
                    for _ in 0..10 {
                        conn.request("GET", "/", &[("x-user", "shared")]);
                        admitted += u64::from(conn.response_to("GET").expect("an answer").status == 200);
                    }
                    admitted
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(admitted, 100);
    drop(nginx);
    let _ = std::fs::remove_dir_all(&dir);
}

/// What became of requests while the store was away, and how long the slowest took.
fn load(envoy: &Envoy, requests: u64, user: &str) -> (u64, u64, Duration) {
    let (mut admitted, mut denied, mut slowest) = (0, 0, Duration::ZERO);
    let mut conn = envoy.connect();
    for _ in 0..requests {
        let from = Instant::now();
        conn.request("GET", "/", &[("x-user", user)]);
        let status = conn.response_to("GET").expect("an answer").status;
        slowest = slowest.max(from.elapsed());
        match status {
            200 => admitted += 1,
            429 | 503 => denied += 1,
            other => panic!("{other}"),
        }
    }
    (admitted, denied, slowest)
}

/// Nobody listens: each request is answered within its policy's timeout, whatever becomes of connects.
#[test]
fn without_redis_each_policy_does_what_it_says_in_time() {
    for (choice, most) in [("allow", 40), ("deny", 0), ("local", 10)] {
        let more = format!(r#", "on_store_error": "{choice}", "timeout": "50ms""#);
        let plugin = in_redis(r#"{ "rate": "20/d" }"#, &more, r#", "instances": 2"#);
        // Nobody listens there.
        let envoy = Setup::new(&plugin).redis(1).start();
        let (admitted, denied, slowest) = load(&envoy, 40, "a");
        assert_eq!((admitted, denied), (most, 40 - most), "{choice}");
        // 50 ms; the rest is for a busy machine.
        assert!(slowest < Duration::from_millis(50 + 1000), "{choice}: {slowest:?}");
    }
}

#[test]
fn a_redis_that_stops_costs_the_timeout_at_most_and_is_found_again() {
    let server = Server::start(&[]);
    let plugin =
        in_redis(r#"{ "rate": "1000000/s" }"#, r#", "on_store_error": "allow", "timeout": "50ms""#, "");
    let envoy = Setup::new(&plugin).redis(server.port()).start();
    connected(envoy.port(), &server);
    server.stop();
    let (admitted, denied, _) = load(&envoy, 200, "b");
    assert_eq!((admitted, denied), (200, 0));
    server.cont();
    connected(envoy.port(), &server);
}

#[test]
fn redis_that_loses_its_scripts_fails_nobody() {
    let server = Server::start(&[]);
    let plugin = in_redis(r#"{ "rate": "300/d" }"#, r#", "on_store_error": "deny", "timeout": "1s""#, "");
    let envoy = Setup::new(&plugin).redis(server.port()).start();
    connected(envoy.port(), &server);
    let mut admitted = 0;
    for _ in 0..40 {
        let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut server.connection()).expect("a reply");
        admitted += load(&envoy, 10, "d").0;
    }
    assert_eq!(admitted, 300);
}

/// One rules document, some of whose policies count in Redis and some in Envoy: a request that one
/// denies charges none.
#[test]
fn both_stores_in_one_document_are_charged_all_or_none() {
    let server = Server::start(&[]);
    let plugin = r#"{ "redis": { "cluster": "tollgate_bridge" }, "rules": {
        "identity": { "user": { "header": "x-user" } },
        "policies": [
          { "name": "here", "key": ["user"], "limits": [ { "rate": "8/d" } ] },
          { "name": "flight", "key": ["user"], "limits": [ { "algorithm": "concurrency", "rate": "1/h" } ] },
          { "name": "there", "match": { "path": "/there" }, "key": ["user"], "store": "redis",
            "on_store_error": "deny", "timeout": "2s", "limits": [ { "rate": "5/d" } ] } ] } }"#;
    let envoy = Setup::new(plugin).concurrency(2).redis(server.port()).start();
    statistic(&envoy, "tollgate_store_connected", 2);
    let statuses = |path: &str, count: usize| -> Vec<u16> {
        (0..count).map(|_| envoy.get(path, &[("x-user", "a")]).status).collect()
    };
    assert_eq!(statuses("/there", 7), [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(statuses("/here", 5), [200, 200, 200, 429, 429], "what Redis denied was not charged here");
    // And what is denied here is not charged in Redis.
    assert_eq!(statuses("/there", 3), [429; 3]);
    let user = |path: &str| envoy.get(path, &[("x-user", "b")]).status;
    for _ in 0..8 {
        assert_eq!(user("/here"), 200);
    }
    assert_eq!([user("/there"), user("/there")], [429, 429]);
    let key: Option<String> =
        redis::cmd("GET").arg("tg:{b}:there").query(&mut server.connection()).expect("a reply");
    assert_eq!(key, None);
}
