//! `weir canary`: a share of the connections of a running nginx, for a while, and all of them back if that goes worse.
//!
//! ```text
//! steering   the kernel divides new connections between nginx's sockets and the canary's
//! health     whether the canary's responses are worse than nginx's
//! ```
//!
//! The canary is a copy of the server as for a comparison ([`super::private_copy`]), with the logs of the configuration and with
//! sockets at nginx's addresses. What both count for themselves is counted twice: limits, and caches, of which the canary has its own.

mod health;
mod steering;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use conf::{BlockContent, DirectiveNode};
use host::process;
use host::signal::{Signal, SignalReader};
use rt::clock::read_clock;

use self::health::{AnswerCounts, CanaryHealth, CanaryLimits};
use self::steering::SteeredAddresses;
use super::access_log::{AccessLogs, LoggedOutcome};
use super::command::CanaryArguments;
use super::comparison::Probes;
use super::copy_process::RunningCopy;
use super::private_copy::CanaryPlace;
use super::running::{self, RunningServer, ServerKind, workers_of};
use super::{DIFFERENT, PreparedTakeover, Progress, block_signals, time_since};
use crate::json;
use crate::terminal;

/// How often both servers are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// How many looks make a line.
const LOOKS_PER_LINE: u64 = 10;

/// How long connections may still arrive after the share is 0: a client far away has got its SYN-ACK and answers.
const HANDSHAKES: Duration = Duration::from_secs(2);

/// How long responses may take to their end.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the log of outcomes is emptied. Its lines are counted within a second.
const MAX_LOG: u64 = 16 << 20;

/// How many times as long as nginx's the canary's responses may take.
const SLOWER: f64 = 2.0;

/// Serves shares until the last one is over, or goes wrong. Returns the exit code.
pub(crate) fn run(arguments: &CanaryArguments) -> i32 {
    let mut report = CanaryReport::default();
    let say = Progress {
        is_quiet: arguments.json,
    };
    let code = match serve_shares(arguments, &say, &mut report) {
        Ok(()) => match &report.returned {
            Some(reason) => {
                say.line(&format!("all connections go to nginx again: {reason}"));
                DIFFERENT
            }
            None => {
                say.line("all connections go to nginx again; to stay with Weir:  weir takeover");
                0
            }
        },
        Err(error) => {
            if !arguments.json {
                terminal::report_line(format_args!("weir: {error}"));
            }
            report.error = Some(error);
            1
        }
    };
    if arguments.json {
        terminal::print_line(format_args!("{}", report.json()));
    }
    code
}

/// Starts the canary and goes through the shares.
fn serve_shares(
    arguments: &CanaryArguments,
    say: &Progress,
    report: &mut CanaryReport,
) -> Result<(), String> {
    let server = running::find(arguments.process)?;
    if server.kind == ServerKind::Weir {
        return Err(format!("process {} is Weir already", server.master));
    }
    say.line(&format!(
        "{} is running: process {}, {}",
        server.version,
        server.master,
        server.program.display()
    ));
    let prepared = PreparedTakeover::new(&server)?;
    // From here on Ctrl-C must give everything back.
    let signals = block_signals()?;
    let mut canary = Canary::start(&server, &prepared)?;
    let addresses: Vec<String> = canary.steered.list().map(|one| one.to_string()).collect();
    say.line(&format!("Weir shares {}", addresses.join(", ")));
    if canary.all_logs.is_none() {
        say.line("nginx's access logs cannot be read: its errors count as none");
    }
    let limits = CanaryLimits {
        more_errors: f64::from(arguments.more_errors) / 100.0,
        slower: SLOWER,
    };
    for share in &arguments.shares {
        canary.steered.set_share(*share)?;
        let step = canary.watch_share(*share, arguments.seconds, limits, (say, &signals));
        let end = step.end.clone();
        report.steps.push(step);
        match end {
            StepEnd::Time => {}
            StepEnd::Interrupted => break,
            StepEnd::Worse(reason) => {
                report.returned = Some(reason);
                break;
            }
        }
    }
    Ok(())
}

/// A canary that serves. Dropped, it gives its connections back and finishes what it has begun.
struct Canary {
    // Fields are dropped in this order: its process must be gone before the addresses are nginx's alone.
    copy: RunningCopy,
    steered: SteeredAddresses,
    master: u32,
    /// The workers that nginx had at the start: without them, another configuration is served than here.
    workers: Vec<u32>,
    probes: Probes,
    health: CanaryHealth,
    own_log: AccessLogs,
    own_log_path: PathBuf,
    /// `None`: no log can be followed.
    all_logs: Option<AccessLogs>,
    log_files: LogFiles,
}

impl Canary {
    /// Starts it, without a share.
    fn start(server: &RunningServer, prepared: &PreparedTakeover) -> Result<Canary, String> {
        let nodes = prepared.nodes();
        let paths = &prepared.startup.paths;
        let probes = Probes::new(prepared)?;
        let workers = workers_of(server.master);
        let steered = SteeredAddresses::join(server.master)?;
        let place = CanaryPlace {
            shared: steered.list().collect(),
            sockets: Arc::new(Mutex::new(steered.own_sockets()?)),
            access_log: paths.access_log.clone(),
        };
        let copy = RunningCopy::start(prepared.copy_settings(server)?, nodes, Some(place))?;
        let (own_log_path, format) = copy.copy.outcomes();
        Ok(Canary {
            own_log: AccessLogs::with_format(&own_log_path, format),
            all_logs: AccessLogs::all(nodes, paths).ok(),
            log_files: LogFiles::new(nodes, &paths.prefix),
            health: CanaryHealth::default(),
            master: server.master,
            own_log_path,
            workers,
            probes,
            steered,
            copy,
        })
    }

    /// Watches one share.
    fn watch_share(
        &mut self,
        share: u32,
        seconds: u64,
        limits: CanaryLimits,
        (say, signals): (&Progress, &SignalReader),
    ) -> CanaryStep {
        let started = read_clock();
        let mut step = CanaryStep {
            share,
            ..CanaryStep::default()
        };
        for look in 1.. {
            let is_ended = wait_for_look(started, look, signals);
            self.look(&mut step);
            let is_over = look >= seconds || is_ended;
            if look % LOOKS_PER_LINE == 0 || is_over {
                say.line(&step.line(look));
            }
            if let Some(reason) = self.reason_to_return(limits) {
                step.end = StepEnd::Worse(reason);
                break;
            }
            if is_over {
                step.end = match is_ended {
                    true => StepEnd::Interrupted,
                    false => StepEnd::Time,
                };
                break;
            }
            if let Some((own, theirs)) = self.probes.time_both(look as usize, &self.copy) {
                self.health.probe(own, theirs);
            }
        }
        step.seconds = time_since(started).as_secs();
        step
    }

    /// Reads what both servers have logged since the last look.
    fn look(&mut self, step: &mut CanaryStep) {
        let count = |outcomes: Vec<LoggedOutcome>| {
            let mut counts = AnswerCounts::default();
            for outcome in outcomes {
                counts.add(outcome.status, outcome.milliseconds);
            }
            counts
        };
        let own = count(self.own_log.read_new_outcomes());
        let logs = self.all_logs.as_mut();
        let all = logs.map_or_else(AnswerCounts::default, |logs| {
            count(logs.read_new_outcomes())
        });
        self.health.look(own, all);
        step.add(own, all);
        let length = std::fs::metadata(&self.own_log_path).map_or(0, |file| file.len());
        if length > MAX_LOG {
            let file = std::fs::File::options()
                .write(true)
                .open(&self.own_log_path);
            // If it fails, it is tried again at the next look.
            let _ = file.and_then(|file| file.set_len(0));
        }
        // logrotate tells nginx only.
        if self.log_files.have_changed() {
            self.copy.signal(Signal::Usr1);
        }
    }

    /// Why the share must end now, if it must.
    fn reason_to_return(&self, limits: CanaryLimits) -> Option<String> {
        if self.copy.has_ended() {
            return Some("Weir has ended; its error log says why".to_owned());
        }
        let is_there = Path::new(&format!("/proc/{}", self.master)).exists();
        if !is_there {
            return Some("nginx has ended".to_owned());
        }
        let now = workers_of(self.master);
        if !self.workers.iter().any(|worker| now.contains(worker)) {
            return Some(
                "nginx has been reloaded, and Weir has the former configuration".to_owned(),
            );
        }
        self.health.complaint(limits)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        // If the kernel refuses this, what follows is still the best that can be done.
        let _ = self.steered.set_share(0);
        let started = read_clock();
        std::thread::sleep(HANDSHAKES);
        // A socket that closes resets what waits there.
        while self.steered.has_waiting() && time_since(started) < END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.copy.signal(Signal::Quit);
        while !self.copy.has_ended() && time_since(started) < END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Waits for the time of a look. Returns whether a signal has ended the command.
fn wait_for_look(started: Instant, look: u64, signals: &SignalReader) -> bool {
    let due = INTERVAL * u32::try_from(look).unwrap_or(u32::MAX);
    let left = due.saturating_sub(time_since(started));
    // A failure only makes the pause shorter.
    let _ = process::wait_readable(&[signals.as_fd()], Some(left));
    signals.read_signal().is_ok_and(|signal| signal.is_some())
}

/// The files of the configuration's logs, by which a rotation is noticed.
struct LogFiles(BTreeMap<PathBuf, Option<u64>>);

impl LogFiles {
    fn new(nodes: &[DirectiveNode], prefix: &Path) -> LogFiles {
        let mut files = LogFiles(BTreeMap::new());
        files.collect(nodes, prefix);
        files.have_changed();
        files
    }

    /// All files that `access_log` and `error_log` name, in all blocks.
    fn collect(&mut self, nodes: &[DirectiveNode], prefix: &Path) {
        for node in nodes {
            let is_log = node.name.is("access_log") || node.name.is("error_log");
            if let Some(word) = node.args.first().filter(|_| is_log) {
                let path = String::from_utf8_lossy(&word.text).into_owned();
                let is_file = !path.contains(['$', ':']) && path != "off" && path != "stderr";
                if is_file {
                    self.0.insert(prefix.join(path), None);
                }
            }
            if !matches!(node.block, BlockContent::None) {
                self.collect(node.block.nodes(), prefix);
            }
        }
    }

    /// Whether one of them is another file than the last time. While there is none under a name, nothing has changed yet: nginx
    /// makes the file when it is told to.
    fn have_changed(&mut self) -> bool {
        let mut changed = false;
        for (path, known) in &mut self.0 {
            let now = std::fs::metadata(path).ok().map(|file| file.ino());
            if now.is_some() && now != *known {
                changed |= known.is_some();
                *known = now;
            }
        }
        changed
    }
}

/// How a share ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum StepEnd {
    #[default]
    Time,
    Interrupted,
    Worse(String),
}

/// What happened during one share.
#[derive(Debug, Default)]
struct CanaryStep {
    share: u32,
    seconds: u64,
    /// The canary's answers.
    own: AnswerCounts,
    /// Those of both.
    all: AnswerCounts,
    end: StepEnd,
}

impl CanaryStep {
    fn add(&mut self, own: AnswerCounts, all: AnswerCounts) {
        self.own = AnswerCounts::sum(&self.own, &own);
        self.all = AnswerCounts::sum(&self.all, &all);
    }

    /// A line of the report, so far.
    fn line(&self, look: u64) -> String {
        let part = |counts: &AnswerCounts| {
            let time = counts.ninth_decile_ms();
            let time = time.map_or_else(String::new, |time| format!(", 90 % within {time} ms"));
            format!(
                "{} requests, {:.1} % errors{time}",
                counts.requests,
                counts.error_percent()
            )
        };
        let nginx = AnswerCounts::besides(&self.all, &self.own);
        format!(
            "{:3}:{:02}  {:5.1} %  Weir: {}; nginx: {}",
            look / 60,
            look % 60,
            f64::from(self.share) / 100.0,
            part(&self.own),
            part(&nginx)
        )
    }
}

/// What the command has done.
#[derive(Debug, Default)]
struct CanaryReport {
    /// Why there was no canary.
    error: Option<String>,
    steps: Vec<CanaryStep>,
    /// Why connections were given back before the end.
    returned: Option<String>,
}

impl CanaryReport {
    /// The report as JSON. The format is part of the interface: programs read it.
    fn json(&self) -> String {
        let mut out = String::from("{");
        let mut text = |name: &str, value: &Option<String>, before: &str| match value {
            Some(value) => json::member(&mut out, name, value, before),
            None => out.push_str(&format!("{before}\"{name}\": null")),
        };
        text("error", &self.error, "");
        text("returned", &self.returned, ", ");
        let counts = |counts: &AnswerCounts| {
            let time = counts.ninth_decile_ms();
            let time = time.map_or_else(|| "null".to_owned(), |time| time.to_string());
            format!(
                "{{\"requests\": {}, \"errors\": {}, \"ninth_decile_ms\": {time}}}",
                counts.requests, counts.errors
            )
        };
        let steps = self.steps.iter().map(|step| {
            let nginx = AnswerCounts::besides(&step.all, &step.own);
            format!(
                "{{\"share\": {}, \"seconds\": {}, \"weir\": {}, \"nginx\": {}}}",
                f64::from(step.share) / 100.0,
                step.seconds,
                counts(&step.own),
                counts(&nginx)
            )
        });
        let steps: Vec<String> = steps.collect();
        out.push_str(&format!(", \"steps\": [{}]}}", steps.join(", ")));
        out
    }
}
