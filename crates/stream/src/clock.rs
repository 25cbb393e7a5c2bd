//! Local time for logs. A session needs it once or twice, so that no formatted text is kept between two uses.

use jiff::tz::{Offset, TimeZone};
use proto::date;

/// Appends the present local time as `$time_local` shows it.
pub fn write_local_time(out: &mut Vec<u8>) {
    let (second, zone) = now();
    date::write_log(second, &zone, out);
}

/// Appends the present local time as `$time_iso8601` shows it.
pub fn write_iso8601(out: &mut Vec<u8>) {
    let (second, zone) = now();
    date::write_iso8601(second, &zone, out);
}

/// The zone comes from the C library, as it does for the error log, so that both logs agree.
fn now() -> (i64, TimeZone) {
    let second = rt::wall_millis() / 1000;
    let offset = Offset::from_seconds(rt::local_time(second).offset);
    (
        i64::try_from(second).unwrap_or(i64::MAX),
        offset.unwrap_or(Offset::UTC).to_time_zone(),
    )
}
