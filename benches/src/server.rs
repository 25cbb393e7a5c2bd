//! A server under measurement, on loopback, started and stopped by us, and its CPU time read from the kernel: Weir or
//! nginx with the same configuration, or a peer with one of its own.

use std::ffi::OsStr;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xtask::shell;

/// A binary with what makes its configuration differ from the others'.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contender {
    /// The name in the tables.
    pub(crate) name: String,
    pub(crate) binary: PathBuf,
    /// Directives of the `http` block.
    pub(crate) directives: String,
}

impl Contender {
    pub(crate) fn new(name: &str, binary: &Path, directives: &str) -> Self {
        Self {
            name: name.to_owned(),
            binary: binary.to_owned(),
            directives: directives.to_owned(),
        }
    }
}

/// The names of contenders, for a table.
pub(crate) fn names(contenders: &[Contender]) -> Vec<String> {
    contenders.iter().map(|one| one.name.clone()).collect()
}

/// A folder below the target folder that is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
}

impl Folder {
    pub(crate) fn new(task: &str) -> Result<Self, String> {
        let path = crate::scratch().join(format!("{task}-{}", std::process::id()));
        fs::create_dir_all(path.join("html"))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let path = path.canonicalize().map_err(|error| error.to_string())?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing to be done about a folder that cannot be removed; it lies in the target folder.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// How a server is started.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// The CPUs for all its threads, as `taskset` takes them.
    pub(crate) cpus: Option<String>,
    /// Control group folders to enter before the start.
    pub(crate) groups: Vec<PathBuf>,
}

/// A running server, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts the contender on `configuration`, in which `%%PORT%%` and `%%DIRECTIVES%%` are
    /// filled in, and waits until it accepts.
    pub(crate) fn start(
        contender: &Contender,
        folder: &Path,
        configuration: &str,
        placement: &Placement,
    ) -> Result<Self, String> {
        let port = free_port()?;
        let text = configuration
            .replace("%%PORT%%", &port.to_string())
            .replace("%%DIRECTIVES%%", &contender.directives);
        let user = if shell::is_root() { "user root;\n" } else { "" };
        let text = format!("daemon off;\npid server.pid;\nerror_log error.log warn;\n{user}{text}");
        fs::write(folder.join("nginx.conf"), text).map_err(|error| error.to_string())?;

        // A shell enters the groups and then becomes the server, so that all its memory and
        // reads are accounted from the first one on.
        let mut script = String::new();
        for group in &placement.groups {
            script.push_str(&format!("echo $$ > {}/cgroup.procs && ", group.display()));
        }
        script.push_str("exec ");
        if let Some(cpus) = &placement.cpus {
            script.push_str(&format!("taskset -c {cpus} "));
        }
        script.push_str(&format!(
            "{} -p {}/ -c nginx.conf -e error.log",
            contender.binary.display(),
            folder.display()
        ));
        // What it warns of would stand between the figures; it is wanted only if the server does not start.
        let said = folder.join("stderr");
        let errors = fs::File::create(&said).map_err(|error| error.to_string())?;
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stderr(errors);
        Self::spawn(&contender.name, &mut command, port).map_err(|why| {
            let said = fs::read_to_string(&said).unwrap_or_default();
            format!("{why}\n{said}").trim_end().to_owned()
        })
    }

    /// Starts a peer that reads no nginx.conf: `command` with `arguments` on these cores, and waits until it accepts at
    /// `port`.
    pub(crate) fn peer(
        command: &Path,
        arguments: &[&OsStr],
        cpus: Option<&str>,
        port: u16,
    ) -> Result<Self, String> {
        let mut program = match cpus {
            None => Command::new(command),
            Some(cpus) => {
                let mut program = Command::new("taskset");
                program.args(["-c", cpus]).arg(command);
                program
            }
        };
        program
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self::spawn(&command.to_string_lossy(), &mut program, port)
    }

    fn spawn(name: &str, command: &mut Command, port: u16) -> Result<Self, String> {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        let mut server = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("{name} ended at once: {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("{name} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// The processes that serve: the master's children, or the one process there is.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let children = children_of(self.child.id());
        if children.is_empty() {
            vec![self.child.id()]
        } else {
            children
        }
    }

    /// Ends it as a crash of the machine would, the master first, so that it starts no other worker.
    pub(crate) fn kill(self) {
        self.signal("KILL");
    }

    /// Sends a signal to all its processes.
    pub(crate) fn signal(&self, signal: &str) {
        let workers = children_of(self.child.id());
        for pid in std::iter::once(self.child.id()).chain(workers) {
            // One that has gone needs no signal.
            let _ = Command::new("kill")
                .args([&format!("-{signal}"), &pid.to_string()])
                .status();
        }
    }

    /// The CPU time that all threads of the server and of the processes that it started have used.
    pub(crate) fn cpu_time(&self) -> Duration {
        let own = self.child.id();
        let all = children_of(own).into_iter().chain([own]);
        all.map(cpu_time).sum()
    }

    /// What it has used so far.
    pub(crate) fn used_time(&self) -> UsedTime {
        let own = self.child.id();
        let all = children_of(own).into_iter().chain([own]);
        let ticks = all.filter_map(|pid| stat_field(pid, 14)).sum::<u64>();
        UsedTime {
            cpu: self.cpu_time(),
            user: Duration::from_millis(ticks * 10),
        }
    }

    /// The largest memory that its processes ever had, in megabytes.
    pub(crate) fn peak_mb(&self) -> u64 {
        let of = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.trim().trim_end_matches(" kB").parse::<u64>().ok()
        };
        self.workers().iter().filter_map(of).sum::<u64>() / 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // TERM, so that a master takes its workers along.
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let deadline = Instant::now() + Duration::from_secs(20);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                children_of(self.child.id()).iter().for_each(|pid| {
                    let _ = Command::new("kill")
                        .args(["-KILL", &pid.to_string()])
                        .status();
                });
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A port that nobody listens at now.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener
        .local_addr()
        .map(|address| address.port())
        .map_err(|error| error.to_string())
}

/// The field of `/proc/PID/stat` with this number, counted from 1 as in proc(5).
fn stat_field(pid: u32, number: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may have spaces.
    let rest = text.rsplit_once(')')?.1;
    rest.split_whitespace().nth(number - 3)?.parse().ok()
}

/// The processes that a process has started.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| stat_field(pid, 4) == Some(u64::from(parent)))
        .collect()
}

/// The CPU time of a server, and the part of it outside of the kernel, whose part every server has.
#[derive(Clone, Copy)]
pub(crate) struct UsedTime {
    pub(crate) cpu: Duration,
    /// The kernel counts it in hundredths of a second.
    pub(crate) user: Duration,
}

impl UsedTime {
    /// The microseconds per request, of `requests` since an earlier reading.
    pub(crate) fn per_request(self, before: UsedTime, requests: f64) -> RequestCost {
        let micros = |now: Duration, before: Duration| {
            now.saturating_sub(before).as_secs_f64() * 1e6 / requests
        };
        RequestCost {
            cpu: micros(self.cpu, before.cpu),
            user: micros(self.user, before.user),
        }
    }
}

/// What a request costs a server, in microseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestCost {
    pub(crate) cpu: f64,
    pub(crate) user: f64,
}

/// The two columns of figures: CPU time, and user time.
pub(crate) fn both_times(costs: &[RequestCost]) -> (Vec<f64>, Vec<f64>) {
    costs.iter().map(|cost| (cost.cpu, cost.user)).unzip()
}

/// The CPU time that all threads of a process have used. `schedstat` counts nanoseconds; `stat`, which every kernel has,
/// hundredths of a second.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let exact: u64 = tasks
        .filter_map(|task| {
            fs::read_to_string(task.path().join("schedstat"))
                .ok()?
                .split_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum();
    if exact > 0 {
        return Duration::from_nanos(exact);
    }
    let ticks = stat_field(pid, 14).unwrap_or(0) + stat_field(pid, 15).unwrap_or(0);
    Duration::from_millis(ticks * 10)
}

/// The binary that `--weir` names; without one a build from the sources, and without those the one in the path.
pub(crate) fn weir(named: &str) -> Result<PathBuf, String> {
    if !named.is_empty() {
        return Path::new(named)
            .canonicalize()
            .map_err(|error| format!("{named}: {error}"));
    }
    if !Path::new("Cargo.toml").is_file() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let binaries = std::env::split_paths(&path).map(|folder| folder.join("weir"));
        let found = binaries.into_iter().find(|binary| binary.is_file());
        return found.ok_or("there is no weir in the path; name one with --weir".to_owned());
    }
    shell::run(
        shell::cargo().args(["build", "--release", "--package", "weir"]),
        Duration::from_secs(20 * 60),
    )?;
    shell::target()
        .join("release/weir")
        .canonicalize()
        .map_err(|error| error.to_string())
}

/// Numbers in order of size; the middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
