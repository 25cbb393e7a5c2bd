//! `access_log` and `log_format` in stream: a line for each session. The mechanism is [`crate::shared::log`].

use std::path::PathBuf;
use std::sync::Arc;

use ::stream::{Module, Outcome, Phase, Session, Step};
use bstr::ByteSlice;
use conf::contexts::STREAM_AND_SERVER;
use conf::{Arity, Diagnostic, Directive, Expression, Line, Repeat, STREAM, Setter, Table};
use rt::error_log::Logger;

use crate::shared::log::{
    self, Destination, Format, Formats, OpenFiles, Subject, Urgency, Written,
};

pub(crate) static MODULE: Module = Module {
    name: "log",
    doc: "Writes access logs: one line per session.",
    main: &FORMATS,
    server: &DIRECTIVES,
    phases: &[(Phase::Log, write)],
    enabled: |server| !server.confs.get::<Conf>().logs.is_empty(),
    ..Module::EMPTY
};

static FORMATS: Table<MainConf> = Table::new(&[Directive {
    name: "log_format",
    syntax: "name [escape=default|json|none] string ...",
    default: None,
    contexts: STREAM,
    since: "0.1",
    doc: "Defines a format for the `access_log` of stream.",
    set: Setter::Custom(Arity::at_least(2), Repeat::Many, |_, line| {
        Formats::<Session>::define(line, &[], "")
    }),
}]);

/// Nothing: formats are only looked up while the configuration is read.
#[derive(Clone, Default)]
struct MainConf;

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "access_log",
        syntax: "path format [buffer=size] [gzip[=level]] [flush=time] [if=condition] | off",
        default: Some("off"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Where to log sessions, and in which format: a file, `syslog:…`, or `off`.",
        set: Setter::Custom(
            Arity::at_least(1),
            Repeat::Fresh(|c| c.logs.clear()),
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
        set: Setter::Custom(Arity::between(1, 4), Repeat::Once, |conf, line| {
            conf.open_files = OpenFiles::read(line)?;
            Ok(())
        }),
    },
]);

#[derive(Clone, Default)]
struct Conf {
    logs: Vec<AccessLog>,
    open_files: Option<Arc<OpenFiles>>,
}

#[derive(Clone)]
struct AccessLog {
    destination: Destination,
    format: Arc<Format<Session>>,
    condition: Option<Expression>,
}

fn access_log(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    if line.text(0) == "off" {
        return match line.get(1) {
            None => Ok(()),
            Some(_) => Err(line.invalid_parameter(1)),
        };
    }
    let Some(name) = line.get(1) else {
        return Err(line.error("log format is not specified"));
    };
    let (buffering, condition) = log::read_parameters(line)?;
    let destination = Destination::read(line, buffering)?;
    let format = Formats::find(line.level, name.text.as_bstr());
    let format =
        format.ok_or_else(|| line.error_at(1, format!("unknown log format \"{}\"", name.text)))?;
    conf.logs.push(AccessLog {
        destination,
        format,
        condition,
    });
    Ok(())
}

fn write(session: &mut Session) -> Step<'_> {
    let conf = session.conf::<Conf>();
    let mut line = Vec::new();
    let mut awaited: Vec<Written> = Vec::new();
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
            Urgency::Awaited,
        ));
    }
    for line in awaited {
        // The line is there once the connection has ended.
        session.wait_at_end(async move {
            // Either way the line is done with.
            let _ = line.await;
        });
    }
    Outcome::Declined.into()
}

impl Subject for Session {
    fn logger(&self) -> &Logger {
        Session::logger(self)
    }

    fn connection(&self) -> u64 {
        self.client.number
    }

    fn required_folder(&mut self) -> Option<PathBuf> {
        None
    }
}
