//! Lifetimes of what is stored, and nothing else of caches: what says how long, and what is asked before and after that time.
//!
//! It is narrow so that nothing in it is open: a stale answer must not hide among other differences of caches.

use crate::case::{Act, Case, Content, Protocol, Request, Step, Upstream};
use crate::random::Dice;

use super::{Generator, tree};

pub(super) struct Freshness;

/// Longer than the shortest lifetime by a second, since lifetimes are counted in whole ones.
const LATER: u64 = 2_200;

const LIFETIMES: &[&str] = &[
    "Cache-Control: max-age=1",
    "Cache-Control: max-age=60",
    "Cache-Control: s-maxage=1, max-age=60",
    "Cache-Control: max-age=0",
    "Cache-Control: no-cache",
    "Cache-Control: no-store",
    "Cache-Control: private",
    "X-Accel-Expires: 1",
    "X-Accel-Expires: 60",
    "X-Accel-Expires: 0",
    "X-Accel-Expires: @1",
    "Expires: Thu, 01 Jan 2032 00:00:00 GMT",
    "Expires: Thu, 01 Jan 1970 00:00:00 GMT",
    "X-B: none",
];

const SWITCHES: &[&str] = &[
    "P_cache_valid 200 1s;",
    "P_cache_valid 1s;",
    "P_cache_valid any 1s;",
    "P_cache_valid 200 1h;",
    "P_cache_valid 404 1s; P_cache_valid 200 1h;",
    "P_ignore_headers Cache-Control;",
    "P_ignore_headers Expires X-Accel-Expires;",
    "P_cache_use_stale error;",
    "P_cache_lock on;",
];

impl Generator for Freshness {
    fn area(&self) -> &'static str {
        "freshness"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let (name, protocol, pass) = *dice.pick(&[
            ("proxy", Protocol::Http, "http://%%UP0%%"),
            ("proxy", Protocol::Http, "http://%%UP0%%"),
            ("scgi", Protocol::Scgi, "%%UP0%%"),
            ("uwsgi", Protocol::Uwsgi, "%%UP0%%"),
        ]);
        let lines = dice.some(SWITCHES, 2).join("\n");
        let text = format!(
            "P_cache_path %%OWN%%/cache keys_zone=c%%N%%:1m inactive=1h;\nserver {{ listen %%PORT0%%; server_name localhost;\n\
             location / {{ P_cache c%%N%%; P_cache_key $uri; {lines}\nadd_header X-Cache $upstream_cache_status always; P_pass {pass}; }} }}\n",
        );
        let status = dice.word(&["200 OK", "200 OK", "200 OK", "404 Not Found", "301 Moved"]);
        let lifetime = dice.word(LIFETIMES);
        let answers = (0..8).map(|number| answer(number, protocol, status, lifetime));
        let mut case = Case {
            http: tree(&text.replace("P_", &format!("{name}_"))),
            upstreams: vec![Upstream {
                protocol,
                answers: answers.collect(),
            }],
            ..Case::default()
        };
        case.ask(Request::new("GET", "/x"));
        for _ in 0..dice.between(1, 3) {
            if dice.chance(1, 2) {
                case.talk.push(Step::Pause(LATER));
            }
            case.ask(Request::new("GET", dice.word(&["/x", "/x", "/x", "/y"])));
        }
        case
    }
}

/// The number tells a stored answer from a new one.
fn answer(number: usize, protocol: Protocol, status: &str, lifetime: &str) -> Vec<Act> {
    let first = match protocol {
        Protocol::Http => format!("HTTP/1.1 {status}"),
        _ => format!("Status: {status}"),
    };
    let body = format!("answer {number}\n");
    let length = body.len();
    let text = format!(
        "{first}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{lifetime}\r\n\r\n{body}"
    );
    vec![Act::Send(Content::new(text))]
}
