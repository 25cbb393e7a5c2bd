//! Requests within requests: error pages, named and internal locations, `try_files`, redirects of servers behind, subrequests of
//! pages and of `auth_request`, and all of them in each other.

use crate::case::{Act, Body, Case, Content, Protocol, Request, Upstream};
use crate::random::Dice;

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Nesting;

/// What one of them names.
const PLACES: &[&str] = &[
    "/a/x.html",
    "/b/x.html",
    "/c/x.html",
    "/a/",
    "/b/none",
    "/e",
    "/i/x.html",
    "/a/page.html",
    "/none",
    "@n",
    "@m",
    "/b/x.html?q=2",
    "/a/sub/",
];

const STATUSES: &[&str] = &[
    "404",
    "403",
    "405",
    "500 502 503 504",
    "401",
    "413",
    "404 403",
    "502",
    "301 302",
    "400 404",
    "416",
    "412 416",
    "200",
    "503",
];

/// What is asked for.
const TARGETS: &[&str] = &[
    "/a/x.html",
    "/b/x.html",
    "/c/x.html",
    "/e",
    "/i/x.html",
    "/a/page.html",
    "/b/none",
    "/a/",
    "/c/none?q=1",
    "/a/sub/",
    "/b",
    "/a/up",
];

/// Fields that change what becomes of a request.
const FIELDS: &[(&str, &str)] = &[
    ("X-A", "1"),
    ("Authorization", "Basic YTpi"),
    ("Range", "bytes=0-3"),
    ("If-None-Match", "*"),
    ("Accept-Encoding", "gzip"),
];

impl Generator for Nesting {
    fn area(&self) -> &'static str {
        "nesting"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut text = String::from(
            "server { listen %%PORT0%%; server_name localhost; root %%DIR%%/html; set $v v;\n",
        );
        for _ in 0..dice.below(3) {
            text.push_str(&at_any_level(dice));
        }
        for head in ["/a/", "/b/", "/c/", "= /e", "/i/", "@n", "@m", "~ \\.html$"] {
            if head.starts_with('~') && !dice.chance(1, 4) {
                continue;
            }
            let is_named = head.starts_with('@');
            let mut inside = String::new();
            for _ in 0..dice.between(1, 3) {
                inside.push_str(&at_any_level(dice));
            }
            if dice.chance(1, 3) {
                inside.push_str(&condition(dice));
            }
            if (head == "/i/" || dice.chance(1, 10)) && !is_named {
                inside.push_str("internal;\n");
            }
            inside.push_str(&content(dice));
            if dice.chance(1, 5) && head == "/a/" {
                inside.push_str(&format!(
                    "location /a/sub/ {{ {} {} }}\n",
                    at_any_level(dice),
                    content(dice)
                ));
            }
            text.push_str(&format!("location {head} {{\n{inside}}}\n"));
        }
        text.push_str("}\n");
        let mut case = Case {
            http: tree(&text),
            files: files(dice),
            upstreams: vec![Upstream {
                protocol: Protocol::Http,
                // One for all: which of two subrequests asks first is chance.
                answers: vec![answer(dice)],
            }],
            ..Case::default()
        };
        for _ in 0..dice.between(3, 6) {
            let target = dice.word(TARGETS);
            let method = dice.word(&["GET", "GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE"]);
            let mut asked = Request::new(method, target);
            // What `auth_request` asks has no content: nginx announces it, and the server behind waits.
            let announces = text.contains("auth_request /") && !dice.chance(1, 8);
            if (method == "POST" || method == "PUT") && !announces {
                asked.body = Body::Length(Content::repeated("content ", *dice.pick(&[1, 40])));
            }
            if dice.chance(1, 3) {
                let (name, value) = *dice.pick(FIELDS);
                asked = asked.with(name, value);
            }
            case.ask(asked);
        }
        case
    }
}

/// What a server and a location may have.
fn at_any_level(dice: &mut Dice) -> String {
    let place = dice.word(PLACES);
    // A subrequest has no named location.
    let path = if place.starts_with('@') {
        "/b/x.html"
    } else {
        place
    };
    match dice.below(16) {
        0..=4 => {
            let status = dice.word(STATUSES).replace("200", "402");
            let answer = dice.word(&["", "", "=", "=200", "=404", "=503", "=204", "=301"]);
            let to = dice.word(&[place, place, place, "$uri.html", "http://other/$status"]);
            format!("error_page {status} {answer} {to};\n")
        }
        5 => "recursive_error_pages on;\n".to_owned(),
        6 => format!("auth_request {path};\n"),
        7 => "auth_request off;\n".to_owned(),
        8 => format!(
            "add_{}_body {path};\naddition_types *;\n",
            dice.word(&["before", "after"])
        ),
        9 => "ssi on;\nssi_types *;\n".to_owned(),
        10 => "sub_filter l L; sub_filter_once off; sub_filter_types *;\n".to_owned(),
        11 => format!(
            "satisfy any; deny all; auth_basic r; auth_basic_user_file %%DIR%%/{};\n",
            dice.word(&["users", "nobody"])
        ),
        12 => "deny all;\n".to_owned(),
        13 => format!("auth_request_set $v $upstream_status; auth_request {path};\n"),
        14 => "proxy_intercept_errors on;\n".to_owned(),
        _ => dice
            .word(&[
                "add_header X-B \"$uri $v\" always;\n",
                "add_trailer X-T \"$uri\" always;\n",
                "log_subrequest on;\n",
                "client_max_body_size 10;\n",
                "gzip on; gzip_types *; gzip_min_length 0;\n",
                "absolute_redirect off;\n",
                "if_modified_since off;\n",
                "max_ranges 0;\n",
                "keepalive_timeout 0;\n",
                "expires 1h;\n",
                "default_type text/html;\n",
                "index x.html;\n",
                "charset utf-8;\n",
                "chunked_transfer_encoding off;\n",
            ])
            .to_owned(),
    }
}

fn condition(dice: &mut Dice) -> String {
    let head = dice.word(&[
        "$http_x_a",
        "$request_method = POST",
        "$uri ~ ^/(.)",
        "!-f $request_filename",
        "$v = v",
        "$args ~ q=(.)",
    ]);
    let inside = dice.word(&[
        "set $v \"i$v\";",
        "return 403;",
        "rewrite ^ /b/x.html last;",
        "rewrite ^ /c/x.html break;",
        "proxy_pass http://%%UP0%%;",
        "error_page 404 /e;",
        "break;",
        "add_header X-If $v;",
        "return 404 \"if $1\\n\";",
        "deny all;",
    ]);
    // An `if` has no `deny`.
    let inside = if inside == "deny all;" {
        "set $v 0;"
    } else {
        inside
    };
    format!("if ({head}) {{ {inside} }}\n")
}

fn content(dice: &mut Dice) -> String {
    let place = dice.word(PLACES);
    match dice.below(12) {
        0 | 1 => format!(
            "return {};\n",
            dice.word(&[
                "404",
                "403",
                "500",
                "204",
                "502",
                "200 \"text $uri $v\\n\"",
                "302 /e",
                "401",
                "413",
                "404 \"t\\n\""
            ])
        ),
        2..=4 => {
            let last = dice.word(&[
                "=404", "=403", "=500", "@n", "@m", place, place, "$uri/", "/e?$args",
            ]);
            format!(
                "try_files {} {last};\n",
                dice.word(&["$uri", "$uri $uri/", "/none", "$uri.html", "/a$uri"])
            )
        }
        5..=7 => "proxy_pass http://%%UP0%%;\n".to_owned(),
        8 => format!(
            "rewrite ^ {} {};\n",
            if place.starts_with('@') { "/e" } else { place },
            dice.word(&["last", "break", ""])
        ),
        9 => "limit_except GET { deny all; }\n".to_owned(),
        _ => String::new(),
    }
}

fn files(dice: &mut Dice) -> Vec<crate::case::File> {
    let page = format!(
        "<!--# include virtual=\"{}\" --> line <!--# include virtual=\"{}\" stub=\"s\" --><!--# block name=\"s\" -->stub<!--# endblock -->\n",
        dice.word(&["/b/x.html", "/e", "/none", "/i/x.html", "/a/up"]),
        dice.word(&["/c/x.html", "/b/none", "/e?z=1"]),
    );
    vec![
        file("html/a/x.html", "line of a\n"),
        file("html/a/page.html", page),
        file("html/b/x.html", "line of b\n"),
        file("html/c/x.html", "line of c <!--# echo var=\"uri\" -->\n"),
        file("html/i/x.html", "internal line\n"),
        file("html/a/sub/x.html", "nested line\n"),
        file("users", "a:{PLAIN}b\n"),
    ]
}

fn answer(dice: &mut Dice) -> Vec<Act> {
    let status = dice.word(&[
        "200 OK",
        "200 OK",
        "404 Not Found",
        "500 Oops",
        "302 Found",
        "401 Unauthorized",
        "403 Forbidden",
        "503 Busy",
    ]);
    let mut head = format!("HTTP/1.1 {status}\r\n");
    if dice.chance(1, 3) {
        head.push_str(&format!("X-Accel-Redirect: {}\r\n", dice.word(PLACES)));
    }
    for field in dice.some(
        &[
            "Location: /b/x.html\r\n",
            "Content-Type: text/html\r\n",
            "WWW-Authenticate: Basic realm=\"u\"\r\n",
            "X-Accel-Limit-Rate: 0\r\n",
            "ETag: \"x\"\r\n",
            "Set-Cookie: a=b\r\n",
            "Cache-Control: no-store\r\n",
            "X-A: up\r\n",
            "Content-Disposition: inline\r\n",
            "Content-Language: de\r\n",
        ],
        3,
    ) {
        head.push_str(field);
    }
    let acts = match dice.below(8) {
        0 => return vec![Act::Close],
        1 => head + "Content-Length: 50\r\n\r\nshort line",
        _ => head + "Content-Length: 10\r\n\r\nup's line\n",
    };
    vec![Act::Send(Content::new(acts)), Act::Close]
}
