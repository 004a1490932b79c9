//! One plugin: its rules, and how its requests are asked.

use std::net::IpAddr;

use tollgate_core::http::LIST_SIZE;
use tollgate_core::key::Seed;
use tollgate_core::metrics::StoreMetrics;
use tollgate_core::pages::{self, Pages, Workers};
use tollgate_core::policy::{Answer, Attributes, MAX_HEADERS, Rules, Selection, Uses};
use tollgate_core::redis::engine;
use tollgate_core::redis::store::Progress;
use tollgate_core::table::{self, OwnedTable, Table};
use tollgate_core::time::Nanos;

use crate::abi::{self, Action, Map};
use crate::answer::{answered, deny_missing};
use crate::config::Counting;
use crate::pages::{HostPages, seed};
use crate::redis::{Redis, Told};
use crate::request::{Look, Parts, Request};
use crate::stats::Stats;

/// What every worker keeps for itself: penalties, and everything should the
/// host's shared data not be there.
const TABLE: table::Config = table::Config { capacity: 4096, rows: 64, row_entries: 64 };
/// Leases are looked through so often, in milliseconds.
const TICK: u32 = 100;

/// A plugin's rules and counts, as one worker has them.
#[derive(Debug)]
pub(crate) struct Filter {
    context: u32,
    rules: Rules,
    uses: Uses,
    counts: Counts,
    table: OwnedTable,
    metrics: Box<StoreMetrics>,
    stats: Stats,
    /// The clock never goes back for those who only look at it here.
    latest: Nanos,
    /// Room for fields and bodies.
    text: Vec<u8>,
}

#[derive(Debug)]
enum Counts {
    Pages(Box<Workers<HostPages>>),
    Redis(Box<Redis>),
}

impl Filter {
    pub(crate) fn new(context: u32, rules: Rules, counting: &Counting) -> Result<Filter, String> {
        let refused =
            |status: abi::Status| format!("the host's shared data or random source: status {}", status.0);
        let [own, _] = abi::random().map_err(refused)?;
        let counts = match counting {
            Counting::Pages(embedded) => {
                let shared = seed(&embedded.zone).map_err(refused)?;
                let pages =
                    Pages::new(HostPages::new(&embedded.zone, embedded.pages), embedded.pages, shared);
                let workers = Workers::new(pages, embedded.remembered, embedded.holds, own);
                Counts::Pages(Box::new(workers.map_err(|error| format!("embedded: {error}"))?))
            }
            Counting::Redis(connection) => Counts::Redis(Box::new(Redis::new(connection, own)?)),
        };
        let seed = Seed(abi::random().map_err(refused)?);
        let table = OwnedTable::new(TABLE, seed).map_err(|error| format!("table: {error}"))?;
        let (uses, stats, text) = (rules.uses(), Stats::new(&rules), vec![0; LIST_SIZE]);
        Ok(Filter { context, uses, counts, table, metrics: Box::default(), stats, latest: 0, text, rules })
    }

    /// When it wants to be called first, in milliseconds, and then as often
    /// unless it says otherwise.
    pub(crate) fn tick(&self) -> u32 {
        match &self.counts {
            Counts::Pages(_) => TICK,
            Counts::Redis(_) => 1, // to connect
        }
    }

    pub(crate) fn tick_passed(&mut self) {
        self.step(|counts, here| match counts {
            Counts::Pages(workers) => workers.handle_timeout(&here.pages()),
            Counts::Redis(redis) => redis.process(&here.redis()),
        });
        self.tell();
    }

    fn tell(&mut self) {
        let pages = match &self.counts {
            Counts::Pages(workers) => [workers.pages().evicted(), workers.pages().conflicts()],
            Counts::Redis(_) => [0, 0],
        };
        self.stats.tell(&self.metrics.snapshot(), pages, self.latest);
    }

    /// A message came on the stream.
    pub(crate) fn message(&mut self, token: u32, bytes: &[u8]) {
        self.step(|counts, here| {
            if let Counts::Redis(redis) = counts {
                redis.message(token, bytes, &here.redis());
            }
        });
    }

    /// The stream is closed.
    pub(crate) fn closed(&mut self, token: u32) {
        self.step(|counts, here| {
            if let Counts::Redis(redis) = counts {
                redis.closed(token, &here.redis());
            }
        });
    }

    /// Sends what is to be sent. The plugin's context must be set.
    pub(crate) fn flush(&mut self) {
        if let Counts::Redis(redis) = &mut self.counts
            && redis.is_pending()
        {
            self.step(|counts, here| {
                if let Counts::Redis(redis) = counts {
                    redis.process(&here.redis());
                }
            });
        }
    }

    /// The next request that waited.
    pub(crate) fn poll(&mut self) -> Option<Told> {
        let Counts::Redis(redis) = &mut self.counts else { return None };
        let table = self.table.table()?;
        redis.poll(&Step { table: &table, metrics: &self.metrics, now: self.latest }.redis())
    }

    /// A request that waited is answered.
    pub(crate) fn told(&mut self, answer: &Answer, request: &mut Request) -> Action {
        request.pending = None;
        let mut headers = [None; MAX_HEADERS];
        let attributes = attributes(&request.look, &mut headers);
        let mut selection = Selection::default();
        match self.rules.select_into(&attributes, &mut selection) {
            Ok(()) => {
                if let Some(table) = self.table.table() {
                    self.stats.answered(&self.rules, &table, &selection, answer);
                }
                self.stats.waited(self.latest.saturating_sub(request.asked_at));
                answered(&self.rules, &selection, answer, &mut request.reply, &mut self.text)
            }
            Err(_) => Action::Continue, // it told who it comes from before
        }
    }

    /// The request is over, answered or not: its units in flight go back.
    pub(crate) fn over(&mut self, context: u32, request: &Request) {
        if request.reply.holds.is_empty() && request.pending.is_none() {
            return;
        }
        self.step(|counts, here| match counts {
            Counts::Pages(workers) => {
                request.reply.holds.iter().for_each(|hold| workers.release(hold, &here.pages()));
            }
            Counts::Redis(redis) => {
                if let Some(pending) = request.pending {
                    redis.cancel(pending, &here.redis());
                }
                request.reply.holds.iter().for_each(|hold| redis.release(hold, &here.redis()));
            }
        });
        self.flush_from(context);
    }

    /// The plugin ends: what it fetched ahead goes back.
    pub(crate) fn end(&mut self) {
        self.step(|counts, here| match counts {
            Counts::Pages(workers) => workers.drain(&here.pages()),
            Counts::Redis(redis) => redis.drain(&here.redis()),
        });
        self.flush();
        self.tell();
        self.stats.end();
    }

    /// As [`flush`](Self::flush), from the context of a request.
    fn flush_from(&mut self, context: u32) {
        let Counts::Redis(redis) = &mut self.counts else { return };
        if redis.is_pending() && abi::set_context(self.context).is_ok() {
            self.flush();
            let _ = abi::set_context(context); // a request that is over is left alone
        }
    }

    fn step(&mut self, step: impl FnOnce(&mut Counts, &Step<'_, '_>)) {
        let now = self.now();
        if let Some(table) = self.table.table() {
            step(&mut self.counts, &Step { table: &table, metrics: &self.metrics, now });
        }
    }

    fn now(&mut self) -> Nanos {
        self.latest = self.latest.max(abi::now().unwrap_or(0));
        self.latest
    }

    /// Asks all limits of a request; answers it when one denies.
    pub(crate) fn request(&mut self, context: u32, request: &mut Request) -> Action {
        let now = self.now();
        self.look(&mut request.look);
        let mut headers = [None; MAX_HEADERS];
        let attributes = attributes(&request.look, &mut headers);
        let mut selection = Selection::default();
        let action = match self.rules.select_into(&attributes, &mut selection) {
            Err(missing) => {
                self.stats.unidentified();
                deny_missing(missing.header, &mut request.reply, &mut self.text)
            }
            Ok(()) if selection.is_empty() => return Action::Continue,
            Ok(()) => {
                let Some(table) = self.table.table() else { return Action::Continue }; // it was made
                let here = Step { table: &table, metrics: &self.metrics, now };
                let answer = match &mut self.counts {
                    Counts::Pages(workers) => workers.check(&self.rules, &selection, &here.pages()),
                    Counts::Redis(redis) => {
                        match redis.check(&self.rules, &selection, context, &here.redis()) {
                            Progress::Answered(answer) => answer,
                            Progress::Waiting(pending) => {
                                (request.pending, request.asked_at) = (Some(pending), now);
                                self.flush_from(context);
                                return Action::Pause;
                            }
                        }
                    }
                };
                self.stats.answered(&self.rules, &table, &selection, &answer);
                answered(&self.rules, &selection, &answer, &mut request.reply, &mut self.text)
            }
        };
        self.flush_from(context); // a pot that is low asks for more
        action
    }

    /// Fetches what the rules look at: each part is a call to the host.
    fn look(&self, look: &mut Look) {
        let header = |uses: bool, name: &str| match uses {
            true => abi::header(Map::Request, name).ok().flatten().unwrap_or_default(),
            false => Vec::new(),
        };
        look.parts = Parts {
            route: if self.uses.route { route() } else { Vec::new() },
            method: header(self.uses.method, ":method"),
            host: header(self.uses.host, ":authority"),
            path: header(self.uses.path, ":path"),
            peer: if self.uses.peer { peer() } else { None },
        };
        look.headers.clear();
        let values = self.rules.headers().iter().map(|name| abi::header(Map::Request, name).ok().flatten());
        look.headers.extend(values);
    }
}

/// What the counts are asked with.
struct Step<'s, 'm> {
    table: &'s Table<'m>,
    metrics: &'s StoreMetrics,
    now: Nanos,
}

impl Step<'_, '_> {
    fn pages(&self) -> pages::Here<'_, '_> {
        pages::Here { table: self.table, metrics: self.metrics, now: self.now }
    }

    fn redis(&self) -> engine::Here<'_, '_> {
        engine::Here { table: self.table, metrics: self.metrics, now: self.now }
    }
}

/// A request as the rules look at it.
fn attributes<'a>(look: &'a Look, room: &'a mut [Option<&'a [u8]>; MAX_HEADERS]) -> Attributes<'a> {
    let parts = &look.parts;
    for (room, value) in room.iter_mut().zip(&look.headers) {
        *room = value.as_deref();
    }
    Attributes {
        route: &parts.route,
        method: &parts.method,
        host: without_port(&parts.host),
        path: without_query(&parts.path),
        peer: parts.peer,
        headers: room.get(..look.headers.len()).unwrap_or(&[]),
    }
}

/// What the route's metadata says, `tollgate: { route: … }`; else its name.
fn route() -> Vec<u8> {
    let metadata = abi::property("xds\0route_metadata\0filter_metadata\0tollgate\0route");
    let name = || abi::property("xds\0route_name").ok().flatten();
    metadata.ok().flatten().filter(|route| !route.is_empty()).or_else(name).unwrap_or_default()
}

/// Who the host says opened the connection.
fn peer() -> Option<IpAddr> {
    let address = abi::property("source\0address").ok().flatten()?;
    let address = std::str::from_utf8(&address).ok()?;
    let socket = address.parse::<std::net::SocketAddr>().map(|socket| socket.ip());
    socket.or_else(|_| address.parse()).ok()
}

fn without_port(host: &[u8]) -> &[u8] {
    let end = match host.iter().position(|byte| *byte == b']') {
        Some(bracket) => bracket.saturating_add(1),
        None => host.iter().position(|byte| *byte == b':').unwrap_or(host.len()),
    };
    host.get(..end).unwrap_or(host)
}

fn without_query(path: &[u8]) -> &[u8] {
    let end = path.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(path.len());
    path.get(..end).unwrap_or(path)
}
