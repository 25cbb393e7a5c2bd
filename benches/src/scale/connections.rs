//! The memory of connections that do nothing: silent, between two requests, and in the middle of one.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xtask::shell;

use super::client_crowd::{ClientCrowd, ClientKind, ClientProcess, KINDS};
use super::client_socket::connect;
use super::{Contender, Figure, ProgramKind, memory, origin, servers};
use crate::server::{Folder, free_port};

/// How long connections are left alone before memory is looked at: what is freed after a peak has been freed then.
const REST: Duration = Duration::from_secs(8);

/// The descriptors of a process that are not for connections.
const SPARE: usize = 500;

pub(super) fn measure(
    contenders: &[Contender],
    size: usize,
    wanted: &str,
    leave: u64,
    figures: &mut Vec<Figure>,
) -> Result<(), String> {
    let origin = origin::start()?;
    for (name, kind) in KINDS {
        if !wanted.is_empty() && !wanted.split(',').any(|one| one == *name) {
            continue;
        }
        // The origin has all of its connections in this process.
        let most = match kind.is_double() {
            true => descriptors().saturating_sub(SPARE),
            false => usize::MAX,
        };
        let count = size.min(most);
        for contender in contenders.iter().filter(|one| kind.is_for(one.kind)) {
            // It is one process, and counts two descriptors for each.
            let own = match contender.kind {
                ProgramKind::Haproxy => count.min((descriptors() / 2).saturating_sub(SPARE)),
                ProgramKind::Weir | ProgramKind::Nginx => count,
            };
            println!("{own} connections, {name}: {}", contender.name);
            let (each, held) = hold(contender, (*name, *kind), own, origin, leave)?;
            let figure = |name: String, unit, value| Figure {
                name,
                unit,
                size: count,
                program: contender.name,
                value,
            };
            figures.push(figure((*name).to_owned(), "bytes per connection", each));
            let after = format!("{name}: held after the end");
            figures.push(figure(after, "MB", held));
        }
    }
    Ok(())
}

fn descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.map_or(usize::MAX, |most| most as usize)
}

/// A server that ends when this is dropped.
struct Running {
    child: Child,
    port: u16,
    tls_port: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        servers::end(&mut self.child);
    }
}

/// Opens the connections, and closes them: bytes of each, and MB that stay.
fn hold(
    contender: &Contender,
    (name, kind): (&str, ClientKind),
    count: usize,
    origin: u16,
    leave: u64,
) -> Result<(f64, f64), String> {
    let folder = Folder::new("scale-connections")?;
    let each = if kind.is_double() { 2 } else { 1 };
    let processes = (count * each).div_ceil(descriptors() / 5 * 4);
    let server = start(contender, &folder.path, origin, processes)?;
    let crowd = ClientCrowd::new(kind, server.port, server.tls_port)?;
    if kind == ClientKind::ReaderCached {
        fill_cache(server.port)?;
    }
    // What is made once is there before the first look.
    for number in 0..4 * processes {
        drop(crowd.open(number)?);
    }
    std::thread::sleep(Duration::from_secs(1));
    let family = memory::family(server.child.id());
    let dirty = || memory::rollup(&family, "Private_Dirty") as f64;
    let before = dirty();
    let of_each = descriptors().saturating_sub(SPARE).max(1);
    let ports = (server.port, server.tls_port);
    let start = |from: usize| {
        let part = (from, of_each.min(count - from));
        ClientProcess::start(name, ports, part, &contender.binary)
    };
    let clients: Result<Vec<ClientProcess>, String> =
        (0..count).step_by(of_each).map(start).collect();
    let clients = clients?;
    std::thread::sleep(REST);
    let each = (dirty() - before) / count as f64;
    drop(clients);
    std::thread::sleep(Duration::from_secs(leave));
    Ok((each, ((dirty() - before) / 1e6).max(0.0)))
}

fn fill_cache(port: u16) -> Result<(), String> {
    let fill = || {
        let mut stream = connect(port, 0, None)?;
        let request = "GET /cached HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes())?;
        std::io::copy(&mut stream, &mut std::io::sink())
    };
    fill().map(drop).map_err(|error| error.to_string())
}

/// Starts a server with as many processes as the descriptors of its connections need.
fn start(
    contender: &Contender,
    folder: &Path,
    origin: u16,
    processes: usize,
) -> Result<Running, String> {
    let (port, tls_port) = (free_port()?, free_port()?);
    let told = |error: std::io::Error| error.to_string();
    fs::write(folder.join("html/big"), vec![b'x'; origin::BODY]).map_err(told)?;
    servers::write_certificates(folder, 1)?;
    let mut command = Command::new(&contender.binary);
    let configuration = folder.join("server.conf");
    let text = match contender.kind {
        ProgramKind::Haproxy => {
            command.arg("-f").arg(&configuration);
            haproxy(folder, port, tls_port, origin)
        }
        ProgramKind::Weir | ProgramKind::Nginx => {
            let prefix = format!("{}/", folder.display());
            command.args(["-p", &prefix, "-c", "server.conf", "-e", "error.log"]);
            let own = match (contender.kind, processes) {
                (_, 0 | 1) => String::new(),
                (ProgramKind::Weir, more) => format!("worker_groups {more}; "),
                _ => String::new(),
            } + &format!("worker_processes {};", processes.max(1));
            let text = nginx(folder, (port, tls_port), origin, &own);
            match contender.kind {
                // Its workers take what comes otherwise, and one of them would have most of it.
                ProgramKind::Nginx if processes > 1 => {
                    text.replace("backlog=8192", "backlog=8192 reuseport")
                }
                _ => text,
            }
        }
    };
    fs::write(&configuration, text).map_err(told)?;
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", contender.binary.display()))?;
    let server = Running {
        child,
        port,
        tls_port,
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > deadline {
            return Err(format!("{} does not start", contender.name));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(server)
}

fn nginx(folder: &Path, (port, tls_port): (u16, u16), origin: u16, processes: &str) -> String {
    let user = if shell::is_root() { "user root;" } else { "" };
    let folder = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary
        .map(|name| format!("{name}_temp_path {folder}/{name}; "))
        .concat();
    let descriptors = descriptors();
    format!(
        "{user} daemon off; {processes} pid {folder}/server.pid; error_log {folder}/error.log error;
         worker_rlimit_nofile {descriptors};
         events {{ worker_connections 100000; }}
         http {{
             access_log off; {temporary}
             proxy_cache_path {folder}/cache keys_zone=z:10m;
             keepalive_timeout 1h; client_body_timeout 1h; client_header_timeout 1h; send_timeout 1h; proxy_read_timeout 1h;
             client_max_body_size 10m;
             server {{
                 listen 127.0.0.1:{port} backlog=8192;
                 listen 127.0.0.1:{tls_port} ssl http2 backlog=8192;
                 ssl_certificate {folder}/certificate-0.pem; ssl_certificate_key {folder}/key.pem;
                 location / {{ return 200 hello; }}
                 location /file {{ sendfile on; alias {folder}/html/big; }}
                 location /copied {{ alias {folder}/html/big; }}
                 location /in {{ proxy_pass http://127.0.0.1:{origin}; }}
                 location /in-streamed {{
                     proxy_pass http://127.0.0.1:{origin}; proxy_http_version 1.1; proxy_request_buffering off;
                 }}
                 location /out {{ proxy_pass http://127.0.0.1:{origin}; }}
                 location /out-unbuffered {{ proxy_pass http://127.0.0.1:{origin}; proxy_buffering off; }}
                 location /cached {{ proxy_pass http://127.0.0.1:{origin}; proxy_cache z; proxy_cache_valid 200 1h; }}
             }}
         }}"
    )
}

fn haproxy(folder: &Path, port: u16, tls_port: u16, origin: u16) -> String {
    let folder = folder.display();
    format!(
        "global\n  nbthread 1\n  maxconn {}\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n  \
         timeout http-request 1h\n  timeout http-keep-alive 1h\n\
         frontend f\n  bind 127.0.0.1:{port} backlog 8192\n  \
         bind 127.0.0.1:{tls_port} backlog 8192 ssl crt {folder}/both-0.pem alpn h2,http/1.1\n  \
         http-request return status 200 content-type text/plain string hello if {{ path / }}\n  default_backend b\n\
         backend b\n  server s 127.0.0.1:{origin}\n",
        descriptors() / 2 - 100
    )
}
