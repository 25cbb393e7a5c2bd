//! Loopback ports that no other test has.
//!
//! Asking the kernel for a free port and closing it again is a race: the next outgoing
//! connection of any test may get that very port as its own. So ports are taken from below the
//! ephemeral range, and a port is held for the life of a test by a unix socket in the abstract
//! namespace, which other test processes see and which goes away with the process.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The range searched; Linux hands out 32768 and up for outgoing connections.
const FIRST: u32 = 18_000;
const COUNT: u32 = 12_000;

/// A TCP port on loopback that is ours until this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: UnixListener,
}

impl Port {
    /// Takes the next free port. Test processes start at different places by their process id.
    pub fn take() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let offset = (std::process::id().wrapping_mul(97) + step) % COUNT;
            let number = u16::try_from(FIRST + offset).expect("the range ends below 32768");
            if let Some(port) = Self::reserve(number) {
                return port;
            }
        }
        panic!("none of the ports {FIRST} to {} is free", FIRST + COUNT);
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    fn reserve(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("weir-tests-port-{number}")).ok()?;
        let reservation = UnixListener::bind_addr(&name).ok()?;
        // Somebody else may listen there; a listener that never accepted leaves no TIME_WAIT.
        TcpListener::bind(("127.0.0.1", number)).ok()?;
        Some(Self {
            number,
            _reservation: reservation,
        })
    }
}
