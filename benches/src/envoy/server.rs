//! An Envoy of our own, on the first processor, with a filter or without.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_tests::envoy::{Setup, router};
use tollgate_tests::redis::spawn_with_this_process;

/// What stands in the way of a request.
#[derive(Clone, Copy)]
pub(super) struct Contender<'c> {
    /// A filter's module and its configuration.
    pub(super) filter: Option<(&'c str, &'c str)>,
    /// The Redis that the bridge leads to.
    pub(super) redis: Option<u16>,
    /// The webdis that the cluster of this name is.
    pub(super) webdis: Option<u16>,
}

/// A running Envoy. Dropping it ends it.
pub(super) struct Server {
    child: Child,
    folder: PathBuf,
    pub(super) port: u16,
    /// How long it took until it was ready.
    pub(super) start: Duration,
}

/// The binary that `.ci/envoy` has fetched.
pub(super) fn binary() -> Option<PathBuf> {
    if let Some(binary) = env::var_os("TOLLGATE_ENVOY") {
        return Some(binary.into());
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/envoy");
    let output = Command::new(script).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().into())
}

impl Server {
    /// Starts it with one worker, on the first processor.
    pub(super) fn start(contender: Contender<'_>) -> Server {
        Self::start_on("0", contender)
    }

    /// Starts it with one worker, on these processors.
    pub(super) fn start_on(processors: &str, contender: Contender<'_>) -> Server {
        let mut command = Command::new("taskset");
        command.args(["-c", processors]);
        Self::launch(command, contender)
    }

    /// Starts it with one worker, whose instructions are counted once that is
    /// asked for.
    pub(super) fn under_callgrind(contender: Contender<'_>) -> Server {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=counts"]);
        Self::launch(command, contender)
    }

    /// Starts it by a program that is told to run it.
    fn launch(mut command: Command, contender: Contender<'_>) -> Server {
        let [port, admin] = free_ports();
        let folder = env::temp_dir().join(format!("tollgate-bench-envoy-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("envoy.json");
        fs::write(&file, document(contender, port, admin).to_string()).expect("a file");
        command
            .current_dir(&folder)
            .arg(binary().expect("an Envoy"))
            .arg("--config-path")
            .arg(&file)
            .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log")).expect("a file"));
        let begin = Instant::now();
        let child = spawn_with_this_process(command).expect("Envoy starts");
        let mut server = Server { child, folder, port, start: Duration::ZERO };
        while !is_ready(admin) {
            let is_running = matches!(server.child.try_wait(), Ok(None));
            assert!(is_running && begin.elapsed() < Duration::from_secs(60), "Envoy: {}", server.log());
            thread::sleep(Duration::from_millis(2));
        }
        server.start = begin.elapsed();
        server
    }

    /// Nanoseconds of processor time that all its threads have used.
    pub(super) fn time(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let time = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        tasks.filter_map(time).sum()
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// A file of its folder.
    pub(super) fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(name)).ok()
    }

    /// Resident memory, in KiB.
    pub(super) fn resident(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("resident memory")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        if let Some(line) = log.lines().find(|line| line.contains("VM failed") || line.contains("Function: "))
        {
            eprintln!("Envoy: {line}");
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn document(contender: Contender<'_>, port: u16, admin: u16) -> Value {
    let address = |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let mut filters = vec![router()];
    if let Some((module, plugin)) = contender.filter {
        filters.insert(0, filter(module, plugin));
    }
    let mut setup = Setup::new("");
    if let Some(redis) = contender.redis {
        setup = setup.redis(redis);
    }
    if let Some(webdis) = contender.webdis {
        setup.clusters.push(json!({
            "name": "webdis", "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": { "cluster_name": "webdis", "endpoints": [ { "lb_endpoints": [
                { "endpoint": { "address": address(webdis) } } ] } ] },
        }));
    }
    let ok = json!({ "status": 200, "body": { "inline_string": "ok" } });
    let routes = json!([ { "match": { "prefix": "/" }, "direct_response": ok } ]);
    setup.listeners.insert(
        0,
        json!({
            "name": "front",
            "address": address(port),
            "filter_chains": [ { "filters": [ {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": "front",
                    "route_config": { "virtual_hosts": [ { "name": "all", "domains": ["*"], "routes": routes } ] },
                    "http_filters": filters,
                },
            } ] } ],
        }),
    );
    json!({
        "node": { "id": "bench", "cluster": "bench" },
        "admin": { "address": address(admin) },
        "bootstrap_extensions": setup.extensions,
        "static_resources": { "listeners": setup.listeners, "clusters": setup.clusters },
    })
}

fn filter(module: &str, plugin: &str) -> Value {
    json!({
        "name": "envoy.filters.http.wasm",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "front",
                "root_id": "front",
                "configuration": { "@type": "type.googleapis.com/google.protobuf.StringValue", "value": plugin },
                "vm_config": {
                    "vm_id": "front",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": { "local": { "filename": module } },
                },
            },
        },
    })
}

fn is_ready(admin: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", admin)) else { return false };
    let mut text = String::new();
    let asked = stream.write_all(b"GET /ready HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    asked.is_ok() && stream.read_to_string(&mut text).is_ok() && text.starts_with("HTTP/1.1 200")
}

pub(super) fn free_ports() -> [u16; 2] {
    // Both are held while we look, so that they differ.
    let held = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
    held.map(|listener| listener.local_addr().expect("its address").port())
}
