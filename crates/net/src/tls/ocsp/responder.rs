//! Where the authority that is asked is, and how it is asked.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::resolver::Resolver;

/// How long a responder is waited for altogether, as in nginx.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer that is read, in bytes. They are small; what is sent along makes every handshake longer.
pub const MAX_ANSWER: usize = 32 * 1024;

/// How names of responders are found.
#[derive(Clone)]
pub struct Network {
    /// Asked for addresses.
    pub resolver: Arc<Resolver>,
    /// How long.
    pub timeout: Duration,
}

/// What a responder is asked. The answer is its content, or why there is none.
pub type Asked = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>>>>;

/// Posts a question to a responder.
pub type Ask = fn(responder: Responder, question: Vec<u8>, network: Network) -> Asked;

/// Where a responder is: the parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Responder {
    /// A name, or an address without brackets.
    pub host: String,
    /// 80 where the URL names none.
    pub port: u16,
    /// The path and what follows it.
    pub path: String,
}

impl Responder {
    /// Reads a URL; answers are signed, so that none but `http` is needed or known. `None`: it is not one.
    pub fn parse(url: &str) -> Option<Responder> {
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
        (!host.is_empty() && port > 0).then(|| Responder {
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
            |url: &str| Responder::parse(url).map(|found| (found.host, found.port, found.path));
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
