//! Files and directories placed, removed, copied and moved as a whole: what `dav` asks for.
//!
//! Everything here may wait for a disk and belongs on a pool's thread. A failure says what the log and the client are
//! told. Links are never followed: to remove a tree removes the links in it, to copy one leaves them out.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use base::text::errno_text;
use rt::error_log::Level;
use rt::file::modes;

/// What went wrong.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The status for the client.
    pub(crate) status: u16,
    /// The log line, and how grave it is.
    pub(crate) message: String,
    pub(crate) level: Level,
}

/// What was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    New,
    Replaced,
}

/// Directories on the way to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parents {
    /// They must be there.
    Needed,
    /// Those that are missing are made.
    Made,
}

/// Whether something may be in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overwrite {
    Allowed,
    Refused,
}

/// Trees that are deeper are not copied: so many directories are open to question, and nobody has them.
const MAX_DEPTH: usize = 256;

impl Failure {
    /// A call that failed. `missing` is the status when the path is not there.
    fn of(error: &io::Error, call: &str, path: &Path, missing: u16) -> Failure {
        use io::ErrorKind as Kind;
        let (status, level) = match error.kind() {
            Kind::NotFound | Kind::NotADirectory | Kind::InvalidFilename => (missing, Level::Error),
            Kind::PermissionDenied => (403, Level::Error),
            Kind::AlreadyExists => (405, Level::Error),
            Kind::StorageFull | Kind::QuotaExceeded => (507, Level::Crit),
            _ => (500, Level::Crit),
        };
        let message = format!("{call} \"{}\" failed {}", path.display(), errno_text(error));
        Failure {
            status,
            message,
            level,
        }
    }

    fn refusal(status: u16, message: String) -> Failure {
        Failure {
            status,
            message,
            level: Level::Error,
        }
    }
}

/// What is at a path, a link itself included.
pub(crate) fn look(path: &Path, not_a_directory: u16) -> Result<Metadata, Failure> {
    fs::symlink_metadata(path).map_err(|error| {
        let missing = if error.kind() == io::ErrorKind::NotADirectory {
            not_a_directory
        } else {
            404
        };
        Failure::of(&error, "lstat()", path, missing)
    })
}

/// Gives a finished file its place, with these permissions and perhaps a time of its own.
pub(crate) fn place(
    temporary: &Path,
    path: &Path,
    access: u32,
    modified: Option<SystemTime>,
    parents: Parents,
) -> Result<Placed, Failure> {
    let placed = match fs::metadata(path) {
        Ok(there) if there.is_dir() => {
            let message = format!(
                "\"{}\" could not be created (21: Is a directory)",
                path.display()
            );
            return Err(Failure::refusal(409, message));
        }
        Ok(_) => Placed::Replaced,
        Err(_) => Placed::New,
    };
    let failed = |call| move |error: io::Error| Failure::of(&error, call, temporary, 500);
    fs::set_permissions(temporary, Permissions::from_mode(access)).map_err(failed("chmod()"))?;
    if let Some(modified) = modified {
        let file = OpenOptions::new()
            .write(true)
            .open(temporary)
            .map_err(failed("open()"))?;
        file.set_modified(modified).map_err(failed("utimes()"))?;
    }
    let directories = (parents == Parents::Made).then(|| modes::of_folder(access));
    rename(temporary, path, directories)?;
    Ok(placed)
}

/// Renames, makes missing directories when they have permissions, and copies when the file systems differ.
fn rename(from: &Path, to: &Path, directories: Option<u32>) -> Result<(), Failure> {
    let mut result = fs::rename(from, to);
    if let (Err(error), Some(access)) = (&result, directories)
        && error.kind() == io::ErrorKind::NotFound
        && let Some(parent) = to.parent()
    {
        let made = modes::make_folders(parent, access);
        made.map_err(|error| Failure::of(&error, "mkdir()", parent, 409))?;
        result = fs::rename(from, to);
    }
    match result {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            copy_file(from, to)?;
            remove_file(from)
        }
        result => result.map_err(|error| Failure::of(&error, "rename()", to, 409)),
    }
}

/// Makes a directory; its parent must be there.
pub(crate) fn make_directory(path: &Path, access: u32, missing: u16) -> Result<(), Failure> {
    // Not if it is there: `MKCOL` tells.
    let made = DirBuilder::new().mode(access).create(path);
    let made = made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(access)));
    made.map_err(|error| Failure::of(&error, "mkdir()", path, missing))
}

/// Removes a file, or a directory with all that is in it.
pub(crate) fn remove(path: &Path) -> Result<(), Failure> {
    // With a slash at its end a link would be followed.
    let path = &without_slash(path);
    match look(path, 404)?.is_dir() {
        true => fs::remove_dir_all(path).map_err(|error| Failure::of(&error, "rmdir()", path, 404)),
        false => remove_file(path),
    }
}

fn remove_file(path: &Path) -> Result<(), Failure> {
    fs::remove_file(path).map_err(|error| Failure::of(&error, "unlink()", path, 404))
}

/// Copies a file with its permissions and its time. It gets its name when it is complete.
fn copy_file(from: &Path, to: &Path) -> Result<(), Failure> {
    let failed = |call, path| move |error: io::Error| Failure::of(&error, call, path, 404);
    let mut source = File::open(from).map_err(failed("open()", from))?;
    let metadata = source.metadata().map_err(failed("fstat()", from))?;
    let temporary = beside(to);
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
        // It may not be there, and there is nobody to tell a second time.
        let _ = fs::remove_file(&temporary);
        Failure::of(&error, "copy to", to, 409)
    })
}

/// A name that nobody else uses, in the same directory.
fn beside(path: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(
        ".{}.{:010}",
        std::process::id(),
        NUMBER.fetch_add(1, Relaxed)
    ));
    name.into()
}

/// A file or a directory that goes from one place to another, or gets a double there.
pub(crate) struct Transfer {
    /// Where it is; of a directory with the slash at its end, as `to`.
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    /// The original goes away.
    pub(crate) moves: bool,
    /// The paths are those of directories.
    pub(crate) is_collection: bool,
    pub(crate) overwrite: Overwrite,
    /// Permissions of directories that are made on the way.
    pub(crate) directory_access: u32,
}

impl Transfer {
    /// Does it. What is given back is the status of the answer.
    pub(crate) fn run(mut self) -> Result<u16, Failure> {
        self.from = without_slash(&self.from);
        self.to = without_slash(&self.to);
        self.check_paths()?;
        let in_the_way = self.in_the_way()?;
        let source = look(&self.from, 404)?;
        match (source.is_dir(), self.is_collection) {
            (true, false) => Err(Failure::refusal(
                400,
                format!("\"{}\" is collection", self.from.display()),
            )),
            (false, true) => {
                let error = io::Error::from(io::ErrorKind::NotADirectory);
                Err(Failure::of(&error, "lstat()", &self.from, 404))
            }
            (true, true) => self.directory(in_the_way).map(|()| 201),
            (false, false) => self.file().map(|()| 204),
        }
    }

    /// Neither onto itself, nor a directory into or out of itself.
    fn check_paths(&self) -> Result<(), Failure> {
        let (from, to) = (self.from.display(), self.to.display());
        if self.from == self.to {
            return Err(Failure::refusal(
                403,
                format!("both \"{from}\" and \"{to}\" are the same location"),
            ));
        }
        if self.is_collection
            && (self.to.starts_with(&self.from) || self.from.starts_with(&self.to))
        {
            return Err(Failure::refusal(
                403,
                format!("\"{from}\" could not be moved or copied to collection \"{to}\""),
            ));
        }
        Ok(())
    }

    fn in_the_way(&self) -> Result<bool, Failure> {
        let there = match fs::symlink_metadata(&self.to) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Failure::of(&error, "lstat()", &self.to, 404)),
        };
        let to = self.to.display();
        if there.is_dir() && !self.is_collection {
            let from = self.from.display();
            return Err(Failure::refusal(
                409,
                format!("\"{from}\" could not be moved or copied to collection \"{to}\""),
            ));
        }
        match self.overwrite {
            Overwrite::Allowed => Ok(true),
            Overwrite::Refused => Err(Failure::refusal(
                412,
                format!("\"{to}\" could not be created (17: File exists)"),
            )),
        }
    }

    fn file(&self) -> Result<(), Failure> {
        match self.moves {
            true => rename(&self.from, &self.to, Some(self.directory_access)),
            false => copy_file(&self.from, &self.to),
        }
    }

    fn directory(&self, in_the_way: bool) -> Result<(), Failure> {
        if in_the_way {
            remove(&self.to)?;
        }
        if self.moves && fs::rename(&self.from, &self.to).is_ok() {
            return Ok(());
        }
        copy_directory(&self.from, &self.to, 0)?;
        if self.moves {
            remove(&self.from)?;
        }
        Ok(())
    }
}

/// Copies a directory with all files and directories in it.
fn copy_directory(from: &Path, to: &Path, depth: usize) -> Result<(), Failure> {
    if depth == MAX_DEPTH {
        return Err(Failure::refusal(
            500,
            format!("\"{}\" is too deep to be copied", from.display()),
        ));
    }
    let failed = |call, path| move |error: io::Error| Failure::of(&error, call, path, 404);
    let metadata = fs::symlink_metadata(from).map_err(failed("lstat()", from))?;
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
    let time = metadata
        .modified()
        .and_then(|modified| File::open(to)?.set_modified(modified));
    time.map_err(failed("utimes()", to))
}

fn without_slash(path: &Path) -> PathBuf {
    // Components have no final slash; the root stays the root.
    path.components().collect()
}
