//! OCSP responders: their URLs, and the limits of a request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::resolver::Resolver;

/// The time limit of a request as a whole; nginx's default.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The longest response in bytes. Real ones are small; a stapled one lengthens every handshake.
pub const MAX_ANSWER: usize = 32 * 1024;

/// The resolver for the names of responders.
#[derive(Clone)]
pub struct OcspResolver {
    /// Asked for addresses.
    pub resolver: Arc<Resolver>,
    /// The time limit of a lookup.
    pub timeout: Duration,
}

/// A request under way. It results in the response's body, or the reason why there is none.
pub type OcspResponseFuture = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>>>>;

/// Sends a request to a responder by POST.
pub type SendOcspRequest =
    fn(responder: OcspResponder, question: Vec<u8>, network: OcspResolver) -> OcspResponseFuture;

/// The URL of a responder, in parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OcspResponder {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port; 80 if the URL has none.
    pub port: u16,
    /// The path with the query.
    pub path: String,
}

impl OcspResponder {
    /// Parses a URL; `None` if it is not valid. Only `http` is supported, and needed: responses are signed, and
    /// with `https` the responder's certificate would need a check of its own.
    pub fn parse(url: &str) -> Option<OcspResponder> {
        let scheme = url.get(..7)?;
        if !scheme.eq_ignore_ascii_case("http://") {
            return None;
        }
        let rest = &url[7..];
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let path = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/{path}"),
        };
        let is_plain = |text: &str| text.bytes().all(|byte| byte > b' ' && byte < 0x7f);
        // The URL comes from a certificate, so from outside: control bytes could split the request line.
        if !is_plain(rest) || authority.contains('@') {
            return None;
        }
        let (host, port) = match authority.rfind(':') {
            Some(at) if !authority[at..].contains(']') => {
                (&authority[..at], authority[at + 1..].parse().ok()?)
            }
            _ => (authority, 80),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty() && port > 0).then(|| OcspResponder {
            host: host.to_owned(),
            port,
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_responders() {
        let parts =
            |url: &str| OcspResponder::parse(url).map(|found| (found.host, found.port, found.path));
        let some = |host: &str, port, path: &str| Some((host.to_owned(), port, path.to_owned()));
        assert_eq!(parts("http://a.example"), some("a.example", 80, "/"));
        assert_eq!(parts("HTTP://a:81/x?y"), some("a", 81, "/x?y"));
        assert_eq!(parts("http://[::1]:8080/"), some("::1", 8080, "/"));
        assert_eq!(parts("http://[::1]?q"), some("::1", 80, "/?q"));
        for bad in [
            "https://a/",
            "http://",
            "http://a:x/",
            "http://a b/",
            "http://u@a/",
            "ht",
        ] {
            assert_eq!(parts(bad), None, "{bad}");
        }
    }
}
