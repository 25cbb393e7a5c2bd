//! What a response is a copy of, and how its content is read once more, apart from the response.
//!
//! The response that asks first keeps its own body and never uses it: its client follows the copy like any other. So
//! nothing that happens to that request (a slow client, a disconnect, a reload) touches the reading here.

use std::future::poll_fn;
use std::io;

use bytes::Bytes;
use cache::{CachedObject, FillChunk, FillFollower, SegmentRange};
use http::content_identity::{ContentIdentity, FileIdentity, StoredContent};
use http::response::Response;
use http::response_body::{BodyError, ResponseBody};
use rt::file::File;
use rt::pool::PoolHandle;

use super::ContentVersion;

/// A content of which a copy may be kept.
pub(super) struct CopySource {
    pub(super) version: ContentVersion,
    /// Its length in bytes.
    pub(super) length: u64,
    pub(super) reader: SourceReader,
    /// The stored object that it is, beside which copies are stored.
    pub(super) stored: Option<StoredContent>,
}

/// Reads a content from its beginning.
pub(super) enum SourceReader {
    /// It is in memory; empty once it was read.
    Memory(Bytes),
    /// A file, and the position in it.
    File(File, FileIdentity, u64),
    /// A stored object, and the position in it.
    Object(CachedObject, u64),
    /// An object that is being stored, and the piece of a segment that is being read.
    Filling(FillFollower, Option<SegmentRange>),
}

impl CopySource {
    /// The source of a response; `None` if nothing of it may be kept: it was made for this client, or a filter has
    /// changed it, or it has changed too recently.
    pub(super) fn of(out: &Response) -> Option<CopySource> {
        match out.identity.as_deref()? {
            ContentIdentity::File(opened) => CopySource::of_file(*opened, &out.body),
            ContentIdentity::Object(stored) => {
                let length = stored.object.length();
                // All of it, and in memory or in segments: not what a filter has put in its place.
                if out.body.length() != Some(length) || matches!(out.body, ResponseBody::Stream(_))
                {
                    return None;
                }
                let object = &stored.object;
                let version = stored.store.identity(object.key(), object.born());
                Some(CopySource {
                    version: ContentVersion::Object(version),
                    length,
                    reader: match object.body_in_memory() {
                        Some(bytes) => SourceReader::Memory(bytes.clone()),
                        None => SourceReader::Object(object.clone(), 0),
                    },
                    stored: Some(stored.clone()),
                })
            }
            ContentIdentity::Filling(filling) => {
                let follower = &filling.follower;
                let version = filling.store.identity(&follower.key(), follower.born());
                Some(CopySource {
                    version: ContentVersion::Object(version),
                    // Without it nobody knows how much memory the copy needs.
                    length: follower.known_head()?.length?,
                    reader: match follower.whole_body() {
                        Some(bytes) => SourceReader::Memory(bytes),
                        None => SourceReader::Filling(follower.clone(), None),
                    },
                    stored: None,
                })
            }
        }
    }

    /// A file as it is now: `opened` may come from `open_file_cache` and be as old as that allows.
    fn of_file(opened: FileIdentity, body: &ResponseBody) -> Option<CopySource> {
        let (version, reader) = match body {
            // Content that the open file cache keeps was read from the version that it names, and was compared with the
            // open file not long ago: that is as late as an uncompressed response shows a change.
            ResponseBody::Bytes(bytes) => (opened, SourceReader::Memory(bytes.clone())),
            ResponseBody::File(range) if range.offset == 0 => {
                // Waits for nothing: the file is open.
                let now = FileIdentity::of(&range.file.metadata().ok()?);
                let file = range.file.clone();
                (now, SourceReader::File(file, now, 0))
            }
            _ => return None,
        };
        // Shorter than its head says, or longer: the response will break off, or be cut.
        let is_whole = body.length() == Some(version.length) && opened.inode == version.inode;
        (is_whole && version.is_quiet(rt::wall_millis())).then_some(CopySource {
            version: ContentVersion::File(version),
            length: version.length,
            reader,
            stored: None,
        })
    }
}

impl SourceReader {
    /// The whole content, if it is to be had without waiting.
    pub(super) fn try_whole(&self) -> Option<Bytes> {
        match self {
            SourceReader::Memory(bytes) => Some(bytes.clone()),
            SourceReader::File(file, identity, 0) if !file.is_direct() => {
                let (mut data, length) = (Vec::new(), usize::try_from(identity.length).ok()?);
                let read = file.try_read_into(&mut data, length, 0).ok()?;
                (read == length).then(|| data.into())
            }
            SourceReader::File(..) | SourceReader::Object(..) | SourceReader::Filling(..) => None,
        }
    }

    /// The next piece, at most `max` bytes; empty at the end.
    pub(super) async fn next(&mut self, max: usize, pool: &PoolHandle) -> Result<Bytes, BodyError> {
        match self {
            SourceReader::Memory(bytes) => Ok(bytes.split_to(bytes.len().min(max))),
            SourceReader::File(file, identity, position) => {
                let left = identity.length - *position;
                let want = usize::try_from(left).unwrap_or(max).min(max);
                let data = read_file(file, *position, want, pool).await?;
                if data.is_empty() && want > 0 {
                    return Err(BodyError::FileTruncated);
                }
                *position += data.len() as u64;
                Ok(data)
            }
            SourceReader::Object(object, position) => {
                let read = object.read(*position, max).await;
                let data = read.map_err(|error| BodyError::File(error.to_string()))?;
                *position += data.len() as u64;
                Ok(data)
            }
            SourceReader::Filling(follower, range) => {
                next_of_fill(follower, range, max, pool).await
            }
        }
    }

    /// Whether the source still is what it was when the reading began.
    pub(super) fn is_unchanged(&self) -> bool {
        match self {
            SourceReader::File(file, identity, _) => {
                let now = file.metadata();
                now.is_ok_and(|now| FileIdentity::of(&now) == *identity)
            }
            // Bytes in memory do not change, and stored objects are verified as they are read.
            SourceReader::Memory(_) | SourceReader::Object(..) | SourceReader::Filling(..) => true,
        }
    }
}

/// The next piece of an object that is being stored.
async fn next_of_fill(
    follower: &mut FillFollower,
    range: &mut Option<SegmentRange>,
    max: usize,
    pool: &PoolHandle,
) -> Result<Bytes, BodyError> {
    if range.is_none() {
        let part = poll_fn(|context| follower.poll_part(context, max)).await;
        match part.map_err(|_ended| BodyError::Producer)? {
            None => return Ok(Bytes::new()),
            Some(FillChunk::Bytes(bytes)) => return Ok(bytes),
            Some(FillChunk::File(found)) => *range = Some(found),
        }
    }
    let Some(found) = range else {
        return Ok(Bytes::new());
    };
    let want = usize::try_from(found.len).unwrap_or(max).min(max);
    let data = read_file(&found.file, found.offset, want, pool).await?;
    if data.is_empty() {
        return Err(BodyError::FileTruncated);
    }
    found.offset += data.len() as u64;
    found.len -= data.len() as u64;
    if found.len == 0 {
        *range = None;
    }
    Ok(data)
}

async fn read_file(
    file: &File,
    offset: u64,
    want: usize,
    pool: &PoolHandle,
) -> Result<Bytes, BodyError> {
    let read: io::Result<Vec<u8>> = file.read_at(Vec::new(), offset, want, pool).await;
    read.map(Bytes::from)
        .map_err(|error| BodyError::File(base::text::errno_text(&error)))
}
