//! Moving bytes between sockets without copying them: `splice` through a pipe of the kernel.
//!
//! A pipe is filled from one socket and emptied into another. It is filled only when it is empty, because the
//! kernel says the same (`EAGAIN`) of a socket without data and of a full pipe.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use rustix::pipe::{PipeFlags, SpliceFlags};

use super::StreamSocket;

/// A pipe between two sockets of one loop.
pub struct SplicePipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held: Cell<usize>,
}

impl SplicePipe {
    /// Creates a pipe of the kernel's default size, mostly 64 KB. Fails if there are no descriptors left.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self {
            reader,
            writer,
            held: Cell::new(0),
        })
    }

    /// Bytes in the pipe.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    /// Fills the pipe from a socket, with at most `max` bytes; 0 at the end of the stream.
    ///
    /// # Panics
    /// When the pipe is not empty.
    pub fn poll_fill(
        &self,
        cx: &mut Context<'_>,
        from: &StreamSocket,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        assert_eq!(self.held.get(), 0, "a pipe is filled when it is empty");
        let filled = from.poll_transfer_in(cx, |fd| {
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            rustix::pipe::splice(fd, None, &self.writer, None, max, flags)
        });
        if let Poll::Ready(Ok(n)) = filled {
            self.held.set(n);
        }
        filled
    }

    /// Empties the pipe into a socket as far as that has room; returns the number of bytes.
    pub fn poll_empty(&self, cx: &mut Context<'_>, to: &StreamSocket) -> Poll<io::Result<usize>> {
        if self.held.get() == 0 {
            return Poll::Ready(Ok(0));
        }
        let emptied = to.poll_transfer_out(cx, |fd| {
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            rustix::pipe::splice(&self.reader, None, fd, None, self.held.get(), flags)
        });
        if let Poll::Ready(Ok(n)) = emptied {
            self.held.set(self.held.get() - n);
        }
        emptied
    }

    /// Moves at most `max` bytes from one socket to another; gives how many, 0 when `from` has finished.
    pub async fn transfer(
        &self,
        from: &StreamSocket,
        to: &StreamSocket,
        max: usize,
    ) -> io::Result<usize> {
        let n = std::future::poll_fn(|cx| self.poll_fill(cx, from, max)).await?;
        while self.held.get() > 0 {
            std::future::poll_fn(|cx| self.poll_empty(cx, to)).await?;
        }
        Ok(n)
    }
}
