//! A fetch: a request of its own to the origin, which belongs to no client. This file says what it consists of and what
//! it asks for. `storing` stores the response; `fetch_content` handles a body that breaks off.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bstr::BString;
use cache::{CacheKey, CacheStore, CachedObject, FeedMark, FillFollower};
use proto::Fields;
use proto::caching::{self, Freshness, ReuseDecision};
use proto::message::{Method, ResponseHead};

use super::cached_protocol::CachedProtocol;
use super::cluster_fetch::MemberTries;
use super::fetch_fields::FetchFields;
use super::fetch_verdict::MissingAnswer;
use super::first_client::FirstClientSlot;
use super::lookup::{CacheRequest, StorageKey};
use super::ranges::is_requested_part;
use super::storable_response::{ExchangeTimes, StorableResponse, judge_storable};
use super::stored_head::{StoredHead, StoredKind};
use base::sync::Mutex;

use crate::module::HandlerOutcome;
use crate::request::{Request, RequestPurpose};
use crate::upstream::{ContentLength, Exchange, NoResponse, SettingsRef};

/// A stored object that may not be served before the origin has been asked.
#[derive(Clone)]
pub(super) struct StaleObject {
    pub(super) object: CachedObject,
    pub(super) stored: Arc<StoredHead>,
    /// Why it may not be served, and in which cases it may be nevertheless.
    pub(super) reuse: ReuseDecision,
}

/// What a fetch tells its followers to do instead of reading content.
pub(super) enum FetchResult {
    /// The response must not be shared: the first client gets the exchange, the others ask the origin themselves.
    Released,
    /// The origin failed, and the stale object may be served.
    UseStale,
    /// The stale object has been validated, and has this head from now on.
    Revalidated(Arc<StoredHead>),
    /// The origin failed: answer with this status.
    Failed(u16),
    /// The stored response has changed: look up again.
    LookAgain,
    /// Follow this fill instead: a range was asked for and the whole arrived, or the bytes of the range became known. The
    /// mutex is there because followers on several threads clone this one, and reading moves a follower.
    FollowOther(Mutex<FillFollower>),
}

/// A missing part of a stored object, which is fetched alone.
pub(super) struct MissingPart {
    pub(super) range: Range<u64>,
    pub(super) object: CachedObject,
    pub(super) stored: Arc<StoredHead>,
}

impl MissingPart {
    /// Whether a response fits into the hole.
    fn answered_by(&self, head: &ResponseHead) -> MissingAnswer {
        let fields = &self.stored.head.fields;
        match is_requested_part(head, fields, self.range.clone(), self.object.length()) {
            true => MissingAnswer::Fits,
            false => MissingAnswer::Another,
        }
    }
}

/// Everything that the fetching task needs. It owns all of it, since the request that started it may end first.
pub(super) struct CacheFetch {
    pub(super) request: Request,
    pub(super) settings: SettingsRef,
    pub(super) source: &'static CachedProtocol,
    pub(super) store: CacheStore,
    /// The key of the request, before `Vary` is considered.
    pub(super) primary: CacheKey,
    /// Where the response is expected to be stored: under the same key, or under that of a variant.
    pub(super) at: StorageKey,
    /// The object that is validated, and that may replace an error.
    pub(super) stale: Option<StaleObject>,
    /// The part that is fetched; `None` for the whole.
    pub(super) missing: Option<MissingPart>,
    pub(super) first_client: Rc<FirstClientSlot>,
    pub(super) times: ExchangeTimes,
    /// The fill's number in the store. A purge with a later number applies to what this fetch stores.
    pub(super) born: u64,
    /// The length that the response announced.
    pub(super) framed: ContentLength,
    /// The members of the cluster that are asked before the origin.
    pub(super) members: MemberTries,
    /// Whether the fill waits for one of them; `None` before there is a fill.
    pub(super) feed: Option<FeedMark>,
}

impl Drop for CacheFetch {
    fn drop(&mut self) {
        // One whose exchange went to a client is a part of that client's request, and has no record any more.
        if self.request.upstream.get().is_some() {
            crate::log_phase::end_part(&mut self.request);
        }
    }
}

impl CacheFetch {
    /// Makes a fetch on behalf of a request. `ask` replaces the client's conditions and range.
    pub(super) fn new(
        cache_request: &CacheRequest,
        request: &Request,
        at: StorageKey,
        stale: Option<StaleObject>,
        fields: FetchFields,
    ) -> CacheFetch {
        let mut own = request.fork();
        // No client is attached to it: nothing is written to a connection, and a disconnection does not cancel it.
        own.flow.purpose = RequestPurpose::Background;
        if is_converted(&cache_request.settings, &own) {
            // As in nginx (`…_cache_convert_head`), the body is fetched even for HEAD, so that the next GET is a hit.
            own.method = Method::Get;
        }
        own.delivery.header_only = own.method == Method::Head;
        own.set_state(fields);
        CacheFetch {
            request: own,
            settings: cache_request.settings.clone(),
            source: cache_request.source,
            store: cache_request.store.clone(),
            primary: cache_request.primary.clone(),
            at,
            stale,
            missing: None,
            first_client: Rc::default(),
            times: ExchangeTimes::default(),
            born: 0,
            framed: ContentLength::Unknown,
            members: MemberTries::of_request(cache_request),
            feed: None,
        }
    }

    /// Makes a fetch of the whole response. With `…_cache_revalidate`, a stale object is validated by a conditional
    /// request.
    pub(super) fn of_whole(
        cache_request: &CacheRequest,
        request: &Request,
        at: StorageKey,
        stale: Option<StaleObject>,
    ) -> CacheFetch {
        let mut ask = FetchFields::default();
        if let Some(stale) = &stale
            && cache_request.settings.cache.revalidate
            // A HEAD response and a stored error have no content that a 304 could confirm.
            && stale.stored.kind == StoredKind::Content
            && caching::is_validated(stale.stored.head.status)
        {
            let validators = caching::stored_validators(&stale.stored.head.fields);
            ask.etag = validators.etag.map(BString::from);
            ask.last_modified = validators.last_modified.map(BString::from);
        }
        CacheFetch::new(cache_request, request, at, stale, ask)
    }

    /// Asks the origin, or the member of the cluster that asks it for all, and waits for the head of the response.
    pub(super) async fn exchange_with_origin(&mut self) -> Result<Box<Exchange>, NoResponse> {
        if let Some(exchange) = self.ask_members().await {
            return Ok(exchange);
        }
        let (exchange, times) = timed_exchange(&mut self.request, self.source, false).await?;
        self.times = times;
        Ok(exchange)
    }

    /// How long a response with these fields is fresh; `None` if it may not be stored.
    pub(super) fn freshness_of(&mut self, status: u16, fields: &Fields) -> Option<Freshness> {
        let response = self.times.response(status, fields);
        match judge_storable(&mut self.request, &self.settings, &response) {
            StorableResponse::Yes(freshness) => Some(freshness),
            StorableResponse::No { .. } => None,
        }
    }

    /// Publishes the tries so far for the client that started the fetch: they are its `$upstream_…` variables.
    pub(super) fn publish_tries(&self) {
        if let Some(record) = self.request.upstream.get() {
            self.first_client
                .publish_tries(&record.tries, &self.request.ledger);
        }
    }

    /// How a response relates to the missing part, if one was asked for.
    pub(super) fn missing_answer(&self, head: &ResponseHead) -> MissingAnswer {
        self.missing
            .as_ref()
            .map_or(MissingAnswer::NotAsked, |missing| missing.answered_by(head))
    }
}

/// Sends a request to the origin as it is, and waits for the head of the response.
pub(super) async fn timed_exchange(
    request: &mut Request,
    source: &CachedProtocol,
    has_client: bool,
) -> Result<(Box<Exchange>, ExchangeTimes), NoResponse> {
    let mut plan = (source.plan)(request).map_err(|outcome| match outcome {
        HandlerOutcome::Status(status) => NoResponse::new(status),
        _ => NoResponse::new(500),
    })?;
    // Without a client there is no connection to watch.
    plan.watch_client &= has_client;
    // Both times enter the computation of the age (RFC 9111, section 4.2.3), so they enclose the exchange.
    let requested_ms = rt::wall_millis();
    let exchange = Exchange::run_exchange(request, plan).await?;
    let received_ms = rt::wall_millis();
    let times = ExchangeTimes {
        requested_ms,
        received_ms,
    };
    Ok((exchange, times))
}

/// Whether HEAD is sent to the origin as GET (`…_cache_convert_head`). That applies without a lookup too, so that a
/// bypassed request renews what is stored.
pub(super) fn is_converted(settings: &SettingsRef, request: &Request) -> bool {
    settings.cache.convert_head && request.method == Method::Head
}
