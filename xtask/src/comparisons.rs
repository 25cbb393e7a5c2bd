//! `comparisons`: all that compares Weir with nginx, once, for the figures of the notes: each area of the differential machine
//! beside an older and a newest nginx, the bugs put in on purpose, and third-party configurations. It takes hours.

use std::fs;
use std::path::Path;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, shell};

const HELP: &str = "\
cargo xtask comparisons --newest PATH [flags]

  --newest PATH        nginx 1.31, built from its sources
  --older PATH         Debian's nginx, with its modules (/usr/sbin/nginx)
  --weir PATH          Weir (default: a release build)
  --cases N            cases of each area beside each of the two (1000)
  --seed N             the seed (1)
  --areas A,B          only these areas
  --repositories DIR   clones of what strangers/strangers.list names; without it they are left out
  --without-bugs       leaves the bugs put in on purpose out
";

/// Areas that need modules of third parties, which only Debian's nginx has.
const OLDER_ONLY: &[&str] = &["lua", "others"];
const AREAS: &[&str] = &[
    "static",
    "gates",
    "streams",
    "packets",
    "freshness",
    "frames",
    "gateways",
    "conversations",
    "locations",
    "filters",
    "cache",
    "proxy",
    "tls",
    "tls-behind",
    "error-log",
    "rows",
    "http2",
    "grpc",
    "lua",
    "others",
    "writes",
    "nesting",
    "rewritten",
    "cgi",
    "slices",
    "variables",
    "choosing",
    "media",
    "hellos",
    "names",
    "repeats",
];

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    if flags.has("--help") {
        print!("{HELP}");
        return Ok(());
    }
    let newest: String = flags.value("--newest", String::new())?;
    let older: String = flags.value("--older", "/usr/sbin/nginx".to_owned())?;
    let weir: String = flags.value("--weir", String::new())?;
    let cases: u64 = flags.value("--cases", 1000)?;
    let seed: u64 = flags.value("--seed", 1)?;
    let areas: String = flags.value("--areas", AREAS.join(","))?;
    let repositories: String = flags.value("--repositories", String::new())?;
    let without_bugs = flags.has("--without-bugs");
    flags.finish()?;
    let folder = shell::target().join("comparisons");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let limit = Duration::from_secs(24 * 3600);
    let mut build = shell::cargo();
    build.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "weir-differential",
        "--package",
        "weir-strangers",
    ]);
    if weir.is_empty() {
        build.args(["--package", "weir"]);
    }
    shell::run(&mut build, limit)?;
    let weir = match weir.is_empty() {
        true => shell::target().join("release/weir").display().to_string(),
        false => weir,
    };
    let mut summary = format!(
        "seed {seed}, {cases} cases of each area\n\n| area | beside | cases a second | not covered by a rule |\n|---|---|---|---|\n"
    );
    for area in areas.split(',') {
        for oracle in [&newest, &older] {
            if oracle.is_empty() || (*oracle == newest && OLDER_ONLY.contains(&area)) {
                continue;
            }
            summary.push_str(&compare(area, oracle, &weir, [cases, seed], &folder)?);
            save(&folder.join("summary.txt"), &summary)?;
        }
    }
    if !repositories.is_empty() {
        let oracle = if newest.is_empty() { &older } else { &newest };
        summary.push_str(&compare_strangers(&repositories, oracle, &weir, &folder)?);
        save(&folder.join("summary.txt"), &summary)?;
    }
    if !without_bugs {
        let words = ["--seed".to_owned(), seed.to_string()];
        crate::planted::run(&mut Flags::new(words.into_iter()))?;
    }
    println!("\n{summary}\nin {}", folder.display());
    Ok(())
}

/// Runs one area beside one nginx; its line of the summary.
fn compare(
    area: &str,
    oracle: &str,
    weir: &str,
    [cases, seed]: [u64; 2],
    folder: &Path,
) -> Result<String, String> {
    let beside = if oracle == "/usr/sbin/nginx" {
        "older"
    } else {
        "newest"
    };
    let log = folder.join(format!("{area}-{beside}.txt"));
    let kept = folder.join(format!("{area}-{beside}"));
    let mut command = std::process::Command::new(shell::target().join("release/weir-differential"));
    command.args(["--oracle", oracle, "--weir", weir, "--area", area]);
    command
        .args([
            "--cases",
            &cases.to_string(),
            "--seed",
            &seed.to_string(),
            "--each",
            "3",
            "--keep",
        ])
        .arg(&kept);
    let (mut said, mut speed, mut unknown) = (String::new(), String::new(), Vec::new());
    shell::watch(&mut command, Duration::from_secs(24 * 3600), &mut |line| {
        said.push_str(line);
        said.push('\n');
        if let Some((_, rest)) = line
            .split_once(" in ")
            .filter(|(before, _)| before.ends_with(" cases"))
        {
            speed = rest
                .split(": ")
                .nth(1)
                .unwrap_or(rest)
                .split(';')
                .next()
                .unwrap_or_default()
                .to_owned();
        }
        if let Some(class) = line.trim_start().strip_prefix("DIFFERS:") {
            unknown.push(class.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    })?;
    save(&log, &said)?;
    let unknown = if unknown.is_empty() {
        "nothing".to_owned()
    } else {
        unknown.join("; ")
    };
    Ok(format!("| `{area}` | {beside} | {speed} | {unknown} |\n"))
}

fn save(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs the third-party configurations; their line of the summary.
fn compare_strangers(
    repositories: &str,
    oracle: &str,
    weir: &str,
    folder: &Path,
) -> Result<String, String> {
    let report = folder.join("strangers.txt").display().to_string();
    let mut command = std::process::Command::new(shell::target().join("release/weir-strangers"));
    command.args([
        "--repositories",
        repositories,
        "--oracle",
        oracle,
        "--weir",
        weir,
    ]);
    command.args(["--requests", "50", "--report", &report]);
    // What differs is in the report, and is a failure of this program only if it could not run.
    let equal = shell::watch(&mut command, Duration::from_secs(24 * 3600), &mut |_| {})?;
    let code = if equal { 0 } else { 1 };
    Ok(format!("\nstrangers: {report}, exit code {code}\n"))
}
