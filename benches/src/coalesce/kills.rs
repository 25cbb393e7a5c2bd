//! `kills`: `kill -9` in the middle of fetches, again and again on the same cache. Every byte that is served, before the
//! crash and after it, is compared with the origin's; and what has outlived one crash must outlive the next ones.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use xtask::flags::Flags;

use super::origin::{Origin, Reply, bytes_at, shift};
use crate::Bench;
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, Server};

pub(crate) const FLAGS: &str = "\
  --times N        crashes (100)";

const CONFIGURATION: &str = "
worker_processes 2;
events { worker_connections 1024; }
http {
    access_log off;
    proxy_cache_path cache keys_zone=cache:10m max_size=4g inactive=1h use_temp_path=off;
    server {
        listen 127.0.0.1:%%PORT%% backlog=1024;
        location / {
            proxy_pass http://127.0.0.1:%%ORIGIN%%;
            proxy_cache cache;
            proxy_cache_key $uri;
            add_header X-Cache $upstream_cache_status;
            location /part/ {
                proxy_pass http://127.0.0.1:%%ORIGIN%%;
                proxy_cache_partial on;
                add_header X-Cache $upstream_cache_status;
            }
        }
    }
}
";

const CLIENTS: usize = 16;
/// What each client asks for before the crash, if it comes so far.
const ASKED: usize = 12;
/// Of what was stored before, how much is asked for after a crash.
const AGAIN: usize = 100;

/// An object, or a part of one, and how many crashes it has outlived.
#[derive(Debug, Clone)]
struct Wanted {
    path: String,
    /// First and last byte.
    range: Option<(usize, usize)>,
    outlived: usize,
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// All of it, from the cache or not.
    Whole { is_hit: bool },
    /// Less than all, and nothing wrong: the crash.
    Cut,
    /// A byte that is not the origin's, or a head that does not fit.
    Wrong,
}

/// Of all rounds.
#[derive(Debug, Default)]
struct Counts {
    compared: usize,
    wrong: usize,
    /// Gone after the crash that came right after their last byte, and after a later one.
    lost_at_once: usize,
    lost_later: usize,
    outlived: usize,
}

fn reply_of(kind: &str) -> Option<Reply> {
    let (length, body_ms) = match kind {
        "small" => (10 << 10, 0),
        "large" => (1 << 20, 100),
        "part" => (300 << 10, 0),
        _ => return None,
    };
    Some(Reply {
        head_ms: 0,
        length,
        body_ms,
        ..Reply::default()
    })
}

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let times = flags.value("--times", 100_usize)?;
    flags.finish()?;
    let origin = Origin::start(reply_of)?;
    let folder = Folder::new("bench-kills")?;
    let contender = Contender::new("weir", &bench.weir, "");
    let text = CONFIGURATION.replace("%%ORIGIN%%", &origin.port.to_string());
    let mut counts = Counts::default();
    let mut stored = VecDeque::new();
    for round in 0..=times {
        let server = Server::start(&contender, &folder.path, &text, &Placement::default())?;
        ask_again(server.port, &mut stored, &mut counts);
        if round < times {
            // At another moment each time: 20 to 220 ms after the first request.
            let patience = Duration::from_millis((20 + round * 37 % 200) as u64);
            fetch(server, round, patience, &mut stored, &mut counts);
        }
    }
    Ok(section(times, &counts))
}

/// Asks for some of what was stored; what is gone is forgotten.
fn ask_again(port: u16, stored: &mut VecDeque<Wanted>, counts: &mut Counts) {
    for _ in 0..AGAIN.min(stored.len()) {
        let Some(mut wanted) = stored.pop_front() else {
            return;
        };
        counts.compared += 1;
        match ask(port, &wanted) {
            Came::Whole { is_hit: true } => {
                counts.outlived += 1;
                wanted.outlived += 1;
                stored.push_back(wanted);
            }
            Came::Wrong => counts.wrong += 1,
            _ if wanted.outlived == 0 => counts.lost_at_once += 1,
            _ => counts.lost_later += 1,
        }
    }
}

/// Clients ask for new objects until the server is killed.
fn fetch(
    server: Server,
    round: usize,
    patience: Duration,
    stored: &mut VecDeque<Wanted>,
    counts: &mut Counts,
) {
    let port = server.port;
    let client = |number: usize| {
        let mut came = Vec::new();
        for step in 0..ASKED {
            let wanted = wanted(round, number, step);
            let result = ask(port, &wanted);
            let is_over = result == Came::Cut;
            came.push((wanted, result));
            if is_over {
                break;
            }
        }
        came
    };
    let client = &client;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || client(number)))
            .collect();
        std::thread::sleep(patience);
        server.kill();
        let came = clients.into_iter().filter_map(|client| client.join().ok());
        for (wanted, result) in came.flatten() {
            counts.compared += 1;
            match result {
                // First, so that those that this crash hit are asked for after it.
                Came::Whole { .. } => stored.push_front(wanted),
                Came::Wrong => counts.wrong += 1,
                Came::Cut => {}
            }
        }
    });
}

/// Small and large objects, which several clients want at a time, and parts.
fn wanted(round: usize, client: usize, step: usize) -> Wanted {
    let (path, range) = match step % 3 {
        0 => (format!("/small/{round}/{client}/{step}"), None),
        1 => (format!("/large/{round}/{}/{step}", client / 4), None),
        _ => {
            let from = 10_000 * (client % 4) + 777;
            let path = format!("/part/{round}/{}/{step}", client / 4);
            (path, Some((from, from + 25_000)))
        }
    };
    Wanted {
        path,
        range,
        outlived: 0,
    }
}

fn ask(port: u16, wanted: &Wanted) -> Came {
    read(port, wanted).unwrap_or(Came::Cut)
}

fn read(port: u16, wanted: &Wanted) -> std::io::Result<Came> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let range = wanted.range.map_or(String::new(), |(from, to)| {
        format!("Range: bytes={from}-{to}\r\n")
    });
    let path = &wanted.path;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\n{range}Connection: close\r\n\r\n"
    )?;
    let mut all = Vec::new();
    // A connection that breaks has said what it has said.
    let _ = stream.read_to_end(&mut all);
    let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(Came::Cut);
    };
    let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
    let body = &all[end + 4..];
    let kind = path.split('/').nth(1).unwrap_or_default();
    let whole = reply_of(kind).map_or(0, |reply| reply.length);
    let (status, from, length) = match wanted.range {
        Some((from, to)) => ("http/1.1 206", from, to + 1 - from),
        None => ("http/1.1 200", 0, whole),
    };
    let expected = &bytes_at(from + shift(path))[..length];
    if !head.starts_with(status) || !expected.starts_with(body) {
        return Ok(Came::Wrong);
    }
    if body.len() < length {
        return Ok(Came::Cut);
    }
    let is_hit = head.contains("x-cache: hit");
    Ok(Came::Whole { is_hit })
}

fn section(times: usize, counts: &Counts) -> Section {
    let rows = [
        ("responses compared", counts.compared, None),
        ("of them with a wrong byte", counts.wrong, Some(0.0)),
        (
            "objects and parts that were hits after a crash",
            counts.outlived,
            None,
        ),
        (
            "gone: the crash came with their last byte or soon after",
            counts.lost_at_once,
            None,
        ),
        (
            "gone: they had outlived a crash before",
            counts.lost_later,
            Some(0.0),
        ),
    ];
    let row = |(name, count, goal): (&str, usize, Option<f64>)| Row {
        name: name.to_owned(),
        goal: goal.map(Goal::AtMost),
        cells: vec![Cell::one(count as f64)],
        ..Row::default()
    };
    Section {
        title: "Crashes in the middle of fetches".to_owned(),
        how: format!(
            "{CLIENTS} clients ask for new objects of 10 KB and of 1 MB that trickle, and for parts of 300 KB; 20 to 220 ms later all \
             processes are ended by kill -9, {times} times on the same cache. After each start {AGAIN} of the objects that had \
             reached a client whole are asked for, the newest first. Each byte is compared."
        ),
        tables: vec![Table {
            title: format!("{times} times kill -9"),
            unit: "counts".to_owned(),
            contenders: vec!["weir".to_owned()],
            base: None,
            rows: rows.map(row).into(),
        }],
        ..Section::default()
    }
}
