//! Fields of responses that are rewritten on their way: `Location` and `Refresh` by `proxy_redirect`, `Set-Cookie` by
//! `proxy_cookie_domain`, `_path` and `_flags`, and what `return`, directories and error pages make of their own.

use crate::case::{Act, Case, Content, Protocol, Request, Upstream};
use crate::random::Dice;

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Rewritten;

const SWITCHES: &[&str] = &[
    "proxy_redirect off;",
    "proxy_redirect default;",
    "proxy_redirect / /r/;",
    "proxy_redirect http://%%UP0%%/ /back/;",
    "proxy_redirect http://%%UP0%%/ $scheme://$host:$server_port/x/;",
    "proxy_redirect http:// https://;",
    "proxy_redirect $scheme://$proxy_host/ /v/;",
    "proxy_redirect http://o.example/ http://$host/;",
    "proxy_redirect ~^http://([^/]+)/(.*)$ /$1/$2;",
    "proxy_redirect ~*^HTTP://(?<h>[^/:]+)(?::\\d+)?/ $scheme://$h.x/;",
    "proxy_redirect ~/(\\d+)$ /n/$1;",
    "proxy_redirect '' /empty/;",
    "proxy_redirect $arg_f $arg_t;",
    "proxy_redirect //o.example/ //here/;",
    "proxy_cookie_domain off;",
    "proxy_cookie_domain o.example here.example;",
    "proxy_cookie_domain .o.example $host;",
    "proxy_cookie_domain ~\\.?([a-z]+)\\.example$ $1.test;",
    "proxy_cookie_domain ~^(?i)(O)(.*)$ $2$1;",
    "proxy_cookie_domain $arg_f $arg_t;",
    "proxy_cookie_domain o.example '';",
    "proxy_cookie_path off;",
    "proxy_cookie_path / /p/;",
    "proxy_cookie_path /x/ /z/;",
    "proxy_cookie_path ~^/x(.*)$ /y$1;",
    "proxy_cookie_path ~*^(.+)$ \"$1; secure; extra=$host\";",
    "proxy_cookie_path / \"/; HttpOnly\";",
    "proxy_cookie_flags off;",
    "proxy_cookie_flags a secure;",
    "proxy_cookie_flags a httponly samesite=strict;",
    "proxy_cookie_flags ~^[ab]$ nosecure nohttponly nosamesite;",
    "proxy_cookie_flags ~ secure samesite=lax;",
    "proxy_cookie_flags $arg_f samesite=none;",
    "proxy_cookie_flags $arg_f $arg_t;",
    "absolute_redirect off;",
    "server_name_in_redirect on;",
    "port_in_redirect off;",
    "proxy_intercept_errors on; error_page 301 302 =200 /page.html;",
    "error_page 404 =302 /moved;",
    "error_page 404 http://else/$uri;",
    "add_header Location /added;",
    "add_header Set-Cookie added=1;",
    "proxy_hide_header Refresh;",
    "proxy_set_header Host $http_host;",
    "rewrite ^/p/(\\d+) /q/$1 break;",
    "msie_refresh on;",
    "expires 1h;",
];

const LOCATIONS: &[&str] = &[
    "http://%%UP0%%/",
    "http://%%UP0%%/base/x",
    "http://%%UP0%%",
    "/",
    "/x/12",
    "x",
    "",
    "//o.example/y",
    "http://o.example/z?a=b",
    "HTTP://O.EXAMPLE/z",
    "http://o.example:8080/z/7",
    "https://%%UP0%%/s",
    "/base/",
    "/p/x",
    "http://localhost/x y",
    "/a%20b",
    "/\u{e9}",
    "http://127.0.0.1/",
    "?q=1",
    "/x;y",
    "#f",
];

const COOKIES: &[&str] = &[
    "a=b",
    "a=b; Path=/; Domain=o.example",
    "a=b;path=/x/y;domain=.o.example;secure",
    "b=; Path=\"/x/\"",
    "a=b; PATH=/X/; HTTPONLY; SameSite=None",
    "c=d; Domain=O.Example ; Path = /x/",
    "a",
    "=b; path=/",
    "a=b; Domain=; Path=",
    "a=b;; ; Secure; Secure",
    "a = b; Max-Age=1; Expires=Thu, 01 Jan 2032 00:00:00 GMT; path=/x/",
    "a=\"x; path=/\"; path=/y",
    "b=1; Domain=sub.o.example; samesite=lax; Partitioned",
    "a=b, c=d; path=/",
    ";",
    "a=b; path=/x/;domain=o.example;httponly ",
];

const REFRESHES: &[&str] = &[
    "5; url=http://%%UP0%%/",
    "0;url=/x/",
    "5;URL=http://o.example/",
    "5; url='http://o.example/'",
    "url=http://%%UP0%%/base/",
    "5",
    "5; url=",
    "5; url = /x",
    "",
];

/// Servers behind, with and without paths.
const PASSES: &[&str] = &[
    "http://%%UP0%%",
    "http://%%UP0%%/",
    "http://%%UP0%%/base/",
    "http://g%%N%%/base/",
    "http://%%UP0%%$uri",
];

/// Where a `return` leads.
const RETURNED: &[&str] = &[
    "/x",
    "http://o/$uri",
    "$scheme://$host$request_uri",
    "x",
    "'/a b'",
    "/$arg_t",
    "\"\"",
    "//o/x",
    "https://$server_name/",
];

/// What is asked for.
const TARGETS: &[&str] = &[
    "/p/",
    "/p/12",
    "/p/x?f=http://o.example/&t=/t/",
    "/r/x",
    "/r/?f=a&t=secure",
    "/dir",
    "/none",
    "/go/a%20b",
    "/go/?t=%0d%0ax",
    "/dir?a=b",
    "/p/y?f=o.example&t=q",
    "/p/z?f=a&t=samesite=strict",
];

impl Generator for Rewritten {
    fn area(&self) -> &'static str {
        "rewritten"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let several = |dice: &mut Dice, most: usize| {
            let mut lines = dice.some(SWITCHES, most);
            // The order of several of a name counts.
            if dice.chance(1, 2) {
                lines.reverse();
            }
            lines.join("\n")
        };
        let pass = dice.word(PASSES);
        let at_server = several(dice, 2).replace("rewrite ^/p/(\\d+) /q/$1 break;", "");
        let mut text = format!(
            "upstream g%%N%% {{ server %%UP0%%; }}\nserver {{ listen %%PORT0%%; server_name {}; root %%DIR%%/html;\n{at_server}\n\
             location / {{ {} }}\nlocation /p/ {{ proxy_pass {pass}; {} }}\nlocation ~ ^/r/(.*) {{ proxy_pass http://g%%N%%; {} }}\n\
             location /go/ {{ return {} {}; }}\nlocation = /page.html {{ }} }}\n",
            dice.word(&[
                "localhost",
                "www.example.org localhost",
                "\"\"",
                "~^l(?<n>.*)$"
            ]),
            several(dice, 2),
            several(dice, 5),
            several(dice, 4),
            dice.word(&["301", "302", "303", "307", "308"]),
            dice.word(RETURNED),
        );
        if pass.contains('$') {
            // With variables there is no default.
            text = text.replace("proxy_redirect default;", "");
        }
        // A location by expression has none either.
        let text = match text.split_once("location ~") {
            Some((before, after)) => format!(
                "{before}location ~{}",
                after.replace("proxy_redirect default;", "")
            ),
            None => text,
        };
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/page.html", "page\n"),
                file("html/dir/x.txt", "x\n"),
            ],
            upstreams: vec![Upstream {
                protocol: Protocol::Http,
                answers: (0..4).map(|_| answer(dice)).collect(),
            }],
            ..Case::default()
        };
        for _ in 0..dice.between(3, 6) {
            let asked = request(dice);
            case.ask(asked);
        }
        case
    }
}

fn request(dice: &mut Dice) -> Request {
    let target = dice.word(TARGETS);
    let mut asked = Request::new(dice.word(&["GET", "GET", "GET", "HEAD", "POST"]), target);
    let host = dice.word(&[
        "localhost",
        "localhost",
        "localhost:8080",
        "LOCALHOST.",
        "other",
        "[::1]:80",
        "127.0.0.1",
    ]);
    asked.fields[0].1 = host.to_owned();
    if dice.chance(1, 8) {
        asked.version = "HTTP/1.0".to_owned();
        if dice.chance(1, 2) {
            asked.fields.clear();
        }
    }
    if dice.chance(1, 10) {
        asked = asked.with("User-Agent", "Mozilla/4.0 (compatible; MSIE 6.0)");
    }
    asked
}

fn answer(dice: &mut Dice) -> Vec<Act> {
    let mut head = format!(
        "HTTP/1.1 {}\r\n",
        dice.word(&[
            "302 Found",
            "302 Found",
            "301 Moved",
            "200 OK",
            "201 Created",
            "307 T",
            "404 Not Found",
            "300 M"
        ])
    );
    if dice.chance(3, 4) {
        head.push_str(&format!("Location: {}\r\n", dice.word(LOCATIONS)));
    }
    for _ in 0..dice.below(4) {
        let name = dice.word(&["Set-Cookie", "Set-Cookie", "set-cookie"]);
        head.push_str(&format!("{name}: {}\r\n", dice.word(COOKIES)));
    }
    if dice.chance(1, 4) {
        head.push_str(&format!("Refresh: {}\r\n", dice.word(REFRESHES)));
    }
    vec![Act::Send(Content::new(
        head + "Content-Length: 3\r\n\r\nup\n",
    ))]
}
