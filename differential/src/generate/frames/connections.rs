//! What belongs to a connection: windows, settings, priorities, GOAWAY, the table of fields.

use super::{BIG, Script, block, usual};
use crate::side::http2::{END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, SETTINGS, WINDOW};

impl Script<'_> {
    /// A window that opens in all ways, with a look at what comes by each.
    pub(super) fn windows(&mut self) {
        let first = self.choose(&[0, 1, 10, 100, 1000, 65535, 100_000]);
        self.open(first);
        self.hold();
        let path = self.word(&["/big.txt", "/big.txt", "/up/", "/fast/", "/up/x"]);
        let stream = self.ask(path);
        let (mut initial, mut own, mut all) = (i64::from(first), 0, 65535_i64);
        let mut sent = 0;
        for _ in 0..self.between(1, 5) {
            let room = (initial + own).min(all);
            if sent < room {
                sent = room;
            }
            self.look(stream, usize::try_from(sent).unwrap_or(0).min(BIG));
            match self.below(4) {
                0 => {
                    initial = self.choose(&[0, 50, 2000, 70_000]);
                    self.set(4, u32::try_from(initial).unwrap_or(0));
                }
                1 => {
                    let by = self.choose(&[1000, 20_000]);
                    all += i64::from(by);
                    self.window(0, by);
                }
                _ => {
                    let by = self.choose(&[1, 63, 64, 300, 20_000]);
                    own += i64::from(by);
                    self.window(stream, by);
                }
            }
        }
        self.window(0, 200_000);
        self.window(stream, 200_000);
        if !self.is_limited && self.chance(1, 3) {
            // Another one beside it.
            self.ask("/x.txt");
            self.read();
        }
        self.read();
    }

    /// Windows that are opened by nothing, or too far.
    pub(super) fn too_wide(&mut self) {
        self.open(self.choose(&[10, 65535]));
        self.hold();
        let stream = match self.below(3) {
            0 => 0,
            _ => self.ask("/big.txt"),
        };
        match self.below(6) {
            0 => self.window(stream, 0),
            1 | 2 => {
                // However much of it is used in between.
                self.window(stream, 0x7fff_ffff);
                self.window(stream, 0x7fff_ffff);
            }
            3 => {
                self.window(stream, 0x7fff_ffff);
                self.set(4, 0x7fff_ffff);
            }
            4 => self.window(stream + 10, 5),
            _ => self.frame(WINDOW, 0, stream, b"\0\0\x01"),
        }
        if stream > 0 {
            self.look(stream, BIG);
        }
        self.ask("/r/next");
        self.read();
    }

    /// The client's GOAWAY, before and after requests.
    pub(super) fn goaway(&mut self) {
        self.open(65535);
        let path = self.word(&["/r/x", "/big.txt", "/up/"]);
        self.ask(path);
        let is_read = self.chance(1, 2);
        if is_read {
            self.read();
        }
        let payload: &[u8] = match self.below(4) {
            0 => b"\0\0\0\0\0\0\0\0",
            1 => b"\0\0\0\0\0\0\0\x02debug",
            2 => b"\0\0\0\x01\0\0\0\x0b",
            _ => b"\0\0\0\0",
        };
        let stream = if self.chance(1, 8) { 1 } else { 0 };
        self.frame(GOAWAY, 0, stream, payload);
        if !is_read {
            self.read();
        }
    }

    /// SETTINGS of all kinds, right and wrong, and requests after them.
    pub(super) fn settings(&mut self) {
        self.open(65535);
        for _ in 0..self.between(1, 3) {
            match self.below(12) {
                0 => self.set(1, self.choose(&[0, 100, 4096])),
                1 => self.set(2, self.choose(&[0, 1, 2])),
                2 => self.set(3, self.choose(&[0, 1, 100])),
                3 => self.set(4, self.choose(&[100, 65535, 0x7fff_ffff, 0x8000_0000])),
                4 => self.set(
                    5,
                    self.choose(&[0, 16383, 16384, 100_000, 0x00ff_ffff, 0x0100_0000]),
                ),
                5 => self.set(6, self.choose(&[0, 100, 65536])),
                6 => self.set(99, 1),
                7 => self.set(8, self.choose(&[0, 1, 2])),
                8 => self.frame(SETTINGS, 0, 0, b""),
                9 => self.frame(SETTINGS, 1, 0, b"abcdef"),
                10 => self.frame(PING, self.choose(&[0, 1]), 0, b"abcdefgh"),
                _ => self.frame(PING, 0, self.choose(&[0, 1]), b"abcdefgh"),
            }
        }
        self.ask("/x.txt");
        self.read();
        self.ask("/none");
        self.read();
    }

    /// Priorities of RFC 7540 and RFC 9218.
    pub(super) fn priorities(&mut self) {
        self.open(65535);
        let stream = self.next;
        match self.below(8) {
            0 => self.frame(0x2, 0, stream, [0, 0, 0, 0, 15]),
            1 => self.frame(0x2, 0, stream, [0x80, 0, 0, 3, 255]),
            // Of itself.
            2 => self.frame(0x2, 0, 3, [0, 0, 0, 3, 255]),
            3 => self.frame(0x2, 0, 0, [0, 0, 0, 3, 255]),
            4 => self.frame(0x2, 0, stream, [0, 0, 0, 3]),
            5 => self.frame(0x10, 0, 0, [&stream.to_be_bytes()[..], b"u=1, i"].concat()),
            6 => self.frame(0x10, 0, 0, b"\0\0"),
            _ => {
                let path = self.word(&["/r/x", "/x.txt"]);
                let stream = self.stream();
                let fields = [("priority", self.word(&["u=0", "u=7, i", "u=9", "x"]))];
                self.frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    stream,
                    usual("GET", path, &fields),
                );
                self.read();
            }
        }
        self.ask("/x.txt");
        self.read();
        self.ask("/big.txt");
        self.read();
    }

    /// More streams at a time than may be.
    pub(super) fn many(&mut self) {
        self.open(0);
        self.hold();
        let streams: Vec<u32> = (0..self.between(2, 4))
            .map(|_| {
                let stream = self.ask("/x.txt");
                self.look(stream, 0);
                stream
            })
            .collect();
        for stream in &streams {
            self.window(*stream, 1000);
        }
        for _ in &streams {
            self.read();
        }
    }

    /// The table of the client's fields: additions, references, sizes.
    pub(super) fn tables(&mut self) {
        self.open(65535);
        // Static: GET, http, then `:authority` and `x-a` as literals that are added.
        let mut first = vec![0x82, 0x86];
        first.extend(block(&[(":path", "/r/table")]));
        first.extend(b"\x41\x09localhost");
        first.extend(b"\x40\x03x-a\x05first");
        let stream = self.stream();
        self.frame(HEADERS, END_HEADERS | END_STREAM, stream, &first);
        self.read();
        let mut second = match self.below(6) {
            0 => vec![0x20],
            1 => vec![0x3f, 0x45],
            // Larger than the server allows.
            2 => vec![0x3f, 0xff, 0xff, 0x7f],
            _ => Vec::new(),
        };
        second.extend([0x82, 0x86]);
        second.extend(block(&[(":path", "/r/table")]));
        second.extend(match self.below(4) {
            // Both additions; one that is none; none at all; an update that is not at the front.
            0 | 1 => vec![0xbf, 0xbe],
            2 => vec![0xbf, 0xff, 0x20],
            _ => vec![0x20, 0x41, 0x01, b'l'],
        });
        let stream = self.stream();
        self.frame(HEADERS, END_HEADERS | END_STREAM, stream, &second);
        self.read();
        self.ask("/r/next");
        self.read();
    }
}
