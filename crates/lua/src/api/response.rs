//! `ngx.header`, `ngx.resp`, `ngx.status`, and how a request ends: `ngx.redirect`, `ngx.exec`.
//!
//! Some headers are not in the response's list of fields but values of their own, since the engine
//! acts upon them: Content-Type, Content-Length, Location, ETag, Last-Modified. Scripts see no
//! difference.

use bstr::{BString, ByteSlice};
use http::Request;
use http::response::Response;

use super::arguments::{as_int, bytes, number, optional_number, optional_text, text};
use super::encode::{MAX_ARGS, most};
use super::request::{field_name, field_value, fields};
use super::{CallResult, NativeTable};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, fail};
use crate::operation::YieldOperation;
use crate::scope;
use crate::scripts::HttpScripts;

pub(super) const FUNCTIONS: NativeTable = &[("redirect", redirect)];

pub(super) const CORE: NativeTable = &[
    ("resp_get_headers", get_headers),
    ("resp_add_header", add_header),
    ("bypass_if_checks", bypass_if_checks),
    ("get_status", get_status),
    ("set_status", set_status),
    ("headers_sent", headers_sent),
    ("exec", exec),
];

/// Adds `ngx.header` to the table on top: an empty table whose metatable does the work.
pub(super) fn install(stack: &LuaStack) {
    stack.push_table(0, 0);
    stack.push_table(0, 2);
    stack.push_native(header_index);
    stack.set(-2, "__index");
    stack.push_native(header_new_index);
    stack.set(-2, "__newindex");
    stack.set_metatable(-2);
    stack.set(-2, "header");
}

/// A header's name as the client will see it: `ngx.header.content_type` means `Content-Type`.
fn shown_name(request: &Request, name: &[u8]) -> Vec<u8> {
    let mut name = field_name(name);
    if request.conf::<HttpScripts>().transform_underscores {
        for byte in &mut name {
            if *byte == b'_' {
                *byte = b'-';
            }
        }
    }
    name
}

/// The value of a header that is not in the list of fields; `None` for a header that is, and
/// `Some(None)` for one that is not set.
pub(super) fn builtin_field(out: &Response, name: &[u8]) -> Option<Option<Vec<u8>>> {
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

/// `ngx.header[name]`.
fn header_index(stack: &LuaStack) -> CallResult {
    let name = stack.tostring(2);
    let sent = scope::with(|scope| scope.head_sent.get())?;
    scope::with_request(|request| {
        let name = shown_name(request, &name);
        // Once the headers count as sent, the type that nginx would have added is there.
        if sent
            && name.eq_ignore_ascii_case(b"content-type")
            && let Some(usual) = default_content_type(request)
        {
            // Only shown: the response itself gets it where it is sent.
            stack.push_bytes(usual);
            return super::ONE;
        }
        if let Some(Some(value)) = builtin_field(&request.out, &name) {
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

/// Whether the header has been sent, or is about to be: when a filter of the body runs, nothing of it changes any more.
fn is_head_gone() -> Result<bool, LuaError> {
    use crate::chunk::ScriptKind as Script;
    scope::with(|scope| {
        scope.head_sent.get() || matches!(scope.kind, Script::BodyFilter | Script::Log)
    })
}

/// `ngx.header[name] = value`.
fn header_new_index(stack: &LuaStack) -> CallResult {
    let name = stack.tostring(2);
    let values = values(stack, 3)?;
    // An error in the log, and none in the script, as in lua-nginx-module.
    if is_head_gone()? {
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
            return fail("failed to set header");
        }
        set_response_field(request, &name, &values);
        super::NONE
    })?
}

/// The values of a header: none for nil, several for an array.
fn values(stack: &LuaStack, at: i32) -> Result<Vec<Vec<u8>>, LuaError> {
    match stack.type_at(at) {
        LuaType::Nil | LuaType::None => Ok(Vec::new()),
        LuaType::Table => {
            let mut values = Vec::new();
            for n in 1..=stack.length(at) {
                stack.element(at, n);
                values.push(field_value(&stack.tostring(-1)));
                stack.pop(1);
            }
            Ok(values)
        }
        _ => match stack.tostring(at) {
            // An empty value removes the header, as in nginx.
            text if text.is_empty() => Ok(Vec::new()),
            text => Ok(vec![field_value(&text)]),
        },
    }
}

/// Request state: a script has set Content-Type, or removed it.
struct ContentTypeSet;

/// The type of a response for which no script has set one: by the extension of the path, unless
/// `lua_use_default_type` is off.
pub(crate) fn default_content_type(request: &mut Request) -> Option<BString> {
    if !request.out.content_type.is_empty()
        || !request.conf::<HttpScripts>().use_default_type
        || request.state::<ContentTypeSet>().is_some()
    {
        return None;
    }
    Some(http::content_type::content_type(request)).filter(|usual| !usual.is_empty())
}

/// Sets the values of a response header, replacing all before.
fn set_response_field(request: &mut Request, name: &[u8], values: &[Vec<u8>]) {
    if name.eq_ignore_ascii_case(b"content-type") {
        request.set_state(ContentTypeSet);
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
            // A path stays relative: only the engine's own redirects are made absolute.
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
                // Not a date: passed on as it is.
                out.fields.push(b"Last-Modified", value);
            }
        }
        lower => {
            // Removed by a script: the server does not add its own either.
            match lower {
                b"server" => out.omitted.server = values.is_empty(),
                b"date" => out.omitted.date = values.is_empty(),
                _ => {}
            }
            out.fields.remove(name);
            for value in values {
                out.fields.push(name, value);
            }
        }
    }
}

/// Separates the charset from the type, so that `charset` does not add a second one.
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

/// `ngx.resp.get_headers(max, raw)`.
fn get_headers(stack: &LuaStack) -> CallResult {
    let max = match stack.type_at(1) {
        LuaType::Nil | LuaType::None => MAX_ARGS,
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
        if sent && let Some(usual) = default_content_type(request) {
            request.out.content_type = usual;
        }
        let mut facts: Vec<(&[u8], Vec<u8>)> = facts
            .into_iter()
            .filter_map(|name| Some((name, builtin_field(&request.out, name)??)))
            .collect();
        facts.push((b"connection", connection_value(request).to_vec()));
        let all = facts
            .iter()
            .map(|(name, value)| (*name, value.as_slice()))
            .chain(request.out.fields.iter());
        fields(stack, all, max, raw)
    })?
}

/// The Connection header that will be sent, as far as the request decides it: nginx's own is in
/// this table, too.
fn connection_value(request: &Request) -> &'static [u8] {
    use http::request::HttpVersion;
    let keeps = matches!(
        request.head.version(),
        HttpVersion::Http10 | HttpVersion::Http11
    ) && request.head.wire.wants_keep_alive();
    match (request.out.status, keeps) {
        (101, _) => b"upgrade",
        (_, true) => b"keep-alive",
        (_, false) => b"close",
    }
}

/// `ngx.resp.add_header(name, value)`.
fn add_header(stack: &LuaStack) -> CallResult {
    let (name, value) = (bytes(stack, 1)?.to_vec(), field_value(bytes(stack, 2)?));
    scope::with_request(|request| {
        let name = shown_name(request, &name);
        match builtin_field(&request.out, &name) {
            Some(_) => set_response_field(request, &name, &[value]),
            // Beside others of the name; those above can have one value only.
            None => request.out.fields.push(&name, &value),
        }
    })?;
    super::NONE
}

/// `ngx.status`.
fn get_status(stack: &LuaStack) -> CallResult {
    let sent = scope::with(|scope| scope.head_sent.get())?;
    let status = scope::with_request(|request| {
        match request.flow.forced_status.unwrap_or(request.out.status) {
            0 if sent => 200,
            // What nginx has for HTTP/0.9, which has no status line.
            0 if request.head.version() == http::request::HttpVersion::Http09 => 9,
            status => status,
        }
    })?;
    stack.push_number(f64::from(status));
    super::ONE
}

/// `ngx.status = status`, with an optional reason phrase (`ngx.resp.set_status`).
fn set_status(stack: &LuaStack) -> CallResult {
    let status = number(stack, 1)?;
    let reason = optional_text(stack, 2)?;
    if is_head_gone()? {
        scope::with_request(|request| {
            request.error(format_args!(
                "attempt to set ngx.status after sending out response headers"
            ));
        })?;
        return super::NONE;
    }
    scope::with_request(|request| {
        // A status has three digits (RFC 9112, section 4). Clients take anything else for a broken response.
        let status = match status {
            0.0..1000.0 => status as u16,
            _ => {
                request.error(format_args!("ngx.status: {status} is not a status"));
                500
            }
        };
        // The reason phrase goes with the status: that of an earlier call must not stay.
        request.out.status = status;
        request.out.reason = reason.map(BString::from);
        if request.flow.forced_status.is_some() {
            request.flow.forced_status = Some(status);
        }
    })?;
    super::NONE
}

/// `ngx.headers_sent`.
fn headers_sent(stack: &LuaStack) -> CallResult {
    scope::with_request(|_| ())?;
    // What filters a body comes behind the head.
    let sent = scope::with(|scope| {
        scope.head_sent.get() || scope.kind == crate::chunk::ScriptKind::BodyFilter
    })?;
    stack.push_boolean(sent);
    super::ONE
}

/// `ngx.redirect(uri, status)`. It does not return.
fn redirect(stack: &LuaStack) -> CallResult {
    if !(1..=2).contains(&stack.top()) {
        return fail("expecting one or two arguments");
    }
    let target = text(stack, 1)?;
    let status = optional_number(stack, 2)?.map_or(302, |n| n as i32);
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return fail(
            "only ngx.HTTP_MOVED_TEMPORARILY, ngx.HTTP_MOVED_PERMANENTLY, ngx.HTTP_PERMANENT_REDIRECT, \
             ngx.HTTP_SEE_OTHER, and ngx.HTTP_TEMPORARY_REDIRECT are allowed",
        );
    }
    super::called::need_request_control()?;
    super::output::need_no_captures()?;
    if scope::with(|scope| scope.head_sent.get())? {
        return fail("attempt to call ngx.redirect after sending out the headers");
    }
    // A line break would start a header of the client's choice.
    if let Some(bad) = target.iter().find(|byte| **byte < b' ' || **byte == 0x7f) {
        let shown = super::request::printable_path(&target);
        return fail(format!(
            "unsafe byte \"0x{bad:02x}\" in redirect uri \"{}\"",
            bstr::BStr::new(&shown)
        ));
    }
    scope::with_request(|request| set_response_field(request, b"Location", &[target]))?;
    super::called::end_with(YieldOperation::Exit(status))
}

/// `ngx.exec(uri, args)`: an internal redirect. It does not return.
fn exec(stack: &LuaStack) -> CallResult {
    let target = text(stack, 1)?;
    if target.is_empty() {
        return fail("The uri argument is empty");
    }
    super::called::need_request_control()?;
    super::output::need_no_captures()?;
    let is_named = target.starts_with(b"@");
    if !is_named && internal_uri(&target).is_none() {
        return fail("unsafe uri");
    }
    let more = optional_text(stack, 2)?;
    if scope::with(|scope| scope.head_sent.get())? {
        return fail("attempt to call ngx.exec after sending out response headers");
    }
    if is_named {
        // A named location has no arguments of its own: it keeps the request's.
        let end = target.find_byte(b'?').unwrap_or(target.len());
        let target = &target[..end];
        return super::called::end_with(YieldOperation::Exec(target.into(), BString::default()));
    }
    let Some((path, mut args)) = internal_uri(&target) else {
        return fail("unsafe uri");
    };
    if let Some(more) = more {
        if !args.is_empty() {
            args.push(b'&');
        }
        // lua-nginx-module passes these arguments on unescaped, spaces included. What would end a
        // request line is escaped all the same.
        args.extend_from_slice(&super::request::escaped(&more, |byte| {
            byte < b' ' || byte == 0x7f
        }));
    }
    super::called::end_with(YieldOperation::Exec(path, args))
}

/// Splits an internal target into path and arguments; `None` for one that leaves the root.
pub(super) fn internal_uri(target: &[u8]) -> Option<(BString, BString)> {
    let mut path = Vec::new();
    let args = proto::uri::parse_internal(target, &mut path).ok()?;
    Some((path.into(), target[args].into()))
}

/// `ngx.resp.bypass_if_checks()`: no 304 and no 412, whatever conditions the request has.
fn bypass_if_checks(_: &LuaStack) -> CallResult {
    scope::with_request(|request| request.out.transforms.unconditional = true)?;
    super::NONE
}
