//! The list of addresses, and the clones that the caller has: texts are read by `git`, at the commit of the list.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use xtask::shell;

/// A configuration's address.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// `owner/name`.
    pub(crate) repository: String,
    pub(crate) commit: String,
    pub(crate) path: String,
}

/// Reads the list: a line `owner/name COMMIT`, then its paths, each on a line that begins with a space.
pub(crate) fn addresses(list: &str) -> Result<Vec<Address>, String> {
    let mut current: Option<(String, String)> = None;
    let mut addresses = Vec::new();
    for line in list.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(path) = line.strip_prefix("  ") {
            let (repository, commit) = current
                .clone()
                .ok_or("a path stands before its repository")?;
            addresses.push(Address {
                repository,
                commit,
                path: path.to_owned(),
            });
        } else {
            let (name, commit) = line
                .split_once(' ')
                .ok_or_else(|| format!("no commit in {line:?}"))?;
            current = Some((name.to_owned(), commit.to_owned()));
        }
    }
    Ok(addresses)
}

/// One clone at one commit.
#[derive(Debug)]
pub(crate) struct Clone {
    folder: PathBuf,
    commit: String,
    /// Every path of the commit.
    pub(crate) paths: Vec<String>,
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Clone {
    /// The text of one file; `None` when it is not there or no text.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let mut command = self.git();
        command.arg("show").arg(format!("{}:{path}", self.commit));
        let output = command.stdin(Stdio::null()).output().ok()?;
        let is_text = output.status.success() && !output.stdout.contains(&0);
        is_text.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn git(&self) -> Command {
        git(&self.folder)
    }
}

fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("--git-dir").arg(folder);
    command
}

/// The clones below one directory, opened when they are needed.
#[derive(Debug)]
pub(crate) struct Clones {
    directory: PathBuf,
    opened: HashMap<String, Option<Clone>>,
}

impl Clones {
    /// Clones lie in `directory` as `OWNER/NAME` or `OWNER+NAME`, bare or not.
    pub(crate) fn new(directory: PathBuf) -> Clones {
        Clones {
            directory,
            opened: HashMap::new(),
        }
    }

    /// The clone of a repository; `None` when the caller has none with this commit.
    pub(crate) fn get(&mut self, address: &Address) -> Option<&Clone> {
        let directory = &self.directory;
        self.opened
            .entry(address.repository.clone())
            .or_insert_with(|| open(directory, address))
            .as_ref()
    }
}

fn open(directory: &Path, address: &Address) -> Option<Clone> {
    let plain = directory.join(&address.repository);
    let joined = directory.join(address.repository.replacen('/', "+", 1));
    let candidates = [plain, joined.clone(), joined.join("repo")];
    let folders = candidates
        .into_iter()
        .flat_map(|folder| [folder.join(".git"), folder]);
    folders
        .filter(|folder| folder.join("HEAD").exists())
        .find_map(|folder| {
            let mut command = git(&folder);
            command.args(["ls-tree", "-r", "-z", "--name-only", &address.commit]);
            let names = shell::output(&mut command, PATIENCE).ok()?;
            Some(Clone {
                folder,
                commit: address.commit.clone(),
                paths: names.split('\0').map(str::to_owned).collect(),
            })
        })
}
