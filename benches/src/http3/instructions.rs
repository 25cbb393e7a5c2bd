//! `http3-instructions`: how many instructions a request over HTTP/3 costs outside of the kernel, counted by callgrind. Unlike
//! time this does not depend on what else the machine does. A second, longer run tells what start and handshakes cost, which
//! do not count.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xtask::Outcome;
use xtask::flags::Flags;
use xtask::{packages, shell};

use super::client::{QuicClients, Work};
use super::{CONFIGURATION, FLOOR, ROWS, prepare};
use crate::Bench;
use crate::server::{Folder, Server, free_port};

/// No run takes longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// The servers: their names, and what their configurations have that others have not.
const SERVERS: &[(&str, &str)] = &[("nginx", "quic_gso on;"), ("weir", ""), (FLOOR, "")];

/// How many responses the short run and the long one have, for one stream at a time, and for several.
const FILES: [u64; 2] = [1, 3];
const RESPONSES: [u64; 2] = [2000, 8000];

/// The flags.
pub(crate) const FLAGS: &str = "--profiles FOLDER  keeps the files of callgrind
  --floor PATH       a weir-bench to run as the floor (this one): debug builds of it mean nothing";

/// `weir-bench http3-instructions`
pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Outcome {
    let kept: String = flags.value("--profiles", String::new())?;
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let floor: PathBuf = flags.value("--floor", this)?;
    flags.finish()?;
    packages::need(&[packages::VALGRIND])?;
    let folder = prepare()?;
    for row in ROWS.iter().filter(|row| bench.wants(row.name)) {
        let counts = match row.streams {
            1 => FILES,
            _ => RESPONSES,
        };
        let mut first = None;
        for (name, directives) in SERVERS {
            let mut seen = [(0, 0); 2];
            for (at, count) in counts.into_iter().enumerate() {
                let profile = match kept.is_empty() {
                    true => folder.path.join("profile"),
                    false => Path::new(&kept).join(format!("{}.{name}.{at}", row.name)),
                };
                let work = Work {
                    path: row.path.to_owned(),
                    length: row.length,
                    streams: row.streams,
                };
                let clients = row.clients.min(10);
                let site = CountedSite {
                    bench,
                    folder: &folder,
                    floor: &floor,
                };
                let server = start(&site, (name, directives), row.length, &profile)?;
                let answered = load(&server, work, clients, count)?;
                drop(server);
                seen[at] = (instructions(&profile)?, answered);
            }
            let [(less, few), (more, many)] = seen;
            let each = more.saturating_sub(less) as f64 / (many - few).max(1) as f64;
            let part = each / *first.get_or_insert(each);
            println!(
                "{}: {name}: {each:.0} instructions a response, {part:.2} of nginx's",
                row.name
            );
        }
    }
    Ok(())
}

/// What is run, and where.
struct CountedSite<'a> {
    bench: &'a Bench,
    folder: &'a Folder,
    floor: &'a Path,
}

/// Starts a server under callgrind, as one process.
fn start(
    site: &CountedSite<'_>,
    (name, directives): (&str, &str),
    length: u64,
    profile: &Path,
) -> Result<Server, String> {
    let CountedSite {
        bench,
        folder,
        floor,
    } = site;
    let port = free_port()?;
    let text = port.to_string();
    let out = format!("--callgrind-out-file={}", profile.display());
    let length = length.to_string();
    let prefix = format!("{}/", folder.path.display());
    let mut words: Vec<&OsStr> = ["--tool=callgrind", &out].map(OsStr::new).to_vec();
    if name == FLOOR {
        words.push(floor.as_os_str());
        words.extend(["http3-floor", "--port", &text, "--length", &length].map(OsStr::new));
        words.extend([OsStr::new("--folder"), folder.path.as_os_str()]);
        words.extend([OsStr::new("--weir"), bench.weir.as_os_str()]);
    } else {
        let user = if shell::is_root() { "user root;" } else { "" };
        let configuration = CONFIGURATION
            .replace("%%PORT%%", &text)
            .replace("%%DIRECTIVES%%", directives);
        let configuration = format!(
            "daemon off; master_process off; pid server.pid; error_log error.log warn; {user}{configuration}"
        );
        fs::write(folder.path.join("nginx.conf"), configuration)
            .map_err(|error| error.to_string())?;
        words.push(match name {
            "nginx" => bench.nginx.as_os_str(),
            _ => bench.weir.as_os_str(),
        });
        words.extend(["-p", &prefix, "-c", "nginx.conf"].map(OsStr::new));
    }
    Server::peer(Path::new("valgrind"), &words, None, port)
}

/// Asks until as many responses have come, and returns how many they were.
fn load(server: &Server, work: Work, clients: usize, count: u64) -> Result<u64, String> {
    let address = SocketAddr::from(([127, 0, 0, 1], server.port));
    let mut load = QuicClients::new(address, work)?;
    load.add(clients, [127, 0, 0, 1])?;
    let has_all = |load: &QuicClients| load.totals.responses >= count;
    let is_done = load.run_until(PATIENCE, has_all)?;
    load.stop_asking();
    let is_quiet = load.run_until(PATIENCE, QuicClients::is_quiet)?;
    let (lost, why) = load.lost();
    match is_done && is_quiet && lost == 0 && load.totals.failed == 0 {
        true => Ok(load.totals.responses),
        false => Err(format!(
            "{} of {count} responses, {lost} connections lost {why}",
            load.totals.responses
        )),
    }
}

/// The sum in a file of callgrind.
pub(crate) fn instructions(profile: &Path) -> Result<u64, String> {
    let text =
        fs::read_to_string(profile).map_err(|error| format!("{}: {error}", profile.display()))?;
    let sum = text.lines().find_map(|line| {
        let number = line
            .strip_prefix("summary: ")
            .or_else(|| line.strip_prefix("totals: "))?;
        number.trim().parse().ok()
    });
    sum.ok_or_else(|| format!("{}: no sum", profile.display()))
}
