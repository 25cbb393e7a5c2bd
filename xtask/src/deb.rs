//! `cargo xtask deb`: Debian packages in `target/deb`, and their tests in `target/deb/autopkgtest`.
//!
//! - `weir-bin`: the program, its manual pages and completions.
//! - `weir`: the service of its own, with a configuration in `/etc/weir`.
//! - `weir-nginx`: the program in the place of nginx, by a diversion.
//!
//! The packages are put together by `dpkg-deb`, from the files of `packaging/` and what the binary prints of itself. That
//! needs no build system of Debian's, whose helpers would only call cargo.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, packages, shell};

use crate::{dist_trial, image};

/// A build from nothing takes some minutes; packing takes seconds.
const BUILD: Duration = Duration::from_secs(3600);
const PACK: Duration = Duration::from_secs(300);

const MAINTAINER: &str = "Weir developers <maintainers@weir-server.invalid>";

/// A file of a package: where it comes from, and its place.
type PackagedFile = (&'static str, &'static str);

/// A package.
struct DebianPackage {
    name: &'static str,
    files: &'static [PackagedFile],
    /// Shell completions, manual pages, shared libraries.
    has_program: bool,
}

const PACKAGES: &[DebianPackage] = &[
    DebianPackage {
        name: "weir-bin",
        files: &[
            ("docs/compat.md", "usr/share/doc/weir-bin/compat.md"),
            ("README.md", "usr/share/doc/weir-bin/README.md"),
        ],
        has_program: true,
    },
    DebianPackage {
        name: "weir",
        files: &[
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
        ],
        has_program: false,
    },
    DebianPackage {
        name: "weir-nginx",
        files: &[(
            "packaging/systemd/nginx.service.conf",
            "usr/lib/systemd/system/nginx.service.d/10-weir.conf",
        )],
        has_program: false,
    },
];

/// Builds the packages. `--binary PATH` takes a binary that is there already; `--uncompressed` is for a test of the packages, for
/// it takes a second.
pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let mut binary: PathBuf = flags.value("--binary", PathBuf::new())?;
    let compression = match flags.has("--uncompressed") {
        true => "-Znone",
        false => "-Zxz",
    };
    flags.finish()?;
    packages::need(&[("dpkg-shlibdeps", "dpkg-dev")])?;
    if binary.as_os_str().is_empty() {
        let mut build = shell::cargo();
        build.args(["build", "--release", "--package", "weir"]);
        shell::run(&mut build, BUILD)?;
        binary = shell::target().join("release/weir");
    }
    let target = shell::target().join("deb");
    for package in PACKAGES {
        let tree = target.join(package.name);
        // What an earlier version had must not stay.
        let _ = fs::remove_dir_all(&tree);
        fill(package, &tree, &binary)?;
        check_scripts(&tree)?;
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "--build", compression]);
        shell::run(pack.arg(&tree).arg(&target), PACK)?;
    }
    write_tests(&target.join("autopkgtest"))
}

/// The tests of the packages as a source package has them, for autopkgtest.
fn write_tests(place: &Path) -> Outcome {
    let _ = fs::remove_dir_all(place);
    let debian = place.join("debian");
    let control = format!(
        "Source: weir\nSection: httpd\nPriority: optional\nMaintainer: {MAINTAINER}\nStandards-Version: 4.6.2\n\n\
         Package: weir-bin\nArchitecture: any\nDescription: web server\n"
    );
    write(&debian.join("control"), control.as_bytes(), 0o644)?;
    write(
        &debian.join("changelog"),
        changelog("weir")?.as_bytes(),
        0o644,
    )?;
    for name in ["control", "service", "take-over"] {
        let from = Path::new("packaging/debian/tests").join(name);
        write(&debian.join("tests").join(name), &read(&from)?, 0o755)?;
    }
    Ok(())
}

/// Writes the tree of a package.
fn fill(package: &DebianPackage, tree: &Path, program: &Path) -> Outcome {
    for (from, to) in package.files {
        write(&tree.join(to), &read(Path::new(from))?, 0o644)?;
    }
    let doc = tree.join("usr/share/doc").join(package.name);
    write(&doc.join("copyright"), copyright()?.as_bytes(), 0o644)?;
    write(
        &doc.join("changelog"),
        changelog(package.name)?.as_bytes(),
        0o644,
    )?;
    compress(&doc.join("changelog"))?;
    let mut libraries = String::new();
    if package.has_program {
        write(&tree.join("usr/sbin/weir"), &read(program)?, 0o755)?;
        fill_with_program(program, tree)?;
        libraries = shared_libraries(program)?;
    }
    match package.name {
        // The folder of sites' files; `include` finds none in it at first.
        "weir" => make_folder(&tree.join("etc/weir/conf.d"))?,
        "weir-nginx" => {
            make_folder(&tree.join("usr/sbin"))?;
            let link = tree.join("usr/sbin/nginx");
            std::os::unix::fs::symlink("weir", &link)
                .map_err(|error| format!("{}: {error}", link.display()))?;
        }
        _ => {}
    }
    let overrides = Path::new("packaging/debian")
        .join(package.name)
        .join("lintian-overrides");
    if overrides.exists() {
        let place = tree.join("usr/share/lintian/overrides").join(package.name);
        write(&place, &read(&overrides)?, 0o644)?;
    }
    fill_control(package, tree, image::architecture(program)?, &libraries)
}

/// What the program prints of itself: completions and manual pages.
fn fill_with_program(program: &Path, tree: &Path) -> Outcome {
    let share = tree.join("usr/share");
    for (shell_name, place) in [
        ("bash", "bash-completion/completions/weir"),
        ("zsh", "zsh/vendor-completions/_weir"),
        ("fish", "fish/vendor_completions.d/weir.fish"),
    ] {
        let mut print = dist_trial::runner(program)?;
        let text = shell::output(print.args(["completions", shell_name]), PACK)?;
        write(&share.join(place), text.as_bytes(), 0o644)?;
    }
    for (name, section) in [("weir.8", "man8"), ("weir.conf.5", "man5")] {
        let mut print = dist_trial::runner(program)?;
        let text = shell::output(print.args(["man", name]), PACK)?;
        let place = share.join("man").join(section).join(name);
        write(&place, text.as_bytes(), 0o644)?;
        compress(&place)?;
    }
    Ok(())
}

/// `DEBIAN/`: the description, scripts, list of configuration files, sums.
fn fill_control(
    package: &DebianPackage,
    tree: &Path,
    architecture: &str,
    libraries: &str,
) -> Outcome {
    let source = Path::new("packaging/debian").join(package.name);
    let control = fs::read_to_string(source.join("control"))
        .map_err(|error| format!("{}: {error}", source.display()))?;
    let sums = shell::output(
        Command::new("sh").current_dir(tree).args([
            "-c",
            "find . -path ./DEBIAN -prune -o -type f -printf '%P\\n' | LC_ALL=C sort | xargs -r -d '\\n' md5sum",
        ]),
        PACK,
    )?;
    let size = shell::output(
        Command::new("du")
            .args(["-sk", "--apparent-size"])
            .arg(tree),
        PACK,
    )?;
    let depends = match libraries.is_empty() {
        true => String::new(),
        false => format!("Depends: {libraries}\n"),
    };
    let control = control
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@ARCH@", architecture)
        .replace("@MAINTAINER@", MAINTAINER)
        .replace("@HOMEPAGE@", env!("CARGO_PKG_REPOSITORY"))
        .replace("Depends: @SHLIBS@\n", &depends)
        .replace("@SIZE@", size.split_whitespace().next().unwrap_or("0"));
    let place = tree.join("DEBIAN");
    write(&place.join("control"), control.as_bytes(), 0o644)?;
    write(&place.join("md5sums"), sums.as_bytes(), 0o644)?;
    for (name, mode) in [
        ("conffiles", 0o644),
        ("preinst", 0o755),
        ("postinst", 0o755),
        ("prerm", 0o755),
        ("postrm", 0o755),
    ] {
        let file = source.join(name);
        if file.exists() {
            write(&place.join(name), &read(&file)?, mode)?;
        }
    }
    Ok(())
}

/// A script that the shell cannot read would leave a package half installed.
fn check_scripts(tree: &Path) -> Outcome {
    for name in ["preinst", "postinst", "prerm", "postrm"] {
        let script = tree.join("DEBIAN").join(name);
        if script.exists() {
            shell::output(Command::new("sh").arg("-n").arg(&script), PACK)?;
        }
    }
    Ok(())
}

/// The libraries that the program needs, as Debian's packages with their versions; empty for a static one.
fn shared_libraries(program: &Path) -> Result<String, String> {
    if image::is_static(program)? {
        return Ok(String::new());
    }
    if image::machine(program)? != std::env::consts::ARCH {
        return foreign_libraries(program);
    }
    let program = std::path::absolute(program).map_err(|error| error.to_string())?;
    // The tool reads a source package's description, of which it needs nothing.
    let folder = shell::target().join("deb/shlibs");
    write(
        &folder.join("debian/control"),
        b"Source: weir\n\nPackage: weir-bin\nArchitecture: any\n",
        0o644,
    )?;
    let mut ask = Command::new("dpkg-shlibdeps");
    ask.current_dir(&folder).arg("-O").arg(&program);
    let line = shell::output(&mut ask, PACK)?;
    let list = line
        .lines()
        .find_map(|line| line.strip_prefix("shlibs:Depends="));
    list.map(str::to_owned)
        .ok_or_else(|| "dpkg-shlibdeps names no libraries".to_owned())
}

/// The same for another architecture, whose packages are not on this machine: by the newest symbols that the program asks for.
fn foreign_libraries(program: &Path) -> Result<String, String> {
    let mut list = Command::new("readelf");
    let text = shell::output(list.args(["-VW"]).arg(program), PACK)?;
    let newest = |prefix: &str| {
        let words = text.split_whitespace();
        let versions = words.filter_map(|word| word.strip_prefix(prefix));
        let numbers = versions.map(|text| text.split('.').map(str::parse).collect());
        // A symbol that only the library itself may use has a word for a version.
        let numbers: Vec<Vec<u32>> = numbers.filter_map(Result::ok).collect();
        let newest = numbers.into_iter().max()?;
        let numbers: Vec<String> = newest.iter().map(u32::to_string).collect();
        Some(numbers.join("."))
    };
    match (newest("GLIBC_"), newest("GCC_")) {
        (Some(c), Some(gcc)) => Ok(format!("libc6 (>= {c}), libgcc-s1 (>= {gcc})")),
        (Some(c), None) => Ok(format!("libc6 (>= {c})")),
        (None, _) => Err(format!("{} names no glibc", program.display())),
    }
}

/// The file of licences, in the machine-readable format of Debian.
fn copyright() -> Result<String, String> {
    let mit = fs::read_to_string("LICENSE-MIT").map_err(|error| error.to_string())?;
    let indented: String = mit
        .lines()
        .map(|line| {
            if line.trim().is_empty() {
                " .\n".to_owned()
            } else {
                format!(" {line}\n")
            }
        })
        .collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: weir\nSource: {}\n\n\
         Files: *\nCopyright: The Weir developers\nLicense: Expat or Apache-2.0\n\nLicense: Expat\n{indented}\n\
         License: Apache-2.0\n See /usr/share/common-licenses/Apache-2.0.\n",
        env!("CARGO_PKG_REPOSITORY"),
    ))
}

/// Debian's changelog. What changed is in the project's own.
fn changelog(package: &str) -> Result<String, String> {
    let date = shell::output(
        Command::new("git").args(["log", "-1", "--format=%cD"]),
        PACK,
    )?;
    Ok(format!(
        "{package} ({}) unstable; urgency=medium\n\n  * See CHANGELOG.md of the project.\n\n -- {MAINTAINER}  {}\n",
        env!("CARGO_PKG_VERSION"),
        date.trim()
    ))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn make_folder(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
    set_mode(path, 0o755)
}

/// Writes a file with its folders, whose modes do not depend on this user's umask.
fn write(path: &Path, content: &[u8], mode: u32) -> Outcome {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    set_mode(path, mode)
}

fn set_mode(path: &Path, mode: u32) -> Outcome {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Compresses a file in place, without a time stamp: equal input makes equal packages.
fn compress(path: &Path) -> Outcome {
    shell::output(Command::new("gzip").args(["-9nf"]).arg(path), PACK).map(|_| ())
}
