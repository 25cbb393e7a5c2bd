//! `flv`: lets players of Flash Video start in the middle of a file.
//!
//! ```nginx
//! location ~ \.flv$ { flv; }
//! ```
//!
//! `?start=N` responds with the file from byte N, preceded by a header that makes it a file of its
//! own.

use std::collections::VecDeque;

use bytes::Bytes;
use conf::{Arity, Directive, DirectiveTable, LOCATION, RepeatRule, Setter};
use http::files::{self, FilePurpose, OpenFileResult};
use http::module::ContentHandler;
use http::response_body::{BodyChunk, FileRange, ResponseBody};
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};
use proto::message::Method;

use crate::shared::file_response;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "flv",
    doc: "Pseudo-streaming of Flash Video files.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["flv"],
        when: |location| location.confs.get::<Conf>().on,
        handler: serve,
        adds_slash: false,
        declines: true,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.on, |conf| conf.on = false),
    explain: http::module::ModuleExplain::ServesFiles(""),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "flv",
    syntax: "",
    default: None,
    contexts: LOCATION,
    since: "0.1",
    doc: "Serves Flash Video files from the byte offset in `?start=`.",
    set: Setter::Custom(Arity::NONE, RepeatRule::Many, |conf, _| {
        conf.on = true;
        Ok(())
    }),
}]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
}

/// The header of such a file: signature, version 1, audio and video, its own length, and the length
/// of the tag before the first one, which is 0.
const HEADER: &[u8] = b"FLV\x01\x05\0\0\0\x09\0\0\0\0";

/// The content handler.
fn serve(request: &mut Request) -> HandlerStep<'_> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return HandlerOutcome::Status(405).into();
    }
    if request.uri.path.ends_with(b"/") {
        return HandlerOutcome::Declined.into();
    }
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

/// The response with a file, whole or from the requested byte.
fn answer(request: &mut Request, path: &[u8], found: OpenFileResult) -> HandlerOutcome {
    let found = match found {
        Ok(found) => found,
        Err(error) => return HandlerOutcome::Status(files::refuse_file(request, path, error)),
    };
    // The static handler redirects to a directory's path with a slash.
    if !found.is_file() {
        return HandlerOutcome::Declined;
    }
    let length = found.length();
    let file = found.file.clone();
    // First as for the whole file, which also provides type and validators.
    let outcome = file_response::respond_with_file(request, found);
    // A start outside the file yields the whole file, as in nginx.
    let start = start(&request.uri.args).filter(|start| (1..length).contains(start));
    if let (Some(start), Some(file)) = (start, file) {
        let rest = BodyChunk::File(FileRange {
            file,
            offset: start,
            length: length - start,
        });
        // What is sent has a length of its own, and so a tag of its own, as in nginx.
        if let (Some(modified), true) = (request.out.last_modified, request.core().etag) {
            let sent = HEADER.len() as u64 + length - start;
            proto::etag::write_file(modified, sent, request.out.new_etag());
        }
        request.out.body = ResponseBody::Parts(VecDeque::from([
            BodyChunk::Bytes(Bytes::from_static(HEADER)),
            rest,
        ]));
    }
    outcome
}

/// The value of the argument `start`.
fn start(args: &[u8]) -> Option<u64> {
    let value = proto::form::find(args, b"start")?;
    u64::try_from(conf::parse::number(value)?).ok()
}
