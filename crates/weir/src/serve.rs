//! `weir serve DIR`: a site from a folder, without a configuration.
//!
//! What it does is a configuration all the same: `serve.conf` beside this file, with the folder and the
//! address filled in. So it has no path of its own through the server, and whoever outgrows it finds
//! every setting in the reference.

use std::io::{ErrorKind, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rt::error_log::Logger;

use crate::cli::Serve;
use crate::identity::Identity;
use crate::load::{Startup, load_from_disk};
use crate::paths::Paths;

/// The port when none is given, and how many after it are tried.
const FIRST_PORT: u16 = 8080;
const PORTS_TRIED: u16 = 20;

const TEMPLATE: &str = include_str!("serve.conf");
pub(crate) const PLAIN_LOG: &str = include_str!("serve_log_plain.conf");
pub(crate) const COLOUR_LOG: &str = include_str!("serve_log_colour.conf");

/// Serves a folder until Ctrl-C. The answer is the exit code.
pub(crate) fn run(arguments: &Serve) -> i32 {
    match prepare(arguments) {
        Ok(prepared) => start(prepared, arguments),
        Err(error) => {
            eprintln!("weir: {error}");
            1
        }
    }
}

/// What a start needs.
struct Prepared {
    startup: Startup,
    address: SocketAddr,
    /// Removed at the end.
    temporary: PathBuf,
}

fn start(prepared: Prepared, arguments: &Serve) -> i32 {
    let Prepared {
        startup,
        address,
        temporary,
    } = prepared;
    let loaded = match load_from_disk(&startup) {
        Ok(loaded) => loaded,
        Err(failure) => {
            failure.0.print("weir");
            return 1;
        }
    };
    eprint!("{}", banner(&arguments.directory, address));
    let code = crate::run::start(Arc::new(startup), loaded, Logger::default());
    // Its name was made by us a moment ago; what can not be removed the system cleans up one day.
    let _ = std::fs::remove_dir_all(temporary);
    if code == 0 {
        eprintln!("stopped");
    }
    code
}

fn prepare(arguments: &Serve) -> Result<Prepared, String> {
    let shown = arguments.directory.display();
    let directory = arguments
        .directory
        .canonicalize()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("there is no folder \"{shown}\""),
            _ => format!("\"{shown}\" can not be opened: {error}"),
        })?;
    if !directory.is_dir() {
        return Err(format!("\"{shown}\" is not a folder"));
    }
    let address = choose_address(arguments.listen.as_deref(), arguments.port)?;
    let temporary = temporary_folder();
    let text = configuration(
        &directory,
        address,
        &temporary,
        std::io::stdout().is_terminal(),
    )?;
    let paths = Paths {
        // What modules create for themselves must not turn up in the folder that is served.
        prefix: temporary.clone(),
        temporary: temporary.clone(),
        // Shown in messages only; the text below is what is read.
        configuration: directory.join("(weir serve)"),
        named: true,
        error_log: None,
        pid: directory.join("(none)"),
    };
    let startup = Startup {
        identity: Identity::Weir,
        paths,
        globals: None,
        testing: false,
        text: Some(text.into_bytes()),
        arguments: format!("serve {shown}"),
        command: Default::default(),
        daemonized: false.into(),
    };
    Ok(Prepared {
        startup,
        address,
        temporary,
    })
}

/// The address to listen on. A port that was asked for must be free; else the next free one will do.
pub(crate) fn choose_address(
    listen: Option<&str>,
    port: Option<u16>,
) -> Result<SocketAddr, String> {
    let ip = match listen {
        None | Some("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Some("*") => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Some(text) => {
            if let Ok(address) = text.parse::<SocketAddr>() {
                return free(address).map(|()| address);
            }
            let bare = text.trim_start_matches('[').trim_end_matches(']');
            bare.parse()
                .map_err(|_| format!("\"{text}\" is not an address, such as 0.0.0.0 or [::1]"))?
        }
    };
    if let Some(port) = port {
        let address = SocketAddr::new(ip, port);
        return free(address).map(|()| address);
    }
    let candidates = (FIRST_PORT..FIRST_PORT + PORTS_TRIED).map(|port| SocketAddr::new(ip, port));
    for address in candidates {
        match rt::listen::try_bind(address) {
            Ok(()) => return Ok(address),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(format!("can not listen on {address}: {error}")),
        }
    }
    let last = FIRST_PORT + PORTS_TRIED - 1;
    Err(format!(
        "ports {FIRST_PORT} to {last} are all in use; choose one with --port"
    ))
}

/// Could this address be listened on? The answer may be out of date a moment later; the server's own
/// attempt decides, and this one only explains better.
fn free(address: SocketAddr) -> Result<(), String> {
    let Err(error) = rt::listen::try_bind(address) else {
        return Ok(());
    };
    let port = address.port();
    Err(match error.kind() {
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
        _ => format!("can not listen on {address}: {error}"),
    })
}

fn configuration(
    directory: &Path,
    address: SocketAddr,
    temporary: &Path,
    colour: bool,
) -> Result<String, String> {
    let path = directory
        .to_str()
        .ok_or("the folder's name is not valid UTF-8")?;
    let log = if colour { COLOUR_LOG } else { PLAIN_LOG };
    Ok(TEMPLATE
        .replace("@ROOT@", &quoted(path))
        .replace("@LISTEN@", &address.to_string())
        .replace("@TEMP@", &quoted(&temporary.to_string_lossy()))
        .replace("@LOG@", log)
        .replace("@CACHE@", ""))
}

/// Where large request bodies wait. The name can not be foretold, so that nobody else can have made it.
pub(crate) fn temporary_folder() -> PathBuf {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.as_nanos());
    std::env::temp_dir().join(format!("weir-serve-{}-{nanos}", std::process::id()))
}

/// A word of the configuration language; `$` has no meaning to nginx in paths without variables only
/// when it is written as a variable, so a folder with one is refused by the parser with a clear message.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn banner(directory: &Path, address: SocketAddr) -> String {
    let shown = directory.display();
    let mut text = format!("Serving {shown} at {}\n", url(address));
    if address.ip().is_unspecified()
        && let Some(ip) = outward_address()
    {
        text.push_str(&format!(
            "and for other machines at {}\n",
            url(SocketAddr::new(ip, address.port()))
        ));
    }
    text.push_str("Ctrl-C stops.\n");
    text
}

pub(crate) fn url(address: SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_unspecified() => format!("http://127.0.0.1:{}", address.port()),
        _ => format!("http://{address}"),
    }
}

/// The address that this machine has for others. Connecting a UDP socket sends nothing.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address that is reserved for documentation (RFC 5737): only the route to it matters.
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
        for colour in [false, true] {
            let text = configuration(Path::new("/site"), address, Path::new("/tmp/x"), colour);
            let text = text.expect("the path is UTF-8");
            let loaded = crate::load::tests::load_text(&text).expect("every directive is known");
            assert_eq!(crate::prepare::listeners(&loaded).len(), 1);
        }
    }

    #[test]
    fn a_path_is_one_word() {
        assert_eq!(quoted(r#"/a "b"\c"#), r#""/a \"b\"\\c""#);
    }
}
