//! Checks an authority's response before the crate `instant-acme` parses it: there are responses
//! that would make it panic. Pure and in a file of its own, because the fuzz target `acme` includes
//! this file as well.

use std::time::Duration;

use bstr::ByteSlice;
use http_types::{Method, Uri};

/// The longest wait that a server can ask for.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Whether a response can be passed on. The directory and renewal information are requested by GET,
/// and the nonce URL in a directory is used as it stands. Errors come as JSON; if one does not,
/// reporting its status is more useful than reporting the parser's complaint.
pub(super) fn is_sound(method: &Method, status: u16, content: &[u8]) -> bool {
    if *method == Method::HEAD || (*method != Method::GET && status < 400) {
        return true;
    }
    let Ok(answer) = serde_json::from_slice::<serde_json::Map<_, _>>(content) else {
        return false;
    };
    // Regardless of the status, because the crate reads a directory from any response.
    match answer.get("newNonce") {
        None => status >= 400 || answer.contains_key("suggestedWindow"),
        Some(nonces) => nonces
            .as_str()
            .is_some_and(|nonces| nonces.parse::<Uri>().is_ok()),
    }
}

/// Parses `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3) relative to `now`, in
/// seconds since the epoch.
pub(super) fn parse_retry_after(value: &[u8], now: u64) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.to_str().ok()?.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = u64::try_from(proto::date::parse(value)?).ok()?;
            Duration::from_secs(until.saturating_sub(now))
        }
    };
    Some(wait.min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_nonces_must_be_one_whatever_the_status() {
        for status in [200, 400, 503] {
            assert!(is_sound(
                &Method::GET,
                status,
                br#"{"newNonce":"https://a/n"}"#
            ));
            assert!(!is_sound(
                &Method::GET,
                status,
                br#"{"newNonce":"httapn/://s"}"#
            ));
            assert!(!is_sound(&Method::GET, status, br#"{"newNonce":7}"#));
        }
        assert!(is_sound(&Method::POST, 400, b"{}") && !is_sound(&Method::GET, 200, b"{}"));
    }
}
