//! Control groups of version 1 and 2: a bound on a device's read rate and on memory, for the
//! processes that enter. Removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The groups that a process has to enter to be bounded.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Their folders; a process enters by writing its id into `cgroup.procs` of each.
    pub(crate) folders: Vec<PathBuf>,
}

impl Bounds {
    /// Bounds reads from each device (`MAJOR:MINOR`) to a rate in bytes a second, and memory, the page cache included.
    pub(crate) fn create(devices: &[(String, u64)], memory: u64) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("weir-bench-{}-{number}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let mut bounds = Self {
            folders: Vec::new(),
        };
        if root.join("blkio").is_dir() {
            let blkio = bounds.add(&root.join("blkio"), &name)?;
            for (device, rate) in devices {
                set(
                    &blkio,
                    "blkio.throttle.read_bps_device",
                    &format!("{device} {rate}"),
                )?;
            }
            let group = bounds.add(&root.join("memory"), &name)?;
            set(&group, "memory.limit_in_bytes", &memory.to_string())?;
        } else {
            set(root, "cgroup.subtree_control", "+io +memory")?;
            let group = bounds.add(root, &name)?;
            for (device, rate) in devices {
                set(&group, "io.max", &format!("{device} rbps={rate}"))?;
            }
            set(&group, "memory.max", &memory.to_string())?;
        }
        Ok(bounds)
    }

    fn add(&mut self, parent: &Path, name: &str) -> Result<PathBuf, String> {
        let folder = parent.join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        self.folders.push(folder.clone());
        Ok(folder)
    }
}

impl Drop for Bounds {
    fn drop(&mut self) {
        for folder in &self.folders {
            // A group goes only when its last process has been reaped, which may take a moment.
            for _ in 0..100 {
                if fs::remove_dir(folder).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

fn set(group: &Path, file: &str, value: &str) -> Result<(), String> {
    let path = group.join(file);
    fs::write(&path, value).map_err(|error| format!("{} = {value}: {error}", path.display()))
}
