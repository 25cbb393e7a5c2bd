//! Requests to an ACME server: one at a time, over TLS, on the loop that keeps the certificates.
//!
//! The protocol is the business of the crate `instant-acme`; it wants futures that may move between threads, which
//! those of a loop may not. So each request is posted to the loop, and its answer waited for.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bstr::ByteSlice;
use bytes::Bytes;
use http_body_util::BodyExt;
use http_types::Uri;
use http_types::request::Parts;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use net::resolver::Resolver;
use net::tls::{ClientName, ClientSettings};
use net::{ConnectOptions, Transport};
use proto::h1::Method;
use proto::h1::response::ResponseHead;
use rt::net::Address;
use rt::sync::remote_oneshot;

use super::{advice, answer};
use crate::shared::fetch;

/// How long one request may take altogether.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer that are read; a chain of certificates takes a few thousand.
const MAX_ANSWER: usize = 256 * 1024;
/// Redirects of the directory that are followed.
const MAX_REDIRECTS: usize = 5;

/// How the server of an issuer is reached.
pub(super) struct Access {
    pub(super) resolver: Arc<Resolver>,
    pub(super) resolver_timeout: Duration,
    pub(super) tls: ClientSettings,
    /// The server's certificate must be good.
    pub(super) verifies: bool,
    pub(super) user_agent: String,
    /// Status and `Retry-After` of the last answer.
    pub(super) answered: Mutex<(u16, Option<Duration>)>,
}

impl Access {
    fn answered(&self) -> (u16, Option<Duration>) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the server wants us to wait before we ask for the same again.
    pub(super) fn asked_to_wait(&self) -> Option<Duration> {
        self.answered().1
    }

    /// The same, of a server that has had too much.
    pub(super) fn refused_for(&self) -> Option<Duration> {
        let (status, wait) = self.answered();
        wait.filter(|_| matches!(status, 429 | 503))
    }
}

/// Sends requests from the loop that it was made on.
pub(super) struct Client {
    home: rt::Handle,
    access: Arc<Access>,
}

impl Client {
    pub(super) fn new(access: Arc<Access>) -> Client {
        Client {
            home: rt::handle(),
            access,
        }
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: http_types::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (home, access) = (self.home.clone(), Arc::clone(&self.access));
        let (parts, body) = request.into_parts();
        Box::pin(async move {
            let content = match body.collect().await {
                Ok(content) => content.to_bytes(),
                Err(never) => match never {},
            };
            let (sender, receiver) = remote_oneshot::channel();
            let ask = move || {
                rt::spawn(async move {
                    let answer = rt::timeout(PATIENCE, follow(&access, &parts, &content)).await;
                    let answer = answer
                        .unwrap_or_else(|_| Err("timed out waiting for the response".to_owned()));
                    // Whoever asked may have given up.
                    let _ = sender.send(answer);
                });
            };
            home.post(ask).map_err(|_| failed("the loop has ended"))?;
            match receiver.await {
                Ok(answer) => answer.map_err(|why| failed(&why)),
                Err(_) => Err(failed("the loop has ended")),
            }
        })
    }
}

fn failed(why: &str) -> Error {
    Error::Other(why.to_owned().into())
}

/// Puts a question, and goes where the server sends us if it is the one for its directory.
async fn follow(access: &Access, parts: &Parts, content: &[u8]) -> Result<BytesResponse, String> {
    let mut uri = parts.uri.clone();
    for _ in 0..MAX_REDIRECTS {
        let (head, answer) = ask(access, parts, &uri, content).await?;
        let elsewhere = match head.status {
            301 | 302 | 303 | 307 | 308 if parts.method == http_types::Method::GET => {
                head.fields.get(b"location").and_then(|to| to.to_str().ok())
            }
            _ => None,
        };
        let Some(to) = elsewhere else {
            return response(access, &parts.method, &head, answer);
        };
        uri = elsewhere_from(&uri, to).ok_or_else(|| format!("it redirects to \"{to}\""))?;
    }
    Err("too many redirects".to_owned())
}

/// Where a redirect leads: to a whole URL, or to a path of the same server.
fn elsewhere_from(from: &Uri, to: &str) -> Option<Uri> {
    let uri: Uri = to.parse().ok()?;
    if uri.scheme().is_some() {
        return Some(uri);
    }
    let mut parts = from.clone().into_parts();
    parts.path_and_query = Some(uri.path_and_query()?.clone());
    Uri::from_parts(parts).ok()
}

async fn ask(
    access: &Access,
    parts: &Parts,
    uri: &Uri,
    content: &[u8],
) -> Result<(ResponseHead, Vec<u8>), String> {
    if uri.scheme_str() != Some("https") {
        return Err(format!("\"{uri}\" is not https"));
    }
    let host = uri.host().ok_or("the URL has no host")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(443);
    let stream = connect(access, host, port).await?;
    let mut request = head(parts, uri, host, port, &access.user_agent, content.len());
    request.extend_from_slice(content);
    let cannot = |error: std::io::Error| format!("{host}: {error}");
    stream.write_all(&request).await.map_err(cannot)?;
    stream.flush().await.map_err(cannot)?;
    let method = Method::from_bytes(parts.method.as_str().as_bytes());
    fetch::answer(&stream, method, MAX_ANSWER)
        .await
        .map_err(|why| format!("{host}: {why}"))
}

async fn connect(access: &Access, host: &str, port: u16) -> Result<Transport, String> {
    let found = access
        .resolver
        .lookup_host(host.as_bytes(), access.resolver_timeout)
        .await;
    let addresses = found.map_err(|error| format!("{host} could not be resolved: {error}"))?;
    let mut last = String::new();
    for ip in addresses {
        let address = Address::from(SocketAddr::new(ip, port));
        let stream = match net::connect(&address, &ConnectOptions::default()).await {
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
            if !session.is_for(host) {
                return Err(format!("the certificate of {host} is for another name"));
            }
        }
        let mut transport = Transport::plain(stream);
        transport.secure(session);
        return Ok(transport);
    }
    Err(last)
}

fn head(parts: &Parts, uri: &Uri, host: &str, port: u16, agent: &str, length: usize) -> Vec<u8> {
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

/// An answer as `instant-acme` wants it, without what would make it panic.
fn response(
    access: &Access,
    method: &http_types::Method,
    head: &ResponseHead,
    content: Vec<u8>,
) -> Result<BytesResponse, String> {
    if !answer::is_sound(method, head.status, &content) {
        let status = head.status;
        return Err(format!("a response with status {status} that is not ACME"));
    }
    let mut wait = None;
    let mut response = http_types::Response::builder().status(head.status);
    for (name, value) in head.fields.iter() {
        // The crate adds any number of seconds to the clock's time.
        if name.eq_ignore_ascii_case(b"retry-after") {
            wait = answer::wait(value, rt::wall_millis() / 1000);
            continue;
        }
        response = response.header(name, value);
    }
    if *method == http_types::Method::GET {
        // Of use with information on renewal, which is nothing to the crate without it.
        let wait = wait.unwrap_or(advice::AFTER_FAILURE).as_secs();
        response = response.header("retry-after", wait);
    }
    *access
        .answered
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = (head.status, wait);
    let (parts, ()) = response
        .body(())
        .map_err(|error| error.to_string())?
        .into_parts();
    Ok(BytesResponse {
        parts,
        body: Box::new(Bytes::from(content)),
    })
}
