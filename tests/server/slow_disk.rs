//! A disk that answers when it is told to: a file system of our own, by the kernel's FUSE protocol. For tests of what
//! waits for a disk; it needs root.
//!
//! It has one folder with one file. To look it up and to open it costs nothing; the first read of it waits.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The mounted disk; dropping it unmounts it.
pub(super) struct SlowDisk {
    folder: PathBuf,
    thread: Option<JoinHandle<()>>,
    /// Its end ends all waits.
    end: Option<SyncSender<()>>,
}

/// The name of its file.
pub(super) const FILE: &str = "cold";
/// The length of its file.
pub(super) const LENGTH: usize = 300_000;

impl SlowDisk {
    /// Mounts it at an existing folder; the first read takes `delay`. `None` where that is not allowed.
    pub(super) fn mount(folder: &Path, delay: Duration) -> Option<SlowDisk> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.ok()?;
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other";
        // The descriptor is the child's standard input; `-i`: no helper program.
        let status = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", options, "weir-test"])
            .arg(folder)
            .stdin(device.try_clone().ok()?)
            .stderr(Stdio::null())
            .status();
        if !status.is_ok_and(|status| status.success()) {
            println!("skipped: no file systems of our own are allowed here");
            return None;
        }
        let (end, ended) = sync_channel(0);
        let thread = std::thread::spawn(move || serve(device, delay, &ended));
        Some(SlowDisk {
            folder: folder.to_owned(),
            thread: Some(thread),
            end: Some(end),
        })
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.end = None;
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const ROOT: u64 = 1;
const NODE: u64 = 2;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;

const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;

/// Answers the kernel until the disk is unmounted.
fn serve(mut device: File, delay: Duration, ended: &Receiver<()>) {
    let mut buffer = vec![0; 1 << 20];
    let mut delay = Some(delay);
    while let Ok(length) = device.read(&mut buffer) {
        let Some((head, body)) = buffer[..length].split_first_chunk::<40>() else {
            return;
        };
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (operation, unique, node) = (word(4), long(8), long(16));
        let answer = match operation {
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            INIT => Ok(init()),
            LOOKUP if body.starts_with(FILE.as_bytes()) => Ok(entry()),
            LOOKUP => Err(ENOENT),
            GETATTR => Ok([&3600_u64.to_le_bytes()[..], &[0; 8], &attributes(node)].concat()),
            OPEN => Ok(vec![0; 16]),
            READ => {
                let at = |from: usize| {
                    body[from..from + 4]
                        .try_into()
                        .map_or(0, u32::from_le_bytes)
                };
                let (offset, size) = (at(8) as usize, at(16) as usize);
                // The first one only: the kernel reads a page at a time.
                if let Some(delay) = delay.take() {
                    let _ = ended.recv_timeout(delay);
                }
                Ok(vec![b'x'; LENGTH.saturating_sub(offset).min(size)])
            }
            FLUSH | RELEASE | DESTROY => Ok(Vec::new()),
            _ => Err(ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).unwrap_or(0);
        let head = [
            &length.to_le_bytes()[..],
            &error.to_le_bytes(),
            &unique.to_le_bytes(),
        ];
        // It fails for a request that was given up meanwhile.
        let _ = device.write_all(&[head.concat(), body].concat());
    }
}

/// Version 7.31 of the protocol, without any of its options.
fn init() -> Vec<u8> {
    let mut out = Vec::new();
    for word in [7_u32, 31, 0, 0, 0, 65_536, 1, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.resize(64, 0);
    out
}

fn entry() -> Vec<u8> {
    let mut out = Vec::new();
    // The node, its generation, and for how many seconds name and attributes are valid.
    for long in [NODE, 0, 3600, 3600, 0] {
        out.extend_from_slice(&long.to_le_bytes());
    }
    out.extend_from_slice(&attributes(NODE));
    out
}

fn attributes(node: u64) -> Vec<u8> {
    let (size, mode) = match node {
        ROOT => (0, 0o040_755_u32),
        _ => (LENGTH as u64, 0o100_644),
    };
    let mut out = Vec::new();
    for long in [node, size, size.div_ceil(512), 1, 1, 1] {
        out.extend_from_slice(&long.to_le_bytes());
    }
    // Nanoseconds of three times; mode, links, user, group, device, block size, flags.
    for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out
}
