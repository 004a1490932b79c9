//! A real Envoy with the filter, run by a test: its own folder, its own loopback ports, its own
//! configuration, ended by its own process id.
//!
//! A test gives the plugin's configuration, and where it wants more than the one listener with a
//! few routes that [`Setup`] makes, whole pieces of Envoy's. The process is a child of a thread
//! that lives as long as the tests', and dies with it. A VM that failed, or an assertion of
//! Envoy's, is in its log: [`Envoy::drop`] looks for them.
//!
//! `TOLLGATE_ENVOY` and `TOLLGATE_FILTER` name the binary and the module; without them those of
//! `.ci/envoy` and `make filter` are used.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nginx::{Conn, Response};
use crate::redis::spawn_with_this_process;

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an Envoy is started with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Worker threads.
    pub concurrency: u32,
    /// The plugin's configuration, as its text.
    pub plugin: String,
    /// Routes of the listener; by default all are answered with 200, `/orders/…` by the name
    /// `orders`, `/meta/…` with metadata.
    pub routes: Value,
    /// Further listeners, clusters and bootstrap extensions.
    pub listeners: Vec<Value>,
    /// Clusters.
    pub clusters: Vec<Value>,
    /// Bootstrap extensions.
    pub extensions: Vec<Value>,
    /// Does the listener come from a file that Envoy watches, so that it may
    /// be [updated](Envoy::update)?
    pub watched: bool,
    /// Variables of Envoy's environment, which the filter's VM is handed.
    pub environment: Vec<(String, String)>,
    /// A whole configuration in place of all of this, as YAML.
    pub whole: Option<String>,
    /// A file of listeners that it names, and its text.
    pub lds: Option<(PathBuf, String)>,
    /// May another process take over ([`Envoy::hot_restart`])?
    pub restartable: bool,
    /// Does the log tell each call between Envoy and its VMs?
    pub traced: bool,
}

/// The ports that stand in a [whole](Setup::whole) configuration, and in its
/// [listeners](Setup::lds), for those that Envoy is given: of
/// the listener, and of the admin interface.
pub const STAND_INS: [u16; 2] = [65_001, 65_002];

impl Setup {
    /// One worker with this plugin configuration.
    #[must_use]
    pub fn new(plugin: &str) -> Setup {
        let ok = json!({ "status": 200, "body": { "inline_string": "ok" } });
        Setup {
            concurrency: 1,
            plugin: plugin.to_owned(),
            routes: json!([
                { "name": "orders", "match": { "prefix": "/orders" }, "direct_response": ok },
                { "name": "unused", "match": { "prefix": "/meta" }, "direct_response": ok,
                  "metadata": { "filter_metadata": { "tollgate": { "route": "from-metadata" } } } },
                { "match": { "prefix": "/" }, "direct_response": ok },
            ]),
            listeners: Vec::new(),
            clusters: Vec::new(),
            extensions: Vec::new(),
            watched: false,
            environment: Vec::new(),
            whole: None,
            lds: None,
            restartable: false,
            traced: false,
        }
    }

    /// The same with the bridge to the Redis of this port: the cluster `tollgate_bridge`, for the
    /// plugin to name. Behind it is tcp_proxy.
    #[must_use]
    pub fn redis(self, port: u16) -> Setup {
        self.redis_in(redis_at(port))
    }

    /// As [`redis`](Self::redis), by a cluster `redis` of any kind.
    #[must_use]
    pub fn redis_in(self, cluster: Value) -> Setup {
        self.bridged(
            cluster,
            &json!({
                "name": "envoy.filters.network.tcp_proxy",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": "tollgate_redis",
                    "cluster": "redis",
                    "idle_timeout": "0s",
                },
            }),
        )
    }

    /// As [`redis_in`](Self::redis_in), behind redis_proxy, which waits so many milliseconds.
    #[must_use]
    pub fn redis_proxy(self, cluster: Value, op_timeout: u32) -> Setup {
        self.bridged(
            cluster,
            &json!({
            "name": "envoy.filters.network.redis_proxy",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy",
                "stat_prefix": "tollgate_redis",
                "settings": { "op_timeout": format!("{}s", f64::from(op_timeout) / 1000.0) },
                "prefix_routes": { "catch_all_route": { "cluster": "redis" } },
            },
            }),
        )
    }

    fn bridged(mut self, cluster: Value, proxy: &Value) -> Setup {
        let bridge = network_wasm("tollgate_bridge", "front", r#"{ "role": "bridge" }"#);
        self.extensions.push(internal_listeners());
        self.listeners.push(internal("tollgate_bridge", &json!([bridge, proxy])));
        self.clusters.extend([by_tcp(to("tollgate_bridge")), cluster]);
        self
    }

    /// The same with a way to the Redis of this port by POSTs: the cluster `redis`.
    #[must_use]
    pub fn redis_by_post(self, port: u16) -> Setup {
        self.redis_cluster_by_post(redis_at(port))
    }

    /// As [`redis_by_post`](Self::redis_by_post), by a cluster `redis` of any kind.
    #[must_use]
    pub fn redis_cluster_by_post(mut self, cluster: Value) -> Setup {
        let mut cluster = by_tcp(cluster);
        // A connection that ends a call takes no other.
        cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": { "max_requests_per_connection": 1 },
                "explicit_http_config": { "http_protocol_options": {} },
            },
        });
        self.clusters.push(cluster);
        self
    }

    /// The same with these variables in the environments of Envoy and of the filter's VM.
    #[must_use]
    pub fn environment(mut self, variables: &[(&str, &str)]) -> Setup {
        self.environment = variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        self
    }

    /// The same with so many workers.
    #[must_use]
    pub fn concurrency(mut self, workers: u32) -> Setup {
        self.concurrency = workers;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(self) -> Envoy {
        let mut failed = String::new();
        // Another test may take a port between our look and Envoy's bind: try others then.
        for _ in 0..5 {
            let mut envoy = self.launch();
            if envoy.comes_up() {
                return envoy;
            }
            failed = envoy.log();
            envoy.failure_expected = true;
            if !failed.contains("Address already in use") {
                break;
            }
        }
        panic!("Envoy did not start: {failed}");
    }

    /// What its log says when it refuses to start.
    ///
    /// # Panics
    /// When it starts.
    #[must_use]
    pub fn refused(self) -> String {
        let mut envoy = self.launch();
        envoy.failure_expected = true;
        assert!(!envoy.comes_up(), "Envoy takes {}", self.plugin);
        envoy.log()
    }

    fn launch(&self) -> Envoy {
        self.launch_at(fresh_dir(), free_ports(), None)
    }

    /// Takes over from the Envoy with this base id; else is the first of its kind.
    fn launch_at(&self, dir: PathBuf, [port, admin]: [u16; 2], follows: Option<u32>) -> Envoy {
        let base_id = follows.unwrap_or_else(fresh_base_id);
        let file = dir.join(if self.whole.is_some() { "envoy.yaml" } else { "envoy.json" });
        let with_ports = |yaml: &str| {
            let [front, back] = STAND_INS.map(|port| port.to_string());
            yaml.replace(&front, &port.to_string()).replace(&back, &admin.to_string())
        };
        if let Some((file, yaml)) = &self.lds {
            fs::write(file, with_ports(yaml)).unwrap();
        }
        let text = match &self.whole {
            Some(yaml) => with_ports(yaml),
            None => self.document(&dir, port, admin).to_string(),
        };
        fs::write(&file, text).unwrap();
        let mut command = Command::new(binary());
        command
            .arg("--config-path")
            .arg(&file)
            .arg("--concurrency")
            .arg(self.concurrency.to_string())
            .args([
                "--log-level",
                "warning",
                "--component-log-level",
                if self.traced { "wasm:trace,main:info" } else { "wasm:info,main:info" },
                "--drain-time-s",
                "1",
            ])
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("log")).unwrap());
        if self.restartable {
            command.arg("--base-id").arg(base_id.to_string());
            command.args(["--restart-epoch", if follows.is_some() { "1" } else { "0" }]);
            command.args(["--parent-shutdown-time-s", "3"]);
        } else {
            command.arg("--disable-hot-restart");
        }
        let child = spawn_with_this_process(command);
        let child = child.unwrap_or_else(|error| panic!("cannot run {}: {error}", binary().display()));
        Envoy {
            child,
            dir,
            port,
            admin,
            base_id,
            is_replaced: false,
            failure_expected: false,
            setup: self.clone(),
        }
    }

    fn document(&self, dir: &Path, port: u16, admin: u16) -> Value {
        let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": admin } });
        let mut listeners = self.listeners.clone();
        let mut document = json!({
            "node": { "id": "test", "cluster": "test" },
            "admin": { "address": address },
            "bootstrap_extensions": self.extensions,
        });
        if self.watched {
            write_watched(dir, &self.listener(port, &self.plugin));
            let source = json!({ "path_config_source": { "path": dir.join("lds.json") }, "resource_api_version": "V3" });
            document["dynamic_resources"] = json!({ "lds_config": source });
        } else {
            listeners.insert(0, self.listener(port, &self.plugin));
        }
        document["static_resources"] = json!({ "listeners": listeners, "clusters": self.clusters });
        document
    }

    fn listener(&self, port: u16, plugin: &str) -> Value {
        let names: Vec<&String> = self.environment.iter().map(|(name, _)| name).collect();
        let mut tollgate = wasm("tollgate", "front", plugin);
        tollgate["typed_config"]["config"]["vm_config"]["environment_variables"] =
            json!({ "host_env_keys": names });
        json!({
            "name": "front",
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
            "filter_chains": [ { "filters": [ {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": "front",
                    "use_remote_address": true,
                    "skip_xff_append": true,
                    "max_request_headers_kb": 8192,
                    "route_config": { "virtual_hosts": [ { "name": "all", "domains": ["*"], "routes": self.routes } ] },
                    "http_filters": [ tollgate, router() ],
                },
            } ] } ],
        })
    }
}

/// A cluster `redis` of the server at this port of 127.0.0.1.
#[must_use]
pub fn redis_at(port: u16) -> Value {
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let endpoints = json!([ { "lb_endpoints": [ { "endpoint": { "address": address } } ] } ]);
    json!({
        "name": "redis",
        "type": "STATIC",
        "connect_timeout": "0.1s",
        "load_assignment": { "cluster_name": "redis", "endpoints": endpoints },
    })
}

fn internal_listeners() -> Value {
    json!({
        "name": "envoy.bootstrap.internal_listener",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener" },
    })
}

/// An internal listener with these filters.
fn internal(name: &str, filters: &Value) -> Value {
    json!({ "name": name, "internal_listener": {}, "drain_type": "MODIFY_ONLY", "filter_chains": [ { "filters": filters } ] })
}

/// A cluster that leads to the internal listener of its name.
fn to(name: &str) -> Value {
    let address = json!({ "envoy_internal_address": { "server_listener_name": name } });
    json!({
        "name": name,
        "connect_timeout": "0.1s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [ { "lb_endpoints": [ { "endpoint": { "address": address } } ] } ],
        },
    })
}

/// The cluster as one to which bodies go as they are, over a TCP connection each.
fn by_tcp(mut cluster: Value) -> Value {
    cluster["upstream_config"] = json!({
        "name": "envoy.filters.connection_pools.http.tcp",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.upstreams.http.tcp.v3.TcpConnectionPoolProto" },
    });
    cluster
}

/// The file that a watched listener comes from, replaced at one instant.
fn write_watched(dir: &Path, listener: &Value) {
    let mut listener = listener.clone();
    listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
    let text = json!({ "resources": [listener] }).to_string();
    fs::write(dir.join("lds.new"), text).unwrap();
    fs::rename(dir.join("lds.new"), dir.join("lds.json")).unwrap();
}

/// The filter in a chain of HTTP filters.
#[must_use]
pub fn wasm(root: &str, vm: &str, plugin: &str) -> Value {
    plugin_of("http", root, vm, plugin)
}

/// The filter in a chain of network filters.
#[must_use]
pub fn network_wasm(root: &str, vm: &str, plugin: &str) -> Value {
    plugin_of("network", root, vm, plugin)
}

fn plugin_of(kind: &str, root: &str, vm: &str, plugin: &str) -> Value {
    json!({
        "name": format!("envoy.filters.{kind}.wasm"),
        "typed_config": {
            "@type": format!("type.googleapis.com/envoy.extensions.filters.{kind}.wasm.v3.Wasm"),
            "config": {
                "name": root,
                "root_id": root,
                "configuration": { "@type": "type.googleapis.com/google.protobuf.StringValue", "value": plugin },
                "vm_config": {
                    "vm_id": vm,
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": { "local": { "filename": module() } },
                },
            },
        },
    })
}

/// The end of a chain of HTTP filters.
#[must_use]
pub fn router() -> Value {
    json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    })
}

/// A running Envoy; dropping it ends it and looks into its log.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    dir: PathBuf,
    port: u16,
    admin: u16,
    base_id: u32,
    is_replaced: bool,
    failure_expected: bool,
    setup: Setup,
}

impl Envoy {
    /// The listener's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGSTOP: it stands still, with all that is under way.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// SIGCONT: goes on after [`stop`](Self::stop).
    pub fn cont(&self) {
        self.signal(libc::SIGCONT);
    }

    /// A connection to the listener.
    #[must_use]
    pub fn connect(&self) -> Conn {
        Conn::open(self.port)
    }

    /// One GET on a connection of its own.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut conn = self.connect();
        conn.request("GET", path, headers);
        conn.response_to("GET").expect("an answer")
    }

    /// Gives a [watched](Setup::watched) listener another configuration of the plugin.
    pub fn update(&self, plugin: &str) {
        write_watched(&self.dir, &self.setup.listener(self.port, plugin));
    }

    /// Starts another one that takes over its sockets, with this configuration of the plugin; this
    /// one drains, and ends after 3 s. The setup must be [restartable](Setup::restartable).
    ///
    /// # Panics
    /// When the other one does not come up.
    #[must_use]
    pub fn hot_restart(&mut self, plugin: &str) -> Envoy {
        assert!(self.setup.restartable);
        self.is_replaced = true;
        let mut setup = self.setup.clone();
        plugin.clone_into(&mut setup.plugin);
        let mut next = setup.launch_at(fresh_dir(), [self.port, self.admin], Some(self.base_id));
        let end = Instant::now() + PATIENCE;
        // The admin interface is the old one's until the new one takes it.
        while !next.log().contains("starting main dispatch loop") {
            assert!(next.child.try_wait().unwrap().is_none() && Instant::now() < end, "{}", next.log());
            thread::sleep(Duration::from_millis(20));
        }
        next
    }

    /// Has it ended?
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().ok().flatten().is_some()
    }

    /// Tells the admin interface to do something.
    ///
    /// # Panics
    /// When it does not.
    pub fn tell(&self, path: &str) {
        let mut conn = Conn::open(self.admin);
        conn.request("POST", path, &[("content-length", "0"), ("connection", "close")]);
        let answer = conn.response_to("POST").expect("an answer");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }

    /// A page of the admin interface.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn admin(&self, path: &str) -> String {
        let mut conn = Conn::open(self.admin);
        conn.request("GET", path, &[("connection", "close")]);
        conn.response_to("GET").expect("an answer").text()
    }

    /// What it wrote.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join("log")).unwrap_or_default()).into_owned()
    }

    /// Its resident memory, in KiB.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a process");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line of its memory");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.pid()).expect("a process id");
        // SAFETY: a signal to a child that has not been waited for, so the number is still its own.
        unsafe { libc::kill(pid, signal) };
    }

    /// Waits until it is ready; false when it ends instead.
    fn comes_up(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if let Some(mut conn) = Conn::try_open(self.admin) {
                conn.request("GET", "/ready", &[]);
                let is_ready = conn.response_to("GET").is_some_and(|answer| answer.status == 200);
                if is_ready && Conn::try_open(self.port).is_some() {
                    return true;
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let has_ended = self.child.try_wait().ok().flatten().is_some();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        if thread::panicking() {
            // Without what Envoy is built of.
            for line in log.lines().filter(|line| !line.contains("] [source/server/server.cc:")) {
                eprintln!("{line}");
            }
        } else if !self.failure_expected {
            assert!(!has_ended || self.is_replaced, "Envoy ended by itself: {log}");
            for word in ["Function: proxy_on", "VM failed", "Uncaught", "assert failure", "panicked"] {
                let is_trouble = |line: &str| line.contains(word) && !line.contains("Failed to configure"); // refused, as it says
                assert!(!log.lines().any(is_trouble), "{word}: {log}");
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn binary() -> PathBuf {
    if let Some(binary) = std::env::var_os("TOLLGATE_ENVOY") {
        return binary.into();
    }
    let output = Command::new(root().join(".ci/envoy")).output().expect(".ci/envoy runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().into()
}

/// The module's file.
///
/// # Panics
/// When it was never built.
#[must_use]
pub fn module() -> PathBuf {
    let module = std::env::var_os("TOLLGATE_FILTER")
        .map_or_else(|| root().join("target/tollgate_filter.wasm"), PathBuf::from);
    assert!(module.exists(), "{} is not there: make filter", module.display());
    module
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace")
}

fn fresh_dir() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("tollgate-envoy-{}-{number}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Envoys of one base id are one that is restarted.
fn fresh_base_id() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    std::process::id() % 1_000_000 * 100 + NUMBER.fetch_add(1, Ordering::Relaxed) % 100
}

fn free_ports() -> [u16; 2] {
    // All are held while we look, so that they differ.
    let held: [TcpListener; 2] = std::array::from_fn(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    held.map(|listener| listener.local_addr().unwrap().port())
}
