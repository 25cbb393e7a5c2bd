//! Where access logs go: the default file, names with variables, syslog over a unix socket, several loops; and the
//! errors of `access_log` and `log_format`.

use std::os::unix::net::UnixDatagram;

use weir_tests::{Server, Signal, http, skip_on_oracle, until, whole};

#[test]
fn without_a_line_there_is_logs_access_log() {
    if skip_on_oracle("distributions compile another path into nginx") {
        return;
    }
    let server =
        whole("events { } http { server { listen 127.0.0.1:%%PORT%%; return 200; } }").start();
    server.get("/here");
    assert!(
        server
            .line("logs/access.log", "/here")
            .starts_with("127.0.0.1 - - [")
    );
}

#[test]
fn nobody_makes_a_default_log_that_nobody_wants() {
    let conf =
        "events { } http { server { listen 127.0.0.1:%%PORT%%; access_log own.log; return 200; } }";
    let server = whole(conf).start();
    server.get("/");
    server.lines("own.log", 1);
    assert!(!server.path("logs/access.log").exists());
}

/// Whether a process of the server has a file of this name open.
fn holds(server: &Server, name: &str) -> bool {
    let master = server.pid().as_raw_nonzero();
    let children = format!("/proc/{master}/task/{master}/children");
    let children = std::fs::read_to_string(children).expect("the master lives");
    let processes = children.split_whitespace().map(str::to_owned);
    processes.chain([master.to_string()]).any(|process| {
        // A worker of the previous configuration may end at any moment.
        let opened = std::fs::read_dir(format!("/proc/{process}/fd"));
        let targets = opened.into_iter().flatten().flatten();
        targets
            .filter_map(|opened| std::fs::read_link(opened.path()).ok())
            .any(|target| target.ends_with(name))
    })
}

#[test]
fn a_log_that_a_reload_no_longer_names_is_closed() {
    let conf = |name: &str| {
        format!("server {{ listen 127.0.0.1:%%PORT%%; access_log {name}.log; return 200 {name}; }}")
    };
    let mut server = http(&conf("old")).start();
    server.get("/");
    server.lines("old.log", 1);
    assert!(holds(&server, "old.log"));
    server.reconfigure(&conf("new"));
    server.signal(Signal::HUP);
    until(|| (server.get("/").text() == "new").then_some(())).expect("the reload");
    until(|| (!holds(&server, "old.log")).then_some(())).expect("it is closed");
    assert!(holds(&server, "new.log"));
}

#[test]
fn off_beside_a_log_in_one_block_is_off() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; return 200;
        location /a { access_log a.log; access_log off; }
        location /b { access_log b.log; } }";
    let server = http(conf).start();
    server.get("/a");
    server.get("/b");
    // A return of the server answers before a location is chosen, so it is the server's log that has them.
    assert_eq!(server.read("a.log") + &server.read("b.log"), "");
}

#[test]
fn a_log_named_by_a_variable_needs_the_root() {
    let conf = "log_format short '$uri';
        server { listen 127.0.0.1:%%PORT%%; root sites/$arg_site; access_log logs/$arg_site.log short; return 200; }";
    let server = http(conf).folder("sites/there").start();
    server.get("/a?site=there");
    server.get("/b?site=invented");
    assert_eq!(server.lines("logs/there.log", 1), ["/a"]);
    server.line(
        "error.log",
        "sites/invented\" existence failed (2: No such file or directory)",
    );
    assert!(!server.path("logs/invented.log").exists());
}

#[test]
fn a_log_that_cannot_be_opened_is_told() {
    let conf =
        "server { listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/no/$arg_x.log; return 200; }";
    let server = http(conf).start();
    server.get("/a?x=y");
    server.line(
        "error.log",
        "no/y.log\" failed (2: No such file or directory)",
    );
}

#[test]
fn lines_of_variable_logs_are_written_before_the_end() {
    let conf = "log_format short '$uri';
        server { listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/log-$arg_n short; return 200; }";
    let mut server = http(conf).start();
    let mut connection = server.connect();
    for i in 0..50 {
        connection.request("GET", &format!("/{i}?n={}", i % 2), &[]);
    }
    for _ in 0..50 {
        connection.reply();
    }
    server.signal(Signal::QUIT);
    assert!(server.ended().success());
    let even: String = (0..50).step_by(2).map(|i| format!("/{i}\n")).collect();
    assert_eq!(server.read("log-0"), even);
    assert_eq!(server.read("log-1").lines().count(), 25);
}

#[test]
fn syslog_over_a_unix_socket() {
    let site = http(
        "log_format short '$uri'; server { listen 127.0.0.1:%%PORT%%;
        access_log syslog:server=unix:%%DIR%%/syslog,tag=x,nohostname short; return 200; }",
    );
    let socket = UnixDatagram::bind(site.path("syslog")).expect("the folder is there");
    socket
        .set_read_timeout(Some(weir_tests::PATIENCE))
        .expect("the bound is not zero");
    let server = site.start();
    server.get("/a");
    let mut buffer = [0; 1024];
    let length = socket.recv(&mut buffer).expect("a datagram comes");
    let line = String::from_utf8_lossy(&buffer[..length]);
    assert!(
        line.starts_with("<190>") && line.ends_with(" x: /a"),
        "local7 is 23, info 6: {line}"
    );
}

#[test]
fn two_loops_write_whole_lines_into_one_buffered_file() {
    let conf = "log_format short '$uri'; server { listen 127.0.0.1:%%PORT%%; access_log b.log short buffer=1k; return 200; }";
    let mut server = http(conf).main("worker_processes 2;").start();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for i in 0..100 {
                    server.get(&format!("/{client}/{i}"));
                }
            });
        }
    });
    server.signal(Signal::QUIT);
    assert!(server.ended().success());
    let mut lines: Vec<String> = server.read("b.log").lines().map(str::to_owned).collect();
    lines.sort();
    let mut expected: Vec<String> = (0..4)
        .flat_map(|client| (0..100).map(move |i| format!("/{client}/{i}")))
        .collect();
    expected.sort();
    assert_eq!(lines, expected);
}

#[test]
fn mistakes_are_told_in_nginx_s_words() {
    for (line, message) in [
        ("access_log a.log none;", "unknown log format \"none\""),
        ("access_log off x;", "invalid parameter \"x\""),
        ("access_log a.log combined x;", "invalid parameter \"x\""),
        (
            "access_log a.log combined buffer=0;",
            "invalid buffer size \"0\"",
        ),
        (
            "access_log a.log combined flush=1s;",
            "no buffer is defined for access_log \"a.log\"",
        ),
        (
            "access_log a.log combined gzip=10;",
            "invalid compression level \"10\"",
        ),
        (
            "access_log a-$uri.log combined buffer=1k;",
            "buffered logs cannot have variables in name",
        ),
        (
            "access_log syslog:server=127.0.0.1 combined buffer=1k;",
            "logs to syslog cannot be buffered",
        ),
        ("access_log syslog:tag=x;", "no syslog server specified"),
        (
            "access_log a.log combined buffer=1k; access_log a.log combined buffer=2k;",
            "access_log \"a.log\" already defined with conflicting parameters",
        ),
        (
            "log_format a x; log_format a y;",
            "duplicate \"log_format\" name \"a\"",
        ),
        (
            "log_format combined x;",
            "duplicate \"log_format\" name \"combined\"",
        ),
        (
            "log_format a escape=x y;",
            "unknown log format escaping \"x\"",
        ),
        (
            "log_format a '${uri'; ",
            "the closing bracket in \"uri\" variable is missing",
        ),
        (
            "log_format a $nosuchvariable;",
            "unknown \"nosuchvariable\" variable",
        ),
        (
            "open_log_file_cache inactive=1s;",
            "\"open_log_file_cache\" must have \"max\" parameter",
        ),
        (
            "open_log_file_cache max=x;",
            "invalid \"open_log_file_cache\" parameter \"max=x\"",
        ),
    ] {
        let tested = whole(&format!("events {{ }} http {{ {line} }}")).test();
        assert!(tested.stderr.contains(message), "{line}: {}", tested.stderr);
        assert_ne!(tested.code, 0, "{line}");
    }
}
