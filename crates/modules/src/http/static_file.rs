//! Files: the content handler of every location that has no other.
//!
//! ```nginx
//! location / { root /srv/www; }
//! ```
//!
//! `GET` and `HEAD` get the file that the path names below `root` (or through `alias`), a directory a redirect to its
//! path with a slash. Paths that end with a slash are for `index` and `autoindex`. The content stays a range of the
//! open file down to the connection. Opening is answered at once when the kernel has the path in memory.

use http::files::{self, Found, Purpose};
use http::{Module, Outcome, Phase, Request, Step, special};
use proto::h1::Method;
use rt::error_log::Level;

use crate::shared::file_response;

pub(crate) static MODULE: Module = Module {
    name: "static",
    doc: "Serves static files.",
    phases: &[(Phase::Content, serve)],
    ..Module::EMPTY
};

fn serve(request: &mut Request) -> Step<'_> {
    if !matches!(request.method, Method::Get | Method::Head | Method::Post) {
        return Outcome::Status(405).into();
    }
    if request.uri.path.ends_with(b"/") {
        return Outcome::Declined.into();
    }
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

fn answer(request: &mut Request, path: &[u8], found: Found) -> Outcome {
    let found = match found {
        Ok(found) => found,
        Err(error) => return Outcome::Status(files::refuse(request, path, error)),
    };
    if found.is_directory() {
        return special::redirect_to_directory(request);
    }
    if !found.is_file() {
        let path = bstr::BStr::new(path);
        request.log(
            Level::Crit,
            format_args!("\"{path}\" is not a regular file"),
        );
        return Outcome::Status(404);
    }
    if request.method == Method::Post {
        return Outcome::Status(405);
    }
    file_response::respond(request, found)
}
