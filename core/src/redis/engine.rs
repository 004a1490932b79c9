//! A store and its links in one, for a host that opens sockets and moves bytes.
//!
//! ```text
//!  check(request) ──► Answered, or Waiting ──► poll_answer ──► Answer
//!                        │
//!  poll_action; router_mut(): poll_transmit, receive_buffer … ◄──► sockets
//!  process(now): what came is read, what is late is given up
//! ```
//!
//! After any call the host does what [`poll_action`](Engine::poll_action) asks, writes what
//! [`Router::poll_transmit`] has, tells the answers of
//! [`poll_answer`](Engine::poll_answer), and sets one timer, to
//! [`poll_timeout`](Engine::poll_timeout).

use super::breaker::State;
use super::cluster::{Action, Router, RouterConfig};
use super::link::{Event, LinkError, MAX_INTEGERS, Refused, Why};
use super::script::Call;
use super::store::{
    AnsweredLayer, Failure, Host, Pending, Progress, Store, StoreConfig, StoreError, Transport, is_asked_by,
};
use crate::local::LocalStore;
use crate::metrics::StoreMetrics;
use crate::policy::{Answer, Outcome, Rules, Selection};
use crate::table::Hold;
use crate::time::Nanos;

/// What a host brings along to each step.
#[derive(Clone, Copy, Debug)]
pub struct Here<'h, 'm> {
    /// Where limits count that are not the store's, and all of them while it
    /// is away.
    pub table: &'h (dyn LocalStore + 'm),
    /// What is counted.
    pub metrics: &'h StoreMetrics,
    /// The host's monotonic clock.
    pub now: Nanos,
}

/// Why there is no engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The store cannot be as it is configured.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its links cannot.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// What an answer rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// No policy of the store's had a say.
    Local = 0,
    /// Tokens that were fetched ahead.
    Lease = 1,
    /// A denial that is remembered.
    Denial = 2,
    /// The store was asked.
    Asked = 3,
    /// It did not answer: `on_store_error` decided.
    Fallback = 4,
}

/// A store, and the links that its calls take. Owned by one thread at a time.
#[derive(Debug)]
pub struct Engine {
    store: Store,
    router: Router,
    trouble: Option<Trouble>,
}

/// What went wrong last, for who asks why a request is decided without the
/// store.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    name: &'static str,
    /// Of a connection that was given up: the server's words are this link's.
    link: Option<usize>,
    /// It is about one key, of this policy.
    policy: Option<usize>,
}

impl Engine {
    /// Takes all memory that it will need, but for what a cluster's nodes take
    /// when they are first met.
    ///
    /// # Errors
    /// A number or an address is out of range, or there is not enough memory.
    pub fn new(store: &StoreConfig, router: &RouterConfig<'_>) -> Result<Engine, EngineError> {
        Ok(Engine { store: Store::new(store)?, router: Router::new(router)?, trouble: None })
    }

    /// As [`Store::check`]. Touches no socket; allocates nothing.
    pub fn check(
        &mut self,
        rules: &Rules,
        selection: &Selection<'_>,
        user: u64,
        here: &Here<'_, '_>,
    ) -> Progress {
        let (store, mut host) = self.split(here);
        store.check(rules, selection, user, &mut host)
    }

    /// As [`Store::poll_answer`].
    pub fn poll_answer(&mut self, here: &Here<'_, '_>) -> Option<(u64, Pending)> {
        let (store, mut host) = self.split(here);
        store.poll_answer(&mut host)
    }

    /// As [`Store::answer`].
    #[must_use]
    pub fn answer(&self, pending: Pending) -> Option<&Answer> {
        self.store.answer(pending)
    }

    /// As [`Store::selection_of`].
    #[must_use]
    pub fn selection_of<'s>(&'s self, pending: Pending, selection: &mut Selection<'s>) -> bool {
        self.store.selection_of(pending, selection)
    }

    /// As [`Store::layer_of`].
    #[must_use]
    pub fn layer_of(&self, pending: Pending, layer: usize) -> Option<AnsweredLayer<'_>> {
        self.store.layer_of(pending, layer)
    }

    /// As [`Store::cancel`].
    pub fn cancel(&mut self, pending: Pending, here: &Here<'_, '_>) {
        let (store, mut host) = self.split(here);
        store.cancel(pending, &mut host);
    }

    /// As [`Store::release`].
    pub fn release(&mut self, hold: &Hold, here: &Here<'_, '_>) {
        let (store, mut host) = self.split(here);
        store.release(hold, &mut host);
    }

    /// As [`Store::drain`].
    pub fn drain(&mut self, here: &Here<'_, '_>) {
        let (store, mut host) = self.split(here);
        store.drain(&mut host);
    }

    /// Another worker has found out that the store is well: what waits before
    /// it is connected to, or asked, again need not.
    pub fn hurry(&mut self, here: &Here<'_, '_>) {
        self.router.hurry(here.now);
        let (store, mut host) = self.split(here);
        store.hurry(&mut host);
    }

    /// Reads what came, and gives up what is late: after bytes came, when a
    /// connection is there or gone, and at [`poll_timeout`](Self::poll_timeout).
    pub fn process(&mut self, here: &Here<'_, '_>) {
        self.read(here); // a reply that is there is in time
        if self.router.poll_timeout().is_some_and(|at| at <= here.now) {
            self.router.handle_timeout(here.now);
            self.read(here);
        }
        if self.store.poll_timeout().is_some_and(|at| at <= here.now) {
            let (store, mut host) = self.split(here);
            store.handle_timeout(&mut host);
        }
    }

    /// Reads what came. What is late is left to [`process`](Self::process): for
    /// a host that is handed replies one by one, and may have stood still.
    pub fn read(&mut self, here: &Here<'_, '_>) {
        while let Some(event) = self.router.poll_event(here.now) {
            match event {
                // One token bucket, as most are.
                Event::Reply { ticket, integers: &[integer], .. } => {
                    let (store, mut host) = self.split(here);
                    store.replied(ticket, &[integer], &mut host);
                }
                Event::Reply { ticket, integers, .. } => {
                    let mut room = [0; MAX_INTEGERS];
                    let count = integers.len().min(room.len());
                    for (place, integer) in room.iter_mut().zip(integers) {
                        *place = *integer;
                    }
                    let (store, mut host) = self.split(here);
                    store.replied(ticket, room.get(..count).unwrap_or(&[]), &mut host);
                }
                Event::Failed { ticket, why } => {
                    let failure = Failure::of(&why);
                    if why != Why::NotReady {
                        // What became of the connection says more.
                        let is_of_key = failure == Failure::Key;
                        let policy = is_of_key.then(|| self.store.policy_of(ticket)).flatten();
                        self.trouble = Some(Trouble { name: why.name(), link: None, policy });
                    }
                    let (store, mut host) = self.split(here);
                    store.failed(ticket, failure, &mut host);
                }
                Event::Ready => {
                    let is_all = self.router.links() == 1; // of several, others may have been there
                    let (store, mut host) = self.split(here);
                    if is_all {
                        store.may_have_forgotten(here.now);
                    }
                    store.connected(&mut host);
                }
                Event::Connect | Event::Disconnect { .. } => {} // the router's actions
            }
        }
    }

    /// When [`process`](Self::process) has something to do by itself.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        [self.store.poll_timeout(), self.router.poll_timeout()].into_iter().flatten().min()
    }

    /// As [`Router::poll_action`]; why a connection is closed is remembered.
    pub fn poll_action(&mut self, now: Nanos) -> Option<Action<'_>> {
        let action = self.router.poll_action(now);
        if let Some(Action::Close { link, why }) = action
            && why != Why::Left
        {
            self.trouble = Some(Trouble { name: why.name(), link: Some(link), policy: None });
        }
        action
    }

    /// As [`Router::handle_disconnected`]; that it is gone, or could not be
    /// opened, is remembered.
    pub fn handle_disconnected(&mut self, link: usize, now: Nanos) {
        let name = if self.router.is_connected(link) { Why::Disconnected.name() } else { "not_connected" };
        self.trouble = Some(Trouble { name, link: None, policy: None });
        self.router.handle_disconnected(link, now);
    }

    /// The last thing that went wrong with the store, in a word for logs:
    /// [`Why::name`], or `not_connected` when a connection could not be opened.
    #[must_use]
    pub fn trouble(&self) -> Option<&'static str> {
        self.trouble.map(|trouble| trouble.name)
    }

    /// Whose key it is that the [`trouble`](Self::trouble) is about, where it is
    /// about one: a policy, by its place among the rules'. Others are not
    /// affected.
    #[must_use]
    pub fn trouble_policy(&self) -> Option<usize> {
        self.trouble.and_then(|trouble| trouble.policy)
    }

    /// The server's own words about the [`trouble`](Self::trouble), up to 128
    /// bytes as they came; empty when it said none.
    #[must_use]
    pub fn words(&self) -> &[u8] {
        const SILENT: [Why<'_>; 3] = [Why::Timeout, Why::Disconnected, Why::Protocol];
        let router = &self.router;
        match self.trouble {
            Some(trouble) if SILENT.iter().any(|why| why.name() == trouble.name) => &[],
            Some(Trouble { link: Some(link), .. }) => router.last_error(link),
            Some(Trouble { name, link: None, .. }) => {
                let mut all = (0..router.links()).map(|link| router.last_error(link));
                all.find(|words| !words.is_empty() && Why::of(words).name() == name).unwrap_or_default()
            }
            None => &[],
        }
    }

    /// Its links, for who moves their bytes.
    pub fn router_mut(&mut self) -> &mut Router {
        &mut self.router
    }

    /// Its links.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Does the breaker let calls through?
    #[must_use]
    pub fn state(&self) -> State {
        self.store.state()
    }

    /// Requests that wait for an answer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.store.waiting()
    }

    /// Units fetched ahead that may still be spent.
    #[must_use]
    pub fn held(&self, now: Nanos) -> u64 {
        self.store.held(now)
    }

    fn split<'a, 'm>(&'a mut self, here: &'a Here<'_, 'm>) -> (&'a mut Store, Host<'a, 'm>) {
        let transport = &mut self.router;
        let host = Host { table: here.table, metrics: here.metrics, transport, now: here.now };
        (&mut self.store, host)
    }
}

impl Transport for Router {
    fn send(&mut self, ticket: u64, call: &Call<'_>, deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        Router::send(self, ticket, call, deadline, now)
    }

    fn probe(&mut self, ticket: u64, key: &[u8], deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        Router::probe(self, ticket, key, deadline, now)
    }

    fn wait_on(&mut self, ticket: u64, heir: u64) -> bool {
        Router::wait_on(self, ticket, heir)
    }

    fn hurry(&mut self, now: Nanos) {
        Router::hurry(self, now);
    }
}

impl Failure {
    /// What a link's reason is to a store.
    #[must_use]
    pub fn of(why: &Why<'_>) -> Failure {
        match why {
            Why::Timeout => Failure::Timeout,
            why if why.is_store_failure() => Failure::Store,
            _ => Failure::Key,
        }
    }
}

impl Source {
    /// Of an answer that came at once.
    #[must_use]
    pub fn at_once(rules: &Rules, selection: &Selection<'_>, answer: &Answer) -> Source {
        if !is_asked_by(rules) {
            return Source::Local;
        }
        if answer.degraded != 0 {
            return Source::Fallback;
        }
        let remote = rules.layers_of(selection, super::store::is_remote);
        let layers = || answer.outcomes().iter().enumerate().filter(|(at, _)| remote >> at & 1 == 1);
        if layers().any(|(_, outcome)| matches!(outcome, Outcome::Denied | Outcome::WouldDeny)) {
            Source::Denial
        } else if remote != 0 && answer.allowed {
            Source::Lease
        } else {
            Source::Local
        }
    }

    /// Of an answer that was waited for.
    #[must_use]
    pub fn waited(answer: &Answer) -> Source {
        if answer.degraded == 0 { Source::Asked } else { Source::Fallback }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Seed;
    use crate::redis::link::LinkConfig;
    use crate::table::{Config, OwnedTable};

    fn engine() -> Engine {
        let link = LinkConfig { password: Some(b"right"), ..LinkConfig::default() };
        let router = RouterConfig { link, addresses: &[b"127.0.0.1:6379"], cluster: false };
        Engine::new(&StoreConfig::default(), &router).unwrap()
    }

    #[test]
    fn trouble_is_told_with_the_servers_own_words() {
        let config = Config { capacity: 64, rows: 8, row_entries: 64 };
        let memory = OwnedTable::new(config, Seed([1, 2])).unwrap();
        let (table, metrics) = (memory.table().unwrap(), StoreMetrics::default());
        let here = |now| Here { table: &table, metrics: &metrics, now };
        let mut engine = engine();
        assert_eq!((engine.trouble(), engine.words()), (None, &b""[..]));

        assert!(matches!(engine.poll_action(1), Some(Action::Connect { .. })));
        engine.router_mut().handle_connected(0, 1);
        engine.router_mut().handle_input(0, b"-WRONGPASS invalid username-password pair\r\n");
        engine.process(&here(2));
        assert!(matches!(engine.poll_action(2), Some(Action::Close { why: Why::Auth, .. })));
        assert_eq!(engine.trouble(), Some("auth"));
        assert_eq!(engine.words(), b"WRONGPASS invalid username-password pair");

        let later = 60_000_000_000;
        assert!(matches!(engine.poll_action(later), Some(Action::Connect { .. })));
        engine.handle_disconnected(0, later);
        assert_eq!(
            (engine.trouble(), engine.words()),
            (Some("not_connected"), &b""[..]),
            "not the old words"
        );
    }
}
