//! Whole-file and whole-tree operations for `dav`: install, remove, copy, move.
//!
//! Everything here may block on a disk and belongs on a pool thread. Errors carry both the log line
//! and the client's status, because only the call that failed knows which `errno` means what.
//! Symbolic links are never followed: removing a tree removes the links in it, and copying one
//! leaves them out. Otherwise a link inside the tree would give a client access to what is outside.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use base::text::errno_text;
use host::error_log::LogLevel;
use rt::file::modes;

/// A failed operation: what the client and the log get to see.
#[derive(Debug)]
pub(crate) struct FileTreeError {
    /// The status for the client.
    pub(crate) status: u16,
    /// The log line in nginx's wording, and its level.
    pub(crate) message: String,
    pub(crate) level: LogLevel,
}

/// Whether the target existed before; the difference between 201 and 204.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceOutcome {
    /// Nothing was at the path.
    New,
    /// A file was there and is gone now.
    Replaced,
}

/// What to do about missing parent directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParentDirectories {
    /// They must exist (409 otherwise, RFC 4918, section 9.7.1).
    MustExist,
    /// Create them (`create_full_put_path`).
    Create,
}

/// Whether the target may be replaced: the `Overwrite` field (RFC 4918, section 10.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverwritePolicy {
    // `T`, which is also the default.
    Allowed,
    // `F`: an existing target is 412.
    Refused,
}

/// The maximum depth of a copy. Each level keeps a directory open, so the depth that a client can
/// create must not decide how many descriptors we use.
const MAX_DEPTH: usize = 256;

impl FileTreeError {
    /// Maps a failed call to a status. `missing` is the status for a path that does not exist: 404
    /// or 409, depending on whether the source or a parent of the target is missing.
    fn from_call(error: &io::Error, call: &str, path: &Path, missing: u16) -> FileTreeError {
        use io::ErrorKind as Kind;
        let (status, level) = match error.kind() {
            Kind::NotFound | Kind::NotADirectory | Kind::InvalidFilename => {
                (missing, LogLevel::Error)
            }
            // These are the client's doing or the administrator's choice. Only what remains below
            // points at the machine and is `crit`.
            Kind::PermissionDenied => (403, LogLevel::Error),
            Kind::AlreadyExists => (405, LogLevel::Error),
            Kind::StorageFull | Kind::QuotaExceeded => (507, LogLevel::Crit),
            _ => (500, LogLevel::Crit),
        };
        let message = format!("{call} \"{}\" failed {}", path.display(), errno_text(error));
        FileTreeError {
            status,
            message,
            level,
        }
    }

    /// A request that makes no sense as such, before any call was made.
    fn refusal(status: u16, message: String) -> FileTreeError {
        FileTreeError {
            status,
            message,
            level: LogLevel::Error,
        }
    }
}

/// What is at a path; a link counts as itself. Not every method answers alike for a path that leads
/// through a file, hence `not_a_directory`.
pub(crate) fn lstat(path: &Path, not_a_directory: u16) -> Result<Metadata, FileTreeError> {
    fs::symlink_metadata(path).map_err(|error| {
        let missing = if error.kind() == io::ErrorKind::NotADirectory {
            not_a_directory
        } else {
            404
        };
        FileTreeError::from_call(&error, "lstat()", path, missing)
    })
}

/// Moves a finished upload to its path, with these permissions and optionally a modification time.
/// Readers see the old file or the new one, never a partial one.
pub(crate) fn install_file(
    temporary: &Path,
    path: &Path,
    access: u32,
    modified: Option<SystemTime>,
    parents: ParentDirectories,
) -> Result<PlaceOutcome, FileTreeError> {
    let placed = match fs::metadata(path) {
        Ok(there) if there.is_dir() => {
            let message = format!(
                "\"{}\" could not be created (21: Is a directory)",
                path.display()
            );
            return Err(FileTreeError::refusal(409, message));
        }
        Ok(_) => PlaceOutcome::Replaced,
        Err(_) => PlaceOutcome::New,
    };
    let failed =
        |call| move |error: io::Error| FileTreeError::from_call(&error, call, temporary, 500);
    // Everything is set on the temporary file, so that the file appears complete under its name.
    fs::set_permissions(temporary, Permissions::from_mode(access)).map_err(failed("chmod()"))?;
    if let Some(modified) = modified {
        let file = OpenOptions::new()
            .write(true)
            .open(temporary)
            .map_err(failed("open()"))?;
        file.set_modified(modified).map_err(failed("utimes()"))?;
    }
    let directories = (parents == ParentDirectories::Create).then(|| modes::of_folder(access));
    rename_or_copy(temporary, path, directories)?;
    Ok(placed)
}

/// Renames. If `directories` are given, missing parents are created with that mode. Across file
/// systems, where the kernel cannot rename, it copies and removes.
fn rename_or_copy(from: &Path, to: &Path, directories: Option<u32>) -> Result<(), FileTreeError> {
    // Optimistic: in the common case the directories exist, and checking first would only cost
    // calls.
    let mut result = fs::rename(from, to);
    if let (Err(error), Some(access)) = (&result, directories)
        && error.kind() == io::ErrorKind::NotFound
        && let Some(parent) = to.parent()
    {
        let made = modes::make_folders(parent, access);
        made.map_err(|error| FileTreeError::from_call(&error, "mkdir()", parent, 409))?;
        result = fs::rename(from, to);
    }
    match result {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            copy_file(from, to)?;
            remove_file(from)
        }
        result => result.map_err(|error| FileTreeError::from_call(&error, "rename()", to, 409)),
    }
}

/// Creates a directory; its parent must exist.
pub(crate) fn make_directory(path: &Path, access: u32, missing: u16) -> Result<(), FileTreeError> {
    // Not `create_dir_all`: an existing directory must fail, which `MKCOL` answers with 405 (RFC
    // 4918, section 9.3.1). The mode is set again afterwards because the umask applies to the
    // creation.
    let path = &without_slash(path);
    let made = DirBuilder::new().mode(access).create(path);
    let made = made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(access)));
    made.map_err(|error| FileTreeError::from_call(&error, "mkdir()", path, missing))
}

/// Removes a file, or a directory with everything in it.
pub(crate) fn remove(path: &Path) -> Result<(), FileTreeError> {
    // A trailing slash would make the kernel follow a link.
    let path = &without_slash(path);
    match lstat(path, 404)?.is_dir() {
        true => fs::remove_dir_all(path)
            .map_err(|error| FileTreeError::from_call(&error, "rmdir()", path, 404)),
        false => remove_file(path),
    }
}

/// Removes a file or a symbolic link, whose target stays.
fn remove_file(path: &Path) -> Result<(), FileTreeError> {
    fs::remove_file(path).map_err(|error| FileTreeError::from_call(&error, "unlink()", path, 404))
}

/// Copies a file with its permissions and modification time. The copy gets its name only when it is
/// complete.
fn copy_file(from: &Path, to: &Path) -> Result<(), FileTreeError> {
    let failed =
        |call, path| move |error: io::Error| FileTreeError::from_call(&error, call, path, 404);
    let mut source = File::open(from).map_err(failed("open()", from))?;
    let metadata = source.metadata().map_err(failed("fstat()", from))?;
    let temporary = temporary_name(to);
    let copied = (|| {
        let mode = metadata.mode() & 0o777;
        let mut copy = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)?;
        io::copy(&mut source, &mut copy)?;
        copy.set_permissions(Permissions::from_mode(mode))?;
        copy.set_modified(metadata.modified()?)?;
        fs::rename(&temporary, to)
    })();
    copied.map_err(|error| {
        // Best effort: the file may not exist, and the error that matters is the first.
        let _ = fs::remove_file(&temporary);
        FileTreeError::from_call(&error, "copy to", to, 409)
    })
}

/// A unique name beside `path`, on the same file system, so that the final step is a rename.
fn temporary_name(path: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(
        ".{}.{:010}",
        std::process::id(),
        NUMBER.fetch_add(1, Relaxed)
    ));
    name.into()
}

/// A `COPY` or `MOVE`.
pub(crate) struct TreeTransfer {
    /// The source. Directories, here and in `to`, have a trailing slash.
    pub(crate) from: PathBuf,
    /// The target.
    pub(crate) to: PathBuf,
    /// `MOVE`: the source is removed.
    pub(crate) is_move: bool,
    /// Both URIs end with a slash, so directories are meant.
    pub(crate) is_collection: bool,
    pub(crate) overwrite: OverwritePolicy,
    /// The mode of parent directories that have to be created.
    pub(crate) directory_access: u32,
}

impl TreeTransfer {
    /// Performs the transfer and returns the status of the response.
    pub(crate) fn run(mut self) -> Result<u16, FileTreeError> {
        self.from = without_slash(&self.from);
        self.to = without_slash(&self.to);
        self.check_paths()?;
        let in_the_way = self.destination_exists()?;
        let source = lstat(&self.from, 404)?;
        match (source.is_dir(), self.is_collection) {
            (true, false) => Err(FileTreeError::refusal(
                400,
                format!("\"{}\" is collection", self.from.display()),
            )),
            (false, true) => {
                let error = io::Error::from(io::ErrorKind::NotADirectory);
                Err(FileTreeError::from_call(&error, "lstat()", &self.from, 404))
            }
            (true, true) => self.transfer_directory(in_the_way).map(|()| 201),
            (false, false) => self.transfer_file().map(|()| 204),
        }
    }

    /// Refuses a transfer onto itself, and of a directory into or out of itself: copying a tree
    /// into its own subtree would never end. The status is the one that RFC 4918, section 9.8.5,
    /// has for equal source and destination.
    fn check_paths(&self) -> Result<(), FileTreeError> {
        let (from, to) = (self.from.display(), self.to.display());
        if self.from == self.to {
            return Err(FileTreeError::refusal(
                403,
                format!("both \"{from}\" and \"{to}\" are the same location"),
            ));
        }
        if self.is_collection
            && (self.to.starts_with(&self.from) || self.from.starts_with(&self.to))
        {
            return Err(FileTreeError::refusal(
                403,
                format!("\"{from}\" could not be moved or copied to collection \"{to}\""),
            ));
        }
        Ok(())
    }

    /// Whether something exists at the target, if it may be replaced.
    fn destination_exists(&self) -> Result<bool, FileTreeError> {
        let there = match fs::symlink_metadata(&self.to) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(FileTreeError::from_call(&error, "lstat()", &self.to, 404)),
        };
        let to = self.to.display();
        if there.is_dir() && !self.is_collection {
            let from = self.from.display();
            return Err(FileTreeError::refusal(
                409,
                format!("\"{from}\" could not be moved or copied to collection \"{to}\""),
            ));
        }
        match self.overwrite {
            OverwritePolicy::Allowed => Ok(true),
            OverwritePolicy::Refused => Err(FileTreeError::refusal(
                412,
                format!("\"{to}\" could not be created (17: File exists)"),
            )),
        }
    }

    /// Transfers a file. A rename replaces an existing target atomically, so it needs no removal
    /// first.
    fn transfer_file(&self) -> Result<(), FileTreeError> {
        match self.is_move {
            true => rename_or_copy(&self.from, &self.to, Some(self.directory_access)),
            false => copy_file(&self.from, &self.to),
        }
    }

    /// Transfers a directory.
    fn transfer_directory(&self, in_the_way: bool) -> Result<(), FileTreeError> {
        if in_the_way {
            remove(&self.to)?;
        }
        // If the rename fails for whatever reason, most often another file system, copying tells
        // why or succeeds.
        if self.is_move && fs::rename(&self.from, &self.to).is_ok() {
            return Ok(());
        }
        copy_directory(&self.from, &self.to, 0)?;
        if self.is_move {
            remove(&self.from)?;
        }
        Ok(())
    }
}

/// Copies a directory recursively. Links, sockets and devices are left out.
fn copy_directory(from: &Path, to: &Path, depth: usize) -> Result<(), FileTreeError> {
    if depth == MAX_DEPTH {
        return Err(FileTreeError::refusal(
            500,
            format!("\"{}\" is too deep to be copied", from.display()),
        ));
    }
    let failed =
        |call, path| move |error: io::Error| FileTreeError::from_call(&error, call, path, 404);
    let metadata = fs::symlink_metadata(from).map_err(failed("lstat()", from))?;
    // The owner needs access to fill the copy, even if the source is read-only.
    make_directory(to, metadata.mode() & 0o777 | 0o700, 404)?;
    for entry in fs::read_dir(from).map_err(failed("opendir()", from))? {
        let entry = entry.map_err(failed("readdir()", from))?;
        let kind = entry.file_type().map_err(failed("lstat()", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy_directory(&source, &target, depth + 1)?;
        } else if kind.is_file() {
            copy_file(&source, &target)?;
        }
    }
    // Last, since creating the entries has touched it.
    let time = metadata
        .modified()
        .and_then(|modified| File::open(to)?.set_modified(modified));
    time.map_err(failed("utimes()", to))
}

/// The path of a directory without its trailing slash, which would make a symbolic link its target.
fn without_slash(path: &Path) -> PathBuf {
    // Iterating the components drops the trailing slash and keeps the root.
    path.components().collect()
}
