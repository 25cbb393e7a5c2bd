//! `cargo xtask release`: all that is handed out, in `target/release-out`.
//!
//! ```text
//! weir-VERSION-linux-ARCH.tar.gz     the program with an installer, for any distribution with a C library that is new enough
//! weir-VERSION-linux-ARCH-static.tar.gz    the same without a need of any library, if such a binary was wanted
//! weir-VERSION-linux-ARCH.debug      its debug symbols
//! weir-VERSION-1.ARCH.rpm            for Fedora, RHEL and their relatives
//! weir*_VERSION_ARCH.deb             for Debian, by `cargo xtask deb`
//! weir-VERSION-oci.tar               the container images, by `cargo xtask image`
//! weir-VERSION.cdx.json              what is in the binary (CycloneDX)
//! RELEASE-NOTE.md                    the version's section of CHANGELOG.md
//! SHA256SUMS, SHA256SUMS.minisig     of all files above, and the signature of that list
//! ```
//!
//! It takes long, so that CI does not run it; CI makes the parts from the binary of the tests.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, shell};

use crate::image::{BinaryList, source_date, write};
use crate::{deb, dist, dist_trial, image, supply};

const PACK: Duration = Duration::from_secs(600);
/// What is made of this repository, and what of the binary.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `cargo xtask release [--binary PATH,…] [--target PLATFORM,…] [--key FILE] [--no-image]`: of binaries that are there already,
/// and of those that are built for it; without either, of one built for this machine.
pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let BinaryList(mut binaries) = flags.value("--binary", BinaryList::default())?;
    let platforms: String = flags.value("--target", String::new())?;
    let key: PathBuf = flags.value("--key", PathBuf::new())?;
    let no_image = flags.has("--no-image");
    flags.finish()?;
    let out = shell::target().join("release-out");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let out = std::path::absolute(out).map_err(|error| error.to_string())?;
    // What was only given is packed quickly, for it is a trial.
    let quick = !binaries.is_empty();
    let mut wanted: Vec<Option<String>> = platforms
        .split(',')
        .filter(|platform| !platform.is_empty())
        .map(|platform| Some(platform.to_owned()))
        .collect();
    if !quick && wanted.is_empty() {
        wanted.push(None);
    }
    for platform in wanted {
        let binary = dist::binary(&dist::DistBuild::here(platform)?)?;
        let symbols = format!("{}.debug", name(&binary)?);
        copy(&binary.with_extension("debug"), &out.join(symbols))?;
        binaries.push(binary);
    }
    let epoch = source_date()?;
    supply::write_bill(
        &out.join(format!("weir-{VERSION}.cdx.json")),
        &moment(epoch)?,
    )?;
    write(&out.join("RELEASE-NOTE.md"), note()?.as_bytes())?;
    for binary in &binaries {
        tarball(&out, &name(binary)?, binary, epoch)?;
    }
    // Packages of systems with glibc, unless only a static binary is there.
    for binary in for_packages(&binaries)? {
        rpm(&out, image::machine(binary)?, binary, epoch)?;
        debs(&out, binary, quick)?;
    }
    if !no_image {
        images(&out, &binaries, epoch, quick)?;
    }
    sums(&out)?;
    if !key.as_os_str().is_empty() {
        sign(&out, &key)?;
    }
    let list = fs::read_to_string(out.join("SHA256SUMS")).map_err(|error| error.to_string())?;
    println!("\n{}:\n{list}", out.display());
    Ok(())
}

/// What the files of a binary are called, without an extension.
fn name(binary: &Path) -> Result<String, String> {
    let kind = if image::is_static(binary)? {
        "-static"
    } else {
        ""
    };
    let machine = image::machine(binary)?;
    Ok(format!("weir-{VERSION}-linux-{machine}{kind}"))
}

/// One binary for each architecture, a dynamic one before a static one.
fn for_packages(binaries: &[PathBuf]) -> Result<Vec<&Path>, String> {
    let mut chosen = BTreeMap::new();
    for binary in binaries {
        let (machine, is_static) = (image::machine(binary)?, image::is_static(binary)?);
        if !is_static || !chosen.contains_key(machine) {
            chosen.insert(machine, binary.as_path());
        }
    }
    Ok(chosen.into_values().collect())
}

/// Seconds as a moment in UTC.
fn moment(epoch: u64) -> Result<String, String> {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ"])
        .arg(format!("-d@{epoch}"));
    Ok(shell::output(&mut date, PACK)?.trim().to_owned())
}

/// The section of this version; before the first release the one that collects what comes.
fn note() -> Result<String, String> {
    let text = fs::read_to_string("CHANGELOG.md").map_err(|error| error.to_string())?;
    section(&text, &format!("[{VERSION}]"))
        .or_else(|| section(&text, "[Unreleased]"))
        .map(|section| format!("# Weir {VERSION}\n\n{section}\n"))
        .ok_or_else(|| format!("CHANGELOG.md has no section for {VERSION}"))
}

/// What stands below a heading of the second level, up to the next one.
fn section(text: &str, heading: &str) -> Option<String> {
    let mut lines = text.lines();
    lines.find(|line| {
        line.strip_prefix("## ")
            .is_some_and(|title| title.starts_with(heading))
    })?;
    let body: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    Some(body.join("\n").trim().to_owned())
}

/// What the program prints of itself: each file's place in the tarball and in the rpm, and its text.
fn program_files(binary: &Path) -> Result<Vec<(&'static str, &'static str, String)>, String> {
    let printed = |command: &[&str]| shell::output(dist_trial::runner(binary)?.args(command), PACK);
    let rows: [(&str, &str, &[&str]); 5] = [
        (
            "man/weir.8",
            "usr/share/man/man8/weir.8",
            &["man", "weir.8"],
        ),
        (
            "man/weir.conf.5",
            "usr/share/man/man5/weir.conf.5",
            &["man", "weir.conf.5"],
        ),
        (
            "completions/weir.bash",
            "usr/share/bash-completion/completions/weir",
            &["completions", "bash"],
        ),
        (
            "completions/_weir",
            "usr/share/zsh/site-functions/_weir",
            &["completions", "zsh"],
        ),
        (
            "completions/weir.fish",
            "usr/share/fish/vendor_completions.d/weir.fish",
            &["completions", "fish"],
        ),
    ];
    let rows = rows.iter();
    rows.map(|(tarball, rpm, command)| Ok((*tarball, *rpm, printed(command)?)))
        .collect()
}

/// The tarball, whose only folder has its name.
fn tarball(out: &Path, name: &str, binary: &Path, epoch: u64) -> Outcome {
    let tree = out.join(name);
    for (from, to) in [
        ("packaging/tarball/install.sh", "install.sh"),
        ("packaging/systemd/weir.service", "weir.service"),
        ("packaging/etc/weir.conf", "etc/weir.conf"),
        ("packaging/etc/sysusers.conf", "etc/sysusers.conf"),
        ("packaging/etc/tmpfiles.conf", "etc/tmpfiles.conf"),
        ("packaging/etc/index.html", "etc/index.html"),
        ("examples/mime.types", "etc/mime.types"),
        ("README.md", "README.md"),
        ("CHANGELOG.md", "CHANGELOG.md"),
        ("LICENSE", "LICENSE"),
        ("LICENSE-APACHE", "LICENSE-APACHE"),
        ("LICENSE-MIT", "LICENSE-MIT"),
    ] {
        copy(Path::new(from), &tree.join(to))?;
    }
    copy(binary, &tree.join("weir"))?;
    for (place, _, text) in program_files(binary)? {
        write(&tree.join(place), text.as_bytes())?;
    }
    for program in ["weir", "install.sh"] {
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(tree.join(program), mode).map_err(|error| error.to_string())?;
    }
    pack(&tree, &out.join(format!("{name}.tar")), epoch)?;
    let tar = out.join(format!("{name}.tar"));
    shell::output(Command::new("gzip").arg("-9n").arg(&tar), PACK)?;
    fs::remove_dir_all(&tree).map_err(|error| error.to_string())
}

/// A tar file of a folder, with the same bytes for the same files.
fn pack(tree: &Path, tar: &Path, epoch: u64) -> Outcome {
    let folder = tree.parent().ok_or("a tree without a folder")?;
    let name = tree.file_name().ok_or("a tree without a name")?;
    let mut command = Command::new("tar");
    command
        .args(["--create", "--sort=name", "--format=gnu", "--numeric-owner"])
        .args(["--owner=root:0", "--group=root:0", "--mode=u=rwX,go=rX"])
        .arg(format!("--mtime=@{epoch}"))
        .arg("--file")
        .arg(tar)
        .arg("--directory")
        .arg(folder);
    shell::output(command.arg(name), PACK).map(|_| ())
}

/// Files of the project in the rpm, and their places.
const RPM_FILES: &[(&str, &str)] = &[
    ("packaging/etc/weir.conf", "etc/weir/weir.conf"),
    ("examples/mime.types", "etc/weir/mime.types"),
    ("packaging/etc/logrotate", "etc/logrotate.d/weir"),
    (
        "packaging/etc/sysusers.conf",
        "usr/lib/sysusers.d/weir.conf",
    ),
    (
        "packaging/etc/tmpfiles.conf",
        "usr/lib/tmpfiles.d/weir.conf",
    ),
    ("packaging/etc/index.html", "usr/share/weir/site/index.html"),
    (
        "packaging/systemd/weir.service",
        "usr/lib/systemd/system/weir.service",
    ),
    ("README.md", "usr/share/doc/weir/README.md"),
    ("LICENSE-APACHE", "usr/share/doc/weir/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/weir/LICENSE-MIT"),
];

/// The package for rpm, by its own tool, from a tree that is complete.
fn rpm(out: &Path, machine: &str, binary: &Path, epoch: u64) -> Outcome {
    if !shell::is_installed("rpmbuild") {
        println!("no rpm: rpmbuild is not installed (package rpm)");
        return Ok(());
    }
    let work = out.join("rpm");
    let tree = work.join("tree");
    fill_rpm_tree(&tree, binary)?;
    let spec = fs::read_to_string("packaging/rpm/weir.spec").map_err(|error| error.to_string())?;
    let spec = spec
        .replace("@VERSION@", VERSION)
        .replace("@LICENCE@", env!("CARGO_PKG_LICENSE"))
        .replace("@HOMEPAGE@", env!("CARGO_PKG_REPOSITORY"))
        .replace("@TREE@", &tree.display().to_string());
    write(&work.join("weir.spec"), spec.as_bytes())?;
    let mut build = Command::new("rpmbuild");
    build
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        .args(["-bb", "--quiet", "--target", &format!("{machine}-linux")])
        .arg("--define")
        .arg(format!("_topdir {}", work.join("build").display()))
        .arg("--define")
        .arg(format!("_rpmdir {}", out.display()))
        .args([
            "--define",
            "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
        ])
        .arg(work.join("weir.spec"));
    shell::output(&mut build, PACK)?;
    fs::remove_dir_all(&work).map_err(|error| error.to_string())
}

/// What the rpm has, in its places, with the modes that it has there.
fn fill_rpm_tree(tree: &Path, binary: &Path) -> Outcome {
    for (from, to) in RPM_FILES {
        copy(Path::new(from), &tree.join(to))?;
    }
    copy(binary, &tree.join("usr/sbin/weir"))?;
    fs::create_dir_all(tree.join("etc/weir/conf.d")).map_err(|error| error.to_string())?;
    for (_, place, text) in program_files(binary)? {
        let path = tree.join(place);
        write(&path, text.as_bytes())?;
        if place.contains("/man/") {
            shell::output(Command::new("gzip").arg("-9n").arg(path), PACK)?;
        }
    }
    // The builder's umask must not affect the package.
    shell::output(
        Command::new("chmod").arg("-R").arg("u=rwX,go=rX").arg(tree),
        PACK,
    )?;
    let program = fs::Permissions::from_mode(0o755);
    fs::set_permissions(tree.join("usr/sbin/weir"), program).map_err(|error| error.to_string())
}

fn debs(out: &Path, binary: &Path, quick: bool) -> Outcome {
    if !shell::is_installed("dpkg-deb") {
        println!("no Debian packages: dpkg-deb is not installed");
        return Ok(());
    }
    let mut flags = vec!["--binary".to_owned(), binary.display().to_string()];
    flags.extend(quick.then(|| "--uncompressed".to_owned()));
    deb::run(&mut Flags::new(flags.into_iter()))?;
    let endings =
        ["all", image::architecture(binary)?].map(|kind| format!("_{VERSION}_{kind}.deb"));
    for entry in fs::read_dir(shell::target().join("deb"))
        .map_err(|error| error.to_string())?
        .flatten()
    {
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().to_owned();
        // Those of other architectures and versions may lie there, too.
        if endings
            .iter()
            .any(|ending| name.to_string_lossy().ends_with(ending))
        {
            copy(&path, &out.join(name))?;
        }
    }
    Ok(())
}

/// One image for all architectures. A small one of another architecture has a static binary, since the libraries of that one are
/// not on this machine.
fn images(out: &Path, binaries: &[PathBuf], epoch: u64, only_slim: bool) -> Outcome {
    let mut chosen = BTreeMap::new();
    for binary in binaries {
        let machine = image::machine(binary)?;
        if image::is_static(binary)? != (machine == std::env::consts::ARCH) {
            chosen.insert(machine, binary);
        } else if machine == std::env::consts::ARCH {
            chosen.entry(machine).or_insert(binary);
        }
    }
    if chosen.is_empty() {
        println!("no image: no binary is for this machine, or static");
        return Ok(());
    }
    let list: Vec<String> = chosen
        .into_values()
        .map(|path| path.display().to_string())
        .collect();
    let mut flags = vec!["--binary".to_owned(), list.join(",")];
    flags.extend(only_slim.then(|| "--slim".to_owned()));
    image::run(&mut Flags::new(flags.into_iter()))?;
    let layout = shell::target().join("image/oci");
    pack(&layout, &out.join(format!("weir-{VERSION}-oci.tar")), epoch)
}

/// The list of sums, in the form that `sha256sum --check` reads.
fn sums(out: &Path) -> Outcome {
    let entries = fs::read_dir(out)
        .map_err(|error| error.to_string())?
        .flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    let mut text = String::new();
    for name in names {
        text.push_str(&format!("{}  {name}\n", dist::sha256(&out.join(&name))?));
    }
    write(&out.join("SHA256SUMS"), text.as_bytes())
}

/// The signature, which asks for the key's password on the terminal.
fn sign(out: &Path, key: &Path) -> Outcome {
    let mut sign = Command::new("minisign");
    sign.args(["-S", "-s"])
        .arg(key)
        .arg("-m")
        .arg(out.join("SHA256SUMS"))
        .args(["-t", &format!("weir {VERSION}")]);
    let status = sign
        .status()
        .map_err(|error| format!("minisign: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err("minisign has not signed".to_owned()),
    }
}

fn copy(from: &Path, to: &Path) -> Outcome {
    let content = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
    write(to, &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_cut_out() {
        let text = "# Changes\n\n## [Unreleased]\n\n- new\n\n### More\n- x\n\n## [0.1.0] - 2026-01-01\n- old\n";
        assert_eq!(
            section(text, "[Unreleased]").as_deref(),
            Some("- new\n\n### More\n- x")
        );
        assert_eq!(section(text, "[0.1.0]").as_deref(), Some("- old"));
        assert_eq!(section(text, "[0.2.0]"), None);
    }
}
