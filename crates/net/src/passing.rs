//! Connections that one listening address hands to another of the same loop, as if they had been accepted there: `pass`
//! of stream.
//!
//! The engines do not know each other. Each says here where it listens on this loop and takes what is handed over.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use host::engine::ListenerSpec;
use host::listen::ListenAddress;
use rt::net::Address;

use crate::Transport;

/// How often a connection may be handed over; nginx's bound.
pub const MAX_PASSES: u8 = 10;

/// A connection that changes hands.
pub struct Passed {
    /// The connection.
    pub transport: Transport,
    /// What was read of it and is the taker's to use.
    pub input: Vec<u8>,
    /// The address that it counts as accepted at.
    pub local: Address,
    /// How often it was handed over, this time included.
    pub passes: u8,
}

/// What takes connections in at a listening socket.
type Taker = Rc<dyn Fn(Passed, &Arc<ListenerSpec>)>;

struct Engine {
    kind: &'static str,
    sockets: Vec<Arc<ListenerSpec>>,
    take: Taker,
}

rt::local! {
    static ENGINES: RefCell<Vec<Engine>> = const { RefCell::new(Vec::new()) };
}

/// Says where the engine of this kind listens on this loop now, in place of what it said before.
pub fn serve(kind: &'static str, sockets: Vec<Arc<ListenerSpec>>, take: Taker) {
    ENGINES.with_borrow_mut(|engines| {
        engines.retain(|engine| engine.kind != kind);
        engines.push(Engine {
            kind,
            sockets,
            take,
        });
    });
}

/// The engine of this kind takes nothing any more.
pub fn withdraw(kind: &str) {
    ENGINES.with_borrow_mut(|engines| engines.retain(|engine| engine.kind != kind));
}

/// Whether anybody listens at `address`, itself or by a wildcard of its family.
pub fn is_served(address: &Address) -> bool {
    find(address).is_some()
}

/// Hands a connection to who listens at [`Passed::local`]. It is closed if nobody does.
pub fn pass(passed: Passed) {
    if let Some((take, socket)) = find(&passed.local) {
        take(passed, &socket);
    }
}

fn find(address: &Address) -> Option<(Taker, Arc<ListenerSpec>)> {
    ENGINES.with_borrow(|engines| {
        engines.iter().find_map(|engine| {
            let mut sockets = engine.sockets.iter();
            let socket = sockets.find(|socket| answers(&socket.address, address))?;
            Some((Rc::clone(&engine.take), Arc::clone(socket)))
        })
    })
}

fn answers(socket: &ListenAddress, address: &Address) -> bool {
    match (socket, address) {
        (ListenAddress::Tcp(socket), Address::Inet(address)) => {
            socket == address
                || socket.ip().is_unspecified()
                    && socket.is_ipv4() == address.is_ipv4()
                    && socket.port() == address.port()
        }
        (ListenAddress::Unix(path), Address::Unix(other)) => *other == rt::net::UnixPath::new(path),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_answer_for_their_family() {
        let tcp = |text: &str| ListenAddress::Tcp(text.parse().expect("an address"));
        let inet = |text: &str| Address::Inet(text.parse().expect("an address"));
        for (socket, address, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("0.0.0.0:80", "127.0.0.2:80", true),
            ("0.0.0.0:80", "127.0.0.2:81", false),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "[::1]:80", true),
        ] {
            assert_eq!(
                answers(&tcp(socket), &inet(address)),
                expected,
                "{socket} {address}"
            );
        }
    }
}
