//! Precompressed files: what `gzip_static`, `brotli_static` and `zstd_static` share.

use host::error_log::LogLevel;
use http::files::{self, FilePurpose, OpenFileResult};
use http::{HandlerOutcome, HandlerStep, Request};
use proto::KnownField;
use proto::message::Method;

use crate::shared::{file_response, gzip_accept};

/// A coding and the names of its files.
pub(crate) struct PrecompressedCoding {
    /// As `Content-Encoding` names it.
    pub(crate) name: &'static [u8],
    /// Appended to the name of the uncompressed file.
    pub(crate) suffix: &'static [u8],
}

/// Which clients get the compressed file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StaticMode {
    #[default]
    Off,
    /// Clients that accept the coding.
    On,
    // All clients; useful with `gunzip`, or where only the compressed files exist.
    Always,
}

impl StaticMode {
    /// The words of the directives, in the order of [`StaticMode::from_index`].
    pub(crate) const WORDS: [&'static str; 3] = ["off", "on", "always"];

    /// The meaning of a word of [`StaticMode::WORDS`].
    pub(crate) fn from_index(index: usize) -> StaticMode {
        [StaticMode::Off, StaticMode::On, StaticMode::Always][index]
    }
}

/// Responds with the compressed file beside the requested one; declines if there is none, so that
/// the static module serves the other.
pub(crate) fn serve<'r>(
    request: &'r mut Request,
    coding: &'static PrecompressedCoding,
    when: StaticMode,
) -> HandlerStep<'r> {
    if !matches!(request.method, Method::Get | Method::Head) || request.uri.path.ends_with(b"/") {
        return HandlerOutcome::Declined.into();
    }
    let accepted = when == StaticMode::Always || gzip_accept::accepts_coding(request, coding.name);
    // With `gzip_vary` the file is looked up even for other clients: if it exists, their response
    // varies too.
    if !accepted && !gzip_accept::has_gzip_vary(request) {
        return HandlerOutcome::Declined.into();
    }
    let Some(mut path) = request.file_path() else {
        return HandlerOutcome::Status(500).into();
    };
    path.extend_from_slice(coding.suffix);
    let chosen = PrecompressedChoice {
        coding,
        mode: when,
        accepted,
    };
    match files::try_open(request, &path, FilePurpose::Read) {
        Some(found) => chosen.answer(request, &path, found).into(),
        None => HandlerStep::later(async move {
            let found = files::open_waiting(request, &path, FilePurpose::Read).await;
            chosen.answer(request, &path, found)
        }),
    }
}

/// The lookup of a compressed file for one request.
struct PrecompressedChoice {
    coding: &'static PrecompressedCoding,
    mode: StaticMode,
    accepted: bool,
}

impl PrecompressedChoice {
    /// Responds with the compressed file, if it exists and the client may get it.
    fn answer(&self, request: &mut Request, path: &[u8], found: OpenFileResult) -> HandlerOutcome {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                // The uncompressed file may exist nevertheless.
                if error.status() != 404 {
                    files::refuse_file(request, path, error);
                }
                return HandlerOutcome::Declined;
            }
        };
        // With `always` every client gets the same bytes, so nothing varies.
        if self.mode == StaticMode::On {
            gzip_accept::mark_varying(request);
            if !self.accepted {
                return HandlerOutcome::Declined;
            }
        }
        if found.is_directory() {
            return HandlerOutcome::Declined;
        }
        if !found.is_file() {
            let path = bstr::BStr::new(path);
            request.log(
                LogLevel::Crit,
                format_args!("\"{path}\" is not a regular file"),
            );
            return HandlerOutcome::Status(404);
        }
        request
            .out
            .fields
            .push_known(KnownField::ContentEncoding, self.coding.name);
        file_response::respond_with_file(request, found)
    }
}
