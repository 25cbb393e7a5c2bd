//! Several event loops in one worker: their number changes with a reload, and connections spread over them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use weir_tests::{Connection, Server, Signal, Site, http, skip_on_oracle, until};

use crate::tls::{CERTIFICATE, Client, ask, https};

const WHY: &str = "event loops are Weir's own";

const STATUS: &str = "server { listen 127.0.0.1:%%PORT%% %%LISTEN%%; location / { return 200 $connection:$connection_requests; } \
     location /status { weir_status json; } }";

fn site(loops: usize, listen: &str) -> Site {
    http(&STATUS.replace("%%LISTEN%%", listen)).main(&format!("worker_processes {loops};"))
}

/// Connections of each loop, the one that asks included.
fn active(server: &Server) -> Vec<usize> {
    let text = server.get("/status").text();
    let loops = text.split("\"pools\":").next().unwrap_or_default();
    let after = loops.split("\"active\":").skip(1);
    let number = |part: &str| part.split(',').next()?.parse().ok();
    after.filter_map(number).collect()
}

/// Changes the number of loops, and waits until they are there.
fn resize(server: &Server, from: usize, to: usize) {
    let path = server.path("nginx.conf");
    let text = std::fs::read_to_string(&path).expect("the harness wrote it");
    let (from, to_line) = (
        format!("worker_processes {from};"),
        format!("worker_processes {to};"),
    );
    std::fs::write(&path, text.replace(&from, &to_line)).expect("it may be written");
    server.signal(Signal::HUP);
    let there = until(|| (active(server).len() == to).then_some(()));
    assert!(there.is_some(), "{:?}", active(server));
}

fn clients(server: &Server, count: usize) -> Vec<Connection> {
    let mut clients: Vec<Connection> = (0..count).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.get("/").expect(200);
    }
    clients
}

#[test]
fn the_number_of_loops_changes_and_every_connection_stays() {
    if skip_on_oracle(WHY) {
        return;
    }
    for listen in ["", "reuseport"] {
        let server = site(3, listen).start();
        let mut clients = clients(&server, 24);
        for (from, to) in [(3, 1), (1, 4), (4, 2)] {
            resize(&server, from, to);
            for client in &mut clients {
                client.get("/").expect(200);
            }
            // New clients come in, on sockets of loops that are gone too.
            for _ in 0..20 {
                server.get("/").expect(200);
            }
        }
        let log = server.read("error.log");
        assert_eq!(
            log.matches("start worker process ").count(),
            1,
            "the same process\n{log}"
        );
        let reply = clients[0].get("/").text();
        assert!(reply.ends_with(":5"), "requests are counted on: {reply}");
    }
}

#[test]
fn a_request_under_way_on_a_loop_that_ends_is_answered_and_its_connection_goes_on() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; location /status { weir_status json; } \
         location / { limit_rate 100k; } location /short { return 200 short; } }",
    )
    .main("worker_processes 4;")
    .file("html/large", vec![b'x'; 60_000])
    .start();
    let mut clients: Vec<Connection> = (0..8).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.request("GET", "/large", &[]);
    }
    let all_there = until(|| (active(&server).iter().sum::<usize>() == 9).then_some(()));
    assert!(all_there.is_some());
    resize(&server, 4, 1);
    for client in &mut clients {
        assert_eq!(client.reply().expect(200).body.len(), 60_000);
        assert_eq!(client.get("/short").text(), "short", "the same socket");
    }
}

#[test]
fn clients_that_stay_spread_evenly_without_reuseport() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(4, "").start();
    assert!(until(|| (active(&server).len() == 4).then_some(())).is_some());
    let mut clients = clients(&server, 200);
    // At once as a rule; on a busy machine some are moved a moment later.
    let most = || active(&server).into_iter().max().unwrap_or(0);
    let even = until(|| (most() <= 55).then_some(()));
    assert!(even.is_some(), "{:?}", active(&server));
    for client in &mut clients {
        client.get("/").expect(200);
    }
}

#[test]
fn connections_that_are_left_on_one_loop_are_spread_again() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(1, "").start();
    let mut clients = clients(&server, 60);
    resize(&server, 1, 3);
    let most = || active(&server).into_iter().max().unwrap_or(0);
    let even = until(|| (most() <= 24).then_some(()));
    assert!(even.is_some(), "{:?}", active(&server));
    for client in &mut clients {
        client.get("/").expect(200);
    }
}

#[test]
fn the_facts_of_a_proxy_protocol_header_move_with_the_connection() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; location /status { weir_status json; } } \
         server { listen 127.0.0.1:%%PORT1%% proxy_protocol; location / { return 200 $proxy_protocol_addr:$proxy_protocol_port; } }",
    )
    .main("worker_processes 4;")
    .start();
    let mut clients: Vec<Connection> = (0..12).map(|_| server.connect_to(1)).collect();
    for (number, client) in (1..).zip(&mut clients) {
        client.send(format!(
            "PROXY TCP4 192.0.2.{number} 127.0.0.1 {number} 80\r\n"
        ));
        assert_eq!(client.get("/").text(), format!("192.0.2.{number}:{number}"));
    }
    resize(&server, 4, 1);
    for (number, client) in (1..).zip(&mut clients) {
        assert_eq!(client.get("/").text(), format!("192.0.2.{number}:{number}"));
    }
}

#[test]
fn a_connection_that_has_not_spoken_yet_moves_too() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(4, "").start();
    let mut clients: Vec<Connection> = (0..12).map(|_| server.connect()).collect();
    let there = until(|| (active(&server).iter().sum::<usize>() == 13).then_some(()));
    assert!(there.is_some(), "{:?}", active(&server));
    clients[5].send("GET / HTTP/1.1\r\nHo");
    resize(&server, 4, 1);
    clients[5].send("st: x\r\n\r\n");
    clients[5].reply().expect(200);
    for client in &mut clients {
        client.get("/").expect(200);
    }
}

#[test]
fn a_connection_that_moves_keeps_its_number_and_is_not_counted_as_a_new_one() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http(
        &STATUS
            .replace("%%LISTEN%%", "")
            .replace("} }", "} location /page { stub_status; } }"),
    )
    .main("worker_processes 4;")
    .start();
    let mut clients = clients(&server, 12);
    let numbers = |clients: &mut [Connection]| -> Vec<String> {
        let texts = clients.iter_mut().map(|client| client.get("/").text());
        let number = |text: String| text.split(':').next().map(str::to_owned);
        texts.filter_map(number).collect()
    };
    let accepted =
        |client: &mut Connection| client.get("/page").text().lines().nth(2).map(str::to_owned);
    let before = numbers(&mut clients);
    let accepted_before = accepted(&mut clients[0]);
    let path = server.path("nginx.conf");
    let text = std::fs::read_to_string(&path).expect("the harness wrote it");
    std::fs::write(
        &path,
        text.replace("worker_processes 4;", "worker_processes 1;"),
    )
    .expect("it may be written");
    server.signal(Signal::HUP);
    let there = until(|| {
        let status = clients[0].get("/status").text();
        (status.matches("\"loop\":").count() == 1).then_some(())
    });
    assert!(there.is_some());
    assert_eq!(numbers(&mut clients), before);
    let first = |line: Option<String>| {
        line.and_then(|line| line.split_whitespace().next().map(str::to_owned))
    };
    assert_eq!(first(accepted(&mut clients[0])), first(accepted_before));
}

/// Several requests at once, again and again, until connections have come to other loops, or the machine was too slow for
/// that to happen: that they come in time is nobody's promise, that nothing is lost is.
fn busy_client(connection: &mut Connection, have_moved: &AtomicBool) {
    let mut number = String::new();
    for round in 0..60 {
        if have_moved.load(Ordering::Relaxed) {
            return;
        }
        for request in 0..4 {
            let target = format!("/busy?{round}.{request}");
            connection.request("GET", &target, &["Accept-Encoding: gzip"]);
        }
        for request in 0..4 {
            let reply = connection.reply().expect(200);
            assert_eq!(reply.field("X-Args"), format!("{round}.{request}"));
            if number.is_empty() {
                number = reply.field("X-Number").to_owned();
            }
            assert_eq!(reply.field("X-Number"), number);
        }
    }
}

#[test]
fn connections_that_are_never_idle_leave_a_busy_loop_and_nothing_is_lost() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http(
        "gzip on; gzip_types *; gzip_comp_level 9; \
         server { listen 127.0.0.1:%%PORT%%; location /status { weir_status json; } location / { return 200; } \
         location /busy { add_header X-Number $connection; add_header X-Args $args; alias html/text; } }",
    )
    .main("worker_processes 1;")
    .file("html/text", "to be compressed ".repeat(2000))
    .start();
    let mut busy = clients(&server, 8);
    let have_moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = busy.iter_mut().map(|connection| {
            let have_moved = &have_moved;
            scope.spawn(move || busy_client(connection, have_moved))
        });
        let busy: Vec<_> = busy.collect();
        resize(&server, 1, 2);
        // By their number connections are even now.
        let mut others = clients(&server, 8);
        let seen = until(|| {
            let active = active(&server);
            let uneven = active.iter().max() >= active.iter().min().map(|least| least + 4).as_ref();
            (uneven || busy.iter().all(|client| client.is_finished())).then_some(())
        });
        have_moved.store(seen.is_some(), Ordering::Relaxed);
        for client in &mut others {
            client.get("/").expect(200);
        }
    });
}

/// Somebody works on for a request that has its answer, here a mirror's copy: the state of TLS can not be taken from them,
/// so that the connection stays, and goes on.
#[test]
fn a_tls_connection_with_work_left_stays_and_is_served() {
    if skip_on_oracle(WHY) {
        return;
    }
    // Takes connections, and answers nothing as long as the test goes on.
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = silent.local_addr().expect("it is bound").port();
    let server = https(&format!(
        "{CERTIFICATE}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 on; }} location /status {{ weir_status json; }} }}
         server {{ listen 127.0.0.1:%%PORT1%% ssl; location / {{ return 200 on; }}
         location /copied {{ mirror /mirror; alias html/text; }}
         location = /mirror {{ internal; proxy_pass http://127.0.0.1:{port}; }} }}"
    ))
    .main("worker_processes 1;")
    .file("html/text", "copied")
    .start();
    let client = Client::new();
    let mut busy: Vec<_> = (0..20)
        .map(|_| client.connect(&server, 1, "localhost"))
        .collect();
    for stream in &mut busy {
        stream
            .write_all(b"GET /copied HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("it is taken");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\ncopied") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            answer.push(byte[0]);
        }
    }
    let mut others = clients(&server, 40);
    resize(&server, 1, 3);
    // They have waited longest, so they are the first to be asked to go.
    let most = || active(&server).into_iter().max().unwrap_or(0);
    let even = until(|| (most() <= 24).then_some(()));
    assert!(even.is_some(), "{:?}", active(&server));
    for stream in &mut busy {
        let answer = ask(stream, "/", "Host: localhost").expect("an answer");
        assert!(answer.ends_with("\r\n\r\non"), "{answer}");
    }
    for client in &mut others {
        client.get("/").expect(200);
    }
    // The copies fail now, or the server would wait for them.
    drop(silent);
}

/// A reload that wants more loops than there is memory for is refused, and the loops that there are go on.
#[test]
fn loops_that_cannot_be_started_leave_the_others_in_place() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } }")
        .main("worker_processes 1;")
        .tolerate("could not start the event loops")
        .start();
    let pid = server.get("/").text();
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("the worker runs");
    let pages: u64 = pages
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    // Enough for a configuration, too little for the stacks of many threads.
    let limit = Rlimit {
        current: Some(pages * rustix::param::page_size() as u64 + (16 << 20)),
        maximum: None,
    };
    let worker = pid.parse().ok().and_then(Pid::from_raw);
    prlimit(worker, Resource::As, limit).expect("root may");
    let path = server.path("nginx.conf");
    let text = std::fs::read_to_string(&path).expect("the harness wrote it");
    let more = text.replace("worker_processes 1;", "worker_processes 64;");
    std::fs::write(&path, more).expect("it may be written");
    server.signal(Signal::HUP);
    server.line("error.log", "could not start the event loops");
    for _ in 0..20 {
        assert_eq!(server.get("/").text(), pid);
    }
    // With a configuration that fits, the next reload succeeds.
    std::fs::write(&path, text.replace("$pid", "'$pid again'")).expect("it may be written");
    server.signal(Signal::HUP);
    until(|| (server.get("/").text() == format!("{pid} again")).then_some(())).expect("it reloads");
    let log = server.read("error.log");
    assert!(!log.contains("ended unexpectedly"), "{log}");
}
