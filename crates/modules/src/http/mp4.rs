//! `mp4`: players of MP4 files may begin at a time, and end at one.
//!
//! ```nginx
//! location /video/ {
//!     mp4;
//!     mp4_max_buffer_size  10m;
//!     mp4_start_key_frame  on;
//! }
//! ```
//!
//! `?start=7.1&end=12` answers with a file of its own: the index of the original (its `moov` box) is read and cut to
//! these seconds ([`crop`]), and the part of the media data that it still names follows, by `sendfile` as ever. What is
//! kept in memory is the index, at most `mp4_max_buffer_size`.

mod boxes;
mod crop;

use std::collections::VecDeque;
use std::fmt;
use std::io;

use bstr::ByteSlice;
use bytes::Bytes;
use conf::{Arity, Directive, HTTP_SERVER_LOCATION, LOCATION, Repeat, Setter, Table};
use http::body::{Body, Chunk, FileRange};
use http::files::{self, Found, OpenFile, Purpose};
use http::{Module, Outcome, Phase, Request, Step};
use proto::h1::Method;
use rt::file::File;
use rt::pool::Pool;

use crate::shared::file_response;
use boxes::MAX_HEADER;
use crop::{Cropped, Wanted};

pub(crate) static MODULE: Module = Module {
    name: "mp4",
    doc: "Pseudo-streaming of MP4 files.",
    location: &DIRECTIVES,
    phases: &[(Phase::Content, serve)],
    enabled: |location| location.confs.get::<Conf>().on,
    nested: |confs| confs.change_if::<Conf>(|conf| conf.on, |conf| conf.on = false),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
    Directive {
        name: "mp4",
        syntax: "",
        default: None,
        contexts: LOCATION,
        since: "0.1",
        doc: "Serves MP4 files, from the second in `?start=` to the second in `?end=`.",
        set: Setter::Custom(Arity::NONE, Repeat::Many, |conf, _| {
            conf.on = true;
            Ok(())
        }),
    },
    Directive {
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

/// Boxes at the top of a file; one with more is no video.
const MAX_BOXES: usize = 4096;

/// A longer `ftyp` box is refused, in bytes: it lists some four-letter names.
const MAX_TYPE_BOX: u64 = 1024;

/// Why a part of a file can not be had.
enum Refusal {
    /// The file is not what it should be.
    Broken(String),
    Io(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Broken(why) => f.write_str(why),
            Refusal::Io(error) => write!(f, "read() failed {}", base::text::errno_text(error)),
        }
    }
}

impl From<crop::Broken> for Refusal {
    fn from(broken: crop::Broken) -> Refusal {
        Refusal::Broken(broken.0)
    }
}

fn serve(request: &mut Request) -> Step<'_> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Outcome::Status(405).into();
    }
    if request.uri.path.ends_with(b"/") {
        return Outcome::Declined.into();
    }
    Step::later(async move {
        let Some(path) = request.file_path() else {
            return Outcome::Status(500);
        };
        let found: Found = files::open(request, &path, Purpose::Read).await;
        match found {
            Err(error) => Outcome::Status(files::refuse(request, &path, error)),
            Ok(found) if !found.is_file() => Outcome::Declined,
            Ok(found) => answer(request, &path, found).await,
        }
    })
}

async fn answer(request: &mut Request, path: &[u8], found: OpenFile) -> Outcome {
    let part = match (wanted(request), found.file.clone()) {
        (Some(wanted), Some(file)) => match cut(request, &file, found.length(), wanted).await {
            Ok(part) => part.map(|part| (part, file)),
            Err(refusal) => {
                request.error(format_args!("\"{}\" mp4: {refusal}", path.as_bstr()));
                return Outcome::Status(500);
            }
        },
        _ => None,
    };
    let outcome = file_response::respond(request, found);
    if let Some((part, file)) = part {
        let length = part.data.end - part.data.start;
        let data = Chunk::File(FileRange {
            file,
            offset: part.data.start,
            length,
        });
        request.out.body =
            Body::Parts(VecDeque::from([Chunk::Bytes(Bytes::from(part.head)), data]));
        request.out.transforms.single_range = true;
    }
    outcome
}

/// The times that the arguments ask for.
fn wanted(request: &Request) -> Option<Wanted> {
    let time = |name: &[u8]| millis(proto::form::find(&request.uri.args, name)?);
    let start = time(b"start");
    let end = time(b"end").filter(|end| *end > 0);
    let start_ms = start.or(end.map(|_| 0))?;
    let length_ms = end
        .and_then(|end| end.checked_sub(start_ms))
        .filter(|length| *length > 0);
    let key_frame = request.conf::<Conf>().start_key_frame;
    Some(Wanted {
        start_ms,
        length_ms,
        key_frame,
    })
}

/// Seconds with any number of places, in milliseconds.
fn millis(text: &[u8]) -> Option<u64> {
    let (whole, places) = text.split_once_str(".").unwrap_or((text, b""));
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    if text.is_empty() || !digits(whole) || !digits(places) {
        return None;
    }
    let mut padded = places.to_vec();
    // Players send many places; the third is the last that counts.
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

/// Cuts a file. `None` when the whole file is what is wanted.
async fn cut(
    request: &mut Request,
    file: &File,
    length: u64,
    wanted: Wanted,
) -> Result<Option<Cropped>, Refusal> {
    let core = request.core();
    let pool = files::pool(request, &core.delivery.aio);
    let most = request.conf::<Conf>().max_buffer_size;
    let (mut types, mut index, mut data_end) = (Vec::new(), None, None);
    let mut at = 0;
    for _ in 0..MAX_BOXES {
        if at >= length {
            break;
        }
        let header = read(file, at, MAX_HEADER.min(length - at), &pool).await?;
        let found = boxes::header(&header, length - at).map_err(crop::Broken::from)?;
        let Some(found) = found else { break };
        let end = at + found.size;
        match &found.name {
            b"ftyp" if found.size > MAX_TYPE_BOX => {
                return Err(Refusal::Broken(format!(
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
                return Err(Refusal::Broken(why));
            }
            b"moov" => {
                // A whole file whose index comes first is as good as it is.
                if data_end.is_none() && wanted.start_ms == 0 && wanted.length_ms.is_none() {
                    return Ok(None);
                }
                let content = at + found.header;
                index = Some(read(file, content, end - content, &pool).await?);
            }
            b"mdat" => data_end = Some(end),
            _ => {}
        }
        at = end;
    }
    let missing = |name: &str| Refusal::Broken(format!("no mp4 {name} atom was found"));
    let (index, data_end) = (
        index.ok_or_else(|| missing("moov"))?,
        data_end.ok_or_else(|| missing("mdat"))?,
    );
    // An index of some megabytes takes some milliseconds.
    let cropped = pool
        .run(move || crop::crop(&types, &index, data_end, wanted))
        .await?;
    Ok(Some(cropped))
}

async fn read(file: &File, offset: u64, length: u64, pool: &Pool) -> Result<Vec<u8>, Refusal> {
    let length =
        usize::try_from(length).map_err(|_| Refusal::Broken("an atom is too large".to_owned()))?;
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        let before = data.len();
        let read = file
            .read_at(data, offset + before as u64, length - before, pool)
            .await;
        data = read.map_err(Refusal::Io)?;
        if data.len() == before {
            return Err(Refusal::Broken("the file is truncated".to_owned()));
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
