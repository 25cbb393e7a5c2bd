//! The build-time paths of an nginx binary that this program replaces.
//!
//! nginx fixes its default paths when it is compiled, and a configuration depends on them: with Debian's binary `root html` is
//! below `/usr/share/nginx`, and the configuration is in `/etc/nginx`. The package that puts this program in nginx's place
//! records what the other binary says of itself (`nginx -V`), and under the name `nginx` that record is read. `weir takeover`
//! does the same for the binary of the server that it replaces, until the machine is restarted.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use host::process;
use rt::file::modes;

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
    /// Reads the record for a program path, if there is one.
    pub(crate) fn read(program: &Path) -> Option<ReplacedBuild> {
        // The package's is about one path; that of a takeover is about the path in its name.
        let text = read_taken_over(program).or_else(|| std::fs::read_to_string(RECORD).ok())?;
        Some(ReplacedBuild::parse(&text))
    }

    /// From the output of `nginx -V`.
    pub(crate) fn parse(text: &str) -> ReplacedBuild {
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

/// The record of a takeover. Its directory belongs to root, or to the user who runs the server.
fn taken_over_path(program: &Path) -> PathBuf {
    let folder = match process::user_id() {
        0 => "/run/weir-takeover".to_owned(),
        user => format!("/run/user/{user}/weir-takeover"),
    };
    let name = program.to_string_lossy().replace('/', "!");
    Path::new(&folder).join(name)
}

/// Reads it, unless another user could have written it.
fn read_taken_over(program: &Path) -> Option<String> {
    let path = taken_over_path(program);
    let file = path.symlink_metadata().ok()?;
    let is_ours = file.is_file() && [0, process::user_id()].contains(&file.uid());
    std::fs::read_to_string(path).ok().filter(|_| is_ours)
}

/// Records what the binary at `program` says of itself, for the server that takes its place.
pub(crate) fn record_takeover(program: &Path, text: &str) -> std::io::Result<()> {
    let path = taken_over_path(program);
    if let Some(folder) = path.parent() {
        modes::make_folder(folder, modes::PUBLIC_FOLDER)?;
    }
    std::fs::write(path, text)
}

/// Removes the record when nginx is back: a Weir that is put in nginx's place later, by a package, has a record of its own, which may
/// be about another binary. The directory goes with the last record.
pub(crate) fn forget_takeover(program: &Path) {
    let path = taken_over_path(program);
    // Without the file there is nothing to remove; a directory with others in it stays.
    let _ = std::fs::remove_file(&path);
    let _ = path.parent().map(std::fs::remove_dir);
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
