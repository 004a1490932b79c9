//! What is kept of a request until its response is sent and it is over.

use tollgate_core::http::Fields;
use tollgate_core::table::Hold;

use crate::abi::{self, Map};

/// Empty at first, and used again and again.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// Header fields of the response ...
    fields: Fields,
    /// ... and their values, one after another.
    values: Vec<u8>,
    /// Units in flight.
    pub(crate) holds: Vec<Hold>,
}

impl Request {
    /// Keeps what its response is to say; `values` is the buffer that the
    /// fields were written into.
    pub(crate) fn keep(&mut self, fields: Fields, values: &[u8]) {
        let end = fields.as_slice().last().map_or(0, |field| field.end);
        self.values.clear();
        self.values.extend_from_slice(values.get(..end).unwrap_or(&[]));
        self.fields = fields;
    }

    /// Sets the fields of its response, in place of those that an upstream set.
    pub(crate) fn respond(&self) {
        for field in self.fields.as_slice() {
            let value = self.values.get(field.start..field.end).unwrap_or(&[]);
            let _ = abi::set_header(Map::Response, field.name, value); // the client may be gone
        }
    }

    pub(crate) fn clear(&mut self) {
        self.fields = Fields::default();
        self.values.clear();
        self.holds.clear();
    }
}
