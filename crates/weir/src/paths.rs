//! Where the configuration, the default log and the pid file are.
//!
//! nginx fixes these when it is compiled; distributions choose `/etc/nginx`. Weir finds them:
//!
//! | given | prefix | configuration | default error log | default pid file | default temporary folders |
//! |---|---|---|---|---|---|
//! | nothing, `/etc/weir/weir.conf` is there | `/etc/weir` | `weir.conf` | `/var/log/weir/error.log` | `/run/weir.pid` | `/var/lib/weir` |
//! | nothing else, or started as `nginx` | `/etc/nginx` | `nginx.conf` | `/var/log/nginx/error.log` | `/run/nginx.pid` | `/var/lib/nginx` |
//! | `-p DIR` | `DIR` | `conf/nginx.conf`, else `nginx.conf` | `logs/error.log` | `logs/nginx.pid` | `DIR` |
//!
//! `-c` and `-e` are relative to the prefix, as in nginx; a file that `-c` names and that is not there is looked for in the
//! current directory. An `include` is relative to the folder of the
//! configuration file.

use std::path::{Path, PathBuf};

use crate::cli::Options;
use crate::identity::Identity;

/// The places that follow from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Where relative paths of the configuration start.
    pub(crate) prefix: PathBuf,
    /// The configuration file.
    pub(crate) configuration: PathBuf,
    /// Whether the command line says where it is.
    pub(crate) named: bool,
    /// The log when the configuration names none; `None` is standard error.
    pub(crate) error_log: Option<PathBuf>,
    /// The pid file when the configuration names none.
    pub(crate) pid: PathBuf,
    /// Where temporary folders are that the configuration does not name. Not in `/etc`, which a service may be forbidden
    /// to write to.
    pub(crate) temporary: PathBuf,
}

impl Paths {
    /// Finds the places. `exists` says whether a file is there.
    pub(crate) fn find(
        identity: Identity,
        options: &Options,
        exists: impl Fn(&Path) -> bool,
    ) -> Paths {
        let mut paths = match &options.prefix {
            Some(prefix) => Paths::under(prefix, &exists),
            None => Paths::of_system(identity, &exists),
        };
        if let Some(configuration) = &options.configuration {
            let below = paths.prefix.join(configuration);
            let here = std::path::absolute(configuration).ok();
            let here = here.filter(|here| !exists(&below) && exists(here));
            paths.configuration = here.unwrap_or(below);
            paths.named = true;
        }
        if let Some(log) = &options.error_log {
            let stream = log.as_os_str().is_empty() || log == Path::new("stderr");
            paths.error_log = (!stream).then(|| paths.prefix.join(log));
        }
        paths
    }

    fn under(prefix: &Path, exists: impl Fn(&Path) -> bool) -> Paths {
        let named = prefix.join("conf/nginx.conf");
        let beside = prefix.join("nginx.conf");
        let configuration = if !exists(&named) && exists(&beside) {
            beside
        } else {
            named
        };
        Paths {
            prefix: prefix.to_path_buf(),
            configuration,
            named: true,
            error_log: Some(prefix.join("logs/error.log")),
            pid: prefix.join("logs/nginx.pid"),
            temporary: prefix.to_path_buf(),
        }
    }

    fn of_system(identity: Identity, exists: impl Fn(&Path) -> bool) -> Paths {
        let own = Path::new("/etc/weir/weir.conf");
        let name = if identity == Identity::Weir && exists(own) {
            "weir"
        } else {
            "nginx"
        };
        let prefix = Path::new("/etc").join(name);
        Paths {
            configuration: prefix.join(format!("{name}.conf")),
            prefix,
            named: false,
            error_log: Some(format!("/var/log/{name}/error.log").into()),
            pid: format!("/run/{name}.pid").into(),
            temporary: Path::new("/var/lib").join(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(identity: Identity, options: Options, there: &[&str]) -> Paths {
        Paths::find(identity, &options, |path| {
            there.iter().any(|known| path == Path::new(known))
        })
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
    fn nothing_temporary_is_in_etc() {
        for (identity, there, expected) in [
            (Identity::Weir, "/etc/nginx/nginx.conf", "/var/lib/nginx"),
            (Identity::Weir, "/etc/weir/weir.conf", "/var/lib/weir"),
            (Identity::Nginx, "/etc/weir/weir.conf", "/var/lib/nginx"),
        ] {
            let paths = find(identity, Options::default(), &[there]);
            assert_eq!(paths.temporary, Path::new(expected));
        }
        let options = Options {
            prefix: Some("/t".into()),
            ..Options::default()
        };
        let paths = find(Identity::Weir, options, &[]);
        assert_eq!(paths.temporary, Path::new("/t"));
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
        let options = || Options {
            prefix: Some("/t".into()),
            ..Options::default()
        };
        assert_eq!(
            find(Identity::Weir, options(), &[]).configuration,
            Path::new("/t/conf/nginx.conf")
        );
        let paths = find(Identity::Weir, options(), &["/t/nginx.conf"]);
        assert_eq!(paths.configuration, Path::new("/t/nginx.conf"));
        assert_eq!(paths.pid, Path::new("/t/logs/nginx.pid"));
    }
}
