//! The command line: nginx's options with nginx's messages, and Weir's own subcommands.
//!
//! Only reads arguments; nothing here touches a file. Under the name `nginx` there are neither
//! subcommands nor long options, so that every error message is nginx's: scripts and test suites
//! compare them. Under its own name an error is followed by what was probably meant.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use lexopt::prelude::*;

use crate::arguments::{
    HelpArguments, InitArguments, NginxOptions, ProxyArguments, ServeArguments, SignalOption,
};
use crate::command_hints::{self, unexpected};
use crate::commands::{self, CommandRow};
use crate::completions::CompletionShell;
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
    /// `weir explain URL`.
    Explain(Box<crate::explain::ExplainArguments>),
    /// `weir fmt FILE…`.
    Format(crate::formatting::FormatArguments),
    /// `weir lsp`.
    LanguageServer(crate::lsp::LspArguments),
    /// `weir upgrade`, with nginx's options, which identify the server.
    Upgrade(NginxOptions),
    /// `weir tail`.
    Tail(crate::tail::TailArguments),
    /// `weir top`.
    Top(crate::tail::TailArguments),
    /// `weir takeover`.
    Takeover(crate::takeover::TakeoverArguments),
    /// `weir shadow`.
    Shadow(crate::takeover::ShadowArguments),
    /// `weir canary`.
    Canary(crate::takeover::CanaryArguments),
    /// `weir unit`.
    Unit(crate::unit::UnitArguments),
    /// `weir entrypoint COMMAND …`, in a container.
    Entrypoint(Vec<OsString>),
    /// `weir help [DIRECTIVE]`.
    Help(HelpArguments),
    /// `weir --help`, `weir COMMAND --help`.
    Usage(String),
    /// `weir completions SHELL`.
    Completions(CompletionShell),
    /// `weir reference DIR`: writes the reference pages.
    Reference(PathBuf),
    /// `weir man PAGE`: prints a manual page.
    Manual(String),
}

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
            Some("--help") => return Ok(CliCommand::Usage(help::usage())),
            Some("--version" | "version") => {
                return Ok(CliCommand::Run(NginxOptions {
                    version: true,
                    ..NginxOptions::default()
                }));
            }
            // The options after it belong to the other command.
            Some("entrypoint") => return Ok(CliCommand::Entrypoint(arguments[1..].to_vec())),
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
            let more = command_hints::nginx_option(&error);
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

/// Parses the arguments of a subcommand. An error ends with the command's usage.
fn parse_subcommand(word: &str, parser: lexopt::Parser) -> Result<CliCommand, String> {
    let Some(row) = commands::find_command(word) else {
        return Err(command_hints::unknown_command(word));
    };
    let parsed = match row.name {
        "serve" => parse_serve(parser).map(CliCommand::Serve),
        "help" => parse_help(parser).map(CliCommand::Help),
        "reference" => parse_one(row, parser).and_then(|directory| {
            let directory = directory.ok_or("missing argument DIR")?;
            Ok(CliCommand::Reference(directory.into()))
        }),
        "man" => parse_one(row, parser).and_then(|page| {
            let page = page.ok_or("missing argument PAGE")?;
            Ok(CliCommand::Manual(page.to_string_lossy().into_owned()))
        }),
        "completions" => parse_one(row, parser)
            .and_then(parse_shell)
            .map(CliCommand::Completions),
        "init" => parse_init(parser).map(CliCommand::Init),
        "proxy" => parse_proxy(parser).map(CliCommand::Proxy),
        "cache" => crate::cache_command::parse(parser).map(CliCommand::Cache),
        "check" => crate::check::parse(parser).map(CliCommand::Check),
        "explain" => {
            crate::explain::parse(parser).map(|explain| CliCommand::Explain(Box::new(explain)))
        }
        "fmt" => crate::formatting::parse(parser).map(CliCommand::Format),
        "lsp" => crate::lsp::parse(parser).map(CliCommand::LanguageServer),
        "upgrade" => parse_upgrade(parser).map(CliCommand::Upgrade),
        "tail" => crate::tail::parse_tail(parser).map(CliCommand::Tail),
        "top" => crate::tail::parse_top(parser).map(CliCommand::Top),
        "takeover" => crate::takeover::parse(parser).map(CliCommand::Takeover),
        "shadow" => crate::takeover::parse_shadow(parser).map(CliCommand::Shadow),
        "canary" => crate::takeover::parse_canary(parser).map(CliCommand::Canary),
        "unit" => crate::unit::parse(parser).map(CliCommand::Unit),
        _ => Err(command_hints::unknown_command(word)),
    };
    parsed.map_err(|error| format!("{error}\n{}", row.usage_lines()))
}

/// `weir help [NAME]`.
fn parse_help(mut parser: lexopt::Parser) -> Result<HelpArguments, String> {
    let mut help = HelpArguments::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Long("no-pager") => help.no_pager = true,
            Value(word) if help.name.is_none() => {
                help.name = Some(word.to_string_lossy().into_owned());
            }
            other => return Err(unexpected(&commands::HELP, other)),
        }
    }
    Ok(help)
}

/// The argument of `weir completions`.
fn parse_shell(word: Option<OsString>) -> Result<CompletionShell, String> {
    let word = word.ok_or("missing argument SHELL")?;
    let word = word.to_string_lossy();
    CompletionShell::of(&word).ok_or_else(|| {
        let near = command_hints::nearest_hint(&word, commands::SHELLS);
        format!("no completions for \"{word}\"{near}")
    })
}

/// `weir upgrade` takes nginx's options, but only those that identify a server.
fn parse_upgrade(parser: lexopt::Parser) -> Result<NginxOptions, String> {
    let options = parse_options(parser)
        .map_err(|error| format!("{error}{}", command_hints::nginx_option(&error)))?;
    let only_places = NginxOptions {
        prefix: options.prefix.clone(),
        configuration: options.configuration.clone(),
        error_log: options.error_log.clone(),
        globals: options.globals.clone(),
        ..NginxOptions::default()
    };
    match options == only_places {
        true => Ok(options),
        false => Err("only -c, -p, -e and -g are accepted".to_owned()),
    }
}

/// At most one argument.
fn parse_one(row: &CommandRow, mut parser: lexopt::Parser) -> Result<Option<OsString>, String> {
    let mut found = None;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Value(word) if found.is_none() => found = Some(word),
            other => return Err(unexpected(row, other)),
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
            Long("metrics") => serve.metrics = Some(optional_text(&mut parser)),
            Short('p') | Long("port") => place.port = Some(port(&mut parser)?),
            Short('l') | Long("listen") => place.listen = Some(text(&mut parser)?),
            Value(word) if place.word.is_none() && !word.is_empty() => place.word = Some(word),
            other => return Err(unexpected(&commands::SERVE, other)),
        }
    }
    let word = place.word.ok_or("missing argument DIR")?;
    // A password may contain colons, a user name cannot (RFC 7617).
    if let Some(user) = &serve.password
        && (user.is_empty() || user.starts_with(':'))
    {
        return Err("--password takes USER or USER:PASSWORD".to_owned());
    }
    // The two differ in who signs the certificate.
    if serve.tls && serve.domain.is_some() {
        return Err("--domain has TLS already; leave out --tls".to_owned());
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
    let mut metrics = None;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('p') | Long("port") => place.port = Some(port(&mut parser)?),
            Short('l') | Long("listen") => place.listen = Some(text(&mut parser)?),
            Short('k') | Long("insecure") => insecure = true,
            Long("metrics") => metrics = Some(optional_text(&mut parser)),
            Value(word) if place.word.is_none() && !word.is_empty() => place.word = Some(word),
            other => return Err(unexpected(&commands::PROXY, other)),
        }
    }
    let word = place.word.ok_or("missing argument URL")?;
    Ok(ProxyArguments {
        url: word.to_string_lossy().into_owned(),
        port: place.port,
        listen: place.listen,
        insecure,
        metrics,
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

/// The value of an option that may have none: `--metrics`, `--metrics=ADDRESS`.
fn optional_text(parser: &mut lexopt::Parser) -> String {
    let text = parser.optional_value().unwrap_or_default();
    text.to_string_lossy().into_owned()
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
            other => return Err(unexpected(&commands::INIT, other)),
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
            Ok(CliCommand::Help(HelpArguments {
                name: Some("root".to_owned()),
                no_pager: false,
            }))
        );
        let upgrade = run(ProgramIdentity::Weir, &["upgrade", "-c", "x"]).expect("valid");
        assert!(matches!(upgrade, CliCommand::Upgrade(options) if options.configuration.is_some()));
        assert!(run(ProgramIdentity::Weir, &["upgrade", "-t"]).is_err());
        let unknown = run(ProgramIdentity::Weir, &["sevre", "x"]).expect_err("unknown");
        assert!(unknown.contains("did you mean \"serve\"?"), "{unknown}");
        assert!(run(ProgramIdentity::Weir, &["serve", "x", "--port", "99999"]).is_err());
    }
    /// The rows are what users are told; this is what is accepted.
    #[test]
    fn every_option_of_the_help_is_parsed() {
        for row in commands::COMMANDS.iter().filter(|row| row.is_shown()) {
            for spelling in row.options.iter().flat_map(|option| option.spellings()) {
                let words = [row.name, &spelling, "1"];
                let refused = run(ProgramIdentity::Weir, &words).err().unwrap_or_default();
                assert!(!refused.contains("invalid option"), "{words:?}: {refused}");
            }
            let page = run(ProgramIdentity::Weir, &[row.name, "--help"]);
            assert!(matches!(
                page,
                Ok(CliCommand::Usage(_) | CliCommand::Run(_))
            ));
        }
        for option in commands::NGINX_OPTIONS {
            let words: Vec<String> = option.spellings();
            let value = option.value.as_ref().map(|_| "stop");
            let words: Vec<&str> = words.iter().map(String::as_str).chain(value).collect();
            assert!(run(ProgramIdentity::Nginx, &words).is_ok(), "{words:?}");
        }
    }
}
