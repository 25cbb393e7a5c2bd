//! The gzip encoder (RFC 1952), and the encoders that a loop keeps for reuse.

use std::io;

use flate2::{Compress, FlushCompress, Status};

use crate::shared::compression::ContentEncoder;

/// The encoder of one response.
pub(super) struct GzipEncoder {
    /// Taken on drop, when it goes back to be reused.
    inner: Option<Compress>,
    level: u32,
}

impl GzipEncoder {
    /// An encoder of this level, 1 to 9.
    pub(super) fn new(level: i64) -> GzipEncoder {
        // The row keeps it in these bounds.
        let level = level as u32;
        GzipEncoder {
            inner: Some(kept::take(level)),
            level,
        }
    }

    /// Runs the compressor; returns how much input it consumed, and its status.
    fn run(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        flush: FlushCompress,
    ) -> io::Result<(usize, Status)> {
        let Some(inner) = &mut self.inner else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let before = inner.total_in();
        let status = inner
            .compress_vec(input, out, flush)
            .map_err(io::Error::other)?;
        Ok(((inner.total_in() - before) as usize, status))
    }
}

impl ContentEncoder for GzipEncoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        Ok(self.run(input, out, FlushCompress::None)?.0)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        self.run(&[], out, FlushCompress::Sync)?;
        // With room left in the output, the encoder has emitted everything.
        Ok(out.len() < out.capacity())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        Ok(self.run(&[], out, FlushCompress::Finish)?.1 == Status::StreamEnd)
    }

    fn is_slow(&self) -> bool {
        false
    }
}

impl Drop for GzipEncoder {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            kept::give_back(self.level, inner);
        }
    }
}

/// Encoders between two responses. One takes a quarter of a megabyte, which is worth keeping.
mod kept {
    use std::cell::RefCell;

    use flate2::{Compress, Compression};

    /// How many each loop keeps; with more responses at a time, the others are created anew.
    const KEPT: usize = 8;

    /// The largest window of the format, 2^15 bytes.
    const WINDOW_BITS: u8 = 15;

    rt::local! {
        static ENCODERS: RefCell<Vec<(u32, Compress)>> = const { RefCell::new(Vec::new()) };
    }

    /// An encoder of this level: one used before, whose memory is allocated already, or a new one.
    pub(super) fn take(level: u32) -> Compress {
        let kept = ENCODERS.with_borrow_mut(|encoders| {
            let index = encoders.iter().position(|(of, _)| *of == level)?;
            Some(encoders.swap_remove(index).1)
        });
        kept.unwrap_or_else(|| Compress::new_gzip(Compression::new(level), WINDOW_BITS))
    }

    /// Keeps an encoder for the next response.
    pub(super) fn give_back(level: u32, mut encoder: Compress) {
        // Now rather than when it is used again: that request should not wait for it.
        encoder.reset();
        // At the end of a thread nothing is kept any more.
        // Steps may run on a pool's thread, but an encoder comes back from there before it is dropped,
        // so this is the loop's own list.
        let _ = ENCODERS.try_with(|encoders| {
            let mut encoders = encoders.borrow_mut();
            if encoders.len() < KEPT {
                encoders.push((level, encoder));
            }
        });
    }
}
