//! The commands for a machine that has run nginx so far. None of them changes nginx's configuration.

use super::{CONFIGURATION, CommandRow, GLOBALS, OptionRow, PREFIX, ValueKind, flag, valued};

// Both compare with a running nginx, and say it in the same way.
const PROCESS: OptionRow = valued(
    "process",
    "N",
    ValueKind::Free,
    "the number of the master process, if several are running",
);
const REPORT_JSON: OptionRow = flag("json", "print the report as JSON");

/// `weir takeover`.
pub(crate) const TAKEOVER: CommandRow = CommandRow {
    name: "takeover",
    usage: &[
        "takeover [--dry-run] [--yes] [--requests N] [--rate N] [--process N] [--json]",
        "takeover --undo [--yes] [--process N] [--json]",
    ],
    synopsis: "takeover [--dry-run | --undo]",
    summary: "take the place of a running nginx, live, and give it back",
    about: "\
Compares Weir with the running nginx and takes its place without refusing a connection. The configuration
is checked; a copy of the server runs on private ports and writes nothing but temporary files; both get
the same requests, drawn from the configuration, and differences are shown. Then nginx is told to change
its binary, with its own procedure: the unit, the pid file and the configuration stay what they are.
",
    options: &[
        flag("dry-run", "compare only; nothing is replaced"),
        flag("undo", "return to the nginx that was there, live"),
        flag("yes", "do not ask before replacing"),
        valued(
            "requests",
            "N",
            ValueKind::Free,
            "how many requests each server gets at most (default: 200; 0 compares nothing)",
        ),
        valued(
            "rate",
            "N",
            ValueKind::Free,
            "how many requests per second at most (default: 100)",
        ),
        PROCESS,
        REPORT_JSON,
    ],
    notes: "\
Exits with 0 when the server was replaced, or when --dry-run has found no difference; with 2 when
--dry-run has found differences; and with 1 when nothing was replaced, which is explained.
\"weir shadow\" compares with the requests of clients.
",
    arguments: &[],
};

/// `weir shadow`.
pub(crate) const SHADOW: CommandRow = CommandRow {
    name: "shadow",
    usage: &["shadow [OPTION ...]"],
    synopsis: "shadow [--share PERCENT]",
    summary: "repeat requests of clients to a running nginx and to Weir beside it, and compare",
    about: "\
Runs a copy of the server next to a running nginx, on private ports, and follows nginx's access log: a
share of the GET and HEAD requests in it is sent to both, and the responses are compared. Clients notice
nothing. The report shows differences in groups, without queries and header values. Ends with Ctrl-C.
",
    options: &[
        valued(
            "share",
            "PERCENT",
            ValueKind::Free,
            "the share of requests that are repeated (default: 10)",
        ),
        valued(
            "rate",
            "N",
            ValueKind::Free,
            "how many requests per second at most (default: 20)",
        ),
        valued(
            "requests",
            "N",
            ValueKind::Free,
            "end after N requests",
        ),
        valued(
            "time",
            "SECONDS",
            ValueKind::Free,
            "end after this time",
        ),
        valued(
            "log",
            "FILE",
            ValueKind::File,
            "the access log (default: all files that \"access_log\" names)",
        ),
        PROCESS,
        REPORT_JSON,
    ],
    notes: "\
Exits with 0 without differences, with 2 if there were any, and with 1 if it cannot run.
",
    arguments: &[],
};

/// `weir canary`.
pub(crate) const CANARY: CommandRow = CommandRow {
    name: "canary",
    usage: &["canary [--share PERCENT,...] [--time SECONDS] [--max-errors PERCENT] [--process N] [--json]"],
    synopsis: "canary [--share PERCENT,...]",
    summary: "serve a share of the connections of a running nginx, for a trial",
    about: "\
Starts Weir next to a running nginx, on the same addresses, and lets the kernel send it a share of the new
connections: no proxy is in between, and addresses and logs are what they are. Shares follow each other.
If Weir's responses have more errors than nginx's, or take longer, all connections go to nginx again.
nginx, its configuration and its files do not change.
",
    options: &[
        valued(
            "share",
            "PERCENT,...",
            ValueKind::Free,
            "the shares of new connections, one after the other (default: 1,5,25)",
        ),
        valued(
            "time",
            "SECONDS",
            ValueKind::Free,
            "how long each share lasts (default: 300)",
        ),
        valued(
            "max-errors",
            "PERCENT",
            ValueKind::Free,
            "how many percentage points more errors than nginx end it (default: 1)",
        ),
        PROCESS,
        REPORT_JSON,
    ],
    notes: "\
Exits with 0 when all shares went well, or it was interrupted; with 2 when connections were given back early,
which is explained; and with 1 when it cannot run.
",
    arguments: &[],
};

/// `weir unit`.
pub(crate) const UNIT: CommandRow = CommandRow {
    name: "unit",
    usage: &["unit [--apparmor] [-c FILE] [-p PREFIX] [-g DIRECTIVES]"],
    synopsis: "unit [--apparmor]",
    summary: "print a sandbox for nginx.service that permits what its configuration needs",
    about: "\
Prints a drop-in for nginx.service after Weir has taken nginx's place. The unit may then read and write what the
configuration names, and nothing else that matters: the master may be root all the same. Repeat it after changes that
name new directories.

  mkdir -p /etc/systemd/system/nginx.service.d
  weir unit > /etc/systemd/system/nginx.service.d/50-sandbox.conf
  systemctl daemon-reload && systemctl restart nginx
",
    options: &[
        flag(
            "apparmor",
            "print an AppArmor profile instead, which the drop-in names: weir unit --apparmor > \
             /etc/apparmor.d/weir-nginx && apparmor_parser -r /etc/apparmor.d/weir-nginx",
        ),
        PREFIX,
        CONFIGURATION,
        GLOBALS,
    ],
    notes: "",
    arguments: &[],
};
