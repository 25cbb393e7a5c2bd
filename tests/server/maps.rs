//! Variables made of others: `map`, `geo`, `split_clients`.

use weir_tests::http;

#[test]
fn map_finds_strings_wildcards_and_expressions_in_their_order() {
    let conf = "
        map $arg_x $y {
            default none;
            a one;
            B two;
            'with space' three;
            \\default escaped;
            ~^re(.+)$ re:$1;
            ~*^CI(?<rest>.*) ci:$rest;
            \"~q;$\" quoted;
            v $arg_v;
            mixed \"<$arg_v>\";
            '' empty;
        }
        map $arg_x $plain { k v; }
        server { listen 127.0.0.1:%%PORT%%; return 200 \"$y|$plain\"; }";
    http(conf).start().answers(&[
        ("/", 200, "empty|"),
        ("/?x=a", 200, "one|"),
        ("/?x=A", 200, "one|"),
        ("/?x=b", 200, "two|"),
        ("/?x=zz", 200, "none|"),
        ("/?x=default", 200, "escaped|"),
        ("/?x=rexy", 200, "re:xy|"),
        ("/?x=REx", 200, "none|"),
        ("/?x=ciX", 200, "ci:X|"),
        ("/?x=q;", 200, "quoted|"),
        ("/?x=v&v=value", 200, "value|"),
        ("/?x=mixed&v=value", 200, "<value>|"),
        ("/?x=k", 200, "none|v"),
    ]);
}

#[test]
fn map_of_hostnames() {
    let conf = "
        map $http_host $h {
            hostnames;
            default none;
            example.com exact;
            *.example.com leading;
            www.* trailing;
            .dot.org dot;
        }
        server { listen 127.0.0.1:%%PORT%%; return 200 $h; }";
    let server = http(conf).start();
    for (host, expected) in [
        ("example.com", "exact"),
        ("EXAMPLE.com", "exact"),
        ("a.example.com", "leading"),
        ("a.b.example.com", "leading"),
        ("www.x", "trailing"),
        ("dot.org", "dot"),
        ("a.dot.org", "dot"),
        ("other", "none"),
    ] {
        assert_eq!(
            server
                .raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .text(),
            expected,
            "{host}"
        );
    }
}

#[test]
fn map_may_include_a_file_be_volatile_and_have_a_combined_source() {
    let conf = "
        map \"$request_method:$arg_x\" $combined { include rows.map; default none; }
        map $uri $always { volatile; default $uri; }
        server { listen 127.0.0.1:%%PORT%%;
            location / { return 200 $combined; }
            location /first { set $a $always; rewrite ^ /second; }
            location /second { return 200 \"$a $always\"; } }";
    let server = http(conf)
        .file("rows.map", "GET:1 one;\nPOST:1 post;\n")
        .start();
    server.answers(&[
        ("/?x=1", 200, "one"),
        ("/?x=2", 200, "none"),
        ("/first", 200, "/first /second"),
    ]);
}

/// Rows of a block that is too long to be kept line by line: the server reads them from the text.
fn many_rows(prefix: &str, value: &str) -> String {
    let row = |number| format!("{prefix}{number} {value}{number};\n");
    (0..3000).map(row).collect()
}

#[test]
fn a_very_long_map_has_all_its_rows_wherever_they_are_from() {
    let conf = format!(
        "map $arg_x $y {{
            default none; # a comment; with signs {{
            {}
            'in quotes' \"1; 2\";
            include more.map;
            escaped\\;sign escaped;
            var <$arg_v>;
            ~^re(.+)$ re:$1;
            include last.*;
        }}
        map $arg_h $h {{ {} hostnames; *.host.example wild; }}
        server {{ listen 127.0.0.1:%%PORT%%; return 200 \"$y|$h\"; }}",
        many_rows("first", "f"),
        many_rows("www", "w"),
    );
    let server = http(&conf)
        .file("more.map", many_rows("more", "m"))
        .file("last.map", "END the-end;")
        .start();
    server.answers(&[
        ("/?x=first0", 200, "f0|"),
        ("/?x=FIRST2999", 200, "f2999|"),
        ("/?x=first3000", 200, "none|"),
        ("/?x=more1500", 200, "m1500|"),
        ("/?x=escaped\\;sign", 200, "escaped|"),
        ("/?x=var&v=value", 200, "<value>|"),
        ("/?x=rexy", 200, "re:xy|"),
        ("/?x=end", 200, "the-end|"),
        ("/?x=in&h=www17.", 200, "none|w17"),
        ("/?h=a.b.host.example", 200, "none|wild"),
    ]);
}

#[test]
fn mistakes_in_a_very_long_map_are_found_where_they_are() {
    let test = |row: &str| {
        let rows = many_rows("k", "v");
        let conf = format!(
            "map $arg_x $y {{\n{rows}{row}\n}}\nserver {{ listen 127.0.0.1:%%PORT%%; return 200 $y; }}"
        );
        http(&conf).test()
    };
    assert_eq!(test("good one;").code, 0);
    for (row, complaint) in [
        ("k2000 twice;", "conflicting parameter \"k2000\""),
        ("a b c;", "invalid number of the map parameters"),
        ("a { b c; }", "unexpected \"{\""),
        ("a b", "unexpected \"}\""),
        ("a $;", "invalid variable name"),
        ("include gone;", "gone\" failed"),
    ] {
        let said = test(row);
        assert_eq!(said.code, 1, "{row}");
        let first = said.first_line();
        assert!(first.contains(complaint), "{row}: {first}");
        // The rows begin after the line of the head, which is the same for all.
        let line = |text: &str| {
            text.rsplit_once(':')
                .and_then(|(_, line)| line.parse().ok())
        };
        let number: Option<usize> = line(first);
        let head = line(test("k0 x;").first_line()).expect("a line");
        let after = if row == "a b" { 1 } else { 0 };
        assert_eq!(number, Some(head + after), "{row}: {first}");
    }
}

#[test]
fn a_very_long_geo_has_all_its_networks() {
    let rows: String = (0..3000)
        .map(|number| format!("10.{}.{}.0/24 v{number};\n", number / 256, number % 256))
        .collect();
    let conf = format!(
        "geo $arg_ip $g {{ default none; include networks; {rows} delete 10.0.7.0/24; 10.0.8.9 one; }}
        server {{ listen 127.0.0.1:%%PORT%%; return 200 $g; }}"
    );
    let server = http(&conf).file("networks", "192.0.2.0/24 first;").start();
    server.answers(&[
        ("/?ip=10.0.0.1", 200, "v0"),
        ("/?ip=10.11.183.255", 200, "v2999"),
        ("/?ip=10.0.7.1", 200, "none"),
        ("/?ip=10.0.8.8", 200, "v8"),
        ("/?ip=10.0.8.9", 200, "one"),
        ("/?ip=192.0.2.200", 200, "first"),
    ]);
}

#[test]
fn map_values_are_lazy_and_cached_in_a_request() {
    let conf = "
        map $arg_x $inner { default i:$arg_x; }
        map $inner $outer { default o:$inner; i:2 two; }
        server { listen 127.0.0.1:%%PORT%%; location / { set $args x=2; return 200 \"$outer\"; } }";
    http(conf).start().answers(&[("/?x=1", 200, "two")]);
}

#[test]
fn geo_takes_the_longest_network_and_ranges() {
    let conf = "
        geo $g { default none; 127.0.0.0/8 loop; 127.0.0.1 one; 127.1.0.0/16 sub; 10.0.0.0/8 ten; ::1 six; }
        geo $arg_ip $a { default none; 10.0.0.0/8 ten; 10.1.0.0/16 ten-one; 10.1.2.3/32 host; 2001:db8::/32 v6; include more.geo; delete 11.0.0.0/8; }
        geo $arg_ip $r { ranges; default none; 10.0.0.0-10.0.0.255 first; 10.0.1.0-10.0.1.10 second; 10.0.0.5-10.0.0.5 five; }
        geo $nothing { }
        server { listen 127.0.0.1:%%PORT%%; return 200 \"$g|$a|$r|$nothing\"; }";
    let server = http(conf).file("more.geo", "12.0.0.0/8 twelve;\n").start();
    server.answers(&[
        ("/", 200, "one|none|none|"),
        ("/?ip=10.9.9.9", 200, "one|ten|none|"),
        ("/?ip=10.1.9.9", 200, "one|ten-one|none|"),
        ("/?ip=10.1.2.3", 200, "one|host|none|"),
        ("/?ip=12.3.4.5", 200, "one|twelve|none|"),
        ("/?ip=11.3.4.5", 200, "one|none|none|"),
        ("/?ip=2001:db8::1", 200, "one|v6|none|"),
        ("/?ip=10.0.0.4", 200, "one|ten|first|"),
        ("/?ip=10.0.0.5", 200, "one|ten|five|"),
        ("/?ip=10.0.1.10", 200, "one|ten|second|"),
        ("/?ip=10.0.1.11", 200, "one|ten|none|"),
        ("/?ip=junk", 200, "one|none|none|"),
    ]);
}

#[test]
fn the_default_of_geo_is_a_network() {
    let conf = "
        geo $arg_ip $before { default d; 0.0.0.0/0 all; }
        geo $arg_ip $behind { 0.0.0.0/0 all; default d; }
        geo $arg_ip $gone { default d; delete 0.0.0.0/0; ::/0 six; }
        server { listen 127.0.0.1:%%PORT%%; return 200 \"$before|$behind|$gone\"; }";
    http(conf).start().answers(&[
        ("/?ip=10.0.0.1", 200, "all|d|"),
        ("/?ip=2001:db8::1", 200, "d|d|six"),
        ("/?ip=junk", 200, "all|d|"),
    ]);
}

#[test]
fn split_clients_is_nginxs_hash() {
    let conf = "
        split_clients $arg_k $s { 10% a; 40% b; 0.5% c; * d; }
        split_clients \"${arg_k}x\" $half { 50% left; }
        server { listen 127.0.0.1:%%PORT%%; return 200 \"$s|$half\"; }";
    let server = http(conf).start();
    // These are murmur2 of the text; both servers give the same bucket to the same client.
    let answers: String = (0..24)
        .map(|k| {
            server
                .get(&format!("/?k={k}"))
                .text()
                .chars()
                .next()
                .unwrap_or('-')
        })
        .collect();
    assert_eq!(answers, "bbbdbbbdadabdbdadbdddbdb");
    assert!(["left", ""].contains(&server.get("/?k=1").text().split('|').nth(1).unwrap_or("-")));
}

#[test]
fn split_clients_chooses_a_root() {
    // The shape of the seed configurations: a cache or a disk per share of the keys.
    let conf = "
        split_clients $uri $disk { 33.3% one; 33.3% two; * three; }
        server { listen 127.0.0.1:%%PORT%%; location / { root %%DIR%%/$disk; } }";
    let mut site = http(conf);
    for i in 0..12 {
        for disk in ["one", "two", "three"] {
            site = site.file(&format!("{disk}/f{i}"), disk);
        }
    }
    let server = site.start();
    let seen: std::collections::BTreeSet<String> = (0..12)
        .map(|i| server.get(&format!("/f{i}")).expect(200).text())
        .collect();
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[test]
fn maps_that_need_each_other_end() {
    let conf = "
        map $arg_x $a { default $b; stop end; }
        map $arg_x $b { default $a; }
        server { listen 127.0.0.1:%%PORT%%; return 200 \"[$a]\"; }";
    let server = http(conf).start();
    server.answers(&[("/?x=stop", 200, "[end]"), ("/", 200, "[]")]);
    server.line("error.log", "cycle while evaluating variable");
}

#[test]
fn map_of_hostnames_knows_the_longest_name_and_a_final_dot() {
    let conf = "
        map $arg_h $h {
            hostnames;
            *.example.com short;
            *.a.example.com long;
            www.* any;
            www.example.* longer;
            \"~^r(?<n>\\d+)\\.\" re$n;
        }
        server { listen 127.0.0.1:%%PORT%%; return 200 \"$h\"; }";
    http(conf).start().answers(&[
        ("/?h=x.example.com.", 200, "short"),
        ("/?h=x.a.example.com", 200, "long"),
        ("/?h=www.net", 200, "any"),
        ("/?h=www.example.net", 200, "longer"),
        ("/?h=www.example.com", 200, "short"),
        ("/?h=r12.net", 200, "re12"),
        ("/?h=net", 200, ""),
    ]);
}

#[test]
fn geo_looks_behind_proxies_it_trusts() {
    let conf = "
        geo $last { proxy 127.0.0.1; proxy 10.0.0.0/8; default def; 192.0.2.0/24 net; 10.0.0.1 ten; }
        geo $first { proxy 127.0.0.1; proxy 10.0.0.0/8; proxy_recursive; default def; 192.0.2.0/24 net; }
        server { listen 127.0.0.1:%%PORT%%; return 200 \"$last $first\"; }";
    let server = http(conf).start();
    for (fields, expected) in [
        (&[][..], "def def"),
        (&["X-Forwarded-For: 192.0.2.1"], "net net"),
        (&["X-Forwarded-For: 192.0.2.1, 10.0.0.1"], "ten net"),
        (
            &["X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 10.0.0.1:80"],
            "ten net",
        ),
        (&["X-Forwarded-For: junk"], "def def"),
    ] {
        assert_eq!(server.get_with("/", fields).text(), expected, "{fields:?}");
    }
}

#[test]
fn geo_ranges_are_split_and_deleted() {
    let conf = "
        geo $arg_ip $r {
            ranges;
            default none;
            10.0.0.0-10.0.0.255 outer;
            10.0.0.10-10.0.0.20 inner;
            10.0.1.0-10.5.0.0 long;
            10.9.0.0-10.9.0.9 gone;
            delete 10.9.0.0-10.9.0.9;
        }
        geo $arg_ip $n { 10.0.0.0/8 eight; 10.1.0.0/16 sixteen; 10.2.0.0/16 two; delete 10.2.0.0/16; 2001:db8::/32 six; }
        server { listen 127.0.0.1:%%PORT%%; return 200 \"$r|$n\"; }";
    http(conf).start().answers(&[
        ("/?ip=10.0.0.9", 200, "outer|eight"),
        ("/?ip=10.0.0.10", 200, "inner|eight"),
        ("/?ip=10.0.0.20", 200, "inner|eight"),
        ("/?ip=10.0.0.21", 200, "outer|eight"),
        ("/?ip=10.1.2.3", 200, "long|sixteen"),
        ("/?ip=10.2.2.3", 200, "long|eight"),
        ("/?ip=10.5.0.0", 200, "long|eight"),
        ("/?ip=10.5.0.1", 200, "none|eight"),
        ("/?ip=10.9.0.5", 200, "none|eight"),
        ("/?ip=::ffff:10.1.0.1", 200, "long|sixteen"),
        ("/?ip=2001:db8::1", 200, "none|six"),
        ("/?ip=2001:db9::1", 200, "none|"),
        ("/?ip=junk", 200, "none|"),
    ]);
}
