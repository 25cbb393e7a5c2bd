//! A request that fetches what is not in the cache, or follows whoever fetches it.

use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use bstr::BString;
use cache::{Ended, Follower, Instead, Key, Seen, Start, Writer};
use proto::Known;
use proto::caching;
use proto::caching::status::Forward;
use proto::h1::Method;
use rt::error_log::Level;

use super::Status;
use super::answer::{Answer, Following};
use super::fetch::{Ask, AskedRange, Fetch, Hand, Held, Told};
use super::head::{StoredHead, values};
use super::parts::{Fetched, is_begun_by, wanted};
use super::visit::{At, Round, Visit, range_begins};
use crate::module::{Outcome, internal_status};
use crate::request::Request;
use crate::upstream;

impl Visit {
    /// Fetches, or follows whoever fetches already.
    pub(super) async fn fetch(
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

    /// Asks for the part that the client wants, or follows whoever asks in the same words.
    pub(super) async fn fetch_part(
        &mut self,
        request: &mut Request,
        range: AskedRange,
        at: At,
        seen: Seen,
    ) -> Round {
        let condition = range.condition.as_deref().map_or(&[][..], |text| text);
        let words = [&range.value, &b"\n"[..], condition].concat();
        let now_ms = rt::wall_millis();
        match self.store.fill_asked(&at.0, &words, seen, now_ms) {
            Start::First(writer, follower) => {
                // Its head may have come a moment ago: then nobody asks in these words any more.
                if let Some(part) = self.part_under_way(request, &at.0) {
                    writer.instead(Instead::new(Told::Again));
                    return self.join(request, part, Status::Miss, None, at).await;
                }
                let ask = Ask {
                    range: Some(range),
                    ..Ask::default()
                };
                let fetch = self.prepare(request, at, None, ask);
                let hand = Rc::clone(&fetch.hand);
                rt::spawn_named("cache fetch", fetch.run(writer));
                self.follow(request, follower, Some(hand), Status::Miss, None)
                    .await
            }
            Start::Join(follower) => self.join(request, follower, Status::Miss, None, at).await,
            Start::Uncacheable { .. } => self.pass(request, Status::Miss).await.into(),
            Start::Again => Round::Again,
        }
    }

    /// The fetch of the part that the client wants, if one is under way that begins there.
    fn part_under_way(&self, request: &Request, key: &Key) -> Option<Follower> {
        let begin = range_begins(request.head.known(Known::Range)?)?;
        let follower = self.store.filling_part(key, begin)?;
        let head = follower.known_head()?;
        let stored = StoredHead::decode(&head.head)?;
        let wanted = wanted(request, &stored, head.length?);
        is_begun_by(&wanted, &follower.part()?, head.meta.version != 0).then_some(follower)
    }

    /// Fetches whoever else does.
    pub(super) async fn fetch_anew(
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
    pub(super) fn spawn(
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
            && caching::is_validated(stale.stored.head.status)
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
        if self.asks_for_all(&own) {
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
            framed: upstream::ContentLength::Unknown,
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
            loop {
                match ready!(follower.poll_head(context)) {
                    Err(Ended::Instead(instead)) if follows_on(follower, &instead) => {}
                    head => return Poll::Ready(head),
                }
            }
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
    pub(super) async fn follow(
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
        if let Some(part) = follower.part() {
            let fetched = Fetched {
                begin: part.start,
                follower,
                hand,
            };
            return self.follow_part(request, fetched, &head, stored, status);
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
            store: &self.store,
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
            // Its head was waited for already.
            (Told::Follow(_), _) => Round::Again,
            (Told::Again, _) | (Told::UseStale | Told::Revalidated(_), None) => Round::Again,
            (Told::Status(code), _) => {
                request.upstream.get_or_make().cache = Some(status);
                Outcome::Status(*code).into()
            }
        }
    }
}

/// Goes on with another fetch, if that is what is said.
fn follows_on(follower: &mut Follower, instead: &Instead) -> bool {
    let Some(Told::Follow(other)) = instead.get::<Told>() else {
        return false;
    };
    *follower = other.lock().unwrap_or_else(PoisonError::into_inner).clone();
    true
}

fn client_left(request: &Request) -> Outcome {
    request.log(
        Level::Info,
        format_args!("client prematurely closed connection while waiting for the cache"),
    );
    Outcome::Status(internal_status::CLIENT_CLOSED)
}
