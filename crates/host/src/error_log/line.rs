//! One line of the error log: in nginx's format, or as a JSON object (`error_log_format json`).
//!
//! ```text
//! 2026/11/21 07:30:00 [error] 4711#4713: *42 open() "/x" failed (2: No such file), client: 127.0.0.1, host: "a"
//! {"time":"2026-11-21T07:30:00.123+01:00","level":"error","pid":4711,"tid":4713,"connection":42,
//!  "message":"open() \"/x\" failed (2: No such file)","client":"127.0.0.1","host":"a"}        (on one line)
//! ```
//!
//! What a client has sent can imitate a label of the first format (`request: "GET /, host: "…`), which is nginx's and
//! stays. In an object it cannot. An object that would be too long has shorter values: it is always a whole one.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::UNIX_EPOCH;

use super::clock::{log_time, process_ids};
use super::{LogContext, LogLevel, MAX_LINE, recent};

/// Whether lines are JSON: of the whole process, because a file has one format, however many loggers write it.
static JSON: AtomicBool = AtomicBool::new(false);

/// Sets the format of all lines from now on.
pub fn set_json(on: bool) {
    JSON.store(on, Relaxed);
}

/// The room that is left for the context of a long message.
const CONTEXT_ROOM: usize = 700;
/// A value that has less room than this is left out.
const LEAST_ROOM: usize = 16;

/// Builds one line into `line`, at most [`MAX_LINE`] bytes, ending in a newline.
pub(super) fn format_line(
    line: &mut Vec<u8>,
    level: LogLevel,
    context: &dyn LogContext,
    message: fmt::Arguments<'_>,
) {
    line.clear();
    match JSON.load(Relaxed) {
        true => format_json(line, level, context, message),
        false => format_text(line, level, context, message),
    }
    line.push(b'\n');
}

fn format_text(
    line: &mut Vec<u8>,
    level: LogLevel,
    context: &dyn LogContext,
    message: fmt::Arguments<'_>,
) {
    log_time(line);
    let (process, thread) = process_ids();
    let mut out = FmtBytes(line);
    // Writing to a Vec cannot fail; a Display that reports an error has printed what it could.
    let _ = write!(out, " [{}] {process}#{thread}: ", level.word());
    if let Some(number) = context.connection() {
        let _ = write!(out, "*{number} ");
    }
    let begin = out.0.len();
    let _ = out.write_fmt(message);
    if recent::is_kept(level) {
        recent::keep(level, &line[begin..]);
    }
    if level != LogLevel::Debug {
        context.describe(&mut ContextWriter::text(line));
    }
    // One event is one line, and no terminal obeys it, whatever a peer has put into a header.
    if let Cow::Owned(visible) = base::text::visible(line) {
        *line = visible;
    }
    line.truncate(MAX_LINE - 1);
}

fn format_json(
    line: &mut Vec<u8>,
    level: LogLevel,
    context: &dyn LogContext,
    message: fmt::Arguments<'_>,
) {
    let (process, thread) = process_ids();
    let mut out = FmtBytes(line);
    // As above.
    let _ = write!(
        out,
        "{{\"time\":\"{}\",\"level\":\"{}\",\"pid\":{process},\"tid\":{thread}",
        IsoNow,
        level.word()
    );
    if let Some(number) = context.connection() {
        let _ = write!(out, ",\"connection\":{number}");
    }
    let mut text = Vec::new();
    let _ = FmtBytes(&mut text).write_fmt(message);
    if recent::is_kept(level) {
        recent::keep(level, &text);
    }
    line.extend_from_slice(b",\"message\":");
    // The brace and the newline have their place already.
    write_string(&text, MAX_LINE - CONTEXT_ROOM, line);
    if level != LogLevel::Debug {
        context.describe(&mut ContextWriter {
            out: line,
            is_json: true,
        });
    }
    line.push(b'}');
}

/// Where a context writes what follows the message.
pub struct ContextWriter<'a> {
    out: &'a mut Vec<u8>,
    is_json: bool,
}

impl<'a> ContextWriter<'a> {
    /// Writes it as nginx does.
    pub fn text(out: &'a mut Vec<u8>) -> ContextWriter<'a> {
        ContextWriter {
            out,
            is_json: false,
        }
    }

    /// What was being done; nothing if it is empty.
    pub fn doing(&mut self, action: &str) {
        match self.is_json {
            _ if action.is_empty() => {}
            true => self.member("while", action.as_bytes()),
            false => self.join(&[b" while ", action.as_bytes()]),
        }
    }

    /// A word, such as an address.
    pub fn word(&mut self, label: &str, value: &[u8]) {
        match self.is_json {
            true => self.member(label, value),
            false => self.join(&[b", ", label.as_bytes(), b": ", value]),
        }
    }

    /// A text, which is in quotes.
    pub fn quoted(&mut self, label: &str, value: &[u8]) {
        match self.is_json {
            true => self.member(label, value),
            false => self.join(&[b", ", label.as_bytes(), b": \"", value, b"\""]),
        }
    }

    /// Two numbers of bytes, without a blank before them.
    pub fn byte_counts(&mut self, label: &str, one: u64, other: u64) {
        let counts = format!("{one}/{other}");
        match self.is_json {
            true => self.member(label, counts.as_bytes()),
            false => self.join(&[b", ", label.as_bytes(), b":", counts.as_bytes()]),
        }
    }

    /// What held a loop, the parts before the whole.
    pub fn suspects(&mut self, suspects: &[String]) {
        match self.is_json {
            _ if suspects.is_empty() => {}
            true => self.member("in", suspects.join("; ").as_bytes()),
            false => suspects
                .iter()
                .for_each(|suspect| self.join(&[b", in ", suspect.as_bytes()])),
        }
    }

    fn join(&mut self, parts: &[&[u8]]) {
        parts
            .iter()
            .for_each(|part| self.out.extend_from_slice(part));
    }

    fn member(&mut self, name: &str, value: &[u8]) {
        // `,"` and `":` and the quotes of the value.
        let begin = self.out.len() + name.len() + 6;
        if begin + LEAST_ROOM > MAX_LINE - 2 {
            return;
        }
        self.join(&[b",\"", name.as_bytes(), b"\":"]);
        write_string(value, MAX_LINE - 2, self.out);
    }
}

/// Appends a JSON string (RFC 8259, section 7) that ends before `end`; what does not fit is left out. What is no UTF-8
/// is shown as U+FFFD.
fn write_string(value: &[u8], end: usize, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut buffer = [0; 4];
    for char in String::from_utf8_lossy(value).chars() {
        let before = out.len();
        match char {
            '"' | '\\' | '\0'..='\x1f' => base::text::write_json_escape(char as u8, out),
            // A terminal would obey it.
            '\x7f'..='\u{9f}' => {
                out.extend_from_slice(format!("\\u{:04x}", char as u32).as_bytes())
            }
            char => out.extend_from_slice(char.encode_utf8(&mut buffer).as_bytes()),
        }
        if out.len() >= end {
            out.truncate(before);
            break;
        }
    }
    out.push(b'"');
}

/// The present time as RFC 3339 has it, with milliseconds.
struct IsoNow;

impl fmt::Display for IsoNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = rt::clock::read_wall()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let time = rt::local_time(since.as_secs());
        let sign = if time.offset < 0 { '-' } else { '+' };
        let minutes = time.offset.unsigned_abs() / 60;
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}{sign}{:02}:{:02}",
            time.year,
            time.month,
            time.day,
            time.hour,
            time.minute,
            time.second,
            since.subsec_millis(),
            minutes / 60,
            minutes % 60,
        )
    }
}

/// `fmt::Write` for bytes.
struct FmtBytes<'a>(&'a mut Vec<u8>);

impl fmt::Write for FmtBytes<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::NoContext;
    use super::*;

    struct Client;
    impl LogContext for Client {
        fn connection(&self) -> Option<u64> {
            Some(42)
        }
        fn describe(&self, out: &mut ContextWriter<'_>) {
            out.word("client", b"127.0.0.1\nfake");
        }
    }

    fn line(level: LogLevel, context: &dyn LogContext, message: fmt::Arguments<'_>) -> String {
        let mut bytes = Vec::new();
        format_line(&mut bytes, level, context, message);
        String::from_utf8(bytes).expect("the test writes text only")
    }

    fn json(context: &dyn LogContext, message: fmt::Arguments<'_>) -> String {
        let mut bytes = Vec::new();
        format_json(&mut bytes, LogLevel::Error, context, message);
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }

    #[test]
    fn a_line_has_nginx_s_shape() {
        let text = line(LogLevel::Error, &Client, format_args!("it {}", "failed"));
        let (time, rest) = text.split_at(19);
        assert_eq!(time.as_bytes()[4], b'/');
        assert_eq!(time.as_bytes()[13], b':');
        assert!(rest.starts_with(" [error] "), "{rest}");
        assert!(
            rest.ends_with(": *42 it failed, client: 127.0.0.1 fake\n"),
            "{rest}"
        );
    }

    #[test]
    fn control_bytes_are_shown_and_not_obeyed() {
        let text = line(
            LogLevel::Warn,
            &NoContext,
            format_args!("a\x1b[2Jb\r\nc\td\u{e4}"),
        );
        assert!(text.ends_with(": a\\x1b[2Jb c\td\u{e4}\n"), "{text}");
    }

    #[test]
    fn a_long_line_is_cut_and_keeps_its_newline() {
        let long = "x".repeat(5000);
        let text = line(LogLevel::Warn, &NoContext, format_args!("{long}"));
        assert_eq!(text.len(), MAX_LINE);
        assert!(text.ends_with("x\n"));
    }

    #[test]
    fn an_object_has_members_and_no_client_can_forge_them() {
        let text = json(&Client, format_args!("a \"b\"\x1b\x7f"));
        let (_, rest) = text.split_once(",\"level\":\"error\",").expect("the level");
        let (_, rest) = rest
            .split_once(",\"connection\":42,")
            .expect("the connection");
        let expected = r#""message":"a \"b\"\u001B\u007f","client":"127.0.0.1\nfake"}"#;
        assert_eq!(rest, expected);
    }

    #[test]
    fn a_long_object_is_whole() {
        for long in ["x".repeat(5000), "\"".repeat(5000), "\u{20ac}".repeat(5000)] {
            let text = json(&Client, format_args!("{long}"));
            assert!(text.len() < MAX_LINE, "{}", text.len());
            assert!(
                text.ends_with(",\"client\":\"127.0.0.1\\nfake\"}"),
                "{text}"
            );
        }
        struct Long;
        impl LogContext for Long {
            fn connection(&self) -> Option<u64> {
                None
            }
            fn describe(&self, out: &mut ContextWriter<'_>) {
                out.quoted("request", "\u{1}".repeat(5000).as_bytes());
                out.quoted("host", b"a");
            }
        }
        let text = json(&Long, format_args!("m"));
        assert!(text.len() < MAX_LINE && text.ends_with("\"}"), "{text}");
    }
}
