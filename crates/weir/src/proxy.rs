//! `weir proxy URL`: a reverse proxy without a configuration.
//!
//! What it does is a configuration all the same, as with `weir serve`: `proxy.conf` beside this file, with the origin and
//! the address filled in.

use std::io::IsTerminal as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rt::error_log::Logger;
use rt::file::modes;

use crate::cli::Proxy;
use crate::identity::Identity;
use crate::load::{Startup, load_from_disk};
use crate::paths::Paths;
use crate::serve::{
    COLOUR_LOG, PLAIN_LOG, Temporary, choose_address, quoted, temporary_folder, url,
};

const TEMPLATE: &str = include_str!("proxy.conf");

/// Proxies until Ctrl-C. The answer is the exit code.
pub(crate) fn run(arguments: &Proxy) -> i32 {
    let temporary = Temporary(temporary_folder());
    let (startup, origin, address) = match prepare(arguments, &temporary.0) {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("weir: {error}");
            return 1;
        }
    };
    let loaded = match load_from_disk(&startup) {
        Ok(loaded) => loaded,
        Err(failure) => {
            failure.0.print_without_places("weir");
            return 1;
        }
    };
    let shown = origin.url();
    eprintln!("Proxying {shown} at {}\nCtrl-C stops.", url(address));
    let code = crate::run::start(Arc::new(startup), loaded, Logger::default());
    if code == 0 {
        eprintln!("stopped");
    }
    code
}

fn prepare(arguments: &Proxy, temporary: &Path) -> Result<(Startup, Origin, SocketAddr), String> {
    let origin = Origin::parse(&arguments.url)?;
    origin.require_known()?;
    let trust = match origin.secure && !arguments.insecure {
        true => Some(system_trust()?),
        false => None,
    };
    let address = choose_address(arguments.listen.as_deref(), arguments.port)?;
    modes::make_folder(temporary, modes::PRIVATE_FOLDER)
        .map_err(|error| format!("cannot make {}: {error}", temporary.display()))?;
    let colour = std::io::stdout().is_terminal();
    let text = configuration(&origin, trust.as_deref(), address, temporary, colour);
    let paths = Paths {
        // Shown in messages only; the text below is what is read.
        configuration: temporary.join("(weir proxy)"),
        named: true,
        temporary: temporary.to_path_buf(),
        prefix: temporary.to_path_buf(),
        ..Paths::default()
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
    Ok((startup, origin, address))
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
        // A port alone is one of this machine.
        let port = url.strip_prefix(':').unwrap_or(url);
        let end = port.find('/').unwrap_or(port.len());
        if end > 0 && port[..end].bytes().all(|byte| byte.is_ascii_digit()) {
            return Origin::parse(&format!("http://localhost:{port}"));
        }
        let (secure, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => {
                return Err(format!(
                    "unsupported scheme \"{scheme}\": use http or https"
                ));
            }
            None => (false, url),
        };
        let (host, path) = rest
            .find(['/', '?'])
            .map_or((rest, ""), |at| rest.split_at(at));
        let word = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if host.is_empty() || host.starts_with(':') || !host.chars().all(word) {
            return Err(format!(
                "\"{url}\" is not a URL, such as http://127.0.0.1:3000"
            ));
        }
        let name_end = host.rfind(']').unwrap_or(0);
        if let Some((_, port)) = host[name_end..].split_once(':') {
            let number = port.parse::<u16>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("\"{port}\" is not a port number (1 to 65535)"))?;
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

    /// As a browser would have it.
    fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.host, self.path)
    }

    /// A name without a dot is one of this system, or a slip: nothing will make it known later.
    fn require_known(&self) -> Result<(), String> {
        let name = self.name();
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        if is_address || name.contains('.') || (name, 80).to_socket_addrs().is_ok() {
            return Ok(());
        }
        Err(format!(
            "there is no host \"{name}\"\n  a URL, a host or a port of this machine, such as weir proxy 3000"
        ))
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
        .replace("@CACHE@", " $upstream_cache_status$why")
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
        for port in ["3000", ":3000", "localhost:3000", "http://localhost:3000/"] {
            assert_eq!(Origin::parse(port), origin("localhost:3000", ""), "{port}");
        }
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
            ":",
            "70000",
            "a:b",
            ":3000:1",
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
