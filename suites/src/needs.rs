//! What a case needs, installed through the ordinary clients when it is missing: Debian's packages, Python's and Node's
//! into folders of their own below the target folder, programs in Go likewise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xtask::{Outcome, packages, shell};

/// How long an installation may take.
const INSTALL: Duration = Duration::from_secs(600);

/// Something that must be there.
#[derive(Clone, Copy)]
pub(crate) enum Need {
    /// A program, or a file, and the Debian package that has it.
    Debian(&'static str, &'static str),
    /// A module of Python and its package.
    Python(&'static str, &'static str),
    /// A package of Node.
    Node(&'static str),
    /// A program in Go: its name and its module.
    Go(&'static str, &'static str),
}

/// Where the packages of Python, Node and Go are kept between runs.
fn home(kind: &str) -> PathBuf {
    let path = shell::target().join("suites").join(kind);
    std::path::absolute(&path).unwrap_or(path)
}

/// The interpreter that knows the packages.
pub(crate) fn python() -> PathBuf {
    home("python").join("bin/python")
}

/// The folder of Python's packages.
pub(crate) fn site_packages() -> PathBuf {
    let library = fs::read_dir(home("python").join("lib"));
    let version = library.into_iter().flatten().flatten().next();
    version.map_or_else(PathBuf::new, |entry| entry.path().join("site-packages"))
}

/// The folder that has Node's packages.
pub(crate) fn node_modules() -> PathBuf {
    home("node").join("node_modules")
}

/// A program in Go.
pub(crate) fn go(name: &str) -> PathBuf {
    home("go").join("bin").join(name)
}

/// Installs what is missing. The error is why the case is left out.
pub(crate) fn install(needs: &[Need]) -> Outcome {
    let debian: Vec<(&str, &str)> = needs
        .iter()
        .filter_map(|need| match need {
            Need::Debian(program, package) => Some((*program, *package)),
            _ => None,
        })
        .filter(|(program, _)| !Path::new(program).exists())
        .collect();
    packages::need(&debian)?;
    for need in needs {
        match need {
            Need::Debian(..) => {}
            Need::Python(module, package) => install_python(module, package)?,
            Need::Node(package) => install_node(package)?,
            Need::Go(program, module) => install_go(program, module)?,
        }
    }
    Ok(())
}

fn install_python(module: &str, package: &str) -> Outcome {
    if !python().exists() {
        let mut make = Command::new("python3");
        shell::output(make.args(["-m", "venv"]).arg(home("python")), INSTALL)?;
    }
    let import = format!("import {module}");
    if shell::succeeds(Command::new(python()).args(["-c", &import])) {
        return Ok(());
    }
    let mut pip = Command::new(python());
    pip.args(["-m", "pip", "install", "--quiet", package]);
    shell::output(&mut pip, INSTALL).map(|_| ())
}

fn install_node(package: &str) -> Outcome {
    if !shell::is_installed("node") || !shell::is_installed("npm") {
        return Err("node and npm are needed (apt-get install nodejs npm)".to_owned());
    }
    if node_modules().join(package).exists() {
        return Ok(());
    }
    fs::create_dir_all(home("node")).map_err(|error| error.to_string())?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
        .arg(home("node"))
        .arg(package);
    shell::output(&mut npm, INSTALL).map(|_| ())
}

fn install_go(program: &str, module: &str) -> Outcome {
    if go(program).exists() {
        return Ok(());
    }
    if !shell::is_installed("go") {
        return Err("go is needed (apt-get install golang)".to_owned());
    }
    let mut install = Command::new("go");
    install
        .args(["install", module])
        .env("GOBIN", home("go").join("bin"));
    shell::output(&mut install, INSTALL).map(|_| ())
}
