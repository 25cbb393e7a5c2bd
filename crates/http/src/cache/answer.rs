//! Answers to clients: of what is stored, of what is being fetched, and of an exchange for one client alone.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cache::{Ended, Follower, Object, Part, Store};
use proto::Known;
use proto::caching::status::{CacheStatus, Forward, Outcome as Fate};

use super::ask::Ask;
use super::first_client::FirstClientSlot;
use super::head::{Kind, StoredHead};
use super::settings::StatusHeader;
use super::source::Source;
use super::status::Status;
use crate::body::{Body, BodyError, Chunk, FileRange};
use crate::module::Outcome;
use crate::request::Request;
use crate::upstream::respond::is_event_stream;
use crate::upstream::{Exchange, Plan, SettingsRef, respond};

/// The most bytes that are taken from a fetch at a time.
pub(super) const PIECE: usize = 64 * 1024;

impl From<cache::FileRange> for FileRange {
    fn from(range: cache::FileRange) -> FileRange {
        FileRange {
            file: range.file,
            offset: range.offset,
            length: range.len,
        }
    }
}

impl From<Part> for Chunk {
    fn from(part: Part) -> Chunk {
        match part {
            Part::Bytes(bytes) => Chunk::Bytes(bytes),
            Part::File(range) => Chunk::File(range.into()),
        }
    }
}

/// That the origin was asked, for `Cache-Status` (RFC 9211, section 2.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Forwarded {
    pub(super) why: Forward,
    /// By the fetch of another request.
    pub(super) is_collapsed: bool,
}

/// An answer out of the cache: stored content, or that of a fill.
pub(super) struct Answer<'a> {
    pub(super) now_ms: u64,
    pub(super) settings: &'a SettingsRef,
    pub(super) store: &'a Store,
    pub(super) source: &'static Source,
    pub(super) stored: &'a Arc<StoredHead>,
    pub(super) status: Status,
    /// `None`: the origin was not asked.
    pub(super) forwarded: Option<Forwarded>,
    pub(super) body: Body,
    /// The length of the whole content, if it is known.
    pub(super) length: Option<u64>,
}

impl Answer<'_> {
    /// Makes it the request's response.
    pub(super) fn send(self, request: &mut Request) -> Outcome {
        self.note(request);
        if self.stored.kind == Kind::Error {
            return Outcome::Status(self.stored.head.status);
        }
        if let Some(outcome) = self.copy_head(request) {
            return outcome;
        }
        if self.is_stored() {
            self.add_age(request);
        }
        self.add_cache_status(request);
        let out = &mut request.out;
        (out.content_length, out.body) = match self.stored.kind {
            Kind::HeadOnly => (respond::announced_length(&self.stored.head), Body::unsent()),
            Kind::Content | Kind::Error => (self.length, self.body),
        };
        Outcome::Respond
    }

    /// Nothing of it was on its way from the origin when the request came, or the origin said that it still holds.
    fn is_stored(&self) -> bool {
        self.forwarded.is_none() || self.status == Status::Revalidated
    }

    /// Leaves what variables and logs tell of it.
    fn note(&self, request: &mut Request) {
        let record = request.upstream.get_or_make();
        record.head = Arc::clone(&self.stored.head);
        record.cache = Some(self.status);
        record.cache_age_s = Some(self.stored.freshness.age_s(self.now_ms));
    }

    /// Copies the stored head, as that of an upstream's response is copied. An outcome takes the place of the response.
    fn copy_head(&self, request: &mut Request) -> Option<Outcome> {
        let (stored, settings) = (self.stored, &**self.settings);
        let mut plan: Option<Plan> = None;
        let source = self.source;
        // Only redirects and cookies need the protocol, and most responses have neither.
        let mut map = |request: &mut Request, field, value: &[u8], out: &mut Vec<u8>| {
            if plan.is_none() {
                plan = (source.plan)(request).ok();
            }
            plan.as_mut()
                .is_some_and(|plan| plan.protocol.map_field(request, field, value, out))
        };
        if let Some(outcome) = respond::instead(request, settings, &stored.head, &mut map) {
            make_ranges(request);
            return Some(outcome);
        }
        let buffering = respond::copy_head(request, settings, &stored.head, &mut map);
        request.delivery.head_waits = buffering.unwrap_or(settings.buffering)
            && matches!(self.body, Body::Stream(_))
            && !is_event_stream(request);
        let out = &mut request.out;
        out.reason.clone_from(&stored.reason);
        out.transforms.unannounced_length = !stored.head.fields.has(Known::ContentLength);
        // What is stored can be sent in any order, unless its origin refuses ranges. What comes just now may have a long way to
        // its last part: one part of it, as in nginx.
        out.transforms.single_range = !self.is_stored();
        let refused = stored.head.fields.get_known(Known::AcceptRanges);
        out.transforms.ranges = !refused.is_some_and(|value| value.eq_ignore_ascii_case(b"none"));
        make_ranges(request);
        None
    }

    /// `Age`, and the date that it counts from: the origin's, in place of this server's (RFC 9111, section 5.1).
    fn add_age(&self, request: &mut Request) {
        let mut text = Vec::new();
        let age_s = self.stored.freshness.age_s(self.now_ms);
        base::text::write_number(age_s.into(), &mut text);
        let fields = &mut request.out.fields;
        fields.set_known(Known::Age, &text);
        if let Some(date) = self.stored.head.fields.get_known(Known::Date) {
            fields.set_known(Known::Date, date);
        }
    }

    fn add_cache_status(&self, request: &mut Request) {
        let full = self.forwarded.is_some() && self.store.lacks_room(self.length);
        add_status_field(request, self.settings, |name| CacheStatus {
            name,
            outcome: match self.forwarded {
                None => Fate::Hit,
                Some(Forwarded { why, is_collapsed }) => Fate::Forwarded {
                    why,
                    status: Some(self.stored.head.status),
                    stored: !full,
                    collapsed: is_collapsed,
                },
            },
            ttl_s: Some(self.stored.freshness.ttl_s(self.now_ms)),
            detail: full.then_some("disk-full"),
        });
    }
}

/// Gives the response of an exchange to this client alone: nothing is stored.
pub(super) fn respond_unshared(
    request: &mut Request,
    settings: &SettingsRef,
    exchange: Box<Exchange>,
    status: Status,
) -> Outcome {
    let record = request.upstream.get_or_make();
    record.cache = Some(status);
    let code = record.head.status;
    let outcome = exchange.respond(request);
    // Conditions and ranges that the upstream did not hear of are judged here.
    request.out.transforms.unconditional &= request.state::<Ask>().is_none();
    request.out.transforms.single_range |= make_ranges(request);
    add_status_field(request, settings, |name| CacheStatus {
        name,
        outcome: Fate::Forwarded {
            why: why_forwarded(status),
            status: Some(code),
            stored: false,
            collapsed: false,
        },
        ttl_s: None,
        detail: None,
    });
    outcome
}

/// RFC 9211's word for nginx's.
pub(super) fn why_forwarded(status: Status) -> Forward {
    match status {
        Status::Bypass => Forward::Bypass,
        Status::Expired => Forward::Stale,
        Status::Miss | Status::Stale | Status::Updating | Status::Revalidated | Status::Hit => {
            Forward::UriMiss
        }
    }
}

/// Makes ranges of the response, if the origin says that it has any: then they are not its own, and where they are made it
/// is said again.
fn make_ranges(request: &mut Request) -> bool {
    let out = &mut request.out;
    let has_ranges = match out.fields.get_known(Known::AcceptRanges) {
        Some(value) if value.eq_ignore_ascii_case(b"none") => return false,
        value => value.is_some(),
    };
    out.fields.remove_known(Known::AcceptRanges);
    out.transforms.ranges |= has_ranges;
    has_ranges
}

/// Adds `Cache-Status`, if it is wanted.
fn add_status_field<'a>(
    request: &mut Request,
    settings: &'a SettingsRef,
    status: impl FnOnce(&'a str) -> CacheStatus<'a>,
) {
    if let StatusHeader::Named(name) = &settings.cache.status_header
        && let Ok(name) = std::str::from_utf8(name)
    {
        let write = |out: &mut Vec<u8>| status(name).write(out);
        request.out.fields.push_with(b"Cache-Status", write);
    }
}

/// The content of an object of which nothing is missing.
pub(super) fn body_of(object: &Object) -> Body {
    if let Some(bytes) = object.bytes() {
        return Body::bytes(bytes.clone());
    }
    let mut parts = std::collections::VecDeque::new();
    let (mut at, length) = (0, object.length());
    while at < length {
        let Some(range) = object.file_range(at) else {
            break;
        };
        at += range.len;
        parts.push_back(Chunk::File(range.into()));
    }
    Body::Parts(parts)
}

/// The content of a fill.
pub(super) struct Following {
    follower: Follower,
    /// For the client that began the fetch: what it knows of the exchange.
    first_client: Option<Rc<FirstClientSlot>>,
    length: Option<u64>,
}

impl Following {
    pub(super) fn new(
        follower: Follower,
        first_client: Option<Rc<FirstClientSlot>>,
        length: Option<u64>,
    ) -> Following {
        Following {
            follower,
            first_client,
            length,
        }
    }

    /// The body: plain bytes, or parts in order, if all of it is there already.
    pub(super) fn into_body(mut self, request: &mut Request) -> Body {
        let body = match self.follower.whole() {
            Some(bytes) => Body::bytes(bytes),
            None => match self.follower.clone().rest() {
                Some(parts) => Body::Parts(parts.into_iter().map(Chunk::from).collect()),
                None => return Body::stream(self),
            },
        };
        if let Some(first_client) = self.first_client.take() {
            first_client.update(request);
        }
        body
    }
}

impl crate::body::Source for Following {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        let next = ready!(self.follower.poll_part(context, PIECE));
        Poll::Ready(match next {
            Ok(Some(part)) => Some(Ok(part.into())),
            Ok(None) => {
                if let Some(first_client) = &self.first_client {
                    first_client.update(request);
                }
                None
            }
            Err(ended) => {
                if let Ended::Failed(why) = &ended
                    && self.first_client.is_none()
                {
                    request.error(format_args!(
                        "{why} while waiting for another request to fill the cache"
                    ));
                }
                Some(Err(BodyError::Producer))
            }
        })
    }

    fn length(&self) -> Option<u64> {
        self.length
            .map(|length| length.saturating_sub(self.follower.position()))
    }
}
