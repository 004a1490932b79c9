//! What was wrong with a log: counted, and the first few lines told.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;

use super::grouped;

/// So many lines of a kind are named.
const NAMED: usize = 5;

/// Lines that could not be taken as they stand.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Faults {
    /// Lines that were left out.
    pub unreadable: u64,
    /// The first of them.
    pub first_unreadable: Vec<Fault>,
    /// Lines that tell an earlier time than one before them.
    pub out_of_order: u64,
    /// The numbers of the first of them.
    pub first_out_of_order: Vec<u64>,
}

/// A line that was left out.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// Its number, from 1.
    pub line: u64,
    /// Why.
    pub reason: &'static str,
}

impl Faults {
    #[cold]
    pub(super) fn unreadable(&mut self, line: u64, reason: &'static str) {
        self.unreadable += 1;
        if self.first_unreadable.len() < NAMED {
            self.first_unreadable.push(Fault { line, reason });
        }
    }

    #[cold]
    pub(super) fn out_of_order(&mut self, line: u64) {
        self.out_of_order += 1;
        if self.first_out_of_order.len() < NAMED {
            self.first_out_of_order.push(line);
        }
    }

    /// The first unreadable lines, in words.
    #[must_use]
    pub fn told(&self) -> String {
        let named =
            self.first_unreadable.iter().map(|fault| format!("line {}: {}", fault.line, fault.reason));
        let mut told = named.collect::<Vec<_>>().join("; ");
        if self.unreadable > self.first_unreadable.len() as u64 {
            told.push_str(&format!("; {} in all", grouped(self.unreadable)));
        }
        told
    }
}
