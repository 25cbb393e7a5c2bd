//! Settings of a server, which apply before a location is known: mainly the reading of the request's head.

use std::time::Duration;

use bstr::BString;
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP_SERVER, RepeatRule, SERVER,
    Setter,
};

use net::endpoint::ListenEntry;

use crate::listen::{self, ServerName};

/// The values of the directives below, for one server.
#[derive(Clone, Debug, Default)]
pub struct ServerConf {
    /// The time limit for the head of a request.
    pub client_header_timeout: Duration,
    /// The size of the first buffer for a request's head, in bytes. Most heads fit into it.
    pub client_header_buffer_size: u64,
    /// The number of larger buffers that a request's head may use.
    pub large_buffers: u64,
    /// The size of each of them. A longer request line is answered with 414, a longer field with 400.
    pub large_buffer_size: u64,
    /// The maximum number of header fields of a request.
    pub max_headers: i64,
    /// Whether invalid header fields are ignored; otherwise the request is refused.
    pub ignore_invalid_headers: bool,
    /// Whether field names may contain underscores. They become the same variable as hyphens, so by default such fields
    /// are invalid.
    pub underscores_in_headers: bool,
    /// Whether adjacent slashes in a path are merged.
    pub merge_slashes: bool,
    /// The names of the server.
    pub names: Vec<ServerName>,
    /// The first name in lower case: `$server_name`.
    pub name: BString,
    /// The addresses that it listens on.
    pub listens: Vec<ListenEntry>,
    /// Its settings of HTTP/2.
    pub http2: super::Http2Conf,
    /// Its settings of HTTP/3.
    pub http3: super::Http3Conf,
}

/// The directives.
pub static DIRECTIVES: DirectiveTable<ServerConf> = DirectiveTable::new(&[
    Directive {
        name: "listen",
        syntax: "address[:port] [default_server] [ssl] [http2 | quic] [proxy_protocol] [cluster=name] [backlog=number] [reuseport] …",
        default: None,
        contexts: SERVER,
        since: "0.1",
        doc: "The address, port or unix socket on which the server accepts connections, with socket options. With `cluster`, \
              only members of that `cluster` are answered there.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |conf, line| {
            listen::set_listen(&mut conf.listens, line)
        }),
    },
    Directive {
        name: "server_name",
        syntax: "name …",
        default: None,
        contexts: SERVER,
        since: "0.1",
        doc: "The names of the server: exact, with a leading or trailing `*`, or a regular expression after `~`. Exact \
              names are tried first, then the longest name with a leading `*`, the longest with a trailing `*`, and \
              the first matching regular expression.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| {
            net::server_name::read(&mut c.names, &mut c.name, line)
        }),
    },
    Directive {
        name: "client_header_timeout",
        syntax: "time",
        default: Some("60s"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "The timeout for reading the request header. A client that does not send all of it within this time gets \
              408.",
        set: Setter::Millis(|c| &mut c.client_header_timeout),
    },
    Directive {
        name: "client_header_buffer_size",
        syntax: "size",
        default: Some("1k"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "The initial buffer for the request header. Larger headers use `large_client_header_buffers`.",
        set: Setter::Size(|c| &mut c.client_header_buffer_size),
    },
    Directive {
        name: "large_client_header_buffers",
        syntax: "number size",
        default: Some("4 8k"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "The number and size of buffers for large request headers. A request line longer than one buffer gets \
              414; a header longer than one buffer, or more headers than fit into all of them, 400.",
        set: Setter::Custom(
            Arity::exactly(2),
            RepeatRule::Once,
            large_client_header_buffers,
        ),
    },
    Directive {
        name: "max_headers",
        syntax: "number",
        default: Some("1000"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "The maximum number of request headers. A request with more gets 400.",
        set: Setter::Number(|c| &mut c.max_headers, 0, i64::MAX),
    },
    Directive {
        name: "ignore_invalid_headers",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Whether to ignore headers with invalid names; otherwise the request is rejected.",
        set: Setter::Flag(|c| &mut c.ignore_invalid_headers),
    },
    Directive {
        name: "underscores_in_headers",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Whether underscores are valid in header names.",
        set: Setter::Flag(|c| &mut c.underscores_in_headers),
    },
    Directive {
        name: "merge_slashes",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Whether to merge runs of adjacent slashes in a path into one.",
        set: Setter::Flag(|c| &mut c.merge_slashes),
    },
    Directive {
        name: "connection_pool_size",
        syntax: "size",
        default: None,
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            super::http2::check_pool_size(line)
        }),
    },
    Directive {
        name: "request_pool_size",
        syntax: "size",
        default: None,
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            super::http2::check_pool_size(line)
        }),
    },
]);

fn large_client_header_buffers(
    conf: &mut ServerConf,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    let buffers = line.buffers()?;
    conf.large_buffers = buffers.count.into();
    conf.large_buffer_size = buffers.size;
    Ok(())
}
