//! A router on a real cluster: many tenants with several keys each, while slots move from node to
//! node and while a master dies.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use redis::cmd;
use tollgate_core::redis::cluster::{RouterConfig, key_slot};
use tollgate_core::redis::link::LinkConfig;
use tollgate_tests::redis_cluster::Cluster;
use tollgate_tests::redis_host::{ADD, Add, Host};

const LONG: Duration = Duration::from_secs(20);
const TENANTS: usize = 300;
/// Calls in flight at a time.
const FLIGHT: usize = 128;

fn host(cluster: &Cluster, addresses: &[String]) -> Host {
    let addresses: Vec<&[u8]> = addresses.iter().map(String::as_bytes).collect();
    let link = LinkConfig { scripts: Some(&[ADD]), ..LinkConfig::default() };
    let mut host = Host::new(&RouterConfig { link, addresses: &addresses, cluster: true });
    assert!(host.until(LONG, |host| host.router.is_ready()), "not ready: {:?}", host.closed);
    // Every master is connected, not only the first that answered.
    let ready = |host: &Host| (0..TENANTS).all(|tenant| host.router.link_of(&keys(tenant)[0]).is_some());
    assert!(host.until(LONG, ready), "not all of {} are ready", cluster.servers.len());
    host
}

/// Three keys of a tenant: one tag, one slot.
fn keys(tenant: usize) -> [Vec<u8>; 3] {
    ["route", "group", "all"].map(|limit| format!("tg:{{shop-{tenant}}}:{limit}").into_bytes())
}

/// Offers calls of all tenants in turn for as long as this says so.
#[derive(Default)]
struct Load {
    next: u64,
    refused: u64,
}

impl Load {
    fn offer(&mut self, host: &mut Host, tenants: usize, within: Duration) {
        if host.router.waiting() < FLIGHT {
            let keys = keys(self.next as usize % tenants);
            let keys = keys.each_ref().map(Vec::as_slice);
            match host.send(self.next, &Add { keys: &keys, by: "1" }, within) {
                Ok(()) => self.next += 1,
                Err(_) => {
                    self.refused += 1;
                    self.next += 1;
                    host.turn(Duration::from_millis(1));
                }
            }
        } else {
            host.turn(Duration::from_millis(1));
        }
    }

    /// How many were executed, how many may have been, and all reasons of failure.
    fn end(&self, host: &mut Host) -> (u64, u64, BTreeMap<String, u64>) {
        assert!(host.until(LONG, |host| host.router.waiting() == 0), "tickets are left");
        let mut seen = vec![0; self.next as usize];
        let (mut done, mut doubt, mut why) = (0, 0, BTreeMap::new());
        for outcome in &host.outcomes {
            seen[outcome.ticket as usize] += 1;
            match &outcome.result {
                Ok(_) => done += 1,
                Err(reason) => {
                    doubt += u64::from(outcome.may_have_run);
                    *why.entry(reason.clone()).or_default() += 1;
                }
            }
        }
        assert!(seen.iter().all(|times| *times <= 1), "a ticket completed twice");
        assert_eq!(seen.iter().sum::<u64>() + self.refused, self.next, "a ticket did not complete");
        (done, doubt, why)
    }
}

/// What all tenants' first keys add up to, as the cluster has it.
fn sum(cluster: &Cluster, tenants: usize, dead: Option<usize>) -> u64 {
    let mut connections: Vec<_> = cluster
        .servers
        .iter()
        .enumerate()
        .filter(|(place, _)| Some(*place) != dead)
        .map(|(_, server)| server.connection())
        .collect();
    let value = |tenant: usize| {
        let key = &keys(tenant)[0];
        // Whoever has the slot answers; the others say who does.
        let found = connections
            .iter_mut()
            .find_map(|connection| cmd("GET").arg(key).query::<Option<u64>>(connection).ok());
        found.flatten().unwrap_or(0)
    };
    (0..tenants).map(value).sum()
}

#[test]
fn slots_move_under_load_and_every_call_is_executed_once() {
    let cluster = Cluster::start(3, 0);
    let addresses = cluster.addresses();
    let mut host = host(&cluster, &addresses[..1]);
    let mut load = Load::default();
    while load.next < TENANTS as u64 * 3 {
        load.offer(&mut host, TENANTS, LONG);
    }
    // Twenty slots that hold tenants go to the next node, and half of them back.
    let slots: Vec<u16> = (0..20).map(|tenant| key_slot(&keys(tenant)[0])).collect();
    thread::scope(|scope| {
        let moving = scope.spawn(|| {
            for (place, slot) in slots.iter().enumerate() {
                let from = cluster.owner(*slot);
                let to = (from + 1) % 3;
                cluster.migrate(*slot, from, to, Duration::from_millis(3));
                if place % 2 == 0 {
                    cluster.migrate(*slot, to, from, Duration::from_millis(3));
                }
            }
        });
        // Slots that move are asked for much more often than others.
        while !moving.is_finished() {
            load.offer(&mut host, 25, Duration::from_millis(500));
        }
        moving.join().unwrap();
    });
    for _ in 0..TENANTS {
        load.offer(&mut host, TENANTS, LONG);
    }
    let (done, doubt, why) = load.end(&mut host);
    assert_eq!(load.refused, 0);
    assert_eq!(doubt, 0, "nothing went wrong that would leave a doubt: {why:?}");
    // While a tenant's keys are on two nodes nobody can serve a call of all three.
    assert!(why.keys().all(|reason| reason == "try_again"), "{why:?}");
    assert_eq!(sum(&cluster, TENANTS, None), done);
    let redirected = |server: &tollgate_tests::redis::Server| {
        let mut connection = server.connection();
        let text: String = cmd("INFO").arg("errorstats").query(&mut connection).unwrap();
        assert!(!text.contains("CROSSSLOT"), "{text}");
        text.contains("errorstat_MOVED") || text.contains("errorstat_ASK")
    };
    assert!(cluster.servers.iter().map(redirected).filter(|any| *any).count() > 0, "nothing was sent on");
    eprintln!("{done} executed, {why:?}");
}

#[test]
fn a_dead_masters_replica_is_found() {
    let mut cluster = Cluster::start(3, 1);
    let addresses = cluster.addresses();
    let mut host = host(&cluster, &addresses);
    let mut load = Load::default();
    while load.next < TENANTS as u64 {
        load.offer(&mut host, TENANTS, LONG);
    }
    cluster.servers[0].kill();
    let killed = Instant::now();
    let lost: Vec<usize> =
        (0..TENANTS).filter(|tenant| cluster.owner(key_slot(&keys(*tenant)[0])) == 0).collect();
    assert!(lost.len() > 20);
    let served = |host: &Host| lost.iter().all(|tenant| host.router.link_of(&keys(*tenant)[0]).is_some());
    while !(served(&host) && killed.elapsed() > Duration::from_millis(500)) {
        assert!(killed.elapsed() < LONG, "the replica was never found: {:?}", host.closed);
        load.offer(&mut host, TENANTS, Duration::from_millis(50));
    }
    // Its nodes do not all hear of the new master at once: until they have, some say that it is down.
    let failures = |host: &Host| host.outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let (mut failed, mut last) = (failures(&host), Instant::now());
    while last.elapsed() < Duration::from_millis(300) {
        assert!(killed.elapsed() < LONG, "the new master never served: {:?}", host.closed);
        load.offer(&mut host, TENANTS, Duration::from_millis(50));
        if failures(&host) > failed {
            (failed, last) = (failures(&host), Instant::now());
        }
    }
    let from = load.next;
    while load.next < from + TENANTS as u64 * 2 {
        load.offer(&mut host, TENANTS, LONG);
    }
    let (done, doubt, why) = load.end(&mut host);
    let late = host.outcomes.iter().filter(|outcome| outcome.ticket >= from);
    assert!(late.clone().count() > 0 && late.clone().all(|outcome| outcome.result.is_ok()), "{why:?}");
    let expected = ["cluster_down", "disconnected", "not_ready", "timeout", "moved", "read_only"];
    assert!(why.keys().all(|reason| expected.contains(&reason.as_str())), "{why:?}");
    // Replication is not synchronous: what the dead one had just answered may be gone.
    let sum = sum(&cluster, TENANTS, Some(0));
    assert!(sum <= done + doubt, "{sum} executed, {done} answered, {doubt} in doubt");
}

#[test]
fn any_node_will_do_to_begin_with() {
    let cluster = Cluster::start(3, 0);
    let nobody = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let addresses = [nobody.to_string(), format!("localhost:{}", cluster.servers[2].port())];
    let mut host = host(&cluster, &addresses);
    let mut load = Load::default();
    while load.next < TENANTS as u64 {
        load.offer(&mut host, TENANTS, LONG);
    }
    let (done, _, why) = load.end(&mut host);
    assert!(why.is_empty(), "{why:?}");
    assert_eq!(done, TENANTS as u64);
    let last = host.closed.last();
    assert_eq!(last, Some(&"left"), "the same node by another name is left: {:?}", host.closed);
}
