//! An object of which something is missing, because its fetch broke off, or because only a range was asked for: what is there
//! is served from the store, and what is not there and is wanted is fetched alone, with `Range` and `If-Range`. It stays in
//! the store.
//!
//! The first part that is missing is asked for before the response begins, so that a new version at the origin is a new
//! response. Further ones are asked for when the client has come to them; if there is a new version by then, the response
//! is cut so that the client can tell.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

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
use crate::module::Outcome;
use crate::request::Request;

/// Of more parts than this a response is not put together: what a client wants is fetched anew.
const HOLES_MAX: usize = 16;

/// How long the content waits until the store has what it fetched.
const COMMIT_WAIT: Duration = Duration::from_secs(1);

/// The most bytes that are taken from a fetch at a time.
const PIECE: usize = 64 * 1024;

impl Visit {
    /// Whether what the store has of an object may be served though something is missing.
    pub(super) fn is_usable_in_part(
        &self,
        object: &Object,
        stored: &StoredHead,
        now_ms: u64,
    ) -> bool {
        stored.kind == Kind::Content
            && stored.head.status == 200
            && object.head().length.is_some()
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
        let wanted = wanted(request, &stored, object.length());
        let mut parts = Parts {
            visit: Box::new(self.clone()),
            position: 0,
            length: object.length(),
            end: object.length(),
            version: object.head().meta.version,
            object: Some(object),
            stored,
            at,
            fetched: None,
            looking: None,
        };
        if request.method == Method::Head || parts.has_all(request, &wanted) {
            return parts.answer(request, &wanted, Status::Hit, None).into();
        }
        let only_stored = self.control.is_some_and(|control| control.only_if_cached());
        if only_stored || self.must_not_store(request) || !parts.can_be_completed(&wanted) {
            let (key, marker) = parts.at;
            return self.nothing_there(request, key, marker, seen, false).await;
        }
        if let Some(follower) = self.store.filling(&parts.at.0) {
            return self
                .join(request, follower, Status::Miss, None, parts.at)
                .await;
        }
        let Some(hole) = parts.hole(&wanted) else {
            return parts.answer(request, &wanted, Status::Hit, None).into();
        };
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
        if head.meta.version != parts.version {
            return Round::Again;
        }
        // What the part says of the whole is newer.
        if let Some(stored) = StoredHead::decode(&head.head) {
            parts.stored = Arc::new(stored);
        }
        let joined = fetched.hand.is_none();
        parts.fetched = Some(fetched);
        let (status, asked) = match was_there {
            true => (Status::Hit, None),
            false => (Status::Miss, Some((Forward::Partial, joined))),
        };
        parts.answer(request, &wanted, status, asked).into()
    }

    /// Answers with a part that is being fetched, of something of which nothing that fits was stored before.
    pub(super) fn follow_part(
        &self,
        request: &mut Request,
        fetched: Fetched,
        head: &cache::Head,
        stored: Arc<StoredHead>,
        status: Status,
    ) -> Round {
        let (Some(part), Some(length)) = (fetched.follower.part(), head.length) else {
            return Round::Again;
        };
        let wanted = wanted(request, &stored, length);
        let version = head.meta.version;
        if request.method != Method::Head && !is_begun_by(&wanted, &part, version != 0) {
            return Round::Again;
        }
        let joined = fetched.hand.is_none();
        let asked = match joined && fetched.follower.is_complete() {
            true => None,
            false => Some((Forward::UriMiss, joined)),
        };
        let marker = stored.variant.as_ref();
        let marker = marker.map(|variant| (variant.born, variant.names.clone()));
        let parts = Parts {
            visit: Box::new(self.clone()),
            position: 0,
            length,
            end: length,
            version,
            object: None,
            at: (fetched.follower.key(), marker),
            stored,
            fetched: Some(fetched),
            looking: None,
        };
        let status = if joined { Status::Hit } else { status };
        parts.answer(request, &wanted, status, asked).into()
    }
}

/// The part of the content that the client wants: all, if it is not one range.
pub(super) fn wanted(request: &Request, stored: &StoredHead, length: u64) -> Range<u64> {
    one_range(request, stored, length).unwrap_or(0..length)
}

/// The one range that the client wants.
fn one_range(request: &Request, stored: &StoredHead, length: u64) -> Option<Range<u64>> {
    match ranges(request, stored, length) {
        Ranges::One(range) => Some(range),
        Ranges::Many(_) | Ranges::Ignore | Ranges::Unsatisfiable => None,
    }
}

/// The ranges that the client wants, if they are those of this response.
fn ranges(request: &Request, stored: &StoredHead, length: u64) -> Ranges {
    let fields = &stored.head.fields;
    let head = &request.head;
    let Some(range) = head.known(Known::Range) else {
        return Ranges::Ignore;
    };
    let agrees = head.known(Known::IfRange).is_none_or(|condition| {
        let validators = Validators {
            etag: fields.get_known(Known::Etag),
            last_modified: fields.get_known(Known::LastModified).and_then(date::parse),
        };
        conditional::if_range(condition, validators)
    });
    let core = &request.site.location(request.location).core;
    match agrees {
        true => proto::range::parse(range, length, core.max_ranges),
        false => Ranges::Ignore,
    }
}

/// Whether a part of a response is where what a client wants begins, and the rest of that can be had: it is in the part
/// too, or other parts can be told to be of the same version.
pub(super) fn is_begun_by(wanted: &Range<u64>, part: &Range<u64>, has_version: bool) -> bool {
    part.contains(&wanted.start) && (has_version || wanted.end <= part.end)
}

/// The content of an object of which something is missing.
struct Parts {
    visit: Box<Visit>,
    /// What the store has; `None` as long as only what is fetched is known.
    object: Option<Object>,
    stored: Arc<StoredHead>,
    at: At,
    /// The version of all parts; 0 if one cannot be told from another: then there is one part, and nothing is added.
    version: u64,
    /// The length of the whole.
    length: u64,
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
pub(super) struct Fetched {
    pub(super) follower: Follower,
    /// For whoever began the fetch.
    pub(super) hand: Option<Rc<Hand>>,
    /// Where it begins.
    pub(super) begin: u64,
}

impl Parts {
    /// Whether the store has all that is wanted: one range or several.
    fn has_all(&self, request: &Request, wanted: &Range<u64>) -> bool {
        match ranges(request, &self.stored, self.length) {
            Ranges::Many(ranges) => {
                self.version != 0 && ranges.iter().all(|range| self.hole(range).is_none())
            }
            // 416: it takes no content.
            Ranges::Unsatisfiable => true,
            Ranges::One(_) | Ranges::Ignore => self.hole(wanted).is_none(),
        }
    }

    /// Whether what is missing can be fetched alone, and that is worth it.
    fn can_be_completed(&self, wanted: &Range<u64>) -> bool {
        let Some(object) = &self.object else {
            return false;
        };
        let held = object.held();
        let useful = held
            .iter()
            .filter(|held| held.start < wanted.end && wanted.start < held.end);
        self.version != 0
            && validator(&self.stored.head.fields).is_some()
            && !held.is_empty()
            && useful.count() <= HOLES_MAX
    }

    /// The first part of a range that is missing.
    fn hole(&self, wanted: &Range<u64>) -> Option<Range<u64>> {
        let hole = self.object.as_ref()?.hole(wanted.start)?;
        (hole.start < wanted.end).then(|| hole.start..hole.end.min(wanted.end))
    }

    fn answer(
        mut self,
        request: &mut Request,
        wanted: &Range<u64>,
        status: Status,
        asked: Option<(Forward, bool)>,
    ) -> Outcome {
        let settings = self.visit.settings.clone();
        let stored = Arc::clone(&self.stored);
        let (source, length) = (self.visit.source, self.length);
        // Nothing can be added to a part without a version, so no filter may want more than was asked for.
        let as_it_is = match self.version {
            0 => one_range(request, &stored, length),
            _ => None,
        };
        if as_it_is.is_some() {
            (self.position, self.end) = (wanted.start, wanted.end);
        }
        let store = self.visit.store.clone();
        let outcome = Answer {
            settings: &settings,
            store: &store,
            source,
            stored: &stored,
            status,
            asked,
            length: Some(length),
            body: Body::stream(self),
        }
        .send(request);
        if let (Some(range), Outcome::Respond) = (as_it_is, &outcome) {
            let out = &mut request.out;
            out.status = 206;
            out.reason = None;
            out.transforms.ranges = false;
            out.content_length = Some(range.end - range.start);
            out.fields.push_known_with(Known::ContentRange, |text| {
                proto::range::write_content_range(&range, length, text)
            });
        }
        outcome
    }

    /// Asks for a part, or joins whoever does.
    fn ask(&self, request: &Request, range: Range<u64>) -> Result<Fetched, Refused> {
        let begin = range.start;
        let Some(object) = self.object.as_ref().filter(|_| self.version != 0) else {
            return Err(Refused::Changed);
        };
        let (store, seen) = (&self.visit.store, object.seen());
        let (follower, hand) = match store.fill_range(&self.at.0, begin, seen, rt::wall_millis()) {
            Start::Join(follower) => (follower, None),
            Start::First(writer, follower) => {
                let validator = validator(&self.stored.head.fields);
                let ask = validator.map(|validator| Ask::for_part(&range, validator));
                let ask = ask.unwrap_or_default();
                let mut fetch = self.visit.prepare(request, self.at.clone(), None, ask);
                fetch.missing = Some(Missing {
                    range,
                    object: object.clone(),
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

    fn chunk_at(&self, position: u64, end: u64) -> Option<Chunk> {
        let range = self.object.as_ref()?.file_range(position)?;
        let length = range.len.min(end - position);
        Some(Chunk::File(range.into()).part(0, length))
    }

    /// Looks again for what is in the store, when what is fetched has come to its end and was committed.
    fn look(&mut self) {
        let (store, key) = (self.visit.store.clone(), self.at.0.clone());
        let fetched = self.fetched.take();
        self.looking = Some(Box::pin(async move {
            if let Some(Fetched { mut follower, .. }) = fetched {
                while let Ok(Some(_)) =
                    poll_fn(|context| follower.poll_part(context, usize::MAX)).await
                {
                }
            }
            // If that takes too long, the part is not found.
            let _ = rt::timeout(COMMIT_WAIT, store.settle(&key)).await;
            store.lookup(&key, rt::wall_millis()).await
        }));
    }

    /// What is in the store from the next byte on.
    fn stored_chunk(&mut self) -> Option<Chunk> {
        let chunk = self.chunk_at(self.position, self.end)?;
        self.position += chunk.len();
        Some(chunk)
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
            if object.head().meta.version != self.version || self.version == 0 {
                return Poll::Ready(Err(BodyError::Producer));
            }
            self.object = Some(object);
            return Poll::Ready(Ok(()));
        }
        if self.object.is_none() {
            self.look();
            return Poll::Ready(Ok(()));
        }
        let Some(hole) = self.hole(&(self.position..self.end)) else {
            return Poll::Ready(Err(BodyError::Producer));
        };
        match self.ask(request, hole) {
            Ok(fetched) => self.fetched = Some(fetched),
            Err(Refused::Changed) => self.look(),
            Err(Refused::Alone) => return Poll::Ready(Err(BodyError::Producer)),
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the next byte comes with what is being fetched. Before there is an object, that is read from its beginning.
    fn is_being_fetched(&self) -> bool {
        let Some(Fetched { follower, .. }) = &self.fetched else {
            return false;
        };
        let comes_later = || follower.part().is_some_and(|part| part.end > self.position);
        follower.position() == self.position
            || self.object.is_none() && follower.position() < self.position && comes_later()
    }

    /// The next chunk of what is being fetched, which may be empty; `None` at its end.
    fn poll_fetched(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        let Some(fetched) = &mut self.fetched else {
            return Poll::Ready(None);
        };
        let version = self.version;
        let at = fetched.follower.position();
        let next = match ready!(fetched.follower.poll_head(context)) {
            Ok(head) if head.meta.version == version => {
                ready!(fetched.follower.poll_part(context, PIECE))
                    .map_err(|ended| ended.to_string())
            }
            Ok(_) => Err("the response has changed at the origin".to_owned()),
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
                    "{why} while fetching a missing part of a cached response"
                ));
                return Poll::Ready(Some(Err(BodyError::Producer)));
            }
        };
        let skipped = (self.position - at).min(chunk.len());
        let length = (chunk.len() - skipped).min(self.end - self.position);
        self.position += length;
        Poll::Ready(Some(Ok(chunk.part(skipped, length))))
    }
}

impl crate::body::Source for Parts {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        while self.position < self.end {
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

    fn narrow(&mut self, offset: u64, length: u64) -> bool {
        self.position = offset;
        self.end = offset.saturating_add(length).min(self.length);
        true
    }

    fn slice(&self, offset: u64, length: u64) -> Option<Body> {
        let end = offset.checked_add(length)?;
        let (mut at, mut chunks) = (offset, VecDeque::new());
        while at < end {
            let chunk = self.chunk_at(at, end)?;
            at += chunk.len();
            chunks.push_back(chunk);
        }
        Some(Body::Parts(chunks))
    }
}
