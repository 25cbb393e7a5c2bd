//! `…_store`: responses that are stored as files.
//!
//! While the client reads the response, its body is also written to a temporary file, batch by batch on the thread
//! pool. When the body is complete, the file gets its permissions, its time and its name, so that an incomplete file is
//! never visible under that name.

use std::ffi::OsStr;
use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, UNIX_EPOCH};

use base::ErrnoText;
use host::error_log::LogLevel;
use proto::KnownField;
use rt::file::{File, modes};

use super::respond::is_buffered;
use super::upstream_settings::{UpstreamSettings, UpstreamStore};
use crate::body_reader::create_temporary;
use crate::request::Request;

/// The number of bytes waiting to be written at which the upstream is no longer read.
const BACKLOG: usize = 1024 * 1024;

/// The temporary file after a step; `None` after it has been given its name.
type SaveStep = io::Result<Option<(File, PathBuf)>>;

/// A response that is being stored.
pub(super) struct ResponseSaving {
    folder: PathBuf,
    target: PathBuf,
    mode: u32,
    modified: Option<i64>,
    backlog: Vec<u8>,
    file: Option<(File, PathBuf)>,
    written: u64,
    step: Option<Pin<Box<dyn Future<Output = SaveStep>>>>,
    named: bool,
}

impl ResponseSaving {
    /// Starts to store the response, if that is configured. `record` must have its head.
    pub(super) fn begin(
        request: &mut Request,
        settings: &UpstreamSettings,
    ) -> Option<ResponseSaving> {
        let head = request.upstream.get_or_make().head.clone();
        // As in nginx, only a 200 is stored: the file is later served as one.
        // nginx stores what passes through its buffers, and nothing with `…_buffering off`.
        if head.status != 200
            || request.is_subrequest() && request.delivery.header_only
            || !is_buffered(settings, &head)
        {
            return None;
        }
        let target = match &settings.store {
            UpstreamStore::Off => return None,
            UpstreamStore::On => request.file_path()?,
            UpstreamStore::Path(path) => request.value(path),
        };
        let target = request.site.prefix.join(OsStr::from_bytes(&target));
        let modified = head
            .fields
            .get_known(KnownField::LastModified)
            .and_then(proto::date::parse);
        Some(ResponseSaving {
            folder: settings.temp_path.clone(),
            target,
            mode: settings.store_access,
            modified,
            backlog: Vec::new(),
            file: None,
            written: 0,
            step: None,
            named: false,
        })
    }

    /// Adds a piece of the body.
    pub(super) fn add(&mut self, data: &[u8]) {
        self.backlog.extend_from_slice(data);
    }

    /// Whether the disk has to catch up before more is received.
    pub(super) fn is_full(&self) -> bool {
        self.backlog.len() >= BACKLOG
    }

    /// Continues. Ready when the file has its name, or when storing has failed, which has been logged. `ended`: the
    /// whole body has been added.
    pub(super) fn poll(
        &mut self,
        request: &mut Request,
        ended: bool,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if let Some(step) = &mut self.step {
                let Poll::Ready(result) = step.as_mut().poll(context) else {
                    return Poll::Pending;
                };
                self.step = None;
                match result {
                    Ok(file) => self.file = file,
                    Err(error) => {
                        let target = self.target.display();
                        request.log_while(
                            LogLevel::Crit,
                            "reading upstream",
                            format_args!("saving \"{target}\" failed{}", ErrnoText(&error)),
                        );
                        return Poll::Ready(());
                    }
                }
                if self.named {
                    return Poll::Ready(());
                }
            }
            // An empty response becomes an empty file.
            if !self.backlog.is_empty() || ended && self.file.is_none() {
                let data = std::mem::take(&mut self.backlog);
                let offset = self.written;
                self.written += data.len() as u64;
                self.step = Some(Box::pin(write(
                    self.file.take(),
                    self.folder.clone(),
                    data,
                    offset,
                )));
            } else if ended && let Some((_, temporary)) = self.file.take() {
                self.named = true;
                let (target, mode, modified) = (self.target.clone(), self.mode, self.modified);
                self.step = Some(Box::pin(async move {
                    rt::pool::default_pool()
                        .run(move || name(&temporary, &target, mode, modified))
                        .await?;
                    Ok(None)
                }));
            } else {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for ResponseSaving {
    fn drop(&mut self) {
        if let Some((_, temporary)) = self.file.take() {
            rt::spawn(async move {
                // If it has already been removed, that is just as well.
                let _ = rt::file::remove_file(&temporary, &rt::pool::default_pool()).await;
            });
        }
    }
}

/// Writes a piece, and creates the file for the first one.
async fn write(
    file: Option<(File, PathBuf)>,
    folder: PathBuf,
    data: Vec<u8>,
    offset: u64,
) -> SaveStep {
    let (file, path) = match file {
        Some(file) => file,
        None => create_temporary(&folder, true).await?,
    };
    file.write_all_at(data, offset, &rt::pool::default_pool())
        .await?;
    Ok(Some((file, path)))
}

/// Gives the file its permissions, its time and its name. Runs on a thread of the pool, since it may block.
fn name(temporary: &Path, target: &Path, mode: u32, modified: Option<i64>) -> io::Result<()> {
    let result = prepare(temporary, mode, modified).and_then(|()| move_to(temporary, target, mode));
    if result.is_err() {
        // Without its name the file would never be removed.
        let _ = fs::remove_file(temporary);
    }
    result
}

/// Permissions and time are set before the file becomes visible. The time is that of `Last-Modified`, so that serving
/// the file repeats it.
fn prepare(temporary: &Path, mode: u32, modified: Option<i64>) -> io::Result<()> {
    fs::set_permissions(temporary, fs::Permissions::from_mode(mode))?;
    if let Some(seconds) = modified.and_then(|seconds| u64::try_from(seconds).ok()) {
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::options()
            .write(true)
            .open(temporary)?
            .set_modified(time)?;
    }
    Ok(())
}

/// Renames the file, which replaces an older one atomically.
fn move_to(temporary: &Path, target: &Path, mode: u32) -> io::Result<()> {
    match fs::rename(temporary, target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = target.parent() {
                // Every user who may read the file may also enter its directories.
                let access = modes::of_folder(mode);
                modes::make_folders(folder, access)?;
            }
            fs::rename(temporary, target)
        }
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            // A copy is not atomic. It is made on the target's device under another name, and then renamed.
            let mut beside = target.as_os_str().to_owned();
            beside.push(".part");
            fs::copy(temporary, &beside)?;
            fs::rename(&beside, target)?;
            fs::remove_file(temporary)
        }
        result => result,
    }
}
