//! `ngx.location.capture` and `capture_multi`: subrequests whose responses a script gets as values.
//!
//! `prelude.lua` checks the options and passes one table for each subrequest. They run side by side
//! within the calling coroutine's wait, each with the locations, filters and variables of a request
//! of its own; nothing goes over a socket. The whole response is held in memory.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;

use bstr::BString;
use http::Request;
use http::body_reader::RequestBody;
use http::request::ErrorPages;
use http::response_body::{BodyChunk, ResponseBody};
use http::subrequest::{self, SubrequestOptions};
use proto::message::Method;

use super::arguments::table;
use super::{CallResult, NativeTable};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaStack, LuaValue, RegistryRef, fail};
use crate::operation::{ResumeValues, YieldOperation};
use crate::scope::{self, RunScope};
use crate::vm::PerRequestVm;

pub(super) const CORE: NativeTable = &[
    ("capture", capture),
    ("need_request_control", need_request_control),
];

/// The largest response body in bytes. A longer one is cut, and marked as truncated.
const MAX_RESPONSE: usize = 128 << 20;

/// How many subrequests one call may make.
const MAX_AT_ONCE: usize = 200;

/// One subrequest, as `prelude.lua` describes it.
struct CaptureRequest {
    /// The normalised path, already checked: a subrequest cannot leave the site.
    path: BString,
    args: BString,
    /// `method`; GET by default, as documented, whatever the parent's is.
    method: Method,
    /// `body`: takes the place of the parent's.
    body: Option<Vec<u8>>,
    /// `ctx`: the table that is `ngx.ctx` in the subrequest.
    context: Option<Rc<RegistryRef>>,
    /// `share_all_vars`: variables are those of the parent, so changes are seen by both.
    share_all_vars: bool,
    /// `copy_all_vars`: starts with copies of the parent's variables.
    copy_all_vars: bool,
    /// `always_forward_body`: passes the parent's body on whatever the method.
    always_forward_body: bool,
    /// `vars`: variables to set in the subrequest.
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// `headers`: request headers that replace the parent's.
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Raises the error for a phase in which there are no subrequests: it comes before those of arguments.
fn need_request_control(_: &LuaStack) -> CallResult {
    super::called::need_request_control()?;
    super::NONE
}

/// Takes a list of subrequests, waits for all, returns their responses in order.
fn capture(stack: &LuaStack) -> CallResult {
    super::called::need_request_control()?;
    table(stack, 1)?;
    let count = stack.length(1);
    if count > MAX_AT_ONCE {
        return fail("too many subrequests at once");
    }
    let mut requests = Vec::new();
    // All are created before the first runs: one that cannot be created fails the call before
    // anything has happened.
    for n in 1..=count {
        stack.element(1, n);
        let wanted = read_request(stack)?;
        stack.pop(1);
        let made = scope::with_request(|request| create_subrequest(request, wanted))??;
        requests.push(made);
    }
    let counted = PendingCapture::new(&scope::with(Rc::clone)?);
    super::wait(YieldOperation::task(async move {
        let replies = run_all(requests).await;
        drop(counted);
        replies
    }))
}

/// Marks a light thread as waiting for subrequests, until they have ended or it is dropped.
struct PendingCapture(Weak<RunScope>, usize);

impl PendingCapture {
    fn new(scope: &Rc<RunScope>) -> PendingCapture {
        scope.pending_captures.set(scope.pending_captures.get() + 1);
        let thread = scope.current_thread.get();
        mark_capturing(scope, thread, true);
        PendingCapture(Rc::downgrade(scope), thread)
    }
}

impl Drop for PendingCapture {
    fn drop(&mut self) {
        if let Some(scope) = self.0.upgrade() {
            scope.pending_captures.set(scope.pending_captures.get() - 1);
            mark_capturing(&scope, self.1, false);
        }
    }
}

/// Notes whether a light thread waits for subrequests: it cannot be killed then. The main coroutine
/// is not in the list.
fn mark_capturing(scope: &RunScope, thread: usize, captures: bool) {
    // When all light threads are dropped at once the list is borrowed, and needs no note.
    let Ok(mut lights) = scope.light_threads.try_borrow_mut() else {
        return;
    };
    if let Some(light) = lights.get_mut(&thread) {
        light.is_capturing = captures;
    }
}

/// Reads the description on top of the stack.
fn read_request(stack: &LuaStack) -> Result<CaptureRequest, crate::luajit::LuaError> {
    let at = stack.top();
    let text = |name: &str| {
        stack.field(at, name);
        let text = stack.bytes(-1).map(<[u8]>::to_vec);
        stack.pop(1);
        text
    };
    let flag = |name: &str| {
        stack.field(at, name);
        let flag = stack.boolean(-1);
        stack.pop(1);
        flag
    };
    let uri = text("uri").unwrap_or_default();
    let Some((path, mut args)) = super::response::internal_uri(&uri) else {
        return fail("unsafe uri in argument #1");
    };
    // The arguments of the URI and those of the option are joined.
    if let Some(more) = text("args") {
        if !args.is_empty() && !more.is_empty() {
            args.push(b'&');
        }
        args.extend_from_slice(&super::request::as_arguments(&more));
    }
    // By default a subrequest gets an `ngx.ctx` of its own; this option shares a table with it.
    let context = (stack.field(at, "ctx") == LuaType::Table)
        .then(|| {
            stack.push_copy(-1);
            scope::with(|scope| Rc::new(RegistryRef::take(&scope.vm.state, stack)))
        })
        .transpose()?;
    stack.pop(1);
    let variables = pairs(stack, at, "vars");
    let fields = pairs(stack, at, "headers");
    Ok(CaptureRequest {
        path,
        args,
        method: Method::from_bytes(&text("method").unwrap_or_default()),
        body: text("body"),
        context,
        share_all_vars: flag("share"),
        copy_all_vars: flag("copy"),
        always_forward_body: flag("forward"),
        variables,
        fields,
    })
}

/// Reads names and values that alternate in a list, in a field of the table at `at`. `prelude.lua`
/// flattens tables into such lists, since the order of a table is not defined.
fn pairs(stack: &LuaStack, at: i32, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    if stack.field(at, name) == LuaType::Table {
        let list = stack.top();
        for n in 0..stack.length(list) / 2 {
            stack.element(list, 2 * n + 1);
            stack.element(list, 2 * n + 2);
            let pair = (
                stack.bytes(-2).unwrap_or_default().to_vec(),
                stack.bytes(-1).unwrap_or_default().to_vec(),
            );
            pairs.push(pair);
            stack.pop(2);
        }
    }
    stack.pop(1);
    pairs
}

/// Creates a subrequest from its description.
fn create_subrequest(
    parent: &mut Request,
    wanted: CaptureRequest,
) -> Result<Box<Request>, crate::luajit::LuaError> {
    // As in lua-nginx-module the parent's body is passed on only with methods that have one, and
    // only if it was read.
    let takes_content = matches!(wanted.method, Method::Post | Method::Put | Method::Patch);
    let body = match wanted.body {
        Some(body) => Some(RequestBody::from_bytes(body)),
        None if (takes_content || wanted.always_forward_body) && parent.body.is_complete() => {
            Some(parent.body.share_content())
        }
        None => None,
    };
    // Taken before the body moves into the options: it becomes the Content-Length of the
    // subrequest.
    let length = body.as_ref().map(RequestBody::length);
    let options = SubrequestOptions {
        method: wanted.method,
        header_only: wanted.method == Method::Head,
        body,
        ..SubrequestOptions::get(wanted.path, wanted.args)
    };
    let Some(request) = subrequest::create_subrequest(parent, options) else {
        return fail("subrequests cycle, or there are too many of them");
    };
    let mut request = Box::new(request);
    // With `lua_code_cache off` each request has a VM of its own. A subrequest shares that of its
    // parent, because tables such as `ctx` cannot pass from one to another.
    if let Some(own) = parent.state::<PerRequestVm>() {
        let own = own.clone();
        request.set_state(own);
    }
    // The script wants the status, not an error page for people.
    request.flow.error_pages = ErrorPages::Withheld;
    // The client's framing headers describe its own body, not this one.
    let fields = &mut Rc::make_mut(&mut request.head).wire.fields;
    fields.remove(b"Transfer-Encoding");
    fields.remove(b"Content-Length");
    if let Some(length) = length {
        fields.set(b"Content-Length", length.to_string().as_bytes());
    }
    // A subrequest begins with the variables of its parent, which is what `share_all_vars` asks
    // for.
    if !wanted.share_all_vars {
        request.variables = match wanted.copy_all_vars {
            true => Rc::new(parent.variables.copy()),
            false => Rc::default(),
        };
    }
    super::tcp::lend_owners(parent, &mut request);
    for (name, value) in &wanted.fields {
        super::request::set_field(&mut request, name, value);
    }
    // After the variables of the parent are shared or copied, which these replace.
    for (name, value) in &wanted.variables {
        let name = String::from_utf8_lossy(name);
        super::variables::assign(&mut request, &name, Some(value))?;
    }
    if let Some(context) = wanted.context {
        super::misc::set_request_ctx(&mut request, context);
    }
    Ok(request)
}

/// A subrequest that is running, with the table of its response as its result.
type CaptureFuture = Pin<Box<dyn Future<Output = LuaValue>>>;

/// Runs all of them concurrently.
async fn run_all(requests: impl IntoIterator<Item = Box<Request>>) -> ResumeValues {
    let mut running: Vec<Option<CaptureFuture>> = requests
        .into_iter()
        .map(|request| Some(Box::pin(run_one(request)) as CaptureFuture))
        .collect();
    let mut results: Vec<LuaValue> = running.iter().map(|_| LuaValue::Nil).collect();
    // All that still run are polled at each wakeup: they are few, and it is not worth knowing which
    // one was woken.
    poll_fn(|context| {
        let mut waiting = false;
        for (n, slot) in running.iter_mut().enumerate() {
            let Some(task) = slot else { continue };
            match task.as_mut().poll(context) {
                Poll::Ready(value) => {
                    results[n] = value;
                    *slot = None;
                }
                Poll::Pending => waiting = true,
            }
        }
        match waiting {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
    results
}

/// Runs one subrequest and collects its response.
async fn run_one(mut request: Box<Request>) -> LuaValue {
    subrequest::run_subrequest(&mut request, true).await;
    let status = request.out.status;
    let is_bare = is_bare(&request);
    if is_bare && let Some(usual) = super::default_content_type(&mut request) {
        request.out.content_type = usual;
    }
    let header = header_table(&request);
    let mut body = Vec::new();
    // lua-nginx-module reports a response without a body of its own as truncated.
    let mut truncated = is_bare || request.delivery.header_only;
    while !request.delivery.is_silent() && !request.delivery.header_only {
        match ResponseBody::next_of(&mut request).await {
            None => break,
            Some(Err(_)) => {
                truncated = true;
                break;
            }
            Some(Ok(chunk)) => {
                if append_chunk(chunk, &mut body).await.is_err() || body.len() > MAX_RESPONSE {
                    truncated = true;
                    break;
                }
            }
        }
    }
    subrequest::end_subrequest(&mut request).await;
    let key = |name: &str| LuaValue::text(name);
    LuaValue::Table(vec![
        (key("status"), LuaValue::Number(f64::from(status))),
        (key("header"), LuaValue::Table(header)),
        (key("body"), LuaValue::Bytes(body)),
        (key("truncated"), LuaValue::Boolean(truncated)),
    ])
}

/// A length as a number; anything else as it is.
fn number_of(value: Vec<u8>) -> LuaValue {
    let number = std::str::from_utf8(&value)
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    number.map_or(LuaValue::Bytes(value), |number| {
        LuaValue::Number(number as f64)
    })
}

/// Whether the request ended with a status, without a response of any handler.
fn is_bare(request: &Request) -> bool {
    let out = &request.out;
    out.status >= 300
        && out.content_type.is_empty()
        && out.content_length.is_none()
        && matches!(out.body, ResponseBody::Empty)
}

/// Appends a chunk of the body. Files are read by a pool's thread.
async fn append_chunk(chunk: BodyChunk, out: &mut Vec<u8>) -> Result<(), ()> {
    match chunk {
        BodyChunk::Bytes(bytes) => out.extend_from_slice(&bytes),
        BodyChunk::Flush => {}
        BodyChunk::File(range) => {
            let (mut at, end) = (range.offset, range.offset + range.length);
            while at < end && out.len() <= MAX_RESPONSE {
                let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 20);
                let before = out.len();
                let read = range
                    .file
                    .read_at(std::mem::take(out), at, want, &rt::pool::default_pool())
                    .await;
                *out = read.map_err(drop)?;
                // The file has become shorter than the response said: without this the loop would
                // never end.
                if out.len() == before {
                    return Err(());
                }
                at += (out.len() - before) as u64;
            }
        }
    }
    Ok(())
}

/// The response headers as a table; a name with several values has a list.
fn header_table(request: &Request) -> Vec<(LuaValue, LuaValue)> {
    let out = &request.out;
    let mut fields: Vec<(Vec<u8>, Vec<Vec<u8>>)> = Vec::new();
    let mut add = |name: &[u8], value: Vec<u8>| match fields
        .iter_mut()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
    {
        Some((_, values)) => values.push(value),
        None => fields.push((name.to_vec(), vec![value])),
    };
    // The server keeps these outside of the list of fields.
    for name in [
        "Content-Type",
        "Content-Length",
        "Location",
        "ETag",
        "Last-Modified",
    ] {
        if let Some(Some(value)) = super::response::builtin_field(out, name.as_bytes()) {
            add(name.as_bytes(), value);
        }
    }
    // The length of a file is only added to the response when it is sent, which this one never is.
    if out.content_length.is_none()
        && let ResponseBody::File(range) = &out.body
    {
        add(b"Content-Length", range.length.to_string().into_bytes());
    }
    for (name, value) in out.fields.iter() {
        add(name, value.to_vec());
    }
    fields
        .into_iter()
        .map(|(name, mut values)| {
            let value = match values.len() {
                // The only header that lua-nginx-module tells as a number.
                1 if name.eq_ignore_ascii_case(b"Content-Length") => number_of(values.remove(0)),
                1 => LuaValue::Bytes(values.remove(0)),
                _ => LuaValue::Table(
                    values
                        .into_iter()
                        .enumerate()
                        .map(|(n, value)| {
                            (LuaValue::Number((n + 1) as f64), LuaValue::Bytes(value))
                        })
                        .collect(),
                ),
            };
            (LuaValue::Bytes(name), value)
        })
        .collect()
}
