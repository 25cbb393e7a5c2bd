//! `random_index`: responds for a directory with a random file in it.
//!
//! ```nginx
//! location /pictures/ { random_index on; }
//! ```
//!
//! Names that begin with a dot are left out, and so is everything that is not a file. The request
//! is redirected internally, so that the location for the file applies.

use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt;

use base::ErrnoText;
use bstr::{BString, ByteSlice};
use conf::{Directive, DirectiveTable, LOCATION, Setter};
use host::error_log::LogLevel;
use http::files;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use proto::message::Method;
use rt::file::{InodeKind, errno};
use rt::pool::PoolHandle;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "random_index",
    doc: "Serves a random file of a directory.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Content, draw)],
    enabled: |location| location.confs.get::<Conf>().on,
    explain: http::module::ModuleExplain::Runs(&["random_index"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "random_index",
    syntax: "on | off",
    default: Some("off"),
    contexts: LOCATION,
    since: "0.1",
    doc: "Whether to respond to requests for a directory with a random file in it.",
    set: Setter::Flag(|c| &mut c.on),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
}

/// The maximum number of entries that are considered.
const MAX_ENTRIES: usize = 100_000;

/// The content handler.
fn draw(request: &mut Request) -> HandlerStep<'_> {
    if !request.uri.path.ends_with(b"/")
        || !matches!(request.method, Method::Get | Method::Head | Method::Post)
    {
        return HandlerOutcome::Declined.into();
    }
    HandlerStep::later(answer(request))
}

/// Draws a file and redirects to it.
async fn answer(request: &mut Request) -> HandlerOutcome {
    let Some(mut path) = request.file_path() else {
        return HandlerOutcome::Status(500);
    };
    if path.len() > 1 {
        path.pop();
    }
    let site = std::rc::Rc::clone(&request.site);
    let pool = files::file_pool(request, &site.location(request.location).core.delivery.aio);
    let mut names = match rt::file::read_directory(files::as_path(&path), MAX_ENTRIES, &pool).await
    {
        Ok(entries) => entries,
        Err(error) => return HandlerOutcome::Status(refuse(request, &path, &error)),
    };
    names.retain(|entry| !entry.name.as_bytes().starts_with(b".") && may_be_file(entry.kind));
    // Only the drawn entry is examined, since nearly all are files: one system call instead of one
    // per entry.
    while !names.is_empty() {
        let entry = names.swap_remove(number_below(names.len()));
        let name = BString::from(entry.name.as_bytes());
        if entry.kind == Some(InodeKind::Regular) || is_file(&path, &name, &pool).await {
            let target = [&request.uri.path[..], &name].concat();
            return request.redirect_path(target);
        }
    }
    HandlerOutcome::Declined
}

/// Whether an entry can be a file, as far as the directory tells.
fn may_be_file(kind: Option<InodeKind>) -> bool {
    matches!(kind, None | Some(InodeKind::Regular | InodeKind::Symlink))
}

/// Whether a name refers to a file.
async fn is_file(directory: &[u8], name: &[u8], pool: &PoolHandle) -> bool {
    let path = [directory, b"/", name].concat();
    // A dangling link, or a file deleted meanwhile, is not a file.
    rt::file::stat(files::as_path(&path), pool)
        .await
        .is_ok_and(|metadata| metadata.is_file())
}

/// A random number below `count`, which is not 0.
fn number_below(count: usize) -> usize {
    // Each `RandomState` has its own random keys, so its hash of nothing is a random number.
    let number = rt::random::RandomState::new().hash_one(());
    (number % count as u64) as usize
}

/// Logs why a directory cannot be read; returns the status.
fn refuse(request: &Request, path: &[u8], error: &std::io::Error) -> u16 {
    let (level, status) = match error.raw_os_error().unwrap_or(errno::IO) {
        errno::NOENT | errno::NOTDIR | errno::NAMETOOLONG => (LogLevel::Error, 404),
        errno::ACCES => (LogLevel::Error, 403),
        _ => (LogLevel::Crit, 500),
    };
    request.log(
        level,
        format_args!(
            "opendir() \"{}\" failed{}",
            path.as_bstr(),
            ErrnoText(error)
        ),
    );
    status
}
