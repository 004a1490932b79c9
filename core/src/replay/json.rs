//! Logs of one JSON object a line, as NGINX's `escape=json` writes them.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::engine::Engine;
use super::record::{Defaults, MAX_HEADERS, Slot, Values};
use super::time::Clock;
use crate::policy::Rules;

/// Reads lines of one log.
#[derive(Debug)]
pub(super) struct Json {
    values: Values,
    clock: Clock,
    scratch: Vec<u8>,
}

impl Json {
    pub(super) fn new(rules: &Rules) -> Json {
        Json { values: Values::new(rules.headers().len()), clock: Clock::default(), scratch: Vec::new() }
    }

    /// Asks the rules about one line.
    pub(super) fn line(
        &mut self,
        line: &[u8],
        number: u64,
        defaults: Defaults<'_>,
        engine: &mut Engine<'_>,
    ) -> Result<(), &'static str> {
        let Json { values, clock, scratch } = self;
        values.clear();
        object(line, engine.rules.headers(), values)?;
        let mut headers = [None; MAX_HEADERS];
        let record = values.record(clock, defaults, &mut headers, scratch)?;
        engine.ask(&record, number);
        Ok(())
    }
}

fn object(line: &[u8], headers: &[String], values: &mut Values) -> Result<(), &'static str> {
    let text = utf8(line);
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let read = Object { headers, values }.deserialize(&mut deserializer);
    read.and_then(|()| deserializer.end()).map_err(|_| "not a JSON object")
}

/// NGINX writes what clients send, and that need not be UTF-8, as JSON must
/// be. A byte that is none becomes the character of that number: requests that
/// differ still do.
fn utf8(line: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = core::str::from_utf8(line) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(line.len() * 2);
    for chunk in line.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|&byte| char::from(byte)));
    }
    Cow::Owned(text)
}

struct Object<'v> {
    headers: &'v [String],
    values: &'v mut Values,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(slot) = map.next_key_seed(Name(self.headers))? {
            match slot {
                Some(slot) => map.next_value_seed(Value { slot, values: self.values })?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Name<'v>(&'v [String]);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Option<Slot>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Slot>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<Slot>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Option<Slot>, E> {
        Ok(Slot::named(name.as_bytes(), self.0))
    }
}

/// A value that goes into its slot; what is no text or number is left out.
struct Value<'v> {
    slot: Slot,
    values: &'v mut Values,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.values.put(self.slot, text.as_bytes());
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.visit_str(&number.to_string())
    }

    /// Seconds with a fraction: to the microsecond a double tells them exactly.
    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.visit_str(&format!("{number:.6}"))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
