//! `acme_issuer` and `acme_certificate`, against Pebble, the ACME server that Let's Encrypt tests with. It is taken from
//! `$PEBBLE`, from the path, or built by Go; without it these tests say so and pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use weir_tests::{Answer, Dns, Server, Site, http, skip_on_oracle, until};

pub(crate) const NOT_IN_NGINX: &str = "nginx has the module outside of its tree";

/// The name that certificates are for; the fake DNS knows every name.
const NAME: &str = "www.example.test";

/// The program, if it can be had.
fn pebble() -> Option<PathBuf> {
    static PEBBLE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PEBBLE.get_or_init(|| {
        if let Some(path) = std::env::var_os("PEBBLE") {
            return Some(path.into());
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
        let built = folder.join("pebble");
        if !built.exists() {
            let package = "github.com/letsencrypt/pebble/v2/cmd/pebble@v2.8.0";
            let go = Command::new("go")
                .args(["install", package])
                .env("GOBIN", &folder)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if !go.is_ok_and(|status| status.success()) {
                return None;
            }
        }
        Some(built)
    });
    if found.is_none() {
        eprintln!("skipped: there is neither pebble nor Go to build it with");
    }
    found.clone()
}

/// A running Pebble, with a certificate of an authority of our own.
struct Pebble(Child);

impl Pebble {
    fn start(program: &Path, folder: &Path, ports: [u16; 4], dns: u16) -> Pebble {
        let [listen, manage, http, tls] = ports;
        let config = format!(
            r#"{{ "pebble": {{ "listenAddress": "127.0.0.1:{listen}", "managementListenAddress": "127.0.0.1:{manage}",
                "certificate": "{0}/pebble.crt", "privateKey": "{0}/pebble.key", "httpPort": {http}, "tlsPort": {tls},
                "ocspResponderURL": "", "externalAccountBindingRequired": false }} }}"#,
            folder.display()
        );
        fs::write(folder.join("pebble.json"), config).expect("the folder is ours");
        let child = Command::new(program)
            .arg("-config")
            .arg(folder.join("pebble.json"))
            .args(["-dnsserver", &format!("127.0.0.1:{dns}")])
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", "5")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let pebble = Pebble(child);
        let listens = until(|| std::net::TcpStream::connect(("127.0.0.1", listen)).ok());
        assert!(listens.is_some(), "pebble listens");
        pebble
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A site that wants a certificate, and Pebble's own one. Ports: plain, TLS, Pebble, its management.
fn site(dns: u16, challenge: &str) -> Site {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ours");
    let key = KeyPair::generate().expect("random bytes");
    let authority = CertifiedIssuer::self_signed(params, key).expect("a key that signs");
    let key = KeyPair::generate().expect("random bytes");
    let own = CertificateParams::new(vec!["acme.test".to_owned()]).expect("a host name");
    let own = own.signed_by(&key, &authority).expect("a key that signs");
    let conf = format!(
        "resolver 127.0.0.1:{dns};
        acme_issuer pebble {{
            uri https://acme.test:%%PORT2%%/dir;
            contact admin@example.test;
            accept_terms_of_service;
            ssl_trusted_certificate ca.crt;
            state_path acme;
            challenge {challenge};
        }}
        server {{
            listen 127.0.0.1:%%PORT%%;
            location /self {{ proxy_pass https://127.0.0.1:%%PORT1%%/; proxy_ssl_server_name on; proxy_ssl_name {NAME}; }}
            location /pebble {{ return 200 %%PORT3%%; }}
        }}
        server {{
            listen 127.0.0.1:%%PORT1%% ssl;
            server_name {NAME} *.example.test;
            acme_certificate pebble;
            ssl_certificate $acme_certificate;
            ssl_certificate_key $acme_certificate_key;
            location / {{ return 200 'secure $ssl_server_name'; }}
        }}"
    );
    http(&conf)
        .tolerate("acme: no certificate")
        .tolerate("cannot load certificate")
        .file("ca.crt", authority.pem())
        .file("pebble.crt", own.pem())
        .file("pebble.key", key.serialize_pem())
}

fn ports(server: &Server) -> [u16; 4] {
    [
        server.port(2),
        server.port(3),
        server.port(0),
        server.port(1),
    ]
}

fn is_secure(server: &Server) -> bool {
    let reply = server.get("/self");
    reply.status == 200 && reply.text() == format!("secure {NAME}")
}

fn obtains(challenge: &str) {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let Some(program) = pebble() else { return };
    let dns = Dns::start(Answer::Addresses(vec![[127, 0, 0, 1].into()], 60));
    let site = site(dns.port(), challenge);
    let server = site.start();
    let _pebble = Pebble::start(&program, &server.path(""), ports(&server), dns.port());
    // The server's ports are known now, and its first try may have come too early.
    server.signal(weir_tests::Signal::HUP);
    let issued = until(|| is_secure(&server).then_some(()));
    assert!(issued.is_some(), "{}", server.read("error.log"));
    let files = || {
        let entries = fs::read_dir(server.path("acme")).expect("the folder was made");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("it is read").file_name())
            .collect();
        names.sort();
        names
    };
    let known = files();
    assert_eq!(known.len(), 3, "account, certificate, key: {known:?}");

    // Pebble says when it wishes it to be renewed.
    server.line(
        "error.log",
        "acme: \"pebble\" suggests renewing the certificate",
    );

    // A reload keeps it, and orders nothing.
    server.signal(weir_tests::Signal::HUP);
    server.line("error.log", "was issued");
    assert!(is_secure(&server));
    assert_eq!(files(), known);
    assert_eq!(server.read("error.log").matches("was issued").count(), 1);
}

#[test]
fn a_certificate_is_obtained_by_http() {
    obtains("http-01");
}

#[test]
fn a_certificate_is_obtained_by_tls() {
    obtains("tls-alpn-01");
}

#[test]
fn what_is_wrong_in_an_issuer_is_named() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let issuer = "uri https://acme.test/dir; ssl_verify off;";
    for (block, server, message) in [
        ("ssl_verify off;", "", "issuer \"a\" has no \"uri\""),
        ("uri x y;", "", "invalid parameters of \"uri\""),
        ("uri http://a/;", "", "must begin with https://"),
        (
            "uri https://a/; ssl_verify off; external_account_key id data:!;",
            "",
            "must be in base64url",
        ),
        ("speed 1;", "", "unknown directive \"speed\" in an issuer"),
        (issuer, "acme_certificate b;", "unknown issuer \"b\""),
        (
            issuer,
            "acme_certificate a *.x.test;",
            "invalid identifier \"*.x.test\"",
        ),
        (
            issuer,
            "acme_certificate a x.test key=dsa;",
            "invalid parameter \"key=dsa\"",
        ),
        (
            "uri https://a/; ssl_trusted_certificate none.crt;",
            "",
            "No such file or directory",
        ),
    ] {
        let conf =
            format!("acme_issuer a {{ {block} }} server {{ listen 127.0.0.1:%%PORT%%; {server} }}");
        let finished = http(&conf).test();
        assert!(
            finished.code != 0 && finished.stderr.contains(message),
            "{block} {server}: {}",
            finished.stderr
        );
    }
}
