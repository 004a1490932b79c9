//! One plugin: its rules, and how its requests are asked.

use std::net::IpAddr;

use tollgate_core::http::{self, LIST_SIZE};
use tollgate_core::metrics::StoreMetrics;
use tollgate_core::pages::{Here, Pages, Workers};
use tollgate_core::policy::{Answer, Attributes, Rules, Selection, Uses};
use tollgate_core::table::{self, OwnedTable};
use tollgate_core::time::Nanos;

use crate::abi::{self, Action, Level, Map};
use crate::config::Config;
use crate::pages::{HostPages, seed};
use crate::request::Request;

/// What every worker keeps for itself: penalties, and everything should the
/// host's shared data not be there.
const TABLE: table::Config = table::Config { capacity: 4096, rows: 64, row_entries: 64 };
/// Leases are looked through so often.
const TICK_MS: u32 = 100;

const RESOURCE_EXHAUSTED: i32 = 8;
const UNAUTHENTICATED: i32 = 16;
/// Its HTTP status says it all.
const NO_GRPC_STATUS: i32 = -1;

/// A plugin's rules and counts, as one worker has them.
#[derive(Debug)]
pub(crate) struct Filter {
    rules: Rules,
    uses: Uses,
    workers: Workers<HostPages>,
    table: OwnedTable,
    metrics: Box<StoreMetrics>,
    /// The clock never goes back for those who only look at it here.
    latest: Nanos,
    /// Room for fields and bodies.
    text: Vec<u8>,
    values: Vec<Option<Vec<u8>>>,
}

/// Parts of a request, as far as the rules look at them.
#[derive(Debug, Default)]
struct Parts {
    route: Vec<u8>,
    method: Vec<u8>,
    host: Vec<u8>,
    path: Vec<u8>,
    peer: Option<IpAddr>,
}

impl Filter {
    pub(crate) fn new(config: Config) -> Result<Filter, String> {
        let Config { rules, embedded } = config;
        let refused =
            |status: abi::Status| format!("the host's shared data or random source: status {}", status.0);
        let shared = seed(&embedded.zone).map_err(refused)?;
        let own = abi::random().map_err(refused)?;
        let [own_seed, _] = abi::random().map_err(refused)?;
        let pages = Pages::new(HostPages::new(&embedded.zone, embedded.pages), embedded.pages, shared);
        let workers = Workers::new(pages, embedded.remembered, embedded.holds, own_seed)
            .map_err(|error| format!("embedded: {error}"))?;
        let table = OwnedTable::new(TABLE, tollgate_core::key::Seed(own))
            .map_err(|error| format!("table: {error}"))?;
        let uses = rules.uses();
        let text = vec![0; LIST_SIZE];
        Ok(Filter {
            uses,
            workers,
            table,
            metrics: Box::default(),
            latest: 0,
            text,
            values: Vec::with_capacity(rules.headers().len()),
            rules,
        })
    }

    /// How often it wants to be called, in milliseconds.
    pub(crate) fn tick(&self) -> u32 {
        TICK_MS
    }

    pub(crate) fn tick_passed(&mut self) {
        self.step(Workers::handle_timeout);
    }

    /// The request is over: its units in flight go back.
    pub(crate) fn over(&mut self, request: &Request) {
        if !request.holds.is_empty() {
            self.step(|workers, here| {
                for hold in &request.holds {
                    workers.release(hold, here);
                }
            });
        }
    }

    /// The plugin ends: what it fetched ahead goes back.
    pub(crate) fn end(&mut self) {
        self.step(Workers::drain);
    }

    fn step(&mut self, step: impl FnOnce(&mut Workers<HostPages>, &Here<'_, '_>)) {
        let now = self.now();
        if let Some(table) = self.table.table() {
            step(&mut self.workers, &Here { table: &table, metrics: &self.metrics, now });
        }
    }

    fn now(&mut self) -> Nanos {
        self.latest = self.latest.max(abi::now().unwrap_or(0));
        self.latest
    }

    /// Asks all limits of a request; answers it when one denies.
    pub(crate) fn request(&mut self, request: &mut Request) -> Action {
        let now = self.now();
        let parts = self.parts();
        let mut values = std::mem::take(&mut self.values);
        values.clear();
        values.extend(self.rules.headers().iter().map(|name| abi::header(Map::Request, name).ok().flatten()));
        let headers: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
        let attributes = Attributes {
            route: &parts.route,
            method: &parts.method,
            host: without_port(&parts.host),
            path: without_query(&parts.path),
            peer: parts.peer,
            headers: &headers,
        };
        let mut selection = Selection::default();
        let action = match self.rules.select_into(&attributes, &mut selection) {
            Err(missing) => deny_missing(missing.header, request, &mut self.text),
            Ok(()) if selection.is_empty() => Action::Continue,
            Ok(()) => match self.table.table() {
                Some(table) => {
                    let here = Here { table: &table, metrics: &self.metrics, now };
                    let answer = self.workers.check(&self.rules, &selection, &here);
                    answered(&self.rules, &selection, &answer, request, &mut self.text)
                }
                None => Action::Continue, // the table is there: it was made
            },
        };
        self.values = values;
        action
    }

    fn parts(&self) -> Parts {
        let header = |uses: bool, name: &str| match uses {
            true => abi::header(Map::Request, name).ok().flatten().unwrap_or_default(),
            false => Vec::new(),
        };
        Parts {
            route: if self.uses.route { route() } else { Vec::new() },
            method: header(self.uses.method, ":method"),
            host: header(self.uses.host, ":authority"),
            path: header(self.uses.path, ":path"),
            peer: if self.uses.peer { peer() } else { None },
        }
    }
}

/// Keeps what the response is to say; a denial is the response.
fn answered(
    rules: &Rules,
    selection: &Selection<'_>,
    answer: &Answer,
    request: &mut Request,
    text: &mut [u8],
) -> Action {
    request.holds.extend(answer.holds().iter().filter(|hold| hold.units > 0));
    if let Ok(fields) = rules.write_fields(selection, answer, text) {
        request.keep(fields, text);
    }
    if answer.allowed {
        return Action::Continue;
    }
    let name = answer.tightest.and_then(|tightest| selection.layers().nth(tightest));
    let name = name.and_then(|layer| rules.policies().get(layer.policy)).map_or("", |policy| policy.name());
    let grpc = answer.decision().map(|decision| (name, decision));
    let status = rules.status_of(answer);
    match grpc.filter(|_| is_grpc()) {
        Some((name, decision)) => {
            let message = http::grpc_denial(name, decision, text).map(|fields| message(&fields, text));
            send(status, &message.unwrap_or_default(), &[], RESOURCE_EXHAUSTED)
        }
        None => {
            let len = rules.write_problem(selection, answer, text).unwrap_or(0);
            send(status, text.get(..len).unwrap_or(&[]), &[PROBLEM], NO_GRPC_STATUS)
        }
    }
}

const PROBLEM: (&str, &[u8]) = ("content-type", b"application/problem+json");

/// Answers a request that does not tell who it comes from.
fn deny_missing(header: &str, request: &mut Request, text: &mut [u8]) -> Action {
    if is_grpc() {
        let message = http::grpc_missing(header, text).map(|fields| message(&fields, text));
        return send(401, &message.unwrap_or_default(), &[], UNAUTHENTICATED);
    }
    if let Ok(fields) = http::missing_fields(header, text) {
        request.keep(fields, text);
    }
    let len = http::missing_problem(header, text).unwrap_or(0);
    send(401, text.get(..len).unwrap_or(&[]), &[PROBLEM], NO_GRPC_STATUS)
}

/// A host that does not take the answer would let the request wait for ever:
/// it then goes on, and that is told.
fn send(status: u16, body: &[u8], headers: &[(&str, &[u8])], grpc_status: i32) -> Action {
    match abi::respond(status, body, &pairs(headers), grpc_status) {
        Ok(()) => Action::Pause,
        Err(refused) => {
            abi::log(Level::Error, &format!("tollgate: a denial was not sent: status {}", refused.0));
            Action::Continue
        }
    }
}

fn is_grpc() -> bool {
    let kind = abi::header(Map::Request, "content-type").ok().flatten();
    kind.is_some_and(|kind| http::is_grpc(&kind))
}

/// The message of a gRPC answer, without the encoding that the host adds.
fn message(fields: &http::Fields, text: &[u8]) -> Vec<u8> {
    let field = fields.as_slice().iter().find(|field| field.name == "grpc-message");
    let mut rest = field.and_then(|field| text.get(field.start..field.end)).unwrap_or(&[]);
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.split_first_chunk::<2>().filter(|_| *first == b'%');
        let byte = digits.and_then(|(digits, after)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 16).ok()?, after))
        });
        let (byte, after) = byte.unwrap_or((*first, after));
        plain.push(byte);
        rest = after;
    }
    plain
}

/// Header fields as the ABI writes them: their number, the lengths of each
/// name and value, then names and values, each with a NUL behind it.
fn pairs(headers: &[(&str, &[u8])]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = Vec::new();
    bytes.extend(number(headers.len()));
    for (name, value) in headers {
        bytes.extend(number(name.len()));
        bytes.extend(number(value.len()));
    }
    for (name, value) in headers {
        for part in [name.as_bytes(), value] {
            bytes.extend_from_slice(part);
            bytes.push(0);
        }
    }
    bytes
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
