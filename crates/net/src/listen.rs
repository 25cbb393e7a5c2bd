//! The part of the `listen` directive that http and stream share: addresses, and the parameters that belong to the
//! socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bstr::{BStr, ByteSlice};
use conf::{AddressHost, Diagnostic, DirectiveLine};
use host::listen::{KeepAlive, ListenAddress, ListenOptions};

/// How long the kernel holds back a connection on which the client has sent nothing (`deferred`, TCP_DEFER_ACCEPT);
/// nginx's value.
const DEFERRED: Duration = Duration::from_secs(1);

/// The addresses in the first argument of a `listen` directive: a name may have several, and so does a range of
/// ports.
///
/// Without a `default_port` the argument must have a port. A name is looked up at once, which blocks: only while
/// the configuration is read.
pub fn listen_addresses(
    line: &DirectiveLine,
    default_port: Option<u16>,
) -> Result<Vec<ListenAddress>, Diagnostic> {
    let address = line.listen_address(0)?;
    let ips: Vec<IpAddr> = match &address.host {
        AddressHost::Unix(path) => return Ok(vec![ListenAddress::Unix(path.clone())]),
        AddressHost::Any => vec![Ipv4Addr::UNSPECIFIED.into()],
        AddressHost::V4(ip) => vec![(*ip).into()],
        AddressHost::V6(ip) => vec![(*ip).into()],
        AddressHost::Name(name) => resolve(line, name.as_bstr())?,
    };
    let Some(first) = address.port.or(default_port) else {
        return Err(line.error_at(
            0,
            format!(
                "no port in \"{}\" of the \"listen\" directive",
                line.text(0)
            ),
        ));
    };
    let ports = first..=address.last_port.unwrap_or(first);
    Ok(ips
        .iter()
        .flat_map(|ip| {
            ports
                .clone()
                .map(|port| ListenAddress::Tcp(SocketAddr::new(*ip, port)))
        })
        .collect())
}

/// The addresses of a host name. Unlike an upstream's, a name that is not found here is an error: there is nothing
/// to bind to.
fn resolve(line: &DirectiveLine, name: &BStr) -> Result<Vec<IpAddr>, Diagnostic> {
    let text = line.text(0);
    let not_found = || {
        line.error_at(
            0,
            format!("host not found in \"{text}\" of the \"listen\" directive"),
        )
    };
    let name = name.to_str().map_err(|_| not_found())?;
    crate::upstream::note_name_asked();
    let found = (name, 0).to_socket_addrs().map_err(|_| not_found())?;
    let mut ips: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    // getaddrinfo may return an address once for each socket type.
    ips.dedup();
    if ips.is_empty() {
        Err(not_found())
    } else {
        Ok(ips)
    }
}

/// Reads argument `index` of a `listen` directive as a socket parameter. `false` if it is not one: the engine tries
/// its own.
pub fn socket_parameter(
    options: &mut ListenOptions,
    line: &mut DirectiveLine,
    index: usize,
) -> Result<bool, Diagnostic> {
    let text = line.text(index);
    let (name, value) = match text.split_once_str("=") {
        Some((name, value)) => (name.as_bstr(), Some(value.as_bstr())),
        None => (text, None),
    };
    let invalid = || line.error_at(index, format!("invalid {name} \"{text}\""));
    let number = || -> Result<usize, Diagnostic> {
        value
            .and_then(|v| v.to_str().ok()?.parse().ok())
            .filter(|n| *n > 0)
            .ok_or_else(invalid)
    };
    let size = || {
        value
            .and_then(|v| base::units::parse_size(v))
            .map(|n| n as usize)
            .ok_or_else(invalid)
    };
    match (name.as_bytes(), value.is_some()) {
        // In nginx this forces a separate bind() for an address that a wildcard covers. The caller notes that a
        // socket parameter was given, which has that effect.
        (b"bind", false) => {}
        (b"backlog", true) => options.backlog = number()? as i32,
        (b"rcvbuf", true) => options.receive_buffer = Some(size()?),
        (b"sndbuf", true) => options.send_buffer = Some(size()?),
        (b"fastopen", true) => {
            let queue = value.and_then(|v| v.to_str().ok()?.parse::<i32>().ok());
            options.fast_open = Some(queue.filter(|n| *n >= 0).ok_or_else(invalid)?);
        }
        (b"reuseport", false) => options.reuse_port = true,
        (b"multipath", false) => options.multipath = true,
        (b"deferred", false) => options.deferred = Some(DEFERRED),
        (b"ipv6only", true) => {
            options.ipv6_only = match value.map(|v| v.as_bytes()) {
                Some(b"on") => true,
                Some(b"off") => false,
                _ => return Err(line.invalid_parameter(index)),
            };
        }
        (b"so_keepalive", true) => {
            options.keepalive = keepalive(line, index, value.unwrap_or_default())?
        }
        // Parameters of FreeBSD. nginx logs the same on Linux and starts.
        (b"setfib" | b"accept_filter", true) => {
            let message = format!("\"{name}\" is not supported on this platform, ignored");
            line.warn_at(index, message);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// `so_keepalive=on|off|[idle]:[interval]:[count]`.
fn keepalive(line: &DirectiveLine, index: usize, value: &BStr) -> Result<KeepAlive, Diagnostic> {
    let invalid = || line.error_at(index, format!("invalid so_keepalive value: \"{value}\""));
    match value.as_bytes() {
        b"on" => {
            return Ok(KeepAlive::On {
                idle: None,
                interval: None,
                count: None,
            });
        }
        b"off" => return Ok(KeepAlive::Off),
        _ => {}
    }
    let parts: Vec<&[u8]> = value.split_str(":").collect();
    let (idle, interval, count) = match parts[..] {
        [idle, interval] => (idle, interval, b"".as_slice()),
        [idle, interval, count] => (idle, interval, count),
        _ => return Err(invalid()),
    };
    // Both an empty part and zero mean the kernel's default.
    let time = |text: &[u8]| match text {
        b"" => Ok(None),
        text => base::units::parse_seconds(text)
            .map(|time| Some(time).filter(|time| !time.is_zero()))
            .ok_or_else(invalid),
    };
    let count: Option<u32> = match count {
        b"" => None,
        text => {
            let number = text.to_str().ok().and_then(|t| t.parse().ok());
            Some(number.ok_or_else(invalid)?).filter(|number| *number > 0)
        }
    };
    let (idle, interval) = (time(idle)?, time(interval)?);
    // `::` says nothing, and nginx rejects it too.
    if idle.is_none() && interval.is_none() && count.is_none() {
        return Err(invalid());
    }
    Ok(KeepAlive::On {
        idle,
        interval,
        count,
    })
}

/// Whether this is the wildcard address of its family.
pub fn is_wildcard(address: &ListenAddress) -> bool {
    match address {
        ListenAddress::Tcp(address) | ListenAddress::Udp(address) => address.ip().is_unspecified(),
        ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => false,
    }
}

/// Whether a socket bound to `wildcard` accepts the connections to `address` too. IPv6 does not cover IPv4:
/// `ipv6only` is on by default, as in nginx.
pub fn wildcard_covers(wildcard: &ListenAddress, address: &ListenAddress) -> bool {
    let same = |wildcard: &SocketAddr, address: &SocketAddr| {
        wildcard.port() == address.port() && wildcard.is_ipv4() == address.is_ipv4()
    };
    match (wildcard, address) {
        (ListenAddress::Tcp(wildcard), ListenAddress::Tcp(address))
        | (ListenAddress::Udp(wildcard), ListenAddress::Udp(address)) => same(wildcard, address),
        _ => false,
    }
}
