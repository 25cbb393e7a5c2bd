//! The settings of scripts' sockets, in http and in stream.

use std::time::Duration;

use conf::contexts::STREAM_AND_SERVER;
use conf::{Contexts, Directive, HTTP_SERVER_LOCATION, Setter, Table};

use crate::directives::ignored;

/// What a socket begins with.
#[derive(Clone, Default)]
pub(crate) struct Sockets {
    pub(crate) connect_timeout: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) read_timeout: Duration,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) pool_size: i64,
    pub(crate) log_errors: bool,
}

static HTTP_ROWS: [Directive<Sockets>; 8] = rows(HTTP_SERVER_LOCATION);
static STREAM_ROWS: [Directive<Sockets>; 8] = rows(STREAM_AND_SERVER);

/// The rows in `http` and what it holds.
pub(crate) static HTTP: Table<Sockets> = Table::<Sockets>::new(&HTTP_ROWS);

/// The same rows in `stream`.
pub(crate) static STREAM: Table<Sockets> = Table::<Sockets>::new(&STREAM_ROWS);

const fn rows(places: Contexts) -> [Directive<Sockets>; 8] {
    [
        Directive {
            name: "lua_socket_log_errors",
            syntax: "on | off",
            default: Some("on"),
            contexts: places,
            since: "0.1",
            doc: "Whether to log socket errors in addition to returning them to the script.",
            set: Setter::Flag(|c| &mut c.log_errors),
        },
        time("lua_socket_connect_timeout", places, |c| {
            &mut c.connect_timeout
        }),
        time("lua_socket_send_timeout", places, |c| &mut c.send_timeout),
        time("lua_socket_read_timeout", places, |c| &mut c.read_timeout),
        time("lua_socket_keepalive_timeout", places, |c| {
            &mut c.keepalive_timeout
        }),
        Directive {
            name: "lua_socket_pool_size",
            syntax: "count",
            default: Some("30"),
            contexts: places,
            since: "0.1",
            doc: "The number of idle connections that a cosocket pool keeps.",
            set: Setter::Number(|c| &mut c.pool_size, 0, 65536),
        },
        ignored("lua_socket_send_lowat", places, "Data is sent immediately."),
        ignored(
            "lua_socket_buffer_size",
            places,
            "Buffers grow as needed, within limits.",
        ),
    ]
}

const fn time(
    name: &'static str,
    contexts: Contexts,
    place: fn(&mut Sockets) -> &mut Duration,
) -> Directive<Sockets> {
    Directive {
        name,
        syntax: "time",
        default: Some("60s"),
        contexts,
        since: "0.1",
        doc: "The default timeout of this cosocket operation; `settimeout` overrides it.",
        set: Setter::Millis(place),
    }
}
