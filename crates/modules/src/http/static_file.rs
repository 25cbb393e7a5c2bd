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

use host::error_log::Level;
use http::files::{self, Found, Purpose};
use http::{Module, Outcome, Phase, Request, Step, special};
use proto::message::Method;

use crate::shared::file_response;

pub(crate) static MODULE: Module = Module {
    name: "static",
    doc: "Serves static files.",
    phases: &[(Phase::Content, serve)],
    ..Module::EMPTY
};

/// The content handler. Methods without meaning for a file are refused before the disk is touched.
fn serve(request: &mut Request) -> Step<'_> {
    if !matches!(request.method, Method::Get | Method::Head | Method::Post) {
        return Outcome::Status(405).into();
    }
    if request.uri.path.ends_with(b"/") {
        return Outcome::Declined.into();
    }
    // Fails if the path is not below the location's alias any more.
    let Some(path) = request.file_path() else {
        return Outcome::Status(500).into();
    };
    match files::try_open(request, &path, Purpose::Read) {
        Some(found) => answer(request, &path, found).into(),
        None => Step::later(async move {
            let found = files::open_waiting(request, &path, Purpose::Read).await;
            answer(request, &path, found)
        }),
    }
}

/// Responds with the file, or with the status of the error.
fn answer(request: &mut Request, path: &[u8], found: Found) -> Outcome {
    let found = match found {
        Ok(found) => found,
        Err(error) => return Outcome::Status(files::refuse(request, path, error)),
    };
    if found.is_directory() {
        return special::redirect_to_directory(request);
    }
    // A device or a pipe could block, or never end.
    if !found.is_file() {
        let path = bstr::BStr::new(path);
        request.log(
            Level::Crit,
            format_args!("\"{path}\" is not a regular file"),
        );
        return Outcome::Status(404);
    }
    // As late as in nginx: a `POST` to a missing file is 404, and to a directory a redirect.
    if request.method == Method::Post {
        return Outcome::Status(405);
    }
    file_response::respond_with_file(request, found)
}
