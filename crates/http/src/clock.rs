//! Dates as header fields show them, written at most once a second per loop. Those of logs are in [`net::local_time`].
//!
//! All of it comes from the loop's own clock, which is read once per turn: asking costs no system call.

use std::cell::RefCell;

use proto::date;

/// The date of one second: `Sun, 06 Nov 1994 08:49:37 GMT`.
struct PresentDate {
    second: u64,
    text: Vec<u8>,
}

rt::local! {
    static PRESENT: RefCell<PresentDate> =
        const { RefCell::new(PresentDate { second: u64::MAX, text: Vec::new() }) };
}

/// Appends the current time in the format of the `Date` field (RFC 9110, section 5.6.7).
pub fn write_http_date(out: &mut Vec<u8>) {
    PRESENT.with_borrow_mut(|present| {
        let second = rt::wall_millis() / 1000;
        if present.second != second {
            present.second = second;
            present.text.clear();
            date::write_http(i64::try_from(second).unwrap_or(i64::MAX), &mut present.text);
        }
        out.extend_from_slice(&present.text);
    });
}

const DATE_LENGTH: usize = "Sun, 06 Nov 1994 08:49:37 GMT".len();

/// The dates that were formatted last, by their second of the minute: the same files are requested again and again.
type DateCache = [(i64, [u8; DATE_LENGTH]); 60];

rt::local! {
    static DATES: RefCell<DateCache> = const { RefCell::new([(i64::MIN, [0; DATE_LENGTH]); 60]) };
}

/// Appends another time in the format of header fields.
pub fn write_date_of(seconds: i64, out: &mut Vec<u8>) {
    DATES.with_borrow_mut(|dates| out.extend_from_slice(date_of(seconds, dates)));
}

fn date_of(seconds: i64, dates: &mut DateCache) -> &[u8; DATE_LENGTH] {
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
}
