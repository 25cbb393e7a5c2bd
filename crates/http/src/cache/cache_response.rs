//! Responses to clients: from a stored object, from a fill, and from an exchange for one client alone.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use cache::{CacheStore, CachedObject, FillChunk, FillFollower, FollowError};
use proto::KnownField;
use proto::caching::status::{CacheOutcome as Fate, CacheStatus, ForwardReason};

use super::cache_settings::StatusHeader;
use super::cache_status::UpstreamCacheStatus;
use super::cached_protocol::CachedProtocol;
use super::fetch_fields::FetchFields;
use super::first_client::FirstClientSlot;
use super::stored_head::{StoredHead, StoredKind};
use crate::cluster::{ObjectField, RESPONSE_FIELD, is_of_member};
use crate::content_identity::{ContentIdentity, FillingContent, StoredContent};
use crate::ledger::LedgerPhase;
use crate::module::HandlerOutcome;
use crate::request::Request;
use crate::response_body::{BodyChunk, BodyError, EndWork, FileRange, ResponseBody};
use crate::upstream::respond::is_event_stream;
use crate::upstream::{Exchange, ExchangePlan, SettingsRef, respond};

/// The maximum number of bytes that are taken from a fill at a time.
pub(super) const PIECE: usize = 64 * 1024;

impl From<cache::SegmentRange> for FileRange {
    fn from(range: cache::SegmentRange) -> FileRange {
        FileRange {
            file: range.file,
            offset: range.offset,
            length: range.len,
        }
    }
}

impl From<FillChunk> for BodyChunk {
    fn from(part: FillChunk) -> BodyChunk {
        match part {
            FillChunk::Bytes(bytes) => BodyChunk::Bytes(bytes),
            FillChunk::File(range) => BodyChunk::File(range.into()),
        }
    }
}

/// That and why the origin was asked, for `Cache-Status` (RFC 9211, section 2.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardStatus {
    pub(super) why: ForwardReason,
    /// By another request's fetch.
    pub(super) is_collapsed: bool,
}

/// A response from the cache: a stored body, or that of a fill.
pub(super) struct CacheResponse<'a> {
    pub(super) now_ms: u64,
    pub(super) settings: &'a SettingsRef,
    pub(super) store: &'a CacheStore,
    pub(super) source: &'static CachedProtocol,
    pub(super) stored: &'a Arc<StoredHead>,
    pub(super) status: UpstreamCacheStatus,
    /// `None`: the origin was not asked.
    pub(super) forwarded: Option<ForwardStatus>,
    pub(super) body: ResponseBody,
    /// The length of the whole body, if known.
    pub(super) length: Option<u64>,
    /// What `body` is the whole of, where a filter asks: [`identity_of`], [`identity_of_fill`].
    pub(super) identity: Option<ContentIdentity>,
}

impl CacheResponse<'_> {
    /// Turns it into the request's response.
    pub(super) fn set_response(self, request: &mut Request) -> HandlerOutcome {
        self.note(request);
        if self.stored.kind == StoredKind::Error {
            return HandlerOutcome::Status(self.stored.head.status);
        }
        if is_of_member(request) {
            self.copy_head_for_member(request);
            self.allow_ranges(request);
        } else if let Some(outcome) = self.copy_head(request) {
            return outcome;
        } else {
            if self.is_stored() || self.has_aged() {
                self.add_age(request);
            }
            self.add_cache_status(request);
        }
        let out = &mut request.out;
        (out.content_length, out.body) = match self.stored.kind {
            StoredKind::HeadOnly => (
                respond::announced_length(&self.stored.head),
                ResponseBody::unsent(),
            ),
            StoredKind::Content | StoredKind::Error => {
                // What is served because the origin fails goes out as with nginx, compressed as it goes and without a length.
                let is_stale = self.status == UpstreamCacheStatus::Stale;
                out.identity = self.identity.filter(|_| !is_stale).map(Box::new);
                (self.length, self.body)
            }
        };
        HandlerOutcome::Respond
    }

    /// Nothing of it was on its way from the origin when the request came, or the origin said that it still holds.
    fn is_stored(&self) -> bool {
        self.forwarded.is_none() || self.status == UpstreamCacheStatus::Revalidated
    }

    /// Its head was there for a while when this request came, which joined its fill: a recipient must not take it for as
    /// fresh as it was then (RFC 9111, section 5.1).
    fn has_aged(&self) -> bool {
        self.stored.freshness.has_aged(self.now_ms)
    }

    /// Leaves what variables and logs tell of it.
    fn note(&self, request: &mut Request) {
        // `$upstream_http_…` show the stored head, as in nginx.
        let record = request.upstream.get_or_make();
        record.head = Arc::clone(&self.stored.head);
        record.cache = Some(self.status);
        record.cache_age_s = Some(self.stored.freshness.age_s(self.now_ms));
    }

    /// Copies the stored head, as that of an upstream's response is copied. An outcome takes the place of the response.
    fn copy_head(&self, request: &mut Request) -> Option<HandlerOutcome> {
        let (stored, settings) = (self.stored, &**self.settings);
        let mut plan: Option<ExchangePlan> = None;
        let source = self.source;
        // The protocol is needed only to rewrite redirects and cookies. Most responses have neither, and a hit should
        // not evaluate the upstream's address.
        let mut map = |request: &mut Request, field, value: &[u8], out: &mut Vec<u8>| {
            if plan.is_none() {
                plan = (source.plan)(request).ok();
            }
            plan.as_mut()
                .is_some_and(|plan| plan.protocol.map_field(request, field, value, out))
        };
        // `X-Accel-Redirect` and `error_page` with `…_intercept_errors` replace the response.
        if let Some(outcome) = respond::respond_instead(request, settings, &stored.head, &mut map) {
            make_ranges(request);
            return Some(outcome);
        }
        let buffering = respond::copy_head(request, settings, &stored.head, &mut map);
        // A body that is on its way may have its head sent together with the first bytes; an event stream must not wait
        // for them.
        request.delivery.head_waits = buffering.unwrap_or(settings.buffering)
            && matches!(self.body, ResponseBody::Stream(_))
            && !is_event_stream(request);
        let out = &mut request.out;
        out.reason.clone_from(&stored.reason);
        // What depends on a response's length, such as `gzip_min_length`, must not differ between a hit and a miss.
        out.transforms.unannounced_length = !stored.head.fields.has(KnownField::ContentLength);
        self.allow_ranges(request);
        None
    }

    fn allow_ranges(&self, request: &mut Request) {
        let (stored, out) = (self.stored, &mut request.out);
        // A stored body can be sent in any order, unless the origin refuses ranges. A body that is still arriving may
        // be far from its last part, so as in nginx several ranges are not served from it.
        out.transforms.single_range = !self.is_stored();
        let refused = stored.head.fields.get_known(KnownField::AcceptRanges);
        out.transforms.ranges = !refused.is_some_and(|value| value.eq_ignore_ascii_case(b"none"));
        make_ranges(request);
    }

    /// `Age`, and the date that it counts from: the origin's, in place of this server's (RFC 9111, section 5.1).
    fn add_age(&self, request: &mut Request) {
        let age_s = self.stored.freshness.age_s(self.now_ms);
        let fields = &mut request.out.fields;
        // That of the stored head, which counted from the origin.
        fields.remove_known(KnownField::Age);
        fields.push_known_with(KnownField::Age, |out| {
            base::text::write_number(age_s.into(), out)
        });
        if let Some(date) = self.stored.head.fields.get_known(KnownField::Date) {
            fields.set_known(KnownField::Date, date);
        }
    }

    fn add_cache_status(&self, request: &mut Request) {
        // `Cache-Status` shows a full disk: the response is passed on, but not stored.
        let full = self.forwarded.is_some() && self.store.lacks_room(self.length);
        if full {
            let record = request.upstream.get_or_make();
            record.add_cache_reason("disk full", None);
        }
        let reason = reason_of(request, self.settings);
        add_status_field(request, self.settings, |name| CacheStatus {
            name,
            outcome: match self.forwarded {
                None => Fate::Hit,
                Some(ForwardStatus { why, is_collapsed }) => Fate::Forwarded {
                    why,
                    status: Some(self.stored.head.status),
                    stored: !full,
                    collapsed: is_collapsed,
                },
            },
            ttl_s: Some(self.stored.freshness.ttl_s(self.now_ms)),
            detail: reason.as_deref(),
        });
    }
}

/// Whether a filter of the request's location asks what the content is.
fn identifies_content(request: &Request) -> bool {
    let location = request.site.location(request.location);
    location.pipeline.identifies_content
}

/// The identity of a complete object's body, where a filter asks.
pub(super) fn identity_of(
    request: &Request,
    store: &CacheStore,
    object: &CachedObject,
) -> Option<ContentIdentity> {
    identifies_content(request).then(|| {
        ContentIdentity::Object(StoredContent {
            store: store.clone(),
            object: object.clone(),
        })
    })
}

/// The identity of the body of a fill that brings all of it, where a filter asks.
pub(super) fn identity_of_fill(
    request: &Request,
    store: &CacheStore,
    follower: &FillFollower,
) -> Option<ContentIdentity> {
    let is_whole = identifies_content(request) && follower.partial_range().is_none();
    is_whole.then(|| {
        ContentIdentity::Filling(FillingContent {
            store: store.clone(),
            follower: follower.clone(),
        })
    })
}

/// Answers this client alone with the response of an exchange; nothing is stored.
pub(super) fn respond_unshared(
    request: &mut Request,
    settings: &SettingsRef,
    exchange: Box<Exchange>,
    status: UpstreamCacheStatus,
) -> HandlerOutcome {
    let record = request.upstream.get_or_make();
    record.cache = Some(status);
    let code = record.head.status;
    let reason = reason_of(request, settings);
    if is_of_member(request) {
        let mut field = Vec::new();
        ObjectField::Private.write(&mut field);
        return exchange.respond_to_member(request, (RESPONSE_FIELD, &field));
    }
    let outcome = exchange.respond(request);
    // If the fetch replaced the client's conditions and range, the origin has not judged them, so it is done here.
    request.out.transforms.unconditional &= request.state::<FetchFields>().is_none();
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
        detail: reason.as_deref(),
    });
    outcome
}

/// Why the cache did less than it could, where `Cache-Status` is sent.
fn reason_of(request: &Request, settings: &SettingsRef) -> Option<String> {
    let StatusHeader::Named(_) = &settings.cache.status_header else {
        return None;
    };
    let reason = &request.upstream.get()?.cache_reason;
    (!reason.is_empty()).then(|| reason.clone())
}

/// The reason for forwarding in RFC 9211's terms.
pub(super) fn why_forwarded(status: UpstreamCacheStatus) -> ForwardReason {
    match status {
        UpstreamCacheStatus::Bypass => ForwardReason::Bypass,
        UpstreamCacheStatus::Expired => ForwardReason::Stale,
        UpstreamCacheStatus::Miss
        | UpstreamCacheStatus::Stale
        | UpstreamCacheStatus::Updating
        | UpstreamCacheStatus::Revalidated
        | UpstreamCacheStatus::Hit => ForwardReason::UriMiss,
    }
}

/// Lets ranges be cut out of the response if the origin supports them. Its own `Accept-Ranges` is removed, and the
/// filter that cuts the ranges adds it again.
fn make_ranges(request: &mut Request) -> bool {
    let out = &mut request.out;
    let has_ranges = match out.fields.get_known(KnownField::AcceptRanges) {
        Some(value) if value.eq_ignore_ascii_case(b"none") => return false,
        value => value.is_some(),
    };
    out.fields.remove_known(KnownField::AcceptRanges);
    out.transforms.ranges |= has_ranges;
    has_ranges
}

/// Adds `Cache-Status` if `…_cache_status` asks for it.
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

/// The body of a complete object.
pub(super) fn body_of(object: &CachedObject) -> ResponseBody {
    // Small objects are in memory, and leave in the same write as the head. Others are ranges of segments, for
    // `sendfile`.
    if let Some(bytes) = object.body_in_memory() {
        return ResponseBody::bytes(bytes.clone());
    }
    let mut parts = std::collections::VecDeque::new();
    let (mut at, length) = (0, object.length());
    while at < length {
        let Some(range) = object.file_range(at) else {
            break;
        };
        at += range.len;
        parts.push_back(BodyChunk::File(range.into()));
    }
    ResponseBody::Parts(parts)
}

/// The body of a fill.
pub(super) struct FillBody {
    follower: FillFollower,
    /// For the client that started the fetch: its record is updated at the end.
    first_client: Option<Rc<FirstClientSlot>>,
    length: Option<u64>,
}

impl FillBody {
    pub(super) fn new(
        follower: FillFollower,
        first_client: Option<Rc<FirstClientSlot>>,
        length: Option<u64>,
    ) -> FillBody {
        FillBody {
            follower,
            first_client,
            length,
        }
    }

    /// The response's body. If the fill is complete, it is plain bytes or a list of parts, which filters and the sender
    /// handle faster than a stream.
    pub(super) fn into_body(mut self, request: &mut Request) -> ResponseBody {
        let body = match self.follower.whole_body() {
            Some(bytes) => ResponseBody::bytes(bytes),
            None => match self.follower.clone().remaining_chunks() {
                Some(parts) => {
                    ResponseBody::Parts(parts.into_iter().map(BodyChunk::from).collect())
                }
                None => return ResponseBody::stream(self),
            },
        };
        if let Some(first_client) = self.first_client.take() {
            first_client.update_record(request);
        }
        body
    }
}

impl crate::response_body::BodySource for FillBody {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        let Poll::Ready(next) = self.follower.poll_part(context, PIECE) else {
            // For the client of the fetch itself this is a wait for the origin's content.
            if self.first_client.is_none() {
                request.ledger.enter(LedgerPhase::Fill);
            }
            return Poll::Pending;
        };
        Poll::Ready(match next {
            Ok(Some(part)) => Some(Ok(part.into())),
            Ok(None) => {
                if let Some(first_client) = &self.first_client {
                    first_client.update_record(request);
                }
                None
            }
            Err(ended) => {
                // The client that started the fetch has the cause in its log already, from the exchange itself.
                if let FollowError::Failed(why) = &ended
                    && self.first_client.is_none()
                {
                    request.log_while(
                        host::error_log::LogLevel::Error,
                        "waiting for another request to fill the cache",
                        format_args!("{why}"),
                    );
                }
                Some(Err(BodyError::Producer))
            }
        })
    }

    fn length(&self) -> Option<u64> {
        self.length
            .map(|length| length.saturating_sub(self.follower.position()))
    }

    /// The fetch has ended when what was made of its content has, so that the record is complete then.
    fn read_elsewhere(self: Box<Self>) -> Option<EndWork> {
        let first_client = self.first_client?;
        Some(Box::new(move |request| first_client.update_record(request)))
    }
}
