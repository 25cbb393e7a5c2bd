//! The peers that `set_real_ip_from` trusts to name the client: in http by a header field, in
//! stream by the PROXY protocol.

use std::net::{IpAddr, ToSocketAddrs};

use base::text::write_number;
use bstr::ByteSlice;
use conf::{Cidr, Diagnostic, DirectiveLine, Variable};
use net::client::ConnectionEnds;
use rt::net::SocketAddress;

/// `$realip_remote_addr` and `$realip_remote_port`.
pub(crate) const fn variables<S: ConnectionEnds>() -> [Variable<S>; 2] {
    [
        Variable::new(
            "realip_remote_addr",
            |s, out| {
                out.extend_from_slice(&s.peer().text);
                true
            },
            "The original address of the peer.",
        ),
        Variable::new(
            "realip_remote_port",
            |s, out| {
                let port = s.peer().address.port();
                if port > 0 {
                    write_number(u64::from(port), out);
                }
                true
            },
            "The original port of the peer.",
        ),
    ]
}

/// The trusted peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedPeers {
    /// Networks and single addresses.
    pub(crate) networks: Vec<Cidr>,
    /// `unix:`: every peer on a unix socket.
    unix: bool,
}

impl TrustedPeers {
    /// Drops inherited peers: a block with such lines of its own inherits none.
    pub(crate) fn clear(&mut self) {
        *self = TrustedPeers::default();
    }

    /// Whether no peer is trusted.
    pub(crate) fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// Whether this peer is trusted.
    pub(crate) fn includes(&self, peer: &SocketAddress) -> bool {
        match peer {
            SocketAddress::Unix(_) => self.unix,
            SocketAddress::Inet(peer) => self
                .networks
                .iter()
                .any(|network| network.contains(peer.ip())),
        }
    }

    /// Reads one line: `unix:`, an address, a network or a host name. A name is resolved while the
    /// configuration is read, the only time when this may block; later changes of its addresses
    /// need a reload, as in nginx.
    pub(crate) fn read(&mut self, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        if line.text(0) == "unix:" {
            self.unix = true;
            return Ok(());
        }
        if Cidr::parse(line.text(0)).is_some() {
            self.networks.push(line.cidr(0)?);
            return Ok(());
        }
        for ip in resolve_host(line)? {
            let network =
                Cidr::parse(ip.to_string().as_bytes()).expect("an address is a network of one");
            self.networks.push(network.0);
        }
        Ok(())
    }
}

/// All addresses of a host name.
fn resolve_host(line: &DirectiveLine) -> Result<Vec<IpAddr>, Diagnostic> {
    let text = line.text(0);
    let not_found = || line.error_at(0, format!("host not found in set_real_ip_from \"{text}\""));
    let name = text.to_str().map_err(|_| not_found())?;
    net::upstream::note_name_asked();
    let found = (name, 0).to_socket_addrs().map_err(|_| not_found())?;
    Ok(found.map(|address| address.ip()).collect())
}
