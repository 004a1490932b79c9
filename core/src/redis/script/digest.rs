//! The SHA-1 of each script, written down so that nobody works it out at run
//! time; a test compares.

use super::ScriptId;

pub(super) const fn of(script: ScriptId) -> &'static [u8; 40] {
    match script {
        ScriptId::TokenBucket => b"2874f4cf6ba5ef08ba8da42d482f5eef713415fb",
        ScriptId::LeakyBucket => b"e3756df98b94032b23feef265d399960e4ae7db7",
        ScriptId::FixedWindow => b"ddadf489a5c5dc78d87d5b9c30db29becb8c5b98",
        ScriptId::SlidingWindow => b"b76dc839ee5ef77efb9a3d076fdc4f46963ca40e",
        ScriptId::SlidingLog => b"97cb3a4774760edaf32ec9714d5ef51abd7f6b87",
        ScriptId::Concurrency => b"10adad189a58dc7170762d051007b270389829b5",
        ScriptId::Multi => b"a472f6370177def5f1f72bca5a813df76c313e7e",
        ScriptId::GiveBack => b"0b681ad31bdbe81c654fbce2a4101474905431a5",
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
