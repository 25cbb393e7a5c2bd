//! The binary: command line, configuration files, master and worker, signals.
//!
//! It knows processes and nothing of HTTP; the engines it runs are listed in [`engines`]. In the order of
//! a start:
//!
//! ```text
//! main → cli → run        arguments, `-t`, `-s`
//!          load           configuration files → core, events and the engines' parts
//!          prepare        folders, logs, listening sockets (sockets)
//!          master         forks worker_process, sends it a message::Generation
//!          worker         loops on threads; the same for the first configuration and a reload
//! ```
#![forbid(unsafe_code)]

mod affinity;
mod authority;
mod cache_command;
mod check;
mod children;
mod cli;
mod core;
mod engines;
mod events;
mod handover;
mod help;
mod identity;
mod init;
mod load;
mod master;
mod message;
mod modules;
mod orphan;
mod paths;
mod prepare;
mod proxy;
mod run;
mod sandbox;
mod serve;
mod single;
mod sockets;
mod status_help;
mod trial;
mod upgrade;
mod voice;
mod watchdog;
mod watchers;
mod worker;
mod worker_process;

use std::ffi::OsString;

use crate::cli::Command;
use crate::identity::Identity;

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let identity = arguments
        .first()
        .map_or(Identity::Weir, |name| Identity::of(name));
    rt::error_log::set_program(identity.program());
    let code = match cli::parse(identity, arguments.iter().skip(1).cloned()) {
        Ok(Command::Run(options)) => run::run(identity, &options, &arguments),
        Ok(Command::Serve(arguments)) => serve::run(&arguments),
        Ok(Command::Proxy(arguments)) => proxy::run(&arguments),
        Ok(Command::Init(arguments)) => init::run(&arguments),
        Ok(Command::Cache(arguments)) => cache_command::run(&arguments),
        Ok(Command::Check(check)) => run::check(identity, &check, &arguments),
        Ok(Command::Upgrade(options)) => run::upgrade(identity, &options, &arguments),
        Ok(Command::Help(name)) => help::help(name.as_deref()),
        Ok(Command::Usage(page)) => {
            print!("{page}");
            0
        }
        Ok(Command::Reference(directory)) => help::write_reference(&directory),
        Err(error) => {
            eprintln!("{}: {error}", identity.program());
            1
        }
    };
    std::process::exit(code);
}
