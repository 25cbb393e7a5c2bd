//! Where the configuration, the default logs and the pid file are.
//!
//! nginx fixes these when it is compiled; distributions choose `/etc/nginx`. Weir finds them:
//!
//! | given | prefix | configuration | default logs | default pid file | default temporary folders |
//! |---|---|---|---|---|---|
//! | nothing, `/etc/weir/weir.conf` is there | `/etc/weir` | `weir.conf` | `/var/log/weir` | `/run/weir.pid` | `/var/lib/weir` |
//! | nothing else, or started as `nginx` | `/etc/nginx` | `nginx.conf` | `/var/log/nginx` | `/run/nginx.pid` | `/var/lib/nginx` |
//! | `-c FILE` elsewhere | as without | `FILE` | `/var/log/weir` | `/run/weir.pid` | `/var/lib/weir` |
//! | `-p DIR` | `DIR` | `conf/nginx.conf`, else `nginx.conf` | `DIR/logs` | `DIR/logs/nginx.pid` | `DIR` |
//!
//! Nothing is made in `/etc`: a prefix there has the logs, pid file and temporary folders of the system. What this user
//! cannot write is replaced, each by itself: the folders by `$XDG_STATE_HOME/weir`, the pid file by one in
//! `$XDG_RUNTIME_DIR`, where there is no home by a folder of the user's own in `/tmp`, the logs by standard error. Under
//! the name `nginx` with `-p` nothing is replaced, so that every error is nginx's.
//!
//! `-c` and `-e` are relative to the prefix, as in nginx; a file that `-c` names and that is not there is looked for in the
//! current directory. An `include` is relative to the folder of the
//! configuration file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rt::file::modes;

use crate::cli::Options;
use crate::identity::Identity;

/// The places that follow from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Where relative paths of the configuration start.
    pub(crate) prefix: PathBuf,
    /// The configuration file.
    pub(crate) configuration: PathBuf,
    /// Whether the command line says where it is.
    pub(crate) named: bool,
    /// The log when the configuration names none; `None` is standard error.
    pub(crate) error_log: Option<PathBuf>,
    /// The log of requests when the configuration names none.
    pub(crate) access_log: PathBuf,
    /// The pid file when the configuration names none.
    pub(crate) pid: PathBuf,
    /// Where temporary folders and state are that the configuration does not name. Not in `/etc`, which a service may be
    /// forbidden to write to.
    pub(crate) temporary: PathBuf,
    /// Folders of these that the server makes when they are absent and needed.
    pub(crate) own: Vec<Own>,
}

/// A folder that nothing but this server makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    /// The folder.
    pub(crate) path: PathBuf,
    /// Its mode.
    pub(crate) mode: u32,
}

impl Own {
    fn new(path: impl Into<PathBuf>, mode: u32) -> Own {
        let path = path.into();
        Own { path, mode }
    }
}

/// What is asked of the system.
pub(crate) struct Ground<'a> {
    /// Is the file there?
    pub(crate) exists: &'a dyn Fn(&Path) -> bool,
    /// Can this user write the file or folder, or make it with the folders above it?
    pub(crate) writable: &'a dyn Fn(&Path) -> bool,
    /// A variable of the environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The number of this user.
    pub(crate) user: u32,
}

/// Places for what the configuration does not name.
struct Defaults {
    /// `None`: standard error.
    logs: Option<Own>,
    temporary: Own,
    pid: PathBuf,
}

impl Ground<'_> {
    /// A folder that a variable names, which must be absolute (XDG Base Directory Specification).
    fn folder(&self, name: &str) -> Option<PathBuf> {
        let path = PathBuf::from((self.variable)(name)?);
        path.is_absolute().then_some(path)
    }

    /// Where this user keeps state.
    fn state(&self) -> Option<PathBuf> {
        self.folder("XDG_STATE_HOME")
            .or_else(|| Some(self.folder("HOME")?.join(".local/state")))
    }

    /// The places of the server `name`, which this user can write.
    fn defaults(&self, name: &str) -> Defaults {
        let writable = |path: &PathBuf| (self.writable)(path);
        let own = self.state().map(|state| state.join(name)).filter(writable);
        let own = own.map(|path| Own::new(path, modes::PRIVATE_FOLDER));
        let shared = |above: &str| {
            let path = Path::new(above).join(name);
            writable(&path).then(|| Own::new(path, modes::PUBLIC_FOLDER))
        };
        let logs = shared("/var/log").or_else(|| own.clone());
        let temporary = shared("/var/lib").or(own).unwrap_or_else(|| {
            let folder = std::env::temp_dir().join(format!("{name}-{}", self.user));
            Own::new(folder, modes::PRIVATE_FOLDER)
        });
        let file = format!("{name}.pid");
        let system = Path::new("/run").join(&file);
        let session = self.folder("XDG_RUNTIME_DIR").map(|path| path.join(&file));
        let pid = [Some(system), session].into_iter().flatten().find(writable);
        Defaults {
            logs,
            pid: pid.unwrap_or_else(|| temporary.path.join(file)),
            temporary,
        }
    }
}

impl Paths {
    /// Finds the places.
    pub(crate) fn find(identity: Identity, options: &Options, ground: &Ground<'_>) -> Paths {
        let mut paths = match &options.prefix {
            Some(prefix) => Paths::under(prefix, ground),
            None => Paths::of_system(identity, ground),
        };
        if let Some(configuration) = &options.configuration {
            let below = paths.prefix.join(configuration);
            let here = std::path::absolute(configuration).ok();
            let here = here.filter(|here| !(ground.exists)(&below) && (ground.exists)(here));
            paths.configuration = here.unwrap_or(below);
            paths.named = true;
        }
        paths.place(identity, options.prefix.is_some(), ground);
        if let Some(log) = &options.error_log {
            let stream = log.as_os_str().is_empty() || log == Path::new("stderr");
            paths.error_log = (!stream).then(|| paths.prefix.join(log));
        }
        paths
    }

    fn under(prefix: &Path, ground: &Ground<'_>) -> Paths {
        let named = prefix.join("conf/nginx.conf");
        let beside = prefix.join("nginx.conf");
        let configuration = if !(ground.exists)(&named) && (ground.exists)(&beside) {
            beside
        } else {
            named
        };
        Paths {
            prefix: prefix.to_path_buf(),
            configuration,
            named: true,
            ..Paths::default()
        }
    }

    fn of_system(identity: Identity, ground: &Ground<'_>) -> Paths {
        let own = Path::new("/etc/weir/weir.conf");
        let name = if identity == Identity::Weir && (ground.exists)(own) {
            "weir"
        } else {
            "nginx"
        };
        let prefix = Path::new("/etc").join(name);
        Paths {
            configuration: prefix.join(format!("{name}.conf")),
            prefix,
            ..Paths::default()
        }
    }

    /// Finds the places for what the configuration does not name.
    fn place(&mut self, identity: Identity, has_prefix: bool, ground: &Ground<'_>) {
        // A configuration of nginx's is served in the place of nginx: what looks for its process finds ours.
        let is_nginx = identity == Identity::Nginx || self.configuration.starts_with("/etc/nginx");
        let defaults = ground.defaults(if is_nginx { "nginx" } else { "weir" });
        let in_prefix = has_prefix && !self.prefix.starts_with("/etc");
        let strict = has_prefix && identity == Identity::Nginx;
        let writable = |path: &Path| strict || in_prefix && (ground.writable)(path);

        let below = self.prefix.join("logs");
        let logs = match writable(&below) {
            true => Some(Own::new(&below, modes::PUBLIC_FOLDER)),
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
            true => Own::new(&self.prefix, modes::PUBLIC_FOLDER),
            false => defaults.temporary,
        };
        self.temporary.clone_from(&temporary.path);
        if !strict {
            self.own = logs.into_iter().chain([temporary]).collect();
        }
    }

    /// The same with every path absolute: the worker may run in another folder.
    pub(crate) fn absolute(&mut self) -> std::io::Result<()> {
        let own = self.own.iter_mut().map(|own| &mut own.path);
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
    fn find(identity: Identity, options: Options, there: &[&str]) -> Paths {
        find_as(identity, options, there, &["/"], &[])
    }

    /// What a user finds who can write below these folders.
    fn find_as(
        identity: Identity,
        options: Options,
        there: &[&str],
        writable: &[&str],
        variables: &[(&str, &str)],
    ) -> Paths {
        let is = |path: &Path| there.iter().any(|known| path == Path::new(known));
        let below = |path: &Path| writable.iter().any(|folder| path.starts_with(folder));
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let ground = Ground {
            exists: &is,
            writable: &below,
            variable: &value,
            user: 7,
        };
        Paths::find(identity, &options, &ground)
    }

    fn prefix(prefix: &str) -> Options {
        Options {
            prefix: Some(prefix.into()),
            ..Options::default()
        }
    }

    #[test]
    fn an_nginx_configuration_is_found_where_it_is() {
        let paths = find(
            Identity::Weir,
            Options::default(),
            &["/etc/nginx/nginx.conf"],
        );
        assert_eq!(paths.configuration, Path::new("/etc/nginx/nginx.conf"));
        let paths = find(
            Identity::Weir,
            Options::default(),
            &["/etc/nginx/nginx.conf", "/etc/weir/weir.conf"],
        );
        assert_eq!(paths.configuration, Path::new("/etc/weir/weir.conf"));
        let paths = find(
            Identity::Nginx,
            Options::default(),
            &["/etc/weir/weir.conf"],
        );
        assert_eq!(paths.pid, Path::new("/run/nginx.pid"));
    }

    #[test]
    fn nothing_is_made_in_etc() {
        for (identity, there, name) in [
            (Identity::Weir, "/etc/nginx/nginx.conf", "nginx"),
            (Identity::Weir, "/etc/weir/weir.conf", "weir"),
            (Identity::Nginx, "/etc/weir/weir.conf", "nginx"),
        ] {
            let paths = find(identity, Options::default(), &[there]);
            assert_eq!(paths.temporary, Path::new("/var/lib").join(name));
            let logs = Path::new("/var/log").join(name);
            assert_eq!(paths.access_log, logs.join("access.log"));
            assert_eq!(paths.error_log, Some(logs.join("error.log")));
        }
        let paths = find(Identity::Weir, prefix("/t"), &[]);
        assert_eq!(paths.temporary, Path::new("/t"));
        let paths = find(Identity::Weir, prefix("/etc/site"), &[]);
        assert_eq!(paths.temporary, Path::new("/var/lib/weir"));
        assert_eq!(paths.pid, Path::new("/run/weir.pid"));
    }

    #[test]
    fn a_file_elsewhere_is_not_in_the_place_of_nginx() {
        let options = Options {
            configuration: Some("/srv/a/x.conf".into()),
            ..Options::default()
        };
        let paths = find(Identity::Weir, options, &["/etc/nginx/nginx.conf"]);
        assert_eq!(paths.pid, Path::new("/run/weir.pid"));
        assert_eq!(paths.prefix, Path::new("/etc/nginx"));
    }

    #[test]
    fn what_a_user_cannot_write_is_replaced() {
        let home = [("HOME", "/srv/a"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        let writable = ["/srv/a", "/run/user/7", "/tmp"];
        let paths = find_as(Identity::Weir, Options::default(), &[], &writable, &home);
        let state = Path::new("/srv/a/.local/state/nginx");
        assert_eq!(paths.temporary, state);
        assert_eq!(paths.error_log, Some(state.join("error.log")));
        assert_eq!(paths.pid, Path::new("/run/user/7/nginx.pid"));
        assert_eq!(paths.own[0].mode, 0o700);

        let state = [("HOME", "/srv/a"), ("XDG_STATE_HOME", "/srv/a/s")];
        let paths = find_as(Identity::Weir, prefix("/usr/share"), &[], &writable, &state);
        assert_eq!(paths.temporary, Path::new("/srv/a/s/weir"));
        assert_eq!(paths.pid, Path::new("/srv/a/s/weir/weir.pid"));

        let nobody = [("HOME", "/nonexistent")];
        let paths = find_as(
            Identity::Weir,
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
        let options = Options {
            prefix: Some("/t/".into()),
            configuration: Some("nginx.conf".into()),
            error_log: Some("error.log".into()),
            ..Options::default()
        };
        let paths = find(Identity::Nginx, options, &[]);
        assert_eq!(paths.configuration, Path::new("/t/nginx.conf"));
        assert_eq!(paths.error_log.as_deref(), Some(Path::new("/t/error.log")));
        let options = Options {
            error_log: Some("stderr".into()),
            ..Options::default()
        };
        assert_eq!(find(Identity::Nginx, options, &[]).error_log, None);
    }

    #[test]
    fn a_prefix_has_nginx_s_own_layout() {
        assert_eq!(
            find(Identity::Weir, prefix("/t"), &[]).configuration,
            Path::new("/t/conf/nginx.conf")
        );
        let paths = find(Identity::Weir, prefix("/t"), &["/t/nginx.conf"]);
        assert_eq!(paths.configuration, Path::new("/t/nginx.conf"));
        assert_eq!(paths.pid, Path::new("/t/logs/nginx.pid"));
    }

    #[test]
    fn as_nginx_a_prefix_is_all_that_counts() {
        let paths = find_as(Identity::Nginx, prefix("/t"), &[], &[], &[]);
        assert_eq!(paths.error_log, Some("/t/logs/error.log".into()));
        assert_eq!(paths.temporary, Path::new("/t"));
        assert_eq!(paths.own, []);
    }
}
