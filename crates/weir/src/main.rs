//! The binary: command line, configuration files, master and worker, signals.
//!
//! This crate knows processes and nothing about HTTP; the engines are listed in [`engines`]. In the
//! order of a start:
//!
//! ```text
//! main → cli → run            arguments, `-t`, `-s`
//!          load_configuration configuration files → core, events and the engines' parts
//!          prepare            folders, logs, listening sockets (sockets)
//!          master             forks worker_process, sends it a message::GenerationMessage
//!          worker             loops on threads; the same for the first configuration and a reload
//! ```
#![forbid(unsafe_code)]
// `terminal` instead: these macros panic when nobody reads.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod affinity;
mod arguments;
mod authority;
mod cache_command;
mod check;
mod children;
mod cli;
mod command_hints;
mod commands;
mod completions;
mod core_conf;
mod default_user;
mod directive_notes;
mod engines;
mod entrypoint;
mod error_log_conf;
mod events;
mod explain;
mod foreign_format;
mod formatting;
mod group_arrivals;
mod handover;
mod help;
mod identity;
mod init;
mod json;
mod load_configuration;
mod lsp;
mod man_pages;
mod master;
mod message;
mod modules;
mod orphan;
mod password;
mod paths;
mod prepare;
mod proxy;
mod reference;
mod reference_pages;
mod refused_conf;
mod replaced_build;
mod run;
mod running_master;
mod runtime_reports;
mod sandbox;
mod sandbox_paths;
mod serve;
mod service_manager;
mod single_process;
mod sockets;
mod startup_log;
mod status_help;
mod tail;
mod takeover;
mod template;
mod terminal;
mod trial;
mod unit;
mod upgrade;
mod watchdog;
mod watchers;
mod worker;
mod worker_groups;
mod worker_loop;
mod worker_process;

use std::ffi::OsString;

use crate::cli::CliCommand;
use crate::identity::ProgramIdentity;

#[global_allocator]
static HEAP: rt::heap::SplitHeap = rt::heap::SplitHeap;

/// Runs the command, and exits with its code.
fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let identity = arguments
        .first()
        .map_or(ProgramIdentity::Weir, |name| ProgramIdentity::of(name));
    host::error_log::set_program(identity.program());
    let code = match cli::parse(identity, arguments.iter().skip(1).cloned()) {
        Ok(CliCommand::Run(options)) => run::run(identity, &options, &arguments),
        Ok(CliCommand::Serve(arguments)) => serve::run(&arguments),
        Ok(CliCommand::Proxy(arguments)) => proxy::run(&arguments),
        Ok(CliCommand::Init(arguments)) => init::run(&arguments),
        Ok(CliCommand::Cache(arguments)) => cache_command::run(&arguments),
        Ok(CliCommand::Check(check)) => run::check(identity, &check, &arguments),
        Ok(CliCommand::Explain(explain)) => explain::run(identity, &explain, &arguments),
        Ok(CliCommand::Format(arguments)) => formatting::run(&arguments),
        Ok(CliCommand::LanguageServer(arguments)) => lsp::run(&arguments),
        Ok(CliCommand::Upgrade(options)) => run::upgrade(identity, &options, &arguments),
        Ok(CliCommand::Tail(tail)) => tail::run_tail(&tail, &arguments),
        Ok(CliCommand::Top(top)) => tail::run_top(&top, &arguments),
        Ok(CliCommand::Takeover(takeover)) => takeover::run(&takeover),
        Ok(CliCommand::Shadow(shadow)) => takeover::shadow::run(&shadow),
        Ok(CliCommand::Canary(canary)) => takeover::canary::run(&canary),
        Ok(CliCommand::Unit(unit)) => unit::run(&unit, &arguments),
        Ok(CliCommand::Entrypoint(command)) => entrypoint::run(&command),
        Ok(CliCommand::Help(name)) => help::help(&name),
        Ok(CliCommand::Usage(page)) => {
            terminal::print_text(format_args!("{page}"));
            0
        }
        Ok(CliCommand::Completions(shell)) => {
            terminal::print_text(format_args!("{}", completions::script(shell)));
            0
        }
        Ok(CliCommand::Manual(page)) => man_pages::print(&page),
        Ok(CliCommand::Reference(directory)) => reference_pages::write_reference(&directory),
        Err(error) => {
            terminal::report_line(format_args!("{}: {error}", identity.program()));
            1
        }
    };
    std::process::exit(code);
}
