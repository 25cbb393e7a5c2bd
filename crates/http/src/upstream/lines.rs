//! What a client may not put into the head of a request to a server: the end of a line, and what follows it.
//!
//! A value is made of variables, and some of them hold decoded bytes of the client's: `$uri` and what expressions capture
//! of it, `$remote_user`, the content. With CR and LF in a line of HTTP/1 such a value would be two lines, or two
//! requests, of which the client wrote the second. Where a head is framed by lines (HTTP/1; HTTP/2, whose fields become
//! lines elsewhere) or by zero bytes (SCGI), every value passes through [`Ends::write`] on its way into it: with such a byte
//! from a client the request is refused. Texts of the configuration stay what they are. Targets are never refused; their
//! controls and spaces are escaped ([`proto::uri::make_target`]).
//!
//! FastCGI and uwsgi say how long each value is, and take any byte.

use bstr::{BStr, ByteSlice};
use conf::{Expression, Part, Scope, VarId};
use host::error_log::Level;
use memchr::{memchr, memchr3};

use super::no_response::NoResponse;
use crate::request::Request;

/// What ends a value in a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// CR, LF and NUL: lines (RFC 9110, section 5.5).
    Line,
    /// The same and the space: the method (RFC 9112, section 3).
    Word,
    /// NUL alone.
    Zero,
}

/// Where a value stands in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// `proxy_set_header`
    pub directive: &'a str,
    /// Which of them, where there may be several: the field. Empty otherwise.
    pub name: &'a [u8],
}

impl Ends {
    /// Appends the value of an expression. The error is the status to answer with, when a client sent what would end it;
    /// that has been logged.
    #[inline]
    pub fn write(
        self,
        request: &mut Request,
        value: &Expression,
        place: Place<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        if let Some(text) = value.constant() {
            out.extend_from_slice(text);
            return Ok(());
        }
        let start = out.len();
        value.eval(request, out);
        match self.find(&out[start..]) {
            None => Ok(()),
            Some(_) => {
                out.truncate(start);
                self.write_parts(request, value, place, out)
            }
        }
    }

    /// Whether a text has none of them.
    #[inline]
    pub fn allows(self, text: &[u8]) -> bool {
        self.find(text).is_none()
    }

    /// Judges a text that is not the configuration's.
    #[inline]
    pub fn check(self, request: &Request, text: &[u8], place: Place<'_>) -> Result<(), NoResponse> {
        match self.find(text) {
            None => Ok(()),
            Some(at) => Err(refuse(request, text[at], place)),
        }
    }

    fn find(self, text: &[u8]) -> Option<usize> {
        match self {
            Ends::Line => memchr3(b'\r', b'\n', 0, text),
            Ends::Word => text
                .iter()
                .position(|byte| matches!(byte, b'\r' | b'\n' | 0 | b' ')),
            Ends::Zero => memchr(0, text),
        }
    }

    /// There is such a byte: whose is it?
    #[cold]
    fn write_parts(
        self,
        request: &mut Request,
        value: &Expression,
        place: Place<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        for part in value.parts() {
            let start = out.len();
            let variable = match part {
                Part::Text(text) => {
                    out.extend_from_slice(text);
                    continue;
                }
                Part::Variable(id) => {
                    request.variable(id, out);
                    Some(id)
                }
                Part::Capture(n) => {
                    request.capture(n, out);
                    None
                }
            };
            let text = &out[start..];
            if let Some(at) = self.find(text)
                && !variable.is_some_and(|id| is_ours(request, id, text))
            {
                return Err(refuse(request, text[at], place));
            }
        }
        Ok(())
    }
}

/// Whether the configuration, or the server itself, wrote a value of several lines: a text that the configuration gives
/// the variable as it stands, or a certificate, whose lines are made here (with a tab in front, so that they go on with a
/// field), under whatever name it travels.
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

#[cold]
fn refuse(request: &Request, byte: u8, place: Place<'_>) -> NoResponse {
    let what = match byte {
        b'\r' => "a CR",
        b'\n' => "a LF",
        b' ' => "a space",
        _ => "a NUL",
    };
    let Place { directive, name } = place;
    let (blank, name): (&str, &BStr) = match name {
        [] => ("", BStr::new("")),
        name => (" ", name.as_bstr()),
    };
    request.log(
        Level::Error,
        format_args!(
            "client sent {what} in what \"{directive}{blank}{name}\" would send to upstream"
        ),
    );
    NoResponse::new(400)
}
