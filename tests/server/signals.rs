//! Signals and processes: graceful and fast ends, reopening, the pid file, a reload's seam.

use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;

use rustix::process::{Pid, kill_process};
use weir_tests::{Connection, Http2, Server, Signal, http, skip_on_oracle, until, whole};

/// A server with a file that takes a while at a bounded rate.
fn slow() -> Server {
    http("server { listen 127.0.0.1:%%PORT%%; location / { limit_rate 200k; } }")
        .file("html/slow", vec![b'x'; 250_000])
        .file("html/a", "a")
        .start()
}

#[test]
fn quit_lets_active_requests_finish_and_refuses_new_ones() {
    let mut server = slow();
    let mut connection = server.connect();
    connection.request("GET", "/slow", &[]);
    let first = connection.at_least(1_000).len();
    server.signal(Signal::QUIT);
    assert!(
        until(|| server.refuses().then_some(())).is_some(),
        "new connections are refused"
    );
    let rest = connection.rest().len();
    assert!(first + rest > 250_000, "{first} and {rest} bytes");
    assert!(server.ended().success());
}

#[test]
fn quit_closes_idle_connections() {
    let mut server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200; } }").start();
    let mut idle = server.connect();
    idle.get("/");
    server.signal(Signal::QUIT);
    idle.assert_closed();
    assert!(server.ended().success());
}

/// What a client has sent before the server was told to end is served, on connections that wait for a request too.
#[test]
fn requests_that_came_before_the_end_are_answered() {
    if skip_on_oracle("nginx closes connections that were idle a moment ago") {
        return;
    }
    let mut server =
        http("server { listen 127.0.0.1:%%PORT%%; http2 on; location / { return 200 in; } }")
            .main("worker_processes 2;")
            .start();
    let mut clients: Vec<Connection> = (0..40).map(|_| server.connect()).collect();
    let mut multiplexed = Http2::connect(&server, &[]);
    multiplexed.get("/");
    for client in &mut clients {
        client.get("/");
    }
    for client in &mut clients {
        client.request("GET", "/", &[]);
    }
    let stream = multiplexed.request("GET", "/", &[], true);
    server.signal(Signal::QUIT);
    for client in &mut clients {
        assert_eq!(client.reply().text(), "in");
        client.assert_closed();
    }
    assert_eq!(multiplexed.reply(stream).text(), "in");
    assert!(multiplexed.end().is_some(), "GOAWAY");
    drop(multiplexed);
    assert!(server.ended().success());
}

#[test]
fn term_and_int_end_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = slow();
        let mut connection = server.connect();
        connection.request("GET", "/slow", &[]);
        connection.at_least(1_000);
        server.signal(signal);
        assert!(server.ended().success(), "{signal:?}");
        assert!(connection.rest().len() < 250_000, "the answer was cut");
    }
}

#[test]
fn worker_shutdown_timeout_bounds_a_graceful_end() {
    let mut server = http("server { listen 127.0.0.1:%%PORT%%; location / { limit_rate 1k; } }")
        .main("worker_shutdown_timeout 200ms;")
        .file("html/slow", vec![b'x'; 1_000_000])
        .start();
    let mut connection = server.connect();
    connection.request("GET", "/slow", &[]);
    connection.at_least(100);
    server.signal(Signal::QUIT);
    assert!(server.ended().success());
    assert!(connection.rest().len() < 1_000_000);
}

#[test]
fn the_pid_file_has_the_pid_and_goes_at_the_end() {
    let mut server = http("server { listen 127.0.0.1:%%PORT%%; }").start();
    let pid = server.pid();
    assert!(pid.as_raw_nonzero().get() > 1);
    server.signal(Signal::QUIT);
    assert!(server.ended().success());
    assert!(!server.path("nginx.pid").exists());
}

#[test]
fn usr1_and_winch_do_not_end_the_master() {
    let mut server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 ok; } }").start();
    server.signal(Signal::USR1);
    assert_eq!(server.get("/").text(), "ok");
    server.signal(Signal::HUP);
    assert!(until(|| (server.get("/").text() == "ok").then_some(())).is_some());
    server.signal(Signal::QUIT);
    assert!(server.ended().success());
}

#[test]
fn a_bad_configuration_never_ends_a_running_server() {
    let mut server = http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 old; } }")
        .tolerate("unknown directive \"foo\"")
        .start();
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; foo; }");
    server.signal(Signal::HUP);
    server.line("error.log", "unknown directive \"foo\"");
    assert_eq!(server.get("/").text(), "old");
}

#[test]
fn signals_may_be_sent_by_the_command_line() {
    let mut server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 ok; } }").start();
    let prefix = format!("{}", server.path("").display());
    let signal = |name: &str| {
        weir_tests::run(&[
            "-p",
            &prefix,
            "-c",
            "nginx.conf",
            "-e",
            "error.log",
            "-s",
            name,
        ])
    };
    assert_eq!(signal("reopen").code, 0);
    assert_eq!(server.get("/").text(), "ok");
    assert_eq!(signal("nonsense").code, 1);
    assert_eq!(signal("quit").code, 0);
    assert!(server.ended().success());
    let gone = signal("stop");
    assert_eq!(
        gone.code, 1,
        "there is no pid file any more: {}",
        gone.stderr
    );
}

#[test]
fn master_process_off_serves_in_one_process() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } }")
        .main("master_process off;")
        .start();
    let pid = server.pid().as_raw_nonzero().get().to_string();
    assert_eq!(server.get("/").text(), pid);
}

#[test]
fn the_worker_is_another_process_than_the_master() {
    let server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } }").start();
    assert_ne!(
        server.get("/").text(),
        server.pid().as_raw_nonzero().get().to_string()
    );
}

#[test]
fn a_killed_worker_is_replaced() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } }")
        .tolerate("exited on signal 9")
        .start();
    let worker = server.get("/").text();
    let pid = worker
        .parse()
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .expect("$pid is a number");
    rustix::process::kill_process(pid, Signal::KILL).expect("the worker lives");
    let mut connection = server.connect();
    connection.request("GET", "/", &[]);
    // The listening socket stays open; the connection waits for the next worker.
    let reply = until(|| {
        let mut connection = server.connect();
        connection.request("GET", "/", &[]);
        connection.reply_or_closed()
    });
    assert!(reply.is_some_and(|reply| reply.text() != worker));
}

#[test]
fn two_servers_cannot_have_one_port() {
    let first = http("server { listen 127.0.0.1:%%PORT%%; }").start();
    let port = first.port(0);
    let text =
        format!("events {{ }}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{port}; }} }}\n");
    if skip_on_oracle("nginx tries for 2.5 seconds") {
        return;
    }
    let finished = whole(&text).run(&[]);
    assert_eq!(finished.code, 1);
    assert!(
        finished.stderr.contains(&format!(
            "bind() to 127.0.0.1:{port} failed (98: Address already in use)"
        )),
        "{}",
        finished.stderr
    );
}

#[test]
fn daemon_on_goes_to_the_background() {
    let site = whole(
        "daemon on;\npid nginx.pid;\nerror_log error.log;\nevents { }\nhttp { access_log off; server { listen 127.0.0.1:%%PORT%%; return 200 ok; } }\n",
    );
    let (site, finished) = site.run_bare();
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let pid = until(|| {
        std::fs::read_to_string(site.path("nginx.pid"))
            .ok()?
            .trim()
            .parse()
            .ok()
    });
    let pid = pid
        .and_then(rustix::process::Pid::from_raw)
        .expect("the pid file has a number");
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", site.port(0))).expect("it listens");
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.0\r\n\r\n").expect("the server reads");
    let text = std::io::read_to_string(stream).expect("the server answers");
    assert!(text.ends_with("ok"), "{text}");
    rustix::process::kill_process(pid, Signal::QUIT).expect("the server lives");
    assert!(
        until(|| rustix::process::test_kill_process(pid)
            .is_err()
            .then_some(()))
        .is_some(),
        "it ends"
    );
}

#[test]
fn the_exit_status_is_not_a_signal() {
    let mut server = http("server { listen 127.0.0.1:%%PORT%%; }").start();
    server.signal(Signal::TERM);
    let status = server.ended();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
}

/// A signal may come as soon as the server listens, however long it takes from there to serve.
#[test]
fn an_end_that_comes_while_the_server_starts_is_a_clean_one() {
    if skip_on_oracle("nginx takes signals when it has started") {
        return;
    }
    let mut site = http(
        "init_by_lua_block {
            local began = io.open('%%DIR%%/began')
            if began then return end
            began = io.open('%%DIR%%/began', 'w')
            began:close()
            io.open('%%DIR%%/gate'):read('*a')
        }
        server { listen 127.0.0.1:%%PORT%%; }",
    );
    let gate = site.path("gate");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &gate,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("the folder is writable");
    let mut child = site.spawn();
    // A reader is there: the trial run of the configuration has come to the gate, and the sockets listen.
    let open = || {
        let mut options = std::fs::OpenOptions::new();
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        options
            .write(true)
            .custom_flags(nonblocking)
            .open(&gate)
            .ok()
    };
    let gate = until(open).expect("the configuration is tried");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    drop(gate);
    let status = until(|| child.try_wait().expect("our own child"));
    let _ = child.kill();
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

#[test]
fn signals_without_a_meaning_end_nothing() {
    let server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 here; } }").start();
    assert_eq!(server.get("/").expect(200).text(), "here");
    let master = server.pid();
    let children = format!("/proc/{0}/task/{0}/children", master.as_raw_nonzero());
    let children = || std::fs::read_to_string(&children).expect("the master lives");
    let before = children();
    let workers = before.split_whitespace().filter_map(|id| id.parse().ok());
    for process in workers.filter_map(Pid::from_raw).chain([master]) {
        kill_process(process, Signal::ALARM).expect("it lives");
        kill_process(process, Signal::IO).expect("it lives");
    }
    assert_eq!(server.get("/").expect(200).text(), "here");
    assert_eq!(children(), before);
}
