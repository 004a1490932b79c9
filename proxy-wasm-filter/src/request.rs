//! What is kept of a request until its response is sent and it is over.

use tollgate_core::http::{BufferTooSmall, Fields, LIST_SIZE};
use tollgate_core::policy::Answer;
use tollgate_core::redis::store::Pending;
use tollgate_core::table::Hold;
use tollgate_core::time::Nanos;

use crate::abi::{self, Map};
use crate::frames::Unframer;
use crate::look::Look;

/// Values of most responses' fields are shorter, in bytes.
const SHORT: usize = 128;

/// Empty at first, and used again and again.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// What the rules look at: a request that waited is looked at again.
    pub(crate) look: Look,
    /// What is said to it.
    pub(crate) reply: Reply,
    /// It waits for its answer.
    pub(crate) pending: Option<Pending>,
    /// Since then.
    pub(crate) asked_at: Nanos,
    /// What the pages said meanwhile.
    pub(crate) ours: Option<Box<Answer>>,
    /// Of a bridge's stream: what is still to come of a message.
    pub(crate) unframer: Unframer,
}

/// Header fields of a response, and what its end gives back.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    fields: Fields,
    /// The fields' values, one after another.
    values: Vec<u8>,
    /// Units in flight: in pages or not, and which.
    pub(crate) holds: Vec<(bool, Hold)>,
}

impl Request {
    /// Is there something to give back, or to call off?
    pub(crate) fn is_open(&self) -> bool {
        self.pending.is_some() || !self.reply.holds.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.look.clear();
        self.reply.forget_fields();
        if self.reply.values.len() > SHORT {
            self.reply.values = Vec::new();
        }
        self.reply.holds.clear();
        (self.pending, self.ours) = (None, None);
        self.unframer = Unframer::default();
    }
}

impl Reply {
    /// Keeps what the response is to say, as it is written into a buffer.
    pub(crate) fn keep(&mut self, write: impl Fn(&mut Fields, &mut [u8]) -> Result<(), BufferTooSmall>) {
        for size in [SHORT, LIST_SIZE] {
            if self.values.len() < size {
                self.values.resize(size, 0);
            }
            if write(&mut self.fields, &mut self.values).is_ok() {
                break;
            }
        }
    }

    /// Sets the fields of its response, in place of those that an upstream set.
    pub(crate) fn send(&self) {
        for (name, value) in self.fields() {
            let _ = abi::set_header(Map::Response, name, value); // the client may be gone
        }
    }

    /// The fields that are still to be set.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let value = |start, end| self.values.get(start..end).unwrap_or(&[]);
        self.fields.as_slice().iter().map(move |field| (field.name, value(field.start, field.end)))
    }

    /// They are set.
    pub(crate) fn forget_fields(&mut self) {
        self.fields.clear();
    }
}
