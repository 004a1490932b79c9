//! What a request costs Envoy in instructions, by callgrind: the same number
//! whatever else the machine does. Those of the kernel are not among them.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use tollgate_tests::nginx::Conn;

use super::server::{Contender, Server};

/// Instructions of one of so many requests, over one connection; `None`, with
/// a word on standard error, where valgrind is missing.
pub(super) fn instructions(contender: Contender<'_>, requests: u32) -> Option<f64> {
    let installed = Command::new("callgrind_control").arg("--version").stdout(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        eprintln!("no instructions of Envoy: valgrind is missing; Debian: apt install valgrind");
        return None;
    }
    let server = Server::under_callgrind(contender);
    let mut client = Conn::open(server.port);
    ask(&mut client, 200); // workers' leases and caches
    tell(&server, &["-i", "on"])?;
    ask(&mut client, 100);
    tell(&server, &["-z"])?;
    ask(&mut client, requests);
    tell(&server, &["-d"])?;
    for _ in 0..100 {
        if let Some(text) = server.read("counts.1")
            && let Some(total) = text.lines().find_map(|line| line.strip_prefix("totals: "))
        {
            return Some(total.trim().parse::<f64>().ok()? / f64::from(requests));
        }
        thread::sleep(Duration::from_millis(50));
    }
    eprintln!("no instructions of Envoy: callgrind wrote none");
    None
}

fn ask(client: &mut Conn, requests: u32) {
    for _ in 0..requests {
        client.request("GET", "/", &[("X-User", "tenant-0000000000000001")]);
        assert_eq!(client.response_to("GET").map(|answer| answer.status), Some(200));
    }
}

fn tell(server: &Server, what: &[&str]) -> Option<()> {
    let told = Command::new("callgrind_control").args(what).arg(server.id().to_string()).output().ok()?;
    if !told.status.success() {
        eprintln!("no instructions of Envoy: {}", String::from_utf8_lossy(&told.stderr));
        return None;
    }
    Some(())
}
