//! The time as headers and logs show it, written at most once a second per loop.
//!
//! All of it comes from the loop's own clock, which is read once per turn: asking costs no system call.

use std::cell::RefCell;

use crate::text::{write_padded, write_seconds};

/// The texts of one second.
struct Texts {
    second: u64,
    /// `Sun, 06 Nov 1994 08:49:37 GMT`
    http: Vec<u8>,
    /// `06/Nov/1994:08:49:37 +0000`
    local: Vec<u8>,
    /// `1994-11-06T08:49:37+00:00`
    iso8601: Vec<u8>,
}

thread_local! {
    static TEXTS: RefCell<Texts> =
        const { RefCell::new(Texts { second: u64::MAX, http: Vec::new(), local: Vec::new(), iso8601: Vec::new() }) };
}

/// Appends the present time as the `Date` field has it (RFC 9110, section 5.6.7).
pub fn write_http_date(out: &mut Vec<u8>) {
    with_texts(|texts| out.extend_from_slice(&texts.http));
}

/// Appends the present local time as `$time_local` shows it, the format of access logs.
pub fn write_local_time(out: &mut Vec<u8>) {
    with_texts(|texts| out.extend_from_slice(&texts.local));
}

/// Appends the present local time as `$time_iso8601` shows it.
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

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Texts {
    fn fill(&mut self, second: u64) {
        self.second = second;
        self.http.clear();
        proto::date::write_imf(i64::try_from(second).unwrap_or(i64::MAX), &mut self.http);
        let time = rt::error_log::local_time(second);
        let out = &mut self.local;
        out.clear();
        write_padded(time.day.into(), 2, out);
        out.push(b'/');
        out.extend_from_slice(MONTHS[(time.month as usize + 11) % 12].as_bytes());
        out.push(b'/');
        write_padded(time.year.max(0) as u64, 4, out);
        for part in [time.hour, time.minute, time.second] {
            out.push(b':');
            write_padded(part.into(), 2, out);
        }
        out.push(b' ');
        write_zone(time.offset, b"", out);
        let out = &mut self.iso8601;
        out.clear();
        write_padded(time.year.max(0) as u64, 4, out);
        let parts = [(b'-', time.month), (b'-', time.day), (b'T', time.hour), (b':', time.minute), (b':', time.second)];
        for (mark, part) in parts {
            out.push(mark);
            write_padded(part.into(), 2, out);
        }
        write_zone(time.offset, b":", out);
    }
}

/// Appends how far local time is ahead of UTC: sign, hours, `between`, minutes.
fn write_zone(offset: i32, between: &[u8], out: &mut Vec<u8>) {
    out.push(if offset < 0 { b'-' } else { b'+' });
    let minutes = u64::from(offset.unsigned_abs()) / 60;
    write_padded(minutes / 60, 2, out);
    out.extend_from_slice(between);
    write_padded(minutes % 60, 2, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_agree_with_each_other() {
        let mut texts = Texts { second: 0, http: Vec::new(), local: Vec::new(), iso8601: Vec::new() };
        texts.fill(784_111_777);
        assert_eq!(texts.http, b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(texts.local.len(), 26);
        assert_eq!(texts.iso8601.len(), 25);
        // Minutes and seconds are those of UTC wherever the zone is whole hours, half hours aside.
        assert!(texts.local.windows(3).any(|part| part == b":37"));
        assert!(texts.iso8601.starts_with(b"1994-11-0"));
    }

    #[test]
    fn zones_on_both_sides() {
        let zone = |offset, between: &[u8]| {
            let mut out = Vec::new();
            write_zone(offset, between, &mut out);
            String::from_utf8(out).expect("only ASCII is written")
        };
        assert_eq!(zone(0, b""), "+0000");
        assert_eq!(zone(19_800, b":"), "+05:30");
        assert_eq!(zone(-12_600, b""), "-0330");
    }
}
