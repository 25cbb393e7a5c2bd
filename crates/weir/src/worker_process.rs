//! The worker as a process of its own: what happens after the fork, and the master's messages.
//!
//! The order matters: limits and priority while still privileged, then the user is given up for good,
//! then whatever starts a thread. Configurations come from the master only; this process may not even
//! be allowed to read the files.

use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rt::channel::{Channel, Message};
use rt::error_log::{Errno, Level, Logger};
use rt::process::{self, Limit};
use rt::sandbox::{self, Refusals, Rules};
use rt::signal::{Received, Signal, Signals};

use crate::core::Core;
use crate::load::Startup;
use crate::message::{Generation, HAND_OVER, Kind, decode_logs};
use crate::orphan::Refuge;
use crate::worker::Worker;

/// Tells the master that starting again would not help.
const FATAL: i32 = 2;
/// Tells the master to start another worker.
const CRASHED: i32 = 1;

/// Why the process ends.
enum End {
    /// All went as asked.
    Done,
    /// Something that a new worker would not meet.
    Crashed,
    /// Something that a new worker would meet as well.
    Fatal,
}

/// Runs as the worker until the master says to end. Never returns. `log` is the master's, for the time
/// before the first configuration; in `refuge` the next master finds the worker if this one is killed.
pub(crate) fn run(
    startup: Arc<Startup>,
    (core, rules): (&Core, Option<&Rules>),
    log: Logger,
    channel: Channel,
    signals: Signals,
    refuge: Option<Refuge>,
) -> ! {
    let program = startup.identity.program();
    // Before the user changes.
    let master = Master {
        process: process::parent_id(),
        user: process::user_id(),
    };
    let prepared = prepare(core, rules.is_some(), &log, program);
    if let Some(rules) = rules.filter(|_| prepared.is_ok()) {
        enter_sandbox(rules, &log, &channel);
    }
    let code = match prepared {
        Ok(()) => match Worker::new(startup, log.clone()) {
            Ok(worker) => Control {
                worker,
                channel: Some(channel),
                refuge,
                master,
                sockets: Vec::new(),
                refusals: FileRefusals::default(),
            }
            .run(&signals),
            Err(error) => {
                log.plain(Level::Emerg, format_args!("pipe() failed{}", Errno(&error)));
                End::Fatal
            }
        },
        Err(()) => End::Fatal,
    };
    std::process::exit(match code {
        End::Done => 0,
        End::Crashed => CRASHED,
        End::Fatal => FATAL,
    })
}

/// Takes limits, user, folder and environment that the configuration gives a worker.
fn prepare(core: &Core, sandboxed: bool, log: &Logger, program: &str) -> Result<(), ()> {
    let refused = |what: &str, error: &std::io::Error| {
        log.plain(Level::Alert, format_args!("{what} failed{}", Errno(error)));
    };
    if let Err(error) = process::set_environment(&core.worker_environment()) {
        refused("setting the environment", &error);
    }
    if core.priority != 0
        && let Err(error) = process::set_priority(core.priority)
    {
        refused(&format!("setpriority({})", core.priority), &error);
    }
    set_limits(core, refused);
    if sandboxed
        && process::is_root()
        && let Err(error) = sandbox::drop_bounding_set()
    {
        refused("prctl(PR_CAPBSET_DROP)", &error);
    }
    if let Some(user) = core.user.as_ref().filter(|_| process::is_root())
        && let Err(error) = process::become_user(user)
    {
        log.plain(Level::Emerg, format_args!("{error}"));
        return Err(());
    }
    // They hold the keys of certificates, and who may have them may also look into the living process: other programs of the
    // same user. So only when they are wanted.
    if core.core_size.is_some_and(|limit| limit > 0)
        && let Err(error) = process::allow_core_dumps()
    {
        refused("prctl(PR_SET_DUMPABLE)", &error);
    }
    if let Some(directory) = &core.working_directory
        && let Err(error) = std::env::set_current_dir(directory)
    {
        log.plain(
            Level::Alert,
            format_args!("chdir(\"{}\") failed{}", directory.display(), Errno(&error)),
        );
        return Err(());
    }
    process::set_title(&format!("{program}: worker process"));
    Ok(())
}

/// Gives up what the rules do not allow. Where the kernel or a container forbids that, the worker says so and serves.
fn enter_sandbox(rules: &Rules, log: &Logger, channel: &Channel) {
    let entered = match sandbox::enter(rules) {
        Ok(entered) => entered,
        Err(error) => {
            let text = format_args!("\"worker_sandbox\" has no effect{}", Errno(&error));
            return log.plain(Level::Warn, text);
        }
    };
    for missing in &entered.missing {
        log.plain(Level::Warn, format_args!("\"worker_sandbox\": {missing}"));
    }
    if let Some(listener) = entered.listener {
        // If the master is gone, the next message says so. It alone keeps the descriptor: its holder may allow anything.
        let _ = channel.send(Kind::Sandboxed as u8, b"", &[listener.as_fd()]);
    }
}

fn set_limits(core: &Core, refused: impl Fn(&str, &std::io::Error)) {
    match core.descriptors {
        Some(limit) => {
            if let Err(error) = process::set_limit(Limit::Descriptors, limit) {
                refused(&format!("setrlimit(RLIMIT_NOFILE, {limit})"), &error);
            }
        }
        // One process holds the connections of all loops, so it takes what the system grants.
        None => {
            if let Err(error) = process::raise_descriptor_limit() {
                refused("setrlimit(RLIMIT_NOFILE)", &error);
            }
        }
    }
    if let Some(limit) = core.core_size
        && let Err(error) = process::set_limit(Limit::Core, limit)
    {
        refused(&format!("setrlimit(RLIMIT_CORE, {limit})"), &error);
    }
}

/// Whose worker this is.
struct Master {
    process: u32,
    /// Its user, whose processes may follow it.
    user: u32,
}

/// The control thread: messages, signals, and what the loops report.
struct Control {
    worker: Worker,
    /// To the master, or to the one that comes after it. `None`: there is none.
    channel: Option<Channel>,
    refuge: Option<Refuge>,
    master: Master,
    /// What is listened on, for the next master. Empty once the end has begun: nothing may keep a socket open then.
    sockets: Vec<Arc<OwnedFd>>,
    refusals: FileRefusals,
}

impl Control {
    fn run(mut self, signals: &Signals) -> End {
        let end = loop {
            match self.turn(signals) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(end) => break end,
            }
        };
        let worker = &mut self.worker;
        worker.log().plain(Level::Notice, format_args!("exiting"));
        if matches!(end, End::Done) {
            worker.close();
        }
        worker.log().plain(Level::Notice, format_args!("exit"));
        worker.flush();
        end
    }

    fn turn(&mut self, signals: &Signals) -> ControlFlow<End> {
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
        descriptors.extend(Refusals.descriptor());
        let ready = match process::wait_readable(&descriptors, self.worker.next_check()) {
            Ok(ready) => ready,
            Err(error) => {
                let text = format_args!("poll() failed{}", Errno(&error));
                self.worker.log().plain(Level::Alert, text);
                return ControlFlow::Break(End::Fatal);
            }
        };
        // Before a message that may say that the end has come: what they have sent is a client's. The last first: one that
        // is gone is removed from the list.
        if ready.get(others + peers) == Some(&true) {
            self.refusals.tell(self.worker.log(), self.channel.as_ref());
        }
        for index in (0..peers).rev() {
            if ready[others + index] {
                self.worker.hear_peer(index);
            }
        }
        if others > 2 && ready[2] {
            match self.channel.is_some() {
                true => self.take_message()?,
                false => self.admit_master(),
            }
        }
        if ready[0] {
            self.take_signals(signals)?;
        }
        if self.worker.check(ready[1]) {
            return ControlFlow::Break(End::Done);
        }
        if self.worker.has_crashed() {
            let text = format_args!("an event loop ended unexpectedly");
            self.worker.log().plain(Level::Alert, text);
            return ControlFlow::Break(End::Crashed);
        }
        ControlFlow::Continue(())
    }

    fn take_message(&mut self) -> ControlFlow<End> {
        let Some(channel) = &self.channel else {
            return ControlFlow::Continue(());
        };
        match channel.receive() {
            Ok(Some(message)) => self.obey(message),
            Ok(None) => self.lose_master(),
            Err(error) => {
                let text = format_args!("recvmsg() failed{}", Errno(&error));
                self.worker.log().plain(Level::Alert, text);
                ControlFlow::Break(End::Fatal)
            }
        }
    }

    /// The master is gone, without a word: it was killed. Clients are no worse off for it, so this goes on.
    fn lose_master(&mut self) -> ControlFlow<End> {
        self.channel = None;
        if !self.worker.runs() {
            return ControlFlow::Break(End::Done);
        }
        if !self.worker.is_stopping() {
            let master = self.master.process;
            self.worker.log().plain(
                Level::Alert,
                format_args!(
                    "master process {master} is gone; this worker process keeps serving, but cannot reload the \
                     configuration or reopen logs, and will not be replaced: start the server again"
                ),
            );
        }
        ControlFlow::Continue(())
    }

    /// The server was started again: gives the new master what this process listens on.
    fn admit_master(&mut self) {
        let admitted = self.refuge.as_ref();
        let Some(channel) = admitted.and_then(|refuge| refuge.admit(self.master.user)) else {
            return;
        };
        let sockets: Vec<_> = self.sockets.iter().map(|socket| socket.as_fd()).collect();
        if channel.send(Kind::Sockets as u8, b"", &sockets).is_err() {
            // It did not wait; there may be another one.
            return;
        }
        self.worker.log().plain(
            Level::Notice,
            format_args!("a new master process is taking over the listening sockets"),
        );
        self.channel = Some(channel);
    }

    fn obey(&mut self, message: Message) -> ControlFlow<End> {
        let damaged = || format_args!("received a damaged message from the master");
        match Kind::of(message.kind) {
            Some(Kind::Configuration) => return self.configure(message),
            Some(Kind::Reopen) => match decode_logs(message) {
                Some(logs) => self.worker.reopen(&logs),
                None => self.worker.log().plain(Level::Alert, damaged()),
            },
            Some(Kind::Quit) => self.stop(message.body == HAND_OVER),
            Some(Kind::Peer) => {
                if let Some(peer) = message.descriptors.into_iter().next() {
                    self.worker.add_peer(Channel::from_fd(peer));
                }
            }
            Some(Kind::Terminate) => return ControlFlow::Break(End::Done),
            Some(
                Kind::Applied | Kind::Refused | Kind::Sockets | Kind::Sandboxed | Kind::FileDenied,
            )
            | None => {
                self.worker.log().plain(
                    Level::Alert,
                    format_args!("unknown message {} from the master", message.kind),
                );
            }
        }
        ControlFlow::Continue(())
    }

    fn configure(&mut self, message: Message) -> ControlFlow<End> {
        let Some(generation) = Generation::decode(message) else {
            self.worker.log().plain(
                Level::Alert,
                format_args!("received a damaged message from the master"),
            );
            return ControlFlow::Break(End::Fatal);
        };
        let result = self.worker.apply(&generation);
        let mut body = generation.number.to_le_bytes().to_vec();
        let answer = match &result {
            Ok(()) => Kind::Applied,
            Err(why) => {
                body.extend_from_slice(why.as_bytes());
                Kind::Refused
            }
        };
        if let Some(channel) = &self.channel {
            // If the master is gone, the next message says so.
            let _ = channel.send(answer as u8, &body, &[]);
        }
        if result.is_ok() && !self.worker.is_stopping() {
            let sockets = generation.sockets.into_values();
            self.sockets = sockets.flat_map(|(_, members)| members).collect();
        }
        // Without a first configuration there is nothing to go on with.
        match result.is_err() && !self.worker.runs() {
            true => ControlFlow::Break(End::Fatal),
            false => ControlFlow::Continue(()),
        }
    }

    fn stop(&mut self, hand_over: bool) {
        self.sockets.clear();
        // A master that comes now need not wait for an answer from here.
        self.refuge = None;
        self.worker.stop(hand_over);
    }

    fn take_signals(&mut self, signals: &Signals) -> ControlFlow<End> {
        while let Ok(Some(received)) = signals.next() {
            let action = match received.signal {
                Signal::Quit | Signal::Winch => ", shutting down",
                Signal::Term | Signal::Int => ", exiting",
                Signal::Hup | Signal::Usr2 | Signal::Usr1 => ", ignoring",
                Signal::Child | Signal::Kill => "",
            };
            log_signal(self.worker.log(), received, action);
            match received.signal {
                Signal::Quit | Signal::Winch => self.stop(false),
                Signal::Term | Signal::Int => return ControlFlow::Break(End::Done),
                Signal::Hup | Signal::Usr1 | Signal::Usr2 | Signal::Child | Signal::Kill => {}
            }
        }
        ControlFlow::Continue(())
    }
}

/// How often the master is told that a file was denied.
const TELL_PAUSE: Duration = Duration::from_millis(200);

/// Files that the sandbox has denied, on their way to the log and to the master.
#[derive(Default)]
struct FileRefusals {
    told_at: Option<Instant>,
}

impl FileRefusals {
    fn tell(&mut self, log: &Logger, channel: Option<&Channel>) {
        let (paths, any) = Refusals.take();
        for path in paths {
            let path = path.display();
            let text =
                "is denied by worker_sandbox: no directive names it, or the file has been replaced";
            log.plain(Level::Error, format_args!("\"{path}\" {text}"));
        }
        let paused = |at: Instant| at.elapsed() < TELL_PAUSE;
        let Some(channel) = channel else { return };
        if any && !self.told_at.is_some_and(paused) {
            self.told_at = Some(Instant::now());
            // If the master is gone, the next message says so.
            let _ = channel.send(Kind::FileDenied as u8, b"", &[]);
        }
    }
}

/// The line about a signal, in nginx's words.
pub(crate) fn log_signal(log: &Logger, received: Received, action: &str) {
    let (number, name) = (received.signal.number(), received.signal.name());
    match received.sender {
        0 => log.plain(
            Level::Notice,
            format_args!("signal {number} ({name}) received{action}"),
        ),
        sender => log.plain(
            Level::Notice,
            format_args!("signal {number} ({name}) received from {sender}{action}"),
        ),
    }
}
