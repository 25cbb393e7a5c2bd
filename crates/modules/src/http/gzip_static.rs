//! `gzip_static`: files that were compressed beforehand.
//!
//! ```nginx
//! gzip_static on;      # /app.js is answered with /app.js.gz for clients that take gzip
//! gzip_vary   on;
//! ```
//!
//! With `always` every client gets the compressed file; `gunzip` can unpack it for those that can not.

use conf::{Directive, HTTP_SERVER_LOCATION, Setter, Table};
use http::files::{self, Found, Purpose};
use http::{Module, Outcome, Phase, Request, Step};
use proto::Known;
use proto::h1::Method;
use rt::error_log::Level;

use crate::shared::{file_response, gzip_accept};

pub(crate) static MODULE: Module = Module {
    name: "gzip_static",
    doc: "Answers with files that were compressed beforehand.",
    location: &DIRECTIVES,
    phases: &[(Phase::Content, serve)],
    enabled: |location| location.confs.get::<Conf>().when != When::Off,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "gzip_static",
    syntax: "on | off | always",
    default: Some("off"),
    contexts: HTTP_SERVER_LOCATION,
    since: "0.1",
    doc: "Whether a file with the same name and `.gz` behind it is sent instead, to clients that take gzip (`on`) or \
          to all (`always`).",
    set: Setter::Word(&["off", "on", "always"], |c, i| {
        c.when = [When::Off, When::On, When::Always][i]
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    when: When,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum When {
    #[default]
    Off,
    /// For clients that take gzip.
    On,
    Always,
}

fn serve(request: &mut Request) -> Step<'_> {
    if !matches!(request.method, Method::Get | Method::Head) || request.uri.path.ends_with(b"/") {
        return Outcome::Declined.into();
    }
    let when = request.conf::<Conf>().when;
    let accepted = when == When::Always || gzip_accept::accepts(request);
    // With gzip_vary the file is looked for even for others: their response varies too if it exists.
    if !accepted && !gzip_accept::says_vary(request) {
        return Outcome::Declined.into();
    }
    let Some(mut path) = request.file_path() else {
        return Outcome::Status(500).into();
    };
    path.extend_from_slice(b".gz");
    match files::try_open(request, &path, Purpose::Read) {
        Some(found) => answer(request, &path, found, accepted).into(),
        None => Step::later(async move {
            let found = files::open_waiting(request, &path, Purpose::Read).await;
            answer(request, &path, found, accepted)
        }),
    }
}

fn answer(request: &mut Request, path: &[u8], found: Found, accepted: bool) -> Outcome {
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            // The plain file may still be there.
            if error.status() != 404 {
                files::refuse(request, path, error);
            }
            return Outcome::Declined;
        }
    };
    if request.conf::<Conf>().when == When::On {
        gzip_accept::varies(request);
        if !accepted {
            return Outcome::Declined;
        }
    }
    if found.is_directory() {
        return Outcome::Declined;
    }
    if !found.is_file() {
        let path = bstr::BStr::new(path);
        request.log(
            Level::Crit,
            format_args!("\"{path}\" is not a regular file"),
        );
        return Outcome::Status(404);
    }
    request
        .out
        .fields
        .push_known(Known::ContentEncoding, b"gzip");
    file_response::respond(request, found)
}
