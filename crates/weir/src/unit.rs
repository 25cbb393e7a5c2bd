//! `weir unit`: a sandbox for `nginx.service`, made from the configuration that it runs.
//!
//! The unit of nginx's package restricts nothing, and no fixed list could: a root may be in `/home`, a socket in `/tmp`, a
//! cache in `/data`. The configuration says which ([`conf::system_needs`]), so the drop-in grants those and removes the rest.
//! It keeps the unit's type, start and end. The master may remain root, with the capabilities that a master uses; what its
//! workers give up besides is `worker_sandbox`'s matter ([`crate::sandbox`]).
//!
//! Nothing is written anywhere: the user redirects the output.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use conf::DirectiveNode;
use host::listen::ListenAddress;
use lexopt::prelude::*;

use crate::arguments::NginxOptions;
use crate::command_hints::unexpected;
use crate::commands;
use crate::identity::ProgramIdentity;
use crate::load_configuration::{LoadedConfiguration, load_from_disk};
use crate::sandbox_paths::PathAccess;
use crate::{prepare, run, terminal};

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnitArguments {
    /// Where the configuration is.
    options: NginxOptions,
    apparmor: bool,
}

/// Reads the arguments after `unit`.
pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<UnitArguments, String> {
    let mut unit = UnitArguments {
        options: NginxOptions {
            test: true,
            ..NginxOptions::default()
        },
        apparmor: false,
    };
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("apparmor") => unit.apparmor = true,
            Short('c') => unit.options.configuration = Some(value(&mut parser)?.into()),
            Short('p') => unit.options.prefix = Some(value(&mut parser)?.into()),
            Short('g') => {
                unit.options.globals = Some(value(&mut parser)?.to_string_lossy().into_owned());
            }
            other => return Err(unexpected(&commands::UNIT, other)),
        }
    }
    Ok(unit)
}

/// The value of an option. Its bytes stay as they are: it may be a path.
fn value(parser: &mut lexopt::Parser) -> Result<OsString, String> {
    parser.value().map_err(|error| error.to_string())
}

/// Prints the drop-in, or the profile. Returns the exit code.
pub(crate) fn run(unit: &UnitArguments, arguments: &[OsString]) -> i32 {
    // The unit runs the program under that name, so those are the default paths.
    let startup = match run::startup(ProgramIdentity::Nginx, &unit.options, arguments) {
        Ok(startup) => startup,
        Err(error) => {
            terminal::report_line(format_args!("weir: {error}"));
            return 1;
        }
    };
    let loaded = match load_from_disk(&startup, None) {
        Ok(loaded) => loaded,
        Err(failure) => {
            failure.0.print("weir");
            return 1;
        }
    };
    let needs = UnitNeeds::of(&loaded);
    let configuration = &startup.paths.configuration;
    let text = match unit.apparmor {
        true => profile(&needs, configuration),
        false => drop_in(&needs, configuration),
    };
    terminal::print_text(format_args!("{text}"));
    0
}

/// What the unit must be able to do.
#[derive(Debug, Default, PartialEq, Eq)]
struct UnitNeeds {
    /// Files that the configuration consists of, or that it names.
    files: BTreeSet<PathBuf>,
    /// Folders that requests look in, and what else workers read.
    read: BTreeSet<PathBuf>,
    /// Folders in which something is changed.
    write: BTreeSet<PathBuf>,
    execute: BTreeSet<PathBuf>,
    capabilities: Vec<&'static str>,
    executable_memory: bool,
}

impl UnitNeeds {
    /// Collects what the configuration names. What it does not name the unit does not permit.
    fn of(loaded: &LoadedConfiguration) -> UnitNeeds {
        let core = &loaded.core;
        let mut needs = UnitNeeds {
            files: loaded.snapshot.files().map(Path::to_path_buf).collect(),
            read: loaded.needs.read.clone(),
            executable_memory: loaded.needs.executable_memory,
            ..UnitNeeds::default()
        };
        mentioned_files(&loaded.messages.nodes, &mut needs.files);
        for path in &loaded.needs.write {
            needs.write(path);
        }
        match loaded.needs.changes_roots {
            true => loaded.needs.roots.iter().for_each(|root| needs.write(root)),
            false => needs.read.extend(loaded.needs.roots.iter().cloned()),
        }
        for folder in &loaded.directories {
            needs.write(folder);
        }
        // Files that are replaced or made anew: what must be writable is their folder.
        for file in loaded.files.all_paths().iter().chain([&core.pid]) {
            needs.write(file.parent().unwrap_or(Path::new("/")));
        }
        for listener in prepare::listeners(loaded) {
            if let ListenAddress::Unix(path) | ListenAddress::UnixDatagram(path) = &listener.address
            {
                needs.write(path.parent().unwrap_or(Path::new("/")));
            }
        }
        needs.write.extend(core.working_directory.clone());
        for (how, path) in &core.sandbox_paths {
            match how {
                PathAccess::Read => needs.read.insert(path.clone()),
                PathAccess::Write => needs.write.insert(path.clone()),
                PathAccess::Execute => needs.execute.insert(path.clone()),
            };
        }
        needs.capabilities = capabilities(loaded);
        needs
    }

    /// Adds something that is changed. What does not exist is going to be made, in the nearest folder that does.
    fn write(&mut self, path: &Path) {
        let there = path.ancestors().find(|ancestor| ancestor.exists());
        let folder = match there {
            // A file may be replaced by another one of its name.
            Some(there) if there.is_file() => there.parent(),
            there => there,
        };
        // The devices are the system's, and the root of the file system would be everything.
        let kept = |folder: &&Path| !folder.starts_with("/dev") && *folder != Path::new("/");
        self.write
            .extend(folder.filter(kept).map(Path::to_path_buf));
    }

    /// Whether something below one of these folders is needed, by its name or by where a symbolic link leads.
    fn reaches(&self, folders: &[&str]) -> bool {
        // What a variable may be is anywhere.
        if self.read.contains(Path::new("/")) {
            return true;
        }
        let all = [&self.files, &self.read, &self.write, &self.execute];
        all.into_iter().flatten().any(|path| {
            let real = path.canonicalize().unwrap_or_default();
            let is_below = |folder: &str| path.starts_with(folder) || real.starts_with(folder);
            folders.iter().any(|folder| is_below(folder))
        })
    }
}

/// Files and sockets that are named by words of their own or after `unix:`, whatever the directive: keys, dictionaries, sockets
/// of applications.
fn mentioned_files(nodes: &[DirectiveNode], files: &mut BTreeSet<PathBuf>) {
    for node in nodes {
        for word in &node.args {
            let text = String::from_utf8_lossy(&word.text);
            let socket = text.split_once("unix:").map(|(_, rest)| rest);
            let name = socket.unwrap_or(&text).split(':').next();
            let path = Path::new(name.unwrap_or_default());
            // An application that is not running now has no socket yet.
            let is_file = socket.is_some() || path.exists() && !path.is_dir();
            if path.is_absolute() && is_file {
                files.insert(path.to_path_buf());
            }
        }
        for line in node.block.lines() {
            mentioned_files(std::slice::from_ref(&*line), files);
        }
    }
}

/// What a master does as root, and its worker with less.
fn capabilities(loaded: &LoadedConfiguration) -> Vec<&'static str> {
    let core = &loaded.core;
    let mut list = vec![
        // Workers become their user; what they own is opened, made for them, and signalled.
        "CAP_SETUID",
        "CAP_SETGID",
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FOWNER",
        "CAP_KILL",
        "CAP_NET_BIND_SERVICE",
    ];
    if core.sandbox {
        // It empties the bounding set.
        list.push("CAP_SETPCAP");
    }
    if core.descriptors.is_some() || core.core_size.is_some() {
        list.push("CAP_SYS_RESOURCE");
    }
    if core.priority < 0 {
        list.push("CAP_SYS_NICE");
    }
    if loaded.needs.transparent {
        list.push("CAP_NET_RAW");
    }
    list
}

/// The settings that need nothing from the configuration.
const FIXED: &str = "\
NoNewPrivileges=yes
PrivateDevices=yes
PrivateMounts=yes
DevicePolicy=closed
ProtectProc=invisible
ProcSubset=pid
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp
SystemCallErrorNumber=EPERM
";

/// The drop-in.
fn drop_in(needs: &UnitNeeds, configuration: &Path) -> String {
    let mut text = format!(
        "# Made by \"weir unit\" from {}.\n# Make it again after changes that name new directories.\n[Service]\n",
        configuration.display()
    );
    let _ = writeln!(text, "AppArmorProfile=-{PROFILE}");
    let _ = writeln!(
        text,
        "CapabilityBoundingSet={}",
        needs.capabilities.join(" ")
    );
    text.push_str("ProtectSystem=strict\n");
    for path in outermost(&needs.write) {
        let _ = writeln!(text, "ReadWritePaths={}", optional(path));
    }
    let home = match needs.reaches(&["/home", "/root", "/run/user"]) {
        true => "read-only",
        false => "yes",
    };
    let tmp = match needs.reaches(&["/tmp", "/var/tmp"]) {
        true => "no",
        false => "yes",
    };
    let memory = match needs.executable_memory {
        true => "no",
        false => "yes",
    };
    let _ = writeln!(text, "ProtectHome={home}\nPrivateTmp={tmp}");
    let _ = writeln!(text, "MemoryDenyWriteExecute={memory}");
    text.push_str(FIXED);
    text
}

/// A path as systemd reads it: `%` begins a specifier, and spaces separate paths unless the whole word is in quotes. The dash
/// says that it may be missing: otherwise the unit would not start once the folder is removed.
fn optional(path: &Path) -> String {
    let text = path.display().to_string().replace('%', "%%");
    match text.contains([' ', '\'']) {
        true => format!("\"-{text}\""),
        false => format!("-{text}"),
    }
}

/// The paths that are not inside another one of them.
fn outermost(paths: &BTreeSet<PathBuf>) -> impl Iterator<Item = &Path> {
    let is_inside = |path: &Path| path.ancestors().skip(1).any(|above| paths.contains(above));
    // A line feed in a path would begin a line of its own.
    let is_plain = |path: &Path| !path.display().to_string().contains(char::is_control);
    let all = paths.iter().map(PathBuf::as_path);
    all.filter(move |path| !is_inside(path) && is_plain(path))
}

/// The profile's name. It has no path, so only the unit that names it is confined, not `weir` in a shell.
const PROFILE: &str = "weir-nginx";

/// The rules that need nothing from the configuration.
const RULES: &str = "  include <abstractions/base>
  include <abstractions/nameservice>

  signal (send, receive) peer=weir-nginx,
  signal (receive) peer=unconfined,
  network inet stream,
  network inet6 stream,
  network inet dgram,
  network inet6 dgram,
  network netlink raw,
  unix,

  # The program, and the one that takes its place at an upgrade; what the unit runs besides.
  /usr/sbin/weir mrix,
  /usr/sbin/nginx mrix,
  /usr/sbin/nginx.distrib mrix,
  /{,usr/}{,s}bin/{start-stop-daemon,kill,sh,dash,cat} mrix,
  /usr/lib/nginx/modules/** mr,
  /var/lib/weir-nginx/** r,
  /etc/ssl/openssl.cnf r,
  @{PROC}/@{pids}/ r,
  @{PROC}/@{pids}/{stat,status,statm,task/,exe} r,
  @{PROC}/meminfo r,
  @{PROC}/sys/** r,
  @{sys}/devices/system/cpu/** r,
  @{sys}/fs/cgroup/** r,
";

/// The AppArmor profile.
fn profile(needs: &UnitNeeds, configuration: &Path) -> String {
    let mut text = format!(
        "# Made by \"weir unit --apparmor\" from {}.\n# Make it again after changes that name new files.\n\
         abi <abi/3.0>,\ninclude <tunables/global>\n\nprofile {PROFILE} flags=(attach_disconnected) {{\n{RULES}\n",
        configuration.display()
    );
    for capability in &needs.capabilities {
        let name = capability.trim_start_matches("CAP_").to_ascii_lowercase();
        let _ = writeln!(text, "  capability {name},");
    }
    text.push('\n');
    // A reload may include files that are new.
    let folder = configuration.parent().unwrap_or(Path::new("/"));
    let _ = writeln!(text, "  {} r,", ruled(folder, "/{,**}"));
    let mut lines = BTreeSet::new();
    let mut rule = |path: &Path, access: &str| {
        let real = path.canonicalize().unwrap_or(path.to_path_buf());
        for path in [path, &real] {
            let below = if path.is_dir() { "/{,**}" } else { "" };
            lines.insert(format!("  {} {access},\n", ruled(path, below)));
        }
    };
    for path in outermost(&needs.files) {
        // Whoever connects to a socket writes to it.
        let is_file = path.metadata().is_ok_and(|found| found.is_file());
        rule(path, if is_file { "r" } else { "rw" });
    }
    outermost(&needs.read).for_each(|path| rule(path, "r"));
    outermost(&needs.write).for_each(|path| rule(path, "rwkl"));
    outermost(&needs.execute).for_each(|path| rule(path, "mrix"));
    text.extend(lines);
    text.push_str("}\n");
    text
}

/// A path as AppArmor reads it, and a pattern behind it.
fn ruled(path: &Path, pattern: &str) -> String {
    let mut out = String::new();
    // The root of the file system has its slash in the pattern.
    let text = path.display().to_string();
    for letter in text.trim_end_matches('/').chars() {
        if "*?[]{}^\\\"@".contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    match out.contains(' ') {
        true => format!("\"{out}{pattern}\""),
        false => format!("{out}{pattern}"),
    }
}
