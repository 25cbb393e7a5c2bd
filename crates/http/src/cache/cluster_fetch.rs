//! A fetch in a cluster: the owner of the key is asked before the origin.
//!
//! ```text
//! owner ──┬─ answer ───────────▶ stored or passed on, as if it came from the origin
//!         ├─ 421, ask another ─▶ that one, once (hop 2)
//!         ├─ 421, private ─────▶ origin
//!         └─ refused, silent, gone ─▶ next in order ─▶ origin
//! ```
//!
//! **No circle.** A member answers from what is complete, or from a fill that the origin feeds, and never asks a third one
//! for the second. So a request that waits for a member waits for the origin behind it, whatever each of them believes
//! about who is there. With the same view of the members a key is fetched once; with two views by two owners.
//!
//! A member that is lost in the middle is as an origin that breaks off: `fetch_content` resumes at the byte reached, and the
//! next in this order is asked for it.

use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use cache::FillFeed;
use host::error_log::LogLevel;
use net::cluster::{
    Cluster, ClusterRoute, ClusterState, JournalPosition, MemberTls, MemberUse, RouteStep,
    hash_of_key,
};
use proto::message::Method;

use super::fetch::CacheFetch;
use super::lookup::CacheRequest;
use super::storable_response::ExchangeTimes;
use super::zone::CacheZone;
use crate::cluster::{
    AskedMember, ObjectField, PeerExchange, PeerVerdict, RESPONSE_FIELD, claim_of, freshness_here,
};
use crate::ledger::LedgerPhase;
use crate::request::{Request, RequestPurpose};
use crate::response_body::{BodyChunk, BodyError, ResponseBody};
use crate::upstream::{Exchange, ExchangePlan, ExchangeTarget, NoResponse, RequestContent};

/// The part of the cluster in a request at the cache.
pub(super) struct ClusterPart {
    cluster: Arc<Cluster>,
    pub(super) state: Arc<ClusterState>,
    zone: Arc<CacheZone>,
    /// The text of the key, and its hash.
    text: Vec<u8>,
    key: [u8; 16],
    /// Whom to ask, by the view at the time of the request.
    pub(super) route: ClusterRoute,
    /// How far the journal of purges had been read when the request began: an answer must be as new.
    journal: Option<JournalPosition>,
    /// This process was stopped until a moment ago, and the request may have waited meanwhile.
    pub(super) is_just_back: bool,
}

/// What a member's answer was.
enum MemberAnswer {
    Response(Box<Exchange>),
    /// It named another one.
    Other(std::net::SocketAddr),
    /// No member needs to be asked.
    AskOrigin,
    /// It has none.
    None,
}

impl ClusterPart {
    /// The part of the cluster in a request, if it has one: what a member can be asked for is what the client itself asked
    /// for, so subrequests, requests with content and ranges that are keys stay here.
    pub(super) fn of_request(
        cache_request: &CacheRequest,
        request: &Request,
    ) -> Option<Rc<ClusterPart>> {
        let settings = &cache_request.settings.cache;
        let cluster = settings.cluster.as_ref()?;
        let is_plain = matches!(request.method, Method::Get | Method::Head)
            && !request.is_subrequest()
            && !request.body.exists()
            && !settings.key_has_range();
        let purpose = request.flow.purpose;
        let is_served = matches!(purpose, RequestPurpose::Response | RequestPurpose::Member);
        if !is_plain || !is_served {
            return None;
        }
        let (running, state) = cluster.running()?;
        let zone = request.ledger.cache.clone()?;
        let text = cache_request.primary.text().to_vec();
        let key = hash_of_key(&text);
        let journal = match zone.journal() {
            // Until something of the journal is known, nothing could be said of how new an answer has to be.
            Some(journal) => Some(journal.position()?),
            None => None,
        };
        // Before the view is looked at: who was stopped asks others first for what they have fetched meanwhile.
        let is_just_back = state.is_just_back(running.budget, rt::monotonic_millis(), rt::now());
        let mut route = state.view().route_of(&key, rt::now());
        if let Some(claim) = claim_of(request) {
            // For another member only what is stored elsewhere is asked for, and not of that member.
            route
                .steps
                .retain(|step| step.only_stored && Some(step.member.address) != claim.from);
        }
        Some(Rc::new(ClusterPart {
            cluster: Arc::clone(cluster),
            state: Arc::clone(state),
            zone,
            text,
            key,
            route,
            journal,
            is_just_back,
        }))
    }

    /// How long a member may be silent.
    pub(super) fn budget(&self) -> Duration {
        let settings = self.cluster.settings();
        settings.map_or(Duration::ZERO, |settings| settings.budget)
    }

    /// Where the bytes of a fetch come from first.
    pub(super) fn feed(&self) -> FillFeed {
        match self.route.steps.first() {
            Some(step) if step.only_stored => FillFeed::StoredElsewhere,
            Some(_) => FillFeed::OtherCache,
            None => FillFeed::Origin,
        }
    }

    /// Counts a request that found nothing here.
    pub(super) fn count_use(&self) {
        self.zone.count_use(&self.text);
    }

    /// Whether the key is asked for so often here that a copy is worth its place.
    fn is_hot(&self) -> bool {
        let least = self
            .cluster
            .settings()
            .map_or(0, |settings| settings.min_uses);
        self.zone.known_uses(&self.text) >= u64::from(least)
    }
}

impl CacheRequest {
    /// Finds out what the cluster has to do with the request, once.
    pub(super) fn join_cluster(&mut self, request: &Request) {
        if self.settings.cache.cluster.is_some() && self.cluster.is_none() {
            self.cluster = ClusterPart::of_request(self, request);
            if let Some(part) = &self.cluster {
                part.count_use();
            }
        }
    }

    /// The feed of a fill that this request starts.
    pub(super) fn feed(&self) -> FillFeed {
        let part = self.cluster.as_ref();
        part.map_or(FillFeed::Origin, |part| part.feed())
    }
}

/// The members that a fetch has still to ask, and the one that it reads from.
#[derive(Default)]
pub(super) struct MemberTries {
    part: Option<Rc<ClusterPart>>,
    left: VecDeque<RouteStep>,
    /// The member whose answer is being read.
    reading: Option<MemberUse>,
    /// The hop of the next request.
    hop: u8,
}

impl MemberTries {
    pub(super) fn of_request(cache_request: &CacheRequest) -> MemberTries {
        let part = cache_request.cluster.clone();
        let steps = part
            .as_ref()
            .map(|part| part.route.steps.iter().cloned().collect());
        MemberTries {
            left: steps.unwrap_or_default(),
            part,
            reading: None,
            hop: 1,
        }
    }

    /// Whether the answer of a member is being read.
    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether what is fetched is kept: what comes from the origin, and copies of what is asked for often.
    pub(super) fn keeps(&self) -> bool {
        match (&self.reading, &self.part) {
            (Some(_), Some(part)) => part.is_hot() || part.route.owner.is_none(),
            _ => true,
        }
    }
}

impl CacheFetch {
    /// Asks the members, in their order. `None`: the origin has to be asked.
    pub(super) async fn ask_members(&mut self) -> Option<Box<Exchange>> {
        // What was read before broke off.
        if let Some(lost) = self.members.reading.take() {
            lost.member().failed.fetch_add(1, Relaxed);
        }
        let part = self.members.part.clone()?;
        while let Some(step) = self.members.left.pop_front() {
            if !step.member.answers() {
                continue;
            }
            match Box::pin(self.ask_member(&part, &step)).await {
                MemberAnswer::Response(exchange) => return Some(exchange),
                MemberAnswer::Other(other) if !step.only_stored => {
                    self.follow_redirect(&part, &step, other);
                }
                // The feed of this fill says that it waits for no fetch of another member.
                MemberAnswer::Other(_) => {}
                MemberAnswer::AskOrigin => self.members.left.clear(),
                MemberAnswer::None => {}
            }
        }
        self.turn_to_origin();
        None
    }

    /// The rest comes from the origin: who waits for this fill waits for no other member.
    fn turn_to_origin(&mut self) {
        if let Some(feed) = &self.feed {
            feed.turn_to_origin();
        }
        self.request.set_state(PeerVerdict::Unjudged);
    }

    /// A member has named another owner, which is asked next, unless one redirect was followed already. If that one is gone
    /// by this server's view, the member itself is asked once more: a question of the second hop is not sent on, and the
    /// origin is then asked by the member that both will see as the owner soon.
    fn follow_redirect(
        &mut self,
        part: &ClusterPart,
        step: &RouteStep,
        other: std::net::SocketAddr,
    ) {
        let view = part.state.view();
        let next = match view.live_member(other) {
            Some(member) if view.is_own(member) => return,
            Some(member) => member,
            None => &step.member,
        };
        if self.members.hop > 1 {
            return;
        }
        self.members.hop = 2;
        // It is in this place of the order only by the other one's view.
        self.members
            .left
            .retain(|step| step.member.address != next.address);
        self.members.left.push_front(RouteStep {
            member: Arc::clone(next),
            only_stored: false,
        });
    }

    async fn ask_member(&mut self, part: &Rc<ClusterPart>, step: &RouteStep) -> MemberAnswer {
        let member = &step.member;
        let Some((settings, _)) = part.cluster.running() else {
            return MemberAnswer::None;
        };
        member.asked.fetch_add(1, Relaxed);
        if self.members.hop > 1 {
            part.state.second_hops.fetch_add(1, Relaxed);
        }
        let tls = settings.tls.as_deref();
        let plan = ExchangePlan {
            settings: self
                .settings
                .for_member(settings.budget, tls.map(MemberTls::client)),
            target: ExchangeTarget::Group(Arc::clone(&member.group)),
            protocol: Box::new(PeerExchange::new(AskedMember {
                cluster: Arc::clone(&part.cluster),
                secure_host: tls.map(|tls| tls.host_of(&member.name).to_owned()),
                source: self.source,
                hop: self.members.hop,
                epoch: part.route.epoch,
                from: part.state.view().own.as_ref().map(|own| own.address),
                key: part.key,
                only_stored: step.only_stored,
                journal: part.journal,
            })),
            content: RequestContent::Dropped,
            watch_client: false,
            tag: 0,
        };
        let in_use = member.begin_use();
        let former = self.request.ledger.enter(LedgerPhase::FirstByte);
        let columns = self.request.ledger.columns_now();
        let requested_ms = rt::wall_millis();
        let answer =
            while_it_answers(&in_use, Exchange::run_exchange(&mut self.request, plan)).await;
        self.request.ledger.enter(former);
        self.request.ledger.count_as_member(&columns);
        let times = ExchangeTimes {
            requested_ms,
            received_ms: rt::wall_millis(),
        };
        let answer = match answer {
            Some(Ok(exchange)) => self.judge_answer(exchange, times),
            Some(Err(NoResponse { .. })) => MemberAnswer::None,
            None => {
                let name = &member.name;
                let line = format_args!("member {name} of the cluster does not answer any more");
                self.request.log(LogLevel::Warn, line);
                MemberAnswer::None
            }
        };
        match &answer {
            MemberAnswer::Response(_) => {
                part.state.avoided.fetch_add(1, Relaxed);
                self.members.reading = Some(in_use);
            }
            MemberAnswer::None if !step.only_stored => {
                member.failed.fetch_add(1, Relaxed);
            }
            MemberAnswer::None | MemberAnswer::Other(_) | MemberAnswer::AskOrigin => {}
        }
        answer
    }

    /// Reads what the member says about its answer.
    fn judge_answer(&mut self, mut exchange: Box<Exchange>, times: ExchangeTimes) -> MemberAnswer {
        let record = self.request.upstream.get_or_make();
        let status = record.head.status;
        let said = record
            .head
            .fields
            .get(RESPONSE_FIELD)
            .and_then(ObjectField::read);
        Arc::make_mut(&mut record.head)
            .fields
            .remove(RESPONSE_FIELD);
        let verdict = match said {
            Some(ObjectField::Stored { freshness, took_ms }) => {
                let times = (times.requested_ms, times.received_ms);
                PeerVerdict::Storable(freshness_here(&freshness, took_ms, times))
            }
            Some(ObjectField::Private) if status != 421 => PeerVerdict::Private,
            other => {
                exchange.finish_without_content(&mut self.request);
                return match other {
                    Some(ObjectField::AskOther(member)) => MemberAnswer::Other(member),
                    Some(ObjectField::Private) => MemberAnswer::AskOrigin,
                    _ => MemberAnswer::None,
                };
            }
        };
        self.request.set_state(verdict);
        self.times = times;
        MemberAnswer::Response(exchange)
    }

    /// The next piece of the content. A member that does not answer any more is as one that has closed the connection.
    pub(super) async fn next_content(&mut self) -> Option<Result<BodyChunk, BodyError>> {
        let Some(reading) = &self.members.reading else {
            return ResponseBody::next_of(&mut self.request).await;
        };
        match while_it_answers(reading, ResponseBody::next_of(&mut self.request)).await {
            Some(next) => {
                if matches!(next, Some(Ok(_))) {
                    reading.member().note_heard();
                }
                next
            }
            None => {
                let name = &reading.member().name;
                let line = format_args!(
                    "member {name} of the cluster stopped in the middle of a response"
                );
                self.request.log(LogLevel::Warn, line);
                Some(Err(BodyError::Producer))
            }
        }
    }
}

/// Runs a future for as long as a member answers; `None` if it does not any more.
async fn while_it_answers<F: Future>(in_use: &MemberUse, future: F) -> Option<F::Output> {
    let mut loss = pin!(in_use.member().until_lost());
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        // What has arrived counts, whatever became of the member since.
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        loss.as_mut().poll(context).map(|()| None)
    })
    .await
}
