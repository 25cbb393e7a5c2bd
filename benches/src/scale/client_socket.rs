//! Clients that make a step and then wait: sockets from several loopback addresses, with or without TLS.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};
use socket2::{Domain, Socket, Type};

/// How many connections one address makes: the system has some 28,000 ports for each.
const PER_ADDRESS: usize = 20_000;

/// The segment size of Ethernet. Loopback's is 64 KB, and with it the kernel takes a megabyte for a client that reads
/// nothing.
const SEGMENT: u32 = 1448;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects client `number`, with a receive buffer of `buffer` bytes if that is said.
pub(super) fn connect(port: u16, number: usize, buffer: Option<usize>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_tcp_mss(SEGMENT)?;
    if let Some(buffer) = buffer {
        socket.set_recv_buffer_size(buffer)?;
    }
    let last = u8::try_from(2 + number / PER_ADDRESS).unwrap_or(u8::MAX);
    socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into())?;
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into())?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a request and reads until the answer contains `ok`.
pub(super) fn ask(stream: &mut TcpStream, request: &[u8], ok: &[u8]) -> io::Result<()> {
    stream.write_all(request)?;
    read_until(stream, ok)
}

fn read_until(stream: &mut impl io::Read, ok: &[u8]) -> io::Result<()> {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while !seen.windows(ok.len()).any(|part| part == ok) {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => seen.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(())
}

/// Settings of TLS clients that accept any certificate.
pub(crate) fn trusting(protocols: &[&str]) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().into())
        .collect();
    Ok(Arc::new(config))
}

/// Makes one request over TLS, and leaves the connection as it is then: its keys are not needed any more.
pub(super) fn ask_by_tls(
    stream: TcpStream,
    config: &Arc<ClientConfig>,
    request: &[u8],
    ok: &[u8],
) -> io::Result<TcpStream> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let mut tls = rustls::StreamOwned::new(tls, stream);
    tls.write_all(request)?;
    tls.flush()?;
    read_until(&mut tls, ok)?;
    Ok(tls.sock)
}

/// The first frames of an HTTP/2 client with a request for `/`, and the acknowledgement of the server's settings.
pub(super) fn http2_request() -> Vec<u8> {
    // Indexed: GET, https, `/`. Literal with an indexed name: `:authority`.
    let fields = b"\x82\x87\x84\x41\x09localhost";
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    request.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    request.extend_from_slice(&[0, 0, 0, 4, 1, 0, 0, 0, 0]);
    request.extend_from_slice(&[0, 0, fields.len() as u8, 1, 5, 0, 0, 0, 1]);
    request.extend_from_slice(fields);
    request
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
