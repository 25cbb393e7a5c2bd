//! TLS: which server a name chooses, certificates of clients, sessions, versions, HTTP/2 by ALPN, and what is no TLS.

use crate::case::{Case, Content, Request, Step};
use crate::random::Dice;

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Tls;

const SWITCHES: &[&str] = &[
    "ssl_session_cache none;",
    "ssl_session_cache off;",
    "ssl_session_cache shared:s%%N%%:1m;",
    "ssl_session_tickets off;",
    "ssl_session_timeout 1s;",
    "ssl_verify_client on; ssl_client_certificate %%TLS%%/ca.crt;",
    "ssl_verify_client optional; ssl_client_certificate %%TLS%%/ca.crt;",
    "ssl_verify_client optional_no_ca;",
    "ssl_verify_client on; ssl_client_certificate %%TLS%%/a.crt;",
    "ssl_verify_client on; ssl_client_certificate %%TLS%%/cas.crt;",
    "ssl_verify_client optional; ssl_client_certificate %%TLS%%/other.crt; ssl_trusted_certificate %%TLS%%/ca.crt;",
    "ssl_verify_client optional; ssl_client_certificate %%TLS%%/ca.crt; ssl_trusted_certificate %%TLS%%/middle.crt;",
    "ssl_verify_client optional; ssl_client_certificate %%TLS%%/ca.crt; ssl_crl %%TLS%%/revoked.crl;",
    "ssl_verify_client on; ssl_client_certificate %%TLS%%/ca.crt; ssl_crl %%TLS%%/cas.crl; ssl_verify_depth 2;",
    "ssl_verify_depth 0;",
    "ssl_verify_depth 2;",
    "ssl_stapling on; ssl_stapling_file %%TLS%%/staple.der;",
    "ssl_session_ticket_key %%TLS%%/ticket.key;",
    "ssl_ecdh_curve prime256v1;",
    "ssl_ecdh_curve secp384r1:X25519:prime256v1;",
    "ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256;",
    "ssl_ciphers ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384;",
    "ssl_ciphers HIGH:!aNULL:!MD5;",
    "ssl_ciphers EECDH+CHACHA20:EECDH+AESGCM;",
    "ssl_ciphers ECDHE+AES256:!ECDSA;",
    "ssl_ciphers DEFAULT:!AES128;",
    "if ($ssl_early_data) { return 425; }",
    "if ($ssl_client_verify != SUCCESS) { return 403; }",
    "error_page 421 425 /page.html;",
    "ssl_reject_handshake on;",
    "ssl_buffer_size 1k;",
    "ssl_early_data on;",
    "ssl_prefer_server_ciphers on;",
    "error_page 495 496 /page.html;",
    "error_page 497 =301 https://$host$request_uri;",
    "error_page 400 /page.html;",
    "keepalive_requests 2;",
    "return 421;",
];

/// Of these those of the port's default server count, or all have to be the same.
const SHARED: &[&str] = &[
    "ssl_session_cache",
    "ssl_session_tickets",
    "ssl_session_timeout",
    "ssl_early_data",
    "ssl_session_ticket_key",
    "ssl_ecdh_curve",
    "ssl_ciphers",
    "ssl_prefer_server_ciphers",
];

/// Which versions are the default has changed, so that each case names them.
const VERSIONS: &[&str] = &["TLSv1.2", "TLSv1.3", "TLSv1.2 TLSv1.3"];

const TEXT: &str = "$server_name $ssl_server_name $ssl_protocol $ssl_session_reused $ssl_client_verify $ssl_client_s_dn $https $scheme $http2 \
                    $ssl_alpn_protocol $host $server_port";

/// What else there is to tell of a handshake, and of a client's certificate.
const MORE: &[&str] = &[
    "$ssl_early_data",
    "$ssl_client_i_dn",
    "$ssl_client_s_dn_legacy",
    "$ssl_client_i_dn_legacy",
    "$ssl_client_serial",
    "$ssl_client_fingerprint",
    "$ssl_client_v_start",
    "$ssl_client_v_end",
    "$ssl_client_v_remain",
    "$ssl_client_raw_cert",
    "$ssl_client_cert",
    "$ssl_client_escaped_cert",
    "$ssl_ciphers",
    "$ssl_curve",
    "$ssl_curves",
];

/// The certificates of a server.
const OWN: &[(&str, &str)] = &[
    ("a.example", "a"),
    ("a.example", "rsa"),
    ("a.example", "a rsa"),
    ("b.example *.b.example", "b"),
    ("*.example ~^x", "deep"),
    ("_", "a"),
    ("\"\"", "rsa"),
];

/// What a client may have, each at times.
const HAS: &[&str] = &[
    "h2", "h2", "http/1.1", "none", "1.2", "1.3", "1.2", "1.3", "rsa", "ecdsa", "aes128", "aes256",
    "chacha", "p256", "early",
];

const CERTIFICATES: &[&str] = &[
    "certificate",
    "as:client",
    "as:deep",
    "as:bare",
    "as:stranger",
    "as:self",
    "as:old",
    "as:revoked",
    "as:server-only",
];

impl Generator for Tls {
    fn area(&self) -> &'static str {
        "tls"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let http2 = if dice.chance(1, 2) { " http2" } else { "" };
        let versions = dice.word(VERSIONS);
        let mut text = String::new();
        let more = dice.some(MORE, 4).join(" ");
        // Of all servers of a port the first one has these.
        let first = dice.some(SWITCHES, 4);
        let is_shared = |line: &&str| SHARED.iter().any(|word| line.starts_with(word));
        for number in 0..dice.between(1, 3) {
            let (name, pairs) = *dice.pick(OWN);
            let mut switches = first.clone();
            if number > 0 {
                switches = dice.some(SWITCHES, 3);
                switches.retain(|line| !is_shared(line));
            }
            let own: Vec<String> = pairs
                .split(' ')
                .map(|pair| {
                    format!("ssl_certificate %%TLS%%/{pair}.crt; ssl_certificate_key %%TLS%%/{pair}.key;")
                })
                .collect();
            let own = own.join(" ");
            let default = if number == 1 && dice.chance(1, 3) {
                " default_server"
            } else {
                ""
            };
            text.push_str(&format!(
                "server {{ listen %%PORT0%%{default} ssl{http2}; server_name {name}; root %%DIR%%/html;\n\
                 {own} ssl_protocols {versions};\n{}\n\
                 location /t/ {{ return 200 \"{TEXT} {more}\"; }} location = /page.html {{ }} }}\n",
                switches.join("\n"),
            ));
        }
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/index.html", "index\n"),
                file("html/page.html", "a page\n"),
                crate::case::File {
                    path: "html/big.txt".to_owned(),
                    content: Content::repeated("0123456789abcdef", 5000),
                },
            ],
            ..Case::default()
        };
        let mut has: Vec<String> = Vec::new();
        has.extend(dice.some(HAS, 3).into_iter().map(str::to_owned));
        if dice.chance(1, 2) {
            has.push(dice.word(CERTIFICATES).to_owned());
        }
        for connection in 0..dice.between(1, 4) {
            converse(dice, connection, &has, &mut case.talk);
        }
        case
    }
}

fn converse(dice: &mut Dice, connection: usize, has: &[String], talk: &mut Vec<Step>) {
    talk.push(Step::Connect {
        connection,
        port: 0,
    });
    let is_plain = dice.chance(1, 8);
    if !is_plain {
        let name = dice.word(&[
            "a.example",
            "a.example",
            "b.example",
            "c.b.example",
            "none",
            "",
        ]);
        talk.push(Step::Tls {
            connection,
            name: name.to_owned(),
            has: has.to_vec(),
        });
    }
    for _ in 0..dice.between(1, 3) {
        let target = dice.word(&["/t/x", "/t/", "/", "/none", "/page.html", "/big.txt"]);
        let host = dice.word(&["a.example", "b.example", "localhost", "c.b.example"]);
        let mut request = Request::new(dice.word(&["GET", "GET", "HEAD"]), target);
        request.fields = vec![("Host".to_owned(), host.to_owned())];
        talk.push(Step::Request {
            connection,
            request,
        });
        talk.push(Step::Read { connection });
    }
    talk.push(Step::Close { connection });
}
