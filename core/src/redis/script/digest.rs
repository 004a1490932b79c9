//! The SHA-1 of each script, written down so that nobody works it out at run
//! time; a test compares.

use super::ScriptId;

pub(super) const fn of(script: ScriptId) -> &'static [u8; 40] {
    match script {
        ScriptId::TokenBucket => b"63f2ef14704b95fad67824a54ce909516665a37b",
        ScriptId::LeakyBucket => b"0badb56fea7392107e5a0b2d9495171fa43dbdf1",
        ScriptId::FixedWindow => b"176f22e8c54fd80ebdcc2bc858f4e43bcdbf4dc3",
        ScriptId::SlidingWindow => b"5d6a9266b6dd22caff205a3976eda2cbc800dfd4",
        ScriptId::SlidingLog => b"7ea8b6b2dc800b1450a4f9fa995d15e66681e1ee",
        ScriptId::Concurrency => b"18815f4aeea1a69cad87f84d92a12e9598c0b860",
        ScriptId::Multi => b"0670c9cd320f8b4a05c4a5298a139a437aebab10",
        ScriptId::GiveBack => b"e3653df2328cb02353b1b1d7c1fc12f0fe73cefe",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha1::{Digest, Sha1};
    use std::string::String;

    #[test]
    fn each_is_that_of_its_source() {
        for &script in ScriptId::ALL {
            let digest = Sha1::digest(script.source().as_bytes());
            let right: String = digest.iter().map(|byte| std::format!("{byte:02x}")).collect();
            assert_eq!(core::str::from_utf8(of(script)), Ok(right.as_str()), "{script:?}");
        }
    }
}
