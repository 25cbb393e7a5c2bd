//! Dates: the three forms of HTTP (RFC 9110, section 5.6.7), and those of logs and cookies.
//!
//! Times are seconds since the epoch in UTC. The time zone of local times is an argument: this
//! crate has no clock and reads no environment.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
pub use jiff::tz::TimeZone;
use std::fmt;
use std::io::Write;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/// Parses a date of HTTP: `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` or `Sun
/// Nov  6 08:49:37 1994`. As in nginx the name of the day and everything after the time are
/// ignored, and a year of two digits below 70 is 20xx.
pub fn parse(text: &[u8]) -> Option<i64> {
    let mut text = DateCursor(text);
    let comma = text.0.iter().position(|&b| matches!(b, b',' | b' '))?;
    let is_asctime = text.0[comma] == b' ';
    text.0 = &text.0[comma + 1..];
    text.skip_spaces();
    let date = if is_asctime {
        text.asctime()?
    } else {
        text.fixdate_or_850()?
    };
    seconds(date)
}

/// Year, month (1 to 12), day, and the time of day in seconds.
struct DateParts {
    year: i64,
    month: u8,
    day: u8,
    time: i64,
}

/// The remaining text.
struct DateCursor<'a>(&'a [u8]);

impl DateCursor<'_> {
    /// `Nov  6 08:49:37 1994`
    fn asctime(&mut self) -> Option<DateParts> {
        let month = self.month()?;
        self.expect(b' ')?;
        self.skip_spaces();
        let day = if self.0.get(1)?.is_ascii_digit() {
            self.digits(2)?
        } else {
            self.digits(1)?
        };
        self.expect(b' ')?;
        let time = self.time()?;
        self.expect(b' ')?;
        Some(DateParts {
            year: self.digits(4)?,
            month,
            day: day as u8,
            time,
        })
    }

    /// `06 Nov 1994 08:49:37` or `06-Nov-94 08:49:37`
    fn fixdate_or_850(&mut self) -> Option<DateParts> {
        let day = self.digits(2)?;
        let separator = *self.0.first()?;
        if !matches!(separator, b' ' | b'-') {
            return None;
        }
        self.expect(separator)?;
        let month = self.month()?;
        self.expect(separator)?;
        let year = match separator {
            b' ' => self.digits(4)?,
            _ => match self.digits(2)? {
                year @ 0..70 => 2000 + year,
                year => 1900 + year,
            },
        };
        self.expect(b' ')?;
        Some(DateParts {
            year,
            month,
            day: day as u8,
            time: self.time()?,
        })
    }

    fn month(&mut self) -> Option<u8> {
        let name = self.0.get(..3)?;
        let index = MONTHS
            .iter()
            .position(|month| month.as_bytes().eq_ignore_ascii_case(name))?;
        self.0 = &self.0[3..];
        Some(index as u8 + 1)
    }

    /// `08:49:37` as seconds.
    fn time(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.expect(b':')?;
        let minute = self.digits(2)?;
        self.expect(b':')?;
        let second = self.digits(2)?;
        (hour < 24 && minute < 60 && second < 60).then_some(hour * 3600 + minute * 60 + second)
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        digits.iter().try_fold(0, |value, &b| {
            b.is_ascii_digit().then(|| value * 10 + i64::from(b - b'0'))
        })
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    fn skip_spaces(&mut self) {
        self.0 = &self.0[self.0.iter().take_while(|&&b| b == b' ').count()..];
    }
}

/// Converts a date; `None` if its month does not have that day.
fn seconds(date: DateParts) -> Option<i64> {
    let year = i16::try_from(date.year).ok()?;
    let day = jiff::civil::Date::new(year, date.month as i8, date.day as i8).ok()?;
    let midnight = Offset::UTC.to_timestamp(day.at(0, 0, 0, 0)).ok()?;
    Some(midnight.as_second() + date.time)
}

/// The civil time of an instant; one beyond the calendar becomes 1970.
fn civil(seconds: i64, offset: Offset) -> DateTime {
    offset.to_datetime(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn month_name(time: &DateTime) -> &'static str {
    MONTHS[time.month() as usize - 1]
}

fn day_name(time: &DateTime) -> &'static str {
    DAYS[time.weekday().to_sunday_zero_offset() as usize]
}

fn append(text: fmt::Arguments<'_>, out: &mut Vec<u8>) {
    out.write_fmt(text).expect("a vector takes every byte");
}

/// Appends `Sun, 06 Nov 1994 08:49:37 GMT`: Date, Last-Modified, Expires. Years have four digits;
/// the instants that would need more are written as the last one that does not.
pub fn write_http(seconds: i64, out: &mut Vec<u8>) {
    const END_OF_9999: i64 = 253_402_300_799;
    let t = civil(seconds.clamp(0, END_OF_9999), Offset::UTC);
    // Every response with a file has such a date, so the digits are written in place, without the
    // machinery of `fmt`.
    let mut text = *b"Sun, 06 Nov 1994 08:49:37 GMT";
    text[..3].copy_from_slice(day_name(&t).as_bytes());
    two_digits(&mut text[5..7], t.day().unsigned_abs());
    text[8..11].copy_from_slice(month_name(&t).as_bytes());
    let year = t.year().unsigned_abs();
    two_digits(&mut text[12..14], (year / 100) as u8);
    two_digits(&mut text[14..16], (year % 100) as u8);
    two_digits(&mut text[17..19], t.hour().unsigned_abs());
    two_digits(&mut text[20..22], t.minute().unsigned_abs());
    two_digits(&mut text[23..25], t.second().unsigned_abs());
    out.extend_from_slice(&text);
}

fn two_digits(place: &mut [u8], number: u8) {
    place[0] = b'0' + number / 10;
    place[1] = b'0' + number % 10;
}

/// Appends the Expires of a cookie, `Sun, 06-Nov-94 08:49:37 GMT`: a year of two digits up to
/// 2037, as in nginx.
pub fn write_cookie(seconds: i64, out: &mut Vec<u8>) {
    let t = civil(seconds, Offset::UTC);
    append(
        format_args!("{}, {:02}-{}-", day_name(&t), t.day(), month_name(&t)),
        out,
    );
    if t.year() > 2037 {
        append(format_args!("{:04}", t.year()), out);
    } else {
        append(format_args!("{:02}", t.year() % 100), out);
    }
    append(
        format_args!(" {:02}:{:02}:{:02} GMT", t.hour(), t.minute(), t.second()),
        out,
    );
}

/// Appends `06/Nov/1994:08:49:37 +0100`: `$time_local`.
pub fn write_log(seconds: i64, zone: &TimeZone, out: &mut Vec<u8>) {
    let offset = offset_at(seconds, zone);
    let t = civil(seconds, offset);
    let (sign, hours, minutes) = split_offset(offset);
    append(
        format_args!(
            "{:02}/{}/{:04}:{:02}:{:02}:{:02} {sign}{hours:02}{minutes:02}",
            t.day(),
            month_name(&t),
            t.year(),
            t.hour(),
            t.minute(),
            t.second()
        ),
        out,
    );
}

/// Appends `1994-11-06T08:49:37+01:00`: `$time_iso8601`.
pub fn write_iso8601(seconds: i64, zone: &TimeZone, out: &mut Vec<u8>) {
    let offset = offset_at(seconds, zone);
    let t = civil(seconds, offset);
    let (sign, hours, minutes) = split_offset(offset);
    append(
        format_args!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{sign}{hours:02}:{minutes:02}",
            t.year(),
            t.month(),
            t.day(),
            t.hour(),
            t.minute(),
            t.second()
        ),
        out,
    );
}

/// Appends `1994/11/06 08:49:37`: the error log.
pub fn write_error_log(seconds: i64, zone: &TimeZone, out: &mut Vec<u8>) {
    let t = civil(seconds, offset_at(seconds, zone));
    append(
        format_args!(
            "{:04}/{:02}/{:02} {:02}:{:02}:{:02}",
            t.year(),
            t.month(),
            t.day(),
            t.hour(),
            t.minute(),
            t.second()
        ),
        out,
    );
}

/// Appends `Nov  6 08:49:37`: syslog (RFC 3164 section 4.1.2).
pub fn write_syslog(seconds: i64, zone: &TimeZone, out: &mut Vec<u8>) {
    let t = civil(seconds, offset_at(seconds, zone));
    append(
        format_args!(
            "{} {:2} {:02}:{:02}:{:02}",
            month_name(&t),
            t.day(),
            t.hour(),
            t.minute(),
            t.second()
        ),
        out,
    );
}

/// Appends `06-Nov-1994 08:49`: directory listings.
pub fn write_listing(seconds: i64, zone: &TimeZone, out: &mut Vec<u8>) {
    let t = civil(seconds, offset_at(seconds, zone));
    append(
        format_args!(
            "{:02}-{}-{:04} {:02}:{:02}",
            t.day(),
            month_name(&t),
            t.year(),
            t.hour(),
            t.minute()
        ),
        out,
    );
}

fn offset_at(seconds: i64, zone: &TimeZone) -> Offset {
    zone.to_offset(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn split_offset(offset: Offset) -> (char, i32, i32) {
    let minutes = offset.seconds() / 60;
    (
        if minutes < 0 { '-' } else { '+' },
        minutes.abs() / 60,
        minutes.abs() % 60,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_mean_the_same() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun Nov 6 08:49:37 1994",
            "Sun Nov 06 08:49:37 1994",
            "Xxx,06 nov 1994 08:49:37",
            "Sun,   06 Nov 1994 08:49:37 +0000",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
        }
        assert_eq!(parse(b"Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse(b"Thu, 31-Dec-69 23:59:59 GMT"), Some(3_155_759_999));
        assert_eq!(parse(b"Fri, 25 Feb 2174 09:42:23 GMT"), Some(0x1_7FFF_FFFF));
        assert_eq!(parse(b"Tue, 29 Feb 2000 00:00:00 GMT"), Some(951_782_400));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "wrong",
            "Sun,",
            "Sun, 06 Nov",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Thu, 29 Feb 1900 00:00:00 GMT",
            "Sun, 06 Nox 1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 06-Nov 94 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49:60 GMT",
            "Sun, 06 Nov 1994 08:49",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun Nov  6 08:49:37",
            "Sun Nov  6 08:49:37 94",
            "784111777",
            "+1",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for seconds in (0..5_000_000_000i64).step_by(86_399 * 17) {
            let mut out = Vec::new();
            write_http(seconds, &mut out);
            assert_eq!(out.len(), 29);
            assert_eq!(parse(&out), Some(seconds));
        }
    }

    #[test]
    fn logs_and_cookies_have_their_forms() {
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8(out).expect("ASCII")
        };
        let zone = TimeZone::fixed(Offset::from_seconds(-(3 * 3600 + 1800)).expect("an offset"));
        let t = 784_111_777;
        assert_eq!(
            text(&|out| write_log(t, &zone, out)),
            "06/Nov/1994:05:19:37 -0330"
        );
        assert_eq!(
            text(&|out| write_log(t, &TimeZone::UTC, out)),
            "06/Nov/1994:08:49:37 +0000"
        );
        assert_eq!(
            text(&|out| write_iso8601(t, &zone, out)),
            "1994-11-06T05:19:37-03:30"
        );
        assert_eq!(
            text(&|out| write_error_log(t, &zone, out)),
            "1994/11/06 05:19:37"
        );
        assert_eq!(
            text(&|out| write_syslog(t, &TimeZone::UTC, out)),
            "Nov  6 08:49:37"
        );
        assert_eq!(
            text(&|out| write_listing(t, &TimeZone::UTC, out)),
            "06-Nov-1994 08:49"
        );
        assert_eq!(
            text(&|out| write_cookie(t, out)),
            "Sun, 06-Nov-94 08:49:37 GMT"
        );
        assert_eq!(
            text(&|out| write_cookie(4_294_967_295, out)),
            "Sun, 07-Feb-2106 06:28:15 GMT"
        );
        assert_eq!(
            text(&|out| write_http(i64::MAX, out)),
            "Thu, 01 Jan 1970 00:00:00 GMT"
        );
    }
}
