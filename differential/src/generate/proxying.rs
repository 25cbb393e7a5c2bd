//! Proxying over HTTP/1: what a server behind is asked, what becomes of its answer, and of one that breaks.

use crate::case::Case;
use crate::random::Dice;

use super::pieces::{file, request, upstream};
use super::{Generator, tree};

pub(super) struct Proxying;

const SWITCHES: &[&str] = &[
    "proxy_buffering off;",
    "proxy_request_buffering off;",
    "proxy_http_version 1.1;",
    "proxy_http_version 1.0;",
    "proxy_method POST;",
    "proxy_method $arg_m;",
    "proxy_set_header Host $host;",
    "proxy_set_header X-A $http_x_a;",
    "proxy_set_header Connection '';",
    "proxy_set_header Accept-Encoding '';",
    "proxy_set_header X-Real-IP $remote_addr;",
    "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    "proxy_set_header Content-Length '';",
    "proxy_pass_request_headers off;",
    "proxy_pass_request_body off;",
    "proxy_set_body 'x $uri';",
    "proxy_hide_header X-A;",
    "proxy_hide_header Set-Cookie;",
    "proxy_pass_header Server;",
    "proxy_pass_header Date;",
    "proxy_pass_header X-Accel-Redirect;",
    "proxy_ignore_headers X-Accel-Redirect X-Accel-Charset;",
    "proxy_ignore_headers X-Accel-Buffering X-Accel-Limit-Rate;",
    "proxy_intercept_errors on;",
    "error_page 404 500 502 503 504 /error.html;",
    "error_page 404 =200 @other;",
    "error_page 502 =200 @other;",
    "error_page 401 403 416 412 429 /error.html;",
    "proxy_redirect off;",
    "proxy_redirect http://o.example/ /p/;",
    "proxy_redirect ~^http://([^/]+)/(.*)$ /$1/$2;",
    "proxy_redirect default;",
    "proxy_cookie_domain o.example here.example;",
    "proxy_cookie_path /x/ /z/;",
    "proxy_cookie_path ~*^/(.*) /p/$1;",
    "proxy_cookie_flags a secure samesite=strict;",
    "proxy_cookie_flags ~ nosecure;",
    "proxy_next_upstream error timeout http_500 http_404;",
    "proxy_next_upstream off;",
    "proxy_next_upstream error invalid_header non_idempotent;",
    "proxy_next_upstream_tries 1;",
    "proxy_read_timeout 600ms;",
    "proxy_buffer_size 512;",
    "proxy_buffer_size 1k; proxy_buffers 2 1k; proxy_busy_buffers_size 1k;",
    "proxy_max_temp_file_size 0;",
    "proxy_force_ranges on;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "gunzip on;",
    "gzip_proxied any;",
    "charset utf-8;",
    "add_header X-B b always;",
    "add_header X-S $upstream_status;",
    "expires 1h;",
    "etag off;",
    "chunked_transfer_encoding off;",
    "client_max_body_size 1k;",
    "client_body_buffer_size 128;",
    "keepalive_requests 1;",
    "default_type text/plain;",
    "if ($http_x_a) { proxy_pass http://%%UP1%%; }",
    "if ($http_x_a) { set $v x; }",
    "rewrite ^/p/(.*)$ /q/$1 break;",
    "rewrite ^/p/(.*)$ /q/$1?z=1 break;",
    "limit_except GET HEAD { deny all; }",
    "proxy_socket_keepalive on;",
    "proxy_ignore_client_abort on;",
    "proxy_connect_timeout 1s;",
    "proxy_headers_hash_max_size 1024;",
    "proxy_hide_header Date; proxy_hide_header Server;",
    "sub_filter line LINE;",
    "ssi on;",
    "proxy_pass_header Status;",
    "if_modified_since off;",
    "proxy_limit_rate 100m;",
    "client_body_in_single_buffer on;",
    "client_body_in_file_only clean;",
    "max_ranges 0;",
    "proxy_allow_upstream yes;",
];

const PASSES: &[&str] = &[
    "http://%%UP0%%",
    "http://%%UP0%%/",
    "http://%%UP0%%/base",
    "http://%%UP0%%/base/",
    "http://group%%N%%",
    "http://group%%N%%/base/",
    "http://%%UP0%%$request_uri",
    "http://%%UP0%%/v$uri",
    "http://${arg_h}%%UP0%%",
    "http://%%UP0%%/a%20b/",
    "http://%%UP0%%/?x=",
    "http://group%%N%%$uri$is_args$args",
];

impl Generator for Proxying {
    fn area(&self) -> &'static str {
        "proxy"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let group = dice.word(&[
            "server %%UP0%%;",
            "server %%UP0%%; server %%UP1%%;",
            "server %%UP0%% max_fails=1; server %%UP1%% backup;",
            "server %%UP0%%; keepalive 2;",
            "server %%UP0%% weight=3; server %%UP1%%;",
            "server %%UP2%%; server %%UP0%%;",
            "least_conn; server %%UP0%%; server %%UP1%%;",
            "server %%UP0%% down; server %%UP1%%;",
            "ip_hash; server %%UP0%%; server %%UP1%%;",
        ]);
        let text = format!(
            "upstream group%%N%% {{ {group} }}\nserver {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n{}\n\
             location / {{ proxy_pass http://%%UP0%%; {} }}\nlocation /p/ {{ proxy_pass {}; {} }}\nlocation ~ ^/r/(.*)$ {{ proxy_pass {}; {} }}\n\
             location = /error.html {{ }}\nlocation /inside/ {{ internal; }}\nlocation @other {{ {} }} }}\n",
            at_server(&dice.some(SWITCHES, 2).join("\n")),
            dice.some(SWITCHES, 3).join("\n"),
            dice.word(PASSES),
            dice.some(SWITCHES, 4).join("\n"),
            dice.word(&[
                "http://%%UP0%%",
                "http://group%%N%%",
                "http://%%UP0%%/$1",
                "http://group%%N%%/$1$is_args$args"
            ]),
            dice.some(SWITCHES, 2).join("\n"),
            dice.word(&[
                "return 200 other;",
                "proxy_pass http://%%UP1%%;",
                "try_files /error.html =500;"
            ]),
        );
        let text = text.replace("proxy_allow_upstream yes;", "");
        let unused = crate::case::Upstream {
            protocol: crate::case::Protocol::Http,
            answers: Vec::new(),
        };
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/error.html", "error page\n"),
                file("html/inside/x.txt", "inside x\n"),
            ],
            upstreams: vec![upstream(dice, true), upstream(dice, false), unused],
            ..Case::default()
        };
        for _ in 0..dice.between(2, 5) {
            let target = dice.word(&[
                "/",
                "/p/",
                "/p/a",
                "/p/a%20b?c=d",
                "/p/../x",
                "/p//a",
                "/r/x",
                "/r/a/b?c",
                "/p/%41",
                "/x?a=1&m=PUT",
                "/p/a?",
                "/p/a+b",
                "/P/",
                "/p/%2e%2e/y",
                "/p/é",
                "/p/a%3Fb",
                "/p/a%2Fb",
                "/p/;x=y",
            ]);
            case.ask(request(dice, target, 3));
        }
        case
    }
}

/// What a server may have of the directives of a location.
fn at_server(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("limit_except") && !line.starts_with("if "));
    lines.collect::<Vec<_>>().join("\n")
}
