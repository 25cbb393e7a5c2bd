//! Other people's configurations on nginx and on Weir: what nginx accepts, Weir has to accept, and every answer has to
//! be the same.
//!
//! The texts are not here. `strangers.list` has addresses and commits; `--repositories DIR` names a directory with
//! clones of them (`git clone https://github.com/OWNER/NAME DIR/OWNER/NAME`; what is missing is skipped and counted).
//! Each text is prepared for this machine, both servers get the same one, and requests are made of its own words.

#![forbid(unsafe_code)]

mod addresses;
mod behind;
mod client;
mod compare;
mod facts;
mod includes;
mod known;
mod prepare;
mod report;
mod repositories;
mod requests;
mod run;
mod site;
mod syntax;
mod tls;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustls::ClientConfig;
use weir_differential::version::Version;
use xtask::flags::Flags;

use addresses::Addresses;
use behind::Behind;
use prepare::{Known, Prepared};
use report::{Outcome, Report};
use repositories::{Address, Clones};
use run::Binary;
use site::Common;

const HELP: &str = "\
usage: weir-strangers --repositories DIR [flags]

  --repositories DIR  clones of what the list names: DIR/OWNER/NAME or DIR/OWNER+NAME, bare or not
  --list PATH         the addresses (strangers/strangers.list)
  --oracle PATH       nginx to compare with (/usr/sbin/nginx)
  --weir PATH         a built Weir (target/debug/weir)
  --only TEXT         only addresses that contain this
  --without TEXT,...  no addresses that contain one of these
  --requests N        at most this number of requests for one configuration (400)
  --jobs N            configurations that run at a time (2)
  --report PATH       where the report goes (target/strangers.txt)
";

/// Definitions that a part of a configuration may lack.
const MAX_MISSING: usize = 10;

/// What the command line says.
struct Settings {
    oracle: Binary,
    version: Version,
    /// The oracle without modules of third parties.
    bare: Binary,
    ours: Binary,
    repositories: PathBuf,
    list: PathBuf,
    only: String,
    without: Vec<String>,
    jobs: usize,
    /// Requests for one configuration.
    most: usize,
    report: PathBuf,
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match settings().and_then(|settings| go(&settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("strangers: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn settings() -> Result<Settings, String> {
    let mut flags = Flags::new(std::env::args().skip(1));
    let path = |flags: &mut Flags, name: &str, default: &str| {
        flags.value(name, default.to_owned()).map(PathBuf::from)
    };
    let oracle = path(&mut flags, "--oracle", "/usr/sbin/nginx")?;
    let ours = path(&mut flags, "--weir", "target/debug/weir")?;
    let repositories = path(&mut flags, "--repositories", "")?;
    let list = path(&mut flags, "--list", "strangers/strangers.list")?;
    let report = path(&mut flags, "--report", "target/strangers.txt")?;
    let only = flags.value("--only", String::new())?;
    // Several, with commas between.
    let without = flags.value("--without", String::new())?;
    let jobs = flags.value("--jobs", 2)?;
    let most = flags.value("--requests", 400)?;
    flags.finish()?;
    if repositories.as_os_str().is_empty() {
        return Err(
            "--repositories DIR is needed: a directory with clones of what strangers.list names"
                .to_owned(),
        );
    }
    let (core, more) = modules(&oracle);
    let said = Command::new(&oracle).arg("-v").output();
    let said = said.map_err(|error| format!("{}: {error}", oracle.display()))?;
    let version = Version::find(&String::from_utf8_lossy(&said.stderr))
        .ok_or("the oracle does not say its version")?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(|error| error.to_string());
    let binary = |path: &Path, globals: String| absolute(path).map(|path| Binary { path, globals });
    Ok(Settings {
        version,
        bare: binary(&oracle, core.clone())?,
        oracle: binary(&oracle, format!("{core}{more}"))?,
        ours: binary(&ours, String::new())?,
        repositories,
        list,
        only,
        without: without
            .split(',')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect(),
        jobs,
        most,
        report,
    })
}

/// Debian builds `stream` and what third parties wrote as files of their own: what is there is loaded.
fn modules(oracle: &Path) -> (String, String) {
    let is_packaged = oracle == Path::new("/usr/sbin/nginx");
    let load = |names: &[&str]| -> String {
        let files = names
            .iter()
            .map(|name| format!("/usr/lib/nginx/modules/ngx_{name}_module.so"));
        files
            .filter(|file| is_packaged && Path::new(file).exists())
            .map(|file| format!("load_module {file}; "))
            .collect()
    };
    let more = [
        "http_ndk",
        "http_ndk_http",
        "http_set_misc",
        "http_lua",
        "http_headers_more_filter",
    ];
    // The kit's file has another name than its package.
    let kit = if is_packaged && Path::new("/usr/lib/nginx/modules/ndk_http_module.so").exists() {
        "load_module /usr/lib/nginx/modules/ndk_http_module.so; "
    } else {
        ""
    };
    (load(&["stream"]), format!("{kit}{}", load(&more)))
}

/// What the threads of a run share.
struct Run<'r> {
    settings: &'r Settings,
    common: Common,
    known: Known,
    /// Names that nginx's core does not know, with the number of files.
    names: Vec<(String, usize)>,
    all: Vec<Address>,
    next: AtomicUsize,
    outcomes: Mutex<Vec<Outcome>>,
    folder: PathBuf,
}

fn go(settings: &Settings) -> Result<(), String> {
    let list = std::fs::read_to_string(&settings.list).map_err(|error| error.to_string())?;
    let mut all = repositories::addresses(&list)?;
    all.retain(|address| {
        let place = format!("{}:{}", address.repository, address.path);
        place.contains(&settings.only)
            && !settings
                .without
                .iter()
                .any(|word| place.contains(word.as_str()))
    });
    let folder = std::env::temp_dir().join(format!("weir-strangers-{}", std::process::id()));
    let common = Common::make(&folder.join("common"))?;
    let mut clones = Clones::new(settings.repositories.clone());
    let (known, names) = known(settings, &all, &mut clones, &folder)?;
    let run = Run {
        settings,
        common,
        known,
        names,
        all,
        next: AtomicUsize::new(0),
        outcomes: Mutex::default(),
        folder,
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..settings.jobs.max(1))
            .map(|job| {
                let run = &run;
                scope.spawn(move || Worker::new(run, job)?.work())
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(outcome) => outcome,
                Err(_) => Err("a thread of ours ended early".to_owned()),
            })
    })?;
    let outcomes = run
        .outcomes
        .into_inner()
        .map_err(|error| error.to_string())?;
    let _ = std::fs::remove_dir_all(&run.folder);
    let report = Report::new(&outcomes, &run.names);
    std::fs::write(&settings.report, report.long()).map_err(|error| error.to_string())?;
    println!("{}", report.short());
    println!("all of it: {}", settings.report.display());
    Ok(())
}

/// Which names neither server knows, and in how many files each is.
fn known(
    settings: &Settings,
    all: &[Address],
    clones: &mut Clones,
    folder: &Path,
) -> Result<(Known, Vec<(String, usize)>), String> {
    let mut files = Vec::new();
    for address in all {
        if let Some(clone) = clones.get(address) {
            let names: HashSet<String> = prepare::names(clone, address).into_iter().collect();
            files.extend(names);
        }
    }
    let counts = prepare::count(files.into_iter());
    let probe = folder.join("probe");
    std::fs::create_dir_all(probe.join("logs")).map_err(|error| error.to_string())?;
    let mut known = Known::default();
    let mut unknown = Vec::new();
    for (name, count) in counts {
        if run::knows(&settings.bare, &probe, &name) {
            continue;
        }
        let ours = run::knows(&settings.ours, &probe, &name);
        if !ours || !run::knows(&settings.oracle, &probe, &name) {
            known.to_none.insert(name.clone());
        }
        unknown.push((
            format!("{name}{}", if ours { " (Weir has it)" } else { "" }),
            count,
        ));
    }
    unknown.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    Ok((known, unknown))
}

/// One thread: it has a server behind, ports and a folder of its own.
struct Worker<'r> {
    run: &'r Run<'r>,
    job: usize,
    behind: Behind,
    /// The port of its name server.
    names: u16,
    client: Arc<ClientConfig>,
    clones: Clones,
    folder: PathBuf,
}

impl Worker<'_> {
    fn new<'r>(run: &'r Run<'r>, job: usize) -> Result<Worker<'r>, String> {
        let (server, client) = tls::configurations(&run.common)?;
        Ok(Worker {
            run,
            job,
            behind: Behind::start(server).map_err(|error| error.to_string())?,
            names: behind::name_server().map_err(|error| error.to_string())?,
            client,
            clones: Clones::new(run.settings.repositories.clone()),
            folder: run.folder.join(job.to_string()),
        })
    }

    fn work(&mut self) -> Result<(), String> {
        let run = self.run;
        loop {
            let index = run.next.fetch_add(1, Ordering::Relaxed);
            let Some(address) = run.all.get(index) else {
                return Ok(());
            };
            let outcome = self.one(address, index);
            let mut outcomes = run.outcomes.lock().map_err(|error| error.to_string())?;
            outcomes.push(outcome);
            // A run of hours can be looked at while it goes on.
            if outcomes.len().is_multiple_of(50) {
                eprintln!("{} of {}", outcomes.len(), run.all.len());
                let report = Report::new(&outcomes, &run.names).long();
                std::fs::write(&run.settings.report, report).map_err(|error| error.to_string())?;
            }
        }
    }

    /// One configuration from its address to its differences.
    fn one(&mut self, address: &Address, index: usize) -> Outcome {
        let mut outcome = Outcome::new(address);
        // Ports that were used a moment ago may still have connections that end.
        let first = 18_000 + u16::try_from(self.job * 2_400 + (index % 16) * 150).unwrap_or(0);
        let addresses = Addresses::new(self.folder.clone(), first, self.behind.port, self.names);
        let Some(clone) = self.clones.get(address) else {
            return outcome.skipped("there is no clone with this commit");
        };
        let prepared = match prepare::prepare(clone, address, &self.run.known, addresses) {
            Ok(prepared) => prepared,
            Err(why) => return outcome.skipped(&why),
        };
        outcome.kind = prepared.facts.kind();
        outcome.removed = prepared.removed.clone();
        let text = match self.judge(&prepared, &mut outcome) {
            Ok(text) => text,
            Err(why) => return outcome.skipped(&why),
        };
        if outcome.oracle.is_some() || outcome.ours.is_some() {
            return outcome;
        }
        self.compare(outcome, &prepared, &text)
    }

    /// Asks both servers whether they accept it, after what it lacks has been added.
    fn judge(&self, prepared: &Prepared, outcome: &mut Outcome) -> Result<String, String> {
        let (settings, folder) = (self.run.settings, &self.folder);
        let built = self
            .run
            .common
            .build(folder, &prepared.with(""), &prepared.facts);
        built.map_err(|error| format!("the site cannot be built: {error}"))?;
        let mut more = String::new();
        for _ in 0..MAX_MISSING {
            outcome.oracle = settings.oracle.refusal(folder);
            let Some(line) = outcome
                .oracle
                .as_deref()
                .and_then(|message| prepared.missing(message))
            else {
                break;
            };
            more.push_str(&line);
            let written = std::fs::write(folder.join("nginx.conf"), prepared.with(&more));
            written.map_err(|error| error.to_string())?;
        }
        outcome.ours = settings.ours.refusal(folder);
        let is_change = |message: &String| known::is_changed_refusal(message, settings.version);
        if outcome.oracle.is_none() && outcome.ours.as_ref().is_some_and(is_change) {
            return Err("nginx itself has removed one of its directives since".to_owned());
        }
        Ok(prepared.with(&more))
    }

    /// Asks both servers everything.
    fn compare(&self, mut outcome: Outcome, prepared: &Prepared, text: &str) -> Outcome {
        let settings = self.run.settings;
        let requests = requests::all(&prepared.facts, settings.most);
        let answers = |binary: &Binary| {
            let built = self.run.common.build(&self.folder, text, &prepared.facts);
            built.map_err(|error| error.to_string())?;
            let mut sockets = prepared.addresses.sockets.iter();
            let listens = sockets.try_for_each(|path| self.behind.listen(path));
            listens.map_err(|error| error.to_string())?;
            binary.answers(&self.folder, &requests, &self.behind, &self.client)
        };
        match (answers(&settings.oracle), answers(&settings.ours)) {
            (Ok(theirs), Ok(ours)) => {
                let again = || answers(&settings.oracle);
                outcome.compare(
                    &requests,
                    &theirs,
                    &ours,
                    (&prepared.facts.directives, settings.version),
                    &again,
                );
            }
            (Err(why), Ok(_)) => return outcome.skipped(&format!("nginx does not start: {why}")),
            (Ok(_), Err(why)) => outcome.ours = Some(format!("it does not start: {why}")),
            (Err(_), Err(_)) => return outcome.skipped("neither server starts"),
        }
        outcome
    }
}
