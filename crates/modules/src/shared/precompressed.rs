//! Files that were compressed beforehand: what `gzip_static`, `brotli_static` and `zstd_static` have in common.

use http::files::{self, Found, Purpose};
use http::{Outcome, Request, Step};
use proto::Known;
use proto::h1::Method;
use rt::error_log::Level;

use crate::shared::{file_response, gzip_accept};

/// A coding, and how its files are called.
pub(crate) struct Coding {
    /// As `Content-Encoding` names it.
    pub(crate) name: &'static [u8],
    /// What stands behind the name of the plain file.
    pub(crate) suffix: &'static [u8],
}

/// Who gets the compressed file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum When {
    #[default]
    Off,
    /// Clients that take the coding.
    On,
    Always,
}

impl When {
    /// The words of the directives, in the order of [`When::from_index`].
    pub(crate) const WORDS: [&'static str; 3] = ["off", "on", "always"];

    /// What a word of [`When::WORDS`] means.
    pub(crate) fn from_index(index: usize) -> When {
        [When::Off, When::On, When::Always][index]
    }
}

/// Answers with the compressed file beside the one that the request means; declines when there is none.
pub(crate) fn serve<'r>(request: &'r mut Request, coding: &'static Coding, when: When) -> Step<'r> {
    if !matches!(request.method, Method::Get | Method::Head) || request.uri.path.ends_with(b"/") {
        return Outcome::Declined.into();
    }
    let accepted = when == When::Always || gzip_accept::accepts_coding(request, coding.name);
    // With gzip_vary the file is looked for even for others: their response varies too if it exists.
    if !accepted && !gzip_accept::says_vary(request) {
        return Outcome::Declined.into();
    }
    let Some(mut path) = request.file_path() else {
        return Outcome::Status(500).into();
    };
    path.extend_from_slice(coding.suffix);
    let chosen = Chosen {
        coding,
        when,
        accepted,
    };
    match files::try_open(request, &path, Purpose::Read) {
        Some(found) => chosen.answer(request, &path, found).into(),
        None => Step::later(async move {
            let found = files::open_waiting(request, &path, Purpose::Read).await;
            chosen.answer(request, &path, found)
        }),
    }
}

struct Chosen {
    coding: &'static Coding,
    when: When,
    accepted: bool,
}

impl Chosen {
    fn answer(&self, request: &mut Request, path: &[u8], found: Found) -> Outcome {
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
        if self.when == When::On {
            gzip_accept::varies(request);
            if !self.accepted {
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
            .push_known(Known::ContentEncoding, self.coding.name);
        file_response::respond(request, found)
    }
}
