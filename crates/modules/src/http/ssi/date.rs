//! `$date_local` and `$date_gmt`, in the format that the page set with `config timefmt`.

use std::sync::LazyLock;

use bstr::BString;
use http::Request;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// The format set by `config timefmt`.
pub(super) struct TimeFormat(pub(super) BString);

/// The default format, for C's `strftime`; nginx's.
const DEFAULT: &str = "%A, %d-%b-%Y %H:%M:%S %Z";

/// The maximum length of a date, in bytes; nginx's bound.
const MAX_LENGTH: usize = 2048;

/// The local time zone. Reading it may access files, which would block an event loop, so it is read
/// before the server serves.
static LOCAL: LazyLock<TimeZone> = LazyLock::new(TimeZone::system);

/// Reads the local time zone ahead of the first use.
pub(super) fn load_local_zone() {
    LazyLock::force(&LOCAL);
}

/// `$date_local`.
pub(super) fn local(request: &mut Request, out: &mut Vec<u8>) -> bool {
    write(request, &LOCAL, None, out)
}

/// `$date_gmt`.
pub(super) fn gmt(request: &mut Request, out: &mut Vec<u8>) -> bool {
    write(request, &TimeZone::UTC, Some("GMT"), out)
}

/// Appends the current time; `name` replaces the name of the zone.
fn write(request: &mut Request, zone: &TimeZone, name: Option<&str>, out: &mut Vec<u8>) -> bool {
    let format = match request.state::<TimeFormat>() {
        Some(TimeFormat(format)) => String::from_utf8_lossy(format).into_owned(),
        None => DEFAULT.to_owned(),
    };
    let seconds = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
    // nginx handles this format apart, too; the zone does not matter for it.
    if format == "%s" {
        out.extend_from_slice(seconds.to_string().as_bytes());
        return true;
    }
    let Ok(time) = Timestamp::from_second(seconds) else {
        return false;
    };
    let Some(text) = format_time(&time.to_zoned(zone.clone()), name, &format) else {
        return false;
    };
    out.extend_from_slice(text.as_bytes());
    true
}

/// Formats a time; `None` if the format is invalid or the result too long.
fn format_time(time: &Zoned, name: Option<&str>, format: &str) -> Option<String> {
    let format = match name {
        Some(name) => with_zone(format, name),
        None => format.to_owned(),
    };
    // Like C's `strftime`: unknown conversions are copied.
    let lenient = Config::new().lenient(true);
    let text = BrokenDownTime::from(time)
        .to_string_with_config(&lenient, format)
        .ok()?;
    (text.len() < MAX_LENGTH).then_some(text)
}

/// Replaces `%Z` by a name: jiff calls the zone UTC, nginx's variable says GMT.
fn with_zone(format: &str, name: &str) -> String {
    let mut out = String::new();
    let mut signs = format.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '%' => match signs.next() {
                Some('Z') => out.push_str(name),
                next => {
                    out.push('%');
                    out.extend(next);
                }
            },
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_strftime_does() {
        let time = Timestamp::from_second(784_111_777)
            .expect("in range")
            .to_zoned(TimeZone::UTC);
        let of = |format| format_time(&time, Some("GMT"), format);
        assert_eq!(
            of(DEFAULT).as_deref(),
            Some("Sunday, 06-Nov-1994 08:49:37 GMT")
        );
        assert_eq!(
            of("%d.%m.%y %I%p %j %%Z").as_deref(),
            Some("06.11.94 08AM 310 %Z")
        );
        assert_eq!(of("plain").as_deref(), Some("plain"));
        assert_eq!(of("").as_deref(), Some(""));
    }
}
