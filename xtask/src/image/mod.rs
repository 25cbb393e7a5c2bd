//! `cargo xtask image`: container images in `target/image`, as an OCI layout that any runtime or registry client reads.
//!
//! - `slim`: the binary, the C library that it needs, certificates of authorities. No shell.
//! - `debian`: the same files on a minimal Debian, for images that are derived from it.
//!
//! Both have the contract of nginx's official image (`weir entrypoint`), but run as user 101 and listen on port 8080: that
//! works in every engine, also in those that give the ports below 1024 to root alone. No daemon is needed, and the same
//! binary makes the same bytes: times are those of the source, owners and order are given.

mod check;
mod files;
mod layout;

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, shell};

use crate::dist;
pub(crate) use files::{architecture, is_static, machine};
use layout::{ImageLayer, OciLayout};

/// A Debian is unpacked within a minute; compressing it takes another.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// The suite of the Debian image.
const SUITE: &str = "bookworm";

/// `cargo xtask image [--binary PATH,…] [--slim] [--base TAR] [--check]`.
pub(crate) fn run(flags: &mut Flags) -> Outcome {
    let mut binaries: BinaryList = flags.value("--binary", BinaryList::default())?;
    let base: PathBuf = flags.value("--base", PathBuf::new())?;
    let only_slim = flags.has("--slim");
    let check = flags.has("--check");
    flags.finish()?;
    if binaries.0.is_empty() {
        let binary = dist::binary(&dist::DistBuild::here(None)?)?;
        binaries.0.push(binary);
    }
    if check && binaries.0.len() > 1 {
        return Err("--check runs an image of one binary".to_owned());
    }
    let target = shell::target().join("image");
    let _ = fs::remove_dir_all(&target);
    let epoch = source_date()?;
    let mut layout = OciLayout::new(&target.join("oci"), epoch)?;
    for binary in &binaries.0 {
        let architecture = files::architecture(binary)?;
        let tree = target.join(format!("slim-{architecture}"));
        files::write_common(&tree, binary)?;
        files::write_slim(&tree, binary)?;
        let slim = layout.add_tree(&tree, files::OF_THE_SERVER)?;
        layout.add_image("slim", architecture, &[slim])?;

        // A Debian is unpacked for this machine only.
        if !only_slim && files::machine(binary)? == std::env::consts::ARCH {
            let base = match base.as_os_str().is_empty() {
                true => debian_base(&target, epoch)?,
                false => copy_base(&base, &target)?,
            };
            let base = layout.add_tar(&base)?;
            let tree = target.join("debian");
            files::write_common(&tree, binary)?;
            let ours = layout.add_tree(&tree, files::OF_THE_SERVER)?;
            layout.add_image("debian", architecture, &[base, ours])?;
        }
    }
    layout.finish()?;
    for image in layout.images() {
        println!("{image}");
    }
    match check {
        true => check::slim(&target),
        false => Ok(()),
    }
}

/// Binaries that are there already, one for each architecture, with commas between their paths.
#[derive(Debug, Default)]
pub(crate) struct BinaryList(pub(crate) Vec<PathBuf>);

impl FromStr for BinaryList {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<BinaryList, Infallible> {
        Ok(BinaryList(text.split(',').map(PathBuf::from).collect()))
    }
}

/// A minimal Debian, made by `mmdebstrap`, which unlike its elder makes the same bytes from the same packages.
fn debian_base(target: &Path, epoch: u64) -> Result<PathBuf, String> {
    if !shell::is_installed("mmdebstrap") {
        return Err(
            "the Debian image needs mmdebstrap (apt-get install mmdebstrap), or --base TAR, or --slim"
                .to_owned(),
        );
    }
    let tar = target.join("base.tar");
    let mut make = Command::new("mmdebstrap");
    make.env("SOURCE_DATE_EPOCH", epoch.to_string()).args([
        "--variant=essential",
        "--include=ca-certificates,tzdata,curl",
        // What apt has fetched and noted is of no use in an image.
        "--customize-hook=rm -rf \"$1\"/var/cache/apt \"$1\"/var/lib/apt/lists \"$1\"/var/log/*",
        "--customize-hook=echo nginx:x:101: >>\"$1\"/etc/group",
        "--customize-hook=echo nginx:x:101:101:nginx:/nonexistent:/usr/sbin/nologin >>\"$1\"/etc/passwd",
        SUITE,
    ]);
    shell::run(make.arg(&tar), LIMIT)?;
    Ok(tar)
}

/// A base that the user keeps stays there: what becomes a layer is used up.
fn copy_base(base: &Path, target: &Path) -> Result<PathBuf, String> {
    let copy = target.join("base.tar");
    fs::copy(base, &copy).map_err(|error| format!("{}: {error}", base.display()))?;
    Ok(copy)
}

/// The second that stands for now: that of the source.
pub(crate) fn source_date() -> Result<u64, String> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text
            .parse()
            .map_err(|_| format!("SOURCE_DATE_EPOCH is {text:?}"));
    }
    let text = shell::output(
        Command::new("git").args(["log", "-1", "--format=%ct"]),
        LIMIT,
    )?;
    let text = text.trim();
    text.parse()
        .map_err(|_| format!("git gives {text:?} as the time of the commit"))
}

/// Writes a file with its folders.
pub(crate) fn write(path: &Path, content: &[u8]) -> Outcome {
    let problem = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(problem)?;
    }
    fs::write(path, content).map_err(problem)
}

/// The layers of an image, from the first on.
type ImageLayers<'a> = &'a [ImageLayer];
