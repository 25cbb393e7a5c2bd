//! A server as a process: its version, the test of a configuration, start and end.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use weir_tests::until;

use crate::version::Version;

/// The binary of a side.
#[derive(Clone, Debug)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// The version of nginx that it is, or says to follow.
    pub version: Version,
    /// The module that `stream` is in where it is not built in, as in Debian's package.
    pub stream: Option<PathBuf>,
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the server said, without the place.
    pub message: String,
    /// The line of the configuration, where it was named; later, of the case's part of it.
    pub line: Option<usize>,
    /// What else it said of the same case: Weir tells all errors, and orders them in its own way.
    pub others: Vec<String>,
}

impl Refusal {
    /// The same with the line counted among those of its case, which `lines` tells of each.
    pub fn within(mut self, lines: &[Option<usize>]) -> Self {
        self.line = self.line.and_then(|line| {
            let before = lines.get(..line)?;
            let owner = (*before.last()?)?;
            Some(before.iter().filter(|of| **of == Some(owner)).count())
        });
        self
    }
}

/// How long a test of a configuration or a stop may take.
const LIMIT: Duration = Duration::from_secs(60);

impl Program {
    /// Finds out the version of a binary.
    pub fn new(path: &Path) -> Result<Program, String> {
        let path =
            fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut program = Program {
            path,
            version: Version(0, 0, 0),
            stream: None,
        };
        let output = program
            .command()
            .arg("-V")
            .output()
            .map_err(|error| format!("{}: {error}", program.path.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        program.version = Version::find(&said)
            .ok_or_else(|| format!("{} -V says no version: {said}", program.path.display()))?;
        let option = |name: &str| {
            let mut words = said.split_whitespace();
            words.find_map(|word| word.strip_prefix(name))
        };
        if option("--with-stream=dynamic").is_some() {
            let folder = option("--modules-path=").unwrap_or("/usr/lib/nginx/modules");
            let module = Path::new(folder).join("ngx_stream_module.so");
            program.stream = module.exists().then_some(module);
        }
        Ok(program)
    }

    /// Weir takes the name nginx, and with it nginx's texts, so that lengths are equal.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.arg0("nginx");
        command
    }

    fn prepared(&self, folder: &Path) -> Command {
        let mut command = self.command();
        command
            .arg("-p")
            .arg(format!("{}/", folder.display()))
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .current_dir(folder)
            .stdin(Stdio::null());
        command
    }

    /// Tests the configuration in a folder: what is wrong with it, as far as the server tells at once.
    pub fn test(&self, folder: &Path) -> Result<Vec<Refusal>, String> {
        let said = folder.join("test");
        let output = File::create(&said).map_err(|error| error.to_string())?;
        let mut child = self
            .prepared(folder)
            .arg("-t")
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(|error| format!("{}: {error}", self.path.display()))?;
        let accepted = ended(&mut child).ok_or("the test of a configuration does not end")?;
        let text = fs::read(&said).map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&text);
        let refusals: Vec<Refusal> = text.lines().filter_map(refusal).collect();
        match (accepted, refusals.is_empty()) {
            (true, _) => Ok(Vec::new()),
            (false, false) => Ok(refusals),
            (false, true) => Ok(vec![Refusal {
                message: format!("refused without a word: {}", text.trim()),
                line: None,
                others: Vec::new(),
            }]),
        }
    }

    /// Starts on the configuration in a folder and waits until it serves. The inner error is what was refused.
    pub fn start(&self, folder: &Path) -> Result<Result<Running, Vec<Refusal>>, String> {
        // One that was refused before may have left it.
        let _ = fs::remove_file(folder.join("nginx.pid"));
        let output =
            |name: &str| File::create(folder.join(name)).map_err(|error| error.to_string());
        let child = followed(&self.prepared(folder))?
            .stdout(output("stdout")?)
            .stderr(output("stderr")?)
            .spawn()
            .map_err(|error| format!("{}: {error}", self.path.display()))?;
        let mut running = Running { child };
        let pid_file = folder.join("nginx.pid");
        let ended = until(|| match running.child.try_wait() {
            Ok(Some(status)) => Some(Some(status)),
            _ => fs::read_to_string(&pid_file)
                .is_ok_and(|text| text.ends_with('\n'))
                .then_some(None),
        });
        match ended {
            Some(None) => Ok(Ok(running)),
            Some(Some(status)) => {
                let said = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
                let refusals: Vec<Refusal> = said.lines().filter_map(refusal).collect();
                match refusals.is_empty() {
                    true => Err(format!("{}: {status}: {said}", self.path.display())),
                    false => Ok(Err(refusals)),
                }
            }
            None => Err(format!("{} does not start", self.path.display())),
        }
    }
}

/// The first word of the command line that [`follow`] reads.
pub const FOLLOW: &str = "--follow";

/// The same command, run by this program, which has it end when the machine ends, also where nobody can tell it so.
fn followed(command: &Command) -> Result<Command, String> {
    let itself = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut followed = Command::new(itself);
    followed
        .args([FOLLOW, &std::process::id().to_string()])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null())
        .process_group(0);
    if let Some(folder) = command.get_current_dir() {
        followed.current_dir(folder);
    }
    Ok(followed)
}

/// Becomes the server that the command line names, after it has asked the kernel for SIGTERM when the machine ends. Not for
/// SIGKILL: then the workers of nginx would stay. Returns only when that fails.
///
/// The kernel means the thread that started us, so a server is started and stopped by the same one.
pub fn follow(machine: &str, program: &str, arguments: &[String]) -> String {
    let asked = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    match (asked, parent) {
        (Ok(()), Some(parent)) if parent == machine => {}
        (Err(error), _) => return error.to_string(),
        _ => return "the machine has ended".to_owned(),
    }
    let mut command = Command::new(program);
    command.arg0("nginx").args(arguments).exec().to_string()
}

/// A server that serves; it is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
}

impl Running {
    /// Asks it to end gracefully, so that its logs are complete; false when it did not, or not well.
    pub fn stop(mut self) -> bool {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::QUIT);
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        wait(&mut self.child, deadline).unwrap_or(false)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn ended(child: &mut Child) -> Option<bool> {
    let status = wait(child, Instant::now() + LIMIT);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    status
}

fn wait(child: &mut Child, deadline: Instant) -> Option<bool> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            _ => return None,
        }
    }
}

/// A line such as `nginx: [emerg] unknown directive "a" in /path/nginx.conf:3`.
fn refusal(line: &str) -> Option<Refusal> {
    let message = line.strip_prefix("nginx: [emerg] ")?;
    let place = message
        .rfind(" in /")
        .or_else(|| message.rfind(" in nginx.conf"));
    let number = message
        .rsplit_once("nginx.conf:")
        .and_then(|(_, number)| number.trim().parse().ok());
    Some(match (place, number) {
        (Some(place), Some(number)) => Refusal {
            message: message[..place].to_owned(),
            line: Some(number),
            others: Vec::new(),
        },
        _ => Refusal {
            message: message.to_owned(),
            line: None,
            others: Vec::new(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_an_error_is_its_line() {
        let found = refusal("nginx: [emerg] unknown directive \"a\" in /x/nginx.conf:12");
        let found = found.expect("it is an error");
        assert_eq!(found.line, Some(12));
        assert_eq!(found.message, "unknown directive \"a\"");
        let found = refusal("nginx: [emerg] unknown \"x\" variable").expect("it is an error");
        assert_eq!(found.line, None);
        assert_eq!(refusal("nginx: [warn] x in /x/nginx.conf:1"), None);
    }
}
