//! Whatever a peer of HTTP/2 sends: frames in any pieces, their header blocks, and requests made of those.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::field_section::request::{RequestLimits, RequestReader, UnderscorePolicy};
use proto::h2::hpack::{FieldSecrecy, HpackDecoder, HpackEncoder, ListLimits};
use proto::h2::{FrameEvent, FrameReader, H2Settings, ResponsePriority};
use proto::message::{InvalidHeaders, MessageVersion, RequestHead};

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

fuzz_target!(|data: &[u8]| {
    let Some((&step, input)) = data.split_first() else {
        return;
    };
    let mut connection = Connection {
        reader: FrameReader::default(),
        decoder: HpackDecoder::default(),
        requests: RequestReader::new(MessageVersion::HTTP_2),
        settings: H2Settings::default(),
        encoder: HpackEncoder::default(),
        mirror: HpackDecoder::default(),
    };
    let mut kept = Vec::new();
    for piece in input.chunks(usize::from(step).max(1)) {
        kept.extend_from_slice(piece);
        match connection.take(&kept) {
            Some(used) => drop(kept.drain(..used)),
            None => return,
        }
        assert!(kept.len() < 9 + 16 * 1024);
    }
});

struct Connection {
    reader: FrameReader,
    decoder: HpackDecoder,
    requests: RequestReader,
    settings: H2Settings,
    /// What was understood is written again, and must come back.
    encoder: HpackEncoder,
    mirror: HpackDecoder,
}

impl Connection {
    fn take(&mut self, input: &[u8]) -> Option<usize> {
        let mut used = 0;
        loop {
            let (event, n) = self.reader.next_event(&input[used..]).ok()?;
            used += n;
            match event {
                FrameEvent::More => return Some(used),
                FrameEvent::Data { bytes, counted, .. } => assert!(bytes.len() <= counted as usize),
                FrameEvent::Headers { block, .. } | FrameEvent::PushPromise { block, .. } => {
                    self.headers(&block)?;
                }
                FrameEvent::Settings(payload) => self.settings.apply(payload).ok()?,
                FrameEvent::PriorityUpdate { value, .. } => {
                    assert!(ResponsePriority::parse(value).urgency <= 7);
                }
                _ => {}
            }
        }
    }

    fn headers(&mut self, block: &[u8]) -> Option<()> {
        let mut head = RequestHead::new();
        let mut fields = Vec::new();
        let requests = &mut self.requests;
        let decoded = self.decoder.decode(block, LIST, |field| {
            requests.add_field(field, &REQUEST, &mut head);
            fields.push((field.known, field.name.to_vec(), field.value.to_vec()));
        });
        let verdict = requests.finish(block.len() as u32, &mut head);
        requests.clear();
        decoded.ok()?;
        if verdict.is_ok() {
            assert!(head.target().starts_with(b"/"));
            assert!(head.fields.get(b"host").is_some());
        }
        self.again(&fields);
        Some(())
    }

    fn again(&mut self, fields: &[(proto::KnownField, Vec<u8>, Vec<u8>)]) {
        let mut out = Vec::new();
        self.encoder.begin(&mut out);
        for (known, name, value) in fields {
            self.encoder
                .field(*known, name, value, FieldSecrecy::Open, &mut out);
        }
        let mut n = 0;
        let limits = ListLimits {
            max_size: usize::MAX,
            max_fields: usize::MAX,
        };
        self.mirror
            .decode(&out, limits, |field| {
                let (_, name, value) = &fields[n];
                assert!(field.name.eq_ignore_ascii_case(name) && field.value == value);
                n += 1;
            })
            .expect("what was written can be read");
        assert_eq!(n, fields.len());
    }
}
