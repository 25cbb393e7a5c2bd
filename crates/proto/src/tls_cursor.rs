//! Reading the structures of TLS (RFC 8446, section 3): numbers in network order, and vectors after their length.

/// Bytes that are still to be read. `None` from any method: there are too few.
#[derive(Clone, Copy, Debug)]
pub struct TlsCursor<'a>(pub &'a [u8]);

impl<'a> TlsCursor<'a> {
    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// A number of two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.take(2)
            .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A vector whose length has one byte.
    pub fn short_vector(&mut self) -> Option<TlsCursor<'a>> {
        let length = self.u8()?;
        self.take(length.into()).map(TlsCursor)
    }

    /// A vector whose length has two bytes.
    pub fn vector(&mut self) -> Option<TlsCursor<'a>> {
        let length = self.u16()?;
        self.take(length.into()).map(TlsCursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_longer_than_the_input_is_none() {
        let mut cursor = TlsCursor(&[0, 2, 7, 8, 1, 9, 0, 1]);
        assert_eq!(cursor.vector().map(|vector| vector.0), Some(&[7, 8][..]));
        assert_eq!(cursor.short_vector().map(|vector| vector.0), Some(&[9][..]));
        assert!(cursor.vector().is_none());
        assert!(cursor.is_empty());
    }
}
