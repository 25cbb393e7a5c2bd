//! `ngx.req`: what the client sent, and what scripts make of it.
//!
//! Changes are made to the request itself, so that everything that runs later (variables, the
//! upstream request, the access log) sees them. A variable that was computed before is forgotten.

use std::rc::Rc;

use bstr::ByteSlice;
use http::Request;
use http::body_reader::RequestBody;
use proto::message::Method;

use super::arguments::{as_int, bad, bytes, count, number, optional_text, text};
use super::encode::{MAX_ARGS, collect, fill_args, fill_query, most};
use super::{CallResult, NativeTable};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, NativeReturn, RegistryRef, fail};
use crate::operation::YieldOperation;
use crate::scope;
use crate::scripts::HttpScripts;

pub(super) const FUNCTIONS: NativeTable = &[
    ("get_method", get_method),
    ("http_version", http_version),
    ("raw_header", raw_header),
    ("is_internal", is_internal),
    ("start_time", start_time),
    ("set_uri", set_uri),
    ("read_body", read_body),
    ("discard_body", discard_body),
    ("set_uri_args", set_args),
    ("get_post_args", get_post_args),
    ("get_body_data", get_body_data),
    ("get_body_file", get_body_file),
    ("set_body_data", set_body_data),
    ("init_body", super::request_file::init_body),
    ("append_body", super::request_file::append_body),
    ("finish_body", super::request_file::finish_body),
    ("socket", super::downstream::socket),
];

pub(super) const CORE: NativeTable = &[
    ("req_get_uri_args", get_uri_args),
    ("req_get_headers", get_headers),
    ("req_set_header", set_header),
    ("req_add_header", add_header),
    ("req_set_method", set_method),
    ("req_open_file", super::request_file::open_file),
    ("req_take_file", super::request_file::take_file),
];

/// `ngx.req.get_method()`.
fn get_method(stack: &LuaStack) -> CallResult {
    scope::with_request(|request| match request.method {
        Method::Other => stack.push_bytes(request.head.wire.method_text()),
        method => stack.push_bytes(method.name()),
    })?;
    super::ONE
}

/// `ngx.req.http_version()`.
fn http_version(stack: &LuaStack) -> CallResult {
    use http::request::HttpVersion;
    let version = scope::with_request(|request| request.head.version())?;
    stack.push_number(match version {
        HttpVersion::Http09 => 0.9,
        HttpVersion::Http10 => 1.0,
        HttpVersion::Http11 => 1.1,
        HttpVersion::Http2 => 2.0,
        HttpVersion::Http3 => 3.0,
    });
    super::ONE
}

/// `ngx.req.raw_header(no_request_line)`: as received, or assembled where the client did not send
/// text (HTTP/2).
fn raw_header(stack: &LuaStack) -> CallResult {
    let no_line = stack.boolean(1);
    let head = scope::with_request(|request| {
        let text = request.head.wire.as_text();
        if !no_line {
            return text.into_owned();
        }
        let line = text.iter().position(|byte| *byte == b'\n');
        text[line.map_or(text.len(), |end| end + 1)..].to_vec()
    })?;
    stack.push_bytes(&head);
    super::ONE
}

/// `ngx.req.is_internal()`.
fn is_internal(stack: &LuaStack) -> CallResult {
    let internal = scope::with_request(|request| request.flow.internal)?;
    stack.push_boolean(internal);
    super::ONE
}

/// `ngx.req.start_time()`, in seconds with milliseconds.
fn start_time(stack: &LuaStack) -> CallResult {
    let began = scope::with_request(|request| request.times.started_wall_ms).or_else(|_| {
        scope::with_session(|session| {
            let age = rt::now()
                .saturating_duration_since(session.client.accepted)
                .as_millis();
            rt::wall_millis().saturating_sub(u64::try_from(age).unwrap_or(0))
        })
    })?;
    stack.push_number(began as f64 / 1000.0);
    super::ONE
}

/// The `max` argument at `at`: 100 by default, none for 0.
fn max_fields(stack: &LuaStack, at: i32) -> Result<usize, LuaError> {
    Ok(match stack.type_at(at) {
        LuaType::Nil | LuaType::None | LuaType::Cdata => MAX_ARGS,
        LuaType::Boolean if stack.boolean(at) => 1,
        LuaType::Boolean => MAX_ARGS,
        LuaType::Number => match as_int(number(stack, at)?) {
            n if n < 0 => MAX_ARGS,
            n => most(n),
        },
        kind => return bad(stack, at, &format!("number expected, got {}", kind.name())),
    })
}

/// `ngx.req.get_uri_args(max, table)`: `prelude.lua` supplies the table.
fn get_uri_args(stack: &LuaStack) -> CallResult {
    let max = max_fields(stack, 1)?;
    let args = scope::with_request(|request| request.uri.args.clone())?;
    stack.set_top(2);
    fill_query(stack, &args, max)
}

/// `ngx.req.get_post_args(max)`, of a body in memory.
fn get_post_args(stack: &LuaStack) -> CallResult {
    count(stack, 0..=1, "0 or 1 arguments")?;
    let max = match stack.top() {
        1 => most(as_int(number(stack, 1)?)),
        _ => MAX_ARGS,
    };
    let body = scope::with_request(|request| {
        if !was_read(request) {
            return fail("no request body found; maybe you should turn on lua_need_request_body?");
        }
        Ok(match request.body.file() {
            Some(_) => None,
            None => Some(request.body.in_memory().unwrap_or_default().to_vec()),
        })
    })??;
    let Some(body) = body else {
        let message = "request body in temp file not supported";
        return super::called::answer(stack, LuaValue::failure(message));
    };
    stack.push_table(0, 8);
    fill_args(stack, &body, max)
}

/// `ngx.req.set_uri_args(args)`, a string or a table.
fn set_args(stack: &LuaStack) -> CallResult {
    count(stack, 1..=1, "1 argument")?;
    let args = match stack.type_at(1) {
        LuaType::String | LuaType::Number => as_arguments(bytes(stack, 1)?),
        LuaType::Table => super::encode::args_of(stack, 1)?,
        kind => {
            let kind = kind.name();
            let why = format!("string, number, or table expected, but got {kind}");
            return bad(stack, 1, &why);
        }
    };
    scope::with_request(|request| {
        // From here on the upstream request is built from the parts, not from the line that the
        // client sent.
        request.uri.args = args.into();
        request.uri.original = false;
    })?;
    super::NONE
}

/// Escapes what would end the request line; existing escapes are left alone.
pub(super) fn as_arguments(args: &[u8]) -> Vec<u8> {
    escaped(args, |byte| byte <= b' ' || byte == 0x7f)
}

/// Refuses an argument that is there and not a boolean.
fn need_boolean(stack: &LuaStack, at: i32) -> Result<(), LuaError> {
    if stack.top() >= at && stack.type_at(at) != LuaType::Boolean {
        let kind = stack.type_at(at).name();
        return bad(stack, at, &format!("boolean expected, got {kind}"));
    }
    Ok(())
}

/// `ngx.req.set_uri(uri, jump, binary)`. With `jump` the location is looked up again, like `rewrite
/// … last`; only rewrite scripts can do that.
fn set_uri(stack: &LuaStack) -> CallResult {
    count(stack, 1..=3, "1, 2 or 3 arguments")?;
    let path = text(stack, 1)?;
    if path.is_empty() {
        return fail("attempt to use zero-length uri");
    }
    // In nginx's order: the path is judged between the two.
    need_boolean(stack, 3)?;
    // With `binary` the path may contain any byte.
    if !stack.boolean(3)
        && let Some(bad) = path.iter().find(|byte| is_unsafe(**byte))
    {
        return fail(format!(
            "unsafe byte \"0x{bad:02x}\" in uri \"{}\" (maybe you want to set the 'binary' argument?)",
            printable_path(&path).as_bstr()
        ));
    }
    need_boolean(stack, 2)?;
    let jump = stack.boolean(2);
    let kind = scope::with(|scope| scope.kind)?;
    use crate::chunk::ScriptKind as Script;
    if jump && !matches!(kind, Script::ServerRewrite | Script::Rewrite) {
        return fail(kind.refusal());
    }
    if jump {
        super::output::need_no_captures()?;
    }
    scope::with_request(|request| {
        // The text is a decoded path as a whole, even a `?`. It is escaped where it is sent.
        request.uri.path = path.into();
        request.uri.original = false;
        request.flow.internal = true;
        request.flow.rewritten = true;
        for name in ["uri", "document_uri"] {
            forget_variable(request, name);
        }
    })?;
    match jump {
        true => {
            // Like any internal redirect this starts with an empty `ngx.ctx`.
            scope::with(|scope| {
                stack.push_table(0, 4);
                let fresh = Rc::new(RegistryRef::take(&scope.vm.state, stack));
                scope::with_request(|request| super::misc::set_request_ctx(request, fresh))
            })??;
            super::called::end_with(YieldOperation::Jump)
        }
        false => super::NONE,
    }
}

/// Control characters: allowed in a path by accident at most.
fn is_unsafe(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
}

/// A path in printable form for a message.
pub(super) fn printable_path(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for &byte in path {
        match is_unsafe(byte) {
            true => out.extend_from_slice(format!("\\x{byte:02X}").as_bytes()),
            false => out.push(byte),
        }
    }
    out
}

/// Forgets the cached value of a variable.
fn forget_variable(request: &mut Request, name: &str) {
    if let Some(id) = request.site.variables.id(name) {
        request.variables.values.forget(id);
    }
}

/// `ngx.req.get_headers(max, raw)`: `prelude.lua` adds the metatable that ignores case.
fn get_headers(stack: &LuaStack) -> CallResult {
    let max = max_fields(stack, 1)?;
    let raw = stack.boolean(2);
    scope::with_request(|request| fields(stack, request.head.wire.fields.iter(), max, raw))?
}

/// Pushes headers as a table; a name that occurs more than once has a list.
pub(super) fn fields<'a>(
    stack: &LuaStack,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    max: usize,
    raw: bool,
) -> CallResult {
    stack.push_table(0, 16);
    let table = stack.top();
    for (n, (name, value)) in fields.enumerate() {
        if n == max {
            stack.push_bytes("truncated");
            return Ok(NativeReturn::Values(2));
        }
        stack.push_bytes(value);
        match raw {
            true => collect(stack, table, name),
            false => collect(stack, table, &name.to_ascii_lowercase()),
        }
    }
    super::ONE
}

/// `ngx.req.set_header(name, value)`; nil removes the header.
fn set_header(stack: &LuaStack) -> CallResult {
    let name = field_name(bytes(stack, 1)?);
    let value = optional_text(stack, 2)?.map(|value| field_value(&value));
    let is_length = name.eq_ignore_ascii_case(b"Content-Length");
    let is_number = |value: &Vec<u8>| value.iter().all(u8::is_ascii_digit);
    if is_length && !value.as_ref().is_none_or(is_number) {
        return fail("failed to set header");
    }
    change_fields(&name, |fields| match &value {
        Some(value) => fields.set(&name, value),
        None => {
            fields.remove(&name);
        }
    })
}

/// Adds a header beside others of its name: the further values of a list.
fn add_header(stack: &LuaStack) -> CallResult {
    let name = field_name(bytes(stack, 1)?);
    let value = field_value(bytes(stack, 2)?);
    change_fields(&name, |fields| fields.push(&name, &value))
}

/// Changes the request's headers, and forgets the variables that follow from them.
fn change_fields(name: &[u8], change: impl FnOnce(&mut proto::Fields)) -> CallResult {
    scope::with_request(|request| {
        if request.head.version() == http::request::HttpVersion::Http09 {
            // A request of HTTP/0.9 has no headers.
            return;
        }
        request.change_fields(name, change);
        request.forget_field(name);
    })?;
    super::NONE
}

/// Sets a header of a request, replacing others of its name.
pub(super) fn set_field(request: &mut Request, name: &[u8], value: &[u8]) {
    let (name, value) = (field_name(name), field_value(value));
    request.change_fields(&name, |fields| fields.set(&name, &value));
    request.forget_field(&name);
}

/// A name that is safe in a head: delimiters and control characters are escaped, so that a script
/// that is fed by a client cannot be made to inject headers.
pub(super) fn field_name(name: &[u8]) -> Vec<u8> {
    escaped(name, |byte| {
        byte <= b' ' || byte >= 0x7f || b"\"(),/:;<=>?@[\\]{}".contains(&byte)
    })
}

/// A value that is safe in a head: control characters are escaped.
pub(super) fn field_value(value: &[u8]) -> Vec<u8> {
    escaped(value, |byte| (byte < b' ' && byte != b'\t') || byte == 0x7f)
}

/// Replaces the bytes for which `bad` holds by `%XX`.
pub(super) fn escaped(text: &[u8], bad: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match bad(byte) {
            true => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            false => out.push(byte),
        }
    }
    out
}

/// `ngx.req.set_method(id)`: `prelude.lua` maps the constants to names.
fn set_method(stack: &LuaStack) -> CallResult {
    let method = Method::from_bytes(bytes(stack, 1)?);
    scope::with_request(|request| {
        request.method = method;
        request.delivery.header_only = method == Method::Head;
    })?;
    super::NONE
}

/// Request state: a script has read the body.
struct BodyRead;

/// Request state: a script has called `discard_body`, so that the body cannot be read any more.
struct BodyDiscarded;

/// Notes that a script has read the body.
pub(super) fn note_read(request: &mut Request) {
    request.set_state(BodyRead);
}

/// Whether the body was read, though it may be empty. Functions that use the body raise an error
/// otherwise: a script that forgot `read_body` would see an empty one.
pub(super) fn was_read(request: &mut Request) -> bool {
    let later = scope::with(|scope| {
        use crate::chunk::ScriptKind as Script;
        matches!(
            scope.kind,
            Script::HeaderFilter | Script::BodyFilter | Script::Log | Script::Balancer
        )
    });
    // A handler that is not a script has read the body by the time the response is filtered or
    // logged.
    let later = later.unwrap_or(false);
    later && request.conf::<HttpScripts>().content.is_none()
        || !later && request.body.length() > 0
        || request.is_subrequest()
        || request.conf::<HttpScripts>().need_request_body
        || request.state::<BodyRead>().is_some()
}

/// `ngx.req.read_body()`.
fn read_body(stack: &LuaStack) -> CallResult {
    count(stack, 0..=0, "0 arguments")?;
    super::called::need_request_control()?;
    let complete = scope::with_request(|request| {
        // There is nothing left to wait for.
        if request.state::<BodyDiscarded>().is_some() {
            return true;
        }
        note_read(request);
        request.body.is_complete()
    })?;
    match complete {
        true => super::NONE,
        false => super::called::end_with(YieldOperation::ReadBody),
    }
}

/// `ngx.req.discard_body()`.
fn discard_body(stack: &LuaStack) -> CallResult {
    count(stack, 0..=0, "0 arguments")?;
    // The engine discards an unread body at the end of the request anyway.
    scope::with_request(|request| {
        if !request.body.is_complete() {
            request.set_state(BodyDiscarded);
        }
    })?;
    super::NONE
}

/// `ngx.req.get_body_data(max)`; nil if the body is in a file, or empty.
fn get_body_data(stack: &LuaStack) -> CallResult {
    count(stack, 0..=1, "0 or 1 arguments")?;
    let max = match stack.top() {
        1 => number(stack, 1)? as usize,
        _ => 0,
    };
    scope::with_request(|request| match request.body.in_memory() {
        Some(body) if !body.is_empty() => {
            let end = if max == 0 { body.len() } else { max };
            stack.push_bytes(&body[..end.min(body.len())]);
        }
        _ => stack.push_nil(),
    })?;
    super::ONE
}

/// `ngx.req.get_body_file()`; nil if the body is in memory.
fn get_body_file(stack: &LuaStack) -> CallResult {
    count(stack, 0..=0, "0 arguments")?;
    scope::with_request(|request| match request.body.file() {
        Some(file) => stack.push_bytes(file.path.as_os_str().as_encoded_bytes()),
        None => stack.push_nil(),
    })?;
    super::ONE
}

/// `ngx.req.set_body_data(data)`.
fn set_body_data(stack: &LuaStack) -> CallResult {
    count(stack, 1..=1, "1 arguments")?;
    let body = text(stack, 1)?;
    scope::with_request(|request| {
        if !request.body.is_complete() || !was_read(request) {
            return fail("request body not read yet");
        }
        replace_body(request, RequestBody::from_bytes(body));
        super::NONE
    })?
}

/// Replaces the body, and the headers that describe it.
pub(super) fn replace_body(request: &mut Request, body: RequestBody) {
    let length = body.length();
    request.body = body;
    let fields = &mut Rc::make_mut(&mut request.head).wire.fields;
    fields.set(b"Content-Length", length.to_string().as_bytes());
    fields.remove(b"Transfer-Encoding");
    // These may have been evaluated before, and their values are kept.
    for name in ["content_length", "http_content_length", "request_body"] {
        forget_variable(request, name);
    }
}
