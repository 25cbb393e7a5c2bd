//! A server whose master was killed: its worker goes on, and makes room when the server is started again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Child;

use rustix::process::{Pid, kill_process};
use weir_tests::{Connection, Signal, Site, is_oracle, skip_on_oracle, until, whole};

const WHY: &str =
    "its workers keep their sockets when their master is gone, so that it cannot be started again";

/// A site that is started in the background, once or twice, and ended with whatever runs of it.
struct Background {
    site: Site,
    started: Vec<Pid>,
}

impl Background {
    fn new(listen: &str, more: &str) -> Background {
        Background::with("worker_processes 2;", listen, more)
    }

    fn with(main: &str, listen: &str, more: &str) -> Background {
        let user = match rustix::process::geteuid().is_root() {
            true => "user root;",
            false => "",
        };
        let conf = format!(
            "daemon on; {user} pid nginx.pid; error_log error.log info; {main}
             events {{ }}
             http {{
                 access_log off; root html; client_body_temp_path body_temp;
                 {more}
                 server {{
                     listen 127.0.0.1:%%PORT%%{listen};
                     location / {{ return 200 $pid:$connection_requests; }}
                     location /slow {{ limit_rate 100k; }}
                 }}
             }}"
        );
        Background {
            site: whole(&conf).file("html/slow", vec![b'x'; 150_000]),
            started: Vec::new(),
        }
    }

    /// Starts the server; gives its master.
    fn start(mut self) -> (Background, Pid) {
        let before = self.pid();
        let finished = self.site.run_background();
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let pid = until(|| self.pid().filter(|pid| Some(*pid) != before));
        let pid = pid.expect("the pid file has a new number");
        self.started.push(pid);
        (self, pid)
    }

    fn pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.site.path("nginx.pid")).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.site.port(0)));
        Connection::new(stream.expect("it listens"))
    }

    /// The worker that answers a new connection.
    fn worker(&self) -> Pid {
        process_of(&self.connect().get("/").text())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.site.path("error.log")).unwrap_or_default()
    }

    /// Waits for a line in the log.
    fn says(&self, text: &str) {
        let said = until(|| self.log().contains(text).then_some(()));
        assert!(said.is_some(), "{text:?} is not in:\n{}", self.log());
    }

    /// Kills the master, and waits until the worker knows it.
    fn kill(&self, master: Pid) {
        let lines = || {
            self.log()
                .matches("this worker process keeps serving")
                .count()
        };
        let before = lines();
        kill_process(master, Signal::KILL).expect("it lives");
        if !is_oracle() {
            let told = until(|| (lines() > before).then_some(()));
            assert!(told.is_some(), "{}", self.log());
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Also the workers of masters that were killed: each master has logged what it started.
        let log = self.log();
        if std::thread::panicking() {
            eprintln!("--- error.log\n{log}");
        }
        let workers = workers_in(&log);
        for process in self.started.drain(..).chain(workers) {
            // Mostly it has ended.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// The workers that masters have logged, in the order of their starts.
fn workers_in(log: &str) -> Vec<Pid> {
    let started = log.lines().filter_map(|line| {
        let (_, number) = line.rsplit_once("start worker process ")?;
        Pid::from_raw(number.trim().parse().ok()?)
    });
    started.collect()
}

/// The process in an answer.
fn process_of(text: &str) -> Pid {
    let number = text.split(':').next().and_then(|text| text.parse().ok());
    number.and_then(Pid::from_raw).expect("a process")
}

/// Waits for the end of a process. Whoever inherits it may leave it as a zombie for a while.
fn is_gone(process: Pid) -> bool {
    let has_ended = || {
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| state == Some('Z'))
    };
    until(|| has_ended().then_some(())).is_some()
}

fn end(background: &Background, master: Pid) {
    kill_process(master, Signal::QUIT).expect("it lives");
    assert!(is_gone(master), "{}", background.log());
}

#[test]
fn a_worker_goes_on_without_its_master() {
    let (background, master) = Background::new("", "").start();
    let mut idle = background.connect();
    // nginx has two.
    let worker = process_of(&idle.get("/").text());
    background.kill(master);
    assert!(is_gone(master));
    // The connection that was there, and new ones.
    assert_eq!(process_of(&idle.get("/").text()), worker);
    if is_oracle() {
        return;
    }
    for _ in 0..5 {
        assert_eq!(background.worker(), worker);
    }
    let log = background.log();
    let expected = format!("[alert] {}", worker.as_raw_nonzero());
    assert!(log.contains(&expected), "{log}");
    // It ends as it would with a master.
    kill_process(worker, Signal::QUIT).expect("it lives");
    assert!(is_gone(worker));
    let refused = TcpStream::connect(("127.0.0.1", background.site.port(0)));
    assert!(refused.is_err());
}

#[test]
fn all_worker_groups_are_taken_over() {
    if skip_on_oracle(WHY) {
        return;
    }
    for listen in ["", " reuseport"] {
        let main = "worker_processes 4; worker_groups 2;";
        let (background, master) = Background::with(main, listen, "").start();
        let mut idle: Vec<Connection> = (0..12).map(|_| background.connect()).collect();
        for client in &mut idle {
            client.get("/").expect(200);
        }
        let old = workers_in(&background.log());
        assert_eq!(old.len(), 2);
        background.kill(master);
        let (background, master) = background.start();
        for client in &mut idle {
            let moved = until(|| {
                let process = process_of(&client.get("/").text());
                (!old.contains(&process)).then_some(())
            });
            assert!(moved.is_some(), "the same socket, another process");
        }
        for process in old {
            assert!(is_gone(process), "{}", background.log());
        }
        for _ in 0..20 {
            background.connect().get("/").expect(200);
        }
        end(&background, master);
    }
}

#[test]
fn a_server_that_is_started_again_takes_over() {
    if skip_on_oracle(WHY) {
        return;
    }
    for listen in ["", " reuseport"] {
        let (background, master) = Background::new(listen, "").start();
        let old = background.worker();
        let mut idle: Vec<Connection> = (0..8).map(|_| background.connect()).collect();
        for client in &mut idle {
            assert_eq!(process_of(&client.get("/").text()), old);
        }
        let mut slow = background.connect();
        slow.request("GET", "/slow", &[]);
        background.kill(master);
        // In the queue of a socket when the change comes, and whenever.
        let port = background.site.port(0);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let (background, master) = std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                let mut answered = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut stream =
                        TcpStream::connect(("127.0.0.1", port)).expect("never refused");
                    let request = b"GET / HTTP/1.0\r\n\r\n";
                    stream.write_all(request).expect("it is read");
                    let mut text = String::new();
                    stream.read_to_string(&mut text).expect("it is answered");
                    assert!(text.starts_with("HTTP/1.1 200"), "{text:?}");
                    answered += 1;
                }
                answered
            });
            let result = background.start();
            let replaced = until(|| (result.0.worker() != old).then_some(()));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(clients.join().expect("no client is refused") > 0);
            assert!(replaced.is_some(), "{}", result.0.log());
            result
        });
        background.says("taking over from the worker process of master process");
        let workers = workers_in(&background.log());
        let new = *workers.last().expect("it was logged");
        // Each loop hands over at its own time.
        for client in &mut idle {
            let moved = until(|| {
                let text = client.get("/").text();
                (process_of(&text) == new).then_some(())
            });
            assert!(moved.is_some(), "idle connections are handed over");
        }
        assert_eq!(slow.reply().expect(200).body.len(), 150_000);
        assert!(is_gone(old), "the old worker ends with its last request");
        for _ in 0..10 {
            assert_eq!(background.worker(), new);
        }
        let log = background.log();
        assert!(!log.contains("Address already in use"), "{log}");
        end(&background, master);
    }
}

#[test]
fn a_server_that_cannot_start_leaves_the_worker_as_it_is() {
    if skip_on_oracle(WHY) {
        return;
    }
    let (background, master) = Background::new("", "").start();
    let old = background.worker();
    background.kill(master);
    let path = background.site.path("nginx.conf");
    let good = std::fs::read_to_string(&path).expect("it is there");
    // A configuration that is wrong, and one that fails when the worker is already found: the port is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port();
    let more = format!("http {{ server {{ listen 127.0.0.1:{port}; }}");
    for bad in [
        good.replacen("http {", "foo;", 1),
        good.replacen("http {", &more, 1),
    ] {
        std::fs::write(&path, bad).expect("ours");
        let mut failing: Child = std::process::Command::new(weir_tests::server_path())
            .args(["-p", &format!("{}/", background.site.path("").display())])
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("it can be executed");
        let status = until(|| failing.try_wait().expect("our child"));
        assert!(status.is_some_and(|status| !status.success()));
        assert_eq!(background.worker(), old);
    }
    background.says("keeps serving");
    std::fs::write(&path, good).expect("ours");
    let (background, master) = background.start();
    assert!(is_gone(old), "{}", background.log());
    assert_ne!(background.worker(), old);
    end(&background, master);
}

#[test]
fn a_master_that_is_killed_twice_is_followed_twice() {
    if skip_on_oracle(WHY) {
        return;
    }
    let (mut background, mut master) = Background::new("", "").start();
    for _ in 0..2 {
        let old = background.worker();
        background.kill(master);
        (background, master) = background.start();
        assert!(is_gone(old), "{}", background.log());
    }
    end(&background, master);
}

#[test]
fn a_worker_of_a_killed_master_does_not_stay_beside_the_new_binary() {
    if skip_on_oracle(WHY) {
        return;
    }
    for kill_new in [false, true] {
        let (background, old_master) = Background::new("", "").start();
        let old = background.worker();
        kill_process(old_master, Signal::USR2).expect("it lives");
        background.says(" is ready");
        let new_master = background.pid().expect("the new one's file");
        assert_ne!(new_master, old_master);
        let workers = workers_in(&background.log());
        let new = *workers.last().expect("it was logged");
        assert_ne!(new, old);
        let (killed, left, orphan) = match kill_new {
            true => (new_master, old_master, new),
            false => (old_master, new_master, old),
        };
        kill_process(killed, Signal::KILL).expect("it lives");
        assert!(is_gone(orphan), "{}", background.log());
        let other = if kill_new { old } else { new };
        assert_eq!(background.worker(), other);
        end(&background, left);
    }
}
