//! The requests that are under way, by the numbers that the host gave them.
//!
//! These count up, so a request finds its place among so many by its number
//! alone, unless one that lasts longer has it: then it goes to a map.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::request::Request;

/// Places; a power of two.
const PLACES: usize = 256;

/// Requests, each with its plugin's number.
#[derive(Debug)]
pub(crate) struct Requests {
    /// All of them, as soon as there is one.
    near: Vec<Place>,
    far: HashMap<u32, (u32, Box<Request>), BuildHasherDefault<Id>>,
}

#[derive(Debug, Default)]
struct Place {
    context: u32,
    parent: u32,
    request: Option<Box<Request>>,
}

/// They spread well enough.
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

impl Requests {
    pub(crate) const fn new() -> Requests {
        Requests { near: Vec::new(), far: HashMap::with_hasher(BuildHasherDefault::new()) }
    }

    pub(crate) fn insert(&mut self, context: u32, parent: u32, request: Box<Request>) {
        if self.near.is_empty() {
            self.near.resize_with(PLACES, Place::default);
        }
        match self.near.get_mut(context as usize % PLACES) {
            Some(place) if place.request.is_none() || place.context == context => {
                (place.context, place.parent, place.request) = (context, parent, Some(request));
            }
            _ => {
                self.far.insert(context, (parent, request));
            }
        }
    }

    /// A request, and its plugin.
    pub(crate) fn find(&mut self, context: u32) -> Option<(u32, &mut Request)> {
        if let Some(Place { context: here, parent, request: Some(request) }) =
            self.near.get_mut(context as usize % PLACES)
            && *here == context
        {
            return Some((*parent, request));
        }
        self.far.get_mut(&context).map(|(parent, request)| (*parent, &mut **request))
    }

    pub(crate) fn remove(&mut self, context: u32) -> Option<(u32, Box<Request>)> {
        if let Some(place) = self.near.get_mut(context as usize % PLACES)
            && place.context == context
            && let Some(request) = place.request.take()
        {
            return Some((place.parent, request));
        }
        self.far.remove(&context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_lasts_keeps_its_place_and_others_have_theirs() {
        let mut requests = Requests::new();
        for round in 0..4 {
            for number in 0..300_u32 {
                let context = 7 + 256 * round + number;
                requests.insert(context, number, Box::default());
                if number != 0 {
                    assert_eq!(requests.find(context).map(|(parent, _)| parent), Some(number));
                    assert_eq!(requests.remove(context).map(|(parent, _)| parent), Some(number));
                    assert!(requests.find(context).is_none() && requests.remove(context).is_none());
                }
            }
        }
        for round in 0..4 {
            assert_eq!(requests.remove(7 + 256 * round).map(|(parent, _)| parent), Some(0));
        }
        assert!(requests.far.is_empty());
    }
}
