//! Trying a configuration before it is used: some errors show only when it runs, such as those of
//! `init_by_lua`. A start and a reload do that; `-t` runs nothing.
//!
//! nginx runs such code in its master. Here the master has to keep to one thread, so that it can
//! fork, and must not run what may never end. So a child process with the worker's user runs the
//! code, and exits with everything that the code has done to it.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use base::ErrnoText;
use host::engine::ConfigurationTest;
use host::process::{self, ChildExit, ForkSide};
use host::signal::{Signal, SignalReader};

use crate::core_conf::CoreConf;
use crate::load_configuration::LoadedConfiguration;

/// How long all trials of a configuration may take; the master does nothing else meanwhile.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum length of the child's message, in bytes.
const MAX_MESSAGE: u64 = 64 * 1024;

/// The child's message of success. An empty message would not do: the code could end the process.
const SUCCESS: &[u8] = b"\0";

/// Tries `loaded`. The error says why it cannot be used.
pub(crate) fn run(loaded: &LoadedConfiguration) -> Result<(), String> {
    let engines = loaded.engines.iter();
    let trials: Vec<ConfigurationTest> = engines
        .flat_map(|engine| engine.configuration_tests())
        .collect();
    if trials.is_empty() {
        return Ok(());
    }
    let failed = |what: &str, error: &io::Error| format!("{what} failed{}", ErrnoText(error));
    let (reader, writer) = io::pipe().map_err(|error| failed("pipe()", &error))?;
    let master = std::process::id();
    match process::fork().map_err(|error| failed("fork()", &error))? {
        ForkSide::Child => {
            drop(reader);
            in_child(&loaded.core, master, trials, writer)
        }
        ForkSide::Parent(child) => {
            drop(writer);
            outcome(child, reader)
        }
    }
}

/// The child: runs the trials, reports, exits.
fn in_child(
    core: &CoreConf,
    master: u32,
    trials: Vec<ConfigurationTest>,
    mut writer: PipeWriter,
) -> ! {
    let result = prepare(core, master).and_then(|()| trials.into_iter().try_for_each(|run| run()));
    let message = match &result {
        Ok(()) => SUCCESS,
        Err(why) => why.as_bytes(),
    };
    // If the master is gone, nothing reads this.
    let _ = writer.write_all(message);
    // Without destructors: the child has copies of what belongs to the master.
    std::process::exit(0)
}

/// Does what a worker does before it reads its configuration, as far as the code could notice.
fn prepare(core: &CoreConf, master: u32) -> Result<(), String> {
    // The master blocks them, and takes them after the trial. Ctrl-C in a terminal must not wait for
    // that. A failure leaves it as it is.
    let _ = SignalReader::unblock(&[Signal::Int, Signal::Term]);
    if let Some(user) = core.user.as_ref().filter(|_| process::is_root()) {
        // Before anything runs: code in the configuration must never run as root.
        process::become_user(user)?;
    }
    if let Some(directory) = &core.working_directory {
        std::env::set_current_dir(directory).map_err(|error| {
            format!(
                "chdir(\"{}\") failed{}",
                directory.display(),
                ErrnoText(&error)
            )
        })?;
    }
    match process::follow_parent(master, Signal::Kill) {
        Ok(false) => std::process::exit(0),
        // Otherwise the child exits a little later.
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Waits for the child's message and its exit.
fn outcome(child: u32, mut reader: PipeReader) -> Result<(), String> {
    let until = rt::clock::read_clock() + TRIAL_TIMEOUT;
    let mut message = Vec::new();
    // The child writes once, at its end, and less than a pipe holds.
    while !process::wait_readable(
        &[reader.as_fd()],
        Some(until.saturating_duration_since(rt::clock::read_clock())),
    )
    .is_ok_and(|ready| ready == [true])
    {
        if rt::clock::read_clock() >= until {
            // Whether it could be killed or had exited: it is reaped either way.
            let _ = process::kill(child, Signal::Kill);
            let _ = process::wait_for(child);
            let seconds = TRIAL_TIMEOUT.as_secs();
            return Err(format!(
                "the trial run of the configuration took longer than {seconds} seconds"
            ));
        }
    }
    // The child may write more than a message: what runs in it is not trusted.
    let read = reader.by_ref().take(MAX_MESSAGE).read_to_end(&mut message);
    drop(reader);
    let exit = process::wait_for(child);
    read.map_err(|error| format!("read() failed{}", ErrnoText(&error)))?;
    match exit {
        // The message decides, not the exit code, which the code could have set itself.
        _ if message == SUCCESS => Ok(()),
        _ if !message.is_empty() => Err(String::from_utf8_lossy(&message).into_owned()),
        Ok(ChildExit::Signal(number) | ChildExit::CoreDumped(number)) => Err(format!(
            "the trial run of the configuration ended on signal {number}"
        )),
        Ok(ChildExit::Code(code)) => Err(format!(
            "code in the configuration ended its process with exit code {code}"
        )),
        Err(error) => Err(format!("waitpid() failed{}", ErrnoText(&error))),
    }
}
