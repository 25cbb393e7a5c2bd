//! Caches: what is stored, for how long, under which key, and what is answered from it.
//!
//! What must tell a hit from a miss is the number in the answer: each answer of the server behind has its own. So one request
//! more or less changes all that follows, and three of four cases are plain: they leave out partial answers, conditions, other
//! methods than GET and HEAD, and `buffering off`, of which some differ by choice and the rest is still to be compared.

use crate::case::fill::find;
use crate::case::{Act, Body, Case, Content, Protocol, Request, Step, Upstream};
use crate::random::Dice;

use super::pieces::{file, request};
use super::{Generator, tree};

pub(super) struct Caches;

const SWITCHES: &[&str] = &[
    "P_cache_valid 200 1h;",
    "P_cache_valid any 1m;",
    "P_cache_valid 200 302 1h; P_cache_valid 404 1m;",
    "P_cache_valid 1h;",
    "P_cache_valid 200 1s;",
    "P_cache_key $uri;",
    "P_cache_key $host$request_uri;",
    "P_cache_key $uri$http_x_a;",
    "P_cache_bypass $http_x_a;",
    "P_cache_bypass $arg_b $cookie_a;",
    "P_no_cache $http_x_a;",
    "P_no_cache $arg_b $upstream_http_x_a;",
    "P_cache_methods GET HEAD POST;",
    "P_cache_min_uses 2;",
    "P_cache_use_stale error timeout http_500;",
    "P_cache_use_stale http_404 http_503 invalid_header;",
    "P_cache_use_stale updating; P_cache_background_update on;",
    "P_cache_revalidate on;",
    "P_cache_lock on;",
    "P_ignore_headers Cache-Control Expires;",
    "P_ignore_headers Set-Cookie;",
    "P_ignore_headers Vary X-Accel-Expires;",
    "P_hide_header Set-Cookie;",
    "P_hide_header X-A;",
    "add_header X-Cache $upstream_cache_status;",
    "add_header X-Cache $upstream_cache_status always;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "expires 1h;",
    "P_buffering off;",
    "P_intercept_errors on; error_page 404 500 /error.html;",
    "P_cache_max_range_offset 10;",
    "P_force_ranges on;",
    "etag off;",
    "charset utf-8;",
    "sub_filter line LINE;",
    "P_next_upstream off;",
    "slice 10; P_cache_key $uri$slice_range;",
    "P_pass_header Date;",
    "error_page 502 =200 /error.html;",
    "max_ranges 0;",
];

const CACHE_FIELDS: &[&str] = &[
    "Cache-Control: max-age=60",
    "Cache-Control: max-age=1",
    "Cache-Control: max-age=0",
    "Cache-Control: no-store",
    "Cache-Control: no-cache",
    "Cache-Control: private",
    "Cache-Control: s-maxage=60",
    "Cache-Control: public, max-age=10, stale-while-revalidate=30",
    "Cache-Control: max-age=1, stale-if-error=60",
    "Cache-Control: MAX-AGE=60",
    "Expires: Thu, 01 Jan 2032 00:00:00 GMT",
    "Expires: Thu, 01 Jan 1970 00:00:00 GMT",
    "Expires: 0",
    "X-Accel-Expires: 60",
    "X-Accel-Expires: 0",
    "X-Accel-Expires: @9",
    "X-Accel-Expires: off",
    "Vary: X-A",
    "Vary: *",
    "Vary: Accept-Encoding, X-A",
    "Set-Cookie: a=b",
    "ETag: \"x\"",
    "ETag: W/\"x\"",
    "Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT",
    "X-A: 1",
    "Accept-Ranges: bytes",
    "Content-Encoding: gzip",
    "Content-Type: text/html",
    "Location: /l",
    "Connection: close",
    "Pragma: no-cache",
    "Age: 5",
    "Warning: 1",
];

impl Generator for Caches {
    fn area(&self) -> &'static str {
        "cache"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let (name, protocol) = *dice.pick(&[
            ("proxy", Protocol::Http),
            ("proxy", Protocol::Http),
            ("proxy", Protocol::Http),
            ("fastcgi", Protocol::FastCgi),
            ("scgi", Protocol::Scgi),
        ]);
        let pass = if name == "proxy" {
            "http://%%UP0%%"
        } else {
            "%%UP0%%"
        };
        let key = if name == "proxy" {
            ""
        } else {
            "P_cache_key $request_method$request_uri; P_param REQUEST_METHOD $request_method; P_param CONTENT_LENGTH $content_length;"
        };
        let is_plain = dice.chance(3, 4);
        let mut lines = dice.some(SWITCHES, 6).join("\n");
        if is_plain {
            lines = lines.replace("P_buffering off;", "");
        }
        if lines.contains("cache_key") && !key.is_empty() {
            lines = lines.replace("P_cache_key $uri;", "");
        }
        let text = format!(
            "P_cache_path %%OWN%%/cache keys_zone=c%%N%%:1m inactive=1h;\nserver {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n\
             P_cache c%%N%%; {} location / {{ {lines}\n{key} P_pass {pass}; }}\nlocation /off/ {{ P_cache off; P_pass {pass}; {key} }}\n\
             location = /error.html {{ }} }}\n",
            dice.word(&["P_cache_valid 200 1h;", "", "P_cache_valid any 10m;"])
        );
        let mut case = Case {
            http: tree(&text.replace("P_", &format!("{name}_"))),
            files: vec![file("html/error.html", "error page\n")],
            upstreams: vec![Upstream {
                protocol,
                answers: (0..8)
                    .map(|i| answer(dice, i, protocol, is_plain))
                    .collect(),
            }],
            ..Case::default()
        };
        let targets = dice.some(&["/x", "/y?b=1", "/x?b=", "/off/x", "/z"], 2);
        for _ in 0..dice.between(3, 7) {
            let target = if targets.is_empty() {
                "/x"
            } else {
                dice.word(&targets)
            };
            let mut asked = request(dice, target, 2);
            if is_plain {
                // What brings HEAD alone is stored apart where HEAD is not converted.
                plain(&mut asked, name == "proxy");
            }
            case.ask(asked);
        }
        // What ends within a second is asked for once more when it has ended.
        let first = case.upstreams[0].answers[0].first();
        let is_short = matches!(first, Some(Act::Send(content)) if find(&content.bytes(), b"max-age=1\r").is_some());
        if (is_short || lines.contains(" 1s;")) && dice.chance(1, 2) {
            let target = targets.first().copied().unwrap_or("/x");
            case.ask(Request::new("GET", target));
            case.talk.push(Step::Pause(2100));
            case.ask(Request::new("GET", target));
        }
        case
    }
}

/// Leaves what both store alike: a request that may be answered by what another one brought, with no condition.
fn plain(request: &mut Request, may_be_head: bool) {
    if !may_be_head || request.method != "HEAD" {
        request.method = "GET".to_owned();
    }
    request.body = Body::None;
    request
        .fields
        .retain(|(name, _)| name != "Authorization" && !name.starts_with("If-"));
}

/// The answer of this number. A plain one is whole, and nobody else has stored it before.
fn answer(dice: &mut Dice, number: usize, protocol: Protocol, is_plain: bool) -> Vec<Act> {
    let mut status = dice.word(&[
        "200 OK",
        "200 OK",
        "200 OK",
        "200 OK",
        "200 OK",
        "404 Not Found",
        "302 Found",
        "500 Oops",
        "304 Not Modified",
        "503 Busy",
        "206 Partial Content",
        "301 Moved",
    ]);
    if is_plain && ["206", "304"].contains(&&status[..3]) {
        status = "200 OK";
    }
    let mut head = match protocol {
        Protocol::Http => format!("HTTP/1.1 {status}\r\n"),
        _ => format!("Status: {status}\r\n"),
    };
    let is_known = |field: &str| is_plain && field.starts_with("Age:");
    for field in dice.some(CACHE_FIELDS, 3) {
        if is_known(field) {
            continue;
        }
        head.push_str(&format!("{field}\r\n"));
    }
    if status.starts_with("206") {
        head.push_str("Content-Range: bytes 0-9/30\r\n");
    }
    if status.starts_with("304") {
        return vec![Act::Send(Content::new(format!("{head}\r\n")))];
    }
    let body = format!("answer {number} line and more\n");
    let framed = protocol == Protocol::Http && dice.chance(2, 3);
    if framed {
        let text = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        return vec![Act::Send(Content::new(text))];
    }
    let mut acts = vec![Act::Send(Content::new(format!("{head}\r\n{body}")))];
    if protocol == Protocol::Http {
        acts.push(Act::Close);
    }
    acts
}
