//! A fetch: a request of its own to the origin, which belongs to no client. What it is and what it asks with; how its
//! response is stored is told in `storing`, what is done when the content breaks off in `content`.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bstr::BString;
use cache::{Follower, Key, Object, Store};
use proto::Fields;
use proto::caching::{self, Freshness, Reuse};
use proto::message::{Method, ResponseHead};

use super::ask::Ask;
use super::first_client::FirstClientSlot;
use super::head::{Kind, StoredHead};
use super::judging::{ExchangeTimes, Storable, judge};
use super::lookup::{CacheRequest, StorageKey};
use super::ranges::continues;
use super::source::Source;
use super::verdict::MissingAnswer;
use base::sync::Mutex;

use crate::module::Outcome;
use crate::request::{Request, RequestPurpose};
use crate::upstream::{ContentLength, Exchange, NoResponse, SettingsRef};

/// A stored object that must not be served as it is.
#[derive(Clone)]
pub(super) struct StaleObject {
    pub(super) object: Object,
    pub(super) stored: Arc<StoredHead>,
    /// Why it must not, and when it may all the same.
    pub(super) reuse: Reuse,
}

/// What a fetch tells its followers in place of content.
pub(super) enum FetchResult {
    /// The response is not to be shared: the first client has the exchange, the others ask for themselves.
    Released,
    /// The origin failed, and what is stale may be served.
    UseStale,
    /// What is stale is good, under this head.
    Revalidated(Arc<StoredHead>),
    /// The origin failed: this is the status.
    Failed(u16),
    /// What is stored has changed: look again.
    LookAgain,
    /// It goes on in another fill: what came is a part, or all where a part was asked for.
    FollowOther(Mutex<Follower>),
}

/// A part of an object that is missing, and fetched alone.
pub(super) struct MissingPart {
    pub(super) range: Range<u64>,
    pub(super) object: Object,
    pub(super) stored: Arc<StoredHead>,
}

impl MissingPart {
    /// What a response is to it.
    fn answered_by(&self, head: &ResponseHead) -> MissingAnswer {
        let fields = &self.stored.head.fields;
        match continues(head, fields, self.range.clone(), self.object.length()) {
            true => MissingAnswer::Fits,
            false => MissingAnswer::Another,
        }
    }
}

/// A fetch: all that its task needs, since the request that began it may be gone before it ends.
pub(super) struct Fetch {
    pub(super) request: Request,
    pub(super) settings: SettingsRef,
    pub(super) source: &'static Source,
    pub(super) store: Store,
    /// The key that requests have.
    pub(super) primary: Key,
    /// What is fetched: the same key, or that of a variant.
    pub(super) at: StorageKey,
    /// The object that the origin is asked about, and that may stand in for an error.
    pub(super) stale: Option<StaleObject>,
    /// What is fetched, if it is not the whole.
    pub(super) missing: Option<MissingPart>,
    pub(super) first_client: Rc<FirstClientSlot>,
    pub(super) times: ExchangeTimes,
    /// The birth of the fill, once it runs: purges from then on hit what comes of it.
    pub(super) born: u64,
    /// What the exchange said of its length.
    pub(super) framed: ContentLength,
}

impl Fetch {
    /// A fetch for a request, which asks with these fields.
    pub(super) fn new(
        asker: &CacheRequest,
        request: &Request,
        at: StorageKey,
        stale: Option<StaleObject>,
        ask: Ask,
    ) -> Fetch {
        let mut own = request.fork();
        own.flow.purpose = RequestPurpose::Background;
        if is_converted(&asker.settings, &own) {
            own.method = Method::Get;
        }
        own.delivery.header_only = own.method == Method::Head;
        own.set_state(ask);
        Fetch {
            request: own,
            settings: asker.settings.clone(),
            source: asker.source,
            store: asker.store.clone(),
            primary: asker.primary.clone(),
            at,
            stale,
            missing: None,
            first_client: Rc::default(),
            times: ExchangeTimes::default(),
            born: 0,
            framed: ContentLength::Unknown,
        }
    }

    /// The same for the whole response. What is stale is validated, where `…_cache_revalidate` says so.
    pub(super) fn of_whole(
        asker: &CacheRequest,
        request: &Request,
        at: StorageKey,
        stale: Option<StaleObject>,
    ) -> Fetch {
        let mut ask = Ask::default();
        if let Some(stale) = &stale
            && asker.settings.cache.revalidate
            && stale.stored.kind == Kind::Content
            && caching::is_validated(stale.stored.head.status)
        {
            let validators = caching::validators(&stale.stored.head.fields);
            ask.etag = validators.etag.map(BString::from);
            ask.last_modified = validators.last_modified.map(BString::from);
        }
        Fetch::new(asker, request, at, stale, ask)
    }

    /// Asks the origin, and waits for the head.
    pub(super) async fn exchange(&mut self) -> Result<Box<Exchange>, NoResponse> {
        let (exchange, times) = exchange(&mut self.request, self.source, false).await?;
        self.times = times;
        Ok(exchange)
    }

    /// How long a response with these fields is fresh, if it may be stored.
    pub(super) fn freshness_of(&mut self, status: u16, fields: &Fields) -> Option<Freshness> {
        let response = self.times.response(status, fields);
        match judge(&mut self.request, &self.settings, &response) {
            Storable::Yes(freshness) => Some(freshness),
            Storable::No { .. } => None,
        }
    }

    /// Lets the client that began see what happened so far.
    pub(super) fn publish(&self) {
        if let Some(record) = self.request.upstream.get() {
            self.first_client.publish(&record.tries);
        }
    }

    /// What a response is to the missing part that was asked for, if one was.
    pub(super) fn missing_answer(&self, head: &ResponseHead) -> MissingAnswer {
        self.missing
            .as_ref()
            .map_or(MissingAnswer::NotAsked, |missing| missing.answered_by(head))
    }
}

/// Asks the origin with a request as it is, and waits for the head.
pub(super) async fn exchange(
    request: &mut Request,
    source: &Source,
    has_client: bool,
) -> Result<(Box<Exchange>, ExchangeTimes), NoResponse> {
    let mut plan = (source.plan)(request).map_err(|outcome| match outcome {
        Outcome::Status(status) => NoResponse::new(status),
        _ => NoResponse::new(500),
    })?;
    plan.watch_client &= has_client;
    let requested_ms = rt::wall_millis();
    let exchange = Exchange::run(request, plan).await?;
    let received_ms = rt::wall_millis();
    let times = ExchangeTimes {
        requested_ms,
        received_ms,
    };
    Ok((exchange, times))
}

/// Whether the server is asked for GET though the client asks for HEAD (`…_cache_convert_head`): also where nothing is
/// looked up, so that what is stored is renewed.
pub(super) fn is_converted(settings: &SettingsRef, request: &Request) -> bool {
    settings.cache.convert_head && request.method == Method::Head
}
