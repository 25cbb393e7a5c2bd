//! `access_log` and `log_format` in stream: one line per session. The implementation is
//! [`crate::shared::log`].
//!
//! ```nginx
//! log_format sessions '$remote_addr [$time_local] $protocol $status $bytes_sent $bytes_received';
//! access_log /var/log/weir/stream.log sessions;
//! ```
//!
//! Unlike in http there is no predefined format, and no log by default.

use std::path::PathBuf;
use std::sync::Arc;

use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamPhase, StreamSession};
use bstr::ByteSlice;
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, RepeatRule, STREAM,
    Setter,
};
use host::error_log::Logger;

use crate::shared::log::{
    self, LineWritten, LogDestination, LogFormat, LogFormats, LogSubject, LogUrgency, OpenLogFiles,
};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "log",
    doc: "Writes access logs: one line per session.",
    main: &FORMATS,
    server: &DIRECTIVES,
    phases: &[(StreamPhase::Log, write)],
    enabled: |server| !server.confs.get::<Conf>().logs.is_empty(),
    ..StreamModule::EMPTY
};

static FORMATS: DirectiveTable<StreamLogMainConf> = DirectiveTable::new(&[Directive {
    name: "log_format",
    syntax: "name [escape=default|json|none] string ...",
    default: None,
    contexts: STREAM,
    since: "0.1",
    doc: "Defines a format for the `access_log` of stream.",
    set: Setter::Custom(Arity::at_least(2), RepeatRule::Many, |_, line| {
        LogFormats::<StreamSession>::define(line, &[], "")
    }),
}]);

/// Empty: formats are only looked up while the configuration is read.
#[derive(Clone, Default)]
struct StreamLogMainConf;

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "access_log",
        syntax: "path format [buffer=size] [gzip[=level]] [flush=time] [if=condition] | off",
        default: Some("off"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Where to log sessions, and in which format: a file, `syslog:…`, or `off`.",
        set: Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.logs.clear()),
            access_log,
        ),
    },
    Directive {
        name: "open_log_file_cache",
        syntax: "off | max=N [inactive=time] [min_uses=N] [valid=time]",
        default: Some("off"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Keeps log files with variables in their paths open, as in http.",
        set: Setter::Custom(Arity::between(1, 4), RepeatRule::Once, |conf, line| {
            conf.open_files = OpenLogFiles::read(line)?;
            Ok(())
        }),
    },
]);

#[derive(Clone, Default)]
struct Conf {
    logs: Vec<StreamAccessLog>,
    open_files: Option<Arc<OpenLogFiles>>,
}

/// One `access_log` directive.
#[derive(Clone)]
struct StreamAccessLog {
    destination: LogDestination,
    format: Arc<LogFormat<StreamSession>>,
    condition: Option<Expression>,
}

/// Reads `access_log`. Unlike in http there is no default format, so its name is mandatory.
fn access_log(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    // Nothing is inherited either way: the list was cleared with the first line of the block.
    if line.text(0) == "off" {
        return match line.get(1) {
            None => Ok(()),
            Some(_) => Err(line.invalid_parameter(1)),
        };
    }
    // nginx's message.
    let Some(name) = line.get(1) else {
        return Err(line.error("log format is not specified"));
    };
    let (buffering, condition) = log::read_parameters(line)?;
    let destination = LogDestination::read(line, buffering)?;
    let format = LogFormats::find(line.level, name.text.as_bstr());
    let format =
        format.ok_or_else(|| line.error_at(1, format!("unknown log format \"{}\"", name.text)))?;
    conf.logs.push(StreamAccessLog {
        destination,
        format,
        condition,
    });
    Ok(())
}

/// The phase handler: writes the line of a session to all its logs.
fn write(session: &mut StreamSession) -> SessionStep<'_> {
    let conf = session.conf::<Conf>();
    let mut line = Vec::new();
    let mut awaited: Vec<LineWritten> = Vec::new();
    for log in &conf.logs {
        if let Some(condition) = &log.condition
            && !log::is_true(&session.value(condition))
        {
            continue;
        }
        line.clear();
        log.format.write(session, &mut line);
        awaited.extend(log.destination.write(
            &mut line,
            session,
            conf.open_files.as_ref(),
            LogUrgency::Awaited,
        ));
    }
    for line in awaited {
        // Delays the end of the connection until the line is written, so that a client that sees
        // the end can rely on it.
        session.wait_at_end(async move {
            // A failure to write is logged where it happens.
            let _ = line.await;
        });
    }
    SessionOutcome::Declined.into()
}

impl LogSubject for StreamSession {
    fn logger(&self) -> &Logger {
        StreamSession::logger(self)
    }

    fn connection(&self) -> u64 {
        self.client.number
    }

    fn required_folder(&mut self) -> Option<PathBuf> {
        None
    }
}
