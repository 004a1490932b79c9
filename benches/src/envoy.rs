//! A real Envoy with the filter: beside none, beside an empty filter of the
//! Rust SDK, which is what the ABI costs whatever a filter does, and beside an
//! HTTP server before Redis, `webdis`, asked by a filter of the SDK.
//!
//! All contenders run at once, each in an Envoy of its own with one worker,
//! and are loaded in turn. A request that is not answered with 200 fails the
//! run. Envoy has the first processor; `wrk`, Redis and webdis the second.

mod instructions;
mod load;
mod server;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use instructions::instructions;
use load::{Load, load, load_of_all};
use server::{Contender, Server};
use tollgate_core::limit::Limit;
use tollgate_core::redis::script::{Ask, Call, Op};
use tollgate_tests::envoy::module;
use tollgate_tests::redis::{self, spawn_with_this_process};

use crate::Options;
use crate::measure::median;
use crate::report::Row;

const RATE: &str = "1000000/s";
/// Bytes of a module.
const SIZE: f64 = 350.0 * 1024.0;
const NONE: Contender<'_> = Contender { filter: None, redis: None, webdis: None };

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let missing = |what: &str| {
        eprintln!("no Envoy rows: {what}");
        Vec::new()
    };
    if server::binary().is_none() {
        return missing("no Envoy: run .ci/envoy");
    }
    if !module().exists() {
        return missing("no module: run make filter");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/build.sh");
    if !Command::new(script).status().is_ok_and(|status| status.success()) {
        return missing("the peers' filters cannot be built");
    }
    let mut rows = Vec::new();
    if options.wants("envoy/module") {
        rows.push(size());
    }
    if options.wants("envoy/start") {
        rows.push(start(options));
    }
    if options.wants("envoy/instructions") {
        rows.extend(counted());
    }
    if ["envoy/cpu", "envoy/requests", "envoy/redis"].iter().any(|id| options.wants(id)) {
        rows.extend(requests(options));
    }
    if options.wants("envoy/memory") {
        rows.extend(memory(options));
    }
    rows
}

/// A module of `peers/build.sh`.
fn built(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers")).join(name)
}

fn text(path: &std::path::Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// One policy for all, counted by the field `x-user`.
fn embedded() -> String {
    plugin("", "")
}

fn in_redis(more: &str) -> String {
    plugin(
        r#""redis": { "cluster": "tollgate_bridge", "timeout_ms": 1000 }, "#,
        &format!(r#""store": "redis", {more}"#),
    )
}

fn plugin(members: &str, policy: &str) -> String {
    format!(
        r#"{{ {members}"rules": {{ "identity": {{ "user": {{ "header": "x-user" }} }}, "policies": [
             {{ "name": "all", "key": ["user"], {policy}"limits": [ {{ "rate": "{RATE}" }} ] }} ] }} }}"#
    )
}

fn size() -> Row {
    let size = fs::metadata(module()).expect("a module").len() as f64;
    Row::absolute("envoy/module", "the Envoy filter, bytes of its module", "bytes", size, SIZE)
}

/// What one VM adds to Envoy's start; Envoy makes one for its main thread and
/// one for its worker.
fn start(options: &Options) -> Row {
    let (ours, plugin) = (text(&module()), embedded());
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..=options.rounds(7).max(3) {
        for (index, filter) in [None, Some((ours.as_str(), plugin.as_str()))].into_iter().enumerate() {
            let server = Server::start_on("0,1", Contender { filter, ..NONE });
            if number > 0 {
                times[index].push(server.start.as_secs_f64() * 1e3); // the first only warms up
            }
        }
    }
    let [none, ours] = times.map(|mut times| median(&mut times));
    let what = "Envoy until it is ready, with the filter less without, a VM (of two)";
    Row::absolute("envoy/start", what, "ms", (ours - none).max(0.0) / 2.0, 50.0)
}

/// What a request costs without noise; the goal is that of the time.
fn counted() -> Option<Row> {
    let (ours, plugin, empty) = (text(&module()), embedded(), text(&built("empty.wasm")));
    let of = |filter| instructions(Contender { filter, ..NONE }, 600);
    let (none, empty, ours) = (of(None)?, of(Some((&empty, "")))?, of(Some((&ours, &plugin)))?);
    println!("Envoy, instructions a request: no filter {none:.0}, empty {empty:.0}, embedded {ours:.0}");
    let what = "Envoy, user-space instructions a request adds over no filter (callgrind), as envoy/cpu";
    let row = Row::new("envoy/instructions", what, "instructions", ours - none, empty - none, "empty filter");
    Some(row.goal(1.7))
}

/// What was seen of one contender, a value a round.
#[derive(Default)]
struct Seen {
    /// Microseconds of Envoy's processor time a request.
    cost: Vec<f64>,
    per_second: Vec<f64>,
    /// Milliseconds, of one request at a time.
    p50: Vec<f64>,
}

/// The medians.
#[derive(Clone, Copy)]
struct Medians {
    cost: f64,
    per_second: f64,
    p50: f64,
}

impl Seen {
    fn add(&mut self, load: &Load, used: u64, alone: &Load) {
        self.cost.push(used as f64 / load.requests / 1e3);
        self.per_second.push(load.per_second);
        self.p50.push(alone.p50);
    }

    fn medians(mut self) -> Medians {
        Medians {
            cost: median(&mut self.cost),
            per_second: median(&mut self.per_second),
            p50: median(&mut self.p50),
        }
    }
}

fn requests(options: &Options) -> Vec<Row> {
    let store = redis::Server::start(&[]);
    let webdis = Webdis::start(store.port());
    let names = ["empty.wasm", "webdis.wasm"].map(|name| text(&built(name)));
    let [empty, by_webdis] = &names;
    let ours = text(&module());
    let command = command();
    let plugins = [embedded(), in_redis(""), in_redis(r#""lease": { "max": 50, "ttl": "1s" }, "#)];
    let with = |module, plugin| Contender { filter: Some((module, plugin)), ..NONE };
    let bridged = |plugin| Contender { redis: Some(store.port()), ..with(&ours, plugin) };
    let mut contenders =
        vec![NONE, with(empty, ""), with(&ours, &plugins[0]), bridged(&plugins[1]), bridged(&plugins[2])];
    if let Some(webdis) = &webdis {
        contenders.push(Contender { webdis: Some(webdis.port), ..with(by_webdis, &command) });
    }
    let servers: Vec<Server> = contenders.into_iter().map(Server::start).collect();
    let mut seen: Vec<Seen> = servers.iter().map(|_| Seen::default()).collect();
    for number in 0..=options.rounds(9).max(2) {
        for turn in 0..servers.len() {
            let index = (turn + number) % servers.len();
            let server = &servers[index];
            let before = server.time();
            let Some(all) = load(server.port, 32, 1) else { return Vec::new() };
            let used = server.time() - before;
            let Some(alone) = load(server.port, 1, 1) else { return Vec::new() };
            if number > 0 {
                seen[index].add(&all, used, &alone); // the first only warms up
            }
        }
    }
    let calls = store.info("commandstats", "cmdstat_evalsha").contains("calls=");
    assert!(calls, "Redis was not asked");
    compared(&seen.into_iter().map(Seen::medians).collect::<Vec<_>>())
}

fn compared(all: &[Medians]) -> Vec<Row> {
    let [none, empty, embedded, asked, leased, rest @ ..] = all else { return Vec::new() };
    let added = |of: &Medians| of.p50 - none.p50;
    println!(
        "Envoy, one worker, us of processor time a request: no filter {:.1}, empty {:.1}, embedded {:.1}, Redis {:.1}, leases {:.1}; \
         p50 of one at a time, ms: {:.3}, {:.3}, {:.3}, {:.3}, {:.3}",
        none.cost,
        empty.cost,
        embedded.cost,
        asked.cost,
        leased.cost,
        none.p50,
        empty.p50,
        embedded.p50,
        asked.p50,
        leased.p50
    );
    let what = "Envoy, processor time a request adds over no filter; ours sets three fields of each response";
    let mut rows = vec![
        Row::new("envoy/cpu", what, "us", embedded.cost - none.cost, empty.cost - none.cost, "empty filter")
            .goal(1.7),
        Row::new(
            "envoy/requests",
            "Envoy, one worker, counts in Envoy",
            "requests/s",
            embedded.per_second,
            empty.per_second,
            "empty filter",
        )
        .goal(0.85)
        .higher(),
        Row::new(
            "envoy/redis/requests",
            "Envoy, one worker, each request asks Redis by the bridge",
            "requests/s",
            asked.per_second,
            none.per_second,
            "no filter",
        )
        .goal(0.5)
        .higher(),
        Row::absolute(
            "envoy/redis/p50",
            "the same, one request at a time: p50 added over no filter",
            "ms",
            added(asked).max(0.0),
            0.3,
        ),
        Row::new(
            "envoy/redis/leases",
            "Envoy, one worker, a hot key with leases of 50",
            "requests/s",
            leased.per_second,
            embedded.per_second,
            "embedded",
        )
        .goal(0.9)
        .higher(),
    ];
    if let [webdis] = rest {
        rows.push(
            Row::new(
                "envoy/redis/webdis",
                "Envoy, each request asks Redis by the bridge, or webdis by HTTP",
                "requests/s",
                asked.per_second,
                webdis.per_second,
                "webdis",
            )
            .goal(2.0)
            .higher(),
        );
        let what = "the same, one request at a time: p50 added over no filter";
        let row = Row::new("envoy/redis/webdis/p50", what, "ms", added(asked), added(webdis), "webdis");
        rows.push(row.goal(0.5));
    }
    rows
}

/// A million keys take about a minute; a machine that is slower tells of those
/// that it came to.
const MEMORY_TIME: Duration = Duration::from_secs(240);

/// Resident memory after a million keys beside that after the first tenth.
fn memory(options: &Options) -> Option<Row> {
    let keys = if options.quick { 200_000 } else { 1_000_000 };
    let began = Instant::now();
    let (ours, plugin) = (text(&module()), embedded());
    let server = Server::start(Contender { filter: Some((&ours, &plugin)), ..NONE });
    let (mut sent, mut warm) = (0.0, None);
    while sent < f64::from(keys) && (warm.is_none() || began.elapsed() < MEMORY_TIME) {
        sent += load_of_all(server.port, 2, sent as u64)?.requests; // a whole number
        if sent >= 100_000.0 && warm.is_none() {
            warm = Some(server.resident());
        }
    }
    println!("Envoy: {sent} distinct keys in {:.0?}", began.elapsed());
    let what = format!("Envoy's resident memory after {sent} distinct keys, beside that after about 100,000");
    Some(Row::new("envoy/memory", &what, "KiB", server.resident(), warm?, "warm").goal(1.02))
}

/// What the peer asks webdis: the same script, with the same arguments. Ours has loaded it.
fn command() -> String {
    let limit: Limit = RATE.parse().expect("a limit");
    let asks = [Ask { key: b"tg:{}:all:tenant-0000000000000001", limit: &limit }];
    let call = Call { asks: &asks, op: Op::Check { cost: 1, more: 0, share: 1, owed: 0, id: 1 } };
    let script = call.script();
    let sha = std::str::from_utf8(script.sha1()).expect("hexadecimal");
    let mut command = format!("EVALSHA/{sha}");
    call.arguments(&mut |argument| {
        command.push('/');
        for byte in argument {
            if byte.is_ascii_alphanumeric() {
                command.push(char::from(*byte));
            } else {
                command.push_str(&format!("%{byte:02X}"));
            }
        }
    });
    command
}

/// Debian's HTTP server before Redis. Dropping it ends it.
struct Webdis {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl Webdis {
    /// Nothing, with a word on standard error, where it is missing.
    fn start(redis: u16) -> Option<Webdis> {
        let [port, _] = server::free_ports();
        let folder = std::env::temp_dir().join(format!("tollgate-bench-webdis-{}", std::process::id()));
        fs::create_dir_all(&folder).ok()?;
        let file = folder.join("webdis.json");
        let settings = serde_json::json!({
            "redis_host": "127.0.0.1", "redis_port": redis, "http_host": "127.0.0.1", "http_port": port,
            "threads": 1, "pool_size": 10, "daemonize": false, "database": 0, "acl": [ { "enabled": ["EVALSHA"] } ],
            "verbosity": 0, "logfile": folder.join("log"),
        });
        fs::write(&file, settings.to_string()).ok()?;
        let mut command = Command::new("taskset");
        command.args(["-c", "1", "webdis"]).arg(&file).current_dir(&folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn_with_this_process(command).ok()?;
        let mut webdis = Webdis { child, folder, port };
        for _ in 0..500 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(webdis);
            }
            if !matches!(webdis.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("no rows with webdis: it does not start; Debian: apt install webdis");
        None
    }
}

impl Drop for Webdis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
