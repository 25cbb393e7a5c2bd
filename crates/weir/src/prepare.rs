//! What the master opens for a configuration before anybody runs it: folders, logs, sockets.
//!
//! Either everything succeeds or nothing has changed, so a reload that fails here leaves the server as
//! it was.

use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rt::engine::ListenerSpec;
use rt::error_log::{Attach, Errno, Level, LogFiles, Logger};
use rt::file::modes;
use rt::process::{self, User};

use crate::load::Loaded;
use crate::message::Logs;
use crate::paths::Own;
use crate::sockets::Sockets;
use crate::voice::Voice;

/// Everything that a configuration needs open.
pub(crate) struct Opened {
    /// The listening sockets.
    pub(crate) sockets: Sockets,
    /// The log files.
    pub(crate) logs: Logs,
}

/// Makes the folders, opens the logs (and lets the master's own lines go to them), then the sockets.
pub(crate) fn open(loaded: &Loaded, before: &Sockets, voice: Voice<'_>) -> Result<Opened, String> {
    make_own(loaded)?;
    make_directories(loaded, voice)?;
    let logs = open_logs(&loaded.files.wanted(), voice)?;
    attach(&loaded.files, &logs)?;
    let sockets = before.reconcile(listeners(loaded), loaded.core.worker_processes, voice)?;
    Ok(Opened { sockets, logs })
}

/// The sockets that all engines want.
pub(crate) fn listeners(loaded: &Loaded) -> Vec<ListenerSpec> {
    loaded
        .engines
        .iter()
        .flat_map(|engine| engine.listeners())
        .collect()
}

/// Opens log files for appending. Opened again, a file that was moved away is created anew.
pub(crate) fn open_logs(paths: &[PathBuf], voice: Voice<'_>) -> Result<Logs, String> {
    paths
        .iter()
        .map(|path| Ok((path.clone(), Arc::new(open_log(path, voice)?))))
        .collect()
}

fn open_log(path: &Path, voice: Voice<'_>) -> Result<OwnedFd, String> {
    let opened = match path.to_str() {
        // A service manager may have made the streams sockets, which can not be opened by name.
        Some("/dev/stderr") => process::duplicate_stderr(),
        Some("/dev/stdout") => process::duplicate_stdout(),
        Some(_) | None => modes::append(path).map(|(file, wrong)| {
            if let Some(wrong) = wrong {
                let path = path.display();
                voice.say(Level::Warn, format_args!("log file \"{path}\" {wrong}"));
            }
            OwnedFd::from(file)
        }),
    };
    opened.map_err(|error| open_failed(path, &error))
}

/// Lets this process write to opened logs, without threads.
pub(crate) fn attach(files: &LogFiles, logs: &Logs) -> Result<(), String> {
    for (path, descriptor) in logs {
        let descriptor = descriptor
            .try_clone()
            .map_err(|error| format!("dup() \"{}\" failed{}", path.display(), Errno(&error)))?;
        files.attach(path, descriptor, Attach::Direct);
    }
    Ok(())
}

/// Lets libraries that write to standard error write to the error log: the first file of `log`, which
/// is among `logs`. Not when the configuration itself logs to standard error.
pub(crate) fn redirect_stderr(log: &Logger, logs: &Logs) {
    if log.has_stderr() {
        return;
    }
    let Some(file) = log.first_file() else { return };
    let opened = logs.iter().find(|(path, _)| path == file.path());
    if let Some((_, descriptor)) = opened
        && let Err(error) = process::redirect_stderr(descriptor.as_fd())
    {
        log.plain(
            Level::Alert,
            format_args!("dup2(STDERR) failed{}", Errno(&error)),
        );
    }
}

fn mkdir_failed(path: &Path, error: &io::Error) -> String {
    format!("mkdir() \"{}\" failed{}", path.display(), Errno(error))
}

fn open_failed(path: &Path, error: &io::Error) -> String {
    format!("open() \"{}\" failed{}", path.display(), Errno(error))
}

/// The server's own folders that something is put into.
fn own_in_use(loaded: &Loaded) -> impl Iterator<Item = &Own> {
    let mut files = loaded.directories.clone();
    files.extend(loaded.files.wanted());
    files.push(loaded.core.pid.clone());
    let is_used = move |own: &&Own| files.iter().any(|path| path.parent() == Some(&own.path));
    loaded.own.iter().filter(is_used)
}

/// Makes the server's own directories: no package and no engine does.
fn make_own(loaded: &Loaded) -> Result<(), String> {
    for Own { path, mode } in own_in_use(loaded) {
        modes::make_folders(path, *mode).map_err(|error| mkdir_failed(path, &error))?;
        let is_private = *mode == modes::PRIVATE_FOLDER && path.starts_with(std::env::temp_dir());
        if is_private && !modes::is_ours_alone(path).is_ok_and(|ours| ours) {
            let path = path.display();
            return Err(format!("folder \"{path}\" belongs to another user"));
        }
    }
    Ok(())
}

/// What [`open`] would fail with, without making anything: for `-t`.
pub(crate) fn test(loaded: &Loaded, voice: Voice<'_>) -> Result<(), String> {
    let own: Vec<&Own> = own_in_use(loaded).collect();
    let could = |path: &Path| match own.iter().any(|own| path.parent() == Some(&own.path)) {
        true => modes::could_make(path),
        false => modes::could_create(path),
    };
    let pid = loaded.core.pid.as_path();
    could(pid).map_err(|error| open_failed(pid, &error))?;
    for path in loaded.directories.iter().filter(|path| !path.is_dir()) {
        could(path).map_err(|error| mkdir_failed(path, &error))?;
    }
    let (there, absent): (Vec<PathBuf>, Vec<PathBuf>) = loaded
        .files
        .wanted()
        .into_iter()
        .partition(|path| path.exists());
    for path in absent {
        could(&path).map_err(|error| open_failed(&path, &error))?;
    }
    open_logs(&there, voice).map(drop)
}

/// Makes the folders that engines name, for nobody but the worker's user.
pub(crate) fn make_directories(loaded: &Loaded, voice: Voice<'_>) -> Result<(), String> {
    let user = loaded.core.user.as_ref().filter(|_| process::is_root());
    for path in &loaded.directories {
        modes::make_folder(path, modes::PRIVATE_FOLDER)
            .map_err(|error| mkdir_failed(path, &error))?;
        // What cannot be looked at is told by who wants to use it.
        if let Ok(Some(wrong)) = modes::check_folder(path) {
            let path = path.display();
            voice.say(Level::Warn, format_args!("folder \"{path}\" {wrong}"));
        }
        give_to_user(path, user)?;
    }
    Ok(())
}

/// Makes those folders again that were removed, and gives those to the worker's user that somebody made anew: a cache whose
/// folder was cleared away works again without a reload. What a worker could have put in the place of a folder is not
/// touched: it must be an empty folder of root's, below one of root's.
pub(crate) fn mend_directories(loaded: &Loaded) {
    let user = loaded.core.user.as_ref().filter(|_| process::is_root());
    let Some(user) = user else { return };
    for path in &loaded.directories {
        // It is tried again; what the folder is for says in the log what it lacks.
        let _ = mend_directory(path, user);
    }
}

fn mend_directory(path: &Path, user: &User) -> io::Result<()> {
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

fn give_to_user(path: &Path, user: Option<&User>) -> Result<(), String> {
    let failed = |call: &str, error: &io::Error| {
        format!("{call} \"{}\" failed{}", path.display(), Errno(error))
    };
    let Some(user) = user else { return Ok(()) };
    let owner = std::fs::metadata(path)
        .map_err(|error| failed("stat()", &error))?
        .uid();
    if owner == user.uid {
        return Ok(());
    }
    process::change_owner(path, user).map_err(|error| failed("chown()", &error))
}

/// The pid file. Removed when it is dropped by [`PidFile::remove`] only: a crash leaves it, as nginx does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PidFile(PathBuf);

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
                // Whatever the umask, and whatever it was: who can write it chooses the process that the next `-s stop`
                // ends. Where there are no modes, there is nothing to be done.
                let _ = file.set_permissions(Permissions::from_mode(modes::PUBLIC_FILE));
                io::Write::write_all(&mut file, text.as_bytes())
            });
        match written {
            Ok(()) => Ok(PidFile(path.to_path_buf())),
            Err(error) => Err(open_failed(path, &error)),
        }
    }

    /// Moves the file. The error is a line for the log.
    pub(crate) fn rename(&mut self, path: &Path) -> Result<(), String> {
        std::fs::rename(&self.0, path).map_err(|error| {
            format!(
                "rename() {} to {} failed{}",
                self.0.display(),
                path.display(),
                Errno(&error)
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
            let error = Errno(&error);
            log.plain(
                Level::Alert,
                format_args!("unlink() \"{}\" failed{error}", self.0.display()),
            );
        }
    }
}
