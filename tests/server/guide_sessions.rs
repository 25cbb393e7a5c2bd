//! The sessions of the guide: configurations that are served, and commands whose output is what the page shows.
//!
//! On a page, ```` ```nginx site.conf ```` is a configuration that is served from there on, any other block with a file name is a
//! file beside it, and ```` ```console run ```` has commands (`$ …`) with their output. In the output `…` stands for any text
//! within a line, and for any lines if it is one. Ports and absolute paths become those of the test, and an application listens
//! where the pages have it, on port 3000.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir_tests::{PATIENCE, Server, Site, server_path, skip_on_oracle, whole};

/// A block of a page: the words behind its fence, and its lines.
struct PageBlock {
    words: Vec<String>,
    lines: Vec<String>,
}

fn blocks(page: &str) -> Vec<PageBlock> {
    let mut found = Vec::new();
    let mut block: Option<PageBlock> = None;
    for line in page.lines() {
        match (&mut block, line.strip_prefix("```")) {
            (Some(_), Some(_)) => found.extend(block.take()),
            (Some(block), None) => block.lines.push(line.to_owned()),
            (None, Some(words)) => {
                block = Some(PageBlock {
                    words: words.split_whitespace().map(str::to_owned).collect(),
                    lines: Vec::new(),
                });
            }
            (None, None) => {}
        }
    }
    found
}

/// An application, as the guide's pages need one: it says what it was asked, reads bodies, streams, upgrades and crashes.
/// It ends with the test.
fn application() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.set_read_timeout(Some(PATIENCE));
                // A client that has gone is no failure.
                while let Ok(true) = answer(&stream) {}
            });
        }
    });
    port
}

/// Answers a request; false at the end of the connection.
fn answer(mut stream: &TcpStream) -> std::io::Result<bool> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        if line == "\r\n" {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    let field = |name: &str| {
        let fields = head.iter().skip(1).filter_map(|line| line.split_once(": "));
        let mut values = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.to_owned())
    };
    let received = match (field("content-length"), field("transfer-encoding")) {
        (Some(length), _) => read(&mut reader, length.parse().unwrap_or(0))?,
        (None, Some(_)) => read_chunks(&mut reader)?,
        (None, None) => 0,
    };
    let request = head.first().cloned().unwrap_or_default();
    let asked = request.trim_end_matches(" HTTP/1.1");
    let path = asked.split(' ').nth(1).unwrap_or_default();
    let (more, body) = match path {
        "/crash" => return Ok(false),
        _ if field("upgrade").is_some() => {
            let text = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            stream.write_all(text.as_bytes())?;
            return Ok(false);
        }
        "/events" => (
            "Content-Type: text/event-stream\r\n",
            "data: one\n\ndata: two\n\n".to_owned(),
        ),
        _ if received > 0 => ("", format!("received {received} bytes\n")),
        _ => {
            let names = ["host", "x-forwarded-for", "x-forwarded-proto"];
            let lines = names.iter().filter_map(|name| Some((name, field(name)?)));
            let lines: String = lines
                .map(|(name, value)| format!("{name}: {value}\n"))
                .collect();
            let cookie = "Set-Cookie: a=b\r\nCache-Control: max-age=60\r\n";
            let more = if path == "/cookie" { cookie } else { "" };
            (more, format!("{asked}\n{lines}"))
        }
    };
    let text = format!(
        "HTTP/1.1 200 OK\r\n{more}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes())?;
    Ok(true)
}

fn read(reader: &mut impl Read, length: u64) -> std::io::Result<u64> {
    std::io::copy(&mut reader.take(length), &mut std::io::sink())
}

fn read_chunks(reader: &mut impl BufRead) -> std::io::Result<u64> {
    let mut sum = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim_end(), 16).unwrap_or(0);
        sum += read(reader, length)?;
        reader.read_line(&mut line)?;
        if length == 0 {
            return Ok(sum);
        }
    }
}

/// A page that is being run.
struct GuideSession {
    /// The files of the page so far.
    files: Vec<(String, String)>,
    application: u16,
    place: SessionPlace,
}

/// Where the commands of a page are run.
enum SessionPlace {
    /// In a folder: nothing is served yet.
    Folder(Site),
    Served(Server),
}

/// Where the pages listen, and where the test does.
const PLACES: [(&str, &str); 3] = [
    ("listen 80;", "listen 127.0.0.1:%%PORT%%;"),
    ("listen 443 ", "listen 127.0.0.1:%%PORT1%% "),
    ("127.0.0.1:9145", "127.0.0.1:%%PORT2%%"),
];

impl GuideSession {
    fn new(application: u16) -> GuideSession {
        let certified = rcgen::generate_simple_self_signed(vec!["example.org".to_owned()]);
        let certified = certified.expect("a certificate");
        let files = vec![
            ("etc/ssl/example.org.pem".to_owned(), certified.cert.pem()),
            (
                "etc/ssl/example.org.key".to_owned(),
                certified.signing_key.serialize_pem(),
            ),
        ];
        let place = SessionPlace::Folder(whole(""));
        GuideSession {
            files,
            application,
            place,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        match &self.place {
            SessionPlace::Folder(site) => site.path(path),
            SessionPlace::Served(server) => server.path(path),
        }
    }

    /// Adds a file of the page.
    fn add(&mut self, path: &str, text: String) {
        let place = self.path(path);
        fs::create_dir_all(place.parent().expect("it is in the folder"))
            .and_then(|()| fs::write(place, &text))
            .expect("the folder is writable");
        self.files.push((path.to_owned(), text));
    }

    /// Serves a configuration in place of the one before.
    fn serve(&mut self, block: &str) {
        let mut block = PLACES
            .iter()
            .fold(block.to_owned(), |text, (from, to)| text.replace(from, to))
            .replace("127.0.0.1:3000", &format!("127.0.0.1:{}", self.application));
        for root in ["/etc/", "/srv/", "/var/"] {
            block = block.replace(&format!(" {root}"), &format!(" %%DIR%%{root}"));
        }
        let access = match block.contains("access_log ") {
            true => "",
            false => "access_log access.log;",
        };
        let types = "types { text/html html; text/css css; text/javascript js; }";
        let mut site = whole(&format!(
            "# %%PORT%% %%PORT1%% %%PORT2%%\nevents {{}}\nhttp {{\n{types}\n{access}\n{block}\n}}\n"
        ))
        .folder("srv/www");
        for (path, text) in &self.files {
            site = site.file(path, text);
        }
        // The server before ends first, and its ports are free.
        self.place = SessionPlace::Folder(whole(""));
        let server = site.start();
        fs::write(server.path("site.conf"), server.read("nginx.conf")).expect("a copy");
        self.place = SessionPlace::Served(server);
    }

    /// A command with the ports of this test.
    fn local(&self, command: &str) -> String {
        let SessionPlace::Served(server) = &self.place else {
            return command.to_owned();
        };
        let [http, https, other] = [0, 1, 2].map(|index| server.port(index));
        command
            .replace("http://localhost", &format!("http://localhost:{http}"))
            .replace("https://localhost", &format!("https://localhost:{https}"))
            .replace("127.0.0.1:9145", &format!("127.0.0.1:{other}"))
    }

    /// Runs a command, and says how its output differs from the page's.
    fn run(&self, command: &str, expected: &[&str]) -> Result<(), String> {
        let folder = self.path("");
        let programs = folder.join("bin");
        let program = std::path::absolute(server_path()).expect("a path");
        fs::create_dir_all(&programs).expect("the folder is writable");
        // It is there from the second command on.
        let _ = std::os::unix::fs::symlink(program, programs.join("weir"));
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("sh")
            .args(["-c", &format!("{{ {}\n}} 2>&1", self.local(command))])
            .current_dir(&folder)
            .env("PATH", format!("{}:{path}", programs.display()))
            .stdin(Stdio::null())
            .output()
            .expect("there is a shell");
        let mut said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        if let SessionPlace::Served(server) = &self.place {
            for index in 0..2 {
                let local = format!("localhost:{}", server.port(index));
                said = said.replace(&local, "localhost");
            }
        }
        let said: Vec<&str> = said.lines().collect();
        match are_shown(expected, &said) {
            true => Ok(()),
            false => Err(format!(
                "$ {command}\n--- the page\n{}\n--- the command\n{}",
                expected.join("\n"),
                said.join("\n")
            )),
        }
    }
}

/// Whether lines are those of a page, where `…` stands for any.
fn are_shown(expected: &[&str], said: &[&str]) -> bool {
    match expected {
        [] => said.is_empty(),
        ["…", rest @ ..] => (0..=said.len()).any(|skipped| are_shown(rest, &said[skipped..])),
        [line, rest @ ..] => said
            .split_first()
            .is_some_and(|(first, others)| is_shown(line, first) && are_shown(rest, others)),
    }
}

fn is_shown(expected: &str, said: &str) -> bool {
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = said.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        match (parts.peek().is_none(), rest.find(part)) {
            (true, _) => return rest.ends_with(part),
            (false, Some(at)) => rest = &rest[at + part.len()..],
            (false, None) => return false,
        }
    }
    true
}

/// Runs a page. The number of its commands, and what differs.
fn run_page(page: &str, application: u16) -> (usize, Vec<String>) {
    let mut session = GuideSession::new(application);
    let (mut count, mut wrong) = (0, Vec::new());
    for block in blocks(page) {
        let words: Vec<&str> = block.words.iter().map(String::as_str).collect();
        let text: String = block.lines.iter().flat_map(|line| [line, "\n"]).collect();
        match words[..] {
            ["console", "run"] => {
                let lines: Vec<&str> = block.lines.iter().map(String::as_str).collect();
                for part in lines.chunk_by(|_, next| !next.starts_with("$ ")) {
                    count += 1;
                    let command = part[0].trim_start_matches("$ ");
                    wrong.extend(session.run(command, &part[1..]).err());
                }
            }
            ["nginx", "site.conf"] => session.serve(&text),
            [_, path] => session.add(path, text),
            _ => {}
        }
    }
    (count, wrong)
}

#[test]
fn every_session_of_the_guide_shows_what_the_page_shows() {
    if skip_on_oracle("some commands are Weir's own") {
        return;
    }
    if Command::new("curl").arg("-V").output().is_err() {
        println!("skipped: no curl");
        return;
    }
    let application = application();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
    let (mut commands, mut wrong) = (0, Vec::new());
    for entry in fs::read_dir(guide).expect("the guide is there").flatten() {
        let page = fs::read_to_string(entry.path()).expect("text");
        let (count, found) = run_page(&page, application);
        let name = entry.file_name();
        wrong.extend(
            found
                .into_iter()
                .map(|what| format!("{}\n{what}", name.display())),
        );
        commands += count;
    }
    println!("{commands} commands of the guide, {} differ", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(commands > 30, "{commands} commands were found");
}

#[test]
fn lines_of_a_page_stand_for_others() {
    assert!(is_shown("a…c", "abbc") && is_shown("…", "") && is_shown("a…b…", "a1b2"));
    assert!(!is_shown("a…c", "abb") && !is_shown("a", "ab"));
    assert!(are_shown(&["a", "…", "c"], &["a", "b", "b", "c"]));
    assert!(!are_shown(&["a"], &["a", "b"]));
}
