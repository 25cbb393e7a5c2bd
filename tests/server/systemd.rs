//! systemd: what the server tells it, the sockets it passes, and the watchdog. A socket of the test is its side.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use weir_tests::{Server, Signal, http, server_path, skip_on_oracle, until};

const WHY: &str = "nginx knows nothing of systemd";

/// The manager's socket.
struct ServiceManager {
    socket: UnixDatagram,
    path: std::path::PathBuf,
    /// The messages so far.
    messages: std::cell::RefCell<Vec<String>>,
}

impl ServiceManager {
    fn new(name: &str) -> ServiceManager {
        let name = format!("weir-test-notify-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).expect("the temporary folder is writable");
        socket.set_nonblocking(true).expect("a socket");
        ServiceManager {
            socket,
            path,
            messages: Default::default(),
        }
    }

    /// Waits until a message has this line, and returns its position.
    #[track_caller]
    fn wait_for(&self, line: &str, from: usize) -> usize {
        let found = until(|| {
            let mut bytes = [0; 4096];
            while let Ok(length) = self.socket.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                self.messages.borrow_mut().push(text);
            }
            let messages = self.messages.borrow();
            let mut later = messages.iter().enumerate().skip(from);
            later.find_map(|(at, text)| text.lines().any(|found| found == line).then_some(at))
        });
        let Some(at) = found else {
            panic!("no {line:?} in {:?}", self.messages.borrow());
        };
        at
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn start(manager: &ServiceManager, more: &[(&str, &str)]) -> Server {
    let path = manager.path.to_str().expect("a path of ASCII");
    let site = http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 a; } }")
        .tolerate("unknown directive \"retrun\"")
        .environment("NOTIFY_SOCKET", path);
    more.iter()
        .fold(site, |site, (name, value)| site.environment(name, value))
        .start()
}

/// Sends a signal to the process of a pid file.
fn kill(pid_file: &str, signal: Signal) {
    let process = pid_file.trim().parse().ok();
    let process = process.and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(process.expect("a number"), signal).expect("it lives");
}

#[test]
fn the_start_a_reload_and_the_end_are_told() {
    if skip_on_oracle(WHY) {
        return;
    }
    let manager = ServiceManager::new("life");
    let mut server = start(&manager, &[]);
    let started = manager.wait_for("READY=1", 0);
    let block =
        |answer: &str| format!("server {{ listen 127.0.0.1:%%PORT%%; location / {{ {answer} }} }}");
    server.reconfigure(&block("return 200 b;"));
    server.signal(Signal::HUP);
    let began = manager.wait_for("RELOADING=1", started + 1);
    let messages = manager.messages.borrow()[began].clone();
    assert!(messages.contains("MONOTONIC_USEC="), "{messages}");
    let reloaded = manager.wait_for("READY=1", began + 1);
    assert_eq!(server.get("/").text(), "b");
    server.reconfigure(&block("retrun 200 c;"));
    server.signal(Signal::HUP);
    let refused = manager.wait_for(
        "STATUS=serving the previous configuration: the new one was rejected",
        reloaded + 1,
    );
    // A reload that is never over would time out.
    assert!(manager.messages.borrow()[refused].contains("READY=1"));
    server.signal(Signal::QUIT);
    manager.wait_for("STOPPING=1", refused + 1);
    assert!(server.ended().success());
}

/// systemd reads nothing while it reads all units again, and its queue is short. The master goes on, and what it had to say
/// arrives later, in its order.
#[test]
fn a_manager_that_does_not_read_stops_nothing() {
    if skip_on_oracle(WHY) {
        return;
    }
    let manager = ServiceManager::new("busy");
    let mut server = start(&manager, &[]);
    // Each reload is two messages, and the kernel's queue has room for a few hundred at most.
    const RELOADS: usize = 300;
    let pass = |server: &mut Server, number: usize| {
        let block = format!(
            "server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 {number}; }} }}"
        );
        server.reconfigure(&block);
        server.signal(Signal::HUP);
        let is_there = || (server.get("/").text() == number.to_string()).then_some(());
        assert!(until(is_there).is_some(), "reload {number}");
    };
    (0..RELOADS).for_each(|number| pass(&mut server, number));
    manager.wait_for("READY=1", 0);
    let is_ready = |text: &String| text.contains("READY=1");
    let all = until(|| {
        manager.wait_for("READY=1", 0);
        let count = manager
            .messages
            .borrow()
            .iter()
            .filter(|text| is_ready(text))
            .count();
        (count > RELOADS).then_some(())
    });
    assert!(all.is_some(), "{:?}", manager.messages.borrow().len());
    server.signal(Signal::QUIT);
    manager.wait_for("STOPPING=1", 0);
    assert!(server.ended().success());
}

/// The unit follows the server into the new binary.
#[test]
fn an_upgrade_moves_the_unit() {
    if skip_on_oracle(WHY) {
        return;
    }
    let manager = ServiceManager::new("upgrade");
    let server = start(&manager, &[]);
    let started = manager.wait_for("READY=1", 0);
    server.signal(Signal::USR2);
    server.line("error.log", " is ready");
    let (old, new) = (server.read("nginx.pid.oldbin"), server.read("nginx.pid"));
    kill(&old, Signal::QUIT);
    let moved = manager.wait_for(&format!("MAINPID={}", new.trim()), started + 1);
    manager.wait_for("READY=1", moved + 1);
    let stopped = |text: &String| text.contains("STOPPING=1");
    assert!(!manager.messages.borrow().iter().any(stopped));
    kill(&new, Signal::QUIT);
    manager.wait_for("STOPPING=1", moved + 1);
    assert!(until(|| (!server.path("nginx.pid").exists()).then_some(())).is_some());
}

#[test]
fn the_watchdog_is_fed() {
    if skip_on_oracle(WHY) {
        return;
    }
    let manager = ServiceManager::new("watchdog");
    // Without WATCHDOG_PID it is meant for any process.
    let _server = start(&manager, &[("WATCHDOG_USEC", "400000")]);
    let first = manager.wait_for("WATCHDOG=1", 0);
    let second = manager.wait_for("WATCHDOG=1", first + 1);
    manager.wait_for("WATCHDOG=1", second + 1);
}

/// As a socket unit passes it: the address finds the `listen` directive, and nobody can bind it meanwhile.
#[test]
fn a_passed_socket_is_used() {
    if skip_on_oracle(WHY) {
        return;
    }
    let manager = ServiceManager::new("activation");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    // One that the configuration had at an earlier start.
    let dropped = TcpListener::bind("127.0.0.1:0").expect("a port");
    let dropped_port = dropped.local_addr().expect("an address").port();
    // Connected before there is a server: the kernel's queue has it.
    let waiting = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let text = format!(
        "daemon off; pid nginx.pid; error_log error.log notice; events {{}} http {{ access_log off; \
         server {{ listen 127.0.0.1:{port}; location / {{ return 200 passed; }} }} }}"
    );
    let folder = std::env::temp_dir().join(format!("weir-test-passed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    std::fs::write(folder.join("nginx.conf"), text).expect("a file");
    let mut child = Command::new("/bin/sh")
        .args([
            "-c",
            "exec 3<&0 4>&1 </dev/null >/dev/null; LISTEN_PID=$$; export LISTEN_PID; exec \"$0\" \"$@\"",
        ])
        .arg(server_path())
        .args(["-c", "nginx.conf", "-p"])
        .arg(format!("{}/", folder.display()))
        .env("LISTEN_FDS", "2")
        .env("LISTEN_FDNAMES", "http:weir tcp")
        .env("NOTIFY_SOCKET", &manager.path)
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::from(OwnedFd::from(dropped)))
        .spawn()
        .expect("a shell");
    manager.wait_for("READY=1", 0);
    let reply = weir_tests::Connection::new(waiting).get("/");
    assert_eq!(reply.text(), "passed");
    // It is in the store, for the next start.
    manager.wait_for(&format!("FDNAME=weir tcp 127.0.0.1+{port}"), 0);
    // The other one leaves the store, which would keep it open.
    let left = manager.wait_for(&format!("FDNAME=weir tcp 127.0.0.1+{dropped_port}"), 0);
    assert!(manager.messages.borrow()[left].contains("FDSTOREREMOVE=1"));
    let refused = std::net::TcpStream::connect(("127.0.0.1", dropped_port));
    assert!(refused.is_err(), "nobody listens there any more");
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, Signal::QUIT).expect("it lives");
    assert!(child.wait().expect("a child").success());
    let _ = std::fs::remove_dir_all(&folder);
}
