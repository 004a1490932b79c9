//! The text of a Redis key: `tg:{<tag>}:<policy>:<rest>`.
//!
//! - The tag is the tenant where the policy counts by one, else the first part
//!   of the policy's key; of a key that begins with `global` it is the policy's
//!   name. All limits of one policy for one subject so lie on one slot of a
//!   cluster, and so do those of policies that begin with the same value. A
//!   piece of a limit adds its number to the tag, `{shop-a#3}`, and lies
//!   elsewhere.
//! - The rest are the other parts, a colon before each, `:<n>` for a policy's
//!   limits after its first, and `#log` or `#hold` for limits that Redis keeps
//!   in a list or a set.
//!
//! Which region asks is not told: regions that share a Redis share the key.
//!
//! # Values
//!
//! | value | text |
//! |---|---|
//! | `A-Z a-z 0-9 . _ ~ @ / -` | as they are |
//! | any other byte | percent-encoded: `%0D`, `%7B` |
//! | missing or empty | `-`; a value that is `-` is `%2D` |
//! | an address | as text, IPv6 with its colons percent-encoded |
//! | a credential, or of more than 64 bytes | `sha256-` and the first 16 bytes of its SHA-256 |
//! | that begins with `sha256-` | `%73ha256-…` |
//! | a text that is too long for its place | `sha256=` and the first 16 bytes of that text's SHA-256 |
//!
//! Nobody's bytes so end a key early, leave the tag, or break a line; and no
//! two subjects or limits have one text, unless 128 bits of SHA-256 collide.

use core::fmt::{self, Write};
use core::net::{Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

use crate::limit::Algorithm;
use crate::policy::{Bytes, KeyPart, Layer, Policy, Rules, value};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 200;

/// The longest tag without its piece's number: a value of 64 plain bytes.
const MAX_TAG: usize = 64;
/// Kept free for `#` and the number of a piece, so that all pieces have the
/// same rest.
const PIECE: usize = 11;
/// Kept free for `:` and the number of a limit, and the mark of its kind.
const INDEX: usize = 4 + 5;
/// What is left for the rest in the worst case holds `:sha256=` and 32 digits.
const _: () = assert!(MAX_KEY - 4 - MAX_TAG - PIECE - 2 - crate::policy::MAX_NAME - INDEX >= 40);

/// The text of a Redis key.
#[derive(Clone, Copy, Debug)]
pub struct KeyText {
    bytes: [u8; MAX_KEY],
    len: u8,
}

impl Default for KeyText {
    fn default() -> Self {
        KeyText { bytes: [0; MAX_KEY], len: 0 }
    }
}

impl KeyText {
    /// The text: 1 to [`MAX_KEY`] bytes, all of them printable ASCII; none of
    /// the default.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len()).unwrap_or(&[])
    }

    /// Of the [`base`] of a policy's keys: the key of its limit `index`, which
    /// counts so, and of that one's piece.
    #[must_use]
    pub fn of(&self, piece: Option<u32>, index: usize, algorithm: Algorithm) -> KeyText {
        let bytes = self.as_bytes();
        let Some(end) = bytes.iter().position(|byte| *byte == b'}') else { return *self };
        let (tag, rest) = bytes.split_at(end);
        let mut digits = itoa::Buffer::new();
        let mut text = KeyText::default();
        text.put(tag);
        if let Some(piece) = piece {
            text.put(b"#");
            text.put(digits.format(piece).as_bytes());
        }
        text.put(rest);
        if index > 0 {
            text.put(b":");
            text.put(digits.format(index).as_bytes());
        }
        text.put(mark(algorithm));
        text
    }

    /// As [`of`](Self::of), the key of the first limit: this text itself, for
    /// most.
    pub(super) fn first<'t>(
        &'t self,
        piece: Option<u32>,
        algorithm: Algorithm,
        room: &'t mut KeyText,
    ) -> &'t [u8] {
        if piece.is_none() && mark(algorithm).is_empty() {
            return self.as_bytes();
        }
        *room = self.of(piece, 0, algorithm);
        room.as_bytes()
    }

    /// A key on the same slot that no limit has, as it ends with its tag, for a
    /// write that tells whether the store is well. It begins as all others do:
    /// an access list may allow no more.
    #[must_use]
    pub fn probe(&self) -> KeyText {
        let mut text = KeyText::default();
        text.put(b"tg:{");
        text.put(tag(self.as_bytes()));
        text.put(b"}");
        text
    }

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Adds what `text` writes, if that is at most `room` bytes; else `fold`
    /// and the digest of it.
    fn put_bounded(&mut self, room: usize, fold: &[u8], text: impl Fn(&mut dyn Sink)) {
        let start = self.len;
        let end = self.len() + room;
        let mut bounded = Bounded { end: end.min(MAX_KEY), text: self, is_over: false };
        text(&mut bounded);
        if bounded.is_over {
            self.len = start;
            let mut hash = Sha256::new();
            text(&mut hash);
            self.put(fold);
            put_digest(&hash.finalize().into(), self);
        }
    }
}

impl PartialEq for KeyText {
    fn eq(&self, other: &KeyText) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyText {}

/// The key of a layer's limit; with the number of a piece, the key of that
/// piece.
#[must_use]
pub fn write(rules: &Rules, layer: &Layer<'_>, piece: Option<u32>) -> KeyText {
    base(rules, layer).of(piece, layer.index, layer.limit.algorithm())
}

/// What the keys of all limits of a policy are made of, for one subject.
#[must_use]
pub fn base(rules: &Rules, layer: &Layer<'_>) -> KeyText {
    let mut text = KeyText::default();
    write_base(rules, layer, &mut text);
    text
}

/// As [`base`], where the text lies.
pub(super) fn write_base(rules: &Rules, layer: &Layer<'_>, text: &mut KeyText) {
    let policy = rules.policies().get(layer.policy);
    let parts = policy.map_or(&[][..], Policy::key);
    let name = policy.map_or("", Policy::name).as_bytes();
    let tagged = parts.iter().position(|part| *part == KeyPart::Tenant).unwrap_or(0);
    let values = || parts.iter().copied().zip(Values::of(layer)).enumerate();

    text.len = 0;
    text.put(b"tg:{");
    match values().nth(tagged) {
        Some((_, (part, value))) if part != KeyPart::Global => {
            text.put_bounded(MAX_TAG, b"sha256=", |sink| put_value(rules, part, value, sink));
        }
        _ => text.put(name),
    }
    text.put(b"}:");
    text.put(name);
    let room = (MAX_KEY - INDEX - PIECE).saturating_sub(text.len()); // at least 40
    if parts.len() == 1 {
        return;
    }
    text.put_bounded(room, b":sha256=", |sink| {
        for (place, (part, value)) in values() {
            if place != tagged && part != KeyPart::Global {
                sink.put(b":");
                put_value(rules, part, value, sink);
            }
        }
    });
}

/// Logs and holds are lists and sets in Redis, everything else a string: what
/// lies under a limit's key must not be of another kind when its algorithm
/// changes.
fn mark(algorithm: Algorithm) -> &'static [u8] {
    match algorithm {
        Algorithm::SlidingLog => b"#log",
        Algorithm::Concurrency => b"#hold",
        _ => b"",
    }
}

/// The hash tag, as Redis Cluster reads it: what is between the first `{` and
/// the next `}`; all of the key if that is nothing.
#[must_use]
pub fn tag(key: &[u8]) -> &[u8] {
    let upto = |bytes: &[u8], end: u8| bytes.iter().position(|byte| *byte == end);
    let inside = upto(key, b'{').and_then(|open| key.get(open + 1..));
    let tag = inside.and_then(|rest| rest.get(..upto(rest, b'}')?));
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// The values of a layer's subject.
#[derive(Clone, Copy)]
struct Values<'k>(&'k [u8]);

impl<'k> Values<'k> {
    fn of(layer: &'k Layer<'_>) -> Values<'k> {
        Values(layer.values())
    }
}

impl<'k> Iterator for Values<'k> {
    type Item = Bytes<'k>;

    fn next(&mut self) -> Option<Bytes<'k>> {
        let (first, rest) = value(self.0)?;
        self.0 = rest;
        Some(first)
    }
}

/// Where text goes: into a key, or into the digest of one that is too long.
trait Sink {
    fn put(&mut self, text: &[u8]);
}

impl Sink for KeyText {
    /// What is too long is left out whole; the callers' bounds see to it that
    /// nothing is.
    fn put(&mut self, text: &[u8]) {
        let end = self.len() + text.len();
        if let Some(room) = self.bytes.get_mut(usize::from(self.len)..end) {
            room.copy_from_slice(text);
            self.len = end as u8; // at most MAX_KEY
        }
    }
}

impl Sink for Sha256 {
    fn put(&mut self, text: &[u8]) {
        self.update(text);
    }
}

/// A key that may only grow so far.
struct Bounded<'t> {
    text: &'t mut KeyText,
    end: usize,
    is_over: bool,
}

impl Sink for Bounded<'_> {
    fn put(&mut self, text: &[u8]) {
        if self.text.len() + text.len() <= self.end {
            self.text.put(text);
        } else {
            self.is_over = true;
        }
    }
}

fn put_value(rules: &Rules, part: KeyPart, value: Bytes<'_>, sink: &mut dyn Sink) {
    let plain = match value {
        Bytes::Digest(digest) => {
            sink.put(b"sha256-");
            return put_digest(digest, sink);
        }
        Bytes::Plain(plain) => plain,
    };
    match plain {
        b"" => sink.put(b"-"),
        _ if part == KeyPart::Ip => put_address(plain, sink),
        _ if rules.is_secret(part) => {
            sink.put(b"sha256-");
            put_digest(&Sha256::digest(plain).into(), sink);
        }
        b"-" => sink.put(b"%2D"),
        [b's', rest @ ..] if rest.starts_with(b"ha256-") => {
            sink.put(b"%73");
            put_encoded(rest, sink);
        }
        _ => put_encoded(plain, sink),
    }
}

fn put_address(bytes: &[u8], sink: &mut dyn Sink) {
    let mut text = Encoded(sink);
    // Writing into a sink never fails.
    let _ = match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(v4), _) => write!(text, "{}", Ipv4Addr::from(v4)),
        (_, Ok(v6)) => write!(text, "{}", Ipv6Addr::from(v6)),
        _ => {
            put_encoded(bytes, text.0);
            Ok(())
        }
    };
}

struct Encoded<'s>(&'s mut dyn Sink);

impl Write for Encoded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        put_encoded(text.as_bytes(), self.0);
        Ok(())
    }
}

fn put_encoded(mut bytes: &[u8], sink: &mut dyn Sink) {
    while !bytes.is_empty() {
        let ends = |byte: &u8| !PLAIN.get(usize::from(*byte)).is_some_and(|is_plain| *is_plain);
        let plain = bytes.iter().position(ends).unwrap_or(bytes.len());
        let (run, rest) = bytes.split_at(plain);
        sink.put(run);
        let Some((byte, behind)) = rest.split_first() else { return };
        let [high, low] = hex(*byte, b'A');
        sink.put(&[b'%', high, low]);
        bytes = behind;
    }
}

/// The first 16 bytes of a digest, in lower case.
fn put_digest(digest: &[u8; 32], sink: &mut dyn Sink) {
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&hex(*byte, b'a'));
    }
    sink.put(&digits);
}

fn hex(byte: u8, ten: u8) -> [u8; 2] {
    let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { ten + (nibble - 10) };
    [digit(byte >> 4), digit(byte & 15)]
}

/// Which bytes are.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < plain.len() {
        plain[byte] = is_plain(byte as u8); // below 256
        byte += 1;
    }
    plain
};

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'@' | b'/' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Seed;
    use crate::policy::{Attributes, KeyRoom};
    use core::str;
    use proptest::prelude::*;
    use std::string::String;
    use std::vec::Vec;

    const RULES: &str = r#"{
      "identity": { "api_key": { "header": "x-api-key" }, "user": { "header": "x-user" },
                    "tenant": { "header": "x-tenant" }, "ip": { "ipv6_prefix": 128 } },
      "policies": [
        { "name": "key", "key": ["api_key"], "limits": [ { "rate": "5/s" }, { "rate": "100/h" } ] },
        { "name": "user", "key": ["user", "ip"], "limits": [ { "rate": "5/s" }, { "rate": "100/h" } ] },
        { "name": "shop", "key": ["path", "tenant", "user"], "limits": [ { "rate": "5/s" } ] },
        { "name": "all", "key": ["global"], "limits": [ { "rate": "5/s" }, { "rate": "9/m" } ] },
        { "name": "an.exceedingly_long-name.of-the-64-bytes-that-are-legal-for-a-na", "key":
          ["route", "global", "header:authorization", "path", "method"], "limits": [ { "rate": "5/s" } ] },
        { "name": "users", "key": ["user"], "limits": [ { "rate": "5/s" } ] }
      ] }"#;

    fn rules() -> Rules {
        Rules::parse(RULES, Seed([1, 2])).unwrap_or_else(|errors| panic!("{errors:?}"))
    }

    /// The policy, the key and the text of every limit of a request whose
    /// header fields, and then route, path and method, are these.
    fn texts(
        rules: &Rules,
        told: &[Option<Vec<u8>>; 7],
        ip: &[u8],
        piece: Option<u32>,
    ) -> Vec<(usize, Vec<u8>, KeyText)> {
        let header = |place: usize| told[place].as_deref();
        let headers = [header(0), header(1), header(2), header(3)];
        let peer = match (<[u8; 4]>::try_from(ip), <[u8; 16]>::try_from(ip)) {
            (Ok(v4), _) => Some(v4.into()),
            (_, Ok(v6)) => Some(v6.into()),
            _ => None,
        };
        let request = Attributes {
            route: header(4).unwrap_or(b""),
            path: header(5).unwrap_or(b""),
            method: header(6).unwrap_or(b""),
            host: b"",
            peer,
            headers: &headers,
        };
        let mut room = KeyRoom::new();
        let selection = rules.select(&request, &mut room).unwrap();
        selection
            .layers()
            .map(|layer| (layer.policy, layer.key().to_vec(), write(rules, layer, piece)))
            .collect()
    }

    fn shown(told: [&str; 7], ip: &[u8]) -> Vec<String> {
        let told = told.map(|text| (!text.is_empty()).then(|| text.as_bytes().to_vec()));
        let texts = texts(&rules(), &told, ip, None);
        texts.iter().map(|(_, _, text)| str::from_utf8(text.as_bytes()).unwrap().into()).collect()
    }

    #[test]
    fn keys_read_as_the_table_says() {
        assert_eq!(rules().headers(), ["x-api-key", "x-user", "x-tenant", "authorization"]);
        let secret = "sha256-2bb80d537b1da3e38bd30361aa855686"; // of "secret"
        let long = "an.exceedingly_long-name.of-the-64-bytes-that-are-legal-for-a-na";
        assert_eq!(
            shown(["secret", "a b", "shop-a", "secret", "", "/p/q", "GET"], &[192, 0, 2, 1]),
            [
                std::format!("tg:{{{secret}}}:key"),
                std::format!("tg:{{{secret}}}:key:1"),
                "tg:{a%20b}:user:192.0.2.1".into(),
                "tg:{a%20b}:user:192.0.2.1:1".into(),
                "tg:{shop-a}:shop:/p/q:a%20b".into(),
                "tg:{all}:all".into(),
                "tg:{all}:all:1".into(),
                std::format!("tg:{{-}}:{long}:{secret}:/p/q:GET"),
                "tg:{a%20b}:users".into(),
            ]
        );
        let odd = shown(["", "-", "sha256-0", "", "}{\r\n\0:#", "%", ""], &[0; 16]);
        assert_eq!(odd[0], "tg:{-}:key");
        assert_eq!(odd[2], "tg:{%2D}:user:%3A%3A");
        assert_eq!(odd[4], "tg:{%73ha256-0}:shop:%25:%2D");
        assert_eq!(odd[7], std::format!("tg:{{%7D%7B%0D%0A%00%3A%23}}:{long}:-:%25:-"));
    }

    #[test]
    fn a_tag_is_read_as_a_cluster_reads_it() {
        for (key, expected) in [
            ("a", "a"),
            ("{a}b", "a"),
            ("x{a}{b}", "a"),
            ("{}a", "{}a"),
            ("{a", "{a"),
            ("a}{b}", "b"),
            ("{{a}}", "{a"),
            ("", ""),
        ] {
            assert_eq!(tag(key.as_bytes()), expected.as_bytes(), "{key}");
        }
    }

    /// The digest of a text that was too long is not that of a value which is
    /// that text.
    #[test]
    fn no_value_passes_for_the_digest_of_others() {
        let user = |user: &[u8]| {
            let told = [None, Some(user.to_vec()), Some(b"t".to_vec()), None, None, None, None];
            let all = texts(&rules(), &told, &[], None);
            let of = |place: usize| String::from_utf8(all[place].2.as_bytes().to_vec()).unwrap();
            (of(2), of(4)) // "user" and "shop"
        };
        let digest = |text: &str| {
            let mut key = KeyText::default();
            put_digest(&Sha256::digest(text).into(), &mut key);
            String::from_utf8(key.as_bytes().to_vec()).unwrap()
        };
        let text = "%00".repeat(64);
        let (tagged, rest) = user(&[0; 64]);
        assert_eq!(tagged, std::format!("tg:{{sha256={}}}:user:-", digest(&text)));
        let whole = std::format!(":-:{text}");
        assert_eq!(rest, std::format!("tg:{{t}}:shop:sha256={}", digest(&whole)));
        assert_eq!(user(text.as_bytes()).0, std::format!("tg:{{sha256-{}}}:user:-", digest(&text)));
        assert_eq!(user(whole.as_bytes()).1, std::format!("tg:{{t}}:shop:-:sha256-{}", digest(&whole)));
    }

    /// Values that want to pass for others: of few letters, so that they meet,
    /// and of the marks that a key is made of.
    fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
        let marks = prop::sample::select(std::vec![
            &b"-"[..],
            b"a",
            b"1",
            b":",
            b"::",
            b"%",
            b"2D",
            b"{",
            b"}",
            b"#",
            b"%3A",
            b"sha256-",
            b"sha256=",
            b"2bb80d537b1da3e38bd30361aa855686",
            b"\r\n",
            b"\0",
            b"\xff",
            b"tg:",
            b"/",
            b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ]);
        let few = prop::collection::vec(marks.clone(), 0..3);
        let many = prop::collection::vec(marks, 0..12);
        prop::option::of(
            prop_oneof![3 => few.prop_map(|parts| parts.concat()), 1 => many.prop_map(|parts| parts.concat())],
        )
    }

    fn told() -> impl Strategy<Value = [Option<Vec<u8>>; 7]> {
        [value(), value(), value(), value(), value(), value(), value()]
    }

    fn address() -> impl Strategy<Value = Vec<u8>> {
        let byte = || prop::sample::select(std::vec![0u8, 0, 1]);
        prop_oneof![Just(Vec::new()), prop::collection::vec(byte(), 4), prop::collection::vec(byte(), 16),]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn two_keys_have_one_text_only_if_they_are_one(
            first in told(), ip in address(), changed in 0usize..7, to in value(), swap in any::<bool>(), other in address(),
        ) {
            let rules = rules();
            let mut second = first.clone();
            second[changed] = to;
            if swap {
                second.swap(changed, 6 - changed);
            }
            let mut all = texts(&rules, &first, &ip, None);
            all.extend(texts(&rules, &second, &other, None));
            for (place, (_, key, text)) in all.iter().enumerate() {
                for (_, another, same) in &all[place + 1..] {
                    prop_assert_eq!(key == another, text == same, "{:?} {:?}", key, text);
                }
            }
        }

        #[test]
        fn a_key_is_printable_and_has_one_tag_whoever_wrote_the_values(
            told in told(), ip in address(), piece in any::<u32>(),
        ) {
            let rules = rules();
            let all = texts(&rules, &told, &ip, None);
            let pieces = texts(&rules, &told, &ip, Some(piece));
            let mut firsts = [None; 6];
            for ((policy, _, text), (_, _, of_piece)) in all.iter().zip(&pieces) {
                // All limits and pieces are made of the base.
                let (first, index) = firsts[*policy].map_or((*text, 0), |(first, last)| (first, last + 1));
                firsts[*policy] = Some((first, index));
                let (bucket, log) = (Algorithm::TokenBucket, Algorithm::SlidingLog);
                prop_assert_eq!(first.of(None, index, bucket), *text);
                prop_assert_eq!(first.of(Some(piece), index, bucket), *of_piece);
                let marked = first.of(Some(piece), index, log);
                prop_assert_eq!(marked.as_bytes(), [of_piece.as_bytes(), b"#log"].concat());
                prop_assert!(marked.as_bytes().len() <= MAX_KEY);
                prop_assert_eq!(tag(first.as_bytes()), tag(text.as_bytes()));
                let probe = first.probe();
                prop_assert!(probe.as_bytes().starts_with(b"tg:\x7b") && probe.as_bytes().ends_with(b"\x7d"));
                prop_assert_eq!(tag(probe.as_bytes()), tag(text.as_bytes()));
                let (bytes, of_piece) = (text.as_bytes(), of_piece.as_bytes());
                let is_key = bytes.len() <= MAX_KEY && bytes.starts_with(b"tg:\x7b");
                prop_assert!(is_key && of_piece.len() <= MAX_KEY);
                prop_assert!(bytes.iter().all(u8::is_ascii_graphic));
                let count = |mark: u8| bytes.iter().filter(|byte| **byte == mark).count();
                prop_assert_eq!((count(b'{'), count(b'}'), count(b'#')), (1, 1, 0));
                // A piece is the same text but for its number, which ends the tag.
                let mark = std::format!("#{piece}");
                prop_assert_eq!(tag(of_piece), [tag(bytes), mark.as_bytes()].concat());
                let without = String::from_utf8_lossy(of_piece).replacen(&mark, "", 1);
                prop_assert_eq!(without.as_bytes(), bytes);
            }
        }
    }
}
