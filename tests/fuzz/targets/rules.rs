//! A rules document: parsed without a panic; every error has its place; what
//! is accepted answers requests and explains itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::key::Seed;
use tollgate_core::policy::{Attributes, KeyRoom, Rules, label};

fuzz_target!(|text: &str| {
    match Rules::parse_at(text, Seed([1, 2]), 1_700_000_000_000_000_000) {
        Ok(rules) => {
            let headers = vec![Some(&b"7"[..]); rules.headers().len()];
            let request = Attributes {
                route: b"r",
                method: b"GET",
                host: b"h",
                path: b"/a/b",
                peer: Some([10, 0, 0, 1].into()),
                headers: &headers,
            };
            let mut room = KeyRoom::new();
            if let Ok(selection) = rules.select(&request, &mut room) {
                for layer in selection.layers() {
                    assert!(!label(&rules, layer).is_empty());
                }
            }
            let _ = rules.explain(&request);
        }
        Err(errors) => {
            assert!((1..=100).contains(&errors.len()));
            let lines = text.split('\n').count();
            for error in errors {
                assert!((1..=lines).contains(&error.line), "{error}");
                let line = text.split('\n').nth(error.line - 1).unwrap_or("");
                assert!((1..=line.len() + 1).contains(&error.column), "{error}");
                assert!(!error.message.is_empty());
            }
        }
    }
});
