//! Limits as text: `100/s burst 200`, `fixed_window 700/m`, `1/1.5s`, and
//! NGINX's `30r/m`.
//!
//! ```text
//! limit  = [ algorithm " " ] units [ "r" ] "/" ( [ decimal ] unit | "month" )
//!          [ " burst " units ] [ " anchor " ( "clock" | "first_request" ) ]
//! unit   = "ns" | "us" | "ms" | "s" | "m" | "h" | "d"
//! ```

use core::fmt;
use core::str::FromStr;

use super::{Algorithm, Anchor, Limit, LimitError, MONTH};
use crate::time::Nanos;

/// The units of a period, longest first.
const UNITS: [(&str, Nanos); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        Limit::parse(text, Algorithm::TokenBucket)
    }
}

impl Limit {
    /// Reads a limit; `algorithm` applies where the text names none.
    ///
    /// # Errors
    /// What was expected and at which byte, or a number outside its range.
    ///
    /// ```
    /// use tollgate_core::{Algorithm, Limit};
    /// let limit = Limit::parse("30r/m", Algorithm::LeakyBucket)?;
    /// assert_eq!((limit.limit(), limit.period()), (30, 60_000_000_000));
    /// assert_eq!(
    ///     Limit::parse("30/q", Algorithm::TokenBucket).unwrap_err().to_string(),
    ///     "limit text: expected a unit of time (ns, us, ms, s, m, h or d) at byte 3",
    /// );
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn parse(text: &str, algorithm: Algorithm) -> Result<Limit, LimitError> {
        let mut rest = Reader { text, at: 0 };
        rest.spaces();
        let algorithm = rest.algorithm()?.unwrap_or(algorithm);
        let units = rest.number("a whole number of units")?;
        rest.word("r");
        if !rest.word("/") {
            return Err(rest.expected("\"/\" between units and period"));
        }
        let mut limit = if rest.is_month() {
            if algorithm != Algorithm::FixedWindow {
                return Err(LimitError::Month);
            }
            Limit::new(algorithm, units, MONTH)?.with_anchor(Anchor::CalendarMonth)?
        } else {
            let period = rest.period()?;
            Limit::new(algorithm, units, period)?
        };
        loop {
            let spaced = rest.spaces();
            if rest.left().is_empty() {
                return Ok(limit);
            }
            if spaced && rest.word("burst") {
                rest.separator();
                limit = limit.with_burst(rest.number("a whole number of units")?)?;
            } else if spaced && rest.word("anchor") {
                rest.separator();
                limit = limit.with_anchor(rest.anchor()?)?;
            } else {
                return Err(rest.expected("\" burst N\", \" anchor NAME\" or the end"));
            }
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.algorithm() != Algorithm::TokenBucket {
            write!(f, "{} ", self.algorithm().name())?;
        }
        write!(f, "{}/", self.limit())?;
        match self.anchor() {
            Anchor::CalendarMonth => f.write_str("month")?,
            _ => write_period(f, self.period())?,
        }
        if self.burst() != self.limit() {
            write!(f, " burst {}", self.burst())?;
        }
        if self.anchor() == Anchor::FirstRequest {
            f.write_str(" anchor first_request")?;
        }
        Ok(())
    }
}

/// A span of time on its own, such as `5ms`.
#[cfg(feature = "policy")]
pub(crate) fn parse_period(text: &str) -> Result<Nanos, LimitError> {
    let mut rest = Reader { text, at: 0 };
    let period = rest.period()?;
    if rest.left().is_empty() { Ok(period) } else { Err(rest.expected("the end")) }
}

/// In the longest unit that divides it; above a second, else in seconds with
/// a decimal fraction.
fn write_period(f: &mut fmt::Formatter<'_>, period: Nanos) -> fmt::Result {
    const SECOND: Nanos = 1_000_000_000;
    let (name, unit) = UNITS.into_iter().find(|(_, unit)| period.is_multiple_of(*unit)).unwrap_or(("ns", 1));
    if unit < SECOND && period > SECOND {
        let (mut fraction, mut digits) = (period % SECOND, 9);
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            digits -= 1;
        }
        return write!(f, "{}.{fraction:0digits$}s", period / SECOND);
    }
    match period / unit {
        1 => f.write_str(name),
        n => write!(f, "{n}{name}"),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn left(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn expected(&self, expected: &'static str) -> LimitError {
        LimitError::Syntax { at: self.at, expected }
    }

    fn take_while(&mut self, accept: fn(char) -> bool) -> &'t str {
        let left = self.left();
        let len = left.find(|c| !accept(c)).unwrap_or(left.len());
        self.at += len;
        left.get(..len).unwrap_or("")
    }

    fn spaces(&mut self) -> bool {
        !self.take_while(|c| c == ' ').is_empty()
    }

    /// Between a word and its value: spaces, or one `=`.
    fn separator(&mut self) {
        if !self.word("=") {
            self.spaces();
        }
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self.left().starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn is_month(&mut self) -> bool {
        let name = self.left().split(|c: char| !c.is_ascii_alphanumeric()).next();
        name == Some("month") && self.word("month")
    }

    fn algorithm(&mut self) -> Result<Option<Algorithm>, LimitError> {
        if !self.left().starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Ok(None);
        }
        let start = self.at;
        let name = self.take_while(|c| c.is_ascii_alphabetic() || c == '_');
        let found = Algorithm::from_name(name).filter(|_| self.spaces());
        found.map(Some).ok_or(LimitError::Syntax {
            at: start,
            expected: "a number, or token_bucket, leaky_bucket, fixed_window, sliding_window, \
                       sliding_log or concurrency and a space",
        })
    }

    fn anchor(&mut self) -> Result<Anchor, LimitError> {
        if self.word("first_request") {
            Ok(Anchor::FirstRequest)
        } else if self.word("clock") {
            Ok(Anchor::Clock)
        } else {
            Err(self.expected("clock or first_request"))
        }
    }

    fn number(&mut self, expected: &'static str) -> Result<u64, LimitError> {
        let at = self.at;
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.expected(expected));
        }
        digits.parse().map_err(|_| LimitError::Number { at })
    }

    /// `[ decimal ] unit`, exactly; a fraction finer than a nanosecond is an error.
    fn period(&mut self) -> Result<Nanos, LimitError> {
        let at = self.at;
        let too_fine = LimitError::Number { at };
        let whole = self.take_while(|c| c.is_ascii_digit());
        let fraction = if !whole.is_empty() && self.word(".") {
            let digits = self.take_while(|c| c.is_ascii_digit());
            if digits.is_empty() {
                return Err(self.expected("digits after the decimal point"));
            }
            digits.trim_end_matches('0')
        } else {
            ""
        };
        let unit_at = self.at;
        let name = self.take_while(|c| c.is_ascii_alphabetic());
        let unit = UNITS.into_iter().find(|(n, _)| *n == name).map(|(_, unit)| unit);
        let unit = unit.ok_or(LimitError::Syntax {
            at: unit_at,
            expected: "a unit of time (ns, us, ms, s, m, h or d)",
        })?;
        let whole: u64 = match whole {
            "" => 1,
            digits => digits.parse().map_err(|_| too_fine)?,
        };
        let scale = u32::try_from(fraction.len()).ok().and_then(|n| 10u128.checked_pow(n));
        let scale = scale.ok_or(too_fine)?;
        let parts: u128 = match fraction {
            "" => 0,
            digits => digits.parse().map_err(|_| too_fine)?,
        };
        let parts = parts.checked_mul(u128::from(unit)).ok_or(too_fine)?;
        if parts % scale != 0 {
            return Err(too_fine);
        }
        let fraction = u64::try_from(parts / scale).map_err(|_| too_fine)?;
        let whole = whole.checked_mul(unit).ok_or(too_fine)?;
        whole.checked_add(fraction).ok_or(too_fine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{MAX_LIMIT, MAX_PERIOD, MIN_PERIOD};
    use proptest::prelude::*;
    use std::string::ToString;

    fn parse(text: &str) -> Result<(u64, Nanos, u64), LimitError> {
        text.parse().map(|l: Limit| (l.limit(), l.period(), l.burst()))
    }

    #[test]
    fn the_ways_to_write_a_limit() {
        const S: Nanos = 1_000_000_000;
        assert_eq!(parse("100/s"), Ok((100, S, 100)));
        assert_eq!(parse("100/s burst 200"), Ok((100, S, 200)));
        assert_eq!(parse("100/s burst=200"), Ok((100, S, 200)));
        assert_eq!(parse("700/m"), Ok((700, 60 * S, 700)));
        assert_eq!(parse("5000/h"), Ok((5000, 3600 * S, 5000)));
        assert_eq!(parse("100000/d"), Ok((100_000, 86_400 * S, 100_000)));
        assert_eq!(parse("1/1.5s"), Ok((1, 1_500_000_000, 1)));
        assert_eq!(parse("1/30d"), Ok((1, 30 * 86_400 * S, 1)));
        assert_eq!(parse("100r/s"), Ok((100, S, 100)));
        assert_eq!(parse("30r/m"), Ok((30, 60 * S, 30)));
        let windowed: Limit = "fixed_window 10/m anchor first_request".parse().unwrap();
        assert_eq!(windowed.algorithm(), Algorithm::FixedWindow);
        assert_eq!(windowed.anchor(), Anchor::FirstRequest);
    }

    #[test]
    fn a_month_is_a_fixed_windows_alone() {
        let month: Limit = "fixed_window 1000000/month".parse().unwrap();
        assert_eq!(
            (month.anchor(), month.period(), month.limit()),
            (Anchor::CalendarMonth, MONTH, 1_000_000)
        );
        assert_eq!(month.to_string().parse(), Ok(month));
        assert_eq!("5/month".parse::<Limit>(), Err(LimitError::Month));
        assert_eq!("fixed_window 5/month anchor clock".parse::<Limit>(), Err(LimitError::Month));
        assert!("fixed_window 5/months".parse::<Limit>().is_err());
        assert!("fixed_window 5/2month".parse::<Limit>().is_err());
        let days: Limit = "fixed_window 5/30d".parse().unwrap();
        assert_eq!(days.with_anchor(Anchor::CalendarMonth), Err(LimitError::Month));
    }

    #[test]
    fn a_bad_limit_is_refused_with_what_where_and_the_legal_range() {
        for (text, message) in [
            ("", "limit text: expected a whole number of units at byte 0"),
            ("100", "limit text: expected \"/\" between units and period at byte 3"),
            ("100/", "limit text: expected a unit of time (ns, us, ms, s, m, h or d) at byte 4"),
            ("0/s", "limit: 0 is outside 1 to 4294967295 units per period"),
            ("4294967296/s", "limit: 4294967296 is outside 1 to 4294967295 units per period"),
            ("1/999ns", "period: 999 ns is outside 1000 ns (1us) to 316224000000000000 ns (3660d)"),
            ("1/s burst 0", "burst: 0 is outside 1 to 4294967295 units"),
            ("1/s  bursty 4", "limit text: expected a whole number of units at byte 10"),
            ("1/1.0000000001s", "limit text: the number at byte 2 is too large or too fine"),
            ("99999999999999999999/s", "limit text: the number at byte 0 is too large or too fine"),
            ("1/s x", "limit text: expected \" burst N\", \" anchor NAME\" or the end at byte 4"),
            (
                "fixed_window 3/s burst 4",
                "burst: fixed_window has no burst apart from its limit; leave it out",
            ),
        ] {
            assert_eq!(text.parse::<Limit>().unwrap_err().to_string(), message, "{text}");
        }
        assert!(matches!("hourly 3/s".parse::<Limit>(), Err(LimitError::Syntax { at: 0, .. })));
    }

    proptest! {
        #[test]
        fn a_limit_prints_itself_back(
            algorithm in 0usize..6,
            limit in 1..=MAX_LIMIT,
            period in prop_oneof![MIN_PERIOD..=MAX_PERIOD, (1u64..=3660).prop_map(|d| d * 86_400_000_000_000), (1u64..=5000).prop_map(|ms| ms * 1_000_000)],
            burst in 1..=MAX_LIMIT,
        ) {
            let limit = Limit::new(Algorithm::ALL[algorithm], limit, period).unwrap();
            let limit = limit.with_burst(burst).unwrap_or(limit);
            prop_assert_eq!(limit.to_string().parse::<Limit>().unwrap(), limit);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Limit>();
        }

        #[test]
        fn nothing_near_a_limit_panics(text in "[0-9./rsmhdun burstanchor_-]{0,24}") {
            let _ = text.parse::<Limit>();
        }
    }
}
