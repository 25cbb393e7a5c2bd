//! gzip's encoder (RFC 1952), and the encoders that a loop keeps between two responses.

use std::io;

use flate2::{Compress, FlushCompress, Status};

use crate::shared::compression;

/// Compresses one response.
pub(super) struct Encoder {
    /// There until it is dropped.
    inner: Option<Compress>,
    level: u32,
}

impl Encoder {
    /// An encoder of this level, 1 to 9.
    pub(super) fn new(level: i64) -> Encoder {
        let level = u32::try_from(level).unwrap_or(1);
        Encoder {
            inner: Some(kept::take(level)),
            level,
        }
    }

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

impl compression::Encoder for Encoder {
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        Ok(self.run(input, out, FlushCompress::None)?.0)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        self.run(&[], out, FlushCompress::Sync)?;
        // With room left in the output the encoder has given all that it was asked for.
        Ok(out.len() < out.capacity())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        Ok(self.run(&[], out, FlushCompress::Finish)?.1 == Status::StreamEnd)
    }

    fn is_slow(&self) -> bool {
        false
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            kept::give_back(self.level, inner);
        }
    }
}

/// Encoders between two responses: one takes a quarter of a megabyte, which is worth keeping.
mod kept {
    use std::cell::RefCell;

    use flate2::{Compress, Compression};

    /// Encoders kept by each loop; with more responses at once the others are made anew.
    const KEPT: usize = 8;

    /// The largest window of the format, 2^15 bytes.
    const WINDOW_BITS: u8 = 15;

    thread_local! {
        static ENCODERS: RefCell<Vec<(u32, Compress)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn take(level: u32) -> Compress {
        let kept = ENCODERS.with_borrow_mut(|encoders| {
            let index = encoders.iter().position(|(of, _)| *of == level)?;
            Some(encoders.swap_remove(index).1)
        });
        kept.unwrap_or_else(|| Compress::new_gzip(Compression::new(level), WINDOW_BITS))
    }

    pub(super) fn give_back(level: u32, mut encoder: Compress) {
        encoder.reset();
        // At the end of a thread nothing is kept any more.
        let _ = ENCODERS.try_with(|encoders| {
            let mut encoders = encoders.borrow_mut();
            if encoders.len() < KEPT {
                encoders.push((level, encoder));
            }
        });
    }
}
