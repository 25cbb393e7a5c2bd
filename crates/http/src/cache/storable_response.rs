//! How a response of the origin is judged: the input for the tables of `fetch_verdict`, computed from the request, the
//! settings and the head.

use std::ops::Range;
use std::sync::Arc;

use cache::CacheStore;
use proto::KnownField;
use proto::caching::{self, Freshness, ReceivedResponse, StoringRequest, StoringVerdict};
use proto::message::ResponseHead;

use super::cache_settings::CacheSettings;
use super::fetch_verdict::{ReceivedContent, ResponseJudgement};
use super::ranges::{is_begun_by, wanted_part};
use super::stored_head::{StoredHead, StoredKind, head_of, with_date};
use crate::cluster::PeerVerdict;
use crate::request::Request;
use crate::upstream::respond::is_buffered;
use crate::upstream::{ContentLength, Exchange, SettingsRef};

/// When a request was sent, and when the head of its response arrived, in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExchangeTimes {
    pub(super) requested_ms: u64,
    pub(super) received_ms: u64,
}

impl ExchangeTimes {
    /// The response as the rules of RFC 9111 see it.
    pub(super) fn response<'a>(
        &self,
        status: u16,
        fields: &'a proto::Fields,
    ) -> ReceivedResponse<'a> {
        ReceivedResponse {
            status,
            fields,
            requested_ms: self.requested_ms,
            received_ms: self.received_ms,
        }
    }
}

/// Whether a response may be stored.
pub(super) enum StorableResponse {
    /// Yes, and it is fresh for this long.
    Yes(Freshness),
    /// It is for its own client alone. `is_typical`: later responses of the key are likely to be the same in this
    /// respect, so the key may be marked hit-for-miss.
    No { is_typical: bool },
}

/// Judges a response by the rules of the location.
pub(super) fn judge_storable(
    request: &mut Request,
    settings: &SettingsRef,
    response: &ReceivedResponse,
) -> StorableResponse {
    let fields = response.fields;
    let redirects = fields.has(KnownField::XAccelRedirect)
        && !settings.ignore_headers.has(KnownField::XAccelRedirect);
    // A 1xx is not final (RFC 9111, section 3), a 304 has no content of its own, and with `X-Accel-Redirect` the
    // content comes from elsewhere. None of this says anything about the next response.
    if response.status < 200 || response.status == 304 || redirects {
        let why = if redirects {
            "x-accel-redirect"
        } else {
            "status"
        };
        request.upstream.get_or_make().add_cache_reason(why, None);
        return StorableResponse::No { is_typical: false };
    }
    let cache = &settings.cache;
    if let Some(verdict) = verdict_of_member(request, cache) {
        return verdict;
    }
    let asked = StoringRequest {
        // RFC 9111, section 3.5: a shared cache needs the origin's permission, unless the key keeps users apart.
        authorization: request.head.known(KnownField::Authorization).is_some()
            && !cache.key_has_credentials(),
    };
    let configured_s = cache.valid_s(response.status);
    match caching::decide_storing(response, &asked, &cache.rules, configured_s) {
        StoringVerdict::Store(freshness) => {
            // `…_no_cache` usually depends on the request, so the next one may be storable.
            let mut conditions = cache.no_cache.iter();
            if let Some(refusal) = conditions.find(|refusal| request.is_true(&refusal.value)) {
                let record = request.upstream.get_or_make();
                record.add_cache_reason("no_cache", Some(&refusal.place));
                return StorableResponse::No { is_typical: false };
            }
            StorableResponse::Yes(freshness)
        }
        StoringVerdict::Pass(why) => {
            let record = request.upstream.get_or_make();
            record.add_cache_reason(why.reason_word(), None);
            request.debug(format_args!(
                "http cache: not stored: {}",
                why.reason_word()
            ));
            StorableResponse::No { is_typical: true }
        }
    }
}

/// The verdict of the member of the cluster that the response comes from, which has judged what the origin said.
fn verdict_of_member(request: &mut Request, cache: &CacheSettings) -> Option<StorableResponse> {
    match *request.state::<PeerVerdict>()? {
        PeerVerdict::Unjudged => None,
        PeerVerdict::Private => Some(StorableResponse::No { is_typical: true }),
        PeerVerdict::Storable(freshness) => {
            // What the request is refused for is known where the request is.
            let is_refused = cache
                .no_cache
                .iter()
                .any(|refusal| request.is_true(&refusal.value));
            Some(match is_refused {
                true => StorableResponse::No { is_typical: false },
                false => StorableResponse::Yes(freshness),
            })
        }
    }
}

/// A response that has been judged, with what is needed to store it.
pub(super) enum JudgedResponse {
    /// It may not be stored.
    Unstorable { is_typical: bool },
    /// It is the whole response of its key.
    Whole(Freshness),
    /// It is a part of it.
    Part(ReceivedPart),
    /// It is a part that cannot be placed.
    Nothing,
}

/// A part of a body, with the head of the whole.
pub(super) struct ReceivedPart {
    pub(super) stored: StoredHead,
    pub(super) range: Range<u64>,
    pub(super) length: u64,
}

impl JudgedResponse {
    /// Judges the response of an exchange.
    pub(super) fn of_exchange(
        request: &mut Request,
        settings: &SettingsRef,
        store: &CacheStore,
        exchange: &Exchange,
        head: &ResponseHead,
        times: ExchangeTimes,
    ) -> JudgedResponse {
        // An unbuffered response must reach the client as it is sent, and may have no end.
        let fits = fits_store(store, exchange);
        if !fits || !is_buffered(settings, head) {
            let why = if fits { "unbuffered" } else { "too large" };
            request.upstream.get_or_make().add_cache_reason(why, None);
            return JudgedResponse::Unstorable { is_typical: true };
        }
        match judge_storable(
            request,
            settings,
            &times.response(head.status, &head.fields),
        ) {
            StorableResponse::No { is_typical } => JudgedResponse::Unstorable { is_typical },
            StorableResponse::Yes(freshness) => {
                brought(request, settings, exchange, head, freshness)
            }
        }
    }

    /// The table's input.
    pub(super) fn judgement(&self) -> ResponseJudgement {
        match self {
            JudgedResponse::Unstorable { is_typical } => ResponseJudgement::Unstorable {
                is_typical: *is_typical,
            },
            JudgedResponse::Whole(_) => ResponseJudgement::Storable(ReceivedContent::Whole),
            JudgedResponse::Part(_) => ResponseJudgement::Storable(ReceivedContent::Part),
            JudgedResponse::Nothing => ResponseJudgement::Storable(ReceivedContent::Nothing),
        }
    }
}

/// Whether a storable response is the whole or a part. A 206 is a part if the client asked for a range. It is the
/// whole, as in nginx, if the key contains the range (`slice`), or if the location itself asks for a range.
fn brought(
    request: &Request,
    settings: &SettingsRef,
    exchange: &Exchange,
    head: &ResponseHead,
    freshness: Freshness,
) -> JudgedResponse {
    // A 206 without a range request violates RFC 9110, section 15.3.7, and it is unknown which part it is.
    if head.status == 206 && !exchange.request_traits().part {
        return JudgedResponse::Nothing;
    }
    let asked = request.head.known(KnownField::Range).is_some();
    let is_whole = !asked || settings.cache.key_has_range();
    if head.status != 206 || is_whole && !settings.cache.key_has_range() {
        return JudgedResponse::Whole(freshness);
    }
    let range = head.fields.get_known(KnownField::ContentRange);
    let range = range.and_then(proto::range::parse_content_range);
    if is_whole {
        // A slice that cannot be placed would break every response that it is a part of, for as long as it is fresh.
        let is_placed = matches!(range, Some((Some(_), Some(_))));
        return match is_placed {
            true => JudgedResponse::Whole(freshness),
            false => JudgedResponse::Nothing,
        };
    }
    // `*` as the length, or several ranges: the part cannot be placed in the whole.
    let Some((Some(range), Some(length))) = range else {
        return JudgedResponse::Nothing;
    };
    // If the length contradicts `Content-Range`, neither can be trusted.
    if matches!(exchange.content_length(), ContentLength::Known(len) if len != range.end - range.start)
    {
        return JudgedResponse::Nothing;
    }
    let mut fields = caching::storable_fields(&head.fields);
    fields.remove_known(KnownField::ContentRange);
    // The stored head is that of the whole: 200, and without `Content-Range`.
    let stored = StoredHead {
        head: Arc::new(head_of(200, with_date(fields))),
        reason: None,
        freshness,
        variant: None,
        kind: StoredKind::Content,
    };
    let has_version = stored.validator_hash(Some(length)) != 0;
    // The origin may send another range than was asked for (RFC 9110, section 15.3.7). It must contain what this client
    // wants.
    match is_begun_by(&wanted_part(request, &stored, length), &range, has_version) {
        true => JudgedResponse::Part(ReceivedPart {
            stored,
            range,
            length,
        }),
        false => JudgedResponse::Nothing,
    }
}

/// Whether the store can hold the body besides other objects. One of more than half the store's size would displace
/// nearly everything else, and would be displaced in turn by the next.
pub(super) fn fits_store(store: &CacheStore, exchange: &Exchange) -> bool {
    match exchange.content_length() {
        ContentLength::Known(length) => length <= store.max_size() / 2,
        ContentLength::None | ContentLength::Unknown => true,
    }
}
