//! The rows common to all upstream protocols, without prefix.

use base::Span;
use conf::directive_contexts::HTTP_SERVER_LOCATION;
use conf::{Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, RepeatRule, Setter};
use http::configure::RequiredDirectories;
use http::upstream::RetryReasons;
use http::upstream::UpstreamSettings;
use http::upstream::upstream_settings::{FieldSet, IgnoreHeaders, UpstreamBind, UpstreamStore};

use crate::shared::file_permissions;

/// A row of this table; all have the same contexts.
const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<UpstreamSettings>,
) -> Directive<UpstreamSettings> {
    Directive {
        name,
        syntax,
        default,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc,
        set,
    }
}

pub(super) static ROWS: DirectiveTable<UpstreamSettings> = DirectiveTable::new(&[
    row(
        "bind",
        "address [transparent] | off",
        None,
        "The local address of upstream connections. With `transparent` it may be an address of another machine, such \
         as that of the client.",
        Setter::Custom(Arity::between(1, 2), RepeatRule::Once, bind),
    ),
    row(
        // Off as in nginx: the timeouts below notice a dead server much earlier.
        "socket_keepalive",
        "on | off",
        Some("off"),
        "Whether to enable TCP keep-alive probes on upstream connections.",
        Setter::Flag(|c| &mut c.socket_keepalive),
    ),
    row(
        "socket_rcvbuf",
        "size",
        Some("0"),
        "The receive buffer size of upstream connections; 0 leaves it to the system.",
        Setter::Size(|c| &mut c.socket_rcvbuf),
    ),
    row(
        "socket_sndbuf",
        "size",
        Some("0"),
        "The send buffer size of upstream connections; 0 leaves it to the system.",
        Setter::Size(|c| &mut c.socket_sndbuf),
    ),
    row(
        // Per server: with several of them, a request can take a multiple of it.
        "connect_timeout",
        "time",
        Some("60s"),
        "The timeout for connecting to an upstream server.",
        Setter::Millis(|c| &mut c.connect_timeout),
    ),
    row(
        "send_timeout",
        "time",
        Some("60s"),
        "The timeout between two successful writes to the upstream server.",
        Setter::Millis(|c| &mut c.send_timeout),
    ),
    row(
        // Between two reads, not for the whole: a long response is no error as long as it moves.
        "read_timeout",
        "time",
        Some("60s"),
        "The timeout between two reads from the upstream server.",
        Setter::Millis(|c| &mut c.read_timeout),
    ),
    row(
        "send_lowat",
        "size",
        Some("0"),
        "Accepted for compatibility.",
        Setter::Ignored(Arity::ONE, "Linux has no such socket option."),
    ),
    row(
        // A POST may have had its effect although its response was lost, so it is repeated only if
        // the configuration says that this is safe.
        "next_upstream",
        "error | timeout | invalid_header | http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | non_idempotent | updating | off …",
        Some("error timeout"),
        "When to pass the request to the next server. It is never passed on once a response has been started or, \
         unless `non_idempotent` is given, after a POST, LOCK or PATCH request has been sent.",
        Setter::Bits(RetryReasons::WORDS, |c| c.next_upstream.bits_mut()),
    ),
    row(
        "next_upstream_tries",
        "number",
        Some("0"),
        "The maximum number of servers to try; 0 means all.",
        Setter::Number(|c| &mut c.next_upstream_tries, 0, i64::MAX),
    ),
    row(
        "next_upstream_timeout",
        "time",
        Some("0"),
        "The maximum time for trying servers; 0 means no limit.",
        Setter::Millis(|c| &mut c.next_upstream_timeout),
    ),
    row(
        // A page of memory, as in nginx.
        "buffer_size",
        "size",
        Some("4k"),
        "The buffer for the response header, which must fit into it.",
        Setter::Size(|c| &mut c.buffer_size),
    ),
    row(
        // On: a slow client would otherwise keep a server busy for as long as it takes to receive
        // the response.
        "buffering",
        "on | off",
        Some("on"),
        "Whether to read a response as fast as the server sends it, rather than as fast as the client receives it. The \
         response header `X-Accel-Buffering` overrides it.",
        Setter::Flag(|c| &mut c.buffering),
    ),
    row(
        "buffers",
        "number size",
        Some("8 4k"),
        "The number and size of memory buffers for a response.",
        Setter::Buffers(|c| &mut c.buffers),
    ),
    row(
        "busy_buffers_size",
        "size",
        None,
        "How much of the buffers may be busy sending to the client. Checked as in nginx, and has no other effect.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.busy_buffers_size = Some(line.size(0)?);
            Ok(())
        }),
    ),
    row(
        // No default in the table: nginx's rule about the minimum is for values that were set.
        "max_temp_file_size",
        "size",
        None,
        "The maximum size of the temporary file for a response that does not fit into memory, 1 GB by default; 0 \
         disables temporary files.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.max_temp_file_size = Some(line.size(0)?);
            Ok(())
        }),
    ),
    row(
        "temp_file_write_size",
        "size",
        None,
        "The maximum amount written to a temporary file at once.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.temp_file_write_size = Some(line.size(0)?);
            Ok(())
        }),
    ),
    row(
        "temp_path",
        "path [level1 [level2 [level3]]]",
        None,
        "The directory for temporary files. They are unlinked as soon as they are open, so the levels have no effect.",
        Setter::Custom(Arity::between(1, 4), RepeatRule::Once, temp_path),
    ),
    row(
        // On: with the body at hand, a request can be sent to the next server if the first one
        // fails.
        "request_buffering",
        "on | off",
        Some("on"),
        "Whether to read the whole request body before connecting to a server.",
        Setter::Flag(|c| &mut c.request_buffering),
    ),
    row(
        // Off: once the client has gone, its response is of no use.
        "ignore_client_abort",
        "on | off",
        Some("off"),
        "Whether to continue a request after its client has disconnected.",
        Setter::Flag(|c| &mut c.ignore_client_abort),
    ),
    row(
        // Off as in nginx: the server's own pages are passed on.
        "intercept_errors",
        "on | off",
        Some("off"),
        "Whether to apply `error_page` to responses with a status of 300 or more.",
        Setter::Flag(|c| &mut c.intercept_errors),
    ),
    row(
        // For servers that support no ranges: Weir cuts them out of the whole.
        "force_ranges",
        "on | off",
        Some("off"),
        "Whether to serve byte ranges regardless of the `Accept-Ranges` of the upstream response.",
        Setter::Flag(|c| &mut c.force_ranges),
    ),
    row(
        // Without buffering, the client determines the rate.
        "limit_rate",
        "rate",
        None,
        "The rate limit for reading a response, in bytes per second; 0 means no limit. Only works with buffering.",
        Setter::OptionalValue(|c| &mut c.limit_rate),
    ),
    row(
        "pass_request_headers",
        "on | off",
        Some("on"),
        "Whether to pass the client's headers.",
        Setter::Flag(|c| &mut c.pass_request_headers),
    ),
    row(
        // With `off` the length is left out as well, or the server would wait for a body.
        "pass_request_body",
        "on | off",
        Some("on"),
        "Whether to pass the client's request body.",
        Setter::Flag(|c| &mut c.pass_request_body),
    ),
    row(
        // Like all lists here, it replaces that of the outer block.
        "hide_header",
        "field",
        None,
        "A response header that is not passed on.",
        Setter::Custom(
            Arity::ONE,
            RepeatRule::Fresh(|c| c.hide_header.clear()),
            |c, line| {
                c.hide_header.push(line.arg(0).text.clone());
                Ok(())
            },
        ),
    ),
    row(
        "pass_header",
        "field",
        None,
        "A response header that is passed on although it is not by default.",
        Setter::Custom(
            Arity::ONE,
            RepeatRule::Fresh(|c| c.pass_header.clear()),
            |c, line| {
                c.pass_header.push(line.arg(0).text.clone());
                Ok(())
            },
        ),
    ),
    row(
        // The headers are still passed on; only their effect here is disabled.
        "ignore_headers",
        "X-Accel-Redirect | X-Accel-Expires | X-Accel-Limit-Rate | X-Accel-Buffering | X-Accel-Charset | Expires | Cache-Control | Set-Cookie | Vary …",
        None,
        "Upstream response headers whose effect on Weir is disabled.",
        Setter::Bits(IgnoreHeaders::WORDS, |c| &mut c.ignore_headers.0),
    ),
    row(
        // A mirror rather than a cache: the files are served by `root` and `try_files`, if at all.
        "store",
        "on | off | string",
        Some("off"),
        "Whether to save responses as files: `on` at the path given by `root` or `alias`, or a string with the path.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, store),
    ),
    row(
        "store_access",
        "users:permissions …",
        Some("user:rw"),
        "The permissions of saved files, such as `user:rw group:r all:r`.",
        Setter::Custom(Arity::between(1, 3), RepeatRule::Once, store_access),
    ),
]);

/// Reads `…_bind`. Only a constant address can be checked now.
fn bind(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    if line.args().len() == 1 && line.text(0) == "off" {
        conf.bind = None;
        return Ok(());
    }
    let transparent = match line.get(1) {
        None => false,
        Some(word) if word.is("transparent") => true,
        Some(_) => return Err(line.invalid_parameter(1)),
    };
    let address = line.expression(0)?;
    if address.constant().is_some() && http::upstream::parse_local_address(line.text(0)).is_none() {
        return Err(line.error_at(0, format!("invalid address \"{}\"", line.text(0))));
    }
    conf.bind = Some(UpstreamBind {
        address,
        transparent,
    });
    Ok(())
}

/// Reads `…_temp_path`. The master creates the directory before the worker gives up its rights.
fn temp_path(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.temp_path = line.temporary_path(line.arg(0));
    line.lasting::<RequiredDirectories>()
        .0
        .insert(conf.temp_path.clone());
    Ok(())
}

/// Reads `…_store`.
fn store(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.store = match &**line.text(0) {
        b"off" => UpstreamStore::Off,
        b"on" => {
            // The sandbox must allow writing below document roots.
            line.level.build.needs().changes_roots = true;
            UpstreamStore::On
        }
        _ => {
            let path = line.expression(0)?;
            // The path starts in the server's prefix, which the sandbox must allow to be written.
            line.level
                .build
                .prefix_for(conf::PathUse::Write, line.text(0));
            UpstreamStore::Path(path)
        }
    };
    Ok(())
}

/// Reads `…_store_access`.
fn store_access(conf: &mut UpstreamSettings, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.store_access = file_permissions::parse_permissions(line)?;
    Ok(())
}

/// The fields that are not passed on: the protocol's defaults and `hide_header`, minus
/// `pass_header`.
pub(super) fn hidden_fields(conf: &UpstreamSettings, usual: &[&str]) -> FieldSet {
    let mut set = FieldSet::default();
    for name in usual {
        set.insert(name.as_bytes());
    }
    for name in &conf.hide_header {
        set.insert(name);
    }
    for name in &conf.pass_header {
        set.remove(name);
    }
    set
}

/// nginx's rules about buffer sizes. Weir does not need them all, but a configuration that nginx
/// refuses should not appear to work.
pub(super) fn check_buffers(conf: &UpstreamSettings, prefix: &str) -> Result<(), Diagnostic> {
    let error = |text: String| Err(Diagnostic::error(text, Span::NONE));
    if conf.buffers.count == 1 {
        return error(format!("there must be at least 2 \"{prefix}buffers\""));
    }
    let largest = conf.buffer_size.max(conf.buffers.size);
    let all_but_one = u64::from(conf.buffers.count.saturating_sub(1)) * conf.buffers.size;
    let least = format!(
        "the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
    );
    let busy = conf.busy_buffers_size.unwrap_or(2 * largest);
    if busy < largest {
        return error(format!(
            "\"{prefix}busy_buffers_size\" must be equal to or greater than {least}"
        ));
    }
    if conf.buffers.count > 0 && busy > all_but_one {
        return error(format!(
            "\"{prefix}busy_buffers_size\" must be less than the size of all \"{prefix}buffers\" minus one buffer"
        ));
    }
    if conf.temp_file_write_size.is_some_and(|size| size < largest) {
        return error(format!(
            "\"{prefix}temp_file_write_size\" must be equal to or greater than {least}"
        ));
    }
    if conf
        .max_temp_file_size
        .is_some_and(|size| size != 0 && size < largest)
    {
        return error(format!(
            "\"{prefix}max_temp_file_size\" must be equal to zero to disable temporary files usage or must be equal to or greater than {least}"
        ));
    }
    Ok(())
}
