//! `weir proxy URL`: a reverse proxy without a configuration.
//!
//! What it does is a configuration all the same, as with `weir serve`: `proxy.conf` beside this file, with the origin and
//! the address filled in.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rt::error_log::Logger;

use crate::cli::Proxy;
use crate::identity::Identity;
use crate::load::{Startup, load_from_disk};
use crate::paths::Paths;
use crate::serve::{COLOUR_LOG, PLAIN_LOG, choose_address, quoted, temporary_folder, url};

const TEMPLATE: &str = include_str!("proxy.conf");

/// Proxies until Ctrl-C. The answer is the exit code.
pub(crate) fn run(arguments: &Proxy) -> i32 {
    let prepared =
        prepare(arguments).and_then(|(startup, address, temporary)| {
            match load_from_disk(&startup) {
                Ok(loaded) => Ok((startup, loaded, address, temporary)),
                Err(failure) => {
                    failure.0.print("weir");
                    Err(String::new())
                }
            }
        });
    let (startup, loaded, address, temporary) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            if !error.is_empty() {
                eprintln!("weir: {error}");
            }
            return 1;
        }
    };
    eprintln!(
        "Proxying {} at {}\nCtrl-C stops.",
        arguments.url,
        url(address)
    );
    let code = crate::run::start(Arc::new(startup), loaded, Logger::default());
    // It is empty unless a request was cut off just now, and then the system cleans it up one day.
    let _ = std::fs::remove_dir(temporary);
    if code == 0 {
        eprintln!("stopped");
    }
    code
}

fn prepare(arguments: &Proxy) -> Result<(Startup, SocketAddr, PathBuf), String> {
    let origin = Origin::parse(&arguments.url)?;
    let address = choose_address(arguments.listen.as_deref(), arguments.port)?;
    let temporary = temporary_folder();
    let text = configuration(
        &origin,
        address,
        &temporary,
        std::io::stdout().is_terminal(),
    );
    let prefix = std::env::temp_dir();
    let paths = Paths {
        // Shown in messages only; the text below is what is read.
        configuration: prefix.join("(weir proxy)"),
        error_log: None,
        pid: prefix.join("(none)"),
        prefix,
    };
    let startup = Startup {
        identity: Identity::Weir,
        paths,
        globals: None,
        testing: false,
        text: Some(text.into_bytes()),
        arguments: format!("proxy {}", arguments.url),
        command: Default::default(),
        daemonized: false.into(),
    };
    Ok((startup, address, temporary))
}

/// The parts of the URL.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    host: String,
    path: String,
}

impl Origin {
    fn parse(url: &str) -> Result<Origin, String> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err("https origins are planned and not in this version yet".to_owned());
            }
            Some((scheme, _)) => {
                return Err(format!("\"{scheme}\" is no scheme of an origin; http is"));
            }
            None => url,
        };
        let (host, path) = rest
            .find(['/', '?'])
            .map_or((rest, ""), |at| rest.split_at(at));
        let word = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if host.is_empty() || !host.chars().all(word) {
            return Err(format!(
                "\"{url}\" is not a URL, such as http://127.0.0.1:3000"
            ));
        }
        if path.contains(['"', '$', ' ', '\\', ';', '{', '}', '?', '#']) {
            return Err(format!("\"{path}\" is not a path for an origin"));
        }
        let path = if path == "/" { "" } else { path };
        Ok(Origin {
            host: host.to_owned(),
            path: path.to_owned(),
        })
    }
}

fn configuration(origin: &Origin, address: SocketAddr, temporary: &Path, colour: bool) -> String {
    let log = if colour { COLOUR_LOG } else { PLAIN_LOG };
    TEMPLATE
        .replace("@ORIGIN@", &origin.host)
        .replace("@HOST@", &origin.host)
        .replace("@PATH@", &origin.path)
        .replace("@LISTEN@", &address.to_string())
        .replace("@TEMP@", &quoted(&temporary.to_string_lossy()))
        .replace("@LOG@", log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_origins() {
        let origin = |host: &str, path: &str| {
            Ok(Origin {
                host: host.into(),
                path: path.into(),
            })
        };
        assert_eq!(
            Origin::parse("http://127.0.0.1:3000"),
            origin("127.0.0.1:3000", "")
        );
        assert_eq!(
            Origin::parse("http://[::1]:3000/"),
            origin("[::1]:3000", "")
        );
        assert_eq!(
            Origin::parse("localhost:3000/app/"),
            origin("localhost:3000", "/app/")
        );
        for wrong in [
            "",
            "http://",
            "ftp://a",
            "https://a",
            "http://a b",
            "http://a/;",
            "http://a/$x",
        ] {
            assert!(Origin::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_template_is_a_valid_configuration() {
        let address = SocketAddr::from(([127, 0, 0, 1], 8080));
        for (colour, url) in [
            (false, "http://127.0.0.1:3000"),
            (true, "http://127.0.0.1/app"),
        ] {
            let origin = Origin::parse(url).expect("a URL");
            let text = configuration(&origin, address, Path::new("/tmp/x"), colour);
            let loaded = crate::load::tests::load_text(&text).expect("every directive is known");
            assert_eq!(crate::prepare::listeners(&loaded).len(), 1);
        }
    }
}
