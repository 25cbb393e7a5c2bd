//! What belongs to a request: its header block, content, and end.

use super::{Script, block, get, usual};
use crate::case::Content;
use crate::side::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PING, PRIORITY, RESET,
};

/// Heads that are none, or odd: fields as `name=value`; `M`, `S`, `P` and `A` are the usual method, scheme, path and authority.
const HEADS: &[&str] = &[
    "M;S;A",
    "M;P;A",
    "S;P;A",
    "M;S;P",
    "M;S;P;host=localhost",
    "M;S;P;A;host=localhost",
    "M;S;P;A;host=other",
    "M;S;P;:path=/r/y;A",
    "M;M;S;P;A",
    "M;S;:path=;A",
    "M;S;:path=r/x;A",
    "M;S;:path=*;A",
    ":method=OPTIONS;S;:path=*;A",
    ":method=get;S;P;A",
    ":method=G T;S;P;A",
    ":method=CONNECT;:authority=localhost:80",
    "M;:scheme=https;P;A",
    "M;:scheme=x;P;A",
    "M;:scheme=;P;A",
    "M;S;P;:authority=localhost:99",
    "M;S;P;:authority=",
    "M;S;P;:authority=a b",
    "M;S;P;A;:x=y",
    "M;S;x-a=b;P;A",
    "M;S;P;A;X-A=b",
    "M;S;P;A;x_a=b",
    "M;S;P;A;x-a=",
    "M;S;P;A;=b",
    "M;S;P;A;x-a=b\r\nc: d",
    "M;S;:path=/r/x\0;A",
    "M;S;:path=/r/x y;A",
    "M;S;:path=/r/x#y;A",
    "M;S;:path=/r//./../r/x;A",
    "M;S;:path=http://localhost/r/x;A",
    "M;S;P;A;te=trailers",
    "M;S;P;A;range=bytes=0-1",
    "M;S;:path=/x.txt;A;range=bytes=2-4",
    ":method=HEAD;S;:path=/big.txt;A",
    ":method=POST;S;P;A;content-length=3;content-length=3",
    "M;S;P;A;cookie=a=1;x-a=b;cookie=b=2",
];

fn head_field(text: &str) -> (&str, &str) {
    match text {
        "M" => (":method", "GET"),
        "S" => (":scheme", "http"),
        "P" => (":path", "/r/x"),
        "A" => (":authority", "localhost"),
        _ => text.split_once('=').unwrap_or((text, "")),
    }
}

impl Script<'_> {
    /// A header block in several frames, and what may not stand between them.
    pub(super) fn pieces(&mut self) {
        self.open(65535);
        let stream = self.stream();
        let all = usual(
            "GET",
            "/r/pieces",
            &[("x-a", "b"), ("cookie", "a=1"), ("cookie", "b=2")],
        );
        let size = self.choose(&[9, 30, 1000]);
        let pieces: Vec<Vec<u8>> = all.chunks(size).map(<[u8]>::to_vec).collect();
        let wrong = self.below(12);
        let last = pieces.len() - 1;
        for (number, piece) in pieces.iter().enumerate() {
            let end = if number == last { END_HEADERS } else { 0 };
            match number {
                0 => self.frame(HEADERS, end | END_STREAM, stream, piece),
                _ => self.frame(CONTINUATION, end, stream, piece),
            }
            if number == last / 2 && number < last {
                match wrong {
                    0 => self.frame(PING, 0, 0, b"12345678"),
                    1 => self.frame(CONTINUATION, 0, stream + 2, piece),
                    2 => self.frame(DATA, END_STREAM, stream, b"a"),
                    3 => self.frame(CONTINUATION, 0, stream, b""),
                    4 => self.frame(0x55, 0, stream, b"a"),
                    _ => {}
                }
            }
        }
        self.read();
        self.ask("/r/next");
        self.read();
    }

    /// Padding of frames, with a priority and without.
    pub(super) fn padding(&mut self) {
        self.open(65535);
        let stream = self.stream();
        let pad = self.choose(&[0, 1, 255]);
        let has_priority = self.chance(1, 2);
        let mut payload = vec![pad];
        let mut flags = END_HEADERS | PADDED;
        if has_priority {
            flags |= PRIORITY;
            payload.extend([0, 0, 0, self.choose(&[0_u8, 1, 3]), 15]);
        }
        let has_content = self.chance(1, 2);
        payload.extend(usual(
            if has_content { "POST" } else { "GET" },
            "/r/padded",
            &[],
        ));
        // More padding than there is frame, at times.
        let is_short = self.chance(1, 6);
        let zeros = if is_short { 0 } else { usize::from(pad) };
        payload.extend(vec![0; zeros]);
        let ends = if has_content { 0 } else { END_STREAM };
        self.frame(HEADERS, flags | ends, stream, payload);
        if has_content {
            for (content, ends) in [("abc", 0), ("", 0), ("", END_STREAM)] {
                let pad = self.choose(&[0, 1, 200]);
                let mut payload = vec![pad];
                payload.extend_from_slice(content.as_bytes());
                payload.extend(vec![0; usize::from(pad)]);
                self.frame(DATA, PADDED | ends, stream, payload);
            }
        }
        self.read();
        self.ask("/r/next");
        self.read();
    }

    /// Content of a request, of the announced length or not, in frames of all sizes.
    pub(super) fn content(&mut self) {
        self.open(65535);
        let path = self.word(&[
            "/up/",
            "/fast/",
            "/r/content",
            "/x.txt",
            "/none",
            "/grpc/a.B/C",
        ]);
        let sizes = [0, 1, 5, 5000];
        let pieces: Vec<usize> = (0..self.between(0, 3))
            .map(|_| self.choose(&sizes))
            .collect();
        let sum: usize = pieces.iter().sum();
        let told = match self.below(6) {
            0 => Some((sum + 1).to_string()),
            1 => Some(sum.saturating_sub(1).to_string()),
            2 | 3 => Some(sum.to_string()),
            4 => Some(
                self.word(&["x", "-1", "", "99999999999999999999"])
                    .to_owned(),
            ),
            _ => None,
        };
        let stream = self.stream();
        let mut more: Vec<(&str, &str)> = Vec::new();
        if let Some(told) = &told {
            more.push(("content-length", told));
        }
        if self.chance(1, 8) {
            more.push(("expect", "100-continue"));
        }
        if path.starts_with("/grpc/") {
            more.push(("content-type", "application/grpc"));
            more.push(("te", "trailers"));
        }
        let method = self.word(&["POST", "POST", "PUT", "GET"]);
        let is_none = pieces.is_empty();
        let ends = if is_none { END_STREAM } else { 0 };
        self.frame(
            HEADERS,
            END_HEADERS | ends,
            stream,
            usual(method, path, &more),
        );
        for (number, size) in pieces.iter().enumerate() {
            let ends = if number + 1 == pieces.len() {
                END_STREAM
            } else {
                0
            };
            self.content_frame(DATA, ends, stream, Content::repeated("c", *size));
        }
        self.read();
        self.ask("/r/next");
        self.read();
    }

    /// Two uploads whose frames take turns.
    pub(super) fn uploads(&mut self) {
        self.open(65535);
        if self.is_limited {
            return;
        }
        let streams = [self.stream(), self.stream()];
        for stream in streams {
            self.frame(
                HEADERS,
                END_HEADERS,
                stream,
                usual("POST", "/r/upload", &[]),
            );
        }
        for _ in 0..self.between(1, 4) {
            for stream in streams {
                let size = self.choose(&[1, 1000, 7000]);
                self.content_frame(DATA, 0, stream, Content::repeated("u", size));
            }
        }
        let last = self.below(3);
        for (number, stream) in streams.into_iter().enumerate() {
            match (number, last) {
                (1, 0) => self.frame(RESET, 0, stream, [0, 0, 0, 8]),
                (1, 1) => self.frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    stream,
                    block(&[("x-t", "t")]),
                ),
                _ => self.frame(DATA, END_STREAM, stream, b""),
            }
        }
        self.read();
        if last != 0 {
            self.read();
        }
    }

    /// RST_STREAM at each moment of a request.
    pub(super) fn resets(&mut self) {
        let first: u32 = self.choose(&[0, 100, 65535]);
        self.open(first);
        // When its place is free for another one is chance.
        if self.is_limited {
            return;
        }
        self.hold();
        let code = [0, 0, 0, self.choose(&[0, 2, 5, 8, 99])];
        match self.below(5) {
            // Before its content.
            0 => {
                let stream = self.stream();
                let path = self.word(&["/r/x", "/up/"]);
                self.frame(
                    HEADERS,
                    END_HEADERS,
                    stream,
                    usual("POST", path, &[("content-length", "5")]),
                );
                self.frame(RESET, 0, stream, code);
                self.frame(DATA, END_STREAM, stream, b"abcde");
            }
            // While its answer waits for a window.
            1 => {
                let path = self.word(&["/big.txt", "/up/", "/fast/"]);
                let stream = self.ask(path);
                self.look(stream, usize::try_from(first).unwrap_or(0));
                self.frame(RESET, 0, stream, code);
                self.look(stream, 0);
            }
            // After its end.
            2 => {
                let stream = self.ask("/none");
                self.window(stream, 10_000);
                self.read();
                self.frame(RESET, 0, stream, code);
            }
            // One that is too short, of the connection, or of no stream.
            3 => {
                let stream = self.ask("/big.txt");
                self.frame(RESET, 0, stream, [0, 0, 8]);
            }
            _ => {
                let stream = self.choose(&[0, 2, 9]);
                self.frame(RESET, 0, stream, code);
            }
        }
        let next = self.ask("/r/next");
        self.window(next, 10_000);
        // The answer to another one is no longer read.
        self.look(next, 10);
    }

    /// Frames of a stream that has ended.
    pub(super) fn closed(&mut self) {
        self.open(65535);
        let stream = self.stream();
        let is_open = self.chance(1, 3);
        if is_open {
            // The client's side alone is closed.
            self.frame(HEADERS, END_HEADERS | END_STREAM, stream, get("/up/"));
        } else {
            self.frame(HEADERS, END_HEADERS | END_STREAM, stream, get("/r/x"));
            self.read();
        }
        match self.below(6) {
            0 => self.frame(DATA, END_STREAM, stream, b"late"),
            1 => self.frame(HEADERS, END_HEADERS | END_STREAM, stream, get("/r/again")),
            2 => self.window(stream, 10),
            3 => self.frame(0x2, 0, stream, [0, 0, 0, 0, 15]),
            4 => self.frame(CONTINUATION, END_HEADERS, stream, get("/r/again")),
            _ => self.window(stream, 0),
        }
        if is_open {
            self.read();
        }
        self.ask("/r/next");
        self.read();
    }

    /// Heads that are none, or odd.
    pub(super) fn heads(&mut self) {
        self.open(65535);
        let fields: Vec<(&str, &str)> = self.word(HEADS).split(';').map(head_field).collect();
        let stream = self.stream();
        self.frame(HEADERS, END_HEADERS | END_STREAM, stream, block(&fields));
        self.read();
        if self.chance(1, 4) {
            // Too large as a whole, or one field.
            let stream = self.stream();
            let value = "v".repeat(self.choose(&[300, 600, 1200, 9000]));
            self.frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                stream,
                usual("GET", "/r/large", &[("x-a", &value)]),
            );
            self.read();
        }
        self.ask("/r/next");
        self.read();
    }
}
