//! Locations and rewriting: which block answers, and what has become of the path by then.

use crate::case::{Case, Content, File, Request};
use crate::random::Dice;

use super::{Generator, tree};

pub(super) struct Locations;

/// Short paths, so that they meet often: prefixes of each other, with and without slashes, encoded ones.
const PATHS: &[&str] = &[
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/",
    "/a/b.html",
    "/ab",
    "/b",
    "/b/c",
    "/b/c/d.txt",
    "/c.php",
    "/c.php/x",
    "/A",
    "/a//b",
    "/a/./b",
    "/a/../b",
    "/%61",
    "/a%2Fb",
    "/a%20b",
    "/a+b",
    "/dir",
    "/dir/",
    "/dir/x.txt",
    "/empty/",
    "/file.txt",
    "/none",
    "/..",
    "/a/..",
    "/.",
    "/a?b",
    "/a;b",
    "/é",
];

const PREFIXES: &[&str] = &[
    "/", "/a", "/a/", "/a/b", "/ab", "/b/", "/dir", "/dir/", "/file", "/c.php", "/b/c",
];

const PATTERNS: &[&str] = &[
    "\\.php$",
    "^/a",
    "b",
    "\\.(html|txt)$",
    "^/(.*)/b",
    "^/(?<name>[^/]+)",
    "(?i)^/A",
    "/c\\.php(/.*)?$",
    "^/dir/(.+)$",
    ".",
    "/$",
];

const VALUES: &[&str] = &[
    "$uri",
    "$request_uri",
    "$args",
    "$1",
    "$name",
    "$document_root",
    "$request_filename",
    "$is_args",
    "$host",
    "x",
    "$uri$is_args$args",
    "${uri}x",
    "$arg_a",
    "$v",
    "$w",
    "$http_x_a",
    "$request_method",
];

impl Generator for Locations {
    fn area(&self) -> &'static str {
        "locations"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut text = String::from(
            "server { listen %%PORT0%%; server_name localhost; root %%DIR%%/html; set $v v; set $w '';\n",
        );
        if dice.chance(1, 4) {
            text.push_str(&switch(dice));
        }
        for _ in 0..dice.below(3) {
            text.push_str(&rewriting(dice, false));
        }
        for _ in 0..dice.below(2) {
            text.push_str(&error_page(dice));
        }
        if dice.chance(1, 6) {
            text.push_str("merge_slashes off;\n");
        }
        for _ in 0..dice.between(1, 5) {
            text.push_str(&location(dice, None));
        }
        if dice.chance(2, 3) {
            let body = body(dice, None)
                .replace("alias ", "root ")
                .replace("internal;", "");
            text.push_str(&format!("location @named {{ {body} }}\n"));
        }
        text.push_str("}\n");
        let mut case = Case {
            http: tree(&text),
            files: files(),
            ..Case::default()
        };
        for _ in 0..dice.between(3, 8) {
            let mut target = dice.word(PATHS).to_owned();
            if dice.chance(1, 3) {
                target.push_str(dice.word(&["?a=1", "?", "?a=1&b=2", "?x=/y", "?a=%20"]));
            }
            let method = dice.word(&["GET", "GET", "GET", "HEAD", "POST", "PUT"]);
            let mut request = Request::new(method, &target);
            if dice.chance(1, 4) {
                request = request.with("X-A", dice.word(&["1", "0", "a b", "/b"]));
            }
            case.ask(request);
        }
        case
    }
}

fn files() -> Vec<File> {
    let file = |path: &str, text: &str| File {
        path: path.to_owned(),
        content: Content::new(text),
    };
    vec![
        file("html/index.html", "root index\n"),
        file("html/file.txt", "a file\n"),
        file("html/a/index.html", "a index\n"),
        file("html/a/b.html", "b in a\n"),
        file("html/a/b/index.html", "index of a b\n"),
        file("html/b/c/d.txt", "d\n"),
        file("html/c.php", "<?php\n"),
        file("html/dir/x.txt", "x\n"),
        file("html/404.html", "not found page\n"),
        file("html/empty/", ""),
    ]
}

/// A location; a nested one mostly begins as the one around it, since another is refused.
fn location(dice: &mut Dice, around: Option<&str>) -> String {
    let prefix = match around {
        Some(around) if dice.chance(19, 20) => {
            format!("{around}{}", dice.word(&["/b", "b", "/x", "/index.html"]))
        }
        _ => dice.word(PREFIXES).to_owned(),
    };
    let head = match dice.below(8) {
        0 => format!("= {prefix}"),
        1 => format!("^~ {prefix}"),
        2 | 3 => format!("~ \"{}\"", dice.word(PATTERNS)),
        4 => format!("~* \"{}\"", dice.word(PATTERNS)),
        _ => prefix.clone(),
    };
    // Within an expression only expressions may stand.
    let outer =
        (around.is_none() && !head.starts_with('~') && !head.starts_with('=')).then_some(prefix);
    format!("location {head} {{\n{}}}\n", body(dice, outer.as_deref()))
}

fn body(dice: &mut Dice, outer: Option<&str>) -> String {
    let mut text = String::new();
    for _ in 0..dice.below(3) {
        text.push_str(&switch(dice));
    }
    for _ in 0..dice.below(3) {
        text.push_str(&rewriting(dice, true));
    }
    for _ in 0..dice.below(2) {
        text.push_str(&error_page(dice));
    }
    if outer.is_some() && dice.chance(1, 3) {
        text.push_str(&location(dice, outer));
    }
    match dice.below(6) {
        0 => text.push_str(&returns(dice)),
        1 => {
            let last = dice.word(&[
                "=404",
                "=403",
                "@named",
                "/file.txt",
                "/index.html",
                "/none?$args",
                "$uri",
                "=200",
            ]);
            let tries = dice.some(
                &["$uri", "$uri/", "$uri.html", "/a$uri", "$uri/index.html"],
                3,
            );
            let tries = if tries.is_empty() {
                "$uri".to_owned()
            } else {
                tries.join(" ")
            };
            text.push_str(&format!("try_files {tries} {last};\n"));
        }
        _ => {}
    }
    text
}

fn switch(dice: &mut Dice) -> String {
    let choices = [
        "index b.html index.html;",
        "index $v.html index.html;",
        "autoindex on;",
        "root %%DIR%%/html/a;",
        "alias %%DIR%%/html/a;",
        "alias %%DIR%%/html/dir/;",
        "default_type text/plain;",
        "internal;",
        "recursive_error_pages on;",
        "add_header X-V \"$uri $v $1\";",
        "absolute_redirect off;",
        "port_in_redirect off;",
        "server_name_in_redirect on;",
        "expires 1h;",
        "limit_except GET { deny all; }",
        "error_page 405 =200 $uri;",
        "log_not_found off;",
        "msie_refresh on;",
        "add_header X-A \"$args\" always;",
        "types { text/html html; text/x-q txt; }",
        "satisfy any;",
        "deny all;",
        "allow all;",
        "keepalive_timeout 0;",
        "etag off;",
        "if_modified_since before;",
        "max_ranges 1;",
        "disable_symlinks off;",
    ];
    format!("{}\n", dice.word(&choices))
}

fn error_page(dice: &mut Dice) -> String {
    let codes = dice.word(&[
        "404",
        "403 404",
        "405",
        "404 500 502",
        "400",
        "301 302",
        "403",
    ]);
    let answer = dice.word(&["", "=", "=200", "=404", "=302", "=503"]);
    let to = dice.word(&[
        "/404.html",
        "@named",
        "/file.txt",
        "/none",
        "http://other/x",
        "/a?x=$args",
        "$uri",
        "/$status",
        "https://$host$uri",
        "/b/c/d.txt",
    ]);
    format!("error_page {codes} {answer} {to};\n")
}

/// `in_location`: an `if` of a server may have less in it.
fn rewriting(dice: &mut Dice, in_location: bool) -> String {
    match dice.below(9) {
        0 | 1 => {
            let pattern = dice.word(PATTERNS);
            let to = dice.word(&[
                "/b$uri",
                "/$1",
                "/file.txt",
                "/a/$1?x=1",
                "/a/b?",
                "/$name",
                "http://h/$1",
                "/dir/$1",
                "$uri/",
                "/c.php/$1",
                "/%61/$1",
                "/$1?$args",
                "https://h$request_uri?",
                "/a b/$1",
                "/x?y=$1&$args",
            ]);
            let flag = dice.word(&["", "last", "break", "redirect", "permanent"]);
            format!("rewrite \"{pattern}\" \"{to}\" {flag};\n")
        }
        2 => format!(
            "set ${} \"{}\";\n",
            dice.word(&["v", "w"]),
            dice.word(VALUES)
        ),
        3 => "break;\n".to_owned(),
        4 | 5 => {
            let mut inside = String::new();
            for _ in 0..dice.between(1, 2) {
                inside.push_str(&match dice.below(if in_location { 7 } else { 4 }) {
                    0 => returns(dice),
                    1 => format!("set $v \"{}\";\n", dice.word(VALUES)),
                    2 => "break;\n".to_owned(),
                    3 => {
                        let flag = dice.word(&["", "last", "break", "redirect"]);
                        format!("rewrite \"{}\" \"/b$uri\" {flag};\n", dice.word(PATTERNS))
                    }
                    4 => "root %%DIR%%/html/dir;\n".to_owned(),
                    5 => error_page(dice),
                    _ => "add_header X-If \"$v $uri\";\n".to_owned(),
                });
            }
            format!("if ({}) {{ {inside} }}\n", condition(dice))
        }
        6 => returns(dice),
        _ => String::new(),
    }
}

fn condition(dice: &mut Dice) -> String {
    let pattern = dice.word(PATTERNS);
    match dice.below(8) {
        0 => format!(
            "${}",
            dice.word(&["args", "v", "w", "http_x_a", "arg_a", "is_args"])
        ),
        1 => format!(
            "${} = \"{}\"",
            dice.word(&["request_method", "v", "arg_a"]),
            dice.word(&["GET", "v", "1", "", "/"])
        ),
        2 => format!("$uri ~ \"{pattern}\""),
        3 => format!("$uri !~* \"{pattern}\""),
        4 => format!(
            "{} $request_filename",
            dice.word(&["-f", "!-f", "-d", "!-d", "-e", "!-e", "-x", "!-x"])
        ),
        5 => format!(
            "-f %%DIR%%/html$uri{}",
            dice.word(&["", ".html", "/index.html"])
        ),
        6 => format!("$request_uri ~* \"{pattern}\""),
        _ => format!("$request_method != {}", dice.word(&["GET", "POST"])),
    }
}

fn returns(dice: &mut Dice) -> String {
    let code = dice.word(&[
        "200", "204", "301", "302", "303", "307", "308", "400", "403", "404", "405", "410", "418",
        "444", "500", "503",
    ]);
    match dice.below(4) {
        0 => format!("return {code};\n"),
        1 => format!("return {code} \"{}\";\n", dice.word(VALUES)),
        2 => format!("return {code} \"v=$v u=$uri 1=$1 a=$args\";\n"),
        _ => format!(
            "return {} {};\n",
            dice.word(&["301", "302", "307"]),
            dice.word(&["/x", "http://h/$uri", "x", "$uri", "/a$is_args$args"])
        ),
    }
}
