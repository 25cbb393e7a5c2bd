//! A FastCGI response means the same in one piece and in two, and no range lies outside the input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::fastcgi::{FastcgiEvent, RecordDecoder};

/// The output, the messages, and whether it came to an end; an error ends it too.
type Meaning = (Vec<u8>, Vec<u8>, bool, Option<String>);

fn decode(pieces: &[&[u8]]) -> Meaning {
    let mut decoder = RecordDecoder::new();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut input = *piece;
        loop {
            let (event, used) = match decoder.next_event(input) {
                Ok(next) => next,
                Err(line) => return (stdout, stderr, false, Some(line)),
            };
            match event {
                FastcgiEvent::More => {
                    assert_eq!(used, input.len());
                    break;
                }
                FastcgiEvent::Stdout(range) => stdout.extend_from_slice(&input[range]),
                FastcgiEvent::Stderr(range, _) => stderr.extend_from_slice(&input[range]),
                FastcgiEvent::StdoutEnd => {}
                FastcgiEvent::End => return (stdout, stderr, true, None),
            }
            assert!(used > 0);
            input = &input[used..];
        }
    }
    (stdout, stderr, false, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&cut, wire)) = data.split_first() else {
        return;
    };
    let cut = usize::from(cut).min(wire.len());
    assert_eq!(decode(&[wire]), decode(&[&wire[..cut], &wire[cut..]]));
});
