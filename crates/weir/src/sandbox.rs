//! `worker_sandbox`: what a worker may do under a configuration.
//!
//! The configuration declares its needs ([`conf::system_needs`]); this adds what the program and its
//! libraries need in any case, and what `worker_sandbox_path` names for code that no directive
//! describes, such as scripts. The master decides before it forks, so that a worker cannot grant
//! itself anything; and it logs what it has decided, so that an administrator can see what a worker
//! may do.

use std::path::{Path, PathBuf};

use host::process;
use rt::sandbox::SandboxRules;

use crate::load_configuration::LoadedConfiguration;
use crate::sandbox_paths::PathAccess;

/// What the C library, time zones, the resolver and the process's statistics read. What does not
/// exist is skipped.
const READ: [&str; 21] = [
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
    "/proc/meminfo",
    "/proc/self",
    "/proc/sys",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/dev/urandom",
];

/// A worker that remains root looks its user up again for each configuration.
const READ_BY_ROOT: [&str; 2] = ["/etc/passwd", "/etc/group"];

const WRITE: &str = "/dev/null";

/// The rules for a worker of this configuration; `None` if it runs without a sandbox.
pub(crate) fn rules(loaded: &LoadedConfiguration) -> Option<SandboxRules> {
    let core = &loaded.core;
    if !core.sandbox {
        return None;
    }
    let needs = &loaded.needs;
    let mut rules = SandboxRules {
        unix_sockets: needs.unix_sockets,
        executable_memory: needs.executable_memory,
        transparent: needs.transparent,
        ..SandboxRules::default()
    };
    rules.read.extend(READ.map(PathBuf::from));
    if core.user.as_ref().is_none_or(|user| user.uid == 0) && process::is_root() {
        rules.read.extend(READ_BY_ROOT.map(PathBuf::from));
    }
    // Stack traces of late loops are resolved with the program's own file.
    rules.read.extend(std::env::current_exe().ok());
    rules
        .read
        .extend(needs.read.iter().map(|path| allowed_folder(path)));
    rules.write.push(PathBuf::from(WRITE));
    rules
        .write
        .extend(needs.write.iter().map(|path| allowed_folder(path)));
    // Directories of files are writable only if something in the configuration changes them, such
    // as WebDAV.
    let roots = match needs.changes_roots {
        true => &mut rules.write,
        false => &mut rules.read,
    };
    roots.extend(needs.roots.iter().map(|path| allowed_folder(path)));
    // The kernel writes core dumps with the process's own rights.
    if core.core_size.is_some_and(|size| size > 0) {
        rules.write.extend(core.working_directory.clone());
    }
    for (how, path) in &core.sandbox_paths {
        match how {
            PathAccess::Read => rules.read.push(path.clone()),
            PathAccess::Write => rules.write.push(path.clone()),
            PathAccess::Execute => rules.execute.push(path.clone()),
        }
    }
    for list in [&mut rules.read, &mut rules.write, &mut rules.execute] {
        list.sort();
        list.dedup();
    }
    Some(rules)
}

/// The directory that is permitted when a configuration names this path.
///
/// Landlock rules apply to the file at a path, not to its name. So that a file can be replaced, its
/// directory is permitted; and if a symbolic link leads to another directory beside it (`current`
/// to `releases/42`), the link's directory. Directories at the root of the file system are not:
/// they contain everything.
fn allowed_folder(path: &Path) -> PathBuf {
    let shared = |folder: &Path| folder.components().count() <= 2;
    if let Some(folder) = folder_of_link(path).filter(|folder| !shared(folder)) {
        return folder;
    }
    match path.parent() {
        Some(folder) if !shared(folder) && path.is_file() => folder.to_path_buf(),
        Some(_) | None => path.to_path_buf(),
    }
}

/// The directory of the first symbolic link in a path, if the path does not leave it.
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
            assert_eq!(
                allowed_folder(&top.join(path)),
                top.join(expected),
                "{path}"
            );
        }
        assert_eq!(
            allowed_folder(Path::new("/etc/passwd")),
            Path::new("/etc/passwd")
        );
        fs::remove_dir_all(&top).expect("it is ours");
    }
}
