//! JSON with positions: every value knows where in the document it stands, so
//! that an error can say line, column and field.
//!
//! The parsing itself is `serde_json`'s; a value here is the piece of text
//! that it found, looked into one level at a time.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde_core::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::parse::MAX_DOCUMENT;

/// What is wrong with a document, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {}{message}{}", At(.path), Of(.policy))]
pub struct RuleError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The field, such as `policies[3].limits[0].rate`; empty for the whole.
    pub path: String,
    /// The name of the policy that the field belongs to; empty where it belongs
    /// to none, or to one without a name.
    pub policy: String,
    /// What is wrong, and what is legal.
    pub message: String,
}

struct At<'p>(&'p str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

struct Of<'n>(&'n str);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " (policy {})", self.0) }
    }
}

/// More errors than this are not collected.
const MAX_ERRORS: usize = 100;
/// The most fields of one object.
const MAX_MEMBERS: usize = 64;

/// The document that is being read, and what was found wrong with it.
pub(super) struct Reader<'d> {
    text: &'d str,
    errors: Vec<RuleError>,
}

/// The way from the root to a value.
#[derive(Clone, Copy)]
pub(super) enum Path<'p> {
    Root,
    Field(&'p Path<'p>, &'p str),
    Index(&'p Path<'p>, usize),
}

/// One value.
#[derive(Clone, Copy)]
pub(super) struct Node<'d, 'p> {
    pub(super) text: &'d str,
    pub(super) path: Path<'p>,
}

/// The members of an object, those not yet taken.
pub(super) struct Object<'d, 'p> {
    path: Path<'p>,
    at: &'d str,
    members: Vec<(Cow<'d, str>, &'d str)>,
    known: Vec<&'static str>,
}

impl<'d> Reader<'d> {
    /// A byte order mark is no part of the document: some editors write one, and
    /// RFC 8259, section 8.1, lets a reader ignore it.
    pub(super) fn new(text: &'d str) -> Reader<'d> {
        Reader { text: text.strip_prefix('\u{feff}').unwrap_or(text), errors: Vec::new() }
    }

    /// The whole document, if it is JSON at all.
    pub(super) fn root(&mut self) -> Option<Node<'d, 'static>> {
        if self.text.len() > MAX_DOCUMENT {
            let message = format!("{} bytes; at most {MAX_DOCUMENT} are legal", self.text.len());
            self.fail_at(self.text, Path::Root, message);
            return None;
        }
        match serde_json::from_str::<&RawValue>(self.text) {
            Ok(raw) => Some(Node { text: raw.get(), path: Path::Root }),
            Err(error) => {
                let message = strip_position(&error.to_string());
                self.errors.push(RuleError {
                    line: error.line().max(1),
                    column: error.column().max(1),
                    path: String::new(),
                    policy: String::new(),
                    message: format!("not JSON: {message}"),
                });
                None
            }
        }
    }

    pub(super) fn fail(&mut self, node: Node<'d, '_>, message: impl Into<String>) {
        self.fail_at(node.text, node.path, message.into());
    }

    pub(super) fn finish(self) -> Vec<RuleError> {
        self.errors
    }

    pub(super) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// How many errors there are so far, for [`name_since`](Self::name_since).
    pub(super) fn mark(&self) -> usize {
        self.errors.len()
    }

    /// The errors since that mark belong to this policy.
    pub(super) fn name_since(&mut self, mark: usize, policy: &str) {
        for error in self.errors.iter_mut().skip(mark) {
            error.policy = policy.to_string();
        }
    }

    fn fail_at(&mut self, at: &str, path: Path<'_>, message: String) {
        if self.errors.len() >= MAX_ERRORS {
            return;
        }
        // The value is a piece of the document: its place is the distance.
        let offset = (at.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize).min(self.text.len());
        let before = self.text.get(..offset).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        self.errors.push(RuleError {
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).map_or(0, |line| line.chars().count()) + 1,
            path: path.to_string(),
            policy: String::new(),
            message,
        });
    }

    pub(super) fn object<'p>(&mut self, node: Node<'d, 'p>) -> Option<Object<'d, 'p>> {
        let members = match serde_json::from_str::<Members<'d>>(node.text) {
            Ok(members) => members.0,
            Err(_) => {
                self.fail(node, format!("expected an object, found {}", kind(node.text)));
                return None;
            }
        };
        if members.len() > MAX_MEMBERS {
            self.fail(node, format!("{} fields; at most {MAX_MEMBERS} are legal", members.len()));
            return None;
        }
        for (index, (name, value)) in members.iter().enumerate() {
            if members.iter().take(index).any(|(earlier, _)| earlier == name) {
                self.fail_at(value, Path::Field(&node.path, name), "this field stands here twice".into());
            }
        }
        Some(Object { path: node.path, at: node.text, members, known: Vec::new() })
    }

    pub(super) fn array(&mut self, node: Node<'d, '_>) -> Option<Vec<&'d str>> {
        match serde_json::from_str::<Vec<&'d RawValue>>(node.text) {
            Ok(items) => Some(items.into_iter().map(RawValue::get).collect()),
            Err(_) => {
                self.fail(node, format!("expected an array, found {}", kind(node.text)));
                None
            }
        }
    }

    pub(super) fn string(&mut self, node: Node<'d, '_>) -> Option<Cow<'d, str>> {
        match serde_json::from_str::<Text<'d>>(node.text) {
            Ok(text) => Some(text.0),
            Err(_) => {
                self.fail(node, format!("expected a string, found {}", kind(node.text)));
                None
            }
        }
    }

    /// A string, or `true`, which is `None`.
    pub(super) fn string_or_true(&mut self, node: Node<'d, '_>) -> Option<Option<Cow<'d, str>>> {
        if node.text == "true" {
            return Some(None);
        }
        if !node.text.starts_with('"') {
            self.fail(node, format!("expected true or a string, found {}", kind(node.text)));
            return None;
        }
        self.string(node).map(Some)
    }

    pub(super) fn boolean(&mut self, node: Node<'d, '_>) -> Option<bool> {
        let value = serde_json::from_str(node.text).ok();
        if value.is_none() {
            self.fail(node, format!("expected true or false, found {}", kind(node.text)));
        }
        value
    }

    /// A whole number within a range.
    pub(super) fn number(&mut self, node: Node<'d, '_>, least: u64, most: u64) -> Option<u64> {
        let value = serde_json::from_str::<u64>(node.text).ok().filter(|n| (least..=most).contains(n));
        if value.is_none() {
            let found = if kind(node.text) == "a number" { node.text } else { kind(node.text) };
            self.fail(node, format!("expected a whole number from {least} to {most}, found {found}"));
        }
        value
    }

    /// One of several words.
    pub(super) fn choice<T: Copy>(&mut self, node: Node<'d, '_>, legal: &[(&str, T)]) -> Option<T> {
        let words: Vec<_> = legal.iter().map(|(word, _)| *word).collect();
        let place = self.word(node, &words)?;
        legal.get(place).map(|(_, value)| *value)
    }

    fn word(&mut self, node: Node<'d, '_>, legal: &[&str]) -> Option<usize> {
        let word = self.string(node)?;
        let found = legal.iter().position(|legal| *legal == word);
        if found.is_none() {
            self.fail(node, format!("expected one of {}", legal.join(", ")));
        }
        found
    }

    /// What is left of an object is not known.
    pub(super) fn end(&mut self, object: &Object<'d, '_>) {
        for (name, value) in &object.members {
            let legal = object.known.join(", ");
            self.fail_at(
                value,
                Path::Field(&object.path, name),
                format!("unknown field; the fields here are {legal}"),
            );
        }
    }

    /// A field that must be there.
    pub(super) fn required<'p>(
        &mut self,
        object: &mut Object<'d, 'p>,
        name: &'static str,
    ) -> Option<&'d str> {
        let found = object.take(name);
        if found.is_none() {
            self.fail_at(object.at, object.path, format!("the field {name:?} is missing"));
        }
        found
    }
}

impl<'d, 'p> Object<'d, 'p> {
    /// Takes a field out; the last one if it stands there twice.
    pub(super) fn take(&mut self, name: &'static str) -> Option<&'d str> {
        self.known.push(name);
        let mut found = None;
        self.members.retain(|(member, value)| {
            let is_it = member == name;
            if is_it {
                found = Some(*value);
            }
            !is_it
        });
        found
    }

    /// All members, for objects whose names are free.
    pub(super) fn drain(&mut self) -> Vec<(Cow<'d, str>, &'d str)> {
        core::mem::take(&mut self.members)
    }

    /// Has every member been taken?
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn path(&self) -> Path<'p> {
        self.path
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// What kind of value a text is, for messages.
fn kind(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't') => "true",
        Some(b'f') => "false",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// `serde_json` ends its messages with the place, which stands elsewhere here.
fn strip_position(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(what, _)| what).to_string()
}

struct Members<'d>(Vec<(Cow<'d, str>, &'d str)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
                    members.push((name, map.next_value::<&'de RawValue>()?.get()));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Walk)
    }
}

/// A string, borrowed where it has no escapes.
struct Text<'d>(Cow<'d, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_string())))
            }
        }
        deserializer.deserialize_str(Walk)
    }
}
