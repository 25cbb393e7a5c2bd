//! Configurations with many servers: the time and memory to test, to start and to reload them.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use xtask::shell;

use super::{Contender, Figure, ProgramKind, memory};
use crate::connections::{kill, wait};
use crate::server::{Folder, free_port};

/// Nothing that is measured here may take longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// How many locations a server has, and one with TLS.
const LOCATIONS: usize = 20;
const LOCATIONS_WITH_TLS: usize = 3;

/// How many reloads memory is looked at after.
const RELOADS: usize = 3;

/// How long the processes of the previous configuration get to end.
const GRACE: Duration = Duration::from_secs(3);

/// Whether the servers have TLS, each with a certificate in a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encryption {
    Off,
    On,
}

pub(super) fn measure(
    contenders: &[Contender],
    size: usize,
    encryption: Encryption,
    figures: &mut Vec<Figure>,
) -> Result<(), String> {
    // HAProxy has no configuration that says the same.
    for contender in contenders
        .iter()
        .filter(|one| one.kind != ProgramKind::Haproxy)
    {
        println!("{size} servers, TLS {encryption:?}: {}", contender.name);
        let prefix = match encryption {
            Encryption::Off => "",
            Encryption::On => "TLS servers, ",
        };
        for (name, unit, value) in life(contender, size, encryption)? {
            figures.push(Figure {
                name: format!("{prefix}{name}"),
                unit,
                size,
                program: contender.name,
                value,
            });
        }
    }
    Ok(())
}

type Measured = Vec<(&'static str, &'static str, f64)>;

/// Tests a configuration, starts with it, and reloads it after changes of one line.
fn life(contender: &Contender, size: usize, encryption: Encryption) -> Result<Measured, String> {
    let folder = Folder::new("scale-servers")?;
    let port = free_port()?;
    if encryption == Encryption::On {
        write_certificates(&folder.path, size)?;
    }
    let write = |version: usize| {
        let text = configuration(&folder.path, port, size, encryption, version);
        fs::write(folder.path.join("nginx.conf"), text).map_err(|error| error.to_string())
    };
    write(0)?;
    let prefix = format!("{}/", folder.path.display());
    let command = |test: bool| {
        let mut command = Command::new(&contender.binary);
        command.args(["-p", &prefix, "-c", "nginx.conf", "-e", "error.log"]);
        if test {
            command.args(["-t", "-q"]);
        }
        let streams = command.stdin(Stdio::null()).stdout(Stdio::null());
        let started = streams.stderr(Stdio::null()).spawn();
        started.map_err(|error| format!("{}: {error}", contender.binary.display()))
    };
    let mut found = Vec::new();
    let (cpu, peak) = test(command(true)?)?;
    found.push(("-t: CPU time", "s", cpu));
    found.push(("-t: most memory", "MB", peak));
    let began = Instant::now();
    let mut server = command(false)?;
    let result = (|| {
        answers(port, size, 0)?;
        let started = began.elapsed().as_secs_f64();
        found.push(("start to first answer", "s", started));
        std::thread::sleep(GRACE);
        let pss = || memory::rollup(&memory::family(server.id()), "Pss") as f64 / 1e6;
        found.push(("PSS of all processes", "MB", pss()));
        for version in 1..=RELOADS {
            write(version)?;
            let began = Instant::now();
            kill("HUP", server.id());
            answers(port, size, version)?;
            if version == 1 {
                let effective = began.elapsed().as_secs_f64();
                found.push(("reload of one changed line, effective", "s", effective));
            }
            std::thread::sleep(GRACE);
        }
        found.push(("PSS of all processes after 3 reloads", "MB", pss()));
        Ok(())
    })();
    end(&mut server);
    result.map(|()| found)
}

/// The CPU time of a program until it ends, and the most memory that it had, in MB.
fn test(mut program: Child) -> Result<(f64, f64), String> {
    let deadline = Instant::now() + PATIENCE;
    let mut peak = 0;
    let cpu = loop {
        peak = memory::peak(program.id()).unwrap_or(0).max(peak);
        // Before it has been waited for its times can be read.
        if let Some(cpu) = memory::cpu_time_at_end(program.id()) {
            break cpu;
        }
        if Instant::now() > deadline {
            let _ = program.kill();
            let _ = program.wait();
            return Err("-t takes too long".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    match program.wait() {
        Ok(status) if status.success() => Ok((cpu, peak as f64 / 1e6)),
        Ok(status) => Err(format!("-t: {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Ends a server and waits for it.
pub(super) fn end(server: &mut Child) {
    kill("TERM", server.id());
    let deadline = Instant::now() + Duration::from_secs(20);
    while matches!(server.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            memory::family(server.id())
                .into_iter()
                .for_each(|one| kill("KILL", one));
            // It has been killed: there is nothing else to be done about it.
            let _ = server.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the last server answers with this version of its changed line.
fn answers(port: u16, size: usize, version: usize) -> Result<(), String> {
    let request = format!(
        "GET /version HTTP/1.1\r\nHost: s{}.example.com\r\nConnection: close\r\n\r\n",
        size - 1
    );
    let expected = format!("version {version};");
    let answers = || {
        let mut text = String::new();
        TcpStream::connect(("127.0.0.1", port))
            .and_then(|mut stream| {
                stream.write_all(request.as_bytes())?;
                stream.read_to_string(&mut text)
            })
            .is_ok_and(|_| text.contains(&expected))
    };
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        // In turns of ten seconds.
        if wait(answers) {
            return Ok(());
        }
    }
    Err(format!("version {version} does not answer"))
}

/// Certificates with a key in common, for the servers `s0` to `sN`, and in the form that HAProxy reads.
pub(super) fn write_certificates(folder: &Path, count: usize) -> Result<(), String> {
    let told = |error: rcgen::Error| error.to_string();
    let key = KeyPair::generate().map_err(told)?;
    let write = |name: String, text: String| {
        fs::write(folder.join(name), text).map_err(|error| error.to_string())
    };
    write("key.pem".to_owned(), key.serialize_pem())?;
    for number in 0..count {
        let names = vec![format!("s{number}.example.com"), "localhost".to_owned()];
        let certificate = CertificateParams::new(names).map_err(told)?;
        let pem = certificate.self_signed(&key).map_err(told)?.pem();
        let both = pem.clone() + &key.serialize_pem();
        write(format!("certificate-{number}.pem"), pem)?;
        if number == 0 {
            write("both-0.pem".to_owned(), both)?;
        }
    }
    Ok(())
}

/// The configuration: servers such as a hosting machine has. Plain ones answer at `port`, and those with TLS at another
/// one, with a plain server beside them for the question whether all is there.
fn configuration(
    folder: &Path,
    port: u16,
    size: usize,
    encryption: Encryption,
    version: usize,
) -> String {
    let user = if shell::is_root() { "user root;\n" } else { "" };
    let mut text = format!(
        "{user}daemon off;\nworker_processes 1;\npid server.pid;\nerror_log error.log error;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  server_names_hash_max_size 65536;\n  server_names_hash_bucket_size 128;\n"
    );
    let folder = folder.display();
    for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(text, "  {name}_temp_path {folder}/{name};");
    }
    let locations = match encryption {
        Encryption::Off => LOCATIONS,
        Encryption::On => LOCATIONS_WITH_TLS,
    };
    for number in 0..size {
        let _ = writeln!(
            text,
            "  server {{\n    listen 127.0.0.1:{port};\n    server_name s{number}.example.com www.s{number}.example.com;\n    root {folder}/html;"
        );
        if encryption == Encryption::On {
            // The same port with TLS would need a client that speaks it; another address is enough to read them all.
            let _ = writeln!(
                text,
                "    listen 127.0.0.2:{port} ssl;\n    ssl_certificate {folder}/certificate-{number}.pem;\n    ssl_certificate_key {folder}/key.pem;"
            );
        }
        for at in 0..locations {
            let _ = match at % 5 {
                0 => writeln!(text, "    location /a{at}/ {{ expires 30d; }}"),
                1 => writeln!(
                    text,
                    "    location /b{at}/ {{ proxy_pass http://127.0.0.1:9; proxy_set_header Host $host; }}"
                ),
                2 => writeln!(
                    text,
                    "    location /c{at}/ {{ try_files $uri $uri/ /index.html; }}"
                ),
                3 => writeln!(
                    text,
                    "    location ~ \\.x{at}$ {{ add_header X-Server s{number}; }}"
                ),
                _ => writeln!(
                    text,
                    "    location /d{at}/ {{ return 301 https://$host$request_uri; }}"
                ),
            };
        }
        let changed = if number + 1 == size { version } else { 0 };
        let _ = writeln!(
            text,
            "    location = /version {{ return 200 \"version {changed};\"; }}\n  }}"
        );
    }
    text.push_str("}\n");
    text
}
