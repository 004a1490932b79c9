//! Requests on one connection, and `wrk`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// A connection that is kept.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
}

/// Requests that are on their way at once.
const PIPELINED: usize = 32;

impl Client {
    pub(super) fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("a socket option");
        Client { stream: BufReader::new(stream) }
    }

    /// The status of one request.
    pub(super) fn get(&mut self, path: &str, key: &str) -> u16 {
        self.send(&request(path, key));
        self.response().0
    }

    /// The body of a page.
    pub(super) fn page(&mut self, path: &str) -> Vec<u8> {
        self.send(&request(path, ""));
        self.response().1
    }

    /// How many of these keys are admitted; all others must be refused.
    pub(super) fn admitted(&mut self, path: &str, keys: impl Iterator<Item = String>) -> usize {
        let keys: Vec<String> = keys.collect();
        let mut admitted = 0;
        for keys in keys.chunks(PIPELINED) {
            let requests: String = keys.iter().map(|key| request(path, key)).collect();
            self.send(&requests);
            for _ in keys {
                match self.response().0 {
                    200 => admitted += 1,
                    429 | 503 => {}
                    other => panic!("{path}: status {other}"),
                }
            }
        }
        admitted
    }

    fn send(&mut self, requests: &str) {
        self.stream.get_mut().write_all(requests.as_bytes()).expect("a request is sent");
    }

    fn response(&mut self) -> (u16, Vec<u8>) {
        let mut line = String::new();
        let mut next = |stream: &mut BufReader<TcpStream>| {
            line.clear();
            stream.read_line(&mut line).expect("a response");
            line.trim_end().to_ascii_lowercase()
        };
        let first = next(&mut self.stream);
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut length = 0;
        let mut chunked = false;
        loop {
            let field = next(&mut self.stream);
            if field.is_empty() {
                break;
            }
            chunked |= field == "transfer-encoding: chunked";
            if let Some(value) = field.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = Vec::new();
        loop {
            if chunked {
                length = usize::from_str_radix(&next(&mut self.stream), 16).expect("a chunk");
            }
            let start = body.len();
            body.resize(start + length, 0);
            self.stream.read_exact(&mut body[start..]).expect("a body");
            if !chunked {
                return (status, body);
            }
            next(&mut self.stream);
            if length == 0 {
                return (status, body);
            }
        }
    }
}

fn request(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: bench\r\nX-Api-Key: {key}\r\n\r\n")
}

/// What `wrk` saw in one round.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) per_second: f64,
}

impl Load {
    /// One second of 16 connections. One worker has the first processor to
    /// itself; two share both with `wrk`. Nothing, with a word on standard
    /// error, where `wrk` is missing.
    pub(super) fn run(port: u16, path: &str, workers: usize) -> Option<Load> {
        let processors = if workers == 1 { "1" } else { "0,1" };
        let output = Command::new("taskset")
            .args([
                "-c",
                processors,
                "wrk",
                "-t1",
                "-c16",
                "-d1s",
                "-H",
                "X-Api-Key: tenant-0000000000000001",
            ])
            .arg(format!("http://127.0.0.1:{port}{path}"))
            .output();
        let output = match output {
            Ok(output) if output.status.success() => output,
            other => {
                eprintln!("no requests a second: wrk: {other:?}");
                return None;
            }
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("Socket errors"), "wrk: {text}");
        let number =
            |line: &str, part: usize| line.split_whitespace().nth(part).and_then(|word| word.parse().ok());
        let mut load = Load { requests: 0, refused: 0, per_second: 0.0 };
        for line in text.lines() {
            if line.contains("requests in") {
                load.requests = number(line, 0)?;
            } else if let Some(count) = line.trim().strip_prefix("Non-2xx or 3xx responses:") {
                load.refused = count.trim().parse().ok()?;
            } else if let Some(speed) = line.strip_prefix("Requests/sec:") {
                load.per_second = speed.trim().parse().ok()?;
            }
        }
        Some(load)
    }
}
