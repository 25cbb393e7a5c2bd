//! Datagrams between a client and a server.
//!
//! A session is so many datagrams of the client (`proxy_requests`) and so many answers to each (`proxy_responses`); what
//! is not said is ended by `proxy_timeout`.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::stream::Session;
use ::stream::client::Transport;
use ::stream::datagrams::{Flow, MAX_DATAGRAM};
use ::stream::module::status;
use net::upstream::Times;
use rt::error_log::{Errno, Level};
use rt::net::UdpSocket;

use super::rate::Pace;
use super::{Conf, Ended, last, proxy_header, traffic};

/// What comes next.
enum Event {
    /// A datagram of the client; the one that began the session counts as received already.
    Request { datagram: Vec<u8>, is_opening: bool },
    /// One of the server, of this length.
    Response(usize),
    /// The server can not be reached.
    Broken(io::Error),
    /// Nothing came for too long.
    TimedOut,
}

struct Exchange {
    flow: Rc<Flow>,
    socket: UdpSocket,
    up: Pace,
    down: Pace,
    timer: rt::Timer,
    timeout: Duration,
    requests: u64,
    responses: u64,
    buffer: Vec<u8>,
}

impl Exchange {
    fn poll(&mut self, context: &mut Context<'_>, received: (u64, u64)) -> Poll<Event> {
        // The datagram that began the session is counted already, and no rate keeps it back.
        let is_opening = self.flow.opening_length().is_some();
        if (is_opening || !self.up.waits(context) && self.up.allows(received.0) > 0)
            && let Poll::Ready(datagram) = self.flow.poll_receive(context)
        {
            return Poll::Ready(Event::Request {
                datagram,
                is_opening,
            });
        }
        // A pace that allows nothing has set its timer just now, which is to wake this task.
        let _ = self.up.waits(context);
        if !self.down.waits(context)
            && self.down.allows(received.1) > 0
            && let Poll::Ready(result) = self.socket.poll_recv_from(context, &mut self.buffer)
        {
            return Poll::Ready(
                result.map_or_else(Event::Broken, |(length, _)| Event::Response(length)),
            );
        }
        let _ = self.down.waits(context);
        if self.up.is_delayed() || self.down.is_delayed() {
            self.timer.clear();
            return Poll::Pending;
        }
        if !self.timer.is_set() {
            self.timer.set(self.timeout);
        }
        self.timer.poll_expired(context).map(|()| Event::TimedOut)
    }

    /// Whether as many answers have come as the datagrams so far are answered with.
    fn is_answered(&self, conf: &Conf) -> bool {
        conf.responses
            .is_none_or(|each| self.responses >= each.saturating_mul(self.requests))
    }

    /// Whether the session is over by its numbers.
    fn is_over(&self, conf: &Conf) -> bool {
        if conf.requests > 0 {
            if self.requests < conf.requests.unsigned_abs() {
                return false;
            }
            self.flow.detach();
        }
        conf.responses.is_some() && self.is_answered(conf)
    }
}

/// Runs a session of datagrams.
pub(super) async fn run(
    session: &mut Session,
    conf: &Conf,
    socket: UdpSocket,
    since: Instant,
) -> Ended {
    let Transport::Datagrams(flow) = &session.client.transport else {
        return Ended {
            status: status::INTERNAL_SERVER_ERROR,
            times: Times::default(),
            failed: false,
        };
    };
    let flow = Rc::clone(flow);
    let (up, down) = (
        Pace::new(session, &conf.upload_rate),
        Pace::new(session, &conf.download_rate),
    );
    let mut exchange = Exchange {
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
    let header = last(session).first_byte;
    let times = Times {
        connect: None,
        header,
        response: Some(rt::now().saturating_duration_since(since)),
    };
    Ended {
        status,
        times,
        failed,
    }
}

/// Moves datagrams until the session ends: its status, and whether the server failed.
async fn exchange_all(
    session: &mut Session,
    conf: &Conf,
    exchange: &mut Exchange,
    since: Instant,
) -> (u16, bool) {
    let mut header = proxy_header(session, conf.proxy_protocol);
    loop {
        let received = (session.received, last(session).received);
        let event = poll_fn(|context| exchange.poll(context, received)).await;
        exchange.timer.clear();
        match event {
            Event::Request {
                datagram,
                is_opening,
            } => {
                exchange.requests += 1;
                if !is_opening {
                    session.received += datagram.len() as u64;
                }
                exchange.up.spend(datagram.len());
                // The header goes before the first datagram, in the same one.
                let datagram = [std::mem::take(&mut header), datagram].concat();
                if let Err(error) = exchange.socket.send(&datagram).await {
                    session.error(format_args!(
                        "send() failed{} while proxying and sending to upstream",
                        Errno(&error)
                    ));
                    return (status::OK, true);
                }
                last(session).sent += datagram.len() as u64;
            }
            Event::Response(length) => {
                exchange.responses += 1;
                let a_try = last(session);
                a_try.received += length as u64;
                a_try
                    .first_byte
                    .get_or_insert_with(|| rt::now().saturating_duration_since(since));
                exchange.down.spend(length);
                if session
                    .client
                    .send(&exchange.buffer[..length])
                    .await
                    .is_err()
                {
                    return (status::OK, false);
                }
            }
            Event::Broken(error) => {
                session.error(format_args!(
                    "recv() failed{} while proxying and reading from upstream",
                    Errno(&error)
                ));
                return (status::BAD_GATEWAY, true);
            }
            Event::TimedOut => return time_out(session, conf, exchange),
        }
        if exchange.is_over(conf) {
            log_end(session, exchange, "done");
            return (status::OK, false);
        }
    }
}

fn time_out(session: &mut Session, conf: &Conf, exchange: &Exchange) -> (u16, bool) {
    if exchange.is_answered(conf) {
        log_end(session, exchange, "timed out");
        return (status::OK, false);
    }
    session.error(format_args!(
        "upstream timed out (110: Connection timed out)"
    ));
    (status::BAD_GATEWAY, true)
}

fn log_end(session: &mut Session, exchange: &Exchange, how: &str) {
    let traffic = traffic(session);
    let (requests, responses) = (exchange.requests, exchange.responses);
    session.log_plainly(
        Level::Info,
        format_args!("udp {how}, packets from/to client:{requests}/{responses}, {traffic}"),
    );
}
