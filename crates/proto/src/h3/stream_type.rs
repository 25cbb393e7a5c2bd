//! What a unidirectional stream is for (RFC 9114, section 6.2; RFC 9204, section 4.2): it begins with its type.

use super::varint;

/// The type of a unidirectional stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniStreamType {
    /// SETTINGS and other frames that concern the connection.
    Control,
    /// A pushed response. Only servers may open one.
    Push,
    /// Instructions that fill the dynamic table.
    QpackEncoder,
    /// What was understood of them.
    QpackDecoder,
    /// Anything else. Types of the form 0x1f * N + 0x21 exist only to be ignored.
    Unknown(u64),
}

impl UniStreamType {
    /// The type with this number.
    pub fn from_number(number: u64) -> UniStreamType {
        match number {
            0 => UniStreamType::Control,
            1 => UniStreamType::Push,
            2 => UniStreamType::QpackEncoder,
            3 => UniStreamType::QpackDecoder,
            _ => UniStreamType::Unknown(number),
        }
    }

    /// Its number.
    pub fn number(self) -> u64 {
        match self {
            UniStreamType::Control => 0,
            UniStreamType::Push => 1,
            UniStreamType::QpackEncoder => 2,
            UniStreamType::QpackDecoder => 3,
            UniStreamType::Unknown(number) => number,
        }
    }

    /// Appends the beginning of a stream of this type.
    pub fn write(self, out: &mut Vec<u8>) {
        varint::write(self.number(), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_types() {
        for number in (0..300).chain([varint::VARINT_MAX]) {
            let kind = UniStreamType::from_number(number);
            assert_eq!(kind.number(), number);
            assert_eq!(matches!(kind, UniStreamType::Unknown(_)), number > 3);
        }
    }
}
