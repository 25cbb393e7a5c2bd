//! `ssl_preread`: the ClientHello as a TCP proxy reads it, whole and broken, and where its names lead.

use crate::case::{Act, Case, Content, Protocol, Step, Upstream};
use crate::random::Dice;

use super::{Generator, tree};

/// Bytes of a length of their own, to choose from.
type Bytes = &'static [u8];

pub(super) struct Hellos;

const HOSTS: &[&str] = &[
    "a.example",
    "A.EXAMPLE",
    "www.b.example",
    "b.example",
    "c",
    "",
    "a.example.",
    "x.a.example",
    "127.0.0.1",
    "a_b.example",
    "xn--bcher-kva.example",
    "a b",
    "*.example",
    "-",
];

impl Generator for Hellos {
    fn area(&self) -> &'static str {
        "hellos"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let source = dice.word(&[
            "$ssl_preread_server_name",
            "$ssl_preread_server_name",
            "$ssl_preread_protocol",
            "$ssl_preread_alpn_protocols",
            "$ssl_preread_server_name:$ssl_preread_protocol",
        ]);
        let mut text = format!(
            "map {source} $m%%N%% {{ hostnames; volatile; default {}; a.example %%UP0%%; .b.example %%UP1%%; ~c$ u%%N%%; '' %%UP1%%; TLSv1.2 %%UP1%%; ~h2 %%UP1%%; }}\n\
             upstream u%%N%% {{ server %%UP0%%; server %%UP1%% backup; }}\n",
            dice.word(&[
                "%%UP0%%",
                "%%UP0%%",
                "%%UP1%%",
                "''",
                "none.invalid",
                "u%%N%%"
            ])
        );
        text.push_str("server { listen %%PORT0%%; ");
        if dice.chance(7, 8) {
            text.push_str("ssl_preread on; ");
        }
        for line in dice.some(
            &[
                "preread_buffer_size 64;",
                "preread_buffer_size 1k;",
                "proxy_protocol on;",
                "deny 10.0.0.0/8;",
                "set $s $ssl_preread_server_name;",
            ],
            2,
        ) {
            text.push_str(line);
        }
        text.push_str(" preread_timeout 700ms; proxy_timeout 2s; proxy_half_close on; ");
        text.push_str(match dice.below(5) {
            0 | 1 => "return \"$ssl_preread_server_name|$ssl_preread_protocol|$ssl_preread_alpn_protocols|$m%%N%%|$protocol\\n\"; }\n",
            2 => "proxy_pass u%%N%%; }\n",
            _ => "proxy_pass $m%%N%%; }\n",
        });
        let answer = |text: &str| Upstream {
            protocol: Protocol::Tcp,
            answers: vec![vec![Act::Send(Content::new(text)), Act::Close]],
        };
        let mut case = Case {
            stream: tree(&text),
            upstreams: vec![answer("from zero\n"), answer("from one\n")],
            ..Case::default()
        };
        for connection in 0..dice.between(2, 4) {
            case.talk.push(Step::Connect {
                connection,
                port: 0,
            });
            let hello = hello(dice);
            case.talk.push(Step::Send {
                connection,
                bytes: Content::new(hello),
            });
            // What is not whole is awaited until the time is over, or the client leaves.
            if dice.chance(1, 2) {
                case.talk.push(Step::Half { connection });
            }
            case.talk.push(Step::Rest { connection });
        }
        case
    }
}

fn sized(count: usize, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[4 - count..], bytes].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &sized(2, content)].concat()
}

/// A ClientHello in records; one of four is broken.
fn hello(dice: &mut Dice) -> Vec<u8> {
    if dice.chance(1, 12) {
        return dice
            .pick(&[
                &b"GET / HTTP/1.0\r\n\r\n"[..],
                b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10",
                b"\x16",
                b"SSH-2.0-x\r\n",
                b"\x15\x03\x01\x00\x02\x02\x28",
                b"\x16\x03\x01\x00\x00",
            ])
            .to_vec();
    }
    let message = message(dice);
    let version: [u8; 2] = *dice.pick(&[[3, 1], [3, 1], [3, 3], [3, 0], [3, 4], [2, 0], [4, 0]]);
    let mut out = Vec::new();
    let size = match dice.chance(1, 5) {
        true => dice.between(1, 60),
        false => message.len(),
    };
    for part in message.chunks(size.max(1)) {
        out.extend([22, version[0], version[1]]);
        out.extend(sized(2, part));
    }
    if dice.chance(1, 10) {
        out.truncate(dice.between(1, out.len()));
    } else if dice.chance(1, 10) {
        out.extend_from_slice(b"\x17\x03\x03\x00\x05early");
    }
    out
}

fn message(dice: &mut Dice) -> Vec<u8> {
    let mut body = dice
        .pick(&[[3, 3], [3, 3], [3, 1], [3, 2], [3, 4], [3, 0]])
        .to_vec();
    body.extend([7; 32]);
    body.extend(sized(1, &vec![9; *dice.pick(&[0, 32, 32, 33])]));
    body.extend(sized(
        2,
        dice.pick::<Bytes>(&[&[0x13, 1, 0xc0, 0x2f], &[0xc0, 0x2f], &[], &[1]]),
    ));
    body.extend(sized(1, dice.pick::<Bytes>(&[&[0], &[0], &[1, 0], &[]])));
    let mut extensions = Vec::new();
    for _ in 0..dice.between(0, 4) {
        extensions.extend(match dice.below(7) {
            0..=2 => extension(0, &names(dice)),
            3 => extension(16, &protocols(dice)),
            4 => extension(
                43,
                dice.pick::<Bytes>(&[
                    &[2, 3, 4],
                    &[4, 3, 4, 3, 3],
                    &[2, 3, 3],
                    &[4, 0x7a, 0x7a, 3, 4],
                    &[0],
                    &[3, 3, 4, 3],
                    &[6, 3, 2, 3, 1, 3, 0],
                ]),
            ),
            5 => extension(0x7a7a, b"grease"),
            _ => extension(10, &[0, 2, 0, 29]),
        });
    }
    if dice.chance(9, 10) {
        let mut all = sized(2, &extensions);
        if dice.chance(1, 20) {
            all[1] = all[1].wrapping_add(3);
        }
        body.extend(all);
    }
    let kind = if dice.chance(1, 30) { 2 } else { 1 };
    let mut message = vec![kind];
    message.extend(sized(3, &body));
    if dice.chance(1, 20) {
        message[3] = message[3].wrapping_add(1);
    }
    message
}

fn names(dice: &mut Dice) -> Vec<u8> {
    let host = dice.word(HOSTS).to_owned();
    let host = match dice.below(14) {
        0 => format!("{host}\0b.example"),
        1 => "a".repeat(255),
        _ => host,
    };
    let kind = if dice.chance(1, 12) { 1 } else { 0 };
    let mut list = vec![kind];
    list.extend(sized(2, host.as_bytes()));
    if dice.chance(1, 10) {
        list.push(0);
        list.extend(sized(2, b"second.example"));
    }
    match dice.below(16) {
        0 => list,
        1 => Vec::new(),
        _ => sized(2, &list),
    }
}

fn protocols(dice: &mut Dice) -> Vec<u8> {
    let mut list = Vec::new();
    for protocol in dice.some(&["h2", "http/1.1", "", "a,b", "\u{1}"], 3) {
        list.extend(sized(1, protocol.as_bytes()));
    }
    sized(2, &list)
}
