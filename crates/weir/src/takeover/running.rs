//! The server that is there: its master process, its command line, and what its binary says of itself.
//!
//! nginx writes its title over its arguments, so that `/proc` shows `nginx: master process /usr/sbin/nginx -g …` with spaces
//! between them. The value of an option ends where the next one begins.
//!
//! Nothing here depends on a distribution's paths. The pid file is not where the search begins, because its place is only known
//! from the configuration, whose place is only known from the binary, which the process has.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::ErrnoText;
use host::process;

use crate::arguments::NginxOptions;
use crate::replaced_build::ReplacedBuild;
use crate::watchers::MasterWatch;

/// What the title of a master begins with. Weir under nginx's name has the same one: scripts look for it.
const TITLE: &[u8] = b"nginx: master process ";

/// Which program runs under nginx's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// Told by the socket on which a master of Weir reports outcomes: names and paths can be anything.
    Nginx,
    Weir,
}

/// A running server.
pub(super) struct RunningServer {
    /// The number of its master process.
    pub(super) master: u32,
    pub(super) kind: ServerKind,
    /// The file that it executes when it is told to change its binary: its argument zero, made absolute.
    pub(super) program: PathBuf,
    /// Its arguments, with argument zero.
    pub(super) arguments: Vec<OsString>,
    pub(super) options: NginxOptions,
    /// The paths that were compiled into the nginx binary, and its words of `-V`.
    pub(super) build: ReplacedBuild,
    pub(super) build_text: String,
    /// `nginx/1.22.1`.
    pub(super) version: String,
}

/// Finds the server: the one with this process number, or the only one that there is.
pub(super) fn find(wanted: Option<u32>) -> Result<RunningServer, String> {
    let masters: Vec<u32> = match wanted {
        Some(number) if title(number).is_some() => vec![number],
        Some(number) => return Err(format!("process {number} is no master process of nginx")),
        None => masters(),
    };
    let masters = without_finishing(masters, |master| !workers_of(master).is_empty());
    match masters.as_slice() {
        [] => Err("no nginx is running here".to_owned()),
        [master] => look_at(*master),
        several => {
            let lines: Vec<String> = several.iter().map(|master| describe(*master)).collect();
            Err(format!(
                "several are running; choose one with --process:\n{}",
                lines.join("\n")
            ))
        }
    }
}

/// Of several masters those that accept connections. One that was replaced stays until its last request has ended, which can be
/// hours with WebSockets, and must not be in the way of the return.
fn without_finishing(masters: Vec<u32>, accepts: impl Fn(u32) -> bool) -> Vec<u32> {
    match masters.as_slice() {
        [] | [_] => masters,
        several => {
            let accepting: Vec<u32> = several
                .iter()
                .copied()
                .filter(|one| accepts(*one))
                .collect();
            if accepting.is_empty() {
                masters
            } else {
                accepting
            }
        }
    }
}

/// A line about one of several.
fn describe(master: u32) -> String {
    let title = title(master).unwrap_or_default();
    format!("  {master}  {}", String::from_utf8_lossy(&title))
}

/// All master processes of nginx, or of Weir under its name.
fn masters() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut masters: Vec<u32> = numbers
        .filter(|number| title(*number).is_some() && is_near(*number))
        .collect();
    // A title proves nothing; a process of this user is more than one that only says so.
    if masters.iter().any(|number| is_own(*number)) {
        masters.retain(|number| is_own(*number));
    }
    masters.sort_unstable();
    masters
}

/// Whether a process belongs to the user of this command.
fn is_own(number: u32) -> bool {
    let facts = std::fs::metadata(format!("/proc/{number}"));
    facts.is_ok_and(|facts| facts.uid() == process::user_id())
}

/// Whether a process belongs to this machine and not to a container on it.
fn is_near(number: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let (ours, theirs) = (namespace("self"), namespace(&number.to_string()));
    // Of another user's process it is not known; then its user is the reason that is given.
    theirs.is_none() || ours == theirs
}

/// What a master shows after [`TITLE`].
fn title(number: u32) -> Option<Vec<u8>> {
    let line = std::fs::read(format!("/proc/{number}/cmdline")).ok()?;
    let rest = line.strip_prefix(TITLE)?;
    let end = rest
        .iter()
        .rposition(|byte| *byte != 0 && *byte != b' ')
        .map_or(0, |last| last + 1);
    Some(rest[..end].to_vec())
}

/// The worker processes of a master that accept connections.
pub(super) fn workers_of(master: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let accepts = |number: &u32| {
        let title = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let title = String::from_utf8_lossy(&title);
        title.contains(": worker process") && !title.contains("is shutting down")
    };
    numbers
        .filter(|number| stat(*number).is_some_and(|(_, parent)| parent == master))
        .filter(accepts)
        .collect()
}

/// The state and the parent of a process.
pub(super) fn stat(number: u32) -> Option<(u8, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let (_, rest) = text.rsplit_once(") ")?;
    // proc(5): state and parent are the first two values behind the name.
    let mut words = rest.split(' ');
    let state = words.next()?.bytes().next()?;
    Some((state, words.next()?.parse().ok()?))
}

/// Everything about one master.
fn look_at(master: u32) -> Result<RunningServer, String> {
    let gone = || format!("process {master} has ended");
    let owner = std::fs::metadata(format!("/proc/{master}"))
        .map_err(|_| gone())?
        .uid();
    // Not even for root: anyone can give a process this title, and its program is executed below.
    if owner != process::user_id() {
        return Err(match owner {
            0 => format!(
                "the master process {master} belongs to another user: root can take it over"
            ),
            _ => format!(
                "the master process {master} belongs to the user {owner}: run this command as that user"
            ),
        });
    }
    let title = title(master).ok_or_else(gone)?;
    let (program, options, arguments) = parse_title(&title)
        .ok_or_else(|| format!("process {master} does not show how it was started"))?;
    enter_place_of(master)?;
    let kind = match MasterWatch::new(master) {
        Some(_) => ServerKind::Weir,
        None => ServerKind::Nginx,
    };
    let program = std::path::absolute(program)
        .map_err(|error| format!("getcwd() failed{}", ErrnoText(&error)))?;
    let mut server = RunningServer {
        master,
        kind,
        program,
        arguments,
        options,
        build: ReplacedBuild::default(),
        build_text: String::new(),
        version: String::new(),
    };
    // The file of a running nginx, even if a package has replaced it meanwhile.
    let nginx = match kind {
        ServerKind::Nginx => format!("/proc/{master}/exe").into(),
        ServerKind::Weir => server.nginx_binary()?,
    };
    server.learn_build(&nginx)?;
    Ok(server)
}

/// Goes where the server is: relative paths of its command line begin there. A server with a network or a root of its own is in
/// a container, which has to be entered first.
fn enter_place_of(master: u32) -> Result<(), String> {
    let link =
        |process: &str, name: &str| std::fs::read_link(format!("/proc/{process}/{name}")).ok();
    let number = master.to_string();
    if link("self", "ns/net") != link(&number, "ns/net")
        || link(&number, "root").is_some_and(|root| root != Path::new("/"))
    {
        return Err(format!(
            "process {master} is in a container; run this command inside of it (nsenter -t {master} -a)"
        ));
    }
    std::env::set_current_dir(format!("/proc/{master}/cwd")).map_err(|error| {
        format!(
            "the working directory of process {master} cannot be entered{}",
            ErrnoText(&error)
        )
    })
}

impl RunningServer {
    /// The nginx that was there before Weir: the program under that path, or where a package has put it aside.
    pub(super) fn nginx_binary(&self) -> Result<PathBuf, String> {
        let mut aside = self.program.clone().into_os_string();
        aside.push(".distrib");
        [self.program.clone(), aside.into()]
            .into_iter()
            .find(|path| path.exists() && !is_weir(path))
            .ok_or_else(|| {
                format!(
                    "there is no nginx to return to: {} is Weir",
                    self.program.display()
                )
            })
    }

    /// Asks a binary for its paths.
    fn learn_build(&mut self, binary: &Path) -> Result<(), String> {
        let shown = self.program.display();
        let output = Command::new(binary)
            .arg("-V")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .map_err(|error| format!("{shown} -V cannot be run{}", ErrnoText(&error)))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let version = text
            .lines()
            .find_map(|line| line.strip_prefix("nginx version: "));
        let version =
            version.ok_or_else(|| format!("{shown} -V does not name a version of nginx"))?;
        self.version = version.to_owned();
        self.build = ReplacedBuild::parse(&text);
        self.build_text = text;
        Ok(())
    }
}

/// Whether a file is this program, perhaps by a link. Another build of Weir is recognised by its name only, which is enough to tell
/// it from nginx.
pub(super) fn is_weir(path: &Path) -> bool {
    let (Ok(file), Ok(own)) = (path.metadata(), Path::new("/proc/self/exe").metadata()) else {
        return false;
    };
    let named = path.canonicalize().ok();
    let named = named.as_deref().and_then(Path::file_name);
    (file.dev(), file.ino()) == (own.dev(), own.ino()) || named.is_some_and(|name| name == "weir")
}

/// The program, its options and its arguments, from a title.
fn parse_title(title: &[u8]) -> Option<(PathBuf, NginxOptions, Vec<OsString>)> {
    let is_option = |at: usize| {
        title[at..].starts_with(b" -")
            && title
                .get(at + 2)
                .is_some_and(|letter| b"cpge".contains(letter))
    };
    let starts: Vec<usize> = (0..title.len()).filter(|at| is_option(*at)).collect();
    let first = starts.first().copied().unwrap_or(title.len());
    let program = title.get(..first).filter(|program| !program.is_empty())?;
    let mut arguments = vec![OsString::from_vec(program.to_vec())];
    let mut options = NginxOptions::default();
    for (index, start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(title.len());
        let letter = title[start + 2];
        // The value may follow the letter directly.
        let value = title[start + 3..end].trim_ascii();
        let word = OsString::from_vec(value.to_vec());
        match letter {
            b'c' => options.configuration = Some(word.clone().into()),
            b'p' => options.prefix = Some(word.clone().into()),
            b'e' => options.error_log = Some(word.clone().into()),
            _ => options.globals = Some(word.to_string_lossy().into_owned()),
        }
        let name = [b'-', letter];
        arguments.push(std::ffi::OsStr::from_bytes(&name).to_owned());
        arguments.push(word);
    }
    Some((
        PathBuf::from(OsString::from_vec(program.to_vec())),
        options,
        arguments,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_only_finishes_is_not_the_server() {
        let accepts = |numbers: &'static [u32]| move |master: u32| numbers.contains(&master);
        assert_eq!(without_finishing(vec![7], accepts(&[])), [7]);
        assert_eq!(without_finishing(vec![7, 8], accepts(&[8])), [8]);
        assert_eq!(without_finishing(vec![7, 8], accepts(&[7, 8])), [7, 8]);
        assert_eq!(without_finishing(vec![7, 8], accepts(&[])), [7, 8]);
    }

    #[test]
    fn titles_are_taken_apart() {
        let parsed = |text: &str| {
            let (program, options, _) = parse_title(text.as_bytes()).expect("a program");
            (program, options)
        };
        let (program, options) = parsed("/usr/sbin/nginx -g daemon on; master_process on;");
        assert_eq!(program, Path::new("/usr/sbin/nginx"));
        assert_eq!(
            options.globals.as_deref(),
            Some("daemon on; master_process on;")
        );
        let (program, options) = parsed("./sbin/my nginx -p /a b/ -c/c/x.conf");
        assert_eq!(program, Path::new("./sbin/my nginx"));
        assert_eq!(options.prefix, Some("/a b/".into()));
        assert_eq!(options.configuration, Some("/c/x.conf".into()));
        assert_eq!(parsed("nginx"), ("nginx".into(), NginxOptions::default()));
        assert!(parse_title(b"").is_none());
    }
}
