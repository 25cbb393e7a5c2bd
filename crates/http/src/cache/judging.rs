//! What a response of the origin is good for: what the tables of `verdict` are asked with, out of the request, the settings
//! and the head.

use std::ops::Range;
use std::sync::Arc;

use cache::Store;
use proto::Known;
use proto::caching::{self, Asked, Freshness, Response, Verdict};
use proto::message::ResponseHead;

use super::head::{Kind, StoredHead, dated, head_of};
use super::ranges::{is_begun_by, wanted_part};
use super::verdict::{Brought, Judgement};
use crate::request::Request;
use crate::upstream::respond::is_buffered;
use crate::upstream::{ContentLength, Exchange, SettingsRef};

/// When a request was sent and the head of its response came, in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExchangeTimes {
    pub(super) requested_ms: u64,
    pub(super) received_ms: u64,
}

impl ExchangeTimes {
    /// What a response is judged by.
    pub(super) fn response<'a>(&self, status: u16, fields: &'a proto::Fields) -> Response<'a> {
        Response {
            status,
            fields,
            requested_ms: self.requested_ms,
            received_ms: self.received_ms,
        }
    }
}

/// Whether a response may be stored.
pub(super) enum Storable {
    /// It may, and is fresh for so long.
    Yes(Freshness),
    /// It is for its own client alone. `is_typical`: so will be the others of the key, as far as it tells.
    No { is_typical: bool },
}

/// Judges a response by the rules of the location.
pub(super) fn judge(
    request: &mut Request,
    settings: &SettingsRef,
    response: &Response,
) -> Storable {
    let fields = response.fields;
    let redirects =
        fields.has(Known::XAccelRedirect) && !settings.ignore_headers.has(Known::XAccelRedirect);
    if response.status < 200 || response.status == 304 || redirects {
        return Storable::No { is_typical: false };
    }
    let cache = &settings.cache;
    let asked = Asked {
        authorization: request.head.known(Known::Authorization).is_some()
            && !cache.key_has_credentials(),
    };
    let configured_s = cache.valid_s(response.status);
    match caching::judge(response, &asked, &cache.rules, configured_s) {
        Verdict::Store(freshness) => {
            // `…_no_cache` is mostly about the request: the next one may be of another kind.
            let refused = cache.no_cache.iter().any(|value| request.is_true(value));
            if refused {
                return Storable::No { is_typical: false };
            }
            Storable::Yes(freshness)
        }
        Verdict::Pass(why) => {
            request.debug(format_args!("http cache: not stored: {}", why.word()));
            Storable::No { is_typical: true }
        }
    }
}

/// A response that was judged, with what is needed to store it.
pub(super) enum Judged {
    /// It is not to be stored, for this reason.
    Unstorable { is_typical: bool },
    /// It is all that stands under its key.
    Whole(Freshness),
    /// It is a part of that.
    Part(BroughtPart),
    /// It is a part of which nothing is known.
    Nothing,
}

/// A part of content, and the head of the whole.
pub(super) struct BroughtPart {
    pub(super) stored: StoredHead,
    pub(super) range: Range<u64>,
    pub(super) length: u64,
}

impl Judged {
    /// Judges the response of an exchange.
    pub(super) fn of(
        request: &mut Request,
        settings: &SettingsRef,
        store: &Store,
        exchange: &Exchange,
        head: &ResponseHead,
        times: ExchangeTimes,
    ) -> Judged {
        // What is not buffered must come to the client as it is sent, and may never end.
        if !fits(store, exchange) || !is_buffered(settings, head) {
            return Judged::Unstorable { is_typical: true };
        }
        match judge(
            request,
            settings,
            &times.response(head.status, &head.fields),
        ) {
            Storable::No { is_typical } => Judged::Unstorable { is_typical },
            Storable::Yes(freshness) => brought(request, settings, exchange, head, freshness),
        }
    }

    /// What the table wants to know.
    pub(super) fn judgement(&self) -> Judgement {
        match self {
            Judged::Unstorable { is_typical } => Judgement::Unstorable {
                is_typical: *is_typical,
            },
            Judged::Whole(_) => Judgement::Storable(Brought::Whole),
            Judged::Part(_) => Judgement::Storable(Brought::Part),
            Judged::Nothing => Judgement::Storable(Brought::Nothing),
        }
    }
}

/// A 206 is a part where the client asked for one. Where the key has the range in it, as with `slice`, and where the location
/// itself asks for a part, the response is what stands under the key, as in nginx.
fn brought(
    request: &Request,
    settings: &SettingsRef,
    exchange: &Exchange,
    head: &ResponseHead,
    freshness: Freshness,
) -> Judged {
    // Not even a part that was asked for (RFC 9110, section 15.3.7): nothing says what it is.
    if head.status == 206 && !exchange.asks().part {
        return Judged::Nothing;
    }
    let asked = request.head.known(Known::Range).is_some();
    if head.status != 206 || !asked || settings.cache.key_has_range() {
        return Judged::Whole(freshness);
    }
    let range = head.fields.get_known(Known::ContentRange);
    let range = range.and_then(proto::range::parse_content_range);
    let Some((Some(range), Some(length))) = range else {
        return Judged::Nothing;
    };
    // One that is not as long as it says belongs nowhere.
    if matches!(exchange.content_length(), ContentLength::Known(len) if len != range.end - range.start)
    {
        return Judged::Nothing;
    }
    let mut fields = caching::keep(&head.fields);
    fields.remove_known(Known::ContentRange);
    let stored = StoredHead {
        head: Arc::new(head_of(200, dated(fields))),
        reason: None,
        freshness,
        variant: None,
        kind: Kind::Content,
    };
    let has_version = stored.version(Some(length)) != 0;
    match is_begun_by(&wanted_part(request, &stored, length), &range, has_version) {
        true => Judged::Part(BroughtPart {
            stored,
            range,
            length,
        }),
        false => Judged::Nothing,
    }
}

/// Whether the store can hold the content beside other things. One that is as large would push out all else, and then
/// itself.
pub(super) fn fits(store: &Store, exchange: &Exchange) -> bool {
    match exchange.content_length() {
        ContentLength::Known(length) => length <= store.max_size() / 2,
        ContentLength::None | ContentLength::Unknown => true,
    }
}
