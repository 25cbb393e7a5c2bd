//! Sizes, times and rates as a configuration writes them, read and printed.
//!
//! The grammar is nginx's: `8k`, `10m`, `1g` (offsets only), `30s`, `1h 30m`, `1d12h`, `10r/s`. Every reader
//! returns `None` for text it does not accept; which words an error uses is the caller's business.

use std::time::Duration;

use crate::text::decimal;

/// A size in bytes: digits, then nothing, `k` or `m` (either case). What fits memory: buffers, zones.
pub fn parse_size(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 1 << 10), (b'm', 1 << 20)]).and_then(|size| u64::try_from(size).ok())
}

/// A length or position in a file: as [`parse_size`], and `g`.
pub fn parse_offset(text: &[u8]) -> Option<i64> {
    scaled(text, &[(b'k', 1 << 10), (b'm', 1 << 20), (b'g', 1 << 30)])
}

fn scaled(text: &[u8], units: &[(u8, i64)]) -> Option<i64> {
    let (&last, digits) = text.split_last()?;
    match units
        .iter()
        .find(|unit| unit.0 == last.to_ascii_lowercase())
    {
        Some(unit) => decimal(digits)?.checked_mul(unit.1),
        None => decimal(text),
    }
}

/// A time with the precision of milliseconds; a number without a unit means seconds.
///
/// Units must come from the largest to the smallest, each at most once: `w d h m s ms`. Years and months
/// are not accepted here, because nginx takes them only where seconds suffice.
pub fn parse_millis(text: &[u8]) -> Option<Duration> {
    u64::try_from(parse_time(text, TimePrecision::Millis)?)
        .ok()
        .map(Duration::from_millis)
}

/// A time in whole seconds: as [`parse_millis`] without `ms`, with `y` (365 days) and `M` (30 days).
pub fn parse_seconds(text: &[u8]) -> Option<Duration> {
    u64::try_from(parse_time(text, TimePrecision::Seconds)?)
        .ok()
        .map(Duration::from_secs)
}

#[derive(Clone, Copy, PartialEq)]
enum TimePrecision {
    Millis,
    Seconds,
}

/// Seconds per unit, from the largest unit to the smallest. The position is also the order in which units
/// must appear; the space stands for "seconds without a unit, more follows".
const TIME_UNITS: [(&str, i64); 9] = [
    ("y", 365 * 86_400),
    ("M", 30 * 86_400),
    ("w", 7 * 86_400),
    ("d", 86_400),
    ("h", 3_600),
    ("m", 60),
    ("s", 1),
    ("ms", 0),
    (" ", 1),
];

fn parse_time(text: &[u8], precision: TimePrecision) -> Option<i64> {
    let per_second = if precision == TimePrecision::Millis {
        1000
    } else {
        1
    };
    // `first` is the largest unit that may still come.
    let mut first = if precision == TimePrecision::Millis {
        2
    } else {
        0
    };
    let mut total = 0i64;
    let mut rest = text;
    // A unit without digits counts as none of it: nginx takes `d12h` and so a site may have it.
    if !text.iter().any(u8::is_ascii_digit) {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let value = match digits {
            0 => 0,
            _ => decimal(&rest[..digits])?,
        };
        rest = &rest[digits..];
        if rest.is_empty() {
            return total.checked_add(value.checked_mul(per_second)?);
        }
        let unit_len = if rest.starts_with(b"ms") { 2 } else { 1 };
        let unit = TIME_UNITS
            .iter()
            .position(|unit| unit.0.as_bytes() == &rest[..unit_len])?;
        // After seconds nothing but milliseconds may follow, and no bare number twice.
        let latest = if rest[0] == b' ' { 6 } else { unit };
        if latest < first || (unit_len == 2 && precision == TimePrecision::Seconds) {
            return None;
        }
        first = unit + 1;
        let scale = if unit_len == 2 {
            1
        } else {
            TIME_UNITS[unit].1 * per_second
        };
        total = total.checked_add(value.checked_mul(scale)?)?;
        rest = rest[unit_len..].trim_ascii_start_spaces();
    }
    Some(total)
}

/// Skips spaces only: a tab or a line end inside a time is an error, not a separator.
trait SkipSpaces {
    fn trim_ascii_start_spaces(&self) -> &Self;
}

impl SkipSpaces for [u8] {
    fn trim_ascii_start_spaces(&self) -> &[u8] {
        &self[self.iter().take_while(|&&byte| byte == b' ').count()..]
    }
}

/// How often something may happen, in thousandths per second: `1r/m` is 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    /// Events per 1000 seconds.
    pub thousandths_per_second: u64,
}

/// A rate: `10r/s` or `30r/m`. Zero is not a rate.
pub fn parse_rate(text: &[u8]) -> Option<Rate> {
    let (digits, seconds) = match text.strip_suffix(b"r/s") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix(b"r/m")?, 60),
    };
    let events = u64::try_from(decimal(digits)?)
        .ok()
        .filter(|&events| events > 0)?;
    Some(Rate {
        thousandths_per_second: events.checked_mul(1000)? / seconds,
    })
}

/// A size as short as it can be written exactly: `4096` is `4k`.
pub fn size_text(size: u64) -> String {
    match size {
        0 => "0".to_owned(),
        size if size % (1 << 20) == 0 => format!("{}m", size >> 20),
        size if size % (1 << 10) == 0 => format!("{}k", size >> 10),
        size => size.to_string(),
    }
}

/// A time as short as a reader expects it: `90s` is `1m30s`, half a second is `500ms`.
pub fn time_text(time: Duration) -> String {
    let mut seconds = time.as_secs();
    let millis = time.subsec_millis();
    let mut out = String::new();
    for (unit, length) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        if seconds >= length {
            out.push_str(&format!("{}{unit}", seconds / length));
            seconds %= length;
        }
    }
    if millis > 0 {
        out.push_str(&format!("{millis}ms"));
    }
    if out.is_empty() {
        out.push_str("0s");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in [
            ("0", 0),
            ("17", 17),
            ("8k", 8192),
            ("8K", 8192),
            ("2m", 2 << 20),
            ("2M", 2 << 20),
        ] {
            assert_eq!(parse_size(text.as_bytes()), Some(size), "{text}");
        }
        for wrong in [
            "",
            "k",
            "-1",
            "1kk",
            "1 k",
            "1g",
            "1.5m",
            "9007199254740992k",
        ] {
            assert_eq!(parse_size(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse_offset(b"3g"), Some(3 << 30));
        assert_eq!(parse_offset(b"9000000000g"), None);
    }

    #[test]
    fn times_in_milliseconds() {
        let millis = |text: &str| parse_millis(text.as_bytes()).map(|time| time.as_millis());
        for (text, expected) in [
            ("0", 0),
            ("60", 60_000),
            ("500ms", 500),
            ("1s", 1_000),
            ("1s 5ms", 1_005),
            ("1m", 60_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1d12h", 129_600_000),
            ("1w", 604_800_000),
            ("1m 30", 90_000),
            ("30 ", 30_000),
            (" 30", 30_000),
            ("d12h", 43_200_000),
        ] {
            assert_eq!(millis(text), Some(expected), "{text:?}");
        }
        for wrong in [
            "",
            " ",
            "1x",
            "1y",
            "1M",
            "1m1h",
            "1s1s",
            "1ms1s",
            "-1",
            "1.5s",
            "1 2 3",
            "99999999999999999999",
        ] {
            assert_eq!(millis(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn times_in_seconds() {
        let seconds = |text: &str| parse_seconds(text.as_bytes()).map(|time| time.as_secs());
        assert_eq!(seconds("1y"), Some(31_536_000));
        assert_eq!(seconds("1M"), Some(2_592_000));
        assert_eq!(
            seconds("1y 1M 1w 1d 1h 1m 1s"),
            Some(31_536_000 + 2_592_000 + 604_800 + 86_400 + 3_600 + 61)
        );
        assert_eq!(seconds("1ms"), None);
        assert_eq!(seconds("1M1y"), None);
    }

    #[test]
    fn rates() {
        assert_eq!(
            parse_rate(b"10r/s").map(|rate| rate.thousandths_per_second),
            Some(10_000)
        );
        assert_eq!(
            parse_rate(b"30r/m").map(|rate| rate.thousandths_per_second),
            Some(500)
        );
        for wrong in ["", "r/s", "0r/s", "1r/h", "1", "-1r/s"] {
            assert_eq!(parse_rate(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn printed_forms_read_back() {
        for size in [0, 1, 1023, 1024, 4096, 1 << 20, 3 << 20, (1 << 20) + 1] {
            assert_eq!(parse_size(size_text(size).as_bytes()), Some(size));
        }
        for millis in [0, 1, 999, 1_000, 61_000, 5_400_000, 90_061_001] {
            let time = Duration::from_millis(millis);
            assert_eq!(
                parse_millis(time_text(time).as_bytes()),
                Some(time),
                "{}",
                time_text(time)
            );
        }
    }
}
