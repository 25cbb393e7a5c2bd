//! The commands that show a running server's requests.
//!
//! They have the options that name a server in common, and the text about filters, which is long: a reader of
//! requests looks for some of them, and the names are what one does not remember.

use super::{CONFIGURATION, CommandRow, OptionRow, PREFIX, ValueKind, flag, valued};

/// Names a server without its configuration, which may be unreadable, or have none (`weir serve`).
const PID: OptionRow = valued(
    "pid",
    "FILE",
    ValueKind::File,
    "the server's pid file, or its process number; its configuration is not read then",
);

/// What `--json` does for `weir tail`.
const JSON_LINES: &str = "print a JSON object for each request, with all that is known of it";

/// What both pages say of filters.
const FILTERS: &str = "\
FILTER chooses requests by nginx's variables, with or without $:

  weir tail 'status>=500 && $host ~ shop'
  weir tail 'request_time > 500ms || upstream_status == 504'
  weir tail '!(http_user_agent ~* bot) && arg_page == 3'

Operators are == != < <= > >= ~ ~* !~ !~* && || ! and parentheses. A variable alone is true if it is neither
empty nor 0. Of a list, such as $upstream_status, one item is enough. There are: $status, $request_time,
$request_method, $request_uri, $uri, $args, $arg_NAME, $host, $scheme, $remote_addr, $remote_port, $remote_user,
$server_name, $server_port, $server_protocol, $connection, $connection_requests, $bytes_sent, $body_bytes_sent,
$request_length, $upstream_addr, $upstream_status, $upstream_connect_time, $upstream_header_time,
$upstream_response_time, $upstream_cache_status, $upstream_cache_reason, $ssl_protocol, $ssl_cipher,
$ssl_server_name, $weir_time_COLUMN, $weir_location, $http_NAME and $sent_http_NAME. Authorization, cookies and
arguments such as token or signature are *** in all of them.

Only root and the user who started the server see its requests. The server is not slowed down by a slow reader:
what does not fit into its ring is skipped, and the command says how many requests it has not seen.
";

/// `weir tail`.
pub(crate) const TAIL: CommandRow = CommandRow {
    name: "tail",
    usage: &["tail [FILTER] [-c FILE | --pid FILE] [-l] [-g upstream] [-n COUNT] [--json]"],
    synopsis: "tail [FILTER]",
    summary: "show the requests of a running server as they end",
    about: "\
Shows each request of a running server when it has ended: time, status, duration, method, URL, client, upstream
servers with their statuses, cache. Follows the server through reloads, upgrades and restarts until Ctrl-C.
",
    options: &[
        PREFIX,
        CONFIGURATION,
        PID,
        OptionRow {
            short: Some('l'),
            ..flag("ledger", "show where the time of each request went")
        },
        OptionRow {
            short: Some('g'),
            ..valued(
                "group",
                "WHAT",
                ValueKind::Words(&["request", "upstream"]),
                "upstream: below each request a line for each upstream server that was tried",
            )
        },
        OptionRow {
            short: Some('n'),
            ..valued("count", "N", ValueKind::Free, "end after N requests")
        },
        flag("json", JSON_LINES),
    ],
    notes: FILTERS,
    arguments: &[ValueKind::Free],
};

/// `weir top`.
pub(crate) const TOP: CommandRow = CommandRow {
    name: "top",
    usage: &["top [FILTER] [-c FILE | --pid FILE] [--by rate|time] [--once] [--seconds N] [--json]"],
    synopsis: "top [FILTER]",
    summary: "show which paths, clients and upstream servers take most",
    about: "\
Adds up the requests of the last seconds by path, client, upstream server and status: requests per second, share
of the time, mean and longest time, failures (5xx). In a terminal it is drawn again each second; q ends it, r and
t order by rate and by time, the space bar holds the picture. Elsewhere it prints once.
",
    options: &[
        PREFIX,
        CONFIGURATION,
        PID,
        valued(
            "by",
            "ORDER",
            ValueKind::Words(&["rate", "time"]),
            "rate (the default) or time: which rows come first",
        ),
        flag("once", "collect for two seconds, print, and end"),
        valued(
            "seconds",
            "N",
            ValueKind::Free,
            "over how many seconds to add up (10 in a terminal, 2 with --once)",
        ),
        flag("json", "the same as JSON, with all rows"),
    ],
    notes: FILTERS,
    arguments: &[ValueKind::Free],
};
