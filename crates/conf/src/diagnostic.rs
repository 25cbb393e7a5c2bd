//! A message about a configuration, and how it is shown.
//!
//! The first line is nginx's, byte for byte except for the program's name, because people search
//! for it and tools match it. The rest is ours: the source line with a caret, and notes.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use base::Span;
use base::text::visible_text;

use crate::tree::SourceMap;

/// nginx's severity levels. From `Error` on, the configuration is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The configuration cannot be used.
    Emerg,
    /// Immediate action is required.
    Alert,
    /// A critical condition.
    Crit,
    /// An error.
    Error,
    /// The configuration works, but probably not as meant.
    Warn,
    /// Worth knowing.
    Notice,
}

impl Severity {
    /// The word between brackets on the first line.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Emerg => "emerg",
            Severity::Alert => "alert",
            Severity::Crit => "crit",
            Severity::Error => "error",
            Severity::Warn => "warn",
            Severity::Notice => "notice",
        }
    }

    /// Whether a configuration with such a message is rejected.
    pub fn is_fatal(self) -> bool {
        self <= Severity::Error
    }
}

/// Which file and line the first line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiagnosticPlace {
    /// The line where `span` starts.
    Span,
    /// The line where nginx had stopped reading, usually the one of the directive's `;` or `{`.
    At(Span),
    /// None, because nginx names none here. The source line is still shown below.
    Unsaid,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// nginx's message, without severity and place.
    pub message: String,
    /// What the caret points to.
    pub span: Option<Span>,
    /// What the first line names.
    pub place: DiagnosticPlace,
    /// Additional lines, each shown after `= `.
    pub notes: Vec<String>,
}

impl Diagnostic {
    /// A message of severity `emerg`, which is nginx's for every error in a configuration.
    pub fn error(message: impl Into<String>, span: impl Into<Option<Span>>) -> Diagnostic {
        Diagnostic::new(Severity::Emerg, message, span)
    }

    /// A message of severity `warn`.
    pub fn warning(message: impl Into<String>, span: impl Into<Option<Span>>) -> Diagnostic {
        Diagnostic::new(Severity::Warn, message, span)
    }

    /// A message of any severity, named after the line where its span starts.
    pub fn new(
        severity: Severity,
        message: impl Into<String>,
        span: impl Into<Option<Span>>,
    ) -> Diagnostic {
        Diagnostic {
            severity,
            message: message.into(),
            span: span.into(),
            place: DiagnosticPlace::Span,
            notes: Vec::new(),
        }
    }

    /// With one more line of our own.
    pub fn note(mut self, note: impl Into<String>) -> Diagnostic {
        self.notes.push(note.into());
        self
    }

    /// Whether the text could not be divided into directives and blocks: all of these begin with nginx's word for it.
    pub fn is_of_syntax(&self) -> bool {
        self.message.starts_with("unexpected ")
    }

    /// With another place for the first line.
    pub fn place(mut self, place: DiagnosticPlace) -> Diagnostic {
        self.place = place;
        self
    }
}

/// The message as text, each line ended by a line feed. `program` is what nginx calls itself:
/// `weir`.
///
/// ```text
/// weir: [emerg] unknown directive "rooot" in /etc/nginx/nginx.conf:3
///   |
/// 3 |     rooot /var/www;
///   |     ^^^^^
///   = did you mean "root"?
/// ```
pub fn render_diagnostic(
    diagnostic: &Diagnostic,
    sources: &SourceMap,
    program: &str,
    colour: bool,
) -> String {
    let styles = DiagnosticStyles::new(colour, diagnostic.severity);
    let mut out = String::new();
    let severity = diagnostic.severity.name();
    // Names and values come from files, and a terminal must not obey them.
    let message = visible_text(&diagnostic.message);
    let place = said_place(diagnostic, sources);
    let place = visible_text(&place);
    let DiagnosticStyles {
        bold,
        severity: tint,
        ..
    } = styles;
    let _ = writeln!(
        out,
        "{bold}{program}: {bold:#}{tint}[{severity}]{tint:#}{bold} {message}{place}{bold:#}"
    );
    let mut gutter = 1;
    if let Some(excerpt) = diagnostic
        .span
        .and_then(|span| SourceExcerpt::of(span, sources))
    {
        gutter = excerpt.number.len();
        excerpt.write(&mut out, &place, &styles);
    }
    for note in &diagnostic.notes {
        write_note(&mut out, note, gutter, &styles);
    }
    out
}

/// The first line alone, without severity, as it goes into an error log: message and place.
pub fn first_line(diagnostic: &Diagnostic, sources: &SourceMap) -> String {
    format!("{}{}", diagnostic.message, said_place(diagnostic, sources))
}

/// ` in FILE:LINE` or ` in command line` or nothing.
fn said_place(diagnostic: &Diagnostic, sources: &SourceMap) -> String {
    let span = match diagnostic.place {
        DiagnosticPlace::Span => diagnostic.span,
        DiagnosticPlace::At(span) => Some(span),
        DiagnosticPlace::Unsaid => None,
    };
    match span {
        Some(span) => sources
            .place(span)
            .map(|place| format!(" in {place}"))
            .unwrap_or_default(),
        None => String::new(),
    }
}

/// A line of source with a caret.
struct SourceExcerpt {
    /// `FILE:LINE`, or `command line`.
    place: String,
    number: String,
    line: String,
    /// Columns before the caret, and how many it covers.
    indent: usize,
    width: usize,
}

/// A line longer than this is cut around the caret, so that a minified value does not fill the
/// screen.
const MAX_LINE: usize = 160;
/// How much of a cut line is shown before the caret.
const BEFORE_CARET: usize = 40;
/// Tabs are shown as this many spaces.
const TAB: &str = "    ";

impl SourceExcerpt {
    fn of(span: Span, sources: &SourceMap) -> Option<SourceExcerpt> {
        let place = sources.place(span)?;
        let (line_number, _) = sources.line_column(span)?;
        let (line, start) = sources.line(span)?;
        let line = &mask_secrets(line)[..];
        let from = (span.start as usize).saturating_sub(start).min(line.len());
        let to = (span.end as usize)
            .saturating_sub(start)
            .clamp(from, line.len());
        let mut before = visible(&line[..from]);
        let marked = visible(&line[from..to]);
        let mut after = visible(&line[to..]);
        if before.chars().count() + marked.chars().count() + after.chars().count() > MAX_LINE {
            let skip = before.chars().count().saturating_sub(BEFORE_CARET);
            if skip > 0 {
                before = format!("…{}", before.chars().skip(skip).collect::<String>());
            }
            after = after.chars().take(BEFORE_CARET).chain(['…']).collect();
        }
        let marked: String = marked.chars().take(MAX_LINE).collect();
        Some(SourceExcerpt {
            place,
            number: line_number.to_string(),
            indent: columns(&before),
            width: columns(&marked).max(1),
            line: format!("{before}{marked}{after}").trim_end().to_owned(),
        })
    }

    fn write(&self, out: &mut String, said: &str, styles: &DiagnosticStyles) {
        let DiagnosticStyles {
            gutter, severity, ..
        } = styles;
        let SourceExcerpt {
            place,
            number,
            line,
            indent,
            width,
        } = self;
        let blank = " ".repeat(number.len());
        // The place is repeated only if the first line does not have it.
        if said.strip_prefix(" in ") != Some(place) {
            let _ = writeln!(out, "{gutter}{blank}-->{gutter:#} {place}");
        }
        let _ = writeln!(out, "{gutter}{blank} |{gutter:#}");
        let _ = writeln!(out, "{gutter}{number} |{gutter:#} {line}");
        let (spaces, carets) = (" ".repeat(*indent), "^".repeat(*width));
        let _ = writeln!(
            out,
            "{gutter}{blank} |{gutter:#} {spaces}{severity}{carets}{severity:#}"
        );
    }
}

fn write_note(out: &mut String, note: &str, gutter_width: usize, styles: &DiagnosticStyles) {
    let gutter = styles.gutter;
    let blank = " ".repeat(gutter_width);
    for (i, line) in note.lines().enumerate() {
        let sign = if i == 0 { '=' } else { ' ' };
        let line = visible_text(line);
        let _ = writeln!(out, "{gutter}{blank} {sign}{gutter:#} {line}");
    }
}

/// A line with stars in place of its secrets: what a directive of [`SECRET_DIRECTIVES`] says, the value of a field or variable
/// whose name says that it is one, a `password=` parameter. Logs are read by others than those who may know that. Variables
/// in it stay, and the length, so that the caret is where it belongs.
fn mask_secrets(line: &[u8]) -> Vec<u8> {
    let mut masked = line.to_vec();
    let is_end = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b';' | b'{' | b'}');
    let mut at = 0;
    let mut directive: &[u8] = b"";
    while at < line.len() {
        let word_end = |from: usize| {
            let end = line[from..].iter().position(|byte| is_end(*byte));
            end.map_or(line.len(), |end| from + end)
        };
        let end = word_end(at);
        let word = &line[at..end];
        let hidden = if SECRET_DIRECTIVES.contains(&word) || is_secret_value(directive, word) {
            let all = line[end..].iter().position(|byte| *byte == b';');
            end..all.map_or(line.len(), |all| end + all)
        } else if let Some(from) = find(word, PASSWORD) {
            // A quoted one may contain spaces.
            let quote = word.first().copied().filter(|first| b"\"'".contains(first));
            let from = at + from + PASSWORD.len();
            let all = quote.and_then(|quote| line[from..].iter().position(|byte| *byte == quote));
            from..all.map_or(end, |all| from + all)
        } else {
            if !word.is_empty() {
                directive = word;
            }
            at = end + 1;
            continue;
        };
        at = hidden.end.max(end) + 1;
        directive = b"";
        mask(&mut masked[hidden]);
    }
    masked
}

/// Puts stars in place of all but spaces, quotes and variables.
fn mask(text: &mut [u8]) {
    let mut in_variable = false;
    for byte in text {
        let is_name = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'{' | b'}');
        in_variable = *byte == b'$' || in_variable && is_name;
        if !in_variable && !byte.is_ascii_whitespace() && !b"\"'".contains(byte) {
            *byte = b'*';
        }
    }
}

/// Whether what follows `word` is a secret: it is the name of a field or a variable that `directive` sets.
fn is_secret_value(directive: &[u8], word: &[u8]) -> bool {
    let sets = directive == b"set"
        || [&b"header"[..], b"headers"]
            .iter()
            .any(|end| directive.ends_with(end));
    let name = word.to_ascii_lowercase();
    sets && SECRET_NAMES.iter().any(|part| find(&name, part).is_some())
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|found| found == part)
}

/// Directives that have a secret as an argument.
const SECRET_DIRECTIVES: [&[u8]; 3] = [b"secret", b"secure_link_secret", b"secure_link_md5"];

/// Parts of the names of fields and variables that are secrets.
const SECRET_NAMES: [&[u8]; 7] = [
    b"authorization",
    b"cookie",
    b"token",
    b"secret",
    b"password",
    b"api-key",
    b"api_key",
];

/// The parameter whose value is not shown.
const PASSWORD: &[u8] = b"password=";

/// The prefix of words that contain a key or a certificate itself, not its path.
const SECRET: &str = "data:";

/// Text for a terminal: tabs are expanded, control characters replaced, invalid UTF-8 marked, and
/// keys hidden.
fn visible(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find(SECRET) {
        let (shown, hidden) = rest.split_at(at + SECRET.len());
        show(shown, &mut out);
        let ends = |char: char| char.is_whitespace() || matches!(char, ';' | '"' | '\'');
        rest = &hidden[hidden.find(ends).unwrap_or(hidden.len())..];
        if rest.len() < hidden.len() {
            out.push('…');
        }
    }
    show(rest, &mut out);
    out
}

fn show(text: &str, out: &mut String) {
    for char in text.chars() {
        match char {
            '\t' => out.push_str(TAB),
            char if char.is_control() => out.push('\u{fffd}'),
            char => out.push(char),
        }
    }
}

/// The width of a text on a terminal, in columns.
fn columns(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// Columns of one character: combining marks take none, East Asian wide ones and emoji two. Ranges
/// rather than a table of Unicode: a caret that is one column off in rare scripts is not worth a
/// dependency.
fn char_width(char: char) -> usize {
    match u32::from(char) {
        0x300..=0x36f | 0x200b..=0x200f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

struct DiagnosticStyles {
    bold: Style,
    severity: Style,
    gutter: Style,
}

impl DiagnosticStyles {
    fn new(colour: bool, severity: Severity) -> DiagnosticStyles {
        if !colour {
            return DiagnosticStyles {
                bold: Style::new(),
                severity: Style::new(),
                gutter: Style::new(),
            };
        }
        let tint = match severity {
            Severity::Warn => AnsiColor::Yellow,
            Severity::Notice => AnsiColor::Cyan,
            Severity::Emerg | Severity::Alert | Severity::Crit | Severity::Error => AnsiColor::Red,
        };
        DiagnosticStyles {
            bold: Style::new().bold(),
            severity: tint.on_default().bold(),
            gutter: AnsiColor::Blue.on_default().bold(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for (line, shown) in [
            ("  secret \"abc d\" 'e';", "  secret \"*** *\" '*';"),
            ("c { secret abc; member x; }", "c { secret ***; member x; }"),
            (
                "redis a password=abc tls=on;",
                "redis a password=*** tls=on;",
            ),
            (
                "redis a \"password=a b\" tls=on;",
                "redis a \"password=* *\" tls=on;",
            ),
            ("redis a password=\"abc\";", "redis a password=\"***\";"),
            ("secret", "secret"),
            ("secret abc", "secret ***"),
            ("secure_link_secret abc;", "secure_link_secret ***;"),
            (
                "secure_link_md5 \"$uri${x} abc\";",
                "secure_link_md5 \"$uri${x} ***\";",
            ),
            (
                "proxy_set_header Authorization \"Basic Zm9v\" x; return 1;",
                "proxy_set_header Authorization \"***** ****\" *; return 1;",
            ),
            (
                "proxy_set_header  Cookie $http_cookie;",
                "proxy_set_header  Cookie $http_cookie;",
            ),
            (
                "more_set_input_headers 'X-Api-Key: abc' b;",
                "more_set_input_headers 'X-Api-Key: ***' *;",
            ),
            ("set $token abc;", "set $token ***;"),
            ("secrets abc; return 1;", "secrets abc; return 1;"),
            ("proxy_pass_header Server;", "proxy_pass_header Server;"),
        ] {
            assert_eq!(mask_secrets(line.as_bytes()), shown.as_bytes(), "{line}");
        }
    }
}
