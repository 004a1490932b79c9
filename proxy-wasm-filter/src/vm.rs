//! One VM: the plugins that run in it, and the requests that are under way.

use tollgate_core::policy::plugin;

use crate::abi::{self, Action, Buffer, Level, Map};
use crate::answer;
use crate::config;
use crate::filter::Filter;
use crate::frames::{HEAD, head};
use crate::request::Request;
use crate::requests::Requests;

/// All that the host may ask for, by the numbers that it gave.
#[derive(Debug)]
pub(crate) struct Vm {
    plugins: Plugins,
    requests: Requests,
    /// Room of requests that are over.
    #[expect(clippy::vec_box, reason = "it goes to and fro, and is large")]
    spare: Vec<Box<Request>>,
    /// What the log was told of plugins that are where they do nothing.
    misplaced: Vec<&'static str>,
}

#[derive(Debug)]
enum Plugin {
    Filter(Box<Filter>),
    Bridge,
}

/// In the order of their numbers: mostly there is one.
#[derive(Debug)]
struct Plugins(Vec<(u32, Plugin)>);

/// What Redis says at once is shorter, by far.
const LONGEST: usize = 1 << 20;

/// Requests whose memory is kept for those to come.
const SPARE: usize = 64;
/// Requests that are answered in one call of the host's, the others in the next:
/// the host goes on with each within the one before, and has only so much stack.
const AT_ONCE: usize = 128;

impl Vm {
    pub(crate) const fn new() -> Vm {
        Vm {
            plugins: Plugins(Vec::new()),
            requests: Requests::new(),
            spare: Vec::new(),
            misplaced: Vec::new(),
        }
    }

    pub(crate) fn create(&mut self, context: u32, parent: u32) {
        if self.plugins.find(parent).is_some() {
            self.requests.insert(context, parent, self.spare.pop().unwrap_or_default());
        }
    }

    /// A bad configuration is told and refused; the plugin of before, if any,
    /// goes on.
    pub(crate) fn configure(&mut self, context: u32) -> bool {
        let made = abi::buffer(Buffer::Configuration)
            .map_err(|status| format!("no configuration: the host says {}", status.0))
            .and_then(|bytes| config::read(&bytes))
            .and_then(|config| match config {
                plugin::Plugin::Filter(rules, counting) => {
                    Ok(Plugin::Filter(Box::new(Filter::new(context, rules, counting)?)))
                }
                plugin::Plugin::Bridge => Ok(Plugin::Bridge),
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
        let Some(Plugin::Filter(filter)) = self.plugins.find(context) else { return };
        happen(filter);
        let mut is_elsewhere = false;
        for _ in 0..AT_ONCE {
            let Some(told) = filter.poll() else { break };
            // One that is gone was cancelled, so this one is there; but the host has the last word.
            let Some((_, request)) = self.requests.find(told.context) else { continue };
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
        if filter.has_ended() {
            self.plugins.remove(context);
            let _ = abi::end_plugin(); // the host may not have waited
        }
    }

    pub(crate) fn request(&mut self, context: u32, count: usize) -> Action {
        let Some((parent, request)) = self.requests.find(context) else { return Action::Continue };
        match self.plugins.find(parent) {
            Some(Plugin::Filter(filter)) => filter.request(context, count, request),
            Some(Plugin::Bridge) => {
                self.misplaced("role \"bridge\" is a network filter; as an HTTP filter it answers 503");
                answer::misplaced()
            }
            None => Action::Continue,
        }
    }

    pub(crate) fn response(&mut self, context: u32) {
        if let Some((_, request)) = self.requests.find(context) {
            request.reply.send();
        }
    }

    /// A bridge takes the heads of messages off on the way to Redis.
    pub(crate) fn asked(&mut self, context: u32, size: usize) {
        let Some((parent, connection)) = self.requests.find(context) else { return };
        let Some(Plugin::Bridge) = self.plugins.find(parent) else {
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
        let Some((parent, _)) = self.requests.find(context) else { return };
        let Some(Plugin::Bridge) = self.plugins.find(parent) else { return };
        if let Some(size) = u32::try_from(size).ok().filter(|size| *size > 0) {
            let _ = abi::set_buffer(Buffer::Upstream, 0, &head(size)); // in front of all
        }
    }

    /// Says once what is wrong with where a plugin is.
    fn misplaced(&mut self, what: &'static str) {
        if !self.misplaced.contains(&what) {
            self.misplaced.push(what);
            abi::log(Level::Error, &format!("tollgate: {what}"));
        }
    }

    /// A context is over; false of a plugin that has to wait for answers.
    pub(crate) fn end(&mut self, context: u32) -> bool {
        let Some((parent, mut request)) = self.requests.remove(context) else {
            return self.plugins.end(context);
        };
        if request.is_open()
            && let Some(Plugin::Filter(filter)) = self.plugins.find(parent)
        {
            filter.over(context, &request);
        }
        request.clear();
        if self.spare.len() < SPARE {
            self.spare.push(request);
        }
        true
    }
}

impl Plugins {
    fn insert(&mut self, context: u32, plugin: Plugin) {
        match self.find(context) {
            Some(before) => *before = plugin,
            None => {
                let place = self.0.partition_point(|(number, _)| *number < context);
                self.0.insert(place, (context, plugin));
            }
        }
    }

    /// Mostly the first.
    #[inline]
    fn find(&mut self, context: u32) -> Option<&mut Plugin> {
        let is_first = self.0.first().is_some_and(|(number, _)| *number == context);
        let place = if is_first { 0 } else { self.place(context) };
        self.0.get_mut(place).map(|(_, plugin)| plugin)
    }

    fn remove(&mut self, context: u32) {
        self.0.retain(|(number, _)| *number != context);
    }

    fn end(&mut self, context: u32) -> bool {
        if let Some(Plugin::Filter(filter)) = self.find(context) {
            let now = filter.end();
            if !filter.has_ended() {
                // Of two that end and have one configuration, Envoy forgets the first.
                self.0.retain(|(_, plugin)| !matches!(plugin, Plugin::Filter(filter) if filter.is_lost(now)));
                return false;
            }
        }
        self.remove(context);
        true
    }

    /// Behind all if it is not there.
    #[inline(never)]
    fn place(&self, context: u32) -> usize {
        self.0.binary_search_by_key(&context, |(number, _)| *number).unwrap_or(usize::MAX)
    }
}

/// What the host has to hand over; none if it is too much.
fn bytes(which: Buffer, size: usize) -> Option<Vec<u8>> {
    if size > LONGEST { None } else { abi::buffer(which).ok() }
}
