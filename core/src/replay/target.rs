//! The path that a host matches, of a line that tells what the client sent.

use alloc::vec::Vec;

use crate::http::{make_path, plain_path};

/// The path that a host matches, of a request target as the client sent it.
/// `scratch` holds it if it had to be made.
pub fn path<'t>(target: &'t [u8], scratch: &'t mut Vec<u8>) -> &'t [u8] {
    let target = without_origin(target);
    if let Some(path) = plain_path(target) {
        return path;
    }
    scratch.clear();
    scratch.extend_from_slice(target);
    let length = make_path(scratch);
    scratch.truncate(length);
    scratch
}

/// Proxies are sent whole addresses: `http://host/path`.
fn without_origin(target: &[u8]) -> &[u8] {
    if target.starts_with(b"/") {
        return target;
    }
    let Some(scheme) = target.windows(3).position(|window| window == b"://") else { return target };
    let rest = target.get(scheme + 3..).unwrap_or(&[]);
    match rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')) {
        Some(slash) if rest.get(slash) == Some(&b'/') => rest.get(slash..).unwrap_or(b"/"),
        _ => b"/",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_addresses_have_paths() {
        for (target, expected) in [
            ("http://example.org/x?y", "/x"),
            ("http://example.org//%78?y", "/x"),
            ("http://example.org", "/"),
            ("http://example.org?x=/a", "/"),
            ("http://example.org#x/", "/"),
            ("/http://example.org/x", "/http:/example.org/x"),
            ("*", "*"),
            ("//a", "/a"),
        ] {
            assert_eq!(path(target.as_bytes(), &mut Vec::new()), expected.as_bytes(), "{target}");
        }
    }
}
