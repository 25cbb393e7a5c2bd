//! HTTP/2 frame by frame: windows, header blocks in pieces, padding, content that is not what was announced, resets, GOAWAY,
//! priorities, tables, and what is wrong.
//!
//! Each case has one matter, so that what ends its connection takes nothing else with it.

mod connections;
mod messages;

use std::cell::RefCell;

use crate::case::{Act, Case, Content, Protocol, Step, Upstream};
use crate::random::Dice;
use crate::side::http2::{END_HEADERS, END_STREAM, HEADERS, SETTINGS, WINDOW, field};

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Frames;

const SWITCHES: &[&str] = &[
    "http2_chunk_size 1k;",
    "http2_chunk_size 100;",
    "output_buffers 1 1k;",
    "postpone_output 0;",
    "sendfile on;",
    "aio threads;",
    "add_header X-A $http2;",
    "add_trailer X-T $status;",
    "expires 1h;",
    "sub_filter 0123 4567; sub_filter_once off; sub_filter_types *;",
    "ssi on; ssi_types *;",
    "add_after_body /r/after; addition_types *;",
    "client_max_body_size 10;",
    "client_max_body_size 0;",
    "client_body_buffer_size 16;",
    "client_body_in_file_only clean;",
    "error_page 400 404 413 =200 /page.html;",
];

const BEHIND: &[&str] = &[
    "proxy_request_buffering off;",
    "proxy_buffering off;",
    "proxy_buffers 2 1k; proxy_buffer_size 1k; proxy_busy_buffers_size 1k;",
    "proxy_max_temp_file_size 0;",
    "fastcgi_request_buffering off;",
    "fastcgi_buffering off;",
    "proxy_ignore_client_abort on;",
    "proxy_force_ranges on;",
];

const SERVER: &[&str] = &[
    "http2_max_concurrent_streams 1;",
    "http2_max_concurrent_streams 2;",
    "keepalive_requests 2;",
    "large_client_header_buffers 2 512;",
    "client_header_buffer_size 256;",
    "ignore_invalid_headers off;",
    "underscores_in_headers on;",
    "merge_slashes off;",
];

/// What the server of gRPC answers.
const GRPC: &[&str] = &[
    "HEADERS\n:status: 200\ncontent-type: application/grpc",
    "DATA\n\0\0\0\0\x03abc",
    "HEADERS end\ngrpc-status: 0",
];

/// How long the content is that does not fit into a window.
const BIG: usize = 80_000;

impl Generator for Frames {
    fn area(&self) -> &'static str {
        "frames"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let some = |dice: &mut Dice, most| dice.some(SWITCHES, most).join("\n");
        let server = dice.some(SERVER, 2).join("\n");
        let (files, behind) = (some(dice, 2), dice.some(BEHIND, 2).join("\n"));
        let shown = "$request_method $uri $http_host $host $content_length $http_cookie $http_x_a $scheme $http2";
        let text = format!(
            "server {{ listen %%PORT0%% http2; server_name localhost; root %%DIR%%/html;\n{server}\n\
             location / {{ {files} }}\n\
             location /up/ {{ {behind}\nproxy_pass http://%%UP0%%; }}\n\
             location /fast/ {{ {behind}\nfastcgi_pass %%UP1%%; fastcgi_param REQUEST_METHOD $request_method; \
             fastcgi_param CONTENT_LENGTH $content_length; }}\n\
             location /grpc/ {{ grpc_pass grpc://%%UP2%%; }}\n\
             location /r/ {{ return 200 \"{shown}\"; }}\n\
             location = /page.html {{ }} }}\n",
        );
        let answer =
            |head: &str, content: Content| vec![Act::Send(Content::new(head)), Act::Send(content)];
        let content = || Content::repeated("0123456789abcdef", BIG / 16);
        let upstream = |protocol, acts| Upstream {
            protocol,
            answers: vec![acts],
        };
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/index.html", "index\n"),
                file("html/page.html", "a page\n"),
                file("html/x.txt", "0123456789\n"),
                crate::case::File {
                    path: "html/big.txt".to_owned(),
                    content: content(),
                },
            ],
            upstreams: vec![
                upstream(
                    Protocol::Http,
                    answer(
                        "HTTP/1.1 200 OK\r\nContent-Length: 80000\r\nX-A: b\r\n\r\n",
                        content(),
                    ),
                ),
                upstream(
                    Protocol::FastCgi,
                    answer("Status: 201\r\nX-A: b\r\n\r\n", content()),
                ),
                Upstream {
                    protocol: Protocol::Grpc,
                    answers: vec![
                        GRPC.iter()
                            .map(|text| Act::Send(Content::new(text)))
                            .collect(),
                    ],
                },
            ],
            ..Case::default()
        };
        let mut script = Script {
            connection: 0,
            dice: RefCell::new(dice),
            talk: &mut case.talk,
            next: 1,
            is_limited: server.contains("http2_max_concurrent_streams"),
        };
        script.play();
        case
    }
}

/// A connection that is written.
struct Script<'a> {
    connection: usize,
    dice: RefCell<&'a mut Dice>,
    talk: &'a mut Vec<Step>,
    next: u32,
    /// What is open at a time is limited to few.
    is_limited: bool,
}

/// The block of a request.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        field(name, value, &mut out);
    }
    out
}

fn get(path: &str) -> Vec<u8> {
    usual("GET", path, &[])
}

fn usual(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut out = block(&[
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ]);
    out.extend(block(more));
    out
}

impl Script<'_> {
    fn play(&mut self) {
        let matters: &[fn(&mut Self)] = &[
            Self::windows,
            Self::windows,
            Self::too_wide,
            Self::pieces,
            Self::padding,
            Self::content,
            Self::content,
            Self::uploads,
            Self::resets,
            Self::closed,
            Self::goaway,
            Self::settings,
            Self::priorities,
            Self::many,
            Self::heads,
            Self::tables,
        ];
        self.choose(matters)(self);
    }

    fn choose<T: Copy>(&self, from: &[T]) -> T {
        *self.dice.borrow_mut().pick(from)
    }

    fn word<'w>(&self, from: &[&'w str]) -> &'w str {
        self.dice.borrow_mut().word(from)
    }

    fn below(&self, bound: usize) -> usize {
        self.dice.borrow_mut().below(bound)
    }

    fn between(&self, low: usize, high: usize) -> usize {
        self.dice.borrow_mut().between(low, high)
    }

    fn chance(&self, times: usize, of: usize) -> bool {
        self.dice.borrow_mut().chance(times, of)
    }

    fn open(&mut self, window: u32) {
        self.talk.push(Step::Http2 {
            connection: self.connection,
            port: 0,
            window,
        });
        // The server's settings are known and acknowledged from here on.
        self.look(0, 0);
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) {
        self.content_frame(kind, flags, stream, Content::new(payload));
    }

    fn content_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: Content) {
        self.talk.push(Step::Frame {
            connection: self.connection,
            kind,
            flags,
            stream,
            payload,
        });
    }

    /// A whole request on the next stream.
    fn ask(&mut self, path: &str) -> u32 {
        let stream = self.stream();
        self.frame(HEADERS, END_HEADERS | END_STREAM, stream, get(path));
        stream
    }

    fn stream(&mut self) -> u32 {
        let stream = self.next;
        self.next += 2;
        stream
    }

    fn read(&mut self) {
        self.talk.push(Step::Read {
            connection: self.connection,
        });
    }

    fn look(&mut self, stream: u32, bytes: usize) {
        self.talk.push(Step::Look {
            connection: self.connection,
            stream,
            bytes,
        });
    }

    fn hold(&mut self) {
        self.talk.push(Step::Hold {
            connection: self.connection,
        });
    }

    fn window(&mut self, stream: u32, by: u32) {
        self.frame(WINDOW, 0, stream, by.to_be_bytes());
    }

    fn set(&mut self, number: u8, value: u32) {
        let mut payload = vec![0, number];
        payload.extend(value.to_be_bytes());
        self.frame(SETTINGS, 0, 0, payload);
    }
}
