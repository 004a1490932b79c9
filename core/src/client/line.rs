//! One connection, as its thread drives it: commands out, one answer for each
//! in, and whether the connection is still of use.
//!
//! Nothing that may have run is sent again. `NOSCRIPT`, `MOVED` and `ASK` say
//! that a call did not run: it is sent once more, with the script's text or to
//! the node that was named. A reply that does not come in time ends the
//! connection, so that it is never taken for another's.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use std::time::{Duration, Instant};

use ::redis::cluster::{ClusterClient, ClusterConfig, ClusterConnection};
use ::redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use ::redis::{
    Client, Cmd, Connection, ConnectionInfo, ConnectionLike, ErrorKind, RedisError, RedisResult,
    ServerErrorKind, Value,
};

use super::address::{Target, of_master};
use super::call::Kept;
use crate::redis::link::Why;
use crate::redis::store::Failure;

/// How often a call is sent on at once.
const HOPS: usize = 4;

/// What a call was answered with.
pub(super) type Outcome = Result<Vec<i64>, Failure>;

/// A connection that is ready for calls.
pub(super) enum Line {
    Server(Box<Connection>),
    /// A cluster's connections, and how to make them anew.
    Cluster(Box<(ClusterConnection, ClusterClient, Duration)>),
}

/// The answers of some calls, in their order.
pub(super) struct Answers {
    pub(super) outcomes: Vec<Outcome>,
    /// Why the connection is of no use any more.
    pub(super) broken: Option<&'static str>,
    /// It does its work, but a new one would know better where keys are.
    pub(super) is_stale: bool,
    /// The last thing that went wrong, in a word.
    pub(super) trouble: Option<&'static str>,
}

impl Line {
    /// Connects, and sees that it is answered.
    ///
    /// # Errors
    /// Why not, in a word.
    pub(super) fn open(target: &Target, timeout: Duration) -> Result<Line, &'static str> {
        let line = match target {
            Target::Server(info) => Line::Server(Box::new(connect(info, timeout)?)),
            Target::Cluster(client) => {
                let connection = cluster(client, timeout).map_err(|e| Word::of(&e).word)?;
                Line::Cluster(Box::new((connection, client.clone(), timeout)))
            }
            Target::Sentinel { sentinels, name, master } => {
                let mut why = "no_master";
                let found = sentinels.iter().find_map(|sentinel| {
                    let (host, port) = ask(sentinel, name, timeout).map_err(|word| why = word).ok()?;
                    let mut connection = connect(&of_master(master, host, port), timeout);
                    let is_master = |connection: &mut Connection| is_master(connection, timeout);
                    if connection.as_mut().is_ok_and(|connection| !is_master(connection)) {
                        connection = Err("read_only"); // a Sentinel that was away itself
                    }
                    connection.map_err(|word| why = word).ok()
                });
                Line::Server(Box::new(found.ok_or(why)?))
            }
        };
        Ok(line)
    }

    /// Runs calls; every one of them is answered or has failed when this
    /// returns, which is about after `timeout` when nothing comes.
    pub(super) fn run(&mut self, calls: &[&Kept], timeout: Duration) -> Answers {
        let timeout = timeout.max(Duration::from_millis(1)); // zero would be none
        let mut answers = Answers { outcomes: Vec::new(), broken: None, is_stale: false, trouble: None };
        match self {
            Line::Server(connection) => {
                let commands: Vec<&Cmd> = calls.iter().map(|call| &call.command).collect();
                answers.outcomes.resize(calls.len(), Err(Failure::Store));
                let _ = connection.set_read_timeout(Some(timeout)); // an open socket takes it
                let _ = connection.set_write_timeout(Some(timeout));
                let places: Vec<usize> = (0..calls.len()).collect();
                let unknown = pipeline(connection, &commands, &places, &mut answers);
                let with_source =
                    unknown.iter().filter_map(|place| Some((*place, calls.get(*place)?.with_source()?)));
                let (places, again): (Vec<usize>, Vec<Cmd>) = with_source.unzip();
                if !again.is_empty() && answers.broken.is_none() {
                    let again: Vec<&Cmd> = again.iter().collect();
                    pipeline(connection, &again, &places, &mut answers);
                }
            }
            Line::Cluster(line) => {
                let (connection, client, patience) = &mut **line;
                let _ = connection.set_read_timeout(Some(timeout));
                let _ = connection.set_write_timeout(Some(timeout));
                let end = Instant::now() + timeout;
                let mut follow = |command: &Cmd, answers: &mut Answers| {
                    let mut wait = Duration::from_millis(1);
                    loop {
                        let reply = follow(connection, command, answers);
                        let is_lost = matches!(&reply, Err(error) if is_on_its_way(error));
                        if !is_lost || Instant::now() + wait >= end {
                            return reply;
                        }
                        // Nodes that do not agree yet whose a slot is: a little later they do.
                        std::thread::sleep(wait);
                        wait = (wait * 2).min(Duration::from_millis(16));
                        if let Ok(fresh) = cluster(client, *patience) {
                            *connection = fresh;
                            let _ = connection.set_read_timeout(Some(timeout));
                            let _ = connection.set_write_timeout(Some(timeout));
                        }
                    }
                };
                for call in calls {
                    let mut reply = follow(&call.command, &mut answers);
                    let is_unknown = matches!(&reply, Err(error) if is_noscript(error));
                    if let (true, Some(command)) = (is_unknown, call.with_source()) {
                        reply = follow(&command, &mut answers);
                    }
                    let outcome = answers.read(reply);
                    answers.outcomes.push(outcome);
                }
            }
        }
        answers
    }

    /// Is the other end still there?
    pub(super) fn is_well(&mut self, timeout: Duration) -> bool {
        match self {
            Line::Server(connection) => {
                let _ = connection.set_read_timeout(Some(timeout));
                let _ = connection.set_write_timeout(Some(timeout));
                ::redis::cmd("PING").exec(connection.as_mut()).is_ok()
            }
            Line::Cluster(line) => {
                let connection = &mut line.0;
                let _ = connection.set_read_timeout(Some(timeout));
                let _ = connection.set_write_timeout(Some(timeout));
                connection.check_connection()
            }
        }
    }
}

/// Sends commands in one piece and reads their replies; those of a script that
/// the server does not know are left to be sent again, and told.
fn pipeline(
    connection: &mut Connection,
    commands: &[&Cmd],
    places: &[usize],
    answers: &mut Answers,
) -> Vec<usize> {
    let mut bytes = Vec::new();
    commands.iter().for_each(|command| command.write_packed_command(&mut bytes));
    let mut unknown = Vec::new();
    if let Err(error) = connection.send_packed_command(&bytes) {
        let outcome = answers.read(Err(error));
        answers.broken = answers.broken.or(Some("disconnected"));
        for place in places {
            answers.put(*place, outcome.clone());
        }
        return unknown;
    }
    let mut after = None;
    for place in places {
        if let Some(outcome) = &after {
            answers.put(*place, Outcome::clone(outcome));
            continue;
        }
        let reply = connection.recv_response().and_then(Value::extract_error);
        if matches!(&reply, Err(error) if is_noscript(error)) {
            unknown.push(*place);
            continue;
        }
        let is_of_the_server = match &reply {
            Ok(_) => true,
            Err(error) => matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension),
        };
        let outcome = answers.read(reply);
        if !is_of_the_server {
            after = Some(outcome.clone()); // nothing that comes now is to be trusted
        }
        answers.put(*place, outcome);
    }
    unknown
}

/// Connections to a cluster that do not reconnect by themselves.
fn cluster(client: &ClusterClient, timeout: Duration) -> RedisResult<ClusterConnection> {
    let config = ClusterConfig::new().set_connection_timeout(timeout).set_response_timeout(timeout);
    let connection = client.get_connection_with_config(config)?;
    connection.set_auto_reconnect(false);
    Ok(connection)
}

/// The slot is another node's, or on its way to one: the call did not run.
fn is_on_its_way(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Ask | Moved | TryAgain))
}

/// Asks the node that has the key; a node that says where it is now is
/// followed, a few times.
fn follow(connection: &mut ClusterConnection, command: &Cmd, answers: &mut Answers) -> RedisResult<Value> {
    let mut reply = connection.req_command(command);
    for _ in 0..HOPS {
        let Err(error) = &reply else { return reply };
        let is_asking = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Ask) => true,
            ErrorKind::Server(ServerErrorKind::Moved) => false,
            _ => return reply,
        };
        if !is_asking {
            answers.is_stale = true;
        }
        let to = error.redirect_node().and_then(|(node, _)| node.rsplit_once(':'));
        let Some((host, port)) = to.and_then(|(host, port)| Some((host, port.parse().ok()?))) else {
            return reply;
        };
        let node =
            || RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress { host: host.to_string(), port });
        if is_asking {
            connection.route_command(&::redis::cmd("ASKING"), node())?;
        }
        reply = connection.route_command(command, node());
    }
    reply
}

impl Answers {
    fn put(&mut self, place: usize, outcome: Outcome) {
        if let Some(room) = self.outcomes.get_mut(place) {
            *room = outcome;
        }
    }

    /// What a reply is to the store.
    fn read(&mut self, reply: RedisResult<Value>) -> Outcome {
        match reply {
            Ok(Value::Int(integer)) => Ok(Vec::from([integer])),
            Ok(Value::Okay | Value::SimpleString(_)) => Ok(Vec::new()),
            Ok(Value::Array(values)) => {
                let integers = values.iter().map(|value| match value {
                    Value::Int(integer) => Some(*integer),
                    _ => None,
                });
                integers.collect::<Option<Vec<i64>>>().ok_or(Failure::Key)
            }
            Ok(_) => Err(Failure::Key),
            Err(error) => {
                let Word { word, failure, is_broken } = Word::of(&error);
                self.trouble = Some(word);
                if is_broken {
                    self.broken = Some(word);
                }
                Err(failure)
            }
        }
    }
}

/// An error of the crate's, as the store knows errors.
struct Word {
    word: &'static str,
    failure: Failure,
    is_broken: bool,
}

impl Word {
    fn of(error: &RedisError) -> Word {
        if error.is_timeout() {
            return Word { word: "timeout", failure: Failure::Timeout, is_broken: true };
        }
        let store = |word, is_broken| Word { word, failure: Failure::Store, is_broken };
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {}
            ErrorKind::AuthenticationFailed => return store("auth", true),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => return store("protocol", true),
            _ => return store("disconnected", true),
        }
        let line = format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
        let why = Why::of(line.as_bytes());
        let is_broken = matches!(why, Why::ReadOnly | Why::Auth | Why::ClusterDown | Why::NoWrites);
        let failure = if why.is_store_failure() { Failure::Store } else { Failure::Key };
        Word { word: why.name(), failure, is_broken }
    }
}

fn is_noscript(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn connect(info: &ConnectionInfo, timeout: Duration) -> Result<Connection, &'static str> {
    let connection =
        Client::open(info.clone()).and_then(|client| client.get_connection_with_timeout(timeout));
    let mut connection = connection.map_err(|error| Word::of(&error).word)?;
    let _ = connection.set_read_timeout(Some(timeout));
    // A server that asks for a password, or is not ready, says so now.
    match ::redis::cmd("PING").exec(&mut connection) {
        Ok(()) => Ok(connection),
        Err(error) => Err(Word::of(&error).word),
    }
}

/// Where a Sentinel sees the master.
fn ask(sentinel: &ConnectionInfo, name: &str, timeout: Duration) -> Result<(String, u16), &'static str> {
    let mut connection = connect(sentinel, timeout)?;
    let mut command = ::redis::cmd("SENTINEL");
    let reply: RedisResult<Option<(String, u16)>> =
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(name).query(&mut connection);
    reply.map_err(|error| Word::of(&error).word)?.ok_or("no_master")
}

fn is_master(connection: &mut Connection, timeout: Duration) -> bool {
    let _ = connection.set_read_timeout(Some(timeout));
    let role: RedisResult<Value> = ::redis::cmd("ROLE").query(connection);
    let Ok(Value::Array(parts)) = role else { return false };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master")
}
