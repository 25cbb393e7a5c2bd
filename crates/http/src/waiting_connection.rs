//! A connection of which nothing is there to read: before its first byte, and idle between two requests.
//!
//! The task that serves a request has a future of some 2 KB, and the memory of a request and its buffers. A connection that only waits
//! needs neither, so it has a task of its own here, which holds the socket, what is known of the client, and a timer:
//! about a kilobyte. When a byte comes, one of the tasks that serve connections takes over
//! ([`crate::connection_tasks`]).
//!
//! ```text
//!   accepted ──▶ waiting ──── byte ───▶ served ── response, then silent for IDLE_IN_TASK ──▶ waiting
//!                   └─ timeout, end, order to close or move ──▶ served here, in a box: it ends or moves at once
//! ```
//!
//! What an end, a timeout or an order means is not decided here: the protocol does that, which has the log lines. It is
//! run inside this task then, because thousands of connections may end in the same moment, and each would otherwise
//! make a task that serves connections.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use net::Transport;
use net::counters::CountedConnection;

use crate::accepted_connection::AcceptedConnection;
use crate::client::{ConnectionControl, ConnectionMobility, ConnectionOrder};
use crate::connection_start::{self, ServedClient};
use crate::connection_tasks::TaskAssignment;
use crate::http_loop::{self, HttpLoop};
use crate::loop_connections::{ServingTask, TablePlace};

/// What waits.
pub(crate) enum WaitingConnection {
    /// A connection of which nothing has been read. It has no client yet.
    New(Box<AcceptedConnection>),
    /// One whose protocol is HTTP/1, between two requests.
    Served(ServedClient),
}

impl WaitingConnection {
    fn transport(&self) -> &Transport {
        match self {
            WaitingConnection::New(accepted) => &accepted.transport,
            WaitingConnection::Served(served) => &served.bytes.transport,
        }
    }

    fn control(&self) -> &Rc<ConnectionControl> {
        match self {
            WaitingConnection::New(accepted) => &accepted.control,
            WaitingConnection::Served(served) => &served.client.control,
        }
    }
}

/// Why a connection does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    /// Something has come.
    Bytes,
    /// It ends or moves.
    Over,
    /// It is closed without a word: nothing was ever read of it.
    Dropped,
}

/// The task of a waiting connection. The order of the fields is that in which they are dropped: the socket before its
/// place in the table.
struct WaitingTask {
    /// `None` once something else serves it.
    connection: Option<WaitingConnection>,
    /// The end of the connection, which runs in this task.
    end: Option<Pin<Box<dyn Future<Output = ()>>>>,
    timer: rt::Timer,
    /// The configuration in which the address of a new connection was found.
    generation: u64,
    counted: Option<CountedConnection>,
    place: Option<TablePlace>,
}

/// Has a connection wait for its next byte.
pub(crate) fn wait_for_bytes(connection: WaitingConnection, place: TablePlace) {
    let engine = Rc::clone(&place.engine);
    let key = place.key;
    let http = &engine.http;
    let timer = rt::Timer::new();
    match &connection {
        WaitingConnection::New(accepted) => {
            let site = http.site();
            // A reload may have removed the address between accepting and now: no server is left to answer.
            let Some(endpoint) = connection_start::endpoint_of(&site, accepted) else {
                return;
            };
            let control = &accepted.control;
            control.begin_waiting(rt::now(), 0);
            // What TLS or a PROXY header will say of it is still to come, and then it cannot go just anywhere.
            if endpoint.tls || endpoint.proxy_protocol {
                control.set_mobility(ConnectionMobility::Nowhere);
            } else if accepted.passed_at.is_some() {
                control.set_mobility(ConnectionMobility::ThisProcess);
            }
            let core = &site.server(endpoint.default_server).core;
            timer.set_deadline(accepted.accepted + core.client_header_timeout);
        }
        WaitingConnection::Served(served) => {
            let control = &served.client.control;
            control.begin_waiting(rt::now(), served.bytes.sent.get());
            timer.set(served.rest_of_wait(http));
        }
    }
    let task = WaitingTask {
        connection: Some(connection),
        end: None,
        timer,
        generation: http.generation(),
        counted: Some(CountedConnection::new(&http.counters)),
        place: Some(place),
    };
    let task = rt::spawn_abortable("http connection", task);
    engine.set_task(key, ServingTask::Own(task));
    engine.look_at_memory();
}

impl Future for WaitingTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if let Some(end) = &mut this.end {
            return end.as_mut().poll(context);
        }
        let Poll::Ready(end) = this.poll_wait(context) else {
            return Poll::Pending;
        };
        let (Some(connection), Some(place)) = (this.connection.take(), this.place.take()) else {
            return Poll::Ready(());
        };
        this.counted = None;
        if let WaitingConnection::New(accepted) = &connection {
            accepted.control.end_first_wait();
        }
        match end {
            WaitEnd::Dropped => {}
            WaitEnd::Bytes => {
                let (engine, key) = (Rc::clone(&place.engine), place.key);
                let assignment = TaskAssignment { connection, place };
                let task = engine.tasks.assign_connection(assignment);
                engine.set_task(key, ServingTask::Pooled(task));
            }
            WaitEnd::Over => {
                let end = connection_start::serve_waiting(connection, place);
                return this.end.insert(Box::pin(end)).as_mut().poll(context);
            }
        }
        Poll::Ready(())
    }
}

impl WaitingTask {
    fn poll_wait(&self, context: &mut Context<'_>) -> Poll<WaitEnd> {
        let (Some(connection), Some(place)) = (&self.connection, &self.place) else {
            return Poll::Ready(WaitEnd::Dropped);
        };
        let transport = connection.transport();
        match transport.poll_readable(context) {
            Poll::Ready(Ok(())) if transport.socket().has_ended() => {
                return Poll::Ready(WaitEnd::Over);
            }
            Poll::Ready(Ok(())) => return Poll::Ready(WaitEnd::Bytes),
            Poll::Ready(Err(_)) => return Poll::Ready(WaitEnd::Over),
            Poll::Pending => {}
        }
        let control = connection.control();
        // A reload comes with a wake-up: has the address of the connection gone? One that has a client is told to close.
        if let WaitingConnection::New(accepted) = connection {
            let http = &place.engine.http;
            if http.generation() != self.generation
                && connection_start::endpoint_of(&http.site(), accepted).is_none()
            {
                return Poll::Ready(WaitEnd::Dropped);
            }
        }
        if control.poll_order(context).is_ready()
            && let Some(end) = self.follow_order(connection, &place.engine.http)
        {
            return Poll::Ready(end);
        }
        self.timer.poll_expired(context).map(|()| WaitEnd::Over)
    }

    /// What an order to close or to move means; `None` if the connection waits on.
    fn follow_order(&self, connection: &WaitingConnection, http: &HttpLoop) -> Option<WaitEnd> {
        let control = connection.control();
        if control.pending_order() == ConnectionOrder::Transfer {
            return Some(WaitEnd::Over);
        }
        match connection {
            // It was to move and cannot: a new client still gets one answer, as from nginx when it stops.
            _ if control.is_leaving() && control.is_new() => None,
            WaitingConnection::New(accepted) => {
                // What has come since the loop last asked the kernel is served.
                let socket = accepted.transport.socket();
                socket.look_again();
                match socket.try_peek(&mut [0]) {
                    Ok(1..) => Some(WaitEnd::Bytes),
                    Ok(0) | Err(_) => Some(WaitEnd::Dropped),
                }
            }
            WaitingConnection::Served(served) => {
                // `keepalive_min_timeout`: the protocol would wait for so long, with a larger future.
                let least = served.client.keepalive_min_timeout.get();
                let end = http.end_of_wait(control.waiting_since()?, least);
                if end <= rt::now() {
                    return Some(WaitEnd::Over);
                }
                self.timer.set_deadline(end);
                None
            }
        }
    }
}

impl ServedClient {
    /// How much longer it may wait for a request, on this loop.
    fn rest_of_wait(&self, http: &HttpLoop) -> Duration {
        let client = &self.client;
        if client.requests.get() == 0 {
            let site = http.site();
            // A reload has removed the address: it is about to close.
            if !http_loop::refresh_endpoint(client, &site) {
                return Duration::ZERO;
            }
            let core = &site.server(client.first_server()).core;
            return client.rest_of(core.client_header_timeout);
        }
        let waited = client.control.waiting_since();
        let waited = waited.map(|since| rt::now().saturating_duration_since(since));
        client
            .keepalive_timeout
            .get()
            .saturating_sub(waited.unwrap_or_default())
    }
}
