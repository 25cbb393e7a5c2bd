//! Clients of `scale`, in processes of their own: the descriptors of one process are limited.
//!
//! ```text
//! scale ──▶ weir-bench scale-clients --count N … ──▶ N connections
//!       ◀── a line when all have made their step
//!       ──▶ the end of its input: it ends, and they with it
//! ```

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustls::ClientConfig;
use xtask::Outcome;
use xtask::flags::Flags;

use super::client_socket::{self, ask, ask_by_tls, connect};
use super::{ProgramKind, origin};
use crate::Bench;

/// What a process says when all of its clients wait.
const READY: &str = "ready";

/// The receive buffer of slow readers, in bytes.
const READER_BUFFER: usize = 4096;

/// What a client of an upload has sent of its megabyte.
const UPLOADED: usize = 16 * 1024;

/// What the clients do before they wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientKind {
    Silent,
    Idle,
    IdleTwice,
    Tls,
    TlsHttp2,
    Upload,
    UploadStreamed,
    Reader,
    ReaderCopied,
    ReaderProxied,
    ReaderUnbuffered,
    ReaderCached,
}

pub(super) const KINDS: &[(&str, ClientKind)] = &[
    ("silent", ClientKind::Silent),
    ("idle", ClientKind::Idle),
    ("idle-twice", ClientKind::IdleTwice),
    ("tls", ClientKind::Tls),
    ("tls-h2", ClientKind::TlsHttp2),
    ("upload", ClientKind::Upload),
    ("upload-streamed", ClientKind::UploadStreamed),
    ("reader", ClientKind::Reader),
    ("reader-copied", ClientKind::ReaderCopied),
    ("reader-proxied", ClientKind::ReaderProxied),
    ("reader-unbuffered", ClientKind::ReaderUnbuffered),
    ("reader-cached", ClientKind::ReaderCached),
];

impl ClientKind {
    /// Whether the server has a connection to the origin for each of them, too.
    pub(super) fn is_double(self) -> bool {
        matches!(
            self,
            ClientKind::UploadStreamed | ClientKind::ReaderProxied | ClientKind::ReaderUnbuffered
        )
    }

    /// HAProxy has neither files nor buffers on disk, and its cache no object of a megabyte.
    pub(super) fn is_for(self, program: ProgramKind) -> bool {
        program != ProgramKind::Haproxy
            || matches!(
                self,
                ClientKind::Silent
                    | ClientKind::Idle
                    | ClientKind::IdleTwice
                    | ClientKind::Tls
                    | ClientKind::TlsHttp2
            )
            || self.is_double()
    }
}

/// Clients of one kind.
pub(super) struct ClientCrowd {
    kind: ClientKind,
    port: u16,
    tls: Arc<ClientConfig>,
}

impl ClientCrowd {
    pub(super) fn new(kind: ClientKind, port: u16, tls_port: u16) -> Result<ClientCrowd, String> {
        let is_tls = matches!(kind, ClientKind::Tls | ClientKind::TlsHttp2);
        let protocols: &[&str] = if kind == ClientKind::TlsHttp2 {
            &["h2"]
        } else {
            &[]
        };
        Ok(ClientCrowd {
            kind,
            port: if is_tls { tls_port } else { port },
            tls: client_socket::trusting(protocols)?,
        })
    }

    pub(super) fn open(&self, number: usize) -> Result<TcpStream, String> {
        self.step(number)
            .map_err(|error| format!("client {number}: {error}"))
    }

    fn step(&self, number: usize) -> std::io::Result<TcpStream> {
        let buffer = match self.kind {
            ClientKind::Reader
            | ClientKind::ReaderCopied
            | ClientKind::ReaderProxied
            | ClientKind::ReaderUnbuffered
            | ClientKind::ReaderCached => Some(READER_BUFFER),
            _ => None,
        };
        let mut stream = connect(self.port, number, buffer)?;
        let path = match self.kind {
            ClientKind::Silent => return Ok(stream),
            ClientKind::Idle | ClientKind::IdleTwice => {
                for _ in 0..if self.kind == ClientKind::Idle { 1 } else { 2 } {
                    ask(&mut stream, &get("/"), b"hello")?;
                }
                return Ok(stream);
            }
            ClientKind::Tls => return ask_by_tls(stream, &self.tls, &get("/"), b"hello"),
            ClientKind::TlsHttp2 => {
                let request = client_socket::http2_request();
                return ask_by_tls(stream, &self.tls, &request, b"hello");
            }
            ClientKind::Upload | ClientKind::UploadStreamed => {
                let path = if self.kind == ClientKind::Upload {
                    "/in"
                } else {
                    "/in-streamed"
                };
                let head = format!(
                    "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
                    origin::BODY
                );
                stream.write_all(head.as_bytes())?;
                stream.write_all(&[b'y'; UPLOADED])?;
                return Ok(stream);
            }
            ClientKind::Reader => "/file",
            ClientKind::ReaderCopied => "/copied",
            ClientKind::ReaderProxied => "/out",
            ClientKind::ReaderUnbuffered => "/out-unbuffered",
            ClientKind::ReaderCached => "/cached",
        };
        stream.write_all(&get(path))?;
        Ok(stream)
    }
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
        .into_bytes()
}

/// Clients in a process of their own, which end with this.
pub(super) struct ClientProcess(Child);

impl Drop for ClientProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends by itself, and if not it is of no consequence.
        let _ = self.0.wait();
    }
}

impl ClientProcess {
    /// Starts `count` clients, from number `from` on, and waits until all have made their step.
    pub(super) fn start(
        kind: &str,
        (port, tls_port): (u16, u16),
        (from, count): (usize, usize),
        weir: &Path,
    ) -> Result<ClientProcess, String> {
        let told = |error: std::io::Error| error.to_string();
        let this = std::env::current_exe().map_err(told)?;
        let mut child = Command::new(this)
            .arg("scale-clients")
            .arg("--weir")
            .arg(weir)
            .args(["--kind", kind, "--port", &port.to_string()])
            .args(["--tls-port", &tls_port.to_string()])
            .args(["--from", &from.to_string(), "--count", &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(told)?;
        let out = child.stdout.take().ok_or("it has no output")?;
        let process = ClientProcess(child);
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).map_err(told)?;
        match line.trim_end() {
            READY => Ok(process),
            _ => Err(format!(
                "{kind}: clients {from} to {} have failed",
                from + count
            )),
        }
    }
}

/// The process that has them.
pub(crate) fn run(_: &Bench, flags: &mut Flags) -> Outcome {
    let kind: String = flags.value("--kind", "silent".to_owned())?;
    let port: u16 = flags.value("--port", 0)?;
    let tls_port: u16 = flags.value("--tls-port", port)?;
    let from: usize = flags.value("--from", 0)?;
    let count: usize = flags.value("--count", 1)?;
    flags.finish()?;
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    let (_, kind) = known.ok_or_else(|| format!("there are no clients that are {kind:?}"))?;
    let crowd = ClientCrowd::new(*kind, port, tls_port)?;
    let clients: Result<Vec<TcpStream>, String> = (from..from + count)
        .map(|number| crowd.open(number))
        .collect();
    let clients = clients?;
    println!("{READY}");
    let told = |error: std::io::Error| error.to_string();
    std::io::stdin()
        .read_to_end(&mut Vec::new())
        .map_err(told)?;
    drop(clients);
    Ok(())
}
