//! RESP2, the language of Redis: commands out, replies in, by bytes.
//!
//! A command is an array of bulk strings; [`Encoder`] writes one into a buffer
//! of fixed size. A reply is read part by part: [`Reader`] keeps only where in
//! the nested arrays it is, and takes one [`Part`] at a time from the front of
//! what has come. So a long reply needs no room as a whole, and a part that is
//! cut is read again when more of it is there.
//!
//! The other end is not believed. Every length has a bound, and what is no
//! RESP2 is an error after which the stream has no meaning: nothing panics,
//! nothing grows, and a part is decided within [`MAX_LINE`] bytes, or within
//! the bytes of a bulk string that fits.

/// The longest line: a type, a text and its end, in bytes.
pub const MAX_LINE: usize = 1024;
/// Arrays in arrays: `CLUSTER SLOTS` has four.
pub const MAX_DEPTH: usize = 8;
/// The longest array: as many ranges as a cluster has slots fit four times.
pub const MAX_ARRAY: u32 = 1 << 16;
/// The most parts of one reply.
pub const MAX_PARTS: u32 = 1 << 20;

/// Room for the head of a command: `*`, a number, CR LF.
const HEAD: usize = 16;

/// What the other end sent is not RESP2, or beyond its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The first byte of a reply.
    #[error("{0:#04x} begins no reply: one of + - : $ * does")]
    Type(u8),
    /// A line without its end.
    #[error("a line does not end, with CR LF, within {MAX_LINE} bytes")]
    Line,
    /// No 64-bit decimal number.
    #[error("a number is not decimal, or has more than 64 bits")]
    Number,
    /// A bulk string that is longer than the buffer, or has no end.
    #[error("a bulk string is longer than the buffer, or does not end with CR LF")]
    Bulk,
    /// An array of too many, or too deep, or with too much in it.
    #[error("an array has more than {MAX_ARRAY} elements, is deeper than {MAX_DEPTH}, or never ends")]
    Array,
}

/// Writes one command into a buffer, argument by argument. What does not fit
/// is not written, and [`finish`](Encoder::finish) says so.
///
/// ```
/// use tollgate_core::redis::resp::Encoder;
///
/// let mut buffer = [0; 64];
/// let mut command = Encoder::new(&mut buffer);
/// command.arg(b"SELECT");
/// command.number(7);
/// assert_eq!(command.finish(), Some(&b"*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n"[..]));
/// ```
#[derive(Debug)]
pub struct Encoder<'b> {
    buffer: &'b mut [u8],
    end: usize,
    count: u32,
    full: bool,
}

impl<'b> Encoder<'b> {
    /// An empty command. Of the buffer, 16 bytes are for its head.
    pub fn new(buffer: &'b mut [u8]) -> Self {
        let full = buffer.len() < HEAD;
        Encoder { buffer, end: HEAD, count: 0, full }
    }

    /// One more argument, any bytes.
    pub fn arg(&mut self, bytes: &[u8]) {
        self.put_len(bytes.len());
        self.put(bytes);
        self.put_end();
        self.count = self.count.saturating_add(1);
    }

    /// So many arguments more, as they were written before.
    pub(crate) fn encoded(&mut self, bytes: &[u8], arguments: u32) {
        self.put(bytes);
        self.count = self.count.saturating_add(arguments);
    }

    /// How far it is written.
    pub(crate) fn mark(&self) -> (usize, u32) {
        (self.end, self.count)
    }

    /// What was written since, and how many arguments that is; nothing if it
    /// did not fit.
    pub(crate) fn since(&self, (start, count): (usize, u32)) -> (&[u8], u32) {
        let written = self.buffer.get(start..self.end).filter(|_| !self.full);
        (written.unwrap_or(&[]), self.count.saturating_sub(count))
    }

    /// One more argument, in decimal.
    pub fn number(&mut self, number: u64) {
        self.arg(itoa::Buffer::new().format(number).as_bytes());
    }

    /// The command; nothing if the buffer was too small.
    #[must_use]
    pub fn finish(self) -> Option<&'b [u8]> {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(self.count).as_bytes();
        if self.full {
            return None;
        }
        // A u32 has at most ten digits: with `*` and CR LF it fits in HEAD.
        let start = HEAD.checked_sub(digits.len() + 3)?;
        let buffer = self.buffer.get_mut(start..self.end)?;
        *buffer.get_mut(0)? = b'*';
        buffer.get_mut(1..=digits.len())?.copy_from_slice(digits);
        buffer.get_mut(digits.len() + 1..digits.len() + 3)?.copy_from_slice(b"\r\n");
        Some(buffer)
    }

    /// Most are short, and byte by byte that is little.
    fn put_len(&mut self, len: usize) {
        let digit = |number: usize| b'0' + number as u8; // one digit
        match self.buffer.get_mut(self.end..self.end.saturating_add(4)) {
            Some([kind, ones, cr, lf]) if len < 10 => {
                (*kind, *ones, *cr, *lf) = (b'$', digit(len), b'\r', b'\n');
                self.end = self.end.saturating_add(4);
            }
            Some([kind, tens, ones, cr]) if len < 100 => {
                (*kind, *tens, *ones, *cr) = (b'$', digit(len / 10), digit(len % 10), b'\r');
                self.end = self.end.saturating_add(4);
                self.put(b"\n");
            }
            _ => {
                self.put(b"$");
                self.put(itoa::Buffer::new().format(len).as_bytes());
                self.put_end();
            }
        }
    }

    fn put_end(&mut self) {
        match self.buffer.get_mut(self.end..self.end.saturating_add(2)) {
            Some([cr, lf]) => {
                (*cr, *lf) = (b'\r', b'\n');
                self.end = self.end.saturating_add(2);
            }
            _ => self.full = true,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.end.saturating_add(bytes.len());
        match self.buffer.get_mut(self.end..end) {
            Some(room) if !self.full => {
                room.copy_from_slice(bytes);
                self.end = end;
            }
            _ => self.full = true,
        }
    }
}

/// One part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// `+…`
    Simple(&'a [u8]),
    /// `-…`, its first word the kind of error.
    Error(&'a [u8]),
    /// `:…`
    Integer(i64),
    /// `$…`, any bytes.
    Bulk(&'a [u8]),
    /// `$-1` or `*-1`.
    Null,
    /// `*…`: as many elements follow.
    Array(u32),
}

/// One part of a reply, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// What it is.
    pub token: Token<'a>,
    /// In how many arrays it is; 0 begins a reply.
    pub depth: usize,
    /// Does the reply end with it?
    pub last: bool,
    /// Its bytes, at the front of the input: the next part begins behind them.
    pub len: usize,
}

/// Reads replies, part by part.
///
/// ```
/// use tollgate_core::redis::resp::{Reader, Token};
///
/// let mut reader = Reader::new(1000);
/// assert_eq!(reader.next(b"*1\r"), Ok(None)); // cut
/// let array = reader.next(b"*1\r\n:7\r\n")?.unwrap();
/// assert_eq!((array.token, array.last, array.len), (Token::Array(1), false, 4));
/// let seven = reader.next(b":7\r\n")?.unwrap();
/// assert_eq!((seven.token, seven.last, seven.len), (Token::Integer(7), true, 4));
/// # Ok::<(), tollgate_core::redis::resp::ProtocolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    longest: usize,
    /// Elements to come, of each array that is open.
    left: [u32; MAX_DEPTH],
    depth: usize,
    parts: u32,
}

impl Reader {
    /// A reader whose input holds bulk strings of up to `longest` bytes.
    #[must_use]
    pub const fn new(longest: usize) -> Self {
        Reader { longest, left: [0; MAX_DEPTH], depth: 0, parts: 0 }
    }

    /// Forgets a reply that is half read.
    pub fn reset(&mut self) {
        self.depth = 0;
        self.parts = 0;
    }

    /// The part at the front of `input`; `None` while it is cut.
    ///
    /// # Errors
    /// It is no RESP2. The reader is then of no use until it is [`reset`](Self::reset).
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<Option<Part<'a>>, ProtocolError> {
        let Some(&kind) = input.first() else { return Ok(None) };
        if !matches!(kind, b'+' | b'-' | b':' | b'$' | b'*') {
            return Err(ProtocolError::Type(kind));
        }
        let Some(text) = line(input)? else { return Ok(None) };
        let head = text.len().saturating_add(3);
        let mut len = head;
        let token = match kind {
            b'+' => Token::Simple(text),
            b'-' => Token::Error(text),
            b':' => Token::Integer(number(text)?),
            b'$' => match number(text)? {
                -1 => Token::Null,
                size => {
                    let size = usize::try_from(size).map_err(|_| ProtocolError::Bulk)?;
                    if size > self.longest {
                        return Err(ProtocolError::Bulk);
                    }
                    let end = head.saturating_add(size);
                    len = end.saturating_add(2);
                    let Some(bulk) = input.get(head..end) else { return Ok(None) };
                    match input.get(end..len) {
                        Some(b"\r\n") => Token::Bulk(bulk),
                        Some(_) => return Err(ProtocolError::Bulk),
                        None => return Ok(None),
                    }
                }
            },
            _ => match number(text)? {
                -1 => Token::Null,
                count => {
                    let count = u32::try_from(count).map_err(|_| ProtocolError::Array)?;
                    if count > MAX_ARRAY {
                        return Err(ProtocolError::Array);
                    }
                    Token::Array(count)
                }
            },
        };
        let depth = self.depth;
        let last = match token {
            Token::Array(count) if count > 0 => {
                *self.left.get_mut(depth).ok_or(ProtocolError::Array)? = count;
                self.depth = depth.saturating_add(1);
                false
            }
            _ => self.close(),
        };
        self.parts = if last { 0 } else { self.parts.saturating_add(1) };
        if self.parts > MAX_PARTS {
            return Err(ProtocolError::Array);
        }
        Ok(Some(Part { token, depth, last, len }))
    }

    /// An element ended, and with it maybe the arrays whose last one it was.
    fn close(&mut self) -> bool {
        while let Some(outer) = self.depth.checked_sub(1) {
            let Some(left) = self.left.get_mut(outer) else { break };
            *left = left.saturating_sub(1);
            if *left > 0 {
                return false;
            }
            self.depth = outer;
        }
        true
    }
}

/// The text between the type and CR LF.
fn line(input: &[u8]) -> Result<Option<&[u8]>, ProtocolError> {
    let window = input.get(1..input.len().min(MAX_LINE)).unwrap_or_default();
    let Some(end) = window.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return if input.len() >= MAX_LINE { Err(ProtocolError::Line) } else { Ok(None) };
    };
    match (window.get(end), input.get(end.saturating_add(2))) {
        (Some(b'\r'), Some(b'\n')) => Ok(window.get(..end)),
        (Some(b'\r'), None) => Ok(None),
        _ => Err(ProtocolError::Line),
    }
}

fn number(text: &[u8]) -> Result<i64, ProtocolError> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(ProtocolError::Number);
    }
    let mut number: i64 = 0;
    for digit in digits {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        if digit > 9 {
            return Err(ProtocolError::Number);
        }
        // Towards the sign, so that the smallest number is one too.
        let next = number
            .checked_mul(10)
            .and_then(|tens| if negative { tens.checked_sub(digit) } else { tens.checked_add(digit) });
        number = next.ok_or(ProtocolError::Number)?;
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    fn value() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            "[ -~]{0,40}".prop_map(|text| format!("+{text}\r\n").into_bytes()),
            "[A-Z]{1,9} [ -~]{0,40}".prop_map(|text| format!("-{text}\r\n").into_bytes()),
            any::<i64>().prop_map(|integer| format!(":{integer}\r\n").into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..60).prop_map(|bulk| {
                let mut bytes = format!("${}\r\n", bulk.len()).into_bytes();
                bytes.extend(bulk);
                bytes.extend(b"\r\n");
                bytes
            }),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            proptest::collection::vec(inner, 0..6).prop_map(|elements| {
                let mut bytes = format!("*{}\r\n", elements.len()).into_bytes();
                bytes.extend(elements.concat());
                bytes
            })
        })
    }

    /// Every part of what comes in these pieces, and how it ends.
    fn read(pieces: &[&[u8]]) -> (Vec<String>, Result<usize, ProtocolError>) {
        let mut reader = Reader::new(100);
        let (mut parts, mut input) = (Vec::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match reader.next(&input) {
                    Ok(Some(part)) => {
                        assert!(part.len > 0 && part.len <= input.len() && part.depth <= MAX_DEPTH);
                        parts.push(format!("{part:?}"));
                        let len = part.len;
                        input.drain(..len);
                    }
                    Ok(None) => break,
                    Err(error) => return (parts, Err(error)),
                }
            }
            assert!(input.len() < MAX_LINE + 102, "{} bytes make no part", input.len());
        }
        (parts, Ok(input.len()))
    }

    proptest! {
        #[test]
        fn a_cut_changes_nothing(
            values in proptest::collection::vec(value(), 1..6),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..20),
        ) {
            let bytes = values.concat();
            let (whole, end) = read(&[&bytes]);
            prop_assert_eq!(end, Ok(0));
            prop_assert_eq!(whole.iter().filter(|part| part.contains("last: true")).count(), values.len());
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(read(&pieces), (whole.clone(), Ok(0)));
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&single), (whole, Ok(0)));
        }

        #[test]
        fn garbage_is_read_or_refused(bytes in "[-+:$*0-9\r\na]{0,300}", raw in any::<Vec<u8>>()) {
            let _ = read(&[bytes.as_bytes()]);
            let _ = read(&[&raw]);
        }

        #[test]
        fn a_command_reads_back_or_does_not_fit(
            arguments in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 0..20),
            room in 0usize..600,
        ) {
            let mut buffer = std::vec![0; room];
            let mut command = Encoder::new(&mut buffer);
            let mut size = HEAD;
            for argument in &arguments {
                command.arg(argument);
                size += format!("${}\r\n", argument.len()).len() + argument.len() + 2;
            }
            let command = command.finish();
            prop_assert_eq!(command.is_some(), size <= room);
            if let Some(mut rest) = command {
                let mut reader = Reader::new(100);
                let head = reader.next(rest).unwrap().unwrap();
                prop_assert_eq!(head.token, Token::Array(arguments.len() as u32));
                rest = &rest[head.len..];
                for argument in &arguments {
                    let part = reader.next(rest).unwrap().unwrap();
                    prop_assert_eq!(part.token, Token::Bulk(argument));
                    rest = &rest[part.len..];
                }
                prop_assert!(rest.is_empty());
            }
        }
    }

    #[test]
    fn every_length_has_a_bound() {
        let error = |bytes: &[u8]| read(&[bytes]).1.unwrap_err();
        assert_eq!(error(b"HTTP/1.1 400"), ProtocolError::Type(b'H'));
        assert_eq!(error(b"%1\r\n"), ProtocolError::Type(b'%'));
        assert_eq!(error(&[b'+'; MAX_LINE]), ProtocolError::Line);
        assert_eq!(error(b"+a\n"), ProtocolError::Line);
        assert_eq!(error(b"+a\rb"), ProtocolError::Line);
        for number in ["", "-", "+1", "1a", "9223372036854775808", "-9223372036854775809", "1 "] {
            assert_eq!(error(format!(":{number}\r\n").as_bytes()), ProtocolError::Number, "{number}");
        }
        assert_eq!(error(b"$101\r\n"), ProtocolError::Bulk);
        assert_eq!(error(b"$-2\r\n"), ProtocolError::Bulk);
        assert_eq!(error(b"$1\r\nab\r\n"), ProtocolError::Bulk);
        assert_eq!(error(b"*65537\r\n"), ProtocolError::Array);
        assert_eq!(error(b"*-2\r\n"), ProtocolError::Array);
        assert_eq!(error(&b"*1\r\n".repeat(MAX_DEPTH + 1)), ProtocolError::Array);
        assert_eq!(read(&[&b"*1\r\n".repeat(MAX_DEPTH)]).1, Ok(0));
        let mut endless = Reader::new(0);
        let endless =
            (0..).find_map(|n| endless.next(if n % 2 == 0 { b"*65536\r\n" } else { b"*-1\r\n" }).err());
        assert_eq!(endless, Some(ProtocolError::Array));
    }

    #[test]
    fn numbers_reach_both_ends() {
        for integer in [0, 1, -1, i64::MAX, i64::MIN] {
            let text = format!(":{integer}\r\n");
            assert_eq!(Reader::new(0).next(text.as_bytes()).unwrap().unwrap().token, Token::Integer(integer));
        }
    }
}
