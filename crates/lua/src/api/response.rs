//! `ngx.header`, `ngx.resp`, `ngx.status`, and how a request ends: `ngx.redirect`, `ngx.exec`.

use bstr::{BString, ByteSlice};
use http::Request;
use http::response::Response;

use super::arguments::{as_int, bytes, number, optional_number, optional_text, text};
use super::encode::{MAX_ARGS, most};
use super::request::{field_name, field_value, fields};
use super::{Called, Functions};
use crate::directives::Code;
use crate::luajit::stack::Kind;
use crate::luajit::{Failure, Stack, fail};
use crate::operation::Operation;
use crate::scope;

pub(super) const FUNCTIONS: Functions = &[("redirect", redirect)];

pub(super) const CORE: Functions = &[
    ("resp_get_headers", get_headers),
    ("resp_add_header", add_header),
    ("bypass_if_checks", bypass_if_checks),
    ("get_status", get_status),
    ("set_status", set_status),
    ("headers_sent", headers_sent),
    ("exec", exec),
];

/// Adds `header` to the table on top.
pub(super) fn install(stack: &Stack) {
    stack.push_table(0, 0);
    stack.push_table(0, 2);
    stack.push_native(get);
    stack.set(-2, "__index");
    stack.push_native(set);
    stack.set(-2, "__newindex");
    stack.set_metatable(-2);
    stack.set(-2, "header");
}

/// The name of a field as the client will see it.
fn shown_name(request: &Request, name: &[u8]) -> Vec<u8> {
    let mut name = field_name(name);
    if request.conf::<Code>().dashes {
        for byte in &mut name {
            if *byte == b'_' {
                *byte = b'-';
            }
        }
    }
    name
}

/// Fields that are not in the list of fields but facts of the response.
pub(super) fn fact(out: &Response, name: &[u8]) -> Option<Option<Vec<u8>>> {
    Some(match name.to_ascii_lowercase().as_slice() {
        b"content-type" => (!out.content_type.is_empty()).then(|| {
            let mut value = out.content_type.to_vec();
            if !out.charset.is_empty() {
                value.extend_from_slice(b"; charset=");
                value.extend_from_slice(&out.charset);
            }
            value
        }),
        b"content-length" => out
            .length()
            .filter(|_| out.content_length.is_some())
            .map(|n| n.to_string().into_bytes()),
        b"location" => out.location.as_ref().map(|value| value.to_vec()),
        b"etag" => out.etag.as_ref().map(|value| value.to_vec()),
        b"last-modified" => out.last_modified.map(|time| {
            let mut value = Vec::new();
            proto::date::write_http(time, &mut value);
            value
        }),
        _ => return None,
    })
}

fn get(stack: &Stack) -> Called {
    let name = stack.shown(2);
    let sent = scope::with(|scope| scope.head_sent.get())?;
    scope::with_request(|request| {
        let name = shown_name(request, &name);
        if sent
            && name.eq_ignore_ascii_case(b"content-type")
            && let Some(usual) = usual_type(request)
        {
            stack.push_bytes(usual);
            return super::ONE;
        }
        if let Some(Some(value)) = fact(&request.out, &name) {
            stack.push_bytes(&value);
            return super::ONE;
        }
        let values: Vec<&[u8]> = request.out.fields.all(&name).collect();
        match values.as_slice() {
            [] => stack.push_nil(),
            [value] => stack.push_bytes(value),
            values => {
                stack.push_table(values.len(), 0);
                for (n, value) in values.iter().enumerate() {
                    stack.push_bytes(value);
                    stack.set_element(-2, n + 1);
                }
            }
        }
        super::ONE
    })?
}

fn set(stack: &Stack) -> Called {
    let name = stack.shown(2);
    let values = values(stack, 3)?;
    if scope::with(|scope| scope.head_sent.get())? {
        let message = format!(
            "attempt to set ngx.header.{} after sending out response headers",
            name.as_bstr()
        );
        scope::with_request(|request| request.error(format_args!("{message}")))?;
        return super::NONE;
    }
    scope::with_request(|request| {
        let name = shown_name(request, &name);
        if let Some(length) = values.last()
            && name.eq_ignore_ascii_case(b"content-length")
            && length
                .trim()
                .to_str()
                .map_or(true, |text| text.parse::<u64>().is_err())
        {
            return fail(format!("failed to set header \"{}\"", name.as_bstr()));
        }
        put(request, &name, &values);
        super::NONE
    })?
}

/// The values of a field: none for nil, several for a list.
fn values(stack: &Stack, at: i32) -> Result<Vec<Vec<u8>>, Failure> {
    match stack.kind(at) {
        Kind::Nil | Kind::None => Ok(Vec::new()),
        Kind::Table => {
            let mut values = Vec::new();
            for n in 1..=stack.length(at) {
                stack.element(at, n);
                values.push(field_value(&stack.shown(-1)));
                stack.pop(1);
            }
            Ok(values)
        }
        _ => match stack.shown(at) {
            // A field without a value is not sent.
            text if text.is_empty() => Ok(Vec::new()),
            text => Ok(vec![field_value(&text)]),
        },
    }
}

/// A script has said what the type of its response is, or that it has none.
struct TypeSaid;

/// The type of a response about which no script has said anything: by the path's ending.
pub(crate) fn usual_type(request: &mut Request) -> Option<BString> {
    if !request.out.content_type.is_empty()
        || !request.conf::<Code>().default_type
        || request.state::<TypeSaid>().is_some()
    {
        return None;
    }
    Some(http::types::content_type(request)).filter(|usual| !usual.is_empty())
}

/// Gives a field of the response these values, in place of what it had.
fn put(request: &mut Request, name: &[u8], values: &[Vec<u8>]) {
    if name.eq_ignore_ascii_case(b"content-type") {
        request.set_state(TypeSaid);
    }
    let out = &mut request.out;
    let last = values.last().map(|value| BString::from(value.as_slice()));
    match name.to_ascii_lowercase().as_slice() {
        b"content-type" => {
            out.content_type = last.unwrap_or_default();
            out.charset.clear();
            split_charset(out);
        }
        b"content-length" => {
            out.content_length = last.and_then(|value| {
                value
                    .to_str()
                    .ok()
                    .and_then(|text| text.trim().parse().ok())
            });
        }
        b"location" => {
            // A path stays one: only what the engine itself redirects to is made absolute.
            out.fields.remove(name);
            out.location = last.filter(|target| {
                let is_path = target.starts_with(b"/");
                if is_path {
                    out.fields.push(b"Location", target);
                }
                !is_path
            });
        }
        b"etag" => out.etag = last,
        b"last-modified" => {
            out.fields.remove(name);
            out.last_modified = last.as_ref().and_then(|value| proto::date::parse(value));
            out.last_modified_was_said = true;
            if let (None, Some(value)) = (out.last_modified, &last) {
                // No date, and said all the same.
                out.fields.push(b"Last-Modified", value);
            }
        }
        lower => {
            // Without a value they are not the server's own either.
            match lower {
                b"server" => out.unsaid.server = values.is_empty(),
                b"date" => out.unsaid.date = values.is_empty(),
                _ => {}
            }
            out.fields.remove(name);
            for value in values {
                out.fields.push(name, value);
            }
        }
    }
}

/// A charset in the type is known as such, so that nothing adds another.
fn split_charset(out: &mut Response) {
    let lower = out.content_type.to_ascii_lowercase();
    let Some(at) = lower.find(b"charset=") else {
        return;
    };
    let charset = out.content_type[at + 8..].trim().to_vec();
    let head = out.content_type[..at].trim_end();
    let head = head.strip_suffix(b";").unwrap_or(head).trim_end().to_vec();
    if charset.contains(&b';') {
        return;
    }
    out.charset = charset.into();
    out.content_type = head.into();
}

fn get_headers(stack: &Stack) -> Called {
    let max = match stack.kind(1) {
        Kind::Nil | Kind::None => MAX_ARGS,
        _ => most(as_int(number(stack, 1)?)),
    };
    let raw = stack.boolean(2);
    let sent = scope::with(|scope| scope.head_sent.get())?;
    scope::with_request(|request| {
        let facts = [
            &b"content-type"[..],
            b"content-length",
            b"Location",
            b"ETag",
            b"Last-Modified",
        ];
        if sent && let Some(usual) = usual_type(request) {
            request.out.content_type = usual;
        }
        let mut facts: Vec<(&[u8], Vec<u8>)> = facts
            .into_iter()
            .filter_map(|name| Some((name, fact(&request.out, name)??)))
            .collect();
        facts.push((b"connection", connection(request).to_vec()));
        let all = facts
            .iter()
            .map(|(name, value)| (*name, value.as_slice()))
            .chain(request.out.fields.iter());
        fields(stack, all, max, raw)
    })?
}

/// What becomes of the connection, as far as the request says it.
fn connection(request: &Request) -> &'static [u8] {
    use http::request::Version;
    let keeps = matches!(request.head.version(), Version::Http10 | Version::Http11)
        && request.head.wire.wants_keep_alive();
    match (request.out.status, keeps) {
        (101, _) => b"upgrade",
        (_, true) => b"keep-alive",
        (_, false) => b"close",
    }
}

fn add_header(stack: &Stack) -> Called {
    let (name, value) = (bytes(stack, 1)?.to_vec(), field_value(bytes(stack, 2)?));
    scope::with_request(|request| {
        let name = shown_name(request, &name);
        match fact(&request.out, &name) {
            Some(_) => put(request, &name, &[value]),
            None => request.out.fields.push(&name, &value),
        }
    })?;
    super::NONE
}

fn get_status(stack: &Stack) -> Called {
    let sent = scope::with(|scope| scope.head_sent.get())?;
    let status = scope::with_request(|request| {
        match request.flow.forced_status.unwrap_or(request.out.status) {
            0 if sent => 200,
            // What nginx shows in place of a status that HTTP/0.9 does not have.
            0 if request.head.version() == http::request::Version::Http09 => 9,
            status => status,
        }
    })?;
    stack.push_number(f64::from(status));
    super::ONE
}

fn set_status(stack: &Stack) -> Called {
    let status = number(stack, 1)?;
    let reason = optional_text(stack, 2)?;
    if scope::with(|scope| scope.head_sent.get())? {
        scope::with_request(|request| {
            request.error(format_args!(
                "attempt to set ngx.status after sending out response headers"
            ));
        })?;
        return super::NONE;
    }
    scope::with_request(|request| {
        request.out.status = status as u16;
        request.out.reason = reason.map(BString::from);
        if request.flow.forced_status.is_some() {
            request.flow.forced_status = Some(status as u16);
        }
    })?;
    super::NONE
}

fn headers_sent(stack: &Stack) -> Called {
    scope::with_request(|_| ())?;
    let sent = scope::with(|scope| scope.head_sent.get())?;
    stack.push_boolean(sent);
    super::ONE
}

fn redirect(stack: &Stack) -> Called {
    if !(1..=2).contains(&stack.top()) {
        return fail("expecting one or two arguments");
    }
    super::output::need_way()?;
    let target = text(stack, 1)?;
    let status = optional_number(stack, 2)?.map_or(302, |n| n as i32);
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return fail(
            "only ngx.HTTP_MOVED_TEMPORARILY, ngx.HTTP_MOVED_PERMANENTLY, ngx.HTTP_PERMANENT_REDIRECT, \
             ngx.HTTP_SEE_OTHER, and ngx.HTTP_TEMPORARY_REDIRECT are allowed",
        );
    }
    super::output::need_no_captures()?;
    if scope::with(|scope| scope.head_sent.get())? {
        return fail("attempt to call ngx.redirect after sending out the headers");
    }
    // A line end would begin a field of somebody else's choice.
    if let Some(bad) = target.iter().find(|byte| **byte < b' ' || **byte == 0x7f) {
        return fail(format!("unsafe byte \"0x{bad:02x}\" in redirect uri"));
    }
    scope::with_request(|request| put(request, b"Location", &[target]))?;
    super::output::end(Operation::Exit(status))
}

fn exec(stack: &Stack) -> Called {
    let target = text(stack, 1)?;
    let more = optional_text(stack, 2)?;
    super::output::need_way()?;
    if target.is_empty() {
        return fail("The uri argument is empty");
    }
    if scope::with(|scope| scope.head_sent.get())? {
        return fail("attempt to call ngx.exec after sending out response headers");
    }
    super::output::need_no_captures()?;
    if target.starts_with(b"@") {
        // A named location takes no arguments.
        let end = target.find_byte(b'?').unwrap_or(target.len());
        let target = &target[..end];
        return super::output::end(Operation::Exec(target.into(), BString::default()));
    }
    let Some((path, mut args)) = internal_uri(&target) else {
        return fail("unsafe uri");
    };
    if let Some(more) = more {
        if !args.is_empty() {
            args.push(b'&');
        }
        // A space is one of nginx's module too. What would end a line for an upstream server is escaped all the same.
        args.extend_from_slice(&super::request::escaped(&more, |byte| {
            byte < b' ' || byte == 0x7f
        }));
    }
    super::output::end(Operation::Exec(path, args))
}

/// A path and arguments of a target that a script names; `None` for one that would leave the root.
pub(super) fn internal_uri(target: &[u8]) -> Option<(BString, BString)> {
    let mut path = Vec::new();
    let args = proto::uri::parse_internal(target, &mut path).ok()?;
    Some((path.into(), target[args].into()))
}

/// The response is sent whatever the client says it has: no 304 and no 412.
fn bypass_if_checks(_: &Stack) -> Called {
    scope::with_request(|request| request.out.transforms.unconditional = true)?;
    super::NONE
}
