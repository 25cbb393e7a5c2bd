//! `resolver`: names that are in variables, or of servers of groups that are resolved as they run, and answers of a name server.

use crate::case::{Act, Case, Content, Protocol, Request, Upstream};
use crate::random::Dice;

use super::{Generator, tree};

pub(super) struct Names;

const ZONE: &[&str] = &[
    "a.example A %%ADDRESS%%\n",
    "b.example CNAME a.example\nb.example A %%ADDRESS%%\n",
    "c.example SERVFAIL\n",
    "d.example NODATA\n",
    "e.example A 127.0.0.9\ne.example A %%ADDRESS%%\n",
    "f.example REFUSED\n",
    "g.example CNAME g.example\n",
    "h.example CUT\n",
    "localhost A %%ADDRESS%%\n",
    "x_y.example A %%ADDRESS%%\n",
];

/// The name server, or none.
const RESOLVERS: &[&str] = &[
    "resolver %%UP1%% ipv6=off;",
    "resolver %%UP1%% ipv6=off;",
    "resolver %%UP1%%;",
    "resolver %%UP1%% valid=1h ipv6=off;",
    "resolver %%UP1%% ipv4=on ipv6=off;",
    "",
];

/// What a location has beside it.
const LINES: &[&str] = &[
    "error_page 502 =200 @n;",
    "add_header X-U \"$upstream_addr $upstream_status $proxy_host $proxy_port\" always;",
    "proxy_next_upstream off;",
    "error_page 504 502 500 /e;",
    "proxy_set_header Host $proxy_host;",
    "proxy_set_header Host $host;",
    "proxy_intercept_errors on;",
    "proxy_connect_timeout 300ms;",
];

/// Names and addresses, some of which are neither.
const HOSTS: &[&str] = &[
    "a.example",
    "a.example",
    "A.Example",
    "b.example",
    "c.example",
    "d.example",
    "e.example",
    "f.example",
    "g.example",
    "h.example",
    "none.example",
    "a",
    "a.example.",
    "",
    "a..example",
    "x_y.example",
    "%5B::1%5D",
    "a.example:1",
    "a%20b",
    "-",
    "localhost",
    ".",
    "a%00b",
    "1.2.3",
    "%%ADDRESS%%",
];

impl Generator for Names {
    fn area(&self) -> &'static str {
        "names"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let pass = pass(dice);
        let resolver = dice.word(RESOLVERS);
        let mut lines = dice.some(LINES, 3).join("\n");
        if pass.contains("fastcgi") {
            lines = lines
                .replace("proxy_", "fastcgi_")
                .replace("fastcgi_set_header", "# ")
                .replace("$fastcgi_", "$proxy_");
            lines = lines
                .lines()
                .filter(|line| !line.starts_with('#'))
                .collect::<Vec<_>>()
                .join("\n");
        }
        let text = format!(
            "server {{ listen %%PORT0%%; server_name localhost; {resolver} resolver_timeout {};\nlocation / {{ {pass} {lines} }}\nlocation @n {{ return 200 named; }}\n\
             location = /e {{ return 200 page; }} }}\n",
            dice.word(&["500ms", "1s"])
        );
        let mut zone = String::new();
        for line in ZONE {
            zone.push_str(line);
        }
        let http = Upstream {
            protocol: if pass.contains("fastcgi") {
                Protocol::FastCgi
            } else {
                Protocol::Http
            },
            answers: vec![vec![Act::Send(Content::new(
                match pass.contains("fastcgi") {
                    true => "Content-Type: text/plain\r\n\r\nup\n",
                    false => {
                        "HTTP/1.1 302 F\r\nLocation: http://a.example/l\r\nContent-Length: 3\r\n\r\nup\n"
                    }
                },
            ))]],
        };
        let dns = Upstream {
            protocol: Protocol::Dns,
            answers: vec![vec![Act::Send(Content::new(zone))]],
        };
        let silent = Upstream {
            protocol: Protocol::Dns,
            answers: vec![vec![Act::Silence]],
        };
        let mut case = Case {
            http: tree(&text),
            upstreams: vec![http, dns, silent],
            ..Case::default()
        };
        for _ in 0..dice.between(2, 5) {
            let asked = request(dice);
            case.ask(asked);
        }
        case
    }
}

/// Where a request leads, with a name that is in a variable.
fn pass(dice: &mut Dice) -> String {
    let name = dice.word(&[
        "$arg_h",
        "$arg_h",
        "$http_x_host",
        "$host",
        "$arg_h.example",
    ]);
    let port = "%%UPPORT0%%";
    match dice.below(7) {
        0 => format!("set $t {name}; proxy_pass http://$t:{port};"),
        1 => format!("proxy_pass http://{name}:{port}/base$uri;"),
        2 => format!("proxy_pass http://{name}:{port}$request_uri; proxy_redirect off;"),
        3 => format!("fastcgi_pass {name}:{port};"),
        4 => format!("set $t http://{name}:{port}; proxy_pass $t;"),
        5 => format!("proxy_pass http://{name}:$arg_p;"),
        _ => format!("proxy_pass http://{name}:{port};"),
    }
}

fn request(dice: &mut Dice) -> Request {
    let host = dice.word(HOSTS);
    let asked = Request::new(
        dice.word(&["GET", "GET", "HEAD", "POST"]),
        &format!("/x?h={host}&p=%%UPPORT0%%"),
    );
    asked.with(
        "X-Host",
        &host
            .replace("%20", " ")
            .replace("%5B", "[")
            .replace("%5D", "]")
            .replace("%00", ""),
    )
}
