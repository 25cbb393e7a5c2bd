//! `worker_sandbox`: what a worker must be allowed to do under a configuration.
//!
//! The configuration says what it needs by itself ([`conf::needs`]); added here is what the program and its libraries need
//! whatever is configured. The master decides, before it forks, so that a worker cannot allow itself anything.

use std::path::{Path, PathBuf};

use conf::{Arity, Diagnostic, Line};
use rt::process;
use rt::sandbox::Rules;

use crate::load::Loaded;

/// What the C library, the time zones, the resolver and the statistics of the process read. What is not there is left out.
const READ: [&str; 20] = [
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/gai.conf",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/timezone",
    "/lib",
    "/lib64",
    "/proc/self",
    "/proc/sys",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/dev/urandom",
];

/// A worker that stays root looks its user up again when it reads the configuration.
const READ_BY_ROOT: [&str; 2] = ["/etc/passwd", "/etc/group"];

const WRITE: &str = "/dev/null";

/// What a line of `worker_sandbox_path` allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    Execute,
}

/// How many words the line has.
pub(crate) const ARITY: Arity = Arity::at_least(2);

/// Reads a line of `worker_sandbox_path`.
pub(crate) fn read_path(line: &Line) -> Result<Vec<(Use, PathBuf)>, Diagnostic> {
    let how = match line.word(0, &["read", "write", "execute"])? {
        0 => Use::Read,
        1 => Use::Write,
        _ => Use::Execute,
    };
    let path = |word| (how, line.prefix_path(conf::Access::Opened, word));
    Ok(line.args()[1..].iter().map(path).collect())
}

/// The rules for a worker of a configuration; `None`: it runs without.
pub(crate) fn rules(loaded: &Loaded) -> Option<Rules> {
    let core = &loaded.core;
    if !core.sandbox {
        return None;
    }
    let needs = &loaded.needs;
    let mut rules = Rules {
        unix_sockets: needs.unix_sockets,
        executable_memory: needs.executable_memory,
        transparent: needs.transparent,
        ..Rules::default()
    };
    rules.read.extend(READ.map(PathBuf::from));
    if core.user.as_ref().is_none_or(|user| user.uid == 0) && process::is_root() {
        rules.read.extend(READ_BY_ROOT.map(PathBuf::from));
    }
    // The stacks of loops that are late are read with the help of the program's own file.
    rules.read.extend(std::env::current_exe().ok());
    rules
        .read
        .extend(needs.read.iter().map(|path| widened(path)));
    rules.write.push(PathBuf::from(WRITE));
    rules
        .write
        .extend(needs.write.iter().map(|path| widened(path)));
    let roots = match needs.changes_roots {
        true => &mut rules.write,
        false => &mut rules.read,
    };
    roots.extend(needs.roots.iter().map(|path| widened(path)));
    if core.core_size.is_some_and(|size| size > 0) {
        rules.write.extend(core.working_directory.clone());
    }
    for (how, path) in &core.sandbox_paths {
        match how {
            Use::Read => rules.read.push(path.clone()),
            Use::Write => rules.write.push(path.clone()),
            Use::Execute => rules.execute.push(path.clone()),
        }
    }
    for list in [&mut rules.read, &mut rules.write, &mut rules.execute] {
        list.sort();
        list.dedup();
    }
    Some(rules)
}

/// The folder whose content is allowed when a configuration names this path.
///
/// Landlock holds what is at a path, not its name. So that a file may be replaced by a new one, its folder is allowed, and where
/// a link leads to another folder beside it (`current` to `releases/42`), the folder of the link. Not the folders at the root
/// of the file system: they are everybody's.
fn widened(path: &Path) -> PathBuf {
    let shared = |folder: &Path| folder.components().count() <= 2;
    if let Some(folder) = folder_of_link(path).filter(|folder| !shared(folder)) {
        return folder;
    }
    match path.parent() {
        Some(folder) if !shared(folder) && path.is_file() => folder.to_path_buf(),
        Some(_) | None => path.to_path_buf(),
    }
}

/// The folder of the first link on the way to a path, if the path does not lead out of it.
fn folder_of_link(path: &Path) -> Option<PathBuf> {
    let end = path.canonicalize().ok()?;
    let steps: Vec<&Path> = path.ancestors().collect();
    let link = steps.iter().rev().find(|step| step.is_symlink())?;
    let folder = link.parent()?;
    end.starts_with(folder.canonicalize().ok()?)
        .then(|| folder.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_replaced_stays_allowed() {
        let top = std::env::temp_dir().join(format!("weir-widened-{}", std::process::id()));
        fs::create_dir_all(top.join("app/releases/1/public")).expect("a folder");
        fs::write(top.join("app/users"), "").expect("a file");
        std::os::unix::fs::symlink("releases/1", top.join("app/current")).expect("a link");
        std::os::unix::fs::symlink("/usr", top.join("app/out")).expect("a link");
        for (path, expected) in [
            ("app", "app"),
            ("app/users", "app"),
            ("app/current/public", "app"),
            ("app/out", "app/out"),
            ("app/none", "app/none"),
            ("none", "none"),
        ] {
            assert_eq!(widened(&top.join(path)), top.join(expected), "{path}");
        }
        assert_eq!(widened(Path::new("/etc/passwd")), Path::new("/etc/passwd"));
        fs::remove_dir_all(&top).expect("it is ours");
    }
}
