//! A request as text: one line, its ledger, its tries, or JSON.
//!
//! ```text
//! 22:01:02.123 502  750 ms GET shop.example/cart?page=3 203.0.113.7 10.0.0.1:80 (504, 502) MISS
//!     connect         600.000 ms  80 %  ################
//!     first_byte      150.000 ms  20 %  ####
//! ```

use std::fmt::Write as _;

use super::record::TailRecord;
use crate::json;

/// What is shown of a request.
#[derive(Clone, Copy)]
pub(super) struct LineStyle {
    /// A JSON object on a line, and nothing else.
    pub(super) json: bool,
    /// The columns of the ledger below it.
    pub(super) ledger: bool,
    /// A line for each try below it.
    pub(super) by_upstream: bool,
    /// The status in the colour of its class.
    pub(super) colour: bool,
}

/// A request, and how it is to be shown.
pub(super) struct ShownRequest<'a> {
    pub(super) record: &'a TailRecord,
    pub(super) style: LineStyle,
}

/// Values that are numbers in JSON.
const NUMBERS: [&str; 11] = [
    "msec",
    "status",
    "request_time",
    "remote_port",
    "server_port",
    "connection",
    "connection_requests",
    "bytes_sent",
    "body_bytes_sent",
    "request_length",
    "upstream_bytes_sent",
];

/// The widest bar of a ledger.
const BAR: f64 = 30.0;

impl ShownRequest<'_> {
    /// Appends it, with its line feeds.
    pub(super) fn write(&self, out: &mut String) {
        if self.style.json {
            return self.write_json(out);
        }
        self.write_line(out);
        if self.style.by_upstream {
            self.write_tries(out);
        }
        if self.style.ledger {
            self.write_ledger(out);
        }
    }

    /// The line that every style but JSON begins with.
    fn write_line(&self, out: &mut String) {
        let record = self.record;
        let status = record.shown("status");
        let (colour, end) = match (self.style.colour, status.bytes().next()) {
            (true, Some(b'2')) => ("\x1b[32m", "\x1b[0m"),
            (true, Some(b'3')) => ("\x1b[36m", "\x1b[0m"),
            (true, Some(b'4')) => ("\x1b[33m", "\x1b[0m"),
            (true, Some(b'5')) => ("\x1b[31m", "\x1b[0m"),
            _ => ("", ""),
        };
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "{} {colour}{status}{end} {:>7} {} {}{} {}",
            time_of_day(record.number("msec")),
            millis(record.number("request_time") * 1000.0),
            or_dash(record.shown("request_method")),
            record.shown("host"),
            record.shown("request_uri"),
            record.shown("remote_addr"),
        );
        if !self.style.by_upstream && !record.value("upstream_addr").is_empty() {
            let (address, status) = (
                record.shown("upstream_addr"),
                record.shown("upstream_status"),
            );
            let _ = write!(out, " {address} ({status})");
        }
        for name in ["upstream_cache_status", "upstream_cache_reason"] {
            if !record.value(name).is_empty() {
                let _ = write!(out, " {}", record.shown(name));
            }
        }
        // Who ended it and where, if it was ended: `SH`, `CW`.
        let ended = String::from_utf8_lossy(record.value("weir_ledger")).into_owned();
        let ended = ended.split('/').next().unwrap_or_default();
        if !matches!(ended, "" | "--") {
            let _ = write!(out, " {}", base::text::visible_text(ended));
        }
        out.push('\n');
    }

    /// The upstream servers that were tried: a line for each.
    fn write_tries(&self, out: &mut String) {
        let text = |bytes: &[u8]| {
            let shown = base::text::visible(bytes);
            String::from_utf8_lossy(&shown).into_owned()
        };
        for (index, one) in self.record.tries().into_iter().enumerate() {
            let _ = writeln!(
                out,
                "    {:>2}. {} status {} connect {} header {} total {}",
                index + 1,
                text(one.address),
                text(one.status),
                or_dash(text(one.connect)),
                or_dash(text(one.header)),
                or_dash(text(one.response)),
            );
        }
    }

    /// Where the time went: a line with a bar for each column.
    fn write_ledger(&self, out: &mut String) {
        let columns = self.record.columns();
        // Those of the connection are not part of the request's time.
        let total: f64 = columns.iter().map(|(_, millis)| millis).sum();
        for (name, millis) in columns {
            let share = if total > 0.0 { millis / total } else { 0.0 };
            let bar = "#".repeat((share * BAR).round() as usize);
            let line = format!(
                "    {name:<14} {millis:>12.3} ms {:>4.0} %  {bar}",
                share * 100.0
            );
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }

    /// All that is known of the request, in the order of the record.
    fn write_json(&self, out: &mut String) {
        out.push('{');
        for (index, (name, value)) in self.record.values.iter().enumerate() {
            if index > 0 {
                out.push_str(", ");
            }
            json::string(out, name);
            out.push_str(": ");
            let text = String::from_utf8_lossy(value);
            match NUMBERS.contains(&&**name) && is_json_number(&text) {
                true => out.push_str(&text),
                false => json::string(out, &text),
            }
        }
        out.push_str("}\n");
    }
}

/// Whether JSON has this text as a number (RFC 8259, section 6).
fn is_json_number(text: &str) -> bool {
    // A leading zero is no JSON, and values of variables have none but in `0.5`.
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let leads = text.len() > 1 && text.starts_with('0') && !text.starts_with("0.");
    is_plain && !leads && !text.ends_with('.') && text.parse::<f64>().is_ok()
}

/// A dash, as in logs, for what is not there.
fn or_dash(text: String) -> String {
    match text.is_empty() {
        true => "-".to_owned(),
        false => text,
    }
}

/// Milliseconds, or seconds when there are many.
pub(super) fn millis(millis: f64) -> String {
    match millis < 10_000.0 {
        true => format!("{millis:.0} ms"),
        false => format!("{:.1} s", millis / 1000.0),
    }
}

/// The local time of day of `$msec`.
fn time_of_day(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let time = rt::local_time(whole);
    let millis = ((seconds - whole as f64) * 1000.0)
        .round()
        .clamp(0.0, 999.0);
    format!(
        "{:02}:{:02}:{:02}.{millis:03}",
        time.hour, time.minute, time.second
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(style: LineStyle) -> String {
        let values = [
            ("status", "502"),
            ("request_time", "0.750"),
            ("request_method", "GET"),
            ("host", "shop"),
            ("request_uri", "/\x1b[2J"),
            ("remote_addr", "203.0.113.7"),
            ("upstream_addr", "a:1, b:2"),
            ("upstream_status", "504, 502"),
            (
                "weir_ledger",
                "SH/750.000/connect=600.000/first_byte=150.000/new",
            ),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value.into()));
        let record = TailRecord {
            values: values.into(),
        };
        let mut out = String::new();
        ShownRequest {
            record: &record,
            style,
        }
        .write(&mut out);
        out
    }

    const PLAIN: LineStyle = LineStyle {
        json: false,
        ledger: false,
        by_upstream: false,
        colour: false,
    };

    #[test]
    fn a_line_has_what_matters_and_no_terminal_obeys_it() {
        let line = shown(PLAIN);
        let expected = " 502  750 ms GET shop/\\x1b[2J 203.0.113.7 a:1, b:2 (504, 502) SH\n";
        assert!(line.ends_with(expected), "{line}");
        let coloured = shown(LineStyle {
            colour: true,
            ..PLAIN
        });
        assert!(coloured.contains("\x1b[31m502\x1b[0m"), "{coloured}");
    }

    #[test]
    fn the_rest_is_on_lines_of_its_own() {
        let text = shown(LineStyle {
            ledger: true,
            by_upstream: true,
            ..PLAIN
        });
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines[0],
            "     1. a:1 status 504 connect - header - total -"
        );
        assert!(
            lines[2].starts_with("    connect             600.000 ms   80 %  ####"),
            "{text}"
        );
        let json = shown(LineStyle {
            json: true,
            ..PLAIN
        });
        assert!(
            json.starts_with("{\"status\": 502, \"request_time\": 0.750, "),
            "{json}"
        );
        assert!(json.contains("\"request_uri\": \"/\\u001b[2J\""), "{json}");
    }
}
