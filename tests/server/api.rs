//! `api`, `keyval`, `state`: what programs read of the server, and what they change while it runs.

use std::io::Write;

use weir_tests::{Reply, Scripted, Server, Site, http, read_until, skip_on_oracle, until, whole};

use crate::cache_fills::Origin;

const API: &str = "location /api { api write=on; }";

fn site(block: &str) -> Option<Site> {
    if skip_on_oracle("the API is the commercial nginx's") {
        return None;
    }
    Some(http(block))
}

/// An object of the API as text; its names are sorted.
#[track_caller]
fn read(server: &Server, path: &str) -> String {
    let reply = server.get(&format!("/api/9/{path}")).expect(200);
    assert_eq!(reply.field("Content-Type"), "application/json");
    assert_eq!(reply.field("Cache-Control"), "no-store");
    reply.text()
}

#[track_caller]
pub(crate) fn send(server: &Server, method: &str, path: &str, body: &str) -> Reply {
    let mut connection = server.connect();
    connection.send(format!(
        "{method} /api/9/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.reply_to(method)
}

/// The status and the code of an error.
#[track_caller]
fn code(reply: &Reply) -> (u16, String) {
    let text = reply.text();
    let code = text
        .split("\"code\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    if reply.status >= 400 {
        assert!(
            text.contains("\"href\":\"") && text.contains("\"request_id\":\""),
            "{text}"
        );
        assert!(
            text.contains(&format!("\"status\":{}", reply.status)),
            "{text}"
        );
    }
    (reply.status, code.unwrap_or_default().to_owned())
}

/// Whether a text has all of these parts.
#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

fn ok_origin() -> Origin {
    Origin::start(|stream, head, _| {
        let answer = match head.contains("/missing") {
            true => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            false => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCache-Control: max-age=60\r\n\r\nok",
        };
        let _ = stream.write_all(answer.as_bytes());
    })
}

#[test]
fn the_tree_is_that_of_the_published_description() {
    let origin = ok_origin();
    let port = origin.port;
    let Some(site) = site(&format!(
        "proxy_cache_path cache keys_zone=cache:1m max_size=10m; proxy_cache_path unlimited keys_zone=unlimited:1m;
         limit_req_zone $uri zone=reqs:64k rate=100r/s; limit_conn_zone $uri zone=conns:64k;
         keyval_zone zone=pairs:64k;
         upstream back {{ zone back 64k; server 127.0.0.1:{port} weight=3; server 127.0.0.1:1 backup; }}
         server {{ listen 127.0.0.1:%%PORT%%; status_zone front; {API}
             location / {{ status_zone pass; limit_req zone=reqs; limit_conn conns 5; proxy_pass http://back; }}
             location /cached {{ proxy_cache cache; proxy_pass http://back; }} }}"
    )) else {
        return;
    };
    let server = site.start();
    for (path, status) in [
        ("/", 200),
        ("/missing", 404),
        ("/cached", 200),
        ("/cached", 200),
    ] {
        server.get(path).expect(status);
    }
    assert_eq!(
        server.get("/api/").expect(200).text(),
        "[1,2,3,4,5,6,7,8,9]"
    );
    assert_eq!(server.get("/api").expect(200).text(), "[1,2,3,4,5,6,7,8,9]");
    has(
        &read(&server, ""),
        &[
            "\"nginx\"",
            "\"connections\"",
            "\"http\"",
            "\"stream\"",
            "\"resolvers\"",
            "\"ssl\"",
            "\"workers\"",
        ],
    );
    has(
        &read(&server, "http/"),
        &["\"upstreams\"", "\"keyvals\"", "\"location_zones\""],
    );
    has(
        &read(&server, "nginx"),
        &[
            "\"address\":\"127.0.0.1\"",
            "\"generation\":1",
            "\"load_timestamp\":\"20",
            "\"pid\":",
            "\"ppid\":",
            "\"version\":\"",
        ],
    );
    has(
        &read(&server, "connections"),
        &[
            "\"accepted\":",
            "\"active\":1",
            "\"dropped\":0",
            "\"idle\":",
        ],
    );
    has(
        &read(&server, "http/requests"),
        &["\"current\":1", "\"total\":"],
    );
    has(
        &read(&server, "ssl"),
        &[
            "\"handshakes\":0",
            "\"handshakes_failed\":0",
            "\"session_reuses\":0",
        ],
    );
    has(
        &read(&server, "http/server_zones/front"),
        &[
            "\"processing\":1",
            "\"codes\":{\"200\":",
            "\"404\":1",
            "\"discarded\":0",
            "\"received\":",
            "\"sent\":",
            "\"handshakes\":0",
        ],
    );
    has(
        &read(&server, "http/location_zones"),
        &[
            "{\"pass\":{",
            "\"requests\":2",
            "\"codes\":{\"200\":1,\"404\":1}",
            "\"total\":2",
        ],
    );
    has(
        &read(&server, "http/limit_reqs/reqs"),
        &["\"passed\":2", "\"delayed\":0", "\"rejected_dry_run\":0"],
    );
    has(
        &read(&server, "http/limit_conns/conns"),
        &["{\"passed\":2,\"rejected\":0,\"rejected_dry_run\":0}"],
    );
    has(
        &read(&server, "http/caches/cache"),
        &[
            "\"cold\":false",
            "\"max_size\":10485760",
            "\"hit\":{\"bytes\":2,\"responses\":1}",
            "\"miss\":{\"bytes\":2,\"bytes_written\":2,\"responses\":1,\"responses_written\":1}",
        ],
    );
    let unlimited = read(&server, "http/caches/unlimited");
    assert!(!unlimited.contains("max_size"), "{unlimited}");
    has(
        &read(&server, "http/upstreams/back"),
        &[
            "\"zone\":\"back\"",
            "\"keepalive\":",
            "\"zombies\":0",
            &format!("\"name\":\"127.0.0.1:{port}\""),
            "\"weight\":3",
            "\"requests\":3",
            "\"codes\":{\"200\":2,\"404\":1}",
            "\"state\":\"up\"",
            "\"selected\":\"20",
            "\"backup\":true",
            "\"id\":1",
        ],
    );
    has(
        &read(&server, "slabs"),
        &["\"reqs\":{\"pages\":{\"free\":", "\"pairs\":"],
    );
    has(
        &read(&server, "workers"),
        &["\"id\":0", "\"connections\":{\"accepted\":"],
    );
    assert_eq!(read(&server, "stream/upstreams"), "{}");
    assert_eq!(
        read(&server, "nginx?fields=generation"),
        "{\"generation\":1}"
    );
    assert_eq!(read(&server, "http/upstreams?fields="), "[\"back\"]");
    assert_eq!(
        read(&server, "http/upstreams?fields=zone,zombies"),
        "{\"back\":{\"zombies\":0,\"zone\":\"back\"}}"
    );
    for (path, expected) in [
        ("/api/10/nginx", "UnknownVersion"),
        ("/api/x", "UnknownVersion"),
        ("/api/9/none", "PathNotFound"),
        ("/api/9/http/upstreams/none", "UpstreamNotFound"),
        (
            "/api/9/http/upstreams/back/servers/7",
            "UpstreamServerNotFound",
        ),
        ("/api/9/http/server_zones/none", "ServerZoneNotFound"),
        ("/api/9/http/location_zones/none", "LocationZoneNotFound"),
        ("/api/9/http/caches/none", "CacheNotFound"),
        ("/api/9/http/limit_reqs/none", "LimitReqNotFound"),
        ("/api/9/http/limit_conns/none", "LimitConnNotFound"),
        ("/api/9/http/keyvals/none", "KeyvalNotFound"),
        ("/api/9/slabs/none", "SlabNotFound"),
        ("/api/9/resolvers/none", "ResolverZoneNotFound"),
        ("/api/9/workers/99", "WorkerNotFound"),
    ] {
        assert_eq!(
            code(&server.get(path)),
            (404, expected.to_owned()),
            "{path}"
        );
    }
    let bad = server.get("/api/9/http/upstreams/back/servers/x");
    assert_eq!(code(&bad), (400, "UpstreamBadServerId".to_owned()));
}

#[test]
fn servers_are_added_changed_drained_and_removed() {
    let (one, two) = (ok_origin(), ok_origin());
    let Some(site) = site(&format!(
        "upstream back {{ zone back 64k; state back.state; }}
         server {{ listen 127.0.0.1:%%PORT%%; {API} location / {{ proxy_pass http://back; add_header X-Up $upstream_addr; }} }}"
    )) else {
        return;
    };
    let server = site.tolerate("no live upstreams").start();
    let servers = "http/upstreams/back/servers";
    server.get("/").expect(502);
    assert_eq!(read(&server, servers), "[]");
    let first = format!("127.0.0.1:{}", one.port);
    let second = format!("127.0.0.1:{}", two.port);
    let added = send(
        &server,
        "POST",
        servers,
        &format!("{{\"server\":\"{first}\",\"weight\":2}}"),
    )
    .expect(201);
    assert_eq!(
        added.field("Location"),
        "/api/9/http/upstreams/back/servers/0"
    );
    has(
        &added.text(),
        &[
            "\"id\":0",
            "\"weight\":2",
            "\"fail_timeout\":\"10s\"",
            "\"down\":false",
        ],
    );
    server.get("/").expect(200);
    let body = format!("{{\"server\":\"{second}\",\"max_conns\":7,\"fail_timeout\":\"30s\"}}");
    send(&server, "POST", servers, &body).expect(201);
    assert_eq!(
        code(&send(&server, "POST", servers, &body)),
        (409, "EntryExists".to_owned())
    );
    // Drained: it is left alone.
    let drained = send(
        &server,
        "PATCH",
        &format!("{servers}/0"),
        "{\"drain\":true}",
    )
    .expect(200);
    has(
        &drained.text(),
        &["\"drain\":true", "\"id\":0", "\"weight\":2"],
    );
    for _ in 0..4 {
        // The origin closes its connections; a request that meets that is sent once more.
        let reply = server.get("/").expect(200);
        let tried = reply.field("X-Up");
        assert!(tried.split(", ").all(|one| one == second), "{tried}");
    }
    has(
        &read(&server, "http/upstreams/back"),
        &["\"state\":\"draining\""],
    );
    send(
        &server,
        "PATCH",
        &format!("{servers}/0"),
        "{\"drain\":false,\"down\":true}",
    )
    .expect(200);
    has(
        &read(&server, "http/upstreams/back"),
        &["\"state\":\"down\""],
    );
    let expected = format!(
        "server {first} weight=2 down;\nserver {second} max_conns=7 fail_timeout=30000ms;\n"
    );
    has(&server.read("back.state"), &[&expected]);
    // What was changed is there after a reload, and so is what was counted.
    server.signal(weir_tests::Signal::HUP);
    let reloaded = until(|| {
        read(&server, "nginx")
            .contains("\"generation\":2")
            .then_some(())
    });
    assert!(reloaded.is_some());
    has(
        &read(&server, servers),
        &[
            "\"down\":true",
            "\"max_conns\":7",
            "\"fail_timeout\":\"30s\"",
        ],
    );
    has(&read(&server, "http/upstreams/back"), &["\"total\":4"]);
    let left = send(&server, "DELETE", &format!("{servers}/1"), "")
        .expect(200)
        .text();
    assert!(left.contains(&first) && !left.contains(&second), "{left}");
    server.get("/").expect(502);
    send(
        &server,
        "PATCH",
        &format!("{servers}/0"),
        "{\"down\":false}",
    )
    .expect(200);
    assert_eq!(server.get("/").expect(200).field("X-Up"), first);
}

#[test]
fn a_change_that_makes_no_sense_changes_nothing() {
    let Some(site) = site(&format!(
        "upstream back {{ server 127.0.0.1:1; }} upstream hashed {{ hash $uri; server 127.0.0.1:1; }}
         upstream lost {{ state none/lost.state; }}
         server {{ listen 127.0.0.1:%%PORT%%; {API} location /read {{ api; }} }}"
    )) else {
        return;
    };
    let server = site.tolerate("access forbidden").start();
    let servers = "http/upstreams/back/servers";
    for (body, status, expected) in [
        ("", 415, "JsonError"),
        ("[1]", 415, "JsonError"),
        ("{\"server\":", 415, "JsonError"),
        ("{}", 400, "UpstreamConfFormatError"),
        (
            "{\"server\":\"127.0.0.1:2\",\"a\":1}",
            400,
            "UpstreamConfFormatError",
        ),
        (
            "{\"server\":\"127.0.0.1:2\",\"weight\":{}}",
            400,
            "UpstreamConfFormatError",
        ),
        ("{\"server\":1}", 400, "UpstreamConfFormatError"),
        (
            "{\"server\":\"127.0.0.1:99999\"}",
            400,
            "UpstreamBadAddress",
        ),
        (
            "{\"server\":\"127.0.0.1:2; server x\"}",
            400,
            "UpstreamBadAddress",
        ),
        ("{\"server\":\"127.0.0.1:2\\n\"}", 400, "UpstreamBadAddress"),
        ("{\"server\":\"none.invalid:2\"}", 400, "UpstreamBadAddress"),
        (
            "{\"server\":\"127.0.0.1:2\",\"weight\":0}",
            400,
            "UpstreamBadWeight",
        ),
        (
            "{\"server\":\"127.0.0.1:2\",\"weight\":-1}",
            400,
            "UpstreamBadWeight",
        ),
        (
            "{\"server\":\"127.0.0.1:2\",\"max_conns\":\"x\"}",
            400,
            "UpstreamBadMaxConns",
        ),
        (
            "{\"server\":\"127.0.0.1:2\",\"max_fails\":4294967296}",
            400,
            "UpstreamBadMaxFails",
        ),
        (
            "{\"server\":\"127.0.0.1:2\",\"fail_timeout\":\"-1\"}",
            400,
            "UpstreamBadFailTimeout",
        ),
        (
            "{\"server\":\"127.0.0.1:2\",\"slow_start\":true}",
            400,
            "UpstreamBadSlowStart",
        ),
        (
            "{\"server\":\"127.0.0.1:2\",\"route\":\"a;b\"}",
            400,
            "UpstreamBadRoute",
        ),
    ] {
        let reply = send(&server, "POST", servers, body);
        assert_eq!(code(&reply), (status, expected.to_owned()), "{body}");
    }
    let body = "{\"server\":\"127.0.0.1:2\",\"backup\":true}";
    let reply = send(&server, "POST", "http/upstreams/hashed/servers", body);
    assert_eq!(code(&reply), (400, "UpstreamNoBackup".to_owned()));
    // Its folder is not there: the change is taken back.
    let reply = send(
        &server,
        "POST",
        "http/upstreams/lost/servers",
        "{\"server\":\"127.0.0.1:2\"}",
    );
    assert_eq!(code(&reply), (500, "StateWriteError".to_owned()));
    assert_eq!(read(&server, "http/upstreams/lost/servers"), "[]");
    for (method, path, status, expected) in [
        (
            "DELETE",
            "http/upstreams/back/servers/9",
            404,
            "UpstreamServerNotFound",
        ),
        ("DELETE", "http/upstreams/back", 405, "MethodDisabled"),
        ("DELETE", "http/requests", 405, "MethodDisabled"),
        ("DELETE", "none", 404, "PathNotFound"),
        ("PUT", "http/upstreams/back/servers", 405, "MethodDisabled"),
        (
            "POST",
            "http/upstreams/none/servers",
            404,
            "UpstreamNotFound",
        ),
    ] {
        let reply = send(&server, method, path, "{\"server\":\"127.0.0.1:2\"}");
        assert_eq!(
            code(&reply),
            (status, expected.to_owned()),
            "{method} {path}"
        );
    }
    let servers_now = read(&server, servers);
    assert_eq!(servers_now.matches("\"id\":").count(), 1, "{servers_now}");
    // Without `write=on`.
    let reply = server.request("DELETE", "/read/9/http/upstreams/back/servers/0", &[]);
    assert_eq!(code(&reply), (405, "MethodDisabled".to_owned()));
}

#[test]
fn another_site_s_page_changes_nothing() {
    let Some(site) = site(&format!(
        "upstream back {{ server 127.0.0.1:1; server 127.0.0.1:2; }}
         server {{ listen 127.0.0.1:%%PORT%%; {API} location /open {{ api write=on; allow all; }} }}"
    )) else {
        return;
    };
    let server = site.tolerate("access forbidden").start();
    let path = "9/http/upstreams/back/servers/0";
    let ask = |place: &str, lines: &str| {
        server.raw(format!(
            "PATCH /{place}/{path} HTTP/1.1\r\n{lines}Content-Length: 13\r\n\r\n{{\"down\":true}}"
        ))
    };
    for (lines, api, open) in [
        ("Host: 127.0.0.1\r\n", 200, 200),
        ("Host: rebound.example\r\n", 403, 200),
        (
            "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n",
            403,
            403,
        ),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: same-site\r\n", 403, 403),
        (
            "Host: 127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n",
            200,
            200,
        ),
        (
            "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n",
            403,
            403,
        ),
        ("Host: 127.0.0.1\r\nOrigin: null\r\n", 403, 403),
        ("Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n", 200, 200),
        (
            "Host: 127.0.0.1\r\nX-Forwarded-For: 127.0.0.1\r\n",
            403,
            200,
        ),
    ] {
        assert_eq!(ask("api", lines).status, api, "{lines}");
        assert_eq!(ask("open", lines).status, open, "{lines}");
    }
    let rebound = server.raw("GET /api/9/nginx HTTP/1.1\r\nHost: rebound.example\r\n\r\n");
    assert_eq!(rebound.status, 403);
}

#[test]
fn keys_have_values_that_are_set_while_it_runs() {
    let Some(site) = site(&format!(
        "keyval_zone zone=one:64k state=one.json; keyval $arg_key $value zone=one;
         keyval_zone zone=nets:64k type=ip timeout=1h; keyval $arg_key $network zone=nets;
         keyval_zone zone=paths:64k type=prefix; keyval $uri $path zone=paths;
         server {{ listen 127.0.0.1:%%PORT%%; {API}
             location / {{ return 200 \"$value|$network|$path\"; }} }}"
    )) else {
        return;
    };
    let server = site.start();
    let zone = "http/keyvals/one";
    assert_eq!(read(&server, zone), "{}");
    send(&server, "POST", zone, "{\"a\":\"1\",\"b\":2}").expect(201);
    assert_eq!(read(&server, zone), "{\"a\":\"1\",\"b\":\"2\"}");
    assert_eq!(read(&server, "http/keyvals/one?key=b"), "{\"b\":\"2\"}");
    assert_eq!(server.get("/?key=a").text(), "1||");
    send(&server, "PATCH", zone, "{\"a\":\"other\"}").expect(204);
    send(&server, "PATCH", zone, "{\"b\":null}").expect(204);
    send(
        &server,
        "POST",
        "http/keyvals/nets",
        "{\"10.0.0.0/8\":\"big\",\"10.1.0.0/16\":{\"value\":\"small\",\"expire\":3600000}}",
    )
    .expect(201);
    send(
        &server,
        "POST",
        "http/keyvals/paths",
        "{\"/a\":\"under a\"}",
    )
    .expect(201);
    assert_eq!(server.get("/a/b?key=10.1.2.3").text(), "|small|under a");
    assert_eq!(server.get("/?key=10.2.2.3").text(), "|big|");
    for (method, zone, body, status, expected) in [
        ("POST", "one", "{\"a\":\"1\"}", 409, "KeyvalKeyExists"),
        (
            "POST",
            "one",
            "{\"c\":\"1\",\"d\":\"1\"}",
            400,
            "KeyvalFormatError",
        ),
        ("POST", "one", "{}", 400, "KeyvalFormatError"),
        ("POST", "one", "{\"\":\"1\"}", 400, "KeyvalFormatError"),
        (
            "POST",
            "one",
            "{\"c\":{\"value\":\"1\",\"expire\":5}}",
            400,
            "KeyvalFormatError",
        ),
        ("POST", "one", "{\"c\":[1]}", 400, "KeyvalFormatError"),
        ("POST", "one", "x", 415, "JsonError"),
        ("POST", "nets", "{\"x\":\"1\"}", 400, "KeyvalFormatError"),
        ("PATCH", "one", "{\"none\":\"1\"}", 404, "KeyvalKeyNotFound"),
        ("PATCH", "one", "{\"none\":null}", 404, "KeyvalKeyNotFound"),
        (
            "PATCH",
            "one",
            "{\"a\":\"1\",\"b\":\"1\"}",
            400,
            "KeyvalFormatError",
        ),
        ("POST", "none", "{\"a\":\"1\"}", 404, "KeyvalNotFound"),
    ] {
        let reply = send(&server, method, &format!("http/keyvals/{zone}"), body);
        assert_eq!(
            code(&reply),
            (status, expected.to_owned()),
            "{method} {zone} {body}"
        );
    }
    let missing = server.get("/api/9/http/keyvals/one?key=none");
    assert_eq!(code(&missing), (404, "KeyvalKeyNotFound".to_owned()));
    let large = format!("{{\"large\":\"{}\"}}", "x".repeat(70_000));
    assert_eq!(send(&server, "POST", zone, &large).status, 413);
    assert_eq!(server.read("one.json"), "{\"a\":{\"value\":\"other\"}}");
    send(&server, "DELETE", "http/keyvals/paths", "").expect(204);
    assert_eq!(read(&server, "http/keyvals/paths"), "{}");
}

#[test]
fn keys_outlive_the_server() {
    let block = format!(
        "keyval_zone zone=one:64k state=one.json; keyval $arg_key $value zone=one;
         server {{ listen 127.0.0.1:%%PORT%%; {API} location / {{ return 200 \"$value\"; }} }}"
    );
    let Some(site) = site(&block) else { return };
    let mut server = site
        .file(
            "one.json",
            "{\"a\":{\"value\":\"1\"},\"old\":{\"value\":\"x\",\"until\":1}}",
        )
        .start();
    assert_eq!(server.get("/?key=a").text(), "1");
    assert_eq!(read(&server, "http/keyvals/one"), "{\"a\":\"1\"}");
    send(&server, "POST", "http/keyvals/one", "{\"b\":\"2\"}").expect(201);
    // Memory counts over a reload, not the file.
    std::fs::write(server.path("one.json"), "{}").expect("it may be written");
    server.reconfigure(&format!(
        "{block} server {{ listen 127.0.0.1:%%PORT%%; server_name new; }}"
    ));
    server.signal(weir_tests::Signal::HUP);
    let reloaded = until(|| {
        read(&server, "nginx")
            .contains("\"generation\":2")
            .then_some(())
    });
    assert!(reloaded.is_some());
    assert_eq!(server.get("/?key=b").text(), "2");
}

#[test]
fn a_wrong_configuration_is_refused_with_its_reason() {
    if skip_on_oracle("the directives are the commercial nginx's") {
        return;
    }
    for (conf, reason) in [
        (
            "keyval_zone zone=a:64k sync;",
            "\"sync\" alone is not supported",
        ),
        (
            "keyval_zone zone=a:64k type=x;",
            "invalid parameter \"type=x\"",
        ),
        ("keyval_zone zone=a:1k;", "zone \"zone=a:1k\" is too small"),
        ("keyval_zone type=ip;", "must have \"zone\" parameter"),
        (
            "keyval $uri $v zone=none;",
            "zero size shared memory zone \"none\"",
        ),
        (
            "keyval_zone zone=a:64k; keyval_zone zone=a:64k;",
            "keyval_zone \"a\" is already defined",
        ),
        (
            "upstream u { server 127.0.0.1:1; state s; }",
            "cannot both be inside upstream",
        ),
        (
            "upstream u { state nginx.conf; }",
            "no \";\" at the end in line 1 of",
        ),
        (
            "server { location / { api write=maybe; } }",
            "invalid parameter \"write=maybe\"",
        ),
        (
            "server { location / { api /$x; } }",
            "\"api\" with variables is not supported",
        ),
        ("server { api; }", "\"api\" directive is not allowed here"),
    ] {
        let finished = http(&format!("{conf} server {{ listen 127.0.0.1:%%PORT%%; }}")).test();
        assert!(
            finished.code != 0 && finished.stderr.contains(reason),
            "{conf}: {}",
            finished.stderr
        );
    }
}

#[test]
fn sessions_and_servers_of_stream_are_in_it() {
    if skip_on_oracle("the API is the commercial nginx's") {
        return;
    }
    let origin = Scripted::start(|client, _| {
        read_until(client, b"\n");
        let _ = client.write_all(b"answer");
    });
    let server = whole(&format!(
        "events {{}} http {{ server {{ listen 127.0.0.1:%%PORT%%; {API} }} }}
         stream {{ limit_conn_zone $remote_addr zone=conns:64k; keyval_zone zone=pairs:64k; keyval $remote_addr $v zone=pairs;
             upstream back {{ zone back 64k; server 127.0.0.1:{}; }}
             server {{ listen 127.0.0.1:%%PORT1%%; status_zone front; limit_conn conns 5; proxy_pass back; }} }}",
        origin.port()
    ))
    .start();
    let mut connection = server.connect_to(1);
    connection.send("hello\n");
    assert_eq!(connection.rest(), b"answer");
    let zone = until(|| {
        let text = read(&server, "stream/server_zones/front");
        text.contains("\"processing\":0").then_some(text)
    });
    has(
        &zone.expect("the session ends"),
        &[
            "\"connections\":1",
            "\"2xx\":1",
            "\"total\":1",
            "\"received\":6",
            "\"sent\":6",
            "\"discarded\":0",
        ],
    );
    has(
        &read(&server, "stream/upstreams/back"),
        &[
            "\"connections\":1",
            "\"received\":6",
            "\"sent\":6",
            "\"state\":\"up\"",
            "\"zone\":\"back\"",
        ],
    );
    assert_eq!(
        read(&server, "stream/limit_conns"),
        "{\"conns\":{\"passed\":1,\"rejected\":0,\"rejected_dry_run\":0}}"
    );
    send(&server, "POST", "stream/keyvals/pairs", "{\"a\":\"1\"}").expect(201);
    assert_eq!(read(&server, "stream/keyvals"), "{\"pairs\":{\"a\":\"1\"}}");
    let reply = send(
        &server,
        "POST",
        "stream/upstreams/back/servers",
        "{\"server\":\"127.0.0.1\"}",
    );
    assert_eq!(code(&reply), (400, "UpstreamBadAddress".to_owned()));
    send(
        &server,
        "POST",
        "stream/upstreams/back/servers",
        "{\"server\":\"127.0.0.1:1\",\"down\":true}",
    )
    .expect(201);
    has(
        &read(&server, "stream/upstreams/back/servers"),
        &["\"id\":1", "\"down\":true"],
    );
}

#[test]
fn angie_s_form_has_angie_s_tree() {
    let Some(site) = site(
        "upstream back { zone back 64k; server 127.0.0.1:1; }
         server { listen 127.0.0.1:%%PORT%%; status_zone front; location /status/ { api /status/; } location =/up { api /status/http/upstreams/; }
             location / { return 204; } }",
    ) else {
        return;
    };
    let server = site.start();
    server.get("/").expect(204);
    let tree = server.get("/status/").expect(200).text();
    has(
        &tree,
        &[
            "\"angie\":{\"address\":\"127.0.0.1\"",
            "\"load_time\":",
            "\"connections\":",
            "\"http\":{\"caches\":",
        ],
    );
    let zone = server
        .get("/status/http/server_zones/front")
        .expect(200)
        .text();
    has(
        &zone,
        &[
            "\"requests\":{\"discarded\":0,\"processing\":1,\"total\":",
            "\"responses\":{\"200\":1,\"204\":1}",
            "\"data\":{",
        ],
    );
    let groups = server.get("/up").expect(200).text();
    has(
        &groups,
        &[
            "{\"back\":{",
            "\"peers\":{\"127.0.0.1:1\":{",
            "\"selected\":{\"current\":0",
            "\"health\":{",
        ],
    );
    assert_eq!(server.get("/status/none").status, 404);
    assert_eq!(server.request("DELETE", "/status/", &[]).status, 405);
}

#[test]
fn worker_groups_answer_as_one() {
    let Some(site) = site(&format!(
        "keyval_zone zone=one:64k; keyval $arg_key $value zone=one;
         upstream back {{ zone back 64k; state back.state; }}
         server {{ listen 127.0.0.1:%%PORT%% reuseport; status_zone front; {API} location = /metrics {{ prometheus; }}
             location / {{ return 200 \"$pid:$value\"; }} }}"
    )) else {
        return;
    };
    let server = site.main("worker_processes 2; worker_groups 2;").start();
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for _ in 0..60 {
        let text = server.get("/").text();
        *seen
            .entry(text.split(':').next().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
    send(&server, "POST", "http/keyvals/one", "{\"a\":\"1\"}").expect(201);
    send(
        &server,
        "POST",
        "http/upstreams/back/servers",
        "{\"server\":\"127.0.0.1:1\"}",
    )
    .expect(201);
    for _ in 0..20 {
        assert!(server.get("/?key=a").text().ends_with(":1"));
        has(
            &read(&server, "http/upstreams/back/servers"),
            &["\"server\":\"127.0.0.1:1\""],
        );
    }
    let zone = read(&server, "http/server_zones/front");
    let requests = zone
        .split("\"requests\":")
        .nth(1)
        .and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    assert!(requests.is_some_and(|requests| requests >= 102), "{zone}");
    assert_eq!(read(&server, "workers").matches("\"pid\":").count(), 2);
}

/// Answers of worker groups are longer than the packets between them.
#[test]
fn many_servers_are_told_by_all_worker_groups() {
    let servers: String = (0..300)
        .map(|number| {
            format!("server {{ listen 127.0.0.1:%%PORT%%; server_name s{number}.example; }}")
        })
        .collect();
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location = /metrics {{ prometheus; }} location = /status {{ weir_status json; }} }} {servers}"
    )) else {
        return;
    };
    let server = site.main("worker_processes 2; worker_groups 2;").start();
    let both = until(|| {
        let text = server.get("/metrics").expect(200).text();
        let count = |group: usize| {
            text.matches(&format!(
                "weir_http_sent_bytes_total{{worker_group=\"{group}\",server=\"s"
            ))
            .count()
        };
        ((count(0), count(1)) == (300, 300)).then_some(())
    });
    assert!(both.is_some());
    has(
        &server.get("/status").expect(200).text(),
        &["\"groups\":2,\"groups_answered\":2"],
    );
}

#[test]
fn neither_clients_nor_applications_make_it_grow() {
    let origin = Origin::start(|stream, head, _| {
        let status = head
            .split(' ')
            .nth(1)
            .unwrap_or_default()
            .trim_start_matches('/')
            .to_owned();
        let answer = format!("HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes());
    });
    let Some(site) = site(&format!(
        "upstream back {{ zone back 64k; server 127.0.0.1:{}; }}
         server {{ listen 127.0.0.1:%%PORT%%; server_name ~^(?<name>.*)$; status_zone front; {API}
             location / {{ status_zone pass; proxy_pass http://back; }} }}",
        origin.port
    )) else {
        return;
    };
    let server = site.start();
    let mut connection = server.connect();
    for status in 300..600 {
        connection.send(format!(
            "GET /{status} HTTP/1.1\r\nHost: h{status}.example\r\nUser-Agent: {status}\r\n\r\n"
        ));
        connection.reply();
    }
    for path in [
        "http/server_zones/front",
        "http/location_zones/pass",
        "http/upstreams/back",
    ] {
        let text = read(&server, path);
        let codes = text
            .split("\"codes\":{")
            .nth(1)
            .and_then(|rest| rest.split('}').next());
        let codes = codes.unwrap_or_else(|| panic!("no codes in {text}"));
        assert_eq!(codes.split(',').count(), 24, "{codes}");
        has(&text, &["\"3xx\":100", "\"4xx\":100", "\"5xx\":100"]);
    }
    assert_eq!(read(&server, "http/server_zones?fields="), "[\"front\"]");
}
