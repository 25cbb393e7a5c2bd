//! Requests that change what the cache has: purges, and unsafe methods, after which what is stored is no longer true
//! (RFC 9111, section 4.4).

use std::rc::Rc;
use std::sync::Arc;

use cache::{Coverage, Key, Lookup, Mode, Purge, Store};
use proto::caching::{self, Freshness, Source as FreshnessSource};
use proto::message::{Method, ResponseHead};
use proto::{Fields, Known};

use super::judging::{ExchangeTimes, Storable, fits, judge};
use super::key::{HEAD_ONLY, key_text};
use super::lookup::CacheRequest;
use super::status::Status;
use crate::module::Outcome;
use crate::request::{Request, Uri};
use crate::upstream::Exchange;

impl CacheRequest {
    /// A request with an unsafe method: what is stored for its key is no longer true when it succeeded.
    pub(super) async fn pass_and_invalidate(mut self: Box<Self>, request: &mut Request) -> Outcome {
        let (exchange, times) = match self.exchange(request).await {
            Ok(exchanged) => exchanged,
            Err(none) => return Outcome::Status(none.status),
        };
        let head = Arc::clone(&request.upstream.get_or_make().head);
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
            .store_for_all(request, exchange, (freshness, times), Status::Miss)
            .await;
        // The client's conditions were about what stood here before.
        request.out.transforms.unconditional = true;
        request.out.transforms.ranges = false;
        outcome
    }

    /// Whether a response to POST says that it is what a GET would get, and for how long (RFC 9110, section 9.3.3).
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
                request.head.known(Known::Host)?,
                request.head.wire.target(),
                &head.fields,
            );
        if !is_wanted || !fits(&self.store, exchange) {
            return None;
        }
        let response = times.response(head.status, &head.fields);
        let Storable::Yes(freshness) = judge(request, &self.settings, &response) else {
            return None;
        };
        let is_explicit = !matches!(
            freshness.source,
            FreshnessSource::Nobody | FreshnessSource::Configured | FreshnessSource::Heuristic
        );
        is_explicit.then_some(freshness)
    }

    /// The keys of what `Location` and `Content-Location` name on the same host, as far as the key is made of the path.
    fn keys_named_by(&self, request: &Request, response: &Fields) -> Vec<Key> {
        let Some(host) = request.head.known(Known::Host) else {
            return Vec::new();
        };
        let own = request.head.wire.target();
        let targets = caching::invalidation::targets(host, own, response);
        let key_of = |target: Vec<u8>| {
            let mut path = Vec::new();
            let args = proto::uri::parse_internal(&target, &mut path).ok()?;
            let mut other = request.fork();
            other.method = Method::Get;
            other.uri = Uri {
                path: path.into(),
                args: target[args].into(),
                original: false,
                is_refused: false,
            };
            // Values that were made of the present path must be made anew.
            other.variables = Rc::default();
            let key = self.settings.cache.key.as_ref();
            let text = key_text(&mut other, key, self.source).ok()?;
            Some(Key::new(&text))
        };
        targets.into_iter().filter_map(key_of).collect()
    }
}

/// Purges a key, or with `*` at its end all that begin so (`…_cache_purge`).
pub(super) fn purge(store: &Store, text: &[u8]) -> Outcome {
    if let Some(prefix) = text.strip_suffix(b"*") {
        store.purge(Purge::Prefix(prefix), Mode::Hard);
        return Outcome::Status(204);
    }
    let key = Key::new(text);
    // What is being fetched, or was a moment ago, counts as there: a request would get it.
    let is_there = store.completed_fill(&key).is_some()
        || store.running_fill(&key, Coverage::Whole).is_some()
        || store.is_settling(&key)
        || store
            .peek(&key, 0)
            .is_none_or(|found| !matches!(found, Lookup::Miss(..)));
    purge_key(store, &key);
    Outcome::Status(if is_there { 204 } else { 412 })
}

/// Purges a key, and what answers HEAD under it.
fn purge_key(store: &Store, key: &Key) {
    store.purge(Purge::Key(key), Mode::Hard);
    let head_only = Key::new(&[key.text(), HEAD_ONLY].concat());
    store.purge(Purge::Key(&head_only), Mode::Hard);
}
