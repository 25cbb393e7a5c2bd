//! `ngx.location.capture`: subrequests whose responses a script gets.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;

use bstr::BString;
use http::Request;
use http::body::{Body, Chunk};
use http::body_reader::RequestBody;
use http::subrequest::{self, Options};
use proto::h1::Method;

use super::arguments::table;
use super::{Called, Functions};
use crate::luajit::stack::Kind;
use crate::luajit::{Ref, Stack, Value, fail};
use crate::operation::{Operation, Reply};
use crate::scope::{self, Scope};
use crate::vm::Own;

pub(super) const CORE: Functions = &[("capture", capture)];

/// What a response may take in memory, in bytes; a longer one is cut, and says so.
const MAX_RESPONSE: usize = 128 << 20;

/// How many at a time.
const MAX_AT_ONCE: usize = 200;

/// One wanted subrequest, as `prelude.lua` describes it.
struct Wanted {
    path: BString,
    args: BString,
    method: Method,
    body: Option<Vec<u8>>,
    context: Option<Rc<Ref>>,
    /// The variables are those of the parent.
    shares: bool,
    /// It begins with copies of them.
    copies: bool,
    /// The parent's content goes along whatever the method.
    forwards: bool,
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// Fields of the head, in the place of the parent's.
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

fn capture(stack: &Stack) -> Called {
    super::output::need_way()?;
    table(stack, 1)?;
    let count = stack.length(1);
    if count > MAX_AT_ONCE {
        return fail("too many subrequests at once");
    }
    let mut requests = Vec::new();
    for n in 1..=count {
        stack.element(1, n);
        let wanted = read(stack)?;
        stack.pop(1);
        let made = scope::with_request(|request| begin(request, wanted))??;
        requests.push(made);
    }
    let counted = Counted::new(&scope::with(Rc::clone)?);
    super::wait(Operation::task(async move {
        let replies = all(requests).await;
        drop(counted);
        replies
    }))
}

/// A light thread that waits for subrequests, until they are through or it is ended.
struct Counted(Weak<Scope>, usize);

impl Counted {
    fn new(scope: &Rc<Scope>) -> Counted {
        scope.captures.set(scope.captures.get() + 1);
        let thread = scope.thread.get();
        mark(scope, thread, true);
        Counted(Rc::downgrade(scope), thread)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(scope) = self.0.upgrade() {
            scope.captures.set(scope.captures.get() - 1);
            mark(&scope, self.1, false);
        }
    }
}

/// Notes of a light thread whether it waits for subrequests: it is not ended then. The script itself is none.
fn mark(scope: &Scope, thread: usize, captures: bool) {
    // Who ends all light threads at once holds the list, and they need no note.
    let Ok(mut lights) = scope.lights.try_borrow_mut() else {
        return;
    };
    if let Some(light) = lights.get_mut(&thread) {
        light.captures = captures;
    }
}

/// Reads the table on top.
fn read(stack: &Stack) -> Result<Wanted, crate::luajit::Failure> {
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
    if let Some(more) = text("args") {
        if !args.is_empty() && !more.is_empty() {
            args.push(b'&');
        }
        args.extend_from_slice(&super::request::as_arguments(&more));
    }
    let context = (stack.field(at, "ctx") == Kind::Table)
        .then(|| {
            stack.push_copy(-1);
            scope::with(|scope| Rc::new(Ref::take(&scope.vm.state, stack)))
        })
        .transpose()?;
    stack.pop(1);
    let variables = pairs(stack, at, "vars");
    let fields = pairs(stack, at, "headers");
    Ok(Wanted {
        path,
        args,
        method: Method::from_bytes(&text("method").unwrap_or_default()),
        body: text("body"),
        context,
        shares: flag("share"),
        copies: flag("copy"),
        forwards: flag("forward"),
        variables,
        fields,
    })
}

/// A list of names and values by turns, in a field of the table at `at`.
fn pairs(stack: &Stack, at: i32, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    if stack.field(at, name) == Kind::Table {
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

fn begin(parent: &mut Request, wanted: Wanted) -> Result<Box<Request>, crate::luajit::Failure> {
    let takes_content = matches!(wanted.method, Method::Post | Method::Put | Method::Patch);
    let body = match wanted.body {
        Some(body) => Some(RequestBody::from_bytes(body)),
        None if (takes_content || wanted.forwards) && parent.body.is_complete() => {
            Some(parent.body.share())
        }
        None => None,
    };
    let length = body.as_ref().map(RequestBody::length);
    let options = Options {
        method: wanted.method,
        header_only: wanted.method == Method::Head,
        body,
        ..Options::get(wanted.path, wanted.args)
    };
    let Some(request) = subrequest::create(parent, options) else {
        return fail("subrequests cycle, or there are too many of them");
    };
    let mut request = Box::new(request);
    if let Some(own) = parent.state::<Own>() {
        let own = own.clone();
        request.set_state(own);
    }
    // The script gets the status, and no page that explains it to people.
    request.flow.no_error_page = true;
    // What the client said of its own content is not true of this request.
    let fields = &mut Rc::make_mut(&mut request.head).wire.fields;
    fields.remove(b"Transfer-Encoding");
    fields.remove(b"Content-Length");
    if let Some(length) = length {
        fields.set(b"Content-Length", length.to_string().as_bytes());
    }
    if !wanted.shares {
        request.variables = match wanted.copies {
            true => Rc::new(parent.variables.copy()),
            false => Rc::default(),
        };
    }
    super::tcp::lend_owners(parent, &mut request);
    for (name, value) in &wanted.fields {
        super::request::set_field(&mut request, name, value);
    }
    for (name, value) in &wanted.variables {
        let name = String::from_utf8_lossy(name);
        super::variables::assign(&mut request, &name, Some(value))?;
    }
    if let Some(context) = wanted.context {
        super::misc::give_context(&mut request, context);
    }
    Ok(request)
}

type Running = Pin<Box<dyn Future<Output = Value>>>;

/// Runs them side by side.
async fn all(requests: impl IntoIterator<Item = Box<Request>>) -> Reply {
    let mut running: Vec<Option<Running>> = requests
        .into_iter()
        .map(|request| Some(Box::pin(one(request)) as Running))
        .collect();
    let mut results: Vec<Value> = running.iter().map(|_| Value::Nil).collect();
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

async fn one(mut request: Box<Request>) -> Value {
    subrequest::run(&mut request, true).await;
    let status = request.out.status;
    let is_bare = is_bare(&request);
    if is_bare && let Some(usual) = super::usual_type(&mut request) {
        request.out.content_type = usual;
    }
    let header = header(&request);
    let mut body = Vec::new();
    // An answer that is nothing but a status, or a head, was cut short, in the terms of nginx's module.
    let mut truncated = is_bare || request.flow.header_only;
    while !request.flow.silent && !request.flow.header_only {
        match Body::next_of(&mut request).await {
            None => break,
            Some(Err(_)) => {
                truncated = true;
                break;
            }
            Some(Ok(chunk)) => {
                if take(chunk, &mut body).await.is_err() || body.len() > MAX_RESPONSE {
                    truncated = true;
                    break;
                }
            }
        }
    }
    subrequest::end(&mut request).await;
    let key = |name: &str| Value::text(name);
    Value::Table(vec![
        (key("status"), Value::Number(f64::from(status))),
        (key("header"), Value::Table(header)),
        (key("body"), Value::Bytes(body)),
        (key("truncated"), Value::Boolean(truncated)),
    ])
}

/// Whether the request ended with a status, and no handler has made a response.
fn is_bare(request: &Request) -> bool {
    let out = &request.out;
    out.status >= 300
        && out.content_type.is_empty()
        && out.content_length.is_none()
        && matches!(out.body, Body::Empty)
}

/// Appends a piece of content. What is in a file is read.
async fn take(chunk: Chunk, out: &mut Vec<u8>) -> Result<(), ()> {
    match chunk {
        Chunk::Bytes(bytes) => out.extend_from_slice(&bytes),
        Chunk::Flush => {}
        Chunk::File(range) => {
            let (mut at, end) = (range.offset, range.offset + range.length);
            while at < end && out.len() <= MAX_RESPONSE {
                let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 20);
                let before = out.len();
                let read = range
                    .file
                    .read_at(std::mem::take(out), at, want, &rt::pool::default_pool())
                    .await;
                *out = read.map_err(drop)?;
                if out.len() == before {
                    return Err(());
                }
                at += (out.len() - before) as u64;
            }
        }
    }
    Ok(())
}

fn header(request: &Request) -> Vec<(Value, Value)> {
    let out = &request.out;
    let mut fields: Vec<(Vec<u8>, Vec<Vec<u8>>)> = Vec::new();
    let mut add = |name: &[u8], value: Vec<u8>| match fields
        .iter_mut()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
    {
        Some((_, values)) => values.push(value),
        None => fields.push((name.to_vec(), vec![value])),
    };
    for name in [
        "Content-Type",
        "Content-Length",
        "Location",
        "ETag",
        "Last-Modified",
    ] {
        if let Some(Some(value)) = super::response::fact(out, name.as_bytes()) {
            add(name.as_bytes(), value);
        }
    }
    if out.content_length.is_none()
        && let Body::File(range) = &out.body
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
                1 => Value::Bytes(values.remove(0)),
                _ => Value::Table(
                    values
                        .into_iter()
                        .enumerate()
                        .map(|(n, value)| (Value::Number((n + 1) as f64), Value::Bytes(value)))
                        .collect(),
                ),
            };
            (Value::Bytes(name), value)
        })
        .collect()
}
