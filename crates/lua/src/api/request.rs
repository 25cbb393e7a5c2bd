//! `ngx.req`: what the client sent, and what scripts make of it.

use std::os::unix::ffi::OsStrExt as _;
use std::rc::Rc;

use bstr::ByteSlice;
use http::Request;
use http::body_reader::RequestBody;
use proto::h1::Method;

use super::arguments::{as_int, bad, bytes, count, number, optional_text, text};
use super::encode::{MAX_ARGS, collect, fill_args, fill_query, most};
use super::{Called, Functions};
use crate::directives::Code;
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Failure, Ref, Stack, Value, fail};
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
    ("set_uri_args", set_args),
    ("get_post_args", get_post_args),
    ("get_body_data", get_body_data),
    ("get_body_file", get_body_file),
    ("set_body_data", set_body_data),
    ("init_body", init_body),
    ("append_body", append_body),
    ("finish_body", finish_body),
    ("socket", super::downstream::socket),
];

pub(super) const CORE: Functions = &[
    ("req_get_uri_args", get_uri_args),
    ("req_get_headers", get_headers),
    ("req_set_header", set_header),
    ("req_add_header", add_header),
    ("req_set_method", set_method),
    ("req_read_file", read_file),
    ("req_note_body_file", note_body_file),
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
        let sent = wire.as_sent();
        if !sent.is_empty() {
            let rest = sent.iter().position(|byte| *byte == b'\n');
            let rest = rest.map_or(sent.len(), |end| end + 1);
            out.extend_from_slice(if no_line { &sent[rest..] } else { sent });
            return;
        }
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

/// How many arguments or fields a script wants, in argument `at`: 100 where it does not say, and all of them for 0.
fn limit(stack: &Stack, at: i32) -> Result<usize, Failure> {
    Ok(match stack.kind(at) {
        Kind::Nil | Kind::None | Kind::Cdata => MAX_ARGS,
        Kind::Boolean if stack.boolean(at) => 1,
        Kind::Boolean => MAX_ARGS,
        Kind::Number => match as_int(number(stack, at)?) {
            n if n < 0 => MAX_ARGS,
            n => most(n),
        },
        kind => return bad(stack, at, &format!("number expected, got {}", kind.name())),
    })
}

/// Fills the table in argument 2.
fn get_uri_args(stack: &Stack) -> Called {
    let max = limit(stack, 1)?;
    let args = scope::with_request(|request| request.uri.args.clone())?;
    stack.set_top(2);
    fill_query(stack, &args, max)
}

fn get_post_args(stack: &Stack) -> Called {
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
        return super::output::answer(stack, Value::failure(message));
    };
    stack.push_table(0, 8);
    fill_args(stack, &body, max)
}

fn set_args(stack: &Stack) -> Called {
    count(stack, 1..=1, "1 argument")?;
    let args = match stack.kind(1) {
        Kind::String | Kind::Number => as_arguments(bytes(stack, 1)?),
        Kind::Table => super::encode::args_of(stack, 1)?,
        kind => {
            let kind = kind.name();
            let why = format!("string, number, or table expected, but got {kind}");
            return bad(stack, 1, &why);
        }
    };
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
    count(stack, 1..=3, "1, 2 or 3 arguments")?;
    let path = text(stack, 1)?;
    for at in 2..=stack.top() {
        if stack.kind(at) != Kind::Boolean {
            let kind = stack.kind(at).name();
            return bad(stack, at, &format!("boolean expected, got {kind}"));
        }
    }
    let jump = stack.boolean(2);
    if path.is_empty() {
        return fail("attempt to use zero-length uri");
    }
    let kind = scope::with(|scope| scope.kind)?;
    use crate::chunk::Kind as Script;
    if jump && !matches!(kind, Script::ServerRewrite | Script::Rewrite) {
        return fail(kind.refusal());
    }
    if jump {
        super::output::need_no_captures()?;
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
        true => {
            // As with every redirect, the context stays behind.
            scope::with(|scope| {
                stack.push_table(0, 4);
                let fresh = Rc::new(Ref::take(&scope.vm.state, stack));
                scope::with_request(|request| super::misc::give_context(request, fresh))
            })??;
            super::output::end(Operation::Jump)
        }
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
    let max = limit(stack, 1)?;
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
        if request.head.version() == http::request::Version::Http09 {
            // It has no fields.
            return;
        }
        request.change_fields(name, change);
        request.forget_field(name);
    })?;
    super::NONE
}

/// Gives a request's head this field, in the place of others of its name.
pub(super) fn set_field(request: &mut Request, name: &[u8], value: &[u8]) {
    let (name, value) = (field_name(name), field_value(value));
    request.change_fields(&name, |fields| fields.set(&name, &value));
    request.forget_field(&name);
}

/// A name as it may stand in a head: bytes that would end it are escaped.
pub(super) fn field_name(name: &[u8]) -> Vec<u8> {
    escaped(name, |byte| {
        byte <= b' ' || byte >= 0x7f || b"\"(),/:;<=>?@[\\]{}".contains(&byte)
    })
}

/// A value as it may stand in a head.
pub(super) fn field_value(value: &[u8]) -> Vec<u8> {
    escaped(value, |byte| (byte < b' ' && byte != b'\t') || byte == 0x7f)
}

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

fn set_method(stack: &Stack) -> Called {
    let method = Method::from_bytes(bytes(stack, 1)?);
    scope::with_request(|request| {
        request.method = method;
        request.flow.header_only = method == Method::Head;
    })?;
    super::NONE
}

/// A script has had the content read.
struct BodyRead;

/// A script has said that it wants no content, which then cannot be had any more.
struct Discarded;

/// The content is a script's from now on.
pub(super) fn note_read(request: &mut Request) {
    request.set_state(BodyRead);
}

/// Whether the content was read, though it may be none.
fn was_read(request: &mut Request) -> bool {
    let later = scope::with(|scope| {
        use crate::chunk::Kind as Script;
        matches!(
            scope.kind,
            Script::HeaderFilter | Script::BodyFilter | Script::Log | Script::Balancer
        )
    });
    // What others than scripts answer has been read by then.
    later.unwrap_or(false) && request.conf::<Code>().content.is_none()
        || request.body.length() > 0
        || request.is_subrequest()
        || request.conf::<Code>().need_body
        || request.state::<BodyRead>().is_some()
}

fn read_body(stack: &Stack) -> Called {
    count(stack, 0..=0, "0 arguments")?;
    super::output::need_way()?;
    let complete = scope::with_request(|request| {
        if request.state::<Discarded>().is_some() {
            return true;
        }
        note_read(request);
        request.body.is_complete()
    })?;
    match complete {
        true => super::NONE,
        false => super::output::end(Operation::ReadBody),
    }
}

fn discard_body(stack: &Stack) -> Called {
    count(stack, 0..=0, "0 arguments")?;
    // What is not read is thrown away at the end of the request anyway.
    scope::with_request(|request| {
        if !request.body.is_complete() {
            request.set_state(Discarded);
        }
    })?;
    super::NONE
}

fn get_body_data(stack: &Stack) -> Called {
    count(stack, 0..=1, "0 or 1 arguments")?;
    let max = match stack.top() {
        1 => number(stack, 1)? as usize,
        _ => 0,
    };
    if named_file()?.is_some() {
        stack.push_nil();
        return super::ONE;
    }
    scope::with_request(|request| match request.body.in_memory() {
        Some(body) if !body.is_empty() => {
            let end = if max == 0 { body.len() } else { max };
            stack.push_bytes(&body[..end.min(body.len())]);
        }
        _ => stack.push_nil(),
    })?;
    super::ONE
}

fn get_body_file(stack: &Stack) -> Called {
    count(stack, 0..=0, "0 arguments")?;
    if let Some(name) = named_file()? {
        stack.push_bytes(name);
        return super::ONE;
    }
    scope::with_request(|request| match request.body.file() {
        Some(file) => stack.push_bytes(file.path.as_os_str().as_encoded_bytes()),
        None => stack.push_nil(),
    })?;
    super::ONE
}

fn set_body_data(stack: &Stack) -> Called {
    count(stack, 1..=1, "1 arguments")?;
    let body = text(stack, 1)?;
    scope::with_request(|request| {
        if !request.body.is_complete() || !was_read(request) {
            return fail("request body not read yet");
        }
        put_body(request, body);
        super::NONE
    })?
}

/// The file that a script has named as the content. It was read, and scripts find it under its name as with nginx's module.
struct OfFile(Vec<u8>);

/// The file that a script has named as the content, where it was the last to say what that is.
fn named_file() -> Result<Option<Vec<u8>>, Failure> {
    scope::with_request(|request| {
        let file = request.state::<OfFile>()?;
        (!file.0.is_empty()).then(|| file.0.clone())
    })
}

/// Notes the name of the file that the content was read from.
fn note_body_file(stack: &Stack) -> Called {
    let name = text(stack, 1)?;
    scope::with_request(|request| request.set_state(OfFile(name)))?;
    super::NONE
}

fn put_body(request: &mut Request, body: Vec<u8>) {
    if request.state::<OfFile>().is_some() {
        request.set_state(OfFile(Vec::new()));
    }
    let length = body.len();
    request.body = RequestBody::from_bytes(body);
    let fields = &mut Rc::make_mut(&mut request.head).wire.fields;
    fields.set(b"Content-Length", length.to_string().as_bytes());
    fields.remove(b"Transfer-Encoding");
    for name in ["content_length", "http_content_length", "request_body"] {
        forget(request, name);
    }
}

/// Reads the file that is to be the content: name, and whether it is to be removed then.
fn read_file(stack: &Stack) -> Called {
    count(stack, 1..=2, "1 or 2 arguments")?;
    let name = text(stack, 1)?;
    if stack.top() == 2 && stack.kind(2) != Kind::Boolean {
        let kind = stack.kind(2).name();
        return bad(stack, 2, &format!("boolean expected, got {kind}"));
    }
    let once = stack.boolean(2);
    if !scope::with_request(was_read)? {
        return fail("request body not read yet");
    }
    let path = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&name));
    // Read by a thread of the pool; afterwards the content is in memory.
    let pool = rt::pool::default_pool();
    super::wait(Operation::task(async move {
        let read = move || {
            let content = std::fs::read(&path);
            if once && content.is_ok() {
                // It may be gone already.
                let _ = std::fs::remove_file(&path);
            }
            content
        };
        match pool.run(read).await {
            Ok(content) => vec![Value::Bytes(content)],
            Err(error) => {
                let name = name.as_bstr();
                Value::failure(format!("open() \"{name}\" failed: {error}"))
            }
        }
    }))
}

/// A body that a script makes piece by piece.
#[derive(Default)]
struct Making(Vec<u8>);

fn init_body(stack: &Stack) -> Called {
    count(stack, 0..=1, "0 or 1 argument")?;
    let size = match stack.top() {
        1 => as_int(number(stack, 1)?),
        _ => 0,
    };
    scope::with_request(|request| {
        if !was_read(request) {
            return fail("request body not read yet");
        }
        if size < 0 {
            return fail(format!("bad size argument: {size}"));
        }
        request.set_state(Making::default());
        super::NONE
    })?
}

fn append_body(stack: &Stack) -> Called {
    count(stack, 1..=1, "1 arguments")?;
    let piece = text(stack, 1)?;
    scope::with_request(|request| match request.state::<Making>() {
        Some(making) => {
            making.0.extend_from_slice(&piece);
            super::NONE
        }
        None => fail("request_body not initialized"),
    })?
}

fn finish_body(stack: &Stack) -> Called {
    count(stack, 0..=0, "0 argument")?;
    scope::with_request(|request| {
        let Some(making) = request.state::<Making>() else {
            return fail("request_body not initialized");
        };
        let body = std::mem::take(&mut making.0);
        put_body(request, body);
        super::NONE
    })?
}
