//! TLS of clients: certificates and names, sessions, clients' certificates, what is refused and how it is said.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};
use weir_tests::{Http2, Server, Signal, Site, http, is_oracle, skip_on_oracle, until, whole};

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) fn self_signed(name: &str) -> Pair {
    let key = KeyPair::generate().expect("random bytes");
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a host name");
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.self_signed(&key).expect("a key that signs");
    Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

pub(crate) fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("random bytes");
    CertifiedIssuer::self_signed(params, key).expect("a key that signs")
}

pub(crate) fn signed_by(issuer: &CertifiedIssuer<'static, KeyPair>, name: &str) -> Pair {
    let key = KeyPair::generate().expect("random bytes");
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a host name");
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.signed_by(&key, issuer).expect("a key that signs");
    Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

/// A site with a certificate for `localhost`.
pub(crate) fn https(block: &str) -> Site {
    https_files(http(block))
}

/// Adds the certificate to it.
pub(crate) fn https_files(site: Site) -> Site {
    let pair = self_signed("localhost");
    site.file("localhost.crt", pair.certificate)
        .file("localhost.key", pair.key)
}

/// Older nginx speaks TLS 1.3 only when it is told to.
pub(crate) const CERTIFICATE: &str =
    "ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
                           ssl_protocols TLSv1.2 TLSv1.3;";

/// A client that believes everybody.
#[derive(Clone)]
pub(crate) struct Client {
    config: Arc<ClientConfig>,
    /// The OCSP response of the last handshake that was not resumed.
    pub(crate) stapled: Arc<Mutex<Vec<u8>>>,
}

impl Client {
    pub(crate) fn new() -> Client {
        Client::with(None, &[&rustls::version::TLS13, &rustls::version::TLS12])
    }

    pub(crate) fn with(
        pair: Option<&Pair>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Client {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let stapled = Arc::default();
        let schemes = provider
            .signature_verification_algorithms
            .supported_schemes();
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .expect("versions that the provider has")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Credulous(
                provider,
                Arc::clone(&stapled),
                schemes,
            )));
        let config = match pair {
            None => config.with_no_client_auth(),
            Some(pair) => config
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("PEM")],
                    PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("PEM"),
                )
                .expect("a key that belongs to its certificate"),
        };
        Client {
            config: Arc::new(config),
            stapled,
        }
    }

    /// One that believes what this authority has signed, for the name that is asked for.
    pub(crate) fn trusting(authority: &str) -> Client {
        let mut roots = rustls::RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM");
        roots.add(authority).expect("a certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions that the provider has")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Client {
            config: Arc::new(config),
            stapled: Arc::default(),
        }
    }

    /// What it does.
    pub(crate) fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// One that does something else.
    pub(crate) fn configured(&self, config: ClientConfig) -> Client {
        Client {
            config: Arc::new(config),
            stapled: Arc::clone(&self.stapled),
        }
    }

    /// One that offers these protocols by ALPN.
    pub(crate) fn offering(&self, protocols: &[Vec<u8>]) -> Client {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols.to_vec();
        self.configured(config)
    }

    /// A connection with HTTP/2.
    pub(crate) fn http2(&self, server: &Server) -> Http2 {
        let stream = self.connect(server, 0, "localhost");
        let socket = stream.sock.try_clone().expect("there are descriptors");
        Http2::over(stream, socket, &[])
    }

    pub(crate) fn connect(
        &self,
        server: &Server,
        index: usize,
        name: &str,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let socket = TcpStream::connect(("127.0.0.1", server.port(index))).expect("it listens");
        self.on(socket, name)
    }

    fn on(&self, socket: TcpStream, name: &str) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from(name.to_owned()).expect("a host name");
        let connection =
            ClientConnection::new(Arc::clone(&self.config), name).expect("a good configuration");
        StreamOwned::new(connection, socket)
    }

    /// The whole answer to one request.
    pub(crate) fn get(
        &self,
        server: &Server,
        name: &str,
        target: &str,
    ) -> Result<String, std::io::Error> {
        let mut stream = self.connect(server, 0, name);
        let host = format!("Host: {name}");
        ask(&mut stream, target, &host)
    }
}

pub(crate) fn ask(
    stream: &mut (impl Read + Write),
    target: &str,
    host: &str,
) -> Result<String, std::io::Error> {
    write!(
        stream,
        "GET {target} HTTP/1.1\r\n{host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    // With the word that ends TLS this is no error: nothing was cut off.
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

pub(crate) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[derive(Debug)]
struct Credulous(
    Arc<CryptoProvider>,
    Arc<Mutex<Vec<u8>>>,
    Vec<SignatureScheme>,
);

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        stapled: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        *self.1.lock().expect("nobody panics with it") = stapled.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.2.clone()
    }
}

#[test]
fn both_versions_are_spoken_and_told() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE}
         location / {{ return 200 '$scheme $https $ssl_protocol $ssl_cipher $ssl_server_name $ssl_session_reused'; }} }}"
    ))
    .start();
    for (version, protocol) in [
        (&rustls::version::TLS12, "TLSv1.2 ECDHE-ECDSA-AES"),
        (&rustls::version::TLS13, "TLSv1.3 TLS_AES_"),
    ] {
        let answer = Client::with(None, &[version]).get(&server, "localhost", "/");
        let answer = answer.expect("an answer");
        let shown = body(&answer);
        assert!(
            shown.starts_with(&format!("https on {protocol}")),
            "{shown}"
        );
        assert!(shown.ends_with(" localhost ."), "{shown}");
    }
}

#[test]
fn long_responses_come_whole_to_slow_clients() {
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let server = https(&format!(
        "sendfile on; server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} }}"
    ))
    .file("html/large", &content)
    .start();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut stream = Client::with(None, &[version]).connect(&server, 0, "localhost");
        stream
            .write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("it takes a request");
        let mut answer = Vec::new();
        let mut piece = [0; 1000];
        // In small pieces, so that the server finds the socket full again and again.
        loop {
            match stream.read(&mut piece).expect("an end that was announced") {
                0 => break,
                n => answer.extend_from_slice(&piece[..n]),
            }
        }
        let head = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a head");
        assert!(answer[head + 4..] == content[..], "the content is another");
    }
}

#[test]
fn request_content_comes_whole() {
    let server = https(&format!(
        "client_body_buffer_size 1m; client_max_body_size 2m;
         server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE}
         location / {{ proxy_pass http://127.0.0.1:%%PORT1%%; }} }}
         server {{ listen 127.0.0.1:%%PORT1%%; location / {{ return 200 $content_length; }} }}"
    ))
    .start();
    let mut stream = Client::new().connect(&server, 0, "localhost");
    let content = vec![b'x'; 500_000];
    write!(
        stream,
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 500000\r\n\r\n"
    )
    .expect("it takes a request");
    stream.write_all(&content).expect("it takes content");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert_eq!(body(&answer), "500000");
}

#[test]
fn the_name_chooses_server_and_certificate() {
    let other = self_signed("other.example");
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; server_name localhost; {CERTIFICATE}
         location / {{ return 200 one; }} }}
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name other.example;
         ssl_certificate other.crt; ssl_certificate_key other.key; location / {{ return 200 two; }} }}"
    ))
    .file("other.crt", &other.certificate)
    .file("other.key", &other.key)
    .start();
    let client = Client::new();
    for (name, text, same) in [
        ("localhost", "one", false),
        ("other.example", "two", true),
        ("x.example", "one", false),
    ] {
        let mut stream = client.connect(&server, 0, name);
        let answer = ask(&mut stream, "/", &format!("Host: {name}")).expect("an answer");
        assert_eq!(body(&answer), text, "{name}");
        let shown = stream.conn.peer_certificates().expect("a certificate")[0].to_vec();
        let expected = CertificateDer::from_pem_slice(other.certificate.as_bytes()).expect("PEM");
        assert_eq!(shown == expected.to_vec(), same, "{name}");
    }
}

/// A client of TLS 1.3 that names PKCS #1 first, which signs certificates only there, and else only ECDSA.
#[test]
fn the_certificate_is_one_that_can_sign_in_this_version() {
    let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)
        .expect("random bytes");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a host name");
    let rsa = params.self_signed(&key).expect("a key that signs");
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE}
         ssl_certificate rsa.crt; ssl_certificate_key rsa.key; location / {{ return 204; }} }}"
    ))
    .file("rsa.crt", rsa.pem())
    .file("rsa.key", key.serialize_pem())
    .start();
    let client = Client::with(None, &[&rustls::version::TLS13]);
    let mut config = client.config().clone();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let schemes = vec![
        SignatureScheme::RSA_PKCS1_SHA256,
        SignatureScheme::ECDSA_NISTP256_SHA256,
    ];
    let verifier = Credulous(provider, Arc::clone(&client.stapled), schemes);
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(verifier));
    let answer = client.configured(config).get(&server, "localhost", "/");
    assert!(answer.expect("an answer").starts_with("HTTP/1.1 204"));
}

#[test]
fn names_that_nobody_has_can_be_refused() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl default_server; ssl_reject_handshake on; }}
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name localhost; {CERTIFICATE}
         location / {{ return 200 in; }} }}"
    ))
    .start();
    let client = Client::new();
    let answer = client.get(&server, "localhost", "/").expect("an answer");
    assert_eq!(body(&answer), "in");
    let error = client.get(&server, "x.example", "/").expect_err("refused");
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
}

#[test]
fn sessions_are_resumed_also_after_a_reload() {
    let key: Vec<u8> = (0..80).collect();
    let block = |round: usize| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_session_ticket_key ticket.key;
             location / {{ return 200 '$ssl_session_reused {round}'; }} }}"
        )
    };
    let mut server = https(&block(0)).file("ticket.key", key).start();
    for (round, version) in [&rustls::version::TLS12, &rustls::version::TLS13]
        .into_iter()
        .enumerate()
    {
        let client = Client::with(None, &[version]);
        let first = client.get(&server, "localhost", "/").expect("an answer");
        assert!(body(&first).starts_with(". "), "{first}");
        let second = client.get(&server, "localhost", "/").expect("an answer");
        assert!(body(&second).starts_with("r "), "{second}");
        server.reconfigure(&block(round + 1));
        server.signal(Signal::HUP);
        let new = format!(" {}", round + 1);
        let is_new = || {
            let answer = Client::new().get(&server, "localhost", "/");
            answer
                .is_ok_and(|answer| answer.ends_with(&new))
                .then_some(())
        };
        assert!(until(is_new).is_some());
        let third = client.get(&server, "localhost", "/").expect("an answer");
        assert!(body(&third).starts_with("r "), "{third}");
    }
}

#[test]
fn clients_show_certificates() {
    let ours = authority("Ours");
    let good = signed_by(&ours, "good.example");
    let bad = signed_by(&authority("Theirs"), "bad.example");
    let answer =
        "location / { return 200 '$ssl_client_verify $ssl_client_s_dn $ssl_client_i_dn'; }";
    let server = |mode: &str| {
        https(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_verify_client {mode};
             ssl_client_certificate ca.crt; {answer} }}"
        ))
        .file("ca.crt", ours.pem())
        .start()
    };
    let versions: [&[_]; 2] = [&[&rustls::version::TLS12], &[&rustls::version::TLS13]];
    let get = |server: &Server, pair: Option<&Pair>, version: usize| {
        let client = Client::with(pair, versions[version]);
        client.get(server, "localhost", "/").expect("an answer")
    };
    for (mode, without, with_bad) in [
        (
            "on",
            "No required SSL certificate was sent",
            "The SSL certificate error",
        ),
        ("optional", "NONE", "The SSL certificate error"),
        ("optional_no_ca", "NONE", "FAILED:"),
    ] {
        let server = server(mode);
        for version in 0..2 {
            let answer = get(&server, Some(&good), version);
            let shown = body(&answer);
            assert!(
                shown.starts_with("SUCCESS CN=good.example"),
                "{mode}: {answer}"
            );
            assert!(shown.contains("CN=Ours"), "{mode}: {answer}");
            let answer = get(&server, None, version);
            assert!(body(&answer).contains(without), "{mode}: {answer}");
            let answer = get(&server, Some(&bad), version);
            assert!(body(&answer).contains(with_bad), "{mode}: {answer}");
        }
    }
}

#[test]
fn another_server_behind_the_same_session_is_refused() {
    let ours = authority("Ours");
    let server = https(&format!(
        "{CERTIFICATE} ssl_client_certificate ca.crt;
         log_format short '$server_name $host $status $request_length';
         access_log short.log short;
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name localhost; error_page 421 /page;
         location / {{ return 200 open; }} location /page {{ return 200 ours; }} }}
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name closed.example; ssl_verify_client on;
         error_page 421 /page; location / {{ return 200 closed; }} }}"
    ))
    .file("ca.crt", ours.pem())
    .start();
    let mut stream = Client::new().connect(&server, 0, "localhost");
    let answer = ask(&mut stream, "/", "Host: closed.example").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
    // The page and the log are those of the server that the session belongs to.
    assert_eq!(body(&answer), "ours");
    let length = "GET / HTTP/1.1\r\nHost: closed.example\r\n".len();
    let line = format!("localhost localhost 421 {length}");
    assert_eq!(server.lines("short.log", 1), [line]);
}

/// The name in the handshake chooses a certificate. A host that no server has is the default server's all the same, or a
/// client could be served by any server that it names there.
#[test]
fn a_host_that_no_server_has_is_the_default_servers_whatever_the_handshake_said() {
    let server = https(&format!(
        "{CERTIFICATE}
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name localhost; return 200 default; }}
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name named.example; return 200 named; }}"
    ))
    .start();
    let client = Client::new();
    let rows = [
        ("Host: named.example", "named"),
        ("Host: unknown.example", "default"),
        ("Host: localhost", "default"),
    ];
    for (host, text) in rows {
        let mut stream = client.connect(&server, 0, "named.example");
        let answer = ask(&mut stream, "/", host).expect("an answer");
        assert_eq!(body(&answer), text, "{host}");
    }
    let mut stream = client.connect(&server, 0, "named.example");
    write!(stream, "GET / HTTP/1.0\r\n\r\n").expect("it takes a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    assert_eq!(body(&String::from_utf8_lossy(&answer)), "default");
}

#[test]
fn a_request_without_a_host_does_not_get_around_the_default_servers_demand() {
    let ours = authority("Ours");
    let server = https(&format!(
        "{CERTIFICATE} ssl_client_certificate ca.crt;
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name closed.example; ssl_verify_client on; return 200 closed; }}
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name localhost; return 200 open; }}"
    ))
    .file("ca.crt", ours.pem())
    .start();
    for head in [
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: unknown.example\r\n\r\n",
    ] {
        let mut stream = Client::new().connect(&server, 0, "localhost");
        write!(stream, "{head}").expect("it takes a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 421 "), "{head:?}: {answer}");
    }
}

#[test]
fn a_server_that_is_alone_at_its_address_serves_every_host() {
    let ours = authority("Ours");
    let server = https(&format!(
        "{CERTIFICATE} ssl_client_certificate ca.crt;
         server {{ listen 127.0.0.1:%%PORT%% ssl; server_name *.example ~^x; ssl_verify_client optional; return 200 $host; }}"
    ))
    .file("ca.crt", ours.pem())
    .start();
    let mut stream = Client::new().connect(&server, 0, "a.example");
    let answer = ask(&mut stream, "/", "Host: b.example").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(body(&answer), "b.example");
}

#[test]
fn plain_http_on_the_port_is_told_so() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} error_page 497 =200 /plain;
         location / {{ return 200 '$scheme:$https'; }} }}
         server {{ listen 127.0.0.1:%%PORT1%% ssl; {CERTIFICATE} }}"
    ))
    .start();
    assert_eq!(server.get("/").expect(200).text(), "http:");
    let reply = server.connect_to(1).get("/").expect(400);
    assert!(
        reply
            .text()
            .contains("The plain HTTP request was sent to HTTPS port")
    );
}

#[test]
fn the_proxy_protocol_comes_before_tls() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl proxy_protocol; {CERTIFICATE}
         location / {{ return 200 '$proxy_protocol_addr $scheme'; }} }}"
    ))
    .start();
    let mut socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    socket
        .write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n")
        .expect("it takes a header");
    let answer = ask(
        &mut Client::new().on(socket, "localhost"),
        "/",
        "Host: localhost",
    );
    assert_eq!(body(&answer.expect("an answer")), "192.0.2.1 https");
}

/// RFC 8446, appendix D.5: whatever the extensions of the hello say.
#[test]
fn a_hello_that_names_ssl_3_is_refused() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} location / {{ return 200 on; }} }}"
    ))
    .tolerate("SSL_do_handshake() failed")
    .start();
    let name = ServerName::try_from("localhost").expect("a host name");
    for (version, is_refused) in [
        ([3, 0], true),
        ([2, 0], true),
        ([0, 0], true),
        ([3, 1], false),
    ] {
        let config = Arc::new(Client::new().config().clone());
        let mut client = ClientConnection::new(config, name.clone()).expect("a good configuration");
        let mut hello = Vec::new();
        client.write_tls(&mut hello).expect("a vector takes all");
        // Behind the heads of record and message.
        hello[9..11].copy_from_slice(&version);
        let mut socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
        socket.write_all(&hello).expect("it takes bytes");
        let mut kind = [0; 1];
        socket.read_exact(&mut kind).expect("an answer");
        // An alert, or the server's hello.
        assert_eq!(kind[0], if is_refused { 21 } else { 22 }, "{version:?}");
    }
}

/// Clients that do not get to the end of a handshake cost nothing but themselves.
#[test]
fn broken_hellos_are_survived() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} location / {{ return 200 on; }} }}"
    ))
    .tolerate("SSL_do_handshake() failed")
    .start();
    let hello: &[u8] = &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0];
    for bytes in [
        &b"\x16"[..],
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff\x01",
        b"\x80\x2e\x01\x00\x02",
        b"\x16\x03\x01\x00\x04\x0e\x00\x00\x00",
        hello,
    ] {
        let mut socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
        socket.write_all(bytes).expect("it takes bytes");
        socket
            .shutdown(std::net::Shutdown::Write)
            .expect("a connection");
        // An alert, or nothing; but the connection ends.
        let mut rest = Vec::new();
        match socket.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    let answer = Client::new()
        .get(&server, "localhost", "/")
        .expect("an answer");
    assert_eq!(body(&answer), "on");
}

/// A key that `openssl` has encrypted with the word `secret`, in both forms, and its certificate.
const SECRET_CERTIFICATE: &str = include_str!("tls/secret.crt");
const SECRET_PKCS8: &str = include_str!("tls/secret.p8");
const SECRET_LEGACY: &str = include_str!("tls/secret.legacy");

#[test]
fn encrypted_keys_are_opened_with_a_password_of_the_file() {
    for key in [SECRET_PKCS8, SECRET_LEGACY] {
        let site = |passwords: &str| {
            http(
                "server { listen 127.0.0.1:%%PORT%% ssl; ssl_certificate a.crt; ssl_certificate_key a.key;
                 ssl_password_file passwords; location / { return 200 open; } }",
            )
            .file("a.crt", SECRET_CERTIFICATE)
            .file("a.key", key)
            .file("passwords", passwords)
        };
        let server = site("wrong\nsecret\n").start();
        let answer = Client::new()
            .get(&server, "localhost", "/")
            .expect("an answer");
        assert_eq!(body(&answer), "open");
        let refused = site("wrong\n").test();
        assert_ne!(refused.code, 0, "a wrong password opens nothing");
        assert!(refused.stderr.contains("cannot load certificate key"));
    }
}

/// The certificate that a client of this name is shown, and the answer.
fn shown_certificate(server: &Server, name: &str) -> (Vec<u8>, String) {
    let mut stream = Client::new().connect(server, 0, name);
    let answer = ask(&mut stream, "/", &format!("Host: {name}")).expect("an answer");
    let chain = stream.conn.peer_certificates().expect("a certificate");
    (chain[0].to_vec(), body(&answer).to_owned())
}

fn der(pair: &Pair) -> Vec<u8> {
    let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("PEM");
    certificate.to_vec()
}

/// Servers whose files have the same content share what was read, and a reload reads only other content; each still
/// has what its files say.
#[test]
fn a_reload_takes_the_certificates_that_changed_and_refuses_those_that_do_not_fit() {
    let names = ["a.example", "b.example", "c.example"];
    let [shared, own, newer] = names.map(self_signed);
    let block = |round: usize| {
        names
            .iter()
            .map(|name| {
                format!(
                    "server {{ listen 127.0.0.1:%%PORT%% ssl; server_name {name}; ssl_certificate {name}.crt;
                     ssl_certificate_key {name}.key; location / {{ return 200 '{name} {round}'; }} }}"
                )
            })
            .collect::<String>()
    };
    let site = names.iter().zip([&shared, &own, &shared]);
    let site = site.fold(http(&block(0)), |site, (name, pair)| {
        site.file(&format!("{name}.crt"), &pair.certificate)
            .file(&format!("{name}.key"), &pair.key)
    });
    let mut server = site.tolerate("key values mismatch").start();
    let reloaded = |server: &mut Server, round: usize| {
        server.reconfigure(&block(round));
        server.signal(Signal::HUP);
    };
    let arrives = |server: &Server, round: usize| {
        let is_new = || {
            let (_, answer) = shown_certificate(server, "a.example");
            answer.ends_with(&format!(" {round}")).then_some(())
        };
        assert!(until(is_new).is_some(), "configuration {round}");
    };
    let check = |server: &Server, pairs: [&Pair; 3]| {
        for (name, pair) in names.iter().zip(pairs) {
            let (certificate, answer) = shown_certificate(server, name);
            assert!(answer.starts_with(name), "{answer}");
            assert_eq!(certificate, der(pair), "{name}");
        }
    };
    check(&server, [&shared, &own, &shared]);
    let write = |server: &Server, file: &str, text: &str| {
        std::fs::write(server.path(file), text).expect("a folder of ours");
    };
    // One of two servers that shared a certificate gets another one.
    write(&server, "c.example.crt", &newer.certificate);
    write(&server, "c.example.key", &newer.key);
    reloaded(&mut server, 1);
    arrives(&server, 1);
    check(&server, [&shared, &own, &newer]);
    // A known certificate and a known key that do not belong together.
    write(&server, "b.example.key", &shared.key);
    reloaded(&mut server, 2);
    server.line("error.log", "key values mismatch");
    check(&server, [&shared, &own, &newer]);
    // What was there before is taken again.
    write(&server, "b.example.key", &own.key);
    reloaded(&mut server, 3);
    arrives(&server, 3);
    check(&server, [&shared, &own, &newer]);
}

#[test]
fn what_is_missing_is_said() {
    let text = |block: &str| https(block).test().stderr;
    let said = text("server { listen 127.0.0.1:%%PORT%% ssl; }");
    assert!(
        said.contains("no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in"),
        "{said}"
    );
    let said = text("server { listen 127.0.0.1:%%PORT%% ssl; ssl_certificate localhost.crt; }");
    assert!(
        said.contains("no \"ssl_certificate_key\" is defined for certificate"),
        "{said}"
    );
    let said = text(
        "server { listen 127.0.0.1:%%PORT%% ssl; ssl_certificate gone.crt; ssl_certificate_key localhost.key; }",
    );
    assert!(said.contains("cannot load certificate"), "{said}");
    let other = self_signed("other").key;
    let said = https("server { listen 127.0.0.1:%%PORT%% ssl; ssl_certificate localhost.crt; ssl_certificate_key o.key; }")
        .file("o.key", other)
        .test()
        .stderr;
    assert!(said.contains("key values mismatch"), "{said}");
}

/// Files are looked at though nobody needs them, as in nginx: whoever writes `ssl_verify_client on` later must not find
/// out then.
#[test]
fn files_that_nothing_uses_have_to_be_there() {
    for (line, words) in [
        ("ssl_trusted_certificate gone.crt", "gone.crt\""),
        ("ssl_trusted_certificate broken", "broken\""),
        ("ssl_crl gone.crl", "gone.crl\""),
        ("ssl_crl broken", "broken\""),
        ("ssl_password_file gone.txt", "open() \""),
        ("ssl_session_ticket_key broken", "must be 48 or 80 bytes"),
    ] {
        let block = format!("server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {line}; }}");
        let told = https(&block).file("broken", "x").test();
        assert_ne!(told.code, 0, "{line}");
        assert!(told.stderr.contains(words), "{line}: {}", told.stderr);
    }
    let told = http("server { listen 127.0.0.1:%%PORT%%; ssl_password_file gone.txt; }").test();
    assert_ne!(told.code, 0, "passwords are read wherever they stand");
}

#[test]
fn what_may_stand_twice_and_what_may_not() {
    let test = |lines: &str| {
        https(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {lines} }}"
        ))
        .test()
    };
    for lines in [
        "ssl_protocols TLSv1.3;",
        "ssl_session_cache shared:a:1m; ssl_session_cache shared:b:1m;",
        "ssl_session_cache shared:a:1m; ssl_session_cache off;",
        "set $ssl_protocol x;",
    ] {
        let told = test(lines);
        assert_eq!(told.code, 0, "{lines}: {}", told.stderr);
    }
    for (lines, words) in [
        (
            "ssl_session_timeout 1m; ssl_session_timeout 1m;",
            "directive is duplicate",
        ),
        (
            "ssl_session_cache shared:a:1m; ssl_ocsp_cache shared:a:1m;",
            "the shared memory zone \"a\" is already declared for a different use",
        ),
        (
            "ssl_session_cache shared:a:1m; ssl_session_cache shared:a:2m;",
            "the size 2097152 of shared memory zone \"a\" conflicts with already declared size 1048576",
        ),
    ] {
        let told = test(lines);
        assert_ne!(told.code, 0, "{lines}");
        assert!(told.stderr.contains(words), "{lines}: {}", told.stderr);
    }
}

#[test]
fn what_a_client_offers_is_told_as_a_whole() {
    let block = format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} location / {{ return 200 $ssl_ciphers; }} }}"
    );
    let server = https(&block).start();
    let answer = Client::new()
        .get(&server, "localhost", "/")
        .expect("an answer");
    let ciphers = body(&answer);
    assert!(ciphers.starts_with("TLS_AES_256_GCM_SHA384:"), "{ciphers}");
    assert!(
        ciphers.ends_with(":TLS_EMPTY_RENEGOTIATION_INFO_SCSV"),
        "{ciphers}"
    );
}

/// The alert comes before anything that only keys can read.
#[test]
fn a_client_of_other_protocols_learns_why_it_is_refused() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} }}"
    ))
    .start();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = Client::with(None, &[version]).offering(&[b"other".to_vec()]);
        let error = client.get(&server, "localhost", "/");
        let error = error.expect_err("no protocol in common").to_string();
        assert!(error.contains("NoApplicationProtocol"), "{error}");
    }
}

/// What Debian's own configuration says at the level of http.
#[test]
fn old_versions_in_a_configuration_do_not_stop_it() {
    let site = https(
        "ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3; ssl_prefer_server_ciphers on; ssl_ciphers HIGH:!aNULL:!MD5;
         ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
         server { listen 127.0.0.1:%%PORT%% ssl; location / { return 200 $ssl_protocol; } }",
    );
    let server = site.start();
    let answer = Client::new()
        .get(&server, "localhost", "/")
        .expect("an answer");
    assert_eq!(body(&answer), "TLSv1.3");
}

#[test]
fn a_stream_server_ends_tls() {
    if skip_on_oracle("it may be built without stream") {
        return;
    }
    let pair = self_signed("localhost");
    let server = whole(
        "events { } stream { ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate a.crt; ssl_certificate_key a.key;
         server { listen 127.0.0.1:%%PORT%% ssl; return '$ssl_protocol $ssl_server_name'; }
         server { listen 127.0.0.1:%%PORT1%% ssl; proxy_pass 127.0.0.1:%%PORT2%%; }
         server { listen 127.0.0.1:%%PORT2%%; return plain; } }",
    )
    .file("a.crt", pair.certificate)
    .file("a.key", pair.key)
    .start();
    for (index, text) in [(0, "TLSv1.3 localhost"), (1, "plain")] {
        let mut stream = Client::new().connect(&server, index, "localhost");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("an answer with an end");
        assert_eq!(answer, text);
    }
}

#[test]
fn http_2_is_spoken_over_tls() {
    let (before, parameter) = match is_oracle() {
        true => ("", "http2"),
        false => ("http2 on;", ""),
    };
    let content: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    let server = https(&format!(
        "{before} server {{ listen 127.0.0.1:%%PORT%% ssl {parameter}; {CERTIFICATE}
         location = / {{ return 200 '$http2:$ssl_alpn_protocol:$server_protocol:$https'; }} }}"
    ))
    .file("html/big", &content)
    .start();
    let offered = [b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut client = Client::new().offering(&offered);
    let mut http2 = client.http2(&server);
    assert_eq!(http2.get("/").text(), "h2:h2:HTTP/2.0:on");
    let streams: Vec<u32> = (0..3)
        .map(|_| http2.request("GET", "/big", &[], true))
        .collect();
    for stream in streams {
        assert!(http2.reply(stream).body == content);
    }
    // The server's order counts, and without a word about it HTTP/1 is spoken.
    client = client.offering(&offered[1..]);
    let answer = client.get(&server, "localhost", "/").expect("an answer");
    assert_eq!(body(&answer), ":http/1.1:HTTP/1.1:on");
    client = client.offering(&[]);
    let answer = client.get(&server, "localhost", "/").expect("an answer");
    assert_eq!(body(&answer), "::HTTP/1.1:on");
    // Without TLS it is not looked for where TLS is spoken.
    let reply = server.raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(reply.status, 400);
}

#[test]
fn http_2_has_the_limits_of_the_server_that_tls_named() {
    let server = https(&format!(
        "{CERTIFICATE}
         server {{ listen 127.0.0.1:%%PORT%% ssl http2; server_name other.example; return 200; }}
         server {{ listen 127.0.0.1:%%PORT%% ssl http2; server_name localhost; keepalive_requests 1; return 200; }}"
    ))
    .start();
    let mut http2 = Client::new().offering(&[b"h2".to_vec()]).http2(&server);
    let stream = http2.request("GET", "/", &[], true);
    assert_eq!(http2.reply(stream).status, 200);
    assert_eq!(http2.end(), Some(proto::h2::ErrorCode::NO_ERROR));
}

#[test]
fn a_certificate_that_cannot_be_had_is_told_by_an_alert() {
    for certificate in ["data:$arg_none", "missing-$ssl_server_name.pem"] {
        let server = https(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% ssl; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {certificate}; ssl_certificate_key {certificate}; }}"
        ))
        .start();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let error = Client::with(None, &[version]).get(&server, "localhost", "/");
            let error = error.expect_err("there is no certificate").to_string();
            assert!(error.contains("InternalError"), "{certificate}: {error}");
        }
    }
}
