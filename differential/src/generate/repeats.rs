//! Fields that an upstream server sends several times, in every protocol, stored and not: which are passed on each time, which once,
//! and which are refused.

use crate::case::{Act, Case, Content, Protocol, Request, Upstream};
use crate::random::Dice;

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Repeats;

const SWITCHES: &[&str] = &[
    "P_buffering off;",
    "P_pass_header Server; P_pass_header Date;",
    "P_pass_header X-Accel-Expires; P_pass_header X-Accel-Redirect;",
    "P_pass_header X-Accel-Limit-Rate; P_pass_header X-Accel-Charset;",
    "P_pass_header X-Accel-Buffering; P_pass_header Status;",
    "P_hide_header Last-Modified;",
    "P_hide_header ETag; P_hide_header Set-Cookie;",
    "P_ignore_headers X-Accel-Redirect X-Accel-Expires;",
    "P_ignore_headers Cache-Control Expires Vary Set-Cookie;",
    "P_ignore_headers X-Accel-Charset X-Accel-Limit-Rate;",
    "P_intercept_errors on; error_page 404 500 502 /error.html;",
    "P_next_upstream invalid_header error;",
    "P_force_ranges on;",
    "add_header X-S \"$upstream_http_last_modified|$upstream_http_etag|$upstream_http_vary\" always;",
    "add_header X-S \"$sent_http_expires|$sent_http_content_type|$sent_http_link\" always;",
    "add_header X-S \"$upstream_http_set_cookie|$upstream_cookie_a|$upstream_http_x_a\" always;",
    "add_header Last-Modified ''; add_header ETag \"'y'\";",
    "expires 1h;",
    "etag off;",
    "charset utf-8;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "sub_filter line LINE;",
    "max_ranges 0;",
    "if_modified_since off;",
    "default_type text/x-default;",
    "error_log %%OWN%%/error.log warn;",
    "error_log %%OWN%%/error.log warn;",
];

/// What may stand several times, and with which values.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "Content-Type",
        &["text/html", "text/plain; charset=koi8-r", "text/x"],
    ),
    ("Content-Length", &["9", "9", "4"]),
    (
        "Date",
        &[
            "Sun, 09 Sep 2001 01:46:40 GMT",
            "Sun, 09 Sep 2001 01:46:41 GMT",
        ],
    ),
    (
        "Last-Modified",
        &[
            "Sun, 09 Sep 2001 01:46:40 GMT",
            "Sun, 09 Sep 2001 01:46:41 GMT",
            "x",
        ],
    ),
    ("ETag", &["\"x\"", "W/\"x\"", "\"y\""]),
    ("Server", &["app", "other"]),
    (
        "WWW-Authenticate",
        &["Basic realm=\"x\"", "Digest realm=\"y\""],
    ),
    ("Location", &["/o/x", "http://o.example/y"]),
    ("Refresh", &["5; url=/x", "6"]),
    ("Set-Cookie", &["a=b", "c=d; Path=/", "a=e"]),
    ("Content-Disposition", &["attachment", "inline"]),
    (
        "Cache-Control",
        &[
            "max-age=60",
            "no-cache",
            "private",
            "max-age=1000",
            "no-store",
        ],
    ),
    (
        "Expires",
        &[
            "Thu, 01 Jan 2032 00:00:00 GMT",
            "Thu, 01 Jan 1970 00:00:00 GMT",
            "0",
        ],
    ),
    ("Accept-Ranges", &["bytes", "none"]),
    ("Content-Range", &["bytes 0-8/9", "bytes 0-8/20"]),
    ("Vary", &["X-A", "Accept-Encoding", "*"]),
    ("Link", &["</a>", "</b>; rel=preload"]),
    ("X-Accel-Expires", &["60", "0", "@9"]),
    (
        "X-Accel-Redirect",
        &["/inside/x.txt", "/inside/y.txt", "@n"],
    ),
    ("X-Accel-Limit-Rate", &["1000000", "0"]),
    ("X-Accel-Buffering", &["no", "yes"]),
    ("X-Accel-Charset", &["koi8-r", "utf-8"]),
    ("Content-Encoding", &["gzip", "x"]),
    ("X-A", &["1", "2"]),
    ("Upgrade", &["x", "y"]),
    ("Connection", &["x", "keep-alive"]),
    ("Keep-Alive", &["5", "6"]),
    ("Transfer-Encoding", &["chunked", "chunked"]),
    ("Trailer", &["X", "Y"]),
    ("Age", &["5", "6"]),
    ("Pragma", &["no-cache", "x"]),
    ("Status", &["200 OK", "404 Not Found"]),
];

const BODY: &str = "line one\n";

/// The prefix of directives, how a server is passed to, and what speaks there.
const PROTOCOLS: &[(&str, &str, Protocol)] = &[
    ("proxy", "http://", Protocol::Http),
    ("proxy", "http://", Protocol::Http),
    ("fastcgi", "", Protocol::FastCgi),
    ("uwsgi", "", Protocol::Uwsgi),
    ("scgi", "", Protocol::Scgi),
    ("grpc", "grpc://", Protocol::Grpc),
    ("proxy", "http://", Protocol::Grpc),
];

impl Generator for Repeats {
    fn area(&self) -> &'static str {
        "repeats"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let (name, scheme, protocol) = *dice.pick(PROTOCOLS);
        let mut lines = dice.some(SWITCHES, 4);
        let mut own = String::new();
        if name == "grpc" {
            let lacks = ["P_buffering", "P_force_ranges"];
            lines.retain(|line| !lacks.iter().any(|word| line.starts_with(word)));
        }
        match (name, protocol) {
            ("proxy", Protocol::Grpc) => own.push_str("proxy_http_version 2; "),
            ("proxy" | "grpc", _) => {}
            _ => own.push_str(
                "P_param REQUEST_METHOD $request_method; P_param CONTENT_LENGTH $content_length; ",
            ),
        }
        let stores = name != "grpc" && dice.chance(1, 2);
        let mut zone = "";
        if stores {
            zone = "P_cache_path %%OWN%%/cache keys_zone=c%%N%%:1m inactive=1h;\n";
            own.push_str("P_cache c%%N%%; P_cache_key $request_uri; P_cache_valid any 1h; ");
        }
        let text = format!(
            "{zone}server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n\
             location / {{ P_pass {scheme}%%UP0%%; {own}\n{} }}\n\
             location = /error.html {{ }}\nlocation /inside/ {{ internal; }}\nlocation @n {{ return 200 named; }}\n\
             location /o/ {{ return 200 other; }} }}\n",
            lines.join("\n")
        );
        let mut case = Case {
            http: tree(&text.replace("P_", &format!("{name}_"))),
            files: vec![
                file("html/error.html", "error page\n"),
                file("html/inside/x.txt", "inside x\n"),
                file("html/inside/y.txt", "inside y\n"),
            ],
            upstreams: vec![Upstream {
                protocol,
                answers: (0..dice.between(1, 2))
                    .map(|_| answer(dice, protocol))
                    .collect(),
            }],
            ..Case::default()
        };
        for _ in 0..dice.between(2, 3) {
            let mut asked = Request::new(dice.word(&["GET", "GET", "GET", "HEAD"]), "/");
            if stores && asked.method == "HEAD" && name != "proxy" {
                asked.method = "GET".to_owned();
            }
            let fields = [
                ("Range", "bytes=0-3"),
                ("If-None-Match", "\"x\""),
                ("If-Modified-Since", "Sun, 09 Sep 2001 01:46:40 GMT"),
                ("Accept-Encoding", "gzip"),
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

/// Lines of fields of which some stand there two or three times, not always side by side.
fn fields(dice: &mut Dice) -> Vec<(&'static str, &'static str)> {
    let mut lines = Vec::new();
    for _ in 0..dice.between(1, 2) {
        let (name, values) = *dice.pick(FIELDS);
        for _ in 0..dice.between(2, 3) {
            lines.insert(dice.below(lines.len() + 1), (name, dice.word(values)));
        }
    }
    if dice.chance(1, 2) {
        let (name, values) = *dice.pick(FIELDS);
        lines.push((name, dice.word(values)));
    }
    lines
}

fn answer(dice: &mut Dice, protocol: Protocol) -> Vec<Act> {
    let lines = fields(dice);
    let is_redirect = lines.iter().any(|(name, _)| *name == "Location");
    let status = match is_redirect {
        true => dice.word(&["302 Found", "201 Created"]),
        false => dice.word(&[
            "200 OK",
            "200 OK",
            "200 OK",
            "404 Not Found",
            "401 Unauthorized",
        ]),
    };
    let is_sized = lines
        .iter()
        .any(|(name, _)| ["Content-Length", "Transfer-Encoding"].contains(name));
    let of_stream = ["connection", "keep-alive", "upgrade", "transfer-encoding"];
    if protocol == Protocol::Grpc {
        let mut head = format!("HEADERS\n:status: {}\n", status.get(..3).unwrap_or(status));
        for (name, value) in lines {
            let name = name.to_ascii_lowercase();
            // Those of a connection make a response of HTTP/2 malformed, once as often as twice.
            if !of_stream.contains(&name.as_str()) {
                head.push_str(&format!("{name}: {value}\n"));
            }
        }
        return vec![
            Act::Send(Content::new(head)),
            Act::Send(Content::new(format!("DATA end\n{BODY}"))),
        ];
    }
    let mut head = match protocol {
        Protocol::Http => format!("HTTP/1.1 {status}\r\n"),
        _ if dice.chance(1, 2) => format!("Status: {status}\r\n"),
        _ => String::new(),
    };
    for (name, value) in &lines {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if protocol == Protocol::Http && !is_sized {
        head.push_str(&format!("Content-Length: {}\r\n", BODY.len()));
    }
    let mut acts = vec![Act::Send(Content::new(format!("{head}\r\n{BODY}")))];
    if protocol == Protocol::Http && is_sized {
        acts.push(Act::Close);
    }
    acts
}
