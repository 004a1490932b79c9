//! What was measured: rows of ours beside a peer, as JSON and as a table.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// One comparison. A goal is for `ratio`, which is `ours / peer`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: f64,
    pub(crate) peer: f64,
    pub(crate) peer_name: String,
    pub(crate) ratio: f64,
    pub(crate) goal: Option<f64>,
    pub(crate) better: Better,
}

impl Row {
    /// Ours beside a peer; less is better until [`higher`](Self::higher) is said.
    pub(crate) fn new(
        id: &str,
        what: &str,
        unit: &'static str,
        ours: f64,
        peer: f64,
        peer_name: &str,
    ) -> Row {
        // Nothing against nothing is a draw.
        let ratio = if ours == peer { 1.0 } else { ours / peer };
        Row {
            id: id.to_owned(),
            what: what.to_owned(),
            unit,
            ours: rounded(ours),
            peer: rounded(peer),
            peer_name: peer_name.to_owned(),
            ratio: rounded(ratio),
            goal: None,
            better: Better::Lower,
        }
    }

    /// Ours against a constant.
    pub(crate) fn absolute(id: &str, what: &str, unit: &'static str, ours: f64, at_most: f64) -> Row {
        Row::new(id, what, unit, ours, at_most, "goal").goal(1.0)
    }

    pub(crate) fn goal(self, ratio: f64) -> Row {
        Row { goal: Some(ratio), ..self }
    }

    pub(crate) fn higher(self) -> Row {
        Row { better: Better::Higher, ..self }
    }

    /// Was the goal met? Nothing when there is none.
    pub(crate) fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match self.better {
            Better::Lower => self.ratio <= goal,
            Better::Higher => self.ratio >= goal,
        })
    }
}

/// Four significant digits: more than the noise leaves.
fn rounded(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let scale = 10f64.powi(3 - x.abs().log10().floor() as i32); // small whatever x is
    (x * scale).round() / scale
}

pub(crate) fn write(rows: &[Row], path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut text = serde_json::to_string_pretty(rows)?;
    text.push('\n');
    fs::write(path, text)
}

pub(crate) fn print_heading() {
    println!(
        "{:<38} {:>10} {:>10} {:>8} {:>9}  {:<7} {:<12} peer",
        "row", "ours", "peer", "ratio", "goal", "", "unit"
    );
}

pub(crate) fn print(row: &Row) {
    let sign = if row.better == Better::Lower { "≤" } else { "≥" };
    let goal = row.goal.map_or_else(String::new, |goal| format!("{sign} {goal}"));
    let verdict = match row.met() {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "",
    };
    println!(
        "{:<38} {:>10} {:>10} {:>8} {:>9}  {:<7} {:<12} {}",
        row.id, row.ours, row.peer, row.ratio, goal, verdict, row.unit, row.peer_name
    );
}
