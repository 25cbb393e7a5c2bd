//! The program's help: `-h`, `--help`, `weir help DIRECTIVE`, and the reference pages.
//!
//! The pages of the subcommands are texts in this file. Everything about directives and variables
//! comes from their tables, so it cannot disagree with what the parser accepts.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use conf::describe::{self, DirectiveSupport, WIDTH};

use crate::identity::ProgramIdentity;
use crate::reference;
use crate::status_help;

/// The text of `-h` and `-?`, after the version line: nginx's options in nginx's order.
pub(crate) fn options_text(identity: ProgramIdentity) -> String {
    let program = identity.program();
    let configuration = match identity {
        ProgramIdentity::Weir => "/etc/weir/weir.conf, else /etc/nginx/nginx.conf",
        ProgramIdentity::Nginx => "/etc/nginx/nginx.conf",
    };
    let subcommands = match identity {
        ProgramIdentity::Weir => "\nSee \"weir --help\" for Weir's own commands.\n\n",
        ProgramIdentity::Nginx => "\n",
    };
    format!(
        "Usage: {program} [-?hvVtTq] [-s signal] [-p prefix]
             [-e filename] [-c filename] [-g directives]

Options:
  -?,-h         : this help
  -v            : show version and exit
  -V            : show version and configure options then exit
  -t            : test configuration and exit
  -T            : test configuration, dump it and exit
  -q            : suppress non-error messages during configuration testing
  -s signal     : send signal to a master process: stop, quit, reopen, reload
  -p prefix     : set prefix path (default: /etc/nginx)
  -e filename   : set error log file (default: /var/log/nginx/error.log)
  -c filename   : set configuration file (default: {configuration})
  -g directives : set global directives out of configuration file
{subcommands}"
    )
}

/// The text of `--help`.
pub(crate) const USAGE: &str = "\
Weir is a web server and caching reverse proxy. It reads your existing nginx.conf.

Without a configuration file:
  weir serve DIR [--port N] [--listen ADDRESS]   serve a directory at http://127.0.0.1:8080
  weir proxy URL [--port N] [--listen ADDRESS]   reverse-proxy another server and cache what is cacheable

With a configuration file (same options as nginx, see `weir -h`):
  weir                        run /etc/weir/weir.conf, or else /etc/nginx/nginx.conf
  weir -c FILE                run FILE; add -g 'daemon off;' to stay in the foreground
  weir -t [-c FILE]           test the configuration and report every error
  weir init KIND [FILE]       write one to start from: static, spa, php, proxy, cache, s3, balance, stream
  weir check [-c FILE]        find vulnerabilities and leaks in the configuration
  weir -s SIGNAL              stop, quit, reopen or reload a running server
  weir upgrade [-c FILE]      replace the binary of a running server without dropping connections

Cache directories:
  weir cache ls|stat|verify PATH
  weir cache show PATH URL    show the stored response header of a URL
  weir cache purge PATH --key TEXT (or --prefix, --tag, --all; --soft marks objects as stale)

Help:
  weir help [DIRECTIVE]       what a directive does, its default and contexts; also $VARIABLE or a status
  weir help tls               about ciphers, protocols and certificates
  weir COMMAND --help         the options of one of these commands
  weir --version

Examples:
  weir serve ./public --port 3000
  weir proxy https://example.org
  weir init proxy app.conf && weir -t -c app.conf && weir -c app.conf
";

/// `weir serve --help`.
pub(crate) const SERVE: &str = "\
usage: weir serve DIR [OPTION ...]

Serves a directory over HTTP until Ctrl-C: index files, listings, Markdown, ranges, gzip, Brotli, Zstandard,
HTTP/2. Requests are logged to standard output. Nothing is written to the directory (unless --upload is given).

  -p, --port N           port to listen on (default: 8080, or the next free port)
  -l, --listen ADDRESS   address to listen on, with or without a port (default: 127.0.0.1; * for all
                         interfaces)
      --open             open the site in a browser
      --spa              answer paths that are not files with /index.html
      --tls              HTTPS, with a certificate from a local authority that is created once for this user
      --domain NAME      HTTPS on port 443 of all interfaces, with a certificate from Let's Encrypt for NAME,
                         and a redirect from port 80
      --password U:P     require user U and password P
      --upload           accept files by PUT and from the listing; existing files are not replaced
      --cors             allow pages of other origins to read what is served
      --hidden           serve names that begin with a dot (default: 404, except /.well-known/)
      --follow           follow symbolic links that lead out of DIR (default: 403)
";

/// `weir proxy --help`.
pub(crate) const PROXY: &str = "\
usage: weir proxy URL [--port N] [--listen ADDRESS] [--insecure]

Passes requests to the server at URL until Ctrl-C, and caches its cacheable responses in a temporary
directory, which is removed at the end. Concurrent requests for the same resource are collapsed into one,
and while the server fails, stale responses are served. Requests are logged to standard output, with the
cache status and the reason if a response was not cached. For a server on this machine its port is enough:
weir proxy 3000.

  -p, --port N           port to listen on (default: 8080, or the next free port)
  -l, --listen ADDRESS   address to listen on, with or without a port (default: 127.0.0.1; * for all
                         interfaces)
  -k, --insecure         do not verify the TLS certificate of the origin (default: verify the name in URL
                         and the chain against the system's CAs, or SSL_CERT_FILE)
";

/// `weir init --help`.
pub(crate) const INIT: &str = "\
usage: weir init KIND [FILE] [--domain NAME]

Writes a configuration to start from, to FILE or to standard output. With --domain it uses TLS: the certificate
for NAME is obtained from Let's Encrypt at the start, and renewed.
";

/// `weir upgrade --help`.
pub(crate) const UPGRADE: &str = "\
usage: weir upgrade [-c FILE] [-p PREFIX] [-e FILE] [-g DIRECTIVES]

Replaces the binary of a running server with the one now on disk. Listening sockets, idle connections and
the cache are handed over, and no request fails. Give the same options as when the server was started; they
identify it.
";

/// The page of a command, if it has one.
pub(crate) fn usage_of(command: &str) -> Option<&'static str> {
    match command {
        "serve" => Some(SERVE),
        "proxy" => Some(PROXY),
        "init" | "new" => Some(INIT),
        "upgrade" => Some(UPGRADE),
        "cache" => Some(crate::cache_command::USAGE),
        "check" => Some(crate::check::USAGE),
        "help" | "version" => Some(USAGE),
        _ => None,
    }
}

/// `weir help tls`: background that is too long for a warning.
const TLS: &str = include_str!("help_tls.txt");

/// The only directive without a row: the parser itself handles it.
const INCLUDE: &str = "include file | mask;
  context: any
  since:   0.1

Includes another file, or all files that match a mask, at this point. A relative path is resolved against the
directory of the configuration file.
";

/// `weir help [DIRECTIVE]`. Returns the exit code.
pub(crate) fn help(name: Option<&str>) -> i32 {
    let Some(name) = name else {
        show_paged(&format!("{USAGE}\n{}", directive_list()));
        return 0;
    };
    let directives = reference::directives();
    if name == "tls" {
        print!("{TLS}");
        return 0;
    }
    // Users paste whole lines of their files.
    let name = name.trim_end_matches(';');
    if let Some(variable) = name.strip_prefix('$') {
        return help_variable(variable);
    }
    if let Some(text) = name.parse().ok().and_then(status_help::of) {
        print!("{text}");
        return 0;
    }
    if name == "include" {
        print!("{INCLUDE}");
        return 0;
    }
    if let Some(text) = describe::directive_help(name, &directives) {
        print!("{text}");
        return 0;
    }
    eprintln!("weir: unknown directive \"{name}\"");
    let known = conf::nginx_directives::all().map(|known| known.name);
    if let Some(near) =
        conf::spelling::nearest_name(name, directives.iter().map(|row| row.name).chain(known))
    {
        eprintln!("  did you mean \"{near}\"? weir help {near}");
    }
    1
}

/// Prints a long text, through a pager if this is a terminal.
fn show_paged(text: &str) {
    let is_shown =
        std::io::stdout().is_terminal() && run_pager(text).is_ok_and(|status| status.success());
    if !is_shown {
        // A reader that closes the pipe has seen enough.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}

/// Runs the pager as git and man do: `$PAGER`, or `less`. With `FRX` it exits by itself if the text
/// fits on the screen, and leaves the text there.
fn run_pager(text: &str) -> std::io::Result<std::process::ExitStatus> {
    let pager = std::env::var("PAGER")
        .ok()
        .filter(|pager| !pager.is_empty());
    let mut pager = Command::new("/bin/sh")
        .args(["-c", pager.as_deref().unwrap_or("less")])
        .env(
            "LESS",
            std::env::var_os("LESS").unwrap_or_else(|| "FRX".into()),
        )
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = pager.stdin.take() {
        let _ = input.write_all(text.as_bytes());
    }
    pager.wait()
}

/// `weir help $NAME`: all variables with this name, or the family that it belongs to, such as
/// `$http_`.
fn help_variable(name: &str) -> i32 {
    let mut found = false;
    for page in reference::pages() {
        let is_meant = |variable: &&describe::VariableInfo| match variable.family {
            true => name.starts_with(variable.name),
            false => name == variable.name,
        };
        for variable in page.variables.iter().filter(is_meant) {
            found = true;
            println!("{}\n  module: {}\n", variable.shown_name(), page.name);
            println!("{}\n", describe::wrap_text(variable.doc, "", WIDTH));
        }
    }
    if !found {
        eprintln!("weir: unknown variable \"${name}\"");
    }
    i32::from(!found)
}

/// All directives by module. Modules without directives are left out.
fn directive_list() -> String {
    let mut text = String::from("Directives:\n");
    for page in reference::pages() {
        let rows = describe::rows(page.tables.iter().copied());
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        if !names.is_empty() {
            let names = describe::wrap_text(&names.join("  "), "  ", WIDTH);
            let _ = writeln!(text, "\n{}\n{names}", page.name);
        }
    }
    text
}

/// Writes a reference page per module, and the list of nginx's directives, to `directory`. Returns
/// the exit code.
pub(crate) fn write_reference(directory: &Path) -> i32 {
    let written = std::fs::create_dir_all(directory).and_then(|()| {
        reference::pages().iter().try_for_each(|page| {
            let rows = describe::rows(page.tables.iter().copied());
            let text = describe::reference_page(&page.name, page.about, &rows, &page.variables);
            std::fs::write(
                directory.join(format!("{}.md", page.name.replace(['/', ' '], "-"))),
                text,
            )
        })?;
        std::fs::write(directory.join("README.md"), index())?;
        std::fs::write(directory.join("compatibility.md"), compatibility())
    });
    match written {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("weir: could not write to {}: {error}", directory.display());
            1
        }
    }
}

/// The first line of each page: edits there would be lost.
const GENERATED: &str = "<!-- Written by `weir reference`; edit the rows in the source. -->\n";

fn index() -> String {
    let mut text = format!("{GENERATED}# Reference\n\n");
    for page in reference::pages() {
        let file = page.name.replace(['/', ' '], "-");
        let _ = writeln!(text, "- [{}]({file}.md): {}", page.name, page.about);
    }
    text.push_str(
        "- [compatibility](compatibility.md): how Weir treats each directive of nginx.\n",
    );
    text
}

/// The list of nginx's directives, with what Weir does about each. It is derived from the tables,
/// so it cannot be outdated.
fn compatibility() -> String {
    let support = describe::compatibility(&reference::directives());
    let done = support
        .values()
        .filter(|support| **support != DirectiveSupport::No)
        .count();
    let mut text = format!(
        "{GENERATED}# Compatibility with nginx 1.31\n\nWeir accepts {done} of nginx's {} directives.\n\n| directive | Weir |\n|---|---|\n",
        support.len()
    );
    for (name, support) in support {
        let what = match support {
            DirectiveSupport::Yes => "yes".to_owned(),
            DirectiveSupport::NotIn(contexts) => format!("yes, but not in: {}", contexts.text()),
            DirectiveSupport::Ignored(why) => format!("accepted without effect: {why}"),
            DirectiveSupport::No => "not yet".to_owned(),
        };
        let _ = writeln!(text, "| `{name}` | {what} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_fits_a_terminal() {
        assert!(directive_list().lines().all(|line| line.len() <= 80));
    }
}
