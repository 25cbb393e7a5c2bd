//! Applications behind the server: real ones, started for a test and ended with it, and scripted ones.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::site::Site;
use crate::wait::{PATIENCE, until};

/// A program of Debian's that listens on a unix socket in a site's folder. It ends when this is dropped.
#[derive(Debug)]
pub struct Application {
    child: Child,
}

impl Application {
    /// Starts the program whose name begins with `program`, and waits until `socket`, a file of the site, accepts
    /// connections. `None`, with a line of explanation, when there is no such program; `cargo xtask test` installs it.
    pub fn start(
        site: &Site,
        program: &str,
        arguments: &[&str],
        socket: &str,
    ) -> Option<Application> {
        let Some(path) = find(program) else {
            println!("skipped: {program} is not installed");
            return None;
        };
        let output =
            File::create(site.path("application.log")).expect("the site's folder is writable");
        let child = Command::new(path)
            .args(arguments)
            .current_dir(site.path(""))
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a descriptor can be copied"))
            .stderr(output)
            .process_group(0)
            .spawn()
            .expect("the program can be executed");
        let application = Application { child };
        let socket = site.path(socket);
        if until(|| UnixStream::connect(&socket).ok()).is_none() {
            let said = std::fs::read_to_string(site.path("application.log")).unwrap_or_default();
            panic!("{program} does not listen on {}\n{said}", socket.display());
        }
        Some(application)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0)) {
            // It may have ended by itself.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// The first program of this name, or whose name is this and a version (`php-fpm8.2`).
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders
        .into_iter()
        .find_map(|folder| find_in(&folder, program))
}

fn find_in(folder: &Path, program: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let is_it = |name: &str| {
        name.strip_prefix(program)
            .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    };
    entries
        .flatten()
        .find(|entry| entry.file_name().to_str().is_some_and(is_it))
        .map(|entry| entry.path())
}

/// A server that does with each connection what a test says. It ends when this is dropped.
#[derive(Debug)]
pub struct Scripted {
    port: u16,
    connections: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scripted {
    /// Listens on a free port of 127.0.0.1 and hands connections, with their number from 0, to `script`, one after the
    /// other. A connection closes when the script is done with it.
    pub fn start(script: impl Fn(&mut TcpStream, usize) + Send + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (connections, stop) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (count, end) = (Arc::clone(&connections), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let _ = stream.set_read_timeout(Some(PATIENCE));
                script(&mut stream, count.fetch_add(1, Ordering::SeqCst));
            }
        });
        Scripted {
            port,
            connections,
            stop,
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // It waits for a connection: this is one.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the script of a scripted server failed");
        }
    }
}

/// Reads from a connection until what was read ends with `end`, or the connection closes; gives what was read.
pub fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut received = Vec::new();
    let mut buffer = [0; 65536];
    while !received.ends_with(end) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
        }
    }
    received
}

/// Sends to a peer that may have left already.
pub fn send(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) {
    let _ = stream.write_all(bytes.as_ref());
}
