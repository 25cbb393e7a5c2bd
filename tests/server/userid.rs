//! `userid`: clients that are known again.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_tests::{Reply, Site, http};

fn site(directives: &str) -> Site {
    let conf = format!(
        "server {{
            listen 127.0.0.1:%%PORT%%;
            add_header X-Got $uid_got;
            add_header X-Set $uid_set;
            userid on;
            {directives}
            location /off {{ userid off; return 200; }}
            location /log {{ userid log; return 200; }}
            location / {{ return 200; }}
        }}"
    );
    http(&conf)
}

/// The value of the cookie that a reply sets.
fn cookie(reply: &Reply) -> String {
    let field = reply.field("Set-Cookie");
    let (_, rest) = field.split_once('=').expect("a cookie is set");
    rest.split_once(';')
        .expect("it has attributes")
        .0
        .to_owned()
}

#[test]
fn a_new_client_gets_a_cookie_and_is_known_by_it() {
    let server = site("").start();
    let first = server.get("/").expect(200);
    let value = cookie(&first);
    assert_eq!(first.field("Set-Cookie"), format!("uid={value}; path=/"));
    let bytes = STANDARD.decode(&value).expect("the cookie is base64");
    assert_eq!(bytes.len(), 16);
    assert_eq!(&bytes[..4], &[127, 0, 0, 1], "the address of the server");
    assert!(!first.has("X-Got") && first.field("X-Set").starts_with("uid=0100007F"));
    assert_ne!(cookie(&server.get("/")), value);

    for line in [
        format!("Cookie: uid={value}"),
        format!("Cookie: a=b; uid={value}; c=d"),
        format!("Cookie: UID={value}"),
    ] {
        let reply = server.get_with("/", &[&line]).expect(200);
        assert!(!reply.has("Set-Cookie") && !reply.has("X-Set"), "{line}");
        assert_eq!(reply.field("X-Got"), first.field("X-Set"), "{line}");
    }
    let reply = server.get_with("/log", &[&format!("Cookie: uid={value}")]);
    assert_eq!(reply.field("X-Got"), first.field("X-Set"));
    assert!(!server.get("/log").has("Set-Cookie") && !server.get("/off").has("Set-Cookie"));
    assert!(
        !server
            .get_with("/off", &[&format!("Cookie: uid={value}")])
            .has("X-Got")
    );
}

#[test]
fn wrong_cookies_are_replaced() {
    let server = site("").start();
    let reply = server.get_with("/", &["Cookie: uid=short"]);
    assert!(reply.has("Set-Cookie") && !reply.has("X-Got"));
    server.line(
        "error.log",
        "client sent too short userid cookie \"uid=short\"",
    );
    assert!(
        server
            .get_with("/", &["Cookie: uid=!!!!!!!!!!!!!!!!!!!!!!!!"])
            .has("Set-Cookie")
    );
    server.line(
        "error.log",
        "client sent invalid userid cookie \"uid=!!!!!!!!!!!!!!!!!!!!!!!!\"",
    );
}

#[test]
fn attributes() {
    let server = site(
        "userid_name id; userid_domain example.com; userid_path /a; userid_expires max; userid_p3p 'CP=x';
         userid_flags secure httponly samesite=lax; userid_service 258;",
    )
    .start();
    let reply = server.get("/");
    let value = cookie(&reply);
    assert_eq!(
        reply.field("Set-Cookie"),
        format!(
            "id={value}; expires=Thu, 31-Dec-37 23:55:55 GMT; domain=example.com; path=/a; secure; httponly; samesite=lax"
        )
    );
    assert_eq!(reply.field("P3P"), "CP=x");
    assert_eq!(&STANDARD.decode(value).expect("base64")[..4], &[0, 0, 1, 2]);
    let reply = site("userid_expires 1d;").start().get("/");
    assert!(reply.field("Set-Cookie").contains("; expires="));
}

#[test]
fn a_mark_makes_old_cookies_new() {
    let server = site("userid_mark Z;").start();
    let value = cookie(&server.get("/"));
    assert!(value.ends_with("Z="), "{value}");
    assert!(
        !server
            .get_with("/", &[&format!("Cookie: uid={value}")])
            .has("Set-Cookie")
    );
    let old = value.replace("Z=", "==");
    let reply = server.get_with("/", &[&format!("Cookie: uid={old}")]);
    assert_eq!(cookie(&reply), value);
}

#[test]
fn a_cookie_may_be_reset() {
    let server = http(
        "map $args $uid_reset { default 0; new 1; log log; }
         server { listen 127.0.0.1:%%PORT%%; userid on; location / { return 200; } }",
    )
    .start();
    let value = cookie(&server.get("/"));
    let line = format!("Cookie: uid={value}");
    assert!(!server.get_with("/?old", &[&line]).has("Set-Cookie"));
    assert_ne!(cookie(&server.get_with("/?new", &[&line])), value);
    assert_ne!(cookie(&server.get_with("/?log", &[&line])), value);
    server.line("error.log", "was reset");
}
