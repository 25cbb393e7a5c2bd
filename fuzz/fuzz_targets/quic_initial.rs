//! The first packets of a QUIC client: a hello is the same in whatever order they arrive.
#![no_main]

use libfuzzer_sys::fuzz_target;
use net::quic::hello_of_packets;

// The input is a list of packets: how long each is, its frames.
fuzz_target!(|data: &[u8]| {
    let mut packets = Vec::new();
    let mut rest = data;
    while let [length, after @ ..] = rest {
        let (packet, after) = after.split_at(after.len().min(usize::from(*length) * 4));
        packets.push(packet);
        rest = after;
    }
    let hello = hello_of_packets(packets.iter().copied());
    assert_eq!(hello, hello_of_packets(packets.iter().rev().copied()));
    if let Some(hello) = hello {
        let length = u32::from_be_bytes([0, hello[1], hello[2], hello[3]]);
        assert_eq!(hello.len(), 4 + length as usize);
    }
});
