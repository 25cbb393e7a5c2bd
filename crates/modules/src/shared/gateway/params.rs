//! `fastcgi_param`, `scgi_param`, `uwsgi_param`: names and values that stand for a request, as CGI's environment does.
//!
//! The client's header fields follow as `HTTP_…`, but for those that a param has a value for.

use std::rc::Rc;

use bstr::BString;
use conf::{Diagnostic, Expression, Level, Line, Span};
use http::Request;
use http::cache::Ask;
use http::upstream::{Asks, Ends, Place};
use proto::connection::Nominated;
use proto::{Fields, Known};

/// The params of a location.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    list: Vec<Param>,
    /// The value of `HTTP_HOST` where no param has that name.
    host: Expression,
    /// The fields that params stand for, under the names that they would have as params; sorted.
    replaced: Vec<BString>,
}

#[derive(Clone, Debug)]
struct Param {
    name: BString,
    value: Expression,
    /// `if_not_empty`
    skip_empty: bool,
}

/// How a protocol tells where a value ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By its length: any byte may be in it.
    Counted,
    /// By a zero byte. What the directive is called.
    Zero(&'static str),
}

const FIELD_PREFIX: &[u8] = b"HTTP_";

const HTTP_HOST: &[u8] = b"HTTP_HOST";

/// As `Host` was sent, but checked, and with the server's name when there was none.
const HOST: &[u8] = b"$host$is_request_port$request_port";

impl Params {
    /// Reads `NAME value [if_not_empty]`.
    pub(crate) fn add(&mut self, line: &mut Line) -> Result<(), Diagnostic> {
        let skip_empty = match line.get(2) {
            Some(word) if word.text == "if_not_empty" => true,
            Some(_) => return Err(line.invalid_parameter(2)),
            None => false,
        };
        let value = line.expression_if_inherited(1)?;
        self.list.push(Param {
            name: line.text(0).to_owned(),
            value,
            skip_empty,
        });
        Ok(())
    }

    /// Forgets those of the block around.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    /// Prepares what requests need, when the block is complete.
    pub(crate) fn settle(&mut self, level: &mut Level) -> Result<(), Diagnostic> {
        level.require(self.list.iter().map(|param| &param.value));
        let names = self.list.iter().map(|param| param.name.as_slice());
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
            .list
            .iter()
            .any(|param| param.name.eq_ignore_ascii_case(HTTP_HOST));
        self.host = match has_host {
            true => Expression::default(),
            false => Expression::parse(HOST, Span::NONE, level.names)?,
        };
        Ok(())
    }

    /// Gives every name with its value to `add`: the params, then the client's fields if `fields` says so; tells
    /// what they ask for. The error is the status to answer with, when the client sent what would end a value; it has been logged.
    pub(crate) fn write(
        &self,
        request: &mut Request,
        fields: bool,
        ending: Ending,
        mut add: impl FnMut(&[u8], &[u8]),
    ) -> Result<Asks, u16> {
        let mut asks = Asks::default();
        let mut add = |name: &[u8], value: &[u8]| {
            asks.upgrade |= name == b"HTTP_UPGRADE" && !value.is_empty();
            asks.part |= is_range(name) && !value.is_empty();
            add(name, value);
        };
        let mut value = Vec::new();
        for param in &self.list {
            // An empty one only keeps the field away.
            if param.value.is_empty() && is_field(&param.name) {
                continue;
            }
            value.clear();
            match ending {
                Ending::Counted => param.value.eval(request, &mut value),
                Ending::Zero(directive) => {
                    let name = &param.name;
                    Ends::Zero.write(
                        request,
                        &param.value,
                        Place { directive, name },
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
            let head = Rc::clone(&request.head);
            let ask = Ask::of(request).cloned();
            self.write_fields(&head.wire.fields, ask.is_some(), &mut add);
            for (known, value) in ask.iter().flat_map(Ask::fields) {
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
        Ok(asks)
    }

    /// Gives the client's fields; for a fetch of the cache without conditions and ranges.
    fn write_fields(&self, fields: &Fields, cached: bool, mut add: impl FnMut(&[u8], &[u8])) {
        let (mut name, mut joined) = (Vec::new(), Vec::new());
        let nominated = Nominated::by(fields);
        for (index, (known, field, value)) in fields.iter_known().enumerate() {
            name.clear();
            name.extend(param_name(field));
            let is_replaced = self
                .replaced
                .binary_search_by(|other| other.as_slice().cmp(&name))
                .is_ok();
            // What ends with the client's connection (RFC 9110, section 7.6.1).
            let stays = cached && Ask::replaces(known) || nominated.has(field);
            if is_replaced || stays || is_repeated(fields, index, known, field) {
                continue;
            }
            let mut others = fields.all(field).skip(1).peekable();
            if others.peek().is_none() {
                add(&name, value);
                continue;
            }
            joined.clear();
            joined.extend_from_slice(value);
            for other in others {
                joined.extend_from_slice(if known == Known::Cookie { b"; " } else { b", " });
                joined.extend_from_slice(other);
            }
            add(&name, &joined);
        }
    }
}

/// Whether a param stands for a field.
fn is_field(name: &[u8]) -> bool {
    name.len() > FIELD_PREFIX.len() && name.starts_with(FIELD_PREFIX)
}

/// Whether a param asks an application for a part: the field, or a param of its name, as some are written for.
fn is_range(name: &[u8]) -> bool {
    let name = name.strip_prefix(FIELD_PREFIX).unwrap_or(name);
    name.eq_ignore_ascii_case(b"RANGE")
}

/// Whether an earlier field has the same name, so that this one was joined to it.
fn is_repeated(fields: &Fields, index: usize, known: Known, name: &[u8]) -> bool {
    let mut earlier = fields.iter_known().take(index);
    earlier.any(|(other, text, _)| {
        other == known && (known != Known::Other || text.eq_ignore_ascii_case(name))
    })
}

/// The name of the param that a field becomes: `X-Two` is `HTTP_X_TWO`.
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
