//! The worker as a process of its own: what happens after the fork, and the master's messages.
//!
//! The order matters: limits and priority while still privileged, then the user is given up for good,
//! then whatever starts a thread. Configurations come from the master only; this process may not even
//! be allowed to read the files.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use rt::channel::{Channel, Message};
use rt::error_log::{Errno, Level, Logger};
use rt::process::{self, Limit};
use rt::signal::{Received, Signal, Signals};

use crate::core::Core;
use crate::load::Startup;
use crate::message::{Generation, HAND_OVER, Kind, decode_logs};
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
/// before the first configuration.
pub(crate) fn run(
    startup: Arc<Startup>,
    core: &Core,
    log: Logger,
    channel: Channel,
    signals: Signals,
    master: u32,
) -> ! {
    let program = startup.identity.program();
    let code = match prepare(core, &log, master, program) {
        Ok(()) => match control(startup, log, &channel, &signals) {
            End::Done => 0,
            End::Crashed => CRASHED,
            End::Fatal => FATAL,
        },
        Err(()) => FATAL,
    };
    std::process::exit(code)
}

/// Takes limits, user, folder and environment that the configuration gives a worker.
fn prepare(core: &Core, log: &Logger, master: u32, program: &str) -> Result<(), ()> {
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
    // After the change of user, which clears it.
    match process::follow_parent(master, Signal::Term) {
        Ok(true) => Ok(()),
        Ok(false) => Err(()),
        Err(error) => {
            refused("prctl(PR_SET_PDEATHSIG)", &error);
            Ok(())
        }
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

/// The control thread: messages, signals, and what the loops report.
fn control(startup: Arc<Startup>, log: Logger, channel: &Channel, signals: &Signals) -> End {
    let mut worker = match Worker::new(startup, log.clone()) {
        Ok(worker) => worker,
        Err(error) => {
            log.plain(Level::Emerg, format_args!("pipe() failed{}", Errno(&error)));
            return End::Fatal;
        }
    };
    let end = loop {
        let mut descriptors = vec![channel.as_fd(), signals.as_fd(), worker.ended()];
        descriptors.extend(worker.peers());
        let ready = match process::wait_readable(&descriptors, worker.next_check()) {
            Ok(ready) => ready,
            Err(error) => {
                worker
                    .log()
                    .plain(Level::Alert, format_args!("poll() failed{}", Errno(&error)));
                break End::Fatal;
            }
        };
        // Before a message that may say that the end has come: what they have sent is a client's. The last first: one that
        // is gone is removed from the list.
        for index in (0..ready.len() - 3).rev() {
            if ready[3 + index] {
                worker.hear_peer(index);
            }
        }
        if ready[0]
            && let Some(end) = take_message(&mut worker, channel)
        {
            break end;
        }
        if ready[1]
            && let Some(end) = take_signals(&mut worker, signals)
        {
            break end;
        }
        if worker.check(ready[2]) {
            break End::Done;
        }
        if worker.has_crashed() {
            worker.log().plain(
                Level::Alert,
                format_args!("an event loop has ended by itself"),
            );
            break End::Crashed;
        }
    };
    worker.log().plain(Level::Notice, format_args!("exiting"));
    if matches!(end, End::Done) {
        worker.close();
    }
    worker.log().plain(Level::Notice, format_args!("exit"));
    worker.flush();
    end
}

fn take_message(worker: &mut Worker, channel: &Channel) -> Option<End> {
    match channel.receive() {
        Ok(Some(message)) => obey(worker, channel, message),
        // The master is gone: nobody could stop this process or restart it.
        Ok(None) => Some(End::Done),
        Err(error) => {
            worker.log().plain(
                Level::Alert,
                format_args!("recvmsg() failed{}", Errno(&error)),
            );
            Some(End::Fatal)
        }
    }
}

fn obey(worker: &mut Worker, channel: &Channel, message: Message) -> Option<End> {
    match Kind::of(message.kind) {
        Some(Kind::Configuration) => return configure(worker, channel, message),
        Some(Kind::Reopen) => match decode_logs(message) {
            Some(logs) => worker.reopen(&logs),
            None => worker.log().plain(
                Level::Alert,
                format_args!("a message of the master was damaged"),
            ),
        },
        Some(Kind::Quit) => worker.stop(message.body == HAND_OVER),
        Some(Kind::Peer) => {
            if let Some(peer) = message.descriptors.into_iter().next() {
                worker.add_peer(Channel::from_fd(peer));
            }
        }
        Some(Kind::Terminate) => return Some(End::Done),
        Some(Kind::Applied | Kind::Refused) | None => {
            worker.log().plain(
                Level::Alert,
                format_args!("unknown message {} of the master", message.kind),
            );
        }
    }
    None
}

fn configure(worker: &mut Worker, channel: &Channel, message: Message) -> Option<End> {
    let Some(generation) = Generation::decode(message) else {
        worker.log().plain(
            Level::Alert,
            format_args!("a message of the master was damaged"),
        );
        return Some(End::Fatal);
    };
    let result = worker.apply(&generation);
    let mut body = generation.number.to_le_bytes().to_vec();
    let answer = match &result {
        Ok(()) => Kind::Applied,
        Err(why) => {
            body.extend_from_slice(why.as_bytes());
            Kind::Refused
        }
    };
    // If the master is gone, the next message says so.
    let _ = channel.send(answer as u8, &body, &[]);
    // Without a first configuration there is nothing to go on with.
    (result.is_err() && !worker.runs()).then_some(End::Fatal)
}

fn take_signals(worker: &mut Worker, signals: &Signals) -> Option<End> {
    while let Ok(Some(received)) = signals.next() {
        let action = match received.signal {
            Signal::Quit | Signal::Winch => ", shutting down",
            Signal::Term | Signal::Int => ", exiting",
            Signal::Hup | Signal::Usr2 | Signal::Usr1 => ", ignoring",
            Signal::Child | Signal::Kill => "",
        };
        log_signal(worker.log(), received, action);
        match received.signal {
            Signal::Quit | Signal::Winch => worker.stop(false),
            Signal::Term | Signal::Int => return Some(End::Done),
            Signal::Hup | Signal::Usr1 | Signal::Usr2 | Signal::Child | Signal::Kill => {}
        }
    }
    None
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
