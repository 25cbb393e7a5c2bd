//! `planted-bugs`: three bugs are put into a copy of the sources, and the differential machine searches for each of them. What
//! is asked is how soon it finds one that nobody has told it of.
//!
//! All three are in one binary, each behind a file whose presence switches it on, so that one build is enough.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use xtask::flags::Flags;
use xtask::{Outcome, packages, shell};

/// A bug: what is replaced where, and where the machine searches.
struct PlantedBug {
    name: &'static str,
    what: &'static str,
    file: &'static str,
    from: &'static str,
    /// `PLANTED` is true while the bug is switched on.
    to: &'static str,
    area: &'static str,
}

const BUGS: [PlantedBug; 3] = [
    PlantedBug {
        name: "merge",
        what: "`add_header` of a location is added to those of the server",
        file: "crates/modules/src/http/headers.rs",
        from: "if self.inherit == InheritMode::Merge =>",
        to: "if self.inherit == InheritMode::Merge || PLANTED =>",
        area: "static",
    },
    PlantedBug {
        name: "head",
        what: "HEAD over HTTP/1 loses `Last-Modified`",
        file: "crates/http/src/h1/head.rs",
        from: "    let out = &mut request.out;\n    out.drop_unfit_date();",
        to: "    if request.delivery.header_only && PLANTED {\n        request.out.last_modified = None;\n    }\n    \
             let out = &mut request.out;\n    out.drop_unfit_date();",
        area: "static",
    },
    PlantedBug {
        name: "stale",
        what: "a stored response never becomes stale",
        file: "crates/proto/src/caching/reuse.rs",
        from: "if is_fresh && !is_unwanted {",
        to: "if (is_fresh && !is_unwanted) || PLANTED {",
        area: "freshness",
    },
];

/// The longest that a search may take, as the machine is asked.
const SEARCH: &str = "2m";

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let seed: u64 = flags.value("--seed", 1)?;
    flags.finish()?;
    packages::need(&[packages::NGINX])?;
    let place = std::path::absolute(shell::target().join("planted"));
    let place = place.map_err(|error| error.to_string())?;
    let weir = build(&place)?;
    let machine = shell::target().join("debug/weir-differential");
    let mut late = Vec::new();
    let mut table = String::from("\n| bug | area | found after | by |\n|---|---|---|---|\n");
    for bug in &BUGS {
        let switch = place.join(bug.name);
        write(&switch, "")?;
        let started = Instant::now();
        let mut found = None;
        let mut command = std::process::Command::new(&machine);
        command.args([
            "--area",
            bug.area,
            "--seed",
            &seed.to_string(),
            "--time",
            SEARCH,
        ]);
        command.args(["--first", "--weir"]).arg(&weir);
        // Its exit code says that something differs, which is what is wanted here.
        let ended = shell::watch(&mut command, Duration::from_secs(600), &mut |line| {
            if let Some(class) = line.strip_prefix("== ") {
                found.get_or_insert_with(|| (started.elapsed(), class.to_owned()));
            }
        });
        fs::remove_file(&switch).map_err(|error| format!("{}: {error}", switch.display()))?;
        ended?;
        let (time, class) = match found {
            Some((time, class)) => (format!("{:.0} s", time.as_secs_f64()), format!("`{class}`")),
            None => ("not found".to_owned(), String::new()),
        };
        if class.is_empty() {
            late.push(bug.name);
        }
        table.push_str(&format!(
            "| {} | `{}` | {time} | {class} |\n",
            bug.what, bug.area
        ));
    }
    println!("{table}");
    match late.is_empty() {
        true => Ok(()),
        false => Err(format!("not found within {SEARCH}: {}", late.join(", "))),
    }
}

/// Builds a binary with the bugs from a copy of the sources, and the machine.
fn build(place: &Path) -> Result<PathBuf, String> {
    let source = place.join("source");
    let listed = shell::output(
        std::process::Command::new("git").args(["ls-files"]),
        Duration::from_secs(60),
    )?;
    for name in listed.lines().filter(|name| !name.starts_with('"')) {
        let Ok(bytes) = fs::read(name) else {
            // What the index has and the folder has not is not to be built.
            continue;
        };
        let mut bytes = bytes;
        for bug in BUGS.iter().filter(|bug| bug.file == name) {
            let switch = place.join(bug.name).display().to_string();
            let planted = format!("std::path::Path::new({switch:?}).exists()");
            let text = String::from_utf8_lossy(&bytes);
            if !text.contains(bug.from) {
                return Err(format!("{name} has no {:?} any more", bug.from));
            }
            bytes = text
                .replacen(bug.from, &bug.to.replace("PLANTED", &planted), 1)
                .into_bytes();
        }
        let to = source.join(name);
        // An equal file stays, so that it is not built again.
        if fs::read(&to).is_ok_and(|known| known == bytes) {
            continue;
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        write(&to, &bytes)?;
    }
    let limit = Duration::from_secs(3600);
    // A target folder of its own: in the common one the binary with the bugs would stay where tests look for Weir.
    let target = place.join("target");
    let mut command = shell::cargo();
    command
        .current_dir(&source)
        .env("CARGO_TARGET_DIR", &target);
    shell::run(
        command.args(["build", "--quiet", "--package", "weir"]),
        limit,
    )?;
    let mut command = shell::cargo();
    command.args(["build", "--quiet", "--package", "weir-differential"]);
    shell::run(&mut command, limit)?;
    Ok(target.join("debug/weir"))
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Outcome {
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}
