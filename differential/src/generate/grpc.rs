//! gRPC: what a server behind is asked over HTTP/2, its frames and trailers, and those that are wrong.

use crate::case::{Act, Body, Case, Content, Protocol, Request, Step, Upstream};
use crate::random::Dice;

use super::pieces::{RESPONSE_FIELDS, file, request};
use super::{Generator, tree};

pub(super) struct Grpc;

const SWITCHES: &[&str] = &[
    "grpc_set_header X-A $http_x_a;",
    "grpc_set_header X-B b;",
    "grpc_set_header TE '';",
    "grpc_set_header Host other.example;",
    "grpc_set_header X-Empty '';",
    "grpc_set_header Content-Length '';",
    "grpc_set_header X-Real-IP $remote_addr;",
    "grpc_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    "grpc_hide_header X-A;",
    "grpc_hide_header Set-Cookie;",
    "grpc_pass_header Server;",
    "grpc_pass_header Date;",
    "grpc_pass_header X-Accel-Redirect;",
    "grpc_ignore_headers X-Accel-Redirect X-Accel-Charset;",
    "grpc_intercept_errors on;",
    "error_page 404 500 502 503 504 /error.html;",
    "error_page 502 504 = @unavailable;",
    "error_page 404 =200 @unavailable;",
    "error_page 401 403 405 413 /error.html;",
    "grpc_next_upstream error timeout http_500 http_404;",
    "grpc_next_upstream off;",
    "grpc_next_upstream error invalid_header non_idempotent;",
    "grpc_next_upstream error invalid_header http_503;",
    "grpc_next_upstream_tries 1;",
    "grpc_read_timeout 600ms;",
    "grpc_connect_timeout 1s;",
    "grpc_send_timeout 1s;",
    "grpc_buffer_size 512;",
    "grpc_socket_keepalive on;",
    "client_max_body_size 10;",
    "client_body_buffer_size 16;",
    "add_header X-B b always;",
    "add_header X-S $upstream_status;",
    "add_trailer X-T $upstream_status;",
    "expires 1h;",
    "etag off;",
    "charset utf-8;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "default_type text/plain;",
    "limit_except POST { deny all; }",
    "if ($http_x_a) { set $v x; }",
    "if ($http_x_a) { grpc_pass %%UP1%%; }",
    "rewrite ^/p/(.*)$ /q/$1 break;",
    "chunked_transfer_encoding off;",
    "keepalive_requests 1;",
    "sub_filter hello HELLO; sub_filter_types *;",
    "max_ranges 0;",
    "if_modified_since off;",
];

const PASSES: &[&str] = &[
    "%%UP0%%",
    "grpc://%%UP0%%",
    "grpc://group%%N%%",
    "group%%N%%",
    "$scheme_%%N%%",
    "grpc://${arg_h}%%UP0%%",
];

impl Generator for Grpc {
    fn area(&self) -> &'static str {
        "grpc"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let group = dice.word(&[
            "server %%UP0%%;",
            "server %%UP0%%; server %%UP1%%;",
            "server %%UP0%%; keepalive 2;",
            "server %%UP0%%; server %%UP1%%; keepalive 2;",
            "server %%UP2%%; server %%UP0%%;",
            "server %%UP0%% max_fails=1; server %%UP1%% backup;",
        ]);
        let server = dice.some(SWITCHES, 2).join("\n");
        let server = server
            .lines()
            .filter(|line| !line.starts_with("limit_except") && !line.starts_with("if "))
            .collect::<Vec<_>>()
            .join("\n");
        let text = format!(
            "upstream group%%N%% {{ {group} }}\n\
             server {{ listen %%PORT0%% http2; listen %%PORT1%%; server_name localhost; root %%DIR%%/html;\n{server}\n\
             set $scheme_%%N%% grpc://%%UP0%%;\n\
             location / {{ grpc_pass {}; {} }}\nlocation /p/ {{ grpc_pass {}; {} }}\n\
             location = /error.html {{ }}\nlocation /inside/ {{ internal; }}\n\
             location @unavailable {{ default_type application/grpc; add_header grpc-status 14; return 204; }} }}\n",
            dice.word(PASSES),
            dice.some(SWITCHES, 3).join("\n"),
            dice.word(PASSES),
            dice.some(SWITCHES, 3).join("\n"),
        );
        let unused = Upstream {
            protocol: Protocol::Grpc,
            answers: Vec::new(),
        };
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/error.html", "error page\n"),
                file("html/inside/x.txt", "inside x\n"),
            ],
            upstreams: vec![upstream(dice, true), upstream(dice, false), unused],
            ..Case::default()
        };
        converse(dice, &mut case.talk);
        case
    }
}

fn converse(dice: &mut Dice, talk: &mut Vec<Step>) {
    for connection in 0..dice.between(1, 3) {
        let is_http2 = dice.chance(3, 4);
        talk.push(match is_http2 {
            true => Step::Http2 {
                connection,
                port: 0,
                window: *dice.pick(&[65535, 65535, 1 << 20, 100]),
            },
            false => Step::Connect {
                connection,
                port: 1,
            },
        });
        for _ in 0..dice.between(1, if is_http2 { 3 } else { 1 }) {
            let target = dice.word(&[
                "/helloworld.Greeter/SayHello",
                "/p/pkg.Service/Method",
                "/p/a%20b?c=d",
                "/p//a",
                "/x?h=",
                "/p/é",
                "/p/%2e%2e/y",
            ]);
            let mut request = match dice.chance(2, 3) {
                true => call(dice, target),
                false => request(dice, target, 2),
            };
            if is_http2 {
                // What nginx takes for an error of the connection is compared elsewhere: with it all other requests are lost.
                if let Body::Chunked(_, trailers) = &mut request.body {
                    trailers.clear();
                }
                request.fields.retain(|(name, _)| name != "Connection");
            }
            talk.push(Step::Request {
                connection,
                request,
            });
            talk.push(Step::Read { connection });
        }
    }
}

/// A request as a client of gRPC sends it.
fn call(dice: &mut Dice, target: &str) -> Request {
    let mut request = Request::new("POST", target)
        .with("Content-Type", "application/grpc")
        .with("TE", "trailers");
    for (name, value) in [
        ("grpc-timeout", "1S"),
        ("grpc-encoding", "identity"),
        ("X-A", "1"),
        ("user-agent", "grpc-go/1.60"),
        ("Cookie", "a=1"),
        ("trace-bin", "AAE="),
        ("X_under", "1"),
    ] {
        if dice.chance(1, 4) {
            request = request.with(name, value);
        }
    }
    let message = Content::new(b"\0\0\0\0\x05").and("hello", *dice.pick(&[1, 1, 1, 30, 4000]));
    request.body(match dice.below(4) {
        0 => Body::Length(message),
        1 => Body::Chunked(
            vec![message],
            vec![("X-Trailer".to_owned(), "t".to_owned())],
        ),
        _ => Body::Chunked(vec![message], Vec::new()),
    })
}

pub(super) fn upstream(dice: &mut Dice, breaks: bool) -> Upstream {
    let answers = (0..dice.between(1, 3)).map(|_| match breaks && dice.chance(1, 3) {
        true => broken(dice),
        false => answer(dice),
    });
    Upstream {
        protocol: Protocol::Grpc,
        answers: answers.collect(),
    }
}

const STATUSES: &[&str] = &[
    "200", "200", "200", "200", "200", "404", "500", "503", "204", "304", "302", "401", "206",
    "429", "413", "299",
];

/// The head of an answer, as the lines of a frame.
fn head(dice: &mut Dice) -> String {
    let status = dice.word(STATUSES);
    let mut head = format!(":status: {status}\n");
    if dice.chance(4, 5) {
        head.push_str("content-type: application/grpc\n");
    }
    let own = ["grpc-encoding: identity", "grpc-accept-encoding: gzip"];
    for field in dice.some(&own, 1) {
        head.push_str(&format!("{field}\n"));
    }
    for field in dice.some(RESPONSE_FIELDS, 3) {
        let (name, value) = field.split_once(':').unwrap_or((field, ""));
        let name = name.to_ascii_lowercase();
        let is_once = name != "content-type" || !head.contains("content-type");
        if is_once && !["status", "connection", "keep-alive", "upgrade"].contains(&name.as_str()) {
            head.push_str(&format!("{name}:{value}\n"));
        }
    }
    head
}

fn answer(dice: &mut Dice) -> Vec<Act> {
    let mut head = head(dice);
    let size = *dice.pick(&[0, 1, 1, 1, 20, 3000, 20_000]);
    let body = Content::new("").and("hello", size);
    let trailers = dice.word(&[
        "grpc-status: 0\n",
        "grpc-status: 0\ngrpc-message: ok\n",
        "grpc-status: 5\ngrpc-message: not%20found\nx-t: 1\nx-t: 2\n",
        "grpc-status: 0\nconnection: close\n",
    ]);
    let how = dice.word(&["", "", "", " split", " padded"]);
    let text = |kind: &str, rest: &str| Act::Send(Content::new(format!("{kind}\n{rest}")));
    let data = |kind: &str, body: Content| {
        let mut content = Content::new(format!("{kind}\n"));
        content.parts.extend(body.parts);
        Act::Send(content)
    };
    let has_length = dice.chance(1, 5);
    if has_length {
        head.push_str(&format!("content-length: {}\n", body.len()));
    }
    let mut acts = match dice.below(6) {
        // Trailers alone.
        0 => vec![text(&format!("HEADERS end{how}"), &(head + trailers))],
        1 => vec![text("HEADERS", &head), data("DATA end", body)],
        2 => vec![text("HEADERS", &head), text("HEADERS end", trailers)],
        3 => vec![
            text(&format!("HEADERS{how}"), &head),
            data("DATA padded", body),
            text("DATA end", ""),
        ],
        _ => vec![
            text(&format!("HEADERS{how}"), &head),
            data("DATA", body),
            text(&format!("HEADERS end{how}"), trailers),
        ],
    };
    if dice.chance(1, 6) {
        let between = dice.word(&[
            "PING",
            "SETTINGS 3=1",
            "SETTINGS 4=1000000",
            "WINDOW_UPDATE 1000 zero",
            "WINDOW_UPDATE 1000",
            "RAW\n\0\0\x01\x77\0\0\0\0\0a",
            "HEADERS\n:status: 103\nlink: </a>\n",
            "RAW\n\0\0\x05\x02\0\0\0\0\x01\0\0\0\0\x10",
        ]);
        let at = dice.below(acts.len());
        acts.insert(at, Act::Send(Content::new(between)));
    }
    if dice.chance(1, 5) {
        acts.insert(1.min(acts.len()), Act::Pause(10));
    }
    if dice.chance(1, 8) {
        acts.push(Act::Close);
    }
    acts
}

/// Answers that are no answers.
fn broken(dice: &mut Dice) -> Vec<Act> {
    let head = "HEADERS\n:status: 200\ncontent-type: application/grpc\n";
    let with = |line: &str| format!("{head}{line}\n");
    let texts: Vec<String> = match dice.below(26) {
        0 => vec!["RST_STREAM 0".into()],
        1 => vec![format!("RST_STREAM {}", dice.pick(&[1, 2, 7, 8, 11]))],
        2 => vec![head.into(), "DATA\nhello".into(), "RST_STREAM 2".into()],
        3 => vec![head.into(), "DATA\nhello".into(), "RST_STREAM 0".into()],
        4 => vec!["GOAWAY 0 0".into()],
        5 => vec![format!("GOAWAY {} 11", dice.pick(&[0, 1, 3]))],
        6 => vec!["HEADERS end\ncontent-type: text/plain\n".into()],
        7 => vec!["HEADERS end\n:status: abc\n".into()],
        8 => vec!["HEADERS end\n:status: 99\n".into()],
        9 => vec![with("X-Upper: 1"), "DATA end\nhello".into()],
        10 => vec!["DATA end\nhello".into()],
        11 => vec![with("content-length: 100"), "DATA end\nhello".into()],
        12 => vec![with("content-length: 3"), "DATA end\nhello".into()],
        13 => vec![with("content-length: x"), "DATA end\nhello".into()],
        14 => vec![head.into(), "HEADERS\ngrpc-status: 0\n".into()],
        15 => vec![
            head.into(),
            "DATA\nhello".into(),
            "HEADERS end\n:status: 200\n".into(),
        ],
        16 => vec!["RAW\nHTTP/1.1 200 OK\r\n\r\nhello".into()],
        17 => vec!["RAW\n\0\0\x01\x01\x05\0\0\0\x01\u{7f}".into()],
        18 => vec!["RAW\n\0\0\x04\x05\x04\0\0\0\x01\0\0\0\x02".into()],
        19 => vec![
            head.into(),
            "DATA end\nhello".into(),
            "DATA end\nagain".into(),
        ],
        20 => vec!["WINDOW_UPDATE 0".into()],
        21 => vec!["WINDOW_UPDATE 2147483647 zero".into()],
        22 => vec!["SETTINGS 4=4294967295".into()],
        23 => vec![":".into(), "HEADERS end\n:status: 200\n:path: /\n".into()],
        24 => vec![with("x-a"), with("x-b: 1")],
        _ => vec![head.into(), "DATA\nhello".into()],
    };
    let mut acts: Vec<Act> = texts
        .iter()
        .map(|text| Act::Send(Content::new(text)))
        .collect();
    match dice.below(5) {
        0 => acts.push(Act::Reset),
        1 => acts.push(Act::Silence),
        2 => {}
        _ => acts.push(Act::Close),
    }
    acts
}
