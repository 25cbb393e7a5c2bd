//! Access logs, read while they are written: what is new since the last look, in the format of the configuration.
//!
//! Any `log_format` with `$request`, or with `$request_method` and `$request_uri`, will do. A host, a port and a scheme are used
//! if it has them. Without a host the requests go to the server whose log it is.
//!
//! A log is polled rather than watched: it is written many times per second, and may be replaced, truncated or on a file system
//! that tells nobody of changes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base::ByteSlice as _;
use conf::DirectiveNode;

use crate::paths::ServerPaths;
use crate::takeover::private_copy::named;

/// How much of a log is read at once. What is more than that is skipped: a sample of the traffic is enough.
const MAX_READ: u64 = 1 << 20;

/// nginx's format `combined`.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\"";

/// A request, as far as the log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LoggedRequest {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) host: Option<String>,
    pub(super) port: Option<String>,
    pub(super) is_tls: Option<bool>,
    /// The first server that writes this log, counted through the configuration.
    pub(super) server: usize,
}

/// How a request ended, as far as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedOutcome {
    pub(super) status: u16,
    /// `$request_time`.
    pub(super) milliseconds: Option<u64>,
}

/// A part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatPart {
    Text(String),
    Variable(String),
}

/// The logs that are followed.
pub(super) struct AccessLogs(Vec<FollowedLog>);

/// A log, and how far it was read.
struct FollowedLog {
    /// Its name, by which a rotated log is told from a new one.
    path: PathBuf,
    /// How its lines are read.
    format: Vec<FormatPart>,
    /// The first server that writes it, for requests without a host.
    server: usize,
    /// The open file, by its number, and the end of what was read.
    file: Option<(File, u64)>,
    position: u64,
    /// The beginning of a line whose end has not been written yet.
    rest: Vec<u8>,
}

impl AccessLogs {
    /// All logs that the servers write.
    pub(super) fn all(nodes: &[DirectiveNode], paths: &ServerPaths) -> Result<AccessLogs, String> {
        let mut logs: Vec<FollowedLog> = Vec::new();
        let mut number = 0;
        for http in named(nodes, "http") {
            let formats = Formats::new(http);
            for server in named(http.block.nodes(), "server") {
                let own: Vec<&DirectiveNode> = named(server.block.nodes(), "access_log").collect();
                // Directives of the server replace those of `http`, as everywhere in nginx.
                let used = match own.is_empty() {
                    true => named(http.block.nodes(), "access_log").collect(),
                    false => own,
                };
                let mut named_logs: Vec<(PathBuf, &str)> = Vec::new();
                for node in &used {
                    named_logs.extend(log_of(node, &paths.prefix));
                }
                if used.is_empty() {
                    named_logs.push((paths.access_log.clone(), "combined"));
                }
                for (path, format) in named_logs {
                    // A file that several servers write is read once.
                    if !logs.iter().any(|log| log.path == path)
                        && let Some(format) = formats.usable(format)
                    {
                        logs.push(FollowedLog::new(path, format, number));
                    }
                }
                number += 1;
            }
        }
        match logs.is_empty() {
            true => Err(
                "no access log can be followed: it takes a file whose format has $request"
                    .to_owned(),
            ),
            false => Ok(AccessLogs(logs)),
        }
    }

    /// One log, in the first format of the configuration that its lines have, or in `combined`.
    pub(super) fn one(path: &Path, nodes: &[DirectiveNode]) -> Result<AccessLogs, String> {
        let http = named(nodes, "http").next().ok_or("there is no http")?;
        let mut logs = named(http.block.nodes(), "access_log");
        let name = logs.find_map(|node| Some(node.args.get(1)?.text.to_str_lossy().into_owned()));
        let format = Formats::new(http).usable(name.as_deref().unwrap_or("combined"));
        let format = format.ok_or("the format of the access log has no $request")?;
        Ok(AccessLogs(vec![FollowedLog::new(
            path.to_owned(),
            format,
            0,
        )]))
    }

    /// The files.
    pub(super) fn names(&self) -> Vec<String> {
        let paths = self.0.iter().map(|log| log.path.display().to_string());
        paths.collect()
    }

    /// A log of this command's own, whose format is known.
    pub(super) fn with_format(path: &Path, format: &str) -> AccessLogs {
        let log = FollowedLog::new(path.to_owned(), split_format(format), 0);
        AccessLogs(vec![log])
    }

    /// The requests that were logged since the last time.
    pub(super) fn read_new(&mut self) -> Vec<LoggedRequest> {
        self.0.iter_mut().flat_map(FollowedLog::read_new).collect()
    }

    /// How the requests ended that were logged since the last time.
    pub(super) fn read_new_outcomes(&mut self) -> Vec<LoggedOutcome> {
        let read = |log: &mut FollowedLog| -> Vec<LoggedOutcome> {
            let lines = log.new_lines();
            let lines = text_lines(&lines);
            lines
                .filter_map(|line| logged_outcome(&log.format, line))
                .collect()
        };
        self.0.iter_mut().flat_map(read).collect()
    }
}

/// The file and the format of an `access_log`, if it is a file that can be followed.
fn log_of<'n>(node: &'n DirectiveNode, prefix: &Path) -> Option<(PathBuf, &'n str)> {
    let path = node.args.first()?.text.to_str().ok()?;
    // A name with variables stands for many files, and what syslog gets is not here to be read.
    if path == "off" || path.starts_with("syslog:") || path.contains('$') {
        return None;
    }
    let format = node.args.get(1).and_then(|word| word.text.to_str().ok());
    let format = format
        .filter(|word| !word.contains('='))
        .unwrap_or("combined");
    Some((prefix.join(path), format))
}

/// The formats of the configuration.
struct Formats(HashMap<String, String>);

impl Formats {
    /// The formats of an `http` block, and the one that is always there.
    fn new(http: &DirectiveNode) -> Formats {
        let mut formats = HashMap::from([("combined".to_owned(), COMBINED.to_owned())]);
        for node in named(http.block.nodes(), "log_format") {
            let Some((name, parts)) = node.args.split_first() else {
                continue;
            };
            let parts = parts
                .iter()
                .filter(|part| !part.text.starts_with(b"escape="));
            let text = parts
                .map(|part| part.text.to_str_lossy().into_owned())
                .collect();
            formats.insert(name.text.to_str_lossy().into_owned(), text);
        }
        Formats(formats)
    }

    /// A format in parts, if requests can be read from it.
    fn usable(&self, name: &str) -> Option<Vec<FormatPart>> {
        let parts = split_format(self.0.get(name)?);
        let has = |name: &str| {
            let is =
                |part: &FormatPart| matches!(part, FormatPart::Variable(known) if known == name);
            parts.iter().any(is)
        };
        let is_usable = has("request") || has("request_method") && has("request_uri");
        is_usable.then_some(parts)
    }
}

/// A format in parts. A name ends where nginx's own parser would end it, or at the brace.
fn split_format(text: &str) -> Vec<FormatPart> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        if at > 0 {
            parts.push(FormatPart::Text(rest[..at].to_owned()));
        }
        rest = &rest[at + 1..];
        let (name, after) = match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some(braced) => braced,
            None => {
                let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
                rest.split_at(rest.find(|char| !is_name(char)).unwrap_or(rest.len()))
            }
        };
        parts.push(FormatPart::Variable(name.to_owned()));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(FormatPart::Text(rest.to_owned()));
    }
    parts
}

/// The values of the variables in a line; the value ends where the text behind the variable begins.
fn values<'l>(format: &'l [FormatPart], line: &'l str) -> Option<HashMap<&'l str, &'l str>> {
    let mut found = HashMap::new();
    let mut rest = line;
    for (index, part) in format.iter().enumerate() {
        match part {
            FormatPart::Text(text) => rest = rest.strip_prefix(text.as_str())?,
            FormatPart::Variable(name) => {
                let end = match format.get(index + 1) {
                    Some(FormatPart::Text(text)) => rest.find(text.as_str())?,
                    // Two variables without anything between them: the first has all, and is of no use.
                    Some(FormatPart::Variable(_)) | None => rest.len(),
                };
                found.insert(name.as_str(), &rest[..end]);
                rest = &rest[end..];
            }
        }
    }
    Some(found)
}

/// The request of a line.
fn logged_request(format: &[FormatPart], line: &str, server: usize) -> Option<LoggedRequest> {
    let values = values(format, line)?;
    let (method, target) = match values.get("request") {
        Some(request) => {
            let (method, rest) = request.split_once(' ')?;
            let (target, version) = rest.rsplit_once(' ')?;
            version.starts_with("HTTP/").then_some((method, target))?
        }
        None => (*values.get("request_method")?, *values.get("request_uri")?),
    };
    let is_plain =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.contains('\\');
    if !is_plain(method) || !is_plain(target) {
        // The log has an escape in the place of a byte that cannot be sent again as it was.
        return None;
    }
    let value = |names: &[&str]| {
        let found = names.iter().find_map(|name| values.get(name))?;
        (*found != "-" && is_plain(found)).then(|| (*found).to_owned())
    };
    let scheme = values.get("scheme").map(|scheme| *scheme == "https");
    let https = values.get("https").map(|https| *https == "on");
    Some(LoggedRequest {
        method: method.to_owned(),
        target: target.to_owned(),
        host: value(&["http_host", "host", "server_name"]),
        port: value(&["server_port"]),
        is_tls: scheme.or(https),
        server,
    })
}

/// The outcome in a line. Requests without a response (`000`, 499) are part of it.
fn logged_outcome(format: &[FormatPart], line: &str) -> Option<LoggedOutcome> {
    let values = values(format, line)?;
    let time = values.get("request_time");
    let seconds: Option<f64> = time.and_then(|time| time.parse().ok());
    Some(LoggedOutcome {
        status: values.get("status")?.parse().ok()?,
        milliseconds: seconds.map(|seconds| (seconds * 1000.0).round() as u64),
    })
}

/// The lines that are text.
fn text_lines(lines: &[u8]) -> impl Iterator<Item = &str> {
    lines
        .lines()
        .filter_map(|line| std::str::from_utf8(line).ok())
}

impl FollowedLog {
    /// Begins at the end of what is there.
    fn new(path: PathBuf, format: Vec<FormatPart>, server: usize) -> FollowedLog {
        let mut log = FollowedLog {
            path,
            format,
            server,
            file: None,
            position: 0,
            rest: Vec::new(),
        };
        log.open();
        let length = log.file.as_ref().and_then(|(file, _)| file.metadata().ok());
        log.position = length.map_or(0, |file| file.len());
        log
    }

    /// Opens the file that has the name now.
    fn open(&mut self) {
        self.position = 0;
        self.rest.clear();
        self.file = File::open(&self.path).ok().and_then(|file| {
            let number = file.metadata().ok()?.ino();
            Some((file, number))
        });
    }

    /// The requests of the lines that were completed since the last time. Lines of another format are passed over: a log may have
    /// been written with an older one.
    fn read_new(&mut self) -> Vec<LoggedRequest> {
        let lines = self.new_lines();
        text_lines(&lines)
            .filter_map(|line| logged_request(&self.format, line, self.server))
            .collect()
    }

    /// The lines that were completed since the last time.
    fn new_lines(&mut self) -> Vec<u8> {
        let bytes = self.read_bytes();
        self.rest.extend_from_slice(&bytes);
        let end = self.rest.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = self.rest.drain(..end.map_or(0, |end| end + 1)).collect();
        if self.rest.len() as u64 > MAX_READ {
            // A line that does not end is none.
            self.rest.clear();
        }
        let number = self.path.metadata().ok().map(|file| file.ino());
        // Rotated: the rest of the old file was read just now, and the new one is read from its beginning.
        if number.is_some() && number != self.file.as_ref().map(|(_, number)| *number) {
            self.open();
        }
        lines
    }

    /// What was appended since the last time.
    fn read_bytes(&mut self) -> Vec<u8> {
        let Some((file, _)) = &mut self.file else {
            return Vec::new();
        };
        let length = file.metadata().map_or(0, |file| file.len());
        if length < self.position {
            // Truncated in place.
            self.position = 0;
        }
        // More than a look can take: the newest is worth most, and the first part of a line is lost with the rest.
        if length - self.position > MAX_READ {
            self.position = length - MAX_READ;
            self.rest.clear();
        }
        let mut bytes = Vec::new();
        let read = file
            .seek(SeekFrom::Start(self.position))
            .and_then(|_| file.take(MAX_READ).read_to_end(&mut bytes));
        // What could not be read now will be read the next time.
        self.position += read.unwrap_or(0) as u64;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(format: &str, line: &str) -> Option<LoggedRequest> {
        logged_request(&split_format(format), line, 0)
    }

    #[test]
    fn requests_are_read_from_any_format() {
        let line = "127.0.0.1 - - [23/Nov/2026:10:00:00 +0000] \"GET /a?b=c HTTP/1.1\" 200 5 \"-\" \"curl\"";
        let found = request(COMBINED, line).expect("a request");
        assert_eq!(
            (found.method.as_str(), found.target.as_str()),
            ("GET", "/a?b=c")
        );
        assert_eq!(found.host, None);
        let format = "$host:${server_port} $scheme|$request_method|$request_uri|$status";
        let found = request(format, "www.example.com:443 https|HEAD|/x|200").expect("a request");
        assert_eq!(found.host.as_deref(), Some("www.example.com"));
        assert_eq!(found.port.as_deref(), Some("443"));
        assert_eq!(found.is_tls, Some(true));
    }

    #[test]
    fn outcomes_are_read_where_a_format_has_them() {
        let outcome = |format: &str, line: &str| {
            let found = logged_outcome(&split_format(format), line)?;
            Some((found.status, found.milliseconds))
        };
        let line = "127.0.0.1 - - [23/Nov/2026:10:00:00 +0000] \"\" 400 0 \"-\" \"-\"";
        assert_eq!(outcome(COMBINED, line), Some((400, None)));
        let format = "$status $request_time";
        assert_eq!(outcome(format, "502 1.234"), Some((502, Some(1234))));
        assert_eq!(outcome(format, "200 -"), Some((200, None)));
        assert_eq!(outcome("$request", "GET / HTTP/1.1"), None);
    }

    #[test]
    fn what_cannot_be_sent_again_is_left_out() {
        for bad in [
            "\"GET /a\\x22b HTTP/1.1\"",
            "\"-\"",
            "\"\\x16\\x03\"",
            "\"GET /\"",
            "",
            "\"GET / HTTP",
        ] {
            assert_eq!(request("\"$request\"", bad), None, "{bad}");
        }
    }

    #[test]
    fn a_log_is_followed_over_its_rotation() {
        let folder = std::env::temp_dir().join(format!("weir-follow-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let path = folder.join("log");
        let write = |text: &str| {
            use std::io::Write as _;
            let file = File::options().append(true).create(true).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .expect("written");
        };
        write("\"GET /old HTTP/1.1\"\n");
        let mut log = FollowedLog::new(path.clone(), split_format("\"$request\""), 0);
        let mut targets = || -> Vec<String> {
            log.read_new()
                .into_iter()
                .map(|request| request.target)
                .collect()
        };
        assert!(targets().is_empty(), "what was there is not repeated");
        write("\"GET /a HTTP/1.1\"\n\"GET /b HT");
        assert_eq!(targets(), ["/a"]);
        write("TP/1.1\"\n");
        std::fs::rename(&path, folder.join("log.1")).expect("renamed");
        write("\"GET /c HTTP/1.1\"\n");
        assert_eq!(targets(), ["/b"]);
        assert_eq!(targets(), ["/c"]);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
