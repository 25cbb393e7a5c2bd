//! The two facts every log line starts with: the local time and who writes.
//!
//! Both are cached per thread. A time text is built once per second and thread; process and thread
//! numbers once per thread, and forgotten after a fork.

use std::cell::Cell;
use std::sync::Once;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment on the local calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// The year, such as 2026.
    pub year: i32,
    /// The month, 1 to 12.
    pub month: u32,
    /// The day of the month, 1 to 31.
    pub day: u32,
    /// The hour, 0 to 23.
    pub hour: u32,
    /// The minute, 0 to 59.
    pub minute: u32,
    /// The second, 0 to 60.
    pub second: u32,
    /// How far local time is ahead of UTC, in seconds.
    pub offset: i32,
}

thread_local! {
    static ERROR_TIME: Cell<(u64, [u8; 19])> = const { Cell::new((u64::MAX, [0; 19])) };
    static SYSLOG_TIME: Cell<(u64, [u8; 15])> = const { Cell::new((u64::MAX, [0; 15])) };
    static IDS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The local calendar time of `seconds` after the epoch. Where the C library can not tell, UTC.
pub fn local_time(seconds: u64) -> LocalTime {
    static ZONE: Once = Once::new();
    ZONE.call_once(|| {
        // SAFETY: tzset reads TZ and the zone files; Weir changes the environment only while the
        // process has one thread (rt::process::set_environment).
        unsafe { tzset() }
    });
    let clock = libc::time_t::try_from(seconds).unwrap_or(0);
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call; localtime_r writes only `parts`, which is all
    // zero bytes before (valid for this plain C struct, tm_zone is then null and never read).
    // JUSTIFICATION: the C library's own zone rules are what the operator sees in `date`.
    let parts = unsafe {
        libc::localtime_r(&clock, parts.as_mut_ptr());
        parts.assume_init()
    };
    LocalTime {
        year: parts.tm_year + 1900,
        month: u32::try_from(parts.tm_mon + 1).unwrap_or(1),
        day: u32::try_from(parts.tm_mday).unwrap_or(1),
        hour: u32::try_from(parts.tm_hour).unwrap_or(0),
        minute: u32::try_from(parts.tm_min).unwrap_or(0),
        second: u32::try_from(parts.tm_sec).unwrap_or(0),
        offset: i32::try_from(parts.tm_gmtoff).unwrap_or(0),
    }
}

unsafe extern "C" {
    // The libc crate does not declare it for Linux.
    fn tzset();
}

fn now_seconds() -> u64 {
    SystemTime::now()
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
pub(super) fn ids() -> (u32, u32) {
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

    #[test]
    fn local_time_is_utc_plus_its_offset() {
        let seconds = 1_000_000_000_u64; // 2001-09-09 01:46:40 UTC
        let time = local_time(seconds);
        let local = i64::try_from(seconds).expect("fits") + i64::from(time.offset);
        assert_eq!(i64::from(time.second), local % 60);
        assert_eq!(time.year, 2001);
    }
}
