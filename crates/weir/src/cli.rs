//! The command line: nginx's options with nginx's texts, and Weir's own subcommands.
//!
//! Only reads arguments; nothing here touches a file. Under the name `nginx` there are no
//! subcommands and no long options, so that every error is nginx's.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use conf::describe::nearest;
use lexopt::prelude::*;

use crate::help;
use crate::identity::Identity;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// nginx's options: run, test, signal, or print the version.
    Run(Options),
    /// `weir serve DIR`.
    Serve(Serve),
    /// `weir proxy URL`.
    Proxy(Proxy),
    /// `weir init KIND`.
    Init(Init),
    /// `weir cache TASK PATH`.
    Cache(crate::cache_command::Cache),
    /// `weir check`.
    Check(crate::check::Check),
    /// `weir upgrade`, with nginx's options that say which server is meant.
    Upgrade(Options),
    /// `weir help [DIRECTIVE]`.
    Help(Option<String>),
    /// `weir --help`, `weir COMMAND --help`.
    Usage(&'static str),
    /// `weir reference DIR`: writes the reference pages.
    Reference(PathBuf),
}

/// nginx's options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `-?`, `-h`.
    pub(crate) help: bool,
    /// `-v`, and with the other two.
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
    pub(crate) signal: Option<Send>,
    /// `-p`.
    pub(crate) prefix: Option<PathBuf>,
    /// `-e`; `stderr` stays a word here.
    pub(crate) error_log: Option<PathBuf>,
    /// `-c`.
    pub(crate) configuration: Option<PathBuf>,
    /// `-g`.
    pub(crate) globals: Option<String>,
}

/// What `-s` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    /// Stop now.
    Stop,
    /// Stop when the requests under way have ended.
    Quit,
    /// Reopen the logs.
    Reopen,
    /// Reload the configuration.
    Reload,
}

/// The arguments of `weir serve`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Serve {
    /// The folder.
    pub(crate) directory: PathBuf,
    /// The port; `None` means 8080 or the next free one.
    pub(crate) port: Option<u16>,
    /// The address; `None` means this machine only.
    pub(crate) listen: Option<String>,
    /// TLS with a certificate of the local authority.
    pub(crate) tls: bool,
    /// TLS with a certificate of a public authority for this name.
    pub(crate) domain: Option<String>,
    /// `USER:PASSWORD` that is asked for.
    pub(crate) password: Option<String>,
    /// Paths that are no files are answered with the index.
    pub(crate) spa: bool,
    /// A browser is opened.
    pub(crate) open: bool,
    /// Files may be sent into the folder.
    pub(crate) upload: bool,
    /// Pages of other sites may read what is served.
    pub(crate) cors: bool,
    /// Names that begin with a dot are served.
    pub(crate) hidden: bool,
    /// Links that lead out of the folder are followed.
    pub(crate) follow: bool,
}

/// The arguments of `weir proxy`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    /// The origin.
    pub(crate) url: String,
    /// The port; `None` means 8080 or the next free one.
    pub(crate) port: Option<u16>,
    /// The address; `None` means this machine only.
    pub(crate) listen: Option<String>,
    /// Whether the certificate of an `https` origin is believed whatever it says.
    pub(crate) insecure: bool,
}

/// The arguments of `weir init`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Init {
    /// Which configuration; `None` lists them.
    pub(crate) kind: Option<String>,
    /// The name that it is for.
    pub(crate) domain: Option<String>,
    /// The file; `None` is standard output.
    pub(crate) output: Option<PathBuf>,
}

/// The subcommands.
const SUBCOMMANDS: [&str; 9] = [
    "cache",
    "check",
    "serve",
    "help",
    "init",
    "proxy",
    "reference",
    "upgrade",
    "version",
];

/// Reads the arguments after argument zero. The error is a complete text for standard error, without
/// the program's name in front.
pub(crate) fn parse(
    identity: Identity,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Command, String> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if identity == Identity::Weir {
        let word = arguments.first().map(|word| word.to_string_lossy());
        match word.as_deref() {
            Some("--help") => return Ok(Command::Usage(help::USAGE)),
            Some("--version" | "version") => {
                return Ok(Command::Run(Options {
                    version: true,
                    ..Options::default()
                }));
            }
            Some(word) if !word.starts_with('-') => {
                let asks = |other: &OsString| other == "--help" || other == "-h";
                let page = help::of(word).filter(|_| arguments[1..].iter().any(asks));
                if let Some(page) = page {
                    return Ok(Command::Usage(page));
                }
                return parse_subcommand(
                    word,
                    lexopt::Parser::from_args(arguments[1..].iter().cloned()),
                );
            }
            Some(_) | None => {}
        }
    }
    let hint = |error: String| match identity {
        // nginx reads the second dash of a long option as an option letter.
        Identity::Nginx if error.starts_with("invalid option: \"--") => {
            "invalid option: \"-\"".to_owned()
        }
        Identity::Weir => {
            let more = signal_help(&error).or_else(|| long_help(&error));
            let more = more.unwrap_or_default();
            format!("{error}{more}\n  see \"weir --help\"")
        }
        Identity::Nginx => error,
    };
    parse_options(lexopt::Parser::from_args(arguments))
        .map(Command::Run)
        .map_err(hint)
}

fn parse_options(mut parser: lexopt::Parser) -> Result<Options, String> {
    // nginx takes what follows a letter as it stands, "=" too.
    parser.set_short_equals(false);
    let mut options = Options::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('?' | 'h') => {
                options.version = true;
                options.help = true;
            }
            Short('v') => options.version = true,
            Short('V') => {
                options.version = true;
                options.configure = true;
            }
            Short('t') => options.test = true,
            Short('T') => {
                options.test = true;
                options.dump = true;
            }
            Short('q') => options.quiet = true,
            Short('p') => options.prefix = Some(value(&mut parser, 'p', "directory name")?.into()),
            Short('e') => options.error_log = Some(value(&mut parser, 'e', "file name")?.into()),
            Short('c') => {
                options.configuration = Some(value(&mut parser, 'c', "file name")?.into())
            }
            Short('g') => {
                let text = value(&mut parser, 'g', "parameter")?;
                options.globals = Some(text.to_string_lossy().into_owned());
            }
            Short('s') => options.signal = Some(signal(&value(&mut parser, 's', "parameter")?)?),
            Short(letter) => return Err(format!("invalid option: \"{letter}\"")),
            Long(name) => return Err(format!("invalid option: \"--{name}\"")),
            Value(word) => return Err(format!("invalid option: \"{}\"", word.to_string_lossy())),
        }
    }
    Ok(options)
}

fn value(parser: &mut lexopt::Parser, letter: char, what: &str) -> Result<OsString, String> {
    parser
        .value()
        .map_err(|_| format!("option \"-{letter}\" requires {what}"))
}

/// The words of `-s`.
const SIGNALS: [&str; 4] = ["stop", "quit", "reopen", "reload"];

/// A line of help for a word after `-s` that is none of them.
fn signal_help(error: &str) -> Option<String> {
    let word = error
        .strip_prefix("invalid option: \"-s ")?
        .strip_suffix('"')?;
    let meant = nearest(word, SIGNALS).map(|near| format!("did you mean \"{near}\"? "));
    let meant = meant.unwrap_or_default();
    Some(format!("\n  {meant}-s takes {}", SIGNALS.join(", ")))
}

/// The same for an option with two dashes.
fn long_help(error: &str) -> Option<String> {
    let word = error.strip_prefix("invalid option: \"--")?;
    let near = nearest(word.strip_suffix('"')?, ["help", "version"])?;
    Some(format!("\n  did you mean \"--{near}\"?"))
}

fn signal(word: &OsStr) -> Result<Send, String> {
    match word.as_bytes() {
        b"stop" => Ok(Send::Stop),
        b"quit" => Ok(Send::Quit),
        b"reopen" => Ok(Send::Reopen),
        b"reload" => Ok(Send::Reload),
        _ => Err(format!("invalid option: \"-s {}\"", word.to_string_lossy())),
    }
}

fn parse_subcommand(word: &str, parser: lexopt::Parser) -> Result<Command, String> {
    match word {
        "serve" => parse_serve(parser).map(Command::Serve),
        "help" => parse_one(parser)
            .map(|word| Command::Help(word.map(|word| word.to_string_lossy().into_owned()))),
        "reference" => match parse_one(parser)? {
            Some(directory) => Ok(Command::Reference(directory.into())),
            None => Err("\"reference\" requires an output directory".to_owned()),
        },
        "init" | "new" => parse_init(parser).map(Command::Init),
        "proxy" => parse_proxy(parser).map(Command::Proxy),
        "cache" => crate::cache_command::parse(parser).map(Command::Cache),
        "check" => crate::check::parse(parser).map(Command::Check),
        "upgrade" => parse_upgrade(parser).map(Command::Upgrade),
        _ => Err(unknown_subcommand(word)),
    }
}

fn parse_upgrade(parser: lexopt::Parser) -> Result<Options, String> {
    let options = parse_options(parser).map_err(|error| refuse(&error, help::UPGRADE))?;
    let only_places = Options {
        prefix: options.prefix.clone(),
        configuration: options.configuration.clone(),
        error_log: options.error_log.clone(),
        globals: options.globals.clone(),
        ..Options::default()
    };
    match options == only_places {
        true => Ok(options),
        false => Err(refuse("only -c, -p, -e and -g are accepted", help::UPGRADE)),
    }
}

/// A message, and the first line of a command's page.
fn refuse(error: &str, page: &str) -> String {
    let usage = page.lines().next().unwrap_or_default();
    format!("{error}\n  {usage}")
}

fn unknown_subcommand(word: &str) -> String {
    let mut text = format!("unknown command \"{word}\"");
    if std::path::Path::new(word).is_dir() {
        text.push_str(&format!("\n  to serve this directory: weir serve {word}"));
    } else if word.ends_with(".conf") {
        text.push_str(&format!("\n  to run this configuration: weir -c {word}"));
    } else if let Some(option) = option_for(word) {
        text.push_str(&format!("\n  that is: weir {option}"));
    } else if let Some(near) = nearest(word, SUBCOMMANDS) {
        text.push_str(&format!("\n  did you mean \"{near}\"?"));
    }
    text.push_str("\n  see \"weir --help\"");
    text
}

/// What other servers have a command for and nginx an option.
fn option_for(word: &str) -> Option<&'static str> {
    match word {
        "test" | "validate" | "configtest" => Some("-t"),
        "reload" => Some("-s reload"),
        "stop" => Some("-s stop"),
        "quit" => Some("-s quit"),
        "reopen" => Some("-s reopen"),
        "run" | "start" => Some("-g 'daemon off;'"),
        _ => None,
    }
}

fn parse_one(mut parser: lexopt::Parser) -> Result<Option<OsString>, String> {
    let mut found = None;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Value(word) if found.is_none() => found = Some(word),
            other => {
                return Err(format!("{}\n  see \"weir --help\"", other.unexpected()));
            }
        }
    }
    Ok(found)
}

fn parse_serve(mut parser: lexopt::Parser) -> Result<Serve, String> {
    let mut serve = Serve::default();
    let mut place = Place::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("tls") => serve.tls = true,
            Long("domain") => serve.domain = Some(text(&mut parser)?),
            Long("password") => serve.password = Some(text(&mut parser)?),
            Long("spa") => serve.spa = true,
            Long("open") => serve.open = true,
            Long("upload") => serve.upload = true,
            Long("cors") => serve.cors = true,
            Long("hidden") => serve.hidden = true,
            Long("follow") => serve.follow = true,
            Short('p') | Long("port") => place.port = Some(port(&mut parser)?),
            Short('l') | Long("listen") => place.listen = Some(text(&mut parser)?),
            Value(word) if place.word.is_none() && !word.is_empty() => place.word = Some(word),
            other => return Err(refuse(&other.unexpected().to_string(), help::SERVE)),
        }
    }
    let word = place
        .word
        .ok_or_else(|| refuse("missing argument DIR", help::SERVE))?;
    let is_pair = |pair: &String| {
        pair.split_once(':')
            .is_some_and(|(user, _)| !user.is_empty())
    };
    if serve.password.as_ref().is_some_and(|pair| !is_pair(pair)) {
        return Err(refuse("--password takes USER:PASSWORD", help::SERVE));
    }
    if serve.tls && serve.domain.is_some() {
        return Err(refuse(
            "--domain has TLS already; leave out --tls",
            help::SERVE,
        ));
    }
    Ok(Serve {
        directory: word.into(),
        port: place.port,
        listen: place.listen,
        ..serve
    })
}

fn parse_proxy(mut parser: lexopt::Parser) -> Result<Proxy, String> {
    let mut place = Place::default();
    let mut insecure = false;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('p') | Long("port") => place.port = Some(port(&mut parser)?),
            Short('l') | Long("listen") => place.listen = Some(text(&mut parser)?),
            Short('k') | Long("insecure") => insecure = true,
            Value(word) if place.word.is_none() && !word.is_empty() => place.word = Some(word),
            other => return Err(refuse(&other.unexpected().to_string(), help::PROXY)),
        }
    }
    let word = place
        .word
        .ok_or_else(|| refuse("missing argument URL", help::PROXY))?;
    Ok(Proxy {
        url: word.to_string_lossy().into_owned(),
        port: place.port,
        listen: place.listen,
        insecure,
    })
}

/// One word, and where to listen.
#[derive(Default)]
struct Place {
    word: Option<OsString>,
    port: Option<u16>,
    listen: Option<String>,
}

fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    let text = parser.value().map_err(|error| error.to_string())?;
    Ok(text.to_string_lossy().into_owned())
}

fn port(parser: &mut lexopt::Parser) -> Result<u16, String> {
    let text = text(parser)?;
    let number = text.parse().ok().filter(|port| *port > 0);
    number.ok_or_else(|| format!("\"{text}\" is not a port number (1 to 65535)"))
}

fn parse_init(mut parser: lexopt::Parser) -> Result<Init, String> {
    let mut init = Init::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("domain") => init.domain = Some(text(&mut parser)?),
            Value(word) if init.kind.is_none() => {
                init.kind = Some(word.to_string_lossy().into_owned());
            }
            Value(word) if init.output.is_none() => init.output = Some(word.into()),
            other => return Err(refuse(&other.unexpected().to_string(), help::INIT)),
        }
    }
    Ok(init)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(identity: Identity, words: &[&str]) -> Result<Command, String> {
        parse(identity, words.iter().map(OsString::from))
    }

    fn options(words: &[&str]) -> Options {
        match run(Identity::Nginx, words) {
            Ok(Command::Run(options)) => options,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    fn error(words: &[&str]) -> String {
        run(Identity::Nginx, words).expect_err("refused")
    }

    #[test]
    fn letters_combine_as_in_nginx() {
        let quiet = options(&["-tq", "-p/prefix", "-c", "x.conf"]);
        assert!(quiet.test && quiet.quiet && !quiet.dump);
        assert_eq!(quiet.prefix, Some("/prefix".into()));
        assert_eq!(quiet.configuration, Some("x.conf".into()));
        assert_eq!(options(&["-sreload"]).signal, Some(Send::Reload));
        assert_eq!(
            options(&["-g", "daemon off;"]).globals.as_deref(),
            Some("daemon off;")
        );
        assert_eq!(options(&["-c=x"]).configuration, Some("=x".into()));
        assert!(options(&["-?"]).help && options(&["-V"]).configure && options(&["-T"]).dump);
    }

    #[test]
    fn errors_are_nginx_s() {
        assert_eq!(error(&["-x"]), "invalid option: \"x\"");
        assert_eq!(error(&["--help"]), "invalid option: \"-\"");
        assert_eq!(error(&["serve", "."]), "invalid option: \"serve\"");
        assert_eq!(error(&["-s", "up"]), "invalid option: \"-s up\"");
        assert_eq!(error(&["-p"]), "option \"-p\" requires directory name");
        assert_eq!(error(&["-tc"]), "option \"-c\" requires file name");
        assert_eq!(error(&["-s"]), "option \"-s\" requires parameter");
    }

    #[test]
    fn subcommands_are_weir_s_own() {
        let serve = run(
            Identity::Weir,
            &["serve", "site", "--port", "81", "-l", "::"],
        );
        let expected = Serve {
            directory: "site".into(),
            port: Some(81),
            listen: Some("::".into()),
            ..Serve::default()
        };
        assert_eq!(serve, Ok(Command::Serve(expected)));
        assert_eq!(
            run(Identity::Weir, &["help", "root"]),
            Ok(Command::Help(Some("root".to_owned())))
        );
        let upgrade = run(Identity::Weir, &["upgrade", "-c", "x"]).expect("valid");
        assert!(matches!(upgrade, Command::Upgrade(options) if options.configuration.is_some()));
        assert!(run(Identity::Weir, &["upgrade", "-t"]).is_err());
        let unknown = run(Identity::Weir, &["sevre", "x"]).expect_err("unknown");
        assert!(unknown.contains("did you mean \"serve\"?"), "{unknown}");
        assert!(run(Identity::Weir, &["serve", "x", "--port", "99999"]).is_err());
    }
}
