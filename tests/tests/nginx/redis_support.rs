//! What the tests with a real Redis share: gateways that count in it, and loads that tell what
//! became of every request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::nginx::{Conn, Nginx};
use tollgate_tests::redis::Server;

use crate::rules_support::RulesFile;

/// What became of requests.
#[derive(Debug, Default, Clone)]
pub(crate) struct Load {
    /// How many answers had which status.
    pub(crate) statuses: BTreeMap<u16, usize>,
    /// Connections that were closed without an answer.
    pub(crate) unanswered: usize,
    /// The longest wait for an answer.
    pub(crate) longest: Duration,
}

impl Load {
    /// Answers with this status.
    pub(crate) fn count(&self, status: u16) -> usize {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    /// Answers of any status.
    pub(crate) fn answered(&self) -> usize {
        self.statuses.values().sum()
    }

    fn note(&mut self, status: Option<u16>, took: Duration) {
        match status {
            Some(status) => *self.statuses.entry(status).or_default() += 1,
            None => self.unanswered += 1,
        }
        self.longest = self.longest.max(took);
    }

    /// Takes another one in.
    pub(crate) fn join(&mut self, other: &Load) {
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.unanswered += other.unanswered;
        self.longest = self.longest.max(other.longest);
    }
}

/// Gateways that share one Redis and one rules file.
#[derive(Debug)]
pub(crate) struct Gateways {
    pub(crate) nginx: Vec<Nginx>,
    pub(crate) rules: RulesFile,
    pub(crate) redis: Server,
}

impl Gateways {
    /// `count` of them with this many workers; `more` stands behind the address of
    /// `tollgate_redis`.
    pub(crate) fn start(count: usize, workers: u32, rules: &str, more: &str) -> Gateways {
        Gateways::with(Server::start(&[]), count, workers, rules, more)
    }

    pub(crate) fn with(redis: Server, count: usize, workers: u32, rules: &str, more: &str) -> Gateways {
        let rules = RulesFile::new(rules);
        let http = rules.http("reload=100ms", "");
        let nginx = (0..count)
            .map(|_| Nginx::start_with(workers, &format!("{} {http}", directive(&redis, more))))
            .collect();
        Gateways { nginx, rules, redis }
    }

    /// The `http {}` content of the first.
    pub(crate) fn http(&self, more: &str, location: &str) -> String {
        format!("{} {}", directive(&self.redis, more), self.rules.http("reload=100ms", location))
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        self.nginx.iter().map(|nginx| nginx.port(1)).collect()
    }

    /// A number of the section "store" of the page of metrics, of all gateways together.
    pub(crate) fn store(&self, name: &str) -> u64 {
        self.nginx.iter().map(|nginx| store(nginx, name)).sum()
    }

    /// Waits until that number is this one.
    pub(crate) fn wait_for(&self, name: &str, value: u64) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.store(name) != value {
            assert!(Instant::now() < end, "{name} is {} and does not become {value}", self.store(name));
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// `tollgate_redis` with the port of this server.
pub(crate) fn directive(redis: &Server, more: &str) -> String {
    format!("tollgate_redis 127.0.0.1:{} {more};", redis.port())
}

/// A number of the section "store" of the page of metrics.
pub(crate) fn store(nginx: &Nginx, name: &str) -> u64 {
    let page = nginx.metrics();
    page["store"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {page}"))
}

/// A document of one policy whose limits are counted in Redis.
pub(crate) fn orders(rate: &str, more: &str) -> String {
    crate::rules_support::document(&[remote("orders", rate, more)])
}

/// A policy for an API key whose limit is counted in Redis.
pub(crate) fn remote(name: &str, rate: &str, more: &str) -> String {
    format!(
        r#"{{ "name": "{name}", "key": ["api_key"], "limits": [ {{ "rate": "{rate}" }} ],
             "store": "redis" {more} }}"#
    )
}

/// So many requests at the same time, each on a connection of its own that is there before.
pub(crate) fn burst(ports: &[u16], count: usize, headers: &[(&str, &str)]) -> Load {
    let mut conns: Vec<Conn> = (0..count).map(|i| Conn::open(ports[i % ports.len()])).collect();
    let start = Instant::now();
    for conn in &mut conns {
        conn.request("GET", "/", headers);
    }
    let mut load = Load::default();
    for conn in &mut conns {
        let status = conn.response_to("GET").map(|answer| answer.status);
        load.note(status, start.elapsed());
    }
    load
}

/// A steady load until it is stopped: threads that ask one request after another.
#[derive(Debug)]
pub(crate) struct Running {
    threads: Vec<thread::JoinHandle<Load>>,
    stop: std::sync::Arc<AtomicBool>,
}

impl Running {
    /// `threads` of them, that rest for `pause` between two requests; thread i asks as key `i % keys`.
    pub(crate) fn start(ports: &[u16], threads: usize, keys: usize, pause: Duration) -> Running {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let threads = (0..threads)
            .map(|i| {
                let (port, stop) = (ports[i % ports.len()], stop.clone());
                let key = format!("key-{}", i % keys);
                thread::spawn(move || one_after_another(port, &key, pause, &stop))
            })
            .collect();
        Running { threads, stop }
    }

    /// Ends it, and tells what became of all of them.
    pub(crate) fn stop(self) -> Load {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Load::default();
        for thread in self.threads {
            all.join(&thread.join().expect("a thread of the load"));
        }
        all
    }
}

/// A connection for each request, so that none is in doubt when a worker closes what it keeps alive.
fn one_after_another(port: u16, key: &str, pause: Duration, stop: &AtomicBool) -> Load {
    let mut load = Load::default();
    while !stop.load(Ordering::Relaxed) {
        let Some(mut conn) = Conn::try_open(port) else { continue };
        let start = Instant::now();
        conn.request("GET", "/", &[("X-Api-Key", key), ("Connection", "close")]);
        load.note(conn.response_to("GET").map(|answer| answer.status), start.elapsed());
        thread::sleep(pause);
    }
    load
}
