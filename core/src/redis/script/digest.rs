//! The SHA-1 of each script, written down so that nobody works it out at run
//! time; a test compares.

use super::ScriptId;

pub(super) const fn of(script: ScriptId) -> &'static [u8; 40] {
    match script {
        ScriptId::TokenBucket => b"cfee578f2a5209e829d173a0cb472b03e164f436",
        ScriptId::LeakyBucket => b"1f9a7d9666bee0ecc0925e45463767fde5a3ac3b",
        ScriptId::FixedWindow => b"ddadf489a5c5dc78d87d5b9c30db29becb8c5b98",
        ScriptId::SlidingWindow => b"b76dc839ee5ef77efb9a3d076fdc4f46963ca40e",
        ScriptId::SlidingLog => b"97cb3a4774760edaf32ec9714d5ef51abd7f6b87",
        ScriptId::Concurrency => b"10adad189a58dc7170762d051007b270389829b5",
        ScriptId::Multi => b"85750ce7de032e4644b3446872e0b40608179320",
        ScriptId::GiveBack => b"a9c92b8bd25193e4bfb73cb60dd28f24326b7fd6",
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
