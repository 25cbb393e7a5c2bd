//! `access_log` and `log_format`: a line for every request.
//!
//! ```nginx
//! http {
//!     log_format timed '$remote_addr "$request" $status $body_bytes_sent $request_time';
//!     access_log logs/access.log timed buffer=64k flush=1s;
//!     server {
//!         access_log syslog:server=unix:/dev/log combined if=$loggable;
//!         location /health { access_log off; }
//!     }
//! }
//! ```
//!
//! Formats and destinations are in [`crate::shared::log`]. This file has what is specific to http:
//! the directives, the conditions, and shortcuts for the variables that nearly every line has.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::text::{write_number, write_padded, write_seconds};
use bstr::ByteSlice;
use conf::{
    Arity, BlockContext as Block, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    HTTP, HTTP_SERVER_LOCATION, LIMIT_EXCEPT, LOCATION_IF, RepeatRule, Setter,
};
use host::error_log::Logger;
use http::request::HttpVersion;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};

use crate::shared::log::{
    self, DirectVariable, LineWritten, LogDestination, LogFormat, LogFormats, LogSubject,
    LogUrgency, OpenLogFiles,
};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "log",
    doc: "Writes access logs: one line per request.",
    main: &FORMATS,
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Log, write)],
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        !conf.off && !conf.logs.is_empty()
    },
    ..HttpModule::EMPTY
};

static FORMATS: DirectiveTable<LogMainConf> = DirectiveTable::new(&[Directive {
    name: "log_format",
    syntax: "name [escape=default | json | none] string ...",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "Defines a format for `access_log`. The strings are concatenated; the values of variables are escaped, as \
          `\\xHH` (`default`) or for JSON (`json`), or not at all (`none`). `combined` is predefined: `$remote_addr - \
          $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"`.",
    set: Setter::Custom(Arity::at_least(2), RepeatRule::Many, |_, line| {
        LogFormats::define(line, DIRECT, COMBINED)
    }),
}]);

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "access_log",
        syntax: "off | path | syslog:server=address[,parameter=value] [format [buffer=size] [gzip[=level]] [flush=time] \
                 [if=condition]]",
        default: Some("logs/access.log combined"),
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF).or(LIMIT_EXCEPT),
        since: "0.1",
        doc: "Where to log requests, and in which format. Several lines write several logs. With `buffer`, lines are \
              written in batches of that size, after `flush` at the latest; `gzip` compresses the batches. With `if`, \
              a request is logged only if the value is neither empty nor `0`. The path may contain variables; such a \
              file is created only for requests whose `root` exists, and by the user of the worker.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Fresh(Conf::clear), access_log),
    },
    Directive {
        name: "open_log_file_cache",
        syntax: "off | max=N [inactive=time] [min_uses=N] [valid=time]",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Keeps log files with variables in their paths open: at most `max`, those used `min_uses` times within \
              `inactive`. Every `valid`, Weir checks that the file still exists under its path.",
        set: Setter::Custom(Arity::between(1, 4), RepeatRule::Once, |conf, line| {
            conf.open_files = OpenLogFiles::read(line)?;
            Ok(())
        }),
    },
])
.finish_changed(open_default);

/// Empty: formats are kept in the configuration being built.
#[derive(Clone, Default)]
struct LogMainConf;

/// The logs of a location.
#[derive(Clone, Default)]
struct Conf {
    logs: Vec<HttpAccessLog>,
    off: bool,
    /// No `access_log` line applies here, so the default does.
    is_default: bool,
    open_files: Option<Arc<OpenLogFiles>>,
}

/// One `access_log` line.
#[derive(Clone)]
struct HttpAccessLog {
    destination: LogDestination,
    format: Arc<LogFormat<Request>>,
    condition: Option<Expression>,
}

impl Conf {
    /// Drops inherited logs, but keeps `open_log_file_cache`, which is another directive.
    fn clear(&mut self) {
        let open_files = self.open_files.take();
        *self = Conf {
            open_files,
            ..Conf::default()
        };
    }
}

/// The predefined format and its text.
const COMBINED: &str = "combined";
const COMBINED_TEXT: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                             \"$http_referer\" \"$http_user_agent\"";

/// Reads `access_log`.
fn access_log(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    if line.is_default() {
        // The file is only opened for a server that turns out to use it, see `open_default`.
        conf.is_default = true;
        return Ok(());
    }
    if line.text(0) == "off" {
        if line.args().len() > 1 {
            return Err(line.invalid_parameter(1));
        }
        conf.off = true;
        return Ok(());
    }
    let (buffering, condition) = log::read_parameters(line)?;
    let destination = LogDestination::read(line, buffering)?;
    let format = match line.get(1) {
        // The predefined format is compiled only where it is used.
        Some(name) if name.text != COMBINED => LogFormats::find(line.level, name.text.as_bstr())
            .ok_or_else(|| line.error_at(1, format!("unknown log format \"{}\"", name.text)))?,
        _ => LogFormats::predefined(line.level, COMBINED, COMBINED_TEXT, DIRECT)?,
    };
    conf.logs.push(HttpAccessLog {
        destination,
        format,
        condition,
    });
    Ok(())
}

/// Gives a server without any `access_log` line, its own or inherited, the default log. Not `http`
/// itself: if all servers have their own logs, nobody wants another file that stays empty.
fn open_default(conf: &mut Conf, _: Option<&Conf>, block: &mut Block) -> Result<(), Diagnostic> {
    if !conf.is_default || block.context == HTTP {
        return Ok(());
    }
    conf.is_default = false;
    let path = block.build.default_access_log();
    let format = LogFormats::predefined(block, COMBINED, COMBINED_TEXT, DIRECT)?;
    conf.logs.push(HttpAccessLog {
        destination: LogDestination::file(&path, block),
        format,
        condition: None,
    });
    Ok(())
}

rt::local! {
    /// The buffer for lines, kept so that a line costs no allocation.
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How long the end of a request waits for its lines, if the connection ends with it or if file
/// names have variables. A program that reads the log after the connection has closed finds its
/// line, and yet a slow disk delays nobody for long.
const MAX_WAIT: Duration = Duration::from_millis(20);

/// The handler of the log phase.
fn write(request: &mut Request) -> HandlerStep<'_> {
    let conf = request.conf::<Conf>();
    // Taken out rather than borrowed: evaluating a variable can run a script, which could log too.
    let mut line = LINE.take();
    let mut awaited: Vec<LineWritten> = Vec::new();
    let urgency = if request.ends_connection() {
        LogUrgency::Awaited
    } else {
        LogUrgency::Usual
    };
    for log in &conf.logs {
        line.clear();
        if let Some(condition) = &log.condition {
            condition.eval(request, &mut line);
            if !log::is_true(&line) {
                continue;
            }
            line.clear();
        }
        log.format.write(request, &mut line);
        let written = log
            .destination
            .write(&mut line, request, conf.open_files.as_ref(), urgency);
        awaited.extend(written);
    }
    LINE.set(line);
    if !awaited.is_empty() {
        request.wait_at_end(wait_until_written(awaited));
    }
    HandlerOutcome::Declined.into()
}

/// Waits until the lines are written. If time runs out they are written nevertheless, only later.
async fn wait_until_written(lines: Vec<LineWritten>) {
    let all = async {
        for line in lines {
            // Written or lost, there is nothing more to wait for.
            let _ = line.await;
        }
    };
    let _ = rt::timeout(MAX_WAIT, all).await;
}

impl LogSubject for Request {
    fn logger(&self) -> &Logger {
        Request::logger(self)
    }

    fn connection(&self) -> u64 {
        self.client.number
    }

    fn required_folder(&mut self) -> Option<PathBuf> {
        Some(conf::parse::path(&self.document_root()).to_owned())
    }
}

/// Shortcuts for the variables of most formats. What they append needs no escaping.
const DIRECT: &[DirectVariable<Request>] = &[
    ("remote_addr", |request, out| {
        out.extend_from_slice(&request.remote.text)
    }),
    ("time_local", |_, out| net::local_time::write_log(out)),
    ("time_iso8601", |_, out| net::local_time::write_iso8601(out)),
    ("msec", |_, out| {
        base::text::write_seconds(rt::wall_millis(), out)
    }),
    ("request_time", |request, out| {
        write_seconds(request.elapsed_ms(), out)
    }),
    ("status", status),
    // Numbers and times need no escaping, so these can bypass it.
    ("bytes_sent", |request, out| {
        write_number(request.times.bytes_sent, out)
    }),
    ("body_bytes_sent", |request, out| {
        write_number(request.times.body_bytes_sent, out)
    }),
];

/// `$status` with at least three digits, so that columns line up: `000` for a client that left
/// before its response.
fn status(request: &mut Request, out: &mut Vec<u8>) {
    let status = match request.out.status {
        // HTTP/0.9 responses have no status. nginx logs 009.
        0 if request.head.version() == HttpVersion::Http09 => 9,
        status => status,
    };
    write_padded(status.into(), 3, out);
}
