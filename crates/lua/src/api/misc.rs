//! `ngx.log`, `ngx.get_phase`, the time functions, `ngx.sleep`, `ngx.on_abort`, `ngx.ctx`,
//! `ngx.arg`, `ngx.worker` and `ngx.config`.
//!
//! The time is that at which the loop's current iteration began, as nginx's cached time is;
//! `ngx.update_time` reads the clock.

use std::rc::Rc;

use bstr::ByteSlice;
use host::error_log::LogLevel;

use super::arguments::{as_int, bad, number, only_text};
use super::{CallResult, NativeTable};
use crate::chunk::ScriptKind as Script;
use crate::luajit::stack::LuaType;
use crate::luajit::watchdog;
use crate::luajit::{LuaStack, LuaValue, RegistryRef, fail};
use crate::operation::YieldOperation;
use crate::scope;
use crate::scripts::{HttpScripts, StreamScripts};

pub(super) const FUNCTIONS: NativeTable = &[
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

pub(super) const CORE: NativeTable = &[
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

pub(super) const WORKER: NativeTable = &[
    ("pid", pid),
    ("pids", pids),
    ("id", worker_id),
    ("count", worker_count),
    ("exiting", exiting),
];

pub(super) const CONFIG: NativeTable = &[("prefix", prefix), ("nginx_configure", configure)];

/// nginx's log levels by number. 0 is `ngx.STDERR`, which is logged as an emergency.
fn level(n: i32) -> Option<LogLevel> {
    Some(match n {
        0 | 1 => LogLevel::Emerg,
        2 => LogLevel::Alert,
        3 => LogLevel::Crit,
        4 => LogLevel::Error,
        5 => LogLevel::Warn,
        6 => LogLevel::Notice,
        7 => LogLevel::Info,
        8 => LogLevel::Debug,
        _ => return None,
    })
}

/// `ngx.log(level, ...)`.
fn log(stack: &LuaStack) -> CallResult {
    let n = as_int(number(stack, 1)?);
    let Some(level) = level(n) else {
        return bad(stack, 1, &format!("bad log level: {n}"));
    };
    // Before the arguments are converted: a debug line costs next to nothing when it is not
    // written.
    if !is_logged(level)? {
        return super::NONE;
    }
    // The line starts with the place of the call, as in lua-nginx-module.
    let mut message = stack.position(1);
    for at in 2..=stack.top() {
        match stack.type_at(at) {
            LuaType::Table => match stack.to_text(at) {
                Some(text) => message.extend_from_slice(&text),
                // lua-nginx-module counts arguments without the level.
                None => {
                    let why = "expected table to have __tostring metamethod";
                    return bad(stack, at - 1, why);
                }
            },
            kind => match stack.text(at) {
                Some(text) => message.extend_from_slice(&text),
                None if kind == LuaType::LightUserdata => message.extend_from_slice(b"null"),
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

/// Whether lines of a level are logged: by the request's log, or because the client is listed in
/// `debug_connection`.
fn is_logged(level: LogLevel) -> Result<bool, crate::luajit::LuaError> {
    scope::with_request(|request| request.client.debug || request.logger().enabled(level)).or_else(
        |_| match scope::serves_session() {
            // The log of the session decides when the line is written.
            true => Ok(true),
            false => scope::with(|scope| scope.log.enabled(level)),
        },
    )
}

/// Writes a line for the request, the session or, in a timer, with the script's phase as context.
pub(super) fn write(level: LogLevel, message: &[u8]) -> Result<(), crate::luajit::LuaError> {
    let text = message.as_bstr();
    let line = format_args!("[lua] {text}");
    let written = scope::with_request(|request| request.log(level, line))
        .or_else(|_| scope::with_session(|session| session.log(level, line)));
    if written.is_err() {
        scope::with(|scope| {
            scope.log.log_plain(
                level,
                format_args!("[lua] {text}, context: {}", scope.kind.name()),
            );
        })?;
    }
    Ok(())
}

/// `ngx.errlog.raw_log(level, message)`: without the place of the call.
fn raw_log(stack: &LuaStack) -> CallResult {
    if stack.type_at(1) != LuaType::Number {
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

/// `ngx.errlog.get_sys_filter_level()`: the number of the most verbose level that is logged.
fn log_level(stack: &LuaStack) -> CallResult {
    let levels = [
        LogLevel::Emerg,
        LogLevel::Alert,
        LogLevel::Crit,
        LogLevel::Error,
        LogLevel::Warn,
        LogLevel::Notice,
        LogLevel::Info,
        LogLevel::Debug,
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

/// `ngx.get_phase()`.
fn get_phase(stack: &LuaStack) -> CallResult {
    let phase = scope::with(|scope| scope.kind.phase())?;
    stack.push_bytes(phase);
    super::ONE
}

/// For `prelude.lua`: whether the coroutine that has just yielded was preempted.
fn inner_gave_way(stack: &LuaStack) -> CallResult {
    stack.push_boolean(watchdog::inner_gave_way());
    super::ONE
}

/// `ngx.time()`: seconds, from the loop's cached clock.
fn time(stack: &LuaStack) -> CallResult {
    stack.push_number((rt::wall_millis() / 1000) as f64);
    super::ONE
}

/// `ngx.now()`: seconds with milliseconds, from the loop's cached clock.
fn now(stack: &LuaStack) -> CallResult {
    stack.push_number(rt::wall_millis() as f64 / 1000.0);
    super::ONE
}

/// `ngx.update_time()`: reads the clock, which is otherwise read once per iteration of the loop.
fn update_time(_: &LuaStack) -> CallResult {
    rt::refresh_now();
    super::NONE
}

/// The cached clock of the loop, in seconds.
fn seconds() -> i64 {
    (rt::wall_millis() / 1000) as i64
}

/// The current time as `YYYY-MM-DD HH:MM:SS`.
fn written(zone: &jiff::tz::TimeZone) -> String {
    let time = jiff::Timestamp::from_second(seconds()).unwrap_or_default();
    time.to_zoned(zone.clone())
        .strftime("%Y-%m-%d %H:%M:%S")
        .to_string()
}

/// `ngx.today()`, local time.
fn today(stack: &LuaStack) -> CallResult {
    let text = written(&jiff::tz::TimeZone::system());
    stack.push_bytes(&text[..10]);
    super::ONE
}

/// `ngx.localtime()`.
fn localtime(stack: &LuaStack) -> CallResult {
    stack.push_bytes(written(&jiff::tz::TimeZone::system()));
    super::ONE
}

/// `ngx.utctime()`.
fn utctime(stack: &LuaStack) -> CallResult {
    stack.push_bytes(written(&jiff::tz::TimeZone::UTC));
    super::ONE
}

/// A number in the first argument. Text that reads as one is refused, as by lua-nginx-module.
fn only_number(stack: &LuaStack) -> Result<i64, crate::luajit::LuaError> {
    match stack.type_at(1) {
        LuaType::Number => Ok(number(stack, 1)? as i64),
        _ => fail("number argument only"),
    }
}

/// `ngx.cookie_time(seconds)`.
fn cookie_time(stack: &LuaStack) -> CallResult {
    let mut out = Vec::new();
    proto::date::write_cookie(only_number(stack)?.max(0), &mut out);
    stack.push_bytes(&out);
    super::ONE
}

/// `ngx.http_time(seconds)`.
fn http_time(stack: &LuaStack) -> CallResult {
    let mut out = Vec::new();
    proto::date::write_http(only_number(stack)?.max(0), &mut out);
    stack.push_bytes(&out);
    super::ONE
}

/// `ngx.parse_http_time(text)`; nil if it is not a date.
fn parse_http_time(stack: &LuaStack) -> CallResult {
    match proto::date::parse(only_text(stack, 1, "string argument only")?) {
        Some(time) => stack.push_number(time as f64),
        None => stack.push_nil(),
    }
    super::ONE
}

/// Seconds as a duration; `None` for negative ones and NaN.
pub(super) fn duration(seconds: f64) -> Option<std::time::Duration> {
    std::time::Duration::try_from_secs_f64(seconds).ok()
}

/// `ngx.sleep(seconds)`.
fn sleep(stack: &LuaStack) -> CallResult {
    let given = stack.top();
    if given != 1 {
        return fail(format!("attempt to pass {given} arguments, but accepted 1"));
    }
    let seconds = number(stack, 1)?;
    let millis = seconds * 1000.0;
    let Some(time) = duration(if millis.is_nan() { 0.0 } else { seconds }) else {
        return fail(format!("invalid sleep duration \"{}\"", millis as i64));
    };
    super::wait(YieldOperation::task(async move {
        // Zero lets everything else on the loop run once.
        if time.is_zero() {
            rt::yield_now().await;
        } else {
            rt::sleep(time).await;
        }
        Vec::new()
    }))
}

/// `ngx.on_abort(function)`: runs the function in a light thread when the client disconnects.
fn on_abort(stack: &LuaStack) -> CallResult {
    if scope::with(|scope| scope.on_abort.borrow().is_some())? {
        // One handler per request, as documented.
        return super::called::answer(stack, LuaValue::failure("duplicate call"));
    }
    let checks = match scope::serves_session() {
        true => scope::with_session(|session| session.conf::<StreamScripts>().check_client_abort)?,
        false => scope::with_request(|request| request.conf::<HttpScripts>().check_client_abort)?,
    };
    if !checks {
        let message = "lua_check_client_abort is off";
        return super::called::answer(stack, LuaValue::failure(message));
    }
    if stack.type_at(1) != LuaType::Function {
        return bad(stack, 1, "Lua function expected");
    }
    scope::with(|scope| {
        if !scope.kind.may_send_output() {
            return fail(scope.kind.refusal());
        }
        stack.push_copy(1);
        let function = Rc::new(RegistryRef::take(&scope.vm.state, stack));
        *scope.on_abort.borrow_mut() = Some(function);
        stack.push_number(1.0);
        super::ONE
    })?
}

/// `ngx.ctx` of a request or session; `None` after an internal redirect, which starts with a new
/// one.
struct NgxCtx(Option<Rc<RegistryRef>>);

/// Returns `ngx.ctx`, and creates it if there is none. `prelude.lua` passes the table to be used
/// then.
fn get_ctx(stack: &LuaStack) -> CallResult {
    // The table to be used if there is none yet.
    let given = stack.type_at(1) == LuaType::Table;
    let make = |scope: &Rc<scope::RunScope>| {
        match given {
            true => stack.push_copy(1),
            false => stack.push_table(0, 4),
        }
        // One for the registry, one as the result.
        stack.push_copy(-1);
        Rc::new(RegistryRef::take(&scope.vm.state, stack))
    };
    scope::with(|scope| {
        if scope.kind.is_handshake() {
            return handshake_ctx(stack, scope, make);
        }
        let of_request = scope::with_request(|request| match request.state::<NgxCtx>() {
            Some(NgxCtx(Some(context))) => context.push(stack),
            _ => {
                let number = request.client.number;
                request.set_state(NgxCtx(Some(make(scope))));
                inherit_handshake_ctx(stack, scope, number);
            }
        });
        let of_request = of_request.or_else(|_| {
            scope::with_session(|session| match session.state::<NgxCtx>() {
                Some(NgxCtx(Some(context))) => context.push(stack),
                _ => {
                    let number = session.client.number;
                    session.set_state(NgxCtx(Some(make(scope))));
                    inherit_handshake_ctx(stack, scope, number);
                }
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

/// `ngx.ctx` of a TLS handshake. The requests or the session of its connection see its fields, through `__index`,
/// and keep what they write to themselves.
fn handshake_ctx(
    stack: &LuaStack,
    scope: &Rc<scope::RunScope>,
    make: impl FnOnce(&Rc<scope::RunScope>) -> Rc<RegistryRef>,
) -> CallResult {
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

/// Makes the handshake's context the metatable of the new context on top.
fn inherit_handshake_ctx(stack: &LuaStack, scope: &scope::RunScope, number: u64) {
    let mut handshakes = scope.vm.handshakes.borrow_mut();
    // Without handshake scripts a new context costs no search.
    if handshakes.is_empty() {
        return;
    }
    if let Some(known) = handshakes.get(&number) {
        known.push(stack);
        stack.set_metatable(-2);
    }
}

/// `ngx.ctx = table`.
fn set_ctx(stack: &LuaStack) -> CallResult {
    if stack.type_at(1) != LuaType::Table {
        let kind = stack.type_at(1).name();
        return fail(format!("ctx should be a table while getting a {kind}"));
    }
    scope::with(|scope| {
        stack.push_copy(1);
        let context = Rc::new(RegistryRef::take(&scope.vm.state, stack));
        let set =
            scope::with_request(|request| request.set_state(NgxCtx(Some(Rc::clone(&context)))))
                .or_else(|_| {
                    scope::with_session(|session| {
                        session.set_state(NgxCtx(Some(Rc::clone(&context))))
                    })
                });
        // A timer has neither: the context lives in its run.
        if set.is_err() {
            *scope.context.borrow_mut() = Some(context);
        }
        super::NONE
    })?
}

/// Sets the `ngx.ctx` of a request.
pub(super) fn set_request_ctx(request: &mut http::Request, context: Rc<RegistryRef>) {
    request.set_state(NgxCtx(Some(context)));
}

/// Removes the `ngx.ctx` of a request: the next use creates a new one.
pub(crate) fn clear_request_ctx(request: &mut http::Request) {
    if let Some(context) = request.state::<NgxCtx>() {
        context.0 = None;
    }
}

/// For `prelude.lua`: whether the script serves a request or a session.
fn has_request(stack: &LuaStack) -> CallResult {
    stack.push_boolean(scope::serves_session() || scope::with_request(|_| ()).is_ok());
    super::ONE
}

/// `ngx.is_subrequest`.
fn is_subrequest(stack: &LuaStack) -> CallResult {
    let is = scope::with_request(|request| request.is_subrequest())?;
    stack.push_boolean(is);
    super::ONE
}

/// `ngx.arg[n]`: the chunk and the last-chunk flag in a body filter, the arguments of `set_by_lua`.
fn get_arg(stack: &LuaStack) -> CallResult {
    let n = stack.number(1).unwrap_or(0.0);
    // A fraction is no index.
    let n = if n.fract() == 0.0 { n as usize } else { 0 };
    scope::with(|scope| match scope.kind {
        Script::BodyFilter => {
            match (&*scope.body_chunk.borrow(), n) {
                (Some((piece, _)), 1) => stack.push_bytes(piece),
                (Some((_, last)), 2) => stack.push_boolean(*last),
                _ => stack.push_nil(),
            }
            super::ONE
        }
        Script::Set => {
            match scope.set_arguments.borrow().get(n.wrapping_sub(1)) {
                Some(value) if !value.is_empty() => stack.push_bytes(value),
                _ => stack.push_nil(),
            }
            super::ONE
        }
        _ => fail("API disabled in the current context"),
    })?
}

/// `ngx.arg[n] = value`, in a body filter. Setting the first to nil drops the chunk.
fn set_arg(stack: &LuaStack) -> CallResult {
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
    scope::with(|scope| match (&mut *scope.body_chunk.borrow_mut(), n) {
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

/// `ngx.worker.pid()`.
fn pid(stack: &LuaStack) -> CallResult {
    stack.push_number(f64::from(std::process::id()));
    super::ONE
}

/// `ngx.worker.pids()`: all workers are loops of this one process.
fn pids(stack: &LuaStack) -> CallResult {
    stack.push_table(1, 0);
    stack.push_number(f64::from(std::process::id()));
    stack.set_element(-2, 1);
    super::ONE
}

/// `ngx.process.get_master_pid()`.
fn parent_pid(stack: &LuaStack) -> CallResult {
    stack.push_number(f64::from(std::os::unix::process::parent_id()));
    super::ONE
}

/// `ngx.worker.id()`: the number of the loop.
fn worker_id(stack: &LuaStack) -> CallResult {
    let index = scope::with(|scope| scope.vm.index)?;
    stack.push_number(index as f64);
    super::ONE
}

/// `ngx.worker.count()`: the number of loops in all worker groups.
fn worker_count(stack: &LuaStack) -> CallResult {
    let count = http::current_loop::http_loop().map_or(1, |engine| engine.zones.all_loops());
    stack.push_number(count as f64);
    super::ONE
}

/// `ngx.worker.exiting()`.
fn exiting(stack: &LuaStack) -> CallResult {
    let ended = scope::with(|scope| scope.vm.is_shut_down.get())?;
    stack.push_boolean(ended);
    super::ONE
}

/// `ngx.config.prefix()`, with a slash at the end as in nginx.
fn prefix(stack: &LuaStack) -> CallResult {
    let prefix = scope::with(|scope| scope.vm.settings.prefix.clone())?;
    let mut text = prefix.into_os_string().into_encoded_bytes();
    if !text.ends_with(b"/") {
        text.push(b'/');
    }
    stack.push_bytes(&text);
    super::ONE
}

/// `ngx.config.nginx_configure()`: there are no such arguments.
fn configure(stack: &LuaStack) -> CallResult {
    stack.push_bytes("");
    super::ONE
}
