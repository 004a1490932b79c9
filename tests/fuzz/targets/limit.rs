//! The text of a limit: what is read prints itself back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::Limit;

fuzz_target!(|text: &str| {
    if let Ok(limit) = text.parse::<Limit>() {
        let printed = limit.to_string();
        assert_eq!(printed.parse::<Limit>(), Ok(limit), "{printed}");
        assert!(limit.limit() >= 1 && limit.burst() >= 1 && limit.period() >= 1_000);
    }
});
