//! A fetch at work, in a task of its own: from the origin into the store, independent of the clients that follow.
//!
//! ```text
//! head ─┬─ 304 for a stale object ────────▶ the object is renewed, followers serve it
//!       ├─ an error, and stale is allowed ▶ followers serve the stale object
//!       ├─ not storable ──────────────────▶ the exchange goes to the first client, the others ask for themselves
//!       └─ storable ─ body ─┬─ end ───────▶ committed
//!                           └─ broken ────▶ the rest is fetched, or the whole again (`store_content`); else it has failed
//! ```
//!
//! Which branch is taken is decided by the tables in `fetch_verdict`.

use std::rc::Rc;
use std::sync::Arc;

use bstr::BString;
use bytes::Bytes;
use cache::{
    CacheKey, FillMessage, FillWriter, ObjectHead, ObjectKind, ObjectMeta, PurgeMode, PurgeRequest,
};
use proto::caching::{self, Freshness, LifetimeSource as FreshnessSource, StoringRules, vary};
use proto::message::ResponseHead;
use proto::{Fields, KnownField};

use super::fetch::{CacheFetch, FetchResult, MissingPart};
use super::fetch_fields::FetchFields;
use super::fetch_verdict::{
    FailureAction, FetchedCoverage, HeadAction, NotModified, ResponseFacts, StoreAction,
    may_use_stale, on_failure, on_head, on_judgement,
};
use super::first_client::FirstClientSlot;
use super::lookup::VaryMarker;
use super::storable_response::{JudgedResponse, ReceivedPart};
use super::stored_head::{
    ACCEPT_LANGUAGE, MarkerHead, StoredHead, StoredKind, StoredVariant, head_of,
    values_by_language, variant_values, with_date,
};
use base::sync::Mutex;

use crate::upstream::interim_response::InterimRelay;
use crate::upstream::{ContentLength, Exchange, NoResponse, RetryReasons};

/// How often a fetch asks the origin. A 304 that does not match the stored object is followed by an unconditional
/// request; a second 304 would be the origin's error.
const ASKS_MAX: u32 = 2;

/// Starts the task of a fetch, which writes into the fill. What it has for the client that started it goes into the
/// slot.
pub(super) fn spawn_fetch(fetch: CacheFetch, writer: FillWriter) -> Rc<FirstClientSlot> {
    let slot = Rc::clone(&fetch.first_client);
    rt::spawn_named("cache fetch", fetch.run(writer));
    slot
}

/// Starts the task of a fetch whose response head has been received and judged as storable.
pub(super) fn start_with_response(
    fetch: CacheFetch,
    writer: FillWriter,
    exchange: Box<Exchange>,
    head: Arc<ResponseHead>,
    freshness: Freshness,
) -> Rc<FirstClientSlot> {
    let slot = Rc::clone(&fetch.first_client);
    fetch.publish_tries();
    rt::spawn_named("cache fetch", async move {
        fetch.store(writer, exchange, &head, freshness).await;
    });
    slot
}

impl CacheFetch {
    /// Asks the origin, and does all that follows.
    async fn run(mut self, writer: FillWriter) {
        self.born = writer.born();
        self.feed = Some(writer.feed());
        // Interim responses go to the client that started the fetch. Followers of a shared response get none.
        let slot = Rc::clone(&self.first_client);
        self.request.set_state(InterimRelay(Rc::new(move |bytes| {
            slot.relay_interim(bytes)
        })));
        for _ in 0..ASKS_MAX {
            let mut exchange = match self.exchange_with_origin().await {
                Ok(exchange) => exchange,
                Err(none) => {
                    self.publish_tries();
                    return self.fail(writer, none);
                }
            };
            self.publish_tries();
            let head = Arc::clone(&self.request.upstream.get_or_make().head);
            // Merged first, because whether the merge succeeds is what tells a matching 304 from another one.
            let renewed = self.renewed_by(&head);
            match on_head(self.facts(&head, &renewed)) {
                HeadAction::Revalidate => {
                    self.end_exchange(&mut exchange);
                    return self.revalidate(writer, renewed);
                }
                HeadAction::AskWithoutConditions => {
                    self.end_exchange(&mut exchange);
                    // The stored validators are not those of the origin's current version (RFC 9111, section 4.3.4).
                    self.request.set_state(FetchFields::default());
                }
                HeadAction::UseStale => {
                    self.end_exchange(&mut exchange);
                    return tell(writer, FetchResult::UseStale);
                }
                HeadAction::StoreMissing => {
                    return self.store_missing(writer, exchange, &head).await;
                }
                HeadAction::Discard => {
                    exchange.finish_without_content(&mut self.request);
                    self.discard();
                    return tell(writer, FetchResult::LookAgain);
                }
                HeadAction::Judge => return self.store_or_release(writer, exchange, &head).await,
            }
        }
        tell(writer, FetchResult::Failed(502));
    }

    /// The input of the table for heads. `renewed` is the result of merging a 304 into the stale object's fields.
    fn facts(&mut self, head: &ResponseHead, renewed: &Option<Fields>) -> ResponseFacts {
        let not_modified = match head.status {
            304 if renewed.is_some() => NotModified::OfStored,
            304 if self.has_conditions() => NotModified::OfAnother,
            _ => NotModified::No,
        };
        // Statuses that `…_cache_use_stale` can name; 200 and the like have none.
        let reason = RetryReasons::of_status(head.status);
        ResponseFacts {
            status: head.status,
            not_modified,
            may_use_stale: reason.is_some_and(|reason| self.may_use_stale(reason, false)),
            missing: self.missing_answer(head),
        }
    }

    /// Whether the request to the origin is conditional.
    fn has_conditions(&mut self) -> bool {
        let ask = self.request.state::<FetchFields>();
        ask.is_some_and(|ask| ask.etag.is_some() || ask.last_modified.is_some())
    }

    /// Whether the stale object may replace a failure. `is_silent`: there is no response at all.
    fn may_use_stale(&self, reasons: RetryReasons, is_silent: bool) -> bool {
        let use_stale = self.settings.cache.use_stale;
        self.stale
            .as_ref()
            .is_some_and(|stale| may_use_stale(stale.reuse, reasons, is_silent, use_stale))
    }

    /// Ends an exchange whose body is not wanted.
    fn end_exchange(&mut self, exchange: &mut Exchange) {
        exchange.finish_without_content(&mut self.request);
        self.publish_tries();
    }

    /// Ends a fetch that got no response.
    fn fail(self, writer: FillWriter, none: NoResponse) {
        let NoResponse { status, reasons } = none;
        let stale = self.may_use_stale(reasons, true);
        match on_failure(status, stale, &self.settings.cache) {
            FailureAction::UseStale => tell(writer, FetchResult::UseStale),
            FailureAction::StoreError { seconds } => store_error(writer, status, seconds),
            FailureAction::Fail => tell(writer, FetchResult::Failed(status)),
        }
    }

    /// The stale object's fields, updated by a 304 (RFC 9111, section 3.2); `None` if it is not a 304, or not about the
    /// object.
    fn renewed_by(&mut self, head: &ResponseHead) -> Option<Fields> {
        if head.status != 304 || !self.has_conditions() {
            return None;
        }
        let stale = self.stale.as_ref()?;
        caching::merge_304(
            &stale.stored.head.fields,
            &caching::storable_fields(&head.fields),
        )
    }

    /// Renews the stale object: the same body, with fields updated by the 304.
    fn revalidate(mut self, writer: FillWriter, fields: Option<Fields>) {
        let (Some(stale), Some(fields)) = (self.stale.take(), fields) else {
            return tell(writer, FetchResult::LookAgain);
        };
        let stored = self.renewed(&stale.stored, fields);
        let object = &stale.object;
        let length = object.head().length;
        let mut renewed = meta(&stored, length, self.times.received_ms);
        // Only the validation is new. The time of storing remains that of the body.
        renewed.stored_ms = object.head().meta.stored_ms;
        // The fill's number makes a purge during the validation apply to the renewed head as well. One of the key itself
        // has stopped the fill instead: then the object keeps its old head and the mark of the purge.
        if !writer.was_stopped() {
            self.store
                .refresh(object, renewed, Some(stored.encode()), self.born);
        }
        tell(writer, FetchResult::Revalidated(Arc::new(stored)));
    }

    /// A stored head with updated fields, judged anew.
    fn renewed(&mut self, stored: &StoredHead, fields: Fields) -> StoredHead {
        let mut stored = stored.clone();
        let mut renewed = ResponseHead::clone(&stored.head);
        renewed.fields = with_date(fields);
        stored.head = Arc::new(renewed);
        let now_ms = self.times.received_ms;
        // A 304 may carry a new lifetime. If the merged fields do not permit storing at all, the object remains stale,
        // so that the next request asks again.
        let fields = &stored.head.fields;
        stored.freshness = match self.freshness_of(stored.head.status, fields) {
            Some(freshness) => freshness,
            None => Freshness {
                received_ms: now_ms,
                fresh_until_ms: now_ms,
                ..stored.freshness
            },
        };
        stored
    }

    /// Continues with a response that neither renews the stale object nor is the missing part that was asked for: stores
    /// it, or hands it to one client.
    async fn store_or_release(
        mut self,
        writer: FillWriter,
        exchange: Box<Exchange>,
        head: &ResponseHead,
    ) {
        let (settings, times) = (self.settings.clone(), self.times);
        let judged = JudgedResponse::of_exchange(
            &mut self.request,
            &settings,
            &self.store,
            &exchange,
            head,
            times,
        );
        let action = on_judgement(judged.judgement(), self.asked_for(), head.status);
        match (action, judged) {
            (StoreAction::Store, JudgedResponse::Whole(freshness)) => {
                self.store(writer, exchange, head, freshness).await;
            }
            (StoreAction::StorePart, JudgedResponse::Part(part)) => {
                self.store_part(writer, exchange, part, head).await;
            }
            (StoreAction::StoreWhole, JudgedResponse::Whole(freshness)) => {
                // A range was asked for, and the whole came. Followers of the range switch to the fill of the whole, each to a
                // clone of its follower: they want this version, and another lookup could lead them elsewhere.
                let Some((whole, follower)) = writer.start_successor(&self.at.key, None) else {
                    // A purge has hit the key since the request was sent, or the disk has failed. Either way nothing is
                    // stored, so the response is for one client.
                    return self.release(writer, exchange);
                };
                tell(writer, FetchResult::FollowOther(Mutex::new(follower)));
                self.store(whole, exchange, head, freshness).await;
            }
            (StoreAction::Replace, JudgedResponse::Whole(freshness)) => {
                // The origin has shown a newer version, so no request may get parts of the stored one any more. The removal is
                // a purge, which hits every fill that is older: the new one starts after it.
                self.discard();
                let now_ms = self.times.received_ms;
                // Followers want a part of the old version. They look up again and find the new fill, which must therefore
                // have started before they are told. Until then it needs no follower: a fill that stores goes on without.
                let (whole, _) = self.store.start_fill(&self.at.key, now_ms);
                tell(writer, FetchResult::LookAgain);
                self.store(whole, exchange, head, freshness).await;
            }
            (StoreAction::Release { remember: true }, _) => {
                self.remember_hit_for_miss();
                self.release(writer, exchange);
            }
            (StoreAction::Release { remember: false }, _) => self.release(writer, exchange),
            // The table stores only what was judged as storable, and as what it was judged. These do not occur.
            (
                StoreAction::Store
                | StoreAction::StorePart
                | StoreAction::StoreWhole
                | StoreAction::Replace,
                _,
            ) => self.release(writer, exchange),
        }
    }

    fn asked_for(&mut self) -> FetchedCoverage {
        if self.missing.is_some() {
            return FetchedCoverage::Missing;
        }
        let ask = self.request.state::<FetchFields>();
        match ask.is_some_and(|ask| ask.range.is_some()) {
            true => FetchedCoverage::Range,
            false => FetchedCoverage::Whole,
        }
    }

    /// Removes what is stored under the key.
    fn discard(&self) {
        self.store
            .purge(PurgeRequest::Key(&self.at.key), PurgeMode::Hard);
    }

    /// Marks the key as hit-for-miss: for a while, its requests do not wait for each other.
    fn remember_hit_for_miss(&self) {
        let time = self.settings.cache.uncacheable_time.as_millis();
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        let until_ms = self.times.received_ms.saturating_add(time);
        self.store.remember_hit_for_miss(&self.at.key, until_ms);
    }

    /// Hands the exchange to the client that started the fetch; the others ask the origin themselves.
    fn release(mut self, writer: FillWriter, exchange: Box<Exchange>) {
        // If that client is gone, dropping the exchange closes the connection to the origin.
        if writer.first_stays() {
            let record = std::mem::take(&mut self.request.upstream);
            self.first_client.leave_exchange(exchange, record);
        }
        tell(writer, FetchResult::Released);
    }

    /// Stores the missing part of an object. The part's fields are newer than the stored ones, and update them (RFC
    /// 9111, section 3.4).
    async fn store_missing(
        mut self,
        mut writer: FillWriter,
        exchange: Box<Exchange>,
        head: &ResponseHead,
    ) {
        self.framed = exchange.content_length();
        let Some(MissingPart {
            range,
            object,
            stored: before,
        }) = self.missing.take()
        else {
            return self.release(writer, exchange);
        };
        let mut fields = caching::storable_fields(&head.fields);
        // `Content-Range` describes this part alone; the stored head describes the whole.
        fields.remove_known(KnownField::ContentRange);
        let before_fields = &before.head.fields;
        let merged =
            caching::merge_304(before_fields, &fields).unwrap_or_else(|| before_fields.clone());
        let stored = self.renewed(&before, merged);
        let length = object.length();
        let mut head = object.head().clone();
        head.meta = ObjectMeta {
            stored_ms: head.meta.stored_ms,
            ..meta(&stored, Some(length), self.times.received_ms)
        };
        head.opaque = stored.encode();
        // A member that has most of an object keeps the rest of it too.
        // The end goes before the head: with the head, followers compute what they can get from this part.
        writer.ends_at(range.end);
        writer.start_storing(head);
        self.request.out.body = exchange.into_content(&mut self.request);
        self.store_content(writer, &stored, Some(length), range.end)
            .await;
    }

    /// Stores a part of a response of which nothing usable is stored. The object remains incomplete.
    async fn store_part(
        mut self,
        writer: FillWriter,
        exchange: Box<Exchange>,
        part: ReceivedPart,
        head: &ResponseHead,
    ) {
        let ReceivedPart {
            mut stored,
            range,
            length,
        } = part;
        self.framed = exchange.content_length();
        // The origin lets it be stored, so a mark from an earlier response is outdated.
        self.store.forget_hit_for_miss(&self.at.key);
        let key = self.key_of(&mut stored);
        // From here on the fill is identified by the bytes that it brings, so that requests in other words can join it.
        let Some((mut brings, follower)) = writer.start_successor(&self.at.key, Some(range.start))
        else {
            return self.release(writer, exchange);
        };
        brings.ends_at(range.end);
        brings.keep(self.members.keeps());
        brings.head_as(key, self.described(&stored, &head.fields, Some(length)));
        tell(writer, FetchResult::FollowOther(Mutex::new(follower)));
        self.request.out.body = exchange.into_content(&mut self.request);
        self.store_content(brings, &stored, Some(length), range.end)
            .await;
    }

    /// Stores the whole response.
    async fn store(
        mut self,
        mut writer: FillWriter,
        exchange: Box<Exchange>,
        head: &ResponseHead,
        freshness: Freshness,
    ) {
        self.store.forget_hit_for_miss(&self.at.key);
        self.framed = exchange.content_length();
        let header_only = self.request.delivery.header_only;
        // A response to HEAD announces the length of a body that does not come.
        let length = match exchange.content_length() {
            _ if header_only => Some(0),
            ContentLength::Known(length) => Some(length),
            ContentLength::None => Some(0),
            ContentLength::Unknown => None,
        };
        // The usual reason phrase is not stored: it follows from the status.
        let usual = proto::status::reason(head.status).as_bytes();
        let reason = head.status_text().get(4..).filter(|text| *text != usual);
        let kept = head_of(
            head.status,
            with_date(caching::storable_fields(&head.fields)),
        );
        let mut stored = StoredHead {
            head: Arc::new(kept),
            reason: reason.map(BString::from),
            freshness,
            variant: None,
            kind: match header_only {
                true => StoredKind::HeadOnly,
                false => StoredKind::Content,
            },
        };
        let key = self.key_of(&mut stored);
        writer.keep(self.members.keeps());
        writer.head_as(key, self.described(&stored, &head.fields, length));
        self.request.out.body = exchange.into_content(&mut self.request);
        if self.request.method != self.request.head.wire.method {
            // The client sent HEAD and does not read the body, so what is known by now is all that its log will show.
            self.publish_tries();
        }
        self.store_content(writer, &stored, length, u64::MAX).await;
    }

    /// The key under which the response is stored. With `Vary`, each variant has its own (RFC 9111, section 4.1), and
    /// the first one puts a marker under the primary key.
    fn key_of(&mut self, stored: &mut StoredHead) -> CacheKey {
        let ignored = self.settings.cache.rules.ignore & StoringRules::VARY != 0;
        let names = match vary::of(&stored.head.fields) {
            vary::Vary::Names(names) if !ignored => names,
            _ => return self.primary.clone(),
        };
        let values = variant_values(&names, &self.request.head.wire.fields);
        // The same names mean the same set of variants. Different names start a new set, since the old keys were made
        // from values of other fields.
        let born = match &self.at.marker {
            Some(VaryMarker { born, names: known }) if *known == names => *born,
            _ => self.put_marker(&names),
        };
        // A variant in the client's preferred language is stored for all clients with that preference.
        let by_language = self.values_by_language(&names, &stored.head.fields);
        let values = by_language.unwrap_or(values);
        let key = self.primary.variant_of(born, &values);
        stored.variant = Some(StoredVariant {
            born,
            names,
            values,
        });
        key
    }

    /// Stores a marker, and returns its number.
    fn put_marker(&self, names: &[Box<[u8]>]) -> u64 {
        let now_ms = self.times.received_ms;
        let marker = MarkerHead {
            names: names.to_vec(),
        };
        let meta = ObjectMeta {
            kind: ObjectKind::Variants,
            stored_ms: now_ms,
            validated_ms: now_ms,
            // A marker is not a response, and does not become stale; its variants do.
            fresh_until_ms: u64::MAX,
            version: 0,
        };
        let head = ObjectHead {
            meta,
            opaque: marker.encode(),
            tags: Vec::new(),
            length: Some(0),
        };
        self.store.put_marker(&self.primary, head, now_ms)
    }

    /// The selecting values for all clients that prefer this response's language, if it has the one that its client
    /// prefers.
    fn values_by_language(&self, names: &[Box<[u8]>], fields: &Fields) -> Option<Vec<u8>> {
        if !self.settings.cache.language || !names.iter().any(|name| **name == *ACCEPT_LANGUAGE) {
            return None;
        }
        let request = &self.request.head.wire.fields;
        let language = vary::variant_language(request, fields)?;
        Some(values_by_language(names, request, &language))
    }

    /// What the store keeps besides the body. `length` is that of the whole.
    fn described(&self, stored: &StoredHead, fields: &Fields, length: Option<u64>) -> ObjectHead {
        ObjectHead {
            meta: meta(stored, length, self.times.received_ms),
            opaque: stored.encode(),
            tags: caching::invalidation::response_tags(fields)
                .into_iter()
                .map(Bytes::from)
                .collect(),
            length,
        }
    }
}

/// Tells followers what to do instead of waiting for content.
fn tell(writer: FillWriter, result: FetchResult) {
    writer.end_with_message(FillMessage::new(result));
}

/// Stores a failure of the origin for the time that `…_cache_valid` sets for its status.
fn store_error(mut writer: FillWriter, status: u16, seconds: u32) {
    let now_ms = rt::wall_millis();
    let stored = StoredHead {
        head: Arc::new(head_of(status, Fields::new())),
        reason: None,
        freshness: Freshness {
            received_ms: now_ms,
            initial_age_s: 0,
            fresh_until_ms: now_ms.saturating_add(u64::from(seconds) * 1000),
            source: FreshnessSource::Configured,
            while_revalidate_s: 0,
            if_error_s: 0,
            must_revalidate: false,
            always_revalidate: false,
        },
        variant: None,
        kind: StoredKind::Error,
    };
    writer.start_storing(ObjectHead {
        meta: meta(&stored, Some(0), now_ms),
        opaque: stored.encode(),
        tags: Vec::new(),
        length: Some(0),
    });
    writer.finish();
}

/// The part of the head that the store itself reads.
fn meta(stored: &StoredHead, length: Option<u64>, now_ms: u64) -> ObjectMeta {
    ObjectMeta {
        kind: ObjectKind::Object,
        stored_ms: now_ms,
        validated_ms: now_ms,
        fresh_until_ms: stored.freshness.fresh_until_ms,
        version: stored.validator_hash(length),
    }
}
