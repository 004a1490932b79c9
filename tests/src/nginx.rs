//! A real NGINX with the module, run by a test: its own folder, its own loopback ports, its own
//! configuration, stopped by its own process id.
//!
//! A test writes what stands inside `http {}`. `@port@`, `@port2@` … `@port4@` are free loopback
//! ports, `@dir@` is the folder, `@h2@` a `listen` for HTTP/2 on `@port4@` in the spelling of the
//! NGINX at hand. When the server stops, an alert in its log, a crashed worker or a report of
//! AddressSanitizer fails the test.
//!
//! `TOLLGATE_NGINX` and `TOLLGATE_NGINX_MODULE` name the binary and the module; without them
//! those that `ffi/nginx/build.sh current` has built are used.

mod client;

pub use client::{Conn, Response, request};

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many ports a configuration can name.
const PORTS: usize = 5;

/// A running NGINX; dropping it stops it and checks its logs.
#[derive(Debug)]
pub struct Nginx {
    /// The master, or nothing when it has left us as a daemon.
    child: Option<Child>,
    pid: u32,
    dir: PathBuf,
    ports: [u16; PORTS],
    generation: u32,
    workers: u32,
    alerts_expected: bool,
}

impl Nginx {
    /// Starts one worker with this `http {}` content.
    #[must_use]
    pub fn start(http: &str) -> Self {
        Self::start_with(1, http)
    }

    /// Starts several workers.
    #[must_use]
    pub fn start_with(workers: u32, http: &str) -> Self {
        Self::launch(workers, http, false)
    }

    /// Starts one worker of a master that is a daemon, as a service's is: only such a master takes
    /// part in an upgrade of the binary.
    #[must_use]
    pub fn start_daemon(http: &str) -> Self {
        Self::launch(1, http, true)
    }

    fn launch(workers: u32, http: &str, daemon: bool) -> Self {
        raise_open_files();
        let mut failed = String::new();
        // Another test may take a port between our look and NGINX's bind: try others then.
        for _ in 0..5 {
            let dir = fresh_dir();
            let ports = free_ports();
            fs::write(conf(&dir), configuration(http, workers, &dir, &ports, 0)).unwrap();
            let mut command = command(&dir);
            if daemon {
                command.arg("-g").arg("daemon on;");
            } else {
                command.arg("-g").arg("daemon off;");
            }
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(fs::File::create(dir.join("stderr.log")).unwrap())
                .spawn()
                .unwrap_or_else(|e| panic!("cannot run {}: {e}", binary().display()));
            let mut pid = child.id();
            if daemon {
                // The parent ends at once; the master writes its number a moment later.
                let _ = child.wait();
                let end = Instant::now() + Duration::from_secs(5);
                pid = 0;
                while pid == 0 && Instant::now() < end {
                    pid = read(&dir.join("nginx.pid")).trim().parse().unwrap_or(0);
                    thread::sleep(Duration::from_millis(5));
                }
            }
            let child = (!daemon).then_some(child);
            let mut nginx = Self { child, pid, dir, ports, generation: 0, workers, alerts_expected: false };
            if nginx.wait_for_generation() {
                return nginx;
            }
            failed = nginx.error_log() + &read(&nginx.dir.join("stderr.log"));
            nginx.alerts_expected = true;
            if !failed.contains("Address already in use") {
                break;
            }
        }
        panic!("NGINX did not start: {failed}");
    }

    /// What `nginx -t` says about this `http {}` content: accepted or not, and its words.
    #[must_use]
    pub fn test(http: &str) -> (bool, String) {
        let dir = fresh_dir();
        fs::write(conf(&dir), configuration(http, 1, &dir, &free_ports(), 0)).unwrap();
        let Output { status, stderr, .. } = command(&dir).arg("-t").output().unwrap();
        let text = String::from_utf8_lossy(&stderr).into_owned();
        let report = sanitizer_report(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert!(report.is_none(), "{}", report.unwrap());
        (status.success(), text)
    }

    /// What `nginx -t` says beside this running server, with its pid file and its ports.
    #[must_use]
    pub fn test_beside(&self, http: &str) -> (bool, String) {
        let text = configuration(http, self.workers, &self.dir, &self.ports, self.generation);
        let other = self.dir.join("beside.conf");
        fs::write(&other, text).unwrap();
        let Output { status, stderr, .. } = command_with(&self.dir, &other).arg("-t").output().unwrap();
        (status.success(), String::from_utf8_lossy(&stderr).into_owned())
    }

    /// Reloads with new `http {}` content and waits until only new workers accept.
    ///
    /// # Panics
    /// When the new workers do not come up within some seconds.
    pub fn reload(&mut self, http: &str) {
        let leaving = self.error_log().matches("gracefully shutting down").count();
        let old = self.workers as usize;
        self.generation += 1;
        self.write_conf(http);
        self.signal(libc::SIGHUP);
        assert!(self.wait_for_generation(), "no reload: {}", self.error_log());
        self.wait_until("the old workers to leave", |n| {
            n.error_log().matches("gracefully shutting down").count() >= leaving + old
        });
    }

    /// Asks for a reload that NGINX must refuse, and gives back what it logged.
    ///
    /// # Panics
    /// When it takes the configuration, or stops answering.
    #[must_use]
    pub fn reload_refused(&mut self, http: &str) -> String {
        let before = self.error_log().len();
        self.generation += 1;
        self.write_conf(http);
        self.signal(libc::SIGHUP);
        self.wait_until("the refusal", |n| n.error_log()[before..].contains("[emerg]"));
        self.generation -= 1;
        assert!(self.wait_for_generation(), "the old workers are gone");
        self.error_log()[before..].to_owned()
    }

    /// One GET on a connection of its own.
    #[must_use]
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.send("GET", path, headers)
    }

    /// One GET with `X-Api-Key`.
    #[must_use]
    pub fn get_as(&self, key: &str, path: &str) -> Response {
        self.get(path, &[("X-Api-Key", key)])
    }

    /// One request without a body on a connection of its own.
    ///
    /// # Panics
    /// When no answer comes.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut conn = Conn::open(self.port(1));
        conn.request(method, path, headers);
        conn.response_to(method).expect("an answer")
    }

    /// The statuses of `n` GETs with this key, one after another.
    #[must_use]
    pub fn statuses(&self, key: &str, path: &str, n: usize) -> Vec<u16> {
        (0..n).map(|_| self.get_as(key, path).status).collect()
    }

    /// The metrics page at `/metrics` as JSON.
    ///
    /// # Panics
    /// When it is not JSON.
    #[must_use]
    pub fn metrics(&self) -> serde_json::Value {
        let page = self.get("/metrics?format=json", &[]);
        assert_eq!(page.status, 200);
        serde_json::from_slice(&page.body).expect("JSON")
    }

    /// `counters` of the limit of this name, in whatever zone.
    ///
    /// # Panics
    /// When no such limit or counter is shown.
    #[must_use]
    pub fn counter(&self, limit: &str, counter: &str) -> u64 {
        let page = self.metrics();
        page["zones"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|zone| zone["limits"].as_array().unwrap())
            .find(|l| l["name"] == limit)
            .unwrap_or_else(|| panic!("no limit {limit} in {page}"))[counter]
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {counter} in {page}"))
    }

    /// The n-th loopback port of the configuration, from 1.
    #[must_use]
    pub fn port(&self, n: usize) -> u16 {
        self.ports[n]
    }

    /// The folder of this server.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process id of the master.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What stands in the error log.
    #[must_use]
    pub fn error_log(&self) -> String {
        read(&self.dir.join("error.log"))
    }

    /// The lines of the access log, once there are at least `n` of them.
    #[must_use]
    pub fn access_log(&self, n: usize) -> Vec<String> {
        let lines = |s: &Self| -> Vec<String> {
            read(&s.dir.join("access.log")).lines().map(str::to_owned).collect()
        };
        self.wait_until("the access log", |s| lines(s).len() >= n);
        lines(self)
    }

    /// This test kills workers, so alerts about that are no failure.
    pub fn expect_alerts(&mut self) {
        self.alerts_expected = true;
    }

    /// Sends a signal to the master.
    pub fn signal(&self, signal: i32) {
        if self.pid != 0 {
            send_signal(self.pid, signal);
        }
    }

    /// Process ids of the workers that the master has now.
    #[must_use]
    pub fn worker_pids(&self) -> Vec<u32> {
        children(self.pid)
    }

    /// Waits up to some seconds until this holds.
    ///
    /// # Panics
    /// When it does not come to hold.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            assert!(Instant::now() < end, "waited for {what}: {}", self.error_log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Writes the configuration that the next start of NGINX in this folder reads.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write_conf(&self, http: &str) {
        let text = configuration(http, self.workers, &self.dir, &self.ports, self.generation);
        fs::write(conf(&self.dir), text).unwrap();
    }

    /// Does the running configuration answer on its control port?
    fn wait_for_generation(&mut self) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if !self.alive() {
                return false;
            }
            if let Some(mut conn) = Conn::try_open(self.ports[0]) {
                conn.request("GET", "/", &[]);
                if let Some(answer) = conn.response_to("GET")
                    && answer.body == self.generation.to_string().into_bytes()
                {
                    return true;
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn alive(&mut self) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => self.pid != 0 && Path::new(&format!("/proc/{}", self.pid)).exists(),
        }
    }

    fn stop(&mut self) {
        self.signal(libc::SIGTERM);
        let end = Instant::now() + Duration::from_secs(10);
        while self.alive() {
            if Instant::now() > end {
                for worker in self.worker_pids() {
                    send_signal(worker, libc::SIGKILL);
                }
                self.signal(libc::SIGKILL);
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.stop();
        if thread::panicking() {
            eprintln!("{} is kept; its error.log:\n{}", self.dir.display(), self.error_log());
            return;
        }
        let report = sanitizer_report(&self.dir);
        assert!(report.is_none(), "{}", report.unwrap());
        if !self.alerts_expected {
            let log = self.error_log();
            let alert = log.lines().find(|l| l.contains("[alert]") || l.contains("exited on signal"));
            assert!(alert.is_none(), "{}", alert.unwrap());
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The NGINX binary under test.
#[must_use]
pub fn binary() -> PathBuf {
    built("TOLLGATE_NGINX", "nginx")
}

/// The module under test.
#[must_use]
pub fn module() -> PathBuf {
    built("TOLLGATE_NGINX_MODULE", "ngx_http_tollgate_module.so")
}

/// The version of the NGINX under test, as (1, 28).
///
/// # Panics
/// When the binary does not say it.
#[must_use]
pub fn version() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let said = Command::new(binary()).arg("-v").output().expect("nginx -v").stderr;
        let said = String::from_utf8_lossy(&said).into_owned();
        let mut numbers = said.split('/').nth(1).expect("a version").split('.');
        let mut number = || numbers.next().unwrap().trim().parse().unwrap();
        (number(), number())
    })
}

/// Sends a signal to a process that this test started.
pub fn send_signal(pid: u32, signal: i32) {
    // SAFETY: kill() takes two integers; a process that is gone is an error code.
    unsafe { libc::kill(libc::pid_t::try_from(pid).unwrap(), signal) };
}

/// A thousand connections need more open files than the usual 1,024; NGINX inherits the limit.
fn raise_open_files() {
    static RAISED: OnceLock<()> = OnceLock::new();
    RAISED.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both calls take a pointer to a whole rlimit, which lives here.
        unsafe {
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
                limit.rlim_cur = limit.rlim_max.min(65_536).max(limit.rlim_cur);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }
    });
}

fn built(variable: &str, file: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nginx/current").join(file),
        PathBuf::from,
    );
    assert!(
        path.exists(),
        "{} is missing: run `ffi/nginx/build.sh current`, or set {variable}",
        path.display()
    );
    path
}

fn command(dir: &Path) -> Command {
    command_with(dir, &conf(dir))
}

fn command_with(dir: &Path, conf: &Path) -> Command {
    let mut command = Command::new(binary());
    // Each dynamic module repeats a few names of NGINX's own by design, and NGINX leaves its
    // configuration to the end of the process.
    let asan =
        format!("log_path={}/asan:detect_odr_violation=0:detect_leaks=0:abort_on_error=1", dir.display());
    command.arg("-p").arg(dir).arg("-c").arg(conf).arg("-e").arg(dir.join("error.log"));
    command.env("ASAN_OPTIONS", asan);
    command
}

fn conf(dir: &Path) -> PathBuf {
    dir.join("nginx.conf")
}

fn configuration(http: &str, workers: u32, dir: &Path, ports: &[u16; PORTS], generation: u32) -> String {
    let h2 = if version() >= (1, 25) {
        "listen 127.0.0.1:@port4@; http2 on;"
    } else {
        "listen 127.0.0.1:@port4@ http2;"
    };
    let mut text = format!(
        "load_module {module};\n\
         user root;\nenv ASAN_OPTIONS;\nworker_processes {workers};\nworker_shutdown_timeout 10s;\n\
         pid @dir@/nginx.pid;\nerror_log @dir@/error.log info;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
         {access_log}\n\
         client_body_temp_path @dir@/body; proxy_temp_path @dir@/proxy;\n\
         fastcgi_temp_path @dir@/fastcgi; uwsgi_temp_path @dir@/uwsgi; scgi_temp_path @dir@/scgi;\n\
         server {{ listen 127.0.0.1:@port0@; access_log off; return 200 {generation}; }}\n\
         {http}\n}}\n",
        access_log = if http.contains("access_log ") { "" } else { "access_log off;" },
        module = module().canonicalize().unwrap().display(),
    )
    .replace("@h2@", h2)
    .replace("@dir@", &dir.display().to_string())
    .replace("@port@", &ports[1].to_string());
    for (n, port) in ports.iter().enumerate() {
        text = text.replace(&format!("@port{n}@"), &port.to_string());
    }
    text
}

fn fresh_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("tollgate-nginx-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("logs")).unwrap();
    dir
}

fn free_ports() -> [u16; PORTS] {
    // All are held while we look, so that they differ.
    let held: [TcpListener; PORTS] = std::array::from_fn(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    held.map(|l| l.local_addr().unwrap().port())
}

fn children(pid: u32) -> Vec<u32> {
    read(Path::new(&format!("/proc/{pid}/task/{pid}/children")))
        .split_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect()
}

fn sanitizer_report(dir: &Path) -> Option<String> {
    fs::read_dir(dir)
        .ok()?
        .filter_map(Result::ok)
        .filter(|file| file.file_name().to_string_lossy().starts_with("asan"))
        .map(|file| read(&file.path()))
        .find(|text| !text.is_empty())
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
