//! Static files: the content handler of every location that has no other.
//!
//! ```nginx
//! location / { root /srv/www; }
//! ```
//!
//! `GET` and `HEAD` return the file that the path names below `root` (or by `alias`); for a
//! directory they redirect to its path with a slash. Paths that end with a slash are left to
//! `index` and `autoindex`. The content remains a range of the open file down to the connection.
//! The file is opened without waiting if the kernel has its path in memory.

use host::error_log::LogLevel;
use http::files::{self, FilePurpose, OpenFileResult};
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request, status_response};
use proto::message::Method;

use crate::shared::file_response;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "static",
    doc: "Serves static files.",
    phases: &[(HttpPhase::Content, serve)],
    explain: http::module::ModuleExplain::ServesFiles(""),
    ..HttpModule::EMPTY
};

/// The content handler. Methods without meaning for a file are refused before the disk is touched.
fn serve(request: &mut Request) -> HandlerStep<'_> {
    if !matches!(request.method, Method::Get | Method::Head | Method::Post) {
        return HandlerOutcome::Status(405).into();
    }
    if request.uri.path.ends_with(b"/") {
        return HandlerOutcome::Declined.into();
    }
    // Fails if the path is not below the location's alias any more.
    let Some(path) = request.file_path() else {
        return HandlerOutcome::Status(500).into();
    };
    match files::try_open(request, &path, FilePurpose::Read) {
        Some(found) => answer(request, &path, found).into(),
        None => HandlerStep::later(async move {
            let found = files::open_waiting(request, &path, FilePurpose::Read).await;
            answer(request, &path, found)
        }),
    }
}

/// Responds with the file, or with the status of the error.
fn answer(request: &mut Request, path: &[u8], found: OpenFileResult) -> HandlerOutcome {
    let found = match found {
        Ok(found) => found,
        Err(error) => return HandlerOutcome::Status(files::refuse_file(request, path, error)),
    };
    if found.is_directory() {
        return status_response::redirect_to_directory(request);
    }
    // A device or a pipe could block, or never end.
    if !found.is_file() {
        let path = bstr::BStr::new(path);
        request.log(
            LogLevel::Crit,
            format_args!("\"{path}\" is not a regular file"),
        );
        return HandlerOutcome::Status(404);
    }
    // As late as in nginx: a `POST` to a missing file is 404, and to a directory a redirect.
    if request.method == Method::Post {
        return HandlerOutcome::Status(405);
    }
    request.head.doing.set("sending response to client");
    file_response::respond_with_file(request, found)
}
