//! Passes datagrams between a client and a server.
//!
//! A session consists of a number of client datagrams (`proxy_requests`) and a number of responses
//! to each (`proxy_responses`). Without these limits, `proxy_timeout` ends it.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::stream::StreamSession;
use ::stream::client::SessionTransport;
use ::stream::datagrams::{DatagramSession, MAX_DATAGRAM};
use ::stream::module::status;
use base::ErrnoText;
use host::error_log::LogLevel;
use net::upstream::UpstreamTimes;
use rt::net::UdpSocket;

use super::rate::RateLimiter;
use super::{Conf, SessionEnd, current_try, elapsed, proxy_header, traffic};

/// What happened next.
enum PacketEvent {
    /// A datagram from the client. The one that opened the session is already counted as received.
    Request { datagram: Vec<u8>, is_opening: bool },
    /// A datagram of this length from the server.
    Response(usize),
    /// Receiving from the server failed, for example because its port is closed.
    Broken(io::Error),
    /// No datagram arrived for too long.
    TimedOut,
}

/// The state of a session.
struct DatagramExchange {
    /// The client's datagrams, which arrive on a socket shared by all clients.
    flow: Rc<DatagramSession>,
    /// Connected to the server, one per session.
    socket: UdpSocket,
    up: RateLimiter,
    down: RateLimiter,
    timer: rt::Timer,
    timeout: Duration,
    /// Datagrams from the client.
    requests: u64,
    /// Datagrams from the server.
    responses: u64,
    /// As large as a datagram can be, since the rest of one that does not fit would be lost.
    buffer: Vec<u8>,
}

impl DatagramExchange {
    /// Waits for the next event. `received` is the number of bytes from the client and from the
    /// server so far.
    fn poll(&mut self, context: &mut Context<'_>, received: (u64, u64)) -> Poll<PacketEvent> {
        // The opening datagram has arrived and is counted already, so no rate limit delays it.
        let is_opening = self.flow.opening_length().is_some();
        if (is_opening || !self.up.is_waiting(context) && self.up.allowance(received.0) > 0)
            && let Poll::Ready(datagram) = self.flow.poll_receive(context)
        {
            return Poll::Ready(PacketEvent::Request {
                datagram,
                is_opening,
            });
        }
        // If the rate allows nothing, it has just set its timer: register this task to be woken by
        // it.
        let _ = self.up.is_waiting(context);
        if !self.down.is_waiting(context)
            && self.down.allowance(received.1) > 0
            && let Poll::Ready(result) = self.socket.poll_recv_from(context, &mut self.buffer)
        {
            return Poll::Ready(result.map_or_else(PacketEvent::Broken, |(length, _)| {
                PacketEvent::Response(length)
            }));
        }
        let _ = self.down.is_waiting(context);
        // The silence is of our own making, so it must not end the session.
        if self.up.is_delayed() || self.down.is_delayed() {
            self.timer.clear();
            return Poll::Pending;
        }
        // Set anew after each event, since the caller clears it.
        if !self.timer.is_set() {
            self.timer.set(self.timeout);
        }
        self.timer
            .poll_expired(context)
            .map(|()| PacketEvent::TimedOut)
    }

    /// Whether all responses expected so far have arrived.
    fn is_answered(&self, conf: &Conf) -> bool {
        conf.responses
            .is_none_or(|each| self.responses >= each.saturating_mul(self.requests))
    }

    /// Whether the session has reached its limits.
    fn is_over(&self, conf: &Conf) -> bool {
        if conf.requests > 0 {
            if self.requests < conf.requests.unsigned_abs() {
                return false;
            }
            // Further datagrams of this client belong to a new session, while this one waits for
            // its responses.
            self.flow.end_session();
        }
        conf.responses.is_some() && self.is_answered(conf)
    }
}

/// Runs a UDP session.
pub(super) async fn run(
    session: &mut StreamSession,
    conf: &Conf,
    socket: UdpSocket,
    since: Instant,
) -> SessionEnd {
    let SessionTransport::Datagrams(flow) = &session.client.transport else {
        return SessionEnd {
            status: status::INTERNAL_SERVER_ERROR,
            times: UpstreamTimes::default(),
            failed: false,
        };
    };
    let flow = Rc::clone(flow);
    let (up, down) = (
        RateLimiter::new(session, &conf.upload_rate),
        RateLimiter::new(session, &conf.download_rate),
    );
    let mut exchange = DatagramExchange {
        flow,
        socket,
        up,
        down,
        timer: rt::Timer::new(),
        timeout: conf.timeout,
        requests: 0,
        responses: 0,
        buffer: vec![0; MAX_DATAGRAM],
    };
    session.action = "proxying connection";
    let (status, failed) = exchange_all(session, conf, &mut exchange, since).await;
    let header = current_try(session).first_byte;
    let times = UpstreamTimes {
        connect: None,
        header,
        response: Some(elapsed(since)),
    };
    SessionEnd {
        status,
        times,
        failed,
    }
}

/// Passes datagrams until the session ends: its status, and whether the server failed.
async fn exchange_all(
    session: &mut StreamSession,
    conf: &Conf,
    exchange: &mut DatagramExchange,
    since: Instant,
) -> (u16, bool) {
    let mut header = proxy_header(session, conf.proxy_protocol);
    loop {
        let received = (session.received, current_try(session).received);
        let event = poll_fn(|context| exchange.poll(context, received)).await;
        // Whatever it was, it counts as activity.
        exchange.timer.clear();
        match event {
            PacketEvent::Request {
                datagram,
                is_opening,
            } => {
                exchange.requests += 1;
                exchange.up.spend(datagram.len());
                if !is_opening {
                    session.received += datagram.len() as u64;
                }
                // The header goes before the first datagram, in the same one.
                let datagram = [std::mem::take(&mut header), datagram].concat();
                if let Err(error) = exchange.socket.send(&datagram).await {
                    session.error(format_args!(
                        "send() failed{} while proxying and sending to upstream",
                        ErrnoText(&error)
                    ));
                    // The client is told nothing: a lost datagram is normal for it.
                    return (status::OK, true);
                }
                current_try(session).sent += datagram.len() as u64;
            }
            PacketEvent::Response(length) => {
                exchange.responses += 1;
                exchange.down.spend(length);
                let a_try = current_try(session);
                a_try.received += length as u64;
                a_try.first_byte.get_or_insert_with(|| elapsed(since));
                let datagram = &exchange.buffer[..length];
                if session.client.send(datagram).await.is_err() {
                    // The client's fault, not the server's.
                    return (status::OK, false);
                }
            }
            PacketEvent::Broken(error) => {
                session.error(format_args!(
                    "recv() failed{} while proxying and reading from upstream",
                    ErrnoText(&error)
                ));
                return (status::BAD_GATEWAY, true);
            }
            PacketEvent::TimedOut => return on_timeout(session, conf, exchange),
        }
        // After every event, not only after responses: with `proxy_responses 0` a request can end the session.
        if exchange.is_over(conf) {
            log_end(session, exchange, "done");
            return (status::OK, false);
        }
    }
}

/// Ends a session after `proxy_timeout`: an error only if responses are missing.
fn on_timeout(
    session: &mut StreamSession,
    conf: &Conf,
    exchange: &DatagramExchange,
) -> (u16, bool) {
    if exchange.is_answered(conf) {
        log_end(session, exchange, "timed out");
        return (status::OK, false);
    }
    session.error(format_args!(
        "upstream timed out (110: Connection timed out)"
    ));
    // A server that does not answer counts as failed.
    (status::BAD_GATEWAY, true)
}

/// Logs the end of a session with its counts.
fn log_end(session: &mut StreamSession, exchange: &DatagramExchange, how: &str) {
    let traffic = traffic(session);
    let (requests, responses) = (exchange.requests, exchange.responses);
    session.log_plainly(
        LogLevel::Info,
        format_args!("udp {how}, packets from/to client:{requests}/{responses}, {traffic}"),
    );
}
