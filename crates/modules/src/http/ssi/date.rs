//! `$date_local` and `$date_gmt`, in the form that the page asked for with `config timefmt`.

use std::sync::LazyLock;

use bstr::BString;
use http::Request;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// What `config timefmt` of a page said.
pub(super) struct TimeFormat(pub(super) BString);

/// As C's strftime has it.
const DEFAULT: &str = "%A, %d-%b-%Y %H:%M:%S %Z";

/// The longest date, in bytes; nginx's bound.
const MAX_LENGTH: usize = 2048;

/// The zone of this machine. Reading it may touch files, so it is read before the server serves.
static LOCAL: LazyLock<TimeZone> = LazyLock::new(TimeZone::system);

/// Reads the zone of this machine.
pub(super) fn prepare() {
    LazyLock::force(&LOCAL);
}

pub(super) fn local(request: &mut Request, out: &mut Vec<u8>) -> bool {
    write(request, &LOCAL, None, out)
}

pub(super) fn gmt(request: &mut Request, out: &mut Vec<u8>) -> bool {
    write(request, &TimeZone::UTC, Some("GMT"), out)
}

fn write(request: &mut Request, zone: &TimeZone, name: Option<&str>, out: &mut Vec<u8>) -> bool {
    let format = match request.state::<TimeFormat>() {
        Some(TimeFormat(format)) => String::from_utf8_lossy(format).into_owned(),
        None => DEFAULT.to_owned(),
    };
    let seconds = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
    if format == "%s" {
        out.extend_from_slice(seconds.to_string().as_bytes());
        return true;
    }
    let Ok(time) = Timestamp::from_second(seconds) else {
        return false;
    };
    let Some(text) = written(&time.to_zoned(zone.clone()), name, &format) else {
        return false;
    };
    out.extend_from_slice(text.as_bytes());
    true
}

fn written(time: &Zoned, name: Option<&str>, format: &str) -> Option<String> {
    let format = match name {
        Some(name) => with_zone(format, name),
        None => format.to_owned(),
    };
    // What strftime does not know it leaves as it stands.
    let lenient = Config::new().lenient(true);
    let text = BrokenDownTime::from(time)
        .to_string_with_config(&lenient, format)
        .ok()?;
    (text.len() < MAX_LENGTH).then_some(text)
}

/// Puts the name of a zone in place of `%Z`.
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
        let of = |format| written(&time, Some("GMT"), format);
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
