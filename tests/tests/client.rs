//! The native client on a real Redis: exact over clients, in time whatever the server does, and back
//! within a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_core::client::{Client, ClientConfig};
use tollgate_core::policy::{Answer, Attributes};
use tollgate_core::redis::breaker::State;
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
