//! Range requests (RFC 9110, section 14), and the format of multipart responses.

use std::io::Write;
use std::ops::Range;

/// What a Range field selects from content of a known length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectedRanges {
    /// Nothing that is honoured: respond with 200 and the whole content.
    Ignore,
    /// Respond with 416 and `Content-Range: bytes */LENGTH`.
    Unsatisfiable,
    /// Respond with 206 and these bytes. The end is exclusive.
    One(Range<u64>),
    /// Respond with 206 and a multipart body of at least two parts, in the order requested.
    Many(Vec<Range<u64>>),
}

/// Parses a Range field as nginx does: another unit is ignored; invalid syntax is unsatisfiable,
/// and so is a range beyond the end. More than `max_ranges` ranges are ignored, and so are ranges
/// that together are longer than the content. `None` means no limit (the directive's default); then
/// many tiny ranges, which would cost more than the whole content, are ignored.
pub fn parse(value: &[u8], length: u64, max_ranges: Option<usize>) -> SelectedRanges {
    let Some((unit, specs)) = value.split_at_checked(6) else {
        return SelectedRanges::Ignore;
    };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return SelectedRanges::Ignore;
    }
    if specs.is_empty() || max_ranges == Some(0) || length > i64::MAX as u64 {
        return SelectedRanges::Ignore;
    }
    let mut found = RangeCollector {
        ranges: Vec::new(),
        count: 0,
        size: 0,
    };
    for spec in specs.split(|&b| b == b',') {
        let Some(spec) = parse_spec(spec) else {
            return SelectedRanges::Unsatisfiable;
        };
        let range = spec.resolve(length);
        if !range.is_empty() {
            found.add(range, length);
            if max_ranges.is_some_and(|max| found.count > max as u64) {
                return SelectedRanges::Ignore;
            }
        } else if range.start == 0 {
            // Empty content has no range at all, but 416 would help no client.
            return SelectedRanges::Ignore;
        }
    }
    found.decide(length, max_ranges)
}

struct RangeCollector {
    /// Stops growing once it is clear that the ranges will be ignored: a client must not make us
    /// keep more ranges than the content has bytes.
    ranges: Vec<Range<u64>>,
    count: u64,
    size: u64,
}

impl RangeCollector {
    fn add(&mut self, range: Range<u64>, length: u64) {
        self.count += 1;
        self.size = self.size.saturating_add(range.end - range.start);
        if self.size <= length || self.count == 1 {
            self.ranges.push(range);
        }
    }

    fn decide(mut self, length: u64, max_ranges: Option<usize>) -> SelectedRanges {
        /// The estimated cost of a part's header, and the cost that is tolerated in any case.
        const PART_COST: u64 = 256;
        const FREE_COST: u64 = 4096;
        if self.count < 2 {
            return self
                .ranges
                .pop()
                .map_or(SelectedRanges::Unsatisfiable, SelectedRanges::One);
        }
        let cost = self
            .size
            .saturating_add(self.count.saturating_mul(PART_COST));
        if self.size > length || (max_ranges.is_none() && cost > length.saturating_add(FREE_COST)) {
            return SelectedRanges::Ignore;
        }
        SelectedRanges::Many(self.ranges)
    }
}

enum RangeSpec {
    /// `5-`, or `5-9` with its last byte.
    From(u64, Option<u64>),
    /// `-5`
    Last(u64),
}

impl RangeSpec {
    fn resolve(&self, length: u64) -> Range<u64> {
        match *self {
            RangeSpec::From(first, None) => first..length,
            RangeSpec::From(first, Some(last)) => first..length.min(last.saturating_add(1)),
            RangeSpec::Last(count) => length.saturating_sub(count)..length,
        }
    }
}

/// One of the comma-separated ranges; spaces are allowed around its parts.
fn parse_spec(spec: &[u8]) -> Option<RangeSpec> {
    let dash = memchr::memchr(b'-', spec)?;
    let (first, last) = (trim(&spec[..dash]), trim(&spec[dash + 1..]));
    match (first.is_empty(), last.is_empty()) {
        (true, true) => None,
        // `- 5` is not a suffix: nginx permits no space there.
        (true, false) if spec.get(dash + 1) == Some(&b' ') => None,
        (true, false) => Some(RangeSpec::Last(parse_position(last)?)),
        (false, true) => Some(RangeSpec::From(parse_position(first)?, None)),
        (false, false) => Some(RangeSpec::From(
            parse_position(first)?,
            Some(parse_position(last)?),
        )),
    }
}

fn trim(text: &[u8]) -> &[u8] {
    let start = text.iter().take_while(|&&b| b == b' ').count();
    let end = text
        .iter()
        .rposition(|&b| b != b' ')
        .map_or(start, |last| last + 1);
    &text[start..end]
}

/// A byte position of 63 bits, like a file offset.
fn parse_position(digits: &[u8]) -> Option<u64> {
    crate::message::parse_length(digits)
}

/// Appends `bytes FIRST-LAST/LENGTH`. The range must not be empty.
pub fn write_content_range(range: &Range<u64>, length: u64, out: &mut Vec<u8>) {
    let last = range.end.saturating_sub(1);
    write!(out, "bytes {}-{last}/{length}", range.start).expect("a vector takes every byte");
}

/// Appends `bytes */LENGTH`, for a 416.
pub fn write_unsatisfied_range(length: u64, out: &mut Vec<u8>) {
    write!(out, "bytes */{length}").expect("a vector takes every byte");
}

/// Parses a response's Content-Range: the range (`None` for `*`) and the complete length (`None`
/// for `*`).
pub fn parse_content_range(value: &[u8]) -> Option<(Option<Range<u64>>, Option<u64>)> {
    let rest = value.strip_prefix(b"bytes ")?;
    let slash = memchr::memchr(b'/', rest)?;
    let (range, length) = (trim(&rest[..slash]), trim(&rest[slash + 1..]));
    let length = if length == b"*" {
        None
    } else {
        Some(parse_position(length)?)
    };
    if range == b"*" {
        return Some((None, length));
    }
    let dash = memchr::memchr(b'-', range)?;
    let (first, last) = (
        parse_position(&range[..dash])?,
        parse_position(&range[dash + 1..])?,
    );
    let is_sound = first <= last && length.is_none_or(|length| last < length);
    is_sound.then_some((Some(first..last + 1), length))
}

/// The writer of a multipart/byteranges body (RFC 9110 section 14.6): before each part
/// its [head](MultipartRanges::write_part_head), after the last its [end](MultipartRanges::write_end).
#[derive(Clone, Debug)]
pub struct MultipartRanges<'a> {
    /// A number that is unlikely to occur in the content; nginx uses a counter.
    pub boundary: u64,
    /// The Content-Type of the content, with its charset; empty if there is none.
    pub content_type: &'a [u8],
    /// The length of the content.
    pub length: u64,
}

impl MultipartRanges<'_> {
    /// Appends the Content-Type of the response.
    pub fn write_content_type(&self, out: &mut Vec<u8>) {
        write!(out, "multipart/byteranges; boundary={:020}", self.boundary)
            .expect("a vector takes every byte");
    }

    /// Appends the header before a part's bytes.
    pub fn write_part_head(&self, range: &Range<u64>, out: &mut Vec<u8>) {
        write!(out, "\r\n--{:020}\r\n", self.boundary).expect("a vector takes every byte");
        if !self.content_type.is_empty() {
            crate::h1::response::write_field(b"Content-Type", self.content_type, out);
        }
        out.extend_from_slice(b"Content-Range: ");
        write_content_range(range, self.length, out);
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// Appends the end after the last part's bytes.
    pub fn write_end(&self, out: &mut Vec<u8>) {
        write!(out, "\r\n--{:020}--\r\n", self.boundary).expect("a vector takes every byte");
    }

    /// The Content-Length of the response.
    pub fn content_length(&self, ranges: &[Range<u64>]) -> u64 {
        let mut text = Vec::new();
        self.write_end(&mut text);
        let mut total = text.len() as u64;
        for range in ranges {
            text.clear();
            self.write_part_head(range, &mut text);
            total += text.len() as u64 + (range.end - range.start);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ranges: SelectedRanges) -> String {
        match ranges {
            SelectedRanges::Ignore => "200".to_string(),
            SelectedRanges::Unsatisfiable => "416".to_string(),
            SelectedRanges::One(range) => format!("{range:?}"),
            SelectedRanges::Many(ranges) => ranges
                .iter()
                .map(|r| format!("{r:?}"))
                .collect::<Vec<_>>()
                .join(" "),
        }
    }

    #[test]
    fn ranges_are_read_as_in_nginx() {
        for (value, expected) in [
            ("bytes=0-9", "0..10"),
            ("Bytes=0-9", "0..10"),
            ("bytes=90-", "90..100"),
            ("bytes=-10", "90..100"),
            ("bytes=-1000", "0..100"),
            ("bytes=0-1000", "0..100"),
            ("bytes=99-99", "99..100"),
            ("bytes= 1 - 2 ", "1..3"),
            ("bytes=0-0,-1", "0..1 99..100"),
            ("bytes=5-6, 1-2", "5..7 1..3"),
            ("bytes=0-0,100-", "0..1"),
            ("bytes=0-0,5-3", "0..1"),
            ("bytes=0-98,1-1", "0..99 1..2"),
            ("bytes=0-99,1-1", "200"),
            ("bytes=100-", "416"),
            ("bytes=100-200", "416"),
            ("bytes=5-3", "416"),
            ("bytes=-0", "416"),
            ("bytes=0-9223372036854775807", "0..100"),
            ("bytes=0-9223372036854775808", "416"),
            ("bytes=-9223372036854775807", "0..100"),
            ("bytes=9223372036854775808-", "416"),
            ("bytes=-", "416"),
            ("bytes=x", "416"),
            ("bytes=1", "416"),
            ("bytes=1x-2", "416"),
            ("bytes=1-x", "416"),
            ("bytes=1-2x", "416"),
            ("bytes=1-2,", "416"),
            ("bytes=,1-2", "416"),
            ("bytes=1--2", "416"),
            ("bytes=--2", "416"),
            ("bytes=- 2", "416"),
            ("bytes=+1-2", "416"),
            ("bytes=", "200"),
            ("bytes", "200"),
            ("", "200"),
            ("items=0-1", "200"),
            ("bytes 0-1", "200"),
        ] {
            assert_eq!(
                text(parse(value.as_bytes(), 100, None)),
                expected,
                "{value}"
            );
        }
    }

    #[test]
    fn empty_content_has_no_ranges() {
        for value in ["bytes=0-", "bytes=0-0", "bytes=-5"] {
            assert_eq!(
                parse(value.as_bytes(), 0, None),
                SelectedRanges::Ignore,
                "{value}"
            );
        }
        assert_eq!(parse(b"bytes=1-", 0, None), SelectedRanges::Unsatisfiable);
    }

    #[test]
    fn the_number_of_ranges_is_limited() {
        let many = |count: usize| {
            let specs: Vec<_> = (0..count).map(|i| format!("{i}-{i}")).collect();
            format!("bytes={}", specs.join(","))
        };
        let outcome = |count, max| text(parse(many(count).as_bytes(), 100_000, max));
        assert_eq!(outcome(1, Some(0)), "200");
        assert_eq!(outcome(1, Some(1)), "0..1");
        assert_eq!(outcome(2, Some(1)), "200");
        assert!(outcome(2, Some(2)).contains(' '));
        // Without a limit the heads of the parts count: 257 bytes each against 104,096.
        assert!(outcome(405, None).contains(' '));
        assert_eq!(outcome(406, None), "200");
        assert!(outcome(406, Some(406)).contains(' '));
    }

    #[test]
    fn no_more_ranges_are_kept_than_there_are_bytes() {
        let value = format!("bytes={}0-0", "0-0,".repeat(5000));
        assert_eq!(parse(value.as_bytes(), 10, None), SelectedRanges::Ignore);
        assert_eq!(
            parse(value.as_bytes(), 10, Some(100_000)),
            SelectedRanges::Ignore
        );
        assert_eq!(
            parse(format!("{value},x").as_bytes(), 10, None),
            SelectedRanges::Unsatisfiable
        );
    }

    /// Every value of up to six bytes after `bytes=`: ranges are never empty, never outside, never
    /// together longer than the content.
    #[test]
    fn every_short_value_gives_sound_ranges() {
        let alphabet = b"019-, x";
        let base = alphabet.len() as u64;
        for size in 0..=6u32 {
            for number in 0..base.pow(size) {
                let mut value = b"bytes=".to_vec();
                value.extend((0..size).map(|i| alphabet[(number / base.pow(i) % base) as usize]));
                for length in [0, 1, 10] {
                    let ranges = match parse(&value, length, None) {
                        SelectedRanges::Ignore | SelectedRanges::Unsatisfiable => continue,
                        SelectedRanges::One(range) => vec![range],
                        SelectedRanges::Many(ranges) => ranges,
                    };
                    assert!(
                        ranges.iter().all(|r| r.start < r.end && r.end <= length),
                        "{value:?}"
                    );
                    assert!(ranges.iter().map(|r| r.end - r.start).sum::<u64>() <= length);
                }
            }
        }
    }

    #[test]
    fn multipart_bodies_are_as_long_as_announced() {
        let ranges = [0..10, 20..21];
        for content_type in [&b""[..], b"text/plain; charset=utf-8"] {
            let multipart = MultipartRanges {
                boundary: 7,
                content_type,
                length: 100,
            };
            let mut body = Vec::new();
            for range in &ranges {
                multipart.write_part_head(range, &mut body);
                body.resize(body.len() + (range.end - range.start) as usize, b'x');
            }
            multipart.write_end(&mut body);
            assert_eq!(body.len() as u64, multipart.content_length(&ranges));
            assert!(body.starts_with(b"\r\n--00000000000000000007\r\nContent-"));
        }
        let mut text = Vec::new();
        MultipartRanges {
            boundary: 7,
            content_type: b"",
            length: 1,
        }
        .write_content_type(&mut text);
        assert_eq!(text, b"multipart/byteranges; boundary=00000000000000000007");
    }

    #[test]
    fn content_ranges_are_written_and_read() {
        let mut out = Vec::new();
        write_content_range(&(5..10), 100, &mut out);
        assert_eq!(out, b"bytes 5-9/100");
        assert_eq!(parse_content_range(&out), Some((Some(5..10), Some(100))));
        out.clear();
        write_unsatisfied_range(100, &mut out);
        assert_eq!(out, b"bytes */100");
        assert_eq!(parse_content_range(&out), Some((None, Some(100))));
        assert_eq!(
            parse_content_range(b"bytes 0-0/*"),
            Some((Some(0..1), None))
        );
        for bad in [
            "",
            "bytes",
            "bytes 0-1",
            "bytes 2-1/3",
            "bytes 0-3/3",
            "bytes -1/3",
            "items 0-1/3",
            "bytes 0-x/3",
        ] {
            assert_eq!(parse_content_range(bad.as_bytes()), None, "{bad}");
        }
    }
}
