//! Which location answers: exact, prefix, `^~`, regular expressions, nested, named, `try_files`.

use weir_tests::http;

#[test]
fn each_kind_of_location_has_its_rank() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { return 200 root; }
        location = / { return 200 exact-root; }
        location /a/ { return 200 a; }
        location = /a/b { return 200 exact; }
        location /a/longer/ { return 200 longer; }
        location ^~ /images/ { return 200 no-regex; }
        location ~ \\.png$ { return 200 png; }
        location ~* \\.JPG$ { return 200 jpg; }
        location ~ /first { return 200 first; }
        location ~ /first/second { return 200 never; }
        location ~ ^/upper[A-Z]+$ { return 200 upper; }
    }";
    http(conf).start().answers(&[
        ("/", 200, "exact-root"),
        ("/x", 200, "root"),
        ("/?a", 200, "exact-root"),
        ("/a/", 200, "a"),
        ("/a", 200, "root"),
        ("/a/b", 200, "exact"),
        ("/a/bc", 200, "a"),
        ("/a/longer/x", 200, "longer"),
        ("/a/longerx", 200, "a"),
        ("/images/x.png", 200, "no-regex"),
        ("/a/x.png", 200, "png"),
        ("/x.PNG", 200, "root"),
        ("/x.jPg", 200, "jpg"),
        ("/first/second", 200, "first"),
        ("/upperAB", 200, "upper"),
        ("/upperab", 200, "root"),
    ]);
}

#[test]
fn the_path_is_matched_decoded_and_without_arguments() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { return 200 other; }
        location '/a b' { return 200 space; }
        location /a%20c { return 200 literal; }
        location ~ ^/q\\?x { return 200 question; }
        location /ü { return 200 umlaut; }
    }";
    http(conf).start().answers(&[
        ("/a%20b", 200, "space"),
        ("/a%20c", 200, "other"),
        ("/a%2520c", 200, "literal"),
        ("/q?x", 200, "other"),
        ("/q%3fx", 200, "question"),
        ("/%C3%BC", 200, "umlaut"),
    ]);
}

#[test]
fn nested_locations_are_searched_inside_the_outer_one() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            return 200 root;
            location /in/ { return 200 in; location ~ x$ { return 200 in-x; } location = /in/exact { return 200 in-exact; } }
        }
        location ~ z$ { return 200 z; location ~ yz$ { return 200 yz; } }
        location /no/ { return 200 no; location ^~ /no/re/ { return 200 nore; } }
    }";
    http(conf).start().answers(&[
        ("/", 200, "root"),
        ("/in/a", 200, "in"),
        ("/in/ax", 200, "in-x"),
        ("/in/exact", 200, "in-exact"),
        ("/x", 200, "root"),
        ("/az", 200, "z"),
        ("/ayz", 200, "yz"),
        ("/in/az", 200, "z"),
        // A nested `^~` speaks for its own level; the regex is one level up.
        ("/no/re/x", 200, "nore"),
        ("/no/re/z", 200, "z"),
        ("/no/z", 200, "z"),
    ]);
}

#[test]
fn captures_of_the_location_are_variables() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location ~ ^/n/(?<name>[^/]+)/(\\d+) { return 200 \"$name $2 $1\"; }
        location ~* ^/m/(.*)/(.*) { return 200 '$2-$1'; }
    }";
    http(conf)
        .start()
        .answers(&[("/n/bob/42", 200, "bob 42 bob"), ("/M/x/y", 200, "y-x")]);
}

#[test]
fn named_locations_are_reached_by_try_files_and_error_page_only() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { try_files $uri @named; }
        location @named { return 200 \"named $uri\"; }
    }";
    let server = http(conf).file("html/a", "a").start();
    server.answers(&[
        ("/a", 200, "a"),
        ("/@named", 200, "named /@named"),
        ("/b", 200, "named /b"),
    ]);
}

#[test]
fn try_files_tries_files_folders_and_ends_with_a_uri_or_code() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        index index.html;
        location /code/ { try_files $uri =404; }
        location /code502/ { try_files $uri =502; }
        location /dir/ { try_files $uri $uri/ /fallback.html; }
        location /html/ { try_files $uri.html $uri/x.html /fallback?was=$uri; }
        location /fallback { return 200 \"fallback $args\"; }
        location = /fallback.html { return 200 page; }
        location /alias/ { alias %%DIR%%/html/html/; try_files $uri one.html =404; }
        location /named { try_files /none @end; }
        location @end { return 200 end; }
        location /args { try_files /none /fallback?$args; }
    }";
    let server = http(conf)
        .file("html/code/a", "a")
        .file("html/dir/sub/index.html", "index of sub")
        .file("html/html/one.html", "one")
        .file("html/html/two/x.html", "two")
        .start();
    server.answers(&[
        ("/code/a", 200, "a"),
        ("/code/b", 404, ""),
        ("/code502/b", 502, ""),
        ("/dir/sub/", 200, "index of sub"),
        ("/dir/none", 200, "page"),
        ("/html/one", 200, "one"),
        ("/html/two", 200, "two"),
        ("/html/three", 200, "fallback was=/html/three"),
        ("/alias/one.html", 200, "one"),
        ("/alias/none", 200, "one"),
        ("/named", 200, "end"),
        ("/args?x=y", 200, "fallback x=y"),
    ]);
}

#[test]
fn try_files_in_the_server_works_for_all_locations() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; try_files $uri /index.html =404; }";
    let server = http(conf)
        .file("html/index.html", "index")
        .file("html/a", "a")
        .start();
    server.answers(&[("/a", 200, "a"), ("/b", 200, "index")]);
}

#[test]
fn a_missing_slash_of_a_prefix_location_is_no_match() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /dir/ { return 200 dir; }
        location / { return 200 root; }
    }";
    http(conf).start().answers(&[
        ("/dir", 200, "root"),
        ("/dir/", 200, "dir"),
        ("/dirs", 200, "root"),
    ]);
}

#[test]
fn many_locations_find_their_way() {
    let mut conf = String::from("server { listen 127.0.0.1:%%PORT%%;\n");
    for i in 0..300 {
        conf.push_str(&format!(
            "location /p{i}/ {{ return 200 p{i}; }} location = /e{i} {{ return 200 e{i}; }}\n"
        ));
    }
    conf.push('}');
    let server = http(&conf).start();
    for i in [0, 1, 29, 150, 299] {
        assert_eq!(server.get(&format!("/p{i}/x")).text(), format!("p{i}"));
        assert_eq!(server.get(&format!("/e{i}")).text(), format!("e{i}"));
    }
    server.answers(&[("/p300/x", 404, ""), ("/e1x", 404, "")]);
}

#[test]
fn limit_except_holds_for_other_methods() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { limit_except POST { deny all; } return 200 ok; }
        location /get { limit_except GET { deny all; } }
    }";
    let server = http(conf).file("html/get", "file").start();
    assert_eq!(server.request("GET", "/get", &[]).status, 200);
    assert_eq!(
        server.request("HEAD", "/get", &[]).status,
        200,
        "HEAD is allowed with GET"
    );
    assert_eq!(
        server
            .request("POST", "/get", &["Content-Length: 0"])
            .status,
        403
    );
}

#[test]
fn an_exact_location_that_passes_requests_on_adds_its_slash() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location = /proxy/ { proxy_pass http://127.0.0.1:%%PORT1%%; }
        location = /fastcgi/ { fastcgi_pass 127.0.0.1:%%PORT1%%; }
        location = /uwsgi/ { uwsgi_pass 127.0.0.1:%%PORT1%%; }
        location = /scgi/ { scgi_pass 127.0.0.1:%%PORT1%%; }
        location = /grpc/ { grpc_pass 127.0.0.1:%%PORT1%%; }
        location = /memcached/ { set $memcached_key x; memcached_pass 127.0.0.1:%%PORT1%%; }
        location = /both/ { proxy_pass http://127.0.0.1:%%PORT1%%; }
        location /both/ { return 200 both; }
        location = /text/ { return 200 text; }
        location /in { return 200 in; location = /in/ner/ { proxy_pass http://127.0.0.1:%%PORT1%%; } }
        location = /here { return 200 here; }
        location = /here/ { proxy_pass http://127.0.0.1:%%PORT1%%; }
        location ~ ^/regex$ { return 200 regex; }
        location = /regex/ { proxy_pass http://127.0.0.1:%%PORT1%%; }
    }
    server { listen 127.0.0.1:%%PORT1%%; return 200 up; }";
    let server = http(conf).start();
    let port = server.port(0);
    let slash = |path: &str| format!("http://localhost:{port}{path}");
    for name in [
        "proxy",
        "fastcgi",
        "uwsgi",
        "scgi",
        "grpc",
        "memcached",
        "both",
        "in/ner",
        "regex",
    ] {
        let (path, target) = (format!("/{name}?a=b"), slash(&format!("/{name}/?a=b")));
        server.answers(&[(&path, 301, &target)]);
    }
    server.answers(&[
        ("/proxy/", 200, "up"),
        ("/text", 404, ""),
        ("/here", 200, "here"),
        ("/PROXY", 404, ""),
    ]);
}

#[test]
fn a_location_that_is_the_path_goes_before_the_added_slash() {
    let conf = "server {
        listen 127.0.0.1:%%PORT1%%;
        return 200 proxied;
    }
    server {
        listen 127.0.0.1:%%PORT%%;
        location /b { return 200 b; }
        location /b/ { proxy_pass http://127.0.0.1:%%PORT1%%; }
        location ^~ /c { return 200 c; }
        location ^~ /c/ { proxy_pass http://127.0.0.1:%%PORT1%%; }
        location /d { location /d/ { proxy_pass http://127.0.0.1:%%PORT1%%; } return 200 d; }
        location ~ ^/e$ { return 200 e; }
        location /e/ { proxy_pass http://127.0.0.1:%%PORT1%%; }
    }";
    let server = http(conf).start();
    server.answers(&[
        ("/b", 200, "b"),
        ("/bb", 200, "b"),
        ("/b/", 200, "proxied"),
        ("/c", 200, "c"),
        ("/c/", 200, "proxied"),
    ]);
    assert_eq!(server.get("/d").status, 301);
    assert_eq!(server.get("/e").status, 301);
}

#[test]
fn an_added_slash_goes_before_what_a_shorter_prefix_holds() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            location = /exact { return 200 exact; }
            location ~ ^/regex$ { return 200 regex; }
            return 200 root;
        }
        location /exact/ { proxy_pass http://127.0.0.1:1; }
        location /regex/ { proxy_pass http://127.0.0.1:1; }
    }";
    let server = http(conf).start();
    assert_eq!(server.get("/exact").status, 301);
    assert_eq!(server.get("/regex").status, 301);
    server.answers(&[("/other", 200, "root")]);
}

#[test]
fn of_two_content_handlers_the_last_one_answers() {
    let conf = "server { listen 127.0.0.1:%%PORT1%%; return 200 proxied; }
    server {
        listen 127.0.0.1:%%PORT%%;
        location /gif { proxy_pass http://127.0.0.1:%%PORT1%%; empty_gif; }
        location /proxied { empty_gif; proxy_pass http://127.0.0.1:%%PORT1%%; }
        location /refused { proxy_pass http://127.0.0.1:%%PORT1%%; fastcgi_pass 127.0.0.1:1; }
        location /if {
            if ($arg_inside) { proxy_pass http://127.0.0.1:%%PORT1%%; }
            if ($arg_nothing) { set $a b; }
            proxy_pass http://127.0.0.1:%%PORT1%%;
            empty_gif;
        }
        location /slash/ { proxy_pass http://127.0.0.1:%%PORT1%%; empty_gif; }
    }";
    let server = http(conf).start();
    let kind = |path: &str| {
        server
            .get(path)
            .expect(200)
            .field("Content-Type")
            .to_owned()
    };
    assert_eq!(kind("/gif"), "image/gif");
    assert_eq!(server.get("/proxied").text(), "proxied");
    assert_eq!(server.get("/refused").status, 502);
    assert_eq!(kind("/if"), "image/gif");
    assert_eq!(kind("/if?nothing=1"), "image/gif");
    assert_eq!(server.get("/if?inside=1").text(), "proxied");
    assert_eq!(server.get("/slash").status, 301);
}

#[test]
fn a_location_refuses_before_it_leads_to_its_slash() {
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        location /hidden/ { internal; proxy_pass http://127.0.0.1:1; }
        location = /exact/ { internal; proxy_pass http://127.0.0.1:1; }
        location /small/ { client_max_body_size 2; proxy_pass http://127.0.0.1:1; }
        location /open/ { proxy_pass http://127.0.0.1:1; }
        location /inside { rewrite ^ /hidden last; }
    }";
    let server = http(conf).start();
    for (target, status) in [
        ("/hidden", 404),
        ("/exact", 404),
        ("/open", 301),
        ("/inside", 301),
    ] {
        assert_eq!(server.get(target).status, status, "{target}");
    }
    let post = |target: &str| {
        let head =
            format!("POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody");
        server.raw(head).status
    };
    assert_eq!(post("/small"), 413);
    assert_eq!(post("/open"), 301);
}
