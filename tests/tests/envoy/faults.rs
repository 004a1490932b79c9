//! What may happen to the way to Redis, and what every request is answered meanwhile.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, Setup, redis_at};
use tollgate_tests::nginx::Conn;
use tollgate_tests::over::Over;
use tollgate_tests::redis::Server;
use tollgate_tests::redis_proxy::Proxy;

use super::support::{count, in_post, in_redis, statistic};

/// Statuses of so many requests on one connection: admitted, denied. Anything else fails the test.
fn load(envoy: &Envoy, requests: u64, user: &str) -> (u64, u64) {
    let mut conn = envoy.connect();
    let (mut admitted, mut denied) = (0, 0);
    for _ in 0..requests {
        conn.request("GET", "/", &[("x-user", user)]);
        match conn.response_to("GET").expect("an answer").status {
            200 => admitted += 1,
            429 | 503 => denied += 1,
            other => panic!("{other}"),
        }
    }
    (admitted, denied)
}

fn plugin(choice: &str) -> String {
    in_redis(r#"{ "rate": "20/d" }"#, &format!(r#", "on_store_error": "{choice}", "timeout": "50ms""#), "")
}

const CHOICES: [(&str, u64); 3] = [("allow", 40), ("deny", 0), ("local", 20)];

#[test]
fn without_a_bridge_each_policy_does_what_it_says() {
    for (choice, admitted) in CHOICES {
        let envoy = Setup::new(&plugin(choice)).start(); // there is no such cluster
        assert_eq!(load(&envoy, 40, "a"), (admitted, 40 - admitted), "{choice}");
    }
}

/// What lies there is not the filter's: whose key it is the log says, and the others are asked.
#[test]
fn a_key_that_is_something_else_is_told_by_its_policy() {
    let server = Server::start(&[]);
    let policy = |name: &str| {
        format!(
            r#"{{ "name": "{name}", "match": {{ "path": "/{name}" }}, "key": ["user"], "store": "redis",
                 "on_store_error": "deny", "timeout": "2s", "limits": [ {{ "rate": "20/d" }} ] }}"#
        )
    };
    let plugin = format!(
        r#"{{ "redis": {{ "cluster": "tollgate_bridge" }}, "rules": {{
             "identity": {{ "user": {{ "header": "x-user" }} }}, "policies": [ {}, {} ] }} }}"#,
        policy("first"),
        policy("second")
    );
    let () = redis::cmd("LPUSH")
        .arg(&["tg:{a}:second", "mine"])
        .query::<()>(&mut server.connection())
        .expect("a list");
    for setup in [
        Setup::new(&plugin).redis(server.port()),
        Setup::new(&plugin).redis_proxy(redis_at(server.port()), 1000),
    ] {
        let envoy = setup.start();
        statistic(&envoy, "tollgate_store_connected", 1);
        let status = |path: &str, user: &str| envoy.get(path, &[("x-user", user)]).status;
        let end = Instant::now() + Duration::from_secs(20);
        while !envoy.log().contains("on_store_error says: wrong type, for a key of policy second\n") {
            assert!(Instant::now() < end, "{}", envoy.log());
            assert_eq!(
                [status("/second", "a"), status("/second", "b"), status("/first", "a")],
                [503, 200, 200]
            );
            thread::sleep(Duration::from_millis(500));
        }
        statistic(&envoy, "tollgate_store_breaker_open", 0);
    }
}

/// Redis closes after it: its words must not be lost with what it did not read.
#[test]
fn a_password_that_is_missing_is_told_in_the_servers_words() {
    let server = Server::start(&["--requirepass", "right"]);
    let by_stream = Setup::new(&plugin("deny")).redis(server.port());
    let more = r#", "on_store_error": "deny", "timeout": "50ms""#;
    let by_post = Setup::new(&in_post(r#"{ "rate": "20/d" }"#, more, "")).redis_by_post(server.port());
    for setup in [by_stream, by_post] {
        let envoy = setup.start();
        let end = Instant::now() + Duration::from_secs(10);
        while !envoy.log().contains("on_store_error says: auth (NOAUTH Authentication required.)") {
            assert!(Instant::now() < end, "{}", envoy.log());
            assert_eq!(load(&envoy, 1, "a"), (0, 1));
            thread::sleep(Duration::from_millis(20));
        }
        assert!(!envoy.log().contains("disconnected"), "{}", envoy.log());
    }
}

/// More would wait than have room: those beyond are decided at once, and nobody goes without an answer.
#[test]
fn who_finds_no_room_to_wait_is_decided_without_redis() {
    let server = Server::start(&[]);
    let more = r#", "on_store_error": "allow", "timeout": "400ms""#;
    let plugin = in_redis(r#"{ "rate": "20/d" }"#, more, r#", "waiting": 4"#);
    let envoy = Setup::new(&plugin).redis(server.port()).start();
    statistic(&envoy, "tollgate_store_connected", 1);
    server.stop();
    let mut times: Vec<Duration> = thread::scope(|scope| {
        let clients: Vec<_> = (0..20)
            .map(|user| {
                let envoy = &envoy;
                scope.spawn(move || {
                    let began = Instant::now();
                    assert_eq!(envoy.get("/", &[("x-user", &user.to_string())]).status, 200);
                    began.elapsed()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("an answer")).collect()
    });
    server.cont();
    times.sort_unstable();
    println!("20 with room for 4: the 16th after {:?}, the last after {:?}", times[15], times[19]);
    assert!(times[16] > Duration::from_millis(350), "four waited: {times:?}");
    assert!(times[0] < Duration::from_millis(350), "and not all: {times:?}");
    statistic(&envoy, "tollgate_store_waiting", 0);
    statistic(&envoy, "tollgate_store_fallback_allow", 20);
}

/// Who listens is no Redis.
#[test]
fn garbage_is_as_no_answer() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = stream;
                let mut room = [0; 4096];
                while stream.read(&mut room).is_ok_and(|count| count > 0) {
                    if stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n\xff\x00").is_err() {
                        return;
                    }
                }
            });
        }
    });
    for (choice, admitted) in CHOICES {
        let envoy = Setup::new(&plugin(choice)).redis(port).start();
        assert_eq!(load(&envoy, 40, "a"), (admitted, 40 - admitted), "{choice}");
    }
}

#[test]
fn a_redis_that_is_killed_and_comes_back_empty_is_asked_again() {
    let mut server = Server::start(&[]);
    let envoy = Setup::new(&plugin("deny")).redis(server.port()).start();
    statistic(&envoy, "tollgate_store_connected", 1);
    assert_eq!(load(&envoy, 1, "a"), (1, 0));
    server.kill();
    assert_eq!(load(&envoy, 20, "b"), (0, 20));
    statistic(&envoy, "tollgate_store_breaker_open", 1);
    server.restart();
    let end = Instant::now() + Duration::from_secs(20);
    while load(&envoy, 1, "c") != (1, 0) {
        assert!(Instant::now() < end, "never found again");
        thread::sleep(Duration::from_millis(50));
    }
    statistic(&envoy, "tollgate_store_breaker_open", 0);
    assert_eq!(load(&envoy, 40, "d"), (20, 20));
}

/// Sentinel ends the connections of a master that it makes a replica: `CLIENT KILL TYPE normal`.
/// As long as some workers ask Redis and some count alone, both together admit twice the rate: what
/// one finds out, the others try at once, and wait no longer for the end of a wait of their own, which
/// is up to 500 ms away. They tell it ten times a second: 50 ms each time are only that.
#[test]
fn workers_ask_redis_again_together() {
    let mut server = Server::start(&[]);
    let more = r#", "on_store_error": "local", "timeout": "500ms""#;
    let plugin = in_redis(r#"{ "rate": "1000/s" }"#, more, r#", "workers": 4"#);
    let envoy = Setup::new(&plugin).redis(server.port()).concurrency(4).start();
    statistic(&envoy, "tollgate_store_connected", 4);
    let open = || count(&envoy.admin("/stats?filter=wasmcustom.tollgate.store"), "store.breaker_open");
    let over = AtomicBool::new(false);
    let mut spans: Vec<Duration> = thread::scope(|scope| {
        for user in ["a", "b", "c", "d"].repeat(4) {
            let (over, envoy) = (&over, &envoy);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    load(envoy, 1, user);
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
        let _stop = Over(&over); // also when something here fails
        let mut round = || {
            server.kill();
            thread::sleep(Duration::from_secs(2)); // their waits have grown
            assert_eq!(open(), 4, "all workers do without it");
            server.restart();
            let mut first = None;
            loop {
                let (open, now) = (open(), Instant::now());
                if open < 4 {
                    first = first.or(Some(now));
                }
                if let Some(first) = first.filter(|_| open == 0) {
                    return now - first;
                }
                assert!(first.is_none_or(|first| now < first + Duration::from_secs(10)), "{open} are open");
                thread::sleep(Duration::from_millis(5));
            }
        };
        (0..4).map(|_| round()).collect()
    });
    spans.sort_unstable(); // a machine that is too busy opens a breaker once more
    assert!(spans[1] + spans[2] < Duration::from_millis(250), "{spans:?}");
}

/// A Redis that does what a probe asks, and no script: as soon as a breaker closes it opens again,
/// each after its 100 ms and not whenever another worker's has closed.
#[test]
fn workers_do_not_wake_each_other_for_ever() {
    const WORKERS: u32 = 8;
    let server = Server::start(&[]);
    let more = r#", "on_store_error": "local", "timeout": "50ms""#;
    let plugin = in_redis(r#"{ "rate": "1000/s" }"#, more, &format!(r#", "workers": {WORKERS}"#));
    let envoy = Setup::new(&plugin).redis(server.port()).concurrency(WORKERS).start();
    statistic(&envoy, "tollgate_store_connected", WORKERS.into());
    let mut command = redis::cmd("ACL");
    let refused: String =
        command.arg(&["SETUSER", "default", "-evalsha"]).query(&mut server.connection()).expect("ACL");
    assert_eq!(refused, "OK");
    let opened = || count(&envoy.admin("/stats?filter=wasmcustom.tollgate.store"), "store.breaker_opened");
    let over = AtomicBool::new(false);
    let (each, often) = thread::scope(|scope| {
        let _stop = Over(&over);
        for _ in 0..32 {
            let (over, envoy) = (&over, &envoy);
            scope.spawn(move || {
                let mut conn = envoy.connect();
                while !over.load(Ordering::Relaxed) {
                    conn.request("GET", "/", &[("x-user", "a")]);
                    assert!(conn.response_to("GET").is_some());
                    thread::sleep(Duration::from_millis(2));
                }
            });
        }
        thread::sleep(Duration::from_millis(500));
        let (began, before) = (Instant::now(), opened());
        thread::sleep(Duration::from_secs(3));
        (began.elapsed().as_millis() as u64 / 100, opened() - before)
    });
    assert!(
        often > 0 && often <= 2 * each * u64::from(WORKERS),
        "opened {often} times in {each} times 100 ms"
    );
}

#[test]
fn a_master_that_sentinel_replaces_is_followed() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let proxy = Proxy::start(old.port());
    let envoy = Setup::new(&plugin("deny")).redis(proxy.port()).start();
    statistic(&envoy, "tollgate_store_connected", 1);
    assert_eq!(load(&envoy, 1, "a"), (1, 0));
    proxy.lead_to(new.port());
    let mut admin = old.connection();
    let tell = |admin: &mut redis::Connection, words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(admin).expect("a reply")
    };
    tell(&mut admin, &["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    tell(&mut admin, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let (over, end) = (Instant::now(), Instant::now() + Duration::from_secs(20));
    for number in 0.. {
        if load(&envoy, 1, &format!("b-{number}")) == (1, 0) {
            break;
        }
        assert!(Instant::now() < end, "never found again");
        thread::sleep(Duration::from_millis(5));
    }
    println!("a master replaced as Sentinel does it: {:?} until the new one is asked", over.elapsed());
    assert_eq!(load(&envoy, 40, "c"), (20, 20));
}

/// One in ten hangs up while it may be waiting. `TOLLGATE_ENVOY_HANGUPS` is how many requests.
#[test]
fn clients_that_hang_up_leave_nothing_behind() {
    let requests: u64 =
        std::env::var("TOLLGATE_ENVOY_HANGUPS").ok().and_then(|n| n.parse().ok()).unwrap_or(8_000);
    let server = Server::start(&[]);
    let plugin = in_redis(r#"{ "rate": "1000/s" }"#, r#", "timeout": "1s""#, "");
    let envoy = Setup::new(&plugin).concurrency(2).redis(server.port()).start();
    let send = |from: u64, to: u64| {
        thread::scope(|scope| {
            for thread in 0..8 {
                let envoy = &envoy;
                scope.spawn(move || {
                    let mut conn = envoy.connect();
                    for number in (from..to).filter(|number| number % 8 == thread) {
                        let user = (number % 1000).to_string();
                        conn.request("GET", "/", &[("x-user", &user)]);
                        if number / 8 % 10 == 0 {
                            conn = Conn::open(envoy.port()); // the one before is closed, answered or not
                        } else {
                            let status = conn.response_to("GET").expect("an answer").status;
                            assert!(matches!(status, 200 | 429), "{status}");
                        }
                    }
                });
            }
        });
    };
    send(0, requests / 4);
    let warm = envoy.resident_kib();
    send(requests / 4, requests);
    let now = envoy.resident_kib();
    assert!(now < warm + 8192, "{warm} KiB, then {now} KiB");
    statistic(&envoy, "tollgate_store_waiting", 0);
    statistic(&envoy, "tollgate_store_breaker_open", 0);
    assert_eq!(envoy.get("/", &[("x-user", "sane")]).status, 200);
}
