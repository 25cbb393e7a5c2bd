//! The row of `weir explain`.

use super::{
    CONFIGURATION, CommandRow, GLOBALS, OptionRow, PREFIX, ValueKind, flag, letter, valued,
};

/// `weir explain`.
pub(crate) const EXPLAIN: CommandRow = CommandRow {
    name: "explain",
    usage: &[
        "explain [-c FILE] [-X METHOD] [-H FIELD]... [-d DATA] [--from ADDRESS] [--live] [--json] URL",
    ],
    synopsis: "explain URL",
    summary: "what the server would do with a request, and which line says so",
    about: "\
Shows from the configuration what a server would do with a request: the server and location chosen and why,
rewrites, files tried, access rules, limits, the cache key, the upstream server and what it would be sent,
the response, each with file and line. Nothing is written, no server is asked and no script runs.
",
    options: &[
        PREFIX,
        CONFIGURATION,
        GLOBALS,
        METHOD,
        FIELD,
        DATA,
        valued(
            "from",
            "ADDRESS",
            ValueKind::Free,
            "the client's address (default: 127.0.0.1)",
        ),
        flag(
            "live",
            "also ask the running server: is it in the cache, fresh until when, which peer is next",
        ),
        flag("json", "print JSON"),
    ],
    notes: "\
URL is \"http://HOST[:PORT]/PATH\", or only \"/PATH\" for the first address of the configuration. A line begins
with \"→\" if it decides or changes something, with \"·\" if it was considered, and with \"?\" if only the running
server knows: what follows depends on it.

Exits with 0 if there is an answer, with 1 if not, and with 2 if the configuration is invalid.
",
    arguments: &[ValueKind::Free],
};

const METHOD: OptionRow = letter(
    'X',
    Some(("METHOD", ValueKind::Free)),
    "the method (default: GET, or POST with -d)",
);
const FIELD: OptionRow = letter(
    'H',
    Some(("FIELD", ValueKind::Free)),
    "a header field, 'Name: value'; may be repeated",
);
const DATA: OptionRow = letter('d', Some(("DATA", ValueKind::Free)), "the request's body");
