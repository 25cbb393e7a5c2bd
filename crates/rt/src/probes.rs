//! Static probes (USDT): places at which a tracer such as bpftrace or perf can attach to a running server.
//!
//! Each is one `nop` while nobody is attached, and a note in the section `.note.stapsdt` that tells tracers where it is
//! and where its arguments are. What a probe shows is in registers anyway, or is one load away; nothing is computed for it.
//!
//! ```text
//! bpftrace -e 'usdt:/usr/sbin/weir:weir:turn_end /arg1 > 10000000/ { printf("%d ms\n", arg1 / 1000000); }'
//! ```
//!
//! All probes of the server are here, in the lowest layer, because the macro that places one contains `unsafe`. The
//! arguments are explained in docs/guide/observability.md.

use probe::probe;

/// A request begins: the number of its connection, and its own number on that.
#[inline(always)]
pub fn request_start(connection: u64, number: u64) {
    probe!(weir, request_start, connection, number);
}

/// A request has ended: the same numbers, and the status of the response.
#[inline(always)]
pub fn request_end(connection: u64, number: u64, status: u16) {
    probe!(weir, request_end, connection, number, status);
}

/// A fill of a cache begins: the hash of its key.
#[inline(always)]
pub fn fill_start(hash: u64) {
    probe!(weir, fill_start, hash);
}

/// A fill has ended: the hash of its key, and 1 if it is complete, 0 otherwise.
#[inline(always)]
pub fn fill_end(hash: u64, complete: bool) {
    probe!(weir, fill_end, hash, complete);
}

/// A job is queued at a thread pool: the number of the job's device, and how many jobs are queued before it.
#[inline(always)]
pub(crate) fn pool_queue(device: u64, queued: usize) {
    probe!(weir, pool_queue, device, queued);
}

/// A thread of a pool begins a job: the number of its device.
#[inline(always)]
pub(crate) fn pool_start(device: u64) {
    probe!(weir, pool_start, device);
}

/// The job is done.
#[inline(always)]
pub(crate) fn pool_end(device: u64) {
    probe!(weir, pool_end, device);
}

/// A turn of an event loop has ended: the number of the loop in the process, how long the turn took in nanoseconds, and
/// how many tasks were polled.
#[inline(always)]
pub(crate) fn turn_end(number: u64, took: u64, polls: usize) {
    probe!(weir, turn_end, number, took, polls);
}
