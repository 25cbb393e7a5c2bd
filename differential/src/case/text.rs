//! A case as text: to be kept, read by people, changed by hand and run again.
//!
//! ```text
//! [case locations-1-17]
//! [http]
//! server { listen %%PORT0%%; return 200; }
//! [file html/a.txt]
//! "0123456789"*100
//! [upstream http]
//! send "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" | close
//! [talk]
//! connect 0 to 0
//! request 0 GET / HTTP/1.1
//! + Host: localhost
//! read 0
//! ```
//!
//! An `[upstream]` has a line for each answer. What follows a request's line and begins with `+` is a field, with `=` its
//! content, with `~` a chunk of it, with `^` a trailer. A `frame` has the numbers of its connection, type, flags and stream.

use std::fmt::Write as _;

use super::{Act, Body, Case, Content, File, Protocol, Request, Step, Upstream, tree};

const PROTOCOLS: &[(&str, Protocol)] = &[
    ("http", Protocol::Http),
    ("fastcgi", Protocol::FastCgi),
    ("uwsgi", Protocol::Uwsgi),
    ("scgi", Protocol::Scgi),
    ("memcached", Protocol::Memcached),
    ("grpc", Protocol::Grpc),
    ("tcp", Protocol::Tcp),
    ("udp", Protocol::Udp),
    ("dns", Protocol::Dns),
];

/// Prints a case.
pub fn print(case: &Case) -> String {
    let mut out = format!("[case {}]\n", case.name);
    let sections = [
        ("main", &case.main),
        ("ambient", &case.ambient),
        ("http", &case.http),
        ("stream", &case.stream),
    ];
    for (name, nodes) in sections {
        if !nodes.is_empty() {
            let _ = writeln!(out, "[{name}]");
            tree::print(nodes, 0, &mut out);
        }
    }
    for file in &case.files {
        // A name may have a line feed in it.
        let path = match file.path.contains(|c: char| c.is_ascii_control()) {
            true => Content::new(&file.path).to_string(),
            false => file.path.clone(),
        };
        let _ = writeln!(out, "[file {path}]\n{}", file.content);
    }
    for upstream in &case.upstreams {
        let name = PROTOCOLS
            .iter()
            .find(|(_, protocol)| *protocol == upstream.protocol)
            .map_or("http", |(name, _)| name);
        let _ = writeln!(out, "[upstream {name}]");
        for answer in &upstream.answers {
            let acts: Vec<String> = answer.iter().map(act).collect();
            let _ = writeln!(out, "{}", acts.join(" | "));
        }
    }
    out.push_str("[talk]\n");
    case.talk.iter().for_each(|next| step(next, &mut out));
    out
}

fn act(act: &Act) -> String {
    match act {
        Act::Send(content) => format!("send {content}"),
        Act::Pause(time) => format!("pause {time}"),
        Act::Close => "close".to_owned(),
        Act::Reset => "reset".to_owned(),
        Act::Silence => "silence".to_owned(),
    }
}

fn step(step: &Step, out: &mut String) {
    let _ = match step {
        Step::Connect { connection, port } => writeln!(out, "connect {connection} to {port}"),
        Step::Http2 {
            connection,
            port,
            window,
        } => writeln!(out, "http2 {connection} to {port} window {window}"),
        Step::Send { connection, bytes } => writeln!(out, "send {connection} {bytes}"),
        Step::Frame {
            connection,
            kind,
            flags,
            stream,
            payload,
        } => writeln!(out, "frame {connection} {kind} {flags} {stream} {payload}"),
        Step::Hold { connection } => writeln!(out, "hold {connection}"),
        Step::Look {
            connection,
            stream,
            bytes,
        } => writeln!(out, "look {connection} {stream} {bytes}"),
        Step::Request {
            connection,
            request,
        } => writeln!(out, "request {connection} {}", shown_request(request)),
        Step::Tls {
            connection,
            name,
            has,
        } => {
            let name = if name.is_empty() { "-" } else { name };
            writeln!(out, "tls {connection} {name} {}", has.join(" "))
        }
        Step::Read { connection } => writeln!(out, "read {connection}"),
        Step::Rest { connection } => writeln!(out, "rest {connection}"),
        Step::Half { connection } => writeln!(out, "half {connection}"),
        Step::Close { connection } => writeln!(out, "close {connection}"),
        Step::Await { upstream, requests } => writeln!(out, "await {upstream} {requests}"),
        Step::Datagram {
            connection,
            port,
            replies,
            bytes,
        } => writeln!(out, "datagram {connection} {port} {replies} {bytes}"),
        Step::Pause(time) => writeln!(out, "pause {time}"),
    };
}

fn shown_request(request: &Request) -> String {
    let mut out = format!("{} {} {}", request.method, request.target, request.version);
    for (name, value) in &request.fields {
        let _ = write!(out, "\n+ {name}: {value}");
    }
    match &request.body {
        Body::None => {}
        Body::Length(content) => {
            let _ = write!(out, "\n= {content}");
        }
        Body::Chunked(chunks, trailers) => {
            // An empty chunk stands for none at all, so that content in no chunk is told from no content.
            for chunk in chunks.iter().chain(&[Content::default()]) {
                let _ = write!(out, "\n~ {chunk}");
            }
            for (name, value) in trailers {
                let _ = write!(out, "\n^ {name}: {value}");
            }
        }
    }
    out
}

/// Reads a case. The error names the line.
pub fn parse(text: &str) -> Result<Case, String> {
    let mut case = Case::default();
    let mut section: Option<(String, usize, String)> = None;
    for (i, line) in text.lines().enumerate() {
        if section.is_none() && (line.trim().is_empty() || line.starts_with('#')) {
            continue;
        }
        let header = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'));
        match (header, &mut section) {
            (Some(name), _) => {
                finish(&mut case, section.take())?;
                section = Some((name.to_owned(), i + 1, String::new()));
            }
            (None, Some((_, _, body))) => {
                body.push_str(line);
                body.push('\n');
            }
            (None, None) => return Err(format!("line {}: before the first section", i + 1)),
        }
    }
    finish(&mut case, section)?;
    Ok(case)
}

fn finish(case: &mut Case, section: Option<(String, usize, String)>) -> Result<(), String> {
    let Some((header, line, body)) = section else {
        return Ok(());
    };
    let (kind, name) = header.split_once(' ').unwrap_or((&header, ""));
    let located = |why: String| format!("[{header}], line {line}: {why}");
    let nodes = || tree::parse(&body).map_err(located);
    match kind {
        "case" => case.name = name.to_owned(),
        "main" => case.main = nodes()?,
        "ambient" => case.ambient = nodes()?,
        "http" => case.http = nodes()?,
        "stream" => case.stream = nodes()?,
        "file" => case.files.push(File {
            path: match name.starts_with('"') {
                true => {
                    let path = Content::parse(name).map_err(located)?.bytes();
                    String::from_utf8(path).map_err(|error| located(error.to_string()))?
                }
                false => name.to_owned(),
            },
            content: Content::parse(&body).map_err(located)?,
        }),
        "upstream" => case.upstreams.push(upstream(name, &body).map_err(located)?),
        "talk" => case.talk = talk(&body).map_err(located)?,
        _ => return Err(located("no such section".to_owned())),
    }
    Ok(())
}

fn upstream(name: &str, body: &str) -> Result<Upstream, String> {
    let protocol = PROTOCOLS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, protocol)| *protocol)
        .ok_or_else(|| format!("no such protocol: {name}"))?;
    let lines = body.lines().filter(|line| !line.trim().is_empty());
    let answers = lines.map(|line| pieces(line).into_iter().map(read_act).collect());
    Ok(Upstream {
        protocol,
        answers: answers.collect::<Result<_, _>>()?,
    })
}

/// Parts a line at its bars, but for those in quotes.
fn pieces(line: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'|' if !quoted => {
                pieces.push(line[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(line[start..].trim());
    pieces
}

fn read_act(text: &str) -> Result<Act, String> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    Ok(match word {
        "send" => Act::Send(Content::parse(rest)?),
        "pause" => Act::Pause(number(rest)?),
        "close" => Act::Close,
        "reset" => Act::Reset,
        "silence" => Act::Silence,
        _ => return Err(format!("no such act: {text}")),
    })
}

fn talk(body: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for line in body.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" | "#" => {}
            "+" | "=" | "~" | "^" => match steps.last_mut() {
                Some(Step::Request { request, .. }) => part(request, word, rest)?,
                _ => return Err(format!("this belongs to no request: {line}")),
            },
            _ => steps.push(read_step(word, rest)?),
        }
    }
    Ok(steps)
}

fn read_step(word: &str, rest: &str) -> Result<Step, String> {
    let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
    let connection: usize = number(first)?;
    Ok(match word {
        "connect" => Step::Connect {
            connection,
            port: number(more.trim_start_matches("to "))?,
        },
        "http2" => {
            let (port, window) = more.split_once(" window ").unwrap_or((more, "65535"));
            Step::Http2 {
                connection,
                port: number(port.trim_start_matches("to "))?,
                window: number(window)?,
            }
        }
        "tls" => {
            let mut words = more.split_whitespace();
            Step::Tls {
                connection,
                name: words.next().unwrap_or("-").trim_matches('-').to_owned(),
                has: words.map(str::to_owned).collect(),
            }
        }
        "send" => Step::Send {
            connection,
            bytes: Content::parse(more)?,
        },
        "frame" => read_frame(connection, more)?,
        "hold" => Step::Hold { connection },
        "look" => read_look(connection, more)?,
        "request" => {
            let mut words = more.splitn(3, ' ').map(str::to_owned);
            let mut next = || words.next().unwrap_or_default();
            Step::Request {
                connection,
                request: Request {
                    method: next(),
                    target: next(),
                    version: next(),
                    ..Request::default()
                },
            }
        }
        "read" => Step::Read { connection },
        "rest" => Step::Rest { connection },
        "half" => Step::Half { connection },
        "close" => Step::Close { connection },
        "await" => Step::Await {
            upstream: connection,
            requests: number(more)?,
        },
        "datagram" => {
            let (port, rest) = more.split_once(' ').unwrap_or((more, ""));
            let (replies, bytes) = rest.split_once(' ').unwrap_or((rest, ""));
            Step::Datagram {
                connection,
                port: number(port)?,
                replies: number(replies)?,
                bytes: Content::parse(bytes)?,
            }
        }
        "pause" => Step::Pause(number(first)?),
        _ => return Err(format!("no such step: {word} {rest}")),
    })
}

fn read_look(connection: usize, text: &str) -> Result<Step, String> {
    let (stream, bytes) = text.split_once(' ').unwrap_or((text, ""));
    Ok(Step::Look {
        connection,
        stream: number(stream)?,
        bytes: number(bytes)?,
    })
}

fn read_frame(connection: usize, text: &str) -> Result<Step, String> {
    let mut words = text.splitn(4, ' ');
    let mut next = || words.next().unwrap_or_default();
    Ok(Step::Frame {
        connection,
        kind: number(next())?,
        flags: number(next())?,
        stream: number(next())?,
        payload: Content::parse(next())?,
    })
}

/// Adds a line to the request above it.
fn part(request: &mut Request, word: &str, rest: &str) -> Result<(), String> {
    let field = || {
        let (name, value) = rest.split_once(':').unwrap_or((rest, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        (name.to_owned(), value.to_owned())
    };
    match (word, &mut request.body) {
        ("+", _) => request.fields.push(field()),
        ("=", body) => *body = Body::Length(Content::parse(rest)?),
        ("~", Body::Chunked(chunks, _)) => {
            let chunk = Content::parse(rest)?;
            if !chunk.is_empty() {
                chunks.push(chunk);
            }
        }
        ("~", body) => {
            let chunk = Content::parse(rest)?;
            let chunks = if chunk.is_empty() {
                Vec::new()
            } else {
                vec![chunk]
            };
            *body = Body::Chunked(chunks, Vec::new());
        }
        (_, Body::Chunked(_, trailers)) => trailers.push(field()),
        _ => return Err(format!("a trailer without chunks: {rest}")),
    }
    Ok(())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("no number: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_case_is_the_case_again() {
        let text = "[case a-1-2]\n[main]\nworker_processes 2;\n[http]\nserver {\n    listen %%PORT0%%;\n}\n\
            [file html/a]\n\"a\"*3 \"\\x00|\"\n[upstream fastcgi]\nsend \"a | b\\\"|\" | pause 20 | close\nreset\n\
            [talk]\nconnect 0 to 1\nsend 0 \"GET / HTTP/1.0\\r\\n\\r\\n\"\nrequest 0 POST /a?b HTTP/1.1\n+ Host: a:b\n+ X: \n\
            ~ \"abc\"\n~ \"\"\n^ T: v\nread 0\nrequest 0 PUT / HTTP/1.1\n= \"x\"*9\nhttp2 1 to 0 window 100\nframe 1 9 4 3 \"x\"\nhold 1\nlook 1 3 10\nrest 0\nhalf 0\nclose 0\nawait 0 2\npause 50\n";
        let case = parse(text).expect("it is a case");
        assert_eq!(print(&case), text);
    }

    #[test]
    fn a_bad_line_is_named() {
        for text in ["a", "[nothing]", "[talk]\nread x", "[upstream http]\nq"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
