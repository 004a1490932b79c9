//! gRPC messages as the bridge sees them: each is a byte that says whether it
//! is compressed, four of its length (the highest first), and its bytes. Where
//! the pieces of a stream end says nothing about where messages do.

/// The head of a message.
const HEAD: usize = 5;

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

/// One message of these bytes; nothing of none.
pub(crate) fn frame(bytes: &[u8]) -> Vec<u8> {
    let Some(length) = u32::try_from(bytes.len()).ok().filter(|length| *length > 0) else {
        return Vec::new();
    };
    let mut message = Vec::with_capacity(bytes.len().saturating_add(HEAD));
    message.push(0);
    message.extend(length.to_be_bytes());
    message.extend_from_slice(bytes);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_a_stream_is_cut_its_messages_are_the_same() {
        let long = vec![7; 70_000];
        let messages: [&[u8]; 5] = [b"a", b"*1\r\n$4\r\nPING\r\n", &long, b"", b"end"];
        let mut stream = Vec::new();
        for message in messages {
            stream.extend(frame(message));
        }
        stream.splice(0..0, [0, 0, 0, 0, 0]); // a message without bytes
        let plain = messages.concat();
        for size in [1, 2, 3, 5, 7, 1000, 69_999, stream.len()] {
            let mut unframer = Unframer::default();
            let pieces = stream.chunks(size).flat_map(|piece| unframer.unframe(piece));
            assert!(pieces.eq(plain.iter().copied()), "{size}");
        }
    }
}
