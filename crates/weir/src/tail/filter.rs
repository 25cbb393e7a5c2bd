//! Which requests to show: `status>=500 && $host ~ shop`.
//!
//! ```text
//! either     = both { "||" both }
//! both       = one { "&&" one }
//! one        = "!" one | "(" either ")" | operand [ operator operand ]
//! operand    = "$name" | "${name}" | word | "quoted" | 'quoted'
//! operator   = "==" "=" "!=" "<" "<=" ">" ">=" "~" "~*" "!~" "!~*"
//! ```
//!
//! A word is a variable on the left of an operator or alone, and a text on its right. Two numbers are compared as
//! numbers, also with a unit (`1m`, `500ms`). Of a list (`$upstream_status` after several tries) one item is enough. A
//! variable alone is true as in nginx's `if`: neither empty nor `0`.

use std::iter::Peekable;

use conf::regex::Regex;
use conf::spelling::nearest_name;
use http::request_feed;

use super::record::{ARGUMENT, COLUMN, TailRecord, list_items};

/// A parsed filter.
pub(super) enum RequestFilter {
    /// One of these holds.
    Either(Vec<RequestFilter>),
    /// All of these hold.
    Both(Vec<RequestFilter>),
    /// It does not hold.
    Not(Box<RequestFilter>),
    /// A variable is neither empty nor 0.
    IsTrue(String),
    /// A variable is compared with a value.
    Compare(String, CompareOperator, FilterOperand),
    /// A variable matches a pattern.
    Matches(String, Regex),
}

/// How two values are compared. `!=` is the opposite of `==`, so that of a list no item may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareOperator {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The right side.
pub(super) enum FilterOperand {
    /// With a `$`.
    Variable(String),
    /// A word or a quoted text.
    Text(String),
}

/// Why a text is no filter: a message, and the bytes that it is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilterError {
    /// What is wrong; on a second line what would be right.
    message: String,
    /// Where it begins and ends, in bytes.
    at: (usize, usize),
}

impl FilterError {
    fn new(message: impl Into<String>, at: (usize, usize)) -> FilterError {
        FilterError {
            message: message.into(),
            at,
        }
    }

    /// The message, the text, and a caret below.
    pub(super) fn show(&self, text: &str) -> String {
        let (begin, end) = self.at;
        let before = text.get(..begin).unwrap_or_default().chars().count();
        let marked = text.get(begin..end).unwrap_or_default().chars().count();
        let (indent, carets) = (" ".repeat(before), "^".repeat(marked.max(1)));
        let (first, hint) = match self.message.split_once('\n') {
            Some((first, hint)) => (first, hint),
            None => (&*self.message, ""),
        };
        format!("{first}\n  {text}\n  {indent}{carets} {hint}")
            .trim_end()
            .to_owned()
    }
}

/// How deep parentheses and `!` may nest.
const MAX_DEPTH: usize = 100;

impl RequestFilter {
    /// Reads a filter. It is checked as a whole: a name that no record has is an error, not a filter that never holds.
    pub(super) fn parse(text: &str) -> Result<RequestFilter, FilterError> {
        let tokens = tokens(text)?;
        let mut parser = FilterParser {
            tokens: tokens.into_iter().peekable(),
            end: text.len(),
            depth: 0,
        };
        let filter = parser.either()?;
        match parser.tokens.next() {
            None => Ok(filter),
            Some(extra) => Err(FilterError::new(
                "expected \"&&\", \"||\" or the end",
                extra.at,
            )),
        }
    }

    /// Whether it holds for a request.
    pub(super) fn is_match(&self, record: &TailRecord) -> bool {
        match self {
            RequestFilter::Either(parts) => parts.iter().any(|part| part.is_match(record)),
            RequestFilter::Both(parts) => parts.iter().all(|part| part.is_match(record)),
            RequestFilter::Not(part) => !part.is_match(record),
            RequestFilter::IsTrue(name) => !matches!(&*value_of(name, record), b"" | b"0"),
            RequestFilter::Compare(name, operator, right) => {
                let right = match right {
                    FilterOperand::Variable(name) => value_of(name, record),
                    FilterOperand::Text(text) => text.clone().into_bytes(),
                };
                any_item(name, record, |left| operator.holds(left, &right))
            }
            RequestFilter::Matches(name, regex) => {
                any_item(name, record, |value| regex.is_match(value))
            }
        }
    }
}

/// Whether it holds for the value of a variable, or for one item of a list.
fn any_item(name: &str, record: &TailRecord, holds: impl Fn(&[u8]) -> bool) -> bool {
    let value = value_of(name, record);
    match name.starts_with("upstream_") {
        true => list_items(&value).into_iter().any(holds),
        false => holds(&value),
    }
}

/// The value of a variable. Columns of the ledger are in seconds, as the server's variables are.
fn value_of(name: &str, record: &TailRecord) -> Vec<u8> {
    if let Some(column) = name.strip_prefix(COLUMN) {
        let columns = record.columns();
        let found = columns.iter().find(|(known, _)| *known == column);
        let seconds = found.map_or(0.0, |(_, millis)| millis / 1000.0);
        return seconds.to_string().into_bytes();
    }
    record.value(name).to_vec()
}

impl CompareOperator {
    /// Whether it holds between two values.
    fn holds(self, left: &[u8], right: &[u8]) -> bool {
        let order = match (number(left), number(right)) {
            (Some(left), Some(right)) => left.partial_cmp(&right),
            _ if self == CompareOperator::Equal => Some(left.cmp(right)),
            // What is no number is neither more nor less.
            _ => None,
        };
        order.is_some_and(|order| match self {
            CompareOperator::Equal => order.is_eq(),
            CompareOperator::Less => order.is_lt(),
            CompareOperator::LessOrEqual => order.is_le(),
            CompareOperator::Greater => order.is_gt(),
            CompareOperator::GreaterOrEqual => order.is_ge(),
        })
    }
}

/// A number, with nginx's units of sizes, or with `ms` or `s`: times are in seconds.
fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "k" | "K" => 1024.0,
        "m" | "M" => 1024.0 * 1024.0,
        "g" | "G" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let is_plain = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = digits.parse().ok().filter(|_| is_plain)?;
    Some(number * factor)
}

/// What a piece of the text is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TokenKind {
    Or,
    And,
    Not,
    Open,
    Close,
    Operator(&'static str),
    Variable(String),
    Word(String),
    Quoted(String),
}

/// A piece of the text.
#[derive(Clone, Debug)]
struct FilterToken {
    kind: TokenKind,
    /// Where it begins and ends, for errors.
    at: (usize, usize),
}

/// What stands for itself, longest first.
const SIGNS: [(&str, TokenKind); 16] = [
    ("!~*", TokenKind::Operator("!~*")),
    ("||", TokenKind::Or),
    ("&&", TokenKind::And),
    ("==", TokenKind::Operator("==")),
    ("!=", TokenKind::Operator("!=")),
    ("<=", TokenKind::Operator("<=")),
    (">=", TokenKind::Operator(">=")),
    ("!~", TokenKind::Operator("!~")),
    ("~*", TokenKind::Operator("~*")),
    ("=", TokenKind::Operator("==")),
    ("<", TokenKind::Operator("<")),
    (">", TokenKind::Operator(">")),
    ("~", TokenKind::Operator("~")),
    ("!", TokenKind::Not),
    ("(", TokenKind::Open),
    (")", TokenKind::Close),
];

/// Takes the text apart.
fn tokens(text: &str) -> Result<Vec<FilterToken>, FilterError> {
    let mut tokens: Vec<FilterToken> = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let rest = &text[at..];
        // The right side of a match is a pattern, whose signs are its own.
        let is_pattern = matches!(
            tokens.last().map(|token| &token.kind),
            Some(TokenKind::Operator("~" | "~*" | "!~" | "!~*"))
        );
        let sign = SIGNS.iter().find(|(sign, _)| rest.starts_with(sign));
        let (kind, length) = match (first, sign) {
            ('"' | '\'', _) => quoted(rest, at)?,
            (_, Some((sign, kind))) if !is_pattern => (kind.clone(), sign.len()),
            ('$', _) if !is_pattern => variable(rest, at)?,
            _ => word(rest, is_pattern, at)?,
        };
        let end = at + length;
        tokens.push(FilterToken {
            kind,
            at: (at, end),
        });
        at = end;
    }
    Ok(tokens)
}

/// A quoted text at the beginning of `rest`, and its length with the quotes.
fn quoted(rest: &str, at: usize) -> Result<(TokenKind, usize), FilterError> {
    let quote = if rest.starts_with('"') { '"' } else { '\'' };
    let (mut out, mut escaped) = (String::new(), false);
    for (offset, char) in rest.char_indices().skip(1) {
        match char {
            // Only the quote: a pattern has backslashes of its own.
            _ if std::mem::take(&mut escaped) => {
                if char != quote {
                    out.push('\\');
                }
                out.push(char);
            }
            '\\' => escaped = true,
            char if char == quote => return Ok((TokenKind::Quoted(out), offset + 1)),
            char => out.push(char),
        }
    }
    Err(FilterError::new("a quote is not closed", (at, at + 1)))
}

/// Whether a character may be in the name of a variable.
fn is_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// `$name` or `${name}` at the beginning of `rest`, and its length.
fn variable(rest: &str, at: usize) -> Result<(TokenKind, usize), FilterError> {
    let inside = &rest[1..];
    let (name, length) = match inside.strip_prefix('{') {
        Some(inside) => {
            let end = inside
                .find('}')
                .ok_or_else(|| FilterError::new("\"${\" without \"}\"", (at, at + rest.len())))?;
            (&inside[..end], end + 3)
        }
        None => {
            let end = inside.find(|char| !is_name(char)).unwrap_or(inside.len());
            (&inside[..end], end + 1)
        }
    };
    known_name(name, (at, at + length)).map(|name| (TokenKind::Variable(name), length))
}

/// A word without quotes at the beginning of `rest`, and its length. A pattern may have signs in it.
fn word(rest: &str, is_pattern: bool, at: usize) -> Result<(TokenKind, usize), FilterError> {
    let ends = |char: char| match is_pattern {
        true => char.is_whitespace(),
        false => char.is_whitespace() || "!=<>~()&|\"'$".contains(char),
    };
    let mut end = rest.find(ends).unwrap_or(rest.len());
    if is_pattern {
        // `($host ~ shop)`: a parenthesis that the pattern has not opened is the filter's.
        let mut depth = 0;
        for (offset, char) in rest[..end].char_indices() {
            match char {
                '(' => depth += 1,
                ')' if depth == 0 => {
                    end = offset;
                    break;
                }
                ')' => depth -= 1,
                _ => {}
            }
        }
    }
    match end {
        0 => {
            let length = rest.chars().next().map_or(1, char::len_utf8);
            Err(FilterError::new("this is no operator", (at, at + length)))
        }
        _ => Ok((TokenKind::Word(rest[..end].to_owned()), end)),
    }
}

/// Words that come to mind, and the variables that are meant.
const OTHER_WORDS: [(&str, &str); 10] = [
    ("time", "request_time"),
    ("duration", "request_time"),
    ("method", "request_method"),
    ("path", "uri"),
    ("url", "request_uri"),
    ("client", "remote_addr"),
    ("ip", "remote_addr"),
    ("upstream", "upstream_addr"),
    ("cache", "upstream_cache_status"),
    ("location", request_feed::LOCATION),
];

/// Prefixes of names that have many forms.
const FAMILIES: [&str; 4] = ["http_", "sent_http_", ARGUMENT, COLUMN];

/// Checks that a variable is in the records.
fn known_name(name: &str, at: (usize, usize)) -> Result<String, FilterError> {
    let lower = name.to_ascii_lowercase();
    // The server has them as `***`: a filter for one would never be what is meant.
    if lower.starts_with("cookie_") || lower == "http_cookie" {
        let message = "cookies are credentials, which the server does not show\n";
        return Err(FilterError::new(message, at));
    }
    let is_family = |family: &&str| lower.len() > family.len() && lower.starts_with(*family);
    if request_feed::VARIABLES.contains(&&*lower) || FAMILIES.iter().any(is_family) {
        return Ok(lower);
    }
    let meant = OTHER_WORDS.iter().find(|(word, _)| *word == lower);
    let meant = meant.map(|(_, meant)| *meant);
    let near = meant.or_else(|| nearest_name(&lower, request_feed::VARIABLES));
    let hint = near.map_or(String::new(), |near| format!("\ndid you mean \"{near}\"?"));
    Err(FilterError::new(
        format!("no request has a variable \"{name}\" here{hint}"),
        at,
    ))
}

/// Reads pieces by the grammar above, one function for each line of it.
struct FilterParser<I: Iterator<Item = FilterToken>> {
    tokens: Peekable<I>,
    /// Where the text ends: the place of what is missing there.
    end: usize,
    /// How many levels are open. Each one is a call, and the stack has an end.
    depth: usize,
}

impl<I: Iterator<Item = FilterToken>> FilterParser<I> {
    /// The whole of it, and what is in parentheses.
    fn either(&mut self) -> Result<RequestFilter, FilterError> {
        let mut parts = vec![self.both()?];
        while self.takes(&TokenKind::Or) {
            parts.push(self.both()?);
        }
        Ok(RequestFilter::Either(parts))
    }

    /// Binds tighter than `||`, as everywhere.
    fn both(&mut self) -> Result<RequestFilter, FilterError> {
        let mut parts = vec![self.one()?];
        while self.takes(&TokenKind::And) {
            parts.push(self.one()?);
        }
        Ok(RequestFilter::Both(parts))
    }

    /// Takes the next piece if it is this one.
    fn takes(&mut self, kind: &TokenKind) -> bool {
        self.tokens.next_if(|token| token.kind == *kind).is_some()
    }

    /// The next piece; at the end an error that says what was wanted.
    fn next(&mut self, wanted: &str) -> Result<FilterToken, FilterError> {
        let end = (self.end, self.end);
        self.tokens
            .next()
            .ok_or_else(|| FilterError::new(format!("expected {wanted}"), end))
    }

    /// What `!` and the operators of logic stand between.
    fn one(&mut self) -> Result<RequestFilter, FilterError> {
        let token = self.next("a variable")?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(FilterError::new("too many levels", token.at));
        }
        let filter = match token.kind {
            TokenKind::Not => RequestFilter::Not(Box::new(self.one()?)),
            TokenKind::Open => {
                let inside = self.either()?;
                if !self.takes(&TokenKind::Close) {
                    return Err(FilterError::new("a parenthesis is not closed", token.at));
                }
                inside
            }
            TokenKind::Variable(name) => self.comparison(name)?,
            TokenKind::Word(word) => self.comparison(known_name(&word, token.at)?)?,
            _ => return Err(FilterError::new("expected a variable", token.at)),
        };
        self.depth -= 1;
        Ok(filter)
    }

    /// What follows a variable: an operator and its right side, or nothing. A pattern is compiled here, so that its errors
    /// are shown at the place where it stands.
    fn comparison(&mut self, name: String) -> Result<RequestFilter, FilterError> {
        let is_operator = |token: &FilterToken| matches!(token.kind, TokenKind::Operator(_));
        let Some(operator) = self.tokens.next_if(is_operator) else {
            return Ok(RequestFilter::IsTrue(name));
        };
        let TokenKind::Operator(sign) = operator.kind else {
            return Ok(RequestFilter::IsTrue(name));
        };
        let right = self.next(&format!("a value after \"{sign}\""))?;
        let is_match = sign.contains('~');
        let operand = match right.kind {
            TokenKind::Variable(name) if !is_match => FilterOperand::Variable(name),
            TokenKind::Word(text) | TokenKind::Quoted(text) => FilterOperand::Text(text),
            _ => {
                let message = format!("expected a value after \"{sign}\"");
                return Err(FilterError::new(message, right.at));
            }
        };
        let filter = match (is_match, operand) {
            (true, FilterOperand::Text(pattern)) => {
                let regex = Regex::new(pattern.as_bytes(), sign.ends_with('*'));
                let regex = regex.map_err(|error| FilterError::new(error, right.at))?;
                RequestFilter::Matches(name, regex)
            }
            (_, operand) => {
                check_number(sign, &operand, right.at)?;
                RequestFilter::Compare(name, operator_of(sign), operand)
            }
        };
        Ok(match sign.starts_with('!') {
            true => RequestFilter::Not(Box::new(filter)),
            false => filter,
        })
    }
}

/// What a sign compares. Whether the result is turned round is seen from its first letter.
fn operator_of(sign: &str) -> CompareOperator {
    match sign {
        "<" => CompareOperator::Less,
        "<=" => CompareOperator::LessOrEqual,
        ">" => CompareOperator::Greater,
        ">=" => CompareOperator::GreaterOrEqual,
        // `==`, and `!=`, whose result is turned round.
        _ => CompareOperator::Equal,
    }
}

/// `status > abc` could never be true.
fn check_number(
    sign: &str,
    operand: &FilterOperand,
    at: (usize, usize),
) -> Result<(), FilterError> {
    match operand {
        FilterOperand::Text(text)
            if !matches!(sign, "==" | "!=") && number(text.as_bytes()).is_none() =>
        {
            let message = format!("\"{sign}\" compares numbers\nsuch as 500, 0.5, 500ms or 1m");
            Err(FilterError::new(message, at))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> TailRecord {
        let values = [
            ("status", "502"),
            ("host", "shop.example"),
            ("request_time", "0.750"),
            ("bytes_sent", "2097152"),
            ("upstream_status", "504, 502"),
            ("args", "page=3"),
            ("weir_ledger", "--/750.000/connect=600.000"),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value.into()));
        TailRecord {
            values: values.into(),
        }
    }

    #[test]
    fn filters_choose_requests() {
        let record = record();
        for (text, expected) in [
            ("status>=500 && $host ~ shop", true),
            ("status < 500 || host == other", false),
            ("!($status = 502)", false),
            ("$status != 200", true),
            ("request_time > 500ms && request_time < 1s", true),
            ("bytes_sent >= 2m", true),
            ("upstream_status == 504 && upstream_status == 502", true),
            ("upstream_status != 504", false),
            ("arg_page == 3", true),
            ("${arg_page} == \"4\"", false),
            ("$remote_user", false),
            ("host ~* ^SHOP\\.", true),
            ("host !~ \"^(www|shop)\\.\"", false),
            ("(host ~ ^(shop|www)) && status", true),
            ("weir_time_connect > 0.5", true),
            ("http_user_agent == ''", true),
            ("bytes_sent > $status", true),
        ] {
            let filter = RequestFilter::parse(text).unwrap_or_else(|error| panic!("{error:?}"));
            assert_eq!(filter.is_match(&record), expected, "{text}");
        }
    }

    #[test]
    fn errors_have_a_caret_and_a_hint() {
        let error = |text: &str| {
            let error = RequestFilter::parse(text).err().expect("refused");
            error.show(text)
        };
        assert_eq!(
            error("stauts >= 500"),
            "no request has a variable \"stauts\" here\n  stauts >= 500\n  ^^^^^^ did you mean \"status\"?"
        );
        assert_eq!(
            error("status >= abc"),
            "\">=\" compares numbers\n  status >= abc\n            ^^^ such as 500, 0.5, 500ms or 1m"
        );
        assert_eq!(
            error("status >="),
            "expected a value after \">=\"\n  status >=\n           ^"
        );
        assert_eq!(
            error("(status"),
            "a parenthesis is not closed\n  (status\n  ^"
        );
        assert!(error("time > 1").ends_with("did you mean \"request_time\"?"));
        assert!(error("host ~ [").contains("\n  host ~ [\n         ^"));
        assert!(error("cookie_id").starts_with("cookies are credentials"));
        assert!(error("host == \"a").starts_with("a quote is not closed"));
        assert!(error("status 500").starts_with("expected \"&&\""));
        assert!(error("").starts_with("expected a variable"));
        assert!(error(&"!".repeat(1000)).starts_with("too many levels"));
    }

    #[test]
    fn no_text_panics() {
        let pieces = [
            "$", "{", "}", "a", "\"", "'", "\\", "~", "!", "(", ")", "&", "|", "ä", " ", "=",
        ];
        for one in pieces {
            for two in pieces {
                for three in pieces {
                    let text = format!("status{one}{two}{three}");
                    if let Err(error) = RequestFilter::parse(&text) {
                        error.show(&text);
                    }
                }
            }
        }
    }
}
