//! HUP: the configuration changes, connections stay.

use weir_tests::{Signal, http, skip_on_oracle, until};

const WHY: &str = "nginx closes idle connections at a reload (docs/compat.md#processes)";

#[test]
fn a_keep_alive_connection_stays_and_its_next_request_uses_the_new_configuration() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 old; } }").start();
    let mut connection = server.connect();
    assert_eq!(connection.get("/").text(), "old");
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; location / { return 200 new; } }");
    server.signal(Signal::HUP);
    assert!(until(|| (server.get("/").text() == "new").then_some(())).is_some());
    assert_eq!(connection.get("/").text(), "new", "the same socket");
    server.line("error.log", "exited with code 0");
}

#[test]
fn a_request_under_way_ends_under_the_configuration_it_began_with() {
    let mut server = http(
        "server { listen 127.0.0.1:%%PORT%%; location / { limit_rate 50k; add_header X-Generation old; } }",
    )
    .file("html/large", vec![b'x'; 100_000])
    .start();
    let mut slow = server.connect();
    slow.request("GET", "/large", &["Connection: close"]);
    let begun = slow.at_least(1000);
    assert!(String::from_utf8_lossy(&begun).contains("X-Generation: old"));
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; location / { return 200 new; } }");
    server.signal(Signal::HUP);
    assert!(until(|| (server.get("/").text() == "new").then_some(())).is_some());
    let total = begun.len() + slow.rest().len();
    assert!(total > 100_000, "{total} bytes came");
}

#[test]
fn listeners_are_added_and_removed_by_difference() {
    let mut server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 one; } }").start();
    assert_eq!(server.get("/").text(), "one");
    server.reconfigure(
        "server { listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%%; location / { return 200 two; } }",
    );
    server.signal(Signal::HUP);
    assert!(until(|| (server.get("/").text() == "two").then_some(())).is_some());
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; location / { return 200 three; } }");
    server.signal(Signal::HUP);
    assert!(until(|| (server.get("/").text() == "three").then_some(())).is_some());
}

#[test]
fn a_connection_to_an_address_that_is_gone_ends_with_it() {
    let server = |port: &str, text: &str| {
        format!("server {{ listen 127.0.0.1:%%{port}%%; location / {{ return 200 {text}; }} }}")
    };
    let old = [
        server("PORT", "old"),
        server("PORT1", "old"),
        server("PORT2", "gone"),
    ]
    .concat();
    let mut server_of = http(&old).start();
    let mut idle = server_of.connect_to(2);
    assert_eq!(idle.get("/").text(), "gone");
    let mut stays = server_of.connect_to(1);
    assert_eq!(stays.get("/").text(), "old");
    server_of.reconfigure(&server("PORT1", "new"));
    server_of.signal(Signal::HUP);
    // No server of the new configuration is meant for whoever came to the address that is gone.
    idle.assert_closed();
    if !weir_tests::is_oracle() {
        assert_eq!(stays.get("/").text(), "new");
    }
    assert_eq!(server_of.connect_to(1).get("/").text(), "new");
}
