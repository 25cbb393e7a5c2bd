//! Files: ranges, conditions, codings, indexes, listings, types, fields that are added.

use crate::case::{Case, Content, File};
use crate::random::Dice;

use super::pieces::{file, request};
use super::{Generator, tree};

pub(super) struct Statics;

const TARGETS: &[&str] = &[
    "/",
    "/a.txt",
    "/a.html",
    "/big.txt",
    "/zero.txt",
    "/dir",
    "/dir/",
    "/list/",
    "/list",
    "/a.txt.gz",
    "/packed.txt",
    "/none",
    "/a.bin",
    "/.hidden",
    "/list/b%20c.txt",
    "/a.TXT",
    "/a.txt/",
    "/dir/index.html",
    "/list/?C=M",
    "/a.css",
    "/noext",
];

const SWITCHES: &[&str] = &[
    "gzip on;",
    "gzip on; gzip_min_length 1;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "gzip_static on;",
    "gzip_static always;",
    "gunzip on;",
    "gzip_vary on;",
    "gzip_http_version 1.0;",
    "gzip_proxied any;",
    "gzip_proxied no-cache no-store private expired auth;",
    "gzip_comp_level 9;",
    "expires 1h;",
    "expires -1;",
    "expires max;",
    "expires epoch;",
    "expires modified 1d;",
    "expires $arg_e;",
    "add_header X-A $uri;",
    "add_header X-B b always;",
    "add_header Cache-Control private;",
    "add_header ETag '\"q\"';",
    "add_header Last-Modified '';",
    "add_trailer X-T t;",
    "charset utf-8;",
    "charset koi8-r;",
    "charset_types text/plain text/css;",
    "override_charset on;",
    "source_charset utf-8;",
    "autoindex on;",
    "autoindex_format json;",
    "autoindex_format xml;",
    "autoindex_exact_size off;",
    "autoindex_localtime off;",
    "index none.html index.html;",
    "index a.txt;",
    "index /a.html;",
    "etag off;",
    "if_modified_since before;",
    "if_modified_since off;",
    "max_ranges 0;",
    "max_ranges 1;",
    "default_type text/plain;",
    "types { text/html html; text/css css; }",
    "types { }",
    "chunked_transfer_encoding off;",
    "try_files $uri $uri.gz =404;",
    "error_page 404 /a.html;",
    "error_page 416 /a.txt;",
    "error_page 412 =200 /a.txt;",
    "output_buffers 1 512;",
    "sendfile on;",
    "tcp_nopush on;",
    "postpone_output 0;",
    "limit_except GET { deny all; }",
    "keepalive_timeout 0;",
    "keepalive_requests 1;",
    "absolute_redirect off;",
    "port_in_redirect off;",
    "root %%DIR%%/html/dir;",
    "server_tokens on;",
    "open_file_cache max=10;",
    "directio 512;",
    "sendfile_max_chunk 1k;",
    "log_not_found off;",
    "msie_padding off;",
    "client_max_body_size 1;",
    "satisfy any; deny all;",
    "disable_symlinks on;",
    "empty_gif;",
    "flv;",
];

impl Generator for Statics {
    fn area(&self) -> &'static str {
        "static"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let some = |dice: &mut Dice, most: usize| dice.some(SWITCHES, most).join("\n");
        let server = some(dice, 2)
            .replace("limit_except GET { deny all; }", "")
            .replace("random_index on;", "")
            .replace("empty_gif;", "")
            .replace("flv;", "");
        let text = format!(
            "server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n{server}\nlocation / {{ {} }}\nlocation /list/ {{ {} }}\n\
             location ~ \\.(txt|css)$ {{ {} }} }}\n",
            some(dice, 4),
            some(dice, 3),
            some(dice, 4)
        );
        let mut case = Case {
            http: tree(&text),
            files: files(),
            ..Case::default()
        };
        for _ in 0..dice.between(4, 9) {
            let mut target = dice.word(TARGETS).to_owned();
            if dice.chance(1, 8) && !target.contains('?') {
                target.push_str(dice.word(&["?e=1d", "?e=max", "?e=-5", "?"]));
            }
            case.ask(request(dice, &target, 4));
        }
        case
    }
}

/// `packed` by gzip, stored.
const PACKED: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01\x06\x00\xf9\xffpacked\x10\xb4\xf6\x21\x06\x00\x00\x00";

fn files() -> Vec<File> {
    vec![
        file("html/index.html", "<html>root index</html>\n"),
        file("html/a.txt", "0123456789 text of a\n"),
        file("html/a.html", "<html>page</html>\n"),
        file("html/a.css", "a { b: c }\n"),
        file("html/a.bin", b"\x00\x01\x02\xff"),
        file("html/noext", "no extension\n"),
        file("html/zero.txt", ""),
        file("html/.hidden", "hidden\n"),
        File {
            path: "html/big.txt".to_owned(),
            content: Content::repeated("0123456789abcdef", 5000),
        },
        file("html/a.txt.gz", PACKED),
        file("html/packed.txt.gz", PACKED),
        file("html/dir/index.html", "dir index\n"),
        file("html/dir/a.txt", "a in dir\n"),
        file("html/list/b c.txt", "b c\n"),
        file("html/list/<&\">.txt", "odd name\n"),
        file("html/list/sub/x", "x\n"),
        file(
            "html/list/a-name-that-is-longer-than-the-column-of-the-listing-is-wide.txt",
            "x\n",
        ),
    ]
}
