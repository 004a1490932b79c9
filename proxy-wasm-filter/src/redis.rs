//! Limits that are counted in Redis, over one gRPC stream of the host's, or by
//! HTTP calls.
//!
//! proxy-wasm has no call to Redis. But the host opens gRPC streams, and Envoy
//! sends what is on one over a TCP connection, where its cluster says so:
//!
//! ```text
//! this worker ── stream ──► cluster, by TCP ──► internal listener: the role `bridge`
//!      ▲                                         takes the messages' heads off, or puts them on
//!      │                                                        │ the protocol of Redis
//!      └──────────── replies, in order ◄── tcp_proxy, or redis_proxy ──► Redis
//! ```
//!
//! What is sent, and what its answers mean, is the core's
//! [`Engine`]; here a stream is one of its connections. A stream that closes
//! is a connection that closes: what was under way fails, what comes is
//! decided as `on_store_error` says, and the stream is tried again after a
//! wait that grows. Without the bridge, HTTP calls are the connection:
//! [`Posts`] says how.

use tollgate_core::metrics::StoreSnapshot;
use tollgate_core::policy::plugin::{Connection, Transport};
use tollgate_core::policy::{Answer, Rules, Selection};
use tollgate_core::redis::breaker::State;
use tollgate_core::redis::cluster::{Action, RouterConfig};
use tollgate_core::redis::engine::{Engine, Here};
use tollgate_core::redis::link::LinkConfig;
use tollgate_core::redis::store::{Pending, Progress, StoreConfig};
use tollgate_core::table::Hold;
use tollgate_core::time::Nanos;

use crate::abi::{self, Level};
use crate::config::password;
use crate::others::Others;
use crate::posts::Posts;
use crate::ticks::Ticks;

/// The one link: Envoy knows the servers, and which of them a key is on.
const LINK: usize = 0;
/// While something is under way, time is looked at so often, in milliseconds.
const BUSY_TICK: u32 = 1;
/// Else so often.
const IDLE_TICK: u32 = 100;
/// Messages that are sent at once while none came back. Commands that come then
/// go together with the next: of what a message costs Envoy, five parts in six
/// are the same for one command and for many.
const MOST: u32 = 2;
/// So many streams are tried where nobody has asked yet and none has held. Envoy's
/// main thread has the plugin, too, but no requests, and does not reach the bridge.
const TRIES: u32 = 5;
/// After so long without a request nothing is expected to be under way: 1 s.
const QUIET: Nanos = 1_000_000_000;
/// A call that is not answered for so long has failed, in milliseconds; the
/// link gives it up before.
const POST_TIMEOUT: u32 = 1_000;
/// What is told in the log is looked at so often: 100 ms.
const REPORT_INTERVAL: Nanos = 100_000_000;
/// And changes at most so often: 1 s.
const LOG_INTERVAL: Nanos = 1_000_000_000;
/// Room for a call of several limits, in bytes.
const CALL: usize = 1024;

/// The engine, and what it talks through.
#[derive(Debug)]
pub(crate) struct Redis {
    engine: Box<Engine>,
    cluster: String,
    way: Way,
    /// Messages that were sent since one came.
    sent: u32,
    asked_at: Nanos,
    /// Streams that closed since one brought something.
    closed: u32,
    tick: u32,
    ticks: Ticks,
    /// None where the host shares nothing.
    others: Option<Others>,
    report: Report,
}

#[derive(Debug)]
enum Way {
    /// A stream to the bridge, while it is open.
    Stream(Option<u32>),
    Posts(Posts),
}

/// What the log was told.
#[derive(Debug, Default)]
struct Report {
    /// Why requests are decided without Redis; empty while they are not.
    cause: String,
    /// Requests that were, until then.
    fallbacks: u64,
    /// What Redis had answered when the last of them was.
    replies: u64,
    looked_at: Nanos,
    told_at: Nanos,
    /// That the host makes no call to the cluster.
    is_refused: bool,
}

impl Report {
    /// The host has made no call: most likely has it no such cluster. Said once,
    /// at once: else it would look as if Redis were away.
    fn refused(&mut self, cluster: &str, status: abi::Status) {
        if !self.is_refused {
            self.is_refused = true;
            let message = format!(
                "tollgate: redis.cluster: the host makes no call to {cluster:?} (status {}): has it a \
                 cluster of this name, with a server in it?",
                status.0
            );
            abi::log(Level::Warn, &message);
        }
    }
}

/// A request that waited and is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) context: u32,
    pending: Pending,
}

impl Redis {
    /// `is_shared`: what is admitted without Redis is counted by all workers
    /// together; else each counts as an instance.
    pub(crate) fn new(connection: &Connection, seed: u64, is_shared: bool) -> Result<Redis, String> {
        let store = StoreConfig { seed, ..connection.store(is_shared) };
        let (username, password) = (connection.username.as_deref(), password(connection)?);
        let password = password.as_deref();
        let default = LinkConfig::default();
        let mut link = LinkConfig {
            name: None,
            in_flight: connection.waiting.max(64),
            transmit_bytes: default.transmit_bytes.max(connection.waiting.saturating_mul(CALL)),
            seed,
            ..default
        };
        let way = match connection.transport {
            Transport::Stream => {
                (link.username, link.password) = (username.map(str::as_bytes), password);
                Way::Stream(None)
            }
            Transport::Post => Way::Posts(Posts::new(username, password)),
        };
        let addresses: [&[u8]; 1] = [b"bridge:0"];
        let router = RouterConfig { link, addresses: &addresses, cluster: false };
        Ok(Redis {
            engine: Box::new(Engine::new(&store, &router).map_err(|error| format!("redis: {error}"))?),
            cluster: connection.cluster.clone(),
            way,
            sent: 0,
            asked_at: 0,
            closed: 0,
            tick: 0,
            ticks: Ticks::default(),
            others: is_shared.then(|| Others::new(&connection.cluster)),
            report: Report::default(),
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
        let (context, pending) = self.engine.poll_answer(here)?;
        Some(Told { context: u32::try_from(context).ok()?, pending }) // it was one
    }

    /// Its answer; until anything else is asked.
    pub(crate) fn answer(&self, told: Told) -> Option<&Answer> {
        self.engine.answer(told.pending)
    }

    /// Its answer, and what that is about; until anything else is asked.
    pub(crate) fn told<'s>(&'s self, told: Told, selection: &mut Selection<'s>) -> Option<&'s Answer> {
        self.engine.answer(told.pending).filter(|_| self.engine.selection_of(told.pending, selection))
    }

    /// The client of a request that waits is gone.
    pub(crate) fn cancel(&mut self, pending: Pending, here: &Here<'_, '_>) {
        self.engine.cancel(pending, here);
    }

    pub(crate) fn release(&mut self, hold: &Hold, here: &Here<'_, '_>) {
        self.engine.release(hold, here);
    }

    /// What is fetched goes back.
    pub(crate) fn drain(&mut self, here: &Here<'_, '_>) {
        self.engine.drain(here);
    }

    /// Is all that was sent answered?
    pub(crate) fn is_settled(&self) -> bool {
        self.engine.router().waiting() == 0
    }

    /// A message came: bytes of Redis's; none when they are too many to be.
    pub(crate) fn message(&mut self, token: u32, bytes: Option<&[u8]>, here: &Here<'_, '_>) {
        match (&self.way, bytes) {
            (Way::Stream(Some(open)), Some(bytes)) if *open == token => {
                (self.sent, self.closed) = (0, 0);
                self.take(bytes, here);
            }
            (Way::Stream(Some(open)), None) if *open == token => {
                let _ = abi::cancel_stream(token); // it may be closed
                self.closed(token, here);
            }
            _ => {} // of a stream that was given up
        }
    }

    /// The stream is closed.
    pub(crate) fn closed(&mut self, token: u32, here: &Here<'_, '_>) {
        if let Way::Stream(open @ Some(_)) = &mut self.way
            && *open == Some(token)
        {
            *open = None;
            self.disconnected(here);
        }
    }

    /// An HTTP call was answered, or failed.
    pub(crate) fn posted(&mut self, token: u32, body: Option<Vec<u8>>, here: &Here<'_, '_>) {
        if let Way::Posts(posts) = &mut self.way {
            posts.answered(token, body);
        }
        while let Way::Posts(posts) = &mut self.way
            && let Some(input) = posts.poll()
        {
            self.take(&input.bytes, here);
            // The link may have closed it for a better reason: what Redis said.
            if input.is_end && self.engine.router().is_connected(LINK) {
                self.disconnected(here);
            }
        }
    }

    /// A tick has passed: what has to be done by now. The context that is set
    /// must be the plugin's.
    pub(crate) fn tick_passed(&mut self, here: &Here<'_, '_>) {
        let is_look = self.ticks.is_look(self.tick, here.now);
        if self.is_out_of_reach() {
            return; // until somebody asks
        }
        if is_look {
            self.engine.process(here);
        }
        let is_asked = self.is_asked();
        if self.others.as_mut().is_some_and(|others| others.ask_again(is_asked)) {
            self.engine.hurry(here);
        }
        self.process(here);
    }

    /// Whatever is to be sent, is. The context that is set must be the
    /// plugin's.
    pub(crate) fn process(&mut self, here: &Here<'_, '_>) {
        if self.is_out_of_reach() {
            return; // until somebody asks
        }
        if self.ticks.are_missing() {
            self.engine.process(here);
        } else {
            self.engine.read(here);
        }
        self.act(here);
        match self.way {
            Way::Stream(_) => self.transmit(here),
            Way::Posts(_) => self.post(here),
        }
        self.pace(here.now);
    }

    /// Is there something to do in the plugin's context that cannot wait for
    /// the next message, or tick, to come?
    pub(crate) fn is_urgent(&mut self) -> bool {
        let may_wait = matches!(self.way, Way::Stream(_)) && self.sent >= MOST && self.tick == BUSY_TICK;
        !may_wait && self.is_pending()
    }

    /// Is there something to do in the plugin's context?
    pub(crate) fn is_pending(&mut self) -> bool {
        let may_send = match &self.way {
            Way::Stream(_) => true,
            Way::Posts(posts) => posts.has_room(),
        };
        self.tick != BUSY_TICK || may_send && !self.engine.router_mut().poll_transmit(LINK).is_empty()
    }

    /// Says in the log why requests are decided without Redis, once for each
    /// cause, and when they no longer are. Where there are no requests, as on
    /// Envoy's main thread, there is nothing to say.
    pub(crate) fn tell(&mut self, rules: &Rules, counts: &StoreSnapshot, now: Nanos) {
        let Report { fallbacks, looked_at, told_at, .. } = self.report;
        if now.saturating_sub(looked_at) < REPORT_INTERVAL {
            return;
        }
        self.report.looked_at = now;
        let by_choice = [counts.fallback_local, counts.fallback_allow, counts.fallback_deny];
        self.report.fallbacks = by_choice.into_iter().fold(0, u64::saturating_add);
        if self.report.fallbacks > fallbacks {
            self.report.replies = counts.replies;
            let cause = self.cause(rules);
            if cause != self.report.cause && now.saturating_sub(told_at) >= LOG_INTERVAL {
                abi::log(
                    Level::Warn,
                    &format!(
                        "tollgate: policies are decided without Redis (cluster {:?}), as their \
                         on_store_error says: {cause}",
                        self.cluster
                    ),
                );
                (self.report.cause, self.report.told_at) = (cause, now);
            }
        } else if self.is_asked() && counts.replies > self.report.replies && !self.report.cause.is_empty() {
            abi::log(Level::Info, &format!("tollgate: Redis (cluster {:?}) is asked again", self.cluster));
            (self.report.cause, self.report.told_at) = (String::new(), now);
        }
    }

    fn take(&mut self, bytes: &[u8], here: &Here<'_, '_>) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.engine.router_mut().handle_input(LINK, rest);
            self.engine.read(here);
            rest = rest.get(taken..).unwrap_or(&[]);
            if taken == 0 {
                break; // the link is closed, and says so
            }
        }
    }

    fn is_out_of_reach(&self) -> bool {
        self.asked_at == 0 && self.closed >= TRIES && matches!(self.way, Way::Stream(None))
    }

    fn is_asked(&self) -> bool {
        self.engine.router().is_ready() && self.engine.state() == State::Closed
    }

    fn disconnected(&mut self, here: &Here<'_, '_>) {
        self.closed = self.closed.saturating_add(1);
        self.engine.handle_disconnected(LINK, here.now);
        self.engine.read(here);
    }

    fn act(&mut self, here: &Here<'_, '_>) {
        loop {
            let opens = match self.engine.poll_action(here.now) {
                None => return,
                Some(Action::Connect { .. }) => true,
                Some(Action::Close { .. }) => false,
            };
            match &mut self.way {
                Way::Stream(open) => {
                    if let Some(token) = open.take() {
                        let _ = abi::cancel_stream(token); // it may be closed
                    }
                    if opens {
                        self.sent = 0;
                        let opened = abi::open_stream(&self.cluster);
                        *open = opened.map_err(|status| self.report.refused(&self.cluster, status)).ok();
                    }
                }
                Way::Posts(posts) => posts.forget(),
            }
            if !opens {
                continue;
            }
            // Where there is no such cluster, as on Envoy's main thread, the link waits longer each time.
            if let Way::Stream(None) = self.way {
                self.disconnected(here);
            } else {
                self.engine.router_mut().handle_connected(LINK, here.now);
                self.engine.read(here);
            }
        }
    }

    fn transmit(&mut self, here: &Here<'_, '_>) {
        while let Way::Stream(Some(token)) = self.way {
            let router = self.engine.router_mut();
            let bytes = router.poll_transmit(LINK);
            let count = bytes.len();
            if count == 0 {
                return;
            }
            if abi::send(token, bytes).is_ok() {
                self.sent = self.sent.saturating_add(1);
                router.transmitted(LINK, count);
            } else {
                self.closed(token, here);
                self.act(here);
            }
        }
    }

    fn post(&mut self, here: &Here<'_, '_>) {
        while let Way::Posts(posts) = &mut self.way
            && posts.has_room()
        {
            let router = self.engine.router_mut();
            // All that there is: a command is never in two bodies.
            let mut commands = Vec::new();
            loop {
                let bytes = router.poll_transmit(LINK);
                let count = bytes.len();
                if count == 0 {
                    break;
                }
                commands.extend_from_slice(bytes);
                router.transmitted(LINK, count);
            }
            if commands.is_empty() {
                return;
            }
            match abi::post(&self.cluster, &posts.body(&commands), POST_TIMEOUT) {
                Ok(token) => posts.sent(token, &commands),
                Err(status) => {
                    self.report.refused(&self.cluster, status);
                    posts.forget();
                    self.disconnected(here);
                    self.act(here);
                }
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

    /// In words: what went wrong last, and what Redis itself said of it.
    fn cause(&self, rules: &Rules) -> String {
        let mut cause = match self.engine.trouble() {
            Some(name) => name.replace('_', " "),
            None => "not connected before, or more wait than may".to_owned(),
        };
        if let Some(policy) = self.engine.trouble_policy().and_then(|policy| rules.policies().get(policy)) {
            cause.push_str(", for a key of policy ");
            cause.push_str(policy.name());
        }
        let words = self.engine.words();
        if !words.is_empty() {
            cause = format!("{cause} ({})", words.escape_ascii());
        }
        cause
    }
}
