//! Who may: `allow`/`deny`, `auth_basic`, `satisfy`.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_tests::{Server, http, skip_on_oracle};

fn credentials(name: &str, password: &str) -> String {
    format!(
        "Authorization: Basic {}",
        STANDARD.encode(format!("{name}:{password}"))
    )
}

fn status(server: &Server, target: &str, line: &str) -> u16 {
    server.get_with(target, &[line]).status
}

#[test]
fn the_first_matching_rule_decides() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /all { deny all; return 200; }
        location /net { allow 127.0.0.0/8; deny all; }
        location /not { deny 127.0.0.1; allow all; }
        location /other { allow 10.0.0.0/8; deny all; }
        location /none { allow 10.0.0.0/8; }
        location /v6 { allow ::1; deny all; }
        location /unix { allow unix:; deny all; }
        location /inherit { deny all; location /inherit/open { allow all; } location /inherit/same { } }
        root %%DIR%%/html;
    }";
    let mut site = http(conf);
    for name in [
        "net",
        "not",
        "other",
        "none",
        "v6",
        "unix",
        "inherit/open",
        "inherit/same",
    ] {
        site = site.file(&format!("html/{name}"), "ok");
    }
    let server = site.start();
    server.answers(&[
        ("/all", 200, ""),
        ("/net", 200, "ok"),
        ("/not", 403, ""),
        ("/other", 403, ""),
        ("/none", 200, "ok"),
        ("/v6", 403, ""),
        ("/unix", 403, ""),
        ("/inherit/open", 200, "ok"),
        ("/inherit/same", 403, ""),
    ]);
    server.line("error.log", "access forbidden by rule");
}

#[test]
fn auth_basic_asks_and_checks_each_kind_of_hash() {
    let users = "plain:{PLAIN}secret\n\
                 # a comment\n\
                 sha:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n\
                 ssha:{SSHA}gVK8WC9YyFT1gMsQHTGCgT3sSv5zYWx0:rest is ignored\n\
                 apr1:$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0\n\
                 sha256:$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA\n\
                 sha512:$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1\n\
                 yescrypt:$y$j75$saltsaltsalt$jyf/lxrpdyAIshWRo1x5DRC6KIE7sNRRtjcomR3PgHA\n\
                 short:x\n\
                 unknown:$9$x$y\n\
                 empty:\n";
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { auth_basic \"the realm\"; auth_basic_user_file users; }
        location /off { auth_basic off; }
        location /missing { auth_basic closed; auth_basic_user_file none; }
        location /variable { auth_basic $arg_realm; auth_basic_user_file $arg_users; }
    }";
    let server = http(conf)
        .file("users", users)
        .file("html/a", "inside")
        .file("html/off", "open")
        .file("html/variable", "variable")
        .start();
    let asked = server.get("/a").expect(401);
    assert_eq!(asked.field("WWW-Authenticate"), "Basic realm=\"the realm\"");
    server.answers(&[("/off", 200, "open"), ("/missing", 401, "")]);

    for name in [
        "plain", "sha", "ssha", "apr1", "sha256", "sha512", "yescrypt",
    ] {
        assert_eq!(
            status(&server, "/a", &credentials(name, "secret")),
            200,
            "{name}"
        );
        assert_eq!(
            status(&server, "/a", &credentials(name, "secret2")),
            401,
            "{name}"
        );
    }
    assert_eq!(status(&server, "/a", &credentials("plain", "wrong")), 401);
    assert_eq!(status(&server, "/a", &credentials("plain", "")), 401);
    assert_eq!(status(&server, "/a", &credentials("plai", "secret")), 401);
    assert_eq!(status(&server, "/a", &credentials("nobody", "secret")), 401);
    assert_eq!(status(&server, "/a", "Authorization: Basic"), 401);
    assert_eq!(status(&server, "/a", "Authorization: Basic !!!"), 401);
    assert_eq!(status(&server, "/a", "Authorization: Bearer xyz"), 401);
    let lower = credentials("plain", "secret").replace("Basic", "basic");
    assert_eq!(status(&server, "/a", &lower), 200);
    // What is no hash fits no password.
    for name in ["short", "unknown"] {
        assert_eq!(
            status(&server, "/a", &credentials(name, "x")),
            401,
            "{name}"
        );
    }
    server.line("error.log", "user \"plain\": password mismatch");
    server.line("error.log", "user \"nobody\" was not found in \"");
}

#[test]
fn a_missing_user_file_is_forbidden_not_open() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; auth_basic x; auth_basic_user_file none; }";
    let server = http(conf).file("html/a", "inside").start();
    assert!(matches!(
        status(&server, "/a", &credentials("a", "b")),
        403 | 500
    ));
}

#[test]
fn the_user_is_a_variable() {
    let conf = "
        log_format user '$remote_user|$status';
        server {
            listen 127.0.0.1:%%PORT%%;
            access_log access.log user;
            auth_basic x; auth_basic_user_file users;
            add_header X-User $remote_user always;
        }";
    let server = http(conf)
        .file("users", "bob:{PLAIN}pw\n")
        .file("html/a", "inside")
        .start();
    let reply = server
        .get_with("/a", &[&credentials("bob", "pw")])
        .expect(200);
    assert_eq!(reply.field("X-User"), "bob");
    assert_eq!(server.lines("access.log", 1), ["bob|200"]);
}

#[test]
fn satisfy_any_needs_one_and_all_needs_both() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        auth_basic x; auth_basic_user_file users;
        location /any-open { satisfy any; allow all; }
        location /any-closed { satisfy any; deny all; }
        location /all-open { satisfy all; allow all; }
        location /all-closed { satisfy all; deny all; }
    }";
    let server = http(conf)
        .file("users", "bob:{PLAIN}pw\n")
        .file("html/any-open", "")
        .file("html/any-closed", "")
        .file("html/all-open", "")
        .file("html/all-closed", "")
        .start();
    let good = credentials("bob", "pw");
    let bad = credentials("bob", "no");
    for (target, without, with_bad, with_good) in [
        ("/any-open", 200, 200, 200),
        ("/any-closed", 401, 401, 200),
        ("/all-open", 401, 401, 200),
        ("/all-closed", 403, 403, 403),
    ] {
        assert_eq!(server.get(target).status, without, "{target}");
        assert_eq!(status(&server, target, &bad), with_bad, "{target}");
        assert_eq!(status(&server, target, &good), with_good, "{target}");
    }
}

#[test]
fn deny_works_on_a_unix_socket() {
    let server = http("server { listen unix:%%DIR%%/s; deny unix:; location / { } }")
        .file("html/a", "a")
        .start();
    let mut stream =
        std::os::unix::net::UnixStream::connect(server.path("s")).expect("the server listens");
    std::io::Write::write_all(&mut stream, b"GET /a HTTP/1.0\r\n\r\n").expect("the server reads");
    let text = std::io::read_to_string(stream).expect("the server answers");
    assert!(text.contains(" 403 "), "{text}");
}

#[test]
fn the_time_of_an_answer_does_not_tell_which_users_there_are() {
    if skip_on_oracle("nginx compares no password of a user that is not there") {
        return;
    }
    // Rounds that take far longer than all else, whatever the machine.
    let hash = "$6$rounds=60000$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1";
    let conf = "server { listen 127.0.0.1:%%PORT%%; auth_basic x; auth_basic_user_file users; }";
    let server = http(conf)
        .file("users", format!("bob:{hash}\nalice:{hash}\n"))
        .start();
    let quickest = |name: &str| {
        let field = credentials(name, "guess");
        let tries = (0..3).map(|_| {
            let began = Instant::now();
            assert_eq!(status(&server, "/", &field), 401);
            began.elapsed()
        });
        tries.min().expect("there were tries")
    };
    let (known, unknown) = (quickest("bob"), quickest("mallory"));
    assert!(unknown > known / 3, "known {known:?}, unknown {unknown:?}");
}
