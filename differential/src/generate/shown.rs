//! Variables: what they show in a response, in `map`, in a condition and in access logs of every escape, behind odd requests.

use crate::case::{Act, Body, Case, Content, Protocol, Request, Step, Upstream};
use crate::random::Dice;

use super::pieces::file;
use super::{Generator, tree};

pub(super) struct Shown;

/// What is the same on both sides: no times, processes, numbers of connections, ports of clients.
const NAMES: &[&str] = &[
    "args",
    "query_string",
    "is_args",
    "arg_a",
    "arg_A",
    "arg_b_c",
    "arg_none",
    "uri",
    "document_uri",
    "request_uri",
    "request",
    "request_method",
    "request_length",
    "request_filename",
    "document_root",
    "realpath_root",
    "host",
    "http_host",
    "hostname",
    "server_name",
    "server_port",
    "server_addr",
    "server_protocol",
    "scheme",
    "https",
    "remote_addr",
    "remote_user",
    "http_x_a",
    "http_x_b",
    "http_cookie",
    "cookie_a",
    "cookie_b",
    "cookie_A",
    "cookie_none",
    "http_referer",
    "http_user_agent",
    "http_via",
    "http_x_forwarded_for",
    "http_content_type",
    "content_type",
    "content_length",
    "http_content_length",
    "http_transfer_encoding",
    "http_connection",
    "http_accept_encoding",
    "http_range",
    "status",
    "body_bytes_sent",
    "bytes_sent",
    "request_completion",
    "request_body",
    "request_body_file",
    "limit_rate",
    "pipe",
    "sent_http_content_type",
    "sent_http_content_length",
    "sent_http_location",
    "sent_http_x_s",
    "sent_http_server",
    "sent_http_connection",
    "sent_http_keep_alive",
    "sent_http_transfer_encoding",
    "sent_http_cache_control",
    "sent_http_link",
    "sent_http_vary",
    "sent_http_etag",
    "sent_http_last_modified",
    "sent_http_accept_ranges",
    "sent_trailer_x_t",
    "upstream_addr",
    "upstream_status",
    "upstream_http_x_a",
    "upstream_http_set_cookie",
    "upstream_cookie_a",
    "upstream_trailer_x_t",
    "upstream_response_length",
    "upstream_bytes_sent",
    "upstream_cache_status",
    "proxy_host",
    "proxy_port",
    "proxy_add_x_forwarded_for",
    "proxy_protocol_addr",
    "realip_remote_addr",
    "nginx_none_",
    "gzip_ratio",
    "invalid_referer",
    "secure_link",
    "ssl_protocol",
    "ssl_cipher",
    "ssl_session_reused",
    "ssl_server_name",
    "ssl_client_verify",
    "connection_requests",
    "uid_got",
    "ancient_browser",
    "msie",
    "modern_browser",
    "geo_none_",
    "v",
    "w",
    "m%%N%%",
    "g%%N%%",
    "s%%N%%",
    "n",
    "slice_range",
    "http2",
    "http3",
    "limit_req_status",
    "fastcgi_script_name",
    "request_port",
    "is_request_port",
    "http_",
    "arg_",
];

const SHAPES: &[&str] = &[
    "$V",
    "${V}",
    "${V}x",
    "a$V",
    "$V.$W",
    "[$V]",
    "$V$W",
    "$V-$W/",
    "\\$V",
    "${V}_$W",
    "\\\"$V\\\"",
    "$V\\n",
];

const TARGETS: &[&str] = &[
    "/",
    "/a.txt",
    "/a.txt?a=1&b_c=2",
    "/?A=x&a=%20%22&a=2",
    "/a%20b?&a",
    "/%41%22%5c",
    "/x/1/2?a=b=c",
    "/?a",
    "/?a=&b_c",
    "/up?a=1",
    "/up/x%0a",
    "/none",
    "/a.txt#f",
    "/?&&a=3;b",
    "/x/y/z?arg_a=1",
    "http://other/abs?a=1",
    "/\u{e9}?a=\u{e9}",
    "/a//b/../c",
    "/x/1/",
    "/?%61=1",
];

const FIELDS: &[(&str, &str)] = &[
    ("X-A", "a \"q\" \\ b"),
    ("X-A", "\u{e9}\u{1}"),
    ("X-A", "tab\there"),
    ("X-B", "<b>&'"),
    ("x_b", "under"),
    ("Cookie", "a=1; b=2; a=3"),
    ("Cookie", "b=\"x y\";A=4"),
    ("Cookie", "aa=1;a =2; =3"),
    ("Referer", "http://www.example.org/?\"x\""),
    ("User-Agent", "Mozilla/4.0 (compatible; MSIE 6.0)"),
    ("User-Agent", "a\\x\"b"),
    ("Authorization", "Basic YTpi"),
    ("Authorization", "Basic dSI6cA=="),
    ("Via", "1.1 a"),
    ("X-Forwarded-For", "10.0.0.1, 10.2.0.3"),
    ("Range", "bytes=0-1"),
    ("Accept-Encoding", "gzip"),
    ("Connection", "close"),
    ("Connection", "keep-alive, X-A"),
    ("Content-Type", "text/x; a=\"b\""),
    ("Host", "x"),
    ("X-None", ""),
];

impl Generator for Shown {
    fn area(&self) -> &'static str {
        "variables"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut text = maps(dice);
        for (name, escape) in [("d", ""), ("j", " escape=json"), ("n", " escape=none")] {
            text.push_str(&format!(
                "log_format {name}%%N%%{escape} \"{}\\n\" '{}';\n",
                values(dice, 5),
                values(dice, 3)
            ));
        }
        text.push_str("server { listen %%PORT0%%; server_name localhost ~^(?<n>.)ther$; root %%DIR%%/html; set $v v; set $w \"$args.\";\n");
        text.push_str("userid off; valid_referers none *.example.org; ancient_browser MSIE; modern_browser gecko 1.0;\n");
        let log = |dice: &mut Dice| {
            let when = match dice.chance(1, 3) {
                true => format!(" if=${}", name(dice)),
                false => String::new(),
            };
            // A file has one format and one buffer.
            let format = dice.word(&["d", "j", "n"]);
            let (name, buffer) = *dice.pick(&[
                ("", ""),
                ("", ""),
                ("b", " buffer=4k"),
                ("f", " buffer=64k flush=1h"),
            ]);
            format!("access_log %%OWN%%/{format}{name}.log {format}%%N%%{buffer}{when};\n")
        };
        text.push_str("access_log access.log differential;\n");
        let line = log(dice);
        text.push_str(&line);
        if dice.chance(1, 3) {
            text.push_str("set_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For;\n");
        }
        text.push_str(&format!(
            "location / {{ {} {} }}\n",
            line_of(dice),
            line_of(dice)
        ));
        text.push_str(&format!(
            "location /up {{ proxy_pass http://%%UP0%%; add_header X-S \"{}\" always; {} }}\n",
            values(dice, 2),
            line_of(dice)
        ));
        text.push_str(&format!(
            "location ~ ^/x/(.)/(?<n2>.*)$ {{ {} return 200 \"{}\\n\"; }}\n",
            unless_return(line_of(dice)),
            values(dice, 4)
        ));
        text.push_str(&format!("location = /a.txt {{ access_log access.log differential; {} add_trailer X-T \"{}\" always; }}\n}}\n", log(dice), values(dice, 1)));
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/a.txt", "text of a\n"),
                file("html/index.html", "index\n"),
            ],
            upstreams: vec![behind(dice)],
            ..Case::default()
        };
        for _ in 0..dice.between(3, 6) {
            ask(dice, &mut case);
        }
        case
    }
}

/// Blocks whose values are made of other variables, of each other too.
fn maps(dice: &mut Dice) -> String {
    let volatile = dice.word(&["", "volatile;", "hostnames;"]);
    format!(
        "map \"{}\" $m%%N%% {{ {volatile} default \"{}\"; '' e; ~^(?<cap>.)(.*)$ \"$cap-$2\"; ~*B \"{}\"; 1 one; \\default d; }}\n\
         geo ${} $g%%N%% {{ default no; 127.0.0.0/8 here; 10.0.0.0/8 ten; ::/0 six; }}\n\
         split_clients \"{}\" $s%%N%% {{ 20% a; 0.5% b; * c; }}\n",
        values(dice, 1),
        values(dice, 1).replace("$m%%N%%", "m"),
        values(dice, 1).replace("$m%%N%%", "m"),
        dice.word(&[
            "remote_addr",
            "arg_a",
            "http_x_forwarded_for",
            "realip_remote_addr",
            "server_addr"
        ]),
        values(dice, 2).replace("$s%%N%%", "s"),
    )
}

fn name(dice: &mut Dice) -> &'static str {
    loop {
        let name = NAMES[dice.below(NAMES.len())];
        // Some are none: the configuration is refused with them, by both.
        let is_none = name.ends_with("none_")
            || [
                "http_",
                "arg_",
                "http3",
                "1",
                "2",
                "request_port",
                "is_request_port",
            ]
            .contains(&name);
        if !is_none || dice.chance(1, 60) {
            return name;
        }
    }
}

/// Texts with variables in them, in every shape of their names.
fn values(dice: &mut Dice, most: usize) -> String {
    let mut text = String::new();
    for _ in 0..dice.between(1, most) {
        let shape = dice
            .word(SHAPES)
            .replace('V', "\u{1}")
            .replace('W', "\u{2}");
        text.push_str(
            &shape
                .replace('\u{1}', name(dice))
                .replace('\u{2}', name(dice)),
        );
        text.push('|');
    }
    text
}

/// A line, or none where it would answer before the `return` behind it.
fn unless_return(line: String) -> String {
    match line.starts_with("return") {
        true => String::new(),
        false => line,
    }
}

fn line_of(dice: &mut Dice) -> String {
    match dice.below(8) {
        0 => format!("set $v \"{}\";", values(dice, 2).replace("$v", "x")),
        1 => format!("if (${}) {{ set $w if; }}", name(dice)),
        2 => format!(
            "if (${} ~* \"(\\w)(.?)\") {{ set $w \"$1$2\"; }}",
            name(dice)
        ),
        3 => format!(
            "if (${} = \"{}\") {{ set $w eq; }}",
            name(dice),
            values(dice, 1).replace('"', "")
        ),
        4 => format!("add_header X-S \"{}\" always;", values(dice, 3)),
        5 => format!("expires ${};", name(dice)),
        6 => format!(
            "rewrite ^/(.*)$ /$1 break; add_header X-R \"$1 {}\";",
            values(dice, 1)
        ),
        _ => format!(
            "return {} \"{}\";",
            dice.word(&["200", "404", "302", "403"]),
            values(dice, 4)
        ),
    }
}

fn behind(dice: &mut Dice) -> Upstream {
    let answers = (0..2).map(|_| {
        let fields = dice.some(
            &[
                "X-A: up \"q\"\r\n",
                "X-A: 2\r\n",
                "Set-Cookie: a=1; path=/\r\n",
                "Set-Cookie: a=2\r\n",
                "Set-Cookie: b=\"3\"\r\n",
                "Cache-Control: a\r\n",
                "Cache-Control: b\r\n",
                "Link: </x>\r\n",
                "Link: </y>\r\n",
                "Vary: X\r\n",
                "Content-Type: text/html; charset=x\r\n",
                "Server: up\r\n",
                "X-S: s\r\n",
                "Trailer: X-T\r\n",
            ],
            5,
        );
        let end = dice.word(&[
            "Content-Length: 3\r\n\r\nup\n",
            "Transfer-Encoding: chunked\r\n\r\n3\r\nup\n\r\n0\r\nX-T: t\r\n\r\n",
            "Content-Length: 0\r\n\r\n",
        ]);
        let status = dice.word(&["200 OK", "404 No", "302 F", "500 x"]);
        vec![Act::Send(Content::new(format!(
            "HTTP/1.1 {status}\r\n{}{end}",
            fields.concat()
        )))]
    });
    Upstream {
        protocol: Protocol::Http,
        answers: answers.collect(),
    }
}

fn ask(dice: &mut Dice, case: &mut Case) {
    let mut asked = Request::new(
        dice.word(&["GET", "GET", "GET", "HEAD", "POST", "PUT"]),
        dice.word(TARGETS),
    );
    for _ in 0..dice.below(4) {
        let (name, value) = *dice.pick(FIELDS);
        if name == "Host" {
            asked.fields[0].1 = dice
                .word(&[
                    "other",
                    "LOCALHOST",
                    "localhost:1",
                    "localhost.",
                    "nther:80",
                ])
                .to_owned();
        } else if asked.fields.iter().all(|(known, _)| known != name) {
            asked = asked.with(name, value);
        }
    }
    if asked.method == "POST" || asked.method == "PUT" {
        asked.body = match dice.chance(1, 2) {
            true => Body::Length(Content::new("a=1&b=\"2\"\n")),
            false => Body::Chunked(vec![Content::new("a=1"), Content::new("&b=2")], Vec::new()),
        };
    }
    if dice.chance(1, 8) {
        asked.version = dice.word(&["HTTP/1.0", "HTTP/1.0", ""]).to_owned();
    }
    // Bytes as they are: a text of a case is UTF-8 otherwise.
    let connection = case.next_connection();
    case.talk.push(Step::Connect {
        connection,
        port: 0,
    });
    case.talk.push(Step::Request {
        connection,
        request: asked,
    });
    case.talk.push(Step::Read { connection });
}
