//! Whatever a client of HTTP/3 sends: frames in any pieces, instructions of QPACK, header blocks that wait for them, and
//! requests made of those.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::field_section::request::UnderscorePolicy;
use proto::field_section::{FieldSecrecy, ListLimits, RequestLimits, RequestReader, ResponsePriority};
use proto::h3::{FramePlace, H3Event, H3FrameReader};
use proto::message::{InvalidHeaders, MessageVersion, RequestHead};
use proto::qpack::{DecoderStreamReader, QpackDecoder, QpackEncoder, SectionOutcome};

const LIST: ListLimits = ListLimits {
    max_size: 16 * 1024,
    max_fields: 100,
};

const REQUEST: RequestLimits = RequestLimits {
    underscores_in_headers: UnderscorePolicy::Invalid,
    invalid_headers: InvalidHeaders::Ignored,
    max_headers: 100,
    max_text: 8 * 1024,
    max_texts: 32 * 1024,
};

const MAX_BLOCK: u64 = 4096;
const MAX_BLOCKED: usize = 4;

// The input is a list of pieces: where each goes, how long it is, its bytes.
fuzz_target!(|data: &[u8]| {
    let mut connection = Connection::new();
    let mut whole = Connection::new();
    let mut rest = data;
    while let [place, length, after @ ..] = rest {
        let (piece, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        // It must not matter in which pieces a stream arrives. But where instructions arrive together, one may evict what a
        // block that waits for another needs: such a client breaks the protocol.
        let step = match place % 11 {
            9 => 1,
            _ => usize::from(*place) + 1,
        };
        let one = connection.take(*place, piece, 1);
        assert_eq!(one, whole.take(*place, piece, step));
        if one.is_none() {
            return;
        }
    }
});

struct Connection {
    control: H3FrameReader,
    requests: Vec<H3FrameReader>,
    decoder: QpackDecoder,
    theirs: DecoderStreamReader,
    reader: RequestReader,
    /// Blocks that wait.
    blocked: Vec<(u64, Vec<u8>)>,
    events: usize,
}

impl Connection {
    fn new() -> Connection {
        let request = |_| H3FrameReader::new(FramePlace::Request, MAX_BLOCK);
        Connection {
            control: H3FrameReader::new(FramePlace::Control, MAX_BLOCK),
            requests: (0..8).map(request).collect(),
            decoder: QpackDecoder::new(1024, MAX_BLOCKED),
            theirs: DecoderStreamReader::default(),
            reader: RequestReader::new(MessageVersion::HTTP_3),
            blocked: Vec::new(),
            events: 0,
        }
    }

    /// Gives a piece of a stream to what reads it. The number of events so far; `None` at the end of the connection.
    fn take(&mut self, place: u8, piece: &[u8], step: usize) -> Option<usize> {
        for part in piece.chunks(step) {
            match place % 11 {
                8 => self.control(part)?,
                9 => {
                    self.decoder.handle_instructions(part).ok()?;
                    self.unblock()?;
                }
                10 => drop(self.theirs.handle_instructions(part).ok()?),
                stream => self.request(stream.into(), part)?,
            }
        }
        Some(self.events)
    }

    fn control(&mut self, part: &[u8]) -> Option<()> {
        let mut at = 0;
        loop {
            let (event, used) = self.control.next_event(&part[at..]).ok()?;
            at += used;
            match event {
                H3Event::More => return (at == part.len()).then_some(()),
                H3Event::PriorityUpdate { value, .. } => {
                    assert!(ResponsePriority::parse(value).urgency <= 7);
                }
                H3Event::Head(_) | H3Event::Data { .. } | H3Event::Trailers(_) => {
                    panic!("{event:?} on the control stream")
                }
                _ => {}
            }
            self.events += 1;
        }
    }

    fn request(&mut self, stream: usize, part: &[u8]) -> Option<()> {
        let mut at = 0;
        loop {
            let mut block = None;
            let (event, used) = self.requests[stream].next_event(&part[at..]).ok()?;
            at += used;
            match event {
                H3Event::More => return (at == part.len()).then_some(()),
                H3Event::Head(bytes) | H3Event::Trailers(bytes) => {
                    assert!(bytes.len() as u64 <= MAX_BLOCK);
                    block = Some(bytes.to_vec());
                }
                // Its pieces depend on those of the input.
                H3Event::Data { begins, .. } => self.events += usize::from(begins),
                H3Event::Unknown { .. } => self.events += 1,
                _ => panic!("{event:?} on a stream with a request"),
            }
            if let Some(block) = block {
                self.events += 1;
                self.block(stream as u64, block)?;
            }
        }
    }

    fn unblock(&mut self) -> Option<()> {
        let decoder = &self.decoder;
        let ready = |(stream, _): &mut (u64, Vec<u8>)| !decoder.is_blocked(*stream);
        let ready: Vec<_> = self.blocked.extract_if(.., ready).collect();
        for (stream, block) in ready {
            self.block(stream, block)?;
        }
        Some(())
    }

    fn block(&mut self, stream: u64, block: Vec<u8>) -> Option<()> {
        let mut head = RequestHead::new();
        let mut fields = Vec::new();
        let reader = &mut self.reader;
        let outcome = self.decoder.decode(stream, &block, LIST, |field| {
            reader.add_field(field, &REQUEST, &mut head);
            fields.push((field.known, field.name.to_vec(), field.value.to_vec()));
        });
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(_) => {
                reader.clear();
                return None;
            }
        };
        if outcome == SectionOutcome::Blocked {
            assert!(self.decoder.is_blocked(stream));
            assert!(self.decoder.blocked_streams() <= MAX_BLOCKED);
            self.blocked.push((stream, block));
            return Some(());
        }
        let verdict = reader.finish(block.len() as u32, &mut head);
        let is_whole = verdict.is_ok() && !reader.is_too_large();
        reader.clear();
        if is_whole {
            assert!(head.target().starts_with(b"/"));
            assert!(head.fields.get(b"host").is_some());
            assert_eq!(head.protocol(), b"HTTP/3.0");
        }
        self.decoder.take_output();
        again(&fields);
        Some(())
    }
}

/// What was understood is written again, and must come back.
fn again(fields: &[(proto::KnownField, Vec<u8>, Vec<u8>)]) {
    let mut encoder = QpackEncoder::default();
    let mut out = Vec::new();
    encoder.begin(&mut out);
    for (known, name, value) in fields {
        encoder.field(*known, name, value, FieldSecrecy::Open, &mut out);
    }
    let limits = ListLimits {
        max_size: usize::MAX,
        max_fields: usize::MAX,
    };
    let mut n = 0;
    let outcome = QpackDecoder::new(0, 0).decode(0, &out, limits, |field| {
        let (_, name, value) = &fields[n];
        assert!(field.name.eq_ignore_ascii_case(name) && field.value == value);
        n += 1;
    });
    assert!(matches!(outcome, Ok(SectionOutcome::Decoded(_))));
    assert_eq!(n, fields.len());
}
