//! Requests that ask the origin for themselves. Their response may turn out to be storable, and is then stored for all;
//! otherwise it is passed on as it is.

use std::sync::Arc;

use proto::caching::Freshness;
use proto::message::Method;

use super::answer::respond_unshared;
use super::ask::Ask;
use super::fetch::{Fetch, exchange, is_converted};
use super::follow::{FollowedFill, Step, failed};
use super::judging::{ExchangeTimes, Judged};
use super::lookup::CacheRequest;
use super::status::Status;
use super::storing;
use super::verdict::{AskedFor, StoreAction, on_judgement};
use crate::module::Outcome;
use crate::request::Request;
use crate::upstream::{Exchange, NoResponse};

impl CacheRequest {
    /// Asks the origin for this client alone. A response that may be stored is stored nevertheless.
    pub(super) async fn fetch_unshared(
        &mut self,
        request: &mut Request,
        status: Status,
    ) -> Outcome {
        // The response may be stored, so as in nginx the client's conditions and range are not sent to the origin: a
        // 304 or a 206 would be of no use to others.
        request.set_state(Ask::default());
        let (exchange, times) = match self.exchange(request).await {
            Ok(exchanged) => exchanged,
            Err(none) => return failed(request, none.status, status),
        };
        let head = Arc::clone(&request.upstream.get_or_make().head);
        let judged = Judged::of(
            request,
            &self.settings,
            &self.store,
            &exchange,
            &head,
            times,
        );
        match (
            on_judgement(judged.judgement(), AskedFor::Whole, head.status),
            judged,
        ) {
            (StoreAction::Store, Judged::Whole(freshness)) => {
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
        status: Status,
    ) -> Outcome {
        let header_only = request.delivery.header_only && !is_converted(&self.settings, request);
        let head = Arc::clone(&request.upstream.get_or_make().head);
        // The lookup tells whether the response is another variant of what is stored.
        let at = self.find(request, times.received_ms).await.at;
        let (writer, follower) = self.store.start_fill(&at.key, times.received_ms);
        let mut fetch = Fetch::new(self, request, at, None, Ask::default());
        fetch.times = times;
        fetch.request.delivery.header_only = header_only;
        // The record moves to the fetch, which continues to write it; the first client's slot gets copies.
        fetch.request.upstream = std::mem::take(&mut request.upstream);
        let slot = storing::start_with_response(fetch, writer, exchange, head, freshness);
        let fill = FollowedFill {
            follower,
            first_client: Some(slot),
            status,
            stale: None,
        };
        match self.follow(request, fill).await {
            Step::Done(outcome) => outcome,
            // The head is known and was judged, so only a purge of the new fill leads here.
            Step::LookAgain => Outcome::Status(502),
        }
    }

    /// Sends the client's request to the origin.
    pub(super) async fn exchange(
        &self,
        request: &mut Request,
    ) -> Result<(Box<Exchange>, ExchangeTimes), NoResponse> {
        let is_converted = is_converted(&self.settings, request);
        // The method is restored afterwards: the response to the client is still one to HEAD.
        if is_converted {
            request.method = Method::Get;
        }
        let result = exchange(request, self.source, true).await;
        if is_converted {
            request.method = Method::Head;
        }
        result
    }

    /// Passes the request to the origin; nothing is stored.
    pub(super) async fn pass(&self, request: &mut Request, status: Status) -> Outcome {
        match self.exchange(request).await {
            Ok((exchange, _)) => respond_unshared(request, &self.settings, exchange, status),
            Err(none) => failed(request, none.status, status),
        }
    }
}
