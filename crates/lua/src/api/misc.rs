//! Log, time, phase, context, worker, configuration.

use std::rc::Rc;

use bstr::ByteSlice;
use rt::error_log::Level;

use super::arguments::{as_int, bad, number, only_text};
use super::{Called, Functions};
use crate::chunk::Kind as Script;
use crate::directives::Code;
use crate::luajit::stack::Kind;
use crate::luajit::watchdog;
use crate::luajit::{Ref, Stack, Value, fail};
use crate::operation::Operation;
use crate::scope;
use crate::stream::StreamCode;

pub(super) const FUNCTIONS: Functions = &[
    ("log", log),
    ("get_phase", get_phase),
    ("time", time),
    ("now", now),
    ("update_time", update_time),
    ("today", today),
    ("localtime", localtime),
    ("utctime", utctime),
    ("cookie_time", cookie_time),
    ("http_time", http_time),
    ("parse_http_time", parse_http_time),
    ("sleep", sleep),
    ("on_abort", on_abort),
];

pub(super) const CORE: Functions = &[
    ("phase", get_phase),
    ("inner_gave_way", inner_gave_way),
    ("get_ctx", get_ctx),
    ("set_ctx", set_ctx),
    ("is_subrequest", is_subrequest),
    ("get_arg", get_arg),
    ("set_arg", set_arg),
    ("raw_log", raw_log),
    ("log_level", log_level),
    ("parent_pid", parent_pid),
    ("has_request", has_request),
];

pub(super) const WORKER: Functions = &[
    ("pid", pid),
    ("pids", pids),
    ("id", worker_id),
    ("count", worker_count),
    ("exiting", exiting),
];

pub(super) const CONFIG: Functions = &[("prefix", prefix), ("nginx_configure", configure)];

fn level(n: i32) -> Option<Level> {
    Some(match n {
        0 | 1 => Level::Emerg,
        2 => Level::Alert,
        3 => Level::Crit,
        4 => Level::Error,
        5 => Level::Warn,
        6 => Level::Notice,
        7 => Level::Info,
        8 => Level::Debug,
        _ => return None,
    })
}

fn log(stack: &Stack) -> Called {
    let n = as_int(number(stack, 1)?);
    let Some(level) = level(n) else {
        return bad(stack, 1, &format!("bad log level: {n}"));
    };
    if !is_logged(level)? {
        return super::NONE;
    }
    let mut message = stack.place(1);
    for at in 2..=stack.top() {
        match stack.kind(at) {
            Kind::Table => match stack.to_text(at) {
                Some(text) => message.extend_from_slice(&text),
                // The level does not count.
                None => {
                    let why = "expected table to have __tostring metamethod";
                    return bad(stack, at - 1, why);
                }
            },
            kind => match stack.text(at) {
                Some(text) => message.extend_from_slice(&text),
                None if kind == Kind::LightUserdata => message.extend_from_slice(b"null"),
                None => {
                    let kind = kind.name();
                    let why = format!("string, number, boolean, or nil expected, got {kind}");
                    return bad(stack, at - 1, &why);
                }
            },
        }
    }
    write(level, &message)?;
    super::NONE
}

/// Whether lines of a level are written here.
fn is_logged(level: Level) -> Result<bool, crate::luajit::Failure> {
    scope::with_request(|request| request.client.debug || request.logger().enabled(level)).or_else(
        |_| match scope::serves_session() {
            true => Ok(true),
            false => scope::with(|scope| scope.log.enabled(level)),
        },
    )
}

pub(super) fn write(level: Level, message: &[u8]) -> Result<(), crate::luajit::Failure> {
    let text = message.as_bstr();
    let line = format_args!("[lua] {text}");
    let written = scope::with_request(|request| request.log(level, line))
        .or_else(|_| scope::with_session(|session| session.log(level, line)));
    if written.is_err() {
        scope::with(|scope| {
            scope.log.plain(
                level,
                format_args!("[lua] {text}, context: {}", scope.kind.name()),
            );
        })?;
    }
    Ok(())
}

fn raw_log(stack: &Stack) -> Called {
    if stack.kind(1) != Kind::Number {
        return fail("bad argument #1 to 'raw_log' (must be a number)");
    }
    let message = only_text(stack, 2, "bad argument #2 to 'raw_log' (must be a string)")?.to_vec();
    let n = number(stack, 1)?;
    let Some(level) = level(if n.is_nan() { -1 } else { as_int(n) }) else {
        return fail("bad log level");
    };
    write(level, &message)?;
    super::NONE
}

fn log_level(stack: &Stack) -> Called {
    let levels = [
        Level::Emerg,
        Level::Alert,
        Level::Crit,
        Level::Error,
        Level::Warn,
        Level::Notice,
        Level::Info,
        Level::Debug,
    ];
    let enabled = scope::with(|scope| {
        levels
            .iter()
            .filter(|level| scope.log.enabled(**level))
            .count()
    })?;
    stack.push_number(enabled as f64);
    super::ONE
}

fn get_phase(stack: &Stack) -> Called {
    let phase = scope::with(|scope| scope.kind.phase())?;
    stack.push_bytes(phase);
    super::ONE
}

fn inner_gave_way(stack: &Stack) -> Called {
    stack.push_boolean(watchdog::inner_gave_way());
    super::ONE
}

fn time(stack: &Stack) -> Called {
    stack.push_number((rt::wall_millis() / 1000) as f64);
    super::ONE
}

fn now(stack: &Stack) -> Called {
    stack.push_number(rt::wall_millis() as f64 / 1000.0);
    super::ONE
}

fn update_time(_: &Stack) -> Called {
    rt::refresh_now();
    super::NONE
}

fn seconds() -> i64 {
    (rt::wall_millis() / 1000) as i64
}

/// The parts of a time as `YYYY-MM-DD HH:MM:SS`.
fn written(zone: &jiff::tz::TimeZone) -> String {
    let time = jiff::Timestamp::from_second(seconds()).unwrap_or_default();
    time.to_zoned(zone.clone())
        .strftime("%Y-%m-%d %H:%M:%S")
        .to_string()
}

fn today(stack: &Stack) -> Called {
    let text = written(&jiff::tz::TimeZone::system());
    stack.push_bytes(&text[..10]);
    super::ONE
}

fn localtime(stack: &Stack) -> Called {
    stack.push_bytes(written(&jiff::tz::TimeZone::system()));
    super::ONE
}

fn utctime(stack: &Stack) -> Called {
    stack.push_bytes(written(&jiff::tz::TimeZone::UTC));
    super::ONE
}

fn only_number(stack: &Stack) -> Result<i64, crate::luajit::Failure> {
    match stack.kind(1) {
        Kind::Number => Ok(number(stack, 1)? as i64),
        _ => fail("number argument only"),
    }
}

fn cookie_time(stack: &Stack) -> Called {
    let mut out = Vec::new();
    proto::date::write_cookie(only_number(stack)?.max(0), &mut out);
    stack.push_bytes(&out);
    super::ONE
}

fn http_time(stack: &Stack) -> Called {
    let mut out = Vec::new();
    proto::date::write_http(only_number(stack)?.max(0), &mut out);
    stack.push_bytes(&out);
    super::ONE
}

fn parse_http_time(stack: &Stack) -> Called {
    match proto::date::parse(only_text(stack, 1, "string argument only")?) {
        Some(time) => stack.push_number(time as f64),
        None => stack.push_nil(),
    }
    super::ONE
}

/// Seconds as a duration; none for what is no time.
pub(super) fn duration(seconds: f64) -> Option<std::time::Duration> {
    std::time::Duration::try_from_secs_f64(seconds).ok()
}

fn sleep(stack: &Stack) -> Called {
    let given = stack.top();
    if given != 1 {
        return fail(format!("attempt to pass {given} arguments, but accepted 1"));
    }
    let seconds = number(stack, 1)?;
    let millis = seconds * 1000.0;
    let Some(time) = duration(if millis.is_nan() { 0.0 } else { seconds }) else {
        return fail(format!("invalid sleep duration \"{}\"", millis as i64));
    };
    super::wait(Operation::task(async move {
        if time.is_zero() {
            rt::yield_now().await;
        } else {
            rt::sleep(time).await;
        }
        Vec::new()
    }))
}

fn on_abort(stack: &Stack) -> Called {
    if stack.kind(1) != Kind::Function {
        return bad(stack, 1, "Lua function expected");
    }
    let checks = match scope::serves_session() {
        true => scope::with_session(|session| session.conf::<StreamCode>().check_client_abort)?,
        false => scope::with_request(|request| request.conf::<Code>().check_client_abort)?,
    };
    if !checks {
        let message = "lua_check_client_abort is off";
        return super::output::answer(stack, Value::failure(message));
    }
    scope::with(|scope| {
        if !scope.kind.speaks() {
            return fail(scope.kind.refusal());
        }
        if scope.on_abort.borrow().is_some() {
            return super::output::answer(stack, Value::failure("duplicate call"));
        }
        stack.push_copy(1);
        let function = Rc::new(Ref::take(&scope.vm.state, stack));
        *scope.on_abort.borrow_mut() = Some(function);
        stack.push_number(1.0);
        super::ONE
    })?
}

/// `ngx.ctx` of a request; `None` where it was taken away.
struct Context(Option<Rc<Ref>>);

fn get_ctx(stack: &Stack) -> Called {
    // A table for the case that there is none yet.
    let given = stack.kind(1) == Kind::Table;
    let make = |scope: &Rc<scope::Scope>| {
        match given {
            true => stack.push_copy(1),
            false => stack.push_table(0, 4),
        }
        stack.push_copy(-1);
        Rc::new(Ref::take(&scope.vm.state, stack))
    };
    scope::with(|scope| {
        if scope.kind.is_of_handshake() {
            return of_handshake(stack, scope, make);
        }
        let of_request = scope::with_request(|request| match request.state::<Context>() {
            Some(Context(Some(context))) => context.push(stack),
            _ => {
                let number = request.client.number;
                request.set_state(Context(Some(make(scope))));
                inherit(stack, scope, number);
            }
        });
        let of_request = of_request.or_else(|_| {
            scope::with_session(|session| match session.state::<Context>() {
                Some(Context(Some(context))) => context.push(stack),
                _ => session.set_state(Context(Some(make(scope)))),
            })
        });
        if of_request.is_err() {
            let known = scope.context.borrow().clone();
            match known {
                Some(context) => context.push(stack),
                None => *scope.context.borrow_mut() = Some(make(scope)),
            }
        }
        super::ONE
    })?
}

/// The context of a handshake. The requests of its connection see what stands in it, and keep what they write to
/// themselves.
fn of_handshake(
    stack: &Stack,
    scope: &Rc<scope::Scope>,
    make: impl FnOnce(&Rc<scope::Scope>) -> Rc<Ref>,
) -> Called {
    let number = scope::with_request(|request| request.client.number)
        .or_else(|_| scope::with_session(|session| session.client.number))?;
    let mut handshakes = scope.vm.handshakes.borrow_mut();
    if let Some(known) = handshakes.get(&number) {
        known.push(stack);
        return super::ONE;
    }
    let made = make(scope);
    stack.push_copy(-1);
    stack.set(-2, "__index");
    handshakes.insert(number, made);
    super::ONE
}

/// Lets the new context on top see that of the connection's handshake.
fn inherit(stack: &Stack, scope: &scope::Scope, number: u64) {
    let mut handshakes = scope.vm.handshakes.borrow_mut();
    if handshakes.is_empty() {
        return;
    }
    if let Some(known) = handshakes.get(&number) {
        known.push(stack);
        stack.set_metatable(-2);
    }
}

fn set_ctx(stack: &Stack) -> Called {
    if stack.kind(1) != Kind::Table {
        let kind = stack.kind(1).name();
        return fail(format!("ctx should be a table while getting a {kind}"));
    }
    scope::with(|scope| {
        stack.push_copy(1);
        let context = Rc::new(Ref::take(&scope.vm.state, stack));
        let set =
            scope::with_request(|request| request.set_state(Context(Some(Rc::clone(&context)))))
                .or_else(|_| {
                    scope::with_session(|session| {
                        session.set_state(Context(Some(Rc::clone(&context))))
                    })
                });
        if set.is_err() {
            *scope.context.borrow_mut() = Some(context);
        }
        super::NONE
    })?
}

/// Gives a request this table as its `ngx.ctx`.
pub(super) fn give_context(request: &mut http::Request, context: Rc<Ref>) {
    request.set_state(Context(Some(context)));
}

/// Takes a request's `ngx.ctx` away: what comes is a new beginning.
pub(crate) fn forget_context(request: &mut http::Request) {
    if let Some(context) = request.state::<Context>() {
        context.0 = None;
    }
}

/// Whether the script works for a request, or a session.
fn has_request(stack: &Stack) -> Called {
    stack.push_boolean(scope::serves_session() || scope::with_request(|_| ()).is_ok());
    super::ONE
}

fn is_subrequest(stack: &Stack) -> Called {
    let is = scope::with_request(|request| request.is_subrequest())?;
    stack.push_boolean(is);
    super::ONE
}

fn get_arg(stack: &Stack) -> Called {
    let n = stack.number(1).unwrap_or(0.0);
    // Only whole numbers are places.
    let n = if n.fract() == 0.0 { n as usize } else { 0 };
    scope::with(|scope| match scope.kind {
        Script::BodyFilter => {
            match (&*scope.piece.borrow(), n) {
                (Some((piece, _)), 1) => stack.push_bytes(piece),
                (Some((_, last)), 2) => stack.push_boolean(*last),
                _ => stack.push_nil(),
            }
            super::ONE
        }
        Script::Set => {
            match scope.arguments.borrow().get(n.wrapping_sub(1)) {
                Some(value) if !value.is_empty() => stack.push_bytes(value),
                _ => stack.push_nil(),
            }
            super::ONE
        }
        _ => fail("API disabled in the current context"),
    })?
}

fn set_arg(stack: &Stack) -> Called {
    let kind = scope::with(|scope| scope.kind)?;
    if kind != Script::BodyFilter {
        return fail(kind.refusal());
    }
    let n = number(stack, 1)? as usize;
    let mut text = Vec::new();
    if n == 1 && !stack.is_nil(2) {
        super::output::append(stack, 2, &mut text)?;
    }
    let last = stack.boolean(2);
    scope::with(|scope| match (&mut *scope.piece.borrow_mut(), n) {
        (Some((piece, _)), 1) => {
            *piece = text;
            super::NONE
        }
        (Some((_, end)), 2) => {
            *end = last;
            super::NONE
        }
        _ => fail("ngx.arg can be set in body_filter_by_lua* only, at 1 and 2"),
    })?
}

fn pid(stack: &Stack) -> Called {
    stack.push_number(f64::from(std::process::id()));
    super::ONE
}

fn pids(stack: &Stack) -> Called {
    stack.push_table(1, 0);
    stack.push_number(f64::from(std::process::id()));
    stack.set_element(-2, 1);
    super::ONE
}

fn parent_pid(stack: &Stack) -> Called {
    stack.push_number(f64::from(std::os::unix::process::parent_id()));
    super::ONE
}

fn worker_id(stack: &Stack) -> Called {
    let index = scope::with(|scope| scope.vm.index)?;
    stack.push_number(index as f64);
    super::ONE
}

fn worker_count(stack: &Stack) -> Called {
    let count = http::current::engine().map_or(1, |engine| engine.main.worker_processes);
    stack.push_number(count as f64);
    super::ONE
}

fn exiting(stack: &Stack) -> Called {
    let ended = scope::with(|scope| scope.vm.ended.get())?;
    stack.push_boolean(ended);
    super::ONE
}

fn prefix(stack: &Stack) -> Called {
    let prefix = scope::with(|scope| scope.vm.settings.prefix.clone())?;
    let mut text = prefix.into_os_string().into_encoded_bytes();
    if !text.ends_with(b"/") {
        text.push(b'/');
    }
    stack.push_bytes(&text);
    super::ONE
}

fn configure(stack: &Stack) -> Called {
    stack.push_bytes("");
    super::ONE
}
