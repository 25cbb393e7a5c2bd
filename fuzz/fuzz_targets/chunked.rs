//! A chunked body decodes to the same bytes in one piece and in many, and never reads beyond its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::h1::body::{ChunkDecoder, ChunkError, ChunkPiece};

fn decode(wire: &[u8], step: usize) -> Result<(Vec<u8>, Option<usize>), ChunkError> {
    let (mut decoder, mut body, mut used) = (ChunkDecoder::new(), Vec::new(), 0);
    while used < wire.len() {
        let input = &wire[used..wire.len().min(used + step)];
        let least = decoder.minimum_left();
        match decoder.next_piece(input)? {
            ChunkPiece::Data(range) => {
                body.extend_from_slice(&input[range.clone()]);
                used += range.end;
            }
            ChunkPiece::More => used += input.len(),
            ChunkPiece::End(length) => {
                assert!(
                    length as u64 >= least,
                    "a promise of bytes that did not come"
                );
                return Ok((body, Some(used + length)));
            }
        }
    }
    Ok((body, None))
}

fuzz_target!(|data: &[u8]| {
    let Some((&step, wire)) = data.split_first() else {
        return;
    };
    let whole = decode(wire, wire.len().max(1));
    assert_eq!(whole, decode(wire, usize::from(step).max(1)));
});
