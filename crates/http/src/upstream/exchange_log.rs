//! The error log lines of an exchange. Their wording is nginx's, which existing log analysis relies on.

use std::fmt;
use std::io::{self, ErrorKind};

use base::ErrnoText;
use bstr::{BStr, ByteSlice};
use host::error_log::LogLevel;
use net::upstream::NoPeer;
use rt::net::SocketAddress;

use crate::request::Request;

/// How logs show `ETIMEDOUT`: the timeouts are this server's, but nginx words them as the system's.
const TIMED_OUT: &str = "(110: Connection timed out)";

/// What is done for a client once its exchange is over, in the words of the error log.
pub(super) const SENDING: &str = "sending to client";

/// What the exchange was doing, which ends most lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExchangeStage {
    Connecting,
    Handshaking,
    SendingRequest,
    ReadingHeader,
    ReadingBody,
}

impl ExchangeStage {
    /// In the words of the log.
    pub(super) const fn text(self) -> &'static str {
        match self {
            ExchangeStage::Connecting => "connecting to upstream",
            ExchangeStage::Handshaking => "SSL handshaking to upstream",
            ExchangeStage::SendingRequest => "sending request to upstream",
            ExchangeStage::ReadingHeader => "reading response header from upstream",
            ExchangeStage::ReadingBody => "reading upstream",
        }
    }
}

/// An error described by `text`.
#[cold]
pub(super) fn log_exchange_failure(
    request: &Request,
    text: impl fmt::Display,
    stage: ExchangeStage,
) {
    request.log_while(LogLevel::Error, stage.text(), format_args!("{text}"));
}

/// An error in the response that a codec found.
#[cold]
pub(super) fn invalid_response(request: &Request, message: &[u8], stage: ExchangeStage) {
    log_exchange_failure(request, message.as_bstr(), stage);
}

/// The upstream did not accept or send anything for the time that a directive allows.
#[cold]
pub(super) fn timed_out(request: &Request, stage: ExchangeStage) {
    log_exchange_failure(
        request,
        format_args!("upstream timed out {TIMED_OUT}"),
        stage,
    );
}

/// Reading from the upstream failed.
#[cold]
pub(super) fn read_failed(request: &Request, error: &io::Error, stage: ExchangeStage) {
    log_exchange_failure(request, net::ReadFailed(error), stage);
}

/// Sending failed. The upstream may have answered before it closed the connection, so this alone is no error.
#[cold]
pub(super) fn send_failed(request: &Request, error: &io::Error) {
    request.log_while(
        LogLevel::Info,
        ExchangeStage::SendingRequest.text(),
        format_args!("send() failed{}", ErrnoText(error)),
    );
}

/// Connecting failed.
#[cold]
pub(super) fn connect_failed(request: &Request, address: &SocketAddress, error: &io::Error) {
    // These happen when a server is down, or the network is. Anything else is this machine's problem, hence `crit`, as
    // in nginx.
    let usual = matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    );
    let level = if usual {
        LogLevel::Error
    } else {
        LogLevel::Crit
    };
    let (error, doing) = (ErrnoText(error), ExchangeStage::Connecting.text());
    // The address of an internet socket follows at the end of every line.
    match address.is_unix() {
        true => request.log_while(
            level,
            doing,
            format_args!("connect() to {address} failed{error}"),
        ),
        false => request.log_while(level, doing, format_args!("connect() failed{error}")),
    }
}

/// The group has no server to offer.
#[cold]
pub(super) fn no_peer(request: &Request, why: NoPeer) {
    let text = match why {
        NoPeer::NoneAlive | NoPeer::Occupied => "no live upstreams",
        NoPeer::QueueFull => "upstream queue is full",
        NoPeer::QueueTimeout => "upstream queue timed out",
    };
    log_exchange_failure(request, text, ExchangeStage::Connecting);
}

/// A script left the choice to a group without servers.
#[cold]
pub(super) fn no_chosen_peer(request: &Request) {
    request.error(format_args!(
        "no peer was set, and the upstream has no servers"
    ));
}

/// A server has reached `max_fails`, by what was logged just before.
#[cold]
pub(super) fn peer_disabled(request: &Request) {
    request.log(
        LogLevel::Warn,
        format_args!("upstream server temporarily disabled"),
    );
}

/// The client disconnected, which ends the exchange.
#[cold]
pub(super) fn client_left(request: &Request) {
    request.log_while(
        LogLevel::Info,
        ExchangeStage::SendingRequest.text(),
        format_args!("client prematurely closed connection, so upstream connection is closed too"),
    );
}

/// The client disconnected during the name lookup.
#[cold]
pub(super) fn client_left_while_resolving(request: &Request) {
    request.log_while(
        LogLevel::Info,
        "resolving upstream",
        format_args!("client prematurely closed connection"),
    );
}

/// Bytes followed the body.
#[cold]
pub(super) fn more_data_than_announced(request: &Request) {
    request.log_while(
        LogLevel::Warn,
        ExchangeStage::ReadingBody.text(),
        format_args!("upstream sent more data than specified in \"Content-Length\" header"),
    );
}

/// The interim responses are larger than a buffer.
#[cold]
pub(super) fn too_big_early_hints(request: &Request) {
    request.log_while(
        LogLevel::Info,
        ExchangeStage::ReadingHeader.text(),
        format_args!("upstream sent too big early hints"),
    );
}

/// The value of `…_bind` is not an address.
#[cold]
pub(super) fn invalid_local_address(request: &Request, text: &BStr) {
    request.error(format_args!("invalid local address \"{text}\""));
}
