//! Where the configuration, the default logs and the pid file are.
//!
//! nginx fixes these when it is compiled, and distributions choose `/etc/nginx`. Weir finds them:
//!
//! | given | prefix | configuration | default logs | default pid file | default temporary folders |
//! |---|---|---|---|---|---|
//! | nothing, `/etc/weir/weir.conf` is there | `/etc/weir` | `weir.conf` | `/var/log/weir` | `/run/weir.pid` | `/var/lib/weir` |
//! | nothing else, or started as `nginx` | `/etc/nginx` | `nginx.conf` | `/var/log/nginx` | `/run/nginx.pid` | `/var/lib/nginx` |
//! | `-c FILE` elsewhere | as without | `FILE` | `/var/log/weir` | `/run/weir.pid` | `/var/lib/weir` |
//! | `-p DIR` | `DIR` | `conf/nginx.conf`, else `nginx.conf` | `DIR/logs` | `DIR/logs/nginx.pid` | `DIR` |
//!
//! Nothing is created in `/etc`: with a prefix there the system's places for logs, pid file and
//! temporary files are used. Each of them that this user cannot write is replaced: the directories
//! by `$XDG_STATE_HOME/weir`, the pid file by one in `$XDG_RUNTIME_DIR`, without a home directory
//! by the user's own directory in `/tmp`, and the logs by standard error. Under the name `nginx`
//! with `-p` nothing is replaced, so that every error is nginx's.
//!
//! Where a package has put this program in the place of an nginx binary, that binary's paths are used under its name
//! ([`ReplacedBuild`]), so that a configuration finds what it found before.
//!
//! `-c` and `-e` are relative to the prefix, as in nginx; if a file that `-c` names is not there,
//! it is looked for in the current directory. An `include` is relative to the directory of the
//! configuration file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rt::file::modes;

use crate::arguments::NginxOptions;
use crate::identity::ProgramIdentity;
use crate::replaced_build::ReplacedBuild;

/// The paths that follow from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerPaths {
    /// The base of relative paths in the configuration.
    pub(crate) prefix: PathBuf,
    /// The configuration file.
    pub(crate) configuration: PathBuf,
    /// Whether the command line names it.
    pub(crate) is_named: bool,
    /// Where the named configuration was looked for besides `configuration`, if there is none at either place.
    pub(crate) also_tried: Option<PathBuf>,
    /// The error log if the configuration names none; `None` means standard error.
    pub(crate) error_log: Option<PathBuf>,
    /// The access log if the configuration names none.
    pub(crate) access_log: PathBuf,
    /// The pid file if the configuration names none.
    pub(crate) pid: PathBuf,
    /// The base of temporary files and state that the configuration does not place. Never in
    /// `/etc`, where a service may not be allowed to write.
    pub(crate) temporary: PathBuf,
    /// Those of these directories that the server creates when it needs them.
    pub(crate) own_folders: Vec<OwnFolder>,
}

/// A directory that only this server creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnFolder {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its mode.
    pub(crate) mode: u32,
}

impl OwnFolder {
    fn new(path: impl Into<PathBuf>, mode: u32) -> OwnFolder {
        let path = path.into();
        OwnFolder { path, mode }
    }
}

/// What is asked of the system. Tests give answers of their own.
pub(crate) struct SystemProbe<'a> {
    /// Whether the file exists.
    pub(crate) exists: &'a dyn Fn(&Path) -> bool,
    /// Whether this user can write the file or directory, or create it with its parents.
    pub(crate) writable: &'a dyn Fn(&Path) -> bool,
    /// The value of an environment variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// This user's number.
    pub(crate) user: u32,
    /// The nginx binary in whose place this program was put, if it was started under that name.
    pub(crate) replaced: Option<ReplacedBuild>,
}

/// Default places.
struct DefaultPaths {
    /// `None` means standard error.
    logs: Option<OwnFolder>,
    /// The base of temporary files.
    temporary: OwnFolder,
    pid: PathBuf,
}

impl SystemProbe<'_> {
    /// A directory from a variable. A relative path is ignored, as the XDG Base Directory
    /// Specification demands.
    fn folder(&self, name: &str) -> Option<PathBuf> {
        let path = PathBuf::from((self.variable)(name)?);
        path.is_absolute().then_some(path)
    }

    /// The directory for this user's state.
    fn state_folder(&self) -> Option<PathBuf> {
        self.folder("XDG_STATE_HOME")
            .or_else(|| Some(self.folder("HOME")?.join(".local/state")))
    }

    /// The places for a server named `name` that this user can write.
    fn defaults(&self, name: &str) -> DefaultPaths {
        let writable = |path: &PathBuf| (self.writable)(path);
        let own = self
            .state_folder()
            .map(|state| state.join(name))
            .filter(writable);
        let own = own.map(|path| OwnFolder::new(path, modes::PRIVATE_FOLDER));
        let shared = |above: &str| {
            let path = Path::new(above).join(name);
            writable(&path).then(|| OwnFolder::new(path, modes::PUBLIC_FOLDER))
        };
        let logs = shared("/var/log").or_else(|| own.clone());
        let temporary = shared("/var/lib").or(own).unwrap_or_else(|| {
            let folder = std::env::temp_dir().join(format!("{name}-{}", self.user));
            OwnFolder::new(folder, modes::PRIVATE_FOLDER)
        });
        let file = format!("{name}.pid");
        let system = Path::new("/run").join(&file);
        let session = self.folder("XDG_RUNTIME_DIR").map(|path| path.join(&file));
        // The system's place first, so that an administrator's scripts find the server where they expect it.
        let pid = [Some(system), session].into_iter().flatten().find(writable);
        DefaultPaths {
            logs,
            pid: pid.unwrap_or_else(|| temporary.path.join(file)),
            temporary,
        }
    }
}

impl ServerPaths {
    /// Finds the paths.
    pub(crate) fn find(
        identity: ProgramIdentity,
        options: &NginxOptions,
        ground: &SystemProbe<'_>,
    ) -> ServerPaths {
        let mut paths = match &options.prefix {
            Some(prefix) => ServerPaths::under(prefix, ground),
            None => ServerPaths::of_system(identity, ground),
        };
        let replaced = ground.replaced.as_ref();
        if let Some(build) = replaced {
            if options.prefix.is_none() {
                let default = || PathBuf::from("/usr/local/nginx");
                paths.prefix = build.prefix.clone().unwrap_or_else(default);
            }
            // Only what was relative when nginx was compiled follows `-p`.
            let below = paths.prefix.join("conf/nginx.conf");
            paths.configuration = build.configuration.clone().unwrap_or(below);
        }
        if let Some(configuration) = &options.configuration {
            let below = paths.prefix.join(configuration);
            let here = std::path::absolute(configuration).ok();
            let here = here.filter(|here| *here != below && !(ground.exists)(&below));
            match here {
                Some(here) if (ground.exists)(&here) => paths.configuration = here,
                here => {
                    paths.configuration = below;
                    paths.also_tried = here;
                }
            }
            paths.is_named = true;
        }
        paths.place_defaults(identity, options.prefix.is_some(), ground);
        if let Some(build) = replaced {
            paths.use_defaults_of(build);
        }
        if let Some(log) = &options.error_log {
            let stream = log.as_os_str().is_empty() || log == Path::new("stderr");
            paths.error_log = (!stream).then(|| paths.prefix.join(log));
        }
        paths
    }

    /// The paths for `-p`. nginx's layout has `conf/nginx.conf`; a directory that is a copy of
    /// `/etc/nginx` has it at the top.
    fn under(prefix: &Path, ground: &SystemProbe<'_>) -> ServerPaths {
        let named = prefix.join("conf/nginx.conf");
        let beside = prefix.join("nginx.conf");
        let configuration = if !(ground.exists)(&named) && (ground.exists)(&beside) {
            beside
        } else {
            named
        };
        ServerPaths {
            prefix: prefix.to_path_buf(),
            configuration,
            is_named: true,
            ..ServerPaths::default()
        }
    }

    /// The paths without `-p`.
    fn of_system(identity: ProgramIdentity, ground: &SystemProbe<'_>) -> ServerPaths {
        let own = Path::new("/etc/weir/weir.conf");
        let name = if identity == ProgramIdentity::Weir && (ground.exists)(own) {
            "weir"
        } else {
            "nginx"
        };
        let prefix = Path::new("/etc").join(name);
        ServerPaths {
            configuration: prefix.join(format!("{name}.conf")),
            prefix,
            ..ServerPaths::default()
        }
    }

    /// Fills in the defaults for what the configuration does not name.
    fn place_defaults(
        &mut self,
        identity: ProgramIdentity,
        has_prefix: bool,
        ground: &SystemProbe<'_>,
    ) {
        // Whatever looks for the process of nginx's configuration must find this one, so the pid
        // file has nginx's place.
        let is_nginx =
            identity == ProgramIdentity::Nginx || self.configuration.starts_with("/etc/nginx");
        let defaults = ground.defaults(if is_nginx { "nginx" } else { "weir" });
        let in_prefix = has_prefix && !self.prefix.starts_with("/etc");
        // Test suites start `nginx -p DIR` and compare its errors.
        let strict = has_prefix && identity == ProgramIdentity::Nginx;
        let writable = |path: &Path| strict || in_prefix && (ground.writable)(path);

        let below = self.prefix.join("logs");
        let logs = match writable(&below) {
            true => Some(OwnFolder::new(&below, modes::PUBLIC_FOLDER)),
            false => defaults.logs,
        };
        let log = |name: &str| logs.as_ref().map(|logs| logs.path.join(name));
        self.error_log = log("error.log");
        self.access_log = log("access.log").unwrap_or_else(|| "/dev/stderr".into());
        self.pid = match writable(&below) {
            true => below.join("nginx.pid"),
            false => defaults.pid,
        };
        let temporary = match writable(&self.prefix) {
            true => OwnFolder::new(&self.prefix, modes::PUBLIC_FOLDER),
            false => defaults.temporary,
        };
        self.temporary.clone_from(&temporary.path);
        if !strict {
            self.own_folders = logs.into_iter().chain([temporary]).collect();
        }
    }

    /// The default paths of a binary that this program replaces; those that it was not told are below the prefix. Its package
    /// has made the directories.
    fn use_defaults_of(&mut self, build: &ReplacedBuild) {
        let logs = self.prefix.join("logs");
        let or_log =
            |path: &Option<PathBuf>, name: &str| path.clone().unwrap_or_else(|| logs.join(name));
        let error_log = or_log(&build.error_log, "error.log");
        self.error_log = (error_log != Path::new("stderr")).then_some(error_log);
        self.access_log = or_log(&build.access_log, "access.log");
        self.pid = or_log(&build.pid, "nginx.pid");
        self.temporary = build
            .temporary
            .clone()
            .unwrap_or_else(|| self.prefix.clone());
    }

    /// Makes every path absolute: the worker may have another working directory.
    pub(crate) fn absolute(&mut self) -> std::io::Result<()> {
        let own = self.own_folders.iter_mut().map(|own| &mut own.path);
        let own = own.chain(&mut self.error_log).chain([
            &mut self.prefix,
            &mut self.configuration,
            &mut self.access_log,
            &mut self.pid,
            &mut self.temporary,
        ]);
        for path in own {
            *path = std::path::absolute(&*path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What root finds where these files are.
    fn find(identity: ProgramIdentity, options: NginxOptions, there: &[&str]) -> ServerPaths {
        find_as(identity, options, there, &["/"], &[])
    }

    /// What a user finds who can write below these folders.
    fn find_as(
        identity: ProgramIdentity,
        options: NginxOptions,
        there: &[&str],
        writable: &[&str],
        variables: &[(&str, &str)],
    ) -> ServerPaths {
        let is = |path: &Path| there.iter().any(|known| path == Path::new(known));
        let below = |path: &Path| writable.iter().any(|folder| path.starts_with(folder));
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let ground = SystemProbe {
            exists: &is,
            writable: &below,
            variable: &value,
            user: 7,
            replaced: None,
        };
        ServerPaths::find(identity, &options, &ground)
    }

    fn prefix(prefix: &str) -> NginxOptions {
        NginxOptions {
            prefix: Some(prefix.into()),
            ..NginxOptions::default()
        }
    }

    #[test]
    fn an_nginx_configuration_is_found_where_it_is() {
        let paths = find(
            ProgramIdentity::Weir,
            NginxOptions::default(),
            &["/etc/nginx/nginx.conf"],
        );
        assert_eq!(paths.configuration, Path::new("/etc/nginx/nginx.conf"));
        let paths = find(
            ProgramIdentity::Weir,
            NginxOptions::default(),
            &["/etc/nginx/nginx.conf", "/etc/weir/weir.conf"],
        );
        assert_eq!(paths.configuration, Path::new("/etc/weir/weir.conf"));
        let paths = find(
            ProgramIdentity::Nginx,
            NginxOptions::default(),
            &["/etc/weir/weir.conf"],
        );
        assert_eq!(paths.pid, Path::new("/run/nginx.pid"));
    }

    #[test]
    fn nothing_is_made_in_etc() {
        for (identity, there, name) in [
            (ProgramIdentity::Weir, "/etc/nginx/nginx.conf", "nginx"),
            (ProgramIdentity::Weir, "/etc/weir/weir.conf", "weir"),
            (ProgramIdentity::Nginx, "/etc/weir/weir.conf", "nginx"),
        ] {
            let paths = find(identity, NginxOptions::default(), &[there]);
            assert_eq!(paths.temporary, Path::new("/var/lib").join(name));
            let logs = Path::new("/var/log").join(name);
            assert_eq!(paths.access_log, logs.join("access.log"));
            assert_eq!(paths.error_log, Some(logs.join("error.log")));
        }
        let paths = find(ProgramIdentity::Weir, prefix("/t"), &[]);
        assert_eq!(paths.temporary, Path::new("/t"));
        let paths = find(ProgramIdentity::Weir, prefix("/etc/site"), &[]);
        assert_eq!(paths.temporary, Path::new("/var/lib/weir"));
        assert_eq!(paths.pid, Path::new("/run/weir.pid"));
    }

    #[test]
    fn a_file_elsewhere_is_not_in_the_place_of_nginx() {
        let options = NginxOptions {
            configuration: Some("/srv/a/x.conf".into()),
            ..NginxOptions::default()
        };
        let paths = find(ProgramIdentity::Weir, options, &["/etc/nginx/nginx.conf"]);
        assert_eq!(paths.pid, Path::new("/run/weir.pid"));
        assert_eq!(paths.prefix, Path::new("/etc/nginx"));
    }

    #[test]
    fn what_a_user_cannot_write_is_replaced() {
        let home = [("HOME", "/srv/a"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        let writable = ["/srv/a", "/run/user/7", "/tmp"];
        let paths = find_as(
            ProgramIdentity::Weir,
            NginxOptions::default(),
            &[],
            &writable,
            &home,
        );
        let state = Path::new("/srv/a/.local/state/nginx");
        assert_eq!(paths.temporary, state);
        assert_eq!(paths.error_log, Some(state.join("error.log")));
        assert_eq!(paths.pid, Path::new("/run/user/7/nginx.pid"));
        assert_eq!(paths.own_folders[0].mode, 0o700);

        let state = [("HOME", "/srv/a"), ("XDG_STATE_HOME", "/srv/a/s")];
        let paths = find_as(
            ProgramIdentity::Weir,
            prefix("/usr/share"),
            &[],
            &writable,
            &state,
        );
        assert_eq!(paths.temporary, Path::new("/srv/a/s/weir"));
        assert_eq!(paths.pid, Path::new("/srv/a/s/weir/weir.pid"));

        let nobody = [("HOME", "/nonexistent")];
        let paths = find_as(
            ProgramIdentity::Weir,
            prefix("/usr/share"),
            &[],
            &["/tmp"],
            &nobody,
        );
        assert_eq!(paths.error_log, None);
        assert_eq!(paths.access_log, Path::new("/dev/stderr"));
        assert!(paths.temporary.ends_with("weir-7"));
        assert!(paths.pid.ends_with("weir-7/weir.pid"));
    }

    #[test]
    fn options_are_relative_to_the_prefix() {
        let options = NginxOptions {
            prefix: Some("/t/".into()),
            configuration: Some("nginx.conf".into()),
            error_log: Some("error.log".into()),
            ..NginxOptions::default()
        };
        let paths = find(ProgramIdentity::Nginx, options, &[]);
        assert_eq!(paths.configuration, Path::new("/t/nginx.conf"));
        assert_eq!(paths.error_log.as_deref(), Some(Path::new("/t/error.log")));
        let options = NginxOptions {
            error_log: Some("stderr".into()),
            ..NginxOptions::default()
        };
        assert_eq!(find(ProgramIdentity::Nginx, options, &[]).error_log, None);
    }

    #[test]
    fn a_prefix_has_nginx_s_own_layout() {
        assert_eq!(
            find(ProgramIdentity::Weir, prefix("/t"), &[]).configuration,
            Path::new("/t/conf/nginx.conf")
        );
        let paths = find(ProgramIdentity::Weir, prefix("/t"), &["/t/nginx.conf"]);
        assert_eq!(paths.configuration, Path::new("/t/nginx.conf"));
        assert_eq!(paths.pid, Path::new("/t/logs/nginx.pid"));
    }

    #[test]
    fn as_nginx_a_prefix_is_all_that_counts() {
        let paths = find_as(ProgramIdentity::Nginx, prefix("/t"), &[], &[], &[]);
        assert_eq!(paths.error_log, Some("/t/logs/error.log".into()));
        assert_eq!(paths.temporary, Path::new("/t"));
        assert_eq!(paths.own_folders, []);
    }
}
