//! `weir explain` beside the server that it explains: the same request for both, and what the two say of it.

use std::fs;
use std::process::Command;

use crate::binary;
use crate::command::Finished;
use crate::reply::Reply;
use crate::server::Server;

/// What `weir explain --json` said of a request.
#[derive(Debug)]
pub struct Explained {
    json: String,
}

impl Explained {
    /// The line of a member of the outermost object.
    fn line(&self, name: &str) -> Option<&str> {
        let start = format!("  \"{name}\": ");
        let mut lines = self.json.lines();
        lines.find_map(|line| line.strip_prefix(&start))
    }

    /// A text in an object of the outermost one: `server`, `name`.
    pub fn text(&self, object: &str, name: &str) -> Option<String> {
        let line = self.line(object)?;
        let start = format!("\"{name}\": \"");
        let at = line.find(&start)? + start.len();
        Some(unescaped(&line[at..]))
    }

    /// The status of the server's own response.
    pub fn status(&self) -> Option<u16> {
        let line = self.line("response")?;
        let rest = line.strip_prefix("{\"status\": ")?;
        let end = rest.find(|sign: char| !sign.is_ascii_digit())?;
        rest[..end].parse().ok()
    }

    /// Whether anything was not run that the response depends on.
    pub fn is_certain(&self) -> bool {
        self.line("depends_on") == Some("[]")
    }

    /// Whether a step of this kind applies, passes or was not run.
    pub fn has_step(&self, kind: &str, result: &str) -> bool {
        let step = format!("\"step\": \"{kind}\", \"result\": \"{result}\"");
        self.json.contains(&step)
    }

    /// The names and values of the request to the upstream server.
    pub fn upstream_request(&self) -> Vec<(String, String)> {
        let Some(line) = self.line("upstream") else {
            return Vec::new();
        };
        let Some(at) = line.find("\"request\": [") else {
            return Vec::new();
        };
        let pairs = line[at..].split("{\"name\": \"").skip(1);
        pairs
            .filter_map(|pair| {
                let (_, value) = pair.split_once("\", \"value\": \"")?;
                Some((unescaped(pair), unescaped(value)))
            })
            .collect()
    }

    /// All of it.
    pub fn json(&self) -> &str {
        &self.json
    }
}

/// The text up to the quote that ends it.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '"' => break,
            '\\' => match signs.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(other) => out.push(other),
                None => break,
            },
            other => out.push(other),
        }
    }
    out
}

impl Server {
    /// Runs `weir explain` with the server's configuration and these arguments.
    pub fn explain_with(&self, arguments: &[&str]) -> Finished {
        let folder = self.path("");
        let output = Command::new(binary::path())
            .arg("explain")
            .arg("-p")
            .arg(&folder)
            .args(["-c", "nginx.conf"])
            .args(arguments)
            .current_dir(&folder)
            .output();
        Finished::from(output.expect("the server binary can be executed"))
    }

    /// What it says of a request to `%%PORT%%` with these header lines.
    pub fn explain(&self, method: &str, target: &str, host: &str, lines: &[&str]) -> Explained {
        let url = format!("http://127.0.0.1:{}{target}", self.port(0));
        let host = format!("Host: {host}");
        let mut arguments = vec!["--json", "-X", method, "-H", &host];
        for line in lines {
            arguments.extend(["-H", line]);
        }
        arguments.push(&url);
        let finished = self.explain_with(&arguments);
        assert_eq!(finished.code, 0, "{url}: {}", finished.stderr);
        Explained {
            json: finished.stdout,
        }
    }
}

/// Compares a response with its explanation; the error says what differs.
pub fn compare(explained: &Explained, reply: &Reply) -> Result<(), String> {
    let Some(status) = explained.status() else {
        return Ok(());
    };
    if !explained.is_certain() {
        return Ok(());
    }
    if status != reply.status {
        return Err(format!(
            "status {status} explained, {} served",
            reply.status
        ));
    }
    if let Some(location) = explained.text("response", "location")
        && location != reply.field("Location")
    {
        let served = reply.field("Location");
        return Err(format!(
            "redirect to {location} explained, to {served} served"
        ));
    }
    let is_whole = status == 200 && !reply.body.is_empty() && !reply.has("Content-Encoding");
    if let Some(file) = explained.text("response", "file")
        && is_whole
        && !explained.json().contains("\"not run\"")
        && fs::read(&file).ok().as_deref() != Some(&reply.body[..])
    {
        return Err(format!("{file} explained, something else served"));
    }
    Ok(())
}

/// Numbers that look random and are the same in each run.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// From a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or(0) % limit.max(1)
    }

    /// One of these.
    pub fn one_of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// With `WEIR_EXPLAIN_AGREES=FILE`, every server that a test starts is asked some random requests, and so is `weir explain`;
/// FILE gets a line for each. The test itself sees requests that it has not made, and may fail: only FILE counts.
pub(crate) fn visit(server: &Server) {
    let Some(file) = std::env::var_os("WEIR_EXPLAIN_AGREES") else {
        return;
    };
    let configuration = server.read("nginx.conf");
    let here = format!("127.0.0.1:{}", server.port(0));
    let is_plain = |line: &&str| line.contains(&here) && line.contains("listen ");
    let listens = configuration.lines().find(is_plain);
    if server.refuses()
        || listens.is_none_or(|line| line.contains("ssl") || line.contains("proxy_protocol"))
    {
        return;
    }
    let seed = configuration.bytes().fold(7, |seed: u64, byte| {
        seed.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    let mut dice = Dice::new(seed);
    for _ in 0..2 {
        let (method, target) = random_request(&configuration, &mut dice);
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let explained = server.explain(method, &target, "localhost", &[]);
            let verdict = match explained.status() {
                Some(_) if explained.is_certain() => {
                    match compare(&explained, &server.request(method, &target, &[])) {
                        Ok(()) => "agrees".to_owned(),
                        Err(why) => format!("DIFFERS: {why}"),
                    }
                }
                _ if explained.text("upstream", "name").is_some() => "upstream".to_owned(),
                _ => "open".to_owned(),
            };
            (verdict, explained)
        }));
        let line = match asked {
            Ok((verdict, _)) if !verdict.starts_with("DIFFERS") => {
                format!("{verdict}\t{method} {target}\n")
            }
            Ok((verdict, explained)) => format!(
                "{verdict}\t{method} {target}\n{configuration}\n{}\n",
                explained.json()
            ),
            Err(_) => format!("no answer\t{method} {target}\n"),
        };
        let log = fs::OpenOptions::new().append(true).create(true).open(&file);
        let written = log.and_then(|mut log| std::io::Write::write_all(&mut log, line.as_bytes()));
        written.expect("the file of WEIR_EXPLAIN_AGREES is writable");
    }
}

/// A request whose path has something to do with the configuration.
fn random_request(configuration: &str, dice: &mut Dice) -> (&'static str, String) {
    let words = configuration.split(|sign: char| sign.is_whitespace() || ";{}\"'".contains(sign));
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "/._-".contains(sign);
    let paths: Vec<&str> = words
        .map(|word| word.trim_start_matches('^'))
        .filter(|word| word.starts_with('/') && word.len() < 40)
        .map(|word| word.split(|sign| !is_plain(sign)).next().unwrap_or("/"))
        .filter(|word| !word.starts_with("/tmp") && !word.starts_with("/etc"))
        .chain(["/", "/index.html", "/a.html", "/none"])
        .collect();
    let ends = [
        "",
        "",
        "",
        "/",
        "x",
        "/x",
        ".html",
        "a.txt",
        "?a=1",
        "?x=/y&a=0",
    ];
    let methods = ["GET", "GET", "GET", "GET", "HEAD", "POST", "OPTIONS"];
    let target = format!("{}{}", dice.one_of(&paths), dice.one_of(&ends));
    (*dice.one_of(&methods), target)
}
