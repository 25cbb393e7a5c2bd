//! What decides who comes in, and by which values: access, passwords, limits, maps, the client's address, referers, links.

use crate::case::Case;
use crate::random::Dice;

use super::pieces::{file, request};
use super::{Generator, tree};

pub(super) struct Gates;

const MAPS: &[&str] = &[
    "map $arg_a $m%%N%% { default d; 1 one; ~^2 two; ~*x(?<cap>.*) \"cap $cap\"; '' empty; }",
    "map $uri $m%%N%% { hostnames; default d; *.html h; /a.txt t; ~\\.txt$ r; }",
    "map $host $m%%N%% { hostnames; default d; localhost l; .example.org e; www.* w; *.a.example a; }",
    "map $http_x_a:$arg_a $m%%N%% { volatile; default $uri; 1: \"one $args\"; ~^:(.+) $1; }",
    "geo $m%%N%% { default d; 127.0.0.0/8 local; 10.0.0.0/8 ten; }",
    "geo $arg_a $m%%N%% { ranges; default d; 10.0.0.0-10.0.0.255 r; 127.0.0.1-127.0.0.1 l; }",
    "geo $http_x_forwarded_for $m%%N%% { proxy 127.0.0.1; default d; 10.0.0.1 x; delete 10.0.0.1; 10.0.0.0/24 y; }",
    "split_clients \"$arg_a\" $m%%N%% { 10% a; 50% b; * c; }",
    "split_clients \"${http_x_a}z\" $m%%N%% { 33.3% a; 33.3% b; }",
    "map $cookie_a $m%%N%% { 1 a; default ''; }",
    "map $status $m%%N%% { 200 ok; default no; }",
];

const SWITCHES: &[&str] = &[
    "allow 127.0.0.1; deny all;",
    "deny 127.0.0.1;",
    "allow 10.0.0.0/8; deny all;",
    "allow ::1; deny all;",
    "satisfy any;",
    "satisfy all;",
    "auth_basic r;",
    "auth_basic off;",
    "auth_basic \"r $uri\";",
    "auth_basic_user_file %%DIR%%/users;",
    "auth_basic_user_file %%DIR%%/none;",
    "set_real_ip_from 127.0.0.0/8;",
    "set_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For;",
    "set_real_ip_from 127.0.0.0/8; set_real_ip_from 10.0.0.2; real_ip_header X-Forwarded-For; real_ip_recursive on;",
    "valid_referers none blocked server_names *.example.org;",
    "valid_referers ~example; if ($invalid_referer) { return 403 $invalid_referer; }",
    "if ($invalid_referer) { return 403; }",
    "secure_link $arg_s,$arg_e; secure_link_md5 \"$secure_link_expires$uri k\";",
    "secure_link_secret k;",
    "if ($secure_link = '') { return 403; }",
    "if ($secure_link = 0) { return 410; }",
    "limit_req zone=r%%N%%;",
    "limit_req zone=r%%N%% burst=1 nodelay;",
    "limit_req_status 429;",
    "limit_req_dry_run on;",
    "limit_req_log_level info;",
    "limit_conn c%%N%% 9;",
    "limit_conn_status 429;",
    "limit_conn_dry_run on;",
    "auth_request /auth;",
    "auth_request_set $v $upstream_http_x_a;",
    "auth_request off;",
    "limit_except GET { deny all; }",
    "limit_except GET POST { auth_basic r; }",
    "error_page 403 /403.html;",
    "error_page 401 =200 /403.html;",
    "error_page 403 =404 @n;",
    "add_header X-V \"$m%%N%%\" always;",
    "add_header X-V \"$secure_link $invalid_referer $remote_user\" always;",
    "userid on; userid_name u; userid_expires max;",
    "if ($m%%N%%) { return 200 \"m $m%%N%%\"; }",
    "if ($m%%N%% ~ ^(.)) { set $v $1; }",
    "root %%DIR%%/html/$m%%N%%;",
    "return 200 \"$m%%N%% $v\";",
    "ancient_browser MSIE; modern_browser gecko 1.0; add_header X-V \"$ancient_browser $modern_browser $msie\";",
    "keepalive_disable none;",
    "internal;",
    "deny all; allow all;",
];

impl Generator for Gates {
    fn area(&self) -> &'static str {
        "gates"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let map = dice.word(MAPS);
        let server: Vec<&str> = dice
            .some(SWITCHES, 2)
            .into_iter()
            .filter(|line| {
                !line.starts_with("internal")
                    && !line.starts_with("limit_except")
                    && !line.contains("secure_link_secret")
            })
            .collect();
        let text = format!(
            "{map}\nlimit_req_zone {} zone=r%%N%%:64k rate=1r/m;\nlimit_conn_zone $binary_remote_addr zone=c%%N%%:64k;\n\
             server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html; set $v '';\n{}\nlocation / {{ {} }}\nlocation /s/ {{ {} location /s/in/ {{ {} }} }}\n\
             location = /auth {{ {} }}\nlocation = /403.html {{ {} }}\nlocation @n {{ return 200 \"named $uri\"; }} }}\n",
            dice.word(&["$binary_remote_addr", "$arg_a", "$uri", "$http_x_a"]),
            server.join("\n"),
            dice.some(SWITCHES, 4).join("\n"),
            dice.some(SWITCHES, 4).join("\n"),
            dice.some(SWITCHES, 2).join("\n"),
            dice.word(&[
                "return 204;",
                "return 401;",
                "return 403;",
                "return 500;",
                "return 200;",
                "if ($http_x_a) { return 403; } return 204;",
                "return 302 /x;"
            ]),
            dice.word(&["", "allow all;", "internal;", "auth_request off;"])
        );
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file(
                    "users",
                    "a:b\nc:{PLAIN}d\na:second\nx:$apr1$saltsalt$TMF5vWYuD9jGtFfBzTVaH/\n#c:x\ns:{SHA}4tgzDrXCvGLjCjYB/3mGKZQ7bVk=\n",
                ),
                file("html/index.html", "index\n"),
                file("html/a.txt", "a\n"),
                file("html/403.html", "page 403\n"),
                file("html/s/index.html", "s index\n"),
                file("html/s/in/a.txt", "s in a\n"),
            ],
            ..Case::default()
        };
        for _ in 0..dice.between(3, 7) {
            let target = dice.word(&[
                "/",
                "/a.txt",
                "/a.txt?a=1",
                "/a.txt?a=2x",
                "/?a=xyz",
                "/s/",
                "/s/in/a.txt",
                "/s/in/a.txt?a=10.0.0.1",
                "/403.html",
                "/auth",
                "/none",
                "/?s=x&e=2147483647",
                "/s/5d1e9a4a1f0d2b3c4d5e6f708192a3b4/l",
                "/?a=127.0.0.1",
            ]);
            let mut request = request(dice, target, 2);
            if dice.chance(1, 4) {
                request = request.with(
                    "Authorization",
                    dice.word(&[
                        "Basic YTpi",
                        "Basic YzpkCg==",
                        "basic YTpi",
                        "Basic !",
                        "Basic",
                        "Bearer x",
                        "Basic YTo=",
                        "Basic Yzpk",
                        "Basic  YTpi",
                    ]),
                );
            }
            if dice.chance(1, 4) {
                let host = dice.word(&[
                    "www.example.org",
                    "x.a.example",
                    "LOCALHOST",
                    "localhost:80",
                    "localhost.",
                    "www.x",
                    "a_b",
                ]);
                request.fields[0].1 = host.to_owned();
            }
            case.ask(request);
        }
        case
    }
}
