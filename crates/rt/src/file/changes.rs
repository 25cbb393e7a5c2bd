//! Changes of a directory that has to survive a crash: what creates, writes, cuts, renames, removes and syncs.
//!
//! A store of files reasons about the order in which these reach the disk. They are in one place, so that a simulation
//! can record them and try each state in which a crash may leave the directory
//! (docs/design/2026-11-27-simulation.md). In a build without the feature `simulation` each is the call and nothing
//! else. All block: they are for start-up and for threads of a pool.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Creates a file that must not exist, for reading and writing.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    #[cfg(feature = "simulation")]
    crate::simulation::pause_job();
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(mode);
    let file = options.open(path)?;
    #[cfg(feature = "simulation")]
    crate::simulation::disk::note_created(&file, path);
    Ok(file)
}

/// Creates a file for writing, or empties the one that is there.
pub fn create_empty(path: &Path, mode: u32) -> io::Result<File> {
    #[cfg(feature = "simulation")]
    crate::simulation::pause_job();
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(mode);
    let file = options.open(path)?;
    #[cfg(feature = "simulation")]
    crate::simulation::disk::note_created(&file, path);
    Ok(file)
}

/// Opens a file for reading and writing, and creates it if it is not there.
pub fn open_or_create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.mode(mode).open(path)?;
    #[cfg(feature = "simulation")]
    crate::simulation::disk::note_created(&file, path);
    Ok(file)
}

/// Writes all of `bytes` at `position`.
pub fn write_at(file: impl AsFd, mut bytes: &[u8], mut position: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        #[cfg(feature = "simulation")]
        crate::simulation::pause_job();
        #[cfg(feature = "simulation")]
        let bytes_now = crate::simulation::disk::allow_write(bytes)?;
        #[cfg(not(feature = "simulation"))]
        let bytes_now = bytes;
        match rustix::io::pwrite(&file, bytes_now, position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                #[cfg(feature = "simulation")]
                crate::simulation::disk::note_written(&file, &bytes[..n], position);
                bytes = &bytes[n..];
                position += n as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Cuts or extends a file.
pub fn set_len(file: impl AsFd, len: u64) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    crate::simulation::pause_job();
    rustix::fs::ftruncate(&file, len)?;
    #[cfg(feature = "simulation")]
    crate::simulation::disk::note_len(&file, len);
    Ok(())
}

/// Waits until the contents of a file, and its length, are on the disk.
pub fn sync(file: impl AsFd) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    crate::simulation::pause_job();
    rustix::fs::fdatasync(&file)?;
    #[cfg(feature = "simulation")]
    crate::simulation::disk::note_synced(&file);
    Ok(())
}

/// Waits until the names in a directory are on the disk. To sync a file does not promise that it can be found.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    crate::simulation::pause_job();
    rustix::fs::fsync(&File::open(path)?)?;
    #[cfg(feature = "simulation")]
    crate::simulation::disk::note_directory_synced();
    Ok(())
}

/// Gives a file another name, in place of the file that has it.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    crate::simulation::pause_job();
    std::fs::rename(from, to)?;
    #[cfg(feature = "simulation")]
    crate::simulation::disk::note_renamed(from, to);
    Ok(())
}

/// Removes a file.
pub fn remove(path: &Path) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    crate::simulation::pause_job();
    std::fs::remove_file(path)?;
    #[cfg(feature = "simulation")]
    crate::simulation::disk::note_removed(path);
    Ok(())
}
