//! `echo`: responses that the configuration writes itself, step by step, for trying things out and for tests.
//!
//! ```nginx
//! location /hello {
//!     echo "hello, $remote_addr";
//!     echo_flush;
//!     echo_sleep 0.5;
//!     echo_location /rest;
//! }
//! ```
//!
//! The directives are those of the third-party module of this name, in the order in which a location has them. This file
//! reads them and runs what comes before a response begins; [`page`] is the response. What the third-party module has and
//! this one has not is refused when the configuration is read: `-f` of `echo_subrequest`, and `echo_abort_parent`.

mod page;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice as _};
use conf::{
    Arity, Diagnostic, Directive, Expression, HTTP_SERVER_LOCATION_IF, LOCATION_OR_IF, Line,
    Repeat, Setter, Table, Variable,
};
use http::body::Body;
use http::module::Answer;
use http::{Module, Outcome, Request, Step, Verdict};

use page::{Around, Page};

pub(crate) static MODULE: Module = Module {
    name: "echo",
    doc: "Responses made in the configuration: texts, subrequests, pauses.",
    location: &DIRECTIVES,
    answer: Some(Answer {
        directives: HANDLERS,
        when: |location| !location.confs.get::<Conf>().commands.is_empty(),
        handler: answer,
        adds_slash: false,
    }),
    filter: Some(surround),
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        !(conf.commands.is_empty() && conf.before.is_empty() && conf.after.is_empty())
    },
    nested: |confs| {
        confs.change_if::<Conf>(
            |conf| !conf.commands.is_empty(),
            |conf| conf.commands = Arc::default(),
        );
    },
    variables: VARIABLES,
    ..Module::EMPTY
};

/// The directives that answer. Their order in a location is the order of what they do.
const HANDLERS: &[&str] = &[
    "echo",
    "echo_duplicate",
    "echo_flush",
    "echo_sleep",
    "echo_blocking_sleep",
    "echo_reset_timer",
    "echo_read_request_body",
    "echo_request_body",
    "echo_location",
    "echo_location_async",
    "echo_subrequest",
    "echo_subrequest_async",
    "echo_exec",
    "echo_foreach_split",
    "echo_end",
];

/// One step.
#[derive(Clone, Debug)]
enum Command {
    /// Words with blanks between, and the end of a line unless `-n` was said.
    Say(Arc<[Expression]>, bool),
    /// A text, repeated this many times.
    Duplicate(Expression, Expression),
    /// What there is leaves now.
    Flush,
    /// A pause, in seconds.
    Sleep(Expression),
    /// `$echo_timer_elapsed` counts from here.
    ResetTimer,
    /// The content of the request is read.
    ReadBody,
    /// The content of the request, as it came.
    RequestBody,
    /// The response of another path.
    Include(Arc<Include>),
    /// On to another location.
    Exec(Expression, Option<Expression>),
    /// What follows, up to the end, for each part of a text.
    Foreach(Expression, Expression),
    /// The end of what is done for each part.
    End,
}

/// A subrequest.
#[derive(Debug)]
struct Include {
    method: Option<Expression>,
    path: Expression,
    args: Option<Expression>,
    body: Option<Expression>,
    /// Those that follow need not wait for it; its response keeps its place all the same.
    is_async: bool,
}

#[derive(Clone, Debug, Default)]
struct Conf {
    commands: Arc<Vec<Command>>,
    before: Arc<Vec<Command>>,
    after: Arc<Vec<Command>>,
    status: Option<u16>,
}

/// What a request has come to.
#[derive(Default)]
struct State {
    /// `$echo_it`.
    part: BString,
    /// Since when `$echo_timer_elapsed` counts, if not since the request began.
    timer: Option<Instant>,
}

const fn row(
    name: &'static str,
    syntax: &'static str,
    arity: Arity,
    doc: &'static str,
    set: fn(&mut Conf, &mut Line) -> Result<(), Diagnostic>,
) -> Directive<Conf> {
    Directive {
        name,
        syntax,
        default: None,
        contexts: LOCATION_OR_IF,
        since: "0.2",
        doc,
        set: Setter::Custom(arity, Repeat::Many, set),
    }
}

static DIRECTIVES: Table<Conf> = Table::new(&[
    row(
        "echo",
        "[-n] [expression …]",
        Arity::ANY,
        "Writes the arguments separated by spaces, followed by a newline unless `-n` comes first. `--` ends the \
         options.",
        |conf, line| {
            let command = say(line)?;
            add(conf, line, command)
        },
    ),
    row(
        "echo_duplicate",
        "number text",
        Arity::exactly(2),
        "Writes the text repeatedly, without newlines.",
        |conf, line| {
            let command = Command::Duplicate(line.expression(0)?, line.expression(1)?);
            add(conf, line, command)
        },
    ),
    row(
        "echo_flush",
        "",
        Arity::NONE,
        "Flushes the output written so far.",
        |conf, line| add(conf, line, Command::Flush),
    ),
    row(
        "echo_sleep",
        "seconds",
        Arity::ONE,
        "Pauses for the given number of seconds, such as `1.5`. Other requests are not delayed.",
        |conf, line| {
            let command = Command::Sleep(line.expression(0)?);
            add(conf, line, command)
        },
    ),
    row(
        "echo_blocking_sleep",
        "seconds",
        Arity::ONE,
        "The same as `echo_sleep`: neither blocks an event loop.",
        |conf, line| {
            let command = Command::Sleep(line.expression(0)?);
            add(conf, line, command)
        },
    ),
    row(
        "echo_reset_timer",
        "",
        Arity::NONE,
        "Resets the timer of `$echo_timer_elapsed`.",
        |conf, line| add(conf, line, Command::ResetTimer),
    ),
    row(
        "echo_read_request_body",
        "",
        Arity::NONE,
        "Reads the request body, for `$echo_request_body` and `echo_request_body`.",
        |conf, line| add(conf, line, Command::ReadBody),
    ),
    row(
        "echo_request_body",
        "",
        Arity::NONE,
        "Writes the request body, which must have been read before.",
        |conf, line| add(conf, line, Command::RequestBody),
    ),
    row(
        "echo_location",
        "path [arguments]",
        Arity::between(1, 2),
        "Writes the response of another URI, requested with GET.",
        |conf, line| location(conf, line, false),
    ),
    row(
        "echo_location_async",
        "path [arguments]",
        Arity::between(1, 2),
        "The same as `echo_location`, but the following commands run at the same time; the output keeps its order.",
        |conf, line| location(conf, line, true),
    ),
    row(
        "echo_subrequest",
        "method path [-q arguments] [-b content]",
        Arity::between(2, 6),
        "Writes the response of another URI, requested with the given method and, with `-b`, a body.",
        |conf, line| subrequest(conf, line, false),
    ),
    row(
        "echo_subrequest_async",
        "method path [-q arguments] [-b content]",
        Arity::between(2, 6),
        "The same as `echo_subrequest`, but the following commands run at the same time; the output keeps its order.",
        |conf, line| subrequest(conf, line, true),
    ),
    row(
        "echo_exec",
        "path [arguments] | @name",
        Arity::between(1, 2),
        "Redirects internally to another location. Nothing may have been written before.",
        |conf, line| {
            let command = Command::Exec(line.expression(0)?, optional(line, 1)?);
            add(conf, line, command)
        },
    ),
    row(
        "echo_foreach_split",
        "[--] delimiter text",
        Arity::between(2, 3),
        "Repeats the commands up to `echo_end` for each part of the text; `$echo_it` is the current part.",
        |conf, line| {
            let at = line.args().len() - 2;
            let command = Command::Foreach(line.expression(at)?, line.expression(at + 1)?);
            add(conf, line, command)
        },
    ),
    row(
        "echo_end",
        "",
        Arity::NONE,
        "Ends the loop of `echo_foreach_split`.",
        |conf, line| add(conf, line, Command::End),
    ),
    Directive {
        name: "echo_status",
        syntax: "code",
        default: None,
        contexts: LOCATION_OR_IF,
        since: "0.2",
        doc: "The response status.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            let status = std::str::from_utf8(line.text(0)).ok();
            let status = status.and_then(|text| text.parse().ok());
            let valid = status.filter(|status| (200..=999).contains(status));
            conf.status = Some(valid.ok_or_else(|| line.invalid_value(0))?);
            Ok(())
        }),
    },
    Directive {
        name: "echo_before_body",
        syntax: "[-n] [expression …]",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.2",
        doc: "Writes before the body of any response, with the syntax of `echo`.",
        set: Setter::Custom(
            Arity::ANY,
            Repeat::Fresh(|c| c.before = Arc::default()),
            |conf, line| {
                Arc::make_mut(&mut conf.before).push(say(line)?);
                Ok(())
            },
        ),
    },
    Directive {
        name: "echo_after_body",
        syntax: "[-n] [expression …]",
        default: None,
        contexts: HTTP_SERVER_LOCATION_IF,
        since: "0.2",
        doc: "Writes after the body of any response, with the syntax of `echo`.",
        set: Setter::Custom(
            Arity::ANY,
            Repeat::Fresh(|c| c.after = Arc::default()),
            |conf, line| {
                Arc::make_mut(&mut conf.after).push(say(line)?);
                Ok(())
            },
        ),
    },
]);

/// Adds a step. The first of a block replaces those that an `if` has inherited.
fn add(conf: &mut Conf, line: &Line, command: Command) -> Result<(), Diagnostic> {
    let seen = HANDLERS.iter().filter_map(|name| line.level.seen(name));
    if seen.into_iter().all(|first| first == line.node.head) {
        conf.commands = Arc::default();
    }
    Arc::make_mut(&mut conf.commands).push(command);
    Ok(())
}

/// The words of `echo`, with its options in front.
fn say(line: &mut Line) -> Result<Command, Diagnostic> {
    let (mut from, mut ends_line) = (0, true);
    while from < line.args().len() {
        match line.text(from).as_bytes() {
            b"-n" => ends_line = false,
            b"--" => {
                from += 1;
                break;
            }
            _ => break,
        }
        from += 1;
    }
    let words: Result<Vec<_>, _> = (from..line.args().len())
        .map(|index| line.expression(index))
        .collect();
    Ok(Command::Say(words?.into(), ends_line))
}

fn optional(line: &mut Line, index: usize) -> Result<Option<Expression>, Diagnostic> {
    match index < line.args().len() {
        true => line.expression(index).map(Some),
        false => Ok(None),
    }
}

fn location(conf: &mut Conf, line: &mut Line, is_async: bool) -> Result<(), Diagnostic> {
    let include = Include {
        method: None,
        path: line.expression(0)?,
        args: optional(line, 1)?,
        body: None,
        is_async,
    };
    add(conf, line, Command::Include(Arc::new(include)))
}

fn subrequest(conf: &mut Conf, line: &mut Line, is_async: bool) -> Result<(), Diagnostic> {
    let mut include = Include {
        method: Some(line.expression(0)?),
        path: line.expression(1)?,
        args: None,
        body: None,
        is_async,
    };
    let mut index = 2;
    while index < line.args().len() {
        let value = optional(line, index + 1)?;
        let field = match line.text(index).as_bytes() {
            b"-q" => &mut include.args,
            b"-b" => &mut include.body,
            _ => return Err(line.invalid_parameter(index)),
        };
        match value {
            Some(value) => *field = Some(value),
            None => return Err(line.invalid_parameter(index)),
        }
        index += 2;
    }
    add(conf, line, Command::Include(Arc::new(include)))
}

/// Runs what comes before the response, and makes the response of the rest.
fn answer(request: &mut Request) -> Step<'_> {
    Step::later(async move {
        let conf = request.conf::<Conf>();
        let commands = Arc::clone(&conf.commands);
        let mut at = 0;
        let wants_content = |command: &Command| matches!(command, Command::ReadBody);
        if commands.iter().any(wants_content)
            && let Err(status) = http::body_reader::read(request).await
        {
            return Outcome::Status(status);
        }
        loop {
            match commands.get(at) {
                Some(Command::ReadBody) => {}
                Some(Command::ResetTimer) => reset_timer(request),
                Some(Command::Sleep(seconds)) => rt::sleep(pause(request, seconds)).await,
                Some(Command::Exec(path, args)) => return exec(request, path, args.as_ref()),
                Some(_) | None => break,
            }
            at += 1;
        }
        request.out.status = conf.status.unwrap_or(200);
        http::types::set_content_type(request);
        request.out.body = Body::stream(Page::new(commands, at));
        Outcome::Respond
    })
}

fn exec(request: &mut Request, path: &Expression, args: Option<&Expression>) -> Outcome {
    let path = request.value(path);
    if path.starts_with(b"@") {
        return request.redirect_named(path.as_bstr());
    }
    let (path, own) = split_args(path);
    let args = args.map_or(own, |args| request.value(args));
    request.redirect(path, args)
}

/// A path and the arguments that it may carry.
fn split_args(path: BString) -> (BString, BString) {
    match path.find_byte(b'?') {
        Some(mark) => (path[..mark].into(), path[mark + 1..].into()),
        None => (path, BString::default()),
    }
}

fn reset_timer(request: &mut Request) {
    request.state_or_default::<State>().timer = Some(Instant::now());
}

/// How long a pause is; what is no number is none.
fn pause(request: &mut Request, seconds: &Expression) -> Duration {
    let text = request.value(seconds);
    let seconds = text.to_str().ok().and_then(|text| text.parse::<f64>().ok());
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.unwrap_or_else(|| {
        request.error(format_args!("invalid sleeping time \"{text}\""));
        Duration::ZERO
    })
}

/// Puts texts before and after a response.
fn surround(request: &mut Request) -> Verdict {
    let conf = request.conf::<Conf>();
    let nothing = conf.before.is_empty() && conf.after.is_empty();
    if nothing || matches!(request.out.status, 204 | 304) {
        return Verdict::Pass;
    }
    request.out.content_changes();
    let body = std::mem::take(&mut request.out.body);
    let around = Around::new(Arc::clone(&conf.before), body, Arc::clone(&conf.after));
    request.out.body = Body::stream(around);
    Verdict::Pass
}

const VARIABLES: &[Variable<Request>] = &[
    Variable::new("echo_it", part, "The current part in `echo_foreach_split`.").volatile(),
    Variable::new(
        "echo_timer_elapsed",
        elapsed,
        "Seconds since `echo_reset_timer` or the start of the request, with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "echo_incr",
        count,
        "How many times the variable has been read during the client's request.",
    )
    .volatile(),
    Variable::new(
        "echo_request_body",
        content,
        "The request body after it has been read; empty if it is in a file.",
    )
    .volatile(),
    Variable::new(
        "echo_request_method",
        method,
        "The method of the current request or subrequest.",
    )
    .volatile(),
    Variable::new(
        "echo_client_request_method",
        client_method,
        "The method of the main request.",
    )
    .volatile(),
    Variable::new(
        "echo_client_request_headers",
        client_head,
        "The request line and headers of the main request.",
    )
    .volatile(),
    Variable::new(
        "echo_request_uri",
        uri,
        "The path of the current request or subrequest.",
    )
    .volatile(),
    Variable::new("echo_cacheable_request_uri", uri, "As `$echo_request_uri`.").volatile(),
    Variable::new(
        "echo_response_status",
        status,
        "The response status, as soon as it is known.",
    )
    .volatile(),
];

fn part(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.state::<State>() {
        Some(state) => {
            out.extend_from_slice(&state.part);
            true
        }
        None => false,
    }
}

fn elapsed(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let timer = request.state::<State>().and_then(|state| state.timer);
    let milliseconds = match timer {
        Some(since) => u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
        None => request.elapsed_ms(),
    };
    base::text::write_seconds(milliseconds, out);
    true
}

/// How many times `$echo_incr` was read.
#[derive(Default)]
struct Count(Cell<u64>);

fn count(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let count = request.shared::<Count>();
    count.0.set(count.0.get() + 1);
    base::text::write_number(count.0.get(), out);
    true
}

fn content(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.body.in_memory() {
        Some(content) => {
            out.extend_from_slice(content);
            true
        }
        None => false,
    }
}

fn method(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.method {
        proto::h1::Method::Other => out.extend_from_slice(request.head.wire.method_text()),
        method => out.extend_from_slice(method.name().as_bytes()),
    }
    true
}

fn client_method(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(request.head.wire.method_text());
    true
}

fn client_head(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let wire = &request.head.wire;
    let sent = wire.as_sent();
    if !sent.is_empty() {
        out.extend_from_slice(sent);
        return true;
    }
    out.extend_from_slice(wire.request_line());
    out.extend_from_slice(b"\r\n");
    for (name, value) in wire.fields.iter() {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    true
}

fn uri(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&request.uri.path);
    true
}

fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.out.status == 0 {
        return false;
    }
    base::text::write_number(request.out.status.into(), out);
    true
}
