//! The local calendar, by the C library's rules for time zones.

use std::sync::Once;

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

/// The local calendar time of `seconds` after the epoch; UTC if the C library cannot tell.
pub fn local_time(seconds: u64) -> LocalTime {
    static ZONE: Once = Once::new();
    ZONE.call_once(|| {
        // SAFETY: tzset reads TZ and the zone files; Weir changes the environment only while the
        // process has one thread (rt::system::set_environment).
        unsafe { tzset() }
    });
    // `time_t`, whose name `libc` deprecates for musl.
    let clock = i64::try_from(seconds).unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_time_is_utc_plus_its_offset() {
        let seconds = 1_000_000_000_u64; // 2001-09-09 01:46:40 UTC
        let time = local_time(seconds);
        let local = i64::try_from(seconds).expect("fits") + i64::from(time.offset);
        assert_eq!(i64::from(time.second), local % 60);
        assert_eq!(time.year, 2001);
    }
}
