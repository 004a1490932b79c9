//! The SHA-1 of each script, written down so that nobody works it out at run
//! time; a test compares.

use super::ScriptId;

pub(super) const fn of(script: ScriptId) -> &'static [u8; 40] {
    match script {
        ScriptId::TokenBucket => b"5503e89781326efe25052ec662337deecd63c42f",
        ScriptId::LeakyBucket => b"0badb56fea7392107e5a0b2d9495171fa43dbdf1",
        ScriptId::FixedWindow => b"176f22e8c54fd80ebdcc2bc858f4e43bcdbf4dc3",
        ScriptId::SlidingWindow => b"5d6a9266b6dd22caff205a3976eda2cbc800dfd4",
        ScriptId::SlidingLog => b"1d8d91ecc5044ab67a043d969553677fa7a14cfb",
        ScriptId::Concurrency => b"18815f4aeea1a69cad87f84d92a12e9598c0b860",
        ScriptId::Multi => b"47facc52780e36b1a46836549b2dff6ec01d08bd",
        ScriptId::GiveBack => b"492760b519814225a6900eef853f4c38430d5661",
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
