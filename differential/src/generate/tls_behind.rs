//! TLS to servers behind, and TLS in `stream`. The server behind is the same program: what it tells of a handshake is what the
//! one in front of it did.

use crate::case::tree::parse;
use crate::case::{Case, Content, Request, Step};
use crate::random::Dice;

use super::{Generator, tree};

pub(super) struct TlsBehind;

/// Without the prefix: `http` and `stream` have the same.
const PROXY: &[&str] = &[
    "ssl_server_name on;",
    "ssl_server_name on; proxy_ssl_name b.example;",
    "ssl_server_name on; proxy_ssl_name c.b.example;",
    "ssl_server_name on; proxy_ssl_name a.example:443;",
    "ssl_name b.example;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/ca.crt; proxy_ssl_name a.example;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/ca.crt; proxy_ssl_name b.example; proxy_ssl_server_name on;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/ca.crt; proxy_ssl_name x.b.example; proxy_ssl_server_name on;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/ca.crt; proxy_ssl_name wrong.example;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/other.crt;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/ca.crt; proxy_ssl_name deep.example;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/ca.crt; proxy_ssl_name deep.example; proxy_ssl_verify_depth 2;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/cas.crt; proxy_ssl_crl %%TLS%%/cas.crl; proxy_ssl_name a.example;",
    "ssl_verify on; proxy_ssl_trusted_certificate %%TLS%%/ca.crt; proxy_ssl_crl %%TLS%%/revoked.crl; proxy_ssl_name a.example;",
    "ssl_certificate %%TLS%%/client.crt; proxy_ssl_certificate_key %%TLS%%/client.key;",
    "ssl_certificate %%TLS%%/deep.crt; proxy_ssl_certificate_key %%TLS%%/deep.key;",
    "ssl_certificate %%TLS%%/stranger.crt; proxy_ssl_certificate_key %%TLS%%/stranger.key;",
    "ssl_certificate %%TLS%%/revoked.crt; proxy_ssl_certificate_key %%TLS%%/revoked.key;",
    "ssl_certificate %%TLS%%/rsa.crt; proxy_ssl_certificate_key %%TLS%%/rsa.key;",
    "ssl_protocols TLSv1.2;",
    "ssl_protocols TLSv1.3;",
    "ssl_session_reuse off;",
    "ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256;",
];

/// What the server behind asks of the one in front of it.
const BEHIND: &[&str] = &[
    "ssl_verify_client on; ssl_client_certificate %%TLS%%/ca.crt;",
    "ssl_verify_client optional; ssl_client_certificate %%TLS%%/ca.crt; ssl_verify_depth 2;",
    "ssl_verify_client optional_no_ca;",
    "ssl_verify_client optional; ssl_client_certificate %%TLS%%/ca.crt; ssl_crl %%TLS%%/revoked.crl;",
    "ssl_protocols TLSv1.2;",
    "ssl_protocols TLSv1.3;",
    "ssl_session_tickets off;",
    "ssl_session_cache shared:b%%N%%:1m;",
    "ssl_reject_handshake on;",
    "ssl_ciphers ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384;",
];

const TEXT: &str = "$ssl_server_name $ssl_protocol $ssl_cipher $ssl_client_verify $ssl_client_s_dn $ssl_session_reused";

/// The server of TLS in `stream`, without what it does with the bytes.
const STREAM: &[&str] = &[
    "ssl_verify_client on; ssl_client_certificate %%TLS%%/ca.crt;",
    "ssl_verify_client optional; ssl_client_certificate %%TLS%%/ca.crt;",
    "ssl_verify_client optional_no_ca;",
    "ssl_protocols TLSv1.2;",
    "ssl_protocols TLSv1.3;",
    "ssl_session_tickets off;",
    "ssl_session_cache shared:t%%N%%:1m;",
    "ssl_alpn http/1.1 h2;",
    "ssl_alpn y;",
    "ssl_handshake_timeout 1s;",
    "ssl_prefer_server_ciphers on;",
];

impl Generator for TlsBehind {
    fn area(&self) -> &'static str {
        "tls-behind"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let proxy = |dice: &mut Dice, most| -> String {
            let lines = dice.some(PROXY, most);
            let mut lines: Vec<String> = lines.iter().map(|line| format!("proxy_{line}")).collect();
            // The default has changed. What a line says again is left out.
            lines.push("proxy_ssl_protocols TLSv1.2 TLSv1.3;".to_owned());
            lines.join("\n")
        };
        let pair = dice.word(&["a", "a", "rsa", "deep", "old", "self"]);
        let versions = "ssl_protocols TLSv1.2 TLSv1.3;";
        let behind = format!("{}\n{versions}", dice.some(BEHIND, 2).join("\n"));
        let keepalive = dice.word(&["", "keepalive 4;"]);
        let text = format!(
            "upstream a.example%%N%% {{ server %%PORT1%%; {keepalive} }}\n\
             server {{ listen %%PORT0%%; server_name localhost; proxy_set_header Connection '';\n\
             location /p/ {{ {}\nproxy_pass https://%%PORT1%%; }}\n\
             location /g/ {{ {}\nproxy_pass https://a.example%%N%%; }}\n\
             location /v/ {{ {}\nset $b %%PORT1%%; proxy_pass https://$b; }}\n\
             location /plain/ {{ proxy_pass http://%%PORT1%%; }} }}\n\
             server {{ listen %%PORT1%% ssl; server_name a.example; keepalive_requests 100;\n\
             ssl_certificate %%TLS%%/{pair}.crt; ssl_certificate_key %%TLS%%/{pair}.key;\n{behind}\n\
             location / {{ return 200 \"{TEXT}\"; }} }}\n\
             server {{ listen %%PORT1%% ssl; server_name b.example *.b.example;\n\
             ssl_certificate %%TLS%%/b.crt; ssl_certificate_key %%TLS%%/b.key; {versions}\n\
             location / {{ return 200 \"b {TEXT}\"; }} }}\n",
            proxy(dice, 3),
            proxy(dice, 3),
            proxy(dice, 2),
        );
        let own = dice.word(&["a", "rsa", "deep"]);
        let stream = format!(
            "map $ssl_preread_server_name $to%%N%% {{ a.example %%PORT1%%; default %%PORT3%%; }}\n\
             server {{ listen %%PORT2%%; {}\nproxy_ssl on; proxy_pass %%PORT1%%; }}\n\
             server {{ listen %%PORT3%% ssl; ssl_certificate %%TLS%%/{own}.crt; ssl_certificate_key %%TLS%%/{own}.key;\n{}\n{versions}\n\
             return \"$ssl_server_name $ssl_protocol $ssl_client_verify $ssl_client_s_dn $ssl_alpn_protocol $ssl_session_reused\"; }}\n\
             server {{ listen %%PORT4%%; ssl_preread on; proxy_pass $to%%N%%; }}\n\
             server {{ listen %%PORT5%% ssl; ssl_certificate %%TLS%%/{own}.crt; ssl_certificate_key %%TLS%%/{own}.key;\n{}\n{versions}\n\
             proxy_pass %%PORT0%%; }}\n",
            proxy(dice, 3),
            dice.some(STREAM, 2).join("\n"),
            dice.some(STREAM, 2).join("\n"),
        );
        let mut case = Case {
            http: tree(&text),
            stream: cleaned(&stream),
            ..Case::default()
        };
        let mut has: Vec<String> = Vec::new();
        let words = [
            "h2",
            "http/1.1",
            "none",
            "1.2",
            "1.3",
            "certificate",
            "as:deep",
            "as:stranger",
        ];
        has.extend(dice.some(&words, 2).into_iter().map(str::to_owned));
        for connection in 0..dice.between(1, 4) {
            converse(dice, connection, &has, &mut case.talk);
        }
        case
    }
}

/// The same as of `http`: a directive once in each block.
fn cleaned(text: &str) -> Vec<crate::case::tree::Node> {
    let mut nodes = parse(text).unwrap_or_default();
    for node in &mut nodes {
        if let Some(children) = node.children_mut() {
            let mut seen: Vec<String> = Vec::new();
            children.retain(|child| {
                let is_new = !seen.iter().any(|name| name == child.name());
                seen.push(child.name().to_owned());
                is_new
            });
        }
    }
    nodes
}

fn converse(dice: &mut Dice, connection: usize, has: &[String], talk: &mut Vec<Step>) {
    let port = *dice.pick(&[0, 0, 0, 2, 2, 3, 4, 4, 5]);
    talk.push(Step::Connect { connection, port });
    if [3, 4, 5].contains(&port) && !dice.chance(1, 10) {
        talk.push(Step::Tls {
            connection,
            name: dice
                .word(&["a.example", "b.example", "c.b.example", ""])
                .to_owned(),
            has: has.to_vec(),
        });
    }
    if port == 3 || (port == 4 && dice.chance(1, 4)) {
        // It speaks first, and ends.
        talk.push(Step::Rest { connection });
        return;
    }
    let target = dice.word(&["/p/", "/g/", "/g/", "/v/x", "/plain/"]);
    for _ in 0..dice.between(1, 2) {
        if port == 4 {
            let bytes = Content::new("GET /x HTTP/1.0\r\nHost: a.example\r\n\r\n");
            talk.push(Step::Send { connection, bytes });
            talk.push(Step::Rest { connection });
            return;
        }
        let mut request = Request::new("GET", target);
        if port == 2 {
            request.fields = vec![("Host".to_owned(), "a.example".to_owned())];
        }
        talk.push(Step::Request {
            connection,
            request,
        });
        talk.push(Step::Read { connection });
    }
}
