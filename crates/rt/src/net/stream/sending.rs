//! Writing to a stream: from buffers, and from files without blocking on the disk.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use rustix::net::{SendFlags, Shutdown};

use super::StreamSocket;
use crate::file::File;
use crate::pool::PoolHandle;
use crate::reactor::IoInterest;

/// Buffers that go out in one call of [`StreamSocket::write_all_vectored`].
pub const VECTORS: usize = 16;

/// How much [`StreamSocket::sendfile`] probes or loads and then sends at a time.
const SENDFILE_PIECE: u64 = 256 * 1024;
/// How much it copies at a time if it cannot send from the page cache.
const COPIED_PIECE: usize = 64 * 1024;

impl StreamSocket {
    /// Writes what the socket takes now (`WouldBlock` if nothing).
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.attempt_write(|| rustix::net::send(&self.fd, buf, SendFlags::NOSIGNAL))
    }

    /// [`Self::try_write`], telling the kernel that more follows at once, so that it may wait for a full packet.
    pub fn try_write_more(&self, buf: &[u8]) -> io::Result<usize> {
        self.attempt_write(|| {
            rustix::net::send(&self.fd, buf, SendFlags::NOSIGNAL | SendFlags::MORE)
        })
    }

    /// [`Self::try_write`] from several buffers in one call.
    pub fn try_writev(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        // Not sendmsg: rustix has it only with a control buffer. SIGPIPE is ignored in a Rust program.
        self.attempt_write(|| rustix::io::writev(&self.fd, bufs))
    }

    /// Sends from a file as much as the socket takes now: at most `len` bytes from `offset`, which is advanced. 0
    /// means that the file ends there. It blocks if the file is not in memory: ask [`File::resident_prefix`] first,
    /// or use [`Self::sendfile`].
    pub fn try_sendfile(&self, file: &File, offset: &mut u64, len: usize) -> io::Result<usize> {
        self.attempt_write(|| rustix::fs::sendfile(&self.fd, file, Some(offset), len))
    }

    /// [`Self::try_write`], or waits.
    pub fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_io(IoInterest::Write, cx, || self.try_write(buf))
    }

    /// [`Self::try_writev`], or waits.
    pub fn poll_writev(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(IoInterest::Write, cx, || self.try_writev(bufs))
    }

    /// [`Self::try_sendfile`], or waits for the socket.
    pub fn poll_sendfile(
        &self,
        cx: &mut Context<'_>,
        file: &File,
        offset: &mut u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(IoInterest::Write, cx, || {
            self.try_sendfile(file, offset, len)
        })
    }

    /// Writes some of `buf`, at least a byte of it.
    pub async fn write(&self, buf: &[u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_write(cx, buf)).await
    }

    /// Writes some of `bufs`.
    pub async fn writev(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_writev(cx, bufs)).await
    }

    /// Writes all of `buf`.
    pub async fn write_all(&self, mut buf: &[u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match self.write(buf).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => buf = &buf[n..],
            }
        }
        Ok(())
    }

    /// Writes all of `bufs`, in as few calls as the socket allows. Up to [`VECTORS`] of them go out in
    /// one call.
    pub async fn write_all_vectored(&self, bufs: &[&[u8]]) -> io::Result<()> {
        let mut bufs = bufs;
        // Bytes of the first buffer that are written.
        let mut done = 0;
        loop {
            while let Some((first, rest)) = bufs.split_first() {
                if done < first.len() {
                    break;
                }
                done -= first.len();
                bufs = rest;
            }
            if bufs.is_empty() {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); VECTORS];
            let count = bufs.len().min(VECTORS);
            for (slice, buf) in slices.iter_mut().zip(bufs) {
                *slice = IoSlice::new(buf);
            }
            slices[0] = IoSlice::new(&bufs[0][done..]);
            match self.writev(&slices[..count]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => done += n,
            }
        }
    }

    /// Sends `len` bytes of a file from `offset` on, which is advanced; returns the number sent, which is less only
    /// if the file ends early. What is not in memory is first loaded on the pool, piece by piece, so that neither
    /// the loop nor a thread of the pool waits for this client.
    pub async fn sendfile(
        &self,
        file: &File,
        offset: &mut u64,
        len: u64,
        pool: &PoolHandle,
    ) -> io::Result<u64> {
        let end = offset.saturating_add(len);
        let begin = *offset;
        while *offset < end {
            let piece = (end - *offset).min(SENDFILE_PIECE);
            let mut ready = file.resident_prefix(*offset, piece);
            if ready == 0 && file.tells_residency() {
                let rest = end - *offset - piece;
                file.load_range(*offset, piece, rest, pool).await?;
                ready = file.resident_prefix(*offset, piece);
            }
            if ready == 0 {
                // The kernel has dropped it meanwhile, or cannot tell. A copy through the pool never blocks the
                // loop.
                let copy = file
                    .read_at(Vec::new(), *offset, COPIED_PIECE, pool)
                    .await?;
                let copy = &copy[..copy.len().min(usize::try_from(piece).unwrap_or(usize::MAX))];
                if copy.is_empty() {
                    return Ok(*offset - begin);
                }
                self.write_all(copy).await?;
                *offset += copy.len() as u64;
                continue;
            }
            let ready_end = *offset + ready;
            while *offset < ready_end {
                let rest = usize::try_from(ready_end - *offset).unwrap_or(usize::MAX);
                let sent =
                    std::future::poll_fn(|cx| self.poll_sendfile(cx, file, offset, rest)).await?;
                if sent == 0 {
                    return Ok(*offset - begin);
                }
            }
        }
        Ok(*offset - begin)
    }

    /// Ends the sending direction.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }

    /// Ends both directions at once, and so any pending read or write.
    pub fn shutdown(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Both)?)
    }
}
