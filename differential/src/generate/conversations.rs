//! Conversations: several requests on a connection, content that comes late, heads that are odd or broken.

use crate::case::{Case, Content, Request, Step};
use crate::random::Dice;

use super::pieces::{body, file, request, upstream};
use super::{Generator, tree};

pub(super) struct Conversations;

const SWITCHES: &[&str] = &[
    "keepalive_requests 2;",
    "keepalive_timeout 0;",
    "keepalive_disable none;",
    "client_max_body_size 10;",
    "client_max_body_size 0;",
    "ignore_invalid_headers off;",
    "underscores_in_headers on;",
    "large_client_header_buffers 2 512;",
    "client_header_buffer_size 64;",
    "merge_slashes off;",
    "lingering_close off;",
    "client_body_buffer_size 16;",
    "error_page 413 /big.html;",
    "error_page 400 /big.html;",
    "error_page 405 =200 $uri;",
    "error_page 494 =400 /big.html;",
    "chunked_transfer_encoding off;",
    "server_name_in_redirect on;",
    "proxy_request_buffering off;",
    "proxy_http_version 1.1;",
    "add_header X-A $request_length;",
    "msie_padding off;",
    "reset_timedout_connection on;",
    "tcp_nodelay off;",
    "client_body_in_single_buffer on;",
    "max_headers 3;",
    "lingering_close always;",
    "error_page 414 =200 /big.html;",
];

/// Heads as clients send them, or should not. `\n` stands for CR LF.
const HEADS: &[&str] = &[
    "GET / HTTP/1.1\nHost: localhost\n\n",
    "GET /\n",
    "GET / HTTP/1.0\n\n",
    "GET / HTTP/1.1\n\n",
    "GET / HTTP/2.0\nHost: a\n\n",
    "GET / HTTP/1.2\nHost: localhost\n\n",
    "get / HTTP/1.1\nHost: a\n\n",
    "GET  / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1 \nHost: a\n\n",
    "GET http://other/x.txt HTTP/1.1\nHost: a\n\n",
    "GET http://other:80 HTTP/1.1\nHost: a\n\n",
    "GET http://u@h/x HTTP/1.1\nHost: a\n\n",
    "OPTIONS * HTTP/1.1\nHost: a\n\n",
    "CONNECT a:80 HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\nHost: a\nHost: b\n\n",
    "GET / HTTP/1.1\nHost:\n\n",
    "GET / HTTP/1.1\nHost: a b\n\n",
    "GET / HTTP/1.1\nHost: [::1]:80\n\n",
    "GET / HTTP/1.1\nHost: a/b\n\n",
    "GET / HTTP/1.1\nHost: A.:1\n\n",
    "GET / HTTP/1.1\nHost: a\nX_A: 1\n\n",
    "GET / HTTP/1.1\nHost: a\nX A: 1\n\n",
    "GET / HTTP/1.1\nHost: a\n: 1\n\n",
    "GET / HTTP/1.1\nHost: a\nX\n\n",
    "GET / HTTP/1.1\nHost: a\n X: folded\n\n",
    "GET / HTTP/1.1\nHost: a\nX-A: 1\n 2\n\n",
    "GET / HTTP/1.1\nHost : a\n\n",
    "GET / HTTP/1.1\nHost: a\nX-A:1\nX-A:  2  \n\n",
    "GET /% HTTP/1.1\nHost: a\n\n",
    "GET /%00 HTTP/1.1\nHost: a\n\n",
    "GET /%zz HTTP/1.1\nHost: a\n\n",
    "GET /../x HTTP/1.1\nHost: a\n\n",
    "GET /a/../../x HTTP/1.1\nHost: a\n\n",
    "GET x HTTP/1.1\nHost: a\n\n",
    "GET ?x HTTP/1.1\nHost: a\n\n",
    "GET /x.txt#f HTTP/1.1\nHost: a\n\n",
    "GET /x.txt?a#f HTTP/1.1\nHost: a\n\n",
    "GET /a b HTTP/1.1\nHost: a\n\n",
    "\n\nGET / HTTP/1.1\nHost: a\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc",
    "POST /up/ HTTP/1.1\nHost: a\nContent-Length: -1\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nContent-Length: x\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nContent-Length: 3\nContent-Length: 3\n\nabc",
    "POST /up/ HTTP/1.1\nHost: a\nContent-Length: 99999999999999999999\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nContent-Length: 3\n\n0\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: gzip\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: identity\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: chunked, chunked\n\n0\n\n",
    "POST /up/ HTTP/1.0\nHost: a\nTransfer-Encoding: chunked\n\n0\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: Chunked\n\n3\nabc\n0\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n3;x=y\nabc\n0\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n3 \nabc\n0\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n3\nabcd\n0\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\nx\nabc\n",
    "POST /x.txt HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n3\nabc\n0\nX: y\n\n",
    "POST /up/ HTTP/1.1\nHost: a\nExpect: 100-continue\nContent-Length: 2\n\nab",
    "POST /x.txt HTTP/1.1\nHost: a\nExpect: 100-continue\nContent-Length: 2\n\nab",
    "POST /up/ HTTP/1.1\nHost: a\nExpect: other\nContent-Length: 2\n\nab",
    "PUT /x.txt HTTP/1.1\nHost: a\nContent-Length: 2\n\nab",
    "GET / HTTP/1.1\nHost: a\nContent-Length: 0\n\n",
    "GET /up/ HTTP/1.1\nHost: a\nContent-Length: 2\n\nab",
    "TRACE / HTTP/1.1\nHost: a\n\n",
    "DELETE /x.txt HTTP/1.1\nHost: a\n\n",
    "A_B / HTTP/1.1\nHost: a\n\n",
    "G-T / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\nHost: a\nConnection: close, x\n\n",
    "GET / HTTP/1.0\nConnection: keep-alive\n\n",
    "GET / HTTP/1.1\nHost: a\nConnection: Keep-Alive\nConnection: close\n\n",
    "GET / HTTP/1.1\nHost: a\nUpgrade: h2c\nConnection: Upgrade\n\n",
    "HEAD /up/ HTTP/1.1\nHost: a\n\n",
    "HEAD /x.txt HTTP/1.0\n\n",
    "GET / HTTP/1\nHost: a\n\n",
    "GET / HTTP/1.10\nHost: a\n\n",
    "GET / HTTP/01.1\nHost: a\n\n",
    "GET / http/1.1\nHost: a\n\n",
    "\x16\x03\x01\x02\x00",
    "PRI * HTTP/2.0\n\nSM\n\n",
    "GET / HTTP/1.1\nHost: a\nA: 1\nB: 2\nC: 3\nD: 4\n\n",
    "GET /\\x HTTP/1.1\nHost: a\n\n",
    "GET /x.txt?%zz HTTP/1.1\nHost: a\n\n",
    "GET //x.txt HTTP/1.1\nHost: a\n\n",
    "GET /%2e%2e/x HTTP/1.1\nHost: a\n\n",
    "GET /x.txt%20 HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\nHost: a\nRange: bytes=0-1\nRange: bytes=1-2\n\n",
    "GET / HTTP/1.1\nHost: a\nCookie: a=1\nCookie: b=2\n\n",
    "GET / HTTP/1.1\nHost: a\nIf-Modified-Since: x\nIf-Modified-Since: y\n\n",
    "GET / HTTP/1.1\nHost: localhost:0\n\n",
    "GET / HTTP/1.1\nHost: a:99999\n\n",
    "GET / HTTP/1.1\nHost: a:b\n\n",
];

impl Generator for Conversations {
    fn area(&self) -> &'static str {
        "conversations"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let text = format!(
            "server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n{}\nlocation /up/ {{ proxy_pass http://%%UP0%%; }}\n\
             location /r/ {{ return 200 \"$request_method $uri $http_x_a $http_host $host $content_length\"; }}\nlocation = /big.html {{ }} }}\n",
            dice.some(SWITCHES, 3).join("\n"),
        );
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/index.html", "index\n"),
                file("html/x.txt", "0123456789\n"),
                file("html/big.html", "error page\n"),
            ],
            upstreams: vec![upstream(dice, false)],
            ..Case::default()
        };
        for connection in 0..dice.between(1, 4) {
            case.talk.push(Step::Connect {
                connection,
                port: 0,
            });
            converse(dice, connection, &mut case.talk);
        }
        case
    }
}

fn converse(dice: &mut Dice, connection: usize, talk: &mut Vec<Step>) {
    match dice.below(4) {
        // A head as it is, and a second one behind it, so that it shows what was left of the first.
        0 | 1 => {
            let first = dice.word(HEADS).replace('\n', "\r\n");
            let second = "GET /r/second HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            let send = |text: String| Step::Send {
                connection,
                bytes: Content::new(text),
            };
            // In one piece or behind the answer to the first: else it is chance whether one read finds both.
            if dice.chance(1, 2) {
                talk.push(send(format!("{first}{second}")));
            } else {
                talk.push(send(first.clone()));
                talk.push(Step::Read { connection });
                talk.push(send(second.to_owned()));
            }
            // Which comes first, the end of what the client sends or an answer from behind, is chance.
            if first.contains("/up/") {
                talk.push(Step::Read { connection });
                talk.push(Step::Read { connection });
            } else {
                talk.push(Step::Half { connection });
                talk.push(Step::Rest { connection });
            }
        }
        // Several requests before the first answer.
        2 => {
            let count = dice.between(2, 4);
            for _ in 0..count {
                let target = dice.word(&["/", "/x.txt", "/up/", "/r/", "/none", "/r/a?b"]);
                let mut request = request(dice, target, 2);
                request.version = "HTTP/1.1".to_owned();
                if dice.chance(1, 3) {
                    request.method = "POST".to_owned();
                    request.body = body(dice);
                }
                talk.push(Step::Request {
                    connection,
                    request,
                });
            }
            talk.extend((0..count).map(|_| Step::Read { connection }));
        }
        // A request in pieces.
        _ => {
            let target = dice.word(&["/x.txt", "/up/", "/r/x"]);
            let mut request = Request::new("POST", target);
            request.body = body(dice);
            let bytes = request.bytes();
            let at = dice.below(bytes.len());
            for piece in [&bytes[..at], &bytes[at..]] {
                talk.push(Step::Send {
                    connection,
                    bytes: Content::new(piece),
                });
                talk.push(Step::Pause(3));
            }
            talk.push(Step::Read { connection });
        }
    }
}
