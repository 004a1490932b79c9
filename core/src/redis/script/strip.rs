//! A Lua source without its comments and what stands before its lines, worked
//! out by the compiler. Comments are whole lines: one behind code stays.

/// How long the source is without them.
pub(super) const fn length(text: &str) -> usize {
    let mut kept = 0;
    let mut at = 0;
    while at < text.len() {
        let (start, end) = line(text.as_bytes(), at);
        kept += end - start;
        at = next(text.as_bytes(), at);
    }
    kept
}

/// The source without them; `N` is its [`length`].
pub(super) const fn strip<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    let mut kept = [0; N];
    let (mut count, mut at) = (0, 0);
    while at < bytes.len() {
        let (start, end) = line(bytes, at);
        let mut from = start;
        while from < end {
            kept[count] = bytes[from];
            (count, from) = (count + 1, from + 1);
        }
        at = next(bytes, at);
    }
    kept
}

/// Where the code of the line that begins at `at` begins and ends, its newline
/// with it; nothing of a comment.
const fn line(bytes: &[u8], at: usize) -> (usize, usize) {
    let mut start = at;
    while start < bytes.len() && bytes[start] == b' ' {
        start += 1;
    }
    let is_comment = start + 1 < bytes.len() && bytes[start] == b'-' && bytes[start + 1] == b'-';
    let is_empty = start >= bytes.len() || bytes[start] == b'\n';
    if is_comment || is_empty { (start, start) } else { (start, next(bytes, start)) }
}

/// Behind the next newline.
const fn next(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'\n' {
        at += 1;
    }
    if at < bytes.len() { at + 1 } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_the_code() {
        const TEXT: &str = "-- why\n\nlocal a = 1 -- one\nif a then\n    -- how\n    a = 'x--y'\nend";
        let code = b"local a = 1 -- one\nif a then\na = 'x--y'\nend";
        assert_eq!(strip::<{ length(TEXT) }>(TEXT), *code);
    }
}
