//! `store`: responses that are saved as files.
//!
//! The content goes to a temporary file beside the client, batch by batch on the pool. When all of it is there, the file
//! gets its permissions, its time and its name, so that nobody ever sees a part of it.

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

use base::Errno;
use host::error_log::Level;
use proto::Known;
use rt::file::{File, modes};

use super::settings::{Settings, Store};
use crate::body_reader::create_temporary;
use crate::request::Request;

/// What waits to be written before the peer is no longer read, in bytes.
const BACKLOG: usize = 1024 * 1024;

type Step = io::Result<Option<(File, PathBuf)>>;

/// A response being saved.
pub(super) struct Saving {
    folder: PathBuf,
    target: PathBuf,
    mode: u32,
    modified: Option<i64>,
    backlog: Vec<u8>,
    file: Option<(File, PathBuf)>,
    written: u64,
    step: Option<Pin<Box<dyn Future<Output = Step>>>>,
    named: bool,
}

impl Saving {
    /// Begins to save the response, if it is to be. `record` must have its head.
    pub(super) fn begin(request: &mut Request, settings: &Settings) -> Option<Saving> {
        let head = request.upstream.get_or_make().head.clone();
        if head.status != 200 || request.is_subrequest() && request.delivery.header_only {
            return None;
        }
        let target = match &settings.store {
            Store::Off => return None,
            Store::On => request.file_path()?,
            Store::Path(path) => request.value(path),
        };
        let target = request.site.prefix.join(OsStr::from_bytes(&target));
        let modified = head
            .fields
            .get_known(Known::LastModified)
            .and_then(proto::date::parse);
        Some(Saving {
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

    pub(super) fn add(&mut self, data: &[u8]) {
        self.backlog.extend_from_slice(data);
    }

    /// Whether the disk has to catch up before more is received.
    pub(super) fn is_full(&self) -> bool {
        self.backlog.len() >= BACKLOG
    }

    /// Goes on. Ready when the file has its name, or when saving failed, which was logged. `ended` says that all of the
    /// response was added.
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
                        request.log(
                            Level::Crit,
                            format_args!(
                                "saving \"{target}\" failed{} while reading upstream",
                                Errno(&error)
                            ),
                        );
                        return Poll::Ready(());
                    }
                }
                if self.named {
                    return Poll::Ready(());
                }
            }
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

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some((_, temporary)) = self.file.take() {
            rt::spawn(async move {
                // Whoever else removed it did what was wanted.
                let _ = rt::file::remove_file(&temporary, &rt::pool::default_pool()).await;
            });
        }
    }
}

async fn write(file: Option<(File, PathBuf)>, folder: PathBuf, data: Vec<u8>, offset: u64) -> Step {
    let (file, path) = match file {
        Some(file) => file,
        None => create_temporary(&folder, true).await?,
    };
    file.write_all_at(data, offset, &rt::pool::default_pool())
        .await?;
    Ok(Some((file, path)))
}

/// Gives the file its permissions, its time and its name. On a thread of the pool.
fn name(temporary: &Path, target: &Path, mode: u32, modified: Option<i64>) -> io::Result<()> {
    let result = prepare(temporary, mode, modified).and_then(|()| move_to(temporary, target, mode));
    if result.is_err() {
        // It is of no use without its name.
        let _ = fs::remove_file(temporary);
    }
    result
}

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

fn move_to(temporary: &Path, target: &Path, mode: u32) -> io::Result<()> {
    match fs::rename(temporary, target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = target.parent() {
                // A user that may read the file may go to it.
                let access = modes::of_folder(mode);
                modes::make_folders(folder, access)?;
            }
            fs::rename(temporary, target)
        }
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            // The name must appear at once, so the copy is made under another one, on the right device.
            let mut beside = target.as_os_str().to_owned();
            beside.push(".part");
            fs::copy(temporary, &beside)?;
            fs::rename(&beside, target)?;
            fs::remove_file(temporary)
        }
        result => result,
    }
}
