//! The worker as a process: what happens after the fork, and the master's messages.
//!
//! The order matters:
//!
//! ```text
//! environment, priority, limits    while still privileged
//! user                             given up for good
//! core dumps, working directory    the kernel forbids dumps when the user changes
//! sandbox                          before there is a thread that it would not apply to
//! loops                            with the first configuration
//! ```
//!
//! Configurations come from the master only; this process may not be allowed to read the files.

use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::ErrnoText;
use host::channel::{Channel, ChannelMessage};
use host::error_log::{LogLevel, Logger};
use host::process::{self, ResourceLimit};
use host::signal::{DeliveredSignal, Signal, SignalReader};
use host::worker_group::GroupMember;
use rt::sandbox::{self, LandlockDenials, SandboxRules};

use crate::core_conf::CoreConf;
use crate::load_configuration::StartupSettings;
use crate::message::{GenerationMessage, IdleConnections, MessageKind, decode_logs};
use crate::orphan::OrphanListener;
use crate::worker::WorkerLoops;

/// Tells the master that another worker would fail, too.
const FATAL: i32 = 2;
/// Tells the master to start another worker.
const CRASHED: i32 = 1;

/// Why the process exits.
enum WorkerExit {
    /// It was told to.
    Done,
    /// Because of an error that a new worker would not meet.
    Crashed,
    /// Because of an error that a new worker would meet, too.
    Fatal,
}

/// What a worker has from its master.
pub(crate) struct WorkerStart {
    pub(crate) startup: Arc<StartupSettings>,
    /// This process as one of the groups.
    pub(crate) member: GroupMember,
    /// The master's log, for the time before the first configuration.
    pub(crate) log: Logger,
    pub(crate) channel: Channel,
    pub(crate) signals: SignalReader,
    /// Where the next master finds the worker if this one is killed.
    pub(crate) refuge: Option<OrphanListener>,
}

/// Runs the worker until the master ends it. Never returns.
pub(crate) fn run(start: WorkerStart, core: &CoreConf, rules: Option<&SandboxRules>) -> ! {
    let WorkerStart {
        startup,
        member,
        log,
        channel,
        signals,
        refuge,
    } = start;
    let program = startup.identity.program();
    // Before the user changes.
    let master = MasterIdentity {
        process: process::parent_id(),
        user: process::user_id(),
    };
    let prepared = prepare(core, rules.is_some(), &log, program);
    // The last step before threads start: rules apply to a thread and those it creates.
    if let Some(rules) = rules.filter(|_| prepared.is_ok()) {
        enter_sandbox(rules, &log, &channel);
    }
    let code = match prepared {
        Ok(()) => match WorkerLoops::new(Arc::clone(&startup), log.clone(), member) {
            Ok(worker) => ControlThread {
                worker,
                channel: Some(channel),
                refuge,
                master,
                sockets: Vec::new(),
                refusals: FileRefusals::default(),
                beats: startup
                    .service
                    .get()
                    .and_then(|service| service.watchdog)
                    .map(WorkerBeats::new),
            }
            .run(&signals),
            Err(error) => {
                log.log_plain(
                    LogLevel::Emerg,
                    format_args!("pipe() failed{}", ErrnoText(&error)),
                );
                WorkerExit::Fatal
            }
        },
        Err(()) => WorkerExit::Fatal,
    };
    std::process::exit(match code {
        WorkerExit::Done => 0,
        WorkerExit::Crashed => CRASHED,
        WorkerExit::Fatal => FATAL,
    })
}

/// Applies the limits, user, working directory and environment of the configuration.
fn prepare(core: &CoreConf, sandboxed: bool, log: &Logger, program: &str) -> Result<(), ()> {
    let refused = |what: &str, error: &std::io::Error| {
        log.log_plain(
            LogLevel::Alert,
            format_args!("{what} failed{}", ErrnoText(error)),
        );
    };
    // Needs a process of one thread, and libraries may read variables from their first call on.
    if let Err(error) = process::set_environment(&core.worker_environment()) {
        refused("setting the environment", &error);
    }
    if core.priority != 0
        && let Err(error) = process::set_priority(core.priority)
    {
        refused(&format!("setpriority({})", core.priority), &error);
    }
    // Raising a hard limit needs privileges, too.
    set_limits(core, refused);
    // The bounding set can be dropped with privileges only, so before the user changes.
    if sandboxed
        && process::is_root()
        && let Err(error) = sandbox::drop_bounding_set()
    {
        refused("prctl(PR_CAPBSET_DROP)", &error);
    }
    if let Some(user) = core.user.as_ref().filter(|_| process::is_root())
        && let Err(error) = process::become_user(user)
    {
        log.log_plain(LogLevel::Emerg, format_args!("{error}"));
        // Serving as root, although the configuration names another user, is not an option.
        return Err(());
    }
    // A core dump contains the keys of certificates, and permitting dumps lets other programs of
    // the same user inspect the live process, too. So only on request.
    if core.core_size.is_some_and(|limit| limit > 0)
        && let Err(error) = process::allow_core_dumps()
    {
        refused("prctl(PR_SET_DUMPABLE)", &error);
    }
    if let Some(directory) = &core.working_directory
        && let Err(error) = std::env::set_current_dir(directory)
    {
        log.log_plain(
            LogLevel::Alert,
            format_args!(
                "chdir(\"{}\") failed{}",
                directory.display(),
                ErrnoText(&error)
            ),
        );
        return Err(());
    }
    process::set_title(&format!("{program}: worker process"));
    Ok(())
}

/// Enters the sandbox. If the kernel or a container forbids that, the worker logs it and serves
/// without.
fn enter_sandbox(rules: &SandboxRules, log: &Logger, channel: &Channel) {
    let entered = match sandbox::enter(rules) {
        Ok(entered) => entered,
        Err(error) => {
            let text = format_args!("\"worker_sandbox\" has no effect{}", ErrnoText(&error));
            return log.log_plain(LogLevel::Warn, text);
        }
    };
    for missing in &entered.missing {
        log.log_plain(
            LogLevel::Warn,
            format_args!("\"worker_sandbox\": {missing}"),
        );
    }
    if let Some(listener) = entered.listener {
        // If the master is gone, the next message will tell. The master alone keeps the descriptor:
        // its holder can permit any call.
        let _ = channel.send(MessageKind::Sandboxed as u8, b"", &[listener.as_fd()]);
    }
}

/// Sets the limits of the configuration. A failure is logged, and the worker goes on with what it
/// has.
fn set_limits(core: &CoreConf, refused: impl Fn(&str, &std::io::Error)) {
    match core.descriptors {
        Some(limit) => {
            if let Err(error) = process::set_limit(ResourceLimit::Descriptors, limit) {
                refused(&format!("setrlimit(RLIMIT_NOFILE, {limit})"), &error);
            }
        }
        // One process has the connections of all loops, so it takes what the system grants.
        None => {
            if let Err(error) = process::raise_descriptor_limit() {
                refused("setrlimit(RLIMIT_NOFILE)", &error);
            }
        }
    }
    if let Some(limit) = core.core_size
        && let Err(error) = process::set_limit(ResourceLimit::Core, limit)
    {
        refused(&format!("setrlimit(RLIMIT_CORE, {limit})"), &error);
    }
}

/// The worker's master.
struct MasterIdentity {
    /// Its process number.
    process: u32,
    /// Its user, whose processes may succeed it.
    user: u32,
}

/// The control thread: messages, signals, and reports of the loops.
struct ControlThread {
    /// The loops.
    worker: WorkerLoops,
    /// To the master or its successor; `None` if there is none.
    channel: Option<Channel>,
    refuge: Option<OrphanListener>,
    /// The master that has forked this process.
    master: MasterIdentity,
    /// The listening sockets, for the next master. Empty once the shutdown has begun, when nothing
    /// may keep a socket open.
    sockets: Vec<Arc<OwnedFd>>,
    /// Denied files that are to be reported.
    refusals: FileRefusals,
    /// The messages for the service manager's watchdog, if it wants any.
    beats: Option<WorkerBeats>,
}

/// Tells the master, several times in the time that the service manager allows, that no loop is stuck.
struct WorkerBeats {
    /// A loop is stuck if an iteration takes longer.
    limit: Duration,
    /// When the next message is due.
    due: Instant,
}

impl WorkerBeats {
    fn new(allowed: Duration) -> WorkerBeats {
        WorkerBeats {
            limit: allowed / 2,
            due: rt::clock::read_clock(),
        }
    }

    /// Sends the message if it is due and deserved.
    fn send(&mut self, worker: &WorkerLoops, channel: Option<&Channel>) {
        let now = rt::clock::read_clock();
        if now < self.due {
            return;
        }
        self.due = now + self.limit / 2;
        if let Some(channel) = channel.filter(|_| worker.longest_iteration() < self.limit) {
            // If the master is gone, the next message will tell.
            let _ = channel.send(MessageKind::Beat as u8, b"", &[]);
        }
    }
}

impl ControlThread {
    /// The main loop. Only an orderly end saves what the next start can use: after a crash it might
    /// be wrong.
    fn run(mut self, signals: &SignalReader) -> WorkerExit {
        let end = loop {
            match self.poll_once(signals) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(end) => break end,
            }
        };
        let worker = &mut self.worker;
        worker
            .log()
            .log_plain(LogLevel::Notice, format_args!("exiting"));
        if matches!(end, WorkerExit::Done) {
            worker.close();
        }
        worker
            .log()
            .log_plain(LogLevel::Notice, format_args!("exit"));
        worker.flush();
        end
    }

    /// Waits for an event and handles all that have arrived.
    fn poll_once(&mut self, signals: &SignalReader) -> ControlFlow<WorkerExit> {
        let mut descriptors = vec![signals.as_fd(), self.worker.ended()];
        let master = match (&self.channel, &self.refuge) {
            (Some(channel), _) => Some(channel.as_fd()),
            (None, Some(refuge)) => Some(refuge.as_fd()),
            (None, None) => None,
        };
        descriptors.extend(master);
        let others = descriptors.len();
        descriptors.extend(self.worker.peers());
        let peers = descriptors.len() - others;
        // Last, so that the numbers of the others do not depend on whether there is a sandbox.
        descriptors.extend(LandlockDenials.descriptor());
        let now = rt::clock::read_clock();
        let beat = self
            .beats
            .as_ref()
            .map(|beats| beats.due.saturating_duration_since(now));
        let timeout = self.worker.next_check().into_iter().chain(beat).min();
        let ready = match process::wait_readable(&descriptors, timeout) {
            Ok(ready) => ready,
            Err(error) => {
                let text = format_args!("poll() failed{}", ErrnoText(&error));
                self.worker.log().log_plain(LogLevel::Alert, text);
                return ControlFlow::Break(WorkerExit::Fatal);
            }
        };
        // Before the master's message, which may end the process: peers have sent connections of
        // clients. In reverse order, since a peer that is gone is removed from the list.
        if ready.get(others + peers) == Some(&true) {
            self.refusals
                .report(self.worker.log(), self.channel.as_ref());
        }
        for index in (0..peers).rev() {
            if ready[others + index] {
                self.worker.receive_from_peer(index);
            }
        }
        if others > 2 && ready[2] {
            match self.channel.is_some() {
                true => self.take_message()?,
                false => self.accept_new_master(),
            }
        }
        // After the messages: a configuration that arrived before a signal to quit is still applied.
        if ready[0] {
            self.take_signals(signals)?;
        }
        if let Some(beats) = &mut self.beats {
            beats.send(&self.worker, self.channel.as_ref());
        }
        if self.worker.check(ready[1]) {
            return ControlFlow::Break(WorkerExit::Done);
        }
        if self.worker.has_crashed() {
            let text = format_args!("an event loop ended unexpectedly");
            self.worker.log().log_plain(LogLevel::Alert, text);
            // The master starts a new process: a loop cannot be restarted without its engines' state.
            return ControlFlow::Break(WorkerExit::Crashed);
        }
        ControlFlow::Continue(())
    }

    /// Receives a message of the master, or notices its end.
    fn take_message(&mut self) -> ControlFlow<WorkerExit> {
        let Some(channel) = &self.channel else {
            return ControlFlow::Continue(());
        };
        match channel.receive() {
            Ok(Some(message)) => self.handle_message(message),
            Ok(None) => self.lose_master(),
            Err(error) => {
                let text = format_args!("recvmsg() failed{}", ErrnoText(&error));
                self.worker.log().log_plain(LogLevel::Alert, text);
                ControlFlow::Break(WorkerExit::Fatal)
            }
        }
    }

    /// The channel was closed without a message: the master was killed. The worker goes on, since
    /// its clients are no worse off.
    fn lose_master(&mut self) -> ControlFlow<WorkerExit> {
        self.channel = None;
        // Killed during the start: without a configuration there is nothing to keep serving.
        if !self.worker.has_configuration() {
            return ControlFlow::Break(WorkerExit::Done);
        }
        if !self.worker.is_stopping() {
            let master = self.master.process;
            self.worker.log().log_plain(
                LogLevel::Alert,
                format_args!(
                    "master process {master} is gone; this worker process keeps serving, but cannot reload the \
                     configuration or reopen logs, and will not be replaced: start the server again"
                ),
            );
        }
        ControlFlow::Continue(())
    }

    /// The server was started again: sends the new master the listening sockets.
    fn accept_new_master(&mut self) {
        let admitted = self.refuge.as_ref();
        let Some(channel) = admitted.and_then(|refuge| refuge.accept_master(self.master.user))
        else {
            return;
        };
        let sockets: Vec<_> = self.sockets.iter().map(|socket| socket.as_fd()).collect();
        // The other groups of the same master wait for a connection of their own.
        let groups = self.worker.group().count.to_le_bytes();
        if channel
            .send(MessageKind::Sockets as u8, &groups, &sockets)
            .is_err()
        {
            // It has given up waiting; another one may come.
            return;
        }
        self.worker.log().log_plain(
            LogLevel::Notice,
            format_args!("a new master process is taking over the listening sockets"),
        );
        self.channel = Some(channel);
    }

    /// Handles a message of the master.
    fn handle_message(&mut self, message: ChannelMessage) -> ControlFlow<WorkerExit> {
        let damaged = || format_args!("received a damaged message from the master");
        match MessageKind::of(message.kind) {
            Some(MessageKind::Configuration) => return self.configure(message),
            Some(MessageKind::Reopen) => match decode_logs(message) {
                Some(logs) => self.worker.reopen(&logs),
                None => self.worker.log().log_plain(LogLevel::Alert, damaged()),
            },
            Some(MessageKind::Quit) => self.stop(IdleConnections::of_body(&message.body)),
            Some(MessageKind::Peer) => {
                if let Some(peer) = message.descriptors.into_iter().next() {
                    self.worker.add_peer(Channel::from_fd(peer));
                }
            }
            Some(MessageKind::Terminate) => return ControlFlow::Break(WorkerExit::Done),
            Some(
                MessageKind::Applied
                | MessageKind::Refused
                | MessageKind::Sockets
                | MessageKind::Sandboxed
                | MessageKind::FileDenied
                | MessageKind::Beat,
            )
            | None => {
                self.worker.log().log_plain(
                    LogLevel::Alert,
                    format_args!("unknown message {} from the master", message.kind),
                );
            }
        }
        ControlFlow::Continue(())
    }

    /// Applies a configuration and reports the outcome.
    fn configure(&mut self, message: ChannelMessage) -> ControlFlow<WorkerExit> {
        let Some(generation) = GenerationMessage::decode(message) else {
            self.worker.log().log_plain(
                LogLevel::Alert,
                format_args!("received a damaged message from the master"),
            );
            // The master is of the same binary, so another attempt would bring the same message.
            return ControlFlow::Break(WorkerExit::Fatal);
        };
        let is_first = !self.worker.has_configuration();
        let result = self.worker.apply(&generation);
        let mut body = generation.number.to_le_bytes().to_vec();
        let answer = match &result {
            Ok(()) => MessageKind::Applied,
            Err(why) => {
                body.extend_from_slice(why.as_bytes());
                MessageKind::Refused
            }
        };
        if let Some(channel) = &self.channel {
            // If the master is gone, the next message will tell.
            let _ = channel.send(answer as u8, &body, &[]);
        }
        // Kept for a next master, in case this one is killed.
        let GenerationMessage {
            sockets, snapshot, ..
        } = generation;
        if result.is_ok() && !self.worker.is_stopping() {
            let sockets = sockets.into_values();
            self.sockets = sockets.flat_map(|(_, members)| members).collect();
        }
        if is_first && result.is_ok() {
            // The texts, and what was needed to receive them. After a reload that is done once the configuration before is gone.
            drop(snapshot);
            process::give_memory_back();
        }
        // Without a first configuration there is nothing to serve.
        match result.is_err() && !self.worker.has_configuration() {
            true => ControlFlow::Break(WorkerExit::Fatal),
            false => ControlFlow::Continue(()),
        }
    }

    /// Begins a graceful shutdown.
    fn stop(&mut self, idle: IdleConnections) {
        self.sockets.clear();
        // A master that starts now must not wait for an answer.
        self.refuge = None;
        self.worker.stop(idle);
    }

    /// Handles signals that were sent to the worker itself, such as by a service manager that
    /// signals all processes.
    fn take_signals(&mut self, signals: &SignalReader) -> ControlFlow<WorkerExit> {
        while let Ok(Some(received)) = signals.read_signal() {
            let action = match received.signal {
                Signal::Quit | Signal::Winch => ", shutting down",
                Signal::Term | Signal::Int => ", exiting",
                // These are the master's business: it alone can read files and start processes.
                Signal::Hup | Signal::Usr2 | Signal::Usr1 => ", ignoring",
                Signal::Child | Signal::Kill => "",
            };
            log_signal(self.worker.log(), received, action);
            match received.signal {
                Signal::Quit | Signal::Winch => self.stop(IdleConnections::Close),
                Signal::Term | Signal::Int => return ControlFlow::Break(WorkerExit::Done),
                Signal::Hup | Signal::Usr1 | Signal::Usr2 | Signal::Child | Signal::Kill => {}
            }
        }
        ControlFlow::Continue(())
    }
}

/// The minimum time between two messages to the master about denied files.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

/// Reports files that the sandbox has denied, to the log and to the master.
#[derive(Default)]
struct FileRefusals {
    /// When the master was last told.
    reported_at: Option<Instant>,
}

impl FileRefusals {
    /// Logs the denied files, and tells the master that there were some.
    fn report(&mut self, log: &Logger, channel: Option<&Channel>) {
        // `any` counts refusals that were logged before, too: the master must hear of every new one.
        let (paths, any) = LandlockDenials.take_denied();
        for path in paths {
            let path = path.display();
            let text =
                "is denied by worker_sandbox: no directive names it, or the file has been replaced";
            log.log_plain(LogLevel::Error, format_args!("\"{path}\" {text}"));
        }
        let paused = |at: Instant| rt::clock::elapsed(at) < REPORT_PAUSE;
        let Some(channel) = channel else { return };
        if any && !self.reported_at.is_some_and(paused) {
            self.reported_at = Some(rt::clock::read_clock());
            // If the master is gone, the next message will tell.
            let _ = channel.send(MessageKind::FileDenied as u8, b"", &[]);
        }
    }
}

/// Logs a signal, in nginx's words.
pub(crate) fn log_signal(log: &Logger, received: DeliveredSignal, action: &str) {
    let (number, name) = (received.signal.number(), received.signal.name());
    match received.sender {
        0 => log.log_plain(
            LogLevel::Notice,
            format_args!("signal {number} ({name}) received{action}"),
        ),
        sender => log.log_plain(
            LogLevel::Notice,
            format_args!("signal {number} ({name}) received from {sender}{action}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_configuration::tests::startup_of;

    /// What may arrive for the control thread.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum ControlArrival {
        OlderPeerSends,
        OlderPeerGoes,
        LatestPeerSends,
        LatestPeerGoes,
        AnotherPeer,
        OrderToQuit(IdleConnections),
        MasterGoes,
    }

    const ARRIVALS: [ControlArrival; 8] = [
        ControlArrival::OlderPeerSends,
        ControlArrival::OlderPeerGoes,
        ControlArrival::LatestPeerSends,
        ControlArrival::LatestPeerGoes,
        ControlArrival::AnotherPeer,
        ControlArrival::OrderToQuit(IdleConnections::HandOver),
        ControlArrival::OrderToQuit(IdleConnections::Close),
        ControlArrival::MasterGoes,
    ];

    /// The control thread of a worker without loops, and the other ends of its channels.
    struct ControlledWorker {
        control: ControlThread,
        signals: SignalReader,
        master: Option<Channel>,
        peers: [Option<Channel>; 2],
        later: Vec<Channel>,
    }

    impl ControlledWorker {
        fn new(startup: &Arc<StartupSettings>) -> ControlledWorker {
            let (master, channel) = Channel::pair().expect("a socket pair");
            let log = Logger::default();
            let worker = WorkerLoops::new(Arc::clone(startup), log, GroupMember::alone());
            let mut worker = worker.expect("a pipe");
            let peers = [(); 2].map(|()| {
                let (peer, own) = Channel::pair().expect("a socket pair");
                worker.add_peer(own);
                Some(peer)
            });
            ControlledWorker {
                control: ControlThread {
                    worker,
                    channel: Some(channel),
                    refuge: None,
                    master: MasterIdentity {
                        process: 1,
                        user: 0,
                    },
                    sockets: Vec::new(),
                    refusals: FileRefusals::default(),
                    beats: None,
                },
                signals: SignalReader::block(&[]).expect("a descriptor"),
                master: Some(master),
                peers,
                later: Vec::new(),
            }
        }

        fn arrive(&mut self, arrival: ControlArrival) {
            // One that has gone says nothing.
            let say = |to: &Option<Channel>, kind: u8, body: &[u8]| {
                if let Some(to) = to {
                    let _ = to.send(kind, body, &[]);
                }
            };
            match arrival {
                ControlArrival::OlderPeerSends => say(&self.peers[0], 99, b"of another release"),
                ControlArrival::LatestPeerSends => say(&self.peers[1], 99, b"of another release"),
                ControlArrival::OlderPeerGoes => self.peers[0] = None,
                ControlArrival::LatestPeerGoes => self.peers[1] = None,
                ControlArrival::AnotherPeer => {
                    let (peer, own) = Channel::pair().expect("a socket pair");
                    if let Some(master) = &self.master {
                        let _ = master.send(MessageKind::Peer as u8, b"", &[own.as_fd()]);
                    }
                    self.later.push(peer);
                }
                ControlArrival::OrderToQuit(idle) => {
                    say(&self.master, MessageKind::Quit as u8, idle.body());
                }
                ControlArrival::MasterGoes => self.master = None,
            }
        }

        /// Looks once, for which there is always a reason: a message that means nothing, or the end of the master.
        fn look(&mut self) -> ControlFlow<WorkerExit> {
            if let Some(master) = &self.master {
                let _ = master.send(MessageKind::Beat as u8, b"", &[]);
            }
            self.control.poll_once(&self.signals)
        }
    }

    /// The state of each arrival is: before the first look, before the second one, or never. All of these are tried.
    #[test]
    fn whatever_arrives_together_the_worker_ends_in_order() {
        let (mut startup, _) = startup_of("events {}");
        // Not to be seen in the list of processes.
        startup.text = Some(Vec::new());
        let startup = Arc::new(startup);
        let choices = 3_usize.pow(ARRIVALS.len() as u32);
        for choice in 0..choices {
            let look_of = |at: usize| choice / 3_usize.pow(at as u32) % 3;
            let of_look = |look: usize| {
                let all = ARRIVALS.into_iter().enumerate();
                all.filter(move |(at, _)| look_of(*at) == look)
                    .map(|(_, arrival)| arrival)
            };
            let mut worker = ControlledWorker::new(&startup);
            let mut has_ended = false;
            for look in 1..3 {
                of_look(look).for_each(|arrival| worker.arrive(arrival));
                has_ended = has_ended || worker.look().is_break();
            }
            worker.arrive(ControlArrival::OrderToQuit(IdleConnections::HandOver));
            let told: Vec<ControlArrival> = of_look(1).chain(of_look(2)).collect();
            // A message is taken at each look.
            let mut looks = 0..2 * ARRIVALS.len();
            while !has_ended {
                assert!(looks.next().is_some(), "no end after {told:?}");
                has_ended = worker.look().is_break();
            }
        }
    }
}
