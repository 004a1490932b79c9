//! A real Sentinel that watches one master, run by a test; it ends as the [servers](crate::redis) do.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A running Sentinel; dropping it kills it.
#[derive(Debug)]
pub struct Sentinel {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Sentinel {
    /// Watches the master on that port of 127.0.0.1 under the name `main`; it decides alone, and
    /// after 200 ms. It knows so many replicas when this returns.
    ///
    /// # Panics
    /// When it does not come up, or does not find them.
    #[must_use]
    pub fn start(master: u16, replicas: usize) -> Sentinel {
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = port.expect("a loopback port").port();
        let dir = std::env::temp_dir().join(format!("tollgate-sentinel-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder for a test");
        let config = format!(
            "port {port}\nbind 127.0.0.1\ndir {dir}\nlogfile {dir}/log\n\
             sentinel monitor main 127.0.0.1 {master} 1\nsentinel down-after-milliseconds main 200\n\
             sentinel failover-timeout main 1000\n",
            dir = dir.display()
        );
        fs::write(dir.join("sentinel.conf"), config).expect("its own file");
        let binary = std::env::var_os("TOLLGATE_REDIS").unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(binary);
        command.arg(dir.join("sentinel.conf")).arg("--sentinel");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl with these arguments only sets a number of the new process; it is
        // async-signal-safe as every plain system call.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let sentinel = Sentinel { child: command.spawn().expect("a Sentinel"), port, dir };
        let end = Instant::now() + Duration::from_secs(20);
        while sentinel.replicas() != Some(replicas) {
            assert!(Instant::now() < end, "{:?}", fs::read_to_string(sentinel.dir.join("log")));
            thread::sleep(Duration::from_millis(20));
        }
        sentinel
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of the server that it says is the master.
    #[must_use]
    pub fn master(&self) -> Option<u16> {
        self.ask("GET-MASTER-ADDR-BY-NAME").map(|(_, port): (String, u16)| port)
    }

    fn replicas(&self) -> Option<usize> {
        self.ask("REPLICAS").map(|replicas: Vec<redis::Value>| replicas.len())
    }

    fn ask<T: redis::FromRedisValue>(&self, what: &str) -> Option<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).ok()?;
        let mut connection = client.get_connection().ok()?;
        redis::cmd("SENTINEL").arg(what).arg("main").query(&mut connection).ok()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
