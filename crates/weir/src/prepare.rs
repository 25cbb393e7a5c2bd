//! What the master opens before a configuration runs: directories, logs, sockets.
//!
//! Either everything succeeds or nothing has changed, so a reload that fails here leaves the server
//! as it was. Directories come first, because the other things are created in them, and logs before
//! sockets, so that an address in use is reported in the log that the configuration names.

use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::ErrnoText;
use host::engine::ListenerSpec;
use host::error_log::{LogFiles, LogLevel, LogWriteMode, Logger};
use host::process::{self, SystemUser};
use rt::file::modes;

use crate::load_configuration::LoadedConfiguration;
use crate::message::OpenLogs;
use crate::paths::OwnFolder;
use crate::sockets::ListeningSockets;
use crate::startup_log::StartupLog;

/// Everything open that a configuration needs.
pub(crate) struct OpenedResources {
    /// The listening sockets.
    pub(crate) sockets: ListeningSockets,
    /// The log files.
    pub(crate) logs: OpenLogs,
}

/// Creates the directories, opens the logs (the master's own lines go there from then on), then the
/// sockets.
pub(crate) fn open(
    loaded: &LoadedConfiguration,
    before: &ListeningSockets,
    startup_log: StartupLog<'_>,
) -> Result<OpenedResources, String> {
    make_own_folders(loaded)?;
    make_directories(loaded, startup_log)?;
    let logs = open_logs(&loaded.files.all_paths(), startup_log)?;
    attach(&loaded.files, &logs)?;
    let sockets = before.opened_for(listeners(loaded), loaded.core.loops(), startup_log)?;
    Ok(OpenedResources { sockets, logs })
}

/// The listening sockets of all engines.
pub(crate) fn listeners(loaded: &LoadedConfiguration) -> Vec<ListenerSpec> {
    loaded
        .engines
        .iter()
        .flat_map(|engine| engine.listeners())
        .collect()
}

/// Opens log files for appending. If a file has been moved away, this creates a new one.
pub(crate) fn open_logs(
    paths: &[PathBuf],
    startup_log: StartupLog<'_>,
) -> Result<OpenLogs, String> {
    paths
        .iter()
        .map(|path| Ok((path.clone(), Arc::new(open_log(path, startup_log)?))))
        .collect()
}

/// Opens a log file for appending, and warns if its mode lets others write to it.
fn open_log(path: &Path, startup_log: StartupLog<'_>) -> Result<OwnedFd, String> {
    let opened = match path.to_str() {
        // A service manager may have made these streams sockets, which cannot be opened by name.
        Some("/dev/stderr") => process::duplicate_stderr(),
        Some("/dev/stdout") => process::duplicate_stdout(),
        Some(_) | None => modes::open_to_append(path).map(|(file, wrong)| {
            if let Some(wrong) = wrong {
                let path = path.display();
                startup_log.log(LogLevel::Warn, format_args!("log file \"{path}\" {wrong}"));
            }
            OwnedFd::from(file)
        }),
    };
    opened.map_err(|error| open_failed(path, &error))
}

/// Lets this process write to the opened logs directly, without threads: the master must be able to
/// fork.
pub(crate) fn attach(files: &LogFiles, logs: &OpenLogs) -> Result<(), String> {
    for (path, descriptor) in logs {
        let descriptor = descriptor
            .try_clone()
            .map_err(|error| format!("dup() \"{}\" failed{}", path.display(), ErrnoText(&error)))?;
        files.attach(path, descriptor, LogWriteMode::Direct);
    }
    Ok(())
}

/// Redirects standard error to the first file of `log`, which is among `logs`, so that messages of
/// libraries and panics are not lost. Not if the configuration itself logs to standard error.
pub(crate) fn redirect_stderr(log: &Logger, logs: &OpenLogs) {
    // It would replace the stream that the log itself writes to.
    if log.has_stderr() {
        return;
    }
    let Some(file) = log.first_file() else { return };
    let opened = logs.iter().find(|(path, _)| path == file.path());
    if let Some((_, descriptor)) = opened
        && let Err(error) = process::redirect_stderr(descriptor.as_fd())
    {
        log.log_plain(
            LogLevel::Alert,
            format_args!("dup2(STDERR) failed{}", ErrnoText(&error)),
        );
    }
}

/// Makes the ring of requests, and listens for those that ask for it (`weir tail`). The server works without it.
pub(crate) fn offer_requests(log: &Logger) -> Option<OwnedFd> {
    match host::request_ring::install() {
        Ok(_) => host::request_ring::listen(),
        Err(error) => {
            let error = ErrnoText(&error);
            let text = format_args!("memfd_create() failed{error}, \"weir tail\" shows nothing");
            log.log_plain(LogLevel::Notice, text);
            None
        }
    }
}

/// nginx's words for a directory that cannot be created.
fn mkdir_failed(path: &Path, error: &io::Error) -> String {
    format!("mkdir() \"{}\" failed{}", path.display(), ErrnoText(error))
}

/// nginx's words for a file that cannot be opened.
fn open_failed(path: &Path, error: &io::Error) -> String {
    format!("open() \"{}\" failed{}", path.display(), ErrnoText(error))
}

/// The server's own directories that are used.
fn own_folders_in_use(loaded: &LoadedConfiguration) -> impl Iterator<Item = &OwnFolder> {
    let mut files = loaded.directories.clone();
    files.extend(loaded.files.all_paths());
    files.push(loaded.core.pid.clone());
    let is_used = move |own: &&OwnFolder| files.iter().any(|path| path.parent() == Some(&own.path));
    loaded.own_folders.iter().filter(is_used)
}

/// Creates the server's own directories: neither a package nor an engine does.
fn make_own_folders(loaded: &LoadedConfiguration) -> Result<(), String> {
    for OwnFolder { path, mode } in own_folders_in_use(loaded) {
        modes::make_folders(path, *mode).map_err(|error| mkdir_failed(path, &error))?;
        // In `/tmp` another user may have been quicker and would own what is written there.
        let is_private = *mode == modes::PRIVATE_FOLDER && path.starts_with(std::env::temp_dir());
        if is_private && !modes::is_ours_alone(path).is_ok_and(|ours| ours) {
            let path = path.display();
            return Err(format!("directory \"{path}\" belongs to another user"));
        }
    }
    Ok(())
}

/// Fails as [`open`] would, without creating anything: for `-t`.
pub(crate) fn test_open(
    loaded: &LoadedConfiguration,
    startup_log: StartupLog<'_>,
) -> Result<(), String> {
    let own: Vec<&OwnFolder> = own_folders_in_use(loaded).collect();
    let could = |path: &Path| match own.iter().any(|own| path.parent() == Some(&own.path)) {
        true => modes::could_make(path),
        false => modes::could_create(path),
    };
    let pid = loaded.core.pid.as_path();
    could(pid).map_err(|error| open_failed(pid, &error))?;
    for path in loaded.directories.iter().filter(|path| !path.is_dir()) {
        could(path).map_err(|error| mkdir_failed(path, &error))?;
    }
    // Existing files are opened, because only that shows every reason for a failure. Missing ones must not be
    // created by a test.
    let (there, absent): (Vec<PathBuf>, Vec<PathBuf>) = loaded
        .files
        .all_paths()
        .into_iter()
        .partition(|path| path.exists());
    for path in absent {
        could(&path).map_err(|error| open_failed(&path, &error))?;
    }
    open_logs(&there, startup_log).map(drop)
}

/// Creates the directories of engines, accessible to the worker's user only.
pub(crate) fn make_directories(
    loaded: &LoadedConfiguration,
    startup_log: StartupLog<'_>,
) -> Result<(), String> {
    let user = loaded.core.user.as_ref().filter(|_| process::is_root());
    for path in &loaded.directories {
        modes::make_folder(path, modes::PRIVATE_FOLDER)
            .map_err(|error| mkdir_failed(path, &error))?;
        // If it cannot be inspected, using it will say why.
        if let Ok(Some(wrong)) = modes::check_folder(path) {
            let path = path.display();
            startup_log.log(LogLevel::Warn, format_args!("directory \"{path}\" {wrong}"));
        }
        give_to_user(path, user)?;
    }
    Ok(())
}

/// Recreates directories that were removed, and gives new ones to the worker's user: a cache whose
/// directory was cleared away works again without a reload. Workers could put symbolic links in the
/// place of their directories, so only an empty directory of root's below one of root's is touched.
pub(crate) fn restore_directories(loaded: &LoadedConfiguration) {
    let user = loaded.core.user.as_ref().filter(|_| process::is_root());
    let Some(user) = user else { return };
    for path in &loaded.directories {
        // There will be another attempt, and the user of the directory logs what is missing.
        let _ = restore_directory(path, user);
    }
}

/// Creates a directory, or gives the worker's user an empty one of root's.
fn restore_directory(path: &Path, user: &SystemUser) -> io::Result<()> {
    let is_roots = |metadata: &std::fs::Metadata| metadata.uid() == 0 && metadata.is_dir();
    match std::fs::symlink_metadata(path) {
        Ok(there) if !is_roots(&there) => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    if user.uid == 0 || !is_roots(&std::fs::symlink_metadata(parent)?) {
        return Ok(());
    }
    modes::make_folder(path, modes::PRIVATE_FOLDER)?;
    process::give_empty_directory(path, user)
}

/// Makes the worker's user the owner. nginx does the same with its temporary directories.
fn give_to_user(path: &Path, user: Option<&SystemUser>) -> Result<(), String> {
    let failed = |call: &str, error: &io::Error| {
        format!("{call} \"{}\" failed{}", path.display(), ErrnoText(error))
    };
    let Some(user) = user else { return Ok(()) };
    let owner = std::fs::metadata(path)
        .map_err(|error| failed("stat()", &error))?
        .uid();
    // `chown` needs privileges even if it changes nothing.
    if owner == user.uid {
        return Ok(());
    }
    process::change_owner(path, user).map_err(|error| failed("chown()", &error))
}

/// The pid file. Only [`PidFile::remove`] deletes it: as with nginx a crash leaves it behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PidFile(PathBuf);

/// The number in a pid file.
pub(crate) fn read_pid(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl PidFile {
    /// Writes this process's number to `path`.
    pub(crate) fn write(path: &Path) -> Result<PidFile, String> {
        let text = format!("{}\n", std::process::id());
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(modes::PUBLIC_FILE)
            .open(path)
            .and_then(|mut file| {
                // Whatever the umask or an earlier mode was: those who can write the file choose
                // the process that the next `-s stop` kills. A file system without modes is no
                // error.
                let _ = file.set_permissions(Permissions::from_mode(modes::PUBLIC_FILE));
                io::Write::write_all(&mut file, text.as_bytes())
            });
        match written {
            Ok(()) => Ok(PidFile(path.to_path_buf())),
            Err(error) => Err(open_failed(path, &error)),
        }
    }

    /// Renames the file. The error is a line for the log.
    pub(crate) fn rename(&mut self, path: &Path) -> Result<(), String> {
        std::fs::rename(&self.0, path).map_err(|error| {
            format!(
                "rename() {} to {} failed{}",
                self.0.display(),
                path.display(),
                ErrnoText(&error)
            )
        })?;
        self.0 = path.to_path_buf();
        Ok(())
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Deletes the file.
    pub(crate) fn remove(&self, log: &Logger) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            let error = ErrnoText(&error);
            log.log_plain(
                LogLevel::Alert,
                format_args!("unlink() \"{}\" failed{error}", self.0.display()),
            );
        }
    }
}
