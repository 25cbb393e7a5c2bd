//! An ACME server that is broken, hostile or overloaded: the site goes on, tries are counted, and no key shows.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use weir_tests::{Scripted, Server, Signal, http, skip_on_oracle, until};

use crate::acme::NOT_IN_NGINX;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    BadJson,
    /// The directory's address for nonces is none.
    BadUrl,
    Endless,
    Unavailable,
    Redirects,
    BadNonce,
    UnknownAccount,
    RefusedProof,
    /// The certificate is for a key of somebody else.
    OtherKey,
    RateLimited,
    /// What it says about renewal, and when it wants to be asked again.
    Renewal(&'static str, &'static str),
}

/// What the authority saw when it looked at a proof. It says that it may be looked at, first and last.
const REFUSED: &str = r#"{"identifier":{"type":"dns","value":"www.example.test"},"status":"pending","challenges":
    [{"type":"http-01","url":"AT/challenge","token":"t","status":"invalid","error":{"detail":"could not connect"}}]}"#;

/// An answer: its first line, its fields, its content.
type Said = (&'static str, String, String);

/// An authority that checks nothing, at an address that ends with a slash.
fn answer(fault: Fault, at: &str, path: &str, certificate: &str) -> Said {
    let nonce = "Replay-Nonce: abc\r\n".to_owned();
    let problem = |line, name: &str, fields: &str| {
        let content =
            format!(r#"{{"type":"urn:ietf:params:acme:error:{name}","detail":"said so"}}"#);
        (line, format!("{nonce}{fields}"), content)
    };
    let order = |status: &str| {
        format!(
            r#"{{"status":"{status}","authorizations":["{at}authorization"],"finalize":"{at}finalize","certificate":"{at}certificate"}}"#
        )
    };
    let ok = |content: String| ("200 OK", nonce.clone(), content);
    let invalid = fault == Fault::RefusedProof;
    let authorization = match invalid {
        true => REFUSED,
        false => {
            r#"{"identifier":{"type":"dns","value":"www.example.test"},"status":"valid","challenges":[]}"#
        }
    };
    match (path, fault) {
        ("/directory", Fault::BadJson) => ok("{".to_owned()),
        ("/directory", Fault::Unavailable) => ("500 Oops", String::new(), "<html>".to_owned()),
        ("/directory", Fault::Redirects) => (
            "302 Found",
            "Location: /directory\r\n".to_owned(),
            String::new(),
        ),
        ("/directory", _) => {
            let nonces = match fault {
                Fault::BadUrl => "no url".to_owned(),
                _ => format!("{at}nonce"),
            };
            let renewal = match fault {
                Fault::Renewal(..) => format!(r#""renewalInfo":"{at}renewal","#),
                _ => String::new(),
            };
            ok(format!(
                r#"{{{renewal}"newNonce":"{nonces}","newAccount":"{at}account","newOrder":"{at}order","revokeCert":"","keyChange":""}}"#
            ))
        }
        ("/account", _) => (
            "201 Created",
            format!("{nonce}Location: {at}account/1\r\n"),
            "{}".to_owned(),
        ),
        ("/order", Fault::BadNonce) => problem("400 Bad Request", "badNonce", ""),
        ("/order", Fault::UnknownAccount) => problem("400 Bad Request", "accountDoesNotExist", ""),
        ("/order", Fault::RateLimited) => problem(
            "429 Too Many",
            "rateLimited",
            "Retry-After: 18446744073709551615\r\n",
        ),
        ("/order", _) => (
            "201 Created",
            format!("{nonce}Location: {at}order/1\r\n"),
            order("pending"),
        ),
        ("/order/1", _) if invalid => ok(order("invalid")),
        ("/order/1" | "/finalize", _) => ok(order("valid")),
        ("/authorization", _) => ok(authorization.replace("AT/", at)),
        (path, Fault::Renewal(content, again)) if path.starts_with("/renewal/") => {
            let fields = format!("Retry-After: {again}\r\n");
            ("200 OK", fields, content.to_owned())
        }
        ("/challenge", _) => {
            ok(r#"{"type":"http-01","url":"x","token":"t","status":"pending"}"#.to_owned())
        }
        ("/certificate", _) => ok(certificate.to_owned()),
        _ => ok("{}".to_owned()),
    }
}

/// The authority, which believes everybody and signs nothing.
struct Authority {
    server: Scripted,
    fault: Arc<Mutex<Fault>>,
}

impl Authority {
    fn start() -> Authority {
        let key = KeyPair::generate().expect("random bytes");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a host name");
        let own = params.self_signed(&key).expect("a key that signs");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions that the provider has")
            .with_no_client_auth()
            .with_single_cert(
                vec![own.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .expect("a key that belongs to its certificate");
        let config = Arc::new(config);
        let certificate = own.pem();
        let fault = Arc::new(Mutex::new(Fault::BadJson));
        let now = Arc::clone(&fault);
        let server = Scripted::start(move |stream, _| {
            let fault = *now.lock().expect("nobody panics with it");
            // Who asks may leave at any point.
            let _ = serve(stream, &config, fault, &certificate);
        });
        Authority { server, fault }
    }

    /// What the site says of its next try, in a configuration that it has just been told to read.
    fn does(&self, server: &Server, fault: Fault, message: &str) {
        *self.fault.lock().expect("nobody panics with it") = fault;
        let before = self.server.connections();
        server.signal(Signal::HUP);
        server.line("error.log", message);
        let requests = self.server.connections() - before;
        assert!(requests <= 12, "{fault:?}: {requests} requests");
        server.get("/").expect(204);
    }
}

fn serve(
    stream: &mut TcpStream,
    config: &Arc<ServerConfig>,
    fault: Fault,
    certificate: &str,
) -> std::io::Result<()> {
    let port = stream.local_addr()?.port();
    let at = format!("https://127.0.0.1:{port}/");
    let session = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(session, &mut *stream);
    let head = request(&mut stream)?;
    let path = head.split(' ').nth(1).unwrap_or_default();
    let (line, fields, content) = answer(fault, &at, path, certificate);
    let length = match (fault, path) {
        (Fault::Endless, "/directory") => "Connection: close".to_owned(),
        _ => format!("Content-Length: {}", content.len()),
    };
    write!(stream, "HTTP/1.1 {line}\r\n{fields}{length}\r\n\r\n")?;
    if !head.starts_with("HEAD") {
        stream.write_all(content.as_bytes())?;
    }
    stream.flush()?;
    if fault == Fault::Endless && path == "/directory" {
        loop {
            stream.write_all(&[b' '; 4096])?;
        }
    }
    Ok(())
}

/// Reads a request with its content, and gives its head.
fn request(stream: &mut impl Read) -> std::io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    stream.read_exact(&mut vec![0; length])?;
    Ok(head)
}

#[test]
fn an_authority_that_misbehaves_costs_nothing_but_its_certificate() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let authority = Authority::start();
    let port = authority.server.port();
    let site = http(&format!(
        "acme_issuer hostile {{ uri https://127.0.0.1:{port}/directory; ssl_verify off; state_path acme; }}
        server {{
            listen 127.0.0.1:%%PORT%%;
            location / {{ return 204; }}
        }}
        server {{
            listen 127.0.0.1:%%PORT1%% ssl;
            server_name www.example.test;
            acme_certificate hostile;
            ssl_certificate $acme_certificate;
            ssl_certificate_key $acme_certificate_key;
        }}
        {WITNESS}"
    ));
    let server = site.tolerate("acme: no certificate").start();
    server.line("error.log", "status 200 that is not ACME");
    for (fault, message) in [
        (Fault::Unavailable, "status 500 that is not ACME"),
        (Fault::Endless, "the response is too long"),
        (Fault::Redirects, "too many redirects"),
        (Fault::BadNonce, "acme:error:badNonce"),
        (Fault::RefusedProof, "could not connect"),
        (Fault::OtherKey, "key values mismatch"),
        (Fault::UnknownAccount, "acme:error:accountDoesNotExist"),
        (
            Fault::RateLimited,
            "acme:error:rateLimited); next attempt in 86400 s",
        ),
    ] {
        authority.does(&server, fault, message);
        let kept = server.path("acme/account.json").exists();
        match fault {
            Fault::BadNonce | Fault::RefusedProof | Fault::OtherKey => assert!(kept),
            Fault::UnknownAccount => assert!(!kept),
            _ => {}
        }
    }
    // One that asked to be left alone is, also by the next configuration.
    let asked = authority.server.connections();
    reload(&server);
    assert_eq!(authority.server.connections(), asked);
    assert!(!server.read("error.log").contains("PRIVATE KEY"));
}

#[test]
fn addresses_of_an_authority_that_are_none_are_refused() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let authority = Authority::start();
    *authority.fault.lock().expect("nobody panics with it") = Fault::BadUrl;
    let port = authority.server.port();
    let site = http(&format!(
        "acme_issuer hostile {{ uri https://127.0.0.1:{port}/directory; ssl_verify off; state_path off; }}
        server {{
            listen 127.0.0.1:%%PORT%%;
            server_name www.example.test;
            acme_certificate hostile key=rsa:2048;
        }}"
    ));
    let server = site.tolerate("acme: no certificate").start();
    server.line("error.log", "status 200 that is not ACME");
    assert!(!server.path("acme_hostile").exists(), "state_path is off");
}

/// An authority beside the other that is asked at once by each new configuration: when it was, so would the other have been.
const WITNESS: &str = "acme_issuer witness { uri https://127.0.0.1:%%PORT9%%/directory; ssl_verify off; state_path off; }
    server { listen 127.0.0.1:%%PORT%%; server_name witness.test; acme_certificate witness; }";

/// Reads the configuration again, and waits until its issuers have been asked that are to be asked at once.
fn reload(server: &Server) {
    let tries = || {
        server
            .read("error.log")
            .matches("no certificate of \"witness\"")
            .count()
    };
    // Its first try.
    server.line("error.log", "no certificate of \"witness\"");
    let before = tries();
    server.signal(Signal::HUP);
    assert!(until(|| (tries() > before).then_some(())).is_some());
    server.get("/").expect(204);
}

/// A certificate that an authority has issued a month ago, for two more, and its key.
fn issued() -> (String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("random bytes");
    let issuer = CertifiedIssuer::self_signed(params, key).expect("a key that signs");
    let key = KeyPair::generate().expect("random bytes");
    let name = "www.example.test".to_owned();
    let mut params = CertificateParams::new(vec![name]).expect("a host name");
    params.use_authority_key_identifier_extension = true;
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    params.not_before = (now - 30 * day).into();
    params.not_after = (now + 60 * day).into();
    let certificate = params.signed_by(&key, &issuer).expect("a key that signs");
    (certificate.pem(), key.serialize_pem())
}

#[test]
fn what_an_authority_says_about_renewal_is_believed_within_limits() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let window = |start: &str, end: &str| {
        let text = format!(
            r#"{{"suggestedWindow":{{"start":"{start}Z","end":"{end}Z"}},"explanationURL":"https://a/"}}"#
        );
        &*text.leak()
    };
    let past = window("2001-01-01T00:00:00", "2001-01-02T00:00:00");
    let future = window("9990-01-01T00:00:00", "9999-12-31T23:59:59");
    let reversed = window("2031-01-02T00:00:00", "2031-01-01T00:00:00");
    let early = "key values mismatch); next attempt in";
    for (content, again, orders, message) in [
        // A certificate is renewed at once, which this authority can not do; and that is tried again as any failure is.
        (past, "1", 1, early),
        (past, "18446744073709551615", 1, early),
        (past, "soon", 1, early),
        (future, "0", 0, "between 9990-01-01"),
        (reversed, "0", 0, "its window is empty"),
        (
            "{\"suggestedWindow\":7}",
            "0",
            0,
            "returned no renewal information for certificates",
        ),
        ("{", "0", 0, "status 200 that is not ACME"),
        ("<html>", "-1", 0, "status 200 that is not ACME"),
    ] {
        let authority = Authority::start();
        *authority.fault.lock().expect("nobody panics with it") = Fault::Renewal(content, again);
        let port = authority.server.port();
        let key = KeyPair::generate().expect("random bytes").serialize_pem();
        let (certificate, own_key) = issued();
        let site = http(&format!(
            "acme_issuer liar {{ uri https://127.0.0.1:{port}/directory; ssl_verify off; state_path acme;
                 account_key account.key; }}
            server {{
                listen 127.0.0.1:%%PORT%%;
                server_name www.example.test;
                acme_certificate liar;
                location / {{ return 204; }}
            }}
            {WITNESS}"
        ));
        // As it calls the certificate in its folder.
        let facts = format!("www.example.test P256 https://127.0.0.1:{port}/directory");
        let sum = base::hash::murmur2(facts.as_bytes());
        let place = format!("liar-www.example.test-{sum:08x}");
        let server = site
            .tolerate("acme: no certificate")
            .file("account.key", key)
            .file(&format!("acme/{place}.crt"), certificate)
            .file(&format!("acme/{place}.key"), own_key)
            .start();
        server.line("error.log", message);
        server.get("/").expect(204);
        let log = server.read("error.log");
        assert_eq!(
            log.matches("no certificate of \"liar\"").count(),
            orders,
            "{log}"
        );
        // Neither does another configuration ask before it is time.
        let asked = authority.server.connections();
        assert!(asked <= 20, "{asked} requests");
        reload(&server);
        assert_eq!(authority.server.connections(), asked);
    }
}
