//! `tollgate rules explain`: the core's explanation of one request, shown.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;

use serde::Serialize;
use tollgate_core::Nanos;
use tollgate_core::policy::{Attributes, Explained, KeyRoom, OnStoreError, Policy, Rules, Store};

use crate::args::{ExplainArgs, TextOrJson};
use crate::failure::Failure;
use crate::rules;
use crate::screen::{self, Paint};

pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let rules = rules::load(&args.file)?;
    let find = |name: &String| {
        args.headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_bytes())
    };
    let headers: Vec<_> = rules.headers().iter().map(find).collect();
    let mut scratch = Vec::new();
    let request = Attributes {
        route: args.route.as_bytes(),
        method: args.method.as_bytes(),
        host: args.host.as_bytes(),
        path: tollgate_core::replay::path(args.path.as_bytes(), &mut scratch),
        peer: args.peer,
        headers: &headers,
    };
    let explained = rules.explain(&request);
    let answer = Answer::new(&rules, &request, &explained);
    let text = match args.format {
        TextOrJson::Json => rules::json(&answer)?,
        TextOrJson::Text => {
            for (name, _) in args.headers.iter().filter(|(name, _)| !rules.headers().contains(name)) {
                screen::note(&format!("the rules do not look at the header field {}", screen::clean(name)));
            }
            answer.text(Paint::stdout())
        }
    };
    screen::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Answer {
    client: Option<IpAddr>,
    policies: Vec<PolicyAnswer>,
    /// 401 if an identity is missing; else it depends on the counts.
    status: Option<u16>,
    /// More limits matched than one request may have.
    limits_left_out: bool,
}

#[derive(Serialize)]
struct PolicyAnswer {
    name: String,
    applies: bool,
    why_not: Vec<String>,
    missing_identity: Option<String>,
    key: Vec<KeyAnswer>,
    limits: Vec<String>,
    overridden: bool,
    cost: u64,
    store: &'static str,
    /// How the store is asked, and what happens without it; none for `local`.
    asked: Option<String>,
    dry_run: bool,
    penalty: bool,
    /// Settings that have no effect.
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct KeyAnswer {
    part: String,
    value: String,
}

impl Answer {
    fn new(rules: &Rules, request: &Attributes<'_>, explained: &[Explained<'_>]) -> Answer {
        let mut room = KeyRoom::new();
        let selected = rules.select(request, &mut room);
        Answer {
            client: rules.client(request),
            policies: explained.iter().map(|one| PolicyAnswer::new(one, request)).collect(),
            status: selected.as_ref().err().map(|_| 401),
            limits_left_out: selected.is_ok_and(|selection| selection.overflow()),
        }
    }

    fn text(&self, paint: Paint) -> String {
        let mut out = String::new();
        let client = self.client.map_or("unknown (give --peer)".to_owned(), |client| client.to_string());
        let _ = writeln!(out, "client address: {client}\n");
        for policy in &self.policies {
            policy.write(&mut out, paint);
        }
        let applying = self.policies.iter().filter(|policy| policy.applies);
        let missing = applying.clone().find(|policy| policy.missing_identity.is_some());
        match (missing, applying.count()) {
            (Some(policy), _) => {
                let told = policy.missing_identity.as_deref().unwrap_or("");
                let _ = writeln!(
                    out,
                    "The request is refused with {}: policy {} needs the header field {told}.",
                    paint.red("401"),
                    policy.name
                );
            }
            (None, 0) => out.push_str("No policy applies: the request is not limited.\n"),
            (None, 1) => out.push_str("One policy applies: the request passes if all its limits admit it.\n"),
            (None, count) => {
                let _ =
                    writeln!(out, "{count} policies apply: the request passes if all their limits admit it.");
            }
        }
        if self.limits_left_out {
            out.push_str("More limits match than one request may have: those further on are left out.\n");
        }
        out
    }
}

impl PolicyAnswer {
    fn new(explained: &Explained<'_>, request: &Attributes<'_>) -> PolicyAnswer {
        let policy = explained.policy;
        PolicyAnswer {
            name: policy.name().to_owned(),
            applies: explained.mismatches.is_empty(),
            why_not: explained.mismatches.iter().map(|mismatch| mismatch.sentence(request)).collect(),
            missing_identity: explained.missing.map(|missing| missing.header.to_owned()),
            key: explained
                .key
                .iter()
                .map(|field| KeyAnswer { part: field.name.to_string(), value: field.value.to_string() })
                .collect(),
            limits: explained.limits.iter().map(ToString::to_string).collect(),
            overridden: explained.overridden,
            cost: explained.cost,
            store: match policy.store() {
                Store::Local => "local",
                Store::Redis => "redis",
            },
            asked: (policy.store() == Store::Redis).then(|| asked(policy)),
            dry_run: policy.dry_run(),
            penalty: policy.penalty().is_some(),
            warnings: policy.notices(true).map(|notice| notice.sentence.into_owned()).collect(),
        }
    }

    fn write(&self, out: &mut String, paint: Paint) {
        if !self.applies {
            let _ = writeln!(out, "{}  {}", paint.bold(&self.name), paint.dim("does not apply"));
            for why in &self.why_not {
                let _ = writeln!(out, "  because {why}");
            }
            out.push('\n');
            return;
        }
        let _ = writeln!(out, "{}  {}", paint.bold(&self.name), paint.green("applies"));
        if let Some(header) = &self.missing_identity {
            let needs = format!("no header field {header}, which is required: the answer is 401");
            let _ = writeln!(out, "  {}   {}\n", paint.dim("key"), paint.red(&needs));
            return;
        }
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "  {} {value}", paint.dim(&format!("{name:<6}")));
        };
        let key: Vec<_> = self.key.iter().map(|field| format!("{} = {}", field.part, field.value)).collect();
        line("key", key.join(", "));
        let from = if self.overridden { "  (override of this key)" } else { "" };
        self.limits.iter().for_each(|limit| line("limit", format!("{limit}{from}")));
        line("cost", self.cost.to_string());
        let asked = self.asked.iter().map(|asked| format!(", {asked}")).collect::<String>();
        line("store", format!("{}{asked}", self.store));
        self.warnings.iter().for_each(|warning| line("but", warning.clone()));
        if self.penalty {
            line("also", "repeated denials make it wait longer (penalty)".to_owned());
        }
        if self.dry_run {
            line("also", "counted only, never enforced (dry_run)".to_owned());
        }
        out.push('\n');
    }
}

/// The settings of a store, as the rules file calls them.
fn asked(policy: &Policy) -> String {
    let failure = match policy.on_store_error() {
        OnStoreError::Local => "local",
        OnStoreError::Allow => "allow",
        OnStoreError::Deny => "deny",
    };
    let mut text = match policy.own_timeout() {
        Some(timeout) => format!("timeout {}", exact(timeout)),
        None => format!("timeout {} unless the host says otherwise", exact(policy.timeout())),
    };
    let _ = write!(text, ", on_store_error {failure}");
    if let Some(lease) = policy.lease() {
        let _ = write!(text, ", lease of up to {} for {}", lease.max, exact(lease.ttl));
    }
    if policy.shards() > 1 {
        let _ = write!(text, ", {} shards", policy.shards());
    }
    text
}

/// A span in the largest unit that says it in whole numbers.
fn exact(span: Nanos) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let unit = units.into_iter().find(|(unit, _)| span.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{span}ns"), |(unit, name)| format!("{}{name}", span / unit))
}
