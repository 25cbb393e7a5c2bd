//! What the error log says of an exchange, in nginx's words.

use std::fmt;
use std::io::{self, ErrorKind};

use base::Errno;
use bstr::{BStr, ByteSlice};
use host::error_log::Level;
use net::upstream::NoPeer;
use rt::net::Address;

use crate::request::Request;

/// The number that stands for the system's `ETIMEDOUT` in logs.
const TIMED_OUT: &str = "(110: Connection timed out)";

/// What an exchange was doing: the end of most lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Connecting,
    Handshaking,
    SendingRequest,
    ReadingHeader,
    ReadingBody,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doing::Connecting => "connecting to upstream",
            Doing::Handshaking => "SSL handshaking to upstream",
            Doing::SendingRequest => "sending request to upstream",
            Doing::ReadingHeader => "reading response header from upstream",
            Doing::ReadingBody => "reading upstream",
        })
    }
}

/// An error that `text` describes.
#[cold]
pub(super) fn failed(request: &Request, text: impl fmt::Display, doing: Doing) {
    request.error(format_args!("{text} while {doing}"));
}

/// What a codec found wrong with the response.
#[cold]
pub(super) fn invalid_response(request: &Request, message: &[u8], doing: Doing) {
    failed(request, message.as_bstr(), doing);
}

#[cold]
pub(super) fn timed_out(request: &Request, doing: Doing) {
    failed(
        request,
        format_args!("upstream timed out {TIMED_OUT}"),
        doing,
    );
}

#[cold]
pub(super) fn read_failed(request: &Request, error: &io::Error, doing: Doing) {
    failed(request, net::ReadFailed(error), doing);
}

/// The peer may have answered before it closed, so that this alone is no error.
#[cold]
pub(super) fn send_failed(request: &Request, error: &io::Error) {
    let doing = Doing::SendingRequest;
    request.log(
        Level::Info,
        format_args!("send() failed{} while {doing}", Errno(error)),
    );
}

#[cold]
pub(super) fn connect_failed(request: &Request, address: &Address, error: &io::Error) {
    let usual = matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    );
    let level = if usual { Level::Error } else { Level::Crit };
    let (error, doing) = (Errno(error), Doing::Connecting);
    // The address of a socket of the network is in what follows each line.
    match address.is_unix() {
        true => request.log(
            level,
            format_args!("connect() to {address} failed{error} while {doing}"),
        ),
        false => request.log(level, format_args!("connect() failed{error} while {doing}")),
    }
}

#[cold]
pub(super) fn no_peer(request: &Request, why: NoPeer) {
    let text = match why {
        NoPeer::NoneAlive | NoPeer::Occupied => "no live upstreams",
        NoPeer::QueueFull => "upstream queue is full",
        NoPeer::QueueTimeout => "upstream queue timed out",
    };
    failed(request, text, Doing::Connecting);
}

/// A chooser left the choice to a group that has no servers.
#[cold]
pub(super) fn no_chosen_peer(request: &Request) {
    request.error(format_args!(
        "no peer was set, and the upstream has no servers"
    ));
}

#[cold]
pub(super) fn peer_disabled(request: &Request) {
    let doing = Doing::ReadingHeader;
    request.log(
        Level::Warn,
        format_args!("upstream server temporarily disabled while {doing}"),
    );
}

#[cold]
pub(super) fn client_left(request: &Request) {
    let doing = Doing::SendingRequest;
    request.log(
        Level::Info,
        format_args!(
            "client prematurely closed connection, so upstream connection is closed too while {doing}"
        ),
    );
}

#[cold]
pub(super) fn client_left_while_resolving(request: &Request) {
    request.log(
        Level::Info,
        format_args!("client prematurely closed connection while resolving upstream"),
    );
}

#[cold]
pub(super) fn more_data_than_announced(request: &Request) {
    let doing = Doing::ReadingBody;
    request.log(
        Level::Warn,
        format_args!(
            "upstream sent more data than specified in \"Content-Length\" header while {doing}"
        ),
    );
}

#[cold]
pub(super) fn too_big_early_hints(request: &Request) {
    let doing = Doing::ReadingHeader;
    request.log(
        Level::Info,
        format_args!("upstream sent too big early hints while {doing}"),
    );
}

#[cold]
pub(super) fn invalid_local_address(request: &Request, text: &BStr) {
    request.error(format_args!("invalid local address \"{text}\""));
}
