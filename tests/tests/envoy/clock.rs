//! A machine's clock of the day that is set back, or forward, under a running Envoy.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::redis::Server;

use super::support::{by_user, connected_by_post, in_post, in_redis, statistic};

/// A clock of the day that a test sets, in a folder of its own.
struct Clock {
    dir: PathBuf,
    file: File,
}

impl Clock {
    fn new() -> Clock {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tollgate-clock-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a folder");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("c/clock_step.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        let status = compiler.arg(dir.join("clock_step.so")).arg(source).status();
        assert!(status.expect("cc runs").success());
        let clock = Clock { file: File::create(dir.join("step")).expect("a file"), dir };
        clock.set(0);
        clock
    }

    /// So many seconds from the machine's.
    fn set(&self, seconds: i64) {
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).expect("a write");
    }

    fn start(&self, setup: Setup) -> Envoy {
        let [library, step] = ["clock_step.so", "step"].map(|name| self.dir.join(name).display().to_string());
        setup.environment(&[("LD_PRELOAD", &library), ("CLOCK_STEP_FILE", &step)]).start()
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// As long as a request may wait for Redis, whatever the clock of the day says.
#[test]
fn a_clock_that_is_set_back_keeps_no_request_waiting() {
    let limit = r#"{ "rate": "1000/s" }"#;
    let more = r#", "on_store_error": "deny", "timeout": "100ms""#;
    let ways: [(&str, fn(Setup, u16) -> Setup, fn(&Envoy, u64)); 2] = [
        (
            &in_redis(limit, more, ""),
            |setup, port| setup.redis(port),
            |envoy, workers| statistic(envoy, "tollgate_store_connected", workers),
        ),
        (&in_post(limit, more, ""), Setup::redis_by_post, connected_by_post),
    ];
    for (plugin, way, connected) in ways {
        let (server, clock) = (Server::start(&[]), Clock::new());
        let envoy = clock.start(way(Setup::new(plugin), server.port()));
        connected(&envoy, 1);
        assert_eq!(envoy.get("/", &[("x-user", "a")]).status, 200);
        server.stop();
        clock.set(-3_600);
        let began = Instant::now();
        let status = envoy.get("/", &[("x-user", "b")]).status;
        let waited = began.elapsed();
        server.cont();
        println!("an hour back: {status} after {waited:?}");
        // 100 ms; the rest is for a busy machine. By a clock that stands it were an hour.
        assert!(status == 503 && waited < Duration::from_millis(900), "{status} after {waited:?}");
    }
}

#[test]
fn a_bucket_goes_on_filling_when_the_clock_is_set_back() {
    let clock = Clock::new();
    let envoy = clock.start(Setup::new(&by_user(r#"{ "rate": "2/s" }"#)).concurrency(2));
    let admitted = || (0..10).filter(|_| envoy.get("/", &[("x-user", "a")]).status == 200).count();
    assert!(admitted() >= 2);
    clock.set(-3_600);
    thread::sleep(Duration::from_millis(2_000)); // the bucket is full again
    assert!((2..=6).contains(&admitted()));
}

#[test]
fn a_clock_that_is_set_forward_is_followed() {
    let clock = Clock::new();
    let plugin = by_user(r#"{ "algorithm": "fixed_window", "rate": "5/30d" }"#);
    let envoy = clock.start(Setup::new(&plugin).concurrency(2));
    let admitted = || (0..10).filter(|_| envoy.get("/", &[("x-user", "a")]).status == 200).count();
    assert_eq!(admitted(), 5);
    clock.set(31 * 86_400);
    thread::sleep(Duration::from_millis(500)); // it is looked at ten times a second
    assert_eq!((admitted(), admitted()), (5, 0));
}
