//! TLS: which server a name chooses, certificates of clients, sessions, versions, HTTP/2 by ALPN, and what is no TLS.

use crate::case::{Case, Request, Step};
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
    "ssl_verify_depth 0;",
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
];

/// Which versions are the default has changed, so that each case names them.
const VERSIONS: &[&str] = &["TLSv1.2", "TLSv1.3", "TLSv1.2 TLSv1.3"];

const TEXT: &str = "$server_name $ssl_server_name $ssl_protocol $ssl_session_reused $ssl_client_verify $ssl_client_s_dn $https $scheme $http2 \
                    $ssl_alpn_protocol $host $server_port";

impl Generator for Tls {
    fn area(&self) -> &'static str {
        "tls"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let http2 = if dice.chance(1, 2) { " http2" } else { "" };
        let versions = dice.word(VERSIONS);
        let mut text = String::new();
        for (number, (name, pair)) in [("a.example", "a"), ("b.example *.b.example", "b")]
            .into_iter()
            .enumerate()
        {
            let mut switches = dice.some(SWITCHES, 3);
            let is_shared = |line: &&str| SHARED.iter().any(|word| line.starts_with(word));
            if number > 0 {
                switches.retain(|line| !is_shared(line));
            }
            text.push_str(&format!(
                "server {{ listen %%PORT0%% ssl{http2}; server_name {name}; root %%DIR%%/html;\n\
                 ssl_certificate %%TLS%%/{pair}.crt; ssl_certificate_key %%TLS%%/{pair}.key; ssl_protocols {versions};\n{}\n\
                 location /t/ {{ return 200 \"{TEXT}\"; }} location = /page.html {{ }} }}\n",
                switches.join("\n"),
            ));
        }
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/index.html", "index\n"),
                file("html/page.html", "a page\n"),
            ],
            ..Case::default()
        };
        let mut has: Vec<String> = Vec::new();
        for word in ["h2", "certificate", "1.2", "1.3"] {
            if dice.chance(1, 3) {
                has.push(word.to_owned());
            }
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
        let target = dice.word(&["/t/x", "/t/", "/", "/none", "/page.html"]);
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
