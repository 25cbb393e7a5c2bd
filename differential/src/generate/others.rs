//! Modules of others: headers-more and set-misc, among the directives that they meet.

use crate::case::content::Content;
use crate::case::tree::parse;
use crate::case::{Act, Body, Case, File, Protocol, Request, Upstream};
use crate::random::Dice;

use super::Generator;

pub(super) struct Others;

/// What Debian has of them.
const MODULES: &str = "load_module /usr/lib/nginx/modules/ndk_http_module.so;\n\
    load_module /usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so;\n\
    load_module /usr/lib/nginx/modules/ngx_http_set_misc_module.so;\n";

const NAMES: &[&str] = &[
    "X-A",
    "X-B",
    "x-a",
    "Server",
    "Date",
    "Content-Type",
    "ETag",
    "Last-Modified",
    "Cache-Control",
    "Expires",
    "Set-Cookie",
    "Vary",
    "Link",
    "WWW-Authenticate",
    "Refresh",
    "X-Accel-Expires",
    "Content-Disposition",
    "Pragma",
    "Location",
    "Content-Language",
    "Allow",
    "Accept-Ranges",
];

const INPUT: &[&str] = &[
    "X-A",
    "X-B",
    "Host",
    "User-Agent",
    "Cookie",
    "Referer",
    "Accept",
    "Accept-Encoding",
    "Authorization",
    "X-Forwarded-For",
    "Content-Type",
    "Range",
    "If-None-Match",
    "If-Modified-Since",
    "Via",
    "x-a",
    "If-Range",
];

const WILD: &[&str] = &[
    "X-*", "x-a*", "Se*", "C*", "E*", "L*", "S*", "X-Acc*", "ETag*",
];

const VALUES: &[&str] = &[
    "1",
    "a b",
    "$uri",
    "$arg_a",
    "$http_x_a",
    "$status",
    "$upstream_status",
    "$sent_http_x_a",
    "x=$v",
    "$host",
    "text/html",
    "text/plain; charset=utf-8",
    "bytes=0-2",
    "no-cache",
    "a=b; path=/",
    "gzip",
    "",
    "$content_type",
];

const TEXTS: &[&str] = &[
    "$arg_a",
    "$uri",
    "$v",
    "$w",
    "$1",
    "a b/c?d=e&f",
    "$http_x_a",
    "",
    "hello",
    "$request_uri",
    "$args",
];

const ONE: &[&str] = &[
    "set_escape_uri",
    "set_unescape_uri",
    "set_md5",
    "set_sha1",
    "set_encode_base64",
    "set_decode_base64",
    "set_encode_base64url",
    "set_decode_base64url",
    "set_encode_hex",
    "set_decode_hex",
    "set_encode_base32",
    "set_decode_base32",
    "set_quote_sql_str",
    "set_quote_json_str",
    "set_quote_pgsql_str",
];

const TARGETS: &[&str] = &[
    "/",
    "/a",
    "/a/b",
    "/file.txt",
    "/file.html",
    "/none",
    "/up",
    "/a%20b",
    "/r/x%2Fy",
    "/moved",
    "/nothing",
];

impl Generator for Others {
    fn area(&self) -> &'static str {
        "others"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut text = String::from(
            "server { listen %%PORT0%%; server_name localhost; root %%DIR%%/html; set $v v; set $w ''; default_type text/x;\n\
             types { text/html html; text/plain txt; }\n",
        );
        for _ in 0..dice.below(3) {
            text.push_str(&line(dice));
        }
        for path in ["/", "/a", "/up", "~ ^/r/(.*)$"] {
            if dice.chance(3, 4) {
                text.push_str(&location(dice, path));
            }
        }
        text.push_str("location /moved { return 302 /a; }\nlocation /nothing { return 204; }\n}\n");
        let mut case = Case {
            main: parse(MODULES).unwrap_or_default(),
            http: parse(&text).unwrap_or_default(),
            files: vec![
                file("html/file.txt", "a file of text\n"),
                file("html/file.html", "<p>a page</p>\n"),
                file("html/index.html", "index\n"),
            ],
            upstreams: vec![upstream(dice)],
            ..Case::default()
        };
        for _ in 0..dice.between(3, 6) {
            case.ask(request(dice));
        }
        case
    }
}

fn file(path: &str, text: &str) -> File {
    File {
        path: path.to_owned(),
        content: Content::new(text),
    }
}

fn location(dice: &mut Dice, path: &str) -> String {
    let mut text = format!("location {path} {{\n");
    for _ in 0..dice.between(1, 4) {
        text.push_str(&line(dice));
    }
    if dice.chance(1, 4) {
        text.push_str(&format!("if ($arg_a) {{\n{}{}}}\n", line(dice), line(dice)));
    }
    match (path, dice.below(6)) {
        ("/up", _) => text.push_str("proxy_pass http://%%UP0%%;\n"),
        (_, 0) => text.push_str("return 200 \"$v|$w|$http_x_a|$http_x_b\\n\";\n"),
        (_, 1) => text.push_str("rewrite ^ /up last;\n"),
        (_, 2) => text.push_str("error_page 404 /file.html;\n"),
        (_, 3) => text.push_str("return 200 \"$v $w\\n\";\n"),
        _ => {}
    }
    text.push_str("}\n");
    text
}

/// One line that any block takes.
fn line(dice: &mut Dice) -> String {
    match dice.below(10) {
        0..=2 => output(dice),
        3 | 4 => input(dice),
        5..=7 => computed(dice),
        8 => format!("set $v \"{}\";\n", dice.word(TEXTS)),
        _ => dice
            .word(&[
                "add_header X-A added;\n",
                "add_header X-B added always;\n",
                "expires 1h;\n",
                "gzip on;\n",
                "charset utf-8;\n",
                "etag off;\n",
            ])
            .to_owned(),
    }
}

fn output(dice: &mut Dice) -> String {
    let mut options = String::new();
    if dice.chance(1, 4) {
        options.push_str(&format!(
            "-s '{}' ",
            dice.word(&["200", "404", "302 404", "204 304 200"])
        ));
    }
    if dice.chance(1, 4) {
        options.push_str(&format!(
            "-t '{}' ",
            dice.word(&["text/html", "text/plain text/x", "text/html; text/css"])
        ));
    }
    if dice.chance(1, 3) {
        let names = match dice.chance(1, 3) {
            true => WILD,
            false => NAMES,
        };
        return format!(
            "more_clear_headers {options}'{}' '{}';\n",
            dice.word(names),
            dice.word(NAMES)
        );
    }
    let mut text = format!("more_set_headers {options}");
    for _ in 0..dice.between(1, 2) {
        text.push_str(&format!(" \"{}: {}\"", dice.word(NAMES), dice.word(VALUES)));
    }
    text + ";\n"
}

fn input(dice: &mut Dice) -> String {
    let mut options = String::new();
    if dice.chance(1, 5) {
        options.push_str("-t 'text/plain' ");
    }
    if dice.chance(1, 3) {
        let names = match dice.chance(1, 4) {
            true => WILD,
            false => INPUT,
        };
        return format!(
            "more_clear_input_headers {options}'{}';\n",
            dice.word(names)
        );
    }
    let (name, value) = (dice.word(INPUT), dice.word(VALUES));
    // To replace one of these where there is none ends nginx's worker.
    if dice.chance(1, 4) && !["Cookie", "X-Forwarded-For"].contains(&name) {
        options.push_str("-r ");
    }
    // A host that is none ends the connection there, and is 500 here: compat.md.
    let value = match name {
        "Host" => "other",
        _ => value,
    };
    format!("more_set_input_headers {options}\"{name}: {value}\";\n")
}

fn computed(dice: &mut Dice) -> String {
    let (variable, text) = (dice.word(&["$v", "$w"]), dice.word(TEXTS));
    match dice.below(8) {
        0 => format!("set_if_empty {variable} \"{text}\";\n"),
        1 => format!("set_hmac_sha1 {variable} key \"{text}\"; set_encode_hex {variable};\n"),
        2 => format!("set_hmac_sha256 {variable} \"{text}\" x; set_encode_base64 {variable};\n"),
        3 => format!("{} {variable};\n", dice.word(ONE)),
        4 => format!("set_rotate {variable} 1 3;\n"),
        _ => format!("{} {variable} \"{text}\";\n", dice.word(ONE)),
    }
}

fn upstream(dice: &mut Dice) -> Upstream {
    let mut head = String::from("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n");
    for _ in 0..dice.below(6) {
        let value = dice.word(&[
            "1",
            "a=b",
            "text/html; charset=koi8-r",
            "no-store",
            "\"tag\"",
            "x",
        ]);
        let name = dice.word(NAMES);
        // What the server itself decides by is for other areas.
        let is_known = head.contains(&format!("\r\n{name}: "));
        if !["X-Accel-Expires", "Location", "Refresh", "Vary"].contains(&name) && !is_known {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    Upstream {
        protocol: Protocol::Http,
        answers: vec![vec![
            Act::Send(Content::new(format!(
                "{head}Connection: close\r\n\r\nhello"
            ))),
            Act::Close,
        ]],
    }
}

fn request(dice: &mut Dice) -> Request {
    let mut target = dice.word(TARGETS).to_owned();
    if dice.chance(1, 2) {
        target.push_str(dice.word(&[
            "?a=1",
            "?a=hello",
            "?a=%27%22%5c",
            "?a=YWJj",
            "?a=616263",
            "?a=a%20b",
            "?a=91imor3f",
        ]));
    }
    let mut request = Request::new(dice.word(&["GET", "GET", "GET", "HEAD", "POST"]), &target);
    for _ in 0..dice.below(4) {
        let (name, value) = *dice.pick(&[
            ("X-A", "client"),
            ("X-B", "b"),
            ("Cookie", "a=1"),
            ("User-Agent", "agent"),
            ("Range", "bytes=0-3"),
            ("If-None-Match", "*"),
            ("Accept-Encoding", "gzip"),
            ("Content-Type", "text/plain"),
            ("Referer", "http://localhost/"),
        ]);
        // What comes of two fields of a name has changed since the nginx that has these modules.
        if request.fields.iter().all(|(known, _)| known != name) {
            request = request.with(name, value);
        }
    }
    if request.method == "POST" {
        request = request.body(Body::Length(Content::new("a=b&c=d")));
    }
    request
}
