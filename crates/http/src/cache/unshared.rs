//! Requests that ask the origin for themselves. Their response may turn out to be storable, and is then stored for all;
//! otherwise it is passed on as it is.

use std::sync::Arc;

use proto::caching::Freshness;
use proto::message::Method;

use super::cache_response::respond_unshared;
use super::cache_status::UpstreamCacheStatus;
use super::cluster_fetch::MemberTries;
use super::fetch::{CacheFetch, is_converted, timed_exchange};
use super::fetch_fields::FetchFields;
use super::fetch_verdict::{FetchedCoverage, StoreAction, on_judgement};
use super::follow::{FollowStep, FollowedFill, respond_failed};
use super::lookup::CacheRequest;
use super::storable_response::{ExchangeTimes, JudgedResponse};
use super::storing;
use crate::module::HandlerOutcome;
use crate::request::Request;
use crate::upstream::{Exchange, NoResponse};

impl CacheRequest {
    /// Asks the origin for this client alone. A response that may be stored is stored nevertheless.
    pub(super) async fn fetch_unshared(
        &mut self,
        request: &mut Request,
        status: UpstreamCacheStatus,
    ) -> HandlerOutcome {
        // The response may be stored, so as in nginx the client's conditions and range are not sent to the origin: a
        // 304 or a 206 would be of no use to others.
        request.set_state(FetchFields::default());
        let (exchange, times) = match self.exchange_unshared(request).await {
            Ok(exchanged) => exchanged,
            Err(none) => return respond_failed(request, none.status, status),
        };
        let head = Arc::clone(&request.upstream.get_or_make().head);
        let judged = JudgedResponse::of_exchange(
            request,
            &self.settings,
            &self.store,
            &exchange,
            &head,
            times,
        );
        match (
            on_judgement(judged.judgement(), FetchedCoverage::Whole, head.status),
            judged,
        ) {
            (StoreAction::Store, JudgedResponse::Whole(freshness)) => {
                self.store_for_all(request, exchange, (freshness, times), status)
                    .await
            }
            // No range was asked for, so everything else cannot be stored as it is.
            _ => respond_unshared(request, &self.settings, exchange, status),
        }
    }

    /// Stores the response of an exchange; the client follows the fill like any other.
    pub(super) async fn store_for_all(
        &mut self,
        request: &mut Request,
        exchange: Box<Exchange>,
        (freshness, times): (Freshness, ExchangeTimes),
        status: UpstreamCacheStatus,
    ) -> HandlerOutcome {
        let header_only = request.delivery.header_only && !is_converted(&self.settings, request);
        let head = Arc::clone(&request.upstream.get_or_make().head);
        // The lookup tells whether the response is another variant of what is stored.
        let at = self.find_entry(request, times.received_ms).await.at;
        let (writer, follower) = self.store.start_fill(&at.key, times.received_ms);
        let mut fetch = CacheFetch::new(self, request, at, None, FetchFields::default());
        fetch.times = times;
        // It is fed by the origin from the beginning, and what breaks off continues there.
        fetch.members = MemberTries::default();
        fetch.request.delivery.header_only = header_only;
        // The record moves to the fetch, which continues to write it; the first client's slot gets copies.
        fetch.request.upstream = std::mem::take(&mut request.upstream);
        // Why the request asked for itself stays with it.
        let reason = std::mem::take(&mut fetch.request.upstream.get_or_make().cache_reason);
        request.upstream.get_or_make().cache_reason = reason;
        let slot = storing::start_with_response(fetch, writer, exchange, head, freshness);
        let fill = FollowedFill {
            follower,
            first_client: Some(slot),
            status,
            stale: None,
        };
        match self.follow_fill(request, fill).await {
            FollowStep::Done(outcome) => outcome,
            // The head is known and was judged, so only a purge of the new fill leads here.
            FollowStep::LookAgain => HandlerOutcome::Status(502),
        }
    }

    /// Sends the client's request to the origin.
    pub(super) async fn exchange_unshared(
        &self,
        request: &mut Request,
    ) -> Result<(Box<Exchange>, ExchangeTimes), NoResponse> {
        let is_converted = is_converted(&self.settings, request);
        // The method is restored afterwards: the response to the client is still one to HEAD.
        if is_converted {
            request.method = Method::Get;
        }
        let result = timed_exchange(request, self.source, true).await;
        if is_converted {
            request.method = Method::Head;
        }
        result
    }

    /// Passes the request to the origin; nothing is stored.
    pub(super) async fn pass_request(
        &self,
        request: &mut Request,
        status: UpstreamCacheStatus,
    ) -> HandlerOutcome {
        match self.exchange_unshared(request).await {
            Ok((exchange, _)) => respond_unshared(request, &self.settings, exchange, status),
            Err(none) => respond_failed(request, none.status, status),
        }
    }
}
