//! The stage of a case: a folder, ports, processes. All of it is gone when it is dropped.

use std::cell::Cell;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xtask::{Outcome, shell};

use crate::needs;

/// How long an application may take until it listens.
const START: Duration = Duration::from_secs(60);

/// How long a process may take to end before it is killed.
const END: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(20);

/// What the configuration of a case begins with.
const PRELUDE: &str = "\
daemon off;
user %%USER%%;
worker_processes 1;
pid %%DIR%%/server.pid;
error_log %%DIR%%/error.log info;
";

/// Where Debian's package puts it.
const STREAM: &str = "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n";

/// A server that stands between.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) binary: PathBuf,
    /// What stands before everything else in its configurations.
    modules: &'static str,
}

impl Server {
    pub(crate) fn new(name: &'static str, binary: &Path) -> Result<Server, String> {
        if !binary.is_file() {
            return Err(format!("{}: there is no such file", binary.display()));
        }
        let binary = std::path::absolute(binary).map_err(|error| error.to_string())?;
        // Debian's nginx has it as a module of its own.
        let built = Command::new(&binary).arg("-V").output();
        let text = built.map_or_else(|_| Vec::new(), |built| built.stderr);
        let is_apart = String::from_utf8_lossy(&text).contains("--with-stream=dynamic");
        Ok(Server {
            name,
            binary,
            modules: if is_apart { STREAM } else { "" },
        })
    }
}

/// A place for a case.
pub(crate) struct Stage {
    pub(crate) folder: PathBuf,
    ports: Vec<(&'static str, u16)>,
    user: String,
    /// In the order in which they were started, each in a group of its own.
    processes: Vec<Child>,
    server: Option<Child>,
    keep: bool,
}

thread_local! {
    /// Where to look for the next port: a little apart, so that one that was just closed is not met again.
    static NEXT: Cell<u16> = const { Cell::new(0) };
}

/// A port on loopback that is free, for TCP and for UDP.
fn free_port() -> Result<u16, String> {
    let first = 20_000 + (std::process::id() % 20_000) as u16;
    for _ in 0..1000 {
        let port = first + NEXT.get();
        NEXT.set(NEXT.get() + 1);
        let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok()
            && std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if is_free {
            return Ok(port);
        }
    }
    Err("there is no free port".to_owned())
}

impl Stage {
    /// A new one, empty.
    pub(crate) fn set(case: &str, server: &str, keep: bool) -> Result<Stage, String> {
        // Paths of sockets have 108 bytes at most, so it is not below the target folder.
        let name = format!("weir-suites-{}-{case}-{server}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut ports = Vec::new();
        for name in ["%%PORT%%", "%%PORT2%%", "%%APP%%", "%%APP2%%"] {
            ports.push((name, free_port()?));
        }
        let user = shell::output(Command::new("id").arg("-un"), START)?;
        Ok(Stage {
            folder,
            ports,
            user: user.trim().to_owned(),
            processes: Vec::new(),
            server: None,
            keep,
        })
    }

    /// The text with all that is known filled in.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, port) in &self.ports {
            text = text.replace(name, &port.to_string());
        }
        let path = |path: PathBuf| path.display().to_string();
        text.replace("%%DIR%%", &path(self.folder.clone()))
            .replace("%%USER%%", &self.user)
            .replace("%%PYTHON%%", &path(needs::python()))
            .replace("%%SITE%%", &path(needs::site_packages()))
            .replace("%%NODE%%", &path(needs::node_modules()))
            .replace("%%GO%%", &path(needs::go("")))
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, content: &str) -> Outcome {
        let path = self.folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| error.to_string())?;
        }
        fs::write(&path, self.fill(content)).map_err(|error| format!("{name}: {error}"))
    }

    /// A file's text; empty if there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.folder.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A line of the shell, in the folder.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", &self.fill(line)])
            .current_dir(&self.folder)
            .env("NODE_PATH", needs::node_modules())
            .env("HOME", &self.folder)
            .env("LC_ALL", "C.UTF-8")
            .process_group(0);
        command
    }

    /// Runs a command to its end and gives what it says.
    pub(crate) fn output(&self, line: &str, limit: Duration) -> Result<String, String> {
        let log = self.folder.join("prepare.log");
        let mut command = self.command(&format!("{{ {line} ; }} 2>>{}", log.display()));
        shell::output(&mut command, limit).map_err(|why| {
            format!(
                "{}: {}",
                last_lines(&why),
                last_lines(&self.read("prepare.log"))
            )
        })
    }

    /// Starts a command that goes on, and waits until it listens: at a port, or at a socket.
    pub(crate) fn start(&mut self, line: &str, place: &str) -> Outcome {
        let log = format!("application-{}.log", self.processes.len());
        let file = fs::File::create(self.folder.join(&log)).map_err(|error| error.to_string())?;
        let errors = file.try_clone().map_err(|error| error.to_string())?;
        let child = self
            .command(&format!("exec {line}"))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn();
        self.processes
            .push(child.map_err(|error| format!("{line}: {error}"))?);
        let place = self.fill(place);
        let deadline = Instant::now() + START;
        loop {
            let listens = match place.parse::<u16>() {
                Ok(port) => TcpStream::connect(("127.0.0.1", port)).is_ok(),
                Err(_) => UnixStream::connect(self.folder.join(&place)).is_ok(),
            };
            if listens {
                return Ok(());
            }
            let ended = self.processes.last_mut().map(Child::try_wait);
            if matches!(ended, Some(Ok(Some(_)))) || Instant::now() > deadline {
                let said = last_lines(&self.read(&log));
                return Err(format!("{line}: does not listen at {place}: {said}"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts the server and waits until it listens.
    pub(crate) fn serve(&mut self, server: &Server, configuration: &str) -> Outcome {
        self.write(
            "server.conf",
            &format!(
                "{}{PRELUDE}{configuration}",
                if configuration.contains("stream {") {
                    server.modules
                } else {
                    ""
                }
            ),
        )?;
        let log = fs::File::create(self.folder.join("server.log"));
        let log = log.map_err(|error| error.to_string())?;
        let mut command = Command::new(&server.binary);
        command
            .arg("-p")
            .arg(&self.folder)
            .args(["-c", "server.conf"])
            .arg("-e")
            .arg(self.folder.join("error.log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        let child = command.spawn().map_err(|error| error.to_string())?;
        self.server = Some(child);
        let port = self.ports.first().map_or(0, |(_, port)| *port);
        let deadline = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = self.server.as_mut().map(Child::try_wait);
            if matches!(ended, Some(Ok(Some(_)))) || Instant::now() > deadline {
                let said = last_lines(&self.read("server.log"));
                return Err(format!("{} does not start: {said}", server.name));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// What a client says; its exit code, if that is not 0, is a line, too.
    pub(crate) fn client(&self, line: &str, limit: Duration) -> Result<Vec<String>, String> {
        let log = self.folder.join("client.log");
        let line = format!("{{ {line} ; }} 2>{}; echo \"exit code $?\"", log.display());
        let said = shell::output(&mut self.command(&line), limit)?;
        let mut seen: Vec<String> = said.lines().map(|line| self.plain(line)).collect();
        if seen.last().is_some_and(|line| line == "exit code 0") {
            seen.pop();
        } else {
            let errors = self.read("client.log");
            seen.extend(errors.lines().rev().take(3).map(|line| self.plain(line)));
        }
        Ok(seen)
    }

    /// A line without what differs from run to run.
    pub(crate) fn plain(&self, line: &str) -> String {
        let mut line = line.replace(&self.folder.display().to_string(), "DIR");
        for (name, port) in &self.ports {
            line = line.replace(&port.to_string(), name.trim_matches('%'));
        }
        line
    }

    /// Ends the server gracefully; what it must not have said is an error.
    pub(crate) fn end(&mut self) -> Outcome {
        if let Some(mut server) = self.server.take() {
            signal("QUIT", &server.id().to_string());
            ended(&mut server);
        }
        let log = self.read("error.log");
        let bad = ["[alert]", "[emerg]", "panicked"];
        let is_bad = |line: &&str| bad.iter().any(|word| line.contains(word));
        match log.lines().find(is_bad) {
            Some(line) => Err(format!("the error log says: {line}")),
            None => Ok(()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for mut child in self
            .server
            .take()
            .into_iter()
            .chain(self.processes.drain(..).rev())
        {
            // Some have processes of their own.
            let group = format!("-{}", child.id());
            signal("TERM", &group);
            ended(&mut child);
            signal("KILL", &group);
        }
        if !self.keep {
            // Nothing to be done about a folder that cannot be removed.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Sends a signal to a process, or to a group of them. One that has ended already does not mind.
fn signal(name: &str, target: &str) {
    let mut kill = Command::new("kill");
    let _ = kill
        .args(["-s", name, "--", target])
        .stderr(Stdio::null())
        .status();
}

/// Waits until a process has ended, and ends it if that takes too long.
fn ended(child: &mut Child) {
    let deadline = Instant::now() + END;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            // It may end by itself between the two calls.
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The end of a text, on one line.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}
