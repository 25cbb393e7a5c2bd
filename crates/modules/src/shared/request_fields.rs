//! The header fields of a request to an HTTP server: the result of `proxy_set_header` or
//! `grpc_set_header` together with the client's fields.

use bstr::BString;
use conf::Expression;
use http::Request;
use http::cache::FetchFields;
use http::upstream::upstream_settings::FieldSet;
use http::upstream::{NoResponse, RequestLength, RequestTraits, ValueOrigin, ValueTerminator};
use proto::KnownField;
use proto::connection::NominatedFields;

/// Fields that concern the client's connection, or that are made anew for the upstream connection;
/// the client's are never passed on (RFC 9110, section 7.6.1).
const CONNECTION_FIELDS: [&str; 9] = [
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

/// The result of a location's `proxy_set_header` lines, computed once: per request only values with
/// variables remain to be evaluated.
#[derive(Clone, Default)]
pub(crate) struct FieldPlan {
    /// For error messages.
    directives: FieldDirectives,
    /// The value of `Host`; `None`: the host of the URL.
    host: Option<Expression>,
    /// The other fields that are set, in order.
    lines: Vec<(KnownField, PlannedField)>,
    /// Names of client fields that are not passed on.
    replaced: FieldSet,
    /// Whether `Content-Length` is generated here, which it is unless a line sets it.
    makes_length: bool,
    /// The same for `Transfer-Encoding`.
    makes_chunked: bool,
    /// The names that lines set, even to nothing.
    set_names: Vec<KnownField>,
}

/// The names of the directives, for error messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FieldDirectives {
    /// `proxy_set_header`
    pub(crate) set: &'static str,
    /// `proxy_pass`, which provides the default host.
    pub(crate) pass: &'static str,
}

/// A field that a line sets.
#[derive(Clone)]
enum PlannedField {
    /// A constant line, complete with its line end.
    Text(Vec<u8>),
    /// A field whose value has variables.
    Value(BString, Expression),
}

impl FieldPlan {
    /// Prepares the lines of `directives.set`.
    pub(crate) fn new(directives: FieldDirectives, set: &[(BString, Expression)]) -> FieldPlan {
        let mut plan = FieldPlan {
            directives,
            makes_length: true,
            makes_chunked: true,
            ..FieldPlan::default()
        };
        for name in CONNECTION_FIELDS {
            plan.replaced.insert(name.as_bytes());
        }
        for (name, value) in set {
            plan.replaced.insert(name);
            plan.set_names.push(KnownField::from_name(name));
            match KnownField::from_name(name) {
                KnownField::Host => {
                    plan.host = Some(value.clone());
                    continue;
                }
                KnownField::ContentLength => plan.makes_length = false,
                KnownField::TransferEncoding => plan.makes_chunked = false,
                _ => {}
            }
            match value.constant() {
                // An empty value removes the field, and `replaced` has its name already.
                Some(text) if text.is_empty() => {}
                Some(text) => {
                    let line = [name.as_slice(), b": ", text, b"\r\n"].concat();
                    plan.lines
                        .push((KnownField::from_name(name), PlannedField::Text(line)));
                }
                None => plan.lines.push((
                    KnownField::from_name(name),
                    PlannedField::Value(name.clone(), value.clone()),
                )),
            }
        }
        plan
    }

    /// Whether a line of the configuration sets or removes this field.
    pub(crate) fn sets(&self, known: KnownField) -> bool {
        self.set_names.contains(&known)
    }

    /// Appends all fields and returns what they ask the server for. The error is the status to
    /// respond with if the client sent a byte that would end a line; it has been logged. Passing
    /// that on would let a client smuggle fields or requests to the server.
    pub(crate) fn write(
        &self,
        request: &mut Request,
        content: RequestLength,
        usual_host: &[u8],
        http_1_0: bool,
        pass_client_fields: bool,
        out: &mut Vec<u8>,
    ) -> Result<RequestTraits, NoResponse> {
        self.write_host(request, usual_host, http_1_0, out)?;
        let ask = FetchFields::of_request(request).cloned();
        let mut asks = self.write_lines(request, ask.as_ref(), out)?;
        self.write_framing(content, out);
        asks.part |= ask.as_ref().is_some_and(|ask| self.write_ask(ask, out));
        asks.part |= pass_client_fields && self.write_client_fields(request, ask.is_some(), out);
        Ok(asks)
    }

    /// Appends what `directives.set` says, apart from `Host`; gives what it asks for.
    fn write_lines(
        &self,
        request: &mut Request,
        ask: Option<&FetchFields>,
        out: &mut Vec<u8>,
    ) -> Result<RequestTraits, NoResponse> {
        let mut asks = RequestTraits::default();
        let asks_for_a_part = ask.is_some_and(|ask| ask.range.is_some());
        for (known, line) in &self.lines {
            let start = out.len();
            match line {
                // A fetch by the cache knows which part it needs, whatever the client asked for.
                PlannedField::Value(..)
                    if asks_for_a_part
                        && matches!(known, KnownField::Range | KnownField::IfRange) => {}
                PlannedField::Text(text) => out.extend_from_slice(text),
                PlannedField::Value(name, value) => {
                    out.extend_from_slice(name);
                    out.extend_from_slice(b": ");
                    let before = out.len();
                    ValueTerminator::Line.write_value(request, value, self.place(name), out)?;
                    // Empty after evaluation: no field at all.
                    if out.len() == before {
                        out.truncate(start);
                    } else {
                        out.extend_from_slice(b"\r\n");
                    }
                }
            }
            let is_sent = out.len() > start;
            asks.upgrade |= is_sent && *known == KnownField::Upgrade;
            asks.part |= is_sent && *known == KnownField::Range;
        }
        Ok(asks)
    }

    /// Appends the field that frames the content (RFC 9112, section 6), unless a directive has set
    /// it.
    fn write_framing(&self, content: RequestLength, out: &mut Vec<u8>) {
        match content {
            RequestLength::Length(length) if self.makes_length => {
                out.extend_from_slice(b"Content-Length: ");
                base::text::write_number(length, out);
                out.extend_from_slice(b"\r\n");
            }
            RequestLength::Unknown if self.makes_chunked => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n")
            }
            RequestLength::None | RequestLength::Length(_) | RequestLength::Unknown => {}
        }
    }

    /// Appends the conditions and ranges of a fetch for the cache. Returns whether it requests a
    /// part.
    fn write_ask(&self, ask: &FetchFields, out: &mut Vec<u8>) -> bool {
        let mut asks_for_a_part = false;
        for (known, value) in ask.fields() {
            // Lines of the configuration take precedence, except when a fetch resumes where another
            // broke off and needs exactly the rest.
            let goes_on = matches!(known, KnownField::Range | KnownField::IfRange);
            // Validators come from a stored response, so they are checked like any other peer's
            // input.
            let is_line = ValueTerminator::Line.allows(&value);
            if is_line && (goes_on || !self.replaced.contains(known, b"")) {
                asks_for_a_part |= known == KnownField::Range;
                write_field(known.name().as_bytes(), &value, out);
            }
        }
        asks_for_a_part
    }

    /// Appends the client's fields that nothing replaces; gives whether they ask for a part.
    fn write_client_fields(&self, request: &Request, is_fetch: bool, out: &mut Vec<u8>) -> bool {
        let mut asks_for_a_part = false;
        let fields = &request.head.wire.fields;
        // Fields nominated by the client's `Connection` (RFC 9110, section 7.6.1).
        let nominated = NominatedFields::from_fields(fields);
        for (known, name, value) in fields.iter_known() {
            let stays = is_fetch && FetchFields::replaces_field(known) || nominated.has(name);
            if !stays && !self.replaced.contains(known, name) {
                asks_for_a_part |= known == KnownField::Range;
                // The parser admits no line ends, and scripts that add fields have them escaped.
                debug_assert!(ValueTerminator::Line.allows(value));
                write_field(name, value, out);
            }
        }
        asks_for_a_part
    }

    /// The place to name in an error about this field.
    fn place<'a>(&self, name: &'a [u8]) -> ValueOrigin<'a> {
        ValueOrigin {
            directive: self.directives.set,
            name,
        }
    }

    /// Appends `Host`: the configured value, or the host of the URL.
    fn write_host(
        &self,
        request: &mut Request,
        usual: &[u8],
        http_1_0: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        let start = out.len();
        out.extend_from_slice(b"Host: ");
        let before = out.len();
        if let Some(value) = &self.host {
            ValueTerminator::Line.write_value(request, value, self.place(b"Host"), out)?;
        }
        // HTTP/1.1 requires the field (RFC 9112, section 3.2), so an empty value falls back to the
        // host of the URL.
        if self.host.is_none() || out.len() == before && !http_1_0 {
            // With variables in the URL, the host can come from the client.
            let place = ValueOrigin {
                directive: self.directives.pass,
                name: b"",
            };
            ValueTerminator::Line.check_text(request, usual, place)?;
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

/// Appends a field line.
fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}
