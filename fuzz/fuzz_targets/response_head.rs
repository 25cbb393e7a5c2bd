//! An upstream's head means the same in one piece and in two.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::h1::response::{ResponseParser, ResponseProgress};
use proto::message::ResponseHead;
use proto::message::{Method, ResponseFraming};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, wire)) = data.split_first() else {
        return;
    };
    let cut = usize::from(cut).min(wire.len());
    let (mut parser, mut head) = (ResponseParser::new(), ResponseHead::default());
    let whole = parser.parse(wire, 512, &mut head);
    let (mut parser, mut other) = (ResponseParser::new(), ResponseHead::default());
    let first = parser.parse(&wire[..cut], 512, &mut other);
    let pieces = if first == Ok(ResponseProgress::Partial) {
        parser.parse(wire, 512, &mut other)
    } else {
        first
    };
    assert_eq!(whole, pieces);
    match whole {
        Err(error) => assert!(!error.log_line().is_empty()),
        Ok(ResponseProgress::Complete(length)) => {
            assert!(length <= wire.len().min(512) && (100..1000).contains(&head.status));
            assert!(head.status_text().len() >= 3);
            let _ = ResponseFraming::of_response(Method::Get, head.status, &head.fields);
        }
        Ok(ResponseProgress::Partial | ResponseProgress::NotHttp) => {}
    }
});
