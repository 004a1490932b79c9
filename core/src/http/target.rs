//! From what a client sent to the path that rules match, as NGINX makes it:
//! without query and fragment, percent signs decoded once, `.` and `..`
//! resolved, slashes merged.
//!
//! Of what a client sends many targets are one path to who answers them:
//! `/login`, `//login`, `/%6cogin`, `/x/../login`. A host that matched them as
//! they come would let all but the first pass by the limit of `/login`.

/// The path of a request's target, where that holds it as it is: most do.
#[must_use]
pub fn plain_path(target: &[u8]) -> Option<&[u8]> {
    if !target.starts_with(b"/") {
        return None;
    }
    let mut previous = 0;
    for (at, &byte) in target.iter().enumerate() {
        match byte {
            b'?' | b'#' => return target.get(..at),
            b'%' => return None,
            b'/' | b'.' if previous == b'/' => return None,
            _ => previous = byte,
        }
    }
    Some(target)
}

/// Makes the path of a request's target in its place, from its start, and says
/// how long it is: never longer than the target. Any bytes are legal; a whole
/// address, as proxies are sent, has to be without its origin.
///
/// ```
/// use tollgate_core::http::make_path;
///
/// let mut target = *b"/a/..//%6cogin?next=/a";
/// let path = make_path(&mut target);
/// assert_eq!(&target[..path], b"/login");
/// ```
#[must_use]
pub fn make_path(target: &mut [u8]) -> usize {
    if let Some(path) = plain_path(target) {
        return path.len();
    }
    let length = without_query(target).len();
    if !target.starts_with(b"/") {
        return length;
    }
    target.get_mut(..length).map_or(0, normalise)
}

/// What stands before a `?` or `#`.
#[must_use]
pub fn without_query(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
    end.and_then(|end| target.get(..end)).unwrap_or(target)
}

/// How long the path is then.
fn normalise(path: &mut [u8]) -> usize {
    let (mut read, mut made) = (0, 0);
    while let Some(rest) = path.get(read..).filter(|rest| !rest.is_empty()) {
        let (byte, length) = decoded(rest);
        read += length;
        if byte == b'/' {
            made = end_segment(path, made);
        } else {
            put(path, made, byte);
            made += 1;
        }
    }
    // A `.` or `..` at the end is resolved as if a slash followed.
    let is_open = path.get(..made).is_some_and(|made| made.ends_with(b"/.") || made.ends_with(b"/.."));
    if is_open { end_segment(path, made) } else { made }
}

/// The next byte, and how many stand for it; at least one is there.
fn decoded(rest: &[u8]) -> (u8, usize) {
    let hex = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8); // at most 15
    match rest {
        [b'%', high, low, ..] => match (hex(*high), hex(*low)) {
            (Some(high), Some(low)) => (high << 4 | low, 3),
            _ => (b'%', 1),
        },
        [byte, ..] => (*byte, 1),
        [] => (0, 1),
    }
}

/// A slash: of several one is kept, and the segment before it may be a `.`.
fn end_segment(path: &mut [u8], made: usize) -> usize {
    let so_far = path.get(..made).unwrap_or(&[]);
    let kept = if let Some(above) = so_far.strip_suffix(b"/..") {
        above.iter().rposition(|&byte| byte == b'/').unwrap_or(0)
    } else if let Some(above) = so_far.strip_suffix(b"/.") {
        above.len()
    } else if let Some(above) = so_far.strip_suffix(b"/") {
        above.len()
    } else {
        made
    };
    put(path, kept, b'/');
    kept + 1
}

/// What is made is never longer than what was read of it.
fn put(path: &mut [u8], at: usize, byte: u8) {
    if let Some(place) = path.get_mut(at) {
        *place = byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;
    use std::vec::Vec;

    fn path(target: &[u8]) -> Vec<u8> {
        let mut made = target.to_vec();
        let length = make_path(&mut made);
        made.truncate(length);
        assert!(plain_path(target).is_none_or(|plain| plain == made));
        made
    }

    #[test]
    fn paths_are_as_nginx_makes_them() {
        for (target, expected) in [
            ("/a/b", "/a/b"),
            ("/a?b=/../c", "/a"),
            ("/a#b", "/a"),
            ("/a%2fb%41", "/a/bA"),
            ("/%2541", "/%41"),
            ("//a///b", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/../../a", "/a"),
            ("/%2e%2e/login", "/login"),
            ("/.hidden/..x", "/.hidden/..x"),
            ("/a//?b", "/a/"),
            ("/http://example.org/x", "/http:/example.org/x"),
            ("/100%", "/100%"),
            ("/%zz", "/%zz"),
            ("*", "*"),
            ("a?b", "a"),
            ("", ""),
            ("?", ""),
        ] {
            let found = path(target.as_bytes());
            assert_eq!(found, expected.as_bytes(), "{target}: {}", String::from_utf8_lossy(&found));
        }
    }

    proptest! {
        #[test]
        fn a_path_that_was_made_hides_no_other(target in "/?[/.a%2eE?#:\x00]{0,30}") {
            let made = path(target.as_bytes());
            if target.starts_with('/') {
                prop_assert!(made.starts_with(b"/"), "{made:?}");
            }
            let is_there = |part: &[u8]| made.windows(part.len()).any(|window| window == part);
            prop_assert!(!made.starts_with(b"/") || !is_there(b"//") && !is_there(b"/./") && !is_there(b"/../"));
        }
    }
}
