//! The native client on a real Redis: exact over clients, in time whatever the server does, and back
//! within a second.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_core::client::{Client, ClientConfig};
use tollgate_core::policy::{Answer, Attributes};
use tollgate_core::redis::breaker::{BreakerConfig, State};
use tollgate_tests::redis::Server;

const SECOND: Duration = Duration::from_secs(1);

fn config(server: &Server) -> ClientConfig {
    ClientConfig::new(format!("redis://127.0.0.1:{}", server.port()))
}

fn on_redis(limits: &str, rest: &str) -> String {
    format!(r#"{{ "policies": [ {{ "name": "p", "limits": [ {limits} ], "store": "redis"{rest} }} ] }}"#)
}

fn request<'a>(path: &'a str) -> Attributes<'a> {
    Attributes { route: b"", method: b"GET", host: b"", path: path.as_bytes(), peer: None, headers: &[] }
}

fn ask(client: &Client) -> Answer {
    client.check(&request("/")).unwrap()
}

/// `true` as soon as it is, for at most so long.
fn within(time: Duration, mut is: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if is() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Requests of so many threads; how many were admitted, and how many without Redis.
fn storm(clients: &[Client], threads: usize, each: usize) -> (u64, u64) {
    let (allowed, degraded) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for index in 0..threads {
            let (client, allowed, degraded) = (&clients[index % clients.len()], &allowed, &degraded);
            scope.spawn(move || {
                for _ in 0..each {
                    let answer = ask(client);
                    allowed.fetch_add(u64::from(answer.allowed), Ordering::Relaxed);
                    degraded.fetch_add(u64::from(answer.is_degraded(0)), Ordering::Relaxed);
                }
            });
        }
    });
    (allowed.into_inner(), degraded.into_inner())
}

#[test]
fn a_thousand_threads_over_two_clients_get_exactly_the_capacity() {
    for lease in ["", r#", "lease": { "max": 50, "ttl": "10s" }"#] {
        for limit in [r#""rate": "1/h", "burst": 100"#, r#""algorithm": "fixed_window", "rate": "100/d""#] {
            let server = Server::start(&[]);
            let rest = format!(r#", "timeout": "10s"{lease}"#);
            let rules = on_redis(&format!("{{ {limit} }}"), &rest);
            let mut config = config(&server);
            config.store.waiting = 4096;
            config.store.instances = 2;
            let clients = [(); 2].map(|()| Client::new(&rules, &config).unwrap());
            assert_eq!(
                storm(&clients, 1000, 2),
                (100, 0),
                "{limit}{lease}: {:?}",
                clients[0].metrics().snapshot()
            );
        }
    }
}

/// Requests wait for what others' calls bring, and are answered by whoever hears of it: each by its
/// own answer.
#[test]
fn who_waits_for_what_another_asked_is_told_its_own_answer() {
    let server = Server::start(&[]);
    let rest = r#", "timeout": "10s", "lease": { "max": 50, "ttl": "10s" }"#;
    let policy = |path: &str, limit: &str| {
        let (from, to) = (r#""name": "p""#, format!(r#""name": "{path}", "match": {{ "path": "/{path}" }}"#));
        let text = on_redis(&format!("{{ {limit} }}"), rest).replace(from, &to);
        text[text.find('[').unwrap() + 1..text.rfind(']').unwrap()].to_owned()
    };
    let bursts = [30_000, 40_000, 50_000];
    let policies =
        bursts.map(|burst| policy(&burst.to_string(), &format!(r#""rate": "1/h", "burst": {burst}"#)));
    let mut config = config(&server);
    config.store.waiting = 4096;
    config.stores = 1;
    let client = Client::new(&format!(r#"{{ "policies": [ {} ] }}"#, policies.join(",")), &config).unwrap();
    thread::scope(|scope| {
        for thread in 0..60 {
            let (client, burst) = (&client, bursts[thread % 3]);
            scope.spawn(move || {
                for _ in 0..300 {
                    let answer = client.check(&request(&format!("/{burst}"))).unwrap();
                    assert!(answer.allowed && !answer.is_degraded(0), "{answer:?}");
                    assert!(
                        answer.decision().is_some_and(|decision| decision.remaining < burst),
                        "{answer:?}"
                    );
                    assert!(answer.decision().is_some_and(|decision| decision.remaining >= burst - 6_200));
                }
            });
        }
    });
    let seen = client.metrics().snapshot();
    assert!(seen.calls < 18_000 / 10, "a call for each grant: {seen:?}");
    assert_eq!((seen.waiting, seen.timeouts), (0, 0), "{seen:?}");
}

#[test]
fn script_flush_under_load_fails_no_request_and_charges_each_once() {
    let server = Server::start(&[]);
    let rules = on_redis(r#"{ "rate": "1/d", "burst": 4000 }"#, r#", "timeout": "10s""#);
    let clients = [Client::new(&rules, &config(&server)).unwrap()];
    let admitted = thread::scope(|scope| {
        let load = scope.spawn(|| storm(&clients, 8, 500));
        let mut connection = server.connection();
        while !load.is_finished() {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        load.join().unwrap()
    });
    assert_eq!(admitted, (4000, 0));
    assert!(!ask(&clients[0]).allowed, "each was charged, so none is left");
    let seen = clients[0].metrics().snapshot();
    assert_eq!((seen.failures, seen.timeouts, seen.key_failures), (0, 0, 0));
}

#[test]
fn a_server_that_stops_is_waited_for_no_longer_than_the_timeout_and_used_again_when_it_goes_on() {
    let server = Server::start(&[]);
    let rest = r#", "timeout": "20ms", "on_store_error": "allow""#;
    let client = Client::new(&on_redis(r#"{ "rate": "1000000/s" }"#, rest), &config(&server)).unwrap();
    assert!(!ask(&client).is_degraded(0));
    server.stop();
    let mut longest = Duration::ZERO;
    let mut asked = 0;
    while client.state() == State::Closed && asked < 100 {
        let before = Instant::now();
        let answer = ask(&client);
        longest = longest.max(before.elapsed());
        assert!(answer.allowed && answer.is_degraded(0));
        asked += 1;
    }
    // The scheduler of a busy machine is allowed for; a connection's own patience is far longer.
    assert!(longest < Duration::from_millis(200), "{longest:?}");
    assert_ne!(client.state(), State::Closed);
    let calls = client.metrics().snapshot().calls;
    for _ in 0..1000 {
        assert!(ask(&client).is_degraded(0));
    }
    assert_eq!(client.metrics().snapshot().calls, calls, "nothing is asked while the breaker is open");
    server.cont();
    assert!(within(SECOND, || client.state() == State::Closed));
    assert!(within(SECOND, || !ask(&client).is_degraded(0)));
    let seen = client.metrics().snapshot();
    assert_eq!((seen.waiting, seen.open), (0, 0));
}

#[test]
fn each_policy_has_its_way_when_the_store_dies_and_it_is_back_within_a_second() {
    let mut server = Server::start(&[]);
    let policy = |name: &str| {
        format!(
            r#"{{ "name": "{name}", "match": {{ "path": "/{name}" }}, "limits": [ {{ "rate": "10/d" }} ],
                 "store": "redis", "timeout": "50ms", "on_store_error": "{name}" }}"#
        )
    };
    let policies = ["allow", "deny", "local"].map(policy).join(", ");
    let client = Client::new(&format!(r#"{{ "policies": [ {policies} ] }}"#), &config(&server)).unwrap();
    let admitted = |path: &str| (0..40).filter(|_| client.check(&request(path)).unwrap().allowed).count();
    server.kill();
    assert_eq!(["/allow", "/deny", "/local"].map(admitted), [40, 0, 10]);
    let seen = client.metrics().snapshot();
    assert_eq!((seen.fallback_allow, seen.fallback_deny, seen.fallback_local), (40, 40, 40));
    assert!(client.trouble().is_some());
    server.restart();
    assert!(within(SECOND, || !client.check(&request("/allow")).unwrap().is_degraded(0)));
}

#[test]
fn instances_without_a_store_admit_the_limit_together() {
    for (instances, most) in [(3, 10), (20, 10)] {
        let rules = on_redis(r#"{ "rate": "10/d" }"#, r#", "timeout": "50ms""#);
        let total: usize = (0..instances)
            .map(|instance| {
                let mut config = ClientConfig::new("redis://127.0.0.1:1");
                (config.store.instances, config.store.instance) = (instances, Some(instance));
                let client = Client::new(&rules, &config).unwrap();
                (0..30).filter(|_| ask(&client).allowed).count()
            })
            .sum();
        assert!(total <= most && (instances == 20 || total == most), "{instances}: {total}");
    }
}

#[test]
fn a_store_that_comes_and_goes_hands_out_no_burst_each_time() {
    let mut server = Server::start(&[]);
    let rest = r#", "timeout": "50ms", "lease": { "max": 10, "ttl": "1s" }"#;
    let client =
        Client::new(&on_redis(r#"{ "rate": "10/s", "burst": 100 }"#, rest), &config(&server)).unwrap();
    let began = Instant::now();
    let mut admitted = 0;
    for _ in 0..2 {
        for is_up in [true, false] {
            if is_up && admitted > 0 {
                server.restart();
            } else if !is_up {
                server.kill();
            }
            let end = Instant::now() + SECOND;
            while Instant::now() < end {
                admitted += u64::from(ask(&client).allowed);
                thread::sleep(Duration::from_micros(200));
            }
        }
    }
    // Burst, rate times time, and one burst more: the store itself came back empty.
    let most = 100 + 10 * (began.elapsed().as_secs() + 1) + 100;
    assert!(admitted <= most && admitted >= 100, "{admitted} of at most {most}");
}

#[test]
fn what_is_not_ours_at_a_key_is_that_key_s_trouble_alone() {
    let server = Server::start(&[]);
    let rest = r#", "timeout": "1s", "on_store_error": "deny""#;
    let rules = on_redis(r#"{ "rate": "5/d" }"#, rest).replace(r#""store""#, r#""key": ["path"], "store""#);
    let client = Client::new(&rules, &config(&server)).unwrap();
    assert!(client.check(&request("/a")).unwrap().allowed);
    let mut connection = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("tg:*").query(&mut connection).unwrap();
    assert_eq!(keys.len(), 1);
    let () = redis::pipe().del(&keys[0]).ignore().lpush(&keys[0], 1).ignore().query(&mut connection).unwrap();
    for _ in 0..20 {
        let answer = client.check(&request("/a")).unwrap();
        assert!(!answer.allowed && answer.is_degraded(0));
    }
    assert_eq!((client.trouble(), client.state()), (Some("wrong_type"), State::Closed));
    assert_eq!(client.metrics().snapshot().key_failures, 20);
    assert!(client.check(&request("/b")).unwrap().allowed);
}

#[test]
fn a_server_without_memory_is_away_until_it_has_some() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let rest = r#", "timeout": "1s", "on_store_error": "allow""#;
    let client = Client::new(&on_redis(r#"{ "rate": "1000000/s" }"#, rest), &config(&server)).unwrap();
    let set = |memory: &str| {
        let mut command = redis::cmd("CONFIG");
        let () = command.arg("SET").arg("maxmemory").arg(memory).query(&mut server.connection()).unwrap();
    };
    set("1");
    assert!(within(SECOND, || ask(&client).is_degraded(0) && client.state() != State::Closed));
    assert_eq!(client.trouble(), Some("out_of_memory"));
    set("0");
    assert!(within(SECOND, || !ask(&client).is_degraded(0)));
}

#[test]
fn a_wrong_password_is_told_and_never_said() {
    let server = Server::start(&["--requirepass", "the-password"]);
    let rules = on_redis(r#"{ "rate": "10/d" }"#, r#", "on_store_error": "deny""#);
    let at = |password: &str| {
        let config = ClientConfig::new(format!("redis://:{password}@127.0.0.1:{}", server.port()));
        assert!(!format!("{config:?}").contains(password));
        Client::new(&rules, &config).unwrap()
    };
    let wrong = at("not-the-password");
    assert!(!ask(&wrong).allowed);
    assert_eq!((wrong.connected(), wrong.trouble()), (0, Some("auth")));
    assert!(!format!("{wrong:?}").contains("password"));
    assert!(ask(&at("the-password")).allowed);
}

#[test]
fn rules_change_while_requests_run_and_bad_ones_are_refused_whole() {
    let server = Server::start(&[]);
    let rules =
        |burst: u32| on_redis(&format!(r#"{{ "rate": "1/d", "burst": {burst} }}"#), r#", "timeout": "5s""#);
    let client = Client::new(&rules(10), &config(&server)).unwrap();
    assert_eq!((0..20).filter(|_| ask(&client).allowed).count(), 10);
    client.reload("{").unwrap_err();
    assert!(!ask(&client).allowed);
    client.reload(&rules(30)).unwrap();
    assert_eq!((0..40).filter(|_| ask(&client).allowed).count(), 20, "what was spent stays spent");
    let error =
        client.reload(&on_redis(r#"{ "algorithm": "sliding_log", "rate": "1000/s" }"#, "")).unwrap_err();
    assert!(error.to_string().starts_with("policy p: "), "{error}"); // longer than this table's rows
}

#[test]
fn units_in_flight_are_released_once_and_by_whoever_holds_the_answer() {
    let server = Server::start(&[]);
    for store in ["redis", "local"] {
        let rules = on_redis(r#"{ "algorithm": "concurrency", "rate": "3/m" }"#, r#", "timeout": "5s""#)
            .replace("redis", store);
        let client = Client::new(&rules, &config(&server)).unwrap();
        let held: Vec<Answer> = (0..5).map(|_| ask(&client)).filter(|answer| answer.allowed).collect();
        assert_eq!(held.len(), 3, "{store}");
        client.release(&held[0]);
        client.release(&held[0]);
        assert!(within(SECOND, || ask(&client).allowed), "{store}");
        thread::sleep(Duration::from_millis(50));
        assert!(!ask(&client).allowed, "{store}: released twice");
    }
}

#[test]
fn what_a_lease_still_holds_goes_back_when_the_client_ends() {
    let server = Server::start(&[]);
    let rest = r#", "timeout": "5s", "lease": { "max": 50, "ttl": "60s" }"#;
    let rules = on_redis(r#"{ "rate": "1/d", "burst": 1000 }"#, rest);
    let spend = |count: usize| {
        let client = Client::new(&rules, &config(&server)).unwrap();
        let admitted = (0..count).filter(|_| ask(&client).allowed).count();
        (admitted, client.metrics().snapshot())
    };
    let (admitted, seen) = spend(500);
    assert_eq!(admitted, 500);
    assert!(seen.lease_hits > 300, "{seen:?}");
    let (admitted, _) = spend(2000);
    assert!((499..=500).contains(&admitted), "{admitted}"); // a unit's age is rounded up
}

/// A breaker that would look again in an hour: that a connection was made is sign enough.
#[test]
fn a_connection_that_is_made_is_tried_at_once() {
    let mut server = Server::start(&[]);
    let mut config = config(&server);
    let hour = 3_600_000_000_000;
    config.store.breaker = BreakerConfig { open_for: hour, max_open: hour, ..BreakerConfig::DEFAULT };
    config.stores = 3;
    let rules = on_redis(r#"{ "rate": "1000000/s" }"#, r#", "timeout": "1s", "on_store_error": "allow""#);
    let client = Client::new(&rules, &config).unwrap();
    assert!(!ask(&client).is_degraded(0));
    server.kill();
    assert!(within(5 * SECOND, || ask(&client).is_degraded(0) && client.state() == State::Open));
    server.restart();
    let is_back = within(5 * SECOND, || client.state() == State::Closed && !ask(&client).is_degraded(0));
    assert!(is_back, "{:?}", client.metrics().snapshot());
}

#[test]
fn without_an_identity_there_is_no_answer() {
    let server = Server::start(&[]);
    let rules = r#"{ "identity": { "api_key": { "header": "X-Key", "required": true } },
        "policies": [ { "name": "p", "key": ["api_key"], "limits": [ { "rate": "1/s" } ], "store": "redis" } ] }"#;
    let client = Client::new(rules, &config(&server)).unwrap();
    assert_eq!(client.headers(), ["x-key"]);
    let missing = client.check(&request("/")).unwrap_err();
    assert_eq!((missing.policy.as_str(), missing.header.as_str()), ("p", "x-key"));
}

/// A server that greets as Redis does, and answers calls in a way of its own.
fn odd_server(answer: fn(&mut TcpStream)) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = [0; 65_536];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let said = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    if said.contains("EVALSHA") {
                        answer(&mut stream);
                        return;
                    }
                    let names = said.matches("SETINFO").count();
                    let greeting =
                        "+OK\r\n".repeat(names) + if said.contains("PING") { "+PONG\r\n" } else { "" };
                    let _ = stream.write_all(greeting.as_bytes());
                }
            });
        }
    });
    port
}

#[test]
fn nonsense_a_reply_cut_short_and_one_that_trickles_keep_no_request_waiting() {
    let garbage: fn(&mut TcpStream) = |stream| drop(stream.write_all(b"!?\r\n\0*-7\r\n"));
    let cut: fn(&mut TcpStream) = |stream| drop(stream.write_all(b"*3\r\n:1\r"));
    let trickle: fn(&mut TcpStream) = |stream| {
        while stream.write_all(b"0").is_ok() {
            thread::sleep(Duration::from_millis(5)); // each byte in time, the reply never
        }
    };
    for answer in [garbage, cut, trickle] {
        let config = ClientConfig::new(format!("redis://127.0.0.1:{}", odd_server(answer)));
        let rest = r#", "timeout": "30ms", "on_store_error": "allow""#;
        let client = Client::new(&on_redis(r#"{ "rate": "10/d" }"#, rest), &config).unwrap();
        for _ in 0..20 {
            let before = Instant::now();
            let answer = ask(&client);
            assert!(answer.allowed && answer.is_degraded(0));
            assert!(before.elapsed() < Duration::from_millis(300), "{:?}", before.elapsed());
        }
        assert!(client.trouble().is_some());
    }
}
