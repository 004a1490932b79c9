//! What the workers of a host tell each other of Redis: that it is asked again.
//!
//! Each worker has a connection and a breaker of its own, and finds out by
//! itself that Redis is back. One that has not yet counts in the pages, beside
//! those that ask again, and both admit all that the policies do. So the first
//! leaves word in the host's shared data, and the others, as long as they are
//! without Redis, look there at each tick. Of the word only its version says
//! something: that there is a new one.
//!
//! Who asks again because of a word leaves none: of a Redis that is well for
//! one call and not for the next, they would tell each other for ever.

use crate::abi;

/// The others that go to Redis by the same of the host's clusters.
#[derive(Debug)]
pub(crate) struct Others {
    /// `tollgate-redis/<cluster>`.
    key: Vec<u8>,
    /// Is Redis asked here?
    is_asked: bool,
    /// The version of the last word; 0 before the first.
    heard: u32,
    /// Was it heard since Redis was asked here?
    was_told: bool,
}

impl Others {
    pub(crate) fn new(cluster: &str) -> Others {
        Others {
            key: format!("tollgate-redis/{cluster}").into_bytes(),
            is_asked: false,
            heard: 0,
            was_told: false,
        }
    }

    /// At each tick, whether Redis is asked here. True when it is not, and
    /// another has told since the last tick that it asks again.
    pub(crate) fn ask_again(&mut self, is_asked: bool) -> bool {
        if is_asked && self.is_asked {
            return false;
        }
        let last = self.last();
        let is_new = last != self.heard && !self.is_asked && !is_asked;
        if is_asked && !self.was_told {
            // One that was told in between is as good.
            let _ = abi::set_shared(&self.key, b"", Some(last));
        }
        self.was_told = !is_asked && (self.was_told || is_new);
        (self.heard, self.is_asked) = (last, is_asked);
        is_new
    }

    fn last(&self) -> u32 {
        abi::shared(&self.key).ok().flatten().map_or(0, |(_, version)| version)
    }
}
