//! Clients that leave while their requests wait for Redis, in each way there is: nothing of them
//! stays, and what they were charged goes back.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::redis::Server;

use super::support::{count, in_redis, statistic};

const EACH: usize = 10;

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It closes, in good order.
    Close,
    /// It says that it sends no more, and would still read.
    HalfClose,
    /// A TCP RST.
    Reset,
}

#[test]
fn whoever_leaves_by_http_1_is_forgotten() {
    for way in [Way::Close, Way::HalfClose, Way::Reset] {
        leaving(&format!("HTTP/1, {way:?}"), |envoy, user| {
            let mut stream = connect(envoy);
            let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("it is taken");
            Box::new(move || leave(stream, way))
        });
    }
}

#[test]
fn whoever_leaves_by_http_2_is_forgotten() {
    for way in [Way::Close, Way::HalfClose, Way::Reset] {
        leaving(&format!("HTTP/2, {way:?}"), |envoy, user| {
            let mut stream = connect(envoy);
            stream.write_all(&http2_request(user)).expect("it is taken");
            Box::new(move || leave(stream, way))
        });
    }
    leaving("HTTP/2, RST_STREAM", |envoy, user| {
        let mut stream = connect(envoy);
        stream.write_all(&http2_request(user)).expect("it is taken");
        Box::new(move || {
            const CANCEL: [u8; 4] = [0, 0, 0, 8];
            stream.write_all(&frame(3, 0, 1, &CANCEL)).expect("it is taken");
            thread::sleep(Duration::from_millis(300)); // the connection outlives its stream
        })
    });
}

/// Ten clients come and go while Redis does not answer; then one takes all that the limit has.
fn leaving(what: &str, client: impl Fn(&Envoy, &str) -> Box<dyn FnOnce() + Send>) {
    let server = Server::start(&[]);
    let plugin = in_redis(r#"{ "rate": "50/d" }"#, r#", "on_store_error": "deny", "timeout": "2s""#, "");
    let envoy = Setup::new(&plugin).redis(server.port()).start();
    statistic(&envoy, "tollgate_store_connected", 1);
    // On a busy machine this may take longer than after which a connection counts as dead, and
    // nobody can tell any more what was charged: with another key then.
    let user =
        (0..10).map(|number| format!("a-{number}")).find(|user| come_and_go(&server, &envoy, user, &client));
    let user = user.expect("a machine that is not so busy");
    // What they were charged has been given back, less what has come in since: a bucket that was
    // full would not have grown.
    thread::sleep(Duration::from_millis(3000));
    let mut conn = envoy.connect();
    let mut admitted = 0;
    for _ in 0..60 {
        conn.request("GET", "/", &[("x-user", &user)]);
        admitted += usize::from(conn.response_to("GET").expect("an answer").status == 200);
    }
    println!("{what}: {EACH} left, then {admitted} of 50 were admitted");
    assert_eq!(admitted, 50, "{what}");
    statistic(&envoy, "tollgate_store_waiting", 0);
}

/// False when it took too long.
fn come_and_go(
    server: &Server,
    envoy: &Envoy,
    user: &str,
    client: impl Fn(&Envoy, &str) -> Box<dyn FnOnce() + Send>,
) -> bool {
    statistic(envoy, "tollgate_store_breaker_open", 0);
    let end = Instant::now() + Duration::from_secs(10);
    while envoy.get("/", &[("x-user", &format!("warm-{user}"))]).status != 200 {
        assert!(Instant::now() < end, "Redis is not asked");
    }
    let of = |name: &str| count(&envoy.admin("/stats?filter=wasmcustom.tollgate|http.front"), name);
    let given = of("store.give_backs");
    let active = |requests: u64| {
        while of("front.downstream_rq_active") != requests {
            assert!(Instant::now() < end, "{requests} requests in Envoy");
            thread::sleep(Duration::from_millis(2));
        }
    };
    let stopped = Instant::now();
    server.stop();
    let leave: Vec<_> = (0..EACH).map(|_| client(envoy, user)).collect();
    active(EACH as u64);
    thread::scope(|scope| {
        for leave in leave {
            scope.spawn(leave);
        }
        active(0);
        server.cont();
        if stopped.elapsed() > Duration::from_millis(300) {
            return false;
        }
        while of("store.give_backs") < given + EACH as u64 {
            assert!(Instant::now() < end, "{} of {EACH} were given back", of("store.give_backs") - given);
            thread::sleep(Duration::from_millis(20));
        }
        true
    })
}

fn connect(envoy: &Envoy) -> TcpStream {
    TcpStream::connect(("127.0.0.1", envoy.port())).expect("a listening server")
}

fn leave(stream: TcpStream, way: Way) {
    match way {
        Way::Close => {}
        Way::HalfClose => {
            stream.shutdown(Shutdown::Write).expect("it was open");
            thread::sleep(Duration::from_millis(300));
        }
        Way::Reset => {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            // SAFETY: the option's value is a `linger`, which outlives the call.
            let done = unsafe {
                libc::setsockopt(
                    stream.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    std::ptr::from_ref(&linger).cast(),
                    libc::socklen_t::try_from(size_of_val(&linger)).expect("a few bytes"),
                )
            };
            assert_eq!(done, 0);
        }
    }
    drop(stream);
}

/// A connection's beginning and one GET on its stream 1, every field a literal.
fn http2_request(user: &str) -> Vec<u8> {
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let mut fields = Vec::new();
    for (name, value) in
        [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a"), ("x-user", user)]
    {
        fields.push(0); // a literal without indexing, its name as well
        for text in [name, value] {
            fields.push(u8::try_from(text.len()).expect("a short text"));
            fields.extend_from_slice(text.as_bytes());
        }
    }
    let headers = frame(1, END_STREAM | END_HEADERS, 1, &fields);
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[]), &headers].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
