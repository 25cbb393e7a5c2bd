//! The time as headers and logs show it, formatted at most once a second per loop.
//!
//! All of it comes from the loop's own clock, which is read once per iteration: asking costs no system call.

use std::cell::RefCell;

use jiff::tz::Offset;
use proto::date;

use base::text::write_seconds;

/// The formatted time of one second.
struct Texts {
    second: u64,
    /// `Sun, 06 Nov 1994 08:49:37 GMT`
    http: Vec<u8>,
    /// `06/Nov/1994:08:49:37 +0000`
    local: Vec<u8>,
    /// `1994-11-06T08:49:37+00:00`
    iso8601: Vec<u8>,
}

rt::local! {
    static TEXTS: RefCell<Texts> =
        const { RefCell::new(Texts { second: u64::MAX, http: Vec::new(), local: Vec::new(), iso8601: Vec::new() }) };
}

/// Appends the current time in the format of the `Date` field (RFC 9110, section 5.6.7).
pub fn write_http_date(out: &mut Vec<u8>) {
    with_texts(|texts| out.extend_from_slice(&texts.http));
}

const DATE_LENGTH: usize = "Sun, 06 Nov 1994 08:49:37 GMT".len();

/// The dates that were formatted last, by their second of the minute: the same files are requested again and again.
type Dates = [(i64, [u8; DATE_LENGTH]); 60];

rt::local! {
    static DATES: RefCell<Dates> = const { RefCell::new([(i64::MIN, [0; DATE_LENGTH]); 60]) };
}

/// Appends another time in the format of header fields.
pub fn write_date_of(seconds: i64, out: &mut Vec<u8>) {
    DATES.with_borrow_mut(|dates| out.extend_from_slice(date_of(seconds, dates)));
}

fn date_of(seconds: i64, dates: &mut Dates) -> &[u8; DATE_LENGTH] {
    let known = &mut dates[seconds.rem_euclid(60) as usize];
    if known.0 != seconds {
        let mut text = Vec::with_capacity(DATE_LENGTH);
        date::write_http(seconds, &mut text);
        if let Ok(text) = text.as_slice().try_into() {
            *known = (seconds, text);
        }
    }
    &known.1
}

/// Parses a date in exactly the format that [`write_date_of`] writes. Most are a file's own date that the client sends
/// back (`If-Modified-Since`), so the formatted ones are searched first.
pub fn canonical_date(text: &[u8]) -> Option<i64> {
    let text: &[u8; DATE_LENGTH] = text.try_into().ok()?;
    let digit = |at: usize| text[at].wrapping_sub(b'0') as usize;
    DATES.with_borrow_mut(|dates| {
        // The text's seconds are its slot in the table: a match needs no parsing.
        if let Some((seconds, known)) = dates.get(digit(23) * 10 + digit(24))
            && known == text
        {
            return Some(*seconds);
        }
        let seconds = date::parse(text)?;
        (date_of(seconds, dates) == text).then_some(seconds)
    })
}

/// Appends the current local time as `$time_local`, the format of access logs.
pub fn write_local_time(out: &mut Vec<u8>) {
    with_texts(|texts| out.extend_from_slice(&texts.local));
}

/// Appends the current local time as `$time_iso8601`.
pub fn write_iso8601(out: &mut Vec<u8>) {
    with_texts(|texts| out.extend_from_slice(&texts.iso8601));
}

/// Appends the seconds since 1970, with milliseconds.
pub fn write_millis(out: &mut Vec<u8>) {
    write_seconds(rt::wall_millis(), out);
}

fn with_texts(read: impl FnOnce(&Texts)) {
    TEXTS.with_borrow_mut(|texts| {
        let second = rt::wall_millis() / 1000;
        if texts.second != second {
            texts.fill(second);
        }
        read(texts);
    });
}

impl Texts {
    fn fill(&mut self, second: u64) {
        self.second = second;
        let seconds = i64::try_from(second).unwrap_or(i64::MAX);
        // The C library's zone, which the error log uses, too, so that both logs agree.
        let offset = Offset::from_seconds(rt::local_time(second).offset);
        let zone = offset.unwrap_or(Offset::UTC).to_time_zone();
        for text in [&mut self.http, &mut self.local, &mut self.iso8601] {
            text.clear();
        }
        date::write_http(seconds, &mut self.http);
        date::write_log(seconds, &zone, &mut self.local);
        date::write_iso8601(seconds, &zone, &mut self.iso8601);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_they_are_written() {
        for seconds in [0, 784_111_777, 784_111_777 + 60, 784_111_777] {
            let mut text = Vec::new();
            write_date_of(seconds, &mut text);
            let mut expected = Vec::new();
            date::write_http(seconds, &mut expected);
            assert_eq!(text, expected);
            assert_eq!(canonical_date(&text), Some(seconds));
        }
        for text in [
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "",
            "Sun, 06 Nov 1994 08:49:zz GMT",
        ] {
            assert_eq!(canonical_date(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn texts_agree_with_each_other() {
        let mut texts = Texts {
            second: 0,
            http: Vec::new(),
            local: Vec::new(),
            iso8601: Vec::new(),
        };
        texts.fill(784_111_777);
        assert_eq!(texts.http, b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(texts.local.len(), b"06/Nov/1994:08:49:37 +0000".len());
        assert_eq!(texts.iso8601.len(), b"1994-11-06T08:49:37+00:00".len());
        assert_eq!(
            texts.local[15..20],
            texts.iso8601[14..19],
            "minutes and seconds"
        );
    }
}
