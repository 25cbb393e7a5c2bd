//! `cargo xtask dist`: the binary that is handed out, in `target/dist-out`, its debug symbols in a file beside it.
//!
//! Built twice from the same source it is the same bytes, wherever the source lies: paths of this machine are replaced while
//! compiling, the date is that of the source, and nothing asks a clock. `--verify` shows it: the second build is of `git
//! archive`'s tarball in another directory, with nothing of the first one at hand.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, shell};

use crate::dist_trial;

/// With whole-program optimization, and on a machine that has other work too.
const BUILD: Duration = Duration::from_secs(2 * 3600);
const SHORT: Duration = Duration::from_secs(300);

/// What compilers are told instead of the paths of this machine. The places exist nowhere; a debugger is told where they are
/// (`set substitute-path`).
const OUR_SOURCE: &str = "/usr/src/weir";
const CRATE_SOURCE: &str = "/usr/src/crates";

/// A binary that is wanted.
#[derive(Clone, Debug)]
pub(crate) struct DistBuild {
    /// The project's root.
    pub(crate) root: PathBuf,
    /// Where cargo works.
    pub(crate) target: PathBuf,
    /// Cargo's name of a platform; `None`: this one. A version of glibc may follow (`x86_64-unknown-linux-gnu.2.28`): the
    /// binary needs none that is newer.
    pub(crate) platform: Option<String>,
}

impl DistBuild {
    /// This project, built for this machine or another.
    pub(crate) fn here(platform: Option<String>) -> Result<DistBuild, String> {
        let root = std::env::current_dir().map_err(|error| error.to_string())?;
        let target = std::path::absolute(shell::target()).map_err(|error| error.to_string())?;
        Ok(DistBuild {
            root,
            target,
            platform,
        })
    }

    /// Builds, and gives the binary as the compiler left it, symbols included.
    pub(crate) fn run(&self) -> Result<PathBuf, String> {
        let mut cargo = shell::cargo();
        cargo.current_dir(&self.root);
        // The list of dependencies, for programs that look for known vulnerabilities in a binary.
        if shell::is_installed("cargo-auditable") {
            cargo.arg("auditable");
        } else {
            println!("cargo-auditable is not installed: the binary will not list its dependencies");
        }
        let (triple, glibc) = match self.platform.as_deref() {
            Some(platform) => split_platform(platform),
            None => ("", None),
        };
        // The headers and stubs of each glibc come with zig, whose C compiler also links. And those of musl with an unwinder: a
        // distribution's gcc has one that needs glibc.
        if glibc.is_some() || triple.ends_with("-musl") {
            if !shell::is_installed("cargo-zigbuild") {
                let need = "needs zig: pip install cargo-zigbuild ziglang";
                return Err(format!(
                    "{}: {need}",
                    self.platform.as_deref().unwrap_or(triple)
                ));
            }
            cargo.arg("zigbuild");
            // LuaJIT's makefile links its own program, and zig's compiler does not add the unwinder by itself.
            cargo.env("TARGET_LIBS", "-lunwind");
        } else {
            cargo.arg("build");
        }
        cargo.args(["--locked", "--profile", "dist", "--package", "weir"]);
        cargo.arg("--target-dir").arg(&self.target);
        let mut folder = self.target.clone();
        if let Some(platform) = &self.platform {
            cargo.args(["--target", platform]);
            folder.push(triple);
        }
        if let Some((variable, linker)) = self.linker() {
            cargo.env(variable, linker);
        }
        let replacements = self.replacements()?;
        cargo
            .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&replacements))
            .env("CFLAGS", c_flags(&replacements))
            .env("CXXFLAGS", c_flags(&replacements))
            .env("CARGO_INCREMENTAL", "0")
            .env("LC_ALL", "C")
            .env("TZ", "UTC");
        shell::run(&mut cargo, BUILD)?;
        Ok(folder.join("dist/weir"))
    }

    /// For another architecture cargo has to be told who links; the C compiler of that name is found by itself.
    fn linker(&self) -> Option<(String, String)> {
        let platform = self.platform.as_deref()?;
        let architecture = platform.split('-').next()?;
        if architecture == std::env::consts::ARCH || !platform.ends_with("-gnu") {
            return None;
        }
        let name = platform.to_uppercase().replace('-', "_");
        Some((
            format!("CARGO_TARGET_{name}_LINKER"),
            format!("{architecture}-linux-gnu-gcc"),
        ))
    }

    /// The paths of this machine, and what stands for them. Of two that match, compilers take the later one.
    fn replacements(&self) -> Result<Vec<(PathBuf, &'static str)>, String> {
        let mut replacements = vec![
            (self.target.clone(), "/usr/src/weir/target"),
            (self.root.clone(), OUR_SOURCE),
        ];
        // Cargo unpacks crates into a folder for each registry, which is there once they have been fetched.
        let mut fetch = shell::cargo();
        fetch
            .current_dir(&self.root)
            .args(["fetch", "--locked", "--quiet"]);
        shell::run(&mut fetch, SHORT)?;
        let home = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| {
                let home = std::env::var_os("HOME")?;
                Some(Path::new(&home).join(".cargo"))
            });
        let sources = home.ok_or("HOME is not set")?.join("registry/src");
        // In an order: the flags are part of what cargo remembers of a build.
        let registries: BTreeSet<PathBuf> = fs::read_dir(&sources)
            .map_err(|error| format!("{}: {error}", sources.display()))?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        replacements.extend(registries.into_iter().map(|path| (path, CRATE_SOURCE)));
        Ok(replacements)
    }
}

/// Cargo's name of a platform, and the version of glibc behind it.
fn split_platform(platform: &str) -> (&str, Option<&str>) {
    match platform.split_once('.') {
        Some((triple, glibc)) => (triple, Some(glibc)),
        None => (platform, None),
    }
}

fn rust_flags(replacements: &[(PathBuf, &str)]) -> OsString {
    let flags = replacements.iter().map(|(from, to)| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flag
    });
    // The separator of the variable with which flags may hold spaces.
    flags.collect::<Vec<_>>().join("\u{1f}".as_ref())
}

fn c_flags(replacements: &[(PathBuf, &str)]) -> OsString {
    let flags = replacements.iter().map(|(from, to)| {
        let mut flag = OsString::from("-ffile-prefix-map=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flag
    });
    flags.collect::<Vec<_>>().join(" ".as_ref())
}

/// `cargo xtask dist [--target TRIPLE] [--try] [--verify]`.
pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let platform: String = flags.value("--target", String::new())?;
    let verify = flags.has("--verify");
    let tries = flags.has("--try");
    flags.finish()?;
    let platform = (!platform.is_empty()).then_some(platform);
    let build = DistBuild::here(platform)?;
    let binary = binary(&build)?;
    println!("\n{}", describe(&binary)?);
    if tries {
        dist_trial::run(&binary)?;
    }
    match verify {
        true => verify_again(&build, &binary),
        false => Ok(()),
    }
}

/// Builds, and gives the binary without its debug symbols, which are in a file beside it.
pub(crate) fn binary(build: &DistBuild) -> Result<PathBuf, String> {
    let built = build.run()?;
    let name = build.platform.as_deref().unwrap_or("here");
    let folder = build.target.join("dist-out").join(name);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    split_symbols(&built, &folder, build.platform.as_deref())?;
    Ok(folder.join("weir"))
}

/// The table of symbols stays in the binary, for the names in stacks of stalls; line numbers go into a file of their own.
fn split_symbols(built: &Path, folder: &Path, platform: Option<&str>) -> Outcome {
    let objcopy = objcopy_for(platform);
    let run = |arguments: &[&str], files: &[&Path]| {
        // In that folder, for the link between the two has the name that it is given.
        let mut command = Command::new(&objcopy);
        command.current_dir(folder).args(arguments).args(files);
        shell::output(&mut command, SHORT).map(|_| ())
    };
    let out = Path::new("weir");
    let symbols = Path::new("weir.debug");
    run(
        &["--only-keep-debug", "--compress-debug-sections=zlib"],
        &[built, symbols],
    )?;
    run(
        &["--strip-debug", "--add-gnu-debuglink=weir.debug"],
        &[built, out],
    )
}

/// binutils of another architecture have its name in front.
fn objcopy_for(platform: Option<&str>) -> String {
    let ours = std::env::consts::ARCH;
    match platform.and_then(|platform| platform.split('-').next()) {
        Some(architecture) if architecture != ours => format!("{architecture}-linux-gnu-objcopy"),
        _ => "objcopy".to_owned(),
    }
}

/// Size and hash, for a person.
fn describe(binary: &Path) -> Result<String, String> {
    let size = fs::metadata(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    let sum = sha256(binary)?;
    Ok(format!("{sum}  {}  {} bytes", binary.display(), size.len()))
}

/// The SHA-256 of a file, in hexadecimal digits.
pub(crate) fn sha256(path: &Path) -> Result<String, String> {
    let line = shell::output(Command::new("sha256sum").arg(path), SHORT)?;
    let sum = line.split_ascii_whitespace().next();
    sum.map(|sum| sum.trim_start_matches('\\').to_owned())
        .ok_or_else(|| format!("sha256sum says nothing of {}", path.display()))
}

/// Builds the tarball of the same commit elsewhere, and compares.
fn verify_again(build: &DistBuild, first: &Path) -> Outcome {
    let changes = shell::output(Command::new("git").args(["status", "--porcelain"]), SHORT)?;
    if !changes.is_empty() {
        return Err(format!(
            "--verify compares with the commit, and this is not committed:\n{changes}"
        ));
    }
    // Another depth and another length: a path that has got into the binary changes it.
    let elsewhere = build.target.join("dist-verify/a-source-in-another-place");
    let _ = fs::remove_dir_all(&elsewhere);
    fs::create_dir_all(&elsewhere).map_err(|error| format!("{}: {error}", elsewhere.display()))?;
    unpack_commit(&elsewhere)?;
    let again = DistBuild {
        target: elsewhere.join("target"),
        root: elsewhere,
        platform: build.platform.clone(),
    };
    let second = binary(&again)?;
    println!("\n{}\n{}", describe(first)?, describe(&second)?);
    let pairs = [(first, second.as_path())];
    let symbols = [first, &second].map(|path| path.with_extension("debug"));
    let pairs = pairs
        .into_iter()
        .chain([(symbols[0].as_path(), symbols[1].as_path())]);
    for (one, other) in pairs {
        if sha256(one)? != sha256(other)? {
            return Err(format!("{} and {} differ", one.display(), other.display()));
        }
    }
    println!("the two builds are equal, byte by byte, symbols included");
    Ok(())
}

/// The files of the commit, as in a tarball of it.
pub(crate) fn unpack_commit(folder: &Path) -> Outcome {
    let archive = folder.join("archive.tar");
    let mut make = Command::new("git");
    make.args(["archive", "--format=tar", "HEAD", "--output"]);
    shell::output(make.arg(&archive), SHORT)?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(&archive).arg("-C").arg(folder);
    shell::output(&mut unpack, SHORT)?;
    fs::remove_file(&archive).map_err(|error| error.to_string())
}
