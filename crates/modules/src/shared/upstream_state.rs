//! The file of `state`: the servers of an upstream group that is changed while the server runs.
//!
//! ```text
//! server 10.0.0.1:8080;
//! server 10.0.0.2:8080 weight=2 max_conns=100 fail_timeout=30s down;
//! ```
//!
//! It has the syntax of the block, so that an operator can read it and write the first one. Only what the API can say is in
//! it: a name is resolved when it is read, as that of a `server` line without `resolve`.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use bstr::ByteSlice;
use conf::{HostPort, parse};
use net::upstream::{MAX_SERVER_ID, ServerState, UpstreamServer, lookup_configured};
use rt::net::SocketAddress;

use super::upstream_block::DEFAULT_PORT;

/// The first line of a file that Weir has written.
const HEAD: &str = "# Written by Weir's API. Reload the configuration after a change by hand.\n";

/// The servers of a file. The error says what is wrong, and in which line.
pub(crate) fn read_servers(content: &[u8]) -> Result<Vec<UpstreamServer>, String> {
    let mut servers = Vec::new();
    for (number, line) in content.lines().enumerate() {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let server = read_line(line).map_err(|why| format!("{why} in line {}", number + 1))?;
        servers.push(server);
    }
    Ok(servers)
}

/// The server of the only line of a text, whose addresses are known.
pub(crate) fn read_known_server(
    text: &[u8],
    addresses: Vec<SocketAddress>,
) -> Option<UpstreamServer> {
    let line = text.lines().find(|line| line.starts_with(b"server "))?;
    let known = |name: &[u8]| Ok(UpstreamServer::new(name, addresses));
    read_line_with(line, known).ok()
}

fn read_line(line: &[u8]) -> Result<UpstreamServer, String> {
    read_line_with(line, resolved_server)
}

fn read_line_with(
    line: &[u8],
    server: impl FnOnce(&[u8]) -> Result<UpstreamServer, String>,
) -> Result<UpstreamServer, String> {
    let line = line.strip_suffix(b";").ok_or("no \";\" at the end")?;
    let mut words = line.fields();
    if words.next() != Some(b"server") {
        return Err("only \"server\" is allowed".to_owned());
    }
    let address = words.next().ok_or("no address")?;
    let mut server = server(address)?;
    for word in words {
        set_parameter(&mut server, word)
            .ok_or_else(|| format!("invalid parameter \"{}\"", word.as_bstr()))?;
    }
    Ok(server)
}

/// A server with this address, and nginx's defaults for the rest. It may ask the system for a name, which blocks.
pub(crate) fn resolved_server(address: &[u8]) -> Result<UpstreamServer, String> {
    let parsed = HostPort::parse_peer(address)
        .map_err(|why| format!("{why} in upstream \"{}\"", address.as_bstr()))?;
    let found = lookup_configured(&parsed, DEFAULT_PORT);
    let mut server = UpstreamServer::new(address, found.addresses);
    server.resolve = found.later;
    Ok(server)
}

fn set_parameter(server: &mut UpstreamServer, word: &[u8]) -> Option<()> {
    let number = |text| parse::number(text).and_then(|number| u32::try_from(number).ok());
    let (name, value) = word.split_once_str("=").unwrap_or((word, b""));
    match name {
        b"weight" => server.weight = number(value).filter(|weight| *weight > 0)?,
        b"max_conns" => server.max_conns = number(value)?,
        b"max_fails" => server.max_fails = number(value)?,
        b"fail_timeout" => server.fail_timeout = base::units::parse_millis(value)?,
        b"slow_start" => server.slow_start = base::units::parse_millis(value)?,
        b"route" if (1..=MAX_SERVER_ID).contains(&value.len()) => server.route = value.into(),
        b"backup" => server.backup = true,
        b"down" => server.state = ServerState::Down,
        b"drain" => server.state = ServerState::Drain,
        _ => return None,
    }
    Some(())
}

/// The text of a file with these servers.
pub(crate) fn servers_text<'a>(servers: impl Iterator<Item = &'a UpstreamServer>) -> String {
    let mut text = String::from(HEAD);
    let millis = |time: Duration| format!("{}ms", time.as_millis());
    for server in servers {
        let first = UpstreamServer::new("", Vec::new());
        let _ = write!(text, "server {}", server.name);
        let numbers = [
            ("weight", server.weight, first.weight),
            ("max_conns", server.max_conns, first.max_conns),
            ("max_fails", server.max_fails, first.max_fails),
        ];
        // Writing to a `String` cannot fail.
        for (name, value, _) in numbers.iter().filter(|(_, value, usual)| value != usual) {
            let _ = write!(text, " {name}={value}");
        }
        let times = [
            ("fail_timeout", server.fail_timeout, first.fail_timeout),
            ("slow_start", server.slow_start, first.slow_start),
        ];
        for (name, value, _) in times.iter().filter(|(_, value, usual)| value != usual) {
            let _ = write!(text, " {name}={}", millis(*value));
        }
        if !server.route.is_empty() {
            let _ = write!(text, " route={}", server.route);
        }
        if server.backup {
            text.push_str(" backup");
        }
        text.push_str(match server.state {
            ServerState::Up => "",
            ServerState::Down => " down",
            ServerState::Drain => " drain",
        });
        text.push_str(";\n");
    }
    text
}

/// Puts a content in the place of a file: first under another name, so that a crash leaves the old one or the new one.
/// Where the folder cannot be written to, the file itself is. Blocks on the disk.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let write = |path: &Path| -> io::Result<()> {
        let mut options = std::fs::File::options();
        let mut file = options.write(true).create(true).truncate(true).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    match write(beside) {
        Ok(()) => std::fs::rename(beside, path),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && path.exists() => {
            write(path)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let text = "server 127.0.0.1:1;\nserver unix:/run/x weight=2 max_conns=3 max_fails=0 fail_timeout=1500ms \
                    slow_start=5000ms route=a backup drain;\nserver 127.0.0.1:2 down;\n";
        let servers = read_servers(text.as_bytes()).expect("it is valid");
        assert_eq!(servers_text(servers.iter()), format!("{HEAD}{text}"));
        let again = read_servers(servers_text(servers.iter()).as_bytes());
        assert_eq!(again, Ok(servers));
        assert_eq!(read_servers(b" \n# nothing\n"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, why) in [
            ("server 127.0.0.1:1", "no \";\" at the end in line 1"),
            ("\nlisten 80;", "only \"server\" is allowed in line 2"),
            ("server;", "no address in line 1"),
            (
                "server 127.0.0.1:1 weight=0;",
                "invalid parameter \"weight=0\" in line 1",
            ),
            (
                "server 127.0.0.1:1 resolve;",
                "invalid parameter \"resolve\" in line 1",
            ),
        ] {
            assert_eq!(read_servers(text.as_bytes()), Err(why.to_owned()));
        }
    }
}
