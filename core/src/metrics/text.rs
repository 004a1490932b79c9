//! Metrics as text, into the caller's buffer: the Prometheus text format
//! (version 0.0.4) and JSON (RFC 8259).
//!
//! A writer never stops half-way: what does not fit is counted, and in the end
//! it says how many bytes are needed.

use core::fmt::{self, Display, Write};

use super::histogram::HistogramSnapshot;

/// The text is longer than the buffer, and nothing in it is of use: so many
/// bytes are needed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes are needed")]
pub struct Needed(pub usize);

struct Text<'b> {
    buffer: &'b mut [u8],
    len: usize,
}

impl Text<'_> {
    fn put(&mut self, text: &str) {
        let end = self.len.saturating_add(text.len());
        if let Some(room) = self.buffer.get_mut(self.len..end) {
            room.copy_from_slice(text.as_bytes());
        }
        self.len = end;
    }

    fn number(&mut self, number: u64) {
        self.put(itoa::Buffer::new().format(number));
    }

    fn finish(self) -> Result<usize, Needed> {
        if self.len <= self.buffer.len() { Ok(self.len) } else { Err(Needed(self.len)) }
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text);
        Ok(())
    }
}

/// What goes through it is escaped as the inside of a string: of JSON, or of
/// a Prometheus label.
struct Escaped<'t, 'b> {
    text: &'t mut Text<'b>,
    json: bool,
}

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '"' => self.text.put("\\\""),
                '\\' => self.text.put("\\\\"),
                '\n' => self.text.put("\\n"),
                // The Prometheus format has no other escapes.
                c if c.is_control() && !self.json => self.text.put("\u{fffd}"),
                c if c.is_control() => write!(self.text, "\\u{:04x}", u32::from(c))?,
                c => self.text.put(c.encode_utf8(&mut [0; 4])),
            }
        }
        Ok(())
    }
}

/// What kind of metric a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// Writes the Prometheus text format.
pub struct Prometheus<'b>(Text<'b>);

impl<'b> Prometheus<'b> {
    /// Writes into that buffer.
    pub fn new(buffer: &'b mut [u8]) -> Prometheus<'b> {
        Prometheus(Text { buffer, len: 0 })
    }

    /// Begins a family: its samples follow. The help is one line without `\`.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.head(name, help, kind);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        for part in ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"] {
            self.0.put(part);
        }
    }

    /// One sample. Label values may be any text: they are escaped.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: u64) {
        self.0.put(name);
        self.labels(labels, None);
        self.0.number(value);
        self.0.put("\n");
    }

    fn labels(&mut self, labels: &[(&str, &dyn Display)], bound: Option<&dyn Display>) {
        let mut before = "{";
        let bound = bound.map(|bound| ("le", bound));
        for (name, value) in labels.iter().copied().chain(bound) {
            for part in [before, name, "=\""] {
                self.0.put(part);
            }
            let _ = write!(Escaped { text: &mut self.0, json: false }, "{value}"); // never fails
            self.0.put("\"");
            before = ",";
        }
        self.0.put(if before == "," { "} " } else { " " });
    }

    /// A whole family: a histogram in seconds, with a bound at each power of
    /// two from 128 ns to 8.6 s. The name ends with `_seconds`.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &dyn Display)],
        spans: &HistogramSnapshot,
    ) {
        self.head(name, help, "histogram");
        let mut bucket = |bound: &dyn Display, count: u64| {
            self.0.put(name);
            self.0.put("_bucket");
            self.labels(labels, Some(bound));
            self.0.number(count);
            self.0.put("\n");
        };
        for power in 7..=33 {
            bucket(&Seconds(1 << power), spans.at_most(power));
        }
        bucket(&"+Inf", spans.count());
        self.0.put(name);
        self.0.put("_sum");
        self.labels(labels, None);
        let _ = writeln!(self.0, "{}", Seconds(spans.sum())); // never fails
        self.0.put(name);
        self.0.put("_count");
        self.labels(labels, None);
        self.0.number(spans.count());
        self.0.put("\n");
    }

    /// The length of the text.
    ///
    /// # Errors
    /// The buffer is too small.
    pub fn finish(self) -> Result<usize, Needed> {
        self.0.finish()
    }
}

/// Nanoseconds as seconds, exactly.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut fraction, mut digits) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000, 9);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            digits -= 1;
        }
        write!(f, "{whole}.{fraction:0digits$}")
    }
}

/// Writes JSON. Names are the program's own and need no escapes; string values
/// may be any text.
pub struct Json<'b> {
    text: Text<'b>,
    /// Does a comma stand before the next member?
    comma: bool,
}

impl<'b> Json<'b> {
    /// Writes into that buffer.
    pub fn new(buffer: &'b mut [u8]) -> Json<'b> {
        Json { text: Text { buffer, len: 0 }, comma: false }
    }

    fn member(&mut self, name: Option<&str>) {
        if self.comma {
            self.text.put(",");
        }
        if let Some(name) = name {
            for part in ["\"", name, "\":"] {
                self.text.put(part);
            }
        }
        self.comma = true;
    }

    /// Writes an object, as the member of that name or an item.
    pub fn object(&mut self, name: Option<&str>, members: impl FnOnce(&mut Self)) {
        self.nested(name, "{", "}", members);
    }

    /// Writes an array, as the member of that name or an item.
    pub fn array(&mut self, name: Option<&str>, items: impl FnOnce(&mut Self)) {
        self.nested(name, "[", "]", items);
    }

    fn nested(&mut self, name: Option<&str>, open: &str, close: &str, inside: impl FnOnce(&mut Self)) {
        self.member(name);
        self.text.put(open);
        self.comma = false;
        inside(self);
        self.text.put(close);
        self.comma = true;
    }

    /// Writes a number.
    pub fn number(&mut self, name: &str, value: u64) {
        self.member(Some(name));
        self.text.number(value);
    }

    /// Writes a string.
    pub fn string(&mut self, name: &str, value: &dyn Display) {
        self.member(Some(name));
        self.text.put("\"");
        let _ = write!(Escaped { text: &mut self.text, json: true }, "{value}"); // never fails
        self.text.put("\"");
    }

    /// The length of the text.
    ///
    /// # Errors
    /// The buffer is too small.
    pub fn finish(self) -> Result<usize, Needed> {
        self.text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Histogram;
    use proptest::prelude::*;
    use std::string::String;
    use std::vec;

    fn written(write: impl Fn(&mut [u8]) -> Result<usize, Needed>) -> String {
        let Err(Needed(len)) = write(&mut []) else { panic!("nothing was written") };
        assert_eq!(write(&mut vec![0; len - 1]), Err(Needed(len)));
        let mut buffer = vec![0; len];
        assert_eq!(write(&mut buffer), Ok(len));
        String::from_utf8(buffer).unwrap()
    }

    #[test]
    fn samples_and_histograms_are_as_prometheus_reads_them() {
        let histogram = Histogram::default();
        for span in [100, 128, 129, 1_500_000_000, u64::MAX / 4] {
            histogram.record(span);
        }
        let text = written(|buffer| {
            let mut out = Prometheus::new(buffer);
            out.family("a_total", "What it counts.", Kind::Counter);
            out.sample("a_total", &[], 0);
            out.sample("a_total", &[("x", &"q\"\\\n\r\u{0}ö"), ("y", &7)], u64::MAX);
            out.histogram("d_seconds", "How long.", &[("z", &"1")], &histogram.snapshot());
            out.finish()
        });
        assert!(
            text.starts_with(
                "# HELP a_total What it counts.\n# TYPE a_total counter\na_total 0\n\
                 a_total{x=\"q\\\"\\\\\\n\u{fffd}\u{fffd}ö\",y=\"7\"} 18446744073709551615\n\
                 # HELP d_seconds How long.\n# TYPE d_seconds histogram\n\
                 d_seconds_bucket{z=\"1\",le=\"0.000000128\"} 2\n\
                 d_seconds_bucket{z=\"1\",le=\"0.000000256\"} 3\n"
            ),
            "{text}"
        );
        assert!(
            text.ends_with(
                "d_seconds_bucket{z=\"1\",le=\"8.589934592\"} 4\nd_seconds_bucket{z=\"1\",le=\"+Inf\"} 5\n\
                 d_seconds_sum{z=\"1\"} 4611686019.92738826\nd_seconds_count{z=\"1\"} 5\n"
            ),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_json_string_and_one_label(value in any::<String>(), number in any::<u64>()) {
            let json = written(|buffer| {
                let mut out = Json::new(buffer);
                out.object(None, |out| {
                    out.string("text", &value);
                    out.array(Some("list"), |out| {
                        out.object(None, |out| out.number("n", number));
                        out.object(None, |_| {});
                    });
                    out.number("after", 1);
                });
                out.finish()
            });
            #[cfg(feature = "policy")]
            {
                use std::string::ToString;
                let read: serde_json::Value = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(read["text"].as_str().unwrap(), &value);
                prop_assert_eq!(read["list"].to_string(), std::format!("[{{\"n\":{number}}},{{}}]"));
                prop_assert_eq!(&read["after"], 1);
            }
            prop_assert!(!json.chars().any(char::is_control));
            let line = written(|buffer| {
                let mut out = Prometheus::new(buffer);
                out.sample("m", &[("l", &value)], number);
                out.finish()
            });
            prop_assert!(line.matches('\n').count() == 1 && line.ends_with('\n'));
            let inside = line.strip_prefix("m{l=\"").and_then(|l| l.strip_suffix(&std::format!("\"}} {number}\n"))).unwrap();
            let mut chars = inside.chars();
            let mut unescaped = String::new();
            while let Some(c) = chars.next() {
                prop_assert!(c != '"');
                unescaped.push(match c {
                    '\\' => match chars.next() { Some('n') => '\n', Some(c) => c, None => panic!("half an escape") },
                    c => c,
                });
            }
            let plain: String = value.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect();
            prop_assert_eq!(unescaped, plain);
        }
    }
}
