//! From what a client sent to the path that a host matches, as NGINX makes it:
//! without query and fragment, percent signs decoded, `.` and `..` resolved, slashes
//! merged.

use alloc::vec::Vec;

/// The path that a host matches, of a request target as the client sent it.
/// `scratch` holds it if it had to be made.
pub fn path<'t>(target: &'t [u8], scratch: &'t mut Vec<u8>) -> &'t [u8] {
    let path = without_query(without_origin(target));
    if is_plain(path) {
        return path;
    }
    normalise(path, scratch);
    scratch
}

/// What stands before a `?` or `#`.
pub(super) fn without_query(target: &[u8]) -> &[u8] {
    match memchr::memchr2(b'?', b'#', target) {
        Some(end) => target.get(..end).unwrap_or(target),
        None => target,
    }
}

/// Proxies are sent whole addresses: `http://host/path`.
fn without_origin(target: &[u8]) -> &[u8] {
    if target.starts_with(b"/") {
        return target;
    }
    let Some(scheme) = target.windows(3).position(|window| window == b"://") else { return target };
    let rest = target.get(scheme + 3..).unwrap_or(&[]);
    match rest.iter().position(|byte| matches!(byte, b'/' | b'?')) {
        Some(slash) if rest.get(slash) == Some(&b'/') => rest.get(slash..).unwrap_or(b"/"),
        _ => b"/",
    }
}

/// Most are.
fn is_plain(path: &[u8]) -> bool {
    let mut previous = 0;
    path.iter().all(|&byte| {
        let plain = byte != b'%' && !(previous == b'/' && matches!(byte, b'/' | b'.'));
        previous = byte;
        plain
    })
}

fn normalise(path: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let mut rest = path;
    while let [byte, behind @ ..] = rest {
        let (byte, behind) = match (byte, behind) {
            (b'%', [high, low, behind @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, behind),
                _ => (b'%', rest.get(1..).unwrap_or(&[])),
            },
            (&byte, behind) => (byte, behind),
        };
        rest = behind;
        if byte == b'/' {
            end_segment(out);
        } else {
            out.push(byte);
        }
    }
    // A `.` or `..` at the end is resolved as if a slash followed.
    if out.ends_with(b"/.") || out.ends_with(b"/..") {
        end_segment(out);
    }
}

/// A slash: of several one is kept, and the segment before it may be a `.`.
fn end_segment(out: &mut Vec<u8>) {
    if out.ends_with(b"/..") {
        out.truncate(out.len() - 3);
        let parent = out.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        out.truncate(parent);
        out.push(b'/');
    } else if out.ends_with(b"/.") {
        out.truncate(out.len() - 1);
    } else if !out.ends_with(b"/") {
        out.push(b'/');
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8) // at most 15
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use proptest::prelude::*;

    #[test]
    fn paths_are_as_nginx_makes_them() {
        for (target, expected) in [
            ("/a/b", "/a/b"),
            ("/a?b=/../c", "/a"),
            ("/a#b", "/a"),
            ("/a%2fb%41", "/a/bA"),
            ("//a///b", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/../../a", "/a"),
            ("/%2e%2e/login", "/login"),
            ("/.hidden/..x", "/.hidden/..x"),
            ("http://example.org/x?y", "/x"),
            ("http://example.org", "/"),
            ("http://example.org?x", "/"),
            ("/100%", "/100%"),
            ("/%zz", "/%zz"),
            ("*", "*"),
        ] {
            let mut scratch = Vec::new();
            let found = path(target.as_bytes(), &mut scratch);
            assert_eq!(found, expected.as_bytes(), "{target}: {}", String::from_utf8_lossy(found));
        }
    }

    proptest! {
        #[test]
        fn no_target_panics(target in prop::collection::vec(prop::sample::select(b"/.%2eE?#:a\x00\xff".to_vec()), 0..30)) {
            let _ = path(&target, &mut Vec::new());
        }
    }
}
