//! One VM: the plugins that run in it, and the requests that are under way.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::abi::{self, Action, Buffer, Level, Map};
use crate::answer;
use crate::config::Config;
use crate::filter::Filter;
use crate::frames::{HEAD, head};
use crate::request::Request;

/// All that the host may ask for, by the numbers that it gave.
#[derive(Debug, Default)]
pub(crate) struct Vm {
    plugins: Ids<Plugin>,
    requests: Ids<(u32, Box<Request>)>,
    /// Room of requests that are over.
    #[expect(clippy::vec_box, reason = "it goes to and fro, and is large")]
    spare: Vec<Box<Request>>,
    /// The log was told that a plugin is where it does nothing.
    is_misplaced: bool,
}

#[derive(Debug)]
enum Plugin {
    Filter(Box<Filter>),
    Bridge,
}

/// What Redis says at once is shorter, by far.
const LONGEST: usize = 1 << 20;

/// Requests whose memory is kept for those to come.
const SPARE: usize = 64;

type Ids<T> = HashMap<u32, T, BuildHasherDefault<Id>>;

/// The host's numbers are its own and count up: they spread well enough.
#[derive(Debug, Default)]
struct Id(u64);

impl Hasher for Id {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Vm {
    pub(crate) fn create(&mut self, context: u32, parent: u32) {
        if self.plugins.contains_key(&parent) {
            let request = self.spare.pop().unwrap_or_default();
            self.requests.insert(context, (parent, request));
        }
    }

    /// A bad configuration is told and refused; the plugin of before, if any,
    /// goes on.
    pub(crate) fn configure(&mut self, context: u32) -> bool {
        let made = abi::buffer(Buffer::Configuration)
            .map_err(|status| format!("no configuration: the host says {}", status.0))
            .and_then(|bytes| Config::read(&bytes))
            .and_then(|config| match config {
                Config::Filter(rules, counting) => {
                    Ok(Plugin::Filter(Box::new(Filter::new(context, rules, counting)?)))
                }
                Config::Bridge => Ok(Plugin::Bridge),
            });
        match made {
            Ok(plugin) => {
                if let Plugin::Filter(filter) = &plugin {
                    let _ = abi::set_tick(filter.tick()); // without it, time passes with requests only
                }
                self.plugins.insert(context, plugin);
                true
            }
            Err(message) => {
                for line in message.lines() {
                    abi::log(Level::Error, &format!("tollgate: {line}"));
                }
                false
            }
        }
    }

    pub(crate) fn tick(&mut self, context: u32) {
        self.with_filter(context, Filter::tick_passed);
    }

    /// A message came on a stream that the plugin opened.
    pub(crate) fn message(&mut self, context: u32, token: u32, size: usize) {
        let bytes = bytes(Buffer::Message, size);
        self.with_filter(context, |filter| filter.message(token, bytes.as_deref()));
    }

    /// An HTTP call that the plugin made was answered, or failed.
    pub(crate) fn posted(&mut self, context: u32, token: u32, is_answered: bool, size: usize) {
        let is_ok = || abi::header(Map::PostResponse, ":status").ok().flatten().as_deref() == Some(b"200");
        let body = match (is_answered && is_ok(), size) {
            (false, _) => None,
            (true, 0) => Some(Vec::new()),
            (true, size) => bytes(Buffer::PostResponseBody, size),
        };
        self.with_filter(context, |filter| filter.posted(token, body));
    }

    pub(crate) fn closed(&mut self, context: u32, token: u32) {
        self.with_filter(context, |filter| filter.closed(token));
    }

    /// Something happened to a plugin: requests that waited may be answered.
    fn with_filter(&mut self, context: u32, happen: impl FnOnce(&mut Filter)) {
        let Some(Plugin::Filter(filter)) = self.plugins.get_mut(&context) else { return };
        happen(filter);
        let mut is_elsewhere = false;
        while let Some(told) = filter.poll() {
            // One that is gone was cancelled, so this one is there; but the host has the last word.
            let Some((_, request)) = self.requests.get_mut(&told.context) else { continue };
            is_elsewhere = true;
            if abi::set_context(told.context).is_ok() {
                if let Action::Continue = filter.told(told, request) {
                    let _ = abi::go_on(); // the client may be gone
                }
            } else {
                request.pending = None;
            }
        }
        if is_elsewhere {
            let _ = abi::set_context(context); // it is the plugin that is called
        }
        filter.flush();
    }

    pub(crate) fn request(&mut self, context: u32, count: usize) -> Action {
        let Some((parent, request)) = self.requests.get_mut(&context) else { return Action::Continue };
        match self.plugins.get_mut(parent) {
            Some(Plugin::Filter(filter)) => filter.request(context, count, request),
            Some(Plugin::Bridge) => {
                self.misplaced("role \"bridge\" is a network filter; as an HTTP filter it answers 503");
                answer::misplaced()
            }
            None => Action::Continue,
        }
    }

    pub(crate) fn response(&mut self, context: u32) {
        if let Some((_, request)) = self.requests.get(&context) {
            request.reply.send();
        }
    }

    /// A bridge takes the heads of messages off on the way to Redis.
    pub(crate) fn asked(&mut self, context: u32, size: usize) {
        let Some((parent, connection)) = self.requests.get_mut(&context) else { return };
        let Some(Plugin::Bridge) = self.plugins.get(parent) else {
            return self
                .misplaced("role \"filter\" is an HTTP filter, and limits nothing as a network filter");
        };
        let start = abi::start_of_buffer(Buffer::Downstream, HEAD).unwrap_or_default();
        let (old, new) = if connection.unframer.is_whole(&start, size) {
            (HEAD, Vec::new())
        } else {
            let Ok(bytes) = abi::buffer(Buffer::Downstream) else { return };
            (size, connection.unframer.unframe(&bytes))
        };
        let _ = abi::set_buffer(Buffer::Downstream, old, &new); // the connection may be gone
    }

    /// What Redis says goes back as one message.
    pub(crate) fn replied(&mut self, context: u32, size: usize) {
        let Some((parent, _)) = self.requests.get(&context) else { return };
        let Some(Plugin::Bridge) = self.plugins.get(parent) else { return };
        if let Some(size) = u32::try_from(size).ok().filter(|size| *size > 0) {
            let _ = abi::set_buffer(Buffer::Upstream, 0, &head(size)); // in front of all
        }
    }

    /// Says once what is wrong with where a plugin is.
    fn misplaced(&mut self, what: &str) {
        if !self.is_misplaced {
            abi::log(Level::Error, &format!("tollgate: {what}"));
        }
        self.is_misplaced = true;
    }

    pub(crate) fn delete(&mut self, context: u32) {
        if let Some((parent, mut request)) = self.requests.remove(&context) {
            if let Some(Plugin::Filter(filter)) = self.plugins.get_mut(&parent) {
                filter.over(context, &request);
            }
            request.clear();
            if self.spare.len() < SPARE {
                self.spare.push(request);
            }
        } else if let Some(Plugin::Filter(mut filter)) = self.plugins.remove(&context) {
            filter.end();
        }
    }
}

/// What the host has to hand over; none if it is too much.
fn bytes(which: Buffer, size: usize) -> Option<Vec<u8>> {
    if size > LONGEST { None } else { abi::buffer(which).ok() }
}
