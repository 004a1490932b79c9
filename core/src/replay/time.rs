//! Instants as logs write them, in nanoseconds since the UNIX epoch.
//!
//! Three forms, all of fixed shape: NGINX's `30/Nov/2026:00:06:06 +0000`, ISO
//! 8601, and seconds since the epoch. A library of calendars would be asked
//! for every line; this reads 26 bytes, and only when they are not those of
//! the line before.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::time::Nanos;

const SECOND: u64 = 1_000_000_000;
const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
/// The longest text that is an instant.
const MAX_TEXT: usize = 40;

/// Reads instants; remembers the last, as the next line is mostly of the same
/// second.
#[derive(Debug)]
pub struct Clock {
    text: [u8; MAX_TEXT],
    len: usize,
    at: Nanos,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { text: [0; MAX_TEXT], len: 0, at: 0 }
    }
}

impl Clock {
    /// Reads an instant; none if it is in no known form.
    pub fn read(&mut self, text: &[u8]) -> Option<Nanos> {
        if self.len > 0 && self.text.get(..self.len) == Some(text) {
            return Some(self.at);
        }
        let at = parse(text)?;
        self.text.get_mut(..text.len())?.copy_from_slice(text);
        (self.len, self.at) = (text.len(), at);
        Some(at)
    }
}

/// Reads an instant in any of the forms.
#[must_use]
pub fn parse(text: &[u8]) -> Option<Nanos> {
    match text {
        _ if text.len() > MAX_TEXT => None,
        [_, _, b'/', ..] => parse_nginx(text),
        [_, _, _, _, b'-', ..] => parse_iso(text),
        _ => parse_epoch(text),
    }
}

/// `30/Nov/2026:00:06:06 +0000`.
fn parse_nginx(text: &[u8]) -> Option<Nanos> {
    let (date, zone) = text.split_at_checked(20)?;
    let [d1, d2, b'/', m1, m2, m3, b'/', year @ .., b':', h1, h2, b':', n1, n2, b':', s1, s2] = date else {
        return None;
    };
    let month = MONTHS.iter().position(|month| **month == [*m1, *m2, *m3])? as i64 + 1; // at most 12
    let day = number(&[*d1, *d2])?;
    let clock = [number(&[*h1, *h2])?, number(&[*n1, *n2])?, number(&[*s1, *s2])?];
    let [b' ', zone @ ..] = zone else { return None };
    instant([number(year)?, month, day], clock, 0, offset(zone)?)
}

/// `2026-11-30T00:06:06.123+01:00`; without a zone it is UTC.
fn parse_iso(text: &[u8]) -> Option<Nanos> {
    let (fixed, rest) = text.split_at_checked(19)?;
    let [year @ .., b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' ', h1, h2, b':', n1, n2, b':', s1, s2] =
        fixed
    else {
        return None;
    };
    let date = [number(year)?, number(&[*m1, *m2])?, number(&[*d1, *d2])?];
    let clock = [number(&[*h1, *h2])?, number(&[*n1, *n2])?, number(&[*s1, *s2])?];
    let (fraction, zone) = match rest {
        [b'.' | b',', rest @ ..] => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (digits, zone) = rest.split_at_checked(digits)?;
            (fraction(digits)?, zone)
        }
        zone => (0, zone),
    };
    instant(date, clock, fraction, if zone.is_empty() { 0 } else { offset(zone)? })
}

/// `1764460800.123`. Whole numbers too large for seconds are milli-, micro- or
/// nanoseconds.
fn parse_epoch(text: &[u8]) -> Option<Nanos> {
    let dot = text.iter().position(|&byte| byte == b'.');
    let (whole, digits) = text.split_at_checked(dot.unwrap_or(text.len()))?;
    let fraction = match digits {
        [] => 0,
        [_, digits @ ..] => fraction(digits)?,
    };
    let whole = u64::try_from(number(whole)?).ok()?;
    let unit = match whole {
        _ if dot.is_some() => SECOND,
        0..=99_999_999_999 => SECOND, // until the year 5138
        100_000_000_000..=99_999_999_999_999 => 1_000_000,
        100_000_000_000_000..=99_999_999_999_999_999 => 1_000,
        _ => 1,
    };
    whole.checked_mul(unit)?.checked_add(fraction)
}

fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 18 {
        return digits.len().eq(&19).then(|| core::str::from_utf8(digits).ok()?.parse().ok())?;
    }
    digits.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
}

/// Digits behind the decimal point, as nanoseconds; those beyond nine are cut.
fn fraction(digits: &[u8]) -> Option<u64> {
    let (mut sum, mut unit) = (0, SECOND);
    for byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        unit /= 10;
        sum += u64::from(byte - b'0') * unit;
    }
    (!digits.is_empty()).then_some(sum)
}

/// `Z`, `+0100` or `-01:00`, in seconds.
fn offset(zone: &[u8]) -> Option<i64> {
    let (sign, h, m) = match zone {
        [b'Z' | b'z'] => return Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] | [sign @ (b'+' | b'-'), h1, h2, m1, m2] => {
            (*sign, [*h1, *h2], [*m1, *m2])
        }
        [sign @ (b'+' | b'-'), h1, h2] => (*sign, [*h1, *h2], *b"00"),
        _ => return None,
    };
    let seconds = number(&h)? * 3600 + number(&m)? * 60;
    Some(if sign == b'-' { -seconds } else { seconds })
}

fn instant(date: [i64; 3], clock: [i64; 3], fraction: u64, offset: i64) -> Option<Nanos> {
    let ([year, month, day], [hour, minute, second]) = (date, clock);
    let legal = (1..=12).contains(&month)
        && (1..=month_days(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60; // a leap second is the next one
    if !legal {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    u64::try_from(seconds).ok()?.checked_mul(SECOND)?.checked_add(fraction)
}

fn month_days(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month, day of an instant.
fn date(seconds: u64) -> [u64; 3] {
    let day = seconds / 86_400 + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    [year + era * 400 + u64::from(month <= 2), month, day]
}

/// `2026-11-30T00:06:06Z`; a fraction of a second is cut.
#[must_use]
pub fn iso(at: Nanos) -> String {
    let seconds = at / SECOND;
    let [year, month, day] = date(seconds);
    let clock = seconds % 86_400;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", clock / 3600, clock / 60 % 60, clock % 60)
}

/// As NGINX writes it, in UTC.
#[must_use]
pub fn nginx(at: Nanos) -> String {
    let seconds = at / SECOND;
    let [year, month, day] = date(seconds);
    let name = MONTHS.get(month as usize - 1).copied().unwrap_or(b"Jan"); // 1 to 12
    let (name, clock) = (String::from_utf8_lossy(name), seconds % 86_400);
    format!("{day:02}/{name}/{year:04}:{:02}:{:02}:{:02} +0000", clock / 3600, clock / 60 % 60, clock % 60)
}

/// A span in its largest two units, such as `1h 23m`.
#[must_use]
pub fn span(span: Nanos) -> String {
    let seconds = span / SECOND;
    let units = [("d", 86_400, u64::MAX), ("h", 3_600, 24), ("m", 60, 60), ("s", 1, 60)];
    let parts = units.iter().map(|(name, unit, wrap)| (name, seconds / unit % wrap));
    let told: Vec<_> = parts
        .skip_while(|(_, n)| *n == 0)
        .take(2)
        .filter(|(_, n)| *n > 0)
        .map(|(u, n)| format!("{n}{u}"))
        .collect();
    if told.is_empty() { format!("{}ms", span / 1_000_000) } else { told.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: Nanos = 1_795_997_166 * SECOND;

    #[test]
    fn all_forms_are_the_same_instant() {
        for text in [
            "30/Nov/2026:00:06:06 +0000",
            "29/Nov/2026:22:06:06 -0200",
            "2026-11-30T00:06:06Z",
            "2026-11-30T00:06:06",
            "2026-11-30 01:36:06+01:30",
            "2026-11-30T00:06:06.000+0000",
            "1795997166",
            "1795997166.000",
            "1795997166000",
            "1795997166000000000",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(AT), "{text}");
        }
        assert_eq!(parse(b"1795997166.123"), Some(AT + 123_000_000));
        assert_eq!(parse(b"2026-11-30T00:06:06.5Z"), Some(AT + SECOND / 2));
        assert_eq!(
            (iso(AT), nginx(AT)),
            ("2026-11-30T00:06:06Z".into(), "30/Nov/2026:00:06:06 +0000".into())
        );
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        for text in [
            "",
            "-",
            "x",
            "1969-12-31T23:59:59Z",
            "2026-02-29T00:00:00Z",
            "30/Foo/2026:00:06:06 +0000",
            "30/Nov/2026:24:06:06 +0000",
            "30/Nov/2026:00:06:06",
            "9999999999999999999999",
            "1.",
            "-5",
            "9999-01-01T00:00:00Z",
            "2026-11-30T00:06:06+1",
            "30/Nov/2026:00:06:06 +00:0",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0u64..18_000_000_000) {
            let at = seconds * SECOND;
            prop_assert_eq!(parse(iso(at).as_bytes()), Some(at));
            if seconds < 15_000_000_000 {
                prop_assert_eq!(parse(nginx(at).as_bytes()), Some(at));
            }
        }

        #[test]
        fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..50)) {
            let _ = Clock::default().read(&text);
        }
    }
}
