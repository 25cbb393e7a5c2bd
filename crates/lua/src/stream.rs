//! Lua in stream: the directives, and the scripts of the preread, content and log phases.
//!
//! A script runs as in http, with a session in the place of the request. Output is sent whenever
//! the script waits or ends: a session has no response head that could still change, so there is
//! nothing to gain by holding it back.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use ::stream::module::{StreamContentHandler, StreamHandshake, status};
use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamPhase, StreamSession};
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{
    Arity, Contexts, Diagnostic, Directive, DirectiveLine, DirectiveTable, RepeatRule, STREAM,
    STREAM_SERVER, Setter,
};

use crate::chunk::{LuaChunk, ScriptKind};
use crate::cosocket_settings::{self, CosocketSettings};
use crate::luajit::LuaValue;
use crate::rows::{CERTIFICATE, CLIENT_HELLO, LOG, block_row, ignored_row, kind_of, word_row};
use crate::run::{RunEnd, RunEvent, ScriptRun};
use crate::scope::RunScope;
use crate::scripts::StreamScripts;
use crate::vm_configuration::LuaSubsystem;
use crate::{begin_run, handshake};
use crate::{directives, loop_vms, settings, worker};

/// The modules of stream, each with the name of the module after which it runs.
pub static STREAM_MODULES: &[(&str, &StreamModule)] = &[
    ("ssl_preread", &MODULE),
    ("lua", &SOCKETS),
    ("lua_sockets", &TLS),
];

/// The scripts.
static MODULE: StreamModule = StreamModule {
    name: "lua",
    doc: "Lua code in the phases of a session.",
    main: &settings::STREAM_MAIN,
    server: &ROWS,
    upstream: &directives::STREAM_UPSTREAM_ROWS,
    blocks: &[&directives::STREAM_UPSTREAM_ROWS],
    phases: &[(StreamPhase::Preread, preread), (StreamPhase::Log, log)],
    enabled: |server| {
        let code = server.confs.get::<StreamScripts>();
        code.preread.is_some() || code.log.is_some()
    },
    handshake: Some(StreamHandshake {
        when: |confs| {
            let code = confs.get::<StreamScripts>();
            code.client_hello.is_some() || code.certificate.is_some()
        },
        handler: handshake::on_stream_handshake,
    }),
    trial: |site| loop_vms::init_trial(site.main_confs.get(), LuaSubsystem::Stream),
    accept: |site, zones| {
        crate::vm::LuaVm::try_init(site.main_confs.get(), LuaSubsystem::Stream, zones)
    },
    start: worker::start_stream,
    stop: worker::stop_stream,
    content_handler: Some(StreamContentHandler {
        when: |server| server.confs.get::<StreamScripts>().content.is_some(),
        handler: content,
    }),
    ..StreamModule::EMPTY
};

/// The `lua_socket_*` rows.
static SOCKETS: StreamModule = StreamModule {
    name: "lua_sockets",
    doc: "Settings of Lua cosockets.",
    server: &cosocket_settings::STREAM,
    // It has directives only: scripts read their values, and nothing runs in a phase.
    enabled: |_| false,
    ..StreamModule::EMPTY
};

/// The `lua_ssl_*` rows.
static TLS: StreamModule = StreamModule {
    name: "lua_tls",
    doc: "TLS settings of Lua cosockets.",
    server: &crate::cosocket_tls::STREAM,
    enabled: |_| false,
    ..StreamModule::EMPTY
};

const PREREAD: &str = "Code that runs at the end of the preread phase, before the session is handled. Client data that \
                       it does not consume is passed on.";
const CONTENT: &str = "Code that handles a session.";

static ROWS: DirectiveTable<StreamScripts> = DirectiveTable::<StreamScripts>::new(&[
    block_row(
        "preread_by_lua_block",
        STREAM_AND_SERVER,
        PREREAD,
        set_script,
    ),
    word_row("preread_by_lua_file", "path", STREAM_AND_SERVER, set_script),
    block_row("content_by_lua_block", STREAM_SERVER, CONTENT, set_script),
    word_row("content_by_lua_file", "path", STREAM_SERVER, set_script),
    block_row("log_by_lua_block", STREAM_AND_SERVER, LOG, set_script),
    word_row("log_by_lua_file", "path", STREAM_AND_SERVER, set_script),
    block_row(
        "ssl_client_hello_by_lua_block",
        STREAM_AND_SERVER,
        CLIENT_HELLO,
        set_script,
    ),
    word_row(
        "ssl_client_hello_by_lua_file",
        "path",
        STREAM_AND_SERVER,
        set_script,
    ),
    block_row(
        "ssl_certificate_by_lua_block",
        STREAM_AND_SERVER,
        CERTIFICATE,
        set_script,
    ),
    word_row(
        "ssl_certificate_by_lua_file",
        "path",
        STREAM_AND_SERVER,
        set_script,
    ),
    flag_row(
        "lua_code_cache",
        "on",
        STREAM_AND_SERVER,
        "`off` gives each session a Lua VM of its own and reads files anew: for development.",
        |c| &mut c.code_cache,
    ),
    flag_row(
        "lua_check_client_abort",
        "off",
        STREAM_AND_SERVER,
        "Whether the content script ends when its client disconnects.",
        |c| &mut c.check_client_abort,
    ),
    Directive {
        name: "lua_add_variable",
        syntax: "$variable",
        default: None,
        contexts: STREAM,
        since: "0.3",
        doc: "Defines a variable that scripts may set through `ngx.var`; until then it has no value. One that is \
              defined already stays as it is.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Many, add_variable),
    },
    ignored_row(
        "preread_by_lua_no_postpone",
        STREAM_AND_SERVER,
        "Preread scripts always run at the end of the phase.",
    ),
]);

/// An on/off row.
const fn flag_row(
    name: &'static str,
    default: &'static str,
    contexts: Contexts,
    doc: &'static str,
    place: fn(&mut StreamScripts) -> &mut bool,
) -> Directive<StreamScripts> {
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

/// `lua_add_variable`.
fn add_variable(_: &mut StreamScripts, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<StreamSession>()
        .expect("stream's rows stand in stream");
    if registry.is_defined(name) {
        return Ok(());
    }
    let defined = registry.settable_id(name);
    defined.map_err(|message| line.error_at(0, message))?;
    Ok(())
}

/// The setter of all script rows.
fn set_script(conf: &mut StreamScripts, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let kind = kind_of(line);
    let chunk = LuaChunk::read(line, kind, 0)?;
    let place = match kind {
        ScriptKind::Preread => &mut conf.preread,
        ScriptKind::Log => &mut conf.log,
        ScriptKind::ClientHello => &mut conf.client_hello,
        ScriptKind::Certificate => &mut conf.certificate,
        _ => &mut conf.content,
    };
    *place = Some(chunk);
    Ok(())
}

/// `preread_by_lua`. What it reads from the client is consumed; the rest goes to the handler.
fn preread(session: &mut StreamSession) -> SessionStep<'_> {
    match session.conf::<StreamScripts>().preread.clone() {
        Some(chunk) => run_script(session, chunk),
        None => SessionOutcome::Declined.into(),
    }
}

/// `content_by_lua`: the script handles the session.
fn content(session: &mut StreamSession) -> SessionStep<'_> {
    match session.conf::<StreamScripts>().content.clone() {
        Some(chunk) => {
            session.action = "running a script";
            run_script(session, chunk)
        }
        None => SessionOutcome::Declined.into(),
    }
}

/// `log_by_lua`. Whatever comes of it, the session is over.
fn log(session: &mut StreamSession) -> SessionStep<'_> {
    let Some(chunk) = session.conf::<StreamScripts>().log.clone() else {
        return SessionOutcome::Declined.into();
    };
    SessionStep::later(async move {
        if let Ok(mut run) = begin_run::for_session(session, &chunk) {
            // It cannot wait, it may only be preempted.
            let _ = poll_fn(|context| run.poll((&mut *session).into(), context)).await;
        }
        SessionOutcome::Declined
    })
}

/// Runs a script to its end, and returns what it left of the client's input.
fn run_script(session: &mut StreamSession, chunk: Arc<LuaChunk>) -> SessionStep<'_> {
    SessionStep::later(async move {
        let mut run = match begin_run::for_session(session, &chunk) {
            Ok(run) => run,
            Err(status) => return SessionOutcome::Status(status),
        };
        let end = drive_run(session, &mut run).await;
        // However it ended: what the script has read and not consumed belongs to the next handler.
        crate::api::give_back_to_session(&run.scope, session);
        match end {
            Ok(end) => outcome_of(&end, chunk.kind),
            // The client has left. There is no one to send an error to, so the session counts as
            // completed.
            Err(ClientGone) => SessionOutcome::Status(status::OK),
        }
    })
}

/// The client has disconnected.
struct ClientGone;

/// Drives a run: sends its output, answers what it waits for, watches for the client's disconnect.
async fn drive_run(session: &mut StreamSession, run: &mut ScriptRun) -> Result<RunEnd, ClientGone> {
    let mut watch = session.conf::<StreamScripts>().check_client_abort;
    let patience = session.conf::<CosocketSettings>().send_timeout;
    loop {
        let next = poll_fn(|context| {
            let polled = run.poll((&mut *session).into(), context);
            if polled.is_pending() {
                // It waits, and has said something: send that now.
                if !run.scope.output.borrow().is_empty() {
                    return std::task::Poll::Ready(Ok(RunEvent::Waiting));
                }
                if watch && let Some(stream) = session.client.stream() {
                    return stream.poll_closed(context).map(|()| Err(ClientGone));
                }
            }
            polled.map(Ok)
        });
        let event = match next.await {
            Ok(event) => event,
            Err(ClientGone) if run.on_client_abort() => {
                // The script has a handler for this (`ngx.on_abort`), which decides what becomes of
                // it. The event comes once.
                watch = false;
                continue;
            }
            Err(ClientGone) => return Err(ClientGone),
        };
        // Before the event is answered, so that the client gets the output in the order of the
        // calls.
        send_output(session, &run.scope, patience).await?;
        match event {
            RunEvent::Ended(end) => return Ok(end),
            RunEvent::Flush(thread) => run.resume_with(thread, vec![LuaValue::Number(1.0)]),
            // A session has no request body.
            RunEvent::NeedBody(thread) => {
                run.resume_with(thread, LuaValue::failure("no request found"))
            }
            RunEvent::Waiting => {}
        }
    }
}

/// Sends the script's output.
async fn send_output(
    session: &StreamSession,
    scope: &RunScope,
    patience: Duration,
) -> Result<(), ClientGone> {
    let said = scope.output.take();
    if !said.is_empty() && !::stream::serve_session::send_within(session, &said, patience).await {
        return Err(ClientGone);
    }
    // `ngx.eof`: after the output that came before it, and once.
    if scope.eof_sent.replace(false)
        && let Some(stream) = session.client.stream()
    {
        // The connection may be gone already, and then there is nothing to shut down.
        let _ = stream.shutdown_write();
    }
    Ok(())
}

/// What becomes of a session whose script has ended. A preread script that returns lets the session
/// go on; a content script that returns has handled it.
fn outcome_of(end: &RunEnd, kind: ScriptKind) -> SessionOutcome {
    match end {
        RunEnd::Completed(_) | RunEnd::Exit(0) if kind == ScriptKind::Content => {
            SessionOutcome::Status(status::OK)
        }
        RunEnd::Completed(_) | RunEnd::Exit(0) => SessionOutcome::Declined,
        RunEnd::Exit(code) => match u16::try_from(*code) {
            Ok(code @ 200..=599) => SessionOutcome::Status(code),
            _ => SessionOutcome::Status(status::INTERNAL_SERVER_ERROR),
        },
        RunEnd::Failed | RunEnd::Exec(..) | RunEnd::Jump => {
            SessionOutcome::Status(status::INTERNAL_SERVER_ERROR)
        }
    }
}
