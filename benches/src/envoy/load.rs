//! `wrk`, on the second processor.

use std::fs;
use std::path::Path;
use std::process::Command;

/// What `wrk` saw in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) requests: f64,
    pub(super) per_second: f64,
    /// Milliseconds that half of the requests took at most.
    pub(super) p50: f64,
}

/// So many seconds over so many connections, all by one user. Nothing, with a
/// word on standard error, where `wrk` is missing.
pub(super) fn load(port: u16, connections: u32, seconds: u32) -> Option<Load> {
    run(port, connections, seconds, &["-H", "X-User: tenant-0000000000000001"])
}

/// As [`load`], each request by another user.
pub(super) fn load_of_all(port: u16, seconds: u32, from: u64) -> Option<Load> {
    let script = std::env::temp_dir().join(format!("tollgate-bench-users-{}.lua", std::process::id()));
    fs::write(&script, lua(from)).ok()?;
    let load = run(port, 32, seconds, &["-s", path(&script)]);
    let _ = fs::remove_file(&script);
    load
}

fn lua(from: u64) -> String {
    format!(
        "local n = {from}\n\
         request = function()\n n = n + 1\n return wrk.format('GET', '/', {{ ['X-User'] = 'user-' .. n }})\nend\n"
    )
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn run(port: u16, connections: u32, seconds: u32, more: &[&str]) -> Option<Load> {
    let output = Command::new("taskset")
        .args(["-c", "1", "wrk", "-t1", "--latency"])
        .arg(format!("-c{connections}"))
        .arg(format!("-d{seconds}s"))
        .args(more)
        .arg(format!("http://127.0.0.1:{port}/"))
        .output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        other => {
            eprintln!("no Envoy rows: wrk: {other:?}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "wrk: {text}");
    let line = |mark: &str| text.lines().find(|line| line.contains(mark));
    let word = |mark: &str, place: usize| line(mark)?.split_whitespace().nth(place);
    Some(Load {
        requests: word("requests in", 0)?.parse().ok()?,
        per_second: word("Requests/sec:", 1)?.parse().ok()?,
        p50: milliseconds(word("50%", 1)?)?,
    })
}

/// As `wrk` writes a time: `1.23ms`, `850.00us`, `1.02s`.
fn milliseconds(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit);
    let scale = match unit {
        "us" => 0.001,
        "ms" => 1.0,
        "s" => 1000.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}
