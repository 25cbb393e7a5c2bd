//! A running server: start, talk, signal, read its logs, stop, and judge how it went.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{Pid, kill_process, kill_process_group};

pub use rustix::process::Signal;

use crate::binary;
use crate::client::Connection;
use crate::reply::Reply;
use crate::site::Site;
use crate::wait::until;

/// What a line says of something that the sandbox has denied: a test in which that is right says so with
/// [`Site::tolerate`].
const DENIED: &str = "is denied by worker_sandbox";

/// A server in the foreground, in a process group of its own, stopped when this is dropped.
///
/// Dropping it asks for a graceful stop and fails the test when the exit code is not 0, or when
/// the error log has a line of level alert or emerg, or tells of a panic.
#[derive(Debug)]
pub struct Server {
    site: Site,
    child: Child,
    stopped: bool,
    /// False for `weir serve`, which writes no pid file.
    has_pid_file: bool,
}

impl Server {
    /// Starts on the site's configuration, and waits for the pid file.
    pub(crate) fn start(site: Site) -> Self {
        let arguments = site.arguments();
        let mut server = Self::spawn(site, &arguments);
        server.await_readiness();
        crate::explained::visit(&server);
        server
    }

    /// Starts with arguments that name no configuration, and waits until `%%PORT%%` accepts.
    pub(crate) fn start_without_configuration(site: Site, arguments: &[String]) -> Self {
        let mut server = Self::spawn(site, arguments);
        server.has_pid_file = false;
        if until(|| (!server.refuses()).then_some(())).is_none() {
            let said = server.read("stderr");
            server.kill();
            panic!("the server does not listen\n{said}");
        }
        server
    }

    fn spawn(site: Site, arguments: &[String]) -> Self {
        let output = |name| File::create(site.path(name)).expect("the site's folder is writable");
        let child = site
            .command()
            .args(arguments)
            .envs(site.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(site.folder_path())
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .process_group(0)
            .spawn()
            .expect("the server binary can be executed");
        Self {
            site,
            child,
            stopped: false,
            has_pid_file: true,
        }
    }

    /// The pid file appears only when every listening socket accepts, so it is the one event to
    /// wait for.
    fn await_readiness(&mut self) {
        let pid_file = self.site.path("nginx.pid");
        let ended = until(|| match self.child.try_wait() {
            Ok(Some(status)) => Some(Some(status)),
            _ => fs::read_to_string(&pid_file)
                .is_ok_and(|text| text.ends_with('\n'))
                .then_some(None),
        });
        let problem = match ended {
            Some(None) => return self.await_master(),
            Some(Some(status)) => format!("the server ended at once: {status}"),
            None => "the server wrote no pid file in time".to_owned(),
        };
        let said = self.read("stderr");
        self.kill();
        panic!("{problem}\n{said}");
    }

    /// A signal that reaches nginx's master after the pid file and before its first wait is
    /// noted and then slept over, so on nginx one more event is waited for.
    fn await_master(&self) {
        let alone = self.read("nginx.conf").contains("master_process off");
        if binary::is_oracle() && !alone {
            self.line("error.log", "start worker process ");
        }
    }

    /// The port of `%%PORTn%%`; 0 is `%%PORT%%`.
    pub fn port(&self, index: usize) -> u16 {
        self.site.port(index)
    }

    /// Opens a connection to `%%PORT%%`.
    pub fn connect(&self) -> Connection {
        self.connect_to(0)
    }

    /// Opens a connection to `%%PORTn%%`.
    pub fn connect_to(&self, index: usize) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port(index)))
            .expect("the server accepts connections");
        Connection::new(stream)
    }

    /// True when nobody listens at `%%PORT%%` any more.
    pub fn refuses(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port(0))).is_err()
    }

    /// One `GET` on a connection of its own, with `Host: localhost`.
    pub fn get(&self, target: &str) -> Reply {
        self.request("GET", target, &[])
    }

    /// One `GET` with more header lines, each `Name: value`.
    pub fn get_with(&self, target: &str, lines: &[&str]) -> Reply {
        self.request("GET", target, lines)
    }

    /// One request on a connection of its own, with more header lines.
    pub fn request(&self, method: &str, target: &str, lines: &[&str]) -> Reply {
        let mut connection = self.connect();
        connection.request(method, target, lines);
        connection.reply_to(method)
    }

    /// Sends these bytes as they are on a connection of its own and reads one answer.
    pub fn raw(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut connection = self.connect();
        connection.send(bytes);
        connection.reply()
    }

    /// As [`Server::raw`]; `None` when the server closes without an answer.
    pub fn raw_or_closed(&self, bytes: impl AsRef<[u8]>) -> Option<Reply> {
        let mut connection = self.connect();
        connection.send(bytes);
        connection.reply_or_closed()
    }

    /// Asks for each target and compares the status and, by the status, the body or (for a
    /// redirect) the `Location`. The body of an error page is compared only when one is given.
    /// All rows are asked before the test fails, so that one run shows every difference.
    #[track_caller]
    pub fn answers(&self, rows: &[(&str, u16, &str)]) {
        let mut wrong = Vec::new();
        for &(target, status, expected) in rows {
            let reply = self.get(target);
            let shown = match reply.status {
                301..=308 if reply.status != 304 => reply.field("Location").to_owned(),
                400.. if expected.is_empty() => String::new(),
                _ => reply.text(),
            };
            if reply.status != status || shown != expected {
                wrong.push(format!(
                    "{target}: expected {status} {expected:?}, got {} {shown:?}",
                    reply.status
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Where a file of the site lies on the disk.
    pub fn path(&self, path: &str) -> std::path::PathBuf {
        self.site.path(path)
    }

    /// The content of a file of the site, or nothing when it is not there.
    pub fn read(&self, path: &str) -> String {
        fs::read(self.site.path(path))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Waits for a line with this text in a file, and returns the line.
    pub fn line(&self, path: &str, text: &str) -> String {
        let found = until(|| {
            self.read(path)
                .lines()
                .find(|line| line.contains(text))
                .map(str::to_owned)
        });
        found.unwrap_or_else(|| {
            panic!(
                "no line of {path} has {text:?}; it has:\n{}",
                self.read(path)
            )
        })
    }

    /// Waits until a file has this many lines, and returns them.
    pub fn lines(&self, path: &str, count: usize) -> Vec<String> {
        let enough = until(|| {
            let text = self.read(path);
            (text.ends_with('\n') && text.lines().count() >= count).then_some(text)
        });
        let text = enough
            .unwrap_or_else(|| panic!("{path} has not {count} lines but:\n{}", self.read(path)));
        text.lines().map(str::to_owned).collect()
    }

    /// The process id in the pid file, or of the process that was started when there is none.
    pub fn pid(&self) -> Pid {
        self.known_pid()
            .unwrap_or_else(|| panic!("the pid file has {:?}", self.read("nginx.pid")))
    }

    fn known_pid(&self) -> Option<Pid> {
        if !self.has_pid_file {
            return i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        }
        let text = self.read("nginx.pid");
        text.trim().parse().ok().and_then(Pid::from_raw)
    }

    /// Sends a signal to the process in the pid file.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process in the pid file lives");
    }

    /// Replaces the text of the `http` block on the disk; nothing is signalled.
    pub fn reconfigure(&mut self, block: &str) {
        self.site.set_configuration(block);
        self.site.write(true);
    }

    /// Waits for the end of the process.
    pub fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let status = until(|| child.try_wait().expect("we may wait for our own child"));
        self.stopped = status.is_some();
        status.unwrap_or_else(|| panic!("the server does not end"))
    }

    /// Stops gracefully, and checks the exit code and the error log.
    pub fn stop(mut self) {
        self.stop_and_judge();
    }

    fn stop_and_judge(&mut self) {
        if !self.stopped {
            // A test that has stopped the server may come here while it is ending: without its file,
            // or already without the process.
            if let Some(pid) = self.known_pid() {
                let _ = kill_process(pid, Signal::QUIT);
            }
            let status = self.ended();
            assert!(
                status.success(),
                "the server ended with {status}\n{}",
                self.read("stderr")
            );
        }
        let log = self.read("error.log") + &self.read("stderr");
        let bad = log.lines().filter(|line| {
            let marks = ["[alert]", "[emerg]", "panicked at", DENIED];
            let marked = marks.iter().any(|mark| line.contains(mark));
            marked && !self.site.tolerated.iter().any(|text| line.contains(text))
        });
        let bad: Vec<&str> = bad.collect();
        assert!(bad.is_empty(), "the error log has:\n{}", bad.join("\n"));
    }

    /// Ends the whole process group at once: workers would live on without their master.
    fn kill(&mut self) {
        if let Some(group) = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
        self.stopped = true;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.read("error.log");
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            eprintln!(
                "--- the end of error.log in {}",
                self.site.folder_path().display()
            );
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
            self.kill();
            return;
        }
        let judged =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.stop_and_judge()));
        if let Err(problem) = judged {
            if !self.stopped {
                self.kill();
            }
            std::panic::resume_unwind(problem);
        }
    }
}
