//! Where requests enter the cache: which of them concern it, and the hits that can be answered at once.

use std::sync::Arc;

use cache::{CacheKey, CacheStore};
use proto::caching::RequestControl;
use proto::message::Method;

use super::cache_settings::{CacheChoice, CacheCondition, CacheSettings};
use super::cache_status::UpstreamCacheStatus;
use super::cached_protocol::CachedProtocol;
use super::cluster_answer::{JournalBehind, answer_nothing};
use super::decide::RequestTerms;
use super::invalidate::purge_by_key;
use super::key::{HEAD_ONLY, key_text};
use super::lookup::CacheRequest;
use super::zone::{CacheZone, CacheZones};
use crate::cluster::is_of_member;
use crate::ledger::CacheTier;
use crate::module::{HandlerOutcome, HandlerStep};
use crate::request::{Request, RequestPurpose};
use crate::upstream::{self, SettingsRef};

/// Answers a request from the cache, through it, or past it.
pub fn serve_cached<'a>(
    request: &'a mut Request,
    settings: SettingsRef,
    source: &'static CachedProtocol,
) -> HandlerStep<'a> {
    request.upstream.enter_location();
    if !settings.cache.is_on() {
        if is_of_member(request) {
            return answer_nothing(request).into();
        }
        return go_past(request, source);
    }
    if is_of_member(request)
        && let Some(behind) = JournalBehind::of(request, &settings)
    {
        return HandlerStep::later(async move {
            match behind.catch_up().await {
                true => admit(request, settings, source).outcome().await,
                false => answer_nothing(request),
            }
        });
    }
    admit(request, settings, source)
}

fn admit<'a>(
    request: &'a mut Request,
    settings: SettingsRef,
    source: &'static CachedProtocol,
) -> HandlerStep<'a> {
    // Read once: everything up to the first wait is decided on this time.
    let now_ms = rt::wall_millis();
    match CacheAdmission::of(request, settings, source, now_ms) {
        CacheAdmission::Answered(outcome) => outcome.into(),
        CacheAdmission::Uncached => go_past(request, source),
        CacheAdmission::Invalidating(cache_request) => {
            HandlerStep::later(cache_request.pass_and_invalidate(request))
        }
        CacheAdmission::Cached(cache_request) => {
            HandlerStep::later(cache_request.answer_request(request, now_ms))
        }
        CacheAdmission::Purging(store, key) => HandlerStep::later(purge_by_key(store, key)),
    }
}

/// Passes the request on as a location without a cache does.
fn go_past<'a>(request: &'a mut Request, source: &'static CachedProtocol) -> HandlerStep<'a> {
    match (source.plan)(request) {
        Ok(plan) => upstream::exchange_step(request, plan),
        Err(outcome) => outcome.into(),
    }
}

/// How the cache treats a request.
enum CacheAdmission {
    /// It has been answered.
    Answered(HandlerOutcome),
    /// It does not concern the cache, and is passed on as if there were none.
    Uncached,
    /// Its method is unsafe: if it succeeds, the stored response is outdated (RFC 9111, section 4.4).
    Invalidating(Box<CacheRequest>),
    /// It purges a key (`…_cache_purge`).
    Purging(CacheStore, Vec<u8>),
    /// It must wait for the store or for the origin.
    Cached(Box<CacheRequest>),
}

/// What a request wants of the cache, by its method and the directives alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CachePurpose {
    LookUp,
    Invalidate,
    Purge,
}

impl CachePurpose {
    pub(super) fn of(request: &mut Request, settings: &CacheSettings) -> Option<CachePurpose> {
        // As in nginx's commercial version, `…_cache_purge` comes first: a request that purges is never answered from
        // the cache.
        let purges =
            !settings.purge.is_empty() && settings.purge.iter().any(|value| request.is_true(value));
        if purges {
            return Some(CachePurpose::Purge);
        }
        if settings.has_method(request.method) {
            return Some(CachePurpose::LookUp);
        }
        // A safe method that the cache does not handle, such as OPTIONS, changes nothing (RFC 9110, section 9.2.1).
        let invalidates = settings.invalidate && !request.method.is_safe();
        invalidates.then_some(CachePurpose::Invalidate)
    }
}

impl CacheAdmission {
    fn of(
        request: &mut Request,
        settings: SettingsRef,
        source: &'static CachedProtocol,
        now_ms: u64,
    ) -> CacheAdmission {
        let conf = &settings.cache;
        let Some(purpose) = CachePurpose::of(request, conf) else {
            let record = request.upstream.get_or_make();
            record.add_cache_reason("method", None);
            return CacheAdmission::Uncached;
        };
        // The store comes before the key: without one there is no use in evaluating the key's variables.
        let (cache, store) = match choose(request, &conf.cache) {
            Ok(Some(chosen)) => chosen,
            Ok(None) => return CacheAdmission::Uncached,
            Err(status) => return CacheAdmission::Answered(HandlerOutcome::Status(status)),
        };
        let mut text = match key_text(request, conf.key.as_ref(), source) {
            Ok(text) => text,
            Err(outcome) => return CacheAdmission::Answered(outcome),
        };
        if purpose == CachePurpose::Purge {
            return CacheAdmission::Purging(store, text);
        }
        let mut key_of_get = None;
        if request.method == Method::Head && !conf.convert_head {
            // A response to HEAD has no body, so it must never answer GET. A response to GET does answer HEAD.
            key_of_get = Some(CacheKey::new(&text));
            text.extend_from_slice(HEAD_ONLY);
        }
        let mut cache_request = CacheRequest {
            primary: CacheKey::new(&text),
            key_of_get,
            terms: RequestTerms {
                control: conf
                    .request_control
                    .then(|| RequestControl::parse(&request.head.wire.fields)),
                is_background: request.flow.purpose == RequestPurpose::Background,
                ..RequestTerms::default()
            },
            is_bypassed: false,
            cluster: None,
            has_awaited_feed: false,
            known_marker: None,
            source,
            store,
            settings,
        };
        request.ledger.cache = Some(Arc::clone(&cache));
        if let Some(refused) = cache_request.refuse_other_key(request) {
            return CacheAdmission::Answered(refused);
        }
        if purpose == CachePurpose::Invalidate {
            return CacheAdmission::Invalidating(Box::new(cache_request));
        }
        // Only what is looked up can be bypassed. An unsafe request outdates the stored response in any case.
        let conf = &cache_request.settings.cache;
        cache_request.is_bypassed = is_bypassed(request, conf);
        if cache_request.is_bypassed {
            return CacheAdmission::Cached(Box::new(cache_request));
        }
        if conf.min_uses > 1 {
            // As in nginx, each request counts, hits included.
            let least = u64::try_from(conf.min_uses).unwrap_or(0);
            cache_request.terms.is_below_min_uses = cache.count_use(&text) < least;
        }
        // Hits in memory are answered here, without a future. Two kinds of request need one: a body must be read before
        // the response, and a HEAD request has two keys to look up.
        let may_be_at_once = !request.body.exists() && cache_request.key_of_get.is_none();
        if may_be_at_once && let Some(hit) = serve_from_memory(request, &cache_request, now_ms) {
            return CacheAdmission::Answered(hit);
        }
        CacheAdmission::Cached(Box::new(cache_request))
    }
}

/// Serves a fresh object that is in memory.
fn serve_from_memory(
    request: &mut Request,
    cache_request: &CacheRequest,
    now_ms: u64,
) -> Option<HandlerOutcome> {
    let (object, stored) = cache_request.find_in_memory(request, now_ms)?;
    request.ledger.tier = Some(CacheTier::Memory);
    let hit = UpstreamCacheStatus::Hit;
    Some(cache_request.serve_object(request, &object, &stored, hit, now_ms))
}

/// The condition of `…_cache_bypass` or `…_no_cache` that applies.
pub(super) fn first_true<'c>(
    request: &mut Request,
    conditions: &'c [CacheCondition],
) -> Option<&'c CacheCondition> {
    conditions.iter().find(|one| request.is_true(&one.value))
}

/// Whether `…_cache_bypass` applies. If it does, the record says which line has it.
fn is_bypassed(request: &mut Request, conf: &CacheSettings) -> bool {
    let Some(bypass) = first_true(request, &conf.bypass) else {
        return false;
    };
    let record = request.upstream.get_or_make();
    record.add_cache_reason("bypass", Some(&bypass.place));
    true
}

/// The cache of the location, with its store. `None` if the directive's value says so, or if the store cannot be used
/// at the moment. The error is the status to answer with; it has been logged.
fn choose(
    request: &mut Request,
    which: &CacheChoice,
) -> Result<Option<(Arc<CacheZone>, CacheStore)>, u16> {
    let Some(cache) = chosen_zone(request, which)? else {
        return Ok(None);
    };
    // A store that failed must not take the site down. `None` sends the request to the origin.
    Ok(cache.store().map(|store| (cache, store)))
}

/// The cache that the directive names for a request.
pub(super) fn chosen_zone(
    request: &mut Request,
    which: &CacheChoice,
) -> Result<Option<Arc<CacheZone>>, u16> {
    match which {
        CacheChoice::Off => Ok(None),
        CacheChoice::Cache(cache) => Ok(Some(Arc::clone(cache))),
        CacheChoice::Value(value) => {
            let name = request.value(&value.clone());
            if name.is_empty() || name == "off" {
                return Ok(None);
            }
            match request.site.main_confs.get::<CacheZones>().find_zone(&name) {
                Some(cache) => Ok(Some(cache)),
                None => {
                    request.error(format_args!("cache \"{name}\" not found"));
                    Err(500)
                }
            }
        }
    }
}
