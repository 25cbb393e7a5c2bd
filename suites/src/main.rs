//! `weir-suites`: other people's applications and clients, with Weir between them and with nginx in turn. Each case is set
//! up from packages on loopback, its client says what it saw, and what it says must be the same behind both servers.
//!
//! What this is not: a test of what we thought of. That is `tests/server`. Nothing here knows what a right answer is
//! but for what the clients themselves insist on.

#![forbid(unsafe_code)]

mod case;
mod cases;
mod needs;
mod outcome;
mod scored;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;

use xtask::Outcome;
use xtask::flags::Flags;
use xtask::shell;

use case::Case;
use outcome::Row;
use stage::Server;

/// Where Debian's package puts nginx.
const ORACLE: &str = "/usr/sbin/nginx";

const HELP: &str = "\
usage: weir-suites [NAME…] [flags]      without a name: all

  --oracle PATH    nginx to compare with (/usr/sbin/nginx)
  --weir PATH      a built Weir (target/debug/weir)
  --suite DIR      a copy of github.com/tlsfuzzer/tlsfuzzer, for `tlsfuzzer`
  --lines          shows the output of each client
  --keep           keeps the directories of the cases

Names:";

fn main() -> ExitCode {
    let mut flags = Flags::new(std::env::args().skip(1));
    match shell::enter_project().and_then(|()| run(&mut flags)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("\nsuites: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// What was asked for on the command line.
pub(crate) struct Options {
    pub(crate) nginx: PathBuf,
    pub(crate) weir: PathBuf,
    pub(crate) suite: String,
    pub(crate) lines: bool,
    pub(crate) keep: bool,
}

fn run(flags: &mut Flags) -> Outcome {
    if flags.has("--help") {
        println!("{HELP}");
        let all = cases::all().into_iter().map(|case| (case.name, case.what));
        for (name, what) in all.chain(scored::ALL.iter().map(|one| (one.name, one.what))) {
            println!("  {name:<12} {what}");
        }
        return Ok(());
    }
    let options = Options {
        nginx: flags.value("--oracle", PathBuf::from(ORACLE))?,
        weir: flags.value("--weir", shell::target().join("debug/weir"))?,
        suite: flags.value("--suite", String::new())?,
        lines: flags.has("--lines"),
        keep: flags.has("--keep"),
    };
    let names = flags.take_rest();
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        return Err(format!("there is no case {unknown:?}; --help names them"));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let servers = [
        Server::new("nginx", &options.nginx)?,
        Server::new("weir", &options.weir)?,
    ];
    let mut rows = Vec::new();
    for case in cases::all().iter().filter(|case| wanted(case.name)) {
        rows.push(compare(case, &servers, &options));
    }
    for scored in scored::ALL.iter().filter(|one| wanted(one.name)) {
        rows.push(scored::run(scored, &servers, &options));
    }
    outcome::print(&rows);
    match rows.iter().filter(|row| row.is_bad()).count() {
        0 => Ok(()),
        bad => Err(format!("{bad} of {} differ or fail", rows.len())),
    }
}

fn is_known(name: &str) -> bool {
    cases::all().iter().any(|case| case.name == name)
        || scored::ALL.iter().any(|scored| scored.name == name)
}

/// One case behind both servers.
fn compare(case: &Case, servers: &[Server; 2], options: &Options) -> Row {
    println!("== {}: {}", case.name, case.what);
    if let Err(why) = needs::install(&case.needs) {
        println!("   skipped: {why}");
        return Row::skipped(case.name, why);
    }
    let [nginx, weir] = servers.each_ref().map(|server| {
        let seen = case.run(server, options);
        if options.lines {
            outcome::show(server.name, &seen);
        }
        seen
    });
    Row::compared(case, nginx, weir)
}
