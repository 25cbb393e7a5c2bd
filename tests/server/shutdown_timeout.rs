//! `worker_shutdown_timeout`: how long requests of a configuration may go on that a reload has replaced.

use weir_tests::{Connection, Server, Signal, http};

/// Begins a request that takes until its content is sent.
fn begin(server: &Server) -> Connection {
    let mut connection = server.connect();
    connection.request("PUT", "/a", &["Content-Length: 3", "Expect: 100-continue"]);
    connection.at_least(25);
    connection
}

fn start(timeout: &str) -> Server {
    let conf = "server { listen 127.0.0.1:%%PORT%%; location / { dav_methods PUT; } }";
    http(conf).main(timeout).file("html/old", "old").start()
}

fn reload(server: &mut Server) {
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; location / { return 200 new; } }");
    server.signal(Signal::HUP);
    assert!(weir_tests::until(|| (server.get("/old").text() == "new").then_some(())).is_some());
}

#[test]
fn requests_of_before_a_reload_end_when_their_time_is_over() {
    let mut server = start("worker_shutdown_timeout 100ms;");
    let mut busy = begin(&server);
    reload(&mut server);
    busy.rest();
    assert_eq!(server.read("html/a"), "");
}

#[test]
fn without_a_time_they_may_take_as_long_as_they_like() {
    let mut server = start("");
    let mut busy = begin(&server);
    reload(&mut server);
    busy.send("abc");
    let reply = String::from_utf8_lossy(&busy.at_least(60)).into_owned();
    assert!(reply.contains(" 201 "), "{reply}");
}

#[test]
fn idle_and_silent_connections_end_with_the_server() {
    let mut server = start("worker_shutdown_timeout 100ms;");
    let mut idle = server.connect();
    assert_eq!(idle.get("/old").text(), "old");
    let mut silent = server.connect();
    assert!(silent.is_quiet_for(std::time::Duration::from_millis(10)));
    server.signal(Signal::QUIT);
    idle.assert_closed();
    silent.assert_closed();
    assert!(server.ended().success());
}
