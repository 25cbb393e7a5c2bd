//! Trying a configuration before it is taken on: what only running it tells, such as whether `init_by_lua` goes well.
//!
//! nginx runs such code in its master. This master keeps to one thread, so that it can fork, and never runs what may
//! not end; so a child does it, with the worker's user, and is gone afterwards with all that the code did to it.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rt::engine::Trial;
use rt::error_log::Errno;
use rt::process::{self, Exit, Fork};
use rt::signal::Signal;

use crate::core::Core;
use crate::load::Loaded;

/// How long all trials of a configuration may take; the master does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest message that is passed on, in bytes.
const MAX_MESSAGE: u64 = 64 * 1024;

/// What the child says when all went well. An empty message is not enough: code that is tried may end the process.
const WELL: &[u8] = b"\0";

/// Tries `loaded`. The error says why it cannot be used.
pub(crate) fn run(loaded: &Loaded) -> Result<(), String> {
    let engines = loaded.engines.iter();
    let trials: Vec<Trial> = engines.flat_map(|engine| engine.trials()).collect();
    if trials.is_empty() {
        return Ok(());
    }
    let failed = |what: &str, error: &io::Error| format!("{what} failed{}", Errno(error));
    let (reader, writer) = io::pipe().map_err(|error| failed("pipe()", &error))?;
    let master = std::process::id();
    match process::fork().map_err(|error| failed("fork()", &error))? {
        Fork::Child => {
            drop(reader);
            in_child(&loaded.core, master, trials, writer)
        }
        Fork::Parent(child) => {
            drop(writer);
            outcome(child, reader)
        }
    }
}

fn in_child(core: &Core, master: u32, trials: Vec<Trial>, mut writer: PipeWriter) -> ! {
    let result = prepare(core, master).and_then(|()| trials.into_iter().try_for_each(|run| run()));
    let message = match &result {
        Ok(()) => WELL,
        Err(why) => why.as_bytes(),
    };
    // A master that is gone reads nothing.
    let _ = writer.write_all(message);
    std::process::exit(0)
}

/// What a worker does before it reads its configuration, as far as code can tell.
fn prepare(core: &Core, master: u32) -> Result<(), String> {
    if let Some(user) = core.user.as_ref().filter(|_| process::is_root()) {
        process::become_user(user)?;
    }
    if let Some(directory) = &core.working_directory {
        std::env::set_current_dir(directory).map_err(|error| {
            format!("chdir(\"{}\") failed{}", directory.display(), Errno(&error))
        })?;
    }
    match process::follow_parent(master, Signal::Kill) {
        Ok(false) => std::process::exit(0),
        // Without it the child ends a little later.
        Ok(true) | Err(_) => Ok(()),
    }
}

fn outcome(child: u32, mut reader: PipeReader) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    let mut message = Vec::new();
    // The child writes once, at its end, and less than a pipe holds.
    while !process::wait_readable(
        &[reader.as_fd()],
        Some(until.saturating_duration_since(Instant::now())),
    )
    .is_ok_and(|ready| ready == [true])
    {
        if Instant::now() >= until {
            // It is waited for below, however it ends.
            let _ = process::kill(child, Signal::Kill);
            let _ = process::wait_for(child);
            let seconds = PATIENCE.as_secs();
            return Err(format!(
                "the trial run of the configuration took longer than {seconds} seconds"
            ));
        }
    }
    let read = reader.by_ref().take(MAX_MESSAGE).read_to_end(&mut message);
    drop(reader);
    let exit = process::wait_for(child);
    read.map_err(|error| format!("read() failed{}", Errno(&error)))?;
    match exit {
        _ if message == WELL => Ok(()),
        _ if !message.is_empty() => Err(String::from_utf8_lossy(&message).into_owned()),
        Ok(Exit::Signal(number)) => Err(format!(
            "the trial run of the configuration ended on signal {number}"
        )),
        Ok(Exit::Code(code)) => Err(format!(
            "code in the configuration ended its process with exit code {code}"
        )),
        Err(error) => Err(format!("waitpid() failed{}", Errno(&error))),
    }
}
