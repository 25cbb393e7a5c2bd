//! The command line: nginx's options with nginx's messages, and Weir's own subcommands.
//!
//! Only reads arguments; nothing here touches a file. Under the name `nginx` there are neither
//! subcommands nor long options, so that every error message is nginx's: scripts and test suites
//! compare them. Under its own name an error is followed by what was probably meant.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use conf::spelling::nearest_name;
use lexopt::prelude::*;

use crate::arguments::{InitArguments, NginxOptions, ProxyArguments, ServeArguments, SignalOption};
use crate::help;
use crate::identity::ProgramIdentity;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CliCommand {
    /// nginx's options: run, test, signal, or print the version.
    Run(NginxOptions),
    /// `weir serve DIR`.
    Serve(ServeArguments),
    /// `weir proxy URL`.
    Proxy(ProxyArguments),
    /// `weir init KIND`.
    Init(InitArguments),
    /// `weir cache TASK PATH`.
    Cache(crate::cache_command::CacheCommand),
    /// `weir check`.
    Check(crate::check::CheckArguments),
    /// `weir upgrade`, with nginx's options, which identify the server.
    Upgrade(NginxOptions),
    /// `weir help [DIRECTIVE]`.
    Help(Option<String>),
    /// `weir --help`, `weir COMMAND --help`.
    Usage(&'static str),
    /// `weir reference DIR`: writes the reference pages.
    Reference(PathBuf),
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

/// Parses the arguments after argument zero. The error is complete but for the program's name in
/// front.
pub(crate) fn parse(
    identity: ProgramIdentity,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<CliCommand, String> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if identity == ProgramIdentity::Weir {
        let word = arguments.first().map(|word| word.to_string_lossy());
        match word.as_deref() {
            Some("--help") => return Ok(CliCommand::Usage(help::USAGE)),
            Some("--version" | "version") => {
                return Ok(CliCommand::Run(NginxOptions {
                    version: true,
                    ..NginxOptions::default()
                }));
            }
            // A subcommand's own parser does not know `--help`, so it is looked for here.
            Some(word) if !word.starts_with('-') => {
                let asks = |other: &OsString| other == "--help" || other == "-h";
                let page = help::usage_of(word).filter(|_| arguments[1..].iter().any(asks));
                if let Some(page) = page {
                    return Ok(CliCommand::Usage(page));
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
        ProgramIdentity::Nginx if error.starts_with("invalid option: \"--") => {
            "invalid option: \"-\"".to_owned()
        }
        ProgramIdentity::Weir => {
            let more = signal_help(&error).or_else(|| long_help(&error));
            let more = more.unwrap_or_default();
            format!("{error}{more}\n  see \"weir --help\"")
        }
        ProgramIdentity::Nginx => error,
    };
    parse_options(lexopt::Parser::from_args(arguments))
        .map(CliCommand::Run)
        .map_err(hint)
}

/// nginx's own options.
fn parse_options(mut parser: lexopt::Parser) -> Result<NginxOptions, String> {
    // nginx takes what follows a letter literally, even `=`.
    parser.set_short_equals(false);
    let mut options = NginxOptions::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            // As nginx, help is shown after the version.
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

/// The value of an option, with nginx's message if there is none.
fn value(parser: &mut lexopt::Parser, letter: char, what: &str) -> Result<OsString, String> {
    parser
        .value()
        .map_err(|_| format!("option \"-{letter}\" requires {what}"))
}

/// The values of `-s`.
const SIGNALS: [&str; 4] = ["stop", "quit", "reopen", "reload"];

/// A hint for an unknown value of `-s`.
fn signal_help(error: &str) -> Option<String> {
    let word = error
        .strip_prefix("invalid option: \"-s ")?
        .strip_suffix('"')?;
    let meant = nearest_name(word, SIGNALS).map(|near| format!("did you mean \"{near}\"? "));
    let meant = meant.unwrap_or_default();
    Some(format!("\n  {meant}-s takes {}", SIGNALS.join(", ")))
}

/// A hint for an unknown long option.
fn long_help(error: &str) -> Option<String> {
    let word = error.strip_prefix("invalid option: \"--")?;
    let near = nearest_name(word.strip_suffix('"')?, ["help", "version"])?;
    Some(format!("\n  did you mean \"--{near}\"?"))
}

/// The signal with this name, or nginx's message.
fn signal(word: &OsStr) -> Result<SignalOption, String> {
    match word.as_bytes() {
        b"stop" => Ok(SignalOption::Stop),
        b"quit" => Ok(SignalOption::Quit),
        b"reopen" => Ok(SignalOption::Reopen),
        b"reload" => Ok(SignalOption::Reload),
        _ => Err(format!("invalid option: \"-s {}\"", word.to_string_lossy())),
    }
}

/// Parses the arguments of a subcommand.
fn parse_subcommand(word: &str, parser: lexopt::Parser) -> Result<CliCommand, String> {
    match word {
        "serve" => parse_serve(parser).map(CliCommand::Serve),
        "help" => parse_one(parser)
            .map(|word| CliCommand::Help(word.map(|word| word.to_string_lossy().into_owned()))),
        "reference" => match parse_one(parser)? {
            Some(directory) => Ok(CliCommand::Reference(directory.into())),
            None => Err("\"reference\" requires an output directory".to_owned()),
        },
        // Other tools call it `new`.
        "init" | "new" => parse_init(parser).map(CliCommand::Init),
        "proxy" => parse_proxy(parser).map(CliCommand::Proxy),
        "cache" => crate::cache_command::parse(parser).map(CliCommand::Cache),
        "check" => crate::check::parse(parser).map(CliCommand::Check),
        "upgrade" => parse_upgrade(parser).map(CliCommand::Upgrade),
        _ => Err(unknown_subcommand(word)),
    }
}

/// `weir upgrade` takes nginx's options, but only those that identify a server.
fn parse_upgrade(parser: lexopt::Parser) -> Result<NginxOptions, String> {
    let options = parse_options(parser).map_err(|error| refuse(&error, help::UPGRADE))?;
    let only_places = NginxOptions {
        prefix: options.prefix.clone(),
        configuration: options.configuration.clone(),
        error_log: options.error_log.clone(),
        globals: options.globals.clone(),
        ..NginxOptions::default()
    };
    match options == only_places {
        true => Ok(options),
        false => Err(refuse("only -c, -p, -e and -g are accepted", help::UPGRADE)),
    }
}

/// A message, followed by the first line of the command's page.
fn refuse(error: &str, page: &str) -> String {
    let usage = page.lines().next().unwrap_or_default();
    format!("{error}\n  {usage}")
}

/// The message for an unknown subcommand, with a guess at what was meant.
fn unknown_subcommand(word: &str) -> String {
    let mut text = format!("unknown command \"{word}\"");
    if std::path::Path::new(word).is_dir() {
        text.push_str(&format!("\n  to serve this directory: weir serve {word}"));
    } else if word.ends_with(".conf") {
        text.push_str(&format!("\n  to run this configuration: weir -c {word}"));
    } else if let Some(option) = option_for(word) {
        text.push_str(&format!("\n  that is: weir {option}"));
    } else if let Some(near) = nearest_name(word, SUBCOMMANDS) {
        text.push_str(&format!("\n  did you mean \"{near}\"?"));
    }
    text.push_str("\n  see \"weir --help\"");
    text
}

/// The option that does what other servers have a command for.
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

/// At most one argument.
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

/// `weir serve DIR`. Contradictions are reported here, before anything is opened.
fn parse_serve(mut parser: lexopt::Parser) -> Result<ServeArguments, String> {
    let mut serve = ServeArguments::default();
    let mut place = ListenArguments::default();
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
    // A password may contain colons, a user name cannot (RFC 7617).
    let is_pair = |pair: &String| {
        pair.split_once(':')
            .is_some_and(|(user, _)| !user.is_empty())
    };
    if serve.password.as_ref().is_some_and(|pair| !is_pair(pair)) {
        return Err(refuse("--password takes USER:PASSWORD", help::SERVE));
    }
    // The two differ in who signs the certificate.
    if serve.tls && serve.domain.is_some() {
        return Err(refuse(
            "--domain has TLS already; leave out --tls",
            help::SERVE,
        ));
    }
    Ok(ServeArguments {
        directory: word.into(),
        port: place.port,
        listen: place.listen,
        ..serve
    })
}

/// `weir proxy URL`. The URL itself is checked by [`crate::proxy`].
fn parse_proxy(mut parser: lexopt::Parser) -> Result<ProxyArguments, String> {
    let mut place = ListenArguments::default();
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
    Ok(ProxyArguments {
        url: word.to_string_lossy().into_owned(),
        port: place.port,
        listen: place.listen,
        insecure,
    })
}

/// The arguments that `serve` and `proxy` have in common: what to serve, and where to listen.
#[derive(Default)]
struct ListenArguments {
    word: Option<OsString>,
    port: Option<u16>,
    listen: Option<String>,
}

/// The value of an option, as text.
fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    let text = parser.value().map_err(|error| error.to_string())?;
    Ok(text.to_string_lossy().into_owned())
}

/// A port number. 0 would be one that the system chooses, and that no link could name.
fn port(parser: &mut lexopt::Parser) -> Result<u16, String> {
    let text = text(parser)?;
    let number = text.parse().ok().filter(|port| *port > 0);
    number.ok_or_else(|| format!("\"{text}\" is not a port number (1 to 65535)"))
}

/// `weir init [KIND [FILE]]`.
fn parse_init(mut parser: lexopt::Parser) -> Result<InitArguments, String> {
    let mut init = InitArguments::default();
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

    fn run(identity: ProgramIdentity, words: &[&str]) -> Result<CliCommand, String> {
        parse(identity, words.iter().map(OsString::from))
    }

    fn options(words: &[&str]) -> NginxOptions {
        match run(ProgramIdentity::Nginx, words) {
            Ok(CliCommand::Run(options)) => options,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    fn error(words: &[&str]) -> String {
        run(ProgramIdentity::Nginx, words).expect_err("refused")
    }

    #[test]
    fn letters_combine_as_in_nginx() {
        let quiet = options(&["-tq", "-p/prefix", "-c", "x.conf"]);
        assert!(quiet.test && quiet.quiet && !quiet.dump);
        assert_eq!(quiet.prefix, Some("/prefix".into()));
        assert_eq!(quiet.configuration, Some("x.conf".into()));
        assert_eq!(options(&["-sreload"]).signal, Some(SignalOption::Reload));
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
            ProgramIdentity::Weir,
            &["serve", "site", "--port", "81", "-l", "::"],
        );
        let expected = ServeArguments {
            directory: "site".into(),
            port: Some(81),
            listen: Some("::".into()),
            ..ServeArguments::default()
        };
        assert_eq!(serve, Ok(CliCommand::Serve(expected)));
        assert_eq!(
            run(ProgramIdentity::Weir, &["help", "root"]),
            Ok(CliCommand::Help(Some("root".to_owned())))
        );
        let upgrade = run(ProgramIdentity::Weir, &["upgrade", "-c", "x"]).expect("valid");
        assert!(matches!(upgrade, CliCommand::Upgrade(options) if options.configuration.is_some()));
        assert!(run(ProgramIdentity::Weir, &["upgrade", "-t"]).is_err());
        let unknown = run(ProgramIdentity::Weir, &["sevre", "x"]).expect_err("unknown");
        assert!(unknown.contains("did you mean \"serve\"?"), "{unknown}");
        assert!(run(ProgramIdentity::Weir, &["serve", "x", "--port", "99999"]).is_err());
    }
}
