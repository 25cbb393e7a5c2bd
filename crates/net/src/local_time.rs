//! The local time as access logs show it, written at most once a second per loop.
//!
//! It comes from the loop's own clock, which is read once per turn: asking costs no system call.

use std::cell::RefCell;

use jiff::tz::Offset;
use proto::date;

/// The formatted time of one second.
struct LocalTexts {
    second: u64,
    /// `06/Nov/1994:08:49:37 +0000`
    log: Vec<u8>,
    /// `1994-11-06T08:49:37+00:00`
    iso8601: Vec<u8>,
}

impl LocalTexts {
    const NONE: LocalTexts = LocalTexts {
        second: u64::MAX,
        log: Vec::new(),
        iso8601: Vec::new(),
    };

    fn fill(&mut self, second: u64) {
        self.second = second;
        let seconds = i64::try_from(second).unwrap_or(i64::MAX);
        // The C library's zone, which the error log uses, too, so that both logs agree.
        let offset = Offset::from_seconds(rt::local_time(second).offset);
        let zone = offset.unwrap_or(Offset::UTC).to_time_zone();
        self.log.clear();
        self.iso8601.clear();
        date::write_log(seconds, &zone, &mut self.log);
        date::write_iso8601(seconds, &zone, &mut self.iso8601);
    }
}

rt::local! {
    static TEXTS: RefCell<LocalTexts> = const { RefCell::new(LocalTexts::NONE) };
}

/// Appends the current local time as `$time_local`, the format of access logs.
pub fn write_log(out: &mut Vec<u8>) {
    with_texts(|texts| out.extend_from_slice(&texts.log));
}

/// Appends the current local time as `$time_iso8601`.
pub fn write_iso8601(out: &mut Vec<u8>) {
    with_texts(|texts| out.extend_from_slice(&texts.iso8601));
}

fn with_texts(read: impl FnOnce(&LocalTexts)) {
    TEXTS.with_borrow_mut(|texts| {
        let second = rt::wall_millis() / 1000;
        if texts.second != second {
            texts.fill(second);
        }
        read(texts);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_agree_with_each_other() {
        let mut texts = LocalTexts::NONE;
        texts.fill(784_111_777);
        assert_eq!(texts.log.len(), b"06/Nov/1994:08:49:37 +0000".len());
        assert_eq!(texts.iso8601.len(), b"1994-11-06T08:49:37+00:00".len());
        let (log, iso8601) = (&texts.log[15..20], &texts.iso8601[14..19]);
        assert_eq!(log, iso8601, "minutes and seconds");
    }
}
