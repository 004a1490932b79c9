//! Which of a cluster's 16,384 slots a key is in.
//!
//! As the cluster specification has it: CRC-16 (polynomial 0x1021, from zero:
//! XMODEM) of the key, modulo the slots. If there is a `{` and, behind it, a
//! `}` with something between, only what is between the first two counts: keys
//! of one tenant lie together.

use super::SLOTS;

const TABLE: [u16; 256] = table();

/// The slot of a key, below [`SLOTS`].
///
/// ```
/// use tollgate_core::redis::cluster::key_slot;
///
/// assert_eq!(key_slot(b"123456789"), 0x31C3);
/// assert_eq!(key_slot(b"tg:{shop-a}:orders:7"), key_slot(b"shop-a"));
/// ```
#[must_use]
pub fn key_slot(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

/// What is between the first braces, unless that is nothing.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open.saturating_add(1)..)?;
    let len = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..len).filter(|tag| !tag.is_empty())
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ TABLE.get(usize::from(high ^ byte)).copied().unwrap_or_default()
    })
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8; // below 256
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_as_redis_finds_them() {
        let same = |one: &[u8], other: &[u8]| assert_eq!(key_slot(one), key_slot(other));
        same(b"{user1000}.following", b"user1000");
        same(b"foo{{bar}}zap", b"{bar");
        same(b"foo{bar}{zap}", b"bar");
        for whole in [&b"foo{}{bar}"[..], b"foo{bar", b"foo}bar{", b"", b"{}"] {
            assert_eq!(tag(whole), None);
        }
        assert_eq!(key_slot(b""), 0);
    }
}
