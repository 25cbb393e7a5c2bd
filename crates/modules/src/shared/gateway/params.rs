//! `fastcgi_param`, `scgi_param`, `uwsgi_param`: names and values that describe a request, modelled
//! on the CGI environment (RFC 3875, section 4.1).
//!
//! The client's header fields follow as `HTTP_…`, except those that a param replaces.

use std::rc::Rc;

use bstr::BString;
use conf::{BlockContext, Diagnostic, DirectiveLine, Expression, Span};
use http::Request;
use http::cache::FetchFields;
use http::upstream::{NoResponse, RequestTraits, ValueOrigin, ValueTerminator};
use proto::connection::NominatedFields;
use proto::{Fields, KnownField};

/// The params of a location, prepared when the block is complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct CgiParams {
    params: Vec<CgiParam>,
    /// The value of `HTTP_HOST` if no param has that name; empty if one has.
    host: Expression,
    /// The `HTTP_…` names that params define, sorted for a binary search: the client's fields of
    /// these names are not passed on.
    replaced: Vec<BString>,
}

/// One `…_param` line.
#[derive(Clone, Debug)]
struct CgiParam {
    name: BString,
    value: Expression,
    /// `if_not_empty`
    skip_empty: bool,
}

/// How a protocol marks the end of a value, which decides what a value may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueEnding {
    /// By a length in front of it. A value can contain any byte.
    Counted,
    /// By a zero byte, which must therefore not occur in a value. Carries the name of the
    /// directive, for the error message.
    Zero(&'static str),
}

/// The prefix by which CGI marks request header fields (RFC 3875, section 4.1.18).
const FIELD_PREFIX: &[u8] = b"HTTP_";

/// The param that every application reads.
const HTTP_HOST: &[u8] = b"HTTP_HOST";

/// The default of `HTTP_HOST`: `Host` as it was sent, but validated, and the server's name if there
/// was none. The raw field could contain what no host name may contain, and applications build URLs
/// of it.
const HOST: &[u8] = b"$host$is_request_port$request_port";

impl CgiParams {
    /// Reads `NAME value [if_not_empty]`.
    pub(crate) fn add(&mut self, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        let skip_empty = match line.get(2) {
            Some(word) if word.text == "if_not_empty" => true,
            Some(_) => return Err(line.invalid_parameter(2)),
            None => false,
        };
        let value = line.expression_if_inherited(1)?;
        self.params.push(CgiParam {
            name: line.text(0).to_owned(),
            value,
            skip_empty,
        });
        Ok(())
    }

    /// Drops inherited params: a block with params of its own inherits none.
    pub(crate) fn clear(&mut self) {
        self.params.clear();
    }

    /// Prepares what each request needs. Called when the block is complete.
    pub(crate) fn complete(&mut self, level: &mut BlockContext) -> Result<(), Diagnostic> {
        // As in nginx, a param in `http {}` that no server inherits may name a variable that does
        // not exist.
        level.require_defined(self.params.iter().map(|param| &param.value));
        let names = self.params.iter().map(|param| param.name.as_slice());
        let fields = names.filter(|name| is_field(name)).chain([HTTP_HOST]);
        self.replaced = fields
            .map(|name| {
                param_name(&name[FIELD_PREFIX.len()..])
                    .collect::<Vec<u8>>()
                    .into()
            })
            .collect();
        self.replaced.sort_unstable();
        let has_host = self
            .params
            .iter()
            .any(|param| param.name.eq_ignore_ascii_case(HTTP_HOST));
        self.host = match has_host {
            true => Expression::default(),
            false => Expression::parse(HOST, Span::NONE, level.names)?,
        };
        Ok(())
    }

    /// Passes every name and value to `add`: the params and then, if `fields` is set, the client's
    /// header fields. Returns what the params ask the application for. The error is the status to
    /// respond with if the client sent a byte that would end a value; it has been logged.
    pub(crate) fn write(
        &self,
        request: &mut Request,
        fields: bool,
        ending: ValueEnding,
        mut add: impl FnMut(&[u8], &[u8]),
    ) -> Result<RequestTraits, NoResponse> {
        let mut traits = RequestTraits::default();
        let mut add = |name: &[u8], value: &[u8]| {
            // The exchange must know whether a 101 or a 206 in response is something that was asked
            // for.
            traits.upgrade |= name == b"HTTP_UPGRADE" && !value.is_empty();
            traits.part |= is_range(name) && !value.is_empty();
            add(name, value);
        };
        let mut value = Vec::new();
        for param in &self.params {
            // A param with an empty text only suppresses the client's field of that name.
            if param.value.is_empty() && is_field(&param.name) {
                continue;
            }
            value.clear();
            match ending {
                ValueEnding::Counted => param.value.eval(request, &mut value),
                ValueEnding::Zero(directive) => {
                    let name = &param.name;
                    ValueTerminator::Zero.write_value(
                        request,
                        &param.value,
                        ValueOrigin { directive, name },
                        &mut value,
                    )?;
                }
            }
            if !(param.skip_empty && value.is_empty()) {
                add(&param.name, &value);
            }
        }
        value.clear();
        self.host.eval(request, &mut value);
        if !value.is_empty() {
            add(HTTP_HOST, &value);
        }
        if fields {
            // Keeps the fields alive while the values of others are evaluated with the request.
            let head = Rc::clone(&request.head);
            // A fetch for the cache asks for the object as such: conditions and ranges are those of
            // the cache, not of the client that happened to come first.
            let ask = FetchFields::of_request(request).cloned();
            self.write_fields(&head.wire.fields, ask.is_some(), &mut add);
            for (known, value) in ask.iter().flat_map(FetchFields::fields) {
                let name: Vec<u8> = param_name(known.name().as_bytes()).collect();
                if self
                    .replaced
                    .binary_search_by(|other| other.as_slice().cmp(&name))
                    .is_err()
                {
                    add(&name, &value);
                }
            }
        }
        Ok(traits)
    }

    /// Passes on the client's fields; for a fetch by the cache, without its conditions and ranges.
    fn write_fields(&self, fields: &Fields, cached: bool, mut add: impl FnMut(&[u8], &[u8])) {
        let (mut name, mut joined) = (Vec::new(), Vec::new());
        let nominated = NominatedFields::from_fields(fields);
        for (index, (known, field, value)) in fields.iter_known().enumerate() {
            name.clear();
            name.extend(param_name(field));
            let is_replaced = self
                .replaced
                .binary_search_by(|other| other.as_slice().cmp(&name))
                .is_ok();
            // Fields that are meant for the client's connection end here (RFC 9110, section 7.6.1).
            let stays = cached && FetchFields::replaces_field(known) || nominated.has(field);
            if is_replaced || stays || is_repeated(fields, index, known, field) {
                continue;
            }
            // A param name can occur only once, so repeated fields become one list (RFC 9110,
            // section 5.3). Cookies are joined by a semicolon, the only separator they know.
            let mut others = fields.all(field).skip(1).peekable();
            if others.peek().is_none() {
                add(&name, value);
                continue;
            }
            joined.clear();
            joined.extend_from_slice(value);
            for other in others {
                joined.extend_from_slice(if known == KnownField::Cookie {
                    b"; "
                } else {
                    b", "
                });
                joined.extend_from_slice(other);
            }
            add(&name, &joined);
        }
    }
}

/// Whether the name is that of a request header field.
fn is_field(name: &[u8]) -> bool {
    name.len() > FIELD_PREFIX.len() && name.starts_with(FIELD_PREFIX)
}

/// Whether a param requests a range: the header field, or a param called `RANGE`, which some
/// applications read instead.
fn is_range(name: &[u8]) -> bool {
    let name = name.strip_prefix(FIELD_PREFIX).unwrap_or(name);
    name.eq_ignore_ascii_case(b"RANGE")
}

/// Whether an earlier field has the same name, in which case this one has been joined to it.
fn is_repeated(fields: &Fields, index: usize, known: KnownField, name: &[u8]) -> bool {
    let mut earlier = fields.iter_known().take(index);
    earlier.any(|(other, text, _)| {
        other == known && (known != KnownField::Other || text.eq_ignore_ascii_case(name))
    })
}

/// The param name of a header field: `X-Two` becomes `HTTP_X_TWO`.
fn param_name(field: &[u8]) -> impl Iterator<Item = u8> {
    let upper = field.iter().map(|byte| {
        if *byte == b'-' {
            b'_'
        } else {
            byte.to_ascii_uppercase()
        }
    });
    FIELD_PREFIX.iter().copied().chain(upper)
}
