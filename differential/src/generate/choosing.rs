//! What chooses a value or a way: `map`, `geo` and `split_clients` of every form, `if` in `if`-like rows, `satisfy` and `limit_except`
//! around them.

use crate::case::{Body, Case, Content, Request};
use crate::random::Dice;

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Choosing;

const KEYS: &[&str] = &[
    "$arg_a",
    "$host",
    "$http_x_a",
    "$uri",
    "$arg_a$arg_b",
    "$request_method",
    "$cookie_a",
    "\"$arg_a:$http_x_a\"",
    "$args",
    "$http_user_agent",
    "$scheme",
    "$remote_addr",
    "$query_string",
    "\"\"",
    "x",
    "${arg_a}y",
];

const ROWS: &[&str] = &[
    "default d;",
    "default \"$uri!\";",
    "default '';",
    "'' empty;",
    "1 one;",
    "~^1 re;",
    "~*^X(.) \"x$1\";",
    "~^(?<n>\\d+)$ \"n$n\";",
    "~(a)(b)? \"$2|$1\";",
    "\\~x tilde;",
    "\"a b\" space;",
    "*.example.org star;",
    ".example.org dot;",
    "www.* tail;",
    "localhost l;",
    "LOCALHOST L;",
    "GET g;",
    "/a.txt file;",
    "~\\.txt$ txt;",
    "10.0.0.1 ten;",
    "127.0.0.1 self;",
    "\"1\" again;",
    "~! bang;",
    "a $arg_b;",
    "b \"$arg_b$arg_a\";",
    "hostnames host;",
    "\\hostnames h;",
    "\\default dd;",
    "~* bad;",
    "x \"${arg_b}z\";",
    "1x one-x;",
    "~^$ nothing;",
    "~ all;",
    "*.a.example.org deep;",
    "-1 minus;",
    "\"\\\"q\" quote;",
    "~\"^%\" percent;",
];

const NETS: &[&str] = &[
    "default d;",
    "127.0.0.0/8 l;",
    "127.0.0.1 one;",
    "10.0.0.0/8 ten;",
    "10.1.0.0/16 ten-one;",
    "10.1.2.3/32 host;",
    "::1 six;",
    "::/0 any-six;",
    "2001:db8::/32 doc;",
    "0.0.0.0/0 all;",
    "delete 10.1.0.0/16;",
    "proxy 127.0.0.1;",
    "proxy_recursive;",
    "proxy 10.0.0.0/8;",
    "10.0.0.5/24 odd;",
    "192.168.1 short;",
    "10.0.0.0/33 bad;",
    "127.0.0.1 two;",
    "include %%DIR%%/nets;",
    "::ffff:10.2.0.0/112 mapped;",
    "10.0.0.0/8 \"a b\";",
];

const RANGES: &[&str] = &[
    "default d;",
    "127.0.0.0-127.255.255.255 l;",
    "127.0.0.1-127.0.0.1 one;",
    "10.0.0.0-10.255.255.255 ten;",
    "10.1.0.0-10.1.255.255 mid;",
    "10.200.0.0-10.201.0.0 over;",
    "0.0.0.0-9.0.0.0 low;",
    "10.0.0.9-10.0.0.10 nine;",
    "delete 10.1.0.0-10.1.0.255;",
    "255.0.0.0-255.255.255.254 high;",
    "10.0.0.1-10.0.0.1 single;",
    "delete 11.0.0.0-11.0.0.1;",
    "10.0.0.0-10.0.0.0 first;",
];

/// How clients are divided.
const SHARES: &[&str] = &[
    "10% a; 20% b; * c;",
    "0.01% a; * b;",
    "50% a;",
    "33.33% a; 33.33% b; 33.34% c;",
    "100% all;",
    "60% a; 40% b;",
    "1.23% a; * b;",
    "0.02% z; * \"$arg_b\";",
    "99.99% '';",
    "* only;",
];

/// What limits a location.
const LIMITS: &[&str] = &[
    "satisfy any;",
    "satisfy all;",
    "deny all;",
    "allow 127.0.0.1; deny all;",
    "allow 10.0.0.0/8; deny all;",
    "auth_basic r; auth_basic_user_file %%DIR%%/users;",
    "limit_except GET { deny all; }",
    "auth_basic $m%%N%%; auth_basic_user_file %%DIR%%/users;",
    "error_page 401 403 405 =200 /page.html;",
    "auth_basic off;",
    "auth_delay 0s;",
];

/// What the argument says that most rows read.
const ARGUMENTS: &[&str] = &[
    "1",
    "x1",
    "12",
    "ab",
    "a%20b",
    "",
    "%7Ex",
    "10.1.2.3",
    "10.1.0.7",
    "10.0.0.1",
    "127.0.0.1",
    "::1",
    "2001:db8::1",
    "255.255.255.255",
    "inc",
    "zz",
    "1x",
    "-1",
    "%22q",
    "%25",
    "172.16.3.4",
    "A",
    "b",
];

/// Hosts that are asked for.
const HOSTS: &[&str] = &[
    "localhost",
    "localhost",
    "www.example.org",
    "x.example.org",
    "example.org",
    "y.a.example.org",
    "www.x",
    "LOCALHOST",
    "[::1]",
];

/// Fields that a row, a limit or an address may depend on.
const FIELDS: &[(&str, &str)] = &[
    ("X-A", "1"),
    ("X-A", "10.1.2.3"),
    ("X-A", "a b"),
    ("X-Real", "10.1.2.3"),
    ("X-Real", "::1"),
    ("X-Real", "10.1.2.3:80"),
    ("X-Real", "2001:db8::2"),
    ("Cookie", "a=1"),
    ("Cookie", "a=ab; b=c"),
    ("Authorization", "Basic YTpi"),
    ("Authorization", "Basic YTpj"),
    ("X-Forwarded-For", "10.1.2.3"),
    ("X-Forwarded-For", "10.1.2.3, 10.3.0.1, 127.0.0.1"),
    ("User-Agent", "x1"),
];

impl Generator for Choosing {
    fn area(&self) -> &'static str {
        "choosing"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut text = String::new();
        for name in ["m", "q"] {
            text.push_str(&format!(
                "map {} ${name}%%N%% {{ {} }}\n",
                dice.word(KEYS),
                rows(dice, ROWS, 7)
            ));
        }
        let (nets, first) = match dice.chance(1, 3) {
            true => (RANGES, "ranges; "),
            false => (NETS, ""),
        };
        let key = dice.word(&["", "", "$arg_a", "$http_x_a", "$remote_addr", "$arg_ip"]);
        text.push_str(&format!(
            "geo {key} $g%%N%% {{ {first}{} }}\n",
            rows(dice, nets, 6)
        ));
        text.push_str(&format!(
            "split_clients {} $s%%N%% {{ {} }}\n",
            dice.word(&[
                "$arg_a",
                "\"$arg_a$uri\"",
                "$remote_addr",
                "$http_x_a",
                "$m%%N%%",
                "\"${arg_a}salt\""
            ]),
            dice.word(SHARES)
        ));
        text.push_str("server { listen %%PORT0%%; server_name localhost www.example.org; root %%DIR%%/html; set $v ''; set $w w;\n");
        text.push_str("set_real_ip_from 127.0.0.0/8; real_ip_header X-Real;\nadd_header X-V \"$m%%N%%|$q%%N%%|$g%%N%%|$s%%N%%|$v|$w\" always;\n");
        for _ in 0..dice.below(3) {
            text.push_str(&condition(dice));
        }
        for path in ["/", "/a", "~ \\.txt$", "/limited/"] {
            text.push_str(&location(dice, path));
        }
        text.push_str("location = /page.html { }\n}\n");
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/a.txt", "a\n"),
                file("html/page.html", "page\n"),
                file("html/limited/a.txt", "limited\n"),
                file("html/index.html", "index\n"),
                file("rows", "inc included;\n~^z \"z$uri\";\n"),
                file("nets", "172.16.0.0/12 inc;\n"),
                file("users", "a:{PLAIN}b\n"),
            ],
            ..Case::default()
        };
        for _ in 0..dice.between(4, 8) {
            let asked = request(dice);
            case.ask(asked);
        }
        case
    }
}

/// A location in which several of them meet.
fn location(dice: &mut Dice, path: &str) -> String {
    let mut text = format!("location {path} {{\n");
    for _ in 0..dice.below(4) {
        text.push_str(&condition(dice));
    }
    for line in dice.some(LIMITS, 3) {
        text.push_str(line);
        text.push('\n');
    }
    if dice.chance(1, 2) {
        text.push_str(dice.word(&[
            "return 200 \"r $m%%N%% $q%%N%% $v $w $1\\n\";\n",
            "try_files $uri$m%%N%% $uri =404;\n",
            "rewrite ^(.*)$ /a$m%%N%% last;\n",
            "root %%DIR%%/html/$q%%N%%;\n",
        ]));
    }
    text + "}\n"
}

fn rows(dice: &mut Dice, from: &[&str], most: usize) -> String {
    let mut rows = Vec::new();
    for _ in 0..dice.between(1, most) {
        let row = dice.word(from);
        let key = row.split(' ').next().unwrap_or(row);
        // Most cases are to be accepted: a key stands once, but seldom.
        let is_known = rows
            .iter()
            .any(|known: &&str| known.split(' ').next() == Some(key));
        let is_bad = row.contains("bad") || row.contains("short");
        if (is_known || is_bad) && !dice.chance(1, 30) {
            continue;
        }
        rows.push(row);
    }
    rows.join(" ")
}

fn condition(dice: &mut Dice) -> String {
    let head = dice.word(&[
        "$m%%N%%",
        "$q%%N%% = one",
        "$g%%N%% != d",
        "$s%%N%% = a",
        "$m%%N%% ~ (.)(.)",
        "$arg_a ~* \"^(?<k>.)\"",
        "$m%%N%% = $q%%N%%",
        "$v",
        "$arg_a = ''",
        "$http_x_a !~ a",
        "-f %%DIR%%/html/$arg_a",
        "!-d $document_root$uri",
        "-e $request_filename",
        "$request_method !~ ^(GET|HEAD)$",
        "$v = w",
        "$invalid_referer",
        "$arg_a != \"a b\"",
        "$m%%N%% = \"$q%%N%%\"",
    ]);
    let head = if head == "$invalid_referer" {
        "$w"
    } else {
        head
    };
    let mut inside = String::new();
    for _ in 0..dice.between(1, 2) {
        inside.push_str(dice.word(&[
            "set $v \"$v.\";",
            "set $w \"$1$2\";",
            "set $v $m%%N%%;",
            "return 200 \"if $m%%N%% $1 $v\\n\";",
            "return 403;",
            "return 302 /$q%%N%%;",
            "rewrite ^/(.*)$ /a/$1 break;",
            "rewrite ^ /page.html last;",
            "break;",
            "set $w $arg_b; break;",
            "return 444;",
            "rewrite /a(.*) /limited$1;",
        ]));
    }
    format!("if ({head}) {{ {inside} }}\n")
}

fn request(dice: &mut Dice) -> Request {
    let value = dice.word(ARGUMENTS);
    let path = dice.word(&[
        "/",
        "/a.txt",
        "/a",
        "/limited/a.txt",
        "/limited/",
        "/a/b",
        "/page.html",
    ]);
    let target = match dice.below(4) {
        0 => path.to_owned(),
        1 => format!("{path}?a={value}&b=B&ip=10.1.2.3"),
        _ => format!("{path}?a={value}"),
    };
    let mut request = Request::new(
        dice.word(&[
            "GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS",
        ]),
        &target,
    );
    request.fields[0].1 = dice.word(HOSTS).to_owned();
    for _ in 0..dice.below(3) {
        let (name, value) = *dice.pick(FIELDS);
        if request.fields.iter().all(|(known, _)| known != name) {
            request = request.with(name, value);
        }
    }
    if ["POST", "PUT"].contains(&request.method.as_str()) {
        request.body = Body::Length(Content::new("content"));
    }
    request
}
