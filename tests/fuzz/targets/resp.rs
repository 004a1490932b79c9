//! Any bytes as replies: read or refused, whole or cut, and never more than was given.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::redis::resp::{MAX_DEPTH, Reader};

fn read(bytes: &[u8], step: usize) -> (Vec<String>, bool) {
    let mut reader = Reader::new(512);
    let (mut at, mut end, mut parts) = (0, 0, Vec::new());
    while end < bytes.len() {
        end = (end + step).min(bytes.len());
        loop {
            match reader.next(&bytes[at..end]) {
                Ok(Some(part)) => {
                    assert!(part.len > 0 && part.len <= end - at && part.depth <= MAX_DEPTH);
                    parts.push(format!("{part:?}"));
                    at += part.len;
                }
                Ok(None) => break,
                Err(_) => return (parts, false),
            }
        }
        assert!(end - at < 2048, "a part is never decided");
    }
    (parts, true)
}

fuzz_target!(|drawn: (u8, &[u8])| {
    let (step, bytes) = drawn;
    let whole = read(bytes, usize::MAX >> 1);
    let cut = read(bytes, usize::from(step).max(1));
    assert_eq!(whole, cut);
});
