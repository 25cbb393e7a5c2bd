//! What requests write: the methods of WebDAV, and responses that are stored as files. The files are compared as well.

use crate::case::{Body, Case, Content, Request};
use crate::random::Dice;

use super::pieces::{file, upstream};
use super::{Generator, tree};

pub(super) struct Writes;

const SWITCHES: &[&str] = &[
    "dav_methods PUT DELETE MKCOL COPY MOVE;",
    "dav_methods PUT DELETE MKCOL COPY MOVE;",
    "dav_methods PUT DELETE MKCOL COPY MOVE;",
    "dav_methods PUT MKCOL;",
    "dav_methods off;",
    "create_full_put_path on;",
    "create_full_put_path on;",
    "min_delete_depth 1;",
    "min_delete_depth 3;",
    "dav_access group:rw all:r;",
    "client_max_body_size 10;",
    "client_body_buffer_size 16;",
    "client_body_in_file_only clean;",
    "limit_except GET HEAD PUT MKCOL { deny all; }",
    "autoindex_format json;",
    "add_header X-A $uri always;",
    "add_header X-F $request_filename always;",
    "error_page 404 405 409 =200 @n;",
    "error_page 409 412 415 501 /409.html;",
    "error_page 404 = @fetch;",
    "rewrite ^/w/r(.*)$ /w/s$1 break;",
    "if ($request_method = PUT) { set $v put; }",
    "if (-f $request_filename) { add_header X-There 1 always; }",
    "satisfy any; deny all; auth_basic r; auth_basic_user_file %%DIR%%/users;",
    "expires 1h;",
    "disable_symlinks on;",
    "open_file_cache max=10; open_file_cache_valid 0s;",
    "internal;",
    "auth_request /w-auth;",
];

const STORES: &[&str] = &[
    "proxy_store on;",
    "proxy_store %%OWN%%/store$uri;",
    "proxy_store %%OWN%%/store/$arg_a;",
    "proxy_store on; proxy_store_access user:rw group:rw all:r;",
    "proxy_store on; proxy_intercept_errors on; error_page 404 500 =200 @n;",
    "proxy_store on; proxy_buffering off;",
    "proxy_store on; gzip on; gzip_types *; gzip_min_length 0;",
    "proxy_store off;",
];

/// Names below the folder that is written to, so few that they meet.
const NAMES: &[&str] = &[
    "a", "b", "d/", "d/a", "d", "d/e/", "d/e/x", "none/x", "", "a%20b", "a/", "r1", "s1",
    "..%2Fup", "d/../b", "d//a", ".h",
];

/// The date of what is put, so that both sides have the same.
const DATE: &str = "Sun, 09 Sep 2001 01:46:40 GMT";

impl Generator for Writes {
    fn area(&self) -> &'static str {
        "writes"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let place = dice.word(&["alias %%OWN%%/w/;", "root %%OWN%%;", "alias %%OWN%%/w/;"]);
        let methods = dice.word(&["dav_methods PUT DELETE MKCOL COPY MOVE;", ""]);
        let text = format!(
            "server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n\
             location / {{ {} }}\n\
             location /w/ {{ {place} {methods} {} }}\n\
             location /store/ {{ root %%OWN%%; {} try_files $uri @fetch; }}\n\
             location /plain/ {{ root %%OWN%%; proxy_pass http://%%UP0%%; {} }}\n\
             location @fetch {{ root %%OWN%%; proxy_pass http://%%UP0%%; {} }}\n\
             location @n {{ return 200 \"named $uri\\n\"; }}\nlocation = /w-auth {{ return 204; }}\nlocation = /409.html {{ }} }}\n",
            // Both sides have this folder: nothing is written there.
            dice.some(&SWITCHES[5..], 2).join("\n"),
            dice.some(SWITCHES, 4).join("\n"),
            dice.word(&["", "error_page 404 = @fetch;"]),
            dice.word(STORES),
            dice.word(STORES),
        );
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/409.html", "page of a conflict\n"),
                file("html/a", "a of html\n"),
                file("users", "a:{PLAIN}b\n"),
            ],
            upstreams: vec![upstream(dice, true)],
            ..Case::default()
        };
        for _ in 0..dice.between(4, 9) {
            let asked = request(dice);
            case.ask(asked);
        }
        case
    }
}

fn request(dice: &mut Dice) -> Request {
    let name = dice.word(NAMES);
    let folder = dice.word(&["/w/", "/w/", "/w/", "/w/", "/store/", "/plain/", "/"]);
    let method = dice.word(&[
        "PUT", "PUT", "PUT", "GET", "GET", "MKCOL", "DELETE", "COPY", "MOVE", "HEAD", "OPTIONS",
        "PROPFIND", "POST",
    ]);
    let mut target = format!("{folder}{name}");
    if dice.chance(1, 8) {
        target.push_str("?a=q");
    }
    let mut request = Request::new(method, &target);
    match method {
        "PUT" | "POST" => {
            request = request.with("Date", DATE);
            let content = Content::repeated("content ", *dice.pick(&[0, 1, 1, 2, 300]));
            request.body = match dice.below(4) {
                // An empty chunk would end the body.
                0 if !content.is_empty() => {
                    Body::Chunked(vec![content, Content::new("b")], Vec::new())
                }
                1 if dice.chance(1, 3) => Body::None,
                _ => Body::Length(content),
            };
            if dice.chance(1, 6) {
                request = request.with(
                    "Content-Range",
                    dice.word(&["bytes 0-7/8", "bytes */8", "x"]),
                );
            }
        }
        "MKCOL" if dice.chance(1, 4) => request.body = Body::Length(Content::new("x")),
        "DELETE" if dice.chance(1, 6) => request.body = Body::Length(Content::new("x")),
        "COPY" | "MOVE" => request = moved(dice, request),
        _ => {}
    }
    if dice.chance(1, 4) {
        request = request.with(
            "Depth",
            dice.word(&["0", "1", "infinity", "2", "x", "Infinity"]),
        );
    }
    if dice.chance(1, 5) {
        let (name, value) = *dice.pick(&[
            ("If-None-Match", "*"),
            ("If-Match", "*"),
            ("If-Match", "\"x\""),
            ("If-Unmodified-Since", DATE),
            ("If-Unmodified-Since", "Sun, 09 Sep 2001 01:46:39 GMT"),
            ("If-Modified-Since", DATE),
            ("Range", "bytes=0-3"),
            ("Authorization", "Basic YTpi"),
            ("Expect", "100-continue"),
            ("Content-Encoding", "gzip"),
        ]);
        request = request.with(name, value);
    }
    request
}

/// Where something is copied or moved to; the host has to be the request's.
fn moved(dice: &mut Dice, mut request: Request) -> Request {
    if dice.chance(7, 8) {
        let before = dice.word(&[
            "http://localhost/w/",
            "http://localhost/w/",
            "/w/",
            "/w/",
            "https://localhost/w/",
            "http://other/w/",
            "http://LOCALHOST/w/",
            "w/",
            "http://localhost:80/w/",
            "//localhost/w/",
            "ftp://localhost/w/",
            "http://localhost",
        ]);
        let name = dice.word(NAMES);
        request = request.with("Destination", &format!("{before}{name}"));
    }
    if dice.chance(1, 2) {
        request = request.with("Overwrite", dice.word(&["T", "F", "t", "x", ""]));
    }
    request
}
