//! A client that may wait: one request, one connection, one response. Certificates are not verified, because the server is on
//! this machine and is asked for names that may lead elsewhere.
//!
//! It has nothing of the client in the proxy: that one runs on a loop, keeps connections, retries, and never shows what came over
//! the wire. Here every response is wanted as it was, framing and all, from either server by the same code.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use net::tls::{ClientOptions, ClientSettings, begin_session};

use super::private_copy::ListenKey;

/// How long a response may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How much of a response is read. What comes after it is not compared.
const MAX_RESPONSE: u64 = 1 << 20;

/// Where a request is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerPlace {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ServerPlace {
    /// Where a server that listens on an address can be reached from this machine.
    pub(super) fn of(key: &ListenKey) -> Option<ServerPlace> {
        if let Some(path) = key.address.strip_prefix("unix:") {
            return Some(ServerPlace::Unix(path.into()));
        }
        let mut address = key.address.to_socket_addrs().ok()?.next()?;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        Some(ServerPlace::Tcp(address))
    }
}

/// A request, for either of the two servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ComparedRequest {
    /// The address of the configuration.
    pub(super) listen: ListenKey,
    pub(super) is_tls: bool,
    /// Whether the server expects a PROXY protocol header.
    pub(super) is_proxied: bool,
    pub(super) host: String,
    pub(super) method: String,
    pub(super) target: String,
    /// A header line besides.
    pub(super) line: String,
}

impl ComparedRequest {
    /// For reports: the method and the URL.
    pub(super) fn shown(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        let line = match self.line.is_empty() {
            true => String::new(),
            false => format!(" ({})", self.line),
        };
        format!(
            "{} {scheme}://{}{}{line}",
            self.method, self.host, self.target
        )
    }
}

/// A response, or why there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerResponse {
    /// 0 without a response; then `body` says why.
    pub(super) status: u16,
    /// The header fields in their order, names in lower case.
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// A stream of either kind.
trait WireStream: Read + Write {}
impl<S: Read + Write> WireStream for S {}

/// Sends requests.
pub(super) struct BatteryClient {
    /// For addresses with `ssl`. `None` if the library refuses its own defaults; then those are asked in vain, and the report shows
    /// that neither server has answered.
    tls: Option<ClientSettings>,
}

impl BatteryClient {
    /// A client that sends the name of the host it asks for (SNI), because servers choose their certificate by it.
    pub(super) fn new() -> BatteryClient {
        let options = ClientOptions {
            server_name: true,
            ..ClientOptions::default()
        };
        BatteryClient {
            tls: options.build().ok(),
        }
    }

    /// Sends a request to one of the servers, and reads its response.
    pub(super) fn ask(&self, place: &ServerPlace, request: &ComparedRequest) -> ServerResponse {
        self.converse(place, request)
            .unwrap_or_else(|error| ServerResponse {
                body: reason(&error).as_bytes().to_vec(),
                ..ServerResponse::default()
            })
    }

    /// One request on a connection of its own, which the server is asked to close: so the end of the response is known even where
    /// its framing is what differs.
    fn converse(
        &self,
        place: &ServerPlace,
        request: &ComparedRequest,
    ) -> io::Result<ServerResponse> {
        let mut stream = self.connect(place, request)?;
        let ComparedRequest {
            method,
            target,
            host,
            line,
            ..
        } = request;
        let line = match line.is_empty() {
            true => String::new(),
            false => format!("{line}\r\n"),
        };
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir-takeover\r\n{line}Connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.flush()?;
        let mut bytes = Vec::new();
        // A server may close without a TLS close_notify alert, or reset after its response: what has come decides, not how it ended.
        let read = stream.take(MAX_RESPONSE).read_to_end(&mut bytes);
        match parse(&bytes, method) {
            Some(response) => Ok(response),
            None => Err(read.err().unwrap_or(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Opens a connection as a client of that address would: with a PROXY protocol header, and TLS, if it expects them.
    fn connect(
        &self,
        place: &ServerPlace,
        request: &ComparedRequest,
    ) -> io::Result<Box<dyn WireStream>> {
        let mut stream = match place {
            ServerPlace::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                return Ok(Box::new(stream));
            }
            ServerPlace::Tcp(address) => TcpStream::connect_timeout(address, TIMEOUT)?,
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        if request.is_proxied {
            stream.write_all(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 1\r\n")?;
        }
        match &self.tls {
            Some(settings) if request.is_tls => {
                let name = request.host.split(':').next().unwrap_or_default();
                Ok(Box::new(begin_session(settings, name, stream)?))
            }
            Some(_) | None => Ok(Box::new(stream)),
        }
    }
}

/// Why there was no response, in words that are the same for the same kind of failure, so that they form one group.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no response in time".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "closed without a response".to_owned()
        }
        kind => kind.to_string(),
    }
}

/// The final response in these bytes, which end where the connection did.
fn parse(bytes: &[u8], method: &str) -> Option<ServerResponse> {
    let mut rest = bytes;
    // Interim responses come before it.
    loop {
        let end = rest.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&rest[..end]);
        rest = &rest[end + 4..];
        let mut lines = head.split("\r\n");
        let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        if (100..200).contains(&status) && status != 101 {
            continue;
        }
        let fields: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let is_chunked = fields.iter().any(|(name, _)| name == "transfer-encoding");
        let body = match is_chunked && method != "HEAD" {
            true => join_chunks(rest),
            false => rest.to_vec(),
        };
        return Some(ServerResponse {
            status,
            fields,
            body,
        });
    }
}

/// A chunked body, as far as it came.
fn join_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..end]);
        let size = size.split(';').next().unwrap_or_default().trim();
        let Ok(size @ 1..) = usize::from_str_radix(size, 16) else {
            break;
        };
        rest = &rest[end + 2..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        rest = rest.get(size.saturating_add(2)..).unwrap_or_default();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read_however_they_end() {
        let body = |text: &str| parse(text.as_bytes(), "GET").map(|response| response.body);
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n";
        assert_eq!(body(chunks).as_deref(), Some(&b"abcde"[..]));
        let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nab";
        assert_eq!(body(cut).as_deref(), Some(&b"ab"[..]));
        let early = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 404 Not Found\r\nA: b\r\n\r\nx";
        assert_eq!(body(early).as_deref(), Some(&b"x"[..]));
        assert_eq!(body("HTTP/1.1 200 OK\r\n"), None);
    }
}
