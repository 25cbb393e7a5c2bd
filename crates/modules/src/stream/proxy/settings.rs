//! The directives of stream's `proxy_pass`, and the settings that they make.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::stream::upstream::StreamGroups;
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, RepeatRule,
    STREAM_SERVER, Setter,
};
use net::upstream::{GroupOrigin, UpstreamGroup};
use rt::net::SocketAddress;

use super::rate;

const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<Conf>,
) -> Directive<Conf> {
    Directive {
        name,
        syntax,
        default,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc,
        set,
    }
}

pub(super) static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "proxy_pass",
        syntax: "address",
        default: None,
        contexts: STREAM_SERVER,
        since: "0.1",
        doc: "The upstream server: `host:port`, `unix:path`, the name of an `upstream`, or a text with variables that \
              yields one of these.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, proxy_pass),
    },
    row(
        "proxy_bind",
        "address [transparent] | off",
        None,
        "The local address of upstream connections. With `transparent` it may be an address of another machine, such \
         as that of the client.",
        Setter::Custom(Arity::between(1, 2), RepeatRule::Once, bind),
    ),
    row(
        "proxy_socket_keepalive",
        "on | off",
        Some("off"),
        "Whether to enable TCP keep-alive probes on upstream connections.",
        Setter::Flag(|c| &mut c.socket_keepalive),
    ),
    row(
        "proxy_socket_rcvbuf",
        "size",
        Some("0"),
        "The receive buffer size of upstream connections; 0 leaves it to the system.",
        Setter::Size(|c| &mut c.socket_rcvbuf),
    ),
    row(
        "proxy_socket_sndbuf",
        "size",
        Some("0"),
        "The send buffer size of upstream connections; 0 leaves it to the system.",
        Setter::Size(|c| &mut c.socket_sndbuf),
    ),
    row(
        "proxy_connect_timeout",
        "time",
        Some("60s"),
        "The timeout for connecting to an upstream server.",
        Setter::Millis(|c| &mut c.connect_timeout),
    ),
    row(
        "proxy_timeout",
        "time",
        Some("10m"),
        "The timeout of a session without data in either direction.",
        Setter::Millis(|c| &mut c.timeout),
    ),
    row(
        "proxy_buffer_size",
        "size",
        Some("16k"),
        "The size of the read buffer for each direction. Sustained transfers are spliced in the kernel.",
        Setter::Size(|c| &mut c.buffer_size),
    ),
    row(
        "proxy_downstream_buffer",
        "size",
        None,
        "The old name of `proxy_buffer_size`.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, buffer_size),
    ),
    row(
        "proxy_upstream_buffer",
        "size",
        None,
        "The old name of `proxy_buffer_size`.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, buffer_size),
    ),
    row(
        "proxy_upload_rate",
        "rate",
        Some("0"),
        "The rate limit for reading from the client, in bytes per second; 0 means no limit. May contain variables.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.upload_rate = rate::read(line)?;
            Ok(())
        }),
    ),
    row(
        "proxy_download_rate",
        "rate",
        Some("0"),
        "The rate limit for reading from the upstream server, in bytes per second; 0 means no limit. May contain \
         variables.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.download_rate = rate::read(line)?;
            Ok(())
        }),
    ),
    row(
        "proxy_requests",
        "number",
        Some("0"),
        "The number of client datagrams per session; the next one starts another session. 0 means all belong to one \
         session.",
        Setter::Number(|c| &mut c.requests, 0, i64::MAX),
    ),
    row(
        "proxy_responses",
        "number",
        None,
        "The number of response datagrams expected for each client datagram: the session ends when they have arrived. \
         If not set, it ends by `proxy_timeout`.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.responses = Some(line.number(0, 0, i64::MAX)?.unsigned_abs());
            Ok(())
        }),
    ),
    row(
        "proxy_next_upstream",
        "on | off",
        Some("on"),
        "Whether to try the next server of the group if the connection to one fails.",
        Setter::Flag(|c| &mut c.next_upstream),
    ),
    row(
        "proxy_next_upstream_tries",
        "number",
        Some("0"),
        "The maximum number of servers to try; 0 means all.",
        Setter::Number(|c| &mut c.next_upstream_tries, 0, i64::MAX),
    ),
    row(
        "proxy_next_upstream_timeout",
        "time",
        Some("0"),
        "The maximum time for trying servers; 0 means no limit.",
        Setter::Millis(|c| &mut c.next_upstream_timeout),
    ),
    row(
        "proxy_protocol",
        "on | v2 | off",
        Some("off"),
        "Whether to send a PROXY protocol header with the client address to the upstream server; `on` means version 1.",
        Setter::Word(&["off", "on", "v2"], |c, i| {
            c.proxy_protocol = [
                ProxyProtocolHeader::None,
                ProxyProtocolHeader::V1,
                ProxyProtocolHeader::V2,
            ][i]
        }),
    ),
    row(
        "proxy_half_close",
        "on | off",
        Some("off"),
        "Whether to keep one direction open after the other has been closed.",
        Setter::Flag(|c| &mut c.half_close),
    ),
]);

/// How a server's sessions reach the server behind it; each field is the directive of its name, from the rows above.
#[derive(Clone, Default)]
pub(super) struct Conf {
    /// `None` if the sessions end in another handler, such as `return`.
    pub(super) pass: Option<StreamPass>,
    pub(super) bind: Option<BindAddress>,
    pub(super) socket_keepalive: bool,
    /// In bytes; 0 leaves it to the kernel.
    pub(super) socket_rcvbuf: u64,
    /// In bytes; 0 leaves it to the kernel.
    pub(super) socket_sndbuf: u64,
    pub(super) connect_timeout: Duration,
    /// Between two reads or writes of a session, in whichever direction.
    pub(super) timeout: Duration,
    /// In bytes, for each direction.
    pub(super) buffer_size: u64,
    /// In bytes per second; 0 or empty is no limit.
    pub(super) upload_rate: Expression,
    /// In bytes per second; 0 or empty is no limit.
    pub(super) download_rate: Expression,
    /// Datagrams of a client in one session; 0 is no limit.
    pub(super) requests: i64,
    /// Datagrams that answer one of the client's. Unlike 0, `None` means that it is not known how many.
    pub(super) responses: Option<u64>,
    pub(super) next_upstream: bool,
    /// 0 is no limit.
    pub(super) next_upstream_tries: i64,
    /// 0 is no limit.
    pub(super) next_upstream_timeout: Duration,
    pub(super) proxy_protocol: ProxyProtocolHeader,
    pub(super) half_close: bool,
}

/// Where a session goes.
#[derive(Clone)]
pub(super) enum StreamPass {
    /// A name without variables: an `upstream`, or the addresses of a host, known before the first session.
    Group(Arc<UpstreamGroup>),
    /// Evaluated for each session.
    Text(Expression),
}

/// `proxy_bind`.
#[derive(Clone)]
pub(super) struct BindAddress {
    pub(super) address: Expression,
    /// The address need not be one of this machine's (`IP_TRANSPARENT`).
    pub(super) transparent: bool,
}

/// Which header a connection to the server begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProxyProtocolHeader {
    #[default]
    None,
    V1,
    V2,
}

/// Reads `proxy_pass`. A group is looked up now, so that a name that cannot be resolved is an error at `-t`.
fn proxy_pass(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    if Expression::has_variables(line.text(0)) {
        conf.pass = Some(StreamPass::Text(line.expression(0)?));
        return Ok(());
    }
    let place = line.sources().place(line.node.span).unwrap_or_default();
    let groups = line.shared::<StreamGroups>().clone();
    let reference = groups
        .group_for_address(line.text(0), 0, &place)
        .map_err(|message| crate::shared::upstream_block::invalid_address(line, message))?;
    if reference.group.settings.origin == (GroupOrigin::Url { port: Some(0) }) {
        let text = line.text(0);
        return Err(crate::shared::upstream_block::missing_port(
            &reference, line, text,
        ));
    }
    crate::shared::upstream_block::warn_unresolved(&reference, line);
    conf.pass = Some(StreamPass::Group(reference.group));
    Ok(())
}

/// Reads the names that `proxy_buffer_size` had before; they still work in nginx, too.
fn buffer_size(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.buffer_size = line.size(0)?;
    line.warn(format!(
        "the \"{}\" directive is deprecated, use the \"proxy_buffer_size\" directive instead",
        line.name()
    ));
    Ok(())
}

/// Reads `proxy_bind`.
fn bind(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
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
    if address.constant().is_some() && local_address(line.text(0)).is_none() {
        return Err(line.error_at(0, format!("invalid address \"{}\"", line.text(0))));
    }
    conf.bind = Some(BindAddress {
        address,
        transparent,
    });
    Ok(())
}

/// An IP address, perhaps with a port.
pub(super) fn local_address(text: &[u8]) -> Option<SocketAddress> {
    if let Some(ip) = conf::address::ip(text) {
        return Some(SocketAddr::new(ip, 0).into());
    }
    let address = conf::HostPort::parse_peer(text).ok()?;
    Some(SocketAddr::new(address.ip()?, address.port.unwrap_or(0)).into())
}
