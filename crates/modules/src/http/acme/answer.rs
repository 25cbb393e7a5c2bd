//! What is looked at in an authority's answer before the crate `instant-acme` takes it apart: it trusts some of it so far
//! that it would panic. Pure, and by itself, so that the fuzz target `acme` reads this file too.

use std::time::Duration;

use bstr::ByteSlice;
use http_types::{Method, Uri};

/// The longest time that a server may ask us to wait.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// A directory and information on renewal are asked for by GET; the address for nonces in a directory is taken as it
/// stands. What is refused is said in JSON, and if it is not, the status says more than the fault in it.
pub(super) fn is_sound(method: &Method, status: u16, content: &[u8]) -> bool {
    if *method == Method::HEAD || (*method != Method::GET && status < 400) {
        return true;
    }
    let Ok(answer) = serde_json::from_slice::<serde_json::Map<_, _>>(content) else {
        return false;
    };
    // Whatever the status: a directory is read from any answer.
    match answer.get("newNonce") {
        None => status >= 400 || answer.contains_key("suggestedWindow"),
        Some(nonces) => nonces
            .as_str()
            .is_some_and(|nonces| nonces.parse::<Uri>().is_ok()),
    }
}

/// `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3), which is compared with `now`, in seconds since 1970.
pub(super) fn wait(value: &[u8], now: u64) -> Option<Duration> {
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
