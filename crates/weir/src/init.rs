//! `weir init KIND`: small configurations to begin with, which have comments where there is
//! something to decide.
//!
//! The texts are the files in `init/`. Without `--domain` they work with nginx, too; with it they
//! use TLS by ACME, which nginx has in a separate module.

use std::io::Write as _;

use crate::arguments::InitArguments;
use crate::terminal;

/// A configuration to choose from.
struct InitTemplate {
    name: &'static str,
    /// The description in the list of `weir init`, and the first line of the file.
    about: &'static str,
    /// The file, with placeholders.
    text: &'static str,
}

const TEMPLATES: [InitTemplate; 8] = [
    InitTemplate {
        name: "static",
        about: "A directory of files as a site",
        text: include_str!("init/static.conf"),
    },
    InitTemplate {
        name: "spa",
        about: "A single-page application, with hashed assets that are cached forever",
        text: include_str!("init/spa.conf"),
    },
    InitTemplate {
        name: "php",
        about: "PHP with php-fpm: WordPress, Laravel, Symfony",
        text: include_str!("init/php.conf"),
    },
    InitTemplate {
        name: "proxy",
        about: "A reverse proxy in front of an application, with WebSocket",
        text: include_str!("init/proxy.conf"),
    },
    InitTemplate {
        name: "cache",
        about: "A cache in front of an origin",
        text: include_str!("init/cache.conf"),
    },
    InitTemplate {
        name: "s3",
        about: "A public S3 bucket as a cached site",
        text: include_str!("init/s3.conf"),
    },
    InitTemplate {
        name: "balance",
        about: "A load balancer for several servers",
        text: include_str!("init/balance.conf"),
    },
    InitTemplate {
        name: "stream",
        about: "TCP and UDP: databases, DNS, TLS by name",
        text: include_str!("init/stream.conf"),
    },
];

/// Writes a configuration. Returns the exit code.
pub(crate) fn run(arguments: &InitArguments) -> i32 {
    match write(arguments) {
        Ok(()) => 0,
        Err(error) => {
            terminal::report_line(format_args!("weir: {error}"));
            1
        }
    }
}

/// Writes the chosen configuration to its file or to standard output. Without a kind it lists them.
fn write(arguments: &InitArguments) -> Result<(), String> {
    let Some(name) = &arguments.kind else {
        terminal::print_text(format_args!("{}\n{}", crate::commands::INIT.page(), list()));
        return Ok(());
    };
    let text = text(name, arguments.domain.as_deref())?;
    let Some(path) = &arguments.output else {
        terminal::print_text(format_args!("{text}"));
        return Ok(());
    };
    let shown = path.display();
    // Never overwrites: this could be the configuration in use.
    let file = std::fs::File::create_new(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => format!("\"{shown}\" already exists"),
        _ => format!("\"{shown}\" cannot be written: {error}"),
    })?;
    terminal::report_line(format_args!(
        "Written to {shown}. Check it with: weir -t -c {shown}"
    ));
    Ok(())
}

/// The configurations to choose from.
pub(crate) fn kinds() -> Vec<&'static str> {
    TEMPLATES.iter().map(|kind| kind.name).collect()
}

fn list() -> String {
    let line = |kind: &InitTemplate| format!("  {:<10}{}\n", kind.name, kind.about);
    TEMPLATES.iter().map(line).collect()
}

/// The configuration `name`, with its placeholders filled in.
fn text(name: &str, domain: Option<&str>) -> Result<String, String> {
    let Some(kind) = TEMPLATES.iter().find(|kind| kind.name == name) else {
        let near = conf::spelling::nearest_name(name, kinds());
        let near = near.map(|near| format!("\n  did you mean \"{near}\"?"));
        let near = near.unwrap_or_default();
        return Err(format!(
            "unknown kind \"{name}\"{near}\n{}",
            list().trim_end()
        ));
    };
    // The name is inserted into the configuration, so it must not contain its syntax.
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    if let Some(domain) = domain.filter(|domain| domain.is_empty() || !domain.chars().all(is_name))
    {
        return Err(format!(
            "\"{domain}\" is not a name such as www.example.org"
        ));
    }
    // Parts that only make sense with TLS are left out, not commented out.
    let with_tls = |text: &'static str| if domain.is_some() { text } else { "" };
    let listen = match domain {
        Some(_) => include_str!("init/listen_tls.conf"),
        None => include_str!("init/listen_plain.conf"),
    };
    let mut text = [include_str!("init/head.conf"), kind.text].concat();
    if kind.name == "stream" {
        text.push_str(with_tls(include_str!("init/stream_http.conf")));
    }
    Ok(text
        .replace("@ABOUT@", kind.about)
        .replace("@TYPES@", include_str!("init/types.conf"))
        .replace(
            "@STREAM_TLS@",
            with_tls(include_str!("init/stream_tls.conf")),
        )
        .replace("@ACME@", with_tls(include_str!("init/acme.conf")))
        // The order matters: inserted texts have placeholders of their own, which later lines replace.
        .replace("@LISTEN@\n", listen)
        .replace("@DOMAIN@", domain.unwrap_or_default())
        .replace("@KIND@", kind.name)
        .replace("@RESOLVERS@", &crate::serve::resolvers()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_is_valid() {
        for kind in &TEMPLATES {
            for domain in [None, Some("www.example.org")] {
                let text = text(kind.name, domain).expect("it is known");
                let is_mark = |word: &str| {
                    let mark = word.split('@').nth(1).unwrap_or_default();
                    !mark.is_empty() && mark.bytes().all(|byte| byte.is_ascii_uppercase())
                };
                assert!(!text.split_whitespace().any(is_mark), "{text}");
                // Issuers read what the system trusts: tests/server/init.rs has those.
                if domain.is_none() {
                    let loaded = crate::load_configuration::tests::load_text(&text);
                    assert!(loaded.is_ok(), "{}: {:#?}", kind.name, loaded.err());
                }
            }
        }
        assert!(text("pph", None).is_err_and(|error| error.contains("\"php\"")));
        assert!(text("php", Some("a;b")).is_err());
    }
}
