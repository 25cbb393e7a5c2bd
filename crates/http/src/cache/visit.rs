//! One request at the cache: its key, what is found under it, and what is done with that.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use cache::{Follower, Key, Kind as ObjectKind, Lookup, Miss, Object, Seen, Start, Store, Why};
use conf::Expression;
use proto::Known;
use proto::caching::status::{CacheStatus, Forward, Outcome as Fate};
use proto::caching::{self, Freshness, RequestControl, Response, Reuse, StaleRules};
use proto::h1::Method;
use proto::range::Ranges;

use super::answer::{Answer, add_status_field, body_of};
use super::changes::{HEAD_ONLY, purge};
use super::fetch::{Ask, AskedRange, Brings, Held, Judged, fits, judge};
use super::head::{ACCEPT_LANGUAGE, Marker, StoredHead, values, values_by_language};
use super::settings::Which;
use super::zone::{Cache, Caches};
use super::{Source, Status};
use crate::module::{Outcome, Step};
use crate::request::Request;
use crate::upstream::respond::is_buffered;
use crate::upstream::{self, Exchange, SettingsRef};

/// How often a request looks again because the store changed under it, or a fetch that it followed came to nothing.
const ROUNDS: u32 = 5;

/// How long a request waits until the store has what came to its end a moment ago, before it asks for itself.
const COMMIT_WAIT: Duration = Duration::from_secs(1);

/// Answers a request: from the cache, or through it, or past it.
pub fn serve<'a>(
    request: &'a mut Request,
    settings: SettingsRef,
    source: &'static Source,
) -> Step<'a> {
    if !settings.cache.is_on() {
        return pass_by(request, source);
    }
    match Visit::begin(request, settings, source) {
        Begin::Done(outcome) => outcome.into(),
        Begin::PassBy => pass_by(request, source),
        Begin::Changes(visit) => Step::later(visit.pass_a_change_on(request)),
        Begin::Visit(visit) => Step::later(visit.run(request)),
    }
}

fn pass_by<'a>(request: &'a mut Request, source: &'static Source) -> Step<'a> {
    match (source.plan)(request) {
        Ok(plan) => Step::later(upstream::pass(request, plan)),
        Err(outcome) => outcome.into(),
    }
}

/// How a visit begins.
enum Begin {
    /// And ends at once.
    Done(Outcome),
    /// The cache has nothing to do with this request.
    PassBy,
    /// The request is one that changes what the cache may have.
    Changes(Box<Visit>),
    /// The store, or the origin, has to be waited for.
    Visit(Box<Visit>),
}

/// A request at the cache.
#[derive(Clone)]
pub(super) struct Visit {
    pub(super) settings: SettingsRef,
    pub(super) source: &'static Source,
    pub(super) store: Store,
    pub(super) primary: Key,
    /// The key of what answers GET, for HEAD that is asked as such.
    whole: Option<Key>,
    /// What the client says of caching, where that counts.
    pub(super) control: Option<RequestControl>,
    bypass: bool,
    /// Requests so far for a key that is not stored before `min_uses`.
    few_uses: bool,
    /// A variant that a fetch turned out to be one of; its marker may not be visible yet.
    pub(super) hint: Option<Names>,
    /// A fetch that was followed was for somebody else alone: ask alone, too.
    pub(super) alone: bool,
}

/// The birth of a marker, and the fields of requests that its variants differ by.
pub(super) type Names = (u64, Vec<Box<[u8]>>);

/// Where a response is looked for: the key, and the marker above it if it is that of a variant.
pub(super) type At = (Key, Option<Names>);

/// What was found, and where.
struct Found {
    what: What,
    key: Key,
    marker: Option<Names>,
}

/// What was found.
enum What {
    /// By the store.
    Looked(Lookup),
    /// A response that has come to its end, and is not committed yet.
    Arrived(Follower),
}

/// How a round ends.
pub(super) enum Round {
    Done(Outcome),
    Again,
}

impl From<Outcome> for Round {
    fn from(outcome: Outcome) -> Round {
        Round::Done(outcome)
    }
}

impl Visit {
    fn begin(request: &mut Request, settings: SettingsRef, source: &'static Source) -> Begin {
        let conf = &settings.cache;
        let looked_up = conf.has_method(request.method);
        let changes = !looked_up && conf.invalidate && !request.method.is_safe();
        let purges =
            !conf.purge.is_empty() && conf.purge.iter().any(|value| request.is_true(value));
        if !looked_up && !changes && !purges {
            return Begin::PassBy;
        }
        let cache = match choose(request, &conf.cache) {
            Ok(Some(cache)) => cache,
            Ok(None) => return Begin::PassBy,
            Err(status) => return Begin::Done(Outcome::Status(status)),
        };
        let Some(store) = cache.store() else {
            return Begin::PassBy;
        };
        let mut text = match key_text(request, conf.key.as_ref(), source) {
            Ok(text) => text,
            Err(outcome) => return Begin::Done(outcome),
        };
        if purges {
            return Begin::Done(purge(&store, &text));
        }
        let mut whole = None;
        if request.method == Method::Head && !conf.convert_head {
            // What answers HEAD alone has no content, which no GET must get; but what answers GET answers HEAD.
            whole = Some(Key::new(&text));
            text.extend_from_slice(HEAD_ONLY);
        }
        let mut visit = Visit {
            primary: Key::new(&text),
            whole,
            control: conf
                .request_control
                .then(|| RequestControl::parse(&request.head.wire.fields)),
            bypass: false,
            few_uses: false,
            hint: None,
            alone: false,
            source,
            store,
            settings,
        };
        if changes {
            return Begin::Changes(Box::new(visit));
        }
        let conf = &visit.settings.cache;
        visit.bypass = conf.bypass.iter().any(|value| request.is_true(value));
        if visit.bypass {
            return Begin::Visit(Box::new(visit));
        }
        if conf.min_uses > 1 {
            let least = u64::try_from(conf.min_uses).unwrap_or(0);
            visit.few_uses = cache.count_use(&text) < least;
        }
        // Content of a request is read in any case.
        let peeked = match request.body.exists() || visit.whole.is_some() {
            true => None,
            false => visit.peek(request),
        };
        match peeked {
            Some(outcome) => Begin::Done(outcome),
            None => Begin::Visit(Box::new(visit)),
        }
    }

    /// Answers with an object that is in memory and fresh: most hits end here.
    fn peek(&self, request: &mut Request) -> Option<Outcome> {
        let now_ms = rt::wall_millis();
        let peek = |key: &Key| match self.store.arrived(key) {
            Some(_) => None,
            None => self.store.peek(key, now_ms),
        };
        let mut found = peek(&self.primary)?;
        if let Lookup::Hit(object) = &found
            && object.head().meta.kind == ObjectKind::Variants
        {
            let (key, _) = self.variant_of(request, object)?;
            found = peek(&key)?;
        }
        let Lookup::Hit(object) = found else {
            return None;
        };
        let stored = decode(&object)?;
        let fresh = object.is_complete() && self.reuse(&stored, now_ms) == Reuse::Fresh;
        fresh.then(|| self.serve_object(request, &object, &stored, Status::Hit))
    }

    async fn run(mut self: Box<Self>, request: &mut Request) -> Outcome {
        request.upstream.get_or_make();
        if request.body.exists()
            && let Err(status) = crate::body_reader::read(request).await
        {
            return Outcome::Status(status);
        }
        if self.bypass {
            return self.fetch_alone(request, Status::Bypass).await;
        }
        if let Some(whole) = self.whole.take()
            && let Some(outcome) = self.serve_head_of(request, whole).await
        {
            return outcome;
        }
        for _ in 0..ROUNDS {
            match self.round(request).await {
                Round::Done(outcome) => return outcome,
                Round::Again => {}
            }
        }
        self.fetch_alone(request, Status::Miss).await
    }

    /// Answers HEAD with the head of what is stored for GET, if that is fresh.
    async fn serve_head_of(&mut self, request: &mut Request, whole: Key) -> Option<Outcome> {
        let now_ms = rt::wall_millis();
        let own = std::mem::replace(&mut self.primary, whole);
        let found = self.find(request, now_ms).await;
        self.primary = own;
        let What::Looked(Lookup::Hit(object)) = found.what else {
            return None;
        };
        let stored = decode(&object)?;
        let fresh = object.is_complete() && self.reuse(&stored, now_ms) == Reuse::Fresh;
        fresh.then(|| self.serve_object(request, &object, &stored, Status::Hit))
    }

    async fn round(&mut self, request: &mut Request) -> Round {
        let now_ms = rt::wall_millis();
        let found = self.find(request, now_ms).await;
        let lookup = match found.what {
            What::Looked(lookup) => lookup,
            What::Arrived(follower) => return self.just_arrived(request, follower).await,
        };
        let seen = lookup.seen();
        let (object, purged) = match lookup {
            Lookup::Hit(object) => (object, false),
            Lookup::Stale(object, why) => (object, why == Why::Purged),
            Lookup::Miss(why, _) => {
                let learned = matches!(why, Miss::Uncacheable { .. });
                return self
                    .nothing_there(request, found.key, found.marker, seen, learned)
                    .await;
            }
        };
        let stored = decode(&object);
        let stored = match stored {
            Some(stored) if object.is_complete() => stored,
            Some(stored) if !purged && self.is_usable_in_part(&object, &stored, now_ms) => {
                let at = (found.key, found.marker);
                return self.serve_parts(request, object, stored, at, seen).await;
            }
            _ => {
                return self
                    .nothing_there(request, found.key, found.marker, seen, false)
                    .await;
            }
        };
        let reuse = match purged {
            true => Reuse::Validate {
                on_any_error: false,
                on_listed_error: true,
                while_updating: self.stale_rules().updating,
            },
            false => self.reuse(&stored, now_ms),
        };
        if reuse == Reuse::Fresh {
            return self
                .serve_object(request, &object, &stored, Status::Hit)
                .into();
        }
        let held = Held {
            object,
            stored,
            reuse,
        };
        self.stale(request, held, found.key, found.marker, seen)
            .await
    }

    /// Answers with a response that has come to its end, or waits until the store has it.
    async fn just_arrived(&mut self, request: &mut Request, follower: Follower) -> Round {
        let now_ms = rt::wall_millis();
        let stored = follower
            .known_head()
            .and_then(|head| StoredHead::decode(&head.head));
        if stored.is_some_and(|stored| self.reuse(&stored, now_ms) == Reuse::Fresh) {
            return self
                .follow(request, follower, None, Status::Hit, None)
                .await;
        }
        // It must be validated first, for which it has to be an object.
        drop(follower);
        match rt::timeout(COMMIT_WAIT, self.store.flush()).await {
            Ok(()) => Round::Again,
            Err(_) => self.fetch_alone(request, Status::Expired).await.into(),
        }
    }

    async fn find(&self, request: &Request, now_ms: u64) -> Found {
        let primary = &self.primary;
        let own = |(born, names): Names| {
            let values = values(&names, &request.head.wire.fields);
            (primary.variant_of(born, &values), Some((born, names)))
        };
        if let Some(names) = &self.hint {
            return self.look(own(names.clone()), now_ms).await;
        }
        if let Some(follower) = self.store.arrived(primary) {
            // Its marker may not be there yet.
            return match variant_named_by(&follower) {
                Some(names) => self.look(own(names), now_ms).await,
                None => Found {
                    what: What::Arrived(follower),
                    key: primary.clone(),
                    marker: None,
                },
            };
        }
        let lookup = self.lookup(primary, now_ms).await;
        if let Lookup::Hit(object) | Lookup::Stale(object, _) = &lookup
            && object.head().meta.kind == ObjectKind::Variants
            && let Some((key, names)) = self.variant_of(request, object)
        {
            let at = (key, Some((object.born(), names)));
            let mut found = self.look(at, now_ms).await;
            self.look_by_language(request, object.born(), &mut found, now_ms)
                .await;
            if matches!(lookup, Lookup::Stale(_, Why::Purged))
                && let What::Looked(Lookup::Hit(object)) = found.what
            {
                found.what = What::Looked(Lookup::Stale(object, Why::Purged));
            }
            return found;
        }
        Found {
            what: What::Looked(lookup),
            key: primary.clone(),
            marker: None,
        }
    }

    /// Looks for a variant in a language that the client prefers, if there is none that was chosen by the same words.
    async fn look_by_language(&self, request: &Request, born: u64, found: &mut Found, now_ms: u64) {
        let (What::Looked(Lookup::Miss(..)), Some((_, names))) = (&found.what, &found.marker)
        else {
            return;
        };
        if !self.settings.cache.language || !names.iter().any(|name| **name == *ACCEPT_LANGUAGE) {
            return;
        }
        let names = names.clone();
        let fields = &request.head.wire.fields;
        for language in caching::vary::preferred_languages(fields) {
            let values = values_by_language(&names, fields, &language);
            let key = self.primary.variant_of(born, &values);
            let other = self.look((key, Some((born, names.clone()))), now_ms).await;
            if !matches!(other.what, What::Looked(Lookup::Miss(..))) {
                *found = other;
                return;
            }
        }
    }

    async fn look(&self, (key, marker): At, now_ms: u64) -> Found {
        let what = match self.store.arrived(&key) {
            Some(follower) => What::Arrived(follower),
            None => What::Looked(self.lookup(&key, now_ms).await),
        };
        Found { what, key, marker }
    }

    async fn lookup(&self, key: &Key, now_ms: u64) -> Lookup {
        if self.store.is_settling(key) {
            // A part of a response is worth a moment; if it does not come, the whole is fetched.
            let _ = rt::timeout(COMMIT_WAIT, self.store.settle(key)).await;
        }
        self.store.lookup(key, now_ms).await
    }

    /// The key of the variant that this request gets, below a marker.
    fn variant_of(&self, request: &Request, marker: &Object) -> Option<(Key, Vec<Box<[u8]>>)> {
        let names = Marker::decode(&marker.head().head)?.names;
        let values = values(&names, &request.head.wire.fields);
        Some((self.primary.variant(marker, &values), names))
    }

    pub(super) fn stale_rules(&self) -> StaleRules {
        let use_stale = self.settings.cache.use_stale;
        StaleRules {
            error: true,
            updating: use_stale.any(super::UseStale::UPDATING),
        }
    }

    pub(super) fn reuse(&self, stored: &StoredHead, now_ms: u64) -> Reuse {
        let control = self.control.as_ref();
        caching::reuse(&stored.freshness, now_ms, self.stale_rules(), control)
    }

    pub(super) fn serve_object(
        &self,
        request: &mut Request,
        object: &Object,
        stored: &Arc<StoredHead>,
        status: Status,
    ) -> Outcome {
        let asked = (status == Status::Revalidated).then_some((Forward::Stale, false));
        Answer {
            settings: &self.settings,
            store: &self.store,
            source: self.source,
            stored,
            status,
            asked,
            body: body_of(object),
            length: Some(object.length()),
        }
        .send(request)
    }

    /// Nothing that could be served is stored.
    pub(super) async fn nothing_there(
        &mut self,
        request: &mut Request,
        key: Key,
        marker: Option<Names>,
        seen: Seen,
        learned: bool,
    ) -> Round {
        if self.control.is_some_and(|control| control.only_if_cached()) {
            return Outcome::Status(504).into();
        }
        if self.few_uses || self.must_not_store(request) {
            return self.pass(request, Status::Miss).await.into();
        }
        if let Some(range) = self.part_asked_for(request) {
            if learned || self.alone {
                return self.pass(request, Status::Miss).await.into();
            }
            if let Some(follower) = self.store.filling(&key) {
                let at = (key, marker);
                return self.join(request, follower, Status::Miss, None, at).await;
            }
            return self.fetch_part(request, range, (key, marker), seen).await;
        }
        if learned || self.alone {
            return self.fetch_alone(request, Status::Miss).await.into();
        }
        self.fetch(request, Status::Miss, None, (key, marker), seen)
            .await
    }

    /// Whether the client asks for something that is passed on as it is: a range far inside.
    pub(super) fn must_not_store(&self, request: &Request) -> bool {
        if self.control.is_some_and(|control| control.no_store()) {
            return true;
        }
        self.is_far_inside(request) && self.part_asked_for(request).is_none()
    }

    /// Whether the client asks for a range that begins behind the part that is fetched as a whole.
    fn is_far_inside(&self, request: &Request) -> bool {
        let Some(most) = self.settings.cache.max_range_offset else {
            return false;
        };
        let Some(range) = request.head.known(Known::Range) else {
            return false;
        };
        most == 0 || range_begins(range).is_some_and(|begin| begin >= most)
    }

    /// The range that the client wants, if it is one that is fetched alone and kept as a part.
    fn part_asked_for(&self, request: &Request) -> Option<AskedRange> {
        let conf = &self.settings.cache;
        if !conf.partial || request.method != Method::Get || conf.key_has_range() {
            return None;
        }
        if conf.max_range_offset.is_some() && !self.is_far_inside(request) {
            return None;
        }
        let core = &request.site.location(request.location).core;
        let value = request.head.known(Known::Range)?;
        let endless = i64::MAX as u64;
        match proto::range::parse(value, endless, core.max_ranges) {
            Ranges::One(range) if range != (0..endless) => Some(AskedRange {
                value: value.into(),
                condition: request.head.known(Known::IfRange).map(BString::from),
            }),
            Ranges::One(_) | Ranges::Many(_) | Ranges::Ignore | Ranges::Unsatisfiable => None,
        }
    }

    /// What is stored is stale.
    async fn stale(
        &mut self,
        request: &mut Request,
        held: Held,
        key: Key,
        marker: Option<Names>,
        seen: Seen,
    ) -> Round {
        if self.control.is_some_and(|control| control.only_if_cached()) {
            return Outcome::Status(504).into();
        }
        if self.must_not_store(request) {
            return self.pass(request, Status::Expired).await.into();
        }
        let may_wait_less = match held.reuse {
            Reuse::WhileRevalidate => true,
            Reuse::Validate { while_updating, .. } => while_updating,
            Reuse::Fresh => true,
        };
        if may_wait_less && !request.flow.background {
            if self.settings.cache.background_update {
                return self
                    .serve_and_renew(request, held, (key, marker), seen)
                    .await;
            }
            match self.store.filling(&key) {
                Some(follower) if follower.is_complete() => {
                    return self
                        .follow(request, follower, None, Status::Hit, None)
                        .await;
                }
                Some(_) => {
                    return self
                        .serve_object(request, &held.object, &held.stored, Status::Updating)
                        .into();
                }
                None => {}
            }
        }
        if self.alone {
            return self
                .fetch_anew(request, Status::Expired, Some(held), (key, marker))
                .await;
        }
        self.fetch(request, Status::Expired, Some(held), (key, marker), seen)
            .await
    }

    /// Serves what is stale, and renews it beside that unless somebody does already.
    async fn serve_and_renew(
        &mut self,
        request: &mut Request,
        held: Held,
        at: At,
        seen: Seen,
    ) -> Round {
        let status = match self.store.fill(&at.0, seen, rt::wall_millis()) {
            Start::First(writer, _) => {
                self.spawn(request, writer, at, Some(held.clone()));
                Status::Stale
            }
            Start::Join(follower) if follower.is_complete() => {
                return self
                    .follow(request, follower, None, Status::Hit, None)
                    .await;
            }
            Start::Join(_) => Status::Updating,
            Start::Uncacheable { .. } => {
                let (writer, _) = self.store.fill_anew(&at.0, rt::wall_millis());
                self.spawn(request, writer, at, Some(held.clone()));
                Status::Stale
            }
            Start::Again => return Round::Again,
        };
        self.serve_object(request, &held.object, &held.stored, status)
            .into()
    }

    /// Asks the origin for this client alone; what turns out to be for everybody is stored all the same.
    pub(super) async fn fetch_alone(&mut self, request: &mut Request, status: Status) -> Outcome {
        // It may turn out to be for everybody: as in nginx, the client's conditions and ranges stay here.
        request.set_state(Ask::default());
        let requested_ms = rt::wall_millis();
        let exchange = match self.exchange(request).await {
            Ok(exchange) => exchange,
            Err((code, _)) => return failed(request, code, status),
        };
        let head = Arc::clone(&request.upstream.get_or_make().head);
        let response = Response {
            status: head.status,
            fields: &head.fields,
            requested_ms,
            received_ms: rt::wall_millis(),
        };
        let judged = judge(request, &self.settings, &response);
        let Judged::Store(freshness) = judged else {
            return self.respond(request, exchange, status);
        };
        // A part is for whoever asked for it alone here.
        let is_whole = matches!(
            Brings::of(request, &self.settings, &exchange, &head, freshness),
            Brings::Whole
        );
        let keeps = fits(&self.store, &exchange) && is_buffered(&self.settings, &head);
        if !is_whole || !keeps {
            return self.respond(request, exchange, status);
        }
        self.store_for_all(request, exchange, freshness, status)
            .await
    }

    /// Stores what an exchange brings, of which the client gets a copy.
    pub(super) async fn store_for_all(
        &mut self,
        request: &mut Request,
        exchange: Box<Exchange>,
        freshness: Freshness,
        status: Status,
    ) -> Outcome {
        let header_only = request.flow.header_only && !self.asks_for_all(request);
        let head = Arc::clone(&request.upstream.get_or_make().head);
        // Beside the variants that there are, if it is one of several.
        let found = self.find(request, rt::wall_millis()).await;
        let at = (found.key, found.marker);
        let (writer, follower) = self.store.fill_anew(&at.0, rt::wall_millis());
        let mut fetch = self.prepare(request, at, None, Ask::default());
        fetch.request.flow.header_only = header_only;
        fetch.request.upstream = std::mem::take(&mut request.upstream);
        let hand = Rc::clone(&fetch.hand);
        fetch.publish();
        rt::spawn_named("cache fetch", async move {
            fetch.store(writer, exchange, &head, freshness).await;
        });
        match self
            .follow(request, follower, Some(hand), status, None)
            .await
        {
            Round::Done(outcome) => outcome,
            Round::Again => Outcome::Status(502),
        }
    }

    pub(super) async fn exchange(
        &self,
        request: &mut Request,
    ) -> Result<Box<Exchange>, (u16, u32)> {
        let plan = (self.source.plan)(request).map_err(|outcome| match outcome {
            Outcome::Status(status) => (status, 0),
            _ => (500, 0),
        })?;
        let asks_for_all = self.asks_for_all(request);
        if asks_for_all {
            request.method = Method::Get;
        }
        let result = Exchange::run(request, plan).await;
        if asks_for_all {
            request.method = Method::Head;
        }
        result.map_err(|stop| match stop {
            upstream::Stop::Status(status) => (status, 0),
            upstream::Stop::Failed(status, reasons) => (status, reasons),
        })
    }

    /// Whether the server is asked for GET though the client asks for HEAD: also where nothing is looked up, so that what is
    /// stored is renewed.
    pub(super) fn asks_for_all(&self, request: &Request) -> bool {
        self.settings.cache.convert_head && request.method == Method::Head
    }

    /// Passes the request on as it is; nothing is stored.
    pub(super) async fn pass(&self, request: &mut Request, status: Status) -> Outcome {
        match self.exchange(request).await {
            Ok(exchange) => self.respond(request, exchange, status),
            Err((code, _)) => failed(request, code, status),
        }
    }

    /// The response of an exchange goes to this client alone.
    pub(super) fn respond(
        &self,
        request: &mut Request,
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
        add_status_field(request, &self.settings, |name| CacheStatus {
            name,
            outcome: Fate::Forwarded {
                why: match status {
                    Status::Bypass => Forward::Bypass,
                    Status::Expired => Forward::Stale,
                    _ => Forward::UriMiss,
                },
                status: Some(code),
                stored: false,
                collapsed: false,
            },
            ttl_s: None,
            detail: None,
        });
        outcome
    }
}

/// Makes ranges of the response, if the origin says that it has any: then they are not its own, and where they are made it
/// is said again.
pub(super) fn make_ranges(request: &mut Request) -> bool {
    let out = &mut request.out;
    let has_ranges = match out.fields.get_known(Known::AcceptRanges) {
        Some(value) if value.eq_ignore_ascii_case(b"none") => return false,
        value => value.is_some(),
    };
    out.fields.remove_known(Known::AcceptRanges);
    out.transforms.ranges |= has_ranges;
    has_ranges
}

/// The key of a request. The error is what to answer with; it has been logged.
pub(super) fn key_text(
    request: &mut Request,
    key: Option<&Expression>,
    source: &Source,
) -> Result<Vec<u8>, Outcome> {
    let mut text = Vec::new();
    match key {
        Some(key) => key.eval(request, &mut text),
        None => (source.key)(request, &mut text)?,
    };
    Ok(text)
}

/// The cache of a location; `None` when a value says that there is none. The error is the status to answer with; it has
/// been logged.
fn choose(request: &mut Request, which: &Which) -> Result<Option<Arc<Cache>>, u16> {
    let name = match which {
        Which::Off => return Ok(None),
        Which::Cache(cache) => return Ok(Some(Arc::clone(cache))),
        Which::Value(value) => request.value(&value.clone()),
    };
    if name.is_empty() || name == "off" {
        return Ok(None);
    }
    match request.site.main_confs.get::<Caches>().find(&name) {
        Some(cache) => Ok(Some(cache)),
        None => {
            request.error(format_args!("cache \"{name}\" not found"));
            Err(500)
        }
    }
}

/// The marker of the variant that somebody fetches, as its head says.
fn variant_named_by(follower: &Follower) -> Option<Names> {
    let head = follower.known_head()?;
    let variant = StoredHead::decode(&head.head)?.variant?;
    Some((variant.born, variant.names))
}

fn decode(object: &Object) -> Option<Arc<StoredHead>> {
    let stored = object.attached(|head| StoredHead::decode(&head.head).map(Arc::new));
    Option::clone(&stored)
}

/// Where the first range of a `Range` field begins; the largest number for a suffix.
pub(super) fn range_begins(value: &BStr) -> Option<u64> {
    let (unit, rest) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(())?;
    let rest = rest.trim_start_with(|c| c == ' ');
    if rest.starts_with(b"-") {
        return Some(u64::MAX);
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    rest[..digits].to_str().ok()?.parse().ok()
}

/// There is no response at all.
fn failed(request: &mut Request, code: u16, status: Status) -> Outcome {
    request.upstream.get_or_make().cache = Some(status);
    Outcome::Status(code)
}
