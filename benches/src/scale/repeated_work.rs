//! Work that is the same for each request: lists of patterns of which none matches, and a file that is compressed.
//!
//! One client sends requests on one connection. What counts is the CPU time that the server has used meanwhile
//! (`schedstat`), divided by the requests; the programs take turns, and the least of all rounds is the figure, because
//! other work on the machine only adds.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::{Contender, Figure, ProgramKind};
use crate::server::{self, Folder, Placement, Server};

/// Nothing that is read may take longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Requests of one measurement: of a small response, sent in batches, and of a compressed file.
const REQUESTS: usize = 20_000;
const BATCH: usize = 50;
const FILES: usize = 300;

/// How long a file must have been there before what was compressed of it is kept.
const QUIET: Duration = Duration::from_millis(3_200);

/// The length of the file, in kilobytes.
const FILE_KB: usize = 150;

/// A list of patterns, as a configuration has it.
#[derive(Clone, Copy, Debug)]
enum PatternList {
    /// A `map` over `$http_user_agent`, as lists of bad robots are.
    Map,
    /// Regex locations.
    Locations,
}

const LISTS: [(PatternList, &str); 2] = [
    (PatternList::Map, "CPU per request: map of patterns"),
    (PatternList::Locations, "CPU per request: regex locations"),
];

/// Measures lists of these sizes, and the compressed file.
pub(super) fn measure(
    contenders: &[Contender],
    sizes: &[usize],
    rounds: usize,
    figures: &mut Vec<Figure>,
) -> Result<(), String> {
    for (list, name) in LISTS {
        for size in sizes.iter().copied() {
            println!("{name}: {size}");
            let site = pattern_site(list, size);
            let load = |stream: &mut TcpStream| small_requests(stream);
            let found = in_turn(contenders, &site, rounds, load)?;
            push(figures, name, size, found);
        }
    }
    println!("{FILE_KB} KB of CSS, gzip");
    let load = |stream: &mut TcpStream| compressed_requests(stream);
    let found = in_turn(contenders, COMPRESSED, rounds, load)?;
    push(figures, COMPRESSED_NAME, FILE_KB, found);
    Ok(())
}

pub(super) const COMPRESSED_NAME: &str =
    "CPU per request: CSS of so many KB, gzip level 6, again and again";

fn push(figures: &mut Vec<Figure>, name: &str, size: usize, found: Vec<(&'static str, f64)>) {
    for (program, value) in found {
        figures.push(Figure {
            name: name.to_owned(),
            unit: "µs",
            size,
            program,
            value,
        });
    }
}

const COMPRESSED: &str = "worker_processes 1;
events { worker_connections 64; }
http {
    access_log off;
    keepalive_requests 1000000000;
    types { text/css css; }
    server {
        listen 127.0.0.1:%%PORT%%;
        root html;
        gzip on;
        gzip_types text/css;
        gzip_comp_level 6;
    }
}
";

fn pattern_site(list: PatternList, size: usize) -> String {
    let mut rows = String::new();
    let (mut map, mut locations) = ("", "");
    for at in 0..size {
        let _ = match list {
            PatternList::Map => writeln!(rows, "        \"~*(?:\\b)badbot{at}name(?:\\b|)\" 1;"),
            PatternList::Locations => {
                writeln!(
                    rows,
                    "        location ~* ^/name{at}/(.*)\\.(php|asp)$ {{ return 404; }}"
                )
            }
        };
    }
    match list {
        PatternList::Map => map = &rows,
        PatternList::Locations => locations = &rows,
    }
    format!(
        "worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    map_hash_max_size 65536;
    map $http_user_agent $bad {{
        default 0;
{map}    }}
    server {{
        listen 127.0.0.1:%%PORT%%;
        location / {{ return 200 \"bad: $bad\"; }}
{locations}    }}
}}
"
    )
}

/// The least CPU time per request of each program, in microseconds.
fn in_turn(
    contenders: &[Contender],
    site: &str,
    rounds: usize,
    load: impl Fn(&mut TcpStream) -> Result<usize, String>,
) -> Result<Vec<(&'static str, f64)>, String> {
    let mut running = Vec::new();
    for contender in contenders
        .iter()
        .filter(|one| one.kind != ProgramKind::Haproxy)
    {
        let folder = Folder::new(&format!("scale-work-{}", contender.name))?;
        let written = fs::write(folder.path.join("html/a.css"), style_sheet());
        written.map_err(|error| error.to_string())?;
        let program = server::Contender::new(contender.name, &contender.binary, "");
        let server = Server::start(&program, &folder.path, site, &Placement::default())?;
        running.push((contender.name, server, folder, f64::INFINITY));
    }
    std::thread::sleep(QUIET);
    // The first round fills caches and pools.
    for round in 0..=rounds {
        for (_, server, _, least) in &mut running {
            let mut stream = connect(server.port)?;
            let before = server.cpu_time();
            let requests = load(&mut stream)?;
            let used = server.cpu_time().saturating_sub(before);
            if round > 0 {
                *least = least.min(used.as_secs_f64() * 1e6 / requests as f64);
            }
        }
    }
    Ok(running
        .into_iter()
        .map(|(name, _, _, least)| (name, least))
        .collect())
}

fn connect(port: u16) -> Result<TcpStream, String> {
    let connected = TcpStream::connect(("127.0.0.1", port)).and_then(|stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    connected.map_err(|error| error.to_string())
}

/// A style sheet that packs as such files do.
fn style_sheet() -> String {
    let mut text = String::new();
    let mut number = 1_u64;
    while text.len() < FILE_KB * 1024 {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (one, two) = (number >> 40 & 0xff_ffff, number >> 20 & 0xfff);
        let _ = writeln!(
            text,
            ".class-{two:x} > li:nth-child({}) {{ color: #{one:06x}; margin: {}px auto; background-position: {}% 0 }}",
            one % 9,
            two % 40,
            one % 100
        );
    }
    text.truncate(FILE_KB * 1024);
    text
}

const SMALL: &str = "GET /page HTTP/1.1\r\nHost: a\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\r\n";

/// Many small responses, all of the same length.
fn small_requests(stream: &mut TcpStream) -> Result<usize, String> {
    let told = |error: std::io::Error| error.to_string();
    stream.write_all(SMALL.as_bytes()).map_err(told)?;
    let mut first = Vec::new();
    while !first.ends_with(b"bad: 0") {
        read_more(stream, &mut first)?;
    }
    let batch = SMALL.repeat(BATCH);
    let mut replies = vec![0; first.len() * BATCH];
    for _ in 0..REQUESTS / BATCH {
        stream.write_all(batch.as_bytes()).map_err(told)?;
        stream.read_exact(&mut replies).map_err(told)?;
    }
    Ok(REQUESTS)
}

/// The file, compressed, one request after the other.
fn compressed_requests(stream: &mut TcpStream) -> Result<usize, String> {
    let request = "GET /a.css HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
    for _ in 0..FILES {
        let sent = stream.write_all(request.as_bytes());
        sent.map_err(|error| error.to_string())?;
        let mut reply = Vec::new();
        while !is_complete(&reply)? {
            read_more(stream, &mut reply)?;
        }
    }
    Ok(FILES)
}

fn read_more(stream: &mut TcpStream, reply: &mut Vec<u8>) -> Result<(), String> {
    let mut buffer = [0; 64 * 1024];
    match stream.read(&mut buffer) {
        Ok(0) => Err("the server closed the connection".to_owned()),
        Ok(read) => {
            reply.extend_from_slice(&buffer[..read]);
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Whether a compressed response is there, however its length is told.
fn is_complete(reply: &[u8]) -> Result<bool, String> {
    let Some(end) = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(false);
    };
    let head = String::from_utf8_lossy(&reply[..end]).to_lowercase();
    if !head.contains("content-encoding: gzip") {
        return Err(format!("it is not compressed: {head}"));
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    Ok(match length {
        Some(length) => reply.len() >= end + 4 + length,
        None => reply.ends_with(b"\r\n0\r\n\r\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compressed_response_ends_by_its_length_or_its_last_chunk() {
        let head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n";
        for (text, ends) in [
            ("Content-Length: 3\r\n\r\nab", false),
            ("Content-Length: 3\r\n\r\nabc", true),
            ("Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", false),
            (
                "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
                true,
            ),
            ("Content-Length", false),
        ] {
            let reply = format!("{head}{text}");
            assert_eq!(is_complete(reply.as_bytes()), Ok(ends), "{text:?}");
        }
        assert!(is_complete(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
