//! The SHA-1 of each script, written down so that nobody works it out at run
//! time; a test compares.

use super::ScriptId;

pub(super) const fn of(script: ScriptId) -> &'static [u8; 40] {
    match script {
        ScriptId::TokenBucket => b"ec8588e40ae589a483703c3198ba8e729d4852f7",
        ScriptId::LeakyBucket => b"6d3c79d8e14976355faf987f1562e0754537c2a0",
        ScriptId::FixedWindow => b"176f22e8c54fd80ebdcc2bc858f4e43bcdbf4dc3",
        ScriptId::SlidingWindow => b"5d6a9266b6dd22caff205a3976eda2cbc800dfd4",
        ScriptId::SlidingLog => b"92ad65a7b25567187e0aaccd2b309f9e31690afd",
        ScriptId::Concurrency => b"18815f4aeea1a69cad87f84d92a12e9598c0b860",
        ScriptId::Multi => b"421ba015fbff4c237b92dc86460e8cdaa1512125",
        ScriptId::GiveBack => b"41e8379517dc216acd22ba98a18c79582b8054f4",
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
