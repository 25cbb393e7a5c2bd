//! Requests that remove stored responses: purges, and unsafe methods (RFC 9111, section 4.4).

use std::rc::Rc;
use std::sync::Arc;

use cache::{CacheKey, CacheStore, FillCoverage, LookupResult, PurgeMode, PurgeRequest};
use proto::caching::{self, Freshness, LifetimeSource as FreshnessSource};
use proto::message::{Method, ResponseHead};
use proto::{Fields, KnownField};

use super::cache_status::UpstreamCacheStatus;
use super::key::{HEAD_ONLY, key_text};
use super::lookup::CacheRequest;
use super::storable_response::{ExchangeTimes, StorableResponse, fits_store, judge_storable};
use crate::module::HandlerOutcome;
use crate::request::{Request, RequestUri};
use crate::upstream::Exchange;

impl CacheRequest {
    /// Passes on a request with an unsafe method. If it succeeds, what is stored for its key is outdated.
    pub(super) async fn pass_and_invalidate(
        mut self: Box<Self>,
        request: &mut Request,
    ) -> HandlerOutcome {
        let (exchange, times) = match self.exchange_unshared(request).await {
            Ok(exchanged) => exchanged,
            Err(none) => return HandlerOutcome::Status(none.status),
        };
        let head = Arc::clone(&request.upstream.get_or_make().head);
        // After the response head, since only a success invalidates; before the response is sent, so that the client's
        // next request does not find the old object.
        if caching::invalidation::invalidates(request.method, head.status) {
            purge_key(&self.store, &self.primary);
            for key in self.keys_named_by(request, &head.fields) {
                purge_key(&self.store, &key);
            }
        }
        let Some(freshness) = self.is_what_get_gets(request, &exchange, &head, times) else {
            return exchange.respond(request);
        };
        let outcome = self
            .store_for_all(
                request,
                exchange,
                (freshness, times),
                UpstreamCacheStatus::Miss,
            )
            .await;
        // `If-Match` and the like of a POST refer to the state before it, and the origin has judged them.
        request.out.transforms.unconditional = true;
        request.out.transforms.ranges = false;
        outcome
    }

    /// Whether a response to POST declares itself to be what GET would return, and for how long (RFC 9110, section
    /// 9.3.3).
    fn is_what_get_gets(
        &self,
        request: &mut Request,
        exchange: &Exchange,
        head: &ResponseHead,
        times: ExchangeTimes,
    ) -> Option<Freshness> {
        let is_wanted = self.settings.cache.post
            && request.method == Method::Post
            && head.status == 200
            && caching::invalidation::is_about_its_target(
                request.head.known(KnownField::Host)?,
                request.head.wire.target(),
                &head.fields,
            );
        if !is_wanted || !fits_store(&self.store, exchange) {
            return None;
        }
        let response = times.response(head.status, &head.fields);
        let StorableResponse::Yes(freshness) = judge_storable(request, &self.settings, &response)
        else {
            return None;
        };
        // RFC 9110, section 9.3.3 requires explicit freshness. A lifetime from `…_cache_valid` or a heuristic does not
        // suffice.
        let is_explicit = !matches!(
            freshness.source,
            FreshnessSource::Nobody | FreshnessSource::Configured | FreshnessSource::Heuristic
        );
        is_explicit.then_some(freshness)
    }

    /// The keys of what `Location` and `Content-Location` name on the same host (RFC 9111, section 4.4). This works for
    /// keys that are made of the path; a key with `$request_uri` remains that of the request itself.
    fn keys_named_by(&self, request: &Request, response: &Fields) -> Vec<CacheKey> {
        let Some(host) = request.head.known(KnownField::Host) else {
            return Vec::new();
        };
        let own = request.head.wire.target();
        let targets = caching::invalidation::invalidated_targets(host, own, response);
        let key_of = |target: Vec<u8>| {
            let mut path = Vec::new();
            let args = proto::uri::parse_internal(&target, &mut path).ok()?;
            let mut other = request.fork();
            other.method = Method::Get;
            other.uri = RequestUri {
                path: path.into(),
                args: target[args].into(),
                original: false,
            };
            // Variables may have been evaluated for the request's own path.
            other.variables = Rc::default();
            let key = self.settings.cache.key.as_ref();
            let text = key_text(&mut other, key, self.source).ok()?;
            Some(CacheKey::new(&text))
        };
        targets.into_iter().filter_map(key_of).collect()
    }
}

/// Purges a key, or all keys that begin with it if it ends in `*` (`…_cache_purge`).
pub(super) async fn purge_by_key(store: CacheStore, text: Vec<u8>) -> HandlerOutcome {
    if let Some(prefix) = text.strip_suffix(b"*") {
        store.purge_everywhere(PurgeRequest::Prefix(prefix), PurgeMode::Hard);
        return HandlerOutcome::Status(204);
    }
    let key = CacheKey::new(&text);
    // A fill that is in progress, or not committed yet, counts as present: a request would be answered from it. The
    // index may still refer to what an earlier purge has hit, so the object itself is asked for.
    let is_there = store.completed_fill(&key).is_some()
        || store.running_fill(&key, FillCoverage::Whole).is_some()
        || store.is_committing(&key)
        || !matches!(store.lookup(&key, 0).await, LookupResult::Miss(..));
    purge_key(&store, &key);
    HandlerOutcome::Status(if is_there { 204 } else { 412 })
}

/// Purges a key, together with the stored response to HEAD.
fn purge_key(store: &CacheStore, key: &CacheKey) {
    store.purge_everywhere(PurgeRequest::Key(key), PurgeMode::Hard);
    let head_only = CacheKey::new(&[key.text(), HEAD_ONLY].concat());
    store.purge_everywhere(PurgeRequest::Key(&head_only), PurgeMode::Hard);
}
