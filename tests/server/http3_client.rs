//! Clients of HTTP/3 for tests: one for requests, which is the crate `h3`, and one that sends what it is told, right or
//! wrong. Neither shares code with the server above TLS: their QUIC is that of `quinn`, their frames are not ours.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use http_types::{Request, Uri};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::runtime::Runtime;
use weir_tests::{PATIENCE, Server};

use crate::tls::Client;

/// A response.
#[derive(Debug, Default)]
pub(crate) struct Http3Reply {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// What broke it off.
    pub(crate) error: Option<String>,
}

impl Http3Reply {
    /// The first field of this name; empty without one.
    pub(crate) fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The content as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A QUIC connection, and the runtime that it lives on. Nothing happens outside its calls.
pub(crate) struct Quic {
    runtime: Runtime,
    pub(crate) connection: Connection,
    /// What the connection belongs to.
    pub(crate) endpoint: Endpoint,
}

impl Quic {
    pub(crate) fn connect(server: &Server) -> Quic {
        Quic::connect_as(server, 0, &Client::new(), "localhost").expect("it listens")
    }

    /// Connects to a port of the server, with a name for its certificate.
    pub(crate) fn connect_as(
        server: &Server,
        index: usize,
        client: &Client,
        name: &str,
    ) -> Result<Quic, String> {
        Quic::connect_set(server, index, client, name, |_| {})
    }

    fn connect_set(
        server: &Server,
        index: usize,
        client: &Client,
        name: &str,
        set: impl FnOnce(&mut quinn::ClientConfig),
    ) -> Result<Quic, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("there are descriptors");
        let mut tls = client.config().clone();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let tls = QuicClientConfig::try_from(tls).expect("it has TLS 1.3");
        let address = SocketAddr::from(([127, 0, 0, 1], server.port(index)));
        let (connection, endpoint) = runtime.block_on(async {
            let local = SocketAddr::from(([127, 0, 0, 1], 0));
            let mut endpoint = Endpoint::client(local).expect("there are ports");
            let mut config = quinn::ClientConfig::new(Arc::new(tls));
            set(&mut config);
            endpoint.set_default_client_config(config);
            let connecting = endpoint.connect(address, name).expect("a host name");
            let connection = bounded(connecting)
                .await
                .map_err(|error| error.to_string())?;
            Ok::<_, String>((connection, endpoint))
        })?;
        Ok(Quic {
            runtime,
            connection,
            endpoint,
        })
    }

    /// Connects to the first port with settings of `quinn`.
    pub(crate) fn connect_with(
        server: &Server,
        client: &Client,
        set: impl FnOnce(&mut quinn::ClientConfig),
    ) -> Result<Quic, String> {
        Quic::connect_set(server, 0, client, "localhost", set)
    }

    /// Resumes a session, and is ready before the handshake is complete; `None` if there is no session to resume.
    pub(crate) fn connect_early(server: &Server, client: &Client) -> Option<Quic> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("there are descriptors");
        let mut tls = client.config().clone();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.enable_early_data = true;
        let tls = QuicClientConfig::try_from(tls).expect("it has TLS 1.3");
        let address = SocketAddr::from(([127, 0, 0, 1], server.port(0)));
        let early = runtime.block_on(async {
            let local = SocketAddr::from(([127, 0, 0, 1], 0));
            let mut endpoint = Endpoint::client(local).expect("there are ports");
            endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
            let connecting = endpoint.connect(address, "localhost").expect("a host name");
            let (connection, _) = connecting.into_0rtt().ok()?;
            Some((connection, endpoint))
        });
        let (connection, endpoint) = early?;
        Some(Quic {
            runtime,
            connection,
            endpoint,
        })
    }

    /// Runs a future, and everything that the connection does meanwhile.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(bounded(future))
    }

    /// Opens a stream for a request.
    pub(crate) fn open(&self) -> (SendStream, RecvStream) {
        self.run(self.connection.open_bi()).expect("it is open")
    }

    /// Opens a unidirectional stream that begins with these bytes.
    pub(crate) fn open_uni(&self, bytes: &[u8]) -> SendStream {
        self.run(async {
            let mut stream = self.connection.open_uni().await.expect("it is open");
            stream.write_all(bytes).await.expect("it is open");
            stream
        })
    }

    /// Opens the control stream, with empty SETTINGS.
    pub(crate) fn control(&self) -> SendStream {
        self.open_uni(&[0x00, 0x04, 0x00])
    }

    /// Sends bytes as a request's stream, and its end.
    pub(crate) fn ask(&self, bytes: &[u8]) -> RecvStream {
        let (mut send, receive) = self.open();
        self.run(async {
            send.write_all(bytes).await.expect("it is open");
            send.finish().expect("it is open");
        });
        receive
    }

    /// All that comes on a stream; the error is the code of its reset.
    pub(crate) fn read(&self, stream: &mut RecvStream) -> Result<Vec<u8>, u64> {
        use quinn::{ReadError, ReadToEndError};
        match self.run(stream.read_to_end(1 << 24)) {
            Ok(bytes) => Ok(bytes),
            Err(ReadToEndError::Read(ReadError::Reset(code))) => Err(code.into_inner()),
            Err(error) => panic!("{error}"),
        }
    }

    /// The code with which the server closes the connection.
    pub(crate) fn closed(&self) -> u64 {
        match self.run(self.connection.closed()) {
            quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("{other}"),
        }
    }
}

impl Drop for Quic {
    fn drop(&mut self) {
        self.connection.close(0x100u32.into(), b"");
        let endpoint = self.endpoint.clone();
        self.runtime
            .block_on(async {
                tokio::time::timeout(Duration::from_secs(3), endpoint.wait_idle()).await
            })
            .ok();
    }
}

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(PATIENCE, future).await;
    bounded.expect("the server answers in time")
}

/// A client that speaks as it should.
pub(crate) struct Http3 {
    pub(crate) quic: Quic,
    send: SendRequest<OpenStreams, Bytes>,
}

/// A request under way.
pub(crate) type Http3Stream = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

impl Http3 {
    pub(crate) fn connect(server: &Server) -> Http3 {
        Http3::over(Quic::connect(server))
    }

    pub(crate) fn over(quic: Quic) -> Http3 {
        let connection = h3_quinn::Connection::new(quic.connection.clone());
        let send = quic.run(async {
            let begun = h3::client::builder()
                .enable_extended_connect(true)
                .build::<_, _, Bytes>(connection)
                .await;
            let (mut driver, send) = begun.expect("the connection is open");
            tokio::spawn(async move { poll_fn(|context| driver.poll_close(context)).await });
            send
        });
        Http3 { quic, send }
    }

    /// Begins a request.
    pub(crate) fn begin(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Http3Stream {
        let uri: Uri = format!("https://localhost{path}")
            .parse()
            .expect("a target");
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        let sent = self.quic.run(self.send.send_request(request));
        sent.expect("the connection is open")
    }

    /// Sends content.
    pub(crate) fn send(&self, stream: &mut Http3Stream, content: &[u8]) {
        let sent = self
            .quic
            .run(stream.send_data(Bytes::copy_from_slice(content)));
        sent.expect("the stream is open");
    }

    /// Ends the request.
    pub(crate) fn end(&self, stream: &mut Http3Stream) {
        self.quic.run(stream.finish()).expect("the stream is open");
    }

    /// The next piece of a response's content; `None` at its end.
    pub(crate) fn piece(&self, stream: &mut Http3Stream) -> Option<Vec<u8>> {
        let piece = self.quic.run(stream.recv_data()).expect("no reset");
        piece.map(|mut piece| piece.copy_to_bytes(piece.remaining()).to_vec())
    }

    /// The head of a response.
    pub(crate) fn head(&self, stream: &mut Http3Stream) -> Http3Reply {
        let head = self.quic.run(stream.recv_response());
        match head {
            Ok(head) => Http3Reply {
                status: head.status().as_u16(),
                fields: pairs(head.headers()),
                ..Http3Reply::default()
            },
            Err(error) => Http3Reply {
                error: Some(error.to_string()),
                ..Http3Reply::default()
            },
        }
    }

    /// The whole response.
    pub(crate) fn reply(&self, stream: &mut Http3Stream) -> Http3Reply {
        let mut reply = self.head(stream);
        if reply.error.is_some() {
            return reply;
        }
        loop {
            match self.quic.run(stream.recv_data()) {
                Ok(Some(mut piece)) => reply.body.extend(piece.copy_to_bytes(piece.remaining())),
                Ok(None) => break,
                Err(error) => {
                    reply.error = Some(error.to_string());
                    return reply;
                }
            }
        }
        if let Ok(Some(trailers)) = self.quic.run(stream.recv_trailers()) {
            reply.trailers = pairs(&trailers);
        }
        reply
    }

    /// A request and its response.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        content: &[u8],
    ) -> Http3Reply {
        let mut stream = self.begin(method, path, fields);
        if !content.is_empty() {
            self.send(&mut stream, content);
        }
        self.end(&mut stream);
        self.reply(&mut stream)
    }

    pub(crate) fn get(&mut self, path: &str) -> Http3Reply {
        self.ask("GET", path, &[], b"")
    }
}

fn pairs(fields: &http_types::HeaderMap) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes())))
        .collect()
}

/// A frame.
pub(crate) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = varint(kind);
    out.extend(varint(payload.len() as u64));
    out.extend_from_slice(payload);
    out
}

/// An integer of variable length, in its shortest form.
pub(crate) fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..0x4000_0000 => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (value | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

/// An integer behind a pattern of bits.
fn prefixed(value: usize, pattern: u8, prefix: u32, out: &mut Vec<u8>) {
    let most = (1usize << prefix) - 1;
    if value < most {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | most as u8);
    let mut left = value - most;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// A header block of literal fields.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in fields {
        prefixed(name.len(), 0x20, 3, &mut out);
        out.extend_from_slice(name.as_bytes());
        prefixed(value.len(), 0, 7, &mut out);
        out.extend_from_slice(value.as_bytes());
    }
    out
}

/// The pseudo-header fields of a request for `/`, with others.
pub(crate) fn with<'a>(method: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![
        (":method", method),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", "/"),
    ];
    fields.extend_from_slice(more);
    fields
}

/// The HEADERS frame of such a request.
pub(crate) fn head(method: &str, more: &[(&str, &str)]) -> Vec<u8> {
    frame(1, &block(&with(method, more)))
}
