//! `slice`: responses in parts of which one fails, changes or is another; ranges of them, with a cache and without.

use crate::case::{Act, Case, Content, Protocol, Request, Upstream};
use crate::random::Dice;

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Slices;

/// The content of the origin: three slices of ten bytes, the last one of six.
const WHOLE: &str = "0123456789abcdefghijKLMNOP";
const SLICE: usize = 10;

const SWITCHES: &[&str] = &[
    "proxy_cache off;",
    "proxy_cache_valid 200 206 1h;",
    "proxy_buffering off;",
    "proxy_force_ranges on;",
    "max_ranges 0;",
    "max_ranges 1;",
    "add_header X-S $upstream_cache_status;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "proxy_intercept_errors on; error_page 404 416 500 502 /error.html;",
    "error_page 502 =200 /error.html;",
    "sub_filter a A;",
    "etag off;",
    "expires 1h;",
    "proxy_hide_header Content-Range;",
    "proxy_next_upstream off;",
    "if_modified_since off;",
    "charset utf-8;",
    "proxy_ignore_headers Cache-Control;",
    "proxy_cache_use_stale error http_500;",
    "proxy_cache_min_uses 2;",
    "proxy_cache_lock on;",
];

impl Generator for Slices {
    fn area(&self) -> &'static str {
        "slices"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let key = dice.word(&[
            "$uri$slice_range",
            "$uri$slice_range",
            "$uri$is_args$args$slice_range",
        ]);
        let cache = match dice.chance(2, 3) {
            true => format!("proxy_cache c%%N%%; proxy_cache_key {key};"),
            false => String::new(),
        };
        let text = format!(
            "proxy_cache_path %%OWN%%/cache keys_zone=c%%N%%:1m inactive=1h;\nserver {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n\
             location / {{ slice {}; {cache} {} proxy_set_header Range $slice_range; {} proxy_pass http://%%UP0%%; }}\nlocation = /error.html {{ slice 0; }} }}\n",
            dice.word(&["10", "10", "10", "0"]),
            dice.word(&["proxy_cache_valid any 1h;", "proxy_cache_valid 206 1h;", ""]),
            dice.some(SWITCHES, 3).join("\n"),
        );
        let answers = match dice.chance(1, 3) {
            true => vec![part(dice, 0)],
            false => (0..6).map(|i| part(dice, i % 3)).collect(),
        };
        let mut case = Case {
            http: tree(&text),
            files: vec![file("html/error.html", "error page\n")],
            upstreams: vec![Upstream {
                protocol: Protocol::Http,
                answers,
            }],
            ..Case::default()
        };
        for _ in 0..dice.between(1, 4) {
            let mut asked = Request::new(
                dice.word(&["GET", "GET", "GET", "HEAD"]),
                dice.word(&["/x", "/x", "/y"]),
            );
            if dice.chance(1, 2) {
                let range = dice.word(&[
                    "bytes=0-3",
                    "bytes=10-",
                    "bytes=5-14",
                    "bytes=20-25",
                    "bytes=-3",
                    "bytes=25-",
                    "bytes=26-",
                    "bytes=0-0,12-13",
                    "bytes=12-13",
                    "bytes=8-22",
                    "bytes=30-",
                    "x=1",
                ]);
                asked = asked.with("Range", range);
            }
            if dice.chance(1, 5) {
                let fields = [
                    ("If-Range", "\"v1\""),
                    ("If-Range", "\"v2\""),
                    ("If-None-Match", "\"v1\""),
                    ("Accept-Encoding", "gzip"),
                    ("If-Match", "\"v2\""),
                ];
                let (name, value) = *dice.pick(&fields);
                asked = asked.with(name, value);
            }
            case.ask(asked);
        }
        case
    }
}

/// The answer with a slice, mostly the one that is asked for if all goes well.
fn part(dice: &mut Dice, number: usize) -> Vec<Act> {
    let number = if dice.chance(1, 10) {
        dice.below(4)
    } else {
        number
    };
    let from = (number * SLICE).min(WHOLE.len() - 1);
    let to = (from + SLICE).min(WHOLE.len());
    let body = &WHOLE[from..to];
    let tag = dice.word(&[
        "\"v1\"", "\"v1\"", "\"v1\"", "\"v1\"", "\"v1\"", "\"v2\"", "W/\"v1\"",
    ]);
    let range = match dice.below(16) {
        0 => "bytes */26".to_owned(),
        1 => format!("bytes {from}-{}/*", to - 1),
        2 => format!("bytes {from}-{}/27", to - 1),
        3 => format!("bytes {}-{}/26", from + 1, to),
        _ => format!("bytes {from}-{}/26", to - 1),
    };
    let mut fields = format!("ETag: {tag}\r\n");
    for field in dice.some(
        &[
            "Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
            "Cache-Control: max-age=60\r\n",
            "Accept-Ranges: bytes\r\n",
            "Content-Type: text/plain\r\n",
            "X-A: 1\r\n",
            "Set-Cookie: a=b\r\n",
            "Cache-Control: no-store\r\n",
            "Vary: X\r\n",
        ],
        2,
    ) {
        fields.push_str(field);
    }
    let length = format!("Content-Length: {}\r\n", body.len());
    let text = match dice.below(22) {
        0 => "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops".to_owned(),
        1 => "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno".to_owned(),
        2 => format!(
            "HTTP/1.1 416 Range\r\nContent-Range: bytes */26\r\n{fields}Content-Length: 0\r\n\r\n"
        ),
        3 => format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 26\r\n\r\n{WHOLE}"),
        4 => format!(
            "HTTP/1.1 206 Part\r\n{fields}Content-Range: {range}\r\n{length}\r\n{}",
            &body[..body.len().min(3)]
        ),
        5 => return vec![Act::Close],
        6 => format!("HTTP/1.1 206 Part\r\n{fields}{length}\r\n{body}"),
        7 => {
            return vec![
                Act::Send(Content::new(format!(
                    "HTTP/1.1 206 Part\r\n{fields}Content-Range: {range}\r\n\r\n{body}"
                ))),
                Act::Close,
            ];
        }
        8 => format!(
            "HTTP/1.1 206 Part\r\n{fields}Content-Range: {range}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        ),
        9 => "HTTP/1.1 302 F\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n".to_owned(),
        _ => {
            return vec![Act::Send(Content::new(format!(
                "HTTP/1.1 206 Part\r\n{fields}Content-Range: {range}\r\n{length}\r\n{body}"
            )))];
        }
    };
    vec![Act::Send(Content::new(text)), Act::Close]
}
