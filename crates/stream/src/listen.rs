//! Where servers listen: the `listen` directive
//! (<https://nginx.org/en/docs/stream/ngx_stream_core_module.html#listen>). How the claims of all servers become
//! sockets is `net::endpoint`.

use conf::{Diagnostic, DirectiveLine};
use host::listen::ListenAddress;
use net::endpoint::ListenEntry;

/// Parameters that make no sense for datagrams; nginx refuses them together with `udp`.
const STREAM_ONLY: [&str; 7] = [
    "ssl",
    "fastopen",
    "backlog",
    "deferred",
    "multipath",
    "so_keepalive",
    "proxy_protocol",
];

/// The setter of `listen`.
pub fn set_listen(
    listens: &mut Vec<ListenEntry>,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    let mut listen = ListenEntry::new(line.node.name.span);
    let mut udp = false;
    for index in 1..line.args().len() {
        if line.text(index) == "udp" {
            udp = true;
        } else if !listen.parameter(line, index)? {
            return Err(line.invalid_parameter(index));
        }
    }
    if udp {
        // After all parameters were read, because `udp` may come behind those that it excludes.
        check_datagrams(line)?;
    }
    let addresses = net::listen::listen_addresses(line, None)?.into_iter();
    let addresses = addresses.map(|address| if udp { datagrams(address) } else { address });
    listen.add_to(listens, addresses, line)
}

/// Refuses parameters that need a connection.
fn check_datagrams(line: &DirectiveLine) -> Result<(), Diagnostic> {
    for word in line.args() {
        let name = word
            .text
            .split(|byte| *byte == b'=')
            .next()
            .unwrap_or_default();
        if let Some(name) = STREAM_ONLY.iter().find(|known| known.as_bytes() == name) {
            return Err(line.directive_error(&format!(
                "\"{name}\" parameter is incompatible with \"udp\""
            )));
        }
    }
    Ok(())
}

fn datagrams(address: ListenAddress) -> ListenAddress {
    match address {
        ListenAddress::Tcp(address) => ListenAddress::Udp(address),
        ListenAddress::Unix(path) => ListenAddress::UnixDatagram(path),
        other => other,
    }
}
