//! A file that is a disk: a loop device with a file system on it, torn down when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::shell;

const LIMIT: Duration = Duration::from_secs(120);

/// A mounted loop device.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    image: PathBuf,
    device: String,
    pub(crate) mount: PathBuf,
}

impl LoopDevice {
    /// Makes an image of this many bytes in `folder`, attaches it with direct I/O (so that its
    /// pages are cached once, as those of a disk) and mounts an ext4 on it, as a folder of this name.
    pub(crate) fn create(folder: &Path, name: &str, bytes: u64) -> Result<Self, String> {
        let image = folder.join(format!("{name}.img"));
        let mount = folder.join(name);
        fs::create_dir_all(&mount).map_err(|error| error.to_string())?;
        shell::output(
            Command::new("fallocate")
                .args(["-l", &bytes.to_string()])
                .arg(&image),
            LIMIT,
        )?;
        let attach = shell::output(
            Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on"])
                .arg(&image),
            LIMIT,
        );
        let device = attach.map_err(|error| {
            // Nothing is attached yet, so the image is all there is to remove.
            let _ = fs::remove_file(&image);
            format!("no loop device: {error}")
        })?;
        let disk = Self {
            image,
            device: device.trim().to_owned(),
            mount,
        };
        shell::output(
            Command::new("mkfs.ext4").args(["-q", "-F", "-m0", "-O", "^has_journal", &disk.device]),
            LIMIT,
        )?;
        shell::output(
            Command::new("mount")
                .args(["-o", "noatime", &disk.device])
                .arg(&disk.mount),
            LIMIT,
        )?;
        Ok(disk)
    }

    /// `MAJOR:MINOR`, as control groups name a device.
    pub(crate) fn number(&self) -> Result<String, String> {
        let name = self.device.trim_start_matches("/dev/");
        let text = fs::read_to_string(format!("/sys/block/{name}/dev"));
        text.map(|text| text.trim().to_owned())
            .map_err(|error| format!("{}: {error}", self.device))
    }

    /// The bytes read from the device since it was attached.
    pub(crate) fn bytes_read(&self) -> u64 {
        let name = self.device.trim_start_matches("/dev/");
        let text = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap_or_default();
        let sectors = text
            .split_whitespace()
            .nth(2)
            .and_then(|word| word.parse::<u64>().ok());
        sectors.unwrap_or(0) * 512
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Each step is tried whatever became of the one before; a leftover is visible in
        // `losetup -a`, and there is nobody to return an error to.
        let _ = shell::output(Command::new("umount").arg(&self.mount), LIMIT);
        let _ = shell::output(Command::new("losetup").args(["-d", &self.device]), LIMIT);
        let _ = fs::remove_file(&self.image);
    }
}

/// Writes what is dirty and forgets all pages that can be read again.
pub(crate) fn drop_caches() -> Result<(), String> {
    shell::output(&mut Command::new("sync"), LIMIT)?;
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| format!("drop_caches: {error}"))
}
