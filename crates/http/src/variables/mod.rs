//! The variables that exist without any module: nginx's core variables
//! (<https://nginx.org/en/docs/http/ngx_http_core_module.html#variables>).
//!
//! Each is a row: its name, the function that evaluates it, and its documentation. Variables that may change during a
//! request are `volatile`, so that each use sees the current value. nginx keeps the first value of a few of them
//! (`$sent_http_*`, `$bytes_sent`), which is rarely what a configuration means; here they are volatile as well.

mod client;
pub(crate) mod fields;
mod request_id;
mod response;
mod target;

use conf::Variable;

use crate::request::Request;

/// All of them, in the order of the reference.
pub static VARIABLES: &[&[Variable<Request>]] = &[
    target::VARIABLES,
    fields::VARIABLES,
    net::client::ConnectionVariables::<Request>::VARIABLES,
    client::VARIABLES,
    response::VARIABLES,
    request_id::VARIABLES,
    net::client::ConnectionVariables::<Request>::OF_SERVER,
    crate::upstream::variables::VARIABLES,
    crate::cache::VARIABLES,
    crate::ledger::VARIABLES,
];

/// Appends a text.
fn text(value: impl AsRef<[u8]>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(value.as_ref());
    true
}

/// Appends a text that may be missing. `false` means that the variable has no value, which logs show as `-`.
fn optional(value: Option<impl AsRef<[u8]>>, out: &mut Vec<u8>) -> bool {
    value.is_some_and(|value| text(value, out))
}

/// Appends a number.
fn number(value: u64, out: &mut Vec<u8>) -> bool {
    base::text::write_number(value, out);
    true
}

/// Appends a port; an empty value if there is none (unix sockets).
fn port(value: u16, out: &mut Vec<u8>) -> bool {
    value == 0 || number(value.into(), out)
}
