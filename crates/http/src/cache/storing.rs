//! A fetch at work, in a task of its own: from the server into the store, whatever happens to the clients that follow it.
//!
//! ```text
//! head ─┬─ 304 for a stale object ────────▶ the object is renewed, followers serve it
//!       ├─ an error, and stale is allowed ▶ followers serve the stale object
//!       ├─ not to be stored ──────────────▶ the exchange goes to the first client, the others ask for themselves
//!       └─ stored ── content ─┬─ end ─────▶ committed
//!                             └─ broken ──▶ the rest is asked for, or all of it again (`content`), else it has failed
//! ```
//!
//! Which of these it is the tables in `verdict` say.

use std::rc::Rc;
use std::sync::Arc;

use bstr::BString;
use bytes::Bytes;
use cache::{Head, Instead, Key, Kind as ObjectKind, Meta, Mode, Purge, Writer};
use proto::caching::{self, Freshness, Rules, Source as FreshnessSource, vary};
use proto::message::ResponseHead;
use proto::{Fields, Known};

use super::ask::Ask;
use super::fetch::{Fetch, FetchResult, MissingPart};
use super::first_client::FirstClientSlot;
use super::head::{
    ACCEPT_LANGUAGE, Kind, Marker, StoredHead, Variant, dated, head_of, values, values_by_language,
};
use super::judging::{BroughtPart, Judged};
use super::lookup::VaryMarker;
use super::verdict::{
    AskedFor, FailureAction, HeadAction, HeadFacts, NotModified, StoreAction, may_use_stale,
    on_failure, on_head, on_judgement,
};
use base::sync::Mutex;

use crate::upstream::interim::Relay;
use crate::upstream::{ContentLength, Exchange, NoResponse, RetryReasons};

/// How often a fetch asks: a 304 about something else is answered by asking without conditions.
const ASKS_MAX: u32 = 2;

/// Starts a fetch, which writes into the fill. What it leaves for the client that began it is in the slot.
pub(super) fn start(fetch: Fetch, writer: Writer) -> Rc<FirstClientSlot> {
    let slot = Rc::clone(&fetch.first_client);
    rt::spawn_named("cache fetch", fetch.run(writer));
    slot
}

/// The same for a response whose head is there and was judged: it is stored.
pub(super) fn start_with_response(
    fetch: Fetch,
    writer: Writer,
    exchange: Box<Exchange>,
    head: Arc<ResponseHead>,
    freshness: Freshness,
) -> Rc<FirstClientSlot> {
    let slot = Rc::clone(&fetch.first_client);
    fetch.publish();
    rt::spawn_named("cache fetch", async move {
        fetch.store(writer, exchange, &head, freshness).await;
    });
    slot
}

impl Fetch {
    /// Asks the server and does all that follows.
    async fn run(mut self, writer: Writer) {
        self.born = writer.born();
        let slot = Rc::clone(&self.first_client);
        self.request
            .set_state(Relay(Rc::new(move |bytes| slot.relay(bytes))));
        for _ in 0..ASKS_MAX {
            let mut exchange = match self.exchange().await {
                Ok(exchange) => exchange,
                Err(none) => {
                    self.publish();
                    return self.fail(writer, none);
                }
            };
            self.publish();
            let head = Arc::clone(&self.request.upstream.get_or_make().head);
            let renewed = self.renewed_by(&head);
            match on_head(self.facts(&head, &renewed)) {
                HeadAction::Revalidate => {
                    self.end_exchange(&mut exchange);
                    return self.revalidate(writer, renewed);
                }
                HeadAction::AskWithoutConditions => {
                    self.end_exchange(&mut exchange);
                    self.request.set_state(Ask::default());
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
                HeadAction::Judge => return self.judge(writer, exchange, &head).await,
            }
        }
        tell(writer, FetchResult::Failed(502));
    }

    /// What the table wants to know of a head. `renewed` is what a 304 makes of the fields of the stale object.
    fn facts(&mut self, head: &ResponseHead, renewed: &Option<Fields>) -> HeadFacts {
        let not_modified = match head.status {
            304 if renewed.is_some() => NotModified::OfStored,
            304 if self.has_conditions() => NotModified::OfAnother,
            _ => NotModified::No,
        };
        let reason = RetryReasons::of_status(head.status);
        HeadFacts {
            status: head.status,
            not_modified,
            may_use_stale: reason.is_some_and(|reason| self.may_use_stale(reason, false)),
            missing: self.missing_answer(head),
        }
    }

    fn has_conditions(&mut self) -> bool {
        let ask = self.request.state::<Ask>();
        ask.is_some_and(|ask| ask.etag.is_some() || ask.last_modified.is_some())
    }

    fn may_use_stale(&self, reasons: RetryReasons, is_silent: bool) -> bool {
        let use_stale = self.settings.cache.use_stale;
        self.stale
            .as_ref()
            .is_some_and(|stale| may_use_stale(stale.reuse, reasons, is_silent, use_stale))
    }

    /// Nothing of the response's content is wanted.
    fn end_exchange(&mut self, exchange: &mut Exchange) {
        exchange.finish_without_content(&mut self.request);
        self.publish();
    }

    /// There is no response.
    fn fail(self, writer: Writer, none: NoResponse) {
        let NoResponse { status, reasons } = none;
        let stale = self.may_use_stale(reasons, true);
        match on_failure(status, stale, &self.settings.cache) {
            FailureAction::UseStale => tell(writer, FetchResult::UseStale),
            FailureAction::StoreError { seconds } => store_error(writer, status, seconds),
            FailureAction::Fail => tell(writer, FetchResult::Failed(status)),
        }
    }

    /// The fields of the stale object as a 304 makes them; `None` if it is no 304, or not about the object.
    fn renewed_by(&mut self, head: &ResponseHead) -> Option<Fields> {
        if head.status != 304 || !self.has_conditions() {
            return None;
        }
        let stale = self.stale.as_ref()?;
        caching::merge_304(&stale.stored.head.fields, &caching::keep(&head.fields))
    }

    /// Renews the stale object: the same content, under the fields that the 304 makes of the stored ones.
    fn revalidate(mut self, writer: Writer, fields: Option<Fields>) {
        let (Some(stale), Some(fields)) = (self.stale.take(), fields) else {
            return tell(writer, FetchResult::LookAgain);
        };
        let stored = self.renewed(&stale.stored, fields);
        let object = &stale.object;
        let length = object.head().length;
        let mut renewed = meta(&stored, length, self.times.received_ms);
        renewed.stored_ms = object.head().meta.stored_ms;
        self.store
            .refresh(object, renewed, Some(stored.encode()), self.born);
        tell(writer, FetchResult::Revalidated(Arc::new(stored)));
    }

    /// A stored head with fields that were said now.
    fn renewed(&mut self, stored: &StoredHead, fields: Fields) -> StoredHead {
        let mut stored = stored.clone();
        let mut renewed = ResponseHead::clone(&stored.head);
        renewed.fields = dated(fields);
        stored.head = Arc::new(renewed);
        let now_ms = self.times.received_ms;
        // What is said of the time now counts first; then what was said with the content.
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

    /// Goes on with a response of which nothing is decided yet but that it comes from the origin.
    async fn judge(mut self, writer: Writer, exchange: Box<Exchange>, head: &ResponseHead) {
        let (settings, times) = (self.settings.clone(), self.times);
        let judged = Judged::of(
            &mut self.request,
            &settings,
            &self.store,
            &exchange,
            head,
            times,
        );
        let action = on_judgement(judged.judgement(), self.asked_for(), head.status);
        match (action, judged) {
            (StoreAction::Store, Judged::Whole(freshness)) => {
                self.store(writer, exchange, head, freshness).await;
            }
            (StoreAction::StorePart, Judged::Part(part)) => {
                self.store_part(writer, exchange, part, head).await;
            }
            (StoreAction::StoreWhole, Judged::Whole(freshness)) => {
                let Some((whole, follower)) = writer.turn_into(&self.at.key, None) else {
                    return self.release(writer, exchange);
                };
                tell(writer, FetchResult::FollowOther(Mutex::new(follower)));
                self.store(whole, exchange, head, freshness).await;
            }
            (StoreAction::Replace, Judged::Whole(freshness)) => {
                // Requests that wanted a part of the old version find the new one, and none gets the old one any more.
                self.discard();
                let now_ms = self.times.received_ms;
                let (whole, _) = self.store.start_fill(&self.at.key, now_ms);
                tell(writer, FetchResult::LookAgain);
                self.store(whole, exchange, head, freshness).await;
            }
            (StoreAction::Release { remember: true }, _) => {
                self.remember_hit_for_miss();
                self.release(writer, exchange);
            }
            // Only what was judged to be storable is to be stored.
            _ => self.release(writer, exchange),
        }
    }

    fn asked_for(&mut self) -> AskedFor {
        if self.missing.is_some() {
            return AskedFor::Missing;
        }
        let ask = self.request.state::<Ask>();
        match ask.is_some_and(|ask| ask.range.is_some()) {
            true => AskedFor::Range,
            false => AskedFor::Whole,
        }
    }

    /// Takes out of the store what is there under the key.
    fn discard(&self) {
        self.store.purge(Purge::Key(&self.at.key), Mode::Hard);
    }

    fn remember_hit_for_miss(&self) {
        let time = self.settings.cache.uncacheable_time.as_millis();
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        let until_ms = self.times.received_ms.saturating_add(time);
        self.store.remember_hit_for_miss(&self.at.key, until_ms);
    }

    /// The exchange is for the client that began; the others ask for themselves.
    fn release(mut self, writer: Writer, exchange: Box<Exchange>) {
        if writer.first_stays() {
            let record = std::mem::take(&mut self.request.upstream);
            self.first_client.leave_exchange(exchange, record);
        }
        tell(writer, FetchResult::Released);
    }

    /// Stores what was missing of an object. What the part says of the whole is newer than what was said before (RFC 9111,
    /// section 3.4).
    async fn store_missing(
        mut self,
        mut writer: Writer,
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
        let mut fields = caching::keep(&head.fields);
        fields.remove_known(Known::ContentRange);
        let before_fields = &before.head.fields;
        let merged =
            caching::merge_304(before_fields, &fields).unwrap_or_else(|| before_fields.clone());
        let stored = self.renewed(&before, merged);
        let length = object.length();
        let mut head = object.head().clone();
        head.meta = Meta {
            stored_ms: head.meta.stored_ms,
            ..meta(&stored, Some(length), self.times.received_ms)
        };
        head.head = stored.encode();
        writer.ends_at(range.end);
        writer.head(head);
        self.request.out.body = exchange.into_content(&mut self.request);
        self.content(writer, &stored, Some(length), range.end).await;
    }

    /// Stores a part of something of which nothing that fits is there: what is under the key stays incomplete.
    async fn store_part(
        mut self,
        writer: Writer,
        exchange: Box<Exchange>,
        part: BroughtPart,
        head: &ResponseHead,
    ) {
        let BroughtPart {
            mut stored,
            range,
            length,
        } = part;
        self.framed = exchange.content_length();
        self.store.forget_hit_for_miss(&self.at.key);
        let key = self.key_of(&mut stored);
        let Some((mut brings, follower)) = writer.turn_into(&self.at.key, Some(range.start)) else {
            return self.release(writer, exchange);
        };
        brings.ends_at(range.end);
        brings.head_as(key, self.described(&stored, &head.fields, Some(length)));
        tell(writer, FetchResult::FollowOther(Mutex::new(follower)));
        self.request.out.body = exchange.into_content(&mut self.request);
        self.content(brings, &stored, Some(length), range.end).await;
    }

    /// Stores the response.
    async fn store(
        mut self,
        mut writer: Writer,
        exchange: Box<Exchange>,
        head: &ResponseHead,
        freshness: Freshness,
    ) {
        self.store.forget_hit_for_miss(&self.at.key);
        self.framed = exchange.content_length();
        let header_only = self.request.delivery.header_only;
        let length = match exchange.content_length() {
            _ if header_only => Some(0),
            ContentLength::Known(length) => Some(length),
            ContentLength::None => Some(0),
            ContentLength::Unknown => None,
        };
        let usual = proto::status::reason(head.status).as_bytes();
        let reason = head.status_text().get(4..).filter(|text| *text != usual);
        let kept = head_of(head.status, dated(caching::keep(&head.fields)));
        let mut stored = StoredHead {
            head: Arc::new(kept),
            reason: reason.map(BString::from),
            freshness,
            variant: None,
            kind: match header_only {
                true => Kind::HeadOnly,
                false => Kind::Content,
            },
        };
        let key = self.key_of(&mut stored);
        writer.head_as(key, self.described(&stored, &head.fields, length));
        self.request.out.body = exchange.into_content(&mut self.request);
        if self.request.method != self.request.head.wire.method {
            // The client asked for HEAD: it does not follow the content, and what has come of it is known now.
            self.publish();
        }
        self.content(writer, &stored, length, u64::MAX).await;
    }

    /// The key under which the response belongs: its own for each variant. The first one puts a marker under the key that
    /// requests have.
    fn key_of(&mut self, stored: &mut StoredHead) -> Key {
        let ignored = self.settings.cache.rules.ignore & Rules::VARY != 0;
        let names = match vary::of(&stored.head.fields) {
            vary::Vary::Names(names) if !ignored => names,
            _ => return self.primary.clone(),
        };
        let values = values(&names, &self.request.head.wire.fields);
        let born = match &self.at.marker {
            Some(VaryMarker { born, names: known }) if *known == names => *born,
            _ => self.put_marker(&names),
        };
        let by_language = self.values_by_language(&names, &stored.head.fields);
        let key = self
            .primary
            .variant_of(born, by_language.as_ref().unwrap_or(&values));
        stored.variant = Some(Variant {
            born,
            names,
            values,
        });
        key
    }

    /// Stores a marker, and gives its birth.
    fn put_marker(&self, names: &[Box<[u8]>]) -> u64 {
        let now_ms = self.times.received_ms;
        let marker = Marker {
            names: names.to_vec(),
        };
        let meta = Meta {
            kind: ObjectKind::Variants,
            stored_ms: now_ms,
            validated_ms: now_ms,
            fresh_until_ms: u64::MAX,
            version: 0,
        };
        let head = Head {
            meta,
            head: marker.encode(),
            tags: Vec::new(),
            length: Some(0),
        };
        self.store.put_marker(&self.primary, head, now_ms)
    }

    /// What chooses a variant that is in the language which its client prefers.
    fn values_by_language(&self, names: &[Box<[u8]>], fields: &Fields) -> Option<Vec<u8>> {
        if !self.settings.cache.language || !names.iter().any(|name| **name == *ACCEPT_LANGUAGE) {
            return None;
        }
        let request = &self.request.head.wire.fields;
        let language = vary::language(request, fields)?;
        Some(values_by_language(names, request, &language))
    }

    /// What the store keeps of a response beside its content. `length` is that of the whole.
    fn described(&self, stored: &StoredHead, fields: &Fields, length: Option<u64>) -> Head {
        Head {
            meta: meta(stored, length, self.times.received_ms),
            head: stored.encode(),
            tags: caching::invalidation::tags(fields)
                .into_iter()
                .map(Bytes::from)
                .collect(),
            length,
        }
    }
}

/// Tells followers what to do in place of waiting for content.
fn tell(writer: Writer, result: FetchResult) {
    writer.instead(Instead::new(result));
}

/// Stores that the origin failed, for as long as that is configured.
fn store_error(mut writer: Writer, status: u16, seconds: u32) {
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
        kind: Kind::Error,
    };
    writer.head(Head {
        meta: meta(&stored, Some(0), now_ms),
        head: stored.encode(),
        tags: Vec::new(),
        length: Some(0),
    });
    writer.finish();
}

fn meta(stored: &StoredHead, length: Option<u64>, now_ms: u64) -> Meta {
    Meta {
        kind: ObjectKind::Object,
        stored_ms: now_ms,
        validated_ms: now_ms,
        fresh_until_ms: stored.freshness.fresh_until_ms,
        version: stored.version(length),
    }
}
