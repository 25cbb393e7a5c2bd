//! `realip`: who the client is behind a proxy that is trusted.

use weir_tests::{Server, http, whole};

fn address(server: &Server, target: &str, lines: &[&str]) -> String {
    let reply = server.get_with(target, lines).expect(200);
    reply.field("X-Address").to_owned()
}

fn start() -> Server {
    let conf = "add_header X-Address $remote_addr:$remote_port;
        add_header X-Peer $realip_remote_addr;
        log_format client '$remote_addr $realip_remote_addr';
        server { listen 127.0.0.1:%%PORT%%;
            access_log client.log client;
            set_real_ip_from 127.0.0.0/8;
            set_real_ip_from 10.0.0.0/8;
            location / { }
            location /list { real_ip_header X-Forwarded-For; }
            location /far { real_ip_header X-Forwarded-For; real_ip_recursive on; }
            location /field { real_ip_header X-Client; }
            location /nobody { set_real_ip_from 192.0.2.0/24; }
            location /judged { real_ip_header X-Client; deny 192.0.2.1; }
            location /wander { try_files /none /field; }
        }";
    let mut site = http(conf);
    for name in ["a", "list", "far", "field", "nobody", "judged"] {
        site = site.file(&format!("html/{name}"), "");
    }
    site.start()
}

#[test]
fn the_field_of_a_trusted_peer_is_believed() {
    let server = start();
    let one = |target, line: &str| address(&server, target, &[line]);
    assert_eq!(one("/a", "X-Real-IP: 192.0.2.1"), "192.0.2.1:");
    assert_eq!(one("/a", "X-Real-IP: 192.0.2.1:8080"), "192.0.2.1:8080");
    assert_eq!(one("/a", "X-Real-IP: 2001:db8::1"), "2001:db8::1:");
    assert!(one("/a", "X-Real-IP: nobody").starts_with("127.0.0.1:"));
    assert!(one("/a", "X-Other: 192.0.2.1").starts_with("127.0.0.1:"));
    let reply = server.get_with("/a", &["X-Real-IP: 192.0.2.1"]);
    assert_eq!(reply.field("X-Peer"), "127.0.0.1");
    server.line("client.log", "192.0.2.1 127.0.0.1");
}

#[test]
fn lists_are_read_from_their_end() {
    let server = start();
    let one = |target, line: &str| address(&server, target, &[line]);
    assert_eq!(
        one("/list", "X-Forwarded-For: 192.0.2.1, 10.0.0.1"),
        "10.0.0.1:"
    );
    assert_eq!(
        one("/far", "X-Forwarded-For: 192.0.2.7, 192.0.2.1, 10.0.0.1"),
        "192.0.2.1:"
    );
    let fields = [
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-For: 10.0.0.2, 10.0.0.1",
    ];
    assert_eq!(address(&server, "/far", &fields), "192.0.2.1:");
}

#[test]
fn a_location_may_have_settings_of_its_own() {
    let server = start();
    let one = |target, line: &str| address(&server, target, &[line]);
    assert_eq!(one("/field", "X-Client: 192.0.2.1"), "192.0.2.1:");
    assert_eq!(one("/wander", "X-Client: 192.0.2.1"), "192.0.2.1:");
    assert!(one("/nobody", "X-Other: 192.0.2.1").starts_with("127.0.0.1:"));
    // What decides about clients decides about the one that was found.
    assert_eq!(
        server.get_with("/judged", &["X-Client: 192.0.2.1"]).status,
        403
    );
    assert_eq!(
        server.get_with("/judged", &["X-Client: 192.0.2.2"]).status,
        200
    );
}

#[test]
fn it_lasts_for_one_request() {
    let server = start();
    let mut connection = server.connect();
    connection.request("GET", "/a", &["X-Real-IP: 192.0.2.1"]);
    assert_eq!(connection.reply().field("X-Address"), "192.0.2.1:");
    assert!(
        connection
            .get("/a")
            .field("X-Address")
            .starts_with("127.0.0.1:")
    );
}

#[test]
fn the_proxy_protocol_may_say_it() {
    let conf = "server { listen 127.0.0.1:%%PORT%% proxy_protocol;
        set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
        location / { return 200 $remote_addr:$remote_port; } }";
    let server = http(conf).start();
    let reply =
        server.raw("PROXY TCP4 192.0.2.1 192.0.2.2 1234 5678\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(reply.text(), "192.0.2.1:1234");
}

#[test]
fn a_host_that_is_not_found_is_an_error() {
    let tested = whole("events { } http { set_real_ip_from no.such.host.invalid; }").test();
    let message = "host not found in set_real_ip_from \"no.such.host.invalid\"";
    assert!(tested.stderr.contains(message), "{}", tested.stderr);
}
