//! A server in the background, with a pid file, and the signals of an operator.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use xtask::shell;

use super::clients;
use crate::server::{Folder, children_of};

/// A server to compare.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) binary: PathBuf,
    /// Into how many processes the loops are divided (`worker_groups`); 0: as always.
    pub(crate) groups: u32,
}

/// How it is configured and told things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Weir,
    Nginx,
    Haproxy,
}

/// What a row wants of the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
    /// Worker processes, or loops.
    pub(crate) workers: u32,
    /// More parameters of `listen`.
    pub(crate) listen: &'static str,
    /// More lines of `events`.
    pub(crate) events: &'static str,
}

/// A running server; it and its successors end when this is dropped.
pub(crate) struct Site {
    pub(crate) folder: Folder,
    pub(crate) port: u16,
    kind: Kind,
    groups: u32,
}

impl Site {
    pub(crate) fn start(program: &Program, wish: Wish) -> Result<Site, String> {
        let folder = Folder::new(&format!("connections-{}", program.name))?;
        Site::start_in(folder, program, |site| match site.kind {
            Kind::Haproxy => site.haproxy(wish),
            Kind::Weir | Kind::Nginx => site.nginx(wish),
        })
    }

    /// Starts a server with the configuration that `write` makes. It answers over HTTP/1 at its port.
    pub(crate) fn start_in(
        folder: Folder,
        program: &Program,
        write: impl FnOnce(&Site) -> String,
    ) -> Result<Site, String> {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .map_err(|error| error.to_string())?
            .port();
        let site = Site {
            folder,
            port,
            kind: program.kind,
            groups: program.groups,
        };
        let text = write(&site);
        let file = site.path("server.conf");
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let mut command = Command::new(&program.binary);
        match program.kind {
            Kind::Haproxy => command.args(["-W", "-D", "-f"]).arg(&file),
            Kind::Weir | Kind::Nginx => {
                let prefix = format!("{}/", site.folder.path.display());
                command.args(["-p", &prefix, "-c", "server.conf", "-e", "error.log"])
            }
        };
        let started = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .map_err(|error| format!("{}: {error}", program.binary.display()))?;
        if !started.success() {
            return Err(format!("{} does not start: {started}", program.name));
        }
        let answers =
            wait(|| clients::open(port).is_some_and(|c| clients::request(&c, false, true).is_ok()));
        match answers && wait(|| site.pid().is_some()) {
            true => Ok(site),
            false => Err(format!("{} does not answer", program.name)),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path.join(name)
    }

    fn nginx(&self, wish: Wish) -> String {
        let Wish {
            workers,
            listen,
            events,
        } = wish;
        let user = if shell::is_root() { "user root;" } else { "" };
        let own = match self.kind {
            Kind::Weir => "location = /loops { weir_status json; }",
            Kind::Nginx | Kind::Haproxy => "",
        };
        let groups = match self.groups {
            0 => String::new(),
            count => format!("worker_groups {count};"),
        };
        // Kept connections shall end for no other reason than the one that is measured.
        format!(
            "{user} worker_processes {workers}; {groups} pid server.pid; error_log error.log notice;
             events {{ worker_connections 4096; {events} }}
             http {{
                 access_log off; keepalive_requests 1000000000; keepalive_time 24h; keepalive_timeout 1h;
                 server {{
                     listen 127.0.0.1:{} backlog=4096 {listen};
                     location / {{ return 200 ok; }}
                     {own}
                     include block*.conf;
                 }}
             }}",
            self.port
        )
    }

    fn haproxy(&self, wish: Wish) -> String {
        let pid = self.path("server.pid");
        format!(
            "global\n  nbthread {}\n  pidfile {}\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n  \
             timeout http-keep-alive 1h\n\
             frontend f\n  bind 127.0.0.1:{} backlog 4096\n  \
             http-request return status 200 content-type text/plain string ok\n",
            wish.workers,
            pid.display(),
            self.port
        )
    }

    /// The master's number.
    pub(crate) fn pid(&self) -> Option<u32> {
        pid_in(&self.path("server.pid"))
    }

    /// The processes that serve.
    pub(crate) fn workers(&self) -> Vec<u32> {
        self.pid().map(children_of).unwrap_or_default()
    }

    /// Reads the configuration again. Returns when the command does.
    pub(crate) fn reload(&self) {
        let signal = if self.kind == Kind::Haproxy {
            "USR2"
        } else {
            "HUP"
        };
        if let Some(pid) = self.pid() {
            kill(signal, pid);
        }
    }

    /// Replaces the binary by nginx's procedure. An error says which step did not come.
    pub(crate) fn upgrade(&self) -> Result<(), String> {
        let old = self.begin_upgrade()?;
        self.end_upgrade(old)
    }

    /// The same up to the order to the old binary to end, once its requests have: its number.
    pub(crate) fn begin_upgrade(&self) -> Result<u32, String> {
        let old = self.pid().ok_or("no pid file")?;
        kill("USR2", old);
        let moved = self.path("server.pid.oldbin");
        if !wait(|| moved.exists() && self.pid().is_some_and(|pid| pid != old)) {
            return Err("the new binary does not start".to_owned());
        }
        // As an operator would look: are there workers of the new one?
        if !wait(|| !self.workers().is_empty()) {
            return Err("the new binary has no worker".to_owned());
        }
        std::thread::sleep(Duration::from_millis(200));
        kill("QUIT", old);
        Ok(old)
    }

    /// Waits for the end of the old binary.
    pub(crate) fn end_upgrade(&self, old: u32) -> Result<(), String> {
        match wait(|| !Path::new(&format!("/proc/{old}")).exists()) {
            true => Ok(()),
            false => Err("the old binary does not end".to_owned()),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for file in ["server.pid", "server.pid.oldbin"] {
            if let Some(pid) = pid_in(&self.path(file)) {
                kill("TERM", pid);
                wait(|| !Path::new(&format!("/proc/{pid}")).exists());
            }
        }
    }
}

fn pid_in(file: &Path) -> Option<u32> {
    let text = fs::read_to_string(file).ok()?;
    // HAProxy writes its worker too.
    text.split_whitespace().next()?.parse().ok()
}

/// Sends a signal; a process that has ended needs none.
pub(crate) fn kill(signal: &str, process: u32) {
    let _ = Command::new("kill")
        .args([&format!("-{signal}"), &process.to_string()])
        .stderr(Stdio::null())
        .status();
}

/// Asks for ten seconds.
pub(crate) fn wait(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}
