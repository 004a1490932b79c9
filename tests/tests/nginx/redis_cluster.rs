//! A real cluster of six nodes behind NGINX: three masters and their replicas.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::cmd;
use tollgate_core::redis::cluster::key_slot;
use tollgate_tests::nginx::{Conn, Nginx};
use tollgate_tests::over::Over;
use tollgate_tests::redis::Server;
use tollgate_tests::redis_cluster::Cluster;

use crate::redis_support::store;
use crate::rules_support::{RulesFile, document};

const CLIENTS: usize = 8;
/// What is counted when a call fails, or a request is decided without Redis.
const FAILED: [&str; 4] = ["failures", "key_failures", "timeouts", "fallback_local"];

fn start(cluster: &Cluster, rules: &RulesFile) -> Nginx {
    let addresses = cluster.addresses().join(" ");
    Nginx::start_with(
        2,
        &format!(
            "tollgate_redis {addresses} cluster=on; keepalive_requests 1000000; {}",
            rules.http("reload=1s", "")
        ),
    )
}

/// Waits until both workers have all masters: one that starts on a busy machine may take requests
/// before.
fn wait_for_masters(nginx: &Nginx) {
    let round = Cell::new(0);
    nginx.wait_until("all masters to be asked", |nginx| {
        let alone = || FAILED.map(|name| store(nginx, name));
        let before = alone();
        round.set(round.get() + 1);
        for tenant in 0..50 {
            let _ = nginx.get("/", &[("X-Tenant", &format!("early-{}-{tenant}", round.get()))]);
        }
        alone() == before
    });
}

/// How often a server gave this error.
fn errors(server: &Server, name: &str) -> u64 {
    let text: String = cmd("INFO").arg("errorstats").query(&mut server.connection()).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{name}:count=")));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// Scripts that a server was asked to run.
fn scripts(server: &Server) -> u64 {
    let text: String = cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let calls = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

/// Two policies with three and with two limits, all of which lie on the tenant's slot. A user's
/// sixth request is admitted and the seventh is not, and costs the tenant nothing: four are left
/// for another user.
#[test]
fn a_thousand_tenants_have_exactly_their_limits_while_slots_move() {
    let cluster = Cluster::start(3, 1);
    let rules = RulesFile::new(&document(&[
        r#"{ "name": "tenants", "key": ["tenant"], "store": "redis", "timeout": "10s",
             "limits": [ { "rate": "10/d" }, { "algorithm": "sliding_window", "rate": "20/d" },
                         { "algorithm": "fixed_window", "rate": "30/d" } ] }"#
            .into(),
        r#"{ "name": "users", "key": ["tenant", "user"], "store": "redis", "timeout": "10s",
             "limits": [ { "rate": "6/d" }, { "algorithm": "leaky_bucket", "rate": "1000/s" } ] }"#
            .into(),
    ]));
    let nginx = start(&cluster, &rules);
    wait_for_masters(&nginx);
    let before = FAILED.map(|name| store(&nginx, name));
    let tenants: Vec<String> = (0..1000).map(|tenant| format!("tenant-{tenant}")).collect();
    let over = AtomicBool::new(false);
    let moved = thread::scope(|scope| {
        let stop = Over(&over);
        let mover = scope.spawn(|| {
            let mut moved = 0;
            for tenant in tenants.iter().step_by(7) {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let slot = key_slot(tenant.as_bytes()); // the tenant is the tag
                let from = cluster.owner(slot);
                cluster.migrate(slot, from, (from + 1) % 3, Duration::from_millis(2));
                moved += 1;
            }
            moved
        });
        let clients: Vec<_> = tenants
            .chunks(tenants.len() / CLIENTS)
            .map(|tenants| scope.spawn(|| fourteen_each(&nginx, tenants)))
            .collect();
        for client in clients {
            for (tenant, statuses) in client.join().unwrap() {
                let expected = [&[200; 6][..], &[429], &[200; 4], &[429; 3]].concat();
                assert_eq!(statuses, expected, "{tenant}");
            }
        }
        drop(stop);
        mover.join().unwrap()
    });
    assert!(moved > 20, "{moved} slots moved under load");
    for server in &cluster.servers {
        assert_eq!(errors(server, "CROSSSLOT"), 0);
    }
    let redirected: u64 =
        cluster.servers.iter().map(|server| errors(server, "MOVED") + errors(server, "ASK")).sum();
    assert!(redirected > 0, "no call met a slot that moves");
    assert_eq!(FAILED.map(|name| store(&nginx, name)), before, "{}", nginx.metrics());
    assert_eq!(store(&nginx, "waiting"), 0);
}

/// Seven requests of one user and seven of another, of each tenant; round by round, so that each
/// tenant's are far apart.
fn fourteen_each<'t>(nginx: &Nginx, tenants: &'t [String]) -> BTreeMap<&'t str, Vec<u16>> {
    let mut conn = Conn::open(nginx.port(1));
    let mut statuses: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    for user in ["a", "b"] {
        for _ in 0..7 {
            for tenant in tenants {
                conn.request("GET", "/", &[("X-Tenant", tenant), ("X-User-Id", user)]);
                let answer = conn.response_to("GET").expect("an answer");
                statuses.entry(tenant).or_default().push(answer.status);
            }
        }
    }
    statuses
}

/// A master's replica takes over after two seconds or so. Meanwhile policies do as they choose, in
/// time; then all slots are counted in Redis again, at once.
#[test]
fn a_master_that_dies_under_load_is_followed_to_its_replica() {
    let mut cluster = Cluster::start(3, 1);
    let rules = RulesFile::new(&document(&["allow", "local"].map(|choice| {
        format!(
            r#"{{ "name": "{choice}", "match": {{ "path": "/{choice}" }}, "key": ["tenant"], "store": "redis",
                 "timeout": "50ms", "on_store_error": "{choice}",
                 "limits": [ {{ "rate": "10/d" }}, {{ "algorithm": "sliding_window", "rate": "20/d" }} ] }}"#
        )
        .replace("10/d", if choice == "allow" { "1000000/s" } else { "10/d" })
        .replace("20/d", if choice == "allow" { "1000000/s" } else { "20/d" })
    })));
    let nginx = start(&cluster, &rules);
    let over = AtomicBool::new(false);
    let (seen, took_over, recovered) = thread::scope(|scope| {
        let stop = Over(&over);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn({
                    let (nginx, over) = (&nginx, &over);
                    move || until_over(nginx, client, over)
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(500));
        let died = Instant::now();
        cluster.servers[0].kill();
        let heir = &cluster.servers[3];
        while !heir.info("replication", "role").starts_with("master") {
            assert!(died.elapsed() < Duration::from_secs(20), "the replica does not take over");
            thread::sleep(Duration::from_millis(10));
        }
        let (took_over, was, at) = (died.elapsed(), scripts(heir), Instant::now());
        while store(&nginx, "breakers_open") > 0 || scripts(heir) < was + 20 {
            assert!(at.elapsed() < Duration::from_secs(3), "it is not asked: {}", nginx.metrics());
            thread::sleep(Duration::from_millis(10));
        }
        let recovered = at.elapsed();
        thread::sleep(Duration::from_millis(300));
        drop(stop);
        let seen: Vec<Seen> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        (seen, took_over, recovered)
    });
    let mut waits: Vec<Duration> = seen.iter().flat_map(|seen| seen.waits.clone()).collect();
    waits.sort_unstable();
    let part = |hundredths: usize| waits[(waits.len() - 1) * hundredths / 100];
    println!(
        "| nginx | a master dies | {} | median {:?} | p99 {:?} | longest {:?} | taken over after {took_over:?} \
         | asked again after {recovered:?} | without Redis {} |",
        waits.len(),
        part(50),
        part(99),
        part(100),
        store(&nginx, "fallback_allow") + store(&nginx, "fallback_local")
    );
    // The machine's own pauses are not the limiter's.
    assert!(part(50) < Duration::from_millis(50) && part(99) < Duration::from_millis(300));
    assert!(part(100) < Duration::from_millis(1050));
    let mut admitted: BTreeMap<&str, u32> = BTreeMap::new();
    for (tenant, count) in seen.iter().flat_map(|seen| &seen.admitted) {
        *admitted.entry(tenant).or_default() += count;
    }
    // What the master had not told its replica yet, and what workers admitted alone, is one burst.
    for (tenant, count) in admitted {
        assert!((10..=20).contains(&count), "{tenant}: {count}");
    }
    for server in &cluster.servers[1..] {
        assert_eq!(errors(server, "CROSSSLOT"), 0);
    }
    nginx.wait_until("nobody to wait", |nginx| store(nginx, "waiting") == 0);
}

#[derive(Default)]
struct Seen {
    admitted: BTreeMap<String, u32>,
    waits: Vec<Duration>,
}

/// Half of the clients ask where all is allowed, the other half where little is.
fn until_over(nginx: &Nginx, client: usize, over: &AtomicBool) -> Seen {
    let mut conn = Conn::open(nginx.port(1));
    let mut seen = Seen::default();
    for tenant in (0..100).map(|tenant| format!("tenant-{tenant}")).cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let path = ["/allow", "/local"][client % 2];
        let at = Instant::now();
        conn.request("GET", path, &[("X-Tenant", &tenant)]);
        let status = conn.response_to("GET").expect("an answer").status;
        seen.waits.push(at.elapsed());
        assert!(status == 200 || (status == 429 && path == "/local"), "{path}: {status}");
        if path == "/local" && status == 200 {
            *seen.admitted.entry(tenant).or_default() += 1;
        }
    }
    seen
}
