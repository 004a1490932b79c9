//! Everything at once, for `/metrics` and `/status`.

use super::Snapshot;
use super::histogram::HistogramSnapshot;
use super::text::{Json, Kind, Prometheus};
use super::top::Top;

/// What a host reports. The names and values are snapshots: the host reads
/// them, then writes as often as the buffer has to grow.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// Policies or limits by name, in their order.
    pub policies: &'a [(&'a str, Snapshot)],
    /// Keys that had to make room for others.
    pub evictions: u64,
    /// How long decisions took.
    pub latency: Option<&'a HistogramSnapshot>,
    /// The keys that are limited most; see [`TopKeys::top`](super::TopKeys::top).
    pub top: &'a [Top],
}

impl Snapshot {
    /// The counters by the names that metrics have.
    fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("allowed", self.allowed),
            ("rejected", self.rejected),
            ("delayed", self.delayed),
            ("rejected_dry_run", self.rejected_dry_run),
            ("delayed_dry_run", self.delayed_dry_run),
            ("error", self.errors),
        ]
    }
}

impl Report<'_> {
    /// Writes the families `tollgate_policy_requests_total`,
    /// `tollgate_evictions_total`, `tollgate_decision_seconds`,
    /// `tollgate_limited_key_hits` and `tollgate_limited_key_error`.
    pub fn prometheus(&self, out: &mut Prometheus<'_>) {
        let name = "tollgate_policy_requests_total";
        out.family(
            name,
            "Requests by policy and result; those allowed include those delayed.",
            Kind::Counter,
        );
        for (policy, counters) in self.policies {
            for (result, count) in counters.named() {
                out.sample(name, &[("policy", policy), ("result", &result)], count);
            }
        }
        out.family("tollgate_evictions_total", "Keys that made room for others.", Kind::Counter);
        out.sample("tollgate_evictions_total", &[], self.evictions);
        if let Some(latency) = self.latency {
            out.histogram("tollgate_decision_seconds", "How long decisions took.", &[], latency);
        }
        let name = "tollgate_limited_key_hits";
        out.family(
            name,
            "Denials of the keys that are denied most: so many, or fewer by the error.",
            Kind::Gauge,
        );
        for top in self.top {
            out.sample(
                name,
                &[("policy", &top.label.name()), ("key", &top.label.rest()), ("id", &Id(top.id))],
                top.count,
            );
        }
        let name = "tollgate_limited_key_error";
        out.family(name, "How many of those hits may not be the key's own.", Kind::Gauge);
        for top in self.top {
            out.sample(
                name,
                &[("policy", &top.label.name()), ("key", &top.label.rest()), ("id", &Id(top.id))],
                top.error,
            );
        }
    }

    /// Writes the members `policies`, `evictions`, `latency` and `limited` of
    /// the object that is open.
    pub fn json(&self, out: &mut Json<'_>) {
        out.array(Some("policies"), |out| {
            for (policy, counters) in self.policies {
                out.object(None, |out| {
                    out.string("name", policy);
                    counters.named().into_iter().for_each(|(result, count)| out.number(result, count));
                });
            }
        });
        out.number("evictions", self.evictions);
        if let Some(latency) = self.latency {
            out.object(Some("latency"), |out| {
                out.number("count", latency.count());
                out.number("sum_ns", latency.sum());
                for (name, thousandths) in
                    [("p50_ns", 500), ("p90_ns", 900), ("p99_ns", 990), ("p999_ns", 999)]
                {
                    out.number(name, latency.quantile(thousandths));
                }
            });
        }
        out.array(Some("limited"), |out| {
            for top in self.top {
                out.object(None, |out| {
                    out.string("policy", &top.label.name());
                    out.string("key", &top.label.rest());
                    out.string("id", &Id(top.id));
                    out.number("hits", top.count);
                    out.number("error", top.error);
                });
            }
        });
    }
}

/// The 48 bits of an entry's id.
struct Id(u64);

impl core::fmt::Display for Id {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Fingerprint;
    use crate::metrics::{Histogram, Label, TopKeys};

    #[test]
    fn a_report_is_whole_in_both_formats() {
        let top = TopKeys::<4>::default();
        for _ in 0..3 {
            top.record(Fingerprint(7 << 16), || {
                let mut label = Label::new("login");
                label.push_bytes(b"user=\"x\"\r\n");
                label
            });
        }
        let mut tops = [Top::default(); 4];
        let len = top.top(&mut tops);
        let latency = Histogram::default().snapshot();
        let counters = Snapshot { allowed: 5, rejected: 3, ..Snapshot::default() };
        let report = Report {
            policies: &[("login", counters)],
            evictions: 2,
            latency: Some(&latency),
            top: &tops[..len],
        };
        let mut buffer = [0; 8192];
        let mut out = Prometheus::new(&mut buffer);
        report.prometheus(&mut out);
        let len = out.finish().unwrap();
        let text = std::str::from_utf8(&buffer[..len]).unwrap();
        for line in [
            "tollgate_policy_requests_total{policy=\"login\",result=\"rejected\"} 3\n",
            "tollgate_evictions_total 2\n",
            "tollgate_decision_seconds_count 0\n",
            "tollgate_limited_key_hits{policy=\"login\",key=\"user=\\\"x\\\"\\\\u{d}\\\\u{a}\",id=\"000000000007\"} 3\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        let mut out = Json::new(&mut buffer);
        out.object(None, |out| report.json(out));
        let len = out.finish().unwrap();
        let text = std::str::from_utf8(&buffer[..len]).unwrap();
        assert!(
            text.starts_with("{\"policies\":[{\"name\":\"login\",\"allowed\":5,\"rejected\":3,"),
            "{text}"
        );
        assert!(
            text.ends_with(
                "\"key\":\"user=\\\"x\\\"\\\\u{d}\\\\u{a}\",\"id\":\"000000000007\",\"hits\":3,\"error\":0}]}"
            ),
            "{text}"
        );
    }
}
