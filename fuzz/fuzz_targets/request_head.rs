//! A request head means the same in one piece and in two, and an accepted one can be used.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::h1::{HeadLimits, RequestParser, RequestProgress};
use proto::message::{RejectedHead, RequestHead};
use proto::{KnownField, host, uri};

fn parse(
    pieces: &[&[u8]],
    limits: &HeadLimits,
) -> (Result<RequestProgress, RejectedHead>, RequestHead) {
    let (mut parser, mut head) = (RequestParser::new(), RequestHead::new());
    let mut last = Ok(RequestProgress::Partial);
    for piece in pieces {
        last = parser.parse(piece, limits, &mut head);
        if last != Ok(RequestProgress::Partial) {
            break;
        }
    }
    (last, head)
}

fuzz_target!(|data: &[u8]| {
    let Some((&cut, wire)) = data.split_first() else {
        return;
    };
    let limits = HeadLimits {
        client_header_buffer_size: 64,
        large_client_header_buffer_size: 256,
        ..HeadLimits::default()
    };
    let cut = usize::from(cut).min(wire.len());
    let (whole, head) = parse(&[wire], &limits);
    let (pieces, other) = parse(&[&wire[..cut], wire], &limits);
    match (&whole, &pieces) {
        (Ok(RequestProgress::Complete(length)), _) => {
            assert_eq!(whole, pieces);
            assert!(*length <= wire.len() && wire[..*length].ends_with(b"\n"));
            assert!(head.fields.iter().eq(other.fields.iter()));
        }
        (Ok(_), _) => assert_eq!(whole, pieces),
        // What is refused may be refused for another reason when less of it is known.
        (Err(_), pieces) => assert!(pieces.is_err()),
    }
    if let Err(reject) = whole {
        assert!(reject.status() >= 400 && !reject.log_line(&head).is_empty());
        return;
    }
    if !matches!(whole, Ok(RequestProgress::Complete(_))) {
        return;
    }
    for (name, value) in head.fields.iter() {
        assert!(
            !name
                .iter()
                .chain(value)
                .any(|b| matches!(b, b'\r' | b'\n' | 0))
        );
        assert!(!name.is_empty() && value.trim_ascii().len() <= value.len());
    }
    let mut path = Vec::new();
    let _ = uri::normalize_path(head.target(), uri::SlashMerging::Merge, &mut path);
    let _ = host::parse(
        head.authority()
            .or(head.fields.get_known(KnownField::Host))
            .unwrap_or_default(),
    );
    let _ = head.check(true);
});
