//! `echo`: responses written by the configuration, step by step, for experiments and tests.
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
//! The directives are those of the third-party module of this name and run in the order in which a
//! location has them. This file reads them and runs what precedes the response; [`body`] is the
//! response. What the third-party module has and this one lacks is refused when the configuration
//! is read: `-f` of `echo_subrequest`, and `echo_abort_parent`.

mod body;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice as _};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    HTTP_SERVER_LOCATION_IF, LOCATION_OR_IF, RepeatRule, Setter, Variable,
};
use http::module::ContentHandler;
use http::response_body::ResponseBody;
use http::{FilterVerdict, HandlerOutcome, HandlerStep, HttpModule, Request};

use body::{EchoBody, SurroundedBody};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "echo",
    doc: "Responses made in the configuration: texts, subrequests, pauses.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: HANDLERS,
        when: |location| !location.confs.get::<Conf>().commands.is_empty(),
        handler: answer,
        adds_slash: false,
        declines: false,
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
    explain: http::module::ModuleExplain::Depends(&[(
        http::HttpPhase::Content,
        &["echo", "echo_before_body", "echo_after_body"],
    )]),
    ..HttpModule::EMPTY
};

/// The directives that produce the response, in the order of the location.
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

/// One step of a script.
#[derive(Clone, Debug)]
enum EchoCommand {
    /// Words separated by spaces, and a line end unless `-n` was given.
    Echo(Arc<[Expression]>, bool),
    /// A count, and the text to repeat.
    Duplicate(Expression, Expression),
    /// Sends what has been written.
    Flush,
    /// A pause, in seconds.
    Sleep(Expression),
    /// `$echo_timer_elapsed` counts from here.
    ResetTimer,
    /// Reads the request body.
    ReadBody,
    /// Writes the request body.
    RequestBody,
    /// Writes the response of a subrequest.
    Include(Arc<EchoSubrequest>),
    /// Redirects internally.
    Exec(Expression, Option<Expression>),
    /// Repeats what follows, up to `End`, for each part of a text: delimiter, text.
    Foreach(Expression, Expression),
    /// The end of a loop.
    End,
}

/// The parameters of a subrequest.
#[derive(Debug)]
struct EchoSubrequest {
    method: Option<Expression>,
    path: Expression,
    args: Option<Expression>,
    body: Option<Expression>,
    /// Later subrequests need not wait for this one. Its output keeps its place all the same.
    is_async: bool,
}

/// The scripts of a location: its response, and the texts around other responses.
#[derive(Clone, Debug, Default)]
struct Conf {
    commands: Arc<Vec<EchoCommand>>,
    before: Arc<Vec<EchoCommand>>,
    after: Arc<Vec<EchoCommand>>,
    status: Option<u16>,
}

/// The state of a script.
#[derive(Default)]
struct EchoState {
    /// `$echo_it`.
    part: BString,
    /// What `$echo_timer_elapsed` counts from, if not from the beginning of the request.
    timer: Option<Instant>,
}

/// A row of a directive that adds a step.
const fn row(
    name: &'static str,
    syntax: &'static str,
    arity: Arity,
    doc: &'static str,
    set: fn(&mut Conf, &mut DirectiveLine) -> Result<(), Diagnostic>,
) -> Directive<Conf> {
    Directive {
        name,
        syntax,
        default: None,
        contexts: LOCATION_OR_IF,
        since: "0.2",
        doc,
        set: Setter::Custom(arity, RepeatRule::Many, set),
    }
}

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    row(
        "echo",
        "[-n] [expression …]",
        Arity::ANY,
        "Writes the arguments separated by spaces, followed by a newline unless `-n` comes first. `--` ends the \
         options.",
        |conf, line| {
            let command = read_echo(line)?;
            add_command(conf, line, command)
        },
    ),
    row(
        "echo_duplicate",
        "number text",
        Arity::exactly(2),
        "Writes the text repeatedly, without newlines.",
        |conf, line| {
            let command = EchoCommand::Duplicate(line.expression(0)?, line.expression(1)?);
            add_command(conf, line, command)
        },
    ),
    row(
        "echo_flush",
        "",
        Arity::NONE,
        "Flushes the output written so far.",
        |conf, line| add_command(conf, line, EchoCommand::Flush),
    ),
    row(
        "echo_sleep",
        "seconds",
        Arity::ONE,
        "Pauses for the given number of seconds, such as `1.5`. Other requests are not delayed.",
        |conf, line| {
            let command = EchoCommand::Sleep(line.expression(0)?);
            add_command(conf, line, command)
        },
    ),
    row(
        "echo_blocking_sleep",
        "seconds",
        Arity::ONE,
        "The same as `echo_sleep`: neither blocks an event loop.",
        |conf, line| {
            let command = EchoCommand::Sleep(line.expression(0)?);
            add_command(conf, line, command)
        },
    ),
    row(
        "echo_reset_timer",
        "",
        Arity::NONE,
        "Resets the timer of `$echo_timer_elapsed`.",
        |conf, line| add_command(conf, line, EchoCommand::ResetTimer),
    ),
    row(
        "echo_read_request_body",
        "",
        Arity::NONE,
        "Reads the request body, for `$echo_request_body` and `echo_request_body`.",
        |conf, line| add_command(conf, line, EchoCommand::ReadBody),
    ),
    row(
        "echo_request_body",
        "",
        Arity::NONE,
        "Writes the request body, which must have been read before.",
        |conf, line| add_command(conf, line, EchoCommand::RequestBody),
    ),
    row(
        "echo_location",
        "path [arguments]",
        Arity::between(1, 2),
        "Writes the response of another URI, requested with GET.",
        |conf, line| echo_location(conf, line, false),
    ),
    row(
        "echo_location_async",
        "path [arguments]",
        Arity::between(1, 2),
        "The same as `echo_location`, but the following commands run at the same time; the output keeps its order.",
        |conf, line| echo_location(conf, line, true),
    ),
    row(
        "echo_subrequest",
        "method path [-q arguments] [-b body]",
        Arity::between(2, 6),
        "Writes the response of another URI, requested with the given method and, with `-b`, a body.",
        |conf, line| echo_subrequest(conf, line, false),
    ),
    row(
        "echo_subrequest_async",
        "method path [-q arguments] [-b body]",
        Arity::between(2, 6),
        "The same as `echo_subrequest`, but the following commands run at the same time; the output keeps its order.",
        |conf, line| echo_subrequest(conf, line, true),
    ),
    row(
        "echo_exec",
        "path [arguments] | @name",
        Arity::between(1, 2),
        "Redirects internally to another location. Nothing may have been written before.",
        |conf, line| {
            let command = EchoCommand::Exec(line.expression(0)?, optional_expression(line, 1)?);
            add_command(conf, line, command)
        },
    ),
    row(
        "echo_foreach_split",
        "[--] delimiter text",
        Arity::between(2, 3),
        "Repeats the commands up to `echo_end` for each part of the text; `$echo_it` is the current part.",
        |conf, line| {
            // The optional `--` in front has no effect.
            let at = line.args().len() - 2;
            let command = EchoCommand::Foreach(line.expression(at)?, line.expression(at + 1)?);
            add_command(conf, line, command)
        },
    ),
    row(
        "echo_end",
        "",
        Arity::NONE,
        "Ends the loop of `echo_foreach_split`.",
        |conf, line| add_command(conf, line, EchoCommand::End),
    ),
    Directive {
        name: "echo_status",
        syntax: "code",
        default: None,
        contexts: LOCATION_OR_IF,
        since: "0.2",
        doc: "The response status.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            let status = std::str::from_utf8(line.text(0)).ok();
            let status = status.and_then(|text| text.parse().ok());
            // No interim status: it would not end the exchange, and a client would wait for another response.
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
            RepeatRule::Fresh(|c| c.before = Arc::default()),
            |conf, line| {
                Arc::make_mut(&mut conf.before).push(read_echo(line)?);
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
            RepeatRule::Fresh(|c| c.after = Arc::default()),
            |conf, line| {
                Arc::make_mut(&mut conf.after).push(read_echo(line)?);
                Ok(())
            },
        ),
    },
]);

/// Adds a step. The first of a block replaces the steps that an `if` has inherited.
fn add_command(
    conf: &mut Conf,
    line: &DirectiveLine,
    command: EchoCommand,
) -> Result<(), Diagnostic> {
    let seen = HANDLERS
        .iter()
        .filter_map(|name| line.level.seen_directive(name));
    // The first of these directives in this block.
    if seen.into_iter().all(|first| first == line.node.head) {
        conf.commands = Arc::default();
    }
    Arc::make_mut(&mut conf.commands).push(command);
    Ok(())
}

/// Reads the words of `echo` and the options in front of them.
fn read_echo(line: &mut DirectiveLine) -> Result<EchoCommand, Diagnostic> {
    let (mut from, mut ends_line) = (0, true);
    while from < line.args().len() {
        // Options must be constants: a variable whose value looks like one is text.
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
    Ok(EchoCommand::Echo(words?.into(), ends_line))
}

/// The word at `index`, if there is one.
fn optional_expression(
    line: &mut DirectiveLine,
    index: usize,
) -> Result<Option<Expression>, Diagnostic> {
    match index < line.args().len() {
        true => line.expression(index).map(Some),
        false => Ok(None),
    }
}

/// Reads `echo_location` and `echo_location_async`.
fn echo_location(
    conf: &mut Conf,
    line: &mut DirectiveLine,
    is_async: bool,
) -> Result<(), Diagnostic> {
    let include = EchoSubrequest {
        method: None,
        path: line.expression(0)?,
        args: optional_expression(line, 1)?,
        body: None,
        is_async,
    };
    add_command(conf, line, EchoCommand::Include(Arc::new(include)))
}

/// Reads `echo_subrequest` and `echo_subrequest_async`.
fn echo_subrequest(
    conf: &mut Conf,
    line: &mut DirectiveLine,
    is_async: bool,
) -> Result<(), Diagnostic> {
    let mut include = EchoSubrequest {
        method: Some(line.expression(0)?),
        path: line.expression(1)?,
        args: None,
        body: None,
        is_async,
    };
    let mut index = 2;
    while index < line.args().len() {
        // Options come in pairs of a name and a value.
        let value = optional_expression(line, index + 1)?;
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
    add_command(conf, line, EchoCommand::Include(Arc::new(include)))
}

/// The content handler. Steps before the first output run here, since they can still redirect or
/// fail; the rest becomes the body.
fn answer(request: &mut Request) -> HandlerStep<'_> {
    HandlerStep::later(async move {
        let conf = request.conf::<Conf>();
        let commands = Arc::clone(&conf.commands);
        let mut at = 0;
        let wants_content = |command: &EchoCommand| matches!(command, EchoCommand::ReadBody);
        // Read at once, wherever the step is: the body must be there before the response begins, or
        // the connection could not be reused.
        if commands.iter().any(wants_content)
            && let Err(status) = http::body_reader::read_body(request).await
        {
            return HandlerOutcome::Status(status);
        }
        loop {
            match commands.get(at) {
                Some(EchoCommand::ReadBody) => {}
                Some(EchoCommand::ResetTimer) => reset_timer(request),
                Some(EchoCommand::Sleep(seconds)) => rt::sleep(pause(request, seconds)).await,
                // Only here: once the head has left, nothing can be redirected.
                Some(EchoCommand::Exec(path, args)) => {
                    return redirect(request, path, args.as_ref());
                }
                Some(_) | None => break,
            }
            at += 1;
        }
        // `echo_status` may be anywhere among the other directives.
        request.out.status = conf.status.unwrap_or(200);
        // By the extension of the URI, as for a file.
        http::content_type::set_content_type(request);
        request.out.body = ResponseBody::stream(EchoBody::new(commands, at));
        HandlerOutcome::Respond
    })
}

/// Redirects internally, as `echo_exec` says.
fn redirect(request: &mut Request, path: &Expression, args: Option<&Expression>) -> HandlerOutcome {
    let path = request.value(path);
    // Arguments, wherever they are written, do not apply to a named location.
    if path.starts_with(b"@") {
        return request.redirect_named(split_args(path).0.as_bstr());
    }
    let (path, own) = target(path);
    let args = args.map_or(own, |args| request.value(args));
    request.redirect(path, args)
}

/// The path of a subrequest or a redirect, which is written as in a request line, and its arguments: locations are found by
/// the decoded path.
fn target(written: BString) -> (BString, BString) {
    let (written, args) = split_args(written);
    let mut path = Vec::with_capacity(written.len());
    proto::uri::unescape_path(&written, &mut path);
    (path.into(), args)
}

/// Splits a path from its arguments.
fn split_args(path: BString) -> (BString, BString) {
    match path.find_byte(b'?') {
        Some(mark) => (path[..mark].into(), path[mark + 1..].into()),
        None => (path, BString::default()),
    }
}

/// `echo_reset_timer`.
fn reset_timer(request: &mut Request) {
    request.state_or_default::<EchoState>().timer = Some(rt::clock::read_clock());
}

/// The length of a pause; an invalid one is logged and skipped.
fn pause(request: &mut Request, seconds: &Expression) -> Duration {
    let text = request.value(seconds);
    let seconds = text.to_str().ok().and_then(|text| text.parse::<f64>().ok());
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.unwrap_or_else(|| {
        request.error(format_args!("invalid sleeping time \"{text}\""));
        Duration::ZERO
    })
}

/// The body filter: puts texts around a response.
fn surround(request: &mut Request) -> FilterVerdict {
    let conf = request.conf::<Conf>();
    // These statuses never have content.
    let nothing = conf.before.is_empty() && conf.after.is_empty();
    if nothing || matches!(request.out.status, 204 | 304) {
        return FilterVerdict::Pass;
    }
    // The length is no longer known, and validators belong to the original content.
    request.out.content_changes();
    let body = std::mem::take(&mut request.out.body);
    let around = SurroundedBody::new(Arc::clone(&conf.before), body, Arc::clone(&conf.after));
    request.out.body = ResponseBody::stream(around);
    FilterVerdict::Pass
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

/// `$echo_it`.
fn part(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.state::<EchoState>() {
        Some(state) => {
            out.extend_from_slice(&state.part);
            true
        }
        None => false,
    }
}

/// `$echo_timer_elapsed`.
fn elapsed(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let timer = request.state::<EchoState>().and_then(|state| state.timer);
    let milliseconds = match timer {
        Some(since) => u64::try_from(rt::clock::elapsed(since).as_millis()).unwrap_or(u64::MAX),
        None => request.elapsed_ms(),
    };
    base::text::write_seconds(milliseconds, out);
    true
}

/// How many times `$echo_incr` has been read. Shared with subrequests, as in the third-party
/// module.
#[derive(Default)]
struct EchoCounter(Cell<u64>);

/// `$echo_incr`.
fn count(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let count = request.shared::<EchoCounter>();
    count.0.set(count.0.get() + 1);
    base::text::write_number(count.0.get(), out);
    true
}

/// `$echo_request_body`. A body in a file would have to be read here, on the loop, so it has no
/// value.
fn content(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.body.in_memory() {
        Some(content) => {
            out.extend_from_slice(content);
            true
        }
        None => false,
    }
}

/// `$echo_request_method`.
fn method(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.method {
        proto::message::Method::Other => out.extend_from_slice(request.head.wire.method_text()),
        method => out.extend_from_slice(method.name().as_bytes()),
    }
    true
}

/// `$echo_client_request_method`.
fn client_method(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(request.head.wire.method_text());
    true
}

/// `$echo_client_request_headers`. HTTP/2 has no such text; it is assembled from the fields.
fn client_head(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&request.head.wire.as_text());
    true
}

/// `$echo_request_uri`.
fn uri(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&request.uri.path);
    true
}

/// `$echo_response_status`.
fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.out.status == 0 {
        return false;
    }
    base::text::write_number(request.out.status.into(), out);
    true
}
