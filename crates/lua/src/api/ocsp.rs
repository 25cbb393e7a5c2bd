//! `ngx.ocsp`: OCSP by a script, which asks the responder itself. `surface.lua` builds the module from these functions.

use net::tls::ocsp::OcspSubject;

use super::arguments::bytes;
use super::called::answer;
use super::ssl::current_offer;
use super::{CallResult, NativeTable};
use crate::luajit::{LuaStack, LuaValue, NativeReturn};

pub(super) const CORE: NativeTable = &[
    ("ocsp_responder", responder),
    ("ocsp_request", request),
    ("ocsp_validate", validate),
    ("ocsp_staple", staple),
];

/// The extension by which a client asks for a response (RFC 6066, section 8).
const STATUS_REQUEST: u16 = 5;

/// `get_ocsp_responder_from_der_chain(chain)`: the URL, or nil if the certificate has none, or nil and an error.
fn responder(stack: &LuaStack) -> CallResult {
    let subject = OcspSubject::of_chain(bytes(stack, 1)?);
    match subject.and_then(|subject| subject.responder().map(|url| url.map(str::to_owned))) {
        Ok(Some(url)) => stack.push_bytes(url),
        Ok(None) => stack.push_nil(),
        Err(message) => return answer(stack, LuaValue::failure(message)),
    }
    super::ONE
}

/// `create_ocsp_request(chain)`.
fn request(stack: &LuaStack) -> CallResult {
    match OcspSubject::of_chain(bytes(stack, 1)?) {
        Ok(subject) => stack.push_bytes(subject.encode_request()),
        Err(message) => return answer(stack, LuaValue::failure(message)),
    }
    super::ONE
}

/// `validate_ocsp_response(response, chain)`: true, and until when it is valid if it says so.
fn validate(stack: &LuaStack) -> CallResult {
    let (response, chain) = (bytes(stack, 1)?, bytes(stack, 2)?);
    let verdict = OcspSubject::of_chain(chain)
        .map_err(str::to_owned)
        .and_then(|subject| subject.verify(response));
    match verdict {
        Ok(until) => {
            stack.push_boolean(true);
            match until {
                Some(until) => stack.push_number(until as f64),
                None => stack.push_nil(),
            }
            Ok(NativeReturn::Values(2))
        }
        Err(message) => answer(stack, LuaValue::failure(message)),
    }
}

/// `set_ocsp_status_resp(response)`: true, and a remark if the client did not ask.
fn staple(stack: &LuaStack) -> CallResult {
    let response = bytes(stack, 1)?.to_vec();
    let offer = current_offer()?;
    let mut offer = offer.borrow_mut();
    let mut extensions = offer.extensions.iter();
    let is_wanted = extensions.any(|(kind, _)| *kind == STATUS_REQUEST);
    stack.push_boolean(true);
    if !is_wanted {
        stack.push_bytes("no status req");
        return Ok(NativeReturn::Values(2));
    }
    offer.staple(&response);
    super::ONE
}
