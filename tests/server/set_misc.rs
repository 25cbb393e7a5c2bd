//! set-misc: variables that are computed from texts.
//!
//! Stated about nginx too, where its module is installed.

use weir_tests::{Server, Site, skip_on_oracle};

use crate::headers_more::with_modules;

fn site(block: &str) -> Option<Site> {
    with_modules(block, &["ndk_http_module", "ngx_http_set_misc_module"])
}

fn with(locations: &str) -> Option<Server> {
    let block = format!(
        "upstream_list list one two three; server {{ listen 127.0.0.1:%%PORT%%; {locations} }}"
    );
    Some(site(&block)?.start())
}

/// What a directive makes of texts.
fn makes(directives: &str, rows: &[(&str, u16, &str)]) {
    let locations =
        format!("location / {{ set_unescape_uri $in $arg_x; {directives} return 200 \"$out\"; }}");
    let Some(server) = with(&locations) else {
        return;
    };
    for (text, status, out) in rows {
        let reply = server.get(&format!("/?x={text}"));
        assert_eq!(reply.status, *status, "{directives} {text}");
        if *status == 200 {
            assert_eq!(reply.text(), *out, "{directives} {text}");
        }
    }
}

#[test]
fn texts_for_uris() {
    makes(
        "set $out $in;",
        &[
            ("a+b%2bc%zz%4x", 200, "a b+czz"),
            ("", 200, ""),
            ("%e4%bd%a0", 200, "你"),
        ],
    );
    makes(
        "set_escape_uri $out $in;",
        &[
            ("a%20b%2Fc%3Fd%3De%26f", 200, "a%20b%2Fc%3Fd%3De%26f"),
            ("%27%28%29%2C%7E-._!*%40%24%7C", 200, "'(),~-._!*@$|"),
            ("", 200, ""),
        ],
    );
}

#[test]
fn codes() {
    makes(
        "set_encode_base64 $out $in;",
        &[("abcd%ff", 200, "YWJjZP8="), ("", 200, "")],
    );
    makes(
        "set_decode_base64 $out $in;",
        &[
            ("YWJj", 200, "abc"),
            ("YWI=", 200, "ab"),
            ("YWI", 200, "ab"),
            ("YQ%3D%3Dx", 200, "a"),
            ("Y", 500, ""),
            ("_-", 500, ""),
        ],
    );
    makes(
        "set_encode_base64url $out $in;",
        &[("%ff%fe%fd%fc", 200, "__79_A")],
    );
    makes(
        "set_decode_base64url $out $in;",
        &[("YWJjZA", 200, "abcd"), ("%2b", 500, "")],
    );
    makes("set_encode_hex $out $in;", &[("abc%00", 200, "61626300")]);
    makes(
        "set_decode_hex $out $in;",
        &[("6162", 200, "ab"), ("6g", 500, ""), ("616", 500, "")],
    );
    makes(
        "set_encode_base32 $out $in;",
        &[
            ("abcde", 200, "c5h66p35"),
            ("hello", 200, "d1imor3f"),
            ("a", 200, "c4======"),
        ],
    );
    makes(
        "set_base32_padding off; set_encode_base32 $out $in;",
        &[("a", 200, "c4"), ("", 200, "")],
    );
    makes(
        "set_base32_alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZ234567; set_encode_base32 $out $in; set_decode_base32 $again $out;
         set $out \"$out $again\";",
        &[("foobar", 200, "MZXW6YTBOI====== foobar")],
    );
    makes(
        "set_decode_base32 $out $in;",
        &[
            ("d1imor3f", 200, "hello"),
            ("c4======", 200, "a"),
            ("c", 200, ""),
        ],
    );
}

#[test]
fn digests_and_signatures() {
    makes(
        "set_md5 $md5 $in; set_sha1 $sha1 $in; set $out \"$md5 $sha1\";",
        &[(
            "hello",
            200,
            "5d41402abc4b2a76b9719d911017c592 aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d",
        )],
    );
    makes(
        "set_hmac_sha1 $one key $in; set_encode_hex $one; set_hmac_sha256 $two key $in; set_encode_hex $two;
         set $out \"$one $two\";",
        &[(
            "The+quick+brown+fox+jumps+over+the+lazy+dog",
            200,
            "de7c9b85b8b78aa6bc8a7a36f70a90701c9db4d9 \
             f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8",
        )],
    );
}

#[test]
fn quoted_texts() {
    let text = "a'b%22c%5Cd%24%0A%09%00%1A";
    makes(
        "set_quote_sql_str $out $in;",
        &[
            (text, 200, "'a\\'b\\\"c\\\\d\\$\\n\\t\\0\\Z'"),
            ("", 200, "''"),
        ],
    );
    makes(
        "set_quote_pgsql_str $out $in;",
        &[
            ("a'", 200, "E'a\\''"),
            ("", 200, "''"),
            ("%c3%a9", 200, "E'é'"),
            ("%c3", 200, "E'\\\\303'"),
        ],
    );
    makes(
        "set_quote_json_str $out $in;",
        &[
            (text, 200, "\"a'b\\\"c\\\\d$\\n\\t\\u0000\\u001a\""),
            ("", 200, "null"),
        ],
    );
}

#[test]
fn steps_run_in_the_order_of_the_file() {
    let Some(server) = with(
        "set_md5 $before x;
         if ($arg_server) { set_encode_hex $before s; }
         location / {
            set $out $arg_a;
            set_if_empty $out default;
            if ($arg_b) { set_encode_hex $out $arg_b; }
            set_encode_hex $out;
            return 200 $out;
         }
         location /before { return 200 $before; }
         location /rewritten { set_encode_hex $x a; rewrite ^ /after/$x last; }
         location /after { return 200 $uri; }
         location ~ ^/escaped/(.*)$ { set $plain $1; set_encode_hex $hex $1; return 200 \"$plain $hex\"; }
         location /args { set $args a; set_encode_hex $args; return 200 $args; }",
    ) else {
        return;
    };
    server.answers(&[
        ("/", 200, "64656661756c74"),
        ("/?a=a", 200, "61"),
        ("/?a=a&b=b", 200, "3632"),
        ("/before", 200, "9dd4e461268c8034f5c8564e155c67a6"),
        ("/before?server=1", 200, "73"),
        ("/rewritten", 200, "/after/61"),
        // A capture of a path with escapes is escaped, as with `set`.
        ("/escaped/a%20b", 200, "a%20b 6125323062"),
        ("/args", 200, "61"),
    ]);
}

#[test]
fn random_numbers_and_numbers_in_turn() {
    let Some(server) = with(
        "location /random { set_random $out $arg_from $arg_to; return 200 $out; }
         location /text { set_secure_random_alphanum $out $arg_n; return 200 $out; }
         location /letters { set_secure_random_lcalpha $out $arg_n; return 200 $out; }
         location /turn { set_rotate $out 3 5; return 200 $out; }
         location /after { set $out $arg_n; set_rotate $out 3 5; return 200 $out; }
         location /today { set_local_today $out; return 200 $out; }",
    ) else {
        return;
    };
    for _ in 0..20 {
        let text = server.get("/random?from=7&to=5").expect(200).text();
        assert!(["5", "6", "7"].contains(&text.as_str()), "{text}");
    }
    let text = server.get("/text?n=64").expect(200).text();
    assert!(text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let text = server.get("/letters?n=32").expect(200).text();
    assert!(text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_lowercase()));
    for wrong in [
        "/random?from=a&to=5",
        "/text?n=0",
        "/text?n=65",
        "/text?n=",
        "/letters?n=-1",
    ] {
        assert_eq!(server.get(wrong).status, 500, "{wrong}");
    }
    for number in ["3", "4", "5", "3", "4"] {
        assert_eq!(server.get("/turn").text(), number);
    }
    server.answers(&[
        ("/after?n=3", 200, "4"),
        ("/after?n=9", 200, "3"),
        ("/after?n=5", 200, "3"),
    ]);
    let today = server.get("/today").text();
    assert_eq!(today.len(), "2026-11-22".len());
}

#[test]
fn times_in_a_format() {
    let Some(site) = site(
        "server { listen 127.0.0.1:%%PORT%%;
            location /gmt { set_formatted_gmt_time $out '%Z %z %% %Ey'; return 200 $out; }
            location /same { set_formatted_gmt_time $out '%Y%%'; set_formatted_local_time $local '%Y%%';
                if ($out = $local) { return 200 same; } return 200 \"$out $local\"; }
            location /none { set_formatted_gmt_time $out ''; return 200 \"[$out]\"; }
         }",
    ) else {
        return;
    };
    let server = site.start();
    let text = server.get("/gmt").text();
    assert!(text.starts_with("GMT +0000 % "), "{text}");
    assert_eq!(server.get("/same").text(), "same");
    assert_eq!(server.get("/none").text(), "[]");
}

#[test]
fn a_key_has_its_place_in_a_list() {
    let Some(server) = with(
        "location / { set_hashed_upstream $out list $arg_key; return 200 $out; }
         location /named { set_hashed_upstream $out $arg_list $arg_key; return 200 $out; }",
    ) else {
        return;
    };
    for (key, place) in [
        ("", "one"),
        ("b", "three"),
        ("hello", "two"),
        ("world", "one"),
        ("wOrld", "one"),
    ] {
        assert_eq!(server.get(&format!("/?key={key}")).text(), place, "{key}");
        assert_eq!(
            server.get(&format!("/named?list=list&key={key}")).text(),
            place
        );
    }
    assert_eq!(server.get("/named?list=none&key=a").status, 500);
}

#[test]
fn lists_and_alphabets_that_cannot_be_are_errors() {
    for (line, message) in [
        (
            "set_hashed_upstream $a none $uri;",
            "upstream list \"none\" not defined yet",
        ),
        (
            "set_base32_alphabet abc;",
            "takes an alphabet of 3 bytes but 32 expected",
        ),
    ] {
        let Some(site) = site(&format!(
            "server {{ listen 127.0.0.1:%%PORT%%; location / {{ {line} }} }}"
        )) else {
            return;
        };
        let finished = site.run(&["-t"]);
        assert_eq!(finished.code, 1, "{line}");
        assert!(
            finished.stderr.contains(message),
            "{line}: {}",
            finished.stderr
        );
    }
}

#[test]
fn a_broken_text_is_no_base32() {
    if skip_on_oracle("Debian's module takes characters of no alphabet for the first one") {
        return;
    }
    makes(
        "set_decode_base32 $out $in;",
        &[("!!!!", 200, ""), ("zz", 200, "")],
    );
}
