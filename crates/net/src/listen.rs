//! What `listen` directives of all engines have in common: addresses, and the parameters that belong to the socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bstr::{BStr, ByteSlice};
use conf::{Diagnostic, Host, Line};
use host::listen::{KeepAlive, ListenAddress, ListenOptions};

/// How long the kernel holds back a connection on which nothing comes (`deferred`); nginx's value.
const DEFERRED: Duration = Duration::from_secs(1);

/// The addresses that word 0 of a `listen` directive means: a name or a range of ports is several.
///
/// Without a `default_port` the word must have one. Names are looked up here, so only while the configuration is read.
pub fn addresses(line: &Line, default_port: Option<u16>) -> Result<Vec<ListenAddress>, Diagnostic> {
    let address = line.listen_address(0)?;
    let ips: Vec<IpAddr> = match &address.host {
        Host::Unix(path) => return Ok(vec![ListenAddress::Unix(path.clone())]),
        Host::Any => vec![Ipv4Addr::UNSPECIFIED.into()],
        Host::V4(ip) => vec![(*ip).into()],
        Host::V6(ip) => vec![(*ip).into()],
        Host::Name(name) => resolve(line, name.as_bstr())?,
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

fn resolve(line: &Line, name: &BStr) -> Result<Vec<IpAddr>, Diagnostic> {
    let text = line.text(0);
    let not_found = || {
        line.error_at(
            0,
            format!("host not found in \"{text}\" of the \"listen\" directive"),
        )
    };
    let name = name.to_str().map_err(|_| not_found())?;
    let found = (name, 0).to_socket_addrs().map_err(|_| not_found())?;
    let mut ips: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    ips.dedup();
    if ips.is_empty() {
        Err(not_found())
    } else {
        Ok(ips)
    }
}

/// Reads word `index` of a `listen` directive as a parameter of the socket. `false`: it is none of those.
pub fn socket_parameter(
    options: &mut ListenOptions,
    line: &mut Line,
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
        (b"setfib" | b"accept_filter", true) => {
            let message = format!("\"{name}\" is not supported on this platform, ignored");
            line.warn_at(index, message);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The error for a parameter that nginx knows and Weir does not have yet.
pub fn not_yet(line: &Line, index: usize) -> Diagnostic {
    let name = line.text(index);
    let error = line.error_at(
        index,
        format!("the \"{name}\" parameter is not supported yet"),
    );
    error.note("nginx 1.31 has it; Weir supports HTTP/1 and HTTP/2")
}

fn keepalive(line: &Line, index: usize, value: &BStr) -> Result<KeepAlive, Diagnostic> {
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
    // Nothing and zero both mean the system's figure.
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
    if idle.is_none() && interval.is_none() && count.is_none() {
        return Err(invalid());
    }
    Ok(KeepAlive::On {
        idle,
        interval,
        count,
    })
}

/// Whether this is every address of its family.
pub fn is_wildcard(address: &ListenAddress) -> bool {
    match address {
        ListenAddress::Tcp(address) | ListenAddress::Udp(address) => address.ip().is_unspecified(),
        ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => false,
    }
}

/// Whether connections to `address` come by a socket on `wildcard` too.
pub fn covers(wildcard: &ListenAddress, address: &ListenAddress) -> bool {
    let same = |wildcard: &SocketAddr, address: &SocketAddr| {
        wildcard.port() == address.port() && wildcard.is_ipv4() == address.is_ipv4()
    };
    match (wildcard, address) {
        (ListenAddress::Tcp(wildcard), ListenAddress::Tcp(address))
        | (ListenAddress::Udp(wildcard), ListenAddress::Udp(address)) => same(wildcard, address),
        _ => false,
    }
}
