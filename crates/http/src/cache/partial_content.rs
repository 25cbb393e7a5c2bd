//! A partial object: its fetch broke off, or only a range was fetched. What is stored is served from the store. What is
//! missing and wanted is fetched alone with `Range` and `If-Range` (RFC 9110, section 13.1.5), and then stored as well.
//!
//! The first missing part is fetched before the response begins: if the origin has a new version, the client simply
//! gets that. Further parts are fetched when the client reaches them. If the version has changed by then, the response
//! is cut off in a way that the client can detect, since two versions must never be joined.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cache::{CachedObject, FillCoverage, FillFollower, FillStart, LookupResult, WantedFill};
use proto::KnownField;
use proto::message::Method;
use proto::range::SelectedRanges;

use super::cache_response::{CacheResponse, ForwardStatus, PIECE};
use super::cache_status::UpstreamCacheStatus;
use super::decide::{MissingContent, may_join};
use super::fetch::{CacheFetch, MissingPart};
use super::fetch_fields::FetchFields;
use super::first_client::FirstClientSlot;
use super::lookup::{COMMIT_WAIT, CacheRequest, StorageKey};
use super::ranges::{one_range, strong_validator, wanted_part, wanted_ranges};
use super::stored_head::{StoredHead, StoredKind};
use super::storing;
use crate::module::HandlerOutcome;
use crate::request::Request;
use crate::response_body::{BodyChunk, BodyError, ResponseBody};

/// An object with more stored pieces than this in the wanted range is fetched anew: each hole costs a request to the
/// origin.
const HOLES_MAX: usize = 16;

/// The body of a response, of which a part is stored and a part may be on its way.
pub(super) struct PartialContent {
    cache_request: Box<CacheRequest>,
    /// What is stored; `None` while only a fetched part is known.
    object: Option<CachedObject>,
    pub(super) stored: Arc<StoredHead>,
    pub(super) at: StorageKey,
    /// The version that all parts belong to. 0 means that there is no strong validator: then there is exactly one part,
    /// and nothing may be added to it (RFC 9110, section 15.3.7.3).
    pub(super) version: u64,
    /// The length of the whole body.
    length: u64,
    /// The next byte for the client, and the end of the range that it gets.
    position: u64,
    end: u64,
    pub(super) fetched: Option<FetchedPart>,
    /// A lookup in progress, after the store has changed.
    looking: Option<Pin<Box<dyn Future<Output = LookupResult>>>>,
}

/// Why a part cannot be fetched.
pub(super) enum PartRefusal {
    /// The store has another object, or more of this one.
    Changed,
    /// Responses of the key are remembered as not shareable.
    HitForMiss,
    /// A member asks, and this fill waits for another member.
    FedElsewhere(FillFollower),
}

/// A part that is being fetched.
pub(super) struct FetchedPart {
    pub(super) follower: FillFollower,
    /// For the client that started the fetch.
    pub(super) first_client: Option<Rc<FirstClientSlot>>,
    /// Its first byte.
    pub(super) begin: u64,
}

impl PartialContent {
    /// A stored object with holes.
    pub(super) fn of_object(
        cache_request: &CacheRequest,
        object: CachedObject,
        stored: Arc<StoredHead>,
        at: StorageKey,
    ) -> PartialContent {
        PartialContent {
            cache_request: Box::new(cache_request.clone()),
            position: 0,
            length: object.length(),
            end: object.length(),
            version: object.head().meta.version,
            object: Some(object),
            stored,
            at,
            fetched: None,
            looking: None,
        }
    }

    /// A part that is being fetched, of a body of `length` bytes of which nothing usable is stored.
    pub(super) fn of_fetch(
        cache_request: &CacheRequest,
        fetched: FetchedPart,
        stored: Arc<StoredHead>,
        at: StorageKey,
        (length, version): (u64, u64),
    ) -> PartialContent {
        PartialContent {
            cache_request: Box::new(cache_request.clone()),
            position: 0,
            length,
            end: length,
            version,
            object: None,
            stored,
            at,
            fetched: Some(fetched),
            looking: None,
        }
    }

    /// What is missing for this request.
    pub(super) fn missing_content(&self, request: &Request) -> MissingContent {
        // Only a 200 of known length has parts that can be told apart by offsets: an error or a HEAD response has no
        // holes to fill.
        let is_plain = self.stored.kind == StoredKind::Content
            && self.stored.head.status == 200
            && self
                .object
                .as_ref()
                .is_some_and(|object| object.head().length.is_some());
        if !is_plain {
            return MissingContent::Unfetchable;
        }
        let wanted = self.wanted(request);
        if request.method == Method::Head || self.has_all(request, &wanted) {
            return MissingContent::Nothing;
        }
        match self.can_be_completed(&wanted) {
            true => MissingContent::Fetchable,
            false => MissingContent::Unfetchable,
        }
    }

    fn wanted(&self, request: &Request) -> Range<u64> {
        wanted_part(request, &self.stored, self.length)
    }

    /// Fetches the first part that the request wants and the store lacks.
    pub(super) fn fetch_missing(
        &self,
        request: &Request,
        now_ms: u64,
    ) -> Result<FetchedPart, PartRefusal> {
        match self.hole(&self.wanted(request)) {
            Some(hole) => self.fetch_part(request, hole, now_ms),
            // It has been filled since the decision.
            None => Err(PartRefusal::Changed),
        }
    }

    /// Whether everything that is wanted is stored, be it one range or several.
    fn has_all(&self, request: &Request, wanted: &Range<u64>) -> bool {
        match wanted_ranges(request, &self.stored, self.length) {
            // Several ranges are cut out of the whole body by a filter, which needs parts of one version.
            SelectedRanges::Many(ranges) => {
                self.version != 0 && ranges.iter().all(|range| self.hole(range).is_none())
            }
            // 416 is answered without content.
            SelectedRanges::Unsatisfiable => true,
            SelectedRanges::One(_) | SelectedRanges::Ignore => self.hole(wanted).is_none(),
        }
    }

    /// Whether the missing part can be fetched alone, at a cost below that of fetching the whole.
    fn can_be_completed(&self, wanted: &Range<u64>) -> bool {
        let Some(object) = &self.object else {
            return false;
        };
        let held = object.stored_ranges();
        // Only the pieces within the wanted range cause requests.
        let useful = held
            .iter()
            .filter(|held| held.start < wanted.end && wanted.start < held.end);
        self.version != 0
            && strong_validator(&self.stored.head.fields).is_some()
            && !held.is_empty()
            && useful.count() <= HOLES_MAX
    }

    /// The first missing part of a range.
    fn hole(&self, wanted: &Range<u64>) -> Option<Range<u64>> {
        let hole = self.object.as_ref()?.first_hole(wanted.start)?;
        (hole.start < wanted.end).then(|| hole.start..hole.end.min(wanted.end))
    }

    /// Answers the request with this body.
    pub(super) fn respond_partial(
        mut self,
        request: &mut Request,
        now_ms: u64,
        status: UpstreamCacheStatus,
        forwarded: Option<ForwardStatus>,
    ) -> HandlerOutcome {
        let settings = self.cache_request.settings.clone();
        let stored = Arc::clone(&self.stored);
        let (source, length) = (self.cache_request.source, self.length);
        // Without a version nothing can be fetched to complete the part. It is answered as the 206 that it is, so that
        // no filter asks this body for more than it has.
        let as_it_is = match self.version {
            0 => one_range(request, &stored, length),
            _ => None,
        };
        if as_it_is.is_some() {
            let wanted = self.wanted(request);
            (self.position, self.end) = (wanted.start, wanted.end);
        }
        let store = self.cache_request.store.clone();
        let outcome = CacheResponse {
            now_ms,
            settings: &settings,
            store: &store,
            source,
            stored: &stored,
            status,
            forwarded,
            length: Some(length),
            body: ResponseBody::stream(self),
            // It would end a second time if a copy read it.
            identity: None,
        }
        .set_response(request);
        // The filter for ranges is switched off, and its work is done here.
        if let (Some(range), HandlerOutcome::Respond) = (as_it_is, &outcome) {
            let out = &mut request.out;
            out.status = 206;
            out.reason = None;
            out.transforms.ranges = false;
            out.content_length = Some(range.end - range.start);
            out.fields
                .push_known_with(KnownField::ContentRange, |text| {
                    proto::range::write_content_range(&range, length, text)
                });
        }
        outcome
    }

    /// Fetches a part, or joins the fill that brings it.
    fn fetch_part(
        &self,
        request: &Request,
        range: Range<u64>,
        now_ms: u64,
    ) -> Result<FetchedPart, PartRefusal> {
        let begin = range.start;
        let Some(object) = self.object.as_ref().filter(|_| self.version != 0) else {
            return Err(PartRefusal::Changed);
        };
        let (store, seen) = (&self.cache_request.store, object.seen_location());
        // Fills of parts are identified by their first byte, so clients that meet the same hole share one request.
        let (key, coverage) = (&self.at.key, FillCoverage::Part(begin));
        let wanted = WantedFill {
            key,
            coverage,
            seen,
            feed: self.cache_request.feed(),
            instead_of: self.lapsed_part(coverage, now_ms),
        };
        match store.join_or_start(wanted, now_ms) {
            // A member that waits for this one must not wait for a third.
            FillStart::Joined(follower)
                if self.cache_request.refuses_member(request, &follower) =>
            {
                Err(PartRefusal::FedElsewhere(follower))
            }
            FillStart::Joined(follower) => Ok(FetchedPart {
                follower,
                first_client: None,
                begin,
            }),
            FillStart::Started(writer, follower) => {
                let validator = strong_validator(&self.stored.head.fields);
                let ask = validator.map(|validator| FetchFields::for_part(&range, validator));
                let ask = ask.unwrap_or_default();
                let mut fetch =
                    CacheFetch::new(&self.cache_request, request, self.at.clone(), None, ask);
                // The task checks the answer against the stored object: only the same version may fill the hole.
                fetch.missing = Some(MissingPart {
                    range,
                    object: object.clone(),
                    stored: Arc::clone(&self.stored),
                });
                Ok(FetchedPart {
                    follower,
                    first_client: Some(storing::spawn_fetch(fetch, writer)),
                    begin,
                })
            }
            FillStart::Changed => Err(PartRefusal::Changed),
            FillStart::HitForMiss { .. } => Err(PartRefusal::HitForMiss),
        }
    }

    /// The fill of a part under way that is not joined, since its head has come and its response may not be used any more.
    /// A body that has begun to be sent needs the bytes of its version, however old they are.
    fn lapsed_part(&self, coverage: FillCoverage, now_ms: u64) -> Option<u64> {
        let asking = &self.cache_request;
        let running = asking.store.running_fill(&self.at.key, coverage)?;
        let freshness = StoredHead::freshness_in(&running.known_head()?.opaque)?;
        let (terms, settings) = (&asking.terms, &asking.settings.cache);
        let joins = self.position > 0 || may_join(now_ms, &freshness, terms, settings);
        (!joins).then(|| running.born())
    }

    /// The stored bytes from `position` on, as far as they are contiguous.
    fn chunk_at(&self, position: u64, end: u64) -> Option<BodyChunk> {
        let range = self.object.as_ref()?.file_range(position)?;
        let length = range.len.min(end - position);
        Some(BodyChunk::File(range.into()).into_range(0, length))
    }

    /// Looks up the object again, after the fetched part has been received and committed.
    fn look_again(&mut self) {
        let (store, key) = (self.cache_request.store.clone(), self.at.key.clone());
        let fetched = self.fetched.take();
        self.looking = Some(Box::pin(async move {
            // The fill may not have come to its end. The rest of it is read and dropped, since the commit follows the
            // last byte.
            if let Some(FetchedPart { mut follower, .. }) = fetched {
                while let Ok(Some(_)) =
                    poll_fn(|context| follower.poll_part(context, usize::MAX)).await
                {
                }
            }
            // On timeout, the lookup below does not find the part, and the response is cut off.
            let _ = rt::timeout(COMMIT_WAIT, store.wait_for_commit(&key)).await;
            store.lookup(&key, rt::wall_millis()).await
        }));
    }

    /// The next stored bytes for the client.
    fn stored_chunk(&mut self) -> Option<BodyChunk> {
        let chunk = self.chunk_at(self.position, self.end)?;
        self.position += chunk.len();
        Some(chunk)
    }

    /// Takes care of the next byte that is neither stored nor on its way: starts a fetch, or looks up the object again.
    fn poll_next_hole(
        &mut self,
        request: &Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        if let Some(looking) = &mut self.looking {
            let found = ready!(looking.as_mut().poll(context));
            self.looking = None;
            // The head of the response has been sent. Nothing can be done but to cut it off.
            let (LookupResult::Hit(object) | LookupResult::Stale(object, _)) = found else {
                return Poll::Ready(Err(BodyError::Producer));
            };
            // A part of another version must not be appended to what the client has.
            if object.head().meta.version != self.version || self.version == 0 {
                return Poll::Ready(Err(BodyError::Producer));
            }
            self.object = Some(object);
            return Poll::Ready(Ok(()));
        }
        if self.object.is_none() {
            // The body began as a fetched part. Only the store can tell what there is beyond it.
            self.look_again();
            return Poll::Ready(Ok(()));
        }
        // The store claims to have the byte, and yet it could not be read.
        let Some(hole) = self.hole(&(self.position..self.end)) else {
            return Poll::Ready(Err(BodyError::Producer));
        };
        match self.fetch_part(request, hole, rt::wall_millis()) {
            Ok(fetched) => self.fetched = Some(fetched),
            Err(PartRefusal::Changed) => self.look_again(),
            Err(PartRefusal::HitForMiss | PartRefusal::FedElsewhere(_)) => {
                return Poll::Ready(Err(BodyError::Producer));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the next byte comes with the part that is being fetched. As long as no object is known, the fetched part
    /// is read from its beginning, and bytes before the client's range are skipped.
    fn is_being_fetched(&self) -> bool {
        let Some(FetchedPart { follower, .. }) = &self.fetched else {
            return false;
        };
        let comes_later = || {
            follower
                .partial_range()
                .is_some_and(|part| part.end > self.position)
        };
        follower.position() == self.position
            || self.object.is_none() && follower.position() < self.position && comes_later()
    }

    /// The next chunk of the part that is being fetched, possibly empty; `None` at its end.
    fn poll_fetched(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        let Some(fetched) = &mut self.fetched else {
            return Poll::Ready(None);
        };
        let version = self.version;
        let at = fetched.follower.position();
        // A fill that was joined may turn out to be of another version; nothing of it has been sent yet.
        let next = match ready!(fetched.follower.poll_head(context)) {
            Ok(head) if head.meta.version == version => {
                ready!(fetched.follower.poll_part(context, PIECE))
                    .map_err(|ended| ended.to_string())
            }
            Ok(_) => Err("the response has changed at the origin".to_owned()),
            Err(ended) => Err(ended.to_string()),
        };
        let chunk = match next {
            Ok(Some(part)) => BodyChunk::from(part),
            Ok(None) => {
                // A part that ends without a byte would otherwise be fetched again and again for the same hole.
                let came = fetched.follower.position() > fetched.begin;
                if let Some(first_client) = &fetched.first_client {
                    first_client.update_record(request);
                }
                self.fetched = None;
                return Poll::Ready((!came).then_some(Err(BodyError::Producer)));
            }
            Err(why) => {
                request.log_while(
                    host::error_log::LogLevel::Error,
                    "fetching a missing part of a cached response",
                    format_args!("{why}"),
                );
                return Poll::Ready(Some(Err(BodyError::Producer)));
            }
        };
        // The fill may begin before the client's range, and may go on beyond it.
        let skipped = (self.position - at).min(chunk.len());
        let length = (chunk.len() - skipped).min(self.end - self.position);
        self.position += length;
        Poll::Ready(Some(Ok(chunk.into_range(skipped, length))))
    }
}

impl crate::response_body::BodySource for PartialContent {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        while self.position < self.end {
            // What is on its way goes first, because the store does not have it yet.
            if self.is_being_fetched() {
                match ready!(self.poll_fetched(request, context)) {
                    Some(Ok(chunk)) if chunk.is_empty() => continue,
                    Some(chunk) => return Poll::Ready(Some(chunk)),
                    None => continue,
                }
            }
            if let Some(chunk) = self.stored_chunk() {
                return Poll::Ready(Some(Ok(chunk)));
            }
            if let Err(error) = ready!(self.poll_next_hole(request, context)) {
                return Poll::Ready(Some(Err(error)));
            }
        }
        Poll::Ready(None)
    }

    fn length(&self) -> Option<u64> {
        Some(self.end - self.position)
    }

    fn limit_to_range(&mut self, offset: u64, length: u64) -> bool {
        self.position = offset;
        self.end = offset.saturating_add(length).min(self.length);
        true
    }

    fn slice(&self, offset: u64, length: u64) -> Option<ResponseBody> {
        let end = offset.checked_add(length)?;
        let (mut at, mut chunks) = (offset, VecDeque::new());
        while at < end {
            let chunk = self.chunk_at(at, end)?;
            at += chunk.len();
            chunks.push_back(chunk);
        }
        Some(ResponseBody::Parts(chunks))
    }
}
