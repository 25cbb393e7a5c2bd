//! A client that follows a fill: it waits for the head, and answers with what comes, or with what the fetch says instead.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};

use cache::{Ended, Follower, Instead, Object};
use host::error_log::Level;
use proto::caching::status::Forward;
use proto::message::Method;

use super::answer::{Answer, Following, Forwarded, body_of, respond_unshared, why_forwarded};
use super::fetch::{FetchResult, StaleObject};
use super::first_client::FirstClientSlot;
use super::head::{StoredHead, values};
use super::lookup::{CacheRequest, StorageKey, VaryMarker};
use super::parts::{FetchedPart, PartialContent};
use super::ranges::{is_begun_by, wanted_part};
use super::status::Status;
use crate::module::{Outcome, internal_status};
use crate::request::{Request, RequestPurpose};
use crate::upstream;

/// What came of an action that the request had to wait for.
pub(super) enum Step {
    /// The request has its response.
    Done(Outcome),
    /// What is stored has changed, or is not what was followed: the request looks again.
    LookAgain,
}

impl From<Outcome> for Step {
    fn from(outcome: Outcome) -> Step {
        Step::Done(outcome)
    }
}

/// A fill that a request follows.
pub(super) struct FollowedFill {
    pub(super) follower: Follower,
    /// If the request began it.
    pub(super) first_client: Option<Rc<FirstClientSlot>>,
    pub(super) status: Status,
    /// What may be served in its place.
    pub(super) stale: Option<StaleObject>,
}

impl FollowedFill {
    /// Whether the request follows what another one began.
    fn is_joined(&self) -> bool {
        self.first_client.is_none()
    }
}

impl CacheRequest {
    /// Waits for the head of a fill and answers with what it says.
    pub(super) async fn follow(&mut self, request: &mut Request, fill: FollowedFill) -> Step {
        let mut fill = fill;
        let was_there = fill.is_joined() && fill.follower.is_complete();
        let head = match self.head_of(request, &mut fill).await {
            Ok(head) => head,
            Err(step) => return step,
        };
        let now_ms = rt::wall_millis();
        let Some(stored) = StoredHead::decode(&head.head).map(Arc::new) else {
            return Step::LookAgain;
        };
        if let Some(variant) = &stored.variant
            && fill.is_joined()
            && variant.values != values(&variant.names, &request.head.wire.fields)
        {
            // Both requests asked for the same key, and only now it is known that their responses differ.
            self.known_marker = Some(VaryMarker {
                born: variant.born,
                names: variant.names.clone(),
            });
            return Step::LookAgain;
        }
        if fill.follower.part().is_some() {
            return self.answer_with_part(request, fill, &head, stored, now_ms);
        }
        let is_collapsed = fill.is_joined();
        let FollowedFill {
            follower,
            first_client,
            status,
            ..
        } = fill;
        let body = Following::new(follower, first_client, head.length).into_body(request);
        Answer {
            now_ms,
            settings: &self.settings,
            store: &self.store,
            source: self.source,
            stored: &stored,
            status: if is_collapsed { Status::Hit } else { status },
            forwarded: (!was_there).then_some(Forwarded {
                why: why_forwarded(status),
                is_collapsed,
            }),
            body,
            length: head.length,
        }
        .send(request)
        .into()
    }

    /// Waits for the head of a fill; `Err` is what the request does without one.
    async fn head_of(
        &mut self,
        request: &mut Request,
        fill: &mut FollowedFill,
    ) -> Result<Arc<cache::Head>, Step> {
        let client = Rc::clone(&request.stream);
        let watch = self.watches_client(request);
        let FollowedFill {
            follower,
            first_client,
            ..
        } = &mut *fill;
        let head = std::future::poll_fn(|context| {
            if let Some(first_client) = &first_client {
                let interim = first_client.poll_interim(context);
                if !interim.is_empty() {
                    upstream::interim::send(request, &interim);
                }
            }
            loop {
                match ready!(follower.poll_head(context)) {
                    Err(Ended::Instead(instead)) if turns_to(follower, &instead) => {}
                    head => return Poll::Ready(head),
                }
            }
        });
        let head = upstream::while_client_stays(&client, watch, head).await;
        let Ok(head) = head else {
            return Err(client_left(request).into());
        };
        if let Some(first_client) = first_client {
            first_client.update(request);
        }
        match head {
            Ok(head) => Ok(head),
            Err(Ended::Instead(instead)) => Err(match instead.get::<FetchResult>() {
                Some(result) => self.apply(request, result, fill),
                None => Step::LookAgain,
            }),
            Err(Ended::Released | Ended::Failed(_)) => Err(Step::LookAgain),
        }
    }

    /// Does what a fetch says in place of content.
    fn apply(&mut self, request: &mut Request, result: &FetchResult, fill: &FollowedFill) -> Step {
        let now_ms = rt::wall_millis();
        match (result, &fill.stale) {
            (FetchResult::Released, _) => {
                let slot = fill.first_client.as_ref();
                match slot.and_then(|slot| slot.take_exchange(request)) {
                    Some(exchange) => {
                        respond_unshared(request, &self.settings, exchange, fill.status).into()
                    }
                    None => {
                        self.terms.was_refused = true;
                        Step::LookAgain
                    }
                }
            }
            (FetchResult::UseStale, Some(stale)) => {
                let (object, stored) = (&stale.object, &stale.stored);
                self.serve_object(request, object, stored, Status::Stale, now_ms)
                    .into()
            }
            (FetchResult::Revalidated(stored), Some(stale)) => self
                .serve_object(request, &stale.object, stored, Status::Revalidated, now_ms)
                .into(),
            // A request that joined has no stale object of its own, and finds the renewed one.
            (FetchResult::UseStale | FetchResult::Revalidated(_), None)
            | (FetchResult::LookAgain | FetchResult::FollowOther(_), _) => Step::LookAgain,
            (FetchResult::Failed(code), _) => failed(request, *code, fill.status).into(),
        }
    }

    /// Answers with a part that is being fetched, of something of which nothing that fits was stored before.
    fn answer_with_part(
        &self,
        request: &mut Request,
        fill: FollowedFill,
        head: &cache::Head,
        stored: Arc<StoredHead>,
        now_ms: u64,
    ) -> Step {
        let is_collapsed = fill.is_joined();
        let FollowedFill {
            follower,
            first_client,
            status,
            ..
        } = fill;
        let (Some(part), Some(length)) = (follower.part(), head.length) else {
            return Step::LookAgain;
        };
        let wanted = wanted_part(request, &stored, length);
        let version = head.meta.version;
        if request.method != Method::Head && !is_begun_by(&wanted, &part, version != 0) {
            return Step::LookAgain;
        }
        let forwarded = match is_collapsed && follower.is_complete() {
            true => None,
            false => Some(Forwarded {
                why: Forward::UriMiss,
                is_collapsed,
            }),
        };
        let marker = stored.variant.as_ref().map(|variant| VaryMarker {
            born: variant.born,
            names: variant.names.clone(),
        });
        let at = StorageKey {
            key: follower.key(),
            marker,
        };
        let fetched = FetchedPart {
            begin: part.start,
            follower,
            first_client,
        };
        let parts = PartialContent::of_fetch(self, fetched, stored, at, (length, version));
        let status = if is_collapsed { Status::Hit } else { status };
        parts.answer(request, now_ms, status, forwarded).into()
    }

    /// Waits for the head of what is missing of an object, and answers with the object and that.
    pub(super) async fn follow_missing(
        &mut self,
        request: &mut Request,
        parts: PartialContent,
        fetched: FetchedPart,
    ) -> Step {
        let mut parts = parts;
        let mut fill = FollowedFill {
            follower: fetched.follower,
            first_client: fetched.first_client,
            status: Status::Miss,
            stale: None,
        };
        let is_collapsed = fill.is_joined();
        let was_there = is_collapsed && fill.follower.is_complete();
        let head = match self.head_of(request, &mut fill).await {
            Ok(head) => head,
            Err(step) => return step,
        };
        if head.meta.version != parts.version {
            return Step::LookAgain;
        }
        // What the part says of the whole is newer.
        if let Some(stored) = StoredHead::decode(&head.head) {
            parts.stored = Arc::new(stored);
        }
        parts.fetched = Some(FetchedPart {
            follower: fill.follower,
            first_client: fill.first_client,
            begin: fetched.begin,
        });
        let (status, forwarded) = match was_there {
            true => (Status::Hit, None),
            false => (
                Status::Miss,
                Some(Forwarded {
                    why: Forward::Partial,
                    is_collapsed,
                }),
            ),
        };
        parts
            .answer(request, rt::wall_millis(), status, forwarded)
            .into()
    }

    /// Whether the end of the client's connection ends its wait.
    pub(super) fn watches_client(&self, request: &Request) -> bool {
        !self.settings.ignore_client_abort && request.flow.purpose == RequestPurpose::Response
    }

    /// Serves an object with all of its content.
    pub(super) fn serve_object(
        &self,
        request: &mut Request,
        object: &Object,
        stored: &Arc<StoredHead>,
        status: Status,
        now_ms: u64,
    ) -> Outcome {
        let forwarded = (status == Status::Revalidated).then_some(Forwarded {
            why: Forward::Stale,
            is_collapsed: false,
        });
        Answer {
            now_ms,
            settings: &self.settings,
            store: &self.store,
            source: self.source,
            stored,
            status,
            forwarded,
            body: body_of(object),
            length: Some(object.length()),
        }
        .send(request)
    }
}

/// Goes on with another fill, if that is what is said.
fn turns_to(follower: &mut Follower, instead: &Instead) -> bool {
    let Some(FetchResult::FollowOther(other)) = instead.get::<FetchResult>() else {
        return false;
    };
    *follower = other.lock().clone();
    true
}

pub(super) fn client_left(request: &Request) -> Outcome {
    request.log(
        Level::Info,
        format_args!("client prematurely closed connection while waiting for the cache"),
    );
    Outcome::Status(internal_status::CLIENT_CLOSED)
}

/// There is no response at all.
pub(super) fn failed(request: &mut Request, code: u16, status: Status) -> Outcome {
    request.upstream.get_or_make().cache = Some(status);
    Outcome::Status(code)
}
