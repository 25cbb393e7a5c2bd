//! A fetch: from the server into the store, in a task of its own, with a request of its own.
//!
//! It lives as long as its response comes, whoever of its followers leaves. What becomes of it is decided at the head:
//!
//! ```text
//! head ─┬─ 304 for a stale object ────────▶ the object is renewed, followers serve it
//!       ├─ an error, and stale is allowed ▶ followers serve the stale object
//!       ├─ not to be stored ──────────────▶ the exchange goes to the first client, the others ask for themselves
//!       └─ stored ── content ─┬─ end ─────▶ committed
//!                             └─ broken ──▶ the rest is asked for, or all of it again (`content`), else it has failed
//! ```

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use bstr::BString;
use bytes::Bytes;
use cache::{
    Follower, Head, Instead, Key, Kind as ObjectKind, Meta, Mode, Object, Purge, Store, Writer,
};
use proto::caching::{
    self, Asked, Freshness, Response, Reuse, Rules, Source as Says, Verdict, vary,
};
use proto::h1::response::ResponseHead;
use proto::{Fields, Known, etag};

use super::Source;
use super::head::{
    ACCEPT_LANGUAGE, Kind, Marker, StoredHead, Variant, head_of, values, values_by_language,
};
use super::parts::{is_begun_by, wanted};
use crate::module::Outcome;
use crate::request::Request;
use crate::upstream::interim::Relay;
use crate::upstream::record::Try;
use crate::upstream::respond::is_buffered;
use crate::upstream::settings::NextUpstream;
use crate::upstream::{ContentLength, Exchange, SettingsRef, Slot, Stop};

/// What a fetch says to the server beside what the client's request says. The client's own conditions and ranges are not
/// sent: the response is for everybody.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// For `If-None-Match`.
    pub etag: Option<BString>,
    /// For `If-Modified-Since`.
    pub last_modified: Option<BString>,
    /// A part of the content.
    pub range: Option<AskedRange>,
}

/// A part of the content that is asked for.
#[derive(Clone, Debug)]
pub struct AskedRange {
    /// The `Range` field.
    pub value: BString,
    /// Only if the content is still what this validator says, for `If-Range`.
    pub condition: Option<BString>,
}

impl AskedRange {
    /// The part of these bytes, if it is still that of this validator. Its end may lie behind that of the content.
    fn new(range: &Range<u64>, validator: BString) -> AskedRange {
        AskedRange {
            value: match range.end {
                u64::MAX => format!("bytes={}-", range.start).into(),
                end => format!("bytes={}-{}", range.start, end - 1).into(),
            },
            condition: Some(validator),
        }
    }
}

impl Ask {
    /// What the fetch that `request` belongs to asks for; `None` for requests that are passed on as they are.
    pub fn of(request: &mut Request) -> Option<&Ask> {
        request.state().map(|ask| &*ask)
    }

    /// Asks for these bytes, if they are still those of this validator.
    pub(super) fn for_part(range: &Range<u64>, validator: BString) -> Ask {
        Ask {
            range: Some(AskedRange::new(range, validator)),
            ..Ask::default()
        }
    }

    /// Whether a field of the client's request stays behind.
    pub fn replaces(field: Known) -> bool {
        matches!(
            field,
            Known::IfModifiedSince
                | Known::IfUnmodifiedSince
                | Known::IfNoneMatch
                | Known::IfMatch
                | Known::Range
                | Known::IfRange
        )
    }

    /// The fields in their place.
    pub fn fields(&self) -> impl Iterator<Item = (Known, BString)> {
        let range = self.range.as_ref();
        [
            (Known::IfModifiedSince, self.last_modified.clone()),
            (Known::IfNoneMatch, self.etag.clone()),
            (Known::Range, range.map(|range| range.value.clone())),
            (
                Known::IfRange,
                range.and_then(|range| range.condition.clone()),
            ),
        ]
        .into_iter()
        .filter_map(|(known, value)| Some((known, value?)))
    }
}

/// A stored object that must not be served as it is.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) object: Object,
    pub(super) stored: Arc<StoredHead>,
    pub(super) reuse: Reuse,
}

/// What followers are told in place of content.
pub(super) enum Told {
    /// Everybody asks for himself; the first one has the exchange.
    Released,
    /// The origin failed; what is stale may be served.
    UseStale,
    /// What is stale is good, under this head.
    Revalidated(Arc<StoredHead>),
    /// The origin failed: this is the status.
    Status(u16),
    /// What is stored is not what the origin has: look again.
    Again,
    /// It goes on here: what was asked for is a part, or all where a part was asked for.
    Follow(Mutex<Follower>),
}

/// A part of an object that is missing, and fetched alone.
pub(super) struct Missing {
    pub(super) range: Range<u64>,
    pub(super) object: Object,
    pub(super) stored: Arc<StoredHead>,
}

/// Where a fetch leaves what the client that began it gets, on the same loop.
#[derive(Default)]
pub(super) struct Hand {
    exchange: RefCell<Option<(Box<Exchange>, Slot)>>,
    tries: RefCell<Vec<Try>>,
    /// How many tries the client's request had before.
    before: Cell<Option<usize>>,
    /// Interim responses that the client has not got yet, and who waits for them.
    interim: RefCell<Vec<u8>>,
    waiting: RefCell<Option<Waker>>,
}

impl Hand {
    /// The exchange itself, when the response is for this client alone. The request gets its record.
    pub(super) fn take_exchange(&self, request: &mut Request) -> Option<Box<Exchange>> {
        let (exchange, slot) = self.exchange.borrow_mut().take()?;
        // What was copied of its tries so far comes with the record itself.
        if let Some(before) = self.before.get() {
            request.upstream.get_or_make().tries.truncate(before);
        }
        request.upstream.absorb(slot);
        Some(exchange)
    }

    /// Takes an interim response for the client that began.
    fn relay(&self, bytes: &[u8]) {
        self.interim.borrow_mut().extend_from_slice(bytes);
        if let Some(waiting) = self.waiting.borrow_mut().take() {
            waiting.wake();
        }
    }

    /// The interim responses that came since it was asked last. What comes later wakes the asker.
    pub(super) fn poll_interim(&self, context: &mut Context<'_>) -> Vec<u8> {
        self.waiting.replace(Some(context.waker().clone()));
        self.interim.take()
    }

    /// Copies what is known of the tries into the request's record.
    pub(super) fn update(&self, request: &mut Request) {
        let record = request.upstream.get_or_make();
        let before = self.before.get().unwrap_or(record.tries.len());
        self.before.set(Some(before));
        record.tries.truncate(before);
        let tries = self.tries.borrow();
        if before > 0 && !tries.is_empty() {
            record.tries.push(Try::default());
        }
        record.tries.extend(tries.iter().cloned());
    }
}

/// A fetch before it begins.
pub(super) struct Fetch {
    pub(super) request: Request,
    pub(super) settings: SettingsRef,
    pub(super) source: &'static Source,
    pub(super) store: Store,
    /// The key that requests have.
    pub(super) primary: Key,
    /// The key that is fetched: the same, or that of a variant.
    pub(super) key: Key,
    /// The marker under the primary key, if there is one.
    pub(super) marker: Option<(u64, Vec<Box<[u8]>>)>,
    pub(super) stale: Option<Held>,
    pub(super) hand: Rc<Hand>,
    /// When the request was sent, in milliseconds since the epoch.
    pub(super) requested_ms: u64,
    /// The birth of the fill, once it runs.
    pub(super) born: u64,
    /// What is fetched, if it is not the whole.
    pub(super) missing: Option<Missing>,
    /// What the exchange said of its length.
    pub(super) framed: ContentLength,
}

/// What a response is good for.
pub(super) enum Judged {
    /// Storing.
    Store(Freshness),
    /// Nothing but its own client. `known` is whether every response of the key is likely to be like that.
    Pass { known: bool },
}

impl Fetch {
    /// Asks the server and does all that follows.
    pub(super) async fn run(mut self, writer: Writer) {
        self.born = writer.born();
        let hand = Rc::clone(&self.hand);
        self.request
            .set_state(Relay(Rc::new(move |bytes| hand.relay(bytes))));
        // Twice at most: a 304 about something else is answered by asking without conditions.
        for _ in 0..2 {
            let exchange = match self.exchange().await {
                Ok(exchange) => exchange,
                Err(stop) => {
                    self.publish();
                    return self.failed(writer, &stop);
                }
            };
            self.publish();
            match self.look(exchange) {
                Next::Again => self.request.set_state(Ask::default()),
                Next::Told(told) => return writer.instead(Instead::new(told)),
                Next::Exchange(exchange) => return self.go_on(writer, exchange).await,
            }
        }
        writer.instead(Instead::new(Told::Status(502)));
    }

    pub(super) async fn exchange(&mut self) -> Result<Box<Exchange>, Stop> {
        let mut plan = (self.source.plan)(&mut self.request).map_err(|outcome| match outcome {
            Outcome::Status(status) => Stop::Status(status),
            _ => Stop::Status(500),
        })?;
        plan.watch_client = false;
        self.requested_ms = rt::wall_millis();
        Exchange::run(&mut self.request, plan).await
    }

    /// Lets the client that began see what happened so far.
    pub(super) fn publish(&self) {
        if let Some(record) = self.request.upstream.get() {
            self.hand.tries.borrow_mut().clone_from(&record.tries);
        }
    }

    fn failed(self, writer: Writer, stop: &Stop) {
        let (status, reasons) = match *stop {
            Stop::Status(status) => (status, 0),
            Stop::Failed(status, reasons) => (status, reasons),
        };
        if self.may_use_stale(reasons, true) {
            return writer.instead(Instead::new(Told::UseStale));
        }
        match self.settings.cache.valid_s(status) {
            Some(seconds) if seconds > 0 && matches!(status, 502 | 504) => {
                self.store_error(writer, status, seconds);
            }
            _ => writer.instead(Instead::new(Told::Status(status))),
        }
    }

    /// Whether the stale object may be served for these reasons. `is_silent`: there is no response at all.
    fn may_use_stale(&self, reasons: u32, is_silent: bool) -> bool {
        let Some(stale) = &self.stale else {
            return false;
        };
        let (any, listed) = match stale.reuse {
            Reuse::Validate {
                on_any_error,
                on_listed_error,
                ..
            } => (on_any_error, on_listed_error),
            Reuse::WhileRevalidate => (true, true),
            Reuse::Fresh => (true, true),
        };
        // As in nginx, what the origin allows counts when it is not there, not when it says that it has failed.
        any && is_silent && reasons != 0 || listed && self.settings.cache.use_stale.any(reasons)
    }

    /// Stores that the origin failed, for as long as that is configured.
    fn store_error(self, mut writer: Writer, status: u16, seconds: u32) {
        let now_ms = rt::wall_millis();
        let head = head_of(status, Fields::new());
        let stored = StoredHead {
            head: Arc::new(head),
            reason: None,
            freshness: Freshness {
                received_ms: now_ms,
                initial_age_s: 0,
                fresh_until_ms: now_ms.saturating_add(u64::from(seconds) * 1000),
                source: Says::Configured,
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

    /// What is to be said of a response whose head is there.
    fn look(&mut self, mut exchange: Box<Exchange>) -> Next {
        let record = self.request.upstream.get_or_make();
        let head = Arc::clone(&record.head);
        let asked = self.request.state::<Ask>().cloned().unwrap_or_default();
        let conditional = asked.etag.is_some() || asked.last_modified.is_some();
        if head.status == 304 && conditional {
            exchange.finish_without_content(&mut self.request);
            self.publish();
            return match self.revalidate(&head) {
                Some(stored) => Next::Told(Told::Revalidated(stored)),
                None => Next::Again,
            };
        }
        if let Some(bit) = NextUpstream::of_status(head.status)
            && self.may_use_stale(bit, false)
        {
            exchange.finish_without_content(&mut self.request);
            self.publish();
            return Next::Told(Told::UseStale);
        }
        Next::Exchange(exchange)
    }

    /// Renews the stale object by a 304; `None` if the 304 is not about it.
    fn revalidate(&mut self, head: &ResponseHead) -> Option<Arc<StoredHead>> {
        let stale = self.stale.clone()?;
        let merged = caching::merge_304(&stale.stored.head.fields, &caching::keep(&head.fields))?;
        let stored = self.renewed(&stale.stored, merged);
        let object = &stale.object;
        let length = object.head().length;
        let mut renewed = meta(&stored, length, rt::wall_millis());
        renewed.stored_ms = object.head().meta.stored_ms;
        self.store
            .refresh(object, renewed, Some(stored.encode()), self.born);
        Some(Arc::new(stored))
    }

    /// A stored head with fields that were said now.
    fn renewed(&mut self, stored: &StoredHead, fields: Fields) -> StoredHead {
        let mut stored = stored.clone();
        let mut renewed = ResponseHead::clone(&stored.head);
        renewed.fields = dated(fields);
        stored.head = Arc::new(renewed);
        let now_ms = rt::wall_millis();
        // What is said of the time now counts first; then what was said with the content.
        stored.freshness = match self.judge(stored.head.status, &stored.head.fields.clone()) {
            Judged::Store(freshness) => freshness,
            Judged::Pass { .. } => Freshness {
                received_ms: now_ms,
                fresh_until_ms: now_ms,
                ..stored.freshness
            },
        };
        stored
    }

    pub(super) fn judge(&mut self, status: u16, fields: &Fields) -> Judged {
        let response = Response {
            status,
            fields,
            requested_ms: self.requested_ms,
            received_ms: rt::wall_millis(),
        };
        judge(&mut self.request, &self.settings, &response)
    }

    /// Goes on with a response of which nothing is decided yet but that it comes from the origin.
    pub(super) async fn go_on(mut self, writer: Writer, mut exchange: Box<Exchange>) {
        self.framed = exchange.content_length();
        let head = Arc::clone(&self.request.upstream.get_or_make().head);
        if let Some(missing) = self.missing.take_if(|missing| missing.is_in(&head)) {
            return self.fill_hole(writer, exchange, missing).await;
        }
        if self.missing.is_some() && matches!(head.status, 206 | 416) {
            exchange.finish_without_content(&mut self.request);
            self.store.purge(Purge::Key(&self.key), Mode::Hard);
            return writer.instead(Instead::new(Told::Again));
        }
        let keeps = fits(&self.store, &exchange) && is_buffered(&self.settings, &head);
        let judged = match keeps {
            true => self.judge(head.status, &head.fields),
            false => Judged::Pass { known: true },
        };
        let freshness = match judged {
            Judged::Store(freshness) => freshness,
            Judged::Pass { known } => {
                // An origin that fails says nothing of what it will say when it is well.
                if known && head.status < 500 && head.status != 429 {
                    let time = self.settings.cache.uncacheable_time.as_millis();
                    let time = u64::try_from(time).unwrap_or(u64::MAX);
                    let until_ms = rt::wall_millis().saturating_add(time);
                    self.store.learn_uncacheable(&self.key, until_ms);
                }
                return self.release(writer, exchange);
            }
        };
        let asked = self.missing.is_none() && self.asks_for_a_part();
        match Brings::of(&self.request, &self.settings, &exchange, &head, freshness) {
            Brings::Nothing => return self.release(writer, exchange),
            Brings::Part(part) => return self.store_part(writer, exchange, part, &head).await,
            Brings::Whole if asked && head.status == 416 => return self.release(writer, exchange),
            Brings::Whole if asked => {
                let Some((whole, follower)) = writer.turn_into(&self.key, None) else {
                    return self.release(writer, exchange);
                };
                writer.instead(Instead::new(Told::Follow(Mutex::new(follower))));
                return self.store(whole, exchange, &head, freshness).await;
            }
            Brings::Whole => {}
        }
        let writer = match self.missing.take() {
            None => writer,
            Some(_) => {
                // Another version: whoever wanted a part of the old one finds it, and nobody gets the old one any more.
                self.store.purge(Purge::Key(&self.key), Mode::Hard);
                let (whole, _) = self.store.fill_anew(&self.key, rt::wall_millis());
                writer.instead(Instead::new(Told::Again));
                whole
            }
        };
        self.store(writer, exchange, &head, freshness).await;
    }

    fn asks_for_a_part(&mut self) -> bool {
        let ask = self.request.state::<Ask>();
        ask.is_some_and(|ask| ask.range.is_some())
    }

    /// The exchange is for the client that began; the others ask for themselves.
    fn release(mut self, writer: Writer, exchange: Box<Exchange>) {
        if writer.first_stays() {
            let slot = std::mem::take(&mut self.request.upstream);
            self.hand.exchange.replace(Some((exchange, slot)));
        }
        writer.instead(Instead::new(Told::Released));
    }

    /// Stores what was missing of an object. What the part says of the whole is newer than what was said before (RFC 9111,
    /// section 3.4).
    async fn fill_hole(mut self, mut writer: Writer, exchange: Box<Exchange>, missing: Missing) {
        let head = Arc::clone(&self.request.upstream.get_or_make().head);
        let mut fields = caching::keep(&head.fields);
        fields.remove_known(Known::ContentRange);
        let before = &missing.stored.head.fields;
        let merged = caching::merge_304(before, &fields).unwrap_or_else(|| before.clone());
        let stored = self.renewed(&missing.stored, merged);
        let length = missing.object.length();
        let mut head = missing.object.head().clone();
        head.meta = Meta {
            stored_ms: head.meta.stored_ms,
            ..meta(&stored, Some(length), rt::wall_millis())
        };
        head.head = stored.encode();
        writer.ends_at(missing.range.end);
        writer.head(head);
        self.request.out.body = exchange.into_content(&mut self.request);
        self.content(writer, &stored, Some(length), missing.range.end)
            .await;
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
        self.store.forget_uncacheable(&self.key);
        let key = self.choose_key(&mut stored, rt::wall_millis());
        let Some((mut brings, follower)) = writer.turn_into(&self.key, Some(range.start)) else {
            return self.release(writer, exchange);
        };
        brings.ends_at(range.end);
        brings.head_as(key, described(&stored, &head.fields, Some(length)));
        writer.instead(Instead::new(Told::Follow(Mutex::new(follower))));
        self.request.out.body = exchange.into_content(&mut self.request);
        self.content(brings, &stored, Some(length), range.end).await;
    }

    /// Stores the response.
    pub(super) async fn store(
        mut self,
        mut writer: Writer,
        exchange: Box<Exchange>,
        head: &ResponseHead,
        freshness: Freshness,
    ) {
        self.store.forget_uncacheable(&self.key);
        self.framed = exchange.content_length();
        let now_ms = rt::wall_millis();
        let header_only = self.request.flow.header_only;
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
            kind: if header_only {
                Kind::HeadOnly
            } else {
                Kind::Content
            },
        };
        let key = self.choose_key(&mut stored, now_ms);
        writer.head_as(key, described(&stored, &head.fields, length));
        self.request.out.body = exchange.into_content(&mut self.request);
        if self.request.method != self.request.head.wire.method {
            // The client asked for HEAD: it does not follow the content, and what has come of it is known now.
            self.publish();
        }
        self.content(writer, &stored, length, u64::MAX).await;
    }

    /// The key under which the response belongs: its own for each variant.
    fn choose_key(&mut self, stored: &mut StoredHead, now_ms: u64) -> Key {
        let ignored = self.settings.cache.rules.ignore & Rules::VARY != 0;
        let names = match vary::of(&stored.head.fields) {
            vary::Vary::Names(names) if !ignored => names,
            _ => return self.primary.clone(),
        };
        let values = values(&names, &self.request.head.wire.fields);
        let born = match &self.marker {
            Some((born, known)) if *known == names => *born,
            _ => {
                let marker = Marker {
                    names: names.clone(),
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
}

impl Fetch {
    /// What chooses a variant that is in the language which its client prefers.
    fn values_by_language(&self, names: &[Box<[u8]>], fields: &Fields) -> Option<Vec<u8>> {
        if !self.settings.cache.language || !names.iter().any(|name| **name == *ACCEPT_LANGUAGE) {
            return None;
        }
        let request = &self.request.head.wire.fields;
        let language = vary::language(request, fields)?;
        Some(values_by_language(names, request, &language))
    }
}

/// Fields with a date: that of a hit is the date of the response, not of the hit (RFC 9110, section 6.6.1).
fn dated(mut fields: Fields) -> Fields {
    if !fields.has(Known::Date) {
        fields.push_known_with(Known::Date, crate::clock::write_http_date);
    }
    fields
}

/// What a fetch does next.
enum Next {
    Again,
    Told(Told),
    Exchange(Box<Exchange>),
}

/// What tells one version of a response from the next, for `If-Range`.
pub(super) fn validator(fields: &Fields) -> Option<BString> {
    let tag = fields
        .get_known(Known::Etag)
        .filter(|tag| !etag::is_weak(tag));
    tag.or(fields.get_known(Known::LastModified))
        .map(BString::from)
}

impl Missing {
    /// Whether a response is this part of this object.
    fn is_in(&self, head: &ResponseHead) -> bool {
        let fields = &self.stored.head.fields;
        continues(head, fields, self.range.clone(), self.object.length())
    }
}

/// Whether a response is this part of one with these fields and this length.
pub(super) fn continues(
    head: &ResponseHead,
    fields: &Fields,
    part: Range<u64>,
    length: u64,
) -> bool {
    let range = head
        .fields
        .get_known(Known::ContentRange)
        .and_then(proto::range::parse_content_range);
    let same = [Known::Etag, Known::LastModified].iter().all(|known| {
        head.fields
            .get_known(*known)
            .is_none_or(|value| fields.get_known(*known) == Some(value))
    });
    head.status == 206 && same && range == Some((Some(part), Some(length)))
}

/// What a response that may be stored brings of what stands under the key.
pub(super) enum Brings {
    /// It is what stands there, whatever its status.
    Whole,
    /// A part of the content.
    Part(BroughtPart),
    /// A part that was not asked for, or is not the one that was, or that nobody can place.
    Nothing,
}

/// A part of content, and the head of the whole.
pub(super) struct BroughtPart {
    stored: StoredHead,
    range: Range<u64>,
    length: u64,
}

impl Brings {
    /// A 206 is a part where the client asked for one. Where the key has the range in it, as with `slice`, and where the
    /// location itself asks for a part, the response is what stands under the key, as in nginx.
    pub(super) fn of(
        request: &Request,
        settings: &SettingsRef,
        exchange: &Exchange,
        head: &ResponseHead,
        freshness: Freshness,
    ) -> Brings {
        // Not even a part that was asked for (RFC 9110, section 15.3.7): nobody knows what it is.
        if head.status == 206 && !exchange.asks().part {
            return Brings::Nothing;
        }
        let asked = request.head.known(Known::Range).is_some();
        if head.status != 206 || !asked || settings.cache.key_has_range() {
            return Brings::Whole;
        }
        let range = head.fields.get_known(Known::ContentRange);
        let range = range.and_then(proto::range::parse_content_range);
        let Some((Some(range), Some(length))) = range else {
            return Brings::Nothing;
        };
        // One that is not as long as it says belongs nowhere.
        if matches!(exchange.content_length(), ContentLength::Known(len) if len != range.end - range.start)
        {
            return Brings::Nothing;
        }
        let mut fields = caching::keep(&head.fields);
        fields.remove_known(Known::ContentRange);
        let stored = StoredHead {
            head: Arc::new(head_of(200, dated(fields))),
            reason: None,
            freshness,
            variant: None,
            kind: Kind::Content,
        };
        let has_version = stored.version(Some(length)) != 0;
        match is_begun_by(&wanted(request, &stored, length), &range, has_version) {
            true => Brings::Part(BroughtPart {
                stored,
                range,
                length,
            }),
            false => Brings::Nothing,
        }
    }
}

/// Whether the store can hold the content beside other things. One that is as large would push out all else, and then
/// itself.
pub(super) fn fits(store: &Store, exchange: &Exchange) -> bool {
    match exchange.content_length() {
        ContentLength::Known(length) => length <= store.max_size() / 2,
        ContentLength::None | ContentLength::Unknown => true,
    }
}

/// Judges a response by the rules of the location.
pub(super) fn judge(request: &mut Request, settings: &SettingsRef, response: &Response) -> Judged {
    let fields = response.fields;
    let redirects =
        fields.has(Known::XAccelRedirect) && !settings.ignore_headers.has(Known::XAccelRedirect);
    if response.status < 200 || response.status == 304 || redirects {
        return Judged::Pass { known: false };
    }
    let cache = &settings.cache;
    let asked = Asked {
        authorization: request.head.known(Known::Authorization).is_some()
            && !cache.key_has_credentials(),
    };
    let configured_s = cache.valid_s(response.status);
    match caching::judge(response, &asked, &cache.rules, configured_s) {
        Verdict::Store(freshness) => {
            let refused = cache.no_cache.iter().any(|value| request.is_true(value));
            if refused {
                return Judged::Pass { known: false };
            }
            Judged::Store(freshness)
        }
        Verdict::Pass(why) => {
            request.debug(format_args!("http cache: not stored: {}", why.word()));
            Judged::Pass { known: true }
        }
    }
}

/// What the store keeps of a response beside its content. `length` is that of the whole.
fn described(stored: &StoredHead, fields: &Fields, length: Option<u64>) -> Head {
    Head {
        meta: meta(stored, length, rt::wall_millis()),
        head: stored.encode(),
        tags: caching::invalidation::tags(fields)
            .into_iter()
            .map(Bytes::from)
            .collect(),
        length,
    }
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
