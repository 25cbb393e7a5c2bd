//! The fields of a request to an HTTP server: what `proxy_set_header` and `grpc_set_header` come to, and the client's.

use bstr::BString;
use conf::Expression;
use http::Request;
use http::cache::Ask;
use http::upstream::settings::FieldSet;
use http::upstream::{Asks, Content, Ends, Place};
use proto::Known;
use proto::connection::Nominated;

/// Fields that are the connection's own business, so that the client's are never sent.
const OURS: [&str; 9] = [
    "Host",
    "Connection",
    "Proxy-Connection",
    "Content-Length",
    "Transfer-Encoding",
    "TE",
    "Keep-Alive",
    "Expect",
    "Upgrade",
];

/// What `proxy_set_header` comes to, made once for a location.
#[derive(Clone, Default)]
pub(crate) struct FieldPlan {
    directives: Directives,
    /// The value of `Host`; `None`: the host of the URL.
    host: Option<Expression>,
    /// The other fields, in order.
    lines: Vec<(Known, FieldLine)>,
    /// The client's fields of these names are not sent.
    replaced: FieldSet,
    /// Content-Length and Transfer-Encoding are made here, unless they were set.
    length: bool,
    chunked: bool,
    /// Names that were set.
    set: Vec<Known>,
}

/// What the directives are called that fields come from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Directives {
    /// `proxy_set_header`
    pub(crate) set: &'static str,
    /// `proxy_pass`, which has the usual host.
    pub(crate) pass: &'static str,
}

#[derive(Clone)]
enum FieldLine {
    /// A whole line, with its end.
    Text(Vec<u8>),
    /// A field whose value has variables.
    Value(BString, Expression),
}

impl FieldPlan {
    /// What the lines of `directives.set` come to.
    pub(crate) fn new(directives: Directives, set: &[(BString, Expression)]) -> FieldPlan {
        let mut plan = FieldPlan {
            directives,
            length: true,
            chunked: true,
            ..FieldPlan::default()
        };
        for name in OURS {
            plan.replaced.insert(name.as_bytes());
        }
        for (name, value) in set {
            plan.replaced.insert(name);
            plan.set.push(Known::from_name(name));
            match Known::from_name(name) {
                Known::Host => {
                    plan.host = Some(value.clone());
                    continue;
                }
                Known::ContentLength => plan.length = false,
                Known::TransferEncoding => plan.chunked = false,
                _ => {}
            }
            match value.constant() {
                Some(text) if text.is_empty() => {}
                Some(text) => {
                    let line = [name.as_slice(), b": ", text, b"\r\n"].concat();
                    plan.lines
                        .push((Known::from_name(name), FieldLine::Text(line)));
                }
                None => plan.lines.push((
                    Known::from_name(name),
                    FieldLine::Value(name.clone(), value.clone()),
                )),
            }
        }
        plan
    }

    /// Whether a line of the configuration says what becomes of a field.
    pub(crate) fn sets(&self, known: Known) -> bool {
        self.set.contains(&known)
    }

    /// Appends all fields; gives what they ask for. The error is the status to answer with, when the client sent what would end a line; it has been
    /// logged.
    pub(crate) fn write(
        &self,
        request: &mut Request,
        content: Content,
        usual_host: &[u8],
        http_1_0: bool,
        pass_client_fields: bool,
        out: &mut Vec<u8>,
    ) -> Result<Asks, u16> {
        self.write_host(request, usual_host, http_1_0, out)?;
        let mut asks = Asks::default();
        let ask = Ask::of(request).cloned();
        let asks_for_a_part = ask.as_ref().is_some_and(|ask| ask.range.is_some());
        for (known, line) in &self.lines {
            let line_start = out.len();
            match line {
                // A fetch that knows which part it wants is not told another.
                FieldLine::Value(..)
                    if asks_for_a_part && matches!(known, Known::Range | Known::IfRange) => {}
                FieldLine::Text(text) => out.extend_from_slice(text),
                FieldLine::Value(name, value) => {
                    let start = out.len();
                    out.extend_from_slice(name);
                    out.extend_from_slice(b": ");
                    let before = out.len();
                    Ends::Line.write(request, value, self.place(name), out)?;
                    if out.len() == before {
                        out.truncate(start);
                    } else {
                        out.extend_from_slice(b"\r\n");
                    }
                }
            }
            let is_sent = out.len() > line_start;
            asks.upgrade |= is_sent && *known == Known::Upgrade;
            asks.part |= is_sent && *known == Known::Range;
        }
        match content {
            Content::Length(length) if self.length => {
                out.extend_from_slice(b"Content-Length: ");
                base::text::write_number(length, out);
                out.extend_from_slice(b"\r\n");
            }
            Content::Unknown if self.chunked => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n")
            }
            Content::None | Content::Length(_) | Content::Unknown => {}
        }
        for (known, value) in ask.iter().flat_map(Ask::fields) {
            // What a directive says wins, but a fetch that goes on where another broke off asks for the rest.
            let goes_on = matches!(known, Known::Range | Known::IfRange);
            // They are from a response that was stored.
            let is_line = Ends::Line.allows(&value);
            if is_line && (goes_on || !self.replaced.contains(known, b"")) {
                asks.part |= known == Known::Range;
                for part in [known.name().as_bytes(), b": ", &value, b"\r\n"] {
                    out.extend_from_slice(part);
                }
            }
        }
        if pass_client_fields {
            let fields = &request.head.wire.fields;
            // What ends with the client's connection; before the configuration's own were added.
            let nominated = Nominated::by(fields);
            for (known, name, value) in fields.iter_known() {
                let stays = ask.is_some() && Ask::replaces(known) || nominated.has(name);
                if !stays && !self.replaced.contains(known, name) {
                    asks.part |= known == Known::Range;
                    // The codec that read them lets no line end in, and scripts have theirs escaped.
                    debug_assert!(Ends::Line.allows(value));
                    for part in [name, b": ", value, b"\r\n"] {
                        out.extend_from_slice(part);
                    }
                }
            }
        }
        Ok(asks)
    }

    fn place<'a>(&self, name: &'a [u8]) -> Place<'a> {
        Place {
            directive: self.directives.set,
            name,
        }
    }

    fn write_host(
        &self,
        request: &mut Request,
        usual: &[u8],
        http_1_0: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        let start = out.len();
        out.extend_from_slice(b"Host: ");
        let before = out.len();
        if let Some(value) = &self.host {
            Ends::Line.write(request, value, self.place(b"Host"), out)?;
        }
        // HTTP/1.1 must have one (RFC 9112, section 3.2).
        if self.host.is_none() || out.len() == before && !http_1_0 {
            // A URL with variables may have it from the client.
            let place = Place {
                directive: self.directives.pass,
                name: b"",
            };
            Ends::Line.check(request, usual, place)?;
            out.extend_from_slice(usual);
        }
        if out.len() == before {
            out.truncate(start);
        } else {
            out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }
}
