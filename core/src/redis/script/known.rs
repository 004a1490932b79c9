//! Calls that were written before.
//!
//! What stands behind the key of a call about one limit is the same for all
//! requests of the same cost: a dozen numbers, worked out and written in
//! decimal. It is written once and kept, as bytes of the protocol, of the
//! limits that were asked last.

use alloc::boxed::Box;

use super::super::resp::Encoder;
use super::{Call, Op, arguments};
use crate::limit::{Algorithm, Limit};

/// How many are kept.
const KEPT: usize = 16;
/// The longest that is kept; those of most limits are half as long.
const ROOM: usize = 256;

/// What calls said behind their key.
#[derive(Debug)]
pub struct Known(Box<[Option<Tail>]>);

#[derive(Clone, Copy, Debug)]
struct Tail {
    limit: Limit,
    cost: u64,
    share: u64,
    bytes: [u8; ROOM],
    len: usize,
    arguments: u32,
}

impl Known {
    /// Nothing is known; nothing when there is no memory.
    pub(crate) fn new() -> Option<Known> {
        let mut tails = alloc::vec::Vec::new();
        tails.try_reserve_exact(KEPT).ok()?;
        tails.resize(KEPT, None);
        Some(Known(tails.into_boxed_slice()))
    }

    /// Writes the arguments of a call, those that are known as they were
    /// written before.
    pub(crate) fn write(&mut self, call: &Call<'_>, command: &mut Encoder<'_>) {
        let ([ask], Op::Check { cost, more: 0, share, owed: 0, .. }) = (call.asks, call.op) else {
            return arguments::write(call, &mut |argument| command.arg(argument));
        };
        command.encoded(b"$1\r\n1\r\n", 1);
        command.arg(ask.key);
        let place = (ask.limit.hash as usize ^ cost as usize) % KEPT; // any bits will do
        let Some(room) = self.0.get_mut(place) else { return };
        if let Some(tail) = room
            && (tail.cost, tail.share) == (cost, share)
            && tail.limit == *ask.limit
        {
            return command.encoded(tail.bytes.get(..tail.len).unwrap_or(&[]), tail.arguments);
        }
        let before = command.mark();
        arguments::write_behind_keys(call, &mut |argument| command.arg(argument));
        if ask.limit.algorithm() == Algorithm::Concurrency {
            return; // its calls have names
        }
        let (written, arguments) = command.since(before);
        let mut tail =
            Tail { limit: *ask.limit, cost, share, bytes: [0; ROOM], len: written.len(), arguments };
        if let Some(bytes) = tail.bytes.get_mut(..written.len()) {
            bytes.copy_from_slice(written);
            *room = Some(tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ask;
    use super::*;
    use std::vec::Vec;

    fn encoded(call: &Call<'_>, known: Option<&mut Known>) -> Vec<u8> {
        let mut buffer = [0; 1024];
        let mut command = Encoder::new(&mut buffer);
        match known {
            Some(known) => known.write(call, &mut command),
            None => call.arguments(&mut |argument| command.arg(argument)),
        }
        command.finish().unwrap().to_vec()
    }

    #[test]
    fn what_is_known_is_what_would_be_written() {
        let limits =
            ["10/s", "10/s burst 20", "700/m", "fixed_window 10/s", "sliding_log 3/h", "concurrency 5/m"];
        let mut known = Known::new().unwrap();
        for round in 0..3u64 {
            for text in limits {
                let limit: Limit = text.parse().unwrap();
                for (cost, more, share, owed) in
                    [(1, 0, 2, 0), (2, 0, 2, 0), (1, 0, 4, 0), (1, 5, 2, 0), (1, 0, 2, 3)]
                {
                    let asks = [Ask { key: b"tg:{u}:p", limit: &limit }];
                    let call =
                        Call { asks: &asks, op: Op::Check { cost, more, share, owed, id: round * 2 + 1 } };
                    assert_eq!(encoded(&call, Some(&mut known)), encoded(&call, None), "{text}, {cost}");
                }
            }
        }
    }
}
