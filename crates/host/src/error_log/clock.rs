//! The two facts every log line starts with: the local time and who writes.
//!
//! Both are cached per thread. A time text is built once per second and thread; process and thread
//! numbers once per thread, and forgotten after a fork.

use std::cell::Cell;
use std::time::UNIX_EPOCH;

use rt::local_time;

rt::local! {
    static ERROR_TIME: Cell<(u64, [u8; 19])> = const { Cell::new((u64::MAX, [0; 19])) };
    static SYSLOG_TIME: Cell<(u64, [u8; 15])> = const { Cell::new((u64::MAX, [0; 15])) };
    static IDS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

fn now_seconds() -> u64 {
    rt::clock::read_wall()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Appends `2026/11/21 07:30:00`.
pub fn log_time(out: &mut Vec<u8>) {
    let seconds = now_seconds();
    let (cached, mut text) = ERROR_TIME.get();
    if cached != seconds {
        let time = local_time(seconds);
        let formatted = format!(
            "{:04}/{:02}/{:02} {:02}:{:02}:{:02}",
            time.year, time.month, time.day, time.hour, time.minute, time.second
        );
        text.copy_from_slice(&formatted.as_bytes()[..19]);
        ERROR_TIME.set((seconds, text));
    }
    out.extend_from_slice(&text);
}

/// Appends `Nov 21 07:30:00`, the TIMESTAMP of RFC 3164 section 4.1.2: the day is padded by a blank.
pub fn syslog_time(out: &mut Vec<u8>) {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let seconds = now_seconds();
    let (cached, mut text) = SYSLOG_TIME.get();
    if cached != seconds {
        let time = local_time(seconds);
        let month = MONTHS[(time.month as usize + 11) % 12];
        let formatted = format!(
            "{month} {:2} {:02}:{:02}:{:02}",
            time.day, time.hour, time.minute, time.second
        );
        text.copy_from_slice(&formatted.as_bytes()[..15]);
        SYSLOG_TIME.set((seconds, text));
    }
    out.extend_from_slice(&text);
}

/// The numbers of this process and this thread.
pub(super) fn process_ids() -> (u32, u32) {
    let known = IDS.get();
    if known.0 != 0 {
        return known;
    }
    let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
    let ids = (std::process::id(), thread);
    IDS.set(ids);
    ids
}

/// Forgets the numbers of the parent. [`crate::process::fork`] calls it in the child.
pub fn after_fork() {
    IDS.set((0, 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_fixed_width() {
        let mut out = Vec::new();
        log_time(&mut out);
        assert_eq!(out.len(), 19);
        out.clear();
        syslog_time(&mut out);
        assert_eq!(out.len(), 15);
    }
}
