//! Requests to an ACME server: one at a time, over TLS, on the loop that manages the certificates.
//!
//! The protocol is the business of the crate `instant-acme`. It requires futures that can move
//! between threads, which those of a loop cannot. So each request is posted to the loop, and its
//! response awaited through a channel.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use bstr::ByteSlice;
use bytes::Bytes;
use http_body_util::BodyExt;
use http_types::Uri;
use http_types::request::Parts;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use net::resolver::Resolver;
use net::tls::{ClientName, ClientSettings};
use net::{ConnectSettings, Transport};
use proto::message::{Method, ResponseHead};
use rt::net::SocketAddress;
use rt::sync::remote_oneshot;

use super::{answer_http_challenge, renewal_info};
use crate::shared::http1_client;

/// The time limit for one request, everything included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a response, in bytes; a certificate chain has a few thousand.
const MAX_ANSWER: usize = 256 * 1024;
/// How many redirects of the directory are followed.
const MAX_REDIRECTS: usize = 5;

/// How to reach an issuer's server. One per attempt, so that `answered` belongs to it.
pub(super) struct AcmeAccess {
    pub(super) resolver: Arc<Resolver>,
    pub(super) resolver_timeout: Duration,
    pub(super) tls: ClientSettings,
    /// Whether the server's certificate must be valid (`ssl_verify`).
    pub(super) verifies: bool,
    pub(super) user_agent: String,
    /// Status and `Retry-After` of the last response, which the crate does not pass on.
    pub(super) last_response: Mutex<(u16, Option<Duration>)>,
}

impl AcmeAccess {
    /// The last response.
    fn last_response(&self) -> (u16, Option<Duration>) {
        *self.last_response.lock()
    }

    /// How long the server asks us to wait before repeating the request.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.last_response().1
    }

    /// The same if the server is overloaded or rate limits us: then the whole issuer is left alone,
    /// not only this order.
    pub(super) fn rate_limited_for(&self) -> Option<Duration> {
        let (status, wait) = self.last_response();
        wait.filter(|_| matches!(status, 429 | 503))
    }
}

/// Sends requests on the loop that it was created on.
pub(super) struct AcmeClient {
    /// The loop that does the work: sockets cannot move to another.
    loop_handle: rt::LoopHandle,
    access: Arc<AcmeAccess>,
}

impl AcmeClient {
    /// A client on the current loop.
    pub(super) fn new(access: Arc<AcmeAccess>) -> AcmeClient {
        AcmeClient {
            loop_handle: rt::handle(),
            access,
        }
    }
}

impl HttpClient for AcmeClient {
    fn request(
        &self,
        request: http_types::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (home, access) = (self.loop_handle.clone(), Arc::clone(&self.access));
        let (parts, body) = request.into_parts();
        Box::pin(async move {
            let content = match body.collect().await {
                Ok(content) => content.to_bytes(),
                Err(never) => match never {},
            };
            let (sender, receiver) = remote_oneshot::channel();
            let ask = move || {
                rt::spawn(async move {
                    let answer = rt::timeout(
                        REQUEST_TIMEOUT,
                        request_with_redirects(&access, &parts, &content),
                    )
                    .await;
                    let answer = answer
                        .unwrap_or_else(|_| Err("timed out waiting for the response".to_owned()));
                    // The receiver is gone if the attempt has timed out.
                    let _ = sender.send(answer);
                });
            };
            // The crate may poll this future on any thread, but sockets belong to their loop.
            home.post(ask)
                .map_err(|_| client_error("the loop has ended"))?;
            match receiver.await {
                Ok(answer) => answer.map_err(|why| client_error(&why)),
                Err(_) => Err(client_error("the loop has ended")),
            }
        })
    }
}

/// An error in the crate's terms.
fn client_error(why: &str) -> Error {
    Error::Other(why.to_owned().into())
}

/// Sends a request. Redirects are followed for GET only, which is what the directory is read with:
/// a signed request names its URL (RFC 8555, section 6.4) and would be invalid at another.
async fn request_with_redirects(
    access: &AcmeAccess,
    parts: &Parts,
    content: &[u8],
) -> Result<BytesResponse, String> {
    let mut uri = parts.uri.clone();
    for _ in 0..MAX_REDIRECTS {
        let (head, answer) = send_request(access, parts, &uri, content).await?;
        let elsewhere = match head.status {
            301 | 302 | 303 | 307 | 308 if parts.method == http_types::Method::GET => {
                head.fields.get(b"location").and_then(|to| to.to_str().ok())
            }
            _ => None,
        };
        let Some(to) = elsewhere else {
            return checked_response(access, &parts.method, &head, answer);
        };
        uri = redirect_target(&uri, to).ok_or_else(|| format!("invalid redirect to \"{to}\""))?;
    }
    Err("too many redirects".to_owned())
}

/// The target of a redirect: an absolute URL, or a path on the same server.
fn redirect_target(from: &Uri, to: &str) -> Option<Uri> {
    let uri: Uri = to.parse().ok()?;
    if uri.scheme().is_some() {
        return Some(uri);
    }
    let mut parts = from.clone().into_parts();
    parts.path_and_query = Some(uri.path_and_query()?.clone());
    Uri::from_parts(parts).ok()
}

/// Sends a request to one URL over a new connection.
async fn send_request(
    access: &AcmeAccess,
    parts: &Parts,
    uri: &Uri,
    content: &[u8],
) -> Result<(ResponseHead, Vec<u8>), String> {
    // RFC 8555, section 6.1, requires HTTPS, which holds for redirects and URLs in the directory
    // too.
    if uri.scheme_str() != Some("https") {
        return Err(format!("\"{uri}\" is not https"));
    }
    let host = uri.host().ok_or("the URL has no host")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(443);
    let stream = connect(access, host, port).await?;
    let mut request = request_head(parts, uri, host, port, &access.user_agent, content.len());
    request.extend_from_slice(content);
    let cannot = |error: std::io::Error| format!("{host}: {error}");
    stream.write_all(&request).await.map_err(cannot)?;
    stream.flush().await.map_err(cannot)?;
    let method = Method::from_bytes(parts.method.as_str().as_bytes());
    http1_client::read_response(&stream, method, MAX_ANSWER)
        .await
        .map_err(|why| format!("{host}: {why}"))
}

/// Connects to the first address that accepts, and performs the handshake. A failed handshake is
/// final: another address of the same host would most likely fail as well.
async fn connect(access: &AcmeAccess, host: &str, port: u16) -> Result<Transport, String> {
    let found = access
        .resolver
        .lookup_host(host.as_bytes(), access.resolver_timeout)
        .await;
    let addresses = found.map_err(|error| format!("{host} could not be resolved: {error}"))?;
    let mut last = String::new();
    for ip in addresses {
        let address = SocketAddress::from(SocketAddr::new(ip, port));
        let stream = match net::connect(&address, &ConnectSettings::default()).await {
            Ok(stream) => stream,
            Err(error) => {
                last = format!("connect() to {address} failed: {error}");
                continue;
            }
        };
        let name = ClientName {
            name: host,
            identity: None,
        };
        let session = net::tls::connect(&stream, &access.tls, name)
            .await
            .map_err(|error| format!("{host}: {error}"))?;
        if access.verifies {
            if let Some(error) = session.verify_error() {
                return Err(format!("{host}: certificate verify error: {error}"));
            }
            // The chain alone proves nothing about the name.
            if !session.is_for(host) {
                return Err(format!("the certificate of {host} is for another name"));
            }
        }
        let transport = Transport::plain(stream);
        transport.set_tls(session);
        return Ok(transport);
    }
    Err(last)
}

/// The request head.
fn request_head(
    parts: &Parts,
    uri: &Uri,
    host: &str,
    port: u16,
    agent: &str,
    length: usize,
) -> Vec<u8> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    let mut out = format!(
        "{} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: {agent}\r\nConnection: close\r\nContent-Length: {length}\r\n",
        parts.method
    )
    .into_bytes();
    for (name, value) in &parts.headers {
        proto::h1::response::write_field(name.as_str().as_bytes(), value.as_bytes(), &mut out);
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// A response in the crate's form, without what would make it panic.
fn checked_response(
    access: &AcmeAccess,
    method: &http_types::Method,
    head: &ResponseHead,
    content: Vec<u8>,
) -> Result<BytesResponse, String> {
    if !answer_http_challenge::is_sound(method, head.status, &content) {
        let status = head.status;
        return Err(format!("a response with status {status} that is not ACME"));
    }
    let mut wait = None;
    let mut response = http_types::Response::builder().status(head.status);
    for (name, value) in head.fields.iter() {
        // The crate adds any number of seconds to the current time, which can overflow. It gets a
        // bounded number below.
        if name.eq_ignore_ascii_case(b"retry-after") {
            wait = answer_http_challenge::parse_retry_after(value, rt::wall_millis() / 1000);
            continue;
        }
        response = response.header(name, value);
    }
    if *method == http_types::Method::GET {
        // Renewal information requires the field; for other responses it is harmless.
        let wait = wait.unwrap_or(renewal_info::AFTER_FAILURE).as_secs();
        response = response.header("retry-after", wait);
    }
    *access.last_response.lock() = (head.status, wait);
    let (parts, ()) = response
        .body(())
        .map_err(|error| error.to_string())?
        .into_parts();
    Ok(BytesResponse {
        parts,
        body: Box::new(Bytes::from(content)),
    })
}
