//! One VM: the plugins that run in it, and the requests that are under way.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::abi::{self, Action, Level};
use crate::config::Config;
use crate::filter::Filter;
use crate::request::Request;

/// All that the host may ask for, by the numbers that it gave.
#[derive(Debug, Default)]
pub(crate) struct Vm {
    filters: Ids<Filter>,
    requests: Ids<(u32, Request)>,
    /// Room of requests that are over.
    spare: Vec<Request>,
}

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
        if self.filters.contains_key(&parent) {
            let request = self.spare.pop().unwrap_or_default();
            self.requests.insert(context, (parent, request));
        }
    }

    /// A bad configuration is told and refused; the plugin of before, if any,
    /// goes on.
    pub(crate) fn configure(&mut self, context: u32) -> bool {
        let made = abi::configuration()
            .map_err(|status| format!("no configuration: the host says {}", status.0))
            .and_then(|bytes| Config::read(&bytes))
            .and_then(Filter::new);
        match made {
            Ok(filter) => {
                let _ = abi::set_tick(filter.tick()); // without it, leases go back when they are next looked at
                self.filters.insert(context, filter);
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
        if let Some(filter) = self.filters.get_mut(&context) {
            filter.tick_passed();
        }
    }

    pub(crate) fn request(&mut self, context: u32) -> Action {
        let Some((parent, request)) = self.requests.get_mut(&context) else { return Action::Continue };
        let Some(filter) = self.filters.get_mut(parent) else { return Action::Continue };
        filter.request(request)
    }

    pub(crate) fn response(&mut self, context: u32) {
        if let Some((_, request)) = self.requests.get(&context) {
            request.respond();
        }
    }

    pub(crate) fn delete(&mut self, context: u32) {
        if let Some((parent, mut request)) = self.requests.remove(&context) {
            if let Some(filter) = self.filters.get_mut(&parent) {
                filter.over(&request);
            }
            request.clear();
            if self.spare.len() < SPARE {
                self.spare.push(request);
            }
        } else if let Some(mut filter) = self.filters.remove(&context) {
            filter.end();
        }
    }
}
