//! What may stand between a client and its Redis: bytes that come late, are cut, or are not
//! Redis's; and an address that leads somewhere else from now on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What becomes of the bytes that the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// They pass.
    Clear,
    /// They come so much later, in order, and as many at a time.
    Late(Duration),
    /// Their first half passes, and the connection ends.
    Cut,
    /// Something else comes in their place.
    Garbage,
}

/// A port of 127.0.0.1 that leads to another one; dropping it ends its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: AtomicU16,
    weather: Mutex<Weather>,
    over: AtomicBool,
}

impl Proxy {
    /// Leads to that port.
    ///
    /// # Panics
    /// When no port is to be had.
    #[must_use]
    pub fn start(to: u16) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port");
        let port = listener.local_addr().expect("its address").port();
        let weather = Mutex::new(Weather::Clear);
        let shared = Arc::new(Shared { to: AtomicU16::new(to), weather, over: AtomicBool::new(false) });
        let of_thread = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if of_thread.over.load(Ordering::Relaxed) {
                    return;
                }
                // A server that is away is one that closes.
                let to = of_thread.to.load(Ordering::Relaxed);
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else { continue };
                connect(&client, &server, &of_thread);
            }
        });
        Proxy { port, shared }
    }

    /// The port that clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on, and for the connections that are there as well.
    ///
    /// # Panics
    /// When one of its threads did.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock().expect("no thread panics with it") = weather;
    }

    /// New connections lead there; those that are there stay.
    pub fn lead_to(&self, port: u16) {
        self.shared.to.store(port, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)); // wakes the one that accepts
    }
}

/// Three threads, which end with the server's side, and when nothing can be written to it: what is
/// asked, what is answered, and what is late.
fn connect(client: &TcpStream, server: &TcpStream, shared: &Arc<Shared>) {
    let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    for stream in [client, server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    }
    let (mut from, mut to, of_thread) = (clone(client), clone(server), shared.clone());
    thread::spawn(move || {
        let mut buffer = [0; 16_384];
        while let Some(bytes) = read(&mut from, &mut buffer, &of_thread) {
            if to.write_all(bytes).is_err() {
                return end(&from, &to);
            }
        }
        // A client may have asked all that it wants to, and still read.
        let _ = to.shutdown(Shutdown::Write);
    });
    let (late, queue) = channel();
    let (mut from, of_thread) = (clone(server), shared.clone());
    thread::spawn(move || {
        let mut buffer = [0; 16_384];
        while let Some(bytes) = read(&mut from, &mut buffer, &of_thread) {
            if !hand_over(bytes, &of_thread, &late) {
                break;
            }
        }
    });
    let (from, to) = (clone(server), clone(client));
    thread::spawn(move || {
        deliver(&queue, &to);
        end(&from, &to);
    });
}

/// Gives what came to whoever delivers it; false when nothing may come after it.
fn hand_over(bytes: &[u8], shared: &Shared, late: &Sender<(Instant, Vec<u8>)>) -> bool {
    let weather = *shared.weather.lock().expect("no thread panics with it");
    let now = Instant::now();
    let (due, bytes) = match weather {
        Weather::Clear => (now, bytes.to_vec()),
        Weather::Late(by) => (now + by, bytes.to_vec()),
        Weather::Cut => (now, bytes[..bytes.len() / 2].to_vec()),
        Weather::Garbage => (now, b"\x00\xff?HTTP/1.1 400 Bad Request\r\n\r\n".repeat(4)),
    };
    late.send((due, bytes)).is_ok() && weather != Weather::Cut
}

fn deliver(queue: &Receiver<(Instant, Vec<u8>)>, mut to: &TcpStream) {
    for (due, bytes) in queue {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// The next bytes; none when the connection or the proxy is over.
fn read<'b>(from: &mut TcpStream, buffer: &'b mut [u8], shared: &Shared) -> Option<&'b [u8]> {
    loop {
        match from.read(buffer) {
            Ok(0) => return None,
            Ok(count) => return Some(&buffer[..count]),
            Err(error) => match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                    if !shared.over.load(Ordering::Relaxed) => {}
                _ => return None,
            },
        }
    }
}

fn end(one: &TcpStream, other: &TcpStream) {
    for stream in [one, other] {
        let _ = stream.shutdown(Shutdown::Both); // it may be gone already
    }
}
