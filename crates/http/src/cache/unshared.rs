//! Requests that ask the origin for themselves: what comes may turn out to be for all, and is stored then, or it is passed
//! on as it is.

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
    /// Asks the origin for this client alone; a response that may be stored is stored all the same.
    pub(super) async fn fetch_unshared(
        &mut self,
        request: &mut Request,
        status: Status,
    ) -> Outcome {
        // It may turn out to be for all: as in nginx, the client's conditions and ranges stay here.
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
            // A part is for the client alone that asked for it in its own way.
            _ => respond_unshared(request, &self.settings, exchange, status),
        }
    }

    /// Stores what an exchange brings, of which the client gets a copy.
    pub(super) async fn store_for_all(
        &mut self,
        request: &mut Request,
        exchange: Box<Exchange>,
        (freshness, times): (Freshness, ExchangeTimes),
        status: Status,
    ) -> Outcome {
        let header_only = request.delivery.header_only && !is_converted(&self.settings, request);
        let head = Arc::clone(&request.upstream.get_or_make().head);
        // Beside the variants that there are, if it is one of several.
        let at = self.find(request, times.received_ms).await.at;
        let (writer, follower) = self.store.start_fill(&at.key, times.received_ms);
        let mut fetch = Fetch::new(self, request, at, None, Ask::default());
        fetch.times = times;
        fetch.request.delivery.header_only = header_only;
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
            Step::LookAgain => Outcome::Status(502),
        }
    }

    /// Asks the origin with the client's request.
    pub(super) async fn exchange(
        &self,
        request: &mut Request,
    ) -> Result<(Box<Exchange>, ExchangeTimes), NoResponse> {
        let is_converted = is_converted(&self.settings, request);
        if is_converted {
            request.method = Method::Get;
        }
        let result = exchange(request, self.source, true).await;
        if is_converted {
            request.method = Method::Head;
        }
        result
    }

    /// Passes the request on as it is; nothing is stored.
    pub(super) async fn pass(&self, request: &mut Request, status: Status) -> Outcome {
        match self.exchange(request).await {
            Ok((exchange, _)) => respond_unshared(request, &self.settings, exchange, status),
            Err(none) => failed(request, none.status, status),
        }
    }
}
