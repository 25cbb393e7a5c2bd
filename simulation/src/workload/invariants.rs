//! What must hold, each rule with its reason. The model of caching is this file: what a cache may do follows from what the
//! origin has said and when, and nothing here knows how the server does it.
//!
//! - **W1, no wrong byte**: a body is the content that its head names, or the part that was asked for (RFC 9110, section
//!   8.1: content is what the head describes).
//! - **W2, no short body counts as whole**: where the framing says that a body has ended, it is complete (RFC 9112, section
//!   8: a message that ended early is incomplete, and a proxy must not make it look whole).
//! - **W3, nothing is shared that may not be**: what the origin said with `no-store` or `private` reaches one client
//!   (RFC 9111, sections 3 and 5.2.2).
//! - **W4, nothing is staler than allowed**: without `use_stale`, a response is used only while its lifetime lasts
//!   (RFC 9111, section 4.2), and its `Age` is not less than what has passed (section 4.2.3). With `use_stale`, what is not
//!   called STALE or UPDATING is as fresh as elsewhere.
//! - **W5, never two fetches where one is promised**: in calm weather, the origin is asked for one thing once at a time
//!   (docs/design/2026-11-21-coalescing.md), unless what is on its way may not be used any more, or was purged.
//! - **W6, every request comes to its end** within the timers of the configuration: answered, refused or cut.
//! - **W7, counters add up**: what was accepted was handled, and nothing is active after the last client.
//! - **W8, everything is freed**: after the last client, and a stop, no connection and no loop is left.
//! - **W9, no panic**, and no line in the error log that says that the server itself is at fault.
//! - **W10, an upload arrives whole**: what the origin read is what the client sent.
//! - **W11, in calm weather every request is answered**, with the status that its resource has.
//! - **W12, a purge holds**: a request that begins when a purge has been answered does not get what the origin had said before
//!   that purge was sent, until the process dies (docs/guide/caching.md); after a soft purge, only as STALE or UPDATING.
//! - **W13, limits hold**: in calm weather the origin has at most as many requests at once, and in a time, as `limit_conn` and
//!   `limit_req` allow.
//! - **W14, a request is answered by its server**: by the one whose name is in `Host`, and with its own variant (RFC 9110,
//!   section 12.5.5: what `Vary` names selects the response).
//! - **W15, a cache does not go back**: in calm weather, with room in the cache, a request that begins when a client has got a
//!   response as a hit does not get an older one as a hit (RFC 9111, section 4: of several the most recent one).
//! - **W16, `stream` passes on what it gets**: in order and unchanged, its end too; a client of datagrams gets answers to its own,
//!   and, in calm weather, to each.
//! - **W17, it recovers**: when the weather has become calm and the last client has gone, each location answers a request.
//! - **W18, nothing is left and nothing grows**: the gauges of `prometheus` are zero then, idle connections are no more than
//!   `keepalive`, the store no larger than `max_size` allows, tasks no more than those of an idle loop.
//! - **W19, what was asked was counted**: in calm weather the server has begun as many requests as clients have sent, and given
//!   its upstream servers as many as came to the origin.

use cache::PurgeMode;

use super::ledger::{
    CacheFlavour, CachePolicy, LedgerState, PurgeTimes, SaidResponse, WorkloadLedger, content,
    digest, variant_of,
};
use super::message::{BodyEnd, MessageHead};

/// What is said of `proxy_cache_valid 200` in the configuration, in seconds.
pub(crate) const VALID_SECONDS: u64 = 3;
/// How many requests at once `limit_conn` allows, and what `limit_req` allows: as many a second, and as many beyond.
pub(crate) const LIMIT_CONNECTIONS: usize = 2;
pub(crate) const LIMIT_RATE: u64 = 5;
pub(crate) const LIMIT_BURST: u64 = 2;
/// Within what a request must have ended, in seconds: two servers that connect for 2 s and are silent for 5 s, with a body
/// in drops, at a client that reads slowly.
pub(crate) const PATIENCE_SECONDS: u64 = 90;
const SECOND: u64 = 1_000_000_000;

/// What a client has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedKind {
    /// A text of the configuration: that of the first server, or of the second.
    Return(bool),
    File(usize),
    Proxied(usize, ProxiedWay),
    /// Behind `limit_conn`, or `limit_req`.
    Limited(usize, bool),
    Cached(CacheFlavour, usize),
}

/// How a request gets to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxiedWay {
    Plain,
    /// The origin's name is asked for by DNS.
    ByName,
    /// Through another server of the configuration: over TLS, or over QUIC.
    Tls,
    Quic,
}

impl ProxiedWay {
    pub(crate) const ALL: [ProxiedWay; 4] = [
        ProxiedWay::Plain,
        ProxiedWay::ByName,
        ProxiedWay::Tls,
        ProxiedWay::Quic,
    ];

    /// What its paths begin with.
    pub(crate) fn letter(self) -> char {
        match self {
            ProxiedWay::Plain => 'p',
            ProxiedWay::ByName => 'd',
            ProxiedWay::Tls => 't',
            ProxiedWay::Quic => 'h',
        }
    }

    /// Its name as a cut.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ProxiedWay::Plain => "proxied",
            ProxiedWay::ByName => "by name",
            ProxiedWay::Tls => "tls",
            ProxiedWay::Quic => "quic",
        }
    }

    /// How many requests the server begins for one of a client.
    pub(crate) fn requests(self) -> u64 {
        match self {
            ProxiedWay::Plain | ProxiedWay::ByName => 1,
            ProxiedWay::Tls | ProxiedWay::Quic => 2,
        }
    }
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedRequest {
    pub(crate) kind: AskedKind,
    pub(crate) is_head: bool,
    pub(crate) purge: Option<PurgeMode>,
    pub(crate) variant: usize,
    pub(crate) range: Option<(u64, u64)>,
    /// The length and the digest of what was uploaded.
    pub(crate) upload: Option<(usize, u64)>,
    pub(crate) started: u64,
    /// When the last purges of it had been sent that were answered when this request began.
    pub(crate) purged: PurgeTimes,
    /// The latest response that a client had got as a hit by then, by its number.
    pub(crate) latest_hit: usize,
}

/// What there is besides a response to judge it by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JudgedWeather {
    /// Nothing has gone wrong that was put in.
    pub(crate) is_calm: bool,
    pub(crate) is_slow: bool,
    /// Nothing is evicted.
    pub(crate) has_room: bool,
}

/// How exact times are: how long a head may be under way.
pub(crate) fn slack(is_slow: bool) -> u64 {
    match is_slow {
        true => 8 * SECOND,
        false => SECOND + SECOND / 2,
    }
}

/// For how many nanoseconds a response may be used, if it may be shared at all.
pub(crate) fn lifetime(policy: CachePolicy) -> Option<u64> {
    match policy {
        CachePolicy::MaxAge(seconds) => Some(seconds * SECOND),
        CachePolicy::Unsaid => Some(VALID_SECONDS * SECOND),
        CachePolicy::NoStore | CachePolicy::Private => None,
    }
}

/// Judges a response, complete or not.
pub(crate) fn check_response(
    ledger: &WorkloadLedger,
    asked: &AskedRequest,
    head: &MessageHead,
    (body, end): (&[u8], BodyEnd),
    weather: JudgedWeather,
) -> Result<(), String> {
    let is_calm = weather.is_calm;
    let Some(status) = head.status() else {
        return Err(format!("W11: {asked:?} got {:?}", head.first));
    };
    count_status(ledger, status);
    if status != 200 && status != 206 {
        // A range that begins beyond the end (RFC 9110, section 14.1.2).
        let is_beyond = status == 416 && asked.range.is_some();
        let is_limited = status == 503 && matches!(asked.kind, AskedKind::Limited(..));
        let is_purged = asked.purge.is_some() && matches!(status, 204 | 412);
        // A POST on a connection that the origin was about to close is not sent again (RFC 9112, section 9.3.1).
        let is_lost = status == 502 && asked.upload.is_some();
        return match is_calm && !is_beyond && !is_limited && !is_purged && !is_lost {
            true => Err(format!("W11: {asked:?} got {status}")),
            false => Ok(()),
        };
    }
    if let Some((len, digest)) = asked.upload {
        let said = head.field("x-upload").map(str::to_owned);
        return match said == Some(format!("{len} {digest}")) {
            true => Ok(()),
            false => Err(format!(
                "W10: {asked:?}: {said:?} arrived, {len} {digest} was sent"
            )),
        };
    }
    if asked.purge.is_some() {
        // What a purge says of itself is for people.
        return Ok(());
    }
    let whole = whole_body(ledger, asked, head)?;
    check_body(asked, status, head, &whole, (body, end))?;
    if is_calm && end == BodyEnd::Cut && !may_be_cut(asked.kind) {
        return Err(format!("W11: the body of {asked:?} was cut"));
    }
    match asked.kind {
        AskedKind::Cached(flavour, resource) => {
            check_caching(ledger, asked, (flavour, resource), head, weather.is_slow)?;
            check_order(ledger, asked, (flavour, resource), head, (weather, end))
        }
        _ => Ok(()),
    }
}

/// What is made of parts ends early where the origin has another version by then.
fn may_be_cut(kind: AskedKind) -> bool {
    matches!(
        kind,
        AskedKind::Cached(CacheFlavour::Parts | CacheFlavour::Slice, _)
    )
}

/// W15.
fn check_order(
    ledger: &WorkloadLedger,
    asked: &AskedRequest,
    thing: (CacheFlavour, usize),
    head: &MessageHead,
    (weather, end): (JudgedWeather, BodyEnd),
) -> Result<(), String> {
    let is_ordered = matches!(thing.0, CacheFlavour::Plain | CacheFlavour::Apart);
    let is_hit = head.field("x-cache") == Some("HIT");
    let number = head.number("x-number").unwrap_or(0) as usize;
    if !is_ordered || !is_hit || !weather.is_calm || !weather.has_room {
        return Ok(());
    }
    if number < asked.latest_hit {
        return Err(format!("W15: {asked:?} got response {number} after it"));
    }
    // Who asked before a purge may get what is not stored any more: the next ones do not go back from that.
    let mut state = ledger.state();
    if end == BodyEnd::Complete && !state.was_purged_since(thing, asked.started) {
        state.note_hit(thing, number);
    }
    Ok(())
}

fn count_status(ledger: &WorkloadLedger, status: u16) {
    ledger.count(match status {
        200 => "200",
        204 => "204",
        206 => "206",
        416 => "416",
        502 | 504 => "502 or 504",
        503 => "503",
        _ => "other status",
    });
}

/// The whole body that a response is of.
fn whole_body(
    ledger: &WorkloadLedger,
    asked: &AskedRequest,
    head: &MessageHead,
) -> Result<Vec<u8>, String> {
    Ok(match asked.kind {
        AskedKind::Return(is_second) => return_text(is_second).as_bytes().to_vec(),
        AskedKind::File(number) => content(FILE_SALT + number as u64, 0, ledger.files[number]),
        AskedKind::Proxied(number, _)
        | AskedKind::Limited(number, _)
        | AskedKind::Cached(_, number) => {
            let Some(version) = head.number("x-version") else {
                return Err(format!("W1: {asked:?} got what is not of the origin"));
            };
            let is_varied = matches!(asked.kind, AskedKind::Cached(CacheFlavour::Vary, _));
            let variant = if is_varied { asked.variant } else { 0 };
            let said = head.number("x-said-variant").unwrap_or(0);
            if said != variant as u64 {
                return Err(format!("W14: {asked:?} got variant {said}"));
            }
            content(
                variant_of(number, variant),
                version,
                ledger.resources[number].len,
            )
        }
    })
}

/// What the servers say of themselves.
pub(crate) fn return_text(is_second: bool) -> &'static str {
    match is_second {
        true => "hello from the second server",
        false => "hello from the configuration",
    }
}

/// Files have other contents than resources.
pub(crate) const FILE_SALT: u64 = 1_000;

/// W1 and W2.
fn check_body(
    asked: &AskedRequest,
    status: u16,
    head: &MessageHead,
    whole: &[u8],
    (body, end): (&[u8], BodyEnd),
) -> Result<(), String> {
    let wanted = match (status, asked.range) {
        (206, Some((from, to))) => {
            let to = (to as usize + 1).min(whole.len());
            let from = (from as usize).min(to);
            let says = format!("bytes {from}-{}/{}", to.saturating_sub(1), whole.len());
            if head.field("content-range") != Some(&says) {
                return Err(format!(
                    "W1: {asked:?} got {:?}, not {says}",
                    head.field("content-range")
                ));
            }
            &whole[from..to]
        }
        (206, None) => return Err(format!("W1: {asked:?} got a part without asking")),
        _ => whole,
    };
    if asked.is_head {
        return match body.is_empty() {
            true => Ok(()),
            false => Err(format!("W1: {asked:?} got a body")),
        };
    }
    if !wanted.starts_with(body) {
        let same = wanted
            .iter()
            .zip(body)
            .take_while(|(one, other)| one == other)
            .count();
        return Err(format!(
            "W1: {asked:?}: {} of {} bytes came, wrong from {same} on",
            body.len(),
            wanted.len()
        ));
    }
    match end {
        BodyEnd::Complete if body.len() < wanted.len() => Err(format!(
            "W2: {asked:?}: {} of {} bytes came, as a whole body",
            body.len(),
            wanted.len()
        )),
        BodyEnd::Complete | BodyEnd::Closed | BodyEnd::Cut => Ok(()),
    }
}

/// W3, W4 and W12.
fn check_caching(
    ledger: &WorkloadLedger,
    asked: &AskedRequest,
    (flavour, resource): (CacheFlavour, usize),
    head: &MessageHead,
    is_slow: bool,
) -> Result<(), String> {
    let number = head.number("x-number").unwrap_or(u64::MAX) as usize;
    let mut state = ledger.state();
    let Some(said) = state.said.get_mut(number) else {
        return Err(format!(
            "W1: {asked:?} got a response that the origin has not given: {number}"
        ));
    };
    said.heard += 1;
    let said = *said;
    drop(state);
    if said.resource != resource {
        return Err(format!("W1: {asked:?} got resource {}", said.resource));
    }
    if flavour == CacheFlavour::Vary && said.variant != asked.variant {
        return Err(format!(
            "W14: {asked:?} got a response for {}",
            said.variant
        ));
    }
    let Some(lifetime) = lifetime(said.policy) else {
        // Each slice is a response of its own, and a client gets the head of the first.
        return match said.heard > 1 {
            true => Err(format!(
                "W3: {asked:?} got response {number}, {:?}, as another client did",
                said.policy
            )),
            false => Ok(()),
        };
    };
    let may_be_stale = flavour == CacheFlavour::Stale
        && matches!(head.field("x-cache"), Some("STALE" | "UPDATING"));
    let purged = match may_be_stale {
        true => asked.purged.hard,
        false => asked.purged.hard.max(asked.purged.soft),
    };
    if said.sent < purged {
        return Err(format!(
            "W12: {asked:?} got response {number}, said {} ms before a purge that was answered",
            (purged - said.sent) / 1_000_000
        ));
    }
    let slack = slack(is_slow);
    if !may_be_stale && asked.started > said.sent + lifetime + slack {
        return Err(format!(
            "W4: {asked:?} got response {number} of {} ms before, which was fresh for {} s",
            (asked.started - said.sent) / 1_000_000,
            lifetime / SECOND
        ));
    }
    check_age(asked, &said, head, slack)
}

fn check_age(
    asked: &AskedRequest,
    said: &SaidResponse,
    head: &MessageHead,
    slack: u64,
) -> Result<(), String> {
    let age = head.number("age").unwrap_or(0);
    let passed = asked.started.saturating_sub(said.sent + slack) / SECOND;
    match age + 1 < passed {
        true => Err(format!(
            "W4: {asked:?} got Age {age}, and {passed} s have passed"
        )),
        false => Ok(()),
    }
}

/// W13, at the end of a run.
pub(crate) fn check_limits(state: &LedgerState) -> Vec<String> {
    let mut violations = Vec::new();
    if state.limited_most > LIMIT_CONNECTIONS {
        let most = state.limited_most;
        violations.push(format!("W13: {most} requests at once came to the origin"));
    }
    for (first, begin) in state.paced.iter().enumerate() {
        for (last, end) in state.paced.iter().enumerate().skip(first) {
            let count = (last - first + 1) as u64;
            // One for the first, one for a part of a second, and one that was longer on its way than the next.
            let allowed = 3 + LIMIT_BURST + (end - begin) * LIMIT_RATE / SECOND;
            if count > allowed {
                let within = (end - begin) / 1_000_000;
                violations.push(format!("W13: {count} requests came within {within} ms"));
                return violations;
            }
        }
    }
    violations
}

/// What is uploaded by a client.
pub(crate) fn upload(number: u64, len: usize) -> (Vec<u8>, u64) {
    let bytes = content(FILE_SALT * 2 + number, 1, len);
    let sum = digest(&bytes);
    (bytes, sum)
}
