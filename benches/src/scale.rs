//! Twenty instances, a hundred thousand tenants, one real Redis.
//!
//! Requests come at a fixed rate whatever the answers do (an open loop), and
//! each is timed from the moment at which it was due, so a stall counts for
//! everyone who came during it (the first second, in which memory is touched
//! for the first time, is counted but not timed). One thread drives all instances, each with an
//! engine, a table and a connection of its own: what is measured includes its
//! work for all twenty.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tollgate_core::key::Seed;
use tollgate_core::metrics::StoreMetrics;
use tollgate_core::policy::{Answer, Attributes, KeyRoom, Rules};
use tollgate_core::redis::cluster::{Action, RouterConfig};
use tollgate_core::redis::engine::{Engine, Here};
use tollgate_core::redis::link::LinkConfig;
use tollgate_core::redis::store::{Progress, StoreConfig};
use tollgate_core::table::{Config, OwnedTable};
use tollgate_tests::redis::Server;

use crate::Options;
use crate::report::Row;

const INSTANCES: usize = 20;
const TENANTS: usize = 100_000;
const RATE: u64 = 50_000;
/// Of each tenant, a second; the burst is the same.
const LIMIT: u64 = 100;
/// How long the breaker of a noisy machine may not be the matter: the store is
/// well all the time, so a late answer is waited for and counted.
const TIMEOUT: &str = "1s";

/// What one run showed.
struct Run {
    /// Nanoseconds from due to answered.
    latency: Histogram<u64>,
    requests: u64,
    admitted: u64,
    calls: u64,
    fallbacks: u64,
    /// Of the tenants that asked for at least twice their limit, the largest
    /// difference from it, in parts of the limit.
    worst: f64,
    /// The same for all of them together.
    overall: f64,
    saturated: usize,
}

/// One instance: what an NGINX worker would own.
pub(crate) struct Instance {
    pub(crate) engine: Engine,
    pub(crate) table: OwnedTable,
    pub(crate) metrics: StoreMetrics,
    socket: Option<TcpStream>,
    readable: bool,
}

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let seconds = if options.quick { 3 } else { 20 };
    let leased = run(seconds, Some(50));
    let plain = run(seconds, None);
    for (name, run) in [("leases of 50", &leased), ("no leases", &plain)] {
        let at = |quantile| run.latency.value_at_quantile(quantile) as f64 / 1e6;
        println!(
            "scale, {name}: {} requests, {} admitted, {} calls, {} without the store; \
             p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, longest {:.1} ms; \
             {} saturated tenants, together {:+.3} %, the worst {:+.3} %",
            run.requests,
            run.admitted,
            run.calls,
            run.fallbacks,
            at(0.5),
            at(0.99),
            at(0.999),
            run.latency.max() as f64 / 1e6,
            run.saturated,
            run.overall * 100.0,
            run.worst * 100.0
        );
    }
    let p99 = |run: &Run| run.latency.value_at_quantile(0.99) as f64 / 1e6;
    let each = |run: &Run| run.calls as f64 / run.requests as f64;
    vec![
        Row::absolute(
            "scale/p99",
            "20 instances, 50,000 requests/s, leases of 50: added, p99",
            "ms",
            p99(&leased),
            2.0,
        ),
        Row::absolute("scale/p99-no-leases", "the same without leases", "ms", p99(&plain), 2.0),
        Row::absolute(
            "scale/saturated",
            "saturated tenants together, off their limit",
            "%",
            leased.overall.abs() * 100.0,
            1.0,
        ),
        Row::absolute(
            "scale/saturated-no-leases",
            "the same without leases",
            "%",
            plain.overall.abs() * 100.0,
            1.0,
        ),
        Row::new(
            "scale/calls",
            "Redis calls a request",
            "calls",
            each(&leased),
            each(&plain),
            "without leases",
        ),
    ]
}

fn run(seconds: u64, lease: Option<u64>) -> Run {
    let server = Server::start(&[]);
    let lease = lease.map_or(String::new(), |max| format!(r#""lease": {{ "max": {max}, "ttl": "1s" }},"#));
    let document = format!(
        r#"{{ "identity": {{ "tenant": {{ "header": "x-tenant" }} }}, "policies": [ {{ "name": "api",
           "key": ["tenant"], "limits": [ {{ "rate": "{LIMIT}/s" }} ], {lease}
           "store": "redis", "timeout": "{TIMEOUT}" }} ] }}"#
    );
    let rules = Rules::parse(&document, Seed([3, 4])).expect("legal rules");
    let address = format!("127.0.0.1:{}", server.port());
    let mut instances: Vec<_> =
        (0..INSTANCES).map(|number| Instance::new(number, INSTANCES as u64, &address)).collect();
    let total = RATE * seconds;
    let tenants = zipf(total as usize);
    let names: Vec<String> = (0..TENANTS).map(|tenant| format!("tenant-{tenant}")).collect();
    connect(&mut instances);
    let mut run = drive(&mut instances, &rules, &tenants, &names, total);
    run.calls = instances.iter().map(|instance| instance.metrics.snapshot().calls).sum();
    run.fallbacks = instances.iter().map(|instance| instance.metrics.snapshot().fallback_local).sum();
    run
}

fn drive(instances: &mut [Instance], rules: &Rules, tenants: &[u32], names: &[String], total: u64) -> Run {
    let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("legal bounds");
    let mut admitted = vec![0u64; TENANTS];
    let due = |request: u64| request * (1_000_000_000 / RATE);
    let mut room = KeyRoom::new();
    let (mut next, mut answered) = (0u64, 0u64);
    let mut random = 88_172_645_463_325_252u64;
    let mut tick_at = 0;
    let start = Instant::now();
    let clock = || start.elapsed().as_nanos() as u64 + 1_000_000_000;
    let mut take = |request: u64, answer: &Answer, now: u64| {
        if due(request) >= 1_000_000_000 {
            latency.saturating_record((now - 1_000_000_000).saturating_sub(due(request)).max(1));
        }
        admitted[tenants[request as usize] as usize] += u64::from(answer.allowed);
    };
    while answered < total {
        let mut now = clock();
        while next < total && due(next) + 1_000_000_000 <= now {
            let name = names[tenants[next as usize] as usize].as_bytes();
            let headers = [Some(name)];
            let request = Attributes {
                route: b"",
                method: b"GET",
                host: b"h",
                path: b"/",
                peer: None,
                headers: &headers,
            };
            let selection = rules.select(&request, &mut room).expect("no identity is required");
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let instance = &mut instances[(random % INSTANCES as u64) as usize];
            let table = instance.table.table().expect("a table");
            let here = Here { table: &table, metrics: &instance.metrics, now };
            if let Progress::Answered(answer) = instance.engine.check(rules, &selection, next, &here) {
                answered += 1;
                take(next, &answer, clock());
            }
            next += 1;
            now = clock();
        }
        let ticks = now >= tick_at;
        if ticks {
            tick_at = now + 1_000_000;
        }
        for instance in instances.iter_mut() {
            instance.turn(now, ticks, |request, answer| {
                answered += 1;
                take(request, answer, clock());
            });
        }
        wait(instances, (due(next) + 1_000_000_000).saturating_sub(clock()));
    }
    let elapsed = start.elapsed().as_secs_f64();
    let mut offered = vec![0u64; TENANTS];
    tenants.iter().for_each(|tenant| offered[*tenant as usize] += 1);
    let entitled = LIMIT as f64 * elapsed + LIMIT as f64;
    let saturated: Vec<_> = (0..TENANTS).filter(|&tenant| offered[tenant] as f64 >= 2.0 * entitled).collect();
    let off = |count: u64, of: f64| (count as f64 - of) / of;
    let worst = saturated.iter().map(|&tenant| off(admitted[tenant], entitled));
    let worst = worst.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
    let together = saturated.iter().map(|&tenant| admitted[tenant]).sum();
    let overall = off(together, entitled * saturated.len() as f64);
    assert!(!saturated.is_empty(), "no tenant asks for more than it has");
    let (admitted, saturated) = (admitted.iter().sum(), saturated.len());
    Run { latency, requests: total, admitted, calls: 0, fallbacks: 0, worst, overall, saturated }
}

impl Instance {
    pub(crate) fn new(number: usize, instances: u64, address: &str) -> Instance {
        let store = StoreConfig {
            waiting: 4096,
            instances,
            instance: Some(number as u64),
            seed: 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(number as u64 + 1),
            ..StoreConfig::default()
        };
        let link = LinkConfig {
            in_flight: 8192,
            transmit_bytes: 4 << 20,
            receive_bytes: 1 << 20,
            ..LinkConfig::default()
        };
        let router = RouterConfig { link, addresses: &[address.as_bytes()], cluster: false };
        Instance {
            engine: Engine::new(&store, &router).expect("legal numbers"),
            table: OwnedTable::new(Config { capacity: 4096, rows: 0, row_entries: 0 }, Seed([1, 2]))
                .expect("a table"),
            metrics: StoreMetrics::default(),
            socket: None,
            readable: true,
        }
    }

    pub(crate) fn is_ready(&mut self) -> bool {
        self.engine.router_mut().is_ready()
    }

    /// Moves bytes both ways and tells what was answered.
    pub(crate) fn turn(&mut self, now: u64, ticks: bool, mut told: impl FnMut(u64, &Answer)) {
        let table = self.table.table().expect("a table");
        let here = Here { table: &table, metrics: &self.metrics, now };
        if let Some(socket) = self.socket.as_mut().filter(|_| self.readable) {
            loop {
                let room = self.engine.router_mut().receive_buffer(0);
                match socket.read(room) {
                    Ok(0) => panic!("the server closed the connection"),
                    Ok(count) => {
                        self.engine.router_mut().received(0, count);
                        self.engine.process(&here);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if ticks {
            self.engine.process(&here);
        }
        while let Some((user, pending)) = self.engine.poll_answer(&here) {
            let answer = *self.engine.answer(pending).expect("it was told just now");
            told(user, &answer);
        }
        while let Some(action) = self.engine.router_mut().poll_action(now) {
            match action {
                Action::Connect { link, address } => {
                    let address = std::str::from_utf8(address).expect("an address");
                    let Ok(socket) = TcpStream::connect(address) else {
                        self.engine.router_mut().handle_disconnected(link, now);
                        continue;
                    };
                    socket.set_nodelay(true).expect("a socket");
                    socket.set_nonblocking(true).expect("a socket");
                    self.socket = Some(socket);
                    self.engine.router_mut().handle_connected(link, now);
                }
                Action::Close { .. } => self.socket = None,
            }
        }
        let Some(socket) = &mut self.socket else { return };
        loop {
            let bytes = self.engine.router_mut().poll_transmit(0);
            if bytes.is_empty() {
                return;
            }
            match socket.write(bytes) {
                Ok(count) => self.engine.router_mut().transmitted(0, count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn connect(instances: &mut [Instance]) {
    let start = Instant::now();
    for instance in instances {
        while !instance.is_ready() {
            assert!(start.elapsed() < Duration::from_secs(10), "no connection");
            instance.turn(start.elapsed().as_nanos() as u64 + 1, true, |_, _| {});
        }
    }
}

/// Until a socket has something, or so many nanoseconds; says which have.
fn wait(instances: &mut [Instance], most: u64) {
    let sockets = instances.iter().map(|instance| instance.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd));
    let mut fds: Vec<_> = sockets.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: most.min(1_000_000) as i64 };
    // SAFETY: as many entries as the vector has; no signal mask.
    unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &timeout, std::ptr::null()) };
    for (instance, fd) in instances.iter_mut().zip(&fds) {
        instance.readable = fd.revents != 0;
    }
}

/// Tenants of requests by Zipf's law (exponent 1), drawn from a fixed seed.
fn zipf(count: usize) -> Vec<u32> {
    let mut sums = Vec::with_capacity(TENANTS);
    let mut sum = 0.0;
    for rank in 1..=TENANTS {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let draw = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let at = (state >> 11) as f64 / (1u64 << 53) as f64 * sum;
        sums.partition_point(|upto| *upto < at).min(TENANTS - 1) as u32
    };
    (0..count).map(draw).collect()
}
