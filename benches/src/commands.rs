//! What Redis is asked: by a hot key with leases, by one client far above its
//! limit, and not at all while the breaker is open.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tollgate_core::key::Seed;
use tollgate_core::policy::{Attributes, KeyRoom, Rules, Selection};
use tollgate_core::redis::breaker::State;
use tollgate_core::redis::engine::Here;
use tollgate_core::redis::store::Progress;
use tollgate_tests::redis::Server;

use crate::Options;
use crate::report::Row;
use crate::scale::Instance;

/// Requests a second of the client that does not slow down, and its limit.
const OFFERED: u64 = 10_000;
const LIMIT: u64 = OFFERED / 100;

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let requests = if options.quick { 20_000 } else { 200_000 };
    let hot = hot_key(requests);
    let (caused, all) = far_above(if options.quick { 1 } else { 5 });
    println!(
        "commands: one client at 100 times its limit: {all:.5} calls a denied request, those of admitted ones included"
    );
    let open = breaker_open(if options.quick { 10_000 } else { 200_000 });
    vec![
        Row::absolute(
            "commands/hot-key",
            "Redis calls an admitted request, one hot key, leases of 50",
            "calls",
            hot,
            1.0 / 25.0,
        ),
        Row::absolute(
            "commands/denied",
            "Redis calls that denied requests cause (beyond one for each admitted), one client at 100 x its limit",
            "calls",
            caused,
            1.0 / 100.0,
        ),
        Row::absolute(
            "commands/breaker-open",
            "a decision while the breaker is open, p99.9",
            "ms",
            open,
            1.0,
        ),
    ]
}

fn rules(rate: &str, more: &str) -> Rules {
    let document = format!(
        r#"{{ "identity": {{ "user": {{ "header": "x-user" }} }}, "policies": [ {{ "name": "api", "key": ["user"],
           "limits": [ {{ "rate": "{rate}" }} ], "store": "redis", {more} }} ] }}"#
    );
    Rules::parse(&document, Seed([5, 6])).expect("legal rules")
}

/// A connected instance, and one client's requests to it.
struct Client<'r> {
    instance: Instance,
    rules: &'r Rules,
    start: Instant,
}

impl<'r> Client<'r> {
    fn new(address: &str, rules: &'r Rules) -> Client<'r> {
        Client { instance: Instance::new(0, 1, address), rules, start: Instant::now() }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    fn connect(&mut self) {
        while !self.instance.is_ready() {
            assert!(self.start.elapsed() < Duration::from_secs(10), "no connection");
            let now = self.now();
            self.instance.turn(now, true, |_, _| {});
        }
    }

    /// One request, to its end. Was it admitted?
    fn ask(&mut self, selection: &Selection<'_>) -> bool {
        match self.begin(selection) {
            Progress::Answered(answer) => answer.allowed,
            Progress::Waiting(_) => {
                let mut told = None;
                while told.is_none() {
                    let now = self.now();
                    self.instance.turn(now, true, |_, answer| told = Some(answer.allowed));
                }
                told.unwrap_or(false)
            }
        }
    }

    fn begin(&mut self, selection: &Selection<'_>) -> Progress {
        let now = self.now();
        let table = self.instance.table.table().expect("a table");
        let here = Here { table: &table, metrics: &self.instance.metrics, now };
        self.instance.engine.check(self.rules, selection, 0, &here)
    }
}

fn request<'a>(headers: &'a [Option<&'a [u8]>]) -> Attributes<'a> {
    Attributes { route: b"", method: b"GET", host: b"h", path: b"/", peer: None, headers }
}

fn hot_key(requests: u64) -> f64 {
    let server = Server::start(&[]);
    let rules = rules("1000000/s", r#""timeout": "1s", "lease": { "max": 50, "ttl": "1s" }"#);
    let mut client = Client::new(&format!("127.0.0.1:{}", server.port()), &rules);
    client.connect();
    let mut room = KeyRoom::new();
    let selection = rules.select(&request(&[Some(b"hot")]), &mut room).expect("no identity is required");
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u64::from(client.ask(&selection));
        // An event loop looks at its sockets between requests.
        let now = client.now();
        client.instance.turn(now, true, |_, _| {});
    }
    assert_eq!(admitted, requests, "nothing is denied at this rate");
    let seen = client.instance.metrics.snapshot();
    println!(
        "commands: a hot key: {} calls, of them {} fetched ahead and {} gave back; {} answers from a lease",
        seen.calls, seen.prefetches, seen.give_backs, seen.lease_hits
    );
    seen.calls as f64 / admitted as f64
}

/// Calls beyond one for each admitted request, and all calls, a denied request.
fn far_above(seconds: u64) -> (f64, f64) {
    let server = Server::start(&[]);
    let rules = rules(&format!("{LIMIT}/s"), r#""timeout": "1s""#);
    let mut client = Client::new(&format!("127.0.0.1:{}", server.port()), &rules);
    client.connect();
    let mut room = KeyRoom::new();
    let selection = rules.select(&request(&[Some(b"loud")]), &mut room).expect("no identity is required");
    let begin = Instant::now();
    let (mut admitted, mut denied) = (0u64, 0u64);
    for number in 0..OFFERED * seconds {
        let due = Duration::from_nanos(number * 1_000_000_000 / OFFERED);
        while begin.elapsed() < due {
            std::hint::spin_loop();
        }
        if client.ask(&selection) { admitted += 1 } else { denied += 1 }
    }
    let most = LIMIT + (begin.elapsed().as_secs_f64() * LIMIT as f64) as u64 + 1;
    assert!(admitted <= most && admitted * 10 > most * 9, "{admitted} of {most} were admitted");
    let calls = client.instance.metrics.snapshot().calls;
    (calls.saturating_sub(admitted) as f64 / denied as f64, calls as f64 / denied as f64)
}

/// Milliseconds at the 99.9th percentile.
fn breaker_open(requests: u64) -> f64 {
    // A port that nobody listens on.
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr()).expect("a port").port();
    let rules = rules("1000000/s", r#""timeout": "5ms", "on_store_error": "local""#);
    let mut client = Client::new(&format!("127.0.0.1:{port}"), &rules);
    let mut room = KeyRoom::new();
    let selection = rules.select(&request(&[Some(b"any")]), &mut room).expect("no identity is required");
    for _ in 0..1000 {
        let _ = client.ask(&selection);
    }
    assert_eq!(client.instance.engine.state(), State::Open, "a store that is not there opens the breaker");
    let mut times = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3).expect("legal bounds");
    for number in 0..requests {
        let before = Instant::now();
        let progress = client.begin(&selection);
        times.saturating_record(before.elapsed().as_nanos() as u64);
        assert!(matches!(progress, Progress::Answered(answer) if answer.allowed), "nobody waits");
        if number % 64 == 0 {
            let now = client.now();
            client.instance.turn(now, true, |_, _| {});
        }
    }
    times.value_at_quantile(0.999) as f64 / 1e6
}
