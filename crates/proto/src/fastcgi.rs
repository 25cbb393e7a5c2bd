//! The web server's side of FastCGI: one request at a time per connection, in the role "responder".
//!
//! Both directions are sequences of records:
//!
//! ```text
//! byte   0        1     2 3         4 5             6        7
//!        version  type  request id  content length  padding  reserved   content …  padding …
//!        1              always 1    big-endian      length
//! ```
//!
//! A request is `BEGIN_REQUEST`, the stream `PARAMS`, and the stream `STDIN`; a response is the
//! streams `STDOUT` and `STDERR`, interleaved, then `END_REQUEST`. An empty record ends a stream.
//! Lines for the error log are nginx's.

use std::ops::Range;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

const RESPONDER: u8 = 1;
const KEEP_CONNECTION: u8 = 1;

/// The length of a record's header.
const HEADER: usize = 8;

/// The maximum content of a record that this side writes. It is a multiple of the alignment, so
/// full records need no padding.
const MAX_CONTENT: usize = 32 * 1024;

/// Content is padded to a multiple of this, as the specification recommends.
const ALIGNMENT: usize = 8;

/// Appends the beginning of a request. `keep_connection` asks the application not to close.
pub fn write_begin(keep_connection: bool, out: &mut Vec<u8>) {
    write_header(BEGIN_REQUEST, 8, 0, out);
    out.extend_from_slice(&[
        0,
        RESPONDER,
        if keep_connection { KEEP_CONNECTION } else { 0 },
        0,
        0,
        0,
        0,
        0,
    ]);
}

/// Appends a name and its value in the form that [`write_params`] takes.
pub fn push_param(name: &[u8], value: &[u8], params: &mut Vec<u8>) {
    push_length(name.len(), params);
    push_length(value.len(), params);
    params.extend_from_slice(name);
    params.extend_from_slice(value);
}

/// Lengths up to 127 take one byte, others four with the highest bit set.
fn push_length(length: usize, out: &mut Vec<u8>) {
    match u8::try_from(length) {
        Ok(short @ 0..=127) => out.push(short),
        _ => out.extend_from_slice(&(length as u32 | 1 << 31).to_be_bytes()),
    }
}

/// Appends all parameters of a request, and the end of their stream.
pub fn write_params(params: &[u8], out: &mut Vec<u8>) {
    write_stream(PARAMS, params, out);
    write_header(PARAMS, 0, 0, out);
}

/// Appends a part of the request body.
pub fn write_stdin(content: &[u8], out: &mut Vec<u8>) {
    write_stream(STDIN, content, out);
}

/// Appends the end of the request body.
pub fn write_stdin_end(out: &mut Vec<u8>) {
    write_header(STDIN, 0, 0, out);
}

fn write_stream(kind: u8, content: &[u8], out: &mut Vec<u8>) {
    for piece in content.chunks(MAX_CONTENT) {
        let padding = piece.len().next_multiple_of(ALIGNMENT) - piece.len();
        write_header(kind, piece.len(), padding, out);
        out.extend_from_slice(piece);
        out.resize(out.len() + padding, 0);
    }
}

fn write_header(kind: u8, length: usize, padding: usize, out: &mut Vec<u8>) {
    debug_assert!(length <= MAX_CONTENT && padding < ALIGNMENT);
    let [.., high, low] = length.to_be_bytes();
    out.extend_from_slice(&[1, kind, 0, 1, high, low, padding as u8, 0]);
}

/// The next part of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastcgiEvent {
    /// All input is consumed; more is needed.
    More,
    /// This part of the input is output.
    Stdout(Range<usize>),
    /// The output has ended.
    StdoutEnd,
    /// This part of the input is for the error log. `true` if it ends its record, which usually is
    /// one message.
    Stderr(Range<usize>, bool),
    /// The response has ended, including its padding.
    End,
}

/// Decodes a response from input in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct RecordDecoder {
    state: RecordState,
    /// The header as far as it was received, and the length of that.
    header: [u8; HEADER],
    received: usize,
    /// The rest of the current record's content.
    content: usize,
    /// The rest of the current record's padding.
    padding: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RecordState {
    #[default]
    Header,
    Content,
    Padding,
}

impl RecordDecoder {
    /// A decoder for a response.
    pub fn new() -> RecordDecoder {
        RecordDecoder::default()
    }

    /// The next event in `input`, and how much of the input it has consumed; the rest must be
    /// passed again. Ranges are relative to `input`. The error is the line for the error log.
    pub fn next_event(&mut self, input: &[u8]) -> Result<(FastcgiEvent, usize), String> {
        let mut at = 0;
        loop {
            match self.state {
                RecordState::Header => {
                    let taken = (HEADER - self.received).min(input.len() - at);
                    self.header[self.received..self.received + taken]
                        .copy_from_slice(&input[at..at + taken]);
                    self.received += taken;
                    at += taken;
                    check_header(&self.header[..self.received])?;
                    if self.received < HEADER {
                        return Ok((FastcgiEvent::More, at));
                    }
                    self.received = 0;
                    self.content =
                        usize::from(u16::from_be_bytes([self.header[4], self.header[5]]));
                    self.padding = usize::from(self.header[6]);
                    self.state = RecordState::Content;
                    if self.content == 0 && self.kind() == STDOUT {
                        self.state = RecordState::Padding;
                        return Ok((FastcgiEvent::StdoutEnd, at));
                    }
                }
                RecordState::Content if self.content == 0 => self.state = RecordState::Padding,
                RecordState::Content if at == input.len() => return Ok((FastcgiEvent::More, at)),
                RecordState::Content => {
                    let end = at + self.content.min(input.len() - at);
                    self.content -= end - at;
                    let content = at..end;
                    at = end;
                    match self.kind() {
                        STDOUT => return Ok((FastcgiEvent::Stdout(content), at)),
                        STDERR => {
                            return Ok((FastcgiEvent::Stderr(content, self.content == 0), at));
                        }
                        // The content of `END_REQUEST`: the application's exit code is of no use
                        // here.
                        _ => {}
                    }
                }
                RecordState::Padding => {
                    let taken = self.padding.min(input.len() - at);
                    self.padding -= taken;
                    at += taken;
                    if self.padding > 0 {
                        return Ok((FastcgiEvent::More, at));
                    }
                    self.state = RecordState::Header;
                    if self.kind() == END_REQUEST {
                        return Ok((FastcgiEvent::End, at));
                    }
                }
            }
        }
    }

    /// Takes back the end of the last [`FastcgiEvent::Stdout`]: these bytes will be passed again.
    pub fn unread(&mut self, count: usize) {
        self.state = RecordState::Content;
        self.content += count;
    }

    fn kind(&self) -> u8 {
        self.header[1]
    }
}

/// Checks as much of a header as there is, so that no more input is awaited from what does not
/// speak FastCGI.
fn check_header(header: &[u8]) -> Result<(), String> {
    let names = [
        "protocol version",
        "record type",
        "request id high byte",
        "request id low byte",
    ];
    for (index, (&byte, name)) in header.iter().zip(names).enumerate() {
        let (good, what) = match index {
            0 => (byte == 1, "unsupported"),
            1 => (matches!(byte, STDOUT | STDERR | END_REQUEST), "invalid"),
            2 => (byte == 0, "unexpected"),
            _ => (byte == 1, "unexpected"),
        };
        if !good {
            return Err(format!("upstream sent {what} FastCGI {name}: {byte}"));
        }
    }
    Ok(())
}

/// The params of a request that [`write_begin`] and [`write_params`] have written, to show them. Bytes that are no such
/// request end the list.
pub fn read_params(mut head: &[u8]) -> Vec<(&[u8], &[u8])> {
    /// The type of a record with params.
    const PARAMS: u8 = 4;
    let mut params = Vec::new();
    while let Some((header, rest)) = head.split_first_chunk::<8>() {
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let Some(mut content) = rest.get(..length) else {
            break;
        };
        while header[1] == PARAMS
            && let Some((pair, rest)) = read_pair(content)
        {
            params.push(pair);
            content = rest;
        }
        head = rest
            .get(length + usize::from(header[6])..)
            .unwrap_or_default();
    }
    params
}

/// A name and a value.
type FastcgiParam<'a> = (&'a [u8], &'a [u8]);

/// The first name and value of a list, and what follows them.
fn read_pair(list: &[u8]) -> Option<(FastcgiParam<'_>, &[u8])> {
    let (name, list) = read_length(list)?;
    let (value, list) = read_length(list)?;
    let (name, list) = list.split_at_checked(name)?;
    let (value, list) = list.split_at_checked(value)?;
    Some(((name, value), list))
}

/// A length, in one byte or in four if the first bit is set.
fn read_length(list: &[u8]) -> Option<(usize, &[u8])> {
    match list {
        [length @ 0..=127, rest @ ..] => Some((usize::from(*length), rest)),
        [a, b, c, d, rest @ ..] => {
            let length = u32::from_be_bytes([a & 0x7f, *b, *c, *d]);
            Some((usize::try_from(length).ok()?, rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut out = vec![
            1,
            kind,
            0,
            1,
            (content.len() >> 8) as u8,
            content.len() as u8,
            padding as u8,
            0,
        ];
        out.extend_from_slice(content);
        out.resize(out.len() + padding, 0xff);
        out
    }

    /// Output, messages, and what else there was.
    type Meaning = (Vec<u8>, Vec<u8>, Vec<FastcgiEvent>);

    /// All that a response says, read in pieces of `step` bytes.
    fn decode(wire: &[u8], step: usize) -> Result<Meaning, String> {
        let (mut decoder, mut stdout, mut stderr, mut rest) =
            (RecordDecoder::new(), vec![], vec![], vec![]);
        for piece in wire.chunks(step) {
            let mut input = piece;
            loop {
                let (event, used) = decoder.next_event(input)?;
                match event {
                    FastcgiEvent::More => {
                        assert_eq!(used, input.len());
                        break;
                    }
                    FastcgiEvent::Stdout(range) => stdout.extend_from_slice(&input[range]),
                    FastcgiEvent::Stderr(range, _) => stderr.extend_from_slice(&input[range]),
                    event => rest.push(event),
                }
                input = &input[used..];
            }
        }
        Ok((stdout, stderr, rest))
    }

    #[test]
    fn responses_are_read_alike_in_pieces_of_any_size() {
        let wire = [
            record(STDERR, b"oh", 6),
            record(STDOUT, b"hello ", 0),
            record(STDERR, b"", 1),
            record(STDOUT, b"world", 3),
            record(STDOUT, b"", 2),
            record(END_REQUEST, &[0; 8], 4),
        ]
        .concat();
        for step in 1..=wire.len() {
            let (stdout, stderr, rest) = decode(&wire, step).expect("a good response");
            assert_eq!(
                (stdout.as_slice(), stderr.as_slice()),
                (&b"hello world"[..], &b"oh"[..])
            );
            assert_eq!(rest, [FastcgiEvent::StdoutEnd, FastcgiEvent::End]);
        }
    }

    #[test]
    fn what_is_not_fastcgi_is_refused_at_the_first_byte_that_shows_it() {
        for (wire, line) in [
            (
                &b"HTTP/1.1"[..],
                "upstream sent unsupported FastCGI protocol version: 72",
            ),
            (&[1, 9], "upstream sent invalid FastCGI record type: 9"),
            (
                &[1, 6, 2],
                "upstream sent unexpected FastCGI request id high byte: 2",
            ),
            (
                &[1, 6, 0, 0],
                "upstream sent unexpected FastCGI request id low byte: 0",
            ),
        ] {
            assert_eq!(RecordDecoder::new().next_event(wire), Err(line.to_owned()));
        }
    }

    #[test]
    fn output_that_was_taken_back_comes_again() {
        let wire = record(STDOUT, b"headbody", 2);
        let mut decoder = RecordDecoder::new();
        assert_eq!(
            decoder.next_event(&wire),
            Ok((FastcgiEvent::Stdout(8..16), 16))
        );
        decoder.unread(4);
        assert_eq!(
            decoder.next_event(&wire[12..]),
            Ok((FastcgiEvent::Stdout(0..4), 4))
        );
        assert_eq!(decoder.next_event(&wire[16..]), Ok((FastcgiEvent::More, 2)));
    }

    #[test]
    fn lengths_take_one_byte_or_four() {
        let mut out = Vec::new();
        push_param(&[b'n'; 127], &[b'v'; 128], &mut out);
        assert_eq!(out[..5], [127, 0x80, 0, 0, 128]);
        assert_eq!(out.len(), 5 + 127 + 128);
    }

    #[test]
    fn large_streams_become_records_that_are_aligned() {
        let mut out = Vec::new();
        write_stdin(&[7; MAX_CONTENT + 3], &mut out);
        assert_eq!(out.len(), HEADER + MAX_CONTENT + HEADER + 3 + 5);
        let last = &out[HEADER + MAX_CONTENT..];
        assert_eq!(last[..HEADER], [1, STDIN, 0, 1, 0, 3, 5, 0]);
    }
}
