//! An NGINX of our own.

use std::env;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::client::Client;

/// A running NGINX. Dropping it stops it.
pub(super) struct Server {
    child: Child,
    folder: PathBuf,
    port: u16,
}

pub(super) fn binary() -> PathBuf {
    env::var_os("TOLLGATE_NGINX").map_or_else(|| "/usr/sbin/nginx".into(), PathBuf::from)
}

fn module() -> PathBuf {
    let default =
        || concat!(env!("CARGO_MANIFEST_DIR"), "/../target/nginx/debian/ngx_http_tollgate_module.so").into();
    env::var_os("TOLLGATE_NGINX_MODULE").map_or_else(default, PathBuf::from)
}

pub(super) fn is_built() -> bool {
    binary().exists() && module().exists()
}

impl Server {
    /// Starts workers, of which each has a processor, with this `http {}` content.
    pub(super) fn start(workers: usize, http: &str) -> Server {
        let global = format!("worker_processes {workers}; worker_cpu_affinity auto;");
        let server = Self::launch(Command::new(binary()), &global, http);
        server.expect("NGINX did not start")
    }

    /// Starts one process, without a master, whose instructions are counted.
    pub(super) fn under_callgrind(http: &str) -> Option<Server> {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(binary());
        Self::launch(command, "master_process off;", http)
    }

    fn launch(mut command: Command, global: &str, http: &str) -> Option<Server> {
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr()).ok()?.port();
        let folder = env::temp_dir().join(format!("tollgate-bench-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).ok()?;
        let module = module().canonicalize().ok()?;
        // SAFETY: a question with no arguments.
        let user = if unsafe { libc::geteuid() } == 0 { "user root;" } else { "" };
        let text = format!(
            "load_module {module};\n{user}\n{global}\ndaemon off;\npid nginx.pid;\nerror_log error.log warn;\n\
             events {{ worker_connections 512; }}\n\
             http {{\naccess_log off; keepalive_requests 1000000000;\n\
             client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp;\n\
             uwsgi_temp_path temp; scgi_temp_path temp;\n{http}\n}}\n",
            module = module.display(),
        );
        let conf = folder.join("nginx.conf");
        fs::write(&conf, text.replace("@port@", &port.to_string())).ok()?;
        let child = command
            .args(["-e", "error.log", "-p"])
            .arg(&folder)
            .arg("-c")
            .arg(&conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("stderr.log")).ok()?)
            .spawn()
            .ok()?;
        let mut server = Server { child, folder, port };
        let end = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > end || !matches!(server.child.try_wait(), Ok(None)) {
                eprintln!("NGINX: {}{}", server.read("stderr.log"), server.read("error.log"));
                return None;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Some(server)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Stops it; the instructions of its whole life.
    pub(super) fn instructions(mut self) -> Option<f64> {
        self.stop();
        let text = self.read("stderr.log");
        let collected = text.lines().find_map(|line| line.split_once("Collected :"));
        if collected.is_none() {
            eprintln!("no instructions of NGINX: {text}");
        }
        collected?.1.trim().parse().ok()
    }

    /// Nanoseconds of processor time that the workers have used.
    pub(super) fn worker_time(&self) -> u64 {
        let master = self.child.id();
        let workers =
            fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
        let time = |worker: &str| {
            let text = fs::read_to_string(format!("/proc/{worker}/schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        workers.split_whitespace().filter_map(time).sum()
    }

    /// A number of our zone's keys on the metrics page.
    pub(super) fn zone_number(&self, client: &mut Client, name: &str) -> u64 {
        let page = client.page("/metrics?format=json");
        let page: serde_json::Value = serde_json::from_slice(&page).expect("metrics in JSON");
        page["zones"][0]["keys"][name].as_u64().expect("a number of the zone")
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    fn stop(&mut self) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: two integers; the process is our child and was not waited for.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let end = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let log = self.read("error.log");
        let alert = log.lines().find(|line| line.contains("[alert]") || line.contains("[emerg]"));
        if let Some(alert) = alert {
            eprintln!("NGINX: {alert}");
        }
        let _ = fs::remove_dir_all(Path::new(&self.folder));
    }
}
