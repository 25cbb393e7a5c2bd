//! `cargo xtask dist --try`: starts the binary that was built, also one for another architecture (by qemu's user mode), and asks it
//! for what depends on the architecture: machine code of patterns and scripts, checksums of compression, cryptography.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use xtask::{Outcome, shell};

use crate::image;

/// For each step; an emulated processor is slow.
const LIMIT: Duration = Duration::from_secs(120);

/// Each location and what its response contains.
const EXPECTED: [(&str, &str); 4] = [
    ("/", "a page"),
    ("/pattern/42", "number 42"),
    ("/script", "luajit counts to 5050"),
    ("/digest", "0cc175b9c0f1b6a831c399e269772661"),
];

/// Serves `folder/html` at a unix socket, which needs no free port. In one process: a master does not fork while it has threads,
/// and the emulator has some.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "daemon off; master_process off; pid {folder}/pid; error_log stderr notice;
         events {{}}
         http {{
             access_log off; gzip on; gzip_min_length 1;
             client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
             uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
             server {{
                 listen unix:{folder}/socket; root {folder}/html;
                 location ~ ^/pattern/(?<n>[0-9]+)$ {{ return 200 \"number $n\"; }}
                 location = /script {{ content_by_lua_block {{
                     local sum = 0
                     for i = 1, 100 do sum = sum + i end
                     ngx.print(\"luajit counts to \", sum)
                 }} }}
                 location = /digest {{ content_by_lua_block {{ ngx.print(ngx.md5(\"a\")) }} }}
             }}
         }}\n"
    )
}

/// Starts the binary, asks, and ends it.
pub(crate) fn run(binary: &Path) -> Outcome {
    let folder = shell::target().join("dist-trial");
    let _ = fs::remove_dir_all(&folder);
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    write("html/index.html", "a page")?;
    let folder = std::path::absolute(&folder).map_err(|error| error.to_string())?;
    write("weir.conf", &configuration(&folder))?;
    let mut program = runner(binary)?;
    let version = shell::output(runner(binary)?.arg("-V"), LIMIT)?;
    program.arg("-p").arg(&folder).arg("-c").arg("weir.conf");
    let mut server = program
        .spawn()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    let answers = EXPECTED
        .iter()
        .try_for_each(|(path, text)| expect(&folder.join("socket"), path, text, &mut server));
    let _ = shell::output(
        Command::new("kill").args(["-QUIT", &server.id().to_string()]),
        LIMIT,
    );
    let ended = shell::wait(&mut server, LIMIT)?;
    answers?;
    if !ended {
        return Err("the server that was tried did not end with code 0".to_owned());
    }
    println!("{version}it serves a page, patterns and scripts, and ends in order");
    Ok(())
}

/// A command of the binary: the binary itself, or the emulator of its processor with it.
pub(crate) fn runner(binary: &Path) -> Result<Command, String> {
    let architecture = image::machine(binary)?;
    if architecture == std::env::consts::ARCH {
        return Ok(Command::new(binary));
    }
    let names = [
        format!("qemu-{architecture}"),
        format!("qemu-{architecture}-static"),
    ];
    let emulator = names.into_iter().find(|name| shell::is_installed(name));
    let emulator = emulator.ok_or(format!(
        "{}: qemu-user is needed to try it",
        binary.display()
    ))?;
    let mut command = Command::new(emulator);
    // The emulator looks there for libraries; Debian has those of the cross compiler in a directory of their own.
    if std::env::var_os("QEMU_LD_PREFIX").is_none() {
        command
            .arg("-L")
            .arg(format!("/usr/{architecture}-linux-gnu"));
    }
    command.arg(binary);
    Ok(command)
}

/// Asks for a path as soon as the server listens.
fn expect(socket: &Path, path: &str, text: &str, server: &mut Child) -> Outcome {
    let deadline = Instant::now() + LIMIT;
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => {
                let ended = server.try_wait().map_err(|error| error.to_string())?;
                if ended.is_some() || Instant::now() > deadline {
                    return Err(format!("{}: {error}", socket.display()));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    };
    let mut response = String::new();
    let asked = stream
        .set_read_timeout(Some(LIMIT))
        .and_then(|()| write!(stream, "GET {path} HTTP/1.0\r\nHost: a\r\n\r\n"))
        .and_then(|()| stream.read_to_string(&mut response));
    asked.map_err(|error| format!("{path}: {error}"))?;
    match response.starts_with("HTTP/1.1 200") && response.ends_with(text) {
        true => Ok(()),
        false => Err(format!("{path} did not give {text:?} but:\n{response}")),
    }
}
