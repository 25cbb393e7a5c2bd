//! `lua-suites`: the suites of lua-nginx-module and of the libraries around it, on nginx and on Weir.
//!
//! ```text
//! cargo xtask lua-suites --suites DIR [--oracle PATH] [--modules "A.so B.so"] [--weir PATH] [--only TEXT] [--jobs N] [--reuse | --read]
//! ```
//!
//! `DIR` has `test-nginx` (github.com/openresty/test-nginx) and, beside it, a folder for each suite with its files in `t`:
//! openresty/lua-nginx-module, openresty/lua-resty-core and so on. None of them is the project's. Counted is what passes
//! on the oracle; what a client sees stands apart from what the suites look for in the error log, where they know
//! lua-nginx-module's debug lines. Blocks that need directives of modules that Weir does not have are counted apart too.
//!
//! A file runs in namespaces of its own (network, processes), with a memcached and a Redis of its own, so that files can
//! run beside each other and leave nothing behind; that needs root. `--reuse` takes what the oracle said in an earlier run, `--read` what both said, and runs nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, shell};

use crate::packages;

/// Changes how the suites meet a server that refuses a configuration.
const ROBUST: &str = include_str!("lua_suites/robust.pm");

/// The services that the suites speak to, and a file of them.
const ALONE: &str = include_str!("lua_suites/alone.sh");

/// How long one file may take.
const FILE: Duration = Duration::from_secs(15 * 60);

/// Where Debian's package puts nginx.
const ORACLE: &str = "/usr/sbin/nginx";

/// What the suites need, with the packages that have it; Perl's modules are whole paths.
const NEEDED: [(&str, &str); 7] = [
    ("/usr/share/perl5/Test/Base.pm", "libtest-base-perl"),
    (
        "/usr/share/perl5/Test/LongString.pm",
        "libtest-longstring-perl",
    ),
    ("/usr/share/perl5/LWP/UserAgent.pm", "libwww-perl"),
    (
        "/usr/share/perl5/List/MoreUtils.pm",
        "liblist-moreutils-perl",
    ),
    ("/usr/share/perl5/IPC/Run.pm", "libipc-run-perl"),
    packages::MEMCACHED,
    packages::REDIS,
];

/// Runs the suites and prints the table.
pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let suites: String = flags.value("--suites", String::new())?;
    let oracle: String = flags.value("--oracle", ORACLE.to_owned())?;
    let modules: String = flags.value("--modules", String::new())?;
    let weir: String = flags.value("--weir", String::new())?;
    let only: String = flags.value("--only", String::new())?;
    let jobs: usize = flags.value("--jobs", 1)?;
    let kept: &'static [&'static str] = match (flags.has("--read"), flags.has("--reuse")) {
        (true, _) => &["oracle", "weir"],
        (false, true) => &["oracle"],
        (false, false) => &[],
    };
    flags.finish()?;
    if suites.is_empty() {
        return Err("--suites DIR is needed: a folder with test-nginx and the suites".to_owned());
    }
    packages::need(&NEEDED)?;
    let suites = fs::canonicalize(&suites).map_err(|error| format!("{suites}: {error}"))?;
    let weir = match weir.is_empty() {
        false => PathBuf::from(weir),
        true => {
            shell::run(
                shell::cargo().args(["build", "--package", "weir"]),
                2 * FILE,
            )?;
            shell::target().join("debug/weir")
        }
    };
    let weir = fs::canonicalize(&weir).map_err(|error| format!("{}: {error}", weir.display()))?;
    let stage = Stage::new(suites, &oracle, modules, &weir, kept)?;
    let mut files = stage.files()?;
    files.retain(|file| file.contains(&only));
    if kept.contains(&"weir") {
        files.retain(|file| kept.iter().all(|server| stage.log(server, file).exists()));
    }
    let table = run_files(&stage, &files, jobs.max(1))?;
    println!("\n{HEADING}");
    let mut total = Score::default();
    for (suite, score) in &table {
        println!("{}", score.row(suite));
        total.add(score);
    }
    println!("{}", total.row("all"));
    Ok(())
}

/// Runs the files, some at a time; the scores by suite.
fn run_files(
    stage: &Stage,
    files: &[String],
    jobs: usize,
) -> Result<BTreeMap<String, Score>, String> {
    let next = AtomicUsize::new(0);
    let table: Mutex<BTreeMap<String, Score>> = Mutex::default();
    std::thread::scope(|scope| {
        let work = |job| {
            if !stage.kept.contains(&"weir") {
                stage.copy(job)?;
            }
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let expected = stage.run("oracle", job, file)?;
                let got = stage.run("weir", job, file)?;
                let suite = file.split('/').next().unwrap_or_default().to_owned();
                let mut table = table.lock().map_err(|_| "a job panicked".to_owned())?;
                let score = compare(&expected, &got, file);
                println!("{file}: {}", score.line());
                table.entry(suite).or_default().add(&score);
            }
            Ok(())
        };
        let started: Vec<_> = (0..jobs)
            .map(|job| scope.spawn(move || work(job)))
            .collect();
        started.into_iter().try_for_each(|job| {
            job.join()
                .unwrap_or_else(|_| Err("a job panicked".to_owned()))
        })
    })?;
    table.into_inner().map_err(|_| "a job panicked".to_owned())
}

/// Where the suites are, and what they are run with.
struct Stage {
    suites: PathBuf,
    out: PathBuf,
    modules: String,
    /// The servers whose output of an earlier run stands.
    kept: &'static [&'static str],
}

impl Stage {
    fn new(
        suites: PathBuf,
        oracle: &str,
        modules: String,
        weir: &Path,
        kept: &'static [&'static str],
    ) -> Result<Stage, String> {
        let out = std::path::absolute(shell::target().join("lua-suites"))
            .map_err(|error| error.to_string())?;
        let stage = Stage {
            suites,
            out,
            modules,
            kept,
        };
        stage.write("perl/Robust.pm", ROBUST)?;
        stage.write("alone.sh", ALONE)?;
        stage.write(
            "oracle/nginx",
            &format!("#!/bin/sh\nexec {oracle} \"$@\"\n"),
        )?;
        // Under this name it calls itself nginx, also in `Server`, which many blocks look at.
        let link = out_link(&stage.out, weir)?;
        // Files leave blocks out by the version and the options of the binary: the same ones on both.
        let weir = link.display();
        stage.write(
            "weir/nginx",
            &format!(
                "#!/bin/sh\ncase \"$*\" in *-V*) exec {oracle} -V ;; esac\nexec {weir} \"$@\"\n"
            ),
        )?;
        for name in ["oracle/nginx", "weir/nginx"] {
            shell::run(
                Command::new("chmod").arg("+x").arg(stage.out.join(name)),
                FILE,
            )?;
        }
        Ok(stage)
    }

    fn write(&self, name: &str, text: &str) -> Outcome {
        let path = self.out.join(name);
        let folder = path.parent().unwrap_or(&self.out);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Gives a job its own copy of the suites: they write into their folders.
    fn copy(&self, job: usize) -> Outcome {
        let folder = self.out.join(format!("job-{job}"));
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let mut copy = Command::new("cp");
        copy.arg("-rT").arg(&self.suites).arg(&folder);
        shell::run(&mut copy, FILE)
    }

    /// The files of all suites, as `SUITE/t/NAME.t`.
    fn files(&self) -> Result<Vec<String>, String> {
        let mut files = Vec::new();
        let mut folders = Vec::new();
        for suite in entries(&self.suites)? {
            if !suite.ends_with("test-nginx") && suite.join("t").is_dir() {
                folders.push(suite.join("t"));
            }
        }
        while let Some(folder) = folders.pop() {
            for path in entries(&folder)? {
                match path.extension().and_then(|end| end.to_str()) {
                    Some("t") => files.push(path),
                    _ if path.is_dir() && !path.ends_with("servroot") => folders.push(path),
                    _ => {}
                }
            }
        }
        let names = files
            .iter()
            .filter_map(|path| path.strip_prefix(&self.suites).ok());
        let mut names: Vec<_> = names.map(|path| path.display().to_string()).collect();
        names.sort();
        Ok(names)
    }

    fn log(&self, server: &str, file: &str) -> PathBuf {
        self.out.join(server).join(format!("{file}.log"))
    }

    /// Runs a file on a server; what became of its blocks. The whole output stays in the target folder.
    fn run(&self, server: &str, job: usize, file: &str) -> Result<Blocks, String> {
        let log = self.log(server, file);
        if !(self.kept.contains(&server) && log.exists()) {
            self.write(&format!("{server}/{file}.log"), "")?;
            let open = || File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
            let (out, errors) = open().map_err(|error| format!("{}: {error}", log.display()))?;
            let mut perl = self.command(server, job, file);
            perl.stdin(Stdio::null()).stdout(out).stderr(errors);
            let mut child = perl.spawn().map_err(|error| format!("unshare: {error}"))?;
            if let Err(problem) = shell::wait(&mut child, FILE) {
                println!("{file} on {server}: {problem}");
            }
        }
        let text = fs::read(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        Ok(read(&String::from_utf8_lossy(&text)))
    }

    fn command(&self, server: &str, job: usize, file: &str) -> Command {
        let (suite, name) = file.split_once('/').unwrap_or((file, ""));
        let suites = self.out.join(format!("job-{job}"));
        let folder = suites.join(suite);
        let framework = suites.join("test-nginx");
        let libraries = [
            self.out.join("perl"),
            folder.clone(),
            folder.join("lib"),
            framework.join("lib"),
            framework.join("inc"),
        ];
        let libraries = libraries.map(|path| path.display().to_string()).join(":");
        // The module insists on the lua-resty-core of its own version.
        let scripts = ["lua-resty-core", "lua-resty-lrucache"]
            .map(|name| format!("{}/{name}/lib/?.lua;", suites.display()));
        let modules = if server == "oracle" {
            &self.modules
        } else {
            ""
        };
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg("sh")
            .arg(self.out.join("alone.sh"))
            .arg(name)
            .current_dir(&folder)
            .env("PERL5LIB", libraries)
            .env("LUA_PATH", format!("{};", scripts.concat()))
            .env("TEST_NGINX_BINARY", self.out.join(server).join("nginx"))
            .env("TEST_NGINX_LOAD_MODULES", modules)
            .env("TEST_NGINX_NO_SHUFFLE", "1");
        command
    }
}

fn out_link(out: &Path, weir: &Path) -> Result<PathBuf, String> {
    let folder = out.join("weir/as");
    let link = folder.join("nginx");
    fs::create_dir_all(&folder)
        .and_then(|()| match fs::remove_file(&link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::os::unix::fs::symlink(weir, &link),
        })
        .map_err(|error| format!("{}: {error}", link.display()))?;
    Ok(link)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// What became of the blocks of a file, by name.
type Blocks = BTreeMap<String, Block>;

#[derive(Debug, Default, PartialEq)]
struct Block {
    /// What each subtest is about, and whether it passed.
    subtests: Vec<(String, bool)>,
    /// The server does not know a directive of this name.
    missing: Option<String>,
}

/// Reads what a file printed.
fn read(text: &str) -> Blocks {
    let mut blocks = Blocks::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(block) = line.strip_prefix("##BLOCK ") {
            name = match block.find(".t ") {
                Some(at) => block[at + 3..].to_owned(),
                None => block.to_owned(),
            };
            blocks.entry(name.clone()).or_default();
            continue;
        }
        let Some(block) = blocks.get_mut(&name) else {
            continue;
        };
        if let Some(at) = line.find("unknown directive \"") {
            let rest = &line[at + "unknown directive \"".len()..];
            // The module's own directives are no other module's.
            block.missing = rest
                .split('"')
                .next()
                .filter(|name| !name.contains("lua"))
                .map(str::to_owned);
        }
        let (passed, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        let about = rest.split_once(" - ").map_or("", |(_, about)| about);
        if rest.contains("# skip") {
            continue;
        }
        let about = about.replace("\\#", "#");
        let about = about.find(&name).map_or(&*about, |at| {
            about[at + name.len()..].trim_start_matches(" - ")
        });
        block.subtests.push((key(about).to_owned(), passed));
    }
    blocks
}

/// What a subtest is about, without what the server answered.
fn key(about: &str) -> &str {
    let ends = [
        " matches",
        " should",
        " does not match",
        " response is expected (",
    ];
    let end = ends.iter().filter_map(|end| about.find(end)).min();
    &about[..end.unwrap_or(about.len())]
}

/// Whether a subtest looks at a log, and not at what a client sees.
fn is_of_log(about: &str) -> bool {
    [
        "pattern \"",
        "grep_error_log",
        "stap",
        "shutdown",
        "error.log",
    ]
    .iter()
    .any(|word| about.contains(word))
}

/// The names of a row's columns.
const HEADING: &str = "| suite | files | blocks | subtests on nginx | on Weir | a client sees | on Weir | \
    other modules' | share without them |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|";

/// Subtests that pass on the oracle, and of them on Weir.
#[derive(Clone, Debug, Default, PartialEq)]
struct Score {
    /// With a subtest that passes on the oracle.
    files: u32,
    blocks: u32,
    all: (u32, u32),
    seen: (u32, u32),
    /// What a client sees of blocks with directives that Weir does not know.
    foreign: u32,
}

impl Score {
    fn add(&mut self, other: &Score) {
        self.files += other.files;
        self.blocks += other.blocks;
        self.all = (self.all.0 + other.all.0, self.all.1 + other.all.1);
        self.seen = (self.seen.0 + other.seen.0, self.seen.1 + other.seen.1);
        self.foreign += other.foreign;
    }

    /// Of what a client sees, without other modules' directives, in percent.
    fn share(&self) -> f64 {
        let known = self.seen.0 - self.foreign;
        100.0 * f64::from(self.seen.1) / f64::from(known.max(1))
    }

    fn line(&self) -> String {
        format!(
            "all {:>5} / {:>5}   a client sees {:>5} / {:>5}   other modules' {:>4}   without them {:.1} %",
            self.all.1,
            self.all.0,
            self.seen.1,
            self.seen.0,
            self.foreign,
            self.share()
        )
    }

    fn row(&self, suite: &str) -> String {
        format!(
            "| {suite} | {} | {} | {} | {} | {} | {} | {} | {:.2} % |",
            self.files,
            self.blocks,
            self.all.0,
            self.all.1,
            self.seen.0,
            self.seen.1,
            self.foreign,
            self.share()
        )
    }
}

/// Counts, and names the blocks in which a client sees something else.
fn compare(expected: &Blocks, got: &Blocks, file: &str) -> Score {
    let mut score = Score::default();
    let nothing = Block::default();
    for (name, block) in expected {
        let other = got.get(name).unwrap_or(&nothing);
        let mut left: Vec<&(String, bool)> = other.subtests.iter().collect();
        let mut differs = 0;
        let before = score.all.0;
        for (about, _) in block.subtests.iter().filter(|(_, passed)| *passed) {
            let found = left.iter().position(|(known, _)| known == about);
            let passes = found.is_some_and(|at| left.remove(at).1);
            score.all.0 += 1;
            score.all.1 += u32::from(passes);
            if !is_of_log(about) {
                score.seen.0 += 1;
                score.seen.1 += u32::from(passes);
                differs += u32::from(!passes);
            }
        }
        score.blocks += u32::from(score.all.0 > before);
        match &other.missing {
            Some(_) => score.foreign += differs,
            None if differs > 0 => println!("    {file} {name}"),
            None => {}
        }
    }
    score.files = u32::from(score.all.0 > 0);
    score
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_prints_is_read_and_compared() {
        let nginx = "1..6\n##BLOCK t/a.t TEST 1: one\nok 1 - t/a.t TEST 1: one - status code ok\n\
            ok 2 - t/a.t TEST 1: one - pattern \"x\" matches a line in error.log\n\
            ok 3 # skip t/a.t TEST 1: one - stap_out\n\
            ##BLOCK t/a.t TEST 2: two\nok 4 - t/a.t TEST 2: two - response_body - response is expected (1)\n";
        let weir = "##BLOCK t/a.t TEST 1: one\nnot ok 1 - t/a.t TEST 1: one - status code ok\n\
            not ok 2 - t/a.t TEST 1: one - pattern \"x\" should match a line in error.log\n\
            ##BLOCK t/a.t TEST 2: two\nnginx: [emerg] unknown directive \"echo\" in x:1\n##DIED\n";
        let (nginx, weir) = (read(nginx), read(weir));
        assert_eq!(nginx["TEST 1: one"].subtests.len(), 2);
        assert_eq!(weir["TEST 2: two"].missing.as_deref(), Some("echo"));
        let score = compare(&nginx, &weir, "a.t");
        assert_eq!(score.all, (3, 0));
        assert_eq!(score.seen, (2, 0));
        assert_eq!(score.foreign, 1);
        assert_eq!(compare(&nginx, &nginx, "a.t").seen, (2, 2));
    }
}
