//! What the worker gives up before it serves: capabilities, system calls, files.
//!
//! Three locks, each of which holds without the others:
//!
//! - *capabilities*: `no_new_privs`, an empty bounding set, and of a worker that stays root all but a few;
//! - *system calls*: a seccomp filter that lets through those of a list (`system_calls`); what is not on it gets
//!   `EPERM`, and the master is told of it by a [`SeccompListener`], so that there is a line in the log;
//! - *files*: Landlock, with the folders that a configuration names ([`SandboxRules`]).
//!
//! All hold for good and for every thread that is started later, so [`enter`] is called while there is one. The master
//! decides what [`SandboxRules`] say. The kernel, or a container's own filter, may lack any of the three:
//! [`SandboxResult`] says so, and the others hold all the same.

mod filter;
mod landlock_denials;
mod listener;
mod system_calls;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

pub use landlock_denials::{LandlockDenials, note_denied as note_refusal};
pub use listener::{DeniedCall, SeccompListener};
pub use system_calls::name as call_name;

/// The Landlock that this is written for. An older kernel enforces what it knows of it.
const NEWEST: ABI = ABI::V6;

/// What stays allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxRules {
    /// Files and folders that may be read.
    pub read: Vec<PathBuf>,
    /// Folders and files that may be read and changed.
    pub write: Vec<PathBuf>,
    /// Programs, and folders of programs, that may be run. When there are none, no process can be started at all.
    pub execute: Vec<PathBuf>,
    /// Unix sockets may be connected to, besides Internet sockets.
    pub unix_sockets: bool,
    /// Memory may become executable: for machine code that is made while running.
    pub executable_memory: bool,
    /// Packets may be sent with an address that is not the machine's (`proxy_bind … transparent`).
    pub transparent: bool,
}

impl SandboxRules {
    /// Does everything that `self` allows stand in `wider` as well?
    pub fn are_within(&self, wider: &SandboxRules) -> bool {
        let inside = |paths: &[PathBuf], of: &[&[PathBuf]]| {
            let covers = |path: &PathBuf| {
                of.iter()
                    .any(|list| list.iter().any(|top| path.starts_with(top)))
            };
            paths.iter().all(covers)
        };
        inside(&self.read, &[&wider.read, &wider.write])
            && inside(&self.write, &[&wider.write])
            && inside(&self.execute, &[&wider.execute])
            && self.unix_sockets <= wider.unix_sockets
            && self.executable_memory <= wider.executable_memory
            && self.transparent <= wider.transparent
    }

    /// What is at the paths now. When it changes, rules that were made of it are out of date: Landlock holds files, not
    /// names.
    pub fn path_identities(&self) -> Vec<Option<(u64, u64)>> {
        let paths = self.read.iter().chain(&self.write).chain(&self.execute);
        paths.map(|path| identity(path)).collect()
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// What became of the locks.
#[derive(Debug)]
pub struct SandboxResult {
    /// Where denied system calls are heard of. `None`: they are denied without a word.
    pub listener: Option<SeccompListener>,
    /// What could not be had, a sentence each.
    pub missing: Vec<String>,
}

/// Gives up what is not needed to become another user and nothing else. To be called as root, before the change of
/// user.
pub fn drop_bounding_set() -> io::Result<()> {
    for number in 0..=MAX_CAPABILITY {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel has no more of them.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The number of the last capability that there may ever be: the sets have 64 bits.
const MAX_CAPABILITY: u32 = 63;

/// Of a process that stays root: to open and change the files of others, as a root worker may without the sandbox.
const OF_ROOT: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::CHOWN);

/// Locks this process in, for good. Fails only where that leaves nothing locked.
///
/// Must run while the process has one thread: the others would stay outside.
pub fn enter(rules: &SandboxRules) -> io::Result<SandboxResult> {
    crate::system::require_one_thread()?;
    let mut missing = Vec::new();
    let mut note =
        |what: &str, error: &dyn std::fmt::Display| missing.push(format!("{what}: {error}"));
    if let Err(error) = drop_capabilities(rules) {
        note("capabilities could not be dropped", &error);
    }
    // Without it an unprivileged process may not lock itself in.
    rustix::thread::set_no_new_privs(true)?;
    match restrict_files(rules) {
        Ok(None) => {}
        Ok(Some(what)) => missing.push(what),
        Err(error) => note("file access is not restricted: Landlock failed", &error),
    }
    let listener = match filter::install(rules) {
        Ok(listener) => listener,
        Err(error) => {
            let text = "system calls are not restricted: seccomp failed";
            missing.push(format!("{text}{}", base::ErrnoText(&error)));
            return Ok(SandboxResult {
                listener: None,
                missing,
            });
        }
    };
    if let Err(error) = &listener {
        let text = "denied system calls are not logged: seccomp has no listener";
        missing.push(format!("{text}{}", base::ErrnoText(error)));
    }
    landlock_denials::start_noting();
    Ok(SandboxResult {
        listener: listener.ok(),
        missing,
    })
}

/// Keeps of the capabilities what a root worker needs; another user has none.
fn drop_capabilities(rules: &SandboxRules) -> io::Result<()> {
    let mut kept = CapabilitySet::empty();
    if crate::system::is_root() {
        kept |= OF_ROOT;
    }
    if rules.transparent {
        kept |= CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN;
    }
    let now = rustix::thread::capabilities(None)?;
    let kept = kept & now.permitted;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: kept & now.effective,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// Restricts files. The answer is what an older kernel leaves open.
fn restrict_files(rules: &SandboxRules) -> Result<Option<String>, landlock::RulesetError> {
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let running = AccessFs::Execute | AccessFs::ReadFile;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(&rules.read, reading))?
        .add_rules(path_beneath_rules(&rules.write, writing()))?
        .add_rules(path_beneath_rules(&rules.execute, running))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => None,
        RulesetStatus::PartiallyEnforced => Some(
            "file access is restricted only as far as this kernel's Landlock supports it"
                .to_owned(),
        ),
        RulesetStatus::NotEnforced => {
            Some("file access is not restricted: this kernel has no Landlock".to_owned())
        }
    })
}

/// To change a folder, but for what no server makes: devices, sockets, pipes and links.
fn writing() -> BitFlags<AccessFs> {
    let never = AccessFs::Execute
        | AccessFs::MakeChar
        | AccessFs::MakeBlock
        | AccessFs::MakeSock
        | AccessFs::MakeFifo
        | AccessFs::MakeSym
        | AccessFs::IoctlDev;
    AccessFs::from_all(NEWEST) & !never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_compared_by_what_they_allow() {
        let rules = |read: &[&str], write: &[&str]| SandboxRules {
            read: read.iter().map(PathBuf::from).collect(),
            write: write.iter().map(PathBuf::from).collect(),
            ..SandboxRules::default()
        };
        let wide = rules(&["/a", "/b/c"], &["/w"]);
        assert!(rules(&["/a/x", "/w/y"], &["/w"]).are_within(&wide));
        assert!(!rules(&["/b"], &[]).are_within(&wide));
        assert!(!rules(&[], &["/a"]).are_within(&wide));
        assert!(!rules(&["/ab"], &[]).are_within(&wide));
        let unix = SandboxRules {
            unix_sockets: true,
            ..wide.clone()
        };
        assert!(wide.are_within(&unix) && !unix.are_within(&wide));
    }
}
