//! The directives themselves: any of them, with values by their syntax, at any level where it may stand.
//!
//! The rows are read from `docs/reference`, which `weir reference` writes from its tables, and `cargo xtask docs --check` holds
//! equal to them. So a directive that is added is compared without a line here. What this area is for: inheritance. A
//! directive stands in `http`, `server`, a location, one inside, and `if`, each with another value, and the conversation
//! asks for all of them.

use std::fs;
use std::sync::OnceLock;

use crate::case::tree::Node;
use crate::case::{Act, Body, Case, Content, File, Protocol, Request, Upstream};
use crate::random::Dice;

use super::{Generator, tree};

/// A directive as its page says it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The name.
    pub name: String,
    /// What follows it.
    pub syntax: String,
    /// Where it may stand.
    pub contexts: Vec<String>,
}

/// Directives that this area leaves alone: they open or name what the machine itself needs, they make a case slow, or
/// another area has them in the surroundings that they need.
const LEFT_OUT: &[&str] = &[
    "listen",
    "server",
    "location",
    "server_name",
    "include",
    "access_log",
    "error_log",
    "log_format",
    "root",
    "alias",
    "internal",
    "resolver",
    "resolver_timeout",
    "limit_rate",
    "limit_rate_after",
    "post_action",
    "mirror",
    "auth_delay",
    "try_files",
    "types",
    "perl",
    "perl_set",
    "if",
    "limit_except",
    "return",
    "rewrite",
    "break",
    "set",
    "open_file_cache",
    "client_body_in_file_only",
    "server_tokens",
    "early_hints",
    "disable_symlinks",
    "stub_status",
    "empty_gif",
    "flv",
    "mp4",
    "random_index",
    "dav_methods",
    "auth_request",
    "slice",
    "js_content",
    "directio",
    "aio",
    "keepalive_min_timeout",
    "lingering_close",
    "auth_http",
    "create_full_put_path",
    "proxy_bind",
    "fastcgi_bind",
    "uwsgi_bind",
    "scgi_bind",
    "memcached_bind",
    "grpc_bind",
    "userid",
    "userid_mark",
    "userid_p3p",
    "send_lowat",
    "error_page",
    "merge_slashes",
    "http2",
    "http3",
];
const LEFT_OUT_ENDINGS: &[&str] = &[
    "_pass",
    "_temp_path",
    "_zone",
    "_cache",
    "_cache_path",
    "_cache_key",
    "_store",
    "_store_access",
    "_limit_rate",
    "_ssl",
    "_path",
    "_cache_lock",
    "_hash_max_size",
    "_hash_bucket_size",
    "_pool_size",
    "_bind",
    "_block",
    "_file",
    "_purge",
    "_body_set",
    "_index",
    "_next_upstream_tries",
    "_next_upstream_timeout",
];
const LEFT_OUT_PARTS: &[&str] = &[
    "ssl", "http2", "http3", "quic", "lua", "_cache", "_timeout", "_hash_", "perl", "geoip",
    "xslt", "image_", "js_",
];

const REFERENCE: &str = "docs/reference";
const KNOWN: &str = "crates/conf/src/known.tsv";

/// The rows that nginx knows too, in the order of their pages.
fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let known = fs::read_to_string(KNOWN).unwrap_or_default();
        let known: Vec<&str> = known
            .lines()
            .filter_map(|line| line.split('\t').next())
            .collect();
        let mut pages: Vec<_> = fs::read_dir(REFERENCE)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        pages.sort();
        let texts = pages
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok());
        let rows = texts.flat_map(|text| page(&text));
        rows.filter(|row| known.contains(&row.name.as_str()) && !is_left_out(&row.name))
            .collect()
    })
}

fn is_left_out(name: &str) -> bool {
    LEFT_OUT.contains(&name)
        || LEFT_OUT_ENDINGS.iter().any(|end| name.ends_with(end))
        || LEFT_OUT_PARTS.iter().any(|part| name.contains(part))
}

/// The rows of a page.
fn page(text: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for part in text.split("\n### `").skip(1) {
        let line = |title: &str| {
            let prefix = format!("| {title} | ");
            let line = part.lines().find_map(|line| line.strip_prefix(&prefix))?;
            Some(line.trim_end_matches(" |").replace("\\|", "|"))
        };
        let (Some(syntax), Some(contexts)) = (line("Syntax"), line("Context")) else {
            continue;
        };
        let name = part.split('`').next().unwrap_or_default();
        let syntax = syntax.trim_matches('`').trim_end_matches(';');
        let syntax = syntax.strip_prefix(name).unwrap_or(syntax).trim();
        if syntax.contains('{') {
            continue;
        }
        rows.push(Row {
            name: name.to_owned(),
            syntax: syntax.to_owned(),
            contexts: contexts.split(", ").map(str::to_owned).collect(),
        });
    }
    rows
}

/// Values where the syntax does not tell what makes sense.
const VALUES: &[(&str, &[&str])] = &[
    (
        "add_header",
        &[
            "X-A 1",
            "X-A $uri",
            "X-B \"b c\" always",
            "Cache-Control no-store",
            "X-A ''",
            "Last-Modified x",
            "Vary X-Q",
        ],
    ),
    ("add_trailer", &["X-T 1", "X-T $uri always"]),
    (
        "expires",
        &["1h", "-1", "epoch", "max", "off", "modified 1d", "$arg_e"],
    ),
    (
        "default_type",
        &["text/plain", "text/html", "application/x-q", "''"],
    ),
    ("charset", &["utf-8", "off", "koi8-r", "$arg_c"]),
    ("source_charset", &["utf-8", "koi8-r"]),
    (
        "sub_filter",
        &["a b", "'<head>' '<head>x'", "line LINE", "$arg_a z"],
    ),
    ("auth_basic", &["off", "realm", "\"r $uri\""]),
    ("allow", &["all", "127.0.0.1", "10.0.0.0/8"]),
    ("deny", &["all", "127.0.0.1", "10.0.0.0/8"]),
    (
        "index",
        &[
            "index.html",
            "x.html index.html",
            "$arg_i index.html",
            "/b.html",
        ],
    ),
    ("keepalive_timeout", &["0", "10s", "10s 20s"]),
    ("keepalive_requests", &["1", "2", "100"]),
    ("keepalive_disable", &["none", "msie6", "safari"]),
    ("client_max_body_size", &["10", "1k", "0", "1m"]),
    ("large_client_header_buffers", &["4 1k", "2 512", "4 8k"]),
    ("client_header_buffer_size", &["64", "1k"]),
    ("max_ranges", &["0", "1", "2"]),
    ("proxy_method", &["GET", "POST", "$arg_a"]),
    (
        "proxy_set_header",
        &[
            "X-A 1",
            "X-B $uri",
            "Host $host",
            "Accept-Encoding ''",
            "Connection ''",
            "X-C $proxy_add_x_forwarded_for",
        ],
    ),
    ("proxy_set_body", &["abc", "$uri", "''"]),
    (
        "proxy_redirect",
        &[
            "off",
            "default",
            "http://o/ /p/",
            "~^http://(\\w+)/(.*) /$1/$2",
            "/x/ http://$host/",
        ],
    ),
    (
        "proxy_cookie_domain",
        &["off", "o.example $host", "~o(.*) x$1"],
    ),
    ("proxy_cookie_path", &["off", "/ /p/", "~*^/X(.*) /y$1"]),
    (
        "proxy_cookie_flags",
        &["off", "a secure", "~. nosecure httponly samesite=lax"],
    ),
    ("proxy_hide_header", &["X-A", "Date", "Set-Cookie"]),
    ("proxy_pass_header", &["X-A", "Server", "X-Accel-Redirect"]),
    (
        "proxy_ignore_headers",
        &["X-Accel-Redirect", "Expires Cache-Control", "Vary"],
    ),
    (
        "proxy_next_upstream",
        &[
            "off",
            "error timeout",
            "http_500 http_404",
            "non_idempotent",
        ],
    ),
    ("proxy_http_version", &["1.0", "1.1"]),
    ("gzip_types", &["text/plain", "*", "text/css text/plain"]),
    ("gzip_proxied", &["any", "off", "expired no-cache", "auth"]),
    ("gzip_min_length", &["0", "20", "1000"]),
    ("gzip_disable", &["msie6", "curl", "\"a.c\""]),
    ("gzip_http_version", &["1.0", "1.1"]),
    ("gzip_comp_level", &["1", "9"]),
    ("if_modified_since", &["off", "exact", "before"]),
    ("set_real_ip_from", &["127.0.0.0/8", "10.0.0.1"]),
    ("real_ip_header", &["X-Real-IP", "X-Forwarded-For", "X-A"]),
    (
        "valid_referers",
        &["none", "none blocked server_names", "*.example.org", "~x"],
    ),
    ("add_before_body", &["/b.html", "/none"]),
    ("add_after_body", &["/b.html", "$uri.x"]),
    ("output_buffers", &["1 1k", "2 32k"]),
    ("proxy_buffers", &["4 1k", "8 4k", "2 512"]),
    ("proxy_buffer_size", &["512", "1k", "4k"]),
    ("proxy_busy_buffers_size", &["1k", "4k"]),
    ("proxy_max_temp_file_size", &["0", "1m"]),
    ("proxy_temp_file_write_size", &["8k"]),
    ("satisfy", &["any", "all"]),
    ("port_in_redirect", &["off", "on"]),
    ("ssi_types", &["text/plain", "*"]),
    ("sub_filter_types", &["text/plain", "*"]),
    ("charset_types", &["text/plain", "*", "text/css"]),
    ("addition_types", &["text/plain", "*"]),
    ("max_headers", &["1", "2", "100"]),
];

/// A value for a row, by its own list or by the words of its syntax.
fn value(row: &Row, dice: &mut Dice) -> Option<String> {
    if let Some((_, values)) = VALUES.iter().find(|(name, _)| *name == row.name) {
        return Some(dice.word(values).to_owned());
    }
    let alternatives: Vec<&str> = row.syntax.split(" | ").collect();
    let chosen = alternatives[dice.below(alternatives.len())];
    let mut words = Vec::new();
    for word in chosen.split(' ') {
        let word = match word {
            "" => continue,
            "number" | "n" | "level" => dice.word(&["1", "2", "5"]),
            "size" | "length" => dice.word(&["0", "100", "1k", "8k"]),
            "time" => dice.word(&["1s", "10s"]),
            "mime-type" => dice.word(&["text/plain", "text/html"]),
            "value" | "string" | "text" => dice.word(&["x", "$uri", "\"a b\""]),
            "…" | "..." => continue,
            optional if optional.starts_with('[') => continue,
            plain
                if plain
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit()) =>
            {
                plain
            }
            _ => return None,
        };
        words.push(word);
    }
    (!words.is_empty()).then(|| words.join(" "))
}

/// A directive for this context.
fn directive(context: &str, wanted: Option<&str>, dice: &mut Dice) -> Option<(String, String)> {
    let fitting: Vec<&Row> = rows()
        .iter()
        .filter(|row| row.contexts.iter().any(|known| known == context))
        .filter(|row| wanted.is_none_or(|name| name == row.name))
        .collect();
    if fitting.is_empty() {
        return None;
    }
    let row = fitting[dice.below(fitting.len())];
    let value = value(row, dice)?;
    Some((row.name.clone(), format!("{} {value};\n", row.name)))
}

pub(super) struct Rows;

impl Generator for Rows {
    fn area(&self) -> &'static str {
        "rows"
    }

    fn ambient(&self, dice: &mut Dice) -> Vec<Node> {
        let mut text = String::new();
        for _ in 0..dice.below(4) {
            // One that is refused here would take the whole start with it.
            let names: Vec<&str> = SAFE.to_vec();
            let name = dice.word(&names);
            if let Some((_, line)) = directive("http", Some(name), dice) {
                text.push_str(&line);
            }
        }
        tree(&text)
    }

    fn case(&self, dice: &mut Dice) -> Case {
        // A few directives are chosen and stand at several levels, so that they meet themselves.
        let mut chosen: Vec<String> = Vec::new();
        for _ in 0..dice.between(1, 3) {
            chosen.extend(directive("location", None, dice).map(|(name, _)| name));
        }
        let some = |context: &str, dice: &mut Dice| {
            let mut text = String::new();
            for name in &chosen {
                if dice.chance(1, 2)
                    && let Some((_, line)) = directive(context, Some(name), dice)
                {
                    text.push_str(&line);
                }
            }
            if dice.chance(1, 6) {
                text.extend(directive(context, None, dice).map(|(_, line)| line));
            }
            text
        };
        let handler = dice.word(&[
            "",
            "",
            "proxy_pass http://%%UP0%%;",
            "return 200 \"$uri line a b\";",
            "proxy_pass http://%%UP0%%;",
        ]);
        let text = format!(
            "server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n{server}\
             location / {{ {root} {handler}\n location /in/ {{ {inside} {handler}\n if ($arg_q) {{ {deep} }} }}\n if ($arg_q) {{ {branch} }} }}\n\
             location /plain/ {{ {handler} }}\nlocation /other/ {{ {other} }} }}\n",
            server = some("server", dice),
            root = some("location", dice),
            inside = some("location", dice),
            deep = some("if in location", dice),
            branch = some("if in location", dice),
            other = some("location", dice),
        );
        let mut case = Case {
            http: tree(&text),
            files: files(),
            upstreams: vec![upstream(dice)],
            ..Case::default()
        };
        for _ in 0..dice.between(4, 8) {
            case.ask(request(dice));
        }
        case
    }
}

/// Directives that are accepted in `http` with any of their values.
const SAFE: &[&str] = &[
    "add_header",
    "expires",
    "charset",
    "gzip",
    "gzip_min_length",
    "gzip_types",
    "gzip_vary",
    "default_type",
    "index",
    "etag",
    "if_modified_since",
    "max_ranges",
    "ssi",
    "sub_filter",
    "sub_filter_once",
    "autoindex",
    "keepalive_requests",
    "absolute_redirect",
    "chunked_transfer_encoding",
    "proxy_set_header",
    "proxy_hide_header",
    "proxy_intercept_errors",
    "proxy_buffering",
    "recursive_error_pages",
    "client_max_body_size",
    "msie_padding",
    "add_trailer",
    "satisfy",
];

fn files() -> Vec<File> {
    let file = |path: &str, content: Content| File {
        path: path.to_owned(),
        content,
    };
    let page = "<html><head><title>a</title></head><body>a line b\n<!--# echo var=\"uri\" -->\n</body></html>\n";
    vec![
        file("html/index.html", Content::new(page)),
        file("html/b.html", Content::new("b line a\n")),
        file(
            "html/in/index.html",
            Content::new(page).and("more a b\n", 40),
        ),
        file(
            "html/in/x.txt",
            Content::repeated("a line of text b\n", 100),
        ),
        file("html/other/index.html", Content::new(page)),
        file("html/other/x.txt", Content::repeated("other a line b\n", 9)),
        file("html/plain/x.txt", Content::new("plain a b\n")),
        file("html/plain/x.css", Content::new("a { b: c }\n")),
    ]
}

fn upstream(dice: &mut Dice) -> Upstream {
    let fields = dice.word(&[
        "",
        "X-A: 1\r\n",
        "Set-Cookie: a=b; Domain=o.example; Path=/x\r\n",
        "Cache-Control: max-age=60\r\nExpires: Thu, 01 Jan 2032 00:00:00 GMT\r\n",
        "Location: http://o/x\r\n",
        "ETag: \"q\"\r\nLast-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
        "X-Accel-Redirect: /b.html\r\n",
        "X-Accel-Charset: koi8-r\r\n",
        "Date: Sun, 09 Sep 2001 01:46:40 GMT\r\nServer: s\r\n",
        "Vary: Accept\r\n",
    ]);
    let status = dice.word(&[
        "200 OK",
        "200 OK",
        "200 OK",
        "404 Not Found",
        "302 Found",
        "500 Oops",
        "206 Partial Content",
        "304 Not Modified",
        "204 No Content",
    ]);
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{fields}");
    let bodiless = status.starts_with("304") || status.starts_with("204");
    let content = if bodiless {
        Content::new(format!("{head}\r\n"))
    } else if dice.chance(1, 2) {
        Content::new(format!("{head}Content-Length: 14\r\n\r\na line b <p>x\n"))
    } else {
        Content::new(format!(
            "{head}Transfer-Encoding: chunked\r\n\r\n5\r\na lin\r\n9\r\ne b <p>x\n\r\n0\r\n\r\n"
        ))
    };
    Upstream {
        protocol: Protocol::Http,
        answers: vec![vec![Act::Send(content), Act::Close]],
    }
}

fn request(dice: &mut Dice) -> Request {
    let target = dice.word(&[
        "/",
        "/b.html",
        "/in/",
        "/in/x.txt",
        "/in/x.txt?q=1",
        "/?q=1",
        "/plain/x.txt",
        "/plain/x.css",
        "/other/",
        "/other/x.txt",
        "/none",
        "/in",
        "/in/none?q=1&e=1h",
        "/other/none",
        "/b.html?q=1&a=GET&e=max&c=koi8-r",
        "/plain/",
    ]);
    let method = dice.word(&["GET", "GET", "GET", "GET", "HEAD", "POST"]);
    let mut request = Request::new(method, target);
    if method == "POST" {
        request = request.body(Body::Length(Content::repeated(
            "body ",
            dice.word(&["1", "30", "300"]).parse().unwrap_or(1),
        )));
    }
    let extra = [
        ("Accept-Encoding", "gzip"),
        ("Range", "bytes=0-4"),
        ("If-Modified-Since", "Sun, 09 Sep 2001 01:46:40 GMT"),
        ("X-A", "1"),
        ("X-Real-IP", "10.1.1.1"),
        ("X-Forwarded-For", "10.1.1.1, 127.0.0.1"),
        ("Referer", "http://x.example.org/"),
        ("Cookie", "a=b"),
        ("Range", "bytes=0-1,3-4"),
        ("User-Agent", "Mozilla/4.0 (compatible; MSIE 6.0; x)"),
        ("Connection", "close"),
        ("Via", "1.1 x"),
    ];
    for _ in 0..dice.below(3) {
        let (name, value) = dice.pick(&extra);
        request = request.with(name, value);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_rows() {
        let text = "# x\n\n## Directives\n\n### `etag`\n\n| | |\n|---|---|\n| Syntax | `etag on \\| off;` |\n| Default | `etag on;` |\n| Context | http, server |\n";
        let rows = page(text);
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (rows[0].name.as_str(), rows[0].syntax.as_str()),
            ("etag", "on | off")
        );
        assert_eq!(rows[0].contexts, ["http", "server"]);
    }
}
