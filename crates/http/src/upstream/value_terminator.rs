//! Prevents a client from ending a line in the head of a request to an upstream.
//!
//! Values are made of variables, and some of these hold decoded bytes from the client: `$uri` and captures of it,
//! `$remote_user`, the body. With CR and LF in a line of HTTP/1, such a value would become two lines, or two requests,
//! the second of which was written by the client (request smuggling; RFC 9112, section 11.2). If a protocol frames a
//! head by lines (HTTP/1, and HTTP/2, whose fields become lines elsewhere) or by zero bytes (SCGI), every value passes
//! through [`ValueTerminator::write_value`]. If such a byte comes from a client, the request is refused. Text from the
//! configuration is left as it is. Request targets are never refused: their control characters and spaces are escaped
//! ([`proto::uri::make_target`]).
//!
//! FastCGI and uwsgi send the length of each value, so any byte is harmless there.

use bstr::{BStr, ByteSlice};
use conf::{Expression, ExpressionPart, VarId, VariableScope};
use host::error_log::LogLevel;
use memchr::{memchr, memchr3};

use super::no_response::NoResponse;
use crate::request::Request;

/// The bytes that end a value in a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueTerminator {
    /// CR, LF and NUL: field lines (RFC 9110, section 5.5).
    Line,
    /// The same and space: the method (RFC 9112, section 3).
    Word,
    /// NUL alone.
    Zero,
}

/// The place of a value in the configuration, for the log.
#[derive(Clone, Copy, Debug)]
pub struct ValueOrigin<'a> {
    /// `proxy_set_header`
    pub directive: &'a str,
    /// The field, if there may be several such directives; empty otherwise.
    pub name: &'a [u8],
}

impl ValueTerminator {
    /// Appends the value of an expression. The error is the status to answer with, if the value has such a byte from a
    /// client; that has been logged.
    #[inline]
    pub fn write_value(
        self,
        request: &mut Request,
        value: &Expression,
        origin: ValueOrigin<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        // A constant was written by the operator.
        if let Some(text) = value.constant() {
            out.extend_from_slice(text);
            return Ok(());
        }
        let start = out.len();
        value.eval(request, out);
        // The usual value has no such byte, and is scanned once. Only otherwise its parts are told apart.
        match self.find(&out[start..]) {
            None => Ok(()),
            Some(_) => {
                out.truncate(start);
                self.write_parts(request, value, origin, out)
            }
        }
    }

    /// Whether a text has no such byte.
    #[inline]
    pub fn allows(self, text: &[u8]) -> bool {
        self.find(text).is_none()
    }

    /// Checks a text that does not come from the configuration.
    #[inline]
    pub fn check_text(
        self,
        request: &Request,
        text: &[u8],
        origin: ValueOrigin<'_>,
    ) -> Result<(), NoResponse> {
        match self.find(text) {
            None => Ok(()),
            Some(at) => Err(refuse(request, text[at], origin)),
        }
    }

    fn find(self, text: &[u8]) -> Option<usize> {
        match self {
            ValueTerminator::Line => memchr3(b'\r', b'\n', 0, text),
            ValueTerminator::Word => text
                .iter()
                .position(|byte| matches!(byte, b'\r' | b'\n' | 0 | b' ')),
            ValueTerminator::Zero => memchr(0, text),
        }
    }

    /// Writes the value again, part by part, to find out where such a byte comes from.
    #[cold]
    fn write_parts(
        self,
        request: &mut Request,
        value: &Expression,
        origin: ValueOrigin<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        for part in value.parts() {
            let start = out.len();
            let variable = match part {
                ExpressionPart::Text(text) => {
                    out.extend_from_slice(text);
                    continue;
                }
                ExpressionPart::Variable(id) => {
                    request.variable(id, out);
                    Some(id)
                }
                ExpressionPart::Capture(n) => {
                    request.capture(n, out);
                    None
                }
            };
            let text = &out[start..];
            if let Some(at) = self.find(text)
                && !variable.is_some_and(|id| is_ours(request, id, text))
            {
                return Err(refuse(request, text[at], origin));
            }
        }
        Ok(())
    }
}

/// Whether a value of several lines comes from the configuration or from this server: it is a text that the
/// configuration assigns to the variable, or a certificate, whose lines are made here (with a tab at the beginning of
/// each, which continues the field), whatever variable it was copied to.
fn is_ours(request: &mut Request, id: VarId, text: &[u8]) -> bool {
    let site = std::rc::Rc::clone(&request.site);
    let variables = &site.variables;
    if variables.get(id).lines || variables.is_written(id, text) {
        return true;
    }
    let mut lines = Vec::new();
    variables.with_lines().any(|id| {
        lines.clear();
        request.variable(id, &mut lines) && lines == text
    })
}

/// Logs the refusal, and returns 400.
#[cold]
fn refuse(request: &Request, byte: u8, origin: ValueOrigin<'_>) -> NoResponse {
    let what = match byte {
        b'\r' => "a CR",
        b'\n' => "a LF",
        b' ' => "a space",
        _ => "a NUL",
    };
    let ValueOrigin { directive, name } = origin;
    let (blank, name): (&str, &BStr) = match name {
        [] => ("", BStr::new("")),
        name => (" ", name.as_bstr()),
    };
    request.log(
        LogLevel::Error,
        format_args!(
            "client sent {what} in what \"{directive}{blank}{name}\" would send to upstream"
        ),
    );
    NoResponse::new(400)
}
