//! HTTP/1 by hand: a test can send exactly the bytes it means, pipelined, old or hostile, and sees
//! every header field that came back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a test waits for one read.
const PATIENCE: Duration = Duration::from_secs(20);

/// One connection.
#[derive(Debug)]
pub struct Conn {
    stream: BufReader<TcpStream>,
}

/// One answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status line's HTTP version, as `HTTP/1.1`.
    pub version: String,
    /// The status.
    pub status: u16,
    /// Every header field in order, names as sent.
    pub headers: Vec<(String, String)>,
    /// The body, chunks joined.
    pub body: Vec<u8>,
}

impl Conn {
    /// Connects to a loopback port.
    ///
    /// # Panics
    /// When nobody listens.
    #[must_use]
    pub fn open(port: u16) -> Self {
        Self::try_open(port).expect("a listening server")
    }

    /// Connects, or says that nobody listens.
    #[must_use]
    pub fn try_open(port: u16) -> Option<Self> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self { stream: BufReader::new(stream) })
    }

    /// Sends these bytes as they are; a server that has closed already is not an error here.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// Sends a request without a body.
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) {
        self.raw(&request(method, path, headers));
    }

    /// Reads the answer to a request of this method; `None` when the server closed instead.
    #[must_use]
    pub fn response_to(&mut self, method: &str) -> Option<Response> {
        let status_line = self.line()?;
        let mut words = status_line.split(' ');
        let version = words.next()?.to_owned();
        let status = words.next()?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':')?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let mut answer = Response { version, status, headers, body: Vec::new() };
        if method != "HEAD" && status != 204 && status != 304 && status >= 200 {
            answer.body = self.body(&answer)?;
        }
        Some(answer)
    }

    /// Has the server closed this connection, with nothing more to read?
    #[must_use]
    pub fn closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    fn body(&mut self, answer: &Response) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(self.line()?.trim(), 16).ok()?;
                let mut chunk = vec![0; size];
                self.stream.read_exact(&mut chunk).ok()?;
                self.line()?;
                if size == 0 {
                    return Some(body);
                }
                body.extend(chunk);
            }
        }
        if let Some(length) = answer.header("content-length") {
            body.resize(length.parse().ok()?, 0);
            self.stream.read_exact(&mut body).ok()?;
        } else {
            self.stream.read_to_end(&mut body).ok()?;
        }
        Some(body)
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).ok()?;
        let line = line.strip_suffix(b"\r\n")?;
        Some(String::from_utf8_lossy(line).into_owned())
    }
}

impl Response {
    /// The value of a field that is there once; `None` when it is missing.
    ///
    /// # Panics
    /// When it is there more than once.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| &**v);
        let first = found.next();
        assert!(found.next().is_none(), "{name} is there twice: {:?}", self.headers);
        first
    }

    /// The value of a field that must be a number.
    ///
    /// # Panics
    /// When it is missing, there twice, or no number.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.header(name)
            .unwrap_or_else(|| panic!("no {name} in {self:?}"))
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The bytes of a request without a body.
#[must_use]
pub fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}
