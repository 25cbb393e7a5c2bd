//! Runs a handshake, and what can go wrong in it.

use std::fmt;
use std::io;
use std::sync::OnceLock;

use rt::net::StreamSocket;
use rustls::{AlertDescription, Error, PeerIncompatible};

use super::session::{READ_SIZE, TlsState};

/// Why a handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer closed the connection before the handshake was complete.
    Closed,
    /// The socket failed.
    Io(io::Error),
    /// The peer sent something invalid, or rejected what we sent.
    Tls(Error),
    /// The configuration rejects this client (`ssl_reject_handshake`, or no server matches).
    Refused,
    /// A script has rejected it, or has failed.
    Objection,
    /// There is no certificate to present.
    NoCertificate,
    /// The peer does not speak TLS.
    NotTls,
}

impl HandshakeError {
    /// Whether the peer is at fault, as in most cases: nginx logs those at `info`, because anyone can cause them.
    pub fn is_peers(&self) -> bool {
        match self {
            HandshakeError::Closed
            | HandshakeError::Io(_)
            | HandshakeError::Refused
            | HandshakeError::Objection
            | HandshakeError::NotTls => true,
            HandshakeError::NoCertificate => false,
            HandshakeError::Tls(error) => !matches!(
                error,
                Error::General(_)
                    | Error::EncryptError
                    | Error::FailedToGetCurrentTime
                    | Error::FailedToGetRandomBytes
                    | Error::HandshakeNotComplete
                    | Error::BadMaxFragmentSize
                    | Error::InconsistentKeys(_)
                    | Error::Other(_)
            ),
        }
    }
}

/// nginx's log messages: `peer closed connection in SSL handshake`, `SSL_do_handshake() failed (SSL: …)`.
impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Closed => f.write_str("peer closed connection in SSL handshake"),
            HandshakeError::Io(error) => write!(
                f,
                "peer closed connection in SSL handshake{}",
                base::ErrnoText(error)
            ),
            HandshakeError::Tls(error) => {
                write!(f, "SSL_do_handshake() failed (SSL: {})", OpensslReason(error))
            }
            HandshakeError::NotTls => f.write_str(
                "SSL_do_handshake() failed (SSL: error:0A00010B:SSL routines::wrong version number)",
            ),
            HandshakeError::Refused => f.write_str(
                "SSL_do_handshake() failed (SSL: error:0A0000EA:SSL routines::callback failed)",
            ),
            HandshakeError::Objection => f.write_str(
                "SSL_do_handshake() failed (SSL: error:0A000179:SSL routines::cert cb error)",
            ),
            HandshakeError::NoCertificate => f.write_str(
                "SSL_do_handshake() failed (SSL: error:0A0000C1:SSL routines::no shared cipher:\
                 no certificate can be used)",
            ),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// The TLS error behind a failed read, if there is one.
pub(crate) fn openssl_reason(error: &io::Error) -> Option<impl fmt::Display> {
    error.get_ref()?.downcast_ref().map(OpensslReason)
}

/// An error of rustls with OpenSSL's number and text where it has one: people search for those.
pub(super) struct OpensslReason<'a>(pub(super) &'a Error);

impl fmt::Display for OpensslReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, words) = match self.0 {
            Error::AlertReceived(alert) => return alert_words(*alert, f),
            Error::PeerIncompatible(why) => match why {
                PeerIncompatible::NoCipherSuitesInCommon => (0xc1, "no shared cipher"),
                PeerIncompatible::NoKxGroupsInCommon => (0xb7, "no suitable key share"),
                PeerIncompatible::NoSignatureSchemesInCommon => {
                    (0x76, "no suitable signature algorithm")
                }
                PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled
                | PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::SupportedVersionsExtensionRequired => {
                    (0x102, "unsupported protocol")
                }
                _ => (0x6e, "bad extension"),
            },
            Error::InvalidMessage(_) => (0x10b, "wrong version number"),
            Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
                (0xf4, "unexpected message")
            }
            Error::DecryptError => (0x119, "decryption failed or bad record mac"),
            Error::PeerSentOversizedRecord => (0x92, "data length too long"),
            Error::NoApplicationProtocol => (0xeb, "no application protocol"),
            Error::InvalidCertificate(_) => (0x86, "certificate verify failed"),
            _ => (0, ""),
        };
        if reason == 0 {
            write!(f, "{}", self.0)
        } else {
            write!(
                f,
                "error:{:08X}:SSL routines::{words}: {}",
                0x0a00_0000 + reason,
                self.0
            )
        }
    }
}

/// `error:0A000418:SSL routines::tlsv1 alert unknown ca`: OpenSSL's reason is 1000 plus the number of the alert.
fn alert_words(alert: AlertDescription, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = u8::from(alert);
    let words = match number {
        10 => "sslv3 alert unexpected message",
        20 => "sslv3 alert bad record mac",
        40 => "sslv3 alert handshake failure",
        41 => "sslv3 alert no certificate",
        42 => "sslv3 alert bad certificate",
        43 => "sslv3 alert unsupported certificate",
        44 => "sslv3 alert certificate revoked",
        45 => "sslv3 alert certificate expired",
        46 => "sslv3 alert certificate unknown",
        47 => "sslv3 alert illegal parameter",
        48 => "tlsv1 alert unknown ca",
        49 => "tlsv1 alert access denied",
        50 => "tlsv1 alert decode error",
        51 => "tlsv1 alert decrypt error",
        70 => "tlsv1 alert protocol version",
        71 => "tlsv1 alert insufficient security",
        80 => "tlsv1 alert internal error",
        86 => "tlsv1 alert inappropriate fallback",
        90 => "tlsv1 alert user cancelled",
        100 => "tlsv1 alert no renegotiation",
        109 => "tlsv13 alert missing extension",
        112 => "tlsv1 unrecognized name",
        116 => "tlsv13 alert certificate required",
        120 => "tlsv1 alert no application protocol",
        _ => "tlsv1 alert",
    };
    let reason = 0x0a00_0000 + 1000 + u32::from(number);
    write!(
        f,
        "error:{reason:08X}:SSL routines::{words}:SSL alert number {number}"
    )
}

/// The threads for slow handshakes: one for each processor, because the work is pure computation.
pub(super) fn handshake_pool() -> rt::pool::PoolHandle {
    /// How many handshakes may be queued; further ones wait in front of the queue.
    const QUEUE: usize = 4096;
    static POOL: OnceLock<rt::pool::PoolHandle> = OnceLock::new();
    let make = || {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        rt::pool::PoolHandle::new("tls handshakes", threads, QUEUE)
    };
    POOL.get_or_init(make).clone()
}

/// Runs a handshake to its end, or until the client's early data has arrived: a response to that may be sent before
/// the handshake ends, which later reads complete. With `slow`, messages are processed on a thread of the pool.
pub(super) async fn drive_handshake(
    socket: &StreamSocket,
    mut state: TlsState,
    slow: bool,
) -> Result<TlsState, HandshakeError> {
    let mut records = Vec::with_capacity(READ_SIZE);
    loop {
        // Only while handshaking: session tickets, which follow the server's last flight, are sent together with
        // the first response and so need no packet of their own.
        while state.tls.is_handshaking() && state.tls.wants_write() {
            match state.send(socket) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::future::poll_fn(|context| socket.poll_writable(context))
                        .await
                        .map_err(HandshakeError::Io)?;
                }
                Err(error) => return Err(HandshakeError::Io(error)),
            }
        }
        // After sending, before reading: a peer that waits for our last message would never send another.
        if !state.tls.is_handshaking() || state.has_early_data() {
            return Ok(state);
        }
        records.clear();
        match socket.read_into(&mut records, READ_SIZE).await {
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(_) => {}
            Err(error) => return Err(HandshakeError::Io(error)),
        }
        let fed = if slow {
            let given = std::mem::take(&mut records);
            let work = move || {
                let fed = state.feed_records(&given);
                (state, given, fed)
            };
            let fed;
            (state, records, fed) = handshake_pool().run(work).await;
            fed
        } else {
            state.feed_records(&records)
        };
        if let Err(error) = fed {
            // The alert tells the peer why; whether it arrives does not matter.
            let _ = state.send(socket);
            return Err(HandshakeError::Tls(error));
        }
    }
}
