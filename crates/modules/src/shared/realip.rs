//! Whom `set_real_ip_from` trusts to say who the client is: in http by a header field, in stream by the PROXY protocol.

use std::net::{IpAddr, ToSocketAddrs};

use bstr::ByteSlice;
use conf::{Cidr, Diagnostic, Line};
use rt::net::Address;

/// The peers that are believed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trusted {
    pub(crate) networks: Vec<Cidr>,
    /// Every peer by a unix socket.
    unix: bool,
}

impl Trusted {
    /// Forgets what was inherited.
    pub(crate) fn clear(&mut self) {
        *self = Trusted::default();
    }

    /// Whether nobody is.
    pub(crate) fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// Whether this peer is.
    pub(crate) fn includes(&self, peer: &Address) -> bool {
        match peer {
            Address::Unix(_) => self.unix,
            Address::Inet(peer) => self
                .networks
                .iter()
                .any(|network| network.contains(peer.ip())),
        }
    }

    /// Reads one line: `unix:`, an address, a network, or the name of a host. A name is looked up while the
    /// configuration is read; only then may this wait.
    pub(crate) fn read(&mut self, line: &mut Line) -> Result<(), Diagnostic> {
        if line.text(0) == "unix:" {
            self.unix = true;
            return Ok(());
        }
        if Cidr::parse(line.text(0)).is_some() {
            self.networks.push(line.cidr(0)?);
            return Ok(());
        }
        for ip in look_up(line)? {
            let network =
                Cidr::parse(ip.to_string().as_bytes()).expect("an address is a network of one");
            self.networks.push(network.0);
        }
        Ok(())
    }
}

fn look_up(line: &Line) -> Result<Vec<IpAddr>, Diagnostic> {
    let text = line.text(0);
    let not_found = || line.error_at(0, format!("host not found in set_real_ip_from \"{text}\""));
    let name = text.to_str().map_err(|_| not_found())?;
    let found = (name, 0).to_socket_addrs().map_err(|_| not_found())?;
    Ok(found.map(|address| address.ip()).collect())
}
