//! Where a piece of configuration text stands: a file and a range of byte offsets.
//!
//! A span is twelve bytes and can be copied freely, so that every word of a configuration keeps its
//! place to the end and each message can show it. The text itself lives in `conf::SourceMap`.

/// The number of a file in the order in which files were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

impl FileId {
    /// The file of text that stands in no file, such as the default of a directive.
    pub const NONE: FileId = FileId(u32::MAX);
}

/// A range of bytes in one file. `start <= end`; an empty range is a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The file that the offsets count in.
    pub file: FileId,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The place of text that stands in no file.
    pub const NONE: Span = Span {
        file: FileId::NONE,
        start: 0,
        end: 0,
    };

    /// A span over `start..end` of `file`.
    pub const fn new(file: FileId, start: u32, end: u32) -> Span {
        Span { file, start, end }
    }

    /// Whether this is the place of text that stands in no file.
    pub fn is_none(self) -> bool {
        self.file == FileId::NONE
    }

    /// The empty span at the first byte.
    pub fn at_start(self) -> Span {
        Span {
            end: self.start,
            ..self
        }
    }

    /// The last byte of the span: where a directive's `;`, `{` or `}` stands.
    pub fn last_byte(self) -> Span {
        Span {
            start: self.end.saturating_sub(1).max(self.start),
            ..self
        }
    }

    /// From the start of this span to the end of `last`. Spans of different files cannot be joined:
    /// then it is this span.
    pub fn to(self, last: Span) -> Span {
        if self.file != last.file {
            return self;
        }
        Span {
            end: last.end.max(self.end),
            ..self
        }
    }

    /// How many bytes the span covers.
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the span covers no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_stays_in_one_file() {
        let a = Span::new(FileId(0), 2, 4);
        assert_eq!(a.to(Span::new(FileId(0), 7, 9)), Span::new(FileId(0), 2, 9));
        assert_eq!(a.to(Span::new(FileId(1), 7, 9)), a);
    }

    #[test]
    fn the_last_byte_of_an_empty_span_is_its_position() {
        let at = Span::new(FileId(0), 3, 3);
        assert_eq!(at.last_byte(), at);
        assert_eq!(
            Span::new(FileId(0), 0, 5).last_byte(),
            Span::new(FileId(0), 4, 5)
        );
    }
}
