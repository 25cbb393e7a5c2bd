//! One configuration on one server: whether it is accepted, and what it answers.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustls::ClientConfig;

use crate::behind::Behind;
use crate::client::Client;
use crate::compare::Observation;
use crate::requests::Request;

/// A server: its binary, and what its command line has in front of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
    /// Text of `-g`.
    pub(crate) globals: String,
}

/// A start, or an end, takes no longer.
const PATIENCE: Duration = Duration::from_secs(15);

impl Binary {
    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(folder.join("nginx.conf"));
        if !self.globals.is_empty() {
            command.arg("-g").arg(&self.globals);
        }
        command.stdin(Stdio::null()).current_dir(folder);
        command
    }

    /// What `-t` says: nothing when it accepts.
    pub(crate) fn refusal(&self, folder: &Path) -> Option<String> {
        let output = self.command(folder).arg("-t").output();
        let output = match output {
            Ok(output) => output,
            Err(error) => return Some(error.to_string()),
        };
        if output.status.success() {
            return None;
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = said
            .lines()
            .find(|line| line.contains("[emerg]") || line.contains("error"));
        Some(line.unwrap_or(said.trim()).to_owned())
    }

    /// The answers to all requests; `Err` when the server does not start.
    pub(crate) fn answers(
        &self,
        folder: &Path,
        requests: &[Request],
        behind: &Behind,
        tls: &Arc<ClientConfig>,
    ) -> Result<Vec<Observation>, String> {
        let mut running = Running::start(self, folder)?;
        let mut client = Client::new(Arc::clone(tls));
        let mut observations = Vec::with_capacity(requests.len());
        let take = || {
            behind
                .seen
                .lock()
                .map(|mut seen| std::mem::take(&mut *seen))
                .unwrap_or_default()
        };
        // What is mirrored comes when it comes, and nobody waits for it but us.
        let is_mirrored = fs::read_to_string(folder.join("nginx.conf"))
            .is_ok_and(|text| text.contains("mirror "));
        let mut silent = 0;
        for request in requests {
            take();
            let answer = client.ask(request);
            if is_mirrored {
                settle(behind);
            }
            // A configuration that never answers takes its time, but not the whole day.
            silent += usize::from(answer.body == b"no answer in time");
            if silent > 2 {
                break;
            }
            observations.push(Observation {
                answer,
                seen: take(),
            });
        }
        drop(client);
        running.stop();
        Ok(observations)
    }
}

/// Waits until the server behind has seen nothing new for a while.
fn settle(behind: &Behind) {
    let count = || behind.seen.lock().map_or(0, |seen| seen.len());
    let mut last = count();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        match count() {
            now if now == last => return,
            now => last = now,
        }
    }
}

struct Running {
    child: Child,
}

impl Running {
    fn start(binary: &Binary, folder: &Path) -> Result<Running, String> {
        let log = fs::File::create(folder.join("stderr")).map_err(|error| error.to_string())?;
        let child = binary
            .command(folder)
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut running = Running { child };
        let pid_file = folder.join("nginx.pid");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n')) {
                // nginx's master may sleep over a signal that comes before its first wait.
                std::thread::sleep(Duration::from_millis(20));
                return Ok(running);
            }
            let ended = running
                .child
                .try_wait()
                .map_err(|error| error.to_string())?;
            if ended.is_some() || Instant::now() > deadline {
                running.stop();
                let said = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
                return Err(said
                    .lines()
                    .find(|line| line.contains("[emerg]"))
                    .unwrap_or("it does not start")
                    .to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(&mut self) {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a server knows a directive's name.
pub(crate) fn knows(binary: &Binary, folder: &Path, name: &str) -> bool {
    let plain = |char: char| char.is_ascii_alphanumeric() || char == '_';
    if name.is_empty() || !name.chars().all(plain) {
        return true;
    }
    let text = format!("events {{}}\nhttp {{ {name}; }}\n");
    if fs::write(folder.join("nginx.conf"), text).is_err() {
        return true;
    }
    let said = binary.command(folder).arg("-t").output();
    said.is_ok_and(|output| !String::from_utf8_lossy(&output.stderr).contains("unknown directive"))
}
