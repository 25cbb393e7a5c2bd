//! `pass` of the stream module: a connection is handed to another listening address of the same loop, as if it had
//! been accepted there.
//!
//! The http and stream engines do not know each other. Each registers here the addresses it listens on, with a
//! function that takes connections over.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use host::engine::ListenerSpec;
use host::listen::ListenAddress;
use rt::net::SocketAddress;

use crate::Transport;

/// How often one connection may be passed on; nginx's bound. It ends a cycle of servers that pass to each other.
pub const MAX_PASSES: u8 = 10;

/// A connection that is passed on.
pub struct PassedConnection {
    /// The connection.
    pub transport: Transport,
    /// Bytes that were already read (`ssl_preread`, a PROXY protocol header); the next engine reads them first.
    pub input: Vec<u8>,
    /// The listening address that is to take it.
    pub local: SocketAddress,
    /// How often it was passed on, this time included.
    pub passes: u8,
}

/// The function of an engine that takes a connection over at one of its listening sockets.
type PassHandler = Rc<dyn Fn(PassedConnection, &Arc<ListenerSpec>)>;

struct EngineListeners {
    kind: &'static str,
    sockets: Vec<Arc<ListenerSpec>>,
    take: PassHandler,
}

rt::local! {
    static ENGINES: RefCell<Vec<EngineListeners>> = const { RefCell::new(Vec::new()) };
}

/// Registers the addresses that the engine of this kind listens on, on this loop. They replace what it registered
/// before.
pub fn register_listeners(kind: &'static str, sockets: Vec<Arc<ListenerSpec>>, take: PassHandler) {
    ENGINES.with_borrow_mut(|engines| {
        engines.retain(|engine| engine.kind != kind);
        engines.push(EngineListeners {
            kind,
            sockets,
            take,
        });
    });
}

/// Removes the addresses of the engine of this kind: it takes no more connections.
pub fn unregister_listeners(kind: &str) {
    ENGINES.with_borrow_mut(|engines| engines.retain(|engine| engine.kind != kind));
}

/// Whether a server listens on `address`, or on the wildcard of its family.
pub fn has_listener(address: &SocketAddress) -> bool {
    find(address).is_some()
}

/// Passes a connection to the engine that listens on [`PassedConnection::local`]. If none does, the connection is
/// closed: a reload may have removed the server since the check.
pub fn pass_connection(passed: PassedConnection) {
    // The registry is not borrowed during this call: the taker may pass the connection on at once.
    if let Some((take, socket)) = find(&passed.local) {
        take(passed, &socket);
    }
}

fn find(address: &SocketAddress) -> Option<(PassHandler, Arc<ListenerSpec>)> {
    ENGINES.with_borrow(|engines| {
        engines.iter().find_map(|engine| {
            let mut sockets = engine.sockets.iter();
            let socket = sockets.find(|socket| answers(&socket.address, address))?;
            Some((Rc::clone(&engine.take), Arc::clone(socket)))
        })
    })
}

fn answers(socket: &ListenAddress, address: &SocketAddress) -> bool {
    match (socket, address) {
        (ListenAddress::Tcp(socket), SocketAddress::Inet(address)) => {
            socket == address
                || socket.ip().is_unspecified()
                    && socket.is_ipv4() == address.is_ipv4()
                    && socket.port() == address.port()
        }
        (ListenAddress::Unix(path), SocketAddress::Unix(other)) => {
            *other == rt::net::UnixPath::new(path)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_answer_for_their_family() {
        let tcp = |text: &str| ListenAddress::Tcp(text.parse().expect("an address"));
        let inet = |text: &str| SocketAddress::Inet(text.parse().expect("an address"));
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
