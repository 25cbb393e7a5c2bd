//! The messages between master and worker.
//!
//! A [`GenerationMessage`] is everything a worker needs for a configuration: the content of every file
//! that was read, the listening sockets and the logs. The first configuration and all later ones
//! are the same message, so a reload takes no path of its own. It is a list of roles, one per
//! descriptor and in their order, followed by the recorded files:
//!
//! ```text
//! number u64 | role count u32 | roles | rest: conf::FileSnapshot
//! role: 'S' id u64, member u32, key length u32, key     a listening socket
//!       'L' path length u32, path                       a log file
//! ```
//!
//! Numbers are little-endian.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::FileSnapshot;
use host::channel::ChannelMessage;
use host::engine::{ListenerId, ListenerSpec};

use crate::sockets::{ListeningSocket, ListeningSockets};

/// The kinds of messages. The numbers are also known to other versions of this program, which
/// during an upgrade or after a crash of the master are at the other end: none may be given another
/// meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// To the worker: run this configuration.
    Configuration = 1,
    /// To the worker: write the logs to these descriptors from now on.
    Reopen = 2,
    /// To the worker: exit after the current requests. The body says what becomes of idle connections:
    /// [`IdleConnections`].
    Quit = 3,
    /// To the worker: exit at once.
    Terminate = 4,
    /// To the master: the configuration is in use.
    Applied = 5,
    /// To the master: the configuration was rejected, and the previous one is still in use. The
    /// body says why.
    Refused = 6,
    /// To the worker: the descriptor is one end of a socket pair with another worker.
    Peer = 7,
    /// From an orphaned worker to the new master: its listening sockets. The body is how many groups its master had,
    /// eight bytes.
    Sockets = 8,
    /// To the master: the worker has entered its sandbox; denied system calls are reported on the
    /// descriptor.
    Sandboxed = 9,
    /// To the master: access to a file was denied. If the sandbox's files have been replaced, a new
    /// worker is needed.
    FileDenied = 10,
    /// To the master: no loop is stuck. Only sent if a service manager wants to know.
    Beat = 11,
}

impl MessageKind {
    /// The kind with this number. Workers and masters of different versions meet during an upgrade,
    /// so others may occur.
    pub(crate) fn of(number: u8) -> Option<MessageKind> {
        [
            MessageKind::Configuration,
            MessageKind::Reopen,
            MessageKind::Quit,
            MessageKind::Terminate,
            MessageKind::Applied,
            MessageKind::Refused,
            MessageKind::Peer,
            MessageKind::Sockets,
            MessageKind::Sandboxed,
            MessageKind::FileDenied,
            MessageKind::Beat,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// How long idle connections that nothing takes over wait for one more request, which may be on its way.
const LINGER_TIME: Duration = Duration::from_secs(2);

/// What becomes of idle connections when the worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleConnections {
    /// They are closed.
    Close,
    /// They go to the latest peer.
    HandOver,
    /// They are closed after one more request, or after [`LINGER_TIME`].
    Linger,
}

impl IdleConnections {
    /// The body of [`MessageKind::Quit`].
    pub(crate) fn body(self) -> &'static [u8] {
        match self {
            IdleConnections::Close => b"",
            IdleConnections::HandOver => b"hand over",
            IdleConnections::Linger => b"linger",
        }
    }

    /// The inverse. Other words are those of another release.
    pub(crate) fn of_body(body: &[u8]) -> IdleConnections {
        [IdleConnections::HandOver, IdleConnections::Linger]
            .into_iter()
            .find(|idle| idle.body() == body)
            .unwrap_or(IdleConnections::Close)
    }

    /// How long they may wait for one more request.
    pub(crate) fn linger_time(self) -> Duration {
        match self {
            IdleConnections::Linger => LINGER_TIME,
            IdleConnections::Close | IdleConnections::HandOver => Duration::ZERO,
        }
    }
}

/// Opened log files, by path.
pub(crate) type OpenLogs = Vec<(PathBuf, Arc<OwnedFd>)>;

/// A configuration to be sent to a worker.
#[derive(Default)]
pub(crate) struct GenerationMessage {
    /// Counts the configurations of this master, from 1.
    pub(crate) number: u64,
    /// The content of every file that was read.
    pub(crate) snapshot: FileSnapshot,
    /// The listening sockets, by their addresses as text.
    pub(crate) sockets: BTreeMap<Vec<u8>, (ListenerId, Vec<Arc<OwnedFd>>)>,
    /// The log files.
    pub(crate) logs: OpenLogs,
}

impl GenerationMessage {
    /// The message for what the master has opened.
    pub(crate) fn new(
        number: u64,
        snapshot: FileSnapshot,
        sockets: &ListeningSockets,
        logs: OpenLogs,
    ) -> GenerationMessage {
        let by_key = |socket: &ListeningSocket| {
            (
                address_key(&socket.spec),
                (socket.id, socket.members.clone()),
            )
        };
        GenerationMessage {
            number,
            snapshot,
            sockets: sockets.list.iter().map(by_key).collect(),
            logs,
        }
    }

    /// The socket for an address of the configuration, which the worker has read itself.
    pub(crate) fn socket(&self, spec: ListenerSpec) -> Option<ListeningSocket> {
        let (id, members) = self.sockets.get(&address_key(&spec))?;
        Some(ListeningSocket {
            id: *id,
            spec: Arc::new(spec),
            members: members.clone(),
        })
    }

    /// The message's body and its descriptors.
    pub(crate) fn encode(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let mut roles = Vec::new();
        let mut descriptors = Vec::new();
        for (key, (id, members)) in &self.sockets {
            for (member, descriptor) in members.iter().enumerate() {
                roles.push(b'S');
                roles.extend_from_slice(&id.0.to_le_bytes());
                put_number(&mut roles, member);
                put_bytes(&mut roles, key);
                descriptors.push(descriptor.as_fd());
            }
        }
        put_logs(&mut roles, &mut descriptors, &self.logs);
        let mut body = self.number.to_le_bytes().to_vec();
        put_number(&mut body, descriptors.len());
        body.extend_from_slice(&roles);
        body.extend_from_slice(&self.snapshot.encode());
        (body, descriptors)
    }

    /// Decodes what [`GenerationMessage::encode`] wrote. `None` if sender and receiver are incompatible.
    pub(crate) fn decode(message: ChannelMessage) -> Option<GenerationMessage> {
        let mut rest = message.body.as_slice();
        let mut generation = GenerationMessage {
            number: take_u64(&mut rest)?,
            ..GenerationMessage::default()
        };
        let count = take_number(&mut rest)?;
        if count != message.descriptors.len() {
            return None;
        }
        for descriptor in message.descriptors {
            let (role, after) = rest.split_first()?;
            rest = after;
            match role {
                b'S' => {
                    let id = ListenerId(take_u64(&mut rest)?);
                    let member = take_number(&mut rest)?;
                    let key = take_bytes(&mut rest)?.to_vec();
                    let entry = generation
                        .sockets
                        .entry(key)
                        .or_insert_with(|| (id, Vec::new()));
                    // Members are written in order.
                    if member != entry.1.len() {
                        return None;
                    }
                    entry.1.push(Arc::new(descriptor));
                }
                b'L' => generation
                    .logs
                    .push((take_path(&mut rest)?, Arc::new(descriptor))),
                _ => return None,
            }
        }
        generation.snapshot = FileSnapshot::decode(rest)?;
        Some(generation)
    }
}

/// The body and the descriptors of [`MessageKind::Reopen`].
pub(crate) fn encode_logs(logs: &OpenLogs) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
    let mut body = Vec::new();
    let mut descriptors = Vec::new();
    put_logs(&mut body, &mut descriptors, logs);
    (body, descriptors)
}

/// Decodes what [`encode_logs`] wrote.
pub(crate) fn decode_logs(message: ChannelMessage) -> Option<OpenLogs> {
    let mut rest = message.body.as_slice();
    let mut logs = Vec::new();
    for descriptor in message.descriptors {
        rest = rest.strip_prefix(b"L")?;
        logs.push((take_path(&mut rest)?, Arc::new(descriptor)));
    }
    Some(logs)
}

/// The name of a socket in both processes.
fn address_key(spec: &ListenerSpec) -> Vec<u8> {
    crate::handover::address_text(&spec.address)
}

/// Appends a role for each log, in the order of the descriptors.
fn put_logs<'a>(roles: &mut Vec<u8>, descriptors: &mut Vec<BorrowedFd<'a>>, logs: &'a OpenLogs) {
    for (path, descriptor) in logs {
        roles.push(b'L');
        put_bytes(roles, path.as_os_str().as_bytes());
        descriptors.push(descriptor.as_fd());
    }
}

/// Appends a count or a length.
fn put_number(out: &mut Vec<u8>, number: usize) {
    let number =
        u32::try_from(number).expect("counts of descriptors and path lengths are far below 2^32");
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends bytes with their length in front.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u64::from_le_bytes(*bytes))
}

/// Takes a count or a length; `None` if too few bytes are left.
fn take_number(rest: &mut &[u8]) -> Option<usize> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

/// Takes bytes with their length in front; `None` if they are incomplete.
fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_number(rest)?;
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

fn take_path(rest: &mut &[u8]) -> Option<PathBuf> {
    take_bytes(rest).map(|bytes| PathBuf::from(OsString::from_vec(bytes.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::channel::Channel;
    use host::error_log::Logger;
    use host::listen::{ListenAddress, ListenOptions};

    #[test]
    fn a_generation_travels_whole() {
        let options = ListenOptions {
            reuse_port: true,
            ..Default::default()
        };
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = ListenAddress::Tcp(free.local_addr().expect("bound"));
        drop(free);
        let spec = ListenerSpec { address, options };
        let sockets = ListeningSockets::default()
            .opened_for(
                vec![spec.clone()],
                2,
                crate::startup_log::StartupLog::log_only(&Logger::default()),
            )
            .expect("opened");
        let mut snapshot = FileSnapshot::default();
        snapshot.insert("/etc/x.conf", "events {}");
        let log = std::fs::File::open("/dev/null").expect("always there");
        let logs = vec![(PathBuf::from("/log"), Arc::new(OwnedFd::from(log)))];
        let sent = GenerationMessage::new(7, snapshot, &sockets, logs);

        let (master, worker) = Channel::pair().expect("a socket pair");
        let (body, descriptors) = sent.encode();
        master
            .send(MessageKind::Configuration as u8, &body, &descriptors)
            .expect("sent");
        let message = worker.receive().expect("received").expect("a message");
        assert_eq!(
            MessageKind::of(message.kind),
            Some(MessageKind::Configuration)
        );
        let got = GenerationMessage::decode(message).expect("the same format");
        assert_eq!((got.number, &got.snapshot), (7, &sent.snapshot));
        assert_eq!(got.logs[0].0, PathBuf::from("/log"));
        let socket = got.socket(spec).expect("the address is there");
        assert_eq!((socket.id, socket.members.len()), (sockets.list[0].id, 2));
    }

    #[test]
    fn a_damaged_message_is_refused() {
        let (body, _) = GenerationMessage::default().encode();
        for cut in 0..body.len() {
            let message = ChannelMessage {
                kind: 1,
                body: body[..cut].to_vec(),
                descriptors: Vec::new(),
            };
            assert!(GenerationMessage::decode(message).is_none(), "cut at {cut}");
        }
    }
}
