//! `stream`: what becomes of connections and of their bytes before, at and behind a TCP proxy.

use crate::case::content::Content;
use crate::case::tree::parse;
use crate::case::{Act, Case, Protocol, Step, Upstream};
use crate::random::Dice;

use super::Generator;

pub(super) struct Streams;

const VALUES: &[&str] = &[
    "$remote_addr",
    "$server_addr",
    "$protocol",
    "$status",
    "$bytes_received",
    "$bytes_sent",
    "$upstream_addr",
    "$m",
    "$s",
    "$g",
    "$hostname_",
    "$ssl_preread_server_name",
    "$ssl_preread_protocol",
    "$ssl_preread_alpn_protocols",
    "text",
    "$binary",
    "$realip_remote_addr",
    "$proxy_protocol_addr",
    "$proxy_protocol_port",
    "$proxy_protocol_server_addr",
    "$proxy_protocol_tlv_0x02",
    "$proxy_protocol_server_port",
];

/// What clients begin with.
const FIRST: &[&[u8]] = &[
    b"hello\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"PROXY TCP4 10.1.2.3 10.4.5.6 1111 2222\r\nhello",
    b"PROXY TCP6 ::1 ::2 3 4\r\nhello",
    b"PROXY UNKNOWN\r\nhello",
    b"PROXY UNKNOWN a b c\r\nhello",
    b"PROXY TCP4 10.1.2.3 10.4.5.6 1111 22222222\r\nhello",
    b"PROXY TCP4 10.1.2.300 10.4.5.6 1 2\r\nhello",
    b"PROXY TCP4 10.1.2.3\r\nhello",
    b"PROXY\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\x0a\x01\x02\x03\x0a\x04\x05\x06\x04\x57\x08\xaehello",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x14\x0a\x01\x02\x03\x0a\x04\x05\x06\x04\x57\x08\xae\x02\x00\x05nameshello",
    b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00hello",
    b"\r\n\r\n\0\r\nQUIT\n\x31\x11\x00\x0c\x0a\x01\x02\x03\x0a\x04\x05\x06\x04\x57\x08\xaehello",
    b"\x16\x03\x01\x00\x05hello",
    b"\x16\x03\x01",
    b"",
];

/// Datagrams.
pub(super) struct Packets;

impl Generator for Packets {
    fn area(&self) -> &'static str {
        "packets"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut text = String::from("server { listen %%PORT0%% udp;\n");
        for line in dice.some(
            &[
                "proxy_responses 1;",
                "proxy_responses 2;",
                "proxy_requests 1;",
                "proxy_requests 2;",
                "proxy_timeout 300ms;",
                "proxy_buffer_size 1k;",
                "allow 127.0.0.0/8;",
                "deny %%ADDRESS%%;",
                "proxy_protocol on;",
                "limit_conn_log_level info;",
            ],
            3,
        ) {
            if !text.contains(line.split(' ').next().unwrap_or(line)) {
                text.push_str(&format!("{line}\n"));
            }
        }
        // A session that lives on holds the end of the server up.
        if !text.contains("proxy_timeout") {
            text.push_str("proxy_timeout 1s;\n");
        }
        text.push_str(match dice.chance(1, 4) {
            true => "return \"$protocol $remote_addr $bytes_received x\";\n}\n",
            false => "proxy_pass %%UP0%%;\n}\n",
        });
        let mut acts: Vec<Act> = Vec::new();
        for _ in 0..dice.between(1, 2) {
            acts.push(Act::Send(Content::repeated(
                "answer",
                *dice.pick(&[1, 1, 1, 200, 2000]),
            )));
        }
        let replies = acts.len();
        let mut case = Case {
            stream: parse(&text).unwrap_or_default(),
            upstreams: vec![Upstream {
                protocol: Protocol::Udp,
                answers: vec![acts],
            }],
            ..Case::default()
        };
        for _ in 0..dice.between(1, 4) {
            let times = *dice.pick(&[1, 1, 3, 300, 3000]);
            case.talk.push(Step::Datagram {
                connection: dice.below(2),
                port: 0,
                replies: dice.between(1, replies),
                bytes: Content::repeated("hello", times),
            });
        }
        case
    }
}

impl Generator for Streams {
    fn area(&self) -> &'static str {
        "streams"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut text = String::from(
            "geo $remote_addr $m%%N%% { default d; 127.0.0.0/8 one; }\n\
             upstream u%%N%% { server %%UP0%%; }\n\
             server { listen %%PORT1%%; proxy_pass %%UP1%%; }\n",
        );
        let proxied = dice.chance(1, 2);
        let protocol = if proxied { " proxy_protocol" } else { "" };
        text.push_str(&format!("server {{ listen %%PORT0%%{protocol};\n"));
        if dice.chance(1, 4) {
            text.push_str("preread_timeout 500ms; ssl_preread on;\n");
        }
        if dice.chance(1, 3) {
            text.push_str("set $s set-$protocol;\n");
        }
        for line in dice.some(
            &[
                "set_real_ip_from 127.0.0.0/8;",
                "allow 127.0.0.1;",
                "deny 192.0.2.0/24;",
                "deny 10.0.0.0/8;",
                "deny all;",
                "proxy_protocol on;",
                "proxy_buffer_size 1k;",
                "proxy_timeout 1s;",
                "proxy_connect_timeout 1s;",
                "proxy_next_upstream off;",
                "proxy_half_close on;",
                "tcp_nodelay off;",
            ],
            4,
        ) {
            // Most sessions are to come through.
            if !line.starts_with("deny") || dice.chance(1, 4) {
                text.push_str(&format!("{line}\n"));
            }
        }
        match dice.below(5) {
            0 | 1 => {
                let values = (0..dice.between(1, 4)).map(|_| value(dice));
                let values: Vec<String> = values.collect();
                text.push_str(&format!("return \"{}\\n\";\n", values.join("|")));
            }
            2 => text.push_str("proxy_pass %%UP0%%;\n"),
            3 => text.push_str("proxy_pass u%%N%%;\n"),
            _ => text.push_str("proxy_pass %%UP1%%;\n"),
        }
        text.push_str("}\n");
        let mut case = Case {
            stream: parse(&text).unwrap_or_default(),
            upstreams: vec![behind(dice), behind(dice)],
            ..Case::default()
        };
        for connection in 0..dice.between(1, 3) {
            // Whether an answer comes before the end of what the client says is seen is chance, unless halves are kept.
            let halves = text.contains("half_close on") || text.contains("return ");
            talk(dice, connection, (proxied, halves), &mut case.talk);
        }
        case
    }
}

fn value(dice: &mut Dice) -> String {
    match dice.word(VALUES) {
        "$m" => "$m%%N%%".to_owned(),
        "$s" | "$g" | "$hostname_" | "$binary" => "x".to_owned(),
        "$status" | "$bytes_sent" => "$connection_".replace("$connection_", "c"),
        other => other.to_owned(),
    }
}

fn behind(dice: &mut Dice) -> Upstream {
    let mut acts = Vec::new();
    for _ in 0..dice.below(3) {
        acts.push(match dice.below(4) {
            0 => Act::Pause(20),
            1 => Act::Send(Content::repeated("0123456789", dice.between(1, 9000))),
            _ => Act::Send(Content::new("answer\n")),
        });
    }
    acts.push(match dice.chance(1, 8) {
        true => Act::Reset,
        false => Act::Close,
    });
    let answers = if dice.chance(1, 8) {
        Vec::new()
    } else {
        vec![acts]
    };
    Upstream {
        protocol: Protocol::Tcp,
        answers,
    }
}

fn talk(dice: &mut Dice, connection: usize, (proxied, halves): (bool, bool), talk: &mut Vec<Step>) {
    let port = usize::from(dice.chance(1, 6));
    talk.push(Step::Connect { connection, port });
    let mut send = |bytes: &[u8]| {
        if !bytes.is_empty() {
            talk.push(Step::Send {
                connection,
                bytes: Content::new(bytes),
            });
        }
    };
    if proxied && dice.chance(2, 3) {
        send(FIRST[dice.between(2, 13)]);
    } else {
        send(FIRST[dice.below(FIRST.len())]);
    }
    if dice.chance(1, 3) {
        send(b"more\n");
    }
    if halves && port == 0 && dice.chance(3, 4) {
        talk.push(Step::Half { connection });
    }
    talk.push(Step::Rest { connection });
}
