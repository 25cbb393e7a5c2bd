//! What a command line says, parsed: nginx's options, and the arguments of the commands that begin a server.

use std::path::PathBuf;

/// nginx's options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NginxOptions {
    /// `-?`, `-h`.
    pub(crate) help: bool,
    /// `-v`; `-V` and `-h` imply it.
    pub(crate) version: bool,
    /// `-V`.
    pub(crate) configure: bool,
    /// `-t`, `-T`.
    pub(crate) test: bool,
    /// `-T`.
    pub(crate) dump: bool,
    /// `-q`.
    pub(crate) quiet: bool,
    /// `-s`.
    pub(crate) signal: Option<SignalOption>,
    /// `-p`.
    pub(crate) prefix: Option<PathBuf>,
    /// `-e`. The word `stderr` is resolved later.
    pub(crate) error_log: Option<PathBuf>,
    /// `-c`.
    pub(crate) configuration: Option<PathBuf>,
    /// `-g`.
    pub(crate) globals: Option<String>,
}

/// The signal of `-s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalOption {
    /// Stop now.
    Stop,
    /// Stop when all current requests have ended.
    Quit,
    /// Reopen the logs.
    Reopen,
    /// Reload the configuration.
    Reload,
}

/// The arguments of `weir serve`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ServeArguments {
    /// The directory to serve.
    pub(crate) directory: PathBuf,
    /// The port; `None` means 8080 or the next free one.
    pub(crate) port: Option<u16>,
    /// The address; `None` means this machine only.
    pub(crate) listen: Option<String>,
    /// TLS with a certificate of the local authority.
    pub(crate) tls: bool,
    /// TLS with a certificate of a public authority for this name.
    pub(crate) domain: Option<String>,
    /// `USER` or `USER:PASSWORD` for Basic authentication.
    pub(crate) password: Option<String>,
    /// Requests for paths that do not exist get the index.
    pub(crate) spa: bool,
    /// Open a browser.
    pub(crate) open: bool,
    /// Accept uploads.
    pub(crate) upload: bool,
    /// Let pages of other origins read the responses.
    pub(crate) cors: bool,
    /// Serve names that begin with a dot.
    pub(crate) hidden: bool,
    /// Follow symbolic links that lead out of the directory.
    pub(crate) follow: bool,
    /// Where to show metrics; empty for the usual address of this machine.
    pub(crate) metrics: Option<String>,
}

/// The arguments of `weir proxy`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProxyArguments {
    /// The URL of the origin.
    pub(crate) url: String,
    /// The port; `None` means 8080 or the next free one.
    pub(crate) port: Option<u16>,
    /// The address; `None` means this machine only.
    pub(crate) listen: Option<String>,
    /// Do not verify the certificate of an `https` origin.
    pub(crate) insecure: bool,
    /// Where to show metrics; empty for the usual address of this machine.
    pub(crate) metrics: Option<String>,
}

/// The arguments of `weir init`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InitArguments {
    /// Which configuration; `None` lists them.
    pub(crate) kind: Option<String>,
    /// The server's name, for TLS.
    pub(crate) domain: Option<String>,
    /// The file; `None` is standard output.
    pub(crate) output: Option<PathBuf>,
}

/// `weir help [NAME] [--no-pager]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HelpArguments {
    pub(crate) name: Option<String>,
    /// Prints even a long text as it is.
    pub(crate) no_pager: bool,
}
