//! The limits of one policy, as a call asks them.

use super::super::key::KeyText;
use super::super::script::Ask;
use crate::limit::Limit;

/// Hands these limits over with their keys, of which there are at most `N`;
/// none if there is no limit. `piece` is the number of a divided key's piece.
pub(super) fn with<'l, const N: usize, R>(
    text: &KeyText,
    piece: Option<u32>,
    limits: impl Iterator<Item = &'l Limit> + Clone,
    call: impl FnOnce(&[Ask<'_>]) -> R,
) -> Option<R> {
    let first = limits.clone().next()?;
    if limits.clone().nth(1).is_none() {
        let mut room = KeyText::default();
        let key = text.first(piece, first.algorithm(), &mut room);
        return Some(call(&[Ask { key, limit: first }]));
    }
    let mut keys = [KeyText::default(); N];
    for (index, (room, limit)) in keys.iter_mut().zip(limits.clone()).enumerate() {
        *room = text.of(piece, index, limit.algorithm());
    }
    let mut asks = [Ask { key: &[], limit: first }; N];
    let mut count = 0;
    for ((ask, key), limit) in asks.iter_mut().zip(&keys).zip(limits) {
        *ask = Ask { key: key.as_bytes(), limit };
        count += 1;
    }
    Some(call(asks.get(..count).unwrap_or(&[])))
}
