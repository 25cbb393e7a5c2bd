//! `weir explain`: what the server would do with a request, from the configuration alone.
//!
//! ```text
//! here     the arguments, and the question that they make
//! report   the answer as text and as JSON
//! live     what only the running server knows
//! ```
//!
//! A question is a URL with what curl would be given (`-X`, `-H`, `-d`), and where the client is:
//!
//! ```text
//! http://www.example.com/a?b    the address: one that listens on port 80; the server: by the name
//! https://10.0.0.1:8443/        the address itself, if a server names it, or all addresses of the port
//! /a                            the first address of the configuration, and no name: its default server
//! ```
//!
//! No name is looked up: a URL means what a client that reaches this server with it would send.
//!
//! The answer itself is `http::explain`'s: the code that serves requests, run for one that nobody has sent.

mod live;
mod report;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::{BString, ByteSlice as _};
use http::engine::HttpConfiguration;
use http::explain::{
    BlockHeads, DEFAULT_CLIENT, ExplainQuestion, ExplainedTree, Explanation, WantedBlockHeads,
};
use lexopt::prelude::*;

use crate::arguments::NginxOptions;
use crate::command_hints::unexpected;
use crate::commands;
use crate::identity::ProgramIdentity;
use crate::load_configuration::{LoadedConfiguration, load_from_disk};
use crate::terminal;

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExplainArguments {
    /// Where the configuration is.
    options: NginxOptions,
    /// `-X`; without it GET, or POST if there is a body.
    method: Option<String>,
    /// `-H`, in the order in which they were given: a server sees repeated fields in their order.
    fields: Vec<(BString, BString)>,
    /// `-d`; empty for none.
    body: Vec<u8>,
    /// `--from`: access rules, `geo` and limits judge a client by it.
    client: SocketAddr,
    /// What is asked about, as it was given, to be shown again.
    url: String,
    /// `--json`
    json: bool,
    /// `--live`
    live: bool,
}

/// Reads the arguments after `explain`.
pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<ExplainArguments, String> {
    let mut arguments = ExplainArguments {
        // The tree is kept for a test, and is needed here.
        options: NginxOptions {
            test: true,
            ..NginxOptions::default()
        },
        method: None,
        fields: Vec::new(),
        body: Vec::new(),
        client: DEFAULT_CLIENT,
        url: String::new(),
        json: false,
        live: false,
    };
    let mut url = None;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('X') => arguments.method = Some(text(&mut parser)?),
            Short('H') => arguments.fields.push(field(&text(&mut parser)?)?),
            Short('d') => arguments.body = text(&mut parser)?.into_bytes(),
            Short('c') => arguments.options.configuration = Some(value(&mut parser)?.into()),
            Short('p') => arguments.options.prefix = Some(value(&mut parser)?.into()),
            Short('g') => arguments.options.globals = Some(text(&mut parser)?),
            Long("from") => arguments.client = client(&text(&mut parser)?)?,
            Long("json") => arguments.json = true,
            Long("live") => arguments.live = true,
            Value(word) if url.is_none() => url = Some(word.to_string_lossy().into_owned()),
            other => return Err(unexpected(&commands::EXPLAIN, other)),
        }
    }
    arguments.url = url.ok_or("missing argument URL")?;
    Ok(arguments)
}

/// The value of an option, as it came.
fn value(parser: &mut lexopt::Parser) -> Result<OsString, String> {
    parser.value().map_err(|error| error.to_string())
}

/// The same as text: what is no UTF-8 can be in no configuration either.
fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    Ok(value(parser)?.to_string_lossy().into_owned())
}

/// `Name: value`. A line end would make two fields of one.
fn field(text: &str) -> Result<(BString, BString), String> {
    let invalid = || {
        format!(
            "invalid header field \"{}\"",
            base::text::visible_text(text)
        )
    };
    let (name, value) = text.split_once(':').ok_or_else(invalid)?;
    if name.is_empty() || text.contains(['\r', '\n', '\0']) {
        return Err(invalid());
    }
    Ok((name.trim().into(), value.trim().into()))
}

/// An address, with a port if `$remote_port` matters.
fn client(text: &str) -> Result<SocketAddr, String> {
    let ip = text
        .parse::<IpAddr>()
        .map(|ip| SocketAddr::new(ip, DEFAULT_CLIENT.port()));
    ip.or_else(|_| text.parse())
        .map_err(|_| format!("invalid address \"{text}\""))
}

/// The request that the arguments mean. The URL is taken apart here and not by the code for requests, since a client has
/// done that before a server sees any of it: the fragment stays with the client (RFC 9110, section 4.2.5), and an empty
/// path is a slash (section 4.2.3).
fn question(arguments: &ExplainArguments) -> Result<ExplainQuestion, String> {
    let url = &arguments.url;
    if url.contains(['\r', '\n', '\0', ' ']) {
        return Err(format!("invalid URL \"{}\"", base::text::visible_text(url)));
    }
    let (secure, rest) = match url.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some(_) => return Err(format!("\"{url}\" does not begin with http:// or https://")),
        None => (false, url.as_str()),
    };
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(at);
    let path = path.split('#').next().unwrap_or_default();
    let target = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    };
    let port = match host.rsplit_once(':') {
        _ if host.is_empty() => None,
        Some((_, port)) if !port.ends_with(']') => Some(
            port.parse()
                .map_err(|_| format!("invalid port in \"{url}\""))?,
        ),
        _ => Some(if secure { 443 } else { 80 }),
    };
    let default = if arguments.body.is_empty() {
        "GET"
    } else {
        "POST"
    };
    let method = arguments.method.as_deref().unwrap_or(default);
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "invalid method \"{}\"",
            base::text::visible_text(method)
        ));
    }
    Ok(ExplainQuestion {
        method: method.into(),
        target: target.into(),
        host: host.into(),
        fields: arguments.fields.clone(),
        body: arguments.body.clone(),
        client: arguments.client,
        secure,
        port,
    })
}

/// Explains. Returns the exit code: 0 for any answer, 1 for a question without one, and 2, as with `weir check`, for a
/// configuration that no server would run.
pub(crate) fn run(
    identity: ProgramIdentity,
    arguments: &ExplainArguments,
    command_line: &[OsString],
) -> i32 {
    let program = identity.program();
    let fail = |code: i32, error: &str| {
        terminal::report_line(format_args!("{program}: {error}"));
        code
    };
    let question = match question(arguments) {
        Ok(question) => question,
        Err(error) => return fail(1, &error),
    };
    let heads = Arc::new(Mutex::new(BlockHeads::new()));
    let startup = crate::run::startup(identity, &arguments.options, command_line);
    let mut startup = match startup {
        Ok(startup) => startup,
        Err(error) => return fail(2, &error),
    };
    startup.block_heads = WantedBlockHeads(Some(Arc::clone(&heads)));
    let loaded = match load_from_disk(&startup, None) {
        Ok(loaded) => loaded,
        Err(failure) => {
            failure.0.print(program);
            return 2;
        }
    };
    let heads = std::mem::take(&mut *heads.lock());
    let telling = live::telling_locations(&loaded.messages.nodes);
    let folder = startup.paths.configuration.parent().map(ToOwned::to_owned);
    match answer(loaded, heads, question.clone()) {
        Ok(explanation) => {
            let live = arguments
                .live
                .then(|| live::ask(&question, &explanation, &telling));
            let request = report::ExplainedRequest {
                question: &question,
                url: &arguments.url,
                folder: folder.unwrap_or_default(),
                lines: host::error_log::take_diverted(),
            };
            match arguments.json {
                true => report::print_json(&request, &explanation, live.as_ref()),
                false => report::print_text(&request, &explanation, live.as_ref()),
            }
            0
        }
        Err(error) => fail(1, &error),
    }
}

/// Runs the question on an event loop of its own.
///
/// The configuration is not committed and its modules are not started: no cache is opened, no server is checked, no zone
/// has a state that could be mistaken for that of the running server.
fn answer(
    mut loaded: LoadedConfiguration,
    heads: BlockHeads,
    question: ExplainQuestion,
) -> Result<Explanation, String> {
    // From here on lines show what the server would log.
    host::error_log::divert_lines();
    let http = loaded.engines.iter().find_map(|engine| {
        let engine = Arc::clone(engine).as_any();
        engine.downcast::<HttpConfiguration>().ok()
    });
    let http = http.ok_or("the configuration has no \"http\" block")?;
    let nodes = std::mem::take(&mut loaded.messages.nodes);
    let sources = std::mem::take(&mut loaded.messages.sources);
    let tree = ExplainedTree::new(nodes, sources, heads);
    for pool in &loaded.main.thread_pools {
        // A question needs one thread; the threads of the configuration would be started for nothing.
        rt::pool::register(&pool.name, 1, pool.max_queue);
    }
    let subject = Rc::new(http.to_explain(loaded.main.clone(), tree));
    let options = rt::LoopOptions {
        slow_turn: Duration::ZERO,
        ..rt::LoopOptions::default()
    };
    rt::run(
        options,
        move || async move { subject.explain(&question).await },
    )
    .map_err(|error| format!("no event loop{}", base::ErrnoText(&error)))?
}

/// The text of bytes, with what is no text made visible.
fn shown(bytes: &[u8]) -> String {
    base::text::visible_text(&bytes.to_str_lossy()).to_string()
}
