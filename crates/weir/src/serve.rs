//! `weir serve DIR`: serves a directory without a configuration.
//!
//! It runs a configuration all the same: `serve.conf` beside this file, with the directory and the
//! address filled in. So there is no second code path through the server, and users who outgrow it
//! find every setting in the reference.
//!
//! Each option is a few directives, see `options` and `around`. Nothing is written to the directory
//! that is served: certificates, passwords and request bodies are in a temporary directory of this
//! user, which is removed at the end.

use std::io::{ErrorKind, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine as _;
use host::error_log::Logger;
use rt::file::modes;
use sha1::Digest as _;

use crate::arguments::ServeArguments;
use crate::authority::{self, CertificateNames};
use crate::identity::ProgramIdentity;
use crate::load_configuration::{StartupSettings, load_from_disk};
use crate::password::{self, UserCredentials};
use crate::paths::ServerPaths;
use crate::template::fill_template;
use crate::terminal;

/// The default port, and how many ports from it on are tried.
const FIRST_PORT: u16 = 8080;
const PORTS_TRIED: u16 = 20;

const TEMPLATE: &str = include_str!("serve.conf");
const PAGE: &str = include_str!("serve_page.html");
pub(crate) const PLAIN_LOG: &str = include_str!("serve_log_plain.conf");
pub(crate) const COLOUR_LOG: &str = include_str!("serve_log_colour.conf");

/// The certificate authority for `--domain`.
const ACME_DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Serves a directory until Ctrl-C. Returns the exit code.
pub(crate) fn run(arguments: &ServeArguments) -> i32 {
    if let Some(option) = &arguments.password {
        password::hide_from_process_list(option);
    }
    let temporary = TemporaryFolder(temporary_folder());
    match prepare(arguments, &temporary.0) {
        Ok(prepared) => start(prepared, arguments),
        Err(error) => {
            terminal::report_line(format_args!("weir: {error}"));
            1
        }
    }
}

/// A directory that is removed at the end.
pub(crate) struct TemporaryFolder(pub(crate) PathBuf);

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // The name was chosen at the start, so nothing else is in there. What cannot be removed is
        // left to the system's cleaning of `/tmp`.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Everything needed to start.
struct PreparedServe {
    /// The configuration's text, and its paths.
    startup: StartupSettings,
    /// Where it will listen.
    address: SocketAddr,
    /// The local authority's certificate, which browsers have to trust.
    authority: Option<PathBuf>,
}

/// Prints where the site is, then serves.
fn start(prepared: PreparedServe, arguments: &ServeArguments) -> i32 {
    let PreparedServe {
        startup,
        address,
        authority,
    } = prepared;
    // The text is generated, so an error is about an argument, and places in the text would mean nothing to the
    // user.
    let loaded = match load_from_disk(&startup, None) {
        Ok(loaded) => loaded,
        Err(failure) => {
            failure.0.print_without_places("weir");
            return 1;
        }
    };
    let url = url_of(arguments, address);
    terminal::report_text(format_args!("{}", banner(arguments, address, &url)));
    if let Some(authority) = authority {
        terminal::report_text(format_args!("{}", advice(&authority)));
    }
    if arguments.password.is_some() && !arguments.is_secure() && !address.ip().is_loopback() {
        terminal::report_line(format_args!(
            "The password is sent unencrypted; --tls encrypts it."
        ));
    }
    if arguments.open {
        open_browser(&url);
    }
    let code = crate::run::start(Arc::new(startup), loaded, Logger::default());
    if code == 0 {
        terminal::report_line(format_args!("stopped"));
    }
    code
}

/// Opens a browser. It takes longer to start than the server.
fn open_browser(url: &str) {
    let quiet = || Stdio::null();
    let mut command = Command::new("xdg-open");
    let command = command
        .arg(url)
        .env_remove(password::VARIABLE)
        .stdin(quiet())
        .stdout(quiet())
        .stderr(quiet());
    if let Err(error) = command.spawn() {
        terminal::report_line(format_args!(
            "weir: xdg-open cannot be started ({error}); open the address yourself"
        ));
    }
}

impl ServeArguments {
    /// Whether the site is served by HTTPS.
    fn is_secure(&self) -> bool {
        self.tls || self.domain.is_some()
    }
}

/// Checks the arguments, chooses an address and writes the configuration. Everything that can fail
/// does so before anything listens.
fn prepare(arguments: &ServeArguments, temporary: &Path) -> Result<PreparedServe, String> {
    let shown = arguments.directory.display();
    // First, since a misspelled directory is the most likely mistake.
    let directory = readable_folder(&arguments.directory)?;
    // The name goes into the configuration and to the authority, which would refuse others only
    // later.
    if let Some(domain) = &arguments.domain {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        if !domain.contains('.') || !domain.chars().all(is_name) {
            return Err(format!(
                "\"{domain}\" is not a name such as www.example.org"
            ));
        }
    }
    let address = match arguments.domain.is_some() {
        true => {
            // A public certificate is for clients elsewhere, so the default is every interface, not the loopback
            // one.
            let listen = arguments.listen.as_deref().unwrap_or("*");
            choose_address(Some(listen), arguments.port.or(Some(443)))?
        }
        false => choose_address(arguments.listen.as_deref(), arguments.port)?,
    };
    modes::make_folder(temporary, modes::PRIVATE_FOLDER)
        .map_err(|error| format!("cannot make {}: {error}", temporary.display()))?;
    let authority = match arguments.tls {
        true => Some(issue(address, temporary)?),
        false => None,
    };
    if let Some(option) = &arguments.password {
        let UserCredentials { user, password } = password::read_credentials(option)?;
        // The file is removed with the process, and no other user can read it, so a slow hash would
        // protect nothing.
        let hash = base64::engine::general_purpose::STANDARD.encode(sha1::Sha1::digest(password));
        let line = format!("{user}:{{SHA}}{hash}\n");
        authority::write_file(&temporary.join("users"), &line, modes::PRIVATE_FILE)?;
    }
    let colour = std::io::stdout().is_terminal();
    let text = configuration(arguments, &directory, address, temporary, colour)?;
    let paths = ServerPaths {
        // What modules create in the prefix must not appear in the served directory.
        prefix: temporary.to_path_buf(),
        temporary: temporary.to_path_buf(),
        // Shown in messages only; the text below is read in its place.
        configuration: temporary.join("(weir serve)"),
        is_named: true,
        ..ServerPaths::default()
    };
    let startup = StartupSettings {
        identity: ProgramIdentity::Weir,
        paths,
        globals: None,
        testing: false,
        text: Some(text.into_bytes()),
        arguments: format!("serve {shown}"),
        command: Default::default(),
        daemonized: false.into(),
        service: Default::default(),
        private: None,
        block_heads: Default::default(),
    };
    Ok(PreparedServe {
        startup,
        address,
        authority,
    })
}

/// The directory's absolute path, if this user can read it.
fn readable_folder(directory: &Path) -> Result<PathBuf, String> {
    let shown = directory.display();
    let refused = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => format!("there is no directory \"{shown}\""),
        ErrorKind::NotADirectory => format!("\"{shown}\" is not a directory"),
        ErrorKind::PermissionDenied => format!("\"{shown}\" cannot be read by this user"),
        _ => format!("\"{shown}\" cannot be opened: {error}"),
    };
    let found = directory.canonicalize().map_err(refused)?;
    std::fs::read_dir(&found).map_err(refused)?;
    // To list names is not enough: files in it must be accessible, too.
    std::fs::metadata(found.join(".")).map_err(refused)?;
    Ok(found)
}

/// A certificate of the local authority for the names of this machine.
fn issue(address: SocketAddr, temporary: &Path) -> Result<PathBuf, String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let names = CertificateNames {
        addresses: outward_address()
            .into_iter()
            .chain([address.ip()])
            .collect(),
        host: host.map(|host| host.trim().to_owned()),
    };
    authority::issue(&authority::data_folder()?, &names, temporary)
}

/// The address to listen on. An explicit port must be free; otherwise the next free one is taken.
pub(crate) fn choose_address(
    listen: Option<&str>,
    port: Option<u16>,
) -> Result<SocketAddr, String> {
    let ip = match listen {
        None | Some("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Some("*") => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Some(text) => {
            // With a port in the address, `--port` is not looked at.
            if let Ok(address) = text.parse::<SocketAddr>() {
                return require_free(address).map(|()| address);
            }
            let bare = text.trim_start_matches('[').trim_end_matches(']');
            bare.parse()
                .map_err(|_| format!("\"{text}\" is not an address, such as 0.0.0.0 or [::1]"))?
        }
    };
    if let Some(port) = port {
        let address = SocketAddr::new(ip, port);
        return require_free(address).map(|()| address);
    }
    let candidates = (FIRST_PORT..FIRST_PORT + PORTS_TRIED).map(|port| SocketAddr::new(ip, port));
    for address in candidates {
        match host::listen::try_bind(address) {
            Ok(()) => return Ok(address),
            // Only this error can be different at the next port.
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(bind_error(address, &error)),
        }
    }
    let last = FIRST_PORT + PORTS_TRIED - 1;
    Err(format!(
        "ports {FIRST_PORT} to {last} are all in use; choose one with --port"
    ))
}

/// Whether the server could listen on this address. It may change until the server does, whose own
/// attempt decides; this one has the better explanation.
fn require_free(address: SocketAddr) -> Result<(), String> {
    host::listen::try_bind(address).map_err(|error| bind_error(address, &error))
}

/// Why the address cannot be used, and what to do.
fn bind_error(address: SocketAddr, error: &std::io::Error) -> String {
    let port = address.port();
    match error.kind() {
        ErrorKind::AddrInUse => {
            format!("port {port} is in use by another program; leave out --port to get a free one")
        }
        ErrorKind::PermissionDenied => {
            format!(
                "port {port} needs root; ports from 1024 on do not, such as --port {FIRST_PORT}"
            )
        }
        ErrorKind::AddrNotAvailable => {
            format!("this machine does not have the address {}", address.ip())
        }
        _ => {
            // Without the error's number, which Rust appends.
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            format!("cannot listen on {address}: {text}")
        }
    }
}

/// Fills in the template.
fn configuration(
    serve: &ServeArguments,
    directory: &Path,
    address: SocketAddr,
    temporary: &Path,
    colour: bool,
) -> Result<String, String> {
    let path = directory
        .to_str()
        .ok_or("the directory's name is not valid UTF-8")?;
    let log = if colour { COLOUR_LOG } else { PLAIN_LOG };
    let log = fill_template(log, &[("CACHE", "")]);
    let secure = if serve.is_secure() { " ssl" } else { "" };
    // The site's own page is preferred.
    let own = directory.join("404.html").is_file();
    let (around, options) = (http_rows(serve, address)?, server_rows(serve, temporary));
    // The configuration's language has no escape for `$`: a variable has it as its value.
    let root = quoted(path).replace('$', "${dollar}");
    let values = [
        ("AROUND", &*around),
        ("OPTIONS", &options),
        ("ROOT", &root),
        ("LISTEN", &format!("{address}{secure}")),
        ("QUIC", &quic_rows(serve, address)),
        ("NAME", serve.domain.as_deref().unwrap_or("_")),
        ("MISSING", if own { "/404.html" } else { "@missing" }),
        (
            "PAGE404",
            &error_page(404, "Not Found", "There is nothing here"),
        ),
        ("PAGE403", &error_page(403, "Forbidden", "Access denied")),
        ("TEMP", &quoted(&temporary.to_string_lossy())),
        ("LOG", &log),
    ];
    Ok(fill_template(TEMPLATE, &values))
}

/// HTTP/3 at the same port, of which clients learn by `Alt-Svc` (RFC 7838). Nothing without TLS, or if another program has
/// the port for UDP.
fn quic_rows(serve: &ServeArguments, address: SocketAddr) -> String {
    if !serve.is_secure() || host::listen::try_bind_datagrams(address).is_err() {
        return String::new();
    }
    let port = address.port();
    format!(
        "        listen {address} quic reuseport;
        add_header Alt-Svc 'h3=\":{port}\"; ma=86400' always;\n"
    )
}

/// An error page, as a word of the configuration.
fn error_page(status: u16, title: &str, text: &str) -> String {
    let status = status.to_string();
    let values = [("STATUS", &*status), ("TITLE", title), ("TEXT", text)];
    quoted(&fill_template(PAGE, &values))
}

/// The configuration beside the server's block.
fn http_rows(serve: &ServeArguments, address: SocketAddr) -> Result<String, String> {
    let mut text = String::new();
    if serve.cors {
        text.push_str("map $request_method $preflight { OPTIONS \"GET, HEAD\"; }\n");
        text.push_str("map $request_method $preflight_headers { OPTIONS *; }\n");
    }
    if serve.upload {
        text.push_str("map $uri $above { ~(?s)^(?<up>.*/)[^/]+$ $up; default /; }\n");
    }
    if let Some(domain) = &serve.domain {
        let state = authority::data_folder()?.join("acme");
        // The authority connects to port 80 to verify the name (ACME's http-01).
        let plain = SocketAddr::new(address.ip(), 80);
        require_free(plain)?;
        let state = quoted(&state.to_string_lossy());
        text.push_str(&format!(
            "resolver {};
            acme_issuer public {{ uri {ACME_DIRECTORY}; accept_terms_of_service; state_path {state}; }}
            server {{ listen {plain}; server_name {domain}; return 301 https://$host$request_uri; }}\n",
            resolvers()
        ));
    }
    text.push_str(&metrics_server(serve.metrics.as_deref())?);
    Ok(text)
}

/// The port of `--metrics`.
const METRICS_PORT: u16 = 9145;

/// The server of `--metrics`; nothing without it. It listens on this machine only unless the user names an address.
pub(crate) fn metrics_server(asked: Option<&str>) -> Result<String, String> {
    let Some(asked) = asked else {
        return Ok(String::new());
    };
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let address = match (asked, asked.parse(), asked.parse()) {
        ("", ..) => SocketAddr::new(here, METRICS_PORT),
        (_, Ok(port), _) => SocketAddr::new(here, port),
        (_, _, Ok(address)) => address,
        _ => {
            return Err(format!(
                "\"{asked}\" is neither a port nor an address with one, such as 127.0.0.1:{METRICS_PORT}"
            ));
        }
    };
    require_free(address)?;
    Ok(format!(
        "server {{ listen {address}; server_name metrics; access_log off; location = /metrics {{ prometheus; }} }}\n"
    ))
}

/// The system's name servers, as words of `resolver`.
pub(crate) fn resolvers() -> String {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = servers.filter_map(|address| address.trim().parse::<IpAddr>().ok());
    let words = addresses.map(|address| match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    });
    let words: Vec<String> = words.collect();
    match words.is_empty() {
        // A `resolver` line needs an address. Without any configured, a local server is the only guess.
        true => "127.0.0.1".to_owned(),
        false => words.join(" "),
    }
}

/// The configuration within the server's block.
fn server_rows(serve: &ServeArguments, temporary: &Path) -> String {
    let file = |name: &str| quoted(&temporary.join(name).to_string_lossy());
    let mut text = String::new();
    if serve.tls {
        text.push_str(&format!(
            "ssl_certificate {}; ssl_certificate_key {};\n",
            file("serve.crt"),
            file("serve.key")
        ));
    }
    if serve.domain.is_some() {
        text.push_str("acme_certificate public;\n");
        text.push_str(
            "ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;\n",
        );
    }
    if serve.is_secure() {
        // Plain HTTP on a TLS port.
        text.push_str("error_page 497 =307 https://$http_host$request_uri;\n");
    }
    if serve.password.is_some() {
        text.push_str(&format!(
            "auth_basic weir; auth_basic_user_file {};\n",
            file("users")
        ));
    }
    if !serve.follow {
        // A link in a directory that is shared must not publish the rest of the machine.
        text.push_str("disable_symlinks outside from=$document_root;\n");
    }
    if !serve.hidden {
        // Repositories and settings of editors are in such names; `/.well-known/` is public by
        // definition (RFC 8615).
        text.push_str("location ~ /\\.(?!well-known/) { return 404; }\n");
    }
    if serve.spa {
        text.push_str("location / { try_files $uri $uri/index.html /index.html; }\n");
    }
    if serve.cors {
        text.push_str(
            "add_header Access-Control-Allow-Origin * always;
            add_header Access-Control-Allow-Methods $preflight always;
            add_header Access-Control-Allow-Headers $preflight_headers always;
            if ($request_method = OPTIONS) { return 204; }\n",
        );
    }
    if serve.upload {
        text.push_str(UPLOAD);
    }
    text
}

/// Uploads create files in existing directories and replace none. Symbolic links that lead out of
/// the directory are not followed.
const UPLOAD: &str = "client_max_body_size 0;
        dav_methods PUT;
        dav_access user:rw group:r all:r;
        autoindex_upload on;
        set $put $request_method;
        if (-e $request_filename) { set $put \"$put onto\"; }
        if (!-d $document_root$above) { set $put \"$put nowhere\"; }
        if ($put = \"PUT onto\") { return 409; }
        if ($put ~ \"^PUT.* nowhere\") { return 403; }
";

/// A directory for this process's temporary files, such as large request bodies. The time in its
/// name keeps other users from creating it first.
pub(crate) fn temporary_folder() -> PathBuf {
    let now = rt::clock::read_wall().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.as_nanos());
    std::env::temp_dir().join(format!("weir-serve-{}-{nanos}", std::process::id()))
}

/// Quotes a word of the configuration. A `$` in it still begins a variable, where the directive takes
/// any.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The URL to open in a browser.
fn url_of(serve: &ServeArguments, address: SocketAddr) -> String {
    let port = |usual: u16| match address.port() {
        port if port == usual => String::new(),
        port => format!(":{port}"),
    };
    match &serve.domain {
        Some(domain) => format!("https://{domain}{}", port(443)),
        None if serve.tls && address.ip().is_loopback() => {
            format!("https://localhost{}", port(443))
        }
        None if serve.tls => url(address).replacen("http:", "https:", 1),
        None => url(address),
    }
}

/// The lines that say where the site is, and what others could do to it.
fn banner(serve: &ServeArguments, address: SocketAddr, shown: &str) -> String {
    let directory = serve.directory.display().to_string();
    let directory = base::text::visible_text(&directory);
    let mut text = format!("Serving {directory} at {shown}\n");
    if address.ip().is_unspecified()
        && serve.domain.is_none()
        && let Some(ip) = outward_address()
    {
        let outward = SocketAddr::new(ip, address.port());
        let outward = url_of(serve, outward);
        text.push_str(&format!("and for other machines at {outward}\n"));
    }
    if serve.upload && serve.password.is_none() && !address.ip().is_loopback() {
        text.push_str("Anyone who can reach it may upload files; --password USER prevents that.\n");
    }
    text.push_str("Ctrl-C stops.\n");
    text
}

/// How to make browsers trust the local authority.
fn advice(authority: &Path) -> String {
    let file = authority.display();
    format!(
        "Its certificate is signed by {file}. To make browsers trust it:
  sudo cp {file} /usr/local/share/ca-certificates/weir.crt && sudo update-ca-certificates
  (Firefox: Settings, Certificates, Authorities, Import; curl: --cacert {file})\n"
    )
}

/// The URL of an address; that of all interfaces is reachable on the loopback interface, too.
pub(crate) fn url(address: SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_unspecified() => format!("http://127.0.0.1:{}", address.port()),
        _ => format!("http://{address}"),
    }
}

/// The address under which other machines reach this one. Connecting a UDP socket only selects a
/// route; nothing is sent.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address reserved for documentation (RFC 5737): only the route to it matters.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_port_is_explained() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = taken.local_addr().expect("bound").port();
        let error = choose_address(None, Some(port)).expect_err("taken");
        assert!(error.contains("in use"), "{error}");
        assert!(choose_address(None, None).is_ok());
    }

    #[test]
    fn the_template_is_a_valid_configuration() {
        let address = SocketAddr::from(([127, 0, 0, 1], 8080));
        let with = |change: fn(&mut ServeArguments)| {
            let mut serve = ServeArguments::default();
            change(&mut serve);
            serve
        };
        let variants = [
            with(|_| {}),
            with(|serve| serve.spa = true),
            with(|serve| (serve.upload, serve.hidden) = (true, true)),
            with(|serve| (serve.cors, serve.follow) = (true, true)),
            with(|serve| (serve.upload, serve.cors, serve.spa) = (true, true, true)),
        ];
        for (serve, colour) in variants
            .iter()
            .flat_map(|serve| [(serve, false), (serve, true)])
        {
            let site = Path::new("/site");
            let text = configuration(serve, site, address, Path::new("/tmp/x"), colour);
            let text = text.expect("the path is UTF-8");
            let loaded = crate::load_configuration::tests::load_text(&text);
            let loaded = loaded.unwrap_or_else(|errors| panic!("{errors:#?}"));
            assert_eq!(crate::prepare::listeners(&loaded).len(), 1);
        }
    }

    #[test]
    fn a_path_is_one_word() {
        assert_eq!(quoted(r#"/a "b"\c"#), r#""/a \"b\"\\c""#);
    }
}
