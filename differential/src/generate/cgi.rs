//! Answers of applications as they come on the wire: records of FastCGI in every order, and heads of CGI that are odd.

use crate::case::{Act, Body, Case, Content, Protocol, Request, Upstream};
use crate::random::Dice;
use crate::side::gateway::RAW;

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Cgi;

const SWITCHES: &[&str] = &[
    "P_buffering off;",
    "P_keep_conn on;",
    "P_intercept_errors on; error_page 404 500 502 /error.html;",
    "error_page 502 =200 /error.html;",
    "P_buffer_size 256;",
    "P_next_upstream invalid_header error;",
    "P_catch_stderr wrong;",
    "P_pass_header Status;",
    "P_hide_header X-A;",
    "P_ignore_headers X-Accel-Redirect;",
    "P_store %%OWN%%/stored;",
    "P_cache off;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "charset utf-8;",
    "add_header X-S \"$upstream_status $upstream_http_x_a $sent_http_location\" always;",
    "expires 1h;",
    "sub_filter line LINE;",
    "ssi on; ssi_types *;",
    "max_ranges 0;",
    "P_force_ranges on;",
    "chunked_transfer_encoding off;",
    "default_type text/x-default;",
    "P_request_buffering off;",
    "P_pass_request_body off;",
    "P_limit_rate 100m;",
    "P_max_temp_file_size 0;",
    "absolute_redirect off;",
    "P_ignore_headers Set-Cookie Vary;",
];

/// Lines of heads, with the ends that they have.
const LINES: &[&str] = &[
    "Status: 200 OK\r\n",
    "Status: 404\r\n",
    "status:404 Not Found\r\n",
    "Status: 302 Found\r\n",
    "Status: 99\r\n",
    "Status: 1000 x\r\n",
    "Status: 200OK\r\n",
    "Status:\r\n",
    "Status: 500 a b c\n",
    "Status: 304\r\n",
    "Status: 204\r\n",
    "Status: 100 Continue\r\n",
    "Status: 103\r\n",
    "Status: 101\r\n",
    "Status: 0200 OK\r\n",
    "Status: 600 x\r\n",
    "Content-Type: text/html\r\n",
    "content-type:text/plain\n",
    "Content-Type: text/html; charset=koi8-r\r\n",
    "Content-Type:\r\n",
    "CONTENT-TYPE: TEXT/HTML\r\n",
    "Content-Length: 9\r\n",
    "Content-Length: 4\r\n",
    "Content-Length: 90\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 9, 9\r\n",
    "content_length: 9\r\n",
    "Location: /inside/x.txt\r\n",
    "Location: http://o.example/\r\n",
    "Location: //o/x\r\n",
    "Location: x\r\n",
    "Location:\r\n",
    "Location: /o/x\n",
    "X-A: 1\r\n",
    "X-A: 2\r\n",
    "X-A:\tt \r\n",
    "X A: 1\r\n",
    "X_A: 1\r\n",
    ": v\r\n",
    "no colon\r\n",
    "X-F: a\r\n folded\r\n",
    "X-N: a\0b\r\n",
    "X-C: a\rb\r\n",
    "X-8: \u{e9}\r\n",
    "Set-Cookie: a=b\r\n",
    "Set-Cookie: c=d\n",
    "X-Accel-Redirect: /inside/x.txt\r\n",
    "X-Accel-Redirect: @n\r\n",
    "X-Accel-Redirect: /none\r\n",
    "X-Accel-Charset: koi8-r\r\n",
    "X-Accel-Expires: 5\r\n",
    "X-Accel-Buffering: no\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "Date: x\r\n",
    "Server: app\r\n",
    "ETag: \"x\"\r\n",
    "Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
    "Expires: 0\r\n",
    "Cache-Control: no-store\r\n",
    "WWW-Authenticate: Basic realm=\"x\"\r\n",
    "Content-Encoding: gzip\r\n",
    "Accept-Ranges: bytes\r\n",
    "Content-Range: bytes 0-8/9\r\n",
    "Vary: X\r\n",
    "Link: </a>\r\n",
    "Refresh: 5; url=/x\r\n",
    "Keep-Alive: 5\r\n",
    "Trailer: X\r\n",
    "Upgrade: x\r\n",
];

const BODIES: &[&str] = &[
    "line one\n",
    "line one\n",
    "line one\n",
    "",
    "\r\n",
    "<!--# echo var=\"uri\" -->",
    "line one and more\n",
];

impl Generator for Cgi {
    fn area(&self) -> &'static str {
        "cgi"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let (name, protocol) = *dice.pick(&[
            ("fastcgi", Protocol::FastCgi),
            ("fastcgi", Protocol::FastCgi),
            ("fastcgi", Protocol::FastCgi),
            ("uwsgi", Protocol::Uwsgi),
            ("scgi", Protocol::Scgi),
        ]);
        let own = |line: &&str| {
            protocol == Protocol::FastCgi
                || !(line.contains("keep_conn") || line.contains("catch_stderr"))
        };
        let lines: Vec<&str> = dice.some(SWITCHES, 4).into_iter().filter(own).collect();
        let text = format!(
            "server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n\
             location / {{ P_pass %%UP0%%; P_param REQUEST_METHOD $request_method; P_param CONTENT_LENGTH $content_length; {} }}\n\
             location = /error.html {{ }}\nlocation /inside/ {{ internal; }}\nlocation @n {{ return 200 named; }}\nlocation /o/ {{ return 200 other; }} }}\n",
            lines.join("\n")
        );
        let mut case = Case {
            http: tree(&text.replace("P_", &format!("{name}_"))),
            files: vec![
                file("html/error.html", "error page\n"),
                file("html/inside/x.txt", "inside x\n"),
            ],
            upstreams: vec![Upstream {
                protocol,
                answers: (0..dice.between(1, 3))
                    .map(|_| answer(dice, protocol))
                    .collect(),
            }],
            ..Case::default()
        };
        for _ in 0..dice.between(2, 4) {
            let mut asked = Request::new(
                dice.word(&["GET", "GET", "GET", "HEAD", "POST"]),
                dice.word(&["/", "/x.php", "/x.php?a=b"]),
            );
            if asked.method == "POST" {
                asked.body = Body::Length(Content::repeated("content ", *dice.pick(&[1, 5000])));
            }
            let fields = [
                ("Range", "bytes=0-3"),
                ("If-None-Match", "\"x\""),
                ("Accept-Encoding", "gzip"),
                ("Proxy", "x"),
                ("X-A", "1"),
            ];
            if dice.chance(1, 3) {
                let (name, value) = *dice.pick(&fields);
                asked = asked.with(name, value);
            }
            case.ask(asked);
        }
        case
    }
}

fn head(dice: &mut Dice, is_fastcgi: bool) -> String {
    let mut head = String::new();
    if !is_fastcgi && dice.chance(1, 3) {
        head.push_str(dice.word(&[
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.0 404 x\r\n",
            "HTTP/1.1 302\r\n",
            "HTTP/2 200\r\n",
            "HTTP/1.1 abc\r\n",
            "HTTP 200\r\n",
        ]));
    }
    for _ in 0..dice.between(0, 4) {
        head.push_str(dice.word(LINES));
    }
    if dice.chance(1, 2) && !head.to_ascii_lowercase().contains("content-type") {
        head.push_str("Content-Type: text/html\r\n");
    }
    head + dice.word(&["\r\n", "\r\n", "\r\n", "\n", ""])
}

fn answer(dice: &mut Dice, protocol: Protocol) -> Vec<Act> {
    let is_fastcgi = protocol == Protocol::FastCgi;
    let text = head(dice, is_fastcgi) + dice.word(BODIES);
    if !is_fastcgi || dice.chance(1, 4) {
        let mut acts = vec![Act::Send(Content::new(text))];
        if dice.chance(1, 6) {
            acts.push(dice.pick(&[Act::Close, Act::Reset]).clone());
        }
        return acts;
    }
    let mut records = Vec::new();
    if dice.chance(1, 4) {
        records.extend(record(7, 1, b"PHP message: before", dice.below(9)));
    }
    // A head may end within any record.
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let most = *dice.pick(&[1, 7, 20, 100, 1000]);
        let (part, after) = rest.split_at(dice.between(1, most).min(rest.len()));
        records.extend(record(6, 1, part, *dice.pick(&[0, 0, 0, 3, 8, 255])));
        if dice.chance(1, 12) {
            records.extend(odd(dice));
        }
        rest = after;
    }
    if dice.chance(1, 2) {
        records.extend(record(6, 1, b"", 0));
    }
    if dice.chance(1, 6) {
        records.extend(record(7, 1, b"wrong after all\n", 0));
    }
    let end = *dice.pick(&[
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 3, 0, 0, 0],
    ]);
    match dice.below(8) {
        0 => {}
        1 => records.extend(record(3, 1, &end[..4], 0)),
        2 => {
            records.extend(record(3, 1, &end, 0));
            records.extend(record(6, 1, b"behind the end", 0));
        }
        _ => records.extend(record(3, 1, &end, *dice.pick(&[0, 0, 8]))),
    }
    let raw = |bytes: &[u8]| Act::Send(Content::new([&[RAW], bytes].concat()));
    let mut acts = vec![raw(&records)];
    if dice.chance(1, 4) && records.len() > 2 {
        let (first, rest) = records.split_at(dice.between(1, records.len() - 1));
        acts = vec![raw(first), Act::Pause(10), raw(rest)];
    }
    acts.push(dice.pick(&[Act::Close, Act::Close, Act::Reset]).clone());
    acts
}

/// A record: its type, its request, its content and how much is put behind that.
fn record(kind: u8, request: u16, content: &[u8], padding: usize) -> Vec<u8> {
    let length = u16::try_from(content.len())
        .unwrap_or(u16::MAX)
        .to_be_bytes();
    let request = request.to_be_bytes();
    let padding = u8::try_from(padding).unwrap_or(u8::MAX);
    let mut bytes = vec![
        1, kind, request[0], request[1], length[0], length[1], padding, 0,
    ];
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len() + usize::from(padding), b'p');
    bytes
}

/// A record that is not to be there.
fn odd(dice: &mut Dice) -> Vec<u8> {
    match dice.below(6) {
        0 => record(7, 1, b"PHP message: within", 2),
        1 => record(7, 1, b"", 0),
        2 => record(6, 2, b"of another request", 0),
        3 => record(11, 0, b"\x0c\0\0\0\0\0\0\0", 0),
        4 => {
            let mut record = record(6, 1, b"of version 2", 0);
            record[0] = 2;
            record
        }
        _ => record(6, 1, b"", 0),
    }
}
