//! What was wrong with a log: counted, and the first few lines told.

use serde::Serialize;

use crate::screen::grouped;

/// So many lines of a kind are named.
const NAMED: usize = 5;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Faults {
    /// Lines that were left out.
    pub(crate) unreadable: u64,
    pub(crate) first_unreadable: Vec<Fault>,
    /// Lines that tell an earlier time than one before them.
    pub(crate) out_of_order: u64,
    pub(crate) first_out_of_order: Vec<u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Fault {
    pub(crate) line: u64,
    pub(crate) reason: &'static str,
}

impl Faults {
    #[cold]
    pub(crate) fn unreadable(&mut self, line: u64, reason: &'static str) {
        self.unreadable += 1;
        if self.first_unreadable.len() < NAMED {
            self.first_unreadable.push(Fault { line, reason });
        }
    }

    #[cold]
    pub(crate) fn out_of_order(&mut self, line: u64) {
        self.out_of_order += 1;
        if self.first_out_of_order.len() < NAMED {
            self.first_out_of_order.push(line);
        }
    }

    /// The first unreadable lines, in words.
    pub(crate) fn told(&self) -> String {
        let named =
            self.first_unreadable.iter().map(|fault| format!("line {}: {}", fault.line, fault.reason));
        let mut told = named.collect::<Vec<_>>().join("; ");
        if self.unreadable > self.first_unreadable.len() as u64 {
            told.push_str(&format!("; {} in all", grouped(self.unreadable)));
        }
        told
    }
}
