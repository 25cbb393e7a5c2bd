//! File modes that do not depend on the umask.
//!
//! A daemon inherits the umask of its starter: with 0, stores and logs could be written by any user; with 077, a
//! log collector could not read the logs. Files that the server creates get the mode named here, and existing ones
//! that others may change are corrected. All of these functions block.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{Access, AtFlags, Mode};

/// Files that only the server reads: stores, temporary files, keys.
pub const PRIVATE_FILE: u32 = 0o600;
/// Folders that only the server reads.
pub const PRIVATE_FOLDER: u32 = 0o700;
/// Logs and the pid file: readable by all users of the machine, as with nginx.
pub const PUBLIC_FILE: u32 = 0o644;
/// Folders that hold those of others.
pub const PUBLIC_FOLDER: u32 = 0o755;

/// Write permission for the group and for others: never wanted on a log, nor on a folder of the server's.
const WRITABLE: u32 = 0o022;
const WRITABLE_BY_OTHERS: u32 = 0o002;
/// In such a folder (`/tmp`) only owners may rename and remove files.
const STICKY: u32 = 0o1000;

/// A mode that was too permissive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermissiveMode {
    /// What was found.
    pub mode: u32,
    /// The corrected mode; `None` if it could not be changed because the file belongs to another user.
    pub mended: Option<u32>,
}

/// The mode of a folder for files of this mode: users that may read the files may list the folder.
pub const fn of_folder(access: u32) -> u32 {
    access | (access & 0o444) >> 2
}

/// Removes write permission for group and others from the umask's result, for code that does not set a mode of its
/// own (scripts, libraries). Bits that the umask already removes stay removed.
pub fn narrow_umask() {
    // The only way to read it is to set it.
    let before = rustix::process::umask(Mode::from_raw_mode(0o077));
    rustix::process::umask(before | Mode::from_raw_mode(WRITABLE));
}

/// Opens a log for appending and creates it if necessary. Reports if others could write to an existing one.
pub fn open_to_append(path: &Path) -> io::Result<(File, Option<PermissiveMode>)> {
    let mut options = OpenOptions::new();
    options.append(true);
    match options.open(path) {
        Ok(file) => {
            let wrong = mend(&file, |mode| mode & WRITABLE_BY_OTHERS != 0, WRITABLE)?;
            return Ok((file, wrong));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    options.mode(PUBLIC_FILE);
    match options.create_new(true).open(path) {
        Ok(file) => {
            // File systems without modes refuse this, and nothing can be done about it.
            let _ = file.set_permissions(Permissions::from_mode(PUBLIC_FILE));
            Ok((file, None))
        }
        // Created meanwhile by another thread, or a link that leads nowhere yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = options.create_new(false).create(true).open(path)?;
            Ok((file, None))
        }
        Err(error) => Err(error),
    }
}

/// Creates one folder; an existing one is left as it is.
pub fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {
            // See above.
            let _ = std::fs::set_permissions(path, Permissions::from_mode(mode));
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates a folder and its missing parents.
pub fn make_folders(path: &Path, mode: u32) -> io::Result<()> {
    match make_folder(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().filter(|above| *above != Path::new(""));
            make_folders(above.ok_or(error)?, mode)?;
            make_folder(path, mode)
        }
        result => result,
    }
}

/// Whether this user could create the file or folder, or write to an existing one. Nothing is changed.
pub fn could_create(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(_) => allowed(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().filter(|above| *above != Path::new(""));
            allowed(above.unwrap_or(Path::new(".")))
        }
        Err(error) => Err(error),
    }
}

/// Whether this user could create the folder, including its missing parents.
pub fn could_make(path: &Path) -> io::Result<()> {
    let is_there = |path: &&Path| std::fs::symlink_metadata(path).is_ok();
    let nearest = path.ancestors().find(is_there).unwrap_or(Path::new("."));
    if nearest != path && !nearest.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    allowed(nearest)
}

/// Whether the existing file may be written to, by the effective user that system calls use.
fn allowed(path: &Path) -> io::Result<()> {
    let mut access = Access::WRITE_OK;
    if std::fs::metadata(path)?.is_dir() {
        access |= Access::EXEC_OK;
    }
    Ok(rustix::fs::accessat(
        rustix::fs::CWD,
        path,
        access,
        AtFlags::EACCESS,
    )?)
}

/// Whether this folder belongs to this user alone. In a directory where all users create files, another one may
/// have created it first.
pub fn is_ours_alone(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::symlink_metadata(path)?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    Ok(found.is_dir() && is_ours && found.mode() & 0o077 == 0)
}

/// Removes all permissions of group and others from a private file.
pub fn make_private(file: &impl AsFd) -> io::Result<Option<PermissiveMode>> {
    mend(file, |mode| mode & 0o077 != 0, 0o077)
}

/// Checks a folder of the server: other users must not be able to create files in it, unless they cannot touch
/// existing ones.
pub fn check_folder(path: &Path) -> io::Result<Option<PermissiveMode>> {
    let folder = File::open(path)?;
    let is_wrong = |mode| mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0;
    mend(&folder, is_wrong, WRITABLE)
}

/// Removes the bits `forbidden` if the mode has them. Devices, pipes and sockets are left to the operator.
fn mend(
    file: &impl AsFd,
    is_wrong: impl Fn(u32) -> bool,
    forbidden: u32,
) -> io::Result<Option<PermissiveMode>> {
    let stat = rustix::fs::fstat(file)?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    let mode = stat.st_mode & 0o7777;
    if !(kind.is_file() || kind.is_dir()) || !is_wrong(mode) {
        return Ok(None);
    }
    let right = mode & !forbidden;
    let mended = rustix::fs::fchmod(file, Mode::from_raw_mode(right)).is_ok();
    Ok(Some(PermissiveMode {
        mode,
        mended: mended.then_some(right),
    }))
}

impl std::fmt::Display for PermissiveMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = self.mode;
        match self.mended {
            Some(now) => write!(
                f,
                "had mode {mode:04o}, which lets others write; changed to {now:04o}"
            ),
            None => write!(
                f,
                "has mode {mode:04o}, which lets others write, and belongs to another user"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        let found = std::fs::metadata(path).expect("it is there");
        found.permissions().mode() & 0o7777
    }

    #[test]
    fn readers_may_enter_folders() {
        assert_eq!(of_folder(0o600), 0o700);
        assert_eq!(of_folder(0o664), 0o775);
    }

    #[test]
    fn what_others_may_write_is_mended_and_the_rest_is_left_alone() {
        let root = std::env::temp_dir().join(format!("weir-modes-{}", std::process::id()));
        make_folders(&root.join("a/b"), PRIVATE_FOLDER).expect("made");
        assert_eq!(mode(&root.join("a")), 0o700);
        let log = root.join("log");
        for (before, after) in [
            (0o666, 0o644),
            (0o640, 0o640),
            (0o660, 0o660),
            (0o622, 0o600),
        ] {
            open_to_append(&log).expect("made");
            std::fs::set_permissions(&log, Permissions::from_mode(before)).expect("ours");
            let (_, wrong) = open_to_append(&log).expect("there");
            assert_eq!(wrong.is_some(), before != after);
            assert_eq!(mode(&log), after);
        }
        for (before, after) in [
            (0o777, 0o755),
            (0o1777, 0o1777),
            (0o755, 0o755),
            (0o770, 0o770),
        ] {
            let folder = root.join("a");
            std::fs::set_permissions(&folder, Permissions::from_mode(before)).expect("ours");
            check_folder(&folder).expect("looked at");
            assert_eq!(mode(&folder), after);
        }
        assert_eq!(check_folder(Path::new("/dev/null")).ok(), Some(None));
        std::fs::remove_dir_all(&root).expect("ours");
    }
}
