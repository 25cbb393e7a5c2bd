//! `weir tail` and `weir top`: requests of a running server, through reloads, upgrades and restarts, and readers that are
//! slow, dead or not allowed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use weir_tests::{PATIENCE, Server, Signal, Site, http, run, server_path, skip_on_oracle, until};

/// Debian's.
const NOBODY: u32 = 65_534;

const WHY: &str = "nginx has no such command";

const CONF: &str = "server { listen 127.0.0.1:%%PORT%%; server_name shop.test;
    location / { return 200 ok; }
    location /fail { return 500; }
    location /other { return 204; } }";

/// A command that goes on, with its lines as they come.
struct Tail {
    child: Child,
    lines: Receiver<String>,
    complaints: Receiver<String>,
}

fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::sync_channel(10_000);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Tail {
    fn start(server: &Server, arguments: &[&str]) -> Tail {
        let pid = server.path("nginx.pid");
        let mut child = Command::new(server_path())
            .args(["tail", "--pid"])
            .arg(pid)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary can be executed");
        let stdout = child.stdout.take().expect("it is a pipe");
        let stderr = child.stderr.take().expect("it is a pipe");
        Tail {
            child,
            lines: lines_of(stdout),
            complaints: lines_of(stderr),
        }
    }

    /// Started, and known to read: the server has been asked until a request was shown.
    fn ready(server: &Server, arguments: &[&str]) -> Tail {
        let tail = Tail::start(server, arguments);
        tail.await_reading(server);
        tail
    }

    /// Asks until a request is shown.
    fn await_reading(&self, server: &Server) {
        let shown = until(|| {
            server.get("/ready");
            self.lines
                .try_iter()
                .any(|line| line.contains("/ready"))
                .then_some(())
        });
        assert!(
            shown.is_some(),
            "{:?}",
            self.complaints.try_iter().collect::<Vec<_>>()
        );
    }

    /// The next line that is not about getting ready.
    #[track_caller]
    fn next(&self) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("a line in time");
            if !line.contains("/ready") {
                return line;
            }
        }
    }

    #[track_caller]
    fn complains(&self, text: &str) {
        let mut seen = Vec::new();
        while let Ok(line) = self.complaints.recv_timeout(PATIENCE) {
            if line.contains(text) {
                return;
            }
            seen.push(line);
        }
        panic!("no complaint has {text:?}: {seen:?}");
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn site(more: &str) -> Option<Site> {
    if skip_on_oracle(WHY) {
        return None;
    }
    Some(http(&format!("{more} {CONF}")))
}

#[test]
fn requests_are_shown_as_they_end() {
    let Some(site) = site("") else { return };
    let server = site.start();
    let tail = Tail::ready(&server, &[]);
    server.get("/hello?a=1").expect(200);
    let line = tail.next();
    assert!(line.contains(" 200 "), "{line}");
    assert!(
        line.ends_with(" GET localhost/hello?a=1 127.0.0.1"),
        "{line}"
    );
}

#[test]
fn several_readers_have_filters_of_their_own() {
    let Some(site) = site("") else { return };
    let server = site.start();
    let all = Tail::ready(&server, &[]);
    let failures = Tail::ready(&server, &["status>=500 || uri ~ ^/ready"]);
    // Several words are one filter.
    let hosts = Tail::ready(
        &server,
        &["$host", "~", "shop", "||", "$uri", "==", "/ready"],
    );
    server.get("/fail").expect(500);
    server
        .raw("GET /other HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n")
        .expect(204);
    server.get("/last").expect(200);
    assert!(failures.next().contains("/fail"));
    assert!(hosts.next().contains("shop.test/other"));
    for path in ["/fail", "/other", "/last"] {
        let line = all.next();
        assert!(line.contains(path), "{path}: {line}");
    }
}

#[test]
fn a_filter_that_is_wrong_has_a_caret() {
    if skip_on_oracle(WHY) {
        return;
    }
    let finished = run(&["tail", "--pid", "1", "stauts >= 500"]);
    assert_eq!(finished.code, 1);
    let expected = "no request has a variable \"stauts\" here\n  stauts >= 500\n  ^^^^^^ did you mean \"status\"?";
    assert!(finished.stderr.contains(expected), "{}", finished.stderr);
}

#[test]
fn credentials_do_not_leave_the_server() {
    let Some(site) = site("") else { return };
    let server = site.start();
    let tail = Tail::ready(&server, &["--json"]);
    server.get_with(
        "/signed?page=2&X-Amz-Signature=5ecret1&to%6ben=5ecret2",
        &[
            "Authorization: Basic 5ecret3",
            "Cookie: id=5ecret4",
            "X-Api-Key: 5ecret5",
            "Referer: http://user:5ecret6@a.test/?session=5ecret7",
            "X-Plain: shown",
        ],
    );
    let line = tail.next();
    assert!(!line.contains("5ecret"), "{line}");
    for text in [
        "page=2&X-Amz-Signature=***",
        "\"http_authorization\": \"***\"",
        "\"http_x_plain\": \"shown\"",
    ] {
        assert!(line.contains(text), "{text}: {line}");
    }
    // And not by the ring itself either, as far as this process can look.
    let master = server.pid().as_raw_nonzero();
    let folder = std::fs::read_dir(format!("/proc/{master}/fd")).expect("it is ours");
    let ring = folder
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let target = std::fs::read_link(path).unwrap_or_default();
            target.to_string_lossy().contains("weir-requests")
        })
        .expect("the ring is a file in memory");
    let bytes = std::fs::read(&ring).expect("it is ours");
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(has(b"page=2"));
    assert!(!has(b"5ecret"));
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(&ring)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_ledger_and_the_tries_are_shown_below() {
    let Some(_) = site("") else { return };
    let origin = crate::cache_fills::Origin::start(|stream, _, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    // A port without a listener: the first try fails.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let dead_port = dead.local_addr().expect("it is bound").port();
    drop(dead);
    let server = http(&format!(
        "upstream u {{ server 127.0.0.1:{dead_port}; server 127.0.0.1:{} backup; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200; }}
             location /up {{ proxy_pass http://u; }} }}",
        origin.port
    ))
    .tolerate("connect() failed")
    .start();
    let tail = Tail::ready(&server, &["-g", "upstream", "-l"]);
    server.get("/up").expect(200);
    // The ledgers of others come before.
    while !tail.next().contains("/up") {}
    let first = tail.next();
    assert!(
        first.contains(&format!("1. 127.0.0.1:{dead_port} status 502")),
        "{first}"
    );
    let second = tail.next();
    assert!(
        second.contains(&format!("2. 127.0.0.1:{} status 200", origin.port)),
        "{second}"
    );
    assert!(tail.next().contains(" ms "));
}

#[test]
fn worker_groups_and_reloads_are_one_stream() {
    let Some(site) = site("") else { return };
    let mut server = site.main("worker_processes 4; worker_groups 2;").start();
    let tail = Tail::ready(&server, &[]);
    for number in 0..40 {
        server.get(&format!("/n{number}")).expect(200);
    }
    let shown: Vec<String> = (0..40).map(|_| tail.next()).collect();
    for number in 0..40 {
        let path = format!("/n{number} ");
        assert!(
            shown.iter().any(|line| line.contains(&path)),
            "{path}: {shown:?}"
        );
    }
    server.reconfigure("server { listen 127.0.0.1:%%PORT%%; return 201 new; }");
    server.signal(Signal::HUP);
    until(|| (server.get("/ready").status == 201).then_some(())).expect("the reload");
    server.get("/after");
    assert!(tail.next().contains(" 201 "));
}

#[test]
fn an_upgrade_and_a_restart_are_followed() {
    let Some(site) = site("") else { return };
    let server = site.start();
    let tail = Tail::ready(&server, &[]);
    let old = server.pid();
    server.signal(Signal::USR2);
    let number = |text: String| text.trim().parse::<i32>().ok();
    until(|| {
        let now = number(server.read("nginx.pid"))?;
        (now != old.as_raw_nonzero().get()).then_some(())
    })
    .expect("the new master");
    tail.complains("reading the requests of process");
    rustix::process::kill_process(old, Signal::QUIT).expect("it lives");
    until(|| {
        let old = format!("/proc/{}", old.as_raw_nonzero());
        (!std::path::Path::new(&old).exists()).then_some(())
    });
    tail.await_reading(&server);
    server.get("/upgraded").expect(200);
    assert!(tail.next().contains("/upgraded"));
}

#[test]
fn a_reader_that_has_stopped_or_died_holds_nobody() {
    let Some(site) = site("") else { return };
    let server = site.start();
    let stopped = Tail::ready(&server, &[]);
    let process = rustix::process::Pid::from_child(&stopped.child);
    rustix::process::kill_process(process, Signal::STOP).expect("it lives");
    // More than the ring has places for.
    for _ in 0..10 {
        let mut client = server.connect();
        for _ in 0..500 {
            assert_eq!(client.get("/many").status, 200);
        }
    }
    rustix::process::kill_process(process, Signal::CONT).expect("it lives");
    stopped.complains("requests were not seen");
    drop(stopped);
    // Nothing reads any more, and another process can.
    let other = Tail::ready(&server, &[]);
    server.get("/still").expect(200);
    assert!(other.next().contains("/still"));
}

#[test]
fn top_adds_up_by_path_client_and_status() {
    let Some(site) = site("") else { return };
    let server = site.start();
    let pid = server.path("nginx.pid");
    let mut top = Command::new(server_path())
        .args(["top", "--json", "--pid"])
        .arg(&pid)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be executed");
    let ended = until(|| {
        server.get("/often");
        server.get("/fail");
        top.try_wait().expect("it is ours")
    });
    assert!(ended.is_some());
    let output = top.wait_with_output().expect("it has ended");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(text.contains("/often\", \"requests\": "), "{text}");
    assert!(
        text.contains("\"clients\": [{\"name\": \"127.0.0.1\""),
        "{text}"
    );
    assert!(
        text.contains("{\"name\": \"500\", \"requests\": "),
        "{text}"
    );
    let plain = run(&[
        "top",
        "--once",
        "--seconds",
        "1",
        "--pid",
        &pid.to_string_lossy(),
    ]);
    assert_eq!(plain.code, 0, "{}", plain.stderr);
    assert!(
        plain.stdout.contains(" requests/s, mean "),
        "{}",
        plain.stdout
    );
}

#[test]
fn another_user_is_told_who_may() {
    let Some(site) = site("") else { return };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let server = site.start();
    let number = server.pid().as_raw_nonzero().to_string();
    let tried = Command::new(server_path())
        .args(["tail", "--pid", &number])
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    let Ok(output) = tried else {
        println!("skipped: other users cannot execute the binary");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("belongs to root"), "{said}");
    assert!(said.contains("sudo weir tail"), "{said}");
}

#[test]
fn without_a_server_the_reason_is_said() {
    let Some(site) = site("") else { return };
    let pid = site.path("nowhere.pid");
    let finished = run(&["tail", "--pid", &pid.to_string_lossy()]);
    assert_eq!(finished.code, 1);
    assert!(
        finished.stderr.contains("no server is running"),
        "{}",
        finished.stderr
    );
    // A process that is no server.
    let own = std::process::id().to_string();
    let finished = run(&["top", "--once", "--pid", &own]);
    assert!(
        finished.stderr.contains("does not answer"),
        "{}",
        finished.stderr
    );
}
