//! The kernel's data about a TCP connection (TCP_INFO), for variables and metrics.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A few of the kernel's figures (`struct tcp_info`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// How much it varies, in microseconds.
    pub rtt_variation_us: u32,
    /// Packets that may be under way to the peer (the congestion window).
    pub send_window: u32,
    /// Bytes that the kernel receives ahead.
    pub receive_space: u32,
    /// How long ago the last data arrived, in milliseconds, as fine as the kernel's tick.
    pub since_data_ms: u32,
}

/// How many connections wait in the queue of a listening TCP socket.
pub fn accept_queue(fd: BorrowedFd<'_>) -> Option<u32> {
    // The kernel uses the field for this where nothing can be unacknowledged (tcp_get_info).
    raw_info(fd).map(|info| info.tcpi_unacked)
}

/// Asks the kernel; `None` for what is no TCP socket.
pub(super) fn read(fd: BorrowedFd<'_>) -> Option<TcpInfo> {
    let info = raw_info(fd)?;
    Some(TcpInfo {
        rtt_us: info.tcpi_rtt,
        rtt_variation_us: info.tcpi_rttvar,
        send_window: info.tcpi_snd_cwnd,
        receive_space: info.tcpi_rcv_space,
        since_data_ms: info.tcpi_last_data_recv,
    })
}

fn raw_info(fd: BorrowedFd<'_>) -> Option<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as it is borrowed; the kernel writes at most `length` bytes to
    // `info`, which has that many. The struct is plain numbers, valid when zeroed, so that it is valid too if an
    // older kernel writes less.
    // JUSTIFICATION: rustix has no TCP_INFO.
    let info = unsafe {
        let result = libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        );
        if result != 0 {
            return None;
        }
        info.assume_init()
    };
    Some(info)
}
