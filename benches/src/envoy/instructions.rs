//! What a request costs Envoy in instructions, by callgrind: the same number
//! whatever else the machine does. Those of the kernel are not among them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::server::{Contender, Server};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench\r\nX-User: tenant-0000000000000001\r\n\r\n";
/// What the route answers ends so.
const END: &[u8] = b"\r\n\r\nok";

/// Instructions of one of so many requests, over one connection; `None`, with
/// a word on standard error, where valgrind is missing.
pub(super) fn instructions(contender: Contender<'_>, requests: u32) -> Option<f64> {
    let installed = Command::new("callgrind_control").arg("--version").stdout(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        eprintln!("no instructions of Envoy: valgrind is missing; Debian: apt install valgrind");
        return None;
    }
    let server = Server::under_callgrind(contender);
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).ok()?;
    client.set_nodelay(true).ok()?;
    ask(&mut client, 200)?; // workers' leases and caches
    tell(&server, &["-i", "on"])?;
    ask(&mut client, 100)?;
    tell(&server, &["-z"])?;
    ask(&mut client, requests)?;
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

fn ask(client: &mut TcpStream, requests: u32) -> Option<()> {
    let mut bytes = [0; 4096];
    for _ in 0..requests {
        client.write_all(REQUEST).ok()?;
        let mut answer = Vec::new();
        while !answer.ends_with(END) {
            let count = client.read(&mut bytes).ok().filter(|count| *count > 0)?;
            answer.extend_from_slice(bytes.get(..count)?);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    Some(())
}

fn tell(server: &Server, what: &[&str]) -> Option<()> {
    let told = Command::new("callgrind_control").args(what).arg(server.id().to_string()).output().ok()?;
    if !told.status.success() {
        eprintln!("no instructions of Envoy: {}", String::from_utf8_lossy(&told.stderr));
        return None;
    }
    Some(())
}
