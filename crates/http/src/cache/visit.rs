//! One request at the cache: its key, what is found under it, and what is done with that.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use cache::{
    Ended, Follower, Key, Kind as ObjectKind, Lookup, Miss, Mode, Object, Purge, Seen, Start,
    Store, Why, Writer,
};
use conf::Expression;
use proto::caching::status::{CacheStatus, Forward, Outcome as Fate};
use proto::caching::{self, RequestControl, Response, Reuse, StaleRules};
use proto::h1::Method;
use proto::{Fields, Known};
use rt::error_log::Level;

use super::answer::{Answer, Following, add_status_field, body_of};
use super::fetch::{Ask, Fetch, Hand, Held, Judged, Told, fits, judge};
use super::head::{Marker, StoredHead, values};
use super::settings::Which;
use super::zone::{Cache, Caches};
use super::{Source, Status};
use crate::module::{Outcome, Step, internal_status};
use crate::request::{Request, Uri};
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
    primary: Key,
    /// What the client says of caching, where that counts.
    pub(super) control: Option<RequestControl>,
    bypass: bool,
    /// Requests so far for a key that is not stored before `min_uses`.
    few_uses: bool,
    /// A variant that a fetch turned out to be one of; its marker may not be visible yet.
    hint: Option<Names>,
    /// A fetch that was followed was for somebody else alone: ask alone, too.
    alone: bool,
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
        if request.method == Method::Head && !conf.convert_head {
            // What answers HEAD alone has no content, which no GET must get.
            text.extend_from_slice(HEAD_ONLY);
        }
        let mut visit = Visit {
            primary: Key::new(&text),
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
        match visit.peek(request) {
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
        if request.body.exists()
            && let Err(status) = crate::body_reader::read(request).await
        {
            return Outcome::Status(status);
        }
        if self.bypass {
            return self.fetch_alone(request, Status::Bypass).await;
        }
        for _ in 0..ROUNDS {
            match self.round(request).await {
                Round::Done(outcome) => return outcome,
                Round::Again => {}
            }
        }
        self.fetch_alone(request, Status::Miss).await
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
            Some(stored) if !purged && self.can_be_completed(&object, &stored, now_ms) => {
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
            let _ = rt::timeout(COMMIT_WAIT, self.store.flush()).await;
        }
        self.store.lookup(key, now_ms).await
    }

    /// The key of the variant that this request gets, below a marker.
    fn variant_of(&self, request: &Request, marker: &Object) -> Option<(Key, Vec<Box<[u8]>>)> {
        let names = Marker::decode(&marker.head().head)?.names;
        let values = values(&names, &request.head.wire.fields);
        Some((self.primary.variant(marker, &values), names))
    }

    fn stale_rules(&self) -> StaleRules {
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

    fn serve_object(
        &self,
        request: &mut Request,
        object: &Object,
        stored: &Arc<StoredHead>,
        status: Status,
    ) -> Outcome {
        let asked = (status == Status::Revalidated).then_some((Forward::Stale, false));
        Answer {
            settings: &self.settings,
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
        let Some(most) = self.settings.cache.max_range_offset else {
            return false;
        };
        let Some(range) = request.head.known(Known::Range) else {
            return false;
        };
        most == 0 || range_begins(range).is_some_and(|begin| begin >= most)
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

    /// Fetches, or follows whoever fetches already.
    async fn fetch(
        &mut self,
        request: &mut Request,
        status: Status,
        held: Option<Held>,
        at: At,
        seen: Seen,
    ) -> Round {
        let now_ms = rt::wall_millis();
        let start = match self.settings.cache.lock {
            true => self.store.fill(&at.0, seen, now_ms),
            false => {
                let (writer, follower) = self.store.fill_anew(&at.0, now_ms);
                Start::First(writer, follower)
            }
        };
        match start {
            Start::First(writer, follower) => {
                let hand = self.spawn(request, writer, at, held.clone());
                self.follow(request, follower, Some(hand), status, held)
                    .await
            }
            Start::Join(follower) => self.join(request, follower, status, held, at).await,
            // What is stale is there to be validated, and to be served in place of an error.
            Start::Uncacheable { .. } if held.is_some() => {
                self.fetch_anew(request, status, held, at).await
            }
            Start::Uncacheable { .. } => self.fetch_alone(request, status).await.into(),
            Start::Again => Round::Again,
        }
    }

    /// Fetches whoever else does.
    async fn fetch_anew(
        &mut self,
        request: &mut Request,
        status: Status,
        held: Option<Held>,
        at: At,
    ) -> Round {
        let (writer, follower) = self.store.fill_anew(&at.0, rt::wall_millis());
        let hand = self.spawn(request, writer, at, held.clone());
        self.follow(request, follower, Some(hand), status, held)
            .await
    }

    /// Follows somebody else's fetch, unless that takes too long.
    pub(super) async fn join(
        &mut self,
        request: &mut Request,
        mut follower: Follower,
        status: Status,
        held: Option<Held>,
        at: At,
    ) -> Round {
        let conf = &self.settings.cache;
        let age_ms = rt::wall_millis().saturating_sub(follower.began_ms());
        let left = conf
            .lock_age
            .map(|most| most.saturating_sub(Duration::from_millis(age_ms)));
        let patience = match (left, conf.lock_timeout) {
            (Some(left), Some(timeout)) => Some(left.min(timeout)),
            (left, timeout) => left.or(timeout),
        };
        let Some(patience) = patience else {
            return self.follow(request, follower, None, status, held).await;
        };
        let client = request.presence();
        let watch = self.watches(request);
        let waiting = rt::timeout(patience, follower.head());
        match upstream::exchange::while_client_stays(&client, watch, waiting).await {
            Err(_) => client_left(request).into(),
            Ok(Ok(_)) => self.follow(request, follower, None, status, held).await,
            Ok(Err(_)) if left.is_some_and(|left| left <= patience) => {
                drop(follower);
                self.fetch_anew(request, status, held, at).await
            }
            Ok(Err(_)) => self.pass(request, status).await.into(),
        }
    }

    fn watches(&self, request: &Request) -> bool {
        !self.settings.ignore_client_abort && !request.flow.background && !request.flow.post_action
    }

    /// Begins a fetch of its own life.
    fn spawn(
        &self,
        request: &Request,
        writer: Writer,
        (key, marker): At,
        stale: Option<Held>,
    ) -> Rc<Hand> {
        let mut ask = Ask::default();
        if let Some(stale) = &stale
            && self.settings.cache.revalidate
            && stale.stored.kind == super::head::Kind::Content
        {
            let validators = caching::validators(&stale.stored.head.fields);
            ask.etag = validators.etag.map(BString::from);
            ask.last_modified = validators.last_modified.map(BString::from);
        }
        let fetch = self.prepare(request, (key, marker), stale, ask);
        let hand = Rc::clone(&fetch.hand);
        rt::spawn_named("cache fetch", fetch.run(writer));
        hand
    }

    pub(super) fn prepare(
        &self,
        request: &Request,
        (key, marker): At,
        stale: Option<Held>,
        ask: Ask,
    ) -> Fetch {
        let mut own = request.fork();
        own.flow.background = true;
        let converts = self.settings.cache.convert_head && own.method == Method::Head;
        if converts {
            own.method = Method::Get;
        }
        own.flow.header_only = own.method == Method::Head;
        own.set_state(ask);
        Fetch {
            request: own,
            settings: self.settings.clone(),
            source: self.source,
            store: self.store.clone(),
            primary: self.primary.clone(),
            key,
            marker,
            stale,
            hand: Rc::default(),
            requested_ms: rt::wall_millis(),
            born: 0,
            missing: None,
        }
    }

    /// Waits for the head of a fetch; `Err` is how the round ends without one.
    pub(super) async fn head_of(
        &mut self,
        request: &mut Request,
        follower: &mut Follower,
        hand: &Option<Rc<Hand>>,
        status: Status,
        held: Option<Held>,
    ) -> Result<Arc<cache::Head>, Round> {
        let client = request.presence();
        let watch = self.watches(request);
        let head = std::future::poll_fn(|context| {
            if let Some(hand) = &hand {
                let interim = hand.poll_interim(context);
                if !interim.is_empty() {
                    upstream::interim::send(request, &interim);
                }
            }
            follower.poll_head(context)
        });
        let head = upstream::exchange::while_client_stays(&client, watch, head).await;
        let Ok(head) = head else {
            return Err(client_left(request).into());
        };
        if let Some(hand) = &hand {
            hand.update(request);
        }
        match head {
            Ok(head) => Ok(head),
            Err(Ended::Instead(instead)) => match instead.get::<Told>() {
                Some(told) => Err(self.obey(request, told, hand.clone(), status, held).await),
                None => Err(Round::Again),
            },
            Err(Ended::Released | Ended::Failed(_)) => Err(Round::Again),
        }
    }

    /// Waits for the head of a fetch and answers with what it says.
    async fn follow(
        &mut self,
        request: &mut Request,
        mut follower: Follower,
        hand: Option<Rc<Hand>>,
        status: Status,
        held: Option<Held>,
    ) -> Round {
        let was_there = hand.is_none() && follower.is_complete();
        let head = self.head_of(request, &mut follower, &hand, status, held);
        let head = match head.await {
            Ok(head) => head,
            Err(round) => return round,
        };
        let Some(stored) = StoredHead::decode(&head.head).map(Arc::new) else {
            return Round::Again;
        };
        if let Some(variant) = &stored.variant
            && hand.is_none()
            && variant.values != values(&variant.names, &request.head.wire.fields)
        {
            self.hint = Some((variant.born, variant.names.clone()));
            return Round::Again;
        }
        let why = match status {
            Status::Expired => Forward::Stale,
            Status::Bypass => Forward::Bypass,
            _ => Forward::UriMiss,
        };
        let joined = hand.is_none();
        let body = Following::new(follower, hand, head.length).into_body(request);
        let status = if joined { Status::Hit } else { status };
        Answer {
            settings: &self.settings,
            source: self.source,
            stored: &stored,
            status,
            asked: (!was_there).then_some((why, joined)),
            body,
            length: head.length,
        }
        .send(request)
        .into()
    }

    /// Does what a fetch says that its followers shall do.
    async fn obey(
        &mut self,
        request: &mut Request,
        told: &Told,
        hand: Option<Rc<Hand>>,
        status: Status,
        held: Option<Held>,
    ) -> Round {
        match (told, held) {
            (Told::Released, _) => {
                let exchange = hand.and_then(|hand| hand.take_exchange(request));
                match exchange {
                    Some(exchange) => self.respond(request, exchange, status).into(),
                    None => {
                        self.alone = true;
                        Round::Again
                    }
                }
            }
            (Told::UseStale, Some(held)) => self
                .serve_object(request, &held.object, &held.stored, Status::Stale)
                .into(),
            (Told::Revalidated(stored), Some(held)) => self
                .serve_object(request, &held.object, stored, Status::Revalidated)
                .into(),
            (Told::Again, _) | (Told::UseStale | Told::Revalidated(_), None) => Round::Again,
            (Told::Status(code), _) => {
                request.upstream.get_or_make().cache = Some(status);
                Outcome::Status(*code).into()
            }
        }
    }

    /// Asks the origin for this client alone; what turns out to be for everybody is stored all the same.
    async fn fetch_alone(&mut self, request: &mut Request, status: Status) -> Outcome {
        // It may turn out to be for everybody: as in nginx, the client's conditions and ranges stay here.
        request.set_state(Ask::default());
        let header_only = request.flow.header_only;
        if self.settings.cache.convert_head && request.method == Method::Head {
            // Only a GET could be stored, and nobody else waits for it.
            return self.pass(request, status).await;
        }
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
        if !fits(&self.store, &exchange) {
            return self.respond(request, exchange, status);
        }
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

    async fn exchange(&self, request: &mut Request) -> Result<Box<Exchange>, (u16, u32)> {
        let plan = (self.source.plan)(request).map_err(|outcome| match outcome {
            Outcome::Status(status) => (status, 0),
            _ => (500, 0),
        })?;
        Exchange::run(request, plan)
            .await
            .map_err(|stop| match stop {
                upstream::Stop::Status(status) => (status, 0),
                upstream::Stop::Failed(status, reasons) => (status, reasons),
            })
    }

    /// Passes the request on as it is; nothing is stored.
    async fn pass(&self, request: &mut Request, status: Status) -> Outcome {
        match self.exchange(request).await {
            Ok(exchange) => self.respond(request, exchange, status),
            Err((code, _)) => failed(request, code, status),
        }
    }

    /// The response of an exchange goes to this client alone.
    fn respond(&self, request: &mut Request, exchange: Box<Exchange>, status: Status) -> Outcome {
        let record = request.upstream.get_or_make();
        record.cache = Some(status);
        let code = record.head.status;
        let outcome = exchange.respond(request);
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

    /// A request with an unsafe method: what is stored for its key is no longer true when it succeeded.
    async fn pass_a_change_on(self: Box<Self>, request: &mut Request) -> Outcome {
        let exchange = match self.exchange(request).await {
            Ok(exchange) => exchange,
            Err((status, _)) => return Outcome::Status(status),
        };
        let head = Arc::clone(&request.upstream.get_or_make().head);
        if caching::invalidation::invalidates(request.method, head.status) {
            forget(&self.store, &self.primary);
            for key in self.keys_named_by(request, &head.fields) {
                forget(&self.store, &key);
            }
        }
        exchange.respond(request)
    }

    /// The keys of what `Location` and `Content-Location` name on the same host, as far as the key is made of the path.
    fn keys_named_by(&self, request: &Request, response: &Fields) -> Vec<Key> {
        let Some(host) = request.head.known(Known::Host) else {
            return Vec::new();
        };
        let own = request.head.wire.target();
        let targets = caching::invalidation::targets(host, own, response);
        let key_of = |target: Vec<u8>| {
            let mut path = Vec::new();
            let args = proto::uri::parse_internal(&target, &mut path).ok()?;
            let mut other = request.fork();
            other.method = Method::Get;
            other.uri = Uri {
                path: path.into(),
                args: target[args].into(),
                original: false,
            };
            // Values that were made of the present path must be made anew.
            other.variables = Rc::default();
            let key = self.settings.cache.key.as_ref();
            let text = key_text(&mut other, key, self.source).ok()?;
            Some(Key::new(&text))
        };
        targets.into_iter().filter_map(key_of).collect()
    }
}

/// The key of a request. The error is what to answer with; it has been logged.
fn key_text(
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

/// Purges a key, or with `*` at its end all that begin so.
fn purge(store: &Store, text: &[u8]) -> Outcome {
    if let Some(prefix) = text.strip_suffix(b"*") {
        store.purge(Purge::Prefix(prefix), Mode::Hard);
        return Outcome::Status(204);
    }
    let key = Key::new(text);
    // What is being fetched, or was a moment ago, is there for whoever asks.
    let is_there = store.arrived(&key).is_some()
        || store.filling(&key).is_some()
        || store
            .peek(&key, 0)
            .is_none_or(|found| !matches!(found, Lookup::Miss(..)));
    forget(store, &key);
    Outcome::Status(if is_there { 204 } else { 412 })
}

/// What stands for answers to HEAD at the end of a key.
const HEAD_ONLY: &[u8] = b"\0HEAD";

/// Purges a key, and what answers HEAD under it.
fn forget(store: &Store, key: &Key) {
    store.purge(Purge::Key(key), Mode::Hard);
    let head_only = Key::new(&[key.text(), HEAD_ONLY].concat());
    store.purge(Purge::Key(&head_only), Mode::Hard);
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
fn range_begins(value: &BStr) -> Option<u64> {
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

fn client_left(request: &Request) -> Outcome {
    request.log(
        Level::Info,
        format_args!(
            "client prematurely closed connection while waiting for a response of the cache"
        ),
    );
    Outcome::Status(internal_status::CLIENT_CLOSED)
}
