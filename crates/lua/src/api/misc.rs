//! Log, time, phase, context, worker, configuration.

use std::rc::Rc;

use bstr::ByteSlice;
use rt::error_log::Level;

use super::arguments::{bytes, number};
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
];

pub(super) const WORKER: Functions = &[
    ("pid", pid),
    ("pids", pids),
    ("id", worker_id),
    ("count", worker_count),
    ("exiting", exiting),
];

pub(super) const CONFIG: Functions = &[("prefix", prefix), ("nginx_configure", configure)];

fn level(n: f64) -> Option<Level> {
    Some(match n as i64 {
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
    let Some(level) = level(number(stack, 1)?) else {
        return fail(format!("bad log level: {}", number(stack, 1)?));
    };
    let mut message = Vec::new();
    let place = stack.place(1);
    message.extend_from_slice(&place);
    for at in 2..=stack.top() {
        match stack.kind(at) {
            Kind::Table | Kind::Userdata | Kind::Cdata => match stack.to_text(at) {
                Some(text) => message.extend_from_slice(&text),
                None => {
                    return fail(format!(
                        "bad argument #{at} (expected table to have __tostring metamethod)"
                    ));
                }
            },
            kind => match stack.text(at) {
                Some(text) => message.extend_from_slice(&text),
                None => {
                    return fail(format!(
                        "bad argument #{at} to 'log' (string, number, boolean, or nil expected, got {})",
                        kind.name()
                    ));
                }
            },
        }
    }
    write(level, &message)?;
    super::NONE
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
    let Some(level) = level(number(stack, 1)?) else {
        return fail("bad log level");
    };
    let message = bytes(stack, 2)?.to_vec();
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

fn cookie_time(stack: &Stack) -> Called {
    let mut out = Vec::new();
    proto::date::write_cookie(number(stack, 1)? as i64, &mut out);
    stack.push_bytes(&out);
    super::ONE
}

fn http_time(stack: &Stack) -> Called {
    let mut out = Vec::new();
    proto::date::write_http(number(stack, 1)? as i64, &mut out);
    stack.push_bytes(&out);
    super::ONE
}

fn parse_http_time(stack: &Stack) -> Called {
    match proto::date::parse(bytes(stack, 1)?) {
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
    let seconds = number(stack, 1)?;
    let Some(time) = duration(seconds) else {
        return fail(format!("invalid sleep duration \"{seconds}\""));
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
        return fail("bad argument #1 to 'on_abort' (function expected)");
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
            return fail(format!(
                "API disabled in the context of {}*",
                scope.kind.name()
            ));
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

/// `ngx.ctx` of a request.
struct Context(Rc<Ref>);

fn get_ctx(stack: &Stack) -> Called {
    let make = |scope: &Rc<scope::Scope>| {
        stack.push_table(0, 4);
        stack.push_copy(-1);
        Rc::new(Ref::take(&scope.vm.state, stack))
    };
    scope::with(|scope| {
        let of_request = scope::with_request(|request| match request.state::<Context>() {
            Some(context) => context.0.push(stack),
            None => request.set_state(Context(make(scope))),
        });
        let of_request = of_request.or_else(|_| {
            scope::with_session(|session| match session.state::<Context>() {
                Some(context) => context.0.push(stack),
                None => session.set_state(Context(make(scope))),
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

fn set_ctx(stack: &Stack) -> Called {
    if stack.kind(1) != Kind::Table {
        return fail("ctx should be a table while getting a value of another kind");
    }
    scope::with(|scope| {
        stack.push_copy(1);
        let context = Rc::new(Ref::take(&scope.vm.state, stack));
        let set = scope::with_request(|request| request.set_state(Context(Rc::clone(&context))))
            .or_else(|_| {
                scope::with_session(|session| session.set_state(Context(Rc::clone(&context))))
            });
        if set.is_err() {
            *scope.context.borrow_mut() = Some(context);
        }
        super::NONE
    })?
}

/// Gives a request this table as its `ngx.ctx`.
pub(super) fn give_context(request: &mut http::Request, context: Rc<Ref>) {
    request.set_state(Context(context));
}

fn is_subrequest(stack: &Stack) -> Called {
    let is = scope::with_request(|request| request.is_subrequest())?;
    stack.push_boolean(is);
    super::ONE
}

fn get_arg(stack: &Stack) -> Called {
    let n = number(stack, 1)? as usize;
    scope::with(|scope| match scope.kind {
        Script::BodyFilter => match (&*scope.piece.borrow(), n) {
            (Some((piece, _)), 1) => stack.push_bytes(piece),
            (Some((_, last)), 2) => stack.push_boolean(*last),
            _ => stack.push_nil(),
        },
        _ => match scope.arguments.borrow().get(n.wrapping_sub(1)) {
            Some(value) => stack.push_bytes(value),
            None => stack.push_nil(),
        },
    })?;
    super::ONE
}

fn set_arg(stack: &Stack) -> Called {
    let n = number(stack, 1)? as usize;
    let mut text = Vec::new();
    if n == 1 && !stack.is_nil(2) {
        super::output::append(stack, 2, &mut text, 0)?;
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
