//! gRPC messages as the bridge sees them: each is a byte that says whether it
//! is compressed, four of its length (the highest first), and its bytes. Where
//! the pieces of a stream end says nothing about where messages do.

/// The head of a message.
pub(crate) const HEAD: usize = 5;

/// Takes the heads out of a stream of messages.
#[derive(Debug, Default)]
pub(crate) struct Unframer {
    /// Bytes of the head that came.
    have: usize,
    length: u32,
    /// Bytes of the message that are still to come.
    left: usize,
}

impl Unframer {
    /// Are so many bytes one whole message that begins so? Then its head is all
    /// there is to take.
    pub(crate) fn is_whole(&self, start: &[u8], size: usize) -> bool {
        let length = start.get(1..HEAD).and_then(|length| length.try_into().ok()).map(u32::from_be_bytes);
        (self.have, self.left) == (0, 0)
            && length.map(|length| HEAD.saturating_add(length as usize)) == Some(size)
    }

    /// The messages' bytes in this piece of the stream.
    pub(crate) fn unframe(&mut self, mut piece: &[u8]) -> Vec<u8> {
        let mut plain = Vec::with_capacity(piece.len());
        loop {
            let (message, rest) = piece.split_at_checked(self.left).unwrap_or((piece, &[]));
            plain.extend_from_slice(message);
            self.left = self.left.saturating_sub(message.len());
            let Some((byte, rest)) = rest.split_first() else { return plain };
            piece = rest;
            if self.have > 0 {
                self.length = self.length << 8 | u32::from(*byte);
            }
            self.have = self.have.saturating_add(1);
            if self.have == HEAD {
                self.left = self.length as usize;
                (self.have, self.length) = (0, 0);
            }
        }
    }
}

/// The head of a message of so many bytes.
pub(crate) fn head(size: u32) -> [u8; HEAD] {
    let [a, b, c, d] = size.to_be_bytes();
    [0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&head(message.len() as u32), message].concat()
    }

    #[test]
    fn however_a_stream_is_cut_its_messages_are_the_same() {
        let long = vec![7; 70_000];
        let messages: [&[u8]; 5] = [b"a", b"*1\r\n$4\r\nPING\r\n", &long, b"", b"end"];
        let mut stream = Vec::new();
        for message in messages {
            stream.extend(framed(message));
        }
        stream.splice(0..0, [0, 0, 0, 0, 0]); // a message without bytes
        let plain = messages.concat();
        for size in [1, 2, 3, 5, 7, 1000, 69_999, stream.len()] {
            let mut unframer = Unframer::default();
            let pieces = stream.chunks(size).flat_map(|piece| unframer.unframe(piece));
            assert!(pieces.eq(plain.iter().copied()), "{size}");
        }
    }

    #[test]
    fn whole_is_one_message_and_not_a_byte_more_or_less() {
        let stream = framed(b"PING\r\n");
        let (start, rest) = stream.split_at(HEAD + 2);
        let (part, _) = stream.split_at(HEAD - 2);
        let mut unframer = Unframer::default();
        assert!((0..20).all(|size| unframer.is_whole(&stream, size) == (size == stream.len())));
        assert!(!unframer.is_whole(part, stream.len()), "a part of a head");
        unframer.unframe(start);
        assert!(!unframer.is_whole(&stream, stream.len()), "within another");
        unframer.unframe(rest);
        unframer.unframe(part);
        assert!(!unframer.is_whole(&stream, stream.len()), "within a head");
    }
}
