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
//!   (RFC 9111, section 4.2), and its `Age` is not less than what has passed (section 4.2.3).
//! - **W5, never two fetches where one is promised**: in calm weather, the origin is asked for one thing once at a time
//!   (docs/design/2026-11-21-coalescing.md).
//! - **W6, every request comes to its end** within the timers of the configuration: answered, refused or cut.
//! - **W7, counters add up**: what was accepted was handled, and nothing is active after the last client.
//! - **W8, everything is freed**: after the last client, and a stop, no connection and no loop is left.
//! - **W9, no panic**, and no line in the error log that says that the server itself is at fault.
//! - **W10, an upload arrives whole**: what the origin read is what the client sent.
//! - **W11, in calm weather every request is answered**, with the status that its resource has.

use super::ledger::{CachePolicy, WorkloadLedger, content, digest};
use super::message::{BodyEnd, MessageHead};

/// What is said of `proxy_cache_valid 200` in the configuration, in seconds.
pub(crate) const VALID_SECONDS: u64 = 3;
/// Within what a request must have ended, in seconds: two servers that connect for 2 s and are silent for 5 s, with a body
/// in drops, at a client that reads slowly.
pub(crate) const PATIENCE_SECONDS: u64 = 90;
const SECOND: u64 = 1_000_000_000;

/// What a client has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedKind {
    /// A text of the configuration.
    Return,
    File(usize),
    Proxied(usize),
    Cached(usize),
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedRequest {
    pub(crate) kind: AskedKind,
    pub(crate) is_head: bool,
    pub(crate) range: Option<(u64, u64)>,
    /// The length and the digest of what was uploaded.
    pub(crate) upload: Option<(usize, u64)>,
    pub(crate) started: u64,
}

/// How exact times are: how long a head may be under way.
pub(crate) fn slack(is_slow: bool) -> u64 {
    match is_slow {
        true => 8 * SECOND,
        false => SECOND + SECOND / 2,
    }
}

/// Judges a response, complete or not. `is_calm`: nothing has gone wrong that was put in.
pub(crate) fn check_response(
    ledger: &WorkloadLedger,
    asked: &AskedRequest,
    head: &MessageHead,
    (body, end): (&[u8], BodyEnd),
    (is_calm, is_slow): (bool, bool),
) -> Result<(), String> {
    let Some(status) = head.status() else {
        return Err(format!("W11: {asked:?} got {:?}", head.first));
    };
    ledger.count(match status {
        200 => "200",
        206 => "206",
        502 | 504 => "502 or 504",
        _ => "other status",
    });
    if status != 200 && status != 206 {
        // A range that begins beyond the end (RFC 9110, section 14.1.2).
        let is_beyond = status == 416 && asked.range.is_some();
        return match is_calm && !is_beyond {
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
    let (whole, resource) = match asked.kind {
        AskedKind::Return => (b"hello from the configuration".to_vec(), None),
        AskedKind::File(number) => (
            content(FILE_SALT + number as u64, 0, ledger.files[number]),
            None,
        ),
        AskedKind::Proxied(number) | AskedKind::Cached(number) => {
            let Some(version) = head.number("x-version") else {
                return Err(format!(
                    "W1: {asked:?} got {status} that is not of the origin"
                ));
            };
            (
                content(number as u64, version, ledger.resources[number].len),
                Some(number),
            )
        }
    };
    check_body(asked, status, head, &whole, (body, end))?;
    if let (AskedKind::Cached(_), Some(number)) = (asked.kind, resource) {
        check_caching(ledger, asked, number, head, is_slow)?;
    }
    Ok(())
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

/// W3 and W4.
fn check_caching(
    ledger: &WorkloadLedger,
    asked: &AskedRequest,
    resource: usize,
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
    let lifetime = match said.policy {
        CachePolicy::MaxAge(seconds) => seconds,
        CachePolicy::Unsaid => VALID_SECONDS,
        CachePolicy::NoStore | CachePolicy::Private if said.heard > 1 => {
            return Err(format!(
                "W3: {asked:?} got response {number}, {:?}, as another client did",
                said.policy
            ));
        }
        CachePolicy::NoStore | CachePolicy::Private => return Ok(()),
    };
    let slack = slack(is_slow);
    if asked.started > said.sent + lifetime * SECOND + slack {
        return Err(format!(
            "W4: {asked:?} got response {number} of {} ms before, which was fresh for {lifetime} s",
            (asked.started - said.sent) / 1_000_000
        ));
    }
    let age = head.number("age").unwrap_or(0);
    let passed = asked.started.saturating_sub(said.sent + slack) / SECOND;
    if age + 1 < passed {
        return Err(format!(
            "W4: {asked:?} got Age {age}, and {passed} s have passed"
        ));
    }
    Ok(())
}

/// What is uploaded by a client.
pub(crate) fn upload(number: u64, len: usize) -> (Vec<u8>, u64) {
    let bytes = content(FILE_SALT * 2 + number, 1, len);
    let sum = digest(&bytes);
    (bytes, sum)
}
