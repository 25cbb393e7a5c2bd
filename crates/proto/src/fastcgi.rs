//! FastCGI, the web server's side: one request of the role "responder" at a time on a connection.
//!
//! Both directions are sequences of records:
//!
//! ```text
//! byte   0        1     2 3         4 5             6        7
//!        version  type  request id  content length  padding  reserved   content …  padding …
//!        1              always 1    big-endian      length
//! ```
//!
//! A request is `BEGIN_REQUEST`, then the stream `PARAMS`, then the stream `STDIN`; a response is the streams `STDOUT`
//! and `STDERR`, mixed, then `END_REQUEST`. An empty record ends a stream. Lines for the error log are in nginx's words.

use std::ops::Range;

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

const RESPONDER: u8 = 1;
const KEEP_CONNECTION: u8 = 1;

/// The bytes before the content of a record.
const HEADER: usize = 8;

/// The content of a record that this side writes; a multiple of the alignment, so that full records need no padding.
const MAX_CONTENT: usize = 32 * 1024;

/// What the content of a record is padded to, as the specification recommends.
const ALIGNMENT: usize = 8;

/// Appends what a request begins with. `keep_connection` asks the application not to close.
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

/// Up to 127 in one byte, else in four with the highest bit set.
fn push_length(length: usize, out: &mut Vec<u8>) {
    match u8::try_from(length) {
        Ok(short @ 0..=127) => out.push(short),
        _ => out.extend_from_slice(&(length as u32 | 1 << 31).to_be_bytes()),
    }
}

/// Appends all params of a request, and their end.
pub fn write_params(params: &[u8], out: &mut Vec<u8>) {
    write_stream(PARAMS, params, out);
    write_header(PARAMS, 0, 0, out);
}

/// Appends a piece of the request's content.
pub fn write_stdin(content: &[u8], out: &mut Vec<u8>) {
    write_stream(STDIN, content, out);
}

/// Appends the end of the request's content.
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

/// What the response goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All input was used; more is needed.
    More,
    /// This part of the input is output.
    Stdout(Range<usize>),
    /// The output is over.
    StdoutEnd,
    /// This part of the input is for the error log. `true`: its record, which usually is one message, ends with it.
    Stderr(Range<usize>, bool),
    /// The response is over, padding included.
    End,
}

/// Reads records of a response from input in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    state: State,
    /// The header as far as it was received, and how much that is.
    header: [u8; HEADER],
    received: usize,
    /// Content of the present record that is still to come.
    content: usize,
    /// Padding of the present record that is still to come.
    padding: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Header,
    Content,
    Padding,
}

impl Decoder {
    /// Ready for a response.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// The next event in `input`, and how much of the input it used; call again with the rest. Ranges count from the
    /// start of `input`. The error is the line for the error log.
    pub fn next(&mut self, input: &[u8]) -> Result<(Event, usize), String> {
        let mut at = 0;
        loop {
            match self.state {
                State::Header => {
                    let taken = (HEADER - self.received).min(input.len() - at);
                    self.header[self.received..self.received + taken]
                        .copy_from_slice(&input[at..at + taken]);
                    self.received += taken;
                    at += taken;
                    check(&self.header[..self.received])?;
                    if self.received < HEADER {
                        return Ok((Event::More, at));
                    }
                    self.received = 0;
                    self.content =
                        usize::from(u16::from_be_bytes([self.header[4], self.header[5]]));
                    self.padding = usize::from(self.header[6]);
                    self.state = State::Content;
                    if self.content == 0 && self.kind() == STDOUT {
                        self.state = State::Padding;
                        return Ok((Event::StdoutEnd, at));
                    }
                }
                State::Content if self.content == 0 => self.state = State::Padding,
                State::Content if at == input.len() => return Ok((Event::More, at)),
                State::Content => {
                    let end = at + self.content.min(input.len() - at);
                    self.content -= end - at;
                    let content = at..end;
                    at = end;
                    match self.kind() {
                        STDOUT => return Ok((Event::Stdout(content), at)),
                        STDERR => return Ok((Event::Stderr(content, self.content == 0), at)),
                        // What an application's exit code was is for nobody here.
                        _ => {}
                    }
                }
                State::Padding => {
                    let taken = self.padding.min(input.len() - at);
                    self.padding -= taken;
                    at += taken;
                    if self.padding > 0 {
                        return Ok((Event::More, at));
                    }
                    self.state = State::Header;
                    if self.kind() == END_REQUEST {
                        return Ok((Event::End, at));
                    }
                }
            }
        }
    }

    /// Takes back the end of the last [`Event::Stdout`]: those bytes will come again.
    pub fn unread(&mut self, count: usize) {
        self.state = State::Content;
        self.content += count;
    }

    fn kind(&self) -> u8 {
        self.header[1]
    }
}

/// Judges as much of a header as there is, so that what is not FastCGI at all is not waited for.
fn check(header: &[u8]) -> Result<(), String> {
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
    type Meaning = (Vec<u8>, Vec<u8>, Vec<Event>);

    /// All that a response says, read in pieces of `step` bytes.
    fn decode(wire: &[u8], step: usize) -> Result<Meaning, String> {
        let (mut decoder, mut stdout, mut stderr, mut rest) =
            (Decoder::new(), vec![], vec![], vec![]);
        for piece in wire.chunks(step) {
            let mut input = piece;
            loop {
                let (event, used) = decoder.next(input)?;
                match event {
                    Event::More => {
                        assert_eq!(used, input.len());
                        break;
                    }
                    Event::Stdout(range) => stdout.extend_from_slice(&input[range]),
                    Event::Stderr(range, _) => stderr.extend_from_slice(&input[range]),
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
            assert_eq!(rest, [Event::StdoutEnd, Event::End]);
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
            assert_eq!(Decoder::new().next(wire), Err(line.to_owned()));
        }
    }

    #[test]
    fn output_that_was_taken_back_comes_again() {
        let wire = record(STDOUT, b"headbody", 2);
        let mut decoder = Decoder::new();
        assert_eq!(decoder.next(&wire), Ok((Event::Stdout(8..16), 16)));
        decoder.unread(4);
        assert_eq!(decoder.next(&wire[12..]), Ok((Event::Stdout(0..4), 4)));
        assert_eq!(decoder.next(&wire[16..]), Ok((Event::More, 2)));
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
