//! The rows of the commands for those who write configurations: `weir explain`, `weir fmt`, `weir lsp`.

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

/// curl has the same letters for these three, so that a command can be changed from the one to the other.
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

/// `weir fmt`.
pub(crate) const FMT: CommandRow = CommandRow {
    name: "fmt",
    usage: &["fmt [--check | --diff] [--includes] FILE...", "fmt -"],
    synopsis: "fmt FILE",
    summary: "write a configuration in one layout; comments stay",
    about: "\
Writes configurations in one layout: a directive per line, four spaces for each block, one space between words.
Comments, quotes, line ends between words and Lua code stay as they are. A file that does not parse is left alone.
With \"-\", standard input is written to standard output.
",
    options: &[
        flag("check", "write nothing; name the files that would change"),
        flag("diff", "write nothing; show what would change"),
        flag("includes", "the files that FILE includes, too"),
    ],
    notes: "\
Exits with 1 if --check or --diff has found something, and with 2 if a file could not be read, parsed or written.
",
    arguments: &[ValueKind::File],
};

/// `weir lsp`.
pub(crate) const LSP: CommandRow = CommandRow {
    name: "lsp",
    usage: &["lsp [-c FILE]"],
    synopsis: "lsp",
    summary: "a language server for editors, on standard input and output",
    about: "\
Speaks the language server protocol with an editor: the messages of \"weir -t\" while you type, completion by
context, help for directives and variables, definitions of includes, upstreams, variables and named locations,
formatting. A file that another one includes is read with that one: with FILE, or with a nginx.conf or weir.conf
in a directory above it.
",
    options: &[CONFIGURATION],
    notes: "",
    arguments: &[],
};
