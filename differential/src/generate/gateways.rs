//! FastCGI, uwsgi, SCGI and memcached: parameters, heads of CGI, ends of answers.

use crate::case::{Act, Case, Content, Protocol, Upstream};
use crate::random::Dice;

use super::pieces::{RESPONSE_FIELDS, file, request};
use super::{Generator, tree};

pub(super) struct Gateways;

const SWITCHES: &[&str] = &[
    "P_buffering off;",
    "P_request_buffering off;",
    "P_param A $uri;",
    "P_param B $args;",
    "P_param HTTP_X_A x;",
    "P_param Q $query_string if_not_empty;",
    "P_param EMPTY '';",
    "P_param E '' if_not_empty;",
    "P_pass_request_headers off;",
    "P_pass_request_body off;",
    "P_hide_header X-A;",
    "P_pass_header Status;",
    "P_pass_header X-Accel-Redirect;",
    "P_ignore_headers X-Accel-Redirect Expires;",
    "P_intercept_errors on;",
    "error_page 404 500 502 503 /error.html;",
    "error_page 404 =200 /error.html;",
    "P_buffer_size 512;",
    "P_max_temp_file_size 0;",
    "P_force_ranges on;",
    "P_next_upstream http_500 error;",
    "P_read_timeout 600ms;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "charset utf-8;",
    "add_header X-B b always;",
    "expires 1h;",
    "client_max_body_size 1k;",
    "default_type text/plain;",
    "sub_filter line LINE;",
    "client_body_buffer_size 128;",
    "if ($http_x_a) { set $v 1; }",
    "P_ignore_client_abort on;",
    "P_limit_rate 100m;",
    "chunked_transfer_encoding off;",
];

impl Generator for Gateways {
    fn area(&self) -> &'static str {
        "gateways"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let (name, protocol) = *dice.pick(&[
            ("fastcgi", Protocol::FastCgi),
            ("fastcgi", Protocol::FastCgi),
            ("uwsgi", Protocol::Uwsgi),
            ("scgi", Protocol::Scgi),
            ("memcached", Protocol::Memcached),
        ]);
        if protocol == Protocol::Memcached {
            return memcached(dice);
        }
        let mut lines = dice.some(SWITCHES, 4).join("\n");
        if protocol == Protocol::FastCgi {
            let own = [
                "fastcgi_index index.php;",
                "fastcgi_split_path_info ^(.+\\.php)(/.*)$; fastcgi_param PATH_INFO $fastcgi_path_info;",
                "fastcgi_keep_conn on;",
                "fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;",
                "fastcgi_param SCRIPT_NAME $fastcgi_script_name;",
            ];
            lines.push('\n');
            lines.push_str(&dice.some(&own, 3).join("\n"));
        }
        let lines = lines.replace("P_", &format!("{name}_"));
        let standard = if protocol == Protocol::Scgi || dice.chance(1, 2) {
            format!(
                "{name}_param REQUEST_METHOD $request_method; {name}_param CONTENT_LENGTH $content_length; {name}_param SCRIPT $uri;"
            )
        } else {
            String::new()
        };
        let text = format!(
            "server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n{name}_param OUTER o;\nlocation / {{ {name}_pass %%UP0%%; {lines} {standard} }}\n\
             location /o/ {{ {name}_pass %%UP0%%; }}\nlocation = /error.html {{ }}\nlocation /inside/ {{ internal; }} }}\n"
        );
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/error.html", "error page\n"),
                file("html/inside/x.txt", "inside x\n"),
            ],
            upstreams: vec![Upstream {
                protocol,
                answers: (0..dice.between(1, 3)).map(|_| answer(dice)).collect(),
            }],
            ..Case::default()
        };
        for _ in 0..dice.between(2, 5) {
            let target = dice.word(&[
                "/",
                "/x.php",
                "/x.php/info?a=b",
                "/o/x",
                "/a/",
                "/a%20b.php?c=%20",
                "/x.php?",
                "/o/",
            ]);
            case.ask(request(dice, target, 3));
        }
        case
    }
}

pub(super) fn answer(dice: &mut Dice) -> Vec<Act> {
    let mut head = String::new();
    if dice.chance(1, 2) {
        let status = dice.word(&[
            "200 OK",
            "404 Not Found",
            "302 Found",
            "500 x",
            "204 No Content",
            "304 Not Modified",
            "abc",
            "201",
            "206 Partial",
            "99 x",
            "401 Unauthorized",
        ]);
        head.push_str(&format!("Status: {status}\r\n"));
    }
    for field in dice.some(RESPONSE_FIELDS, 3) {
        if !field.starts_with("Status") {
            head.push_str(&format!("{field}\r\n"));
        }
    }
    head.push_str(dice.word(&[
        "Content-Type: text/html\r\n",
        "Content-Type: text/html\r\n",
        "",
        "Content-type: text/plain\n",
        "Content-Length: 6\r\n",
        "bad line\r\n",
        "Content-Length: 99\r\n",
    ]));
    head.push_str("\r\n");
    let times = *dice.pick(&[0, 1, 1, 1, 200, 3000]);
    let mut acts = vec![Act::Send(Content::new(head).and("line\n\n", times))];
    match dice.below(8) {
        0 => acts.push(Act::Close),
        1 => acts.insert(0, Act::Send(Content::new("HTTP/1.1 200 OK\r\n"))),
        2 => {
            acts.push(Act::Pause(10));
            acts.push(Act::Send(Content::new("late\n")));
        }
        3 => acts.push(Act::Reset),
        _ => {}
    }
    acts
}

fn memcached(dice: &mut Dice) -> Case {
    let lines = dice.some(
        &[
            "memcached_gzip_flag 2;",
            "gunzip on;",
            "error_page 404 = @f;",
            "error_page 502 =200 @f;",
            "add_header X-B b;",
            "memcached_next_upstream not_found;",
            "default_type text/html;",
            "gzip on; gzip_types *; gzip_min_length 0;",
            "expires 1h;",
            "memcached_buffer_size 512;",
            "sub_filter a b;",
        ],
        4,
    );
    let text = format!(
        "server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\nlocation / {{ set $memcached_key {}; memcached_pass %%UP0%%; {} }}\n\
         location @f {{ return 200 fallback; }} }}\n",
        dice.word(&["$uri", "$uri$args", "key", "$arg_k", "\"a b\""]),
        lines.join("\n")
    );
    let answers = (0..dice.between(1, 3)).map(|_| {
        let text = dice.word(&[
            "VALUE /x 0 5\r\nhello\r\nEND\r\n",
            "END\r\n",
            "VALUE /x 2 5\r\nhello\r\nEND\r\n",
            "VALUE /x 0 5\r\nhelloEND\r\n",
            "ERROR\r\n",
            "SERVER_ERROR x\r\n",
            "VALUE /x 0 50\r\nhello",
            "VALUE\r\n",
            "VALUE /x 0 0\r\n\r\nEND\r\n",
            "VALUE key 0 5\r\nhello\r\nEND\r\n",
            "VALUE /x 0 x\r\nhello\r\nEND\r\n",
        ]);
        vec![Act::Send(Content::new(text)), Act::Close]
    });
    let mut case = Case {
        http: tree(&text),
        upstreams: vec![Upstream {
            protocol: Protocol::Memcached,
            answers: answers.collect(),
        }],
        ..Case::default()
    };
    for _ in 0..dice.between(2, 4) {
        let target = dice.word(&["/x", "/x?k=1", "/a%20b", "/x?k=/x", "/x%0d%0aget%20y"]);
        case.ask(request(dice, target, 3));
    }
    case
}
