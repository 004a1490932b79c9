//! The bytes of a shared store's connections, and the time.

use core::ffi::c_void;

use tollgate_core::redis::breaker::State;
use tollgate_core::redis::cluster::Action;
use tollgate_core::redis::link::Why;
use tollgate_core::time::NEVER;

use crate::memory::output;
use crate::redis::{
    Shared, TOLLGATE_BREAKER_CLOSED, TOLLGATE_BREAKER_HALF_OPEN, TOLLGATE_BREAKER_OPEN, redis_of,
    tollgate_redis,
};
use crate::rules::tollgate_bytes;
use crate::status::{run, tollgate_status};

/// There is nothing to do.
pub const TOLLGATE_ACTION_NONE: u32 = 0;
/// Open a connection to the address, then call tollgate_redis_connected, or
/// tollgate_redis_disconnected if it fails.
pub const TOLLGATE_ACTION_CONNECT: u32 = 1;
/// Close the connection, or stop opening it; tollgate_redis_disconnected is
/// not called for it.
pub const TOLLGATE_ACTION_CLOSE: u32 = 2;

/// What the host is to do. Plain data; the pointers lead to memory that is
/// good until the next call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_redis_action {
    /// TOLLGATE_ACTION_NONE to TOLLGATE_ACTION_CLOSE.
    pub kind: u32,
    /// The link's number.
    pub link: u32,
    /// Where to connect: "host:port", the port behind the last colon, or
    /// "unix:/path".
    pub address: tollgate_bytes,
    /// Why to close: one word, such as "auth".
    pub reason: tollgate_bytes,
    /// The server's own words, up to 128 bytes; may be empty.
    pub words: tollgate_bytes,
}

/// How things are now. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_redis_state {
    /// TOLLGATE_BREAKER_CLOSED to TOLLGATE_BREAKER_HALF_OPEN.
    pub breaker: u32,
    /// 1 when a connection takes calls, else 0.
    pub ready: u32,
    /// Links are numbered from 0, below this.
    pub links: u32,
    /// 1 when it is ready, and no node of a cluster is missing, else 0.
    pub whole: u32,
    /// Requests that wait for an answer.
    pub waiting: u64,
    /// Calls that were not answered yet.
    pub in_flight: u64,
    /// Units fetched ahead that may still be spent.
    pub held: u64,
    /// The last thing that went wrong, in a word such as "timeout", "auth",
    /// "out_of_memory", "disconnected" or "not_connected"; empty if nothing
    /// ever did. Static.
    pub trouble: tollgate_bytes,
    /// The server's own words about it, up to 128 bytes; may be empty. Good
    /// until the next call.
    pub words: tollgate_bytes,
}

/// What to do next with sockets.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_next_action(
    redis: *mut tollgate_redis,
    now_ns: u64,
    action: *mut tollgate_redis_action,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, out) = unsafe { (redis_of(redis)?, output(action)?) };
        out.write(shared.action(now_ns));
        Ok(())
    })
}

/// What is to be written to a link, as far as it lies together; `*len` is 0
/// when nothing is. Good until the next call. Write any part of it, call
/// tollgate_redis_transmitted, and ask again.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_transmit(
    redis: *mut tollgate_redis,
    link: u32,
    data: *mut *const c_void,
    len: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, data, len) = unsafe { (redis_of(redis)?, output(data)?, output(len)?) };
        let bytes = shared.engine.router_mut().poll_transmit(link as usize);
        data.write(bytes.as_ptr().cast());
        len.write(bytes.len());
        Ok(())
    })
}

/// `len` bytes of tollgate_redis_transmit were written.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_transmitted(
    redis: *mut tollgate_redis,
    link: u32,
    len: usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        unsafe { redis_of(redis)? }.engine.router_mut().transmitted(link as usize, len);
        Ok(())
    })
}

/// Where bytes from a link are to be put. `*size` is 0 when there is no
/// connection, or no room before tollgate_redis_process. Good until the next
/// call; then call tollgate_redis_received.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_receive(
    redis: *mut tollgate_redis,
    link: u32,
    buffer: *mut *mut c_void,
    size: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, buffer, size) = unsafe { (redis_of(redis)?, output(buffer)?, output(size)?) };
        let room = shared.engine.router_mut().receive_buffer(link as usize);
        buffer.write(room.as_mut_ptr().cast());
        size.write(room.len());
        Ok(())
    })
}

/// `len` bytes were put where tollgate_redis_receive said.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_received(
    redis: *mut tollgate_redis,
    link: u32,
    len: usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        unsafe { redis_of(redis)? }.engine.router_mut().received(link as usize, len);
        Ok(())
    })
}

/// The connection that was asked for is there.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_connected(
    redis: *mut tollgate_redis,
    link: u32,
    now_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        unsafe { redis_of(redis)? }.engine.router_mut().handle_connected(link as usize, now_ns);
        Ok(())
    })
}

/// The connection is gone, or could not be opened. What came before is still
/// read by tollgate_redis_process, which is to be called next.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_disconnected(
    redis: *mut tollgate_redis,
    link: u32,
    now_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        unsafe { redis_of(redis)? }.engine.handle_disconnected(link as usize, now_ns);
        Ok(())
    })
}

/// When tollgate_redis_process is to be called at the latest; may be in the
/// past. TOLLGATE_NEVER when it need not be.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_timeout(
    redis: *mut tollgate_redis,
    at_ns: *mut u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, out) = unsafe { (redis_of(redis)?, output(at_ns)?) };
        out.write(shared.engine.poll_timeout().unwrap_or(NEVER));
        Ok(())
    })
}

/// How things are.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_redis_read_state(
    redis: *mut tollgate_redis,
    now_ns: u64,
    state: *mut tollgate_redis_state,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (shared, out) = unsafe { (redis_of(redis)?, output(state)?) };
        let engine = &shared.engine;
        let trouble = keep(engine.trouble().unwrap_or_default().as_bytes());
        printable(&mut shared.words, engine.words());
        out.write(tollgate_redis_state {
            breaker: match engine.state() {
                State::Closed => TOLLGATE_BREAKER_CLOSED,
                State::Open => TOLLGATE_BREAKER_OPEN,
                State::HalfOpen => TOLLGATE_BREAKER_HALF_OPEN,
            },
            ready: u32::from(engine.router().is_ready()),
            links: engine.router().links() as u32, // at most 64
            whole: u32::from(engine.router().is_whole()),
            waiting: engine.waiting() as u64,
            in_flight: engine.router().waiting() as u64,
            held: engine.held(now_ns),
            trouble,
            words: keep(&shared.words),
        });
        Ok(())
    })
}

impl Shared {
    fn action(&mut self, now: u64) -> tollgate_redis_action {
        let none = tollgate_bytes { data: core::ptr::null(), len: 0 };
        let mut told = tollgate_redis_action {
            kind: TOLLGATE_ACTION_NONE,
            link: 0,
            address: none,
            reason: none,
            words: none,
        };
        let (link, why) = match self.engine.poll_action(now) {
            None => return told,
            Some(Action::Connect { link, address }) => {
                self.address.clear();
                self.address.extend_from_slice(address);
                told.kind = TOLLGATE_ACTION_CONNECT;
                told.address = keep(&self.address);
                (link, None)
            }
            Some(Action::Close { link, why }) => (link, Some(why)),
        };
        told.link = link as u32; // below 64
        if let Some(why) = why {
            told.kind = TOLLGATE_ACTION_CLOSE;
            told.reason = keep(why.name().as_bytes());
            printable(&mut self.words, if why == Why::Left { &[] } else { self.engine.words() });
            told.words = keep(&self.words);
        }
        told
    }
}

/// It ends up in a log: nothing of it may pass for another line.
fn printable(into: &mut Vec<u8>, said: &[u8]) {
    into.clear();
    into.extend(said.iter().map(|byte| if byte.is_ascii_graphic() { *byte } else { b' ' }));
}

fn keep(text: &[u8]) -> tollgate_bytes {
    tollgate_bytes { data: text.as_ptr().cast(), len: text.len() }
}
