//! What the cache would make of a request, for `weir explain`: the decisions of admission, without a store.

use std::sync::Arc;

use bstr::BString;
use proto::message::Method;

use super::admission::{CachePurpose, chosen_zone, first_true};
use super::cached_protocol::CachedProtocol;
use super::fetch_fields::FetchFields;
use super::key::{HEAD_ONLY, key_text};
use crate::module::HandlerOutcome;
use crate::request::{Request, RequestPurpose};
use crate::upstream::SettingsRef;

/// The part of the cache in a request.
#[derive(Clone, Debug)]
pub struct ExplainedCache {
    /// The name of the zone.
    pub zone: BString,
    /// The key.
    pub key: BString,
    /// What it is used for.
    pub used_for: ExplainedCacheUse,
    /// The line of the `…_no_cache` condition that keeps the response from being stored, judged before there is one.
    pub no_cache: Option<Arc<str>>,
}

/// What a request wants of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainedCacheUse {
    /// The response is looked up, and stored if it may be.
    LookUp,
    /// Nothing is looked up, because of the condition on this line.
    Bypass(Arc<str>),
    /// What is stored is outdated if the request succeeds.
    Invalidate,
    /// The key is purged.
    Purge,
    /// The method does not concern the cache.
    Method,
}

/// What admission would decide. Afterwards the request is the one that would be sent to the origin. `None`: there is no
/// cache.
pub(crate) fn explain_admission(
    request: &mut Request,
    settings: &SettingsRef,
    source: &CachedProtocol,
) -> Result<Option<ExplainedCache>, HandlerOutcome> {
    let conf = &settings.cache;
    if !conf.is_on() {
        return Ok(None);
    }
    let purpose = CachePurpose::of(request, conf);
    let Some(zone) = chosen_zone(request, &conf.cache).map_err(HandlerOutcome::Status)? else {
        return Ok(None);
    };
    let mut key = key_text(request, conf.key.as_ref(), source)?;
    let looks_up = purpose == Some(CachePurpose::LookUp);
    if looks_up && request.method == Method::Head && !conf.convert_head {
        key.extend_from_slice(HEAD_ONLY);
    }
    let bypass = match looks_up {
        true => first_true(request, &conf.bypass).map(|line| Arc::clone(&line.place)),
        false => None,
    };
    let no_cache = first_true(request, &conf.no_cache).map(|line| Arc::clone(&line.place));
    if looks_up {
        as_fetch(request, conf.convert_head);
    }
    Ok(Some(ExplainedCache {
        zone: zone.name().to_owned(),
        key: key.into(),
        used_for: match (purpose, bypass) {
            (Some(CachePurpose::LookUp), Some(place)) => ExplainedCacheUse::Bypass(place),
            (Some(CachePurpose::LookUp), None) => ExplainedCacheUse::LookUp,
            (Some(CachePurpose::Invalidate), _) => ExplainedCacheUse::Invalidate,
            (Some(CachePurpose::Purge), _) => ExplainedCacheUse::Purge,
            (None, _) => ExplainedCacheUse::Method,
        },
        no_cache,
    }))
}

/// Turns the request into the one of the fetch, which asks for the whole response on behalf of all clients.
fn as_fetch(request: &mut Request, converts_head: bool) {
    request.flow.purpose = RequestPurpose::Background;
    if converts_head && request.method == Method::Head {
        request.method = Method::Get;
    }
    request.set_state(FetchFields::default());
}
