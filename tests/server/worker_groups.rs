//! `worker_groups`: the event loops in several processes. What one loses with a crash, and what all have together.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::process::{Pid, kill_process};
use weir_tests::{Connection, Server, Signal, Site, http, run, skip_on_oracle, until, whole};

use crate::tls::{CERTIFICATE, Client, body, https};

const WHY: &str = "worker_groups is Weir's own";

/// The answer of the site below: the process, and how many requests the connection has had.
const SITE: &str = "keepalive_requests 1000000;
     server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid:$connection_requests; } }";

fn two_groups(block: &str) -> Site {
    http(block)
        .main("worker_processes 4; worker_groups 2;")
        // The notices about what each group has for itself.
        .tolerate("worker groups")
}

fn process_of(text: &str) -> i32 {
    let number = text.split(':').next().and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("no process in {text:?}"))
}

/// How many requests its connection has had.
fn requests(text: &str) -> usize {
    let number = text.rsplit(':').next().and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("no number in {text:?}"))
}

/// How many of these connections each process has.
fn spread(clients: &mut [Connection]) -> BTreeMap<i32, usize> {
    let mut spread = BTreeMap::new();
    for client in clients {
        *spread
            .entry(process_of(&client.get("/").text()))
            .or_default() += 1;
    }
    spread
}

fn clients(server: &Server, count: usize) -> Vec<Connection> {
    (0..count).map(|_| server.connect()).collect()
}

/// Opens this number of connections, of which both groups have some.
fn both(server: &Server, count: usize) -> Vec<Connection> {
    let mut clients = clients(server, count);
    let are_even = until(|| {
        let spread = spread(&mut clients);
        (spread.len() == 2 && spread.values().all(|has| has * 4 >= count)).then_some(())
    });
    assert!(are_even.is_some(), "{:?}", spread(&mut clients));
    clients
}

fn kill(process: i32) {
    let process = Pid::from_raw(process).expect("a process");
    kill_process(process, Signal::KILL).expect("it lives");
}

/// Replaces a line of the main context, and reloads.
fn change(server: &Server, from: &str, to: &str) {
    let path = server.path("nginx.conf");
    let text = std::fs::read_to_string(&path).expect("the harness wrote it");
    assert!(text.contains(from));
    std::fs::write(&path, text.replace(from, to)).expect("it may be written");
    reload(server);
}

/// Reloads, and waits until all groups have done so.
fn reload(server: &Server) {
    let path = |name| server.path(name).to_string_lossy().into_owned();
    let finished = run(&[
        "-p".to_owned(),
        path(""),
        "-c".to_owned(),
        path("nginx.conf"),
        "-s".to_owned(),
        "reload".to_owned(),
    ]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
}

#[test]
fn loops_are_divided_and_connections_spread_evenly() {
    if skip_on_oracle(WHY) {
        return;
    }
    for listen in ["127.0.0.1:%%PORT%%", "unix:socket"] {
        let block = format!(
            "server {{ listen {listen}; listen 127.0.0.1:%%PORT1%%; location / {{ return 200 $pid:; }}
             location /status {{ weir_status json; }} }}"
        );
        let server = two_groups(&block).start();
        // Also if one group was there before the other: idle connections are moved.
        let mut clients: Vec<Connection> = (0..60).map(|_| server.connect_to(1)).collect();
        let is_even = until(|| {
            let spread = spread(&mut clients);
            let is_fair = |count: &usize| (20..=40).contains(count);
            (spread.len() == 2 && spread.values().all(is_fair)).then_some(())
        });
        assert!(is_even.is_some(), "{:?}", spread(&mut clients));
        let status = clients[0].get("/status").text();
        for number in 0..4 {
            assert!(status.contains(&format!("\"loop\":{number},")), "{status}");
        }
        assert!(
            status.contains("\"groups\":2,\"groups_answered\":2"),
            "{status}"
        );
        let started = server.read("error.log");
        let started = started.matches("start worker process ").count();
        assert_eq!(started, 2);
    }
}

#[test]
fn a_crash_ends_the_connections_of_one_group_only() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = two_groups(SITE).tolerate("exited on signal 9").start();
    let mut clients = both(&server, 40);
    let before = spread(&mut clients);
    let victim = *before.keys().next().expect("two");
    let counts: Vec<usize> = clients
        .iter_mut()
        .map(|client| requests(&client.get("/").text()))
        .collect();
    // New clients all the time: none may be refused or get no answer.
    let load = Load::new(&server, 0, 4);
    kill(victim);
    let line = server.line("error.log", "exited on signal 9");
    assert!(
        line.contains("worker process") && line.contains("worker group"),
        "{line}"
    );
    let (mut lost, mut kept) = (0, 0);
    for (client, count) in clients.iter_mut().zip(counts) {
        client.request("GET", "/", &[]);
        match client.reply_or_closed() {
            Some(reply) => {
                let text = reply.text();
                assert!(
                    requests(&text) == count + 1 && process_of(&text) != victim,
                    "{text}"
                );
                kept += 1;
            }
            None => lost += 1,
        }
    }
    // A few may have moved since they were counted: about half, and not all.
    assert!(
        lost + kept == 40 && lost >= 10 && kept >= 10,
        "{lost} lost, {kept} kept, {before:?}"
    );
    // The group is back, with another process, and gets its share of new connections.
    let back = until(|| {
        let mut clients = self::clients(&server, 20);
        let now = spread(&mut clients);
        (now.len() == 2 && !now.contains_key(&victim)).then_some(())
    });
    assert!(back.is_some());
    let (failed, answered) = load.end();
    // Requests of the dead process are lost; there were at most four at a time.
    assert!(failed <= 4 && answered > 0, "{failed} of {answered}");
}

/// Clients that go on until they are told to stop, and count what fails.
struct Load {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts this number of keep-alive clients, and clients that connect for each request.
    fn new(server: &Server, kept: usize, new: usize) -> Load {
        let load = Load {
            stop: Arc::default(),
            failed: Arc::default(),
            answered: Arc::default(),
            threads: Vec::new(),
        };
        let port = server.port(0);
        let mut threads = Vec::new();
        for number in 0..kept + new {
            let (stop, failed) = (Arc::clone(&load.stop), Arc::clone(&load.failed));
            let answered = Arc::clone(&load.answered);
            threads.push(std::thread::spawn(move || {
                let connect = || {
                    let stream = TcpStream::connect(("127.0.0.1", port));
                    stream.map(Connection::new)
                };
                let mut client = None;
                while !stop.load(Ordering::Relaxed) {
                    if number >= kept {
                        client = None;
                    }
                    let is_first = client.is_none();
                    if is_first {
                        client = connect().ok();
                    }
                    let reply = client.as_mut().and_then(|client| {
                        client.request("GET", "/", &[]);
                        client.reply_or_closed()
                    });
                    match reply.filter(|reply| reply.status == 200) {
                        Some(_) => answered.fetch_add(1, Ordering::Relaxed),
                        None => {
                            client = None;
                            failed.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            }));
        }
        Load { threads, ..load }
    }

    /// Ends it; how many requests failed, and how many were answered.
    fn end(self) -> (usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client that does not panic");
        }
        (
            self.failed.load(Ordering::Relaxed),
            self.answered.load(Ordering::Relaxed),
        )
    }
}

#[test]
fn reloads_under_load_fail_no_request() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = two_groups(SITE).start();
    let mut idle = clients(&server, 12);
    let load = Load::new(&server, 4, 4);
    for _ in 0..10 {
        reload(&server);
    }
    let (failed, answered) = load.end();
    assert_eq!(failed, 0, "of {answered}");
    for client in &mut idle {
        let text = client.get("/").text();
        assert!(text.ends_with(":1"), "the same socket: {text}");
    }
    let log = server.read("error.log");
    assert_eq!(
        log.matches("start worker process ").count(),
        2,
        "the same processes"
    );
}

#[test]
fn the_number_of_groups_changes_with_a_reload_and_connections_stay() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = two_groups(SITE).start();
    let mut idle = clients(&server, 12);
    let load = Load::new(&server, 2, 4);
    for (from, to) in [(2, 1), (1, 3), (3, 2)] {
        let line = |groups: usize| format!("worker_groups {groups};");
        change(&server, &line(from), &line(to));
        let groups = until(|| {
            let processes = spread(&mut clients(&server, 30)).len();
            (processes == to).then_some(())
        });
        assert!(groups.is_some(), "{to} groups");
    }
    let (failed, answered) = load.end();
    assert_eq!(failed, 0, "of {answered}");
    for client in &mut idle {
        let text = client.get("/").text();
        assert!(text.ends_with(":1"), "the same socket: {text}");
    }
}

/// Signals the process in one of the pid files.
fn signal(server: &Server, file: &str, signal: Signal) {
    let number = server.read(file).trim().parse().expect("a number");
    let process = Pid::from_raw(number).expect("a process");
    kill_process(process, signal).expect("it lives");
}

#[test]
fn an_upgrade_hands_all_groups_over() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server = two_groups(SITE).start();
    let mut idle = both(&server, 20);
    let before = spread(&mut idle);
    let count: Vec<usize> = idle
        .iter_mut()
        .map(|client| requests(&client.get("/").text()))
        .collect();
    let load = Load::new(&server, 4, 4);
    server.signal(Signal::USR2);
    assert!(until(|| server.path("nginx.pid.oldbin").exists().then_some(())).is_some());
    server.line("error.log", " is ready");
    signal(&server, "nginx.pid.oldbin", Signal::QUIT);
    assert!(server.ended().success());
    let (failed, answered) = load.end();
    assert_eq!(failed, 0, "of {answered}");
    let mut after = BTreeMap::<i32, usize>::new();
    for (client, count) in idle.iter_mut().zip(count) {
        let text = client.get("/").text();
        assert_eq!(requests(&text), count + 1, "the same socket: {text}");
        *after.entry(process_of(&text)).or_default() += 1;
    }
    assert!(
        after.keys().all(|process| !before.contains_key(process)),
        "{after:?}"
    );
    signal(&server, "nginx.pid", Signal::QUIT);
    assert!(until(|| (!server.path("nginx.pid").exists()).then_some(())).is_some());
}

#[test]
fn stub_status_sums_the_groups_up() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = two_groups(
        "server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid:; } location = /sum { stub_status; } }",
    )
    .start();
    let mut clients = both(&server, 20);
    let numbers = |page: &str| -> Vec<usize> {
        let words = page.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let mut before = numbers(&clients[0].get("/sum").text());
    for client in &mut clients {
        // One more request each time, whichever group answers.
        let now = numbers(&client.get("/sum").text());
        assert_eq!(now[3], before[3] + 1, "{before:?} {now:?}");
        before = now;
    }
    // Connections of both, once none is on its way from one to the other.
    let sums = until(|| {
        let now = numbers(&clients[0].get("/sum").text());
        (now[0] == 20 && now[4..] == [0, 1, 19]).then_some(now)
    });
    let sums = sums.expect("20 connections");
    assert!(sums[1] == sums[2] && sums[1] >= 20, "{sums:?}");
}

#[test]
fn log_lines_of_two_processes_are_whole_and_logs_are_reopened_by_both() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = two_groups(
        "keepalive_requests 1000000; log_format long '$pid $request_uri$request_uri$request_uri$request_uri end';
         access_log all.log long;
         server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid:; } }",
    )
    .start();
    let mut clients = both(&server, 16);
    let target = format!("/{}", "x".repeat(1500));
    for _ in 0..20 {
        for client in &mut clients {
            client.get(&target).expect(200);
        }
    }
    let whole = |line: &str| {
        let text = line
            .split_once(' ')
            .and_then(|(_, text)| text.strip_suffix(" end"));
        text.is_some_and(|text| text == target.repeat(4) || text == "////")
    };
    let all = until(|| {
        let text = server.read("all.log");
        (text.ends_with('\n') && text.matches(&target.repeat(4)).count() == 320).then_some(text)
    });
    let all = all.expect("a line for each request");
    assert!(all.lines().all(whole));
    std::fs::rename(server.path("all.log"), server.path("old.log")).expect("it is there");
    server.signal(Signal::USR1);
    // Both write to the new file.
    let both = until(|| {
        for client in &mut clients {
            client.get(&target).expect(200);
        }
        let text = std::fs::read_to_string(server.path("all.log")).unwrap_or_default();
        let mut processes: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        processes.sort_unstable();
        processes.dedup();
        (processes.len() == 2).then_some(())
    });
    assert!(both.is_some());
}

#[test]
fn tls_sessions_are_resumed_by_every_group_and_after_a_crash() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} location / {{ return 200 '$ssl_session_reused $pid'; }} }}"
    ))
    .main("worker_processes 2; worker_groups 2;")
    .tolerate("exited on signal 9")
    .start();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = Client::with(None, &[version]);
        let ask = || {
            // Held open, so that the groups take turns.
            let answer = client.get(&server, "localhost", "/").expect("an answer");
            let (reused, process) = body(&answer).split_once(' ').expect("two words");
            (reused.to_owned(), process.parse::<i32>().expect("a number"))
        };
        let (_, first) = ask();
        let mut held = Vec::new();
        let other = until(|| {
            held.push(server.connect());
            let (reused, process) = ask();
            assert_eq!(reused, "r", "process {process}, after {first}");
            (process != first).then_some(process)
        });
        let other = other.expect("the other group");
        kill(other);
        let after = until(|| {
            held.push(server.connect());
            let answer = client.get(&server, "localhost", "/").ok()?;
            let (reused, process) = body(&answer).split_once(' ')?;
            let process: i32 = process.parse().ok()?;
            assert_eq!(reused, "r", "process {process}, after the crash");
            (process != first && process != other).then_some(())
        });
        assert!(after.is_some(), "the new process resumes");
    }
}

/// A cache before an origin whose answers are all different.
const CACHED: &str = "proxy_cache_path cache keys_zone=one:1m;
     server {
         listen 127.0.0.1:%%PORT%%;
         location / {
             proxy_pass http://127.0.0.1:%%PORT1%%;
             proxy_cache one;
             proxy_cache_valid 1h;
             add_header X-Cache $upstream_cache_status;
             add_header X-Process $pid;
         }
         location = /cache { cache_purge one; }
     }
     server { listen 127.0.0.1:%%PORT1%%; location / { return 200 $request_id; } }";

/// One connection to each of two groups.
fn one_of_each(server: &Server) -> Vec<Connection> {
    let mut found: BTreeMap<String, Connection> = BTreeMap::new();
    let mut held = Vec::new();
    let both = until(|| {
        let mut client = server.connect();
        let process = client.get("/who").field("X-Process").to_owned();
        match found.contains_key(&process) {
            true => held.push(client),
            false => drop(found.insert(process, client)),
        }
        (found.len() == 2).then_some(())
    });
    assert!(both.is_some());
    found.into_values().collect()
}

#[test]
fn each_group_has_a_cache_and_a_purge_reaches_all() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = two_groups(CACHED).start();
    let mut clients = one_of_each(&server);
    let hit = |client: &mut Connection, target: &str| {
        let hit = until(|| {
            let reply = client.get(target);
            (reply.field("X-Cache") == "HIT").then(|| reply.text())
        });
        hit.expect("a hit")
    };
    let first: Vec<String> = clients.iter_mut().map(|client| hit(client, "/a")).collect();
    assert_ne!(first[0], first[1], "each has asked the origin");
    let key = format!("http://127.0.0.1:{}/a", server.port(1));
    for at in 0..2 {
        let stored: Vec<String> = clients.iter_mut().map(|client| hit(client, "/a")).collect();
        let purged = clients[at].reply_to_purge(&key);
        assert!(purged.contains("\"purged\""), "{purged}");
        // Here at once; in the other group a moment later.
        for (client, stored) in clients.iter_mut().zip(&stored) {
            let is_new = until(|| (client.get("/a").text() != *stored).then_some(()));
            assert!(is_new.is_some(), "the purged object is gone");
        }
    }
    assert!(server.path("cache/group-1/store").exists());
    let kept = hit(&mut clients[0], "/b");
    // One group again: what the other has stored takes no room any more.
    change(&server, "worker_groups 2;", "worker_groups 1;");
    let gone = until(|| (!server.path("cache/group-1").exists()).then_some(()));
    assert!(gone.is_some());
    let mut client = server.connect();
    let now = hit(&mut client, "/b");
    // Which of the groups the first client had is not known: with the other one it is another answer.
    assert!(now == kept || now.len() == kept.len());
}

/// A purge on a connection.
trait Purging {
    fn reply_to_purge(&mut self, key: &str) -> String;
}

impl Purging for Connection {
    fn reply_to_purge(&mut self, key: &str) -> String {
        self.request("PURGE", &format!("/cache?key={key}"), &[]);
        self.reply().expect(200).text()
    }
}

#[test]
fn scripts_see_the_loops_of_all_groups_as_one_list() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = two_groups(
        "server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
             ngx.print(ngx.worker.pid(), ':', ngx.worker.id(), ' of ', ngx.worker.count()) } } }",
    )
    .start();
    let mut held = Vec::new();
    let mut seen = BTreeMap::<String, i32>::new();
    let all = until(|| {
        let mut client = server.connect();
        let text = client.get("/").text();
        let process = process_of(&text);
        let id = text.split_once(':').expect("two parts").1.to_owned();
        let known = seen.insert(id, process);
        assert!(
            known.is_none_or(|known| known == process),
            "one process for each number"
        );
        held.push(client);
        (seen.len() == 4).then_some(())
    });
    assert!(all.is_some(), "{seen:?}");
    let ids: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(ids, ["0 of 4", "1 of 4", "2 of 4", "3 of 4"]);
}

#[test]
fn what_each_group_has_for_itself_is_said() {
    if skip_on_oracle(WHY) {
        return;
    }
    let test =
        |main: &str, block: &str| whole(&format!("{main} events {{ }} http {{ {block} }}")).test();
    let block = "limit_req_zone $uri zone=a:1m rate=1r/s; proxy_cache_path cache keys_zone=b:1m; lua_shared_dict c 1m;
                 ssl_session_cache shared:d:1m; ssl_session_cache builtin;
                 server { listen 127.0.0.1:%%PORT%%; }";
    let said = test("worker_processes 2; worker_groups 2;", block);
    assert_eq!(said.code, 0, "{}", said.stderr);
    for name in [
        "limit_req_zone",
        "proxy_cache_path",
        "lua_shared_dict",
        "ssl_session_cache",
    ] {
        let text = format!("[notice] \"{name}\" with 2 worker groups: ");
        assert_eq!(said.stderr.matches(&text).count(), 1, "{}", said.stderr);
    }
    let alone = test("worker_processes 2;", block);
    assert!(!alone.stderr.contains("worker groups"), "{}", alone.stderr);
    let server = "server { listen 127.0.0.1:%%PORT%%; }";
    let few = test("worker_processes 2; worker_groups 3;", server);
    assert!(
        few.code == 0 && few.stderr.contains("3 run instead of 2"),
        "{}",
        few.stderr
    );
    for wrong in ["0", "65", "many"] {
        let refused = test(&format!("worker_groups {wrong};"), server);
        assert_eq!(refused.code, 1, "{wrong}");
    }
    let acme = "resolver 127.0.0.1; acme_issuer x { uri https://127.0.0.1/; } server { listen 127.0.0.1:%%PORT%%; }";
    let refused = test("worker_groups 2;", acme);
    assert!(
        refused.code == 1
            && refused
                .stderr
                .contains("does not work with \"worker_groups\"")
    );
}

#[test]
fn a_request_that_a_dying_group_had_accepted_is_the_only_one_lost() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = two_groups(
        "server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid:; } location /slow { limit_rate 10k; } }",
    )
    .file("html/slow", vec![b'x'; 1_000_000])
    .tolerate("exited on signal 9")
    .start();
    let mut clients = both(&server, 20);
    let victim = *spread(&mut clients).keys().next().expect("two");
    let mut slow = server.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    slow.at_least(100);
    // A client in the queue of the listening socket, or in the kernel, is served by the worker that lives.
    kill(victim);
    let mut late = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    late.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("it is taken");
    Connection::new(late).reply().expect(200);
}
