//! Guesses the device of a path before it is opened, for the pool's queue of that device.
//!
//! The table is `/proc/self/mountinfo`; the longest mount point that is a prefix of the path wins. It is a guess: a
//! symbolic link may lead elsewhere, and btrfs has device numbers of its own. A wrong guess only costs fairness
//! between devices. The table is read on a pool, at most every [`KEPT_TICKS`], because reading it blocks while
//! something is being mounted.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock;
use crate::pool::{DeviceNumber, PoolHandle};
use base::sync::RwLock;

/// How long a table is used.
const KEPT_TICKS: u64 = 10_000;

/// Mount points and their devices, the longest first.
type MountTable = Vec<(Vec<u8>, DeviceNumber)>;

static TABLE: RwLock<MountTable> = RwLock::new(Vec::new());
static READ_AT: AtomicU64 = AtomicU64::new(0);

/// The device that `path` is probably on; unknown if it is relative.
pub(super) fn device_of(path: &Path, pool: &PoolHandle) -> DeviceNumber {
    let tick = clock::tick();
    let read_at = READ_AT.load(Relaxed);
    if (read_at == 0 || tick.saturating_sub(read_at) > KEPT_TICKS)
        && READ_AT
            .compare_exchange(read_at, tick, Relaxed, Relaxed)
            .is_ok()
    {
        pool.submit(DeviceNumber::UNKNOWN, Box::new(read));
    }
    // Never held for longer than an assignment.
    find(&TABLE.read(), path.as_os_str().as_bytes())
}

fn read() {
    // A system without /proc has one queue for cold opens of all devices.
    let Ok(text) = std::fs::read("/proc/self/mountinfo") else {
        return;
    };
    *TABLE.write() = parse(&text);
}

/// Lines of `36 35 98:0 /root /mount/point options…` (proc_pid_mountinfo(5)).
fn parse(text: &[u8]) -> MountTable {
    let line = |line: &[u8]| {
        let mut words = line.split(|&byte| byte == b' ');
        let (major, minor) = std::str::from_utf8(words.nth(2)?).ok()?.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        Some((unescape(words.nth(1)?), DeviceNumber(device)))
    };
    let mut table: MountTable = text.split(|&byte| byte == b'\n').filter_map(line).collect();
    // A stable sort: of two mounts on one point the later one covers the other, and must be found first.
    table.reverse();
    table.sort_by_key(|(point, _)| std::cmp::Reverse(point.len()));
    table
}

/// Spaces, tabs, line ends and backslashes are written as `\ooo`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, tail) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => out.push(byte),
        }
    }
    out
}

fn find(table: &MountTable, path: &[u8]) -> DeviceNumber {
    if path.first() != Some(&b'/') {
        return DeviceNumber::UNKNOWN;
    }
    let covers = |point: &[u8]| {
        point == b"/"
            || path
                .strip_prefix(point)
                .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    };
    let found = table.iter().find(|(point, _)| covers(point));
    found.map_or(DeviceNumber::UNKNOWN, |(_, device)| *device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_that_covers_the_path_wins() {
        let table = parse(
            b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
              22 21 8:2 / /srv rw - ext4 /dev/sdb rw\n\
              23 22 8:3 / /srv/a\\040b rw shared:1 - xfs /dev/sdc rw\n\
              24 21 8:4 / /srv rw - ext4 /dev/sdd rw\n\
              not a line\n",
        );
        let device = |major, minor| DeviceNumber(rustix::fs::makedev(major, minor));
        assert_eq!(find(&table, b"/etc/passwd"), device(8, 1));
        assert_eq!(
            find(&table, b"/srv"),
            device(8, 4),
            "the later mount covers the earlier"
        );
        assert_eq!(find(&table, b"/srvx/y"), device(8, 1));
        assert_eq!(find(&table, b"/srv/a b/c"), device(8, 3));
        assert_eq!(find(&table, b"relative"), DeviceNumber::UNKNOWN);
    }
}
