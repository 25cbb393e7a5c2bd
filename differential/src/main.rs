//! The command line of the differential machine; `cargo xtask differential --help` shows what it takes.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use weir_differential::batch::{self, Bench, Outcome};
use weir_differential::campaign::{self, Plan, Tally};
use weir_differential::case::{Case, text};
use weir_differential::generate::recombined::Recombined;
use weir_differential::side::client::Patience;
use weir_differential::side::server::{self, Program};
use weir_differential::{generate, judge, known, version};
use xtask::flags::Flags;

const HELP: &str = "\
cargo xtask differential [flags]

  --oracle PATH   nginx (default: $ORACLE, or /usr/sbin/nginx)
  --weir PATH     Weir (default: the debug build)
  --area NAME     only this area, or several separated by commas
  --from DIR      recombines the configurations below this directory instead
  --seed N        seed of the random cases (1)
  --cases N       ends after this many
  --time T        ends after this time: 30s, 2m, 3h (2m)
  --reduce        minimises each case that differs
  --each N        number of cases to examine per class (1)
  --first         ends with the first difference that is confirmed
  --batch N       cases per start (200)
  --lanes N       concurrent starts (4)
  --allow-open    differences with an open rule are not failures
  --keep DIR      writes cases that differ to files for --replay
  --replay FILE   runs one case, or those of a directory, and shows all differences
  --case NAME     runs one generated case alone, by its name: cache-7-0-12
  --show AREA     prints a case of this seed, without running it
  --compat        writes the known differences into docs/compat.md (with --check: only compares)
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, machine, program, rest @ ..] = words.as_slice()
        && first == server::FOLLOW
    {
        eprintln!("{program}: {}", server::follow(machine, program, rest));
        return ExitCode::FAILURE;
    }
    let mut flags = Flags::new(std::env::args().skip(1));
    match run(&mut flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("weir-differential: {problem}");
            ExitCode::from(2)
        }
    }
}

/// True when nothing differed that is not known.
fn run(flags: &mut Flags) -> Result<bool, String> {
    if flags.has("--help") {
        print!("{HELP}");
        return Ok(true);
    }
    if flags.has("--compat") {
        let check = flags.has("--check");
        flags.finish()?;
        return known::write_page(check).map(|()| true);
    }
    let programs = programs(flags)?;
    let allow_open = flags.has("--allow-open");
    let seed = flags.value("--seed", 1)?;
    let shown: String = flags.value("--show", String::new())?;
    let replay: String = flags.value("--replay", String::new())?;
    let named: String = flags.value("--case", String::new())?;
    let keep: String = flags.value("--keep", String::new())?;
    let from: String = flags.value("--from", String::new())?;
    let mut plan = Plan {
        areas: areas(&flags.value("--area", String::new())?)?,
        seed,
        cases: flags.value("--cases", u64::MAX)?,
        time: duration(&flags.value("--time", "2m".to_owned())?)?,
        batch: flags.value("--batch", 200)?,
        lanes: flags.value("--lanes", 4)?,
        reduce: flags.has("--reduce"),
        each: flags.value("--each", 1)?,
        first: flags.has("--first"),
    };
    flags.finish()?;
    if plan.cases != u64::MAX {
        plan.time = Duration::from_secs(24 * 3600);
    }
    if !from.is_empty() {
        plan.areas = vec![recombined(Path::new(&from), &programs)?];
    }
    if !shown.is_empty() {
        let area = if from.is_empty() {
            areas(&shown)?
        } else {
            plan.areas.clone()
        };
        let cases = generate::batch(area[0], seed, 0, 5);
        cases
            .iter()
            .for_each(|case| println!("{}", text::print(case)));
        return Ok(true);
    }
    batch::sweep();
    let bench = bench(programs);
    println!("nginx {}, seed {seed}", bench.programs[0].version);
    if !replay.is_empty() {
        return replayed(&bench, Path::new(&replay));
    }
    if !named.is_empty() {
        return alone(&bench, &named, &case_of(&named)?);
    }
    let tally = campaign::run(&plan, &bench);
    report(&tally, bench.programs[0].version);
    println!("  time: {}", bench.spent.line());
    if !keep.is_empty() {
        kept(&tally, Path::new(&keep))?;
    }
    let is_confirmed = tally.classes.values().any(campaign::Class::is_confirmed);
    let is_open = is_confirmed || (!allow_open && !tally.open.is_empty());
    Ok(!is_open && tally.failed.is_empty() && tally.cases > 0)
}

/// Both servers, and a client of usual patience.
fn bench(programs: [Program; 2]) -> Bench {
    Bench {
        programs,
        patience: Patience {
            wait: Duration::from_millis(1200),
        },
        threads: 40,
        spent: Arc::default(),
    }
}

/// nginx, and Weir.
fn programs(flags: &mut Flags) -> Result<[Program; 2], String> {
    let named = std::env::var("ORACLE").unwrap_or_default();
    let usual = match named.is_empty() {
        true => "/usr/sbin/nginx".to_owned(),
        false => named,
    };
    let oracle: String = flags.value("--oracle", usual)?;
    let weir: String = flags.value("--weir", "target/debug/weir".to_owned())?;
    Ok([
        Program::new(Path::new(&oracle))?,
        Program::new(Path::new(&weir))?,
    ])
}

fn areas(names: &str) -> Result<Vec<&'static dyn generate::Generator>, String> {
    if names.is_empty() {
        return Ok(generate::AREAS.to_vec());
    }
    let find = |name: &str| {
        let known = generate::AREAS.iter().find(|area| area.area() == name);
        known.copied().ok_or_else(|| {
            let all: Vec<&str> = generate::AREAS.iter().map(|area| area.area()).collect();
            format!("no area {name:?}; there are {}", all.join(", "))
        })
    };
    names.split(',').map(find).collect()
}

/// The generator of `--from`, without directives that a server does not know. Weir tells all of them at once, nginx one.
fn recombined(
    folder: &Path,
    programs: &[Program; 2],
) -> Result<&'static dyn generate::Generator, String> {
    let mut found = Recombined::load(folder)?;
    let place =
        std::env::temp_dir().join(format!("weir-differential-{}-names", std::process::id()));
    let failed = |error: std::io::Error| format!("{}: {error}", place.display());
    fs::create_dir_all(&place).map_err(failed)?;
    let mut unknown = BTreeSet::new();
    let mut ask = |program: &Program, names: &[String]| -> Result<(), String> {
        let text = format!("events {{}}\nhttp {{\n{};\n}}\n", names.join(";\n"));
        fs::write(place.join("nginx.conf"), text).map_err(failed)?;
        for said in program.test(&place)? {
            if let Some(name) = said.message.strip_prefix("unknown directive \"") {
                unknown.insert(name.trim_end_matches('"').to_owned());
            }
        }
        Ok(())
    };
    let names = found.directives();
    ask(&programs[1], &names)?;
    for name in &names {
        ask(&programs[0], std::slice::from_ref(name))?;
    }
    // What stays behind harms nobody.
    let _ = fs::remove_dir_all(&place);
    found.leave_out(&unknown);
    // As long as the program runs: areas are constants otherwise.
    Ok(Box::leak(Box::new(found)))
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    let number: u64 = number.parse().map_err(|_| format!("no time: {text:?}"))?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(format!("no time: {text:?}")),
    };
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

/// A generator whose cases are mostly refused compares little: its author sees why.
const MOST_REFUSED: usize = 8;

fn report(tally: &Tally, oracle: version::Version) {
    let seconds = tally.time.as_secs_f64();
    println!(
        "\n{} cases in {seconds:.0} s beside nginx {oracle}: {:.0} a second; {} refused by both",
        tally.cases,
        tally.cases as f64 / seconds.max(0.001),
        tally.refused.values().sum::<u64>()
    );
    let mut refused: Vec<_> = tally.refused.iter().collect();
    refused.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (words, count) in refused.iter().take(MOST_REFUSED) {
        println!("  refused: {count:>4} {words}");
    }
    for (why, count) in &tally.failed {
        println!(
            "  not run: {count}: {}",
            why.lines().next().unwrap_or_default()
        );
    }
    for (rule, count) in &tally.known {
        println!("  known: {count:>6} {rule}");
    }
    for (rule, count) in &tally.open {
        println!("  OPEN: {count:>6} {rule}");
    }
    for (class, found) in &tally.classes {
        let how = match (found.is_confirmed(), found.passing) {
            (true, _) => "DIFFERS",
            (false, 0) => "with others",
            (false, _) => "not alone",
        };
        println!("  {how}: {:>6} {class}", found.cases);
    }
}

fn kept(tally: &Tally, folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    for (class, found) in &tally.classes {
        for (case, judged) in &found.examples {
            let mut out = format!("# {class}\n");
            for judged in judged {
                let difference = &judged.difference;
                let known = judged
                    .known
                    .map_or(String::new(), |rule| format!(" ({})", rule.name));
                for (who, value) in [("nginx", &difference.oracle), ("weir", &difference.weir)] {
                    let value = value.replace(['\n', '\r'], " ");
                    out.push_str(&format!("# {}{known}: {who}: {value}\n", difference.class));
                }
            }
            out.push_str(&text::print(case));
            fs::write(folder.join(format!("{}.case", case.name)), out).map_err(failed)?;
        }
    }
    Ok(())
}

/// Runs cases from files, each alone.
fn replayed(bench: &Bench, path: &Path) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(failed)?;
        files = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
    }
    let mut equal = true;
    for file in files {
        let source = fs::read_to_string(&file).map_err(failed)?;
        let case = text::parse(&source).map_err(|why| format!("{}: {why}", file.display()))?;
        equal &= alone(bench, &file.display().to_string(), &case)?;
    }
    Ok(equal)
}

/// Runs one case, and shows all that differs.
fn alone(bench: &Bench, name: &str, case: &Case) -> Result<bool, String> {
    let outcomes = bench.run(std::slice::from_ref(case));
    let judged: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| judge::judge(case, outcome, bench.programs[0].version))
        .collect();
    let differs = judged.iter().any(judge::Judged::is_open);
    println!("{name}: {}", if differs { "DIFFERS" } else { "equal" });
    judged.iter().for_each(campaign::show);
    if let Some(Outcome::Failed(why)) = outcomes.first() {
        return Err(why.clone());
    }
    Ok(!differs)
}

/// The generated case of a name, which has the area, the seed, and the numbers of the start and of the case in it.
fn case_of(name: &str) -> Result<Case, String> {
    let unknown = || format!("{name:?} is not the name of a case, such as cache-7-0-12");
    let mut parts = name.rsplitn(4, '-');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (Some(of_start), Some(start), Some(seed)) = (number(), number(), number()) else {
        return Err(unknown());
    };
    let area = areas(parts.next().ok_or_else(unknown)?)?;
    let size = usize::try_from(of_start + 1).map_err(|_| unknown())?;
    let mut cases = generate::batch(area[0], seed, start, size);
    cases.pop().ok_or_else(unknown)
}
