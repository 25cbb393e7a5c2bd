//! The current time as C's `strftime` writes it in the `C` locale.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::{Offset, TimeZone};

use super::InvalidText;

/// The maximum length of the result.
const MAX_LENGTH: usize = 255;

/// The time zone of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockZone {
    Gmt,
    Local,
}

/// The current time in this format.
pub(super) fn format_now(format: &[u8], zone: ClockZone) -> Result<Vec<u8>, InvalidText> {
    if format.is_empty() {
        return Ok(Vec::new());
    }
    let seconds = rt::wall_millis() / 1000;
    let offset = match zone {
        ClockZone::Gmt => 0,
        // From the C library, as for the logs, so that both agree.
        ClockZone::Local => rt::local_time(seconds).offset,
    };
    let text = write(format, seconds, offset, zone)?;
    match text.len() {
        1..=MAX_LENGTH => Ok(text.into()),
        _ => Err(InvalidText::new(
            "the time is empty or too long in this format",
        )),
    }
}

/// Formats a time.
fn write(format: &[u8], seconds: u64, offset: i32, zone: ClockZone) -> Result<String, InvalidText> {
    let invalid = |error: jiff::Error| InvalidText::new(error.to_string());
    let seconds = i64::try_from(seconds).unwrap_or_default();
    let time = Timestamp::from_second(seconds).map_err(invalid)?;
    let offset = Offset::from_seconds(offset).unwrap_or(Offset::UTC);
    let time = BrokenDownTime::from(&time.to_zoned(TimeZone::fixed(offset)));
    let config = Config::new().lenient(true);
    let format = portable_format(format, offset, zone);
    time.to_string_with_config(&config, &format)
        .map_err(invalid)
}

/// Rewrites a format so that jiff formats it as C does in the `C` locale: conversions that depend
/// on a locale or on the name of a zone are spelled out, and those that C does not know are
/// escaped.
fn portable_format(format: &[u8], offset: Offset, zone: ClockZone) -> Vec<u8> {
    let mut out = Vec::with_capacity(format.len() + 16);
    let mut rest = format.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut letter = rest.next().copied();
        // The modifiers ask for the locale's digits or era, of which `C` has none.
        if matches!(letter, Some(b'E' | b'O')) {
            letter = rest.next().copied();
        }
        match letter {
            Some(b'c') => out.extend_from_slice(b"%a %b %e %H:%M:%S %Y"),
            Some(b'x') => out.extend_from_slice(b"%m/%d/%y"),
            Some(b'X') => out.extend_from_slice(b"%H:%M:%S"),
            Some(b'r') => out.extend_from_slice(b"%I:%M:%S %p"),
            Some(b'Z') if zone == ClockZone::Gmt => out.extend_from_slice(b"GMT"),
            Some(b'Z') if offset == Offset::UTC => out.extend_from_slice(b"UTC"),
            // The offset is known, the name is not.
            Some(b'Z') => out.extend_from_slice(b"%z"),
            Some(
                unknown @ (b'f' | b'J' | b'K' | b'L' | b'N' | b'Q' | b'i' | b'o' | b'q' | b'v'),
            ) => {
                out.extend_from_slice(&[b'%', b'%', unknown]);
            }
            Some(letter) => out.extend_from_slice(&[b'%', letter]),
            None => out.extend_from_slice(b"%%"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_c() {
        for (format, text) in [
            ("%Y-%m-%d %H:%M:%S", "2009-02-13 23:31:30"),
            ("%c", "Fri Feb 13 23:31:30 2009"),
            ("%x %X %r", "02/13/09 23:31:30 11:31:30 PM"),
            (
                "%a %A %b %B %j %U %w %y %%",
                "Fri Friday Feb February 044 06 5 09 %",
            ),
            ("%Z %z %e %s", "GMT +0000 13 1234567890"),
            ("%f%q%Ey", "%f%q09"),
            ("100%", "100%"),
        ] {
            let written = write(format.as_bytes(), 1_234_567_890, 0, ClockZone::Gmt);
            assert_eq!(written.expect("a format"), text, "{format}");
        }
    }
}
