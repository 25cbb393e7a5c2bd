//! `fastcgi_pass`: passes requests to applications over FastCGI, such as PHP-FPM.
//!
//! ```nginx
//! location ~ ^(?<script>.+\.php)(/|$) {
//!     fastcgi_pass            unix:/run/php/php-fpm.sock;
//!     fastcgi_split_path_info ^(.+?\.php)(/.*)$;
//!     fastcgi_param           SCRIPT_FILENAME $document_root$fastcgi_script_name;
//!     fastcgi_param           PATH_INFO       $fastcgi_path_info;
//!     include                 fastcgi_params;
//! }
//! ```
//!
//! A response that breaks off is cut off for the client as well, so that it cannot be mistaken for
//! a complete one; nginx ends it properly. The records are in [`codec`].

mod codec;

use bstr::BString;
use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF};
use conf::{
    Arity, Captures, Diagnostic, Directive, DirectiveLine, DirectiveTable, Regex, RepeatRule,
    Setter, Variable,
};
use http::module::{ContentHandler, HandlerOutcome, HandlerStep};
use http::upstream::ExchangePlan;
use http::{HttpModule, Request, cache};

use crate::shared::gateway::{CgiParams, GatewayPass, connection_tag, request_content};
use crate::shared::upstream_rows::{PrefixedRows, ProtocolSettings};
use codec::FastcgiCodec;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "fastcgi",
    doc: "Passes requests to FastCGI servers.",
    location: &DIRECTIVES,
    content_handler: Some(ContentHandler {
        directives: &["fastcgi_pass"],
        when: |location| location.confs.get::<Conf>().pass.is_some(),
        handler: pass,
        adds_slash: true,
        declines: false,
    }),
    variables: &[
        Variable::new(
            "fastcgi_script_name",
            script_name,
            "The path of the script: the URI, or the first group of `fastcgi_split_path_info`; `fastcgi_index` is \
             appended if it ends with a slash.",
        )
        .volatile(),
        Variable::new(
            "fastcgi_path_info",
            path_info,
            "The second group of `fastcgi_split_path_info`: what follows the script.",
        )
        .volatile(),
    ],
    nested: |confs| confs.change_if::<Conf>(|conf| conf.pass.is_some(), |conf| conf.pass = None),
    explain: http::module::ModuleExplain::Exchange(|request, notes| {
        let settings = ProtocolSettings::<FastcgiProtocol>::of(request);
        http::explain::describe_cached(request, &settings, &SOURCE, notes)
    }),
    ..HttpModule::EMPTY
};

/// The rows common to all upstream protocols.
pub(crate) static UPSTREAM: HttpModule = HttpModule {
    name: "fastcgi_upstream",
    doc: "The directives that FastCGI has in common with other upstream protocols.",
    location: &UPSTREAM_ROWS,
    ..HttpModule::EMPTY
};

/// Names FastCGI's settings for the shared rows.
pub(crate) enum FastcgiProtocol {}

static UPSTREAM_ROWS: PrefixedRows<FastcgiProtocol> = PrefixedRows::new(
    "fastcgi_",
    &[
        "Status",
        "X-Accel-Expires",
        "X-Accel-Redirect",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
    ],
)
.cached()
.without(&["cache_convert_head"])
.without_reasons(&["http_502", "http_504"]);

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "fastcgi_pass",
        syntax: "address",
        default: None,
        contexts: LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The FastCGI server: `host:port`, `unix:/path` or the name of an `upstream`.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, |c, line| {
            c.pass = Some(GatewayPass::from_line(line, b"")?);
            Ok(())
        }),
    },
    Directive {
        name: "fastcgi_param",
        syntax: "name value [if_not_empty]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A parameter passed to the server. With `if_not_empty` it is passed only if its value is not empty. A \
              block with such lines of its own inherits none.",
        set: Setter::Custom(Arity::between(2, 3), RepeatRule::Fresh(|c| c.params.clear()), |c, line| c.params.add(line)),
    },
    Directive {
        name: "fastcgi_index",
        syntax: "name",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The file name appended to `$fastcgi_script_name` after a path that ends with a slash.",
        set: Setter::Text(|c| &mut c.index),
    },
    Directive {
        name: "fastcgi_split_path_info",
        syntax: "regex",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A regular expression with two groups, which become `$fastcgi_script_name` and `$fastcgi_path_info`.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, split_path_info),
    },
    Directive {
        // Off as in nginx: not every application accepts a second request.
        name: "fastcgi_keep_conn",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to ask the server to keep the connection open, as `keepalive` of an upstream requires.",
        set: Setter::Flag(|c| &mut c.keep_conn),
    },
    Directive {
        // Applications report fatal errors there while they still send a status of 200.
        name: "fastcgi_catch_stderr",
        syntax: "string",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A string in the server's error stream that makes the response invalid.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Fresh(|c| c.catch_stderr.clear()), |c, line| {
            c.catch_stderr.push(line.text(0).to_owned());
            Ok(())
        }),
    },
])
.finish_changed(|conf, _, level| conf.params.complete(level));

/// The settings of a location.
#[derive(Clone, Default)]
struct Conf {
    pass: Option<GatewayPass>,
    params: CgiParams,
    index: BString,
    split: Option<Regex>,
    keep_conn: bool,
    catch_stderr: Vec<BString>,
}

/// Reads `fastcgi_split_path_info`.
fn split_path_info(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let regex = line.regex(0, line.text(0), false)?;
    // The script and the path info.
    if regex.group_count() != 2 {
        return Err(line.error_at(
            0,
            format!("pattern \"{}\" must have 2 captures", line.text(0)),
        ));
    }
    conf.split = Some(regex);
    Ok(())
}

static SOURCE: cache::CachedProtocol = cache::CachedProtocol {
    plan,
    // There is no default key: only the configuration knows which params identify the content.
    key: |_, _| Ok(()),
};

/// The content handler; the cache asks for the plan when it needs one.
fn pass(request: &mut Request) -> HandlerStep<'_> {
    let settings = ProtocolSettings::<FastcgiProtocol>::of(request);
    cache::serve_cached(request, settings, &SOURCE)
}

/// How to perform an exchange for this request.
fn plan(request: &mut Request) -> Result<ExchangePlan, HandlerOutcome> {
    let conf = request.conf::<Conf>();
    let settings = ProtocolSettings::<FastcgiProtocol>::of(request);
    let Some(pass) = &conf.pass else {
        return Err(HandlerOutcome::Declined);
    };
    let target = match pass.target(request, b"") {
        Ok(target) => target,
        Err(status) => return Err(HandlerOutcome::Status(status)),
    };
    Ok(ExchangePlan {
        content: request_content(request, &settings, false),
        protocol: Box::new(FastcgiCodec::new(request.conf::<Conf>(), settings.clone())),
        settings,
        target,
        watch_client: true,
        tag: connection_tag(request),
    })
}

/// `$fastcgi_script_name`.
fn script_name(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let conf = request.conf::<Conf>();
    split(&conf, request, |script, _| {
        out.extend_from_slice(script);
        // A directory: its index is the script.
        if script.ends_with(b"/") {
            out.extend_from_slice(&conf.index);
        }
    });
    true
}

/// `$fastcgi_path_info`.
fn path_info(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let conf = request.conf::<Conf>();
    split(&conf, request, |_, info| out.extend_from_slice(info));
    true
}

/// Splits the URI into the script and what follows. Per use and without caching, since the URI can
/// change in between.
fn split(conf: &Conf, request: &Request, take: impl FnOnce(&[u8], &[u8])) {
    let path = request.uri.path.as_slice();
    // Separate from the request's captures, which belong to the location.
    let mut groups = Captures::new();
    match &conf.split {
        Some(regex) if regex.captures(path, &mut groups) => {
            take(
                groups.text(1, path).unwrap_or_default(),
                groups.text(2, path).unwrap_or_default(),
            );
        }
        _ => take(path, b""),
    }
}
