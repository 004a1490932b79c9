//! The text of a Redis key. To be completed.

use crate::policy::{Layer, Rules};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 192;

/// The text of a Redis key.
#[derive(Clone, Copy, Debug)]
pub struct KeyText {
    bytes: [u8; MAX_KEY],
    len: usize,
}

impl Default for KeyText {
    fn default() -> Self {
        KeyText { bytes: [0; MAX_KEY], len: 0 }
    }
}

impl KeyText {
    /// The text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// The key of a layer's limit; of one piece of it, if there are several.
#[must_use]
pub fn write(rules: &Rules, layer: &Layer<'_>, piece: Option<u32>) -> KeyText {
    let _ = (rules, layer, piece);
    KeyText::default()
}

/// The hash tag, as Redis Cluster reads it: what is between the first `{` and
/// the next `}`; all of the key if that is nothing.
#[must_use]
pub fn tag(key: &[u8]) -> &[u8] {
    let inside =
        key.iter().position(|byte| *byte == b'{').and_then(|open| key.get(open + 1..)).and_then(|rest| {
            let close = rest.iter().position(|byte| *byte == b'}')?;
            rest.get(..close)
        });
    inside.filter(|tag| !tag.is_empty()).unwrap_or(key)
}
