//! Sends batches to the collector: OTLP by gRPC (HTTP/2), or by HTTP/1.1.
//!
//! One request at a time, on a connection that is kept. Runs on the exporter's own thread; see OTLP 1.3, "OTLP/gRPC" and
//! "OTLP/HTTP", for what may be sent again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bstr::ByteSlice;
use net::tls::ClientName;
use net::{ConnectSettings, Transport};
use proto::Fields;
use proto::h2::client::{H2ClientConnection, OutgoingHead, ResponseEvent};
use proto::message::Method;
use rt::net::SocketAddress;

use super::exporter::ExporterNetwork;
use super::settings::{CollectorHost, ExporterSettings, OtlpProtocol};
use super::wire;
use crate::shared::http1_client;

/// The time limit for one batch, everything included: the default of OTLP exporters.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most that a response may have, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// The most that the header of a response may have, in bytes.
const MAX_LIST: usize = 16 * 1024;
/// How much is read at a time, in bytes.
const READ_SIZE: usize = 16 * 1024;
/// How much is written at a time, in bytes.
const WRITE_SIZE: usize = 64 * 1024;

/// The method of the service.
const GRPC_PATH: &[u8] = b"/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Why a batch was not taken.
#[derive(Debug)]
pub(super) enum DeliveryFailure {
    /// It may be taken later.
    Away(String),
    /// It never will.
    Refused(String),
}

/// How many spans the collector rejected of a batch that it took, and why.
pub(super) type Rejection = (u64, String);

/// A connection to a collector.
pub(super) struct CollectorClient {
    settings: Arc<ExporterSettings>,
    network: ExporterNetwork,
    open: Option<CollectorConnection>,
}

/// An open connection.
struct CollectorConnection {
    transport: Transport,
    /// With gRPC, the state of its HTTP/2.
    grpc: Option<Box<H2ClientConnection>>,
}

/// What a gRPC response says.
#[derive(Default)]
struct GrpcReply {
    status: Vec<u8>,
    grpc_status: Option<i64>,
    grpc_message: Vec<u8>,
    content: Vec<u8>,
}

impl CollectorClient {
    pub(super) fn new(
        settings: Arc<ExporterSettings>,
        network: ExporterNetwork,
    ) -> CollectorClient {
        CollectorClient {
            settings,
            network,
            open: None,
        }
    }

    /// Sends a message that [`wire::BatchHead::write_message`] wrote, and waits for the response. A connection that was kept may have been closed by the collector
    /// meanwhile, which says nothing about it: then the message is sent on a new one.
    pub(super) async fn deliver(&mut self, message: &[u8]) -> Result<Rejection, DeliveryFailure> {
        if self.open.is_some()
            && let Ok(result) = self.try_once(message).await
        {
            return result;
        }
        self.open = None;
        let result = self.try_once(message).await;
        result.unwrap_or_else(|why| Err(DeliveryFailure::Away(why)))
    }

    /// One try. The outer error: the connection failed.
    async fn try_once(
        &mut self,
        message: &[u8],
    ) -> Result<Result<Rejection, DeliveryFailure>, String> {
        let taken = self.open.take();
        let settings = Arc::clone(&self.settings);
        let work = async {
            let mut connection = match taken {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let (result, reusable) = match connection.grpc {
                Some(_) => connection.call(&settings, message).await?,
                None => connection.post(&settings, message).await?,
            };
            Ok((result, reusable.then_some(connection)))
        };
        match rt::timeout(TIMEOUT, work).await {
            Ok(Ok((result, connection))) => {
                self.open = connection;
                Ok(result)
            }
            Ok(Err(why)) => Err(why),
            Err(_) => Err("timed out".to_owned()),
        }
    }

    /// Connects to the first address that accepts.
    async fn connect(&self) -> Result<CollectorConnection, String> {
        let mut last = "no address is known for it".to_owned();
        for address in self.addresses().await? {
            match net::connect(&address, &ConnectSettings::default()).await {
                Ok(stream) => return self.secured(stream).await,
                Err(error) => last = format!("connect() to {address} failed: {error}"),
            }
        }
        Err(last)
    }

    /// Where the collector is: what the `resolver` says if there is one, otherwise what the system said when the
    /// configuration was read.
    async fn addresses(&self) -> Result<Vec<SocketAddress>, String> {
        let settings = &self.settings;
        let CollectorHost::Name { name, port } = &settings.host else {
            return Ok(settings.addresses.clone());
        };
        if self.network.resolver.is_empty() {
            return Ok(settings.addresses.clone());
        }
        let found = self
            .network
            .resolver
            .lookup_host(name.as_bytes(), self.network.resolver_timeout)
            .await;
        match found {
            Ok(found) => Ok(found
                .into_iter()
                .map(|ip| SocketAddress::from(SocketAddr::new(ip, *port)))
                .collect()),
            // A name of `/etc/hosts`, which the resolver does not know.
            Err(_) if !settings.addresses.is_empty() => Ok(settings.addresses.clone()),
            Err(error) => Err(format!("{name} could not be resolved ({error})")),
        }
    }

    /// Performs the handshake, if the endpoint is `https`.
    async fn secured(&self, stream: rt::net::StreamSocket) -> Result<CollectorConnection, String> {
        let settings = &self.settings;
        let session = match &settings.tls {
            None => None,
            Some(tls) => {
                let name = ClientName {
                    name: &settings.tls_name,
                    identity: None,
                };
                let session = net::tls::connect(&stream, tls, name)
                    .await
                    .map_err(|error| format!("TLS handshake: {error}"))?;
                if let Some(error) = session.verify_error() {
                    return Err(format!("certificate verify error: {error}"));
                }
                // The chain alone proves nothing about the name.
                if !session.is_for(&settings.tls_name) {
                    return Err(format!("the certificate is not for {}", settings.tls_name));
                }
                Some(session)
            }
        };
        let transport = Transport::plain(stream);
        if let Some(session) = session {
            transport.set_tls(session);
        }
        let grpc = (settings.protocol == OtlpProtocol::Grpc)
            .then(|| Box::new(H2ClientConnection::new(MAX_LIST)));
        Ok(CollectorConnection { transport, grpc })
    }
}

/// The result of a request, and whether the connection can take another one.
type RequestResult = Result<(Result<Rejection, DeliveryFailure>, bool), String>;

impl CollectorConnection {
    /// A request of OTLP/HTTP.
    async fn post(&mut self, settings: &ExporterSettings, message: &[u8]) -> RequestResult {
        let message = &message[wire::PREFIX..];
        let mut head = settings.request_head.clone();
        head.extend_from_slice(format!("Content-Length: {}\r\n\r\n", message.len()).as_bytes());
        let failed = |error: std::io::Error| error.to_string();
        self.transport.write_all(&head).await.map_err(failed)?;
        self.transport.write_all(message).await.map_err(failed)?;
        self.transport.flush().await.map_err(failed)?;
        let (head, content) =
            http1_client::read_response(&self.transport, Method::Post, MAX_ANSWER).await?;
        let closes = head.fields.all(b"Connection").any(|value| {
            let value = value.to_ascii_lowercase();
            value.contains_str("close")
        });
        // A length that is unknown ends with the connection.
        let is_framed = head.fields.get(b"Content-Length").is_some()
            || head.fields.get(b"Transfer-Encoding").is_some();
        let result = match head.status {
            200..=299 => Ok(wire::rejected_spans(&content)),
            // OTLP/HTTP, "Retryable Response Codes".
            status @ (429 | 502 | 503 | 504) => {
                Err(DeliveryFailure::Away(format!("status {status}")))
            }
            status => Err(DeliveryFailure::Refused(format!("status {status}"))),
        };
        Ok((result, is_framed && !closes))
    }

    /// A call of OTLP/gRPC.
    async fn call(&mut self, settings: &ExporterSettings, message: &[u8]) -> RequestResult {
        let Some(grpc) = &mut self.grpc else {
            return Err("the connection is not one of HTTP/2".to_owned());
        };
        let mut out = Vec::with_capacity(WRITE_SIZE + 4096);
        let head = OutgoingHead {
            method: b"POST",
            scheme: match settings.tls {
                Some(_) => b"https",
                None => b"http",
            },
            path: GRPC_PATH,
            authority: settings.authority.as_bytes(),
            fields: &settings.fields,
        };
        grpc.begin_request(head, false, &mut out);
        let mut reply = GrpcReply::default();
        let mut input = Vec::new();
        let mut sent = 0;
        loop {
            let room = grpc.send_window().min(WRITE_SIZE).min(message.len() - sent);
            if room > 0 {
                let end = sent + room == message.len();
                grpc.append_content(&message[sent..sent + room], end, &mut out);
                sent += room;
            }
            if grpc.has_control() {
                grpc.take_control(&mut out);
            }
            if !out.is_empty() {
                let failed = |error: std::io::Error| error.to_string();
                self.transport.write_all(&out).await.map_err(failed)?;
                self.transport.flush().await.map_err(failed)?;
                out.clear();
            }
            if sent < message.len() && grpc.send_window() > 0 {
                continue;
            }
            let read = self.transport.read_into(&mut input, READ_SIZE).await;
            if read.map_err(|error| error.to_string())? == 0 {
                return Err("the connection was closed before the response".to_owned());
            }
            if reply.take(grpc, &mut input)? {
                return Ok((reply.result(), grpc.is_free()));
            }
        }
    }
}

impl GrpcReply {
    /// Takes what has arrived; `true` at the end of the response.
    fn take(&mut self, grpc: &mut H2ClientConnection, input: &mut Vec<u8>) -> Result<bool, String> {
        let mut at = 0;
        let mut ended = false;
        loop {
            let mut fields = Fields::new();
            let (event, used) = grpc
                .next_event(&input[at..], |field| fields.push(field.name, field.value))
                .map_err(|error| format!("invalid HTTP/2: {error:?}"))?;
            at += used;
            match event {
                ResponseEvent::More => break,
                ResponseEvent::Control => {}
                ResponseEvent::Head { end } => {
                    self.take_fields(&fields);
                    ended |= end;
                }
                ResponseEvent::Data { bytes, end } => {
                    if self.content.len() + bytes.len() > MAX_ANSWER {
                        return Err("the response is too long".to_owned());
                    }
                    self.content.extend_from_slice(bytes);
                    ended |= end;
                }
                ResponseEvent::Reset(_) if ended => {}
                ResponseEvent::Reset(code) => return Err(format!("the call was reset: {code:?}")),
                ResponseEvent::Gone(code) => return Err(format!("the collector goes: {code:?}")),
            }
        }
        input.drain(..at);
        Ok(ended)
    }

    fn take_fields(&mut self, fields: &Fields) {
        if let Some(status) = fields.get(b":status") {
            self.status = status.to_vec();
        }
        if let Some(status) = fields.get(b"grpc-status") {
            self.grpc_status = base::text::decimal(status);
        }
        if let Some(message) = fields.get(b"grpc-message") {
            self.grpc_message = message.to_vec();
        }
    }

    /// What the response means.
    fn result(&self) -> Result<Rejection, DeliveryFailure> {
        let message = self.grpc_message.to_str_lossy();
        match self.grpc_status {
            Some(0) => {
                // After the prefix of the message.
                Ok(wire::rejected_spans(
                    self.content.get(5..).unwrap_or_default(),
                ))
            }
            // OTLP/gRPC: CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
            Some(code @ (1 | 4 | 10 | 11 | 14 | 15)) => Err(DeliveryFailure::Away(format!(
                "gRPC status {code}: {message}"
            ))),
            Some(code) => Err(DeliveryFailure::Refused(format!(
                "gRPC status {code}: {message}"
            ))),
            // No gRPC server has answered, but a proxy before it, or something else.
            None => {
                let status = self.status.as_bstr();
                let text = format!("status {status} without a gRPC status");
                match &self.status[..] {
                    b"429" | b"502" | b"503" | b"504" => Err(DeliveryFailure::Away(text)),
                    _ => Err(DeliveryFailure::Refused(text)),
                }
            }
        }
    }
}
