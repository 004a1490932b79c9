//! Traffic with the exact answer of every step.
//!
//! A vector is a limit and a list of requests, each with what an oracle in
//! rational numbers answered. The runner plays it through any implementation
//! and compares each step: `allowed`, `remaining` and `delay` must be equal;
//! `retry_after` and `reset_after` may be later than exact by a tolerance of
//! the implementation, never earlier.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tollgate_core::{Algorithm, Anchor, Decision, Limit, NEVER, Nanos};

/// One vector file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// Its name, the file's without the ending.
    pub name: String,
    /// What it is there for.
    pub why: String,
    /// The limit that all steps run under.
    pub limit: VectorLimit,
    /// The requests, in order.
    pub steps: Vec<Step>,
}

/// The limit of a vector.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorLimit {
    /// An algorithm's name.
    pub algorithm: String,
    /// Units per period.
    pub limit: u64,
    /// The period.
    pub period_ns: Nanos,
    /// The burst; the limit where it is not given.
    pub burst: Option<u64>,
    /// `clock` or `first_request`, of a fixed window.
    pub anchor: Option<String>,
}

/// One request and its exact answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// When.
    pub t_ns: Nanos,
    /// Units asked for.
    pub cost: u64,
    /// Was it admitted?
    pub allowed: bool,
    /// Whole units admissible after it.
    pub remaining: u64,
    /// The wait until this cost fits; `null` is never. Absent where the
    /// definition does not say it.
    #[serde(default, deserialize_with = "present")]
    pub retry_after_ns: Option<Option<Nanos>>,
    /// The wait until the bucket is full.
    pub reset_after_ns: Option<Nanos>,
    /// The wait of an admitted request; 0 where it is not given.
    #[serde(default)]
    pub delay_ns: Nanos,
}

/// Tells a field that is `null` from one that is absent.
fn present<'de, D>(deserializer: D) -> Result<Option<Option<Nanos>>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    Option::<Nanos>::deserialize(deserializer).map(Some)
}

impl Vector {
    /// The limit, as the core knows it.
    ///
    /// # Panics
    /// A limit that is not legal.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let given = &self.limit;
        let algorithm = Algorithm::from_name(&given.algorithm)
            .unwrap_or_else(|| panic!("{}: unknown algorithm {:?}", self.name, given.algorithm));
        let anchor = match given.anchor.as_deref() {
            None | Some("clock") => Anchor::Clock,
            Some("first_request") => Anchor::FirstRequest,
            Some(other) => panic!("{}: unknown anchor {other:?}", self.name),
        };
        Limit::new(algorithm, given.limit, given.period_ns)
            .and_then(|limit| limit.with_burst(given.burst.unwrap_or(given.limit)))
            .and_then(|limit| limit.with_anchor(anchor))
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// Plays all steps through `answer` and compares.
    ///
    /// # Errors
    /// The first step that differs, with what was expected and what came.
    pub fn play(
        &self,
        tolerance: Nanos,
        mut answer: impl FnMut(u64, Nanos) -> Decision,
    ) -> Result<usize, String> {
        let limit = self.limit();
        for (index, step) in self.steps.iter().enumerate() {
            let got = answer(step.cost, step.t_ns);
            if let Some(field) = differs(step, &limit, &got, tolerance) {
                return Err(format!(
                    "{} ({}), step {index}: {field} differs\n  expected {step:?}\n  got      {got:?}",
                    self.name, self.why
                ));
            }
        }
        Ok(self.steps.len())
    }
}

/// The first field that is not as it must be.
fn differs(step: &Step, limit: &Limit, got: &Decision, tolerance: Nanos) -> Option<&'static str> {
    let near = |exact: Nanos, got: Nanos| got >= exact && got - exact <= tolerance;
    let retry = match step.retry_after_ns {
        None => (got.retry_after == 0) == step.allowed,
        Some(None) => got.retry_after == NEVER,
        Some(Some(exact)) => got.retry_after != NEVER && near(exact, got.retry_after),
    };
    [
        ("allowed", got.allowed == step.allowed),
        ("remaining", got.remaining == step.remaining),
        ("delay", got.delay == step.delay_ns),
        ("limit", got.limit == limit.limit()),
        ("retry_after", retry),
        ("reset_after", step.reset_after_ns.is_none_or(|exact| near(exact, got.reset_after))),
    ]
    .into_iter()
    .find_map(|(field, same)| (!same).then_some(field))
}

/// The folder that `TOLLGATE_VECTORS` names, or the project's own.
#[must_use]
pub fn folder() -> PathBuf {
    match std::env::var_os("TOLLGATE_VECTORS") {
        Some(named) => PathBuf::from(named),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"),
    }
}

/// Every `*.json` in the folder, by name.
///
/// # Panics
/// No such folder, no vector in it, or one that cannot be read.
#[must_use]
pub fn all() -> Vec<Vector> {
    let folder = folder();
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder's entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no vectors in {}", folder.display());
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Vector {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let vector: Vector =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(!vector.steps.is_empty(), "{}: no steps", path.display());
    vector
}
