//! The SHA-1 of each script, written down so that nobody works it out at run
//! time; a test compares.

use super::ScriptId;

pub(super) const fn of(script: ScriptId) -> &'static [u8; 40] {
    match script {
        ScriptId::TokenBucket => b"5ae9c480df1d30584c9ff64bade350214a785598",
        ScriptId::LeakyBucket => b"4e3d8e8987699dc2994499fe43bf138521e570cb",
        ScriptId::FixedWindow => b"f9f7babfece3acdb0657d734591d5555d331f856",
        ScriptId::SlidingWindow => b"18f9edeaf2e1d347f9352570029764c930c1f905",
        ScriptId::SlidingLog => b"52c90a667ca92125c7b9162b45101d9480368e74",
        ScriptId::Concurrency => b"0e0bf0356e60615fb9036a40048181d5610905ca",
        ScriptId::Multi => b"8dd78c47e56d669fe66590c85f32e98573e878d7",
        ScriptId::GiveBack => b"f7ce52257a43769346d0b75669935a35399cf0e6",
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
