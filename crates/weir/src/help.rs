//! What the program tells about itself: `-h`, `--help`, `weir help DIRECTIVE`, and the reference pages.

use std::fmt::Write as _;
use std::path::Path;

use conf::describe::{self, Support};

use crate::engines;
use crate::identity::Identity;

/// The text of `-h` and `-?`, after the version line: nginx's options in nginx's order.
pub(crate) fn options_text(identity: Identity) -> String {
    let program = identity.program();
    let configuration = match identity {
        Identity::Weir => "/etc/weir/weir.conf, else /etc/nginx/nginx.conf",
        Identity::Nginx => "/etc/nginx/nginx.conf",
    };
    let subcommands = match identity {
        Identity::Weir => "\n\"weir --help\" shows what else there is.\n\n",
        Identity::Nginx => "\n",
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
Weir is a web server and caching reverse proxy. It reads nginx.conf as it is.

Without a configuration:
  weir serve DIR [--port N] [--listen ADDRESS]   serve a folder, http://127.0.0.1:8080
  weir proxy URL [--port N] [--listen ADDRESS]   reverse-proxy another server, and cache what is cacheable

With a configuration file (same options as nginx, `weir -h` lists them all):
  weir                        run /etc/weir/weir.conf, else /etc/nginx/nginx.conf
  weir -c FILE                run a configuration; add -g 'daemon off;' to stay in the foreground
  weir -t [-c FILE]           test it: every error, with its line and what to do
  weir init KIND [FILE]       write one to begin with: static, spa, php, proxy, cache, s3, balance, stream
  weir check [-c FILE]        what attackers could use in it, and what would leak; also as JSON
  weir -s reload              stop, quit, reopen or reload a running server
  weir upgrade [-c FILE]      replace the binary of a running server; no connection is lost

A cache's folder:
  weir cache ls|stat|verify PATH
  weir cache show PATH URL    show the stored response headers of a URL
  weir cache purge PATH --key TEXT (--prefix, --tag, --all; --soft makes stale)

Help:
  weir help [DIRECTIVE]       what a directive does, its default and where it is allowed
  weir help tls               what to know about ciphers, protocols and certificates
  weir COMMAND --help         options of one of these commands
  weir --version

Examples:
  weir serve ./public --port 3000
  weir proxy https://example.org
  weir init proxy app.conf && weir -t -c app.conf && weir -c app.conf
";

/// `weir serve --help`.
pub(crate) const SERVE: &str = "\
usage: weir serve DIR [OPTION ...]

Serves a folder as a site until Ctrl-C: index files, listings, Markdown, ranges, gzip, Brotli, Zstandard,
HTTP/2. Each request is a line on standard output. Nothing is written into the folder (but see --upload).

  -p, --port N           the port (default: 8080 or the next free one)
  -l, --listen ADDRESS   address to listen on (default: 127.0.0.1; * for all interfaces), with or without a
                         port
      --open             open it in a browser
      --spa              answer paths that are no files with /index.html
      --tls              HTTPS, with a certificate of a local authority that is made once for this user
      --domain NAME      HTTPS on port 443 of all interfaces, with a certificate of Let's Encrypt for NAME,
                         and a redirect from port 80
      --password U:P     ask for the user U and the password P
      --upload           take files by PUT and by the listing; none is replaced
      --cors             let pages of other sites read what is served
      --hidden           serve names that begin with a dot too (default: 404, but for /.well-known/)
      --follow           follow symbolic links that lead out of DIR too (default: 403)
";

/// `weir proxy --help`.
pub(crate) const PROXY: &str = "\
usage: weir proxy URL [--port N] [--listen ADDRESS] [--insecure]

Passes all requests on to the server at URL until Ctrl-C, and caches what that one allows to be cached, until
the end, in a temporary folder: clients that ask for the same at once make one request, and while the server
fails they get what was cached. Each request is a line on standard output, with what the cache did, and why
it did not. For a server of this machine its port is enough: weir proxy 3000.

  -p, --port N           the port (default: 8080 or the next free one)
  -l, --listen ADDRESS   address to listen on (default: 127.0.0.1; * for all interfaces), with or without a
                         port
  -k, --insecure         do not verify the origin's TLS certificate (default: verify it against the system's
                         authorities, or the file in SSL_CERT_FILE)
";

/// `weir init --help`.
pub(crate) const INIT: &str = "\
usage: weir init KIND [FILE] [--domain NAME]

Writes a configuration to begin with, to FILE or to standard output. With --domain it has TLS: the certificate
for NAME is obtained from Let's Encrypt at the start, and renewed.
";

/// `weir upgrade --help`.
pub(crate) const UPGRADE: &str = "\
usage: weir upgrade [-c FILE] [-p PREFIX] [-e FILE] [-g DIRECTIVES]

Replaces the binary of a running server by the one that is on the disk now: sockets, idle connections and
the cache go over to it, and no request fails. The options say which server is meant, as they did when it
was started.
";

/// What a command takes, if it has a page.
pub(crate) fn of(command: &str) -> Option<&'static str> {
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

/// `weir help tls`: what the warnings about it have no room for.
const TLS: &str = include_str!("help_tls.txt");

/// The one directive that is no row: the reader of the language itself follows it.
const INCLUDE: &str = "include file | mask;
  context: any
  since:   0.1

Reads another file, or all files that a mask matches, in its place. A relative path counts from the folder of
the configuration file.
";

/// `weir help [DIRECTIVE]`. The answer is the exit code.
pub(crate) fn help(name: Option<&str>) -> i32 {
    let Some(name) = name else {
        print!("{USAGE}\n{}", directive_list());
        return 0;
    };
    let directives = engines::directives();
    if name == "tls" {
        print!("{TLS}");
        return 0;
    }
    // A reader types what stands in the file.
    let name = name.trim_end_matches(';');
    if name == "include" {
        print!("{INCLUDE}");
        return 0;
    }
    if let Some(text) = describe::help(name, &directives) {
        print!("{}", folded(&text));
        return 0;
    }
    eprintln!("weir: there is no directive \"{name}\"");
    let known = conf::known::all().map(|known| known.name);
    if let Some(near) = describe::nearest(name, directives.iter().map(|row| row.name).chain(known))
    {
        eprintln!("  did you mean \"{near}\"? weir help {near}");
    }
    1
}

/// The words of a text in lines of this width; what stands between two words in a line stays.
fn wrapped(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while rest.chars().count() > width {
        let end = rest
            .char_indices()
            .nth(width)
            .map_or(rest.len(), |(at, _)| at);
        let space = match rest[end..].starts_with(' ') {
            true => Some(end),
            false => rest[..end].rfind(' ').or_else(|| rest.find(' ')),
        };
        let Some(space) = space else { break };
        let (line, after) = rest.split_at(space);
        lines.push(line.trim_end());
        rest = after.trim_start();
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// The page of a directive, its sentences broken into lines that fit a terminal.
fn folded(page: &str) -> String {
    const WIDTH: usize = 100;
    let fold = |line: &str| match line.starts_with(' ') {
        true => line.to_owned(),
        false => wrapped(line, WIDTH).join("\n"),
    };
    let lines: Vec<String> = page.lines().map(fold).collect();
    lines.join("\n") + "\n"
}

/// All directives by module, in lines that fit a terminal.
fn directive_list() -> String {
    const WIDTH: usize = 78;
    let mut text = String::from("Directives:\n");
    for page in engines::pages() {
        let rows = describe::rows(page.tables.iter().copied());
        // Some modules have variables only.
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{}", page.name);
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        for line in wrapped(&names.join("  "), WIDTH) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// Writes a reference page for each module, and the list of nginx's directives, to `directory`.
/// The answer is the exit code.
pub(crate) fn write_reference(directory: &Path) -> i32 {
    let written = std::fs::create_dir_all(directory).and_then(|()| {
        engines::pages().iter().try_for_each(|page| {
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

const GENERATED: &str = "<!-- Written by `weir reference`; edit the rows in the source. -->\n";

fn index() -> String {
    let mut text = format!("{GENERATED}# Reference\n\n");
    for page in engines::pages() {
        let file = page.name.replace(['/', ' '], "-");
        let _ = writeln!(text, "- [{}]({file}.md): {}", page.name, page.about);
    }
    text.push_str("- [compatibility](compatibility.md): every directive of nginx, and what Weir does with it.\n");
    text
}

fn compatibility() -> String {
    let support = describe::compatibility(&engines::directives());
    let done = support
        .values()
        .filter(|support| **support != Support::No)
        .count();
    let mut text = format!(
        "{GENERATED}# Compatibility with nginx 1.31\n\n{done} of {} directives are known.\n\n| directive | Weir |\n|---|---|\n",
        support.len()
    );
    for (name, support) in support {
        let what = match support {
            Support::Yes => "yes".to_owned(),
            Support::NotIn(contexts) => format!("yes, but not in: {}", contexts.text()),
            Support::Ignored(why) => format!("accepted without effect: {why}"),
            Support::No => "not yet".to_owned(),
        };
        let _ = writeln!(text, "| `{name}` | {what} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_full_as_they_can_be() {
        assert_eq!(wrapped("ab cd ef", 5), ["ab cd", "ef"]);
        assert_eq!(wrapped("ab cd", 5), ["ab cd"]);
        assert_eq!(wrapped("abcdefgh ij", 5), ["abcdefgh", "ij"]);
        assert_eq!(wrapped("a  b", 3), ["a", "b"]);
        assert_eq!(wrapped("", 5), [""; 0]);
        assert!(directive_list().lines().all(|line| line.len() <= 80));
    }
}
