//! Settings of a location that determine its responses: the place of files, error pages, redirects, keep-alive, the
//! request's body.
//!
//! How files are read and sent is configured in [`super::delivery`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION, LOCATION_IF, SERVER_LOCATION};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, RepeatRule, Setter,
};
use host::error_log::{Logger, MainLog};

use super::Satisfy;
use super::blocks;
use super::choices::{BodyInFile, IfModifiedSince, LingeringClose, ServerTokens};
use super::error_page::ErrorPage;
use super::root::LocationRoot;
use crate::mime_types::MimeTypes;

/// The values of the directives below, for one location.
#[derive(Clone, Debug, Default)]
pub struct LocationConf {
    /// The directory of `root`, or the replacement of `alias`.
    pub root: LocationRoot,
    /// Whether only internal redirects and subrequests may reach the location.
    pub internal: bool,
    /// How the decisions of access handlers are combined.
    pub satisfy: Satisfy,
    /// The delay of a 401.
    pub auth_delay: Duration,
    /// The pages for statuses.
    pub error_pages: Vec<ErrorPage>,
    /// An upstream's 103 is passed to the client if one of these values is neither empty nor `0`.
    pub early_hints: Vec<Expression>,
    /// The same for its other interim responses.
    pub interim_responses: Vec<Expression>,
    /// Whether error pages may themselves be replaced by error pages.
    pub recursive_error_pages: bool,
    /// A path that is requested after the response.
    pub post_action: Option<BString>,
    /// The error log.
    pub log: Logger,
    /// Whether missing files are logged as errors.
    pub log_not_found: bool,
    /// Whether subrequests are logged in the access log.
    pub log_subrequest: bool,
    /// How much the server reveals about itself.
    pub server_tokens: ServerTokens,
    /// Whether redirects contain scheme and host.
    pub absolute_redirect: bool,
    /// Whether redirects contain the server's first name rather than the request's host.
    pub server_name_in_redirect: bool,
    /// Whether redirects contain the port.
    pub port_in_redirect: bool,
    /// Whether short error pages are padded for some browsers.
    pub msie_padding: bool,
    /// Whether redirects are sent as refresh pages to some browsers.
    pub msie_refresh: bool,
    /// How long an idle connection stays open; zero: not at all.
    pub keepalive_timeout: Duration,
    /// The value of `Keep-Alive: timeout=`, in seconds.
    pub keepalive_header: Option<u64>,
    /// The minimum time for which an idle connection stays open when the server shuts down.
    pub keepalive_min_timeout: Duration,
    /// The maximum number of requests per connection.
    pub keepalive_requests: i64,
    /// The time for which a connection accepts requests.
    pub keepalive_time: Duration,
    /// The browsers without keep-alive, as bits: none, msie6, safari.
    pub keepalive_disable: u32,
    /// Whether a connection is read before it is closed. Otherwise the kernel resets it if unread data arrives, and the
    /// client may lose the response (RFC 9112, section 9.6).
    pub lingering_close: LingeringClose,
    /// The time limit for that.
    pub lingering_time: Duration,
    /// The time for which the client may be silent meanwhile.
    pub lingering_timeout: Duration,
    /// Whether connections that timed out are reset.
    pub reset_timedout_connection: bool,
    /// The maximum size of a request's body in bytes; 0: no limit.
    pub client_max_body_size: u64,
    /// The number of bytes of a request's body that are kept in memory.
    pub client_body_buffer_size: u64,
    /// The time for which the client may send nothing of its body.
    pub client_body_timeout: Duration,
    /// The directory for request bodies.
    pub client_body_temp_path: PathBuf,
    /// Whether request bodies are written to files.
    pub body_in_file_only: BodyInFile,
    /// Accepted without effect: a body in memory is always in one buffer.
    pub body_in_single_buffer: bool,
    /// The maximum size of a subrequest's response that is kept in memory, in bytes.
    pub subrequest_output_buffer_size: u64,
    /// Whether responses may be chunked.
    pub chunked_transfer_encoding: bool,
    /// Whether files get ETags.
    pub etag: bool,
    /// How `If-Modified-Since` is compared.
    pub if_modified_since: IfModifiedSince,
    /// The maximum number of ranges per request; `None`: no limit.
    pub max_ranges: Option<usize>,
    /// Media types by file name extension.
    pub types: Arc<MimeTypes>,
    /// The media type of all other files.
    pub default_type: BString,
    /// How files are read and sent.
    pub delivery: super::delivery::DeliveryConf,
}

/// The directives.
pub static DIRECTIVES: DirectiveTable<LocationConf> = DirectiveTable::<LocationConf>::new(&[
    Directive {
        name: "location",
        syntax: "[ = | ~ | ~* | ^~ ] uri { … } | @name { … }",
        default: None,
        contexts: SERVER_LOCATION,
        since: "0.1",
        doc: "Configures requests by path, after decoding and normalisation. The modifier says how it is matched: `=` \
              the whole path; none or `^~` a prefix; `~` a regular expression, `~*` one that ignores case; `@name` \
              defines a named location, for internal redirects only. An exact match wins at once. Otherwise the \
              longest matching prefix is remembered; unless it was written with `^~`, regular expressions are then \
              tried in the order of the file, and the first that matches wins. If none does, the remembered prefix is \
              used.",
        set: Setter::Deferred(Arity::between(1, 2), blocks::location),
    },
    Directive {
        name: "limit_except",
        syntax: "method … { … }",
        default: None,
        contexts: LOCATION,
        since: "0.1",
        doc: "Applies the block to all methods except those listed; GET implies HEAD.",
        set: Setter::Deferred(Arity::at_least(1), blocks::limit_except),
    },
    Directive {
        name: "root",
        syntax: "path",
        default: Some("html"),
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The directory that request paths are resolved in: the file is the value of `root` followed by the URI, \
              including the part that the location matched (use `alias` to replace that part). May contain variables.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, root),
    },
    Directive {
        name: "alias",
        syntax: "path",
        default: None,
        contexts: LOCATION,
        since: "0.1",
        doc: "Replaces the part of the path that the location matched. In a location with a regular expression, the \
              value is the whole path of the file and usually refers to captures. May contain variables.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, alias),
    },
    Directive {
        name: "internal",
        syntax: "",
        default: None,
        contexts: LOCATION,
        since: "0.1",
        doc: "Makes the location available to internal requests only: error pages, index files, internal redirects, \
              subrequests, `X-Accel-Redirect`. External requests get 404.",
        set: Setter::Custom(Arity::exactly(0), RepeatRule::Once, internal),
    },
    Directive {
        name: "satisfy",
        syntax: "all | any",
        default: Some("all"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether all access modules must allow the request, or any one of them is enough.",
        set: Setter::Word(&["all", "any"], |c, i| c.satisfy = [Satisfy::All, Satisfy::Any][i]),
    },
    Directive {
        name: "auth_delay",
        syntax: "time",
        default: Some("0s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Delays 401 responses, to slow down password guessing.",
        set: Setter::Millis(|c| &mut c.auth_delay),
    },
    Directive {
        name: "error_page",
        syntax: "code … [=[response]] uri",
        default: None,
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The page for these status codes: a URI, a named location, or a redirect URL. `=response` changes the \
              status; `=` alone takes the status of the page.",
        set: Setter::Custom(Arity::at_least(2), RepeatRule::Fresh(|c| c.error_pages.clear()), error_page),
    },
    Directive {
        name: "recursive_error_pages",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether an error page may itself be replaced by an `error_page`.",
        set: Setter::Flag(|c| &mut c.recursive_error_pages),
    },
    Directive {
        name: "early_hints",
        syntax: "string …",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Forwards 103 (Early Hints) responses of upstream servers to the client if at least one of the strings is \
              neither empty nor `0`. Browsers support them well over HTTP/2, but some do not over HTTP/1.1: `map \
              $http_sec_fetch_mode $hints { navigate $http2$http3; }`.",
        set: Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.early_hints.clear()),
            |c, line| {
                for index in 0..line.args().len() {
                    c.early_hints.push(line.expression(index)?);
                }
                Ok(())
            },
        ),
    },
    Directive {
        name: "interim_responses",
        syntax: "string …",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Forwards other interim responses of upstream servers, such as 102, but not 100, 101 and 103, to the \
              client (RFC 9110, section 15.2) if at least one of the strings is neither empty nor `0`.",
        set: Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.interim_responses.clear()),
            |c, line| {
                for index in 0..line.args().len() {
                    c.interim_responses.push(line.expression(index)?);
                }
                Ok(())
            },
        ),
    },
    Directive {
        name: "post_action",
        syntax: "uri",
        default: None,
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "A URI requested after the response has been sent, for its side effects; its response is discarded. `off` \
              disables it.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, post_action),
    },
    Directive {
        name: "error_log",
        syntax: "file [level] | stderr | syslog:… | memory:size",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Where to log errors, and the minimum level to log.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Fresh(|c| c.log = Logger::default()), |c, line| {
            net::core_rows::error_log(&mut c.log, line)
        }),
    },
    Directive {
        name: "log_not_found",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to log missing files as errors.",
        set: Setter::Flag(|c| &mut c.log_not_found),
    },
    Directive {
        name: "log_subrequest",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to log subrequests in the access log.",
        set: Setter::Flag(|c| &mut c.log_subrequest),
    },
    Directive {
        name: "server_tokens",
        syntax: "on | off | build",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether the `Server` header and error pages show the version; `build` adds the build name.",
        set: Setter::Word(&["on", "off", "build"], |c, i| c.server_tokens = [ServerTokens::On, ServerTokens::Off, ServerTokens::Build][i]),
    },
    Directive {
        name: "absolute_redirect",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether redirects issued by Weir are absolute (scheme and host) or relative.",
        set: Setter::Flag(|c| &mut c.absolute_redirect),
    },
    Directive {
        name: "server_name_in_redirect",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether absolute redirects use the first `server_name` rather than the host of the request.",
        set: Setter::Flag(|c| &mut c.server_name_in_redirect),
    },
    Directive {
        name: "port_in_redirect",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether absolute redirects include a non-default port.",
        set: Setter::Flag(|c| &mut c.port_in_redirect),
    },
    Directive {
        name: "msie_padding",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to pad short error pages to more than 512 bytes, below which some browsers show their own page.",
        set: Setter::Flag(|c| &mut c.msie_padding),
    },
    Directive {
        name: "msie_refresh",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to send a page with a refresh instead of a redirect to old versions of Internet Explorer.",
        set: Setter::Flag(|c| &mut c.msie_refresh),
    },
    Directive {
        name: "keepalive_timeout",
        syntax: "timeout [header_timeout]",
        default: Some("75s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "How long an idle keep-alive connection stays open; 0 disables keep-alive. The second value is sent in \
              the `Keep-Alive: timeout=` header.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, keepalive_timeout),
    },
    Directive {
        name: "keepalive_min_timeout",
        syntax: "timeout",
        default: Some("0s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The minimum time that an idle keep-alive connection stays open when the server shuts down gracefully.",
        set: Setter::Millis(|c| &mut c.keepalive_min_timeout),
    },
    Directive {
        name: "keepalive_requests",
        syntax: "number",
        default: Some("1000"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum number of requests per connection.",
        set: Setter::Number(|c| &mut c.keepalive_requests, 0, i64::MAX),
    },
    Directive {
        name: "keepalive_time",
        syntax: "time",
        default: Some("1h"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum time during which a connection accepts requests.",
        set: Setter::Millis(|c| &mut c.keepalive_time),
    },
    Directive {
        name: "keepalive_disable",
        syntax: "none | browser …",
        default: Some("msie6"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Disables keep-alive after a POST (`msie6`) or altogether (`safari`) for these browsers.",
        set: Setter::Bits(&["none", "msie6", "safari"], |c| &mut c.keepalive_disable),
    },
    Directive {
        name: "lingering_close",
        syntax: "off | on | always",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to read and discard remaining data before closing a connection, so that the client receives the \
              whole response.",
        set: Setter::Word(&["off", "on", "always"], |c, i| c.lingering_close = [LingeringClose::Off, LingeringClose::On, LingeringClose::Always][i]),
    },
    Directive {
        name: "lingering_time",
        syntax: "time",
        default: Some("30s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum time of a lingering close.",
        set: Setter::Millis(|c| &mut c.lingering_time),
    },
    Directive {
        name: "lingering_timeout",
        syntax: "time",
        default: Some("5s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum time to wait for more data during a lingering close.",
        set: Setter::Millis(|c| &mut c.lingering_timeout),
    },
    Directive {
        name: "reset_timedout_connection",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to reset connections that timed out or ended with `return 444`, which frees their memory at \
              once.",
        set: Setter::Flag(|c| &mut c.reset_timedout_connection),
    },
    Directive {
        name: "client_max_body_size",
        syntax: "size",
        default: Some("1m"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum size of a request body; a larger one gets 413. 0 means no limit.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.client_max_body_size = line.offset(0)?.unsigned_abs();
            Ok(())
        }),
    },
    Directive {
        name: "client_body_buffer_size",
        syntax: "size",
        default: Some("16k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The part of a request body that is kept in memory; the rest is written to a temporary file.",
        set: Setter::Size(|c| &mut c.client_body_buffer_size),
    },
    Directive {
        name: "client_body_timeout",
        syntax: "time",
        default: Some("60s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The timeout between two reads of the request body. A client that sends nothing within this time gets \
              408.",
        set: Setter::Millis(|c| &mut c.client_body_timeout),
    },
    Directive {
        name: "client_body_temp_path",
        syntax: "path [level1 [level2 [level3]]]",
        default: Some("client_body_temp"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The directory for temporary files with request bodies.",
        set: Setter::Custom(Arity::between(1, 4), RepeatRule::Once, client_body_temp_path),
    },
    Directive {
        name: "client_body_in_file_only",
        syntax: "on | clean | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to write every request body to a file, and whether to keep that file after the request.",
        set: Setter::Word(&["off", "on", "clean"], |c, i| c.body_in_file_only = [BodyInFile::Off, BodyInFile::On, BodyInFile::Clean][i]),
    },
    Directive {
        name: "client_body_in_single_buffer",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; a request body in memory is always in a single buffer.",
        set: Setter::Flag(|c| &mut c.body_in_single_buffer),
    },
    Directive {
        name: "subrequest_output_buffer_size",
        syntax: "size",
        default: Some("4k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum size of a subrequest's response that is kept in memory.",
        set: Setter::Size(|c| &mut c.subrequest_output_buffer_size),
    },
    Directive {
        name: "chunked_transfer_encoding",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to use chunked transfer encoding for HTTP/1.1 responses of unknown length.",
        set: Setter::Flag(|c| &mut c.chunked_transfer_encoding),
    },
    Directive {
        name: "etag",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to generate `ETag` headers for files, from modification time and length.",
        set: Setter::Flag(|c| &mut c.etag),
    },
    Directive {
        name: "if_modified_since",
        syntax: "off | exact | before",
        default: Some("exact"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "How to compare `If-Modified-Since` with the modification time of the response.",
        set: Setter::Word(&["off", "exact", "before"], |c, i| c.if_modified_since = [IfModifiedSince::Off, IfModifiedSince::Exact, IfModifiedSince::Before][i]),
    },
    Directive {
        name: "max_ranges",
        syntax: "number",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum number of ranges per request; a request with more gets the whole body. 0 disables ranges.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, max_ranges),
    },
    Directive {
        name: "types",
        syntax: "{ … }",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Maps file name extensions to media types.",
        set: Setter::Block(Arity::exactly(0), RepeatRule::Fresh(|c| c.types = MimeTypes::empty()), types),
    },
    Directive {
        name: "default_type",
        syntax: "mime-type",
        default: Some("text/plain"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The media type of files whose extension is not in `types`.",
        set: Setter::Text(|c| &mut c.default_type),
    },
    Directive {
        name: "types_hash_max_size",
        syntax: "size",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| line.number(0, 0, i64::MAX).map(drop)),
    },
    Directive {
        name: "types_hash_bucket_size",
        syntax: "size",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| line.number(0, 0, i64::MAX).map(drop)),
    },
])
.finish_changed(|conf, outer, level| {
    // A block without `error_log` inherits. At the outermost level there is nothing to inherit, so `http` uses the main
    // log.
    if outer.is_none() && level.seen_directive("error_log").is_none() {
        conf.log = level.lasting::<MainLog>().0.clone();
    }
    Ok(())
});

fn root(conf: &mut LocationConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.root = LocationRoot::of_root(line)?;
    Ok(())
}

fn alias(conf: &mut LocationConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.root = LocationRoot::of_alias(line)?;
    Ok(())
}

fn internal(conf: &mut LocationConf, _: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.internal = true;
    Ok(())
}

fn max_ranges(conf: &mut LocationConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.max_ranges = usize::try_from(line.number(0, 0, i64::MAX)?).ok();
    Ok(())
}

/// The setter of `error_page`: statuses, an optional `=status`, and the page.
fn error_page(conf: &mut LocationConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    ErrorPage::add_to(&mut conf.error_pages, line)
}

fn post_action(conf: &mut LocationConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let text = line.arg(0).text.clone();
    conf.post_action = (text != "off").then_some(text);
    Ok(())
}

fn keepalive_timeout(conf: &mut LocationConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.keepalive_timeout = line.millis(0)?;
    // As in nginx, the header is only sent if the directive has a second value.
    conf.keepalive_header = match line.args().len() {
        1 => None,
        _ => Some(line.seconds(1)?.as_secs()),
    };
    Ok(())
}

fn client_body_temp_path(
    conf: &mut LocationConf,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    // The levels are accepted without effect. They exist to keep directories small, and temporary files here are not
    // left in a directory under a name.
    conf.client_body_temp_path = line.temporary_path(line.arg(0));
    line.lasting::<blocks::RequiredDirectories>()
        .0
        .insert(conf.client_body_temp_path.clone());
    Ok(())
}

fn types(conf: &mut LocationConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.types = Arc::new(MimeTypes::read_types(&conf.types, line)?);
    Ok(())
}

impl LocationConf {
    /// Whether some setting is not inherited by the locations inside this one.
    pub(crate) fn has_own_part(&self) -> bool {
        self.post_action.is_some()
    }

    /// Removes the settings that are not inherited.
    pub(crate) fn enter_child(&mut self) {
        self.post_action = None;
    }
}
