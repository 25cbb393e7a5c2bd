//! The error log: what other areas ask, and what goes wrong on purpose, with a log of its own for each case. People's filters
//! and watchers read these lines.

use crate::case::{Act, Body, Case, Content, Protocol, Request, Step, Upstream};
use crate::random::Dice;

use super::pieces::file;
use super::{
    Generator, caches, conversations, filters, gates, gateways, http2, locations, proxying,
    statics, tls, tree,
};

pub(super) struct ErrorLogs;

/// Whose cases are asked again.
const OTHERS: &[&dyn Generator] = &[
    &conversations::Conversations,
    &statics::Statics,
    &proxying::Proxying,
    &gateways::Gateways,
    &gates::Gates,
    &locations::Locations,
    &filters::Filters,
    &caches::Caches,
    &http2::Http2,
    &tls::Tls,
];

/// What is refused, or fails, and by what.
const FAILURES: &[&str] = &[
    "deny all;",
    "deny 127.0.0.0/8; satisfy any; auth_basic x; auth_basic_user_file %%DIR%%/users;",
    "auth_basic \"a b\"; auth_basic_user_file %%DIR%%/users;",
    "auth_basic x; auth_basic_user_file %%DIR%%/nobody;",
    "auth_request /denied;",
    "auth_request /broken;",
    "client_max_body_size 3;",
    "limit_except HEAD { deny all; }",
    "internal;",
    "index none.html;",
    "try_files $uri.none $uri/none;",
    "try_files /none @nowhere;",
    "error_page 404 /loop/none;",
    "error_page 404 = @nowhere;",
    "rewrite ^ /loop/none last;",
    "rewrite ^ $uri last;",
    "rewrite_log on; rewrite ^(.*)$ $1x last;",
    "limit_req zone=r%%N%%;",
    "limit_req zone=r%%N%%; limit_req_log_level warn;",
    "limit_req zone=r%%N%% burst=1 nodelay; limit_req_dry_run on;",
    "limit_conn c%%N%% 0;",
    "proxy_pass http://%%UP0%%;",
    "proxy_pass http://%%UP0%%/x$arg_a;",
    "proxy_pass http://%%UP1%%;",
    "proxy_pass http://g%%N%%;",
    "proxy_pass http://none.invalid$uri;",
    "proxy_pass http://$arg_a;",
    "fastcgi_pass %%UP1%%;",
    "fastcgi_pass %%UP0%%;",
    "uwsgi_pass %%UP0%%;",
    "scgi_pass %%UP1%%;",
    "memcached_pass %%UP1%%; set $memcached_key x;",
    "memcached_pass %%UP0%%; set $memcached_key none;",
    "memcached_pass %%UP0%%;",
    "client_body_buffer_size 8; proxy_pass http://%%UP0%%;",
    "proxy_buffer_size 64; proxy_buffers 2 64; proxy_busy_buffers_size 64; proxy_pass http://%%UP0%%;",
    "alias %%OWN%%/; dav_methods PUT DELETE MKCOL COPY MOVE;",
    "autoindex off;",
    "return 444;",
    "gzip_static always;",
    "add_before_body /none; add_after_body /denied;",
    "ssi on; ssi_types *;",
    "disable_symlinks on;",
    "alias %%DIR%%/html/none/;",
    "random_index on;",
    "secure_link $arg_a; secure_link_md5 x;",
    "log_not_found off;",
    "log_subrequest on; mirror /broken;",
    "userid on;",
    "slice 5; proxy_pass http://%%UP0%%;",
    "subrequest_output_buffer_size 1; ssi on; ssi_types *;",
];

/// What the server behind does, if it does not answer.
const WRONGS: &[&str] = &[
    "",
    "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nlonger than that",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "HTTP/1.1 200 OK\r\nX: y",
    "HTTP/1.1 200 OK\r\nno colon\r\n\r\nx",
    "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /none\r\n\r\n",
    "HTTP/1.1 200 OK\r\nX-Accel-Redirect: @nowhere\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: text/html\r\n\r\nno gzip",
    "HTTP/1.1 500 Oops\r\nContent-Length: 1\r\n\r\nx",
    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 40\r\n\r\n<!--#include virtual=\"/none\" --> <!--#if",
];

/// The same for memcached.
const MEMCACHED_WRONGS: &[&str] = &[
    "",
    "END\r\n",
    "VALUE x 0 5\r\nhello\r\nEND\r\n",
    "VALUE none 0 5\r\nhel",
    "VALUE none 0 x\r\nhel",
    "SERVER_ERROR out of memory\r\n",
];

/// Heads that are refused, or of which something is overlooked. `\n` stands for CR LF.
const HEADS: &[&str] = &[
    "GET / HTTP/1.1\n\n",
    "GET / HTTP/9.9\nHost: a\n\n",
    "GET /%00 HTTP/1.1\nHost: a\n\n",
    "GET /../x HTTP/1.1\nHost: a\n\n",
    "get / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\nHost: a b\n\n",
    "GET / HTTP/1.1\nHost: a\nHost: b\n\n",
    "GET / HTTP/1.1\nHost: a\nX A: 1\n\n",
    "GET / HTTP/1.1\nHost: a\nX_A: 1\n\n",
    "POST / HTTP/1.1\nHost: a\nContent-Length: x\n\n",
    "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: gzip\n\n",
    "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nContent-Length: 3\n\n0\n\n",
    "POST /0/ HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\nx\n",
    "TRACE / HTTP/1.1\nHost: a\n\n",
    "CONNECT a:80 HTTP/1.1\nHost: a\n\n",
    "GET http://u@h/x HTTP/1.1\nHost: a\n\n",
    "GET /0/x\"y HTTP/1.1\nHost: a\nReferer: http://x/\"y\n\n",
    "GET /0/%ff HTTP/1.1\nHost: a\nReferer: r\n\n",
    "GET /none HTTP/1.1\nReferer: \u{e4}\nHost: a\n\n",
];

impl Generator for ErrorLogs {
    fn area(&self) -> &'static str {
        "error-log"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut case = match dice.chance(1, 2) {
            true => dice.pick(OTHERS).case(dice),
            false => failing(dice),
        };
        let level = dice.word(&["error", "warn"]);
        let line = format!("error_log %%OWN%%/error.log {level};\n");
        for node in &mut case.http {
            if node.name() == "server"
                && let Some(children) = node.children_mut()
            {
                children.splice(0..0, tree(&line));
            }
        }
        case
    }
}

/// Several locations in which something fails.
fn failing(dice: &mut Dice) -> Case {
    let mut text = String::from(
        "limit_req_zone $server_port zone=r%%N%%:1m rate=1r/m;\nlimit_conn_zone $server_port zone=c%%N%%:1m;\n\
         upstream g%%N%% { server %%UP1%%; server %%UP0%% backup; }\n\
         server { listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n\
         location = /denied { deny all; }\nlocation = /broken { proxy_pass http://%%UP1%%; }\n\
         location /loop/ { error_page 404 /loop/none; }\n",
    );
    // One server cannot speak both.
    let has_memcached = dice.chance(1, 5);
    let speaks = |line: &str| {
        let asks = line.contains("%%UP0%%") || line.contains("g%%N%%");
        !asks || line.contains("memcached_pass") == has_memcached
    };
    let mut i = 0;
    while i < 4 {
        let line = dice.word(FAILURES);
        if speaks(line) {
            text.push_str(&format!("location /{i}/ {{ {line} }}\n"));
            i += 1;
        }
    }
    text.push_str("}\n");
    let wrongs = if has_memcached {
        MEMCACHED_WRONGS
    } else {
        WRONGS
    };
    let answers = (0..3).map(|_| {
        let end = dice.pick(&[Act::Close, Act::Close, Act::Reset]).clone();
        vec![Act::Send(Content::new(dice.word(wrongs))), end]
    });
    let answers = answers.collect();
    let behind = |protocol, answers| Upstream { protocol, answers };
    let mut case = Case {
        http: tree(&text),
        files: vec![
            file("html/index.html", "index\n"),
            file(
                "html/0/index.html",
                "<!--#include virtual=\"/none\" --> <!--#foo -->\n",
            ),
            file("html/1/x.txt", "0123456789\n"),
            file(
                "users",
                "u:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00\nv:{PLAIN}w\n",
            ),
        ],
        upstreams: vec![
            behind(Protocol::Tcp, answers),
            behind(Protocol::Http, Vec::new()),
        ],
        ..Case::default()
    };
    for _ in 0..dice.between(3, 6) {
        match dice.chance(1, 5) {
            true => refused(dice, &mut case),
            false => case.ask(asked(dice)),
        }
    }
    case
}

/// A head that is refused, or of which something is overlooked.
fn refused(dice: &mut Dice, case: &mut Case) {
    let connection = case.next_connection();
    let bytes = Content::new(dice.word(HEADS).replace('\n', "\r\n"));
    case.talk.push(Step::Connect {
        connection,
        port: 0,
    });
    case.talk.push(Step::Send { connection, bytes });
    case.talk.push(Step::Read { connection });
    case.talk.push(Step::Close { connection });
}

/// A request to one of the locations.
fn asked(dice: &mut Dice) -> Request {
    let name = dice.word(&["", "x.txt", "none", "index.html", "a%20b", "?a=1", "x%22y"]);
    let target = format!("/{}/{name}", dice.below(4));
    let method = dice.word(&[
        "GET", "GET", "GET", "POST", "HEAD", "PUT", "DELETE", "MKCOL", "COPY",
    ]);
    let mut request = Request::new(method, &target);
    if dice.chance(1, 3) {
        request = request.with(
            "Authorization",
            dice.word(&["Basic dTp4", "Basic djp3", "Basic Og==", "Basic x"]),
        );
    }
    if dice.chance(1, 4) {
        request = request.with("Referer", "http://example.org/?\"q\"");
    }
    if dice.chance(1, 8) {
        request = request.with("Range", "bytes=0-3");
    }
    if method == "POST" || method == "PUT" {
        let content = Content::repeated("content ", *dice.pick(&[1, 10]));
        request.body = match dice.chance(1, 2) {
            true => Body::Length(content),
            false => Body::Chunked(vec![content], Vec::new()),
        };
    }
    request
}
