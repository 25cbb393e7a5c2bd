//! `weir explain`: what it says is what the server does.

use weir_tests::{Dice, Server, Site, compare, http, skip_on_oracle, until};

/// Random requests per configuration; `WEIR_EXPLAIN_REQUESTS` sets how many there are in all.
fn requests() -> usize {
    let all = std::env::var("WEIR_EXPLAIN_REQUESTS").ok();
    let all = all.and_then(|text| text.parse().ok()).unwrap_or(150);
    all / 3
}

/// What random requests are made of.
struct Parts {
    hosts: &'static [&'static str],
    paths: &'static [&'static str],
    arguments: &'static [&'static str],
    methods: &'static [&'static str],
    lines: &'static [&'static str],
}

struct Drawn {
    method: &'static str,
    host: &'static str,
    target: String,
    lines: Vec<&'static str>,
}

impl Parts {
    fn draw(&self, dice: &mut Dice) -> Drawn {
        let path = dice.one_of(self.paths);
        let mut lines = Vec::new();
        if dice.below(3) == 0 {
            lines.push(*dice.one_of(self.lines));
        }
        // With its type: a reference to a text is what is drawn, not a text.
        let method: &&str = dice.one_of(self.methods);
        let host: &&str = dice.one_of(self.hosts);
        Drawn {
            method,
            host,
            target: format!("{path}{}", dice.one_of(self.arguments)),
            lines,
        }
    }
}

/// Asks the server and `weir explain` for random requests, and compares what they say of server, location, status, file,
/// redirect, upstream and cache key. The configurations set `$where` to the text of each location, and responses show it.
fn agree(site: Site, parts: &Parts, seed: u64) {
    let server = site.start();
    let mut dice = Dice::new(seed);
    let mut wrong = Vec::new();
    for _ in 0..requests() {
        let drawn = parts.draw(&mut dice);
        if let Err(why) = agrees(&server, &drawn) {
            wrong.push(format!(
                "{} {} Host: {} {:?}: {why}",
                drawn.method, drawn.target, drawn.host, drawn.lines
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn agrees(server: &Server, drawn: &Drawn) -> Result<(), String> {
    let explained = server.explain(drawn.method, &drawn.target, drawn.host, &drawn.lines);
    let mut connection = server.connect();
    let mut head = format!(
        "{} {} HTTP/1.1\r\nHost: {}\r\n",
        drawn.method, drawn.target, drawn.host
    );
    for line in &drawn.lines {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    connection.send(head);
    let reply = connection.reply_to(drawn.method);
    compare(&explained, &reply)?;
    let same = |what: &str, said: Option<String>, seen: &str| match said {
        Some(said) if said != seen => Err(format!("{what}: {said} explained, {seen} seen")),
        _ => Ok(()),
    };
    // A request that was refused before it had a server has no line.
    if reply.has("X-Server") {
        same(
            "server",
            explained.text("server", "name"),
            reply.field("X-Server"),
        )?;
    }
    // A block without `set`, and a redirect before `set` is run, do not show where they are.
    let is_shown = !explained.has_step("limit_except", "applies")
        && !explained.has_step("redirect", "applies")
        && !explained.has_step("if", "applies");
    if reply.has("X-Where") && is_shown {
        let said = explained
            .text("location", "name")
            .map(|name| name.replace('$', ""));
        same("location", said, reply.field("X-Where"))?;
    }
    let sent = explained.upstream_request();
    if let Some((_, line)) = sent.first() {
        // A response from the cache is that of an earlier request with the same key.
        if reply.field("X-Cache") != "HIT" {
            same("request line", Some(line.clone()), reply.field("X-Line"))?;
            for (name, seen) in [("Host", "X-Host"), ("X-R", "X-Seen")] {
                let said = sent.iter().find(|(field, _)| field == name);
                same(
                    name,
                    said.map(|(_, value)| value.clone()),
                    reply.field(seen),
                )?;
            }
        }
        same(
            "group",
            explained.text("upstream", "name"),
            reply.field("X-Group"),
        )?;
    } else if !reply.field("X-Line").is_empty() {
        return Err("an upstream server was asked".to_owned());
    }
    if explained.text("cache", "use").as_deref() == Some("lookup")
        && reply.status == 200
        && let Some(key) = explained.text("cache", "key")
    {
        let key: String = key.bytes().map(|byte| format!("%{byte:02x}")).collect();
        // The index learns of an object when its last byte is written.
        let target = format!("/cache-keys?key={key}");
        let stored = until(|| (server.get(&target).status == 200).then_some(()));
        if stored.is_none() {
            return Err(format!("the cache has no such key: {}", explained.json()));
        }
    }
    Ok(())
}

#[test]
fn files_and_rewrites_as_explained() {
    if skip_on_oracle("nginx does not explain itself") {
        return;
    }
    let site = http(
        "add_header X-Where $where always; add_header X-Server $server_name always;
         map $http_x_kind $kind { default plain; ~^p pretty; }
         server {
             listen 127.0.0.1:%%PORT%%; server_name one.example *.one.example;
             set $where \"none: the server's own level\"; error_page 404 /missing.html; error_page 403 @closed;
             if ($arg_gone) { return 410; }
             location / { set $where \"location /\"; try_files $uri $uri/ /fallback.html; }
             location = /exact { set $where \"location = /exact\"; return 200 $kind; }
             location /old { set $where \"location /old\"; rewrite ^/old/(.*)$ /new/$1?from=old last; return 404; }
             location /new/ { set $where \"location /new/\"; if ($args ~ from) { return 302 /d/$kind; } }
             location ^~ /d/ { set $where \"location ^~ /d/\"; index b.html index.html; }
             location ~ \\.txt$ { set $where \"location ~ \\.txt\"; deny all; }
             location ~* ^/(a|B)\\.HTML$ { set $where \"location ~* ^/(a|B)\\.HTML\"; expires 1h; }
             location /in { internal; set $where \"location /in\"; return 200 in; }
             location /methods { set $where \"location /methods\"; limit_except GET { deny all; } alias %%DIR%%/html/d; }
             location @closed { set $where \"location @closed\"; return 403 closed; }
         }
         server { listen 127.0.0.1:%%PORT%%; server_name ~^(?<name>.+)\\.two$; return 301 http://$name.example$request_uri; }
         server { listen 127.0.0.1:%%PORT%%; server_name two.*; set $where \"none: the server's own level\"; root html/d; }",
    );
    let site = site
        .file("html/a.html", "file a")
        .file("html/a.txt", "text")
        .file("html/fallback.html", "fallback")
        .file("html/missing.html", "missing")
        .file("html/d/index.html", "index of d")
        .file("html/d/b.html", "b of d");
    let parts = Parts {
        hosts: &[
            "one.example",
            "x.one.example",
            "x.two",
            "two.org",
            "other",
            "ONE.example:8080",
        ],
        paths: &[
            "/",
            "/a.html",
            "/A.html",
            "/a.txt",
            "/d",
            "/d/",
            "/d/b.html",
            "/exact",
            "/exact/",
            "/old/x",
            "/old",
            "/new/1",
            "/new/",
            "/in",
            "/in/x",
            "/methods/",
            "/methods/b.html",
            "/methods",
            "/none",
            "/none.txt",
            "/%61.html",
            "//a.html",
            "/d/../a.html",
            "/b.html",
            "/index.html",
        ],
        arguments: &["", "", "", "?gone=1", "?from=x", "?x=%20y"],
        methods: &["GET", "GET", "GET", "HEAD", "POST", "OPTIONS"],
        lines: &[
            "X-Kind: pretty",
            "X-Kind: other",
            "If-None-Match: *",
            "Range: bytes=0-1",
        ],
    };
    agree(site, &parts, 1);
}

#[test]
fn upstreams_and_caches_as_explained() {
    if skip_on_oracle("nginx does not explain itself") {
        return;
    }
    let site = http(
        "proxy_cache_path cache keys_zone=pages:1m;
         upstream one { server 127.0.0.1:%%PORT1%%; }
         map $arg_to $group { default one; direct 127.0.0.1:%%PORT1%%; }
         server {
             listen 127.0.0.1:%%PORT1%%;
             add_header X-Line \"$request_method $request_uri $server_protocol\" always; add_header X-Host $http_host always;
             add_header X-Seen $http_x_r always;
             location / { return 200 upstream; }
             location /missing { return 404; }
         }
         server {
             listen 127.0.0.1:%%PORT%%; server_name proxy.example;
             add_header X-Where $where always; add_header X-Server $server_name always;
             add_header X-Group $proxy_host always; add_header X-Cache $upstream_cache_status always;
             set $where \"none: the server's own level\";
             proxy_set_header X-R $arg_a$http_x_more;
             proxy_cache_valid 200 1h;
             location / { set $where \"location /\"; proxy_pass http://one; proxy_set_header Host $host; proxy_set_header X-R y; }
             location /a/ { set $where \"location /a/\"; proxy_pass http://one/b/; }
             location /cached/ { set $where \"location /cached/\"; proxy_pass http://one; proxy_cache pages;
                 proxy_cache_key $uri|$arg_a; proxy_cache_bypass $http_x_more; proxy_no_cache $http_x_more; }
             location /default-key/ { set $where \"location /default-key/\"; proxy_pass http://one/k/; proxy_cache pages; }
             location ~ ^/variable(?<rest>/.*) { set $where \"location ~ ^/variable(?<rest>/.*)\";
                 proxy_pass http://$group$rest; }
             location /rewritten { set $where \"location /rewritten\"; rewrite ^/rewritten/(.*) /$1 break; proxy_pass http://one; }
             location /method { set $where \"location /method\"; proxy_method POST; proxy_pass http://one; }
             location /closed { set $where \"location /closed\"; allow 10.0.0.0/8; deny all; proxy_pass http://one; }
             location = /cache-keys { cache_purge pages; }
         }",
    );
    let parts = Parts {
        hosts: &["proxy.example", "other"],
        paths: &[
            "/",
            "/x",
            "/a",
            "/a/",
            "/a/x/y",
            "/cached/1",
            "/cached/2",
            "/cached",
            "/default-key/1",
            "/default-key/2",
            "/variable/x",
            "/variable/",
            "/rewritten/x",
            "/rewritten",
            "/method",
            "/closed",
            "/missing",
            "/a%20b",
            "/cached/%41",
        ],
        arguments: &["", "", "?a=1", "?a=2", "?to=direct", "?to=one&a=3"],
        methods: &["GET", "GET", "GET", "HEAD", "POST", "OPTIONS"],
        lines: &[
            "X-More: 1",
            "X-R: mine",
            "Cookie: a=b",
            "Accept-Encoding: gzip",
            "If-None-Match: \"x\"",
        ],
    };
    agree(site, &parts, 2);
}

#[test]
fn access_and_redirects_as_explained() {
    if skip_on_oracle("nginx does not explain itself") {
        return;
    }
    let site = http(
        "add_header X-Where $where always; add_header X-Server $server_name always;
         set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For;
         server {
             listen 127.0.0.1:%%PORT%%; server_name \"\" a.example;
             set $where \"none: the server's own level\"; error_page 401 403 = @denied; error_page 404 =200 /empty.html;
             location / { set $where \"location /\"; allow 10.0.0.0/8; allow 127.0.0.1; deny all;
                 location /nested { set $where \"location /nested\"; deny 127.0.0.1;
                     location ~ \\.html$ { set $where \"location ~ \\.html\"; allow all; } } }
             location /any { set $where \"location /any\"; satisfy any; allow 10.0.0.0/8; deny all;
                 auth_basic closed; auth_basic_user_file %%DIR%%/users; }
             location /auth { set $where \"location /auth\"; auth_basic closed; auth_basic_user_file %%DIR%%/users; }
             location /if { set $where \"location /if\"; set $a 0;
                 if ($http_x_forwarded_for) { set $a 1; } if ($request_method = POST) { set $a \"${a}2\"; }
                 if (-f $document_root/a.html) { set $a \"${a}f\"; } if (!-d $document_root$uri) { set $a \"${a}n\"; }
                 return 200 \"$a $remote_addr\"; }
             location /break { set $where \"location /break\"; rewrite ^ /a.html break; }
             location /away { set $where \"location /away\"; rewrite ^/away/(.*) http://other/$1 permanent; }
             location /loop { set $where \"location /loop\"; rewrite ^ /loop last; }
             location @denied { set $where \"location @denied\"; return 200 denied; }
         }",
    );
    let site = site
        .file("html/a.html", "file a")
        .file("html/empty.html", "nothing")
        .file("html/nested/x.html", "nested")
        .file("users", "me:{PLAIN}secret\n");
    let parts = Parts {
        hosts: &["a.example", "b"],
        paths: &[
            "/",
            "/a.html",
            "/nested",
            "/nested/",
            "/nested/x.html",
            "/nested/none.html",
            "/any",
            "/any/a.html",
            "/auth",
            "/if",
            "/if/x",
            "/break/x",
            "/away/x",
            "/away",
            "/loop",
            "/none",
            "/nested/x.txt",
        ],
        arguments: &["", "?a=1"],
        methods: &["GET", "GET", "HEAD", "POST", "PUT", "CONNECT"],
        lines: &[
            "X-Forwarded-For: 10.1.2.3",
            "X-Forwarded-For: 192.0.2.1",
            "Authorization: Basic bWU6c2VjcmV0",
            "Authorization: Basic bWU6d3Jvbmc=",
            "If-Modified-Since: Thu, 01 Jan 2099 00:00:00 GMT",
        ],
    };
    agree(site, &parts, 3);
}

#[test]
fn nothing_is_run_written_or_asked() {
    if skip_on_oracle("nginx does not explain itself") {
        return;
    }
    let server = http(
        "proxy_cache_path cache keys_zone=pages:1m; limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;
         log_format l $uri; access_log access.log l;
         server {
             listen 127.0.0.1:%%PORT%%; root html;
             location / { dav_methods PUT DELETE; }
             location /lua { rewrite_by_lua_block { io.open('%%DIR%%/written', 'w'):close() } }
             location /script { set_by_lua_block $x { io.open('%%DIR%%/written', 'w'):close() return 'a' } return 200 $x; }
             location /content { content_by_lua_block { io.open('%%DIR%%/written', 'w'):close() } }
             location /limited { limit_req zone=one; empty_gif; }
             location /mirrored { mirror /m; return 204; }
             location /m { return 204; }
             location /up { proxy_pass http://127.0.0.1:%%PORT%%/m; proxy_cache pages; }
         }",
    )
    .file("html/keep.txt", "kept")
    .start();
    let ask = |method: &str, target: &str| server.explain(method, target, "x", &[]);
    let put = ask("PUT", "/new.txt");
    assert!(
        put.status().is_none() && put.has_step("dav", "not run"),
        "{}",
        put.json()
    );
    ask("DELETE", "/keep.txt");
    assert!(server.path("html/keep.txt").exists() && !server.path("html/new.txt").exists());
    let lua = ask("GET", "/lua");
    assert!(
        lua.has_step("lua", "not run") && !lua.is_certain(),
        "{}",
        lua.json()
    );
    assert_eq!(
        lua.status(),
        Some(404),
        "what follows the script is shown, too"
    );
    let script = ask("GET", "/script");
    assert!(
        script.has_step("script", "not run") && !script.is_certain(),
        "{}",
        script.json()
    );
    assert_eq!(ask("GET", "/content").status(), None);
    for _ in 0..3 {
        assert!(ask("GET", "/limited").has_step("limit_req", "not run"));
    }
    assert_eq!(
        server.get("/limited").status,
        200,
        "explaining has not used the limit up"
    );
    assert!(ask("GET", "/mirrored").is_certain());
    ask("GET", "/up");
    assert!(!server.path("written").exists());
    // Only what the test itself asked for.
    assert_eq!(server.lines("access.log", 1), ["/limited"]);
}

#[test]
fn each_step_has_file_and_line() {
    if skip_on_oracle("nginx does not explain itself") {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; include %%DIR%%/included/*.conf; }")
        .file(
            "included/a.conf",
            "# first\nlocation /a {\n  set $x 1;\n  add_header X-B c;\n  return 200 $x;\n}\n",
        )
        .start();
    let said = server.explain("GET", "/a", "x", &[]);
    for (text, line) in [
        ("location /a: longest prefix", 2),
        ("set $x 1", 3),
        ("X-B: c", 4),
        ("return 200 $x", 5),
    ] {
        let step = said.json().lines().find(|step| step.contains(text));
        let step = step.unwrap_or_else(|| panic!("no step {text}: {}", said.json()));
        assert!(
            step.contains("included/a.conf\"") && step.contains(&format!("\"line\": {line}}}")),
            "{step}"
        );
    }
    let url = format!("http://127.0.0.1:{}/a", server.port(0));
    let text = server.explain_with(&[&url]);
    assert_eq!(text.code, 0);
    assert!(text.stdout.contains("included/a.conf:5"), "{}", text.stdout);
    assert!(!text.stdout.contains('\x1b'), "colours are for terminals");
}

#[test]
fn wrong_questions_are_refused() {
    if skip_on_oracle("nginx does not explain itself") {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; }").start();
    for (arguments, said) in [
        (&["ftp://x/"][..], "does not begin with http"),
        (&["http://x:1/"], "no server listens on port 1"),
        (&["http://x:y/"], "invalid port"),
        (&["-H", "nonsense", "/"], "invalid header field"),
        (&["--from", "here", "/"], "invalid address"),
        (&[], "missing argument URL"),
        (&["a b"], "invalid URL"),
    ] {
        let finished = server.explain_with(arguments);
        assert_eq!(finished.code, 1, "{arguments:?}");
        assert!(
            finished.stderr.contains(said),
            "{arguments:?}: {}",
            finished.stderr
        );
    }
    assert_eq!(
        server.explain_with(&["/"]).code,
        0,
        "a path alone is enough"
    );
}

#[test]
fn the_running_server_is_asked_if_wanted() {
    if skip_on_oracle("nginx does not explain itself") {
        return;
    }
    let server = http(
        "proxy_cache_path cache keys_zone=pages:1m;
         upstream back { server 127.0.0.1:%%PORT1%%; }
         server { listen 127.0.0.1:%%PORT1%%; location / { add_header Cache-Control max-age=1000; return 200 x; } }
         server {
             listen 127.0.0.1:%%PORT%%;
             location / { proxy_pass http://back; proxy_cache pages; }
             location = /keys { cache_purge pages; }
             location = /metrics { prometheus; }
         }",
    )
    .start();
    let url = format!("http://127.0.0.1:{}/a", server.port(0));
    let before = server.explain_with(&["--live", &url]);
    assert!(before.stdout.contains("not stored"), "{}", before.stdout);
    server.get("/a").expect(200);
    let said = until(|| {
        let said = server.explain_with(&["--live", &url]).stdout;
        said.contains("fresh until").then_some(said)
    });
    let said = said.expect("the object is stored");
    let peer = format!("127.0.0.1:{}: ", server.port(1));
    assert!(said.contains(&peer), "{said}");
}
