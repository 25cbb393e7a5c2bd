//! `ngx.req`: what the client sent, and what scripts make of it.

use std::rc::Rc;

use bstr::ByteSlice;
use http::Request;
use http::body_reader::RequestBody;
use proto::h1::Method;

use super::arguments::{bytes, optional_text, text};
use super::encode::collect;
use super::{Called, Functions};
use crate::luajit::{Answer, Stack, Value, fail};
use crate::operation::Operation;
use crate::scope;

pub(super) const FUNCTIONS: Functions = &[
    ("get_method", get_method),
    ("http_version", http_version),
    ("raw_header", raw_header),
    ("is_internal", is_internal),
    ("start_time", start_time),
    ("set_uri", set_uri),
    ("read_body", read_body),
    ("discard_body", discard_body),
    ("get_body_data", get_body_data),
    ("get_body_file", get_body_file),
    ("set_body_data", set_body_data),
    ("set_body_file", set_body_file),
    ("init_body", init_body),
    ("append_body", append_body),
    ("finish_body", finish_body),
    ("socket", super::downstream::socket),
];

pub(super) const CORE: Functions = &[
    ("req_args", args),
    ("req_set_args", set_args),
    ("req_get_headers", get_headers),
    ("req_set_header", set_header),
    ("req_add_header", add_header),
    ("req_set_method", set_method),
];

fn get_method(stack: &Stack) -> Called {
    scope::with_request(|request| match request.method {
        Method::Other => stack.push_bytes(request.head.wire.method_text()),
        method => stack.push_bytes(method.name()),
    })?;
    super::ONE
}

fn http_version(stack: &Stack) -> Called {
    use http::request::Version;
    let version = scope::with_request(|request| request.head.version())?;
    stack.push_number(match version {
        Version::Http09 => 0.9,
        Version::Http10 => 1.0,
        Version::Http11 => 1.1,
        Version::Http2 => 2.0,
        Version::Http3 => 3.0,
    });
    super::ONE
}

fn raw_header(stack: &Stack) -> Called {
    let no_line = stack.boolean(1);
    let mut out = Vec::new();
    scope::with_request(|request| {
        let wire = &request.head.wire;
        if !no_line {
            out.extend_from_slice(wire.request_line());
            out.extend_from_slice(b"\r\n");
        }
        for (name, value) in wire.fields.iter() {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    })?;
    stack.push_bytes(&out);
    super::ONE
}

fn is_internal(stack: &Stack) -> Called {
    let internal = scope::with_request(|request| request.flow.internal)?;
    stack.push_boolean(internal);
    super::ONE
}

fn start_time(stack: &Stack) -> Called {
    let began = scope::with_request(|request| request.ledger.started_wall_ms)?;
    stack.push_number(began as f64 / 1000.0);
    super::ONE
}

fn args(stack: &Stack) -> Called {
    scope::with_request(|request| stack.push_bytes(&request.uri.args))?;
    super::ONE
}

fn set_args(stack: &Stack) -> Called {
    let args = as_arguments(bytes(stack, 1)?);
    scope::with_request(|request| {
        request.uri.args = args.into();
        request.uri.original = false;
    })?;
    super::NONE
}

/// Arguments as they may stand in the line of a request: what would end it is escaped. Escapes stay as they are.
pub(super) fn as_arguments(args: &[u8]) -> Vec<u8> {
    escaped(args, |byte| byte <= b' ' || byte == 0x7f)
}

fn set_uri(stack: &Stack) -> Called {
    let path = text(stack, 1)?;
    let jump = stack.boolean(2);
    if path.is_empty() {
        return fail("attempt to use zero-length uri");
    }
    let kind = scope::with(|scope| scope.kind)?;
    if jump && kind != crate::chunk::Kind::Rewrite {
        return fail(format!("API disabled in the context of {}*", kind.name()));
    }
    // The third argument says that the path is meant to have any byte.
    if !stack.boolean(3)
        && let Some(bad) = path.iter().find(|byte| is_unsafe(**byte))
    {
        return fail(format!(
            "unsafe byte \"0x{bad:02x}\" in uri \"{}\" (maybe you want to set the 'binary' argument?)",
            shown(&path).as_bstr()
        ));
    }
    scope::with_request(|request| {
        // All of it is a path, and none of it escaped: who sends it on escapes what has to be.
        request.uri.path = path.into();
        request.uri.original = false;
        request.flow.internal = true;
        request.flow.rewritten = true;
        for name in ["uri", "document_uri"] {
            forget(request, name);
        }
    })?;
    match jump {
        true => super::output::end(Operation::Jump),
        false => super::NONE,
    }
}

/// Bytes that have no business in a path.
fn is_unsafe(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
}

/// A path for a message.
fn shown(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for &byte in path {
        match is_unsafe(byte) {
            true => out.extend_from_slice(format!("\\x{byte:02X}").as_bytes()),
            false => out.push(byte),
        }
    }
    out
}

/// A variable is to be computed anew.
fn forget(request: &mut Request, name: &str) {
    if let Some(id) = request.site.variables.id(name) {
        request.variables.forget(id);
    }
}

fn get_headers(stack: &Stack) -> Called {
    let max = super::arguments::optional_number(stack, 1)?.map_or(usize::MAX, |n| n as usize);
    let raw = stack.boolean(2);
    scope::with_request(|request| fields(stack, request.head.wire.fields.iter(), max, raw))?
}

/// Pushes header fields as a table: a name that stands more than once has a list.
pub(super) fn fields<'a>(
    stack: &Stack,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    max: usize,
    raw: bool,
) -> Called {
    stack.push_table(0, 16);
    let table = stack.top();
    for (n, (name, value)) in fields.enumerate() {
        if n == max {
            stack.push_bytes("truncated");
            return Ok(Answer::Values(2));
        }
        stack.push_bytes(value);
        match raw {
            true => collect(stack, table, name),
            false => collect(stack, table, &name.to_ascii_lowercase()),
        }
    }
    super::ONE
}

fn set_header(stack: &Stack) -> Called {
    let name = field_name(bytes(stack, 1)?);
    let value = optional_text(stack, 2)?.map(|value| field_value(&value));
    change_fields(&name, |fields| match &value {
        Some(value) => fields.set(&name, value),
        None => {
            fields.remove(&name);
        }
    })
}

fn add_header(stack: &Stack) -> Called {
    let name = field_name(bytes(stack, 1)?);
    let value = field_value(bytes(stack, 2)?);
    change_fields(&name, |fields| fields.push(&name, &value))
}

fn change_fields(name: &[u8], change: impl FnOnce(&mut proto::Fields)) -> Called {
    scope::with_request(|request| {
        request.change_fields(name, change);
        request.forget_field(name);
    })?;
    super::NONE
}

/// A name as it may stand in a head: bytes that would end it are escaped.
pub(super) fn field_name(name: &[u8]) -> Vec<u8> {
    escaped(name, |byte| byte <= b' ' || byte == b':' || byte == 0x7f)
}

/// A value as it may stand in a head.
pub(super) fn field_value(value: &[u8]) -> Vec<u8> {
    escaped(value, |byte| (byte < b' ' && byte != b'\t') || byte == 0x7f)
}

fn escaped(text: &[u8], bad: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match bad(byte) {
            true => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            false => out.push(byte),
        }
    }
    out
}

fn set_method(stack: &Stack) -> Called {
    let method = Method::from_bytes(bytes(stack, 1)?);
    scope::with_request(|request| {
        request.method = method;
        request.flow.header_only = method == Method::Head;
    })?;
    super::NONE
}

fn read_body(_: &Stack) -> Called {
    if scope::with_request(|request| request.body.is_complete())? {
        return super::NONE;
    }
    super::output::end(Operation::ReadBody)
}

fn discard_body(_: &Stack) -> Called {
    // What is not read is thrown away at the end of the request anyway.
    super::NONE
}

fn get_body_data(stack: &Stack) -> Called {
    let max = super::arguments::optional_number(stack, 1)?.map(|n| n as usize);
    scope::with_request(|request| match request.body.in_memory() {
        Some(body) if !body.is_empty() => {
            let end = max.unwrap_or(body.len()).min(body.len());
            stack.push_bytes(&body[..end]);
        }
        _ => stack.push_nil(),
    })?;
    super::ONE
}

fn get_body_file(stack: &Stack) -> Called {
    scope::with_request(|request| match request.body.file() {
        Some(file) => stack.push_bytes(file.path.as_os_str().as_encoded_bytes()),
        None => stack.push_nil(),
    })?;
    super::ONE
}

fn set_body_data(stack: &Stack) -> Called {
    let body = text(stack, 1)?;
    scope::with_request(|request| put_body(request, body))??;
    super::NONE
}

fn put_body(request: &mut Request, body: Vec<u8>) -> Result<(), crate::luajit::Failure> {
    if !request.body.is_complete() {
        return fail("request body not read yet");
    }
    let length = body.len();
    request.body = RequestBody::from_bytes(body);
    let fields = &mut Rc::make_mut(&mut request.head).wire.fields;
    fields.set(b"Content-Length", length.to_string().as_bytes());
    fields.remove(b"Transfer-Encoding");
    for name in ["content_length", "http_content_length", "request_body"] {
        forget(request, name);
    }
    Ok(())
}

fn set_body_file(stack: &Stack) -> Called {
    let name = text(stack, 1)?;
    let path = std::path::PathBuf::from(name.to_str_lossy().into_owned());
    // Read by a thread of the pool; afterwards the content is in memory.
    let pool = rt::pool::default_pool();
    scope::with(|scope| {
        *scope.waits.borrow_mut() = Some(Operation::task(async move {
            match pool.run(move || std::fs::read(path)).await {
                Ok(content) => vec![Value::Bytes(content)],
                Err(error) => Value::failure(error.to_string()),
            }
        }));
        Ok(Answer::Wait)
    })?
}

/// A body that a script makes piece by piece.
#[derive(Default)]
struct Making(Vec<u8>);

fn init_body(_: &Stack) -> Called {
    scope::with_request(|request| request.set_state(Making::default()))?;
    super::NONE
}

fn append_body(stack: &Stack) -> Called {
    let piece = text(stack, 1)?;
    scope::with_request(|request| match request.state::<Making>() {
        Some(making) => {
            making.0.extend_from_slice(&piece);
            super::NONE
        }
        None => fail("request body not initialized"),
    })?
}

fn finish_body(_: &Stack) -> Called {
    scope::with_request(|request| {
        let Some(making) = request.state::<Making>() else {
            return fail("request body not initialized");
        };
        let body = std::mem::take(&mut making.0);
        put_body(request, body)
    })??;
    super::NONE
}
