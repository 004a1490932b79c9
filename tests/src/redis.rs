//! A real Redis, run by a test: its own folder, its own loopback port and unix socket, nothing on
//! disk, ended by its own process id.
//!
//! Every server is a child of one thread that lives as long as the process, and dies with it
//! (`PR_SET_PDEATHSIG` follows the *thread* that forked): neither a test that panics nor one that
//! is killed leaves a server behind. `TOLLGATE_REDIS` names another binary than `redis-server`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running Redis; dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    dir: PathBuf,
    options: Vec<String>,
}

impl Server {
    /// Starts an empty server with these options on top, as on its command line:
    /// `&["--maxmemory", "2mb"]`; it answers when this returns.
    ///
    /// # Panics
    /// When none comes up.
    #[must_use]
    pub fn start(options: &[&str]) -> Server {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let dir = fresh_dir();
        let mut failed = String::new();
        // Another test may take the port between our look and the bind: try another then.
        for _ in 0..5 {
            let port = free_port();
            let mut child = launch(port, &dir, &options);
            if answers(&dir, &mut child) {
                return Server { child, port, dir, options };
            }
            let _ = child.kill();
            let _ = child.wait();
            failed = fs::read_to_string(dir.join("log")).unwrap_or_default();
            if !failed.contains("Address already in use") {
                break;
            }
        }
        let _ = fs::remove_dir_all(&dir);
        panic!("{} did not start: {failed}", binary().display());
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket(&self.dir)
    }

    /// A new connection, by the unix socket.
    ///
    /// # Panics
    /// When there is none to be had.
    #[must_use]
    pub fn connection(&self) -> redis::Connection {
        connect(&self.dir).expect("a connection to the test's own Redis")
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGSTOP: connections stay open, and nothing answers.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// SIGCONT: goes on after [`stop`](Self::stop).
    pub fn cont(&self) {
        self.signal(libc::SIGCONT);
    }

    /// SIGKILL: gone, and with it all it held.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn kill(&mut self) {
        let _ = self.child.kill(); // it may be gone already
        self.child.wait().expect("a child");
    }

    /// Starts again, empty, on the same port; kills it first if it runs.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restart(&mut self) {
        self.kill();
        let _ = fs::remove_file(self.socket());
        let end = Instant::now() + PATIENCE;
        loop {
            self.child = launch(self.port, &self.dir, &self.options);
            if answers(&self.dir, &mut self.child) {
                return;
            }
            self.kill();
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "Redis did not start again: {log}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What INFO says of this field of this section: `info("stats", "expired_keys")`.
    ///
    /// # Panics
    /// When it does not say it.
    #[must_use]
    pub fn info(&self, section: &str, field: &str) -> String {
        let text: String =
            redis::cmd("INFO").arg(section).query(&mut self.connection()).expect("INFO answers");
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO {section} has no {field}: {text}")).to_owned()
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.pid()).expect("a process id");
        // SAFETY: a signal to a child that has not been waited for, so the number is still its own.
        unsafe { libc::kill(pid, signal) };
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // a stopped process dies of it, too
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn binary() -> PathBuf {
    std::env::var_os("TOLLGATE_REDIS").unwrap_or_else(|| OsString::from("redis-server")).into()
}

fn launch(port: u16, dir: &Path, options: &[String]) -> Child {
    let mut command = Command::new(binary());
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "notice"])
        .arg("--dir")
        .arg(dir)
        .arg("--unixsocket")
        .arg(socket(dir))
        .arg("--logfile")
        .arg(dir.join("log"))
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    spawn_with_this_process(command).unwrap_or_else(|error| panic!("{}: {error}", binary().display()))
}

/// Starts a process that ends when this one does, however this one ends.
///
/// # Errors
/// It cannot be started.
pub fn spawn_with_this_process(mut command: Command) -> io::Result<Child> {
    // SAFETY: prctl with these arguments only sets a number of the new process; it is
    // async-signal-safe as every plain system call.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    spawn(command)
}

type Order = (Command, Sender<io::Result<Child>>);

/// Forks from the thread that lives as long as the process.
fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, queue) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in queue {
                let _ = answer.send(command.spawn()); // whoever asked has died
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = channel();
    let sent = orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner).send((command, answer));
    sent.map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}

/// Does it come to answer PING?
fn answers(dir: &Path, child: &mut Child) -> bool {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
        // Nobody else listens on that socket. A server that asks for a password answers as well.
        let pong = connect(dir).and_then(|mut connection| {
            redis::cmd("PING").query::<String>(&mut connection).or_else(|error| match error.code() {
                Some("NOAUTH") => Ok(String::new()),
                _ => Err(error),
            })
        });
        match pong {
            Ok(_) => return true,
            Err(error) if error.code() == Some("NOAUTH") => return true,
            Err(_) => thread::sleep(Duration::from_millis(3)),
        }
    }
    false
}

fn connect(dir: &Path) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(format!("unix://{}", socket(dir).display()))?.get_connection()
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a loopback port");
    listener.local_addr().expect("its address").port()
}

fn fresh_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("tollgate-redis-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a folder for a test");
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_starts_stops_goes_on_and_comes_back_empty() {
        let mut server = Server::start(&["--maxmemory", "50mb"]);
        assert_eq!(server.info("memory", "maxmemory"), "52428800");
        let mut connection = server.connection();
        let () = redis::cmd("SET").arg("a").arg("b").query(&mut connection).unwrap();
        server.stop();
        server.cont();
        let port = server.port();
        server.restart();
        assert_eq!(server.port(), port);
        let gone: Option<String> = redis::cmd("GET").arg("a").query(&mut server.connection()).unwrap();
        assert_eq!(gone, None);
    }

    #[test]
    fn a_server_outlives_the_thread_that_asked_for_it() {
        let server = thread::spawn(|| Server::start(&[])).join().unwrap();
        thread::sleep(Duration::from_millis(20));
        let pong: String = redis::cmd("PING").query(&mut server.connection()).unwrap();
        assert_eq!(pong, "PONG");
    }
}
