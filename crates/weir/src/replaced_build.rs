//! The build-time paths of an nginx binary that this program replaces.
//!
//! nginx fixes its default paths when it is compiled, and a configuration depends on them: with Debian's binary `root html` is
//! below `/usr/share/nginx`, and the configuration is in `/etc/nginx`. The package that puts this program in nginx's place
//! records what the other binary says of itself (`nginx -V`), and under the name `nginx` that record is read.

use std::path::{Path, PathBuf};

/// Where the package writes it.
const RECORD: &str = "/var/lib/weir-nginx/nginx-V";

/// What `configure` was told about paths. `None` is what it was not told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplacedBuild {
    /// `--prefix`: the base of relative paths.
    pub(crate) prefix: Option<PathBuf>,
    /// `--conf-path`.
    pub(crate) configuration: Option<PathBuf>,
    /// `--error-log-path`; `stderr` is standard error.
    pub(crate) error_log: Option<PathBuf>,
    /// `--http-log-path`.
    pub(crate) access_log: Option<PathBuf>,
    /// `--pid-path`.
    pub(crate) pid: Option<PathBuf>,
    /// The directory that has the one of `--http-client-body-temp-path`.
    pub(crate) temporary: Option<PathBuf>,
    /// The arguments with paths as they were given, for `-V`: scripts look for them there.
    pub(crate) arguments: Vec<String>,
}

impl ReplacedBuild {
    /// Reads the record, if there is one.
    pub(crate) fn read() -> Option<ReplacedBuild> {
        let text = std::fs::read_to_string(RECORD).ok()?;
        Some(ReplacedBuild::parse(&text))
    }

    fn parse(text: &str) -> ReplacedBuild {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("configure arguments: "));
        let mut build = ReplacedBuild::default();
        // Arguments in quotes are flags of compilers, which may have spaces; paths are not quoted.
        for word in line.unwrap_or_default().split_ascii_whitespace() {
            let Some((name, value)) = word.split_once('=') else {
                continue;
            };
            let path = PathBuf::from(value);
            let place = match name {
                "--prefix" => &mut build.prefix,
                "--conf-path" => &mut build.configuration,
                "--error-log-path" => &mut build.error_log,
                "--http-log-path" => &mut build.access_log,
                "--pid-path" => &mut build.pid,
                "--http-client-body-temp-path" => &mut build.temporary,
                _ if name.starts_with("--") && name.ends_with("-path") => {
                    build.arguments.push(word.to_owned());
                    continue;
                }
                _ => continue,
            };
            // A relative path would be below the prefix, which packages do not do.
            let is_usable = path.is_absolute() || name == "--error-log-path" && value == "stderr";
            if is_usable {
                *place = Some(path);
                build.arguments.push(word.to_owned());
            }
        }
        build.temporary = build
            .temporary
            .and_then(|path| path.parent().map(Path::to_path_buf));
        build
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_among_the_arguments() {
        let build = ReplacedBuild::parse(
            "nginx version: nginx/1.22.1\nconfigure arguments: --with-cc-opt='-g -O2 -fPIC' --prefix=/usr/share/nginx \
             --conf-path=/etc/nginx/nginx.conf --http-log-path=/var/log/nginx/access.log --error-log-path=stderr \
             --lock-path=/var/lock/nginx.lock --pid-path=/run/nginx.pid --http-client-body-temp-path=/var/lib/nginx/body \
             --with-threads\n",
        );
        assert_eq!(build.prefix.as_deref(), Some(Path::new("/usr/share/nginx")));
        assert_eq!(build.error_log.as_deref(), Some(Path::new("stderr")));
        assert_eq!(
            build.temporary.as_deref(),
            Some(Path::new("/var/lib/nginx"))
        );
        assert_eq!(build.arguments.len(), 7);
        assert_eq!(
            ReplacedBuild::parse("configure arguments: --prefix=x --pid-path"),
            ReplacedBuild::default()
        );
        assert_eq!(ReplacedBuild::parse(""), ReplacedBuild::default());
    }
}
