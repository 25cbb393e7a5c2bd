//! Where requests come to the cache: whether they have anything to do with it, and the hits that end at once.

use std::sync::Arc;

use cache::{Key, Store};
use proto::caching::RequestControl;
use proto::message::Method;

use super::decide::RequestTerms;
use super::invalidate::purge;
use super::key::{HEAD_ONLY, key_text};
use super::lookup::CacheRequest;
use super::settings::{Settings, Which};
use super::source::Source;
use super::status::Status;
use super::zone::{Cache, Caches};
use crate::module::{Outcome, Step};
use crate::request::{Request, RequestPurpose};
use crate::upstream::{self, SettingsRef};

/// Answers a request: from the cache, or through it, or past it.
pub fn serve<'a>(
    request: &'a mut Request,
    settings: SettingsRef,
    source: &'static Source,
) -> Step<'a> {
    if !settings.cache.is_on() {
        return go_past(request, source);
    }
    let now_ms = rt::wall_millis();
    match Admission::of(request, settings, source, now_ms) {
        Admission::Answered(outcome) => outcome.into(),
        Admission::Past => go_past(request, source),
        Admission::Invalidating(asker) => Step::later(asker.pass_and_invalidate(request)),
        Admission::Cached(asker) => Step::later(asker.run(request, now_ms)),
    }
}

fn go_past<'a>(request: &'a mut Request, source: &'static Source) -> Step<'a> {
    match (source.plan)(request) {
        Ok(plan) => Step::later(upstream::pass(request, plan)),
        Err(outcome) => outcome.into(),
    }
}

/// What a request is to the cache.
enum Admission {
    /// One that could be answered at once.
    Answered(Outcome),
    /// Nothing: it is passed on as if there were no cache.
    Past,
    /// One after whose success what is stored is no longer true.
    Invalidating(Box<CacheRequest>),
    /// One for which the store, or the origin, has to be waited for.
    Cached(Box<CacheRequest>),
}

/// What a request does at the cache, by its method and the directives alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    LookUp,
    Invalidate,
    Purge,
}

impl Purpose {
    fn of(request: &mut Request, settings: &Settings) -> Option<Purpose> {
        // `…_cache_purge` goes before all else, as nginx's commercial version has it.
        let purges =
            !settings.purge.is_empty() && settings.purge.iter().any(|value| request.is_true(value));
        if purges {
            return Some(Purpose::Purge);
        }
        if settings.has_method(request.method) {
            return Some(Purpose::LookUp);
        }
        let invalidates = settings.invalidate && !request.method.is_safe();
        invalidates.then_some(Purpose::Invalidate)
    }
}

impl Admission {
    fn of(
        request: &mut Request,
        settings: SettingsRef,
        source: &'static Source,
        now_ms: u64,
    ) -> Admission {
        let conf = &settings.cache;
        let Some(purpose) = Purpose::of(request, conf) else {
            return Admission::Past;
        };
        let (cache, store) = match choose(request, &conf.cache) {
            Ok(Some(chosen)) => chosen,
            Ok(None) => return Admission::Past,
            Err(status) => return Admission::Answered(Outcome::Status(status)),
        };
        let mut text = match key_text(request, conf.key.as_ref(), source) {
            Ok(text) => text,
            Err(outcome) => return Admission::Answered(outcome),
        };
        if purpose == Purpose::Purge {
            return Admission::Answered(purge(&store, &text));
        }
        let mut key_of_get = None;
        if request.method == Method::Head && !conf.convert_head {
            // What answers HEAD alone has a key of its own; but what answers GET answers HEAD.
            key_of_get = Some(Key::new(&text));
            text.extend_from_slice(HEAD_ONLY);
        }
        let mut asker = CacheRequest {
            primary: Key::new(&text),
            key_of_get,
            terms: RequestTerms {
                control: conf
                    .request_control
                    .then(|| RequestControl::parse(&request.head.wire.fields)),
                is_background: request.flow.purpose == RequestPurpose::Background,
                ..RequestTerms::default()
            },
            is_bypassed: false,
            known_marker: None,
            source,
            store,
            settings,
        };
        if purpose == Purpose::Invalidate {
            return Admission::Invalidating(Box::new(asker));
        }
        let conf = &asker.settings.cache;
        asker.is_bypassed = conf.bypass.iter().any(|value| request.is_true(value));
        if asker.is_bypassed {
            return Admission::Cached(Box::new(asker));
        }
        if conf.min_uses > 1 {
            let least = u64::try_from(conf.min_uses).unwrap_or(0);
            asker.terms.is_below_min_uses = cache.count_use(&text) < least;
        }
        // Content of a request is read in any case.
        if !request.body.exists()
            && asker.key_of_get.is_none()
            && let Some((object, stored)) = asker.find_in_memory(request, now_ms)
        {
            let outcome = asker.serve_object(request, &object, &stored, Status::Hit, now_ms);
            return Admission::Answered(outcome);
        }
        Admission::Cached(Box::new(asker))
    }
}

/// The cache of a location, with its store; `None` when a value says that there is none, or when the store cannot be used
/// now. The error is the status to answer with; it has been logged.
fn choose(request: &mut Request, which: &Which) -> Result<Option<(Arc<Cache>, Store)>, u16> {
    let cache = match which {
        Which::Off => return Ok(None),
        Which::Cache(cache) => Arc::clone(cache),
        Which::Value(value) => {
            let name = request.value(&value.clone());
            if name.is_empty() || name == "off" {
                return Ok(None);
            }
            match request.site.main_confs.get::<Caches>().find(&name) {
                Some(cache) => cache,
                None => {
                    request.error(format_args!("cache \"{name}\" not found"));
                    return Err(500);
                }
            }
        }
    };
    // A store that failed is no reason not to serve.
    Ok(cache.store().map(|store| (cache, store)))
}
