//! Messages to the service manager (sd_notify(3)) that never make the sender wait.
//!
//! The manager's queue is short: 10 messages unless a sysctl says more. While the manager is busy with something else, such as
//! reading all units again, a blocking send would stop the master, and with it reloads and the restart of a dead worker. So
//! messages that do not fit wait here, in their order, and are sent when there is room: none that changes the manager's idea
//! of the service is lost. This file knows neither the words of the messages nor the environment.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// Messages that wait. A stored socket is one message, so this is room for a large configuration.
const MAX_WAITING: usize = 8192;

/// How soon to try again. The queue's owner takes messages out one by one, and the kernel tells nobody that is not connected.
const RETRY: Duration = Duration::from_millis(50);

/// A message, and the descriptor that goes with it.
struct NotifyMessage {
    text: String,
    descriptor: Option<OwnedFd>,
}

/// The way to the manager.
pub struct NotifyOutbox {
    socket: OwnedFd,
    address: SocketAddrUnix,
    waiting: VecDeque<NotifyMessage>,
}

impl NotifyOutbox {
    /// For the address in `NOTIFY_SOCKET`: a path, or a name after `@`.
    pub fn open(address: &[u8]) -> io::Result<NotifyOutbox> {
        let address = match address {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            path => SocketAddrUnix::new(path)?,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(NotifyOutbox {
            socket,
            address,
            waiting: VecDeque::new(),
        })
    }

    /// Sends a message, now or when there is room. The descriptor stays the caller's.
    pub fn send(&mut self, text: String, descriptor: Option<BorrowedFd<'_>>) {
        if self.waiting.is_empty() && !self.is_full(&text, descriptor) {
            return;
        }
        // Without a copy of it the message has no meaning.
        let Ok(descriptor) = descriptor.map(|it| it.try_clone_to_owned()).transpose() else {
            return;
        };
        // The latest message tells most.
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(NotifyMessage { text, descriptor });
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) {
        while let Some(first) = self.waiting.front() {
            let descriptor = first.descriptor.as_ref().map(|it| it.as_fd());
            if self.is_full(&first.text, descriptor) {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Sends what waits before the process exits, for at most this time.
    pub fn flush_for(&mut self, time: Duration) {
        // Each try is followed by a pause of this length.
        let mut tries = time.as_millis() / RETRY.as_millis();
        self.flush();
        while self.is_waiting() && tries > 0 {
            // A pause: without a connection the socket always counts as writable, so nothing else is asked for.
            let pause = Timespec::try_from(RETRY).ok();
            let nothing = &mut [PollFd::new(&self.socket, PollFlags::empty())];
            let _ = rustix::event::poll(nothing, pause.as_ref());
            self.flush();
            tries -= 1;
        }
    }

    /// Whether messages wait for room.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When to call [`NotifyOutbox::flush`] again; `None` if nothing waits.
    pub fn retry_after(&self) -> Option<Duration> {
        self.is_waiting().then_some(RETRY)
    }

    /// Tries to send. `true` if there is no room; any other error means that nobody listens, and is no reason not to serve.
    fn is_full(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let list: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !list.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&list)) {
            return false;
        }
        let sent = rustix::net::sendmsg_addr(
            &self.socket,
            &self.address,
            &[IoSlice::new(text.as_bytes())],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        );
        matches!(sent, Err(rustix::io::Errno::AGAIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::UnixDatagram;

    /// Everything arrives, in its order, though the reader was late and the queue is short; sending never waited.
    #[test]
    fn messages_wait_for_a_late_reader() {
        let path = std::env::temp_dir().join(format!("weir-outbox-{}", std::process::id()));
        let reader = UnixDatagram::bind(&path).expect("the temporary folder is writable");
        let mut outbox = NotifyOutbox::open(path.as_os_str().as_bytes()).expect("a socket");
        // More than any queue has room for: the sender's buffer is 200 kB, and a message costs some of it.
        const COUNT: usize = 2000;
        for number in 0..COUNT {
            outbox.send(format!("X={number}"), Some(reader.as_fd()));
        }
        assert!(outbox.is_waiting() && outbox.retry_after().is_some());
        reader.set_nonblocking(true).expect("a socket");
        let mut bytes = [0; 64];
        let mut next = 0;
        while next < COUNT {
            outbox.flush();
            while let Ok(length) = reader.recv(&mut bytes) {
                assert_eq!(&bytes[..length], format!("X={next}").as_bytes());
                next += 1;
            }
        }
        assert!(!outbox.is_waiting());
        drop(reader);
        std::fs::remove_file(&path).expect("it is ours");
        outbox.send("nobody".to_owned(), None);
        assert!(!outbox.is_waiting(), "what nobody reads is dropped");
    }
}
