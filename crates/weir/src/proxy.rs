//! `weir proxy URL`: a reverse proxy without a configuration.
//!
//! It runs a configuration all the same, like `weir serve`: `proxy.conf` beside this file, with the
//! origin and the address filled in. Its cache is in a temporary directory that is removed at the
//! end, so that no run sees what another has stored.

use std::io::IsTerminal as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use host::error_log::Logger;
use rt::file::modes;

use crate::arguments::ProxyArguments;
use crate::identity::ProgramIdentity;
use crate::load_configuration::{StartupSettings, load_from_disk};
use crate::paths::ServerPaths;
use crate::serve::{
    COLOUR_LOG, PLAIN_LOG, TemporaryFolder, choose_address, metrics_server, quoted,
    temporary_folder, url,
};
use crate::template::fill_template;
use crate::terminal;

const TEMPLATE: &str = include_str!("proxy.conf");

/// Proxies until Ctrl-C. Returns the exit code.
pub(crate) fn run(arguments: &ProxyArguments) -> i32 {
    let temporary = TemporaryFolder(temporary_folder());
    let (startup, origin, address) = match prepare(arguments, &temporary.0) {
        Ok(prepared) => prepared,
        Err(error) => {
            terminal::report_line(format_args!("weir: {error}"));
            return 1;
        }
    };
    let loaded = match load_from_disk(&startup, None) {
        Ok(loaded) => loaded,
        Err(failure) => {
            failure.0.print_without_places("weir");
            return 1;
        }
    };
    let shown = origin.url();
    terminal::report_line(format_args!(
        "Proxying {shown} at {}\nCtrl-C stops.",
        url(address)
    ));
    let code = crate::run::start(Arc::new(startup), loaded, Logger::default());
    if code == 0 {
        terminal::report_line(format_args!("stopped"));
    }
    code
}

/// Checks the arguments, chooses an address and writes the configuration. Everything that can fail
/// does so before anything listens.
fn prepare(
    arguments: &ProxyArguments,
    temporary: &Path,
) -> Result<(StartupSettings, ProxyOrigin, SocketAddr), String> {
    let origin = ProxyOrigin::parse(&arguments.url)?;
    // Here, because later a name that cannot be resolved is only a warning, and every request would be a 502.
    origin.require_known()?;
    // Looked for before anything listens: without certificates every request would fail.
    let trust = match origin.secure && !arguments.insecure {
        true => Some(system_trust()?),
        false => None,
    };
    let address = choose_address(arguments.listen.as_deref(), arguments.port)?;
    modes::make_folder(temporary, modes::PRIVATE_FOLDER)
        .map_err(|error| format!("cannot make {}: {error}", temporary.display()))?;
    let colour = std::io::stdout().is_terminal();
    let text = configuration(&origin, trust.as_deref(), address, temporary, colour);
    let metrics = metrics_server(arguments.metrics.as_deref())?;
    let text = fill_template(&text, &[("METRICS", &metrics)]);
    let paths = ServerPaths {
        // Shown in messages only; the text below is read in its place.
        configuration: temporary.join("(weir proxy)"),
        is_named: true,
        temporary: temporary.to_path_buf(),
        prefix: temporary.to_path_buf(),
        ..ServerPaths::default()
    };
    let startup = StartupSettings {
        identity: ProgramIdentity::Weir,
        paths,
        globals: None,
        testing: false,
        text: Some(text.into_bytes()),
        arguments: format!("proxy {}", arguments.url),
        command: Default::default(),
        daemonized: false.into(),
        service: Default::default(),
        private: None,
        block_heads: Default::default(),
    };
    Ok((startup, origin, address))
}

/// The trusted certificates: OpenSSL's variable, or the system's file.
fn system_trust() -> Result<PathBuf, String> {
    // The user's choice comes first, as with curl and OpenSSL's own tools.
    if let Some(path) = std::env::var_os("SSL_CERT_FILE") {
        return Ok(path.into());
    }
    net::tls::system_trust().map(PathBuf::from).ok_or_else(|| {
        "no CA certificates are installed, so https servers cannot be verified\n  \
         install ca-certificates, name a file in SSL_CERT_FILE, or use --insecure"
            .to_owned()
    })
}

/// The parts of the URL.
#[derive(Debug, PartialEq, Eq)]
struct ProxyOrigin {
    /// Whether the scheme is `https`.
    secure: bool,
    /// Name and port, as in `Host`.
    host: String,
    /// The path, without a single slash.
    path: String,
}

impl ProxyOrigin {
    /// Parses a URL, a host, or a port.
    fn parse(url: &str) -> Result<ProxyOrigin, String> {
        // A port alone means this machine.
        let port = url.strip_prefix(':').unwrap_or(url);
        let end = port.find('/').unwrap_or(port.len());
        if end > 0 && port[..end].bytes().all(|byte| byte.is_ascii_digit()) {
            return ProxyOrigin::parse(&format!("http://localhost:{port}"));
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
        // The colons of an IPv6 address are within brackets and do not begin a port.
        let name_end = host.rfind(']').unwrap_or(0);
        if let Some((_, port)) = host[name_end..].split_once(':') {
            let number = port.parse::<u16>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("\"{port}\" is not a port number (1 to 65535)"))?;
        }
        // The path is inserted into the configuration, so it must not contain its syntax.
        if path.contains(['"', '$', ' ', '\\', ';', '{', '}', '?', '#']) {
            return Err(format!("\"{path}\" is not a path for an origin"));
        }
        // For `proxy_pass`, a single slash would mean replacing the request's path.
        let path = if path == "/" { "" } else { path };
        Ok(ProxyOrigin {
            secure,
            host: host.to_owned(),
            path: path.to_owned(),
        })
    }

    /// The URL as a browser shows it.
    fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.host, self.path)
    }

    /// Fails for a name without a dot that is unknown: it belongs to this system or is a typing
    /// error, and nothing will make it known later.
    fn require_known(&self) -> Result<(), String> {
        let name = self.name();
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        if is_address || name.contains('.') || (name, 80).to_socket_addrs().is_ok() {
            return Ok(());
        }
        Err(format!(
            "host \"{name}\" not found\n  give a URL, a host, or a port of this machine: weir proxy 3000"
        ))
    }

    /// The name or address without port and brackets.
    fn name(&self) -> &str {
        if let Some(inside) = self.host.strip_prefix('[') {
            return inside.split(']').next().unwrap_or_default();
        }
        self.host.split(':').next().unwrap_or_default()
    }

    /// The parameters of `server`: the port, and `resolve` for a name, so that it is looked up
    /// again when its answer expires. Not for a name without a dot, which the search domains of the
    /// system may have completed; Weir's resolver asks for full names.
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

/// Fills in the template. The origin's certificate is verified for the name in the URL, unless told
/// otherwise.
fn configuration(
    origin: &ProxyOrigin,
    trust: Option<&Path>,
    address: SocketAddr,
    temporary: &Path,
    colour: bool,
) -> String {
    let log = if colour { COLOUR_LOG } else { PLAIN_LOG };
    let log = fill_template(log, &[("CACHE", " $upstream_cache_status$why")]);
    let scheme = if origin.secure { "https" } else { "http" };
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let mut tls = String::new();
    // The name for SNI and for the verification is the origin's, not the client's.
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
    let values = [
        ("ORIGIN", &*origin.server()),
        ("HOST", &origin.host),
        ("NAME", origin.name()),
        ("SCHEME", scheme),
        ("PATH", &origin.path),
        ("TLS", &tls),
        ("LISTEN", &address.to_string()),
        ("CACHE_PATH", &path(&temporary.join("cache"))),
        ("TEMP", &path(temporary)),
        ("LOG", &log),
    ];
    fill_template(TEMPLATE, &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_origins() {
        let origin = |host: &str, path: &str| {
            Ok(ProxyOrigin {
                secure: false,
                host: host.into(),
                path: path.into(),
            })
        };
        assert_eq!(
            ProxyOrigin::parse("http://127.0.0.1:3000"),
            origin("127.0.0.1:3000", "")
        );
        assert_eq!(
            ProxyOrigin::parse("http://[::1]:3000/"),
            origin("[::1]:3000", "")
        );
        assert_eq!(
            ProxyOrigin::parse("localhost:3000/app/"),
            origin("localhost:3000", "/app/")
        );
        for port in ["3000", ":3000", "localhost:3000", "http://localhost:3000/"] {
            assert_eq!(
                ProxyOrigin::parse(port),
                origin("localhost:3000", ""),
                "{port}"
            );
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
            let origin = ProxyOrigin::parse(url).expect(url);
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
            assert!(ProxyOrigin::parse(wrong).is_err(), "{wrong}");
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
            let origin = ProxyOrigin::parse(url).expect("a URL");
            let text = configuration(&origin, None, address, &folder, colour);
            let text = fill_template(&text, &[("METRICS", "")]);
            let loaded = crate::load_configuration::tests::load_text(&text)
                .expect("every directive is known");
            assert_eq!(crate::prepare::listeners(&loaded).len(), 1);
        }
    }
}
