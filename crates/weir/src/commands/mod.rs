//! The commands and options of the command line, as data.
//!
//! The pages of `--help`, nginx's `-h`, the completions for shells and the hints for misspelt words are
//! made from these rows. The parsers in [`crate::cli`] decide what an option does; a test checks that
//! they accept every row.

mod explaining;
mod replacing_nginx;
mod watching;

pub(crate) use explaining::{EXPLAIN, FMT, LSP};
pub(crate) use replacing_nginx::{CANARY, SHADOW, TAKEOVER, UNIT};
pub(crate) use watching::{TAIL, TOP};

/// A command, such as `weir serve`.
pub(crate) struct CommandRow {
    pub(crate) name: &'static str,
    /// The lines of its usage, without `weir`.
    pub(crate) usage: &'static [&'static str],
    /// The short usage in `weir --help`.
    pub(crate) synopsis: &'static str,
    /// One line for `weir --help` and the completions. Empty for a command that is not shown.
    pub(crate) summary: &'static str,
    /// The first paragraphs of its page.
    pub(crate) about: &'static str,
    pub(crate) options: &'static [OptionRow],
    /// The paragraphs below the options.
    pub(crate) notes: &'static str,
    /// What its arguments are, in their order.
    pub(crate) arguments: &'static [ValueKind],
}

/// An option of a command.
pub(crate) struct OptionRow {
    pub(crate) short: Option<char>,
    pub(crate) long: Option<&'static str>,
    pub(crate) value: Option<OptionValue>,
    pub(crate) about: &'static str,
}

/// The value that an option requires.
pub(crate) struct OptionValue {
    /// The word for it in the help.
    pub(crate) shown: &'static str,
    pub(crate) kind: ValueKind,
}

/// What a shell can complete a value with.
#[derive(Clone, Copy)]
pub(crate) enum ValueKind {
    /// Nothing: a number, an address, a name.
    Free,
    File,
    Directory,
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of the words that another file lists.
    List(WordList),
}

/// Words that are listed elsewhere. Only their names are here, since those files use this one.
#[derive(Clone, Copy)]
pub(crate) enum WordList {
    /// The configurations of `weir init`.
    Kinds,
    /// The rules of `weir check`.
    Rules,
    /// All directives.
    Directives,
}

/// The values of `-s`.
pub(crate) const SIGNALS: [&str; 4] = ["stop", "quit", "reopen", "reload"];

/// The shells of `weir completions`.
pub(crate) const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// The tasks of `weir cache`.
pub(crate) const CACHE_TASKS: [&str; 5] = ["ls", "show", "stat", "verify", "purge"];

const fn flag(long: &'static str, about: &'static str) -> OptionRow {
    OptionRow {
        short: None,
        long: Some(long),
        value: None,
        about,
    }
}

const fn valued(
    long: &'static str,
    shown: &'static str,
    kind: ValueKind,
    about: &'static str,
) -> OptionRow {
    OptionRow {
        short: None,
        long: Some(long),
        value: Some(OptionValue { shown, kind }),
        about,
    }
}

/// An option of nginx, which has a letter only.
const fn letter(
    short: char,
    value: Option<(&'static str, ValueKind)>,
    about: &'static str,
) -> OptionRow {
    let value = match value {
        Some((shown, kind)) => Some(OptionValue { shown, kind }),
        None => None,
    };
    OptionRow {
        short: Some(short),
        long: None,
        value,
        about,
    }
}

const PREFIX: OptionRow = letter(
    'p',
    Some(("prefix", ValueKind::Directory)),
    "set prefix path",
);
const ERROR_LOG: OptionRow = letter(
    'e',
    Some(("filename", ValueKind::File)),
    "set error log file",
);
const CONFIGURATION: OptionRow = letter(
    'c',
    Some(("filename", ValueKind::File)),
    "set configuration file",
);
const GLOBALS: OptionRow = letter(
    'g',
    Some(("directives", ValueKind::Free)),
    "set global directives out of configuration file",
);
const PORT: OptionRow = OptionRow {
    short: Some('p'),
    ..valued(
        "port",
        "N",
        ValueKind::Free,
        "port to listen on (default: 8080, or the next free port)",
    )
};
const LISTEN: OptionRow = OptionRow {
    short: Some('l'),
    ..valued(
        "listen",
        "ADDRESS",
        ValueKind::Free,
        "address to listen on, with or without a port (default: 127.0.0.1; * for all interfaces)",
    )
};

/// nginx's options, in the order of its help, with its words.
pub(crate) const NGINX_OPTIONS: &[OptionRow] = &[
    letter('h', None, "this help"),
    letter('v', None, "show version and exit"),
    letter('V', None, "show version and configure options then exit"),
    letter('t', None, "test configuration and exit"),
    letter('T', None, "test configuration, dump it and exit"),
    letter(
        'q',
        None,
        "suppress non-error messages during configuration testing",
    ),
    letter(
        's',
        Some(("signal", ValueKind::Words(&SIGNALS))),
        "send signal to a master process: stop, quit, reopen, reload",
    ),
    PREFIX,
    ERROR_LOG,
    CONFIGURATION,
    GLOBALS,
];

/// The options that stand in the place of a command.
pub(crate) const OWN_OPTIONS: &[OptionRow] = &[
    flag("help", "show the commands"),
    flag("version", "show version and exit"),
];

/// The commands, in the order of the help.
pub(crate) const COMMANDS: &[CommandRow] = &[
    SERVE,
    PROXY,
    INIT,
    CHECK,
    EXPLAIN,
    FMT,
    LSP,
    UPGRADE,
    TAIL,
    TOP,
    SHADOW,
    CANARY,
    TAKEOVER,
    UNIT,
    CACHE,
    HELP,
    COMPLETIONS,
    VERSION,
    ENTRYPOINT,
    REFERENCE,
    MANUAL,
];

/// `weir serve`.
pub(crate) const SERVE: CommandRow = CommandRow {
    name: "serve",
    usage: &["serve DIR [OPTION ...]"],
    synopsis: "serve DIR [--port N] [--listen ADDRESS]",
    summary: "serve a directory at http://127.0.0.1:8080",
    about: "\
Serves a directory over HTTP until Ctrl-C: index files, listings, Markdown, ranges, gzip, Brotli, Zstandard,
HTTP/2. Requests are logged to standard output. Nothing is written to the directory (unless --upload is given).
",
    options: &[
        PORT,
        LISTEN,
        flag("open", "open the site in a browser"),
        flag("spa", "answer paths that are not files with /index.html"),
        flag(
            "tls",
            "HTTPS, with a certificate from a local authority that is created once for this user",
        ),
        valued(
            "domain",
            "NAME",
            ValueKind::Free,
            "HTTPS on port 443 of all interfaces, with a certificate from Let's Encrypt for NAME, \
             and a redirect from port 80",
        ),
        valued(
            "password",
            "USER",
            ValueKind::Free,
            "require user USER and the password in the environment variable WEIR_PASSWORD, or else on \
             standard input, where a terminal asks for it; USER:PASSWORD is accepted, too, and is \
             visible in the process list for a moment",
        ),
        flag(
            "upload",
            "accept files by PUT and from the listing; existing files are not replaced",
        ),
        flag(
            "cors",
            "allow pages of other origins to read what is served",
        ),
        flag(
            "hidden",
            "serve names that begin with a dot (default: 404, except /.well-known/)",
        ),
        flag(
            "follow",
            "follow symbolic links that lead out of DIR (default: 403)",
        ),
        flag(
            "metrics",
            "show metrics for Prometheus at http://127.0.0.1:9145/metrics; with --metrics=ADDRESS \
             or --metrics=PORT elsewhere",
        ),
    ],
    notes: "",
    arguments: &[ValueKind::Directory],
};

/// `weir proxy`.
pub(crate) const PROXY: CommandRow = CommandRow {
    name: "proxy",
    usage: &["proxy URL [--port N] [--listen ADDRESS] [--insecure]"],
    synopsis: "proxy URL [--port N] [--listen ADDRESS]",
    summary: "reverse-proxy another server and cache what is cacheable",
    about: "\
Passes requests to the server at URL until Ctrl-C, and caches its cacheable responses in a temporary
directory, which is removed at the end. Concurrent requests for the same resource are collapsed into one,
and while the server fails, stale responses are served. Requests are logged to standard output, with the
cache status and the reason if a response was not cached. For a server on this machine its port is enough:
weir proxy 3000.
",
    options: &[
        PORT,
        LISTEN,
        OptionRow {
            short: Some('k'),
            ..flag(
                "insecure",
                "do not verify the TLS certificate of the origin (default: verify the name in URL \
                 and the chain against the system's CAs, or SSL_CERT_FILE)",
            )
        },
        flag(
            "metrics",
            "show metrics for Prometheus at http://127.0.0.1:9145/metrics; with --metrics=ADDRESS \
             or --metrics=PORT elsewhere",
        ),
    ],
    notes: "",
    arguments: &[ValueKind::Free],
};

/// `weir init`.
pub(crate) const INIT: CommandRow = CommandRow {
    name: "init",
    usage: &["init KIND [FILE] [--domain NAME]"],
    synopsis: "init KIND [FILE]",
    summary: "write one to start from: static, spa, php, proxy, cache, s3, balance, stream",
    about: "\
Writes a configuration to start from, to FILE or to standard output. Without KIND it lists them.
",
    options: &[valued(
        "domain",
        "NAME",
        ValueKind::Free,
        "use TLS: the certificate for NAME is obtained from Let's Encrypt at the start, and renewed",
    )],
    notes: "",
    arguments: &[ValueKind::List(WordList::Kinds), ValueKind::File],
};

/// `weir check`.
pub(crate) const CHECK: CommandRow = CommandRow {
    name: "check",
    usage: &[
        "check [-c FILE] [-p PREFIX] [-g DIRECTIVES] [--json]",
        "check --explain RULE",
    ],
    synopsis: "check [-c FILE]",
    summary: "find vulnerabilities and leaks in the configuration",
    about: "\
Checks a configuration for vulnerabilities and information leaks, and shows for each finding where it is,
why it matters and how to fix it. Nothing is started and nothing is sent; the directories of \"root\" are
searched for files that should not be public.
",
    options: &[
        PREFIX,
        CONFIGURATION,
        GLOBALS,
        flag(
            "json",
            "print JSON: \"errors\", and \"findings\" with rule, danger (attack or risk), message, \
             file, line, column, text, why and write",
        ),
        valued(
            "explain",
            "RULE",
            ValueKind::List(WordList::Rules),
            "explain a rule, with an example; 'all' lists the rules",
        ),
    ],
    notes: "\
Exits with 0 if there are no findings, with 1 if there are, and with 2 if the configuration is invalid
(findings are shown nevertheless). \"weir -t\" shows exploitable findings too.

To accept a finding, put a comment at the end of its line or on the line before:
  # weir check: allow RULE
",
    arguments: &[],
};

/// `weir upgrade`.
pub(crate) const UPGRADE: CommandRow = CommandRow {
    name: "upgrade",
    usage: &["upgrade [-c FILE] [-p PREFIX] [-e FILE] [-g DIRECTIVES]"],
    synopsis: "upgrade [-c FILE]",
    summary: "replace the binary of a running server without dropping connections",
    about: "\
Replaces the binary of a running server with the one now on disk. Listening sockets, idle connections and
the cache are handed over, and no request fails. Give the same options as when the server was started; they
identify it.
",
    options: &[PREFIX, ERROR_LOG, CONFIGURATION, GLOBALS],
    notes: "",
    arguments: &[],
};

/// `weir cache`.
pub(crate) const CACHE: CommandRow = CommandRow {
    name: "cache",
    usage: &[
        "cache ls PATH [--prefix TEXT]",
        "cache show PATH URL",
        "cache stat PATH",
        "cache verify PATH",
        "cache purge PATH (--key TEXT | --prefix TEXT | --tag TEXT | --all) [--soft]",
    ],
    synopsis: "cache TASK PATH",
    summary: "ls, show, stat, verify or purge the cache in a directory",
    about: "  ls       list the stored objects
  show     show the stored response header of a URL or key
  stat     show figures of the cache
  verify   compare all stored bytes with their checksums
  purge    remove objects or, with --soft, mark them as stale; not while a server is running
",
    options: &[
        valued(
            "prefix",
            "TEXT",
            ValueKind::Free,
            "objects whose keys begin with TEXT",
        ),
        valued("key", "TEXT", ValueKind::Free, "the objects with this key"),
        valued("tag", "TEXT", ValueKind::Free, "objects with this tag"),
        flag("all", "all objects"),
        flag("soft", "mark objects as stale instead of removing them"),
    ],
    notes: "PATH is the directory of a \"proxy_cache_path\".\n",
    arguments: &[ValueKind::Words(&CACHE_TASKS), ValueKind::Directory],
};

/// `weir help`.
pub(crate) const HELP: CommandRow = CommandRow {
    name: "help",
    usage: &["help [DIRECTIVE | $VARIABLE | STATUS | COMMAND | tls] [--no-pager]"],
    synopsis: "help [DIRECTIVE]",
    summary: "what a directive does, its default and contexts; also $VARIABLE or a status",
    about: "\
Explains a directive, a variable, a status or a command; without one, lists all directives. A terminal shows
the text through $PAGER, or less.
",
    options: &[flag("no-pager", "print the text, also on a terminal")],
    notes: "",
    arguments: &[ValueKind::List(WordList::Directives)],
};

/// `weir completions`.
pub(crate) const COMPLETIONS: CommandRow = CommandRow {
    name: "completions",
    usage: &["completions bash|zsh|fish"],
    synopsis: "completions SHELL",
    summary: "print completions for bash, zsh or fish",
    about: "\
Prints a script that completes commands, options and directives of weir in a shell. To load it:

  bash   weir completions bash > ~/.local/share/bash-completion/completions/weir
  zsh    weir completions zsh > DIR/_weir, where DIR is a directory of $fpath
  fish   weir completions fish > ~/.config/fish/completions/weir.fish
",
    options: &[],
    notes: "For the current shell only, bash and zsh: source <(weir completions bash).\n",
    arguments: &[ValueKind::Words(&SHELLS)],
};

/// `weir version`, which is `weir --version`.
const VERSION: CommandRow = CommandRow {
    name: "version",
    usage: &["--version"],
    synopsis: "--version",
    summary: "show version and exit",
    about: "",
    options: &[],
    notes: "",
    arguments: &[],
};

/// `weir entrypoint`, for container images.
const ENTRYPOINT: CommandRow = CommandRow {
    name: "entrypoint",
    usage: &["entrypoint COMMAND [ARG ...]"],
    synopsis: "entrypoint COMMAND",
    summary: "",
    about: "Runs the scripts of /docker-entrypoint.d, fills in templates, and becomes COMMAND.\n",
    options: &[],
    notes: "",
    arguments: &[ValueKind::Free],
};

/// `weir reference`, for those who work on Weir.
const REFERENCE: CommandRow = CommandRow {
    name: "reference",
    usage: &["reference DIR"],
    synopsis: "reference DIR",
    summary: "",
    about: "Writes the pages of docs/reference to DIR.\n",
    options: &[],
    notes: "",
    arguments: &[ValueKind::Directory],
};

/// `weir man`, for packages.
const MANUAL: CommandRow = CommandRow {
    name: "man",
    usage: &["man weir.8|weir.conf.5"],
    synopsis: "man PAGE",
    summary: "",
    about: "Prints a manual page.\n",
    options: &[],
    notes: "",
    arguments: &[ValueKind::Words(&crate::man_pages::PAGES)],
};

/// The command with this name. Other tools call `init` `new`.
pub(crate) fn find_command(name: &str) -> Option<&'static CommandRow> {
    let name = if name == "new" { "init" } else { name };
    COMMANDS.iter().find(|row| row.name == name)
}

/// The column at which the descriptions of options start.
const OPTION_COLUMN: usize = 25;
/// The width of the pages.
const PAGE_WIDTH: usize = 106;

impl CommandRow {
    /// Whether users are told of it.
    pub(crate) fn is_shown(&self) -> bool {
        !self.summary.is_empty()
    }

    /// How it is called: the first lines of its page, and the last of its error messages.
    pub(crate) fn usage_lines(&self) -> String {
        let lines: Vec<String> = self
            .usage
            .iter()
            .map(|line| format!("weir {line}"))
            .collect();
        format!("usage: {}", lines.join("\n       "))
    }

    /// The page of `weir COMMAND --help`.
    pub(crate) fn page(&self) -> String {
        let options: String = self.options.iter().map(OptionRow::help_line).collect();
        let parts = [
            format!("{}\n", self.usage_lines()),
            self.about.to_owned(),
            options,
            self.notes.to_owned(),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("\n")
    }
}

impl OptionRow {
    /// The option as it is written, without its value.
    pub(crate) fn spellings(&self) -> Vec<String> {
        let short = self.short.map(|letter| format!("-{letter}"));
        let long = self.long.map(|word| format!("--{word}"));
        short.into_iter().chain(long).collect()
    }

    /// Its lines in a command's page.
    fn help_line(&self) -> String {
        let short = match (self.short, self.long) {
            (Some(letter), Some(_)) => format!("-{letter}, "),
            (Some(letter), None) => format!("-{letter}"),
            (None, _) => "    ".to_owned(),
        };
        let long = self.long.map_or(String::new(), |word| format!("--{word}"));
        let value = self
            .value
            .as_ref()
            .map_or(String::new(), |value| format!(" {}", value.shown));
        let head = format!("  {short}{long}{value}");
        let indent = " ".repeat(OPTION_COLUMN);
        let text = conf::describe::wrap_text(self.about, &indent, PAGE_WIDTH);
        format!("{head:<OPTION_COLUMN$}{}\n", text.trim_start())
    }
}
