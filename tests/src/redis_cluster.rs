//! A real Redis cluster, run by a test: masters with even shares of the slots, and replicas.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use crate::redis::Server;

const SLOTS: usize = 16_384;
/// How long it may take until all agree.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running cluster; dropping it kills all of its servers.
#[derive(Debug)]
pub struct Cluster {
    /// The masters first, then their replicas in the same order, round by round.
    pub servers: Vec<Server>,
    masters: usize,
}

impl Cluster {
    /// Starts so many masters with so many replicas each; all say that the cluster is well when
    /// this returns.
    ///
    /// # Panics
    /// When they do not.
    #[must_use]
    pub fn start(masters: usize, replicas: usize) -> Cluster {
        let servers: Vec<Server> = (0..masters * (replicas + 1)).map(|_| start_one()).collect();
        let cluster = Cluster { servers, masters };
        for (place, server) in cluster.servers.iter().enumerate() {
            let mut connection = server.connection();
            // Different epochs from the start: two masters need not agree on who is the newer one.
            let epoch = cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(place + 1).query::<()>(&mut connection);
            epoch.expect("a new node has no epoch");
            if place < masters {
                let (first, last) = (SLOTS * place / masters, SLOTS * (place + 1) / masters - 1);
                let added =
                    cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(first).arg(last).query::<()>(&mut connection);
                added.expect("slots are free");
            }
            if place > 0 {
                let server = &cluster.servers[0];
                let (port, bus) = (server.port(), bus_port(server));
                let meet = cmd("CLUSTER")
                    .arg("MEET")
                    .arg("127.0.0.1")
                    .arg(port)
                    .arg(bus)
                    .query::<()>(&mut connection);
                meet.expect("a node meets another");
            }
        }
        cluster.wait("they know each other", |server| {
            cluster_info(server, "cluster_known_nodes") == cluster.servers.len().to_string()
        });
        for place in masters..cluster.servers.len() {
            let master = cluster.id(place % masters);
            let mut connection = cluster.servers[place].connection();
            let end = Instant::now() + PATIENCE;
            while let Err(error) = cmd("CLUSTER").arg("REPLICATE").arg(&master).query::<()>(&mut connection) {
                assert!(Instant::now() < end, "{error}");
                thread::sleep(Duration::from_millis(20));
            }
        }
        cluster.wait("the cluster is well", |server| cluster_info(server, "cluster_state") == "ok");
        cluster.wait("all see the replicas", |server| {
            let text: String = cmd("CLUSTER").arg("NODES").query(&mut server.connection()).expect("nodes");
            let up = text.lines().filter(|line| line.contains(" slave ") || line.contains("myself,slave"));
            up.count() == masters * replicas
        });
        cluster.wait("the replicas are in step", |server| {
            server.info("replication", "role") == "master"
                || server.info("replication", "master_link_status") == "up"
        });
        cluster
    }

    /// `127.0.0.1:port` of each server.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect()
    }

    /// The node id of a server, by its place.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn id(&self, place: usize) -> String {
        cmd("CLUSTER").arg("MYID").query(&mut self.servers[place].connection()).expect("an id")
    }

    /// The place of the master that a slot was given at first.
    #[must_use]
    pub fn owner(&self, slot: u16) -> usize {
        (0..self.masters).find(|place| usize::from(slot) < SLOTS * (place + 1) / self.masters).unwrap_or(0)
    }

    /// Moves a slot with its keys, as a resharding does: announced, key by key, then made known to
    /// all. Waits `pause` after each key.
    ///
    /// # Panics
    /// When a server refuses.
    pub fn migrate(&self, slot: u16, from: usize, to: usize, pause: Duration) {
        let (from_id, to_id) = (self.id(from), self.id(to));
        let (mut source, mut target) = (self.servers[from].connection(), self.servers[to].connection());
        let set = |connection: &mut redis::Connection, what: &str, id: &str| {
            let set = cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(what).arg(id).query::<()>(connection);
            set.unwrap_or_else(|error| panic!("SETSLOT {slot} {what}: {error}"));
        };
        set(&mut target, "IMPORTING", &from_id);
        set(&mut source, "MIGRATING", &to_id);
        loop {
            let keys: Vec<Vec<u8>> =
                cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(1).query(&mut source).expect("keys");
            let Some(key) = keys.first() else { break };
            let port = self.servers[to].port();
            let moved =
                cmd("MIGRATE").arg("127.0.0.1").arg(port).arg(key).arg(0).arg(5000).query(&mut source);
            let _: Value = moved.expect("a key moves");
            thread::sleep(pause);
        }
        set(&mut target, "NODE", &to_id);
        set(&mut source, "NODE", &to_id);
        // A node that was given a newer epoch meanwhile may claim the slot back, and then two of them
        // name each other: it is said again until all say the same, as a resharding tool does.
        let end = Instant::now() + PATIENCE;
        loop {
            for server in self.servers.iter().take(self.masters) {
                set(&mut server.connection(), "NODE", &to_id);
            }
            thread::sleep(pause);
            if self.servers.iter().take(self.masters).all(|server| is_of(server, slot, &to_id)) {
                return;
            }
            assert!(Instant::now() < end, "the nodes do not agree about slot {slot}");
        }
    }

    fn wait(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !self.servers.iter().all(&holds) {
            assert!(Instant::now() < end, "not in time: {what}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Is the slot this node's, as that server sees it?
fn is_of(server: &Server, slot: u16, id: &str) -> bool {
    let text: String = cmd("CLUSTER").arg("NODES").query(&mut server.connection()).expect("nodes");
    let Some(line) = text.lines().find(|line| line.starts_with(id)) else { return false };
    line.split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u16>().ok();
        number(first).zip(number(last)).is_some_and(|(first, last)| (first..=last).contains(&slot))
    })
}

/// A node on its own. Its bus has a port of its own: the default one may be beyond the last.
fn start_one() -> Server {
    let bus = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let bus = bus.expect("a loopback port").port().to_string();
    Server::start(&[
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "1000",
        "--cluster-replica-validity-factor",
        "0",
        "--repl-diskless-sync-delay",
        "0",
        "--repl-ping-replica-period",
        "1",
        "--cluster-port",
        &bus,
    ])
}

fn bus_port(server: &Server) -> u16 {
    let set: Vec<String> =
        cmd("CONFIG").arg("GET").arg("cluster-port").query(&mut server.connection()).expect("a setting");
    set[1].parse().expect("a port")
}

fn cluster_info(server: &Server, field: &str) -> String {
    let text: String = cmd("CLUSTER").arg("INFO").query(&mut server.connection()).expect("it answers");
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_default().trim().to_owned()
}
