//! USR2: another binary takes over, and `weir upgrade`; what a command is told of a reload.

use weir_tests::{Connection, Server, Signal, http, run, skip_on_oracle, until};

const WHY: &str = "nginx does not hand connections over, and refuses USR2 in the foreground";

fn site() -> Server {
    http(
        "server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid:$connection_requests; } \
         location /slow { limit_rate 100k; } }",
    )
    .main("worker_processes 2;")
    .file("html/slow", vec![b'x'; 60_000])
    .start()
}

fn pid_in(server: &Server, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(server.path(file)).ok()?;
    let text = text.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Sends a signal to the process in one of the pid files.
fn signal(server: &Server, file: &str, signal: Signal) {
    let number = pid_in(server, file).expect("the pid file is there");
    let number = number.parse().expect("a number");
    let process = rustix::process::Pid::from_raw(number).expect("a process");
    rustix::process::kill_process(process, signal).expect("it lives");
}

/// Starts the new binary and waits until it answers.
fn start_new(server: &Server) {
    server.signal(Signal::USR2);
    assert!(
        until(|| pid_in(server, "nginx.pid.oldbin")).is_some(),
        "the old pid file is moved"
    );
    server.line("error.log", " is ready");
}

/// The same when one has come and gone.
fn start_new_again(server: &Server) {
    let serving = || server.read("error.log").matches(" is ready\n").count();
    let before = serving();
    server.signal(Signal::USR2);
    assert!(until(|| (serving() > before).then_some(())).is_some());
}

/// The worker that answers a new connection.
fn worker_of(server: &Server) -> String {
    let text = server.get("/").text();
    text.split(':').next().unwrap_or_default().to_owned()
}

/// Ends the master that is not the harness's child.
fn end_new(server: &Server) {
    signal(server, "nginx.pid", Signal::QUIT);
    let gone = until(|| (!server.path("nginx.pid").exists()).then_some(()));
    assert!(gone.is_some(), "the new master ends");
}

fn clients(server: &Server, count: usize) -> Vec<Connection> {
    let mut clients: Vec<Connection> = (0..count).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert!(client.get("/").text().ends_with(":1"));
    }
    clients
}

#[test]
fn a_new_binary_takes_over_idle_connections() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server = site();
    let mut clients = clients(&server, 10);
    let mut slow = server.connect();
    slow.request("GET", "/slow", &[]);
    let old = worker_of(&server);
    start_new(&server);
    signal(&server, "nginx.pid.oldbin", Signal::QUIT);
    // Each loop hands over at its own time.
    for client in &mut clients {
        let mut requests = 1;
        let handed_over = until(|| {
            let reply = client.get("/").text();
            requests += 1;
            let (process, number) = reply.split_once(':').expect("process and number");
            assert_eq!(number, requests.to_string(), "counted on");
            (process != old).then_some(())
        });
        assert!(handed_over.is_some(), "the same socket, another process");
    }
    // A request under way ends in the old process, and its connection follows the others.
    assert_eq!(slow.reply().expect(200).body.len(), 60_000);
    let reply = slow.get("/").text();
    assert!(reply.ends_with(":2") && !reply.starts_with(&old), "{reply}");
    assert!(server.ended().success());
    assert!(!server.path("nginx.pid.oldbin").exists());
    for client in &mut clients {
        client.get("/").expect(200);
    }
    server.get("/").expect(200);
    end_new(&server);
}

#[test]
fn the_way_back_brings_the_connections_back() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site();
    let mut clients = clients(&server, 6);
    let old = pid_in(&server, "nginx.pid");
    start_new(&server);
    signal(&server, "nginx.pid.oldbin", Signal::HUP);
    server.line("error.log", "still serving");
    for client in &mut clients {
        client.get("/").expect(200);
    }
    let newcomers = (0..8).map(|_| server.connect());
    let mut newcomers: Vec<Connection> = newcomers.collect();
    for client in &mut newcomers {
        client.get("/").expect(200);
    }
    signal(&server, "nginx.pid", Signal::QUIT);
    let back = until(|| (pid_in(&server, "nginx.pid") == old).then_some(()));
    assert!(back.is_some(), "the pid file is back");
    for client in clients.iter_mut().chain(&mut newcomers) {
        client.get("/").expect(200);
    }
    assert!(!server.path("nginx.pid.oldbin").exists());
    server.stop();
}

/// A cache before an origin whose answers are all different. The answers say which process sent them, and how old the
/// connection is.
pub(crate) const CACHED: &str = "proxy_cache_path cache keys_zone=one:1m;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            proxy_pass http://127.0.0.1:%%PORT1%%;
            proxy_cache one;
            proxy_cache_valid 1h;
            add_header X-Cache $upstream_cache_status;
            add_header X-Process $pid;
            add_header X-Requests $connection_requests;
        }
    }
    server { listen 127.0.0.1:%%PORT1%%; location / { return 200 $request_id; } }";

fn cached() -> Server {
    http(CACHED).main("worker_processes 2;").start()
}

/// Asks until the answer comes from the cache.
fn hit(server: &Server, target: &str) -> (String, String) {
    let hit = until(|| {
        let reply = server.get(target);
        let found = (reply.text(), reply.field("X-Process").to_owned());
        (reply.field("X-Cache") == "HIT").then_some(found)
    });
    hit.expect("a hit")
}

#[test]
fn the_cache_goes_to_the_process_that_serves() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server = cached();
    let targets: Vec<String> = (0..20).map(|number| format!("/{number}")).collect();
    let stored: Vec<(String, String)> = targets.iter().map(|target| hit(&server, target)).collect();
    // The way back: nothing has changed.
    start_new(&server);
    signal(&server, "nginx.pid.oldbin", Signal::HUP);
    server.line("error.log", "still serving");
    let old = pid_in(&server, "nginx.pid.oldbin");
    signal(&server, "nginx.pid", Signal::QUIT);
    assert!(until(|| (pid_in(&server, "nginx.pid") == old).then_some(())).is_some());
    assert_eq!(hit(&server, "/0"), stored[0]);
    start_new_again(&server);
    signal(&server, "nginx.pid.oldbin", Signal::QUIT);
    for (target, (text, process)) in targets.iter().zip(&stored) {
        let found = until(|| Some(hit(&server, target)).filter(|(_, by)| by != process));
        let (now, _) = found.expect("a hit of the new process");
        assert_eq!(now, *text, "what the old one has stored");
    }
    assert!(server.ended().success());
    hit(&server, "/another");
    assert_eq!(hit(&server, "/0").0, stored[0].0);
    end_new(&server);
}

#[test]
fn a_new_binary_that_does_not_start_changes_nothing() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server = http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 old; } }")
        .tolerate("unknown directive \"foo\"")
        .start();
    let pid = pid_in(&server, "nginx.pid");
    let mut client = server.connect();
    client.get("/").expect(200);
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; foo; }");
    server.signal(Signal::USR2);
    server.line("error.log", "new binary process");
    let back = until(|| (pid_in(&server, "nginx.pid") == pid).then_some(()));
    assert!(back.is_some());
    assert_eq!(client.get("/").text(), "old");
    let refusals = || {
        server
            .read("error.log")
            .matches("unknown directive")
            .count()
    };
    let before = refusals();
    server.signal(Signal::HUP);
    assert!(until(|| (refusals() > before).then_some(())).is_some());
    assert_eq!(client.get("/").text(), "old");
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; location / { return 200 new; } }");
    server.signal(Signal::HUP);
    assert!(until(|| (client.get("/").text() == "new").then_some(())).is_some());
}

#[test]
fn weir_upgrade_does_all_of_it() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server = site();
    let mut clients = clients(&server, 4);
    let folder = format!("{}/", server.path("").display());
    let arguments = [
        "upgrade",
        "-p",
        &folder,
        "-c",
        "nginx.conf",
        "-e",
        "error.log",
    ];
    let before = pid_in(&server, "nginx.pid");
    let finished = run(&arguments);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert_ne!(pid_in(&server, "nginx.pid"), before);
    assert!(server.ended().success(), "the old one ends");
    for client in &mut clients {
        assert!(client.get("/").text().ends_with(":2"));
    }
    end_new(&server);
    assert_eq!(run(&arguments).code, 1, "there is no server any more");
}

#[test]
fn a_command_learns_why_its_reload_was_refused() {
    if skip_on_oracle("nginx's command ends when the signal is sent") {
        return;
    }
    let mut server = http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 old; } }")
        .tolerate("Address already in use")
        .tolerate("still could not bind()")
        .start();
    let folder = format!("{}/", server.path("").display());
    let reload = [
        "-s",
        "reload",
        "-p",
        &folder,
        "-c",
        "nginx.conf",
        "-e",
        "error.log",
    ];
    server.reconfigure(
        "server { listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%%; location / { return 200 new; } }",
    );
    // One of the harness: one of the kernel's choice could become somebody's outgoing connection when it is free again.
    let busy = std::net::TcpListener::bind(("127.0.0.1", server.port(1))).expect("it is ours");
    let finished = run(&reload);
    assert_eq!(finished.code, 1);
    assert!(
        finished.stderr.contains("still could not bind()"),
        "{}",
        finished.stderr
    );
    assert_eq!(server.get("/").text(), "old");
    drop(busy);
    let finished = run(&reload);
    assert_eq!((finished.code, finished.stderr.as_str()), (0, ""));
    assert_eq!(
        server.get("/").text(),
        "new",
        "it is over when the command is"
    );
}

#[test]
fn a_corrupt_binary_is_not_run_as_a_script() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; return 200 $pid; }")
        .tolerate("could not start the new binary")
        .tolerate("exited on signal")
        .copied()
        .start();
    let pid = pid_in(&server, "nginx.pid");
    let program = server.path("program");
    let good = std::fs::read(&program).expect("it was copied");
    let replace = |content: &[u8]| {
        use std::os::unix::fs::PermissionsExt;
        let aside = server.path("aside");
        std::fs::write(&aside, content).expect("the folder is ours");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&aside, mode).expect("the file is ours");
        std::fs::rename(&aside, &program).expect("the folder is ours");
    };
    let mark = server.path("mark");
    // A shell would be glad of the first one, and of the second: an empty script is a success.
    let commands = format!("echo run > '{}'\n", mark.display());
    let cut = &good[..1000];
    let not_for_here = [b"\x7fELF\x02\x01\x01", &[0xff; 200][..]].concat();
    for (round, content) in [commands.as_bytes(), b"", cut, &not_for_here]
        .iter()
        .enumerate()
    {
        replace(content);
        server.signal(Signal::USR2);
        let refused = || {
            let log = server.read("error.log");
            // Of one that is cut off the kernel may see only while it runs that there is no more of it.
            let refused = log.matches("could not start the new binary (").count();
            refused + log.matches(" exited on signal ").count() == round + 1
        };
        assert!(until(|| refused().then_some(())).is_some(), "{round}");
        let back = until(|| (pid_in(&server, "nginx.pid") == pid).then_some(()));
        assert!(back.is_some());
        server.get("/").expect(200);
    }
    assert!(!mark.exists(), "the file was run");
    replace(&good);
    start_new(&server);
    signal(&server, "nginx.pid", Signal::QUIT);
    let back = until(|| (pid_in(&server, "nginx.pid") == pid).then_some(()));
    assert!(back.is_some());
}
