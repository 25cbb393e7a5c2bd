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
    // Its name was made by us a moment ago; what can not be removed the system cleans up one day.
    let _ = std::fs::remove_dir_all(temporary);
    if code == 0 {
        eprintln!("stopped");
    }
    code
}

fn prepare(arguments: &Proxy) -> Result<(Startup, SocketAddr, PathBuf), String> {
    let origin = Origin::parse(&arguments.url)?;
    let trust = match origin.secure && !arguments.insecure {
        true => Some(system_trust()?),
        false => None,
    };
    let address = choose_address(arguments.listen.as_deref(), arguments.port)?;
    let temporary = temporary_folder();
    let colour = std::io::stdout().is_terminal();
    let text = configuration(&origin, trust.as_deref(), address, &temporary, colour);
    let prefix = std::env::temp_dir();
    let paths = Paths {
        // Shown in messages only; the text below is what is read.
        configuration: prefix.join("(weir proxy)"),
        named: true,
        error_log: None,
        pid: prefix.join("(none)"),
        temporary: prefix.clone(),
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

/// The certificates that an origin must be signed by: OpenSSL's variable, or the system's file.
fn system_trust() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("SSL_CERT_FILE") {
        return Ok(path.into());
    }
    net::tls::system_trust().map(PathBuf::from).ok_or_else(|| {
        "no certificates are installed that an https server could be verified with\n  \
         install ca-certificates, name a file in SSL_CERT_FILE, or use --insecure"
            .to_owned()
    })
}

/// The parts of the URL.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    secure: bool,
    /// Name and port, as `Host` has them.
    host: String,
    path: String,
}

impl Origin {
    fn parse(url: &str) -> Result<Origin, String> {
        let (secure, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => {
                return Err(format!(
                    "\"{scheme}\" is no scheme of an origin; http and https are"
                ));
            }
            None => (false, url),
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
            secure,
            host: host.to_owned(),
            path: path.to_owned(),
        })
    }

    /// The name or address alone, without brackets.
    fn name(&self) -> &str {
        if let Some(inside) = self.host.strip_prefix('[') {
            return inside.split(']').next().unwrap_or_default();
        }
        self.host.split(':').next().unwrap_or_default()
    }

    /// What `server` takes: the port is said, and a name is asked for again when its answer is out of date. Not one without
    /// a dot, which search domains of the system may have completed at the start.
    fn server(&self) -> String {
        let has_port =
            self.host.contains("]:") || !self.host.starts_with('[') && self.host.contains(':');
        let port = match (has_port, self.secure) {
            (true, _) => "",
            (false, true) => ":443",
            (false, false) => ":80",
        };
        let is_address = self.name().parse::<std::net::IpAddr>().is_ok();
        let is_known = !is_address && self.name().contains('.');
        let resolve = if is_known { " resolve" } else { "" };
        format!("{}{port}{resolve}", self.host)
    }
}

fn configuration(
    origin: &Origin,
    trust: Option<&Path>,
    address: SocketAddr,
    temporary: &Path,
    colour: bool,
) -> String {
    let log = if colour { COLOUR_LOG } else { PLAIN_LOG };
    let scheme = if origin.secure { "https" } else { "http" };
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let mut tls = String::new();
    if origin.secure {
        tls = format!(
            "proxy_ssl_name {}; proxy_ssl_server_name on;",
            origin.name()
        );
    }
    if let Some(trust) = trust {
        let trust = path(trust);
        tls.push_str(&format!(
            " proxy_ssl_verify on; proxy_ssl_verify_depth 9; proxy_ssl_trusted_certificate {trust};"
        ));
    }
    TEMPLATE
        .replace("@ORIGIN@", &origin.server())
        .replace("@HOST@", &origin.host)
        .replace("@NAME@", origin.name())
        .replace("@SCHEME@", scheme)
        .replace("@PATH@", &origin.path)
        .replace("@TLS@", &tls)
        .replace("@LISTEN@", &address.to_string())
        .replace("@CACHE_PATH@", &path(&temporary.join("cache")))
        .replace("@TEMP@", &path(temporary))
        .replace("@LOG@", log)
        .replace("@CACHE@", " $upstream_cache_status")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_origins() {
        let origin = |host: &str, path: &str| {
            Ok(Origin {
                secure: false,
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
        for (url, name, server) in [
            ("https://a.example", "a.example", "a.example:443 resolve"),
            (
                "https://a.example:8443/x",
                "a.example",
                "a.example:8443 resolve",
            ),
            ("http://backend", "backend", "backend:80"),
            ("https://[::1]", "::1", "[::1]:443"),
            ("http://[::1]:81", "::1", "[::1]:81"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.1:80"),
        ] {
            let origin = Origin::parse(url).expect(url);
            assert_eq!((origin.name(), &*origin.server()), (name, server), "{url}");
        }
        for wrong in [
            "",
            "http://",
            "ftp://a",
            "https:///",
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
        let folder = temporary_folder();
        for (colour, url) in [
            (false, "http://127.0.0.1:3000"),
            (true, "http://127.0.0.1/app"),
            (true, "https://127.0.0.1:3000"),
        ] {
            let origin = Origin::parse(url).expect("a URL");
            let text = configuration(&origin, None, address, &folder, colour);
            let loaded = crate::load::tests::load_text(&text).expect("every directive is known");
            assert_eq!(crate::prepare::listeners(&loaded).len(), 1);
        }
    }
}
