//! The addresses at which a canary gets a share of new connections.
//!
//! ```text
//! nginx's socket     SO_REUSEPORT is set on it from outside, through a duplicate (pidfd_getfd)
//! the canary's       joins the address, and a program gives it nothing at first
//! a share            the program is replaced; connections that are there stay where they are
//! the end            the share is 0, then the queue empties, then the canary's socket closes
//! ```
//!
//! No client can tell: address, port and source are what they are, and no proxy is in between. With a killed command the
//! program names a socket that is gone, and the kernel goes by its hash, which only has nginx's sockets then.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use base::ErrnoText;
use host::listen::{self, DEFAULT_BACKLOG, ListenAddress, ListenOptions};
use host::process;
use rt::net::reuse_port;

/// All addresses that are shared. Dropped, they are nginx's alone again.
pub(super) struct SteeredAddresses(Vec<SteeredAddress>);

/// One address.
struct SteeredAddress {
    address: SocketAddr,
    /// nginx's sockets, in the order in which they began to listen. More than one with `reuseport`.
    theirs: Vec<OwnedFd>,
    /// Whether nginx itself shares the address.
    was_shared: bool,
    /// The canary's.
    own: OwnedFd,
}

impl SteeredAddresses {
    /// Joins the TCP addresses on which a master of nginx listens. No connection comes here yet.
    pub(super) fn join(master: u32) -> Result<SteeredAddresses, String> {
        let sockets = process::listening_sockets_of(master).map_err(|error| {
            format!(
                "the sockets of process {master} cannot be shared{}: it takes root and Linux 5.6",
                ErrnoText(&error)
            )
        })?;
        let mut found: BTreeMap<SocketAddr, Vec<OwnedFd>> = BTreeMap::new();
        for socket in sockets {
            // Unix sockets and datagrams stay with nginx.
            if let Ok((ListenAddress::Tcp(address), _)) = listen::inherited(&socket) {
                found.entry(address).or_default().push(socket);
            }
        }
        let mut steered = SteeredAddresses(Vec::new());
        for (address, theirs) in found {
            let joined = SteeredAddress::join(address, theirs)?;
            steered.0.push(joined);
        }
        match steered.0.is_empty() {
            true => Err(format!(
                "process {master} has no TCP socket that could be shared"
            )),
            false => Ok(steered),
        }
    }

    /// The addresses.
    pub(super) fn list(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().map(|one| one.address)
    }

    /// Duplicates of the canary's sockets, for its process.
    pub(super) fn own_sockets(&self) -> Result<Vec<OwnedFd>, String> {
        let sockets = self.0.iter().map(|one| one.own.try_clone());
        let sockets: std::io::Result<Vec<OwnedFd>> = sockets.collect();
        sockets.map_err(|error| format!("dup() failed{}", ErrnoText(&error)))
    }

    /// Whether connections wait to be accepted by the canary.
    pub(super) fn has_waiting(&self) -> bool {
        self.0
            .iter()
            .any(|one| listen::waiting_connections(&one.own) > 0)
    }

    /// Gives the canary this share of new connections, in hundredths of a percent.
    pub(super) fn set_share(&self, share: u32) -> Result<(), String> {
        self.0.iter().try_for_each(|one| one.set_share(share))
    }
}

impl Drop for SteeredAddresses {
    fn drop(&mut self) {
        for one in &self.0 {
            one.leave();
        }
    }
}

impl SteeredAddress {
    fn join(address: SocketAddr, theirs: Vec<OwnedFd>) -> Result<SteeredAddress, String> {
        let named = |step: &str, error: std::io::Error| {
            format!("{step} {address} failed{}", ErrnoText(&error))
        };
        let shares = listen::inherited(&theirs[0]);
        let was_shared = shares.is_ok_and(|(_, options)| options.reuse_port);
        for socket in &theirs {
            listen::allow_reuse_port(socket)
                .map_err(|error| named("setsockopt(SO_REUSEPORT)", error))?;
        }
        let options = ListenOptions {
            reuse_port: true,
            // Between this call and the program the kernel's hash sends connections here, which would wait for the canary's start.
            // With the shortest queue there is hardly one; what is refused here is tried again after a second.
            backlog: 0,
            ipv6_only: listen::is_ipv6_only(&theirs[0]),
            ..ListenOptions::default()
        };
        let own = listen::open(&ListenAddress::Tcp(address), &options)
            .map_err(|error| error.to_string())?;
        let steered = SteeredAddress {
            address,
            theirs,
            was_shared,
            own,
        };
        steered.set_share(0)?;
        listen::set_backlog(&steered.own, DEFAULT_BACKLOG)
            .map_err(|error| named("listen() to", error))?;
        Ok(steered)
    }

    fn set_share(&self, share: u32) -> Result<(), String> {
        let others = u16::try_from(self.theirs.len()).unwrap_or(u16::MAX);
        reuse_port::split_connections(&self.own, others, share).map_err(|error| {
            format!(
                "connections to {} cannot be divided{}",
                self.address,
                ErrnoText(&error)
            )
        })
    }

    /// Leaves nginx's sockets as they were. What fails here changes nothing for clients.
    fn leave(&self) {
        let _ = reuse_port::remove_split(&self.theirs[0]);
        if !self.was_shared {
            for socket in &self.theirs {
                let _ = listen::forbid_reuse_port(socket);
            }
        }
    }
}
