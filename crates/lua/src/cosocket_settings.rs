//! The settings of cosockets, in http and in stream. A script overrides them for a socket, by
//! `settimeout` and by arguments of `connect` and `setkeepalive`.

use std::time::Duration;

use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{Contexts, Directive, DirectiveTable, HTTP_SERVER_LOCATION, Setter};

use crate::rows::ignored_row;

/// What a new cosocket starts with.
#[derive(Clone, Default)]
pub(crate) struct CosocketSettings {
    /// `lua_socket_connect_timeout`.
    pub(crate) connect_timeout: Duration,
    /// `lua_socket_send_timeout`.
    pub(crate) send_timeout: Duration,
    /// `lua_socket_read_timeout`.
    pub(crate) read_timeout: Duration,
    /// `lua_socket_keepalive_timeout`: how long an idle connection is kept; zero means forever.
    pub(crate) keepalive_timeout: Duration,
    /// How many idle connections a pool keeps, unless the script says otherwise.
    pub(crate) pool_size: i64,
    /// Whether errors are logged in addition to being returned.
    pub(crate) log_errors: bool,
}

static HTTP_ROWS: [Directive<CosocketSettings>; 8] = ROWS;
static STREAM_ROWS: [Directive<CosocketSettings>; 8] =
    Directive::in_contexts(ROWS, STREAM_AND_SERVER);

/// The rows in `http` and the blocks within.
pub(crate) static HTTP: DirectiveTable<CosocketSettings> =
    DirectiveTable::<CosocketSettings>::new(&HTTP_ROWS);

/// The same rows in `stream`.
pub(crate) static STREAM: DirectiveTable<CosocketSettings> =
    DirectiveTable::<CosocketSettings>::new(&STREAM_ROWS);

/// The rows, as `http` has them.
const ROWS: [Directive<CosocketSettings>; 8] = [
    Directive {
        name: "lua_socket_log_errors",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to log socket errors in addition to returning them to the script.",
        set: Setter::Flag(|c| &mut c.log_errors),
    },
    timeout_row("lua_socket_connect_timeout", HTTP_SERVER_LOCATION, |c| {
        &mut c.connect_timeout
    }),
    timeout_row("lua_socket_send_timeout", HTTP_SERVER_LOCATION, |c| {
        &mut c.send_timeout
    }),
    timeout_row("lua_socket_read_timeout", HTTP_SERVER_LOCATION, |c| {
        &mut c.read_timeout
    }),
    timeout_row("lua_socket_keepalive_timeout", HTTP_SERVER_LOCATION, |c| {
        &mut c.keepalive_timeout
    }),
    Directive {
        name: "lua_socket_pool_size",
        syntax: "count",
        default: Some("30"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The number of idle connections that a cosocket pool keeps.",
        set: Setter::Number(|c| &mut c.pool_size, 0, 65536),
    },
    ignored_row(
        "lua_socket_send_lowat",
        HTTP_SERVER_LOCATION,
        "Data is sent immediately.",
    ),
    ignored_row(
        "lua_socket_buffer_size",
        HTTP_SERVER_LOCATION,
        "Buffers grow as needed, within limits.",
    ),
];

/// A row for a timeout.
const fn timeout_row(
    name: &'static str,
    contexts: Contexts,
    place: fn(&mut CosocketSettings) -> &mut Duration,
) -> Directive<CosocketSettings> {
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
