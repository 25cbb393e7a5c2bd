//! `mp4`: lets players of MP4 files start, and end, at a given time.
//!
//! ```nginx
//! location /video/ {
//!     mp4;
//!     mp4_max_buffer_size  10m;
//!     mp4_start_key_frame  on;
//! }
//! ```
//!
//! `?start=7.1&end=12` responds with a complete file: the index of the original (its `moov` box) is
//! read and cropped to these seconds ([`crop`]), followed by the part of the media data that it
//! still refers to, by `sendfile` as usual. Only the index is kept in memory, at most
//! `mp4_max_buffer_size`.

mod boxes;
mod crop;
mod headers;
mod track;

use std::collections::VecDeque;
use std::fmt;
use std::io;

use bstr::ByteSlice;
use bytes::Bytes;
use conf::{Arity, Directive, DirectiveTable, HTTP_SERVER_LOCATION, LOCATION, RepeatRule, Setter};
use http::files::{self, FilePurpose, OpenFile, OpenFileResult};
use http::module::ContentHandler;
use http::response_body::{BodyChunk, FileRange, ResponseBody};
use http::{HandlerOutcome, HandlerStep, HttpModule, Request};
use proto::message::Method;
use rt::file::File;
use rt::pool::PoolHandle;

use crate::shared::file_response;
use boxes::MAX_HEADER;
use crop::CroppedFile;
use headers::{CropError, CropTimes};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "mp4",
    doc: "Pseudo-streaming of MP4 files.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["mp4"],
        when: |location| location.confs.get::<Conf>().on,
        handler: serve,
        adds_slash: false,
        declines: true,
    }),
    nested: |confs| confs.change_if::<Conf>(|conf| conf.on, |conf| conf.on = false),
    explain: http::module::ModuleExplain::ServesFiles(""),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "mp4",
        syntax: "",
        default: None,
        contexts: LOCATION,
        since: "0.1",
        doc: "Serves MP4 files, from the second in `?start=` to the second in `?end=`.",
        set: Setter::Custom(Arity::NONE, RepeatRule::Many, |conf, _| {
            conf.on = true;
            Ok(())
        }),
    },
    Directive {
        // nginx's initial buffer for the index, which is read here at its full size at once.
        name: "mp4_buffer_size",
        syntax: "size",
        default: Some("512k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted for compatibility.",
        set: Setter::Ignored(
            Arity::ONE,
            "the index is read at once, into as much memory as it needs",
        ),
    },
    Directive {
        name: "mp4_max_buffer_size",
        syntax: "size",
        default: Some("10m"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum size of an index; seeking in a file with a larger one gets 500.",
        set: Setter::Size(|c| &mut c.max_buffer_size),
    },
    Directive {
        // Off as in nginx. Otherwise players show nothing until the next key frame.
        name: "mp4_start_key_frame",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to start with a key frame; players that support edit lists hide what precedes the requested \
              time.",
        set: Setter::Flag(|c| &mut c.start_key_frame),
    },
]);

#[derive(Clone, Debug, Default)]
struct Conf {
    on: bool,
    max_buffer_size: u64,
    start_key_frame: bool,
}

/// The maximum number of top-level boxes; a real video has a few.
const MAX_BOXES: usize = 4096;

/// The maximum size of an `ftyp` box, in bytes: it lists some four-letter names.
const MAX_TYPE_BOX: u64 = 1024;

/// Why a part of a file cannot be served.
enum Mp4Error {
    /// The file is not a valid MP4 file.
    Invalid(String),
    Io(io::Error),
}

impl fmt::Display for Mp4Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mp4Error::Invalid(why) => f.write_str(why),
            Mp4Error::Io(error) => write!(f, "read() failed {}", base::text::errno_text(error)),
        }
    }
}

impl From<CropError> for Mp4Error {
    fn from(broken: CropError) -> Mp4Error {
        Mp4Error::Invalid(broken.0)
    }
}

/// The content handler.
fn serve(request: &mut Request) -> HandlerStep<'_> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return HandlerOutcome::Status(405).into();
    }
    if request.uri.path.ends_with(b"/") {
        return HandlerOutcome::Declined.into();
    }
    HandlerStep::later(async move {
        let Some(path) = request.file_path() else {
            return HandlerOutcome::Status(500);
        };
        let found: OpenFileResult =
            files::open_request_file(request, &path, FilePurpose::Read).await;
        match found {
            Err(error) => HandlerOutcome::Status(files::refuse_file(request, &path, error)),
            // A directory is redirected by the static handler.
            Ok(found) if !found.is_file() => HandlerOutcome::Declined,
            Ok(found) => answer(request, &path, found).await,
        }
    })
}

/// The response with a file or a part of it.
async fn answer(request: &mut Request, path: &[u8], found: OpenFile) -> HandlerOutcome {
    let part = match (requested_times(request), found.file.clone()) {
        (Some(wanted), Some(file)) => match crop_file(request, &file, found.length(), wanted).await
        {
            Ok(part) => part.map(|part| (part, file)),
            Err(refusal) => {
                request.error(format_args!("\"{}\" mp4: {refusal}", path.as_bstr()));
                return HandlerOutcome::Status(500);
            }
        },
        _ => None,
    };
    // The validators are those of the whole file, as in nginx.
    let outcome = file_response::respond_with_file(request, found);
    if let Some((part, file)) = part {
        let length = part.data.end - part.data.start;
        // What is sent has a length of its own, and so a tag of its own, as in nginx.
        if let (Some(modified), true) = (request.out.last_modified, request.core().etag) {
            let sent = part.head.len() as u64 + length;
            proto::etag::write_file(modified, sent, request.out.new_etag());
        }
        let data = BodyChunk::File(FileRange {
            file,
            offset: part.data.start,
            length,
        });
        request.out.body = ResponseBody::Parts(VecDeque::from([
            BodyChunk::Bytes(Bytes::from(part.head)),
            data,
        ]));
        // The body consists of two parts; several ranges of it would be a multipart of fragments.
        request.out.transforms.single_range = true;
    }
    outcome
}

/// The times that the arguments request. An invalid one counts as absent, as in nginx.
fn requested_times(request: &Request) -> Option<CropTimes> {
    let time = |name: &[u8]| millis(proto::form::find(&request.uri.args, name)?);
    let start = time(b"start");
    // nginx ignores an end of 0.
    let end = time(b"end").filter(|end| *end > 0);
    // `end` alone means from the beginning.
    let start_ms = start.or(end.map(|_| 0))?;
    let length_ms = end
        .and_then(|end| end.checked_sub(start_ms))
        .filter(|length| *length > 0);
    let key_frame = request.conf::<Conf>().start_key_frame;
    Some(CropTimes {
        start_ms,
        length_ms,
        key_frame,
    })
}

/// Parses seconds with any number of decimals, as milliseconds.
fn millis(text: &[u8]) -> Option<u64> {
    let (whole, places) = text.split_once_str(".").unwrap_or((text, b""));
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    if text.is_empty() || !digits(whole) || !digits(places) {
        return None;
    }
    let mut padded = places.to_vec();
    // Players send many decimals; only three of them count.
    padded.resize(3, b'0');
    let number = |text: &[u8]| {
        if text.is_empty() {
            Some(0)
        } else {
            u64::try_from(conf::parse::number(text)?).ok()
        }
    };
    number(whole)?
        .checked_mul(1000)?
        .checked_add(number(&padded)?)
}

/// Crops a file. `None` if the whole file is requested.
async fn crop_file(
    request: &mut Request,
    file: &File,
    length: u64,
    wanted: CropTimes,
) -> Result<Option<CroppedFile>, Mp4Error> {
    let core = request.core();
    let pool = files::file_pool(request, &core.delivery.aio);
    let most = request.conf::<Conf>().max_buffer_size;
    let (mut types, mut index, mut data_end) = (Vec::new(), None, None);
    let mut at = 0;
    for _ in 0..MAX_BOXES {
        if at >= length {
            break;
        }
        // Only headers are read here; the media data, most of the file, is skipped.
        let header = read(file, at, MAX_HEADER.min(length - at), &pool).await?;
        let found = boxes::header(&header, length - at).map_err(CropError::from)?;
        // A box of size 0 extends to the end of the file.
        let Some(found) = found else { break };
        let end = at + found.size;
        match &found.name {
            b"ftyp" if found.size > MAX_TYPE_BOX => {
                return Err(Mp4Error::Invalid(format!(
                    "ftyp atom is too large: {}",
                    found.size
                )));
            }
            b"ftyp" => types = read(file, at, found.size, &pool).await?,
            b"moov" if found.size > most => {
                let size = found.size;
                let why = format!(
                    "moov atom is too large: {size}, you may want to increase mp4_max_buffer_size"
                );
                return Err(Mp4Error::Invalid(why));
            }
            b"moov" => {
                // A whole file with its index in front can be served as it is. One with the index
                // at the end is rearranged, so that players can start at once.
                if data_end.is_none() && wanted.start_ms == 0 && wanted.length_ms.is_none() {
                    return Ok(None);
                }
                let content = at + found.header;
                index = Some(read(file, content, end - content, &pool).await?);
            }
            // The last one, should there be several.
            b"mdat" => data_end = Some(end),
            _ => {}
        }
        at = end;
    }
    let missing = |name: &str| Mp4Error::Invalid(format!("no mp4 {name} atom was found"));
    let (index, data_end) = (
        index.ok_or_else(|| missing("moov"))?,
        data_end.ok_or_else(|| missing("mdat"))?,
    );
    // Cropping an index of some megabytes takes milliseconds.
    let cropped = pool
        .run(move || crop::crop(&types, &index, data_end, wanted))
        .await?;
    Ok(Some(cropped))
}

/// Reads a range of the file completely. `length` has been checked against a limit.
async fn read(
    file: &File,
    offset: u64,
    length: u64,
    pool: &PoolHandle,
) -> Result<Vec<u8>, Mp4Error> {
    let length = usize::try_from(length)
        .map_err(|_| Mp4Error::Invalid("an atom is too large".to_owned()))?;
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        let before = data.len();
        let read = file
            .read_at(data, offset + before as u64, length - before, pool)
            .await;
        data = read.map_err(Mp4Error::Io)?;
        if data.len() == before {
            return Err(Mp4Error::Invalid("the file is truncated".to_owned()));
        }
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_any_number_of_places() {
        assert_eq!(millis(b"7.1"), Some(7100));
        assert_eq!(millis(b"12"), Some(12_000));
        assert_eq!(millis(b".5"), Some(500));
        assert_eq!(millis(b"1.23456789012345678901234"), Some(1234));
        for wrong in [&b""[..], b"-1", b"1.2.3", b"x", b"1s"] {
            assert_eq!(millis(wrong), None, "{wrong:?}");
        }
    }
}
