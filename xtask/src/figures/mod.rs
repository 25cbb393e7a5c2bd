//! `figures`: the source in numbers, counted the same way each time, so that two states of the tree can be compared.
//! Only code of the product counts: no tests, benches, examples or fuzz targets.
//!
//! `--tree DIR` counts another copy, `--types` lists the types whose name another one has too, or that have a name of
//! one word, `--circles` lists the files that import each other, `--functions` those beyond a screen.

mod count;
pub(crate) mod names;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use xtask::Outcome;
use xtask::flags::Flags;
use xtask::shell;

use crate::rust::file::{self, RustFile};
use crate::rust::functions;
use crate::rust::imports::Imports;

use count::Count;
use names::{Crowd, TypeNames};
use table::Table;

/// A function above this is listed by `--functions`.
const SCREEN: usize = 60;

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let root: PathBuf = flags.value("--tree", PathBuf::from("."))?;
    let [types, circles, functions] =
        ["--types", "--circles", "--functions"].map(|name| flags.has(name));
    flags.finish()?;
    let product = file::of_product(&root)?;
    let files: Vec<&RustFile> = product.iter().collect();
    if types {
        list_types(&TypeNames::of(&files));
    }
    if circles {
        list_circles(&files);
    }
    if functions {
        list_functions(&files);
    }
    if types || circles || functions {
        return Ok(());
    }
    let names = TypeNames::of(&files);
    let crates = by_crate(&files);
    let whole = Count::of(&files);
    print!("{}", tree_table(&whole, &names, &crates, &root)?.text());
    println!();
    print!("{}", crate_table(&crates, &names).text());
    Ok(())
}

/// The files of each crate, in the order of the names.
pub(crate) fn by_crate<'a>(files: &[&'a RustFile]) -> Vec<(&'a str, Vec<&'a RustFile>)> {
    let mut crates: Vec<(&str, Vec<&RustFile>)> = Vec::new();
    for &file in files {
        let name = file.crate_name();
        match crates.iter_mut().find(|(known, _)| *known == name) {
            Some((_, files)) => files.push(file),
            None => crates.push((name, vec![file])),
        }
    }
    crates
}

fn tree_table(
    whole: &Count,
    names: &TypeNames,
    crates: &[(&str, Vec<&RustFile>)],
    root: &Path,
) -> Result<Table, String> {
    let circle = crates
        .iter()
        .map(|(name, files)| (largest_circle(files), *name));
    let (circle, circle_in) = circle.max().unwrap_or_default();
    let (locked, compiled) = packages(root)?;
    let one_word = percent(whole.functions.one_word, whole.functions.sizes.len());
    let mut table = Table::new(&["crates/*, product only", ""]);
    let rows = line_rows(whole).into_iter().chain(word_rows(whole));
    rows.chain([
        ("type definitions", names.all.count.to_string()),
        ("type names that are one word", names.all.one_word_percent()),
        (
            "types whose name another type has",
            names.all.shared_percent(),
        ),
        ("function names that are one word", one_word),
        ("largest circle of files", format!("{circle} ({circle_in})")),
        (
            "packages: Cargo.lock / compiled into weir",
            format!("{locked} / {compiled}"),
        ),
    ])
    .for_each(|(name, value)| table.row(&[name.to_owned(), value]));
    Ok(table)
}

type Row = (&'static str, String);

/// Lengths and comments.
fn line_rows(whole: &Count) -> Vec<Row> {
    let (functions, files) = (&whole.functions, &whole.files);
    let all = functions.sizes.len();
    vec![
        ("code lines", whole.code.to_string()),
        (
            "comment lines / (code + comment)",
            percent(whole.comments, whole.code + whole.comments),
        ),
        (
            "inline comments per 100 code lines",
            per(whole.inline, whole.code, 100),
        ),
        ("functions", all.to_string()),
        (
            "function lines: median / p90 / p99 / max",
            functions.sizes.quantiles(&[50, 90, 99, 100]),
        ),
        ("functions > 60 lines", functions.sizes.beyond(60)),
        ("functions > 70 lines", functions.sizes.beyond(70)),
        (
            "functions with 5+ parameters",
            percent(functions.many_parameters, all),
        ),
        ("functions nested 5+ levels", percent(functions.deep, all)),
        ("files", files.len().to_string()),
        (
            "file lines: median / p90 / max",
            files.quantiles(&[50, 90, 100]),
        ),
        (
            "files > 600 / > 1,000 lines",
            format!("{} / {}", files.above(600), files.above(1_000)),
        ),
    ]
}

/// Words that a reader stumbles over, or that must not be there.
fn word_rows(whole: &Count) -> Vec<Row> {
    let panics = [whole.unwraps, whole.expects, whole.panics].map(|count| count.to_string());
    vec![
        (
            "pub items / without doc",
            format!("{} / {}", whole.public, whole.undocumented),
        ),
        ("unsafe", whole.unsafes.to_string()),
        ("unwrap / expect / panic-like", panics.join(" / ")),
        ("#[allow]", whole.allows.to_string()),
        ("to-do marks", whole.marks.to_string()),
        ("macro_rules", whole.macros.to_string()),
        (
            "Cell/Rc/Arc/Mutex per 1,000 lines",
            per(whole.shared, whole.code, 1_000),
        ),
        (
            "locks taken over from a panic (PoisonError)",
            whole.poisons.to_string(),
        ),
    ]
}

fn crate_table(crates: &[(&str, Vec<&RustFile>)], names: &TypeNames) -> Table {
    let mut table = Table::new(&[
        "crate",
        "code",
        "comment",
        "inline / 100",
        "functions",
        "p90",
        "max",
        "> 600 lines",
        "types",
        "one word",
        "shared name",
        "circle",
    ]);
    for (name, files) in crates {
        let count = Count::of(files);
        let crowd = names.crates.get(*name).copied().unwrap_or(Crowd::default());
        table.row(&[
            (*name).to_owned(),
            count.code.to_string(),
            percent(count.comments, count.code + count.comments),
            per(count.inline, count.code, 100),
            count.functions.sizes.len().to_string(),
            count.functions.sizes.quantiles(&[90]),
            count.functions.sizes.quantiles(&[100]),
            count.files.above(600).to_string(),
            crowd.count.to_string(),
            crowd.one_word_percent(),
            crowd.shared_percent(),
            largest_circle(files).to_string(),
        ]);
    }
    table
}

/// The number of files in the largest group that all import each other; 1 when none do.
fn largest_circle(files: &[&RustFile]) -> usize {
    Imports::of(files).circles().first().map_or(1, Vec::len)
}

/// The packages that the lock file names, and those that become part of the binary.
fn packages(root: &Path) -> Result<(usize, usize), String> {
    let lock = std::fs::read_to_string(root.join("Cargo.lock"))
        .map_err(|error| format!("Cargo.lock: {error}"))?;
    let locked = lock.lines().filter(|line| *line == "[[package]]").count();
    let tree = shell::output(
        shell::cargo().current_dir(root).args([
            "tree",
            "--locked",
            "--package",
            "weir",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--no-dedupe",
        ]),
        Duration::from_secs(120),
    )?;
    // `name v1.2.3 (where it lies)`.
    let mut compiled: Vec<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, rest)| (name, rest.split(' ').next().unwrap_or_default()))
        .collect();
    compiled.sort_unstable();
    compiled.dedup();
    Ok((locked, compiled.len()))
}

fn list_types(names: &TypeNames) {
    for found in &names.types {
        let one_word = if found.is_one_word { "one word" } else { "" };
        if found.namesakes > 1 || found.is_one_word {
            println!(
                "{}:{}\t{} {}\t{}\t{one_word}",
                found.path, found.line, found.kind, found.name, found.namesakes
            );
        }
    }
    println!(
        "\n{} types: {} share a name, {} are one word",
        names.all.count,
        names.all.shared_percent(),
        names.all.one_word_percent()
    );
}

fn list_circles(files: &[&RustFile]) {
    for (_, files) in by_crate(files) {
        let imports = Imports::of(&files);
        for circle in imports.circles() {
            println!("\na circle of {}:", circle.len());
            for file in &circle {
                let needs = imports.needs[*file]
                    .iter()
                    .filter(|need| circle.contains(need));
                let needs: Vec<&str> = needs.map(|need| short(&imports.files[*need])).collect();
                println!("  {} → {}", imports.files[*file], needs.join(", "));
            }
        }
    }
}

/// A path from the crate's `src` on.
fn short(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(_, inside)| inside)
}

fn list_functions(files: &[&RustFile]) {
    let mut long: Vec<(usize, String)> = files
        .iter()
        .flat_map(|file| {
            functions::of(file).into_iter().map(move |function| {
                (
                    function.lines,
                    format!("{}:{} {}", file.path, function.line, function.name),
                )
            })
        })
        .filter(|(lines, _)| *lines > SCREEN)
        .collect();
    long.sort_unstable_by(|one, other| other.cmp(one));
    long.iter()
        .for_each(|(lines, place)| println!("{lines:4} {place}"));
}

/// A share with one digit.
fn percent(part: usize, whole: usize) -> String {
    format!("{} %", per(part, whole, 100))
}

fn per(part: usize, whole: usize, unit: usize) -> String {
    let tenths = (part * unit * 10 + whole / 2)
        .checked_div(whole)
        .unwrap_or_default();
    format!("{}.{}", tenths / 10, tenths % 10)
}
