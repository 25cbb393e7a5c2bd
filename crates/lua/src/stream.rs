//! Lua in stream: its directives, and the scripts of its phases.
//!
//! A script runs as in http, with a session in a request's place. What it says is sent when it waits or ends: a session has
//! no head that could still change.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::stream::module::{Answer, Handshake, status};
use ::stream::{Module, Outcome, Phase, Session, Step};
use bstr::ByteSlice;
use conf::contexts::STREAM_AND_SERVER;
use conf::{Contexts, Diagnostic, Directive, Line, STREAM_SERVER, Setter, Table};

use crate::chunk::{Chunk, Kind};
use crate::directives::{CERTIFICATE, CLIENT_HELLO, LOG, block, ignored, kind_of, word};
use crate::handshake;
use crate::home::Engine;
use crate::luajit::Value;
use crate::run::{End, Event, Run};
use crate::scope::Scope;
use crate::sockets::{self, Sockets};
use crate::{directives, settings, vm, worker};

/// The modules of stream, each with the name of the module after which it runs.
pub static STREAM_MODULES: &[(&str, &Module)] = &[
    ("ssl_preread", &MODULE),
    ("lua", &SOCKETS),
    ("lua_sockets", &TLS),
];

static MODULE: Module = Module {
    name: "lua",
    doc: "Lua code in the phases of a session.",
    main: &settings::STREAM_MAIN,
    server: &ROWS,
    upstream: &directives::STREAM_UPSTREAM_ROWS,
    blocks: &[&directives::STREAM_UPSTREAM_ROWS],
    phases: &[(Phase::Preread, preread), (Phase::Log, log)],
    enabled: |server| {
        let code = server.confs.get::<StreamCode>();
        code.preread.is_some() || code.log.is_some()
    },
    handshake: Some(Handshake {
        when: |confs| {
            let code = confs.get::<StreamCode>();
            code.client_hello.is_some() || code.certificate.is_some()
        },
        handler: handshake::of_stream,
    }),
    trial: |site| vm::trial(site.main_confs.get(), Engine::Stream),
    commit: |site, zones| vm::Vm::trial(site.main_confs.get(), Engine::Stream, zones),
    start: worker::start_stream,
    stop: worker::stop_stream,
    answer: Some(Answer {
        when: |server| server.confs.get::<StreamCode>().content.is_some(),
        handler: content,
    }),
    ..Module::EMPTY
};

static SOCKETS: Module = Module {
    name: "lua_sockets",
    doc: "Settings of Lua cosockets.",
    server: &sockets::STREAM,
    enabled: |_| false,
    ..Module::EMPTY
};

static TLS: Module = Module {
    name: "lua_tls",
    doc: "TLS settings of Lua cosockets.",
    server: &crate::tls::STREAM,
    enabled: |_| false,
    ..Module::EMPTY
};

/// What belongs to a server.
#[derive(Clone, Default)]
pub(crate) struct StreamCode {
    pub(crate) preread: Option<Arc<Chunk>>,
    pub(crate) content: Option<Arc<Chunk>>,
    pub(crate) log: Option<Arc<Chunk>>,
    pub(crate) client_hello: Option<Arc<Chunk>>,
    pub(crate) certificate: Option<Arc<Chunk>>,
    pub(crate) code_cache: bool,
    pub(crate) check_client_abort: bool,
}

const PREREAD: &str = "Code that runs at the end of the preread phase, before the session is handled. Client data that \
                       it does not consume is passed on.";
const CONTENT: &str = "Code that handles a session.";

static ROWS: Table<StreamCode> = Table::<StreamCode>::new(&[
    block("preread_by_lua_block", STREAM_AND_SERVER, PREREAD, code),
    word("preread_by_lua_file", "path", STREAM_AND_SERVER, code),
    block("content_by_lua_block", STREAM_SERVER, CONTENT, code),
    word("content_by_lua_file", "path", STREAM_SERVER, code),
    block("log_by_lua_block", STREAM_AND_SERVER, LOG, code),
    word("log_by_lua_file", "path", STREAM_AND_SERVER, code),
    block(
        "ssl_client_hello_by_lua_block",
        STREAM_AND_SERVER,
        CLIENT_HELLO,
        code,
    ),
    word(
        "ssl_client_hello_by_lua_file",
        "path",
        STREAM_AND_SERVER,
        code,
    ),
    block(
        "ssl_certificate_by_lua_block",
        STREAM_AND_SERVER,
        CERTIFICATE,
        code,
    ),
    word(
        "ssl_certificate_by_lua_file",
        "path",
        STREAM_AND_SERVER,
        code,
    ),
    flag(
        "lua_code_cache",
        "on",
        STREAM_AND_SERVER,
        "`off` gives each session a Lua VM of its own and reads files anew: for development.",
        |c| &mut c.code_cache,
    ),
    flag(
        "lua_check_client_abort",
        "off",
        STREAM_AND_SERVER,
        "Whether the content script ends when its client disconnects.",
        |c| &mut c.check_client_abort,
    ),
    ignored(
        "preread_by_lua_no_postpone",
        STREAM_AND_SERVER,
        "Preread scripts always run at the end of the phase.",
    ),
]);

const fn flag(
    name: &'static str,
    default: &'static str,
    contexts: Contexts,
    doc: &'static str,
    place: fn(&mut StreamCode) -> &mut bool,
) -> Directive<StreamCode> {
    Directive {
        name,
        syntax: "on | off",
        default: Some(default),
        contexts,
        since: "0.1",
        doc,
        set: Setter::Flag(place),
    }
}

fn code(conf: &mut StreamCode, line: &mut Line) -> Result<(), Diagnostic> {
    let kind = kind_of(line);
    let chunk = Chunk::read(line, kind, 0)?;
    let place = match kind {
        Kind::Preread => &mut conf.preread,
        Kind::Log => &mut conf.log,
        Kind::ClientHello => &mut conf.client_hello,
        Kind::Certificate => &mut conf.certificate,
        _ => &mut conf.content,
    };
    *place = Some(chunk);
    Ok(())
}

/// A run of a chunk for a session; the status to end with when it can not begin.
pub(crate) fn begin(session: &mut Session, chunk: &Chunk) -> Result<Run, u16> {
    let vm = vm::of_session(session).ok_or(status::INTERNAL_SERVER_ERROR)?;
    let function = match vm.function(chunk, session.into()) {
        Ok(function) => function,
        Err(unloaded) => {
            session.error(format_args!("{}", unloaded.message.as_bstr()));
            return Err(status::INTERNAL_SERVER_ERROR);
        }
    };
    let scope = Scope::new(Rc::clone(&vm), chunk.kind, session.logger().clone());
    Ok(Run::new(scope, &function, &vm.settings.limits))
}

fn preread(session: &mut Session) -> Step<'_> {
    match session.conf::<StreamCode>().preread.clone() {
        Some(chunk) => script(session, chunk),
        None => Outcome::Declined.into(),
    }
}

fn content(session: &mut Session) -> Step<'_> {
    match session.conf::<StreamCode>().content.clone() {
        Some(chunk) => {
            session.action = "running a script";
            script(session, chunk)
        }
        None => Outcome::Declined.into(),
    }
}

fn log(session: &mut Session) -> Step<'_> {
    let Some(chunk) = session.conf::<StreamCode>().log.clone() else {
        return Outcome::Declined.into();
    };
    Step::later(async move {
        if let Ok(mut run) = begin(session, &chunk) {
            // It can not wait; at most it runs for long.
            let _ = poll_fn(|context| run.poll((&mut *session).into(), context)).await;
        }
        Outcome::Declined
    })
}

fn script(session: &mut Session, chunk: Arc<Chunk>) -> Step<'_> {
    Step::later(async move {
        let mut run = match begin(session, &chunk) {
            Ok(run) => run,
            Err(status) => return Outcome::Status(status),
        };
        let end = go_on(session, &mut run).await;
        crate::api::give_back_to_session(&run.scope, session);
        match end {
            Ok(end) => finish(&end, chunk.kind),
            // The client is gone: nobody is to be told.
            Err(Gone) => Outcome::Status(status::OK),
        }
    })
}

/// The client has left.
struct Gone;

async fn go_on(session: &mut Session, run: &mut Run) -> Result<End, Gone> {
    let mut watch = session.conf::<StreamCode>().check_client_abort;
    let patience = session.conf::<Sockets>().send_timeout;
    loop {
        let next = poll_fn(|context| {
            let polled = run.poll((&mut *session).into(), context);
            if polled.is_pending() {
                if !run.scope.output.borrow().is_empty() {
                    return std::task::Poll::Ready(Ok(Event::Waiting));
                }
                if watch && let Some(stream) = session.client.stream() {
                    return stream.poll_closed(context).map(|()| Err(Gone));
                }
            }
            polled.map(Ok)
        });
        let event = match next.await {
            Ok(event) => event,
            Err(Gone) if run.client_left() => {
                watch = false;
                continue;
            }
            Err(Gone) => return Err(Gone),
        };
        say(session, &run.scope, patience).await?;
        match event {
            Event::Done(end) => return Ok(end),
            Event::Flush(thread) => run.answer(thread, vec![Value::Number(1.0)]),
            Event::NeedBody(thread) => run.answer(thread, Value::failure("no request found")),
            Event::Waiting => {}
        }
    }
}

/// Sends what the script has said.
async fn say(session: &Session, scope: &Scope, patience: Duration) -> Result<(), Gone> {
    let said = scope.output.take();
    if !said.is_empty() && !::stream::serve::send_within(session, &said, patience).await {
        return Err(Gone);
    }
    if scope.over.replace(false)
        && let Some(stream) = session.client.stream()
    {
        // It may be gone already, and then it needs no end.
        let _ = stream.shutdown_write();
    }
    Ok(())
}

/// What becomes of a session whose script has ended.
fn finish(end: &End, kind: Kind) -> Outcome {
    match end {
        End::Through(_) | End::Exit(0) if kind == Kind::Content => Outcome::Status(status::OK),
        End::Through(_) | End::Exit(0) => Outcome::Declined,
        End::Exit(code) => match u16::try_from(*code) {
            Ok(code @ 200..=599) => Outcome::Status(code),
            _ => Outcome::Status(status::INTERNAL_SERVER_ERROR),
        },
        End::Failed | End::Exec(..) | End::Jump => Outcome::Status(status::INTERNAL_SERVER_ERROR),
    }
}
