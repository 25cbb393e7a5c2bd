//! An object of which something is missing, because its fetch broke off: what is there is served from the store, and what
//! is not there and is wanted is fetched alone, with `Range` and `If-Range`. It stays in the store.
//!
//! The first part that is missing is asked for before the response begins, so that a new version at the origin is a new
//! response. Further ones are asked for when the client has come to them; if there is a new version by then, the response
//! is cut so that the client can tell.

use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cache::{Follower, Lookup, Object, Seen, Start};
use proto::caching::Reuse;
use proto::caching::status::Forward;
use proto::conditional::{self, Validators};
use proto::h1::Method;
use proto::range::Ranges;
use proto::{Known, date};

use super::Status;
use super::answer::Answer;
use super::fetch::{Ask, Hand, Missing, validator};
use super::head::{Kind, StoredHead};
use super::visit::{At, Round, Visit};
use crate::body::{Body, BodyError, Chunk};
use crate::request::Request;

/// The most bytes that are taken from a fetch at a time.
const PIECE: usize = 64 * 1024;

impl Visit {
    /// Whether what is missing of an object can be fetched alone, and the rest is worth it.
    pub(super) fn can_be_completed(
        &self,
        object: &Object,
        stored: &StoredHead,
        now_ms: u64,
    ) -> bool {
        let head = object.head();
        stored.kind == Kind::Content
            && stored.head.status == 200
            && head.meta.version != 0
            && head.length.is_some()
            && object.hole(0).is_some_and(|hole| hole.start > 0)
            && validator(&stored.head.fields).is_some()
            && self.reuse(stored, now_ms) == Reuse::Fresh
    }

    /// Answers from an object of which something is missing.
    pub(super) async fn serve_parts(
        &mut self,
        request: &mut Request,
        object: Object,
        stored: Arc<StoredHead>,
        at: At,
        seen: Seen,
    ) -> Round {
        let wanted = match request.method {
            Method::Head => 0..0,
            _ => wanted(request, &stored, object.length()),
        };
        let mut parts = Parts {
            visit: Box::new(self.clone()),
            position: 0,
            end: object.length(),
            object,
            stored,
            at,
            fetched: None,
            looking: None,
        };
        let Some(hole) = parts.hole(&wanted) else {
            return parts.answer(request, Status::Hit, None).into();
        };
        let only_stored = self.control.is_some_and(|control| control.only_if_cached());
        if only_stored || self.must_not_store(request) {
            let (key, marker) = parts.at;
            return self.nothing_there(request, key, marker, seen, false).await;
        }
        if let Some(follower) = self.store.filling(&parts.at.0) {
            return self
                .join(request, follower, Status::Miss, None, parts.at)
                .await;
        }
        let mut fetched = match parts.ask(request, hole) {
            Ok(fetched) => fetched,
            Err(Refused::Changed) => return Round::Again,
            Err(Refused::Alone) => {
                let (key, marker) = parts.at;
                return self.nothing_there(request, key, marker, seen, true).await;
            }
        };
        let was_there = fetched.hand.is_none() && fetched.follower.is_complete();
        let head = self.head_of(
            request,
            &mut fetched.follower,
            &fetched.hand,
            Status::Miss,
            None,
        );
        let head = match head.await {
            Ok(head) => head,
            Err(round) => return round,
        };
        if head.meta.version != parts.object.head().meta.version {
            return Round::Again;
        }
        let joined = fetched.hand.is_none();
        parts.fetched = Some(fetched);
        let (status, asked) = match was_there {
            true => (Status::Hit, None),
            false => (Status::Miss, Some((Forward::Partial, joined))),
        };
        parts.answer(request, status, asked).into()
    }
}

/// The part of the content that the client wants: all, if it is not one range.
fn wanted(request: &Request, stored: &StoredHead, length: u64) -> Range<u64> {
    let fields = &stored.head.fields;
    let head = &request.head;
    let Some(range) = head.known(Known::Range) else {
        return 0..length;
    };
    let agrees = head.known(Known::IfRange).is_none_or(|condition| {
        let validators = Validators {
            etag: fields.get_known(Known::Etag),
            last_modified: fields.get_known(Known::LastModified).and_then(date::parse),
        };
        conditional::if_range(condition, validators)
    });
    match proto::range::parse(range, length, None) {
        Ranges::One(range) if agrees => range,
        Ranges::One(_) | Ranges::Many(_) | Ranges::Ignore | Ranges::Unsatisfiable => 0..length,
    }
}

/// The content of an object of which something is missing.
struct Parts {
    visit: Box<Visit>,
    object: Object,
    stored: Arc<StoredHead>,
    at: At,
    /// The next byte for the client, and where the client's part ends.
    position: u64,
    end: u64,
    fetched: Option<Fetched>,
    /// The store changed: the object is looked up again.
    looking: Option<Pin<Box<dyn Future<Output = Lookup>>>>,
}

/// Why a part is not to be had.
enum Refused {
    /// The store has another object by now, or more of it.
    Changed,
    /// It is known that the response is not to be shared.
    Alone,
}

/// A part that is being fetched.
struct Fetched {
    follower: Follower,
    /// For whoever began the fetch.
    hand: Option<Rc<Hand>>,
    /// Where it begins.
    begin: u64,
}

impl Parts {
    /// The first part of a range that is missing.
    fn hole(&self, wanted: &Range<u64>) -> Option<Range<u64>> {
        let hole = self.object.hole(wanted.start)?;
        (hole.start < wanted.end).then(|| hole.start..hole.end.min(wanted.end))
    }

    fn answer(
        self,
        request: &mut Request,
        status: Status,
        asked: Option<(Forward, bool)>,
    ) -> crate::module::Outcome {
        let settings = self.visit.settings.clone();
        let stored = Arc::clone(&self.stored);
        Answer {
            settings: &settings,
            source: self.visit.source,
            stored: &stored,
            status,
            asked,
            length: Some(self.object.length()),
            body: Body::stream(self),
        }
        .send(request)
    }

    /// Asks for a part, or joins whoever does.
    fn ask(&self, request: &Request, range: Range<u64>) -> Result<Fetched, Refused> {
        let begin = range.start;
        let (store, seen) = (&self.visit.store, self.object.seen());
        let (follower, hand) = match store.fill_range(&self.at.0, begin, seen, rt::wall_millis()) {
            Start::Join(follower) => (follower, None),
            Start::First(writer, follower) => {
                let validator = validator(&self.stored.head.fields);
                let ask = Ask {
                    range: validator.map(|validator| (range.clone(), validator)),
                    ..Ask::default()
                };
                let mut fetch = self.visit.prepare(request, self.at.clone(), None, ask);
                fetch.missing = Some(Missing {
                    range,
                    object: self.object.clone(),
                    stored: Arc::clone(&self.stored),
                });
                let hand = Rc::clone(&fetch.hand);
                rt::spawn_named("cache fetch", fetch.run(writer));
                (follower, Some(hand))
            }
            Start::Again => return Err(Refused::Changed),
            Start::Uncacheable { .. } => return Err(Refused::Alone),
        };
        Ok(Fetched {
            follower,
            hand,
            begin,
        })
    }

    /// What is in the store from the next byte on.
    fn stored_chunk(&mut self) -> Option<Chunk> {
        let range = self.object.file_range(self.position)?;
        let length = range.len.min(self.end - self.position);
        self.position += length;
        Some(Chunk::File(range.into()).part(0, length))
    }

    /// Asks for what is missing next, or finds it in the store by now.
    fn poll_next_hole(
        &mut self,
        request: &Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        if let Some(looking) = &mut self.looking {
            let found = ready!(looking.as_mut().poll(context));
            self.looking = None;
            let (Lookup::Hit(object) | Lookup::Stale(object, _)) = found else {
                return Poll::Ready(Err(BodyError::Producer));
            };
            if object.head().meta.version != self.object.head().meta.version {
                return Poll::Ready(Err(BodyError::Producer));
            }
            self.object = object;
            return Poll::Ready(Ok(()));
        }
        let Some(hole) = self.hole(&(self.position..self.end)) else {
            return Poll::Ready(Err(BodyError::Producer));
        };
        match self.ask(request, hole) {
            Ok(fetched) => self.fetched = Some(fetched),
            Err(Refused::Changed) => {
                let (store, key) = (self.visit.store.clone(), self.at.0.clone());
                let look = async move { store.lookup(&key, rt::wall_millis()).await };
                self.looking = Some(Box::pin(look));
            }
            Err(Refused::Alone) => return Poll::Ready(Err(BodyError::Producer)),
        }
        Poll::Ready(Ok(()))
    }

    /// The next chunk of what is being fetched; `None` at its end.
    fn poll_fetched(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        let Some(fetched) = &mut self.fetched else {
            return Poll::Ready(None);
        };
        let version = self.object.head().meta.version;
        let next = match ready!(fetched.follower.poll_head(context)) {
            Ok(head) if head.meta.version == version => {
                ready!(fetched.follower.poll_part(context, PIECE))
                    .map_err(|ended| ended.to_string())
            }
            Ok(_) => Err("there is another version at the origin".to_owned()),
            Err(ended) => Err(ended.to_string()),
        };
        let chunk = match next {
            Ok(Some(part)) => Chunk::from(part),
            Ok(None) => {
                let came = fetched.follower.position() > fetched.begin;
                if let Some(hand) = &fetched.hand {
                    hand.update(request);
                }
                self.fetched = None;
                return Poll::Ready((!came).then_some(Err(BodyError::Producer)));
            }
            Err(why) => {
                request.error(format_args!(
                    "{why} while fetching a part of a response that is missing in the cache"
                ));
                return Poll::Ready(Some(Err(BodyError::Producer)));
            }
        };
        let length = chunk.len().min(self.end - self.position);
        self.position += length;
        Poll::Ready(Some(Ok(chunk.part(0, length))))
    }
}

impl crate::body::Source for Parts {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        while self.position < self.end {
            let is_next = |fetched: &Fetched| fetched.follower.position() == self.position;
            if self.fetched.as_ref().is_some_and(is_next) {
                match ready!(self.poll_fetched(request, context)) {
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

    fn narrow(&mut self, offset: u64, length: u64) -> bool {
        self.position = offset;
        self.end = offset.saturating_add(length).min(self.object.length());
        true
    }
}
