//! Limits that are counted in Redis, over one gRPC stream of the host's.
//!
//! proxy-wasm has no call to Redis. But the host opens gRPC streams, and Envoy
//! turns the body of a POST into a TCP connection:
//!
//! ```text
//! this worker ── stream ──► cluster "bridge" ──► internal listener: the role `bridge`
//!      ▲                                          takes the messages' heads off, or puts them on
//!      │                                                        │ body = the protocol of Redis
//!      └──────────── replies, in order ◄── redis_proxy ◄────────┘ ──► Redis
//! ```
//!
//! What is sent, and what its answers mean, is the core's
//! [`Engine`]; here a stream is one of its connections. A stream that closes
//! is a connection that closes: what was under way fails, what comes is
//! decided as `on_store_error` says, and the stream is tried again after a
//! wait that grows.

use tollgate_core::policy::{Answer, Rules, Selection};
use tollgate_core::redis::cluster::{Action, RouterConfig};
use tollgate_core::redis::engine::{Engine, Here};
use tollgate_core::redis::link::LinkConfig;
use tollgate_core::redis::store::{Pending, Progress, StoreConfig};
use tollgate_core::table::Hold;
use tollgate_core::time::Nanos;

use crate::abi;
use crate::config::Connection;

/// The one link: Envoy knows the servers, and which of them a key is on.
const LINK: usize = 0;
/// While something is under way, time is looked at so often, in milliseconds.
const BUSY_TICK: u32 = 1;
/// Else so often.
const IDLE_TICK: u32 = 100;
/// After so long without a request nothing is expected to be under way: 1 s.
const QUIET: Nanos = 1_000_000_000;

/// The engine, and the stream that it talks through.
#[derive(Debug)]
pub(crate) struct Redis {
    engine: Box<Engine>,
    cluster: String,
    stream: Option<u32>,
    asked_at: Nanos,
    tick: u32,
}

/// A request that waited, and its answer.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) context: u32,
    pub(crate) answer: Answer,
}

impl Redis {
    pub(crate) fn new(connection: &Connection, seed: u64) -> Result<Redis, String> {
        let store = StoreConfig {
            pots: connection.remembered,
            waiting: connection.waiting,
            holds: connection.holds,
            // Each worker falls back to a table of its own: it counts as an instance.
            instances: connection.instances.saturating_mul(connection.workers),
            timeout: connection.timeout(),
            seed,
            ..StoreConfig::default()
        };
        let link =
            LinkConfig { name: None, in_flight: connection.waiting.max(64), seed, ..LinkConfig::default() };
        let addresses: [&[u8]; 1] = [b"bridge:0"];
        let router = RouterConfig { link, addresses: &addresses, cluster: false };
        Ok(Redis {
            engine: Box::new(Engine::new(&store, &router).map_err(|error| format!("redis: {error}"))?),
            cluster: connection.cluster.clone(),
            stream: None,
            asked_at: 0,
            tick: 0,
        })
    }

    /// Asks all limits; one that has to wait is told by [`poll`](Self::poll).
    pub(crate) fn check(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        context: u32,
        here: &Here<'_, '_>,
    ) -> Progress {
        self.asked_at = here.now;
        self.engine.check(rules, selection, context.into(), here)
    }

    /// The next request that waited.
    pub(crate) fn poll(&mut self, here: &Here<'_, '_>) -> Option<Told> {
        let (context, _, answer) = self.engine.poll_answer(here)?;
        Some(Told { context: u32::try_from(context).ok()?, answer }) // it was one
    }

    /// The client of a request that waits is gone.
    pub(crate) fn cancel(&mut self, pending: Pending, here: &Here<'_, '_>) {
        self.engine.cancel(pending, here);
    }

    pub(crate) fn release(&mut self, hold: &Hold, here: &Here<'_, '_>) {
        self.engine.release(hold, here);
    }

    pub(crate) fn drain(&mut self, here: &Here<'_, '_>) {
        self.engine.drain(here);
    }

    /// A message came: bytes of Redis's.
    pub(crate) fn message(&mut self, token: u32, bytes: &[u8], here: &Here<'_, '_>) {
        if self.stream != Some(token) {
            return; // of a stream that was given up
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.engine.router_mut().handle_input(LINK, rest);
            self.engine.process(here);
            rest = rest.get(taken..).unwrap_or(&[]);
            if taken == 0 {
                break; // the link is closed, and says so
            }
        }
    }

    /// The stream is closed.
    pub(crate) fn closed(&mut self, token: u32, here: &Here<'_, '_>) {
        if self.stream == Some(token) {
            self.stream = None;
            self.engine.router_mut().handle_disconnected(LINK, here.now);
            self.engine.process(here);
        }
    }

    /// What has to be done by now; then whatever is to be sent, is. The
    /// context that is set must be the plugin's.
    pub(crate) fn process(&mut self, here: &Here<'_, '_>) {
        self.engine.process(here);
        self.act(here);
        self.transmit(here);
        self.pace(here.now);
    }

    /// Is there something to do in the plugin's context?
    pub(crate) fn is_pending(&mut self) -> bool {
        self.tick != BUSY_TICK || !self.engine.router_mut().poll_transmit(LINK).is_empty()
    }

    fn act(&mut self, here: &Here<'_, '_>) {
        loop {
            let opens = match self.engine.router_mut().poll_action(here.now) {
                None => return,
                Some(Action::Connect { .. }) => true,
                Some(Action::Close { .. }) => false,
            };
            if let Some(token) = self.stream.take() {
                let _ = abi::cancel_stream(token); // it may be closed
            }
            if !opens {
                continue;
            }
            // Where there is no such cluster, as on Envoy's main thread, the link waits longer each time.
            match abi::open_stream(&self.cluster) {
                Ok(token) => {
                    self.stream = Some(token);
                    self.engine.router_mut().handle_connected(LINK, here.now);
                }
                Err(_) => self.engine.router_mut().handle_disconnected(LINK, here.now),
            }
            self.engine.process(here);
        }
    }

    fn transmit(&mut self, here: &Here<'_, '_>) {
        while let Some(token) = self.stream {
            let router = self.engine.router_mut();
            let bytes = router.poll_transmit(LINK);
            let count = bytes.len();
            if count == 0 {
                return;
            }
            if abi::send(token, bytes).is_ok() {
                router.transmitted(LINK, count);
            } else {
                self.closed(token, here);
                self.act(here);
            }
        }
    }

    /// Deadlines are milliseconds away while something is under way.
    fn pace(&mut self, now: Nanos) {
        let is_busy = self.engine.waiting() > 0 || now.saturating_sub(self.asked_at) < QUIET;
        let tick = if is_busy { BUSY_TICK } else { IDLE_TICK };
        if tick != self.tick && abi::set_tick(tick).is_ok() {
            self.tick = tick;
        }
    }
}
