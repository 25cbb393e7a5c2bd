//! HTTP/2 without TLS: what other areas ask by HTTP/1, several requests at a time, small windows, and frames that are wrong.

use crate::case::{Body, Case, Content, Request, Step};
use crate::random::Dice;

use super::pieces::{body, file, request, upstream};
use super::{Generator, tree};

pub(super) struct Http2;

const SWITCHES: &[&str] = &[
    "gzip on; gzip_types *; gzip_min_length 0;",
    "add_header X-A $http2;",
    "add_header X-B $server_protocol always;",
    "add_trailer X-T $request_length;",
    "expires 1h;",
    "etag off;",
    "client_max_body_size 10;",
    "client_body_buffer_size 16;",
    "proxy_request_buffering off;",
    "proxy_buffering off;",
    "error_page 404 413 =200 /page.html;",
    "error_page 502 /page.html;",
    "http2_chunk_size 100;",
    "http2_body_preread_size 0;",
    "http2_body_preread_size 1000;",
    "keepalive_requests 2;",
    "keepalive_timeout 0;",
    "large_client_header_buffers 2 512;",
    "limit_except GET { deny all; }",
    "lingering_close off;",
    "underscores_in_headers on;",
    "ignore_invalid_headers off;",
    "max_ranges 1;",
    "server_tokens on;",
    "charset utf-8;",
];

/// Frames that a server must answer, or refuse, or take without a word.
const FRAMES: &[&[u8]] = &[
    // PING, and one that is too short.
    b"\0\0\x08\x06\0\0\0\0\0abcdefgh",
    b"\0\0\x07\x06\0\0\0\0\0abcdefg",
    // DATA for a stream that nobody opened.
    b"\0\0\x01\0\0\0\0\0\x09a",
    // SETTINGS of an odd length, with a stream, with a window that is too large.
    b"\0\0\x05\x04\0\0\0\0\0abcde",
    b"\0\0\0\x04\0\0\0\0\x01",
    b"\0\0\x06\x04\0\0\0\0\0\0\x04\xff\xff\xff\xff",
    // WINDOW_UPDATE by nothing, and beyond the largest.
    b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0",
    b"\0\0\x04\x08\0\0\0\0\0\x7f\xff\xff\xff",
    // A kind that nobody knows, PUSH_PROMISE, CONTINUATION of nothing.
    b"\0\0\x01\x77\0\0\0\0\0a",
    b"\0\0\x04\x05\x04\0\0\0\x01\0\0\0\x02",
    b"\0\0\0\x09\x04\0\0\0\x01",
    // RST_STREAM of a stream that is idle, PRIORITY, GOAWAY.
    b"\0\0\x04\x03\0\0\0\0\x09\0\0\0\x08",
    b"\0\0\x05\x02\0\0\0\0\x01\0\0\0\0\x10",
    b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0",
    // HEADERS on an even stream, and a block that is none.
    b"\0\0\x01\x01\x05\0\0\0\x02\x82",
    b"\0\0\x01\x01\x05\0\0\0\x01\xff",
    // A frame larger than allowed.
    b"\0\x50\0\0\0\0\0\0\x01",
];

impl Generator for Http2 {
    fn area(&self) -> &'static str {
        "http2"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let some = |dice: &mut Dice, most| dice.some(SWITCHES, most).join("\n");
        let server = some(dice, 3).replace("limit_except GET { deny all; }", "");
        let inside = some(dice, 2)
            .replace("http2_body_preread_size 0;", "")
            .replace("http2_body_preread_size 1000;", "");
        let text = format!(
            "server {{ listen %%PORT0%% http2; server_name localhost; root %%DIR%%/html;\n{server}\n\
             location /up/ {{ {inside}\nproxy_pass http://%%UP0%%; }}\n\
             location /r/ {{ return 200 \"$request_method $uri $http_host $host $content_length $http_cookie\"; }}\n\
             location = /page.html {{ }} location /moved {{ return 301 /r/; }} }}\n",
            inside = inside
                .replace("large_client_header_buffers 2 512;", "")
                .replace("ignore_invalid_headers off;", "")
                .replace("underscores_in_headers on;", ""),
        );
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/index.html", "index\n"),
                file("html/x.txt", "0123456789\n"),
                file("html/page.html", "a page\n"),
                crate::case::File {
                    path: "html/big.txt".to_owned(),
                    content: Content::repeated("0123456789abcdef", 5000),
                },
            ],
            upstreams: vec![upstream(dice, true)],
            ..Case::default()
        };
        for connection in 0..dice.between(1, 3) {
            let window = *dice.pick(&[65535, 65535, 1 << 20, 100]);
            case.talk.push(Step::Http2 {
                connection,
                port: 0,
                window,
            });
            // Streams with content have to wait for such a setting.
            case.talk
                .extend(server.contains("preread").then_some(Step::Look {
                    connection,
                    stream: 0,
                    bytes: 0,
                }));
            converse(dice, connection, &mut case.talk);
        }
        case
    }
}

fn converse(dice: &mut Dice, connection: usize, talk: &mut Vec<Step>) {
    // What may end the connection has one of its own, with one request, so that nothing else is lost with it.
    if dice.chance(1, 5) {
        let mut request = Request::new("GET", "/r/x");
        match dice.below(3) {
            0 => {
                let bytes = Content::new(dice.pick(FRAMES));
                talk.push(Step::Send { connection, bytes });
            }
            1 => {
                request.method = "POST".to_owned();
                let trailers = vec![("X-Trailer".to_owned(), "t".to_owned())];
                request.body = Body::Chunked(vec![Content::new("abc")], trailers);
            }
            _ => {
                let field = dice.pick(&[("Connection", "keep-alive"), ("TE", "gzip")]);
                request = request.with(field.0, field.1);
            }
        }
        talk.push(Step::Request {
            connection,
            request,
        });
        talk.push(Step::Read { connection });
        return;
    }
    let mut unread = 0;
    for _ in 0..dice.between(1, 4) {
        let request = asked(dice);
        // Which of two streams a server behind hears of first is chance.
        let is_alone = request.target.starts_with("/up/") || dice.chance(1, 2);
        let reads = if is_alone {
            std::mem::take(&mut unread)
        } else {
            0
        };
        talk.extend((0..reads).map(|_| Step::Read { connection }));
        talk.push(Step::Request {
            connection,
            request,
        });
        unread += 1;
        if is_alone {
            talk.push(Step::Read { connection });
            unread = 0;
        }
    }
    talk.extend((0..unread).map(|_| Step::Read { connection }));
}

fn asked(dice: &mut Dice) -> Request {
    let target = dice.word(&[
        "/", "/x.txt", "/big.txt", "/up/", "/up/a?b", "/r/x", "/none", "/moved", "/r/%41",
    ]);
    let mut request = request(dice, target, 3);
    // Fields of a connection have no place here.
    request.fields.retain(|(name, _)| name != "Connection");
    if dice.chance(1, 6) {
        request.method = "POST".to_owned();
        request.body = body(dice);
    }
    if let Body::Chunked(_, trailers) = &mut request.body {
        trailers.clear();
    }
    if matches!(&request.body, Body::Length(content) if content.len() > 60_000) {
        request.body = Body::None;
    }
    request
}
