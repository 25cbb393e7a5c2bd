//! Log lines to a syslog server: `syslog:server=…,facility=…,tag=…,severity=…,nohostname`.
//!
//! The frame is RFC 3164's: `<PRI>Nov 21 07:30:00 host tag: message`. A datagram is sent without
//! waiting; when the socket's buffer is full the line is lost, as with any syslog over UDP. In a worker a thread sends
//! it, because to open a socket by its path can take as long as a disk needs.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::sync::Mutex;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::{LineBuffer, LogLevel, syslog_time};
use crate::log_sink::LogSink;

/// RFC 3164 section 4.1.3: a tag is at most 32 characters.
const MAX_TAG: usize = 32;
/// The longest datagram: a whole log line, and room for the head.
const MAX_DATAGRAM: usize = super::MAX_LINE + 320;
const DEFAULT_PORT: u16 = 514;
const LOCAL7: u8 = 23;

/// The facilities in the order of their numbers.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv",
    "ftp", "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
];

/// A syslog server and how to speak to it.
pub struct Syslog {
    server: SyslogAddress,
    facility: u8,
    severity: LogLevel,
    tag: String,
    /// `None` for `nohostname`.
    hostname: Option<String>,
    /// Chosen at the first line.
    way: OnceLock<SyslogWay>,
}

/// Who sends.
enum SyslogWay {
    /// The calling thread: in the master, which must have no second one when it forks. The socket is opened at the first
    /// line, and again after an error.
    Direct(Mutex<Option<OwnedFd>>),
    /// A writer.
    Queued(LogSink),
}

/// Whether this process has loops, which must not wait.
static HAS_LOOPS: AtomicBool = AtomicBool::new(false);

/// From now on a thread sends what goes to syslog servers that have not been sent anything yet.
pub fn queue_syslog() {
    HAS_LOOPS.store(true, Relaxed);
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SyslogAddress {
    Unix(PathBuf),
    Udp(SocketAddr),
}

impl Syslog {
    /// Reads what stands after `syslog:`. Errors are nginx's texts.
    pub fn parse(text: &[u8], default_tag: &str) -> Result<Syslog, String> {
        let text = std::str::from_utf8(text).map_err(|_| "invalid syslog parameter".to_owned())?;
        let mut words = SyslogParameters::default();
        for word in text.split(',') {
            words.take(word)?;
        }
        Ok(Syslog {
            server: words.server.ok_or("no syslog server specified")?,
            facility: words.facility.unwrap_or(LOCAL7),
            severity: words.severity.unwrap_or(LogLevel::Info),
            tag: words.tag.unwrap_or_else(|| default_tag.to_owned()),
            hostname: (!words.nohostname).then(hostname),
            way: OnceLock::new(),
        })
    }

    /// Sends one message without its newline. `level` overrides the configured severity.
    pub fn send(&self, level: Option<LogLevel>, message: &[u8]) {
        let mut datagram = Vec::with_capacity(message.len() + 64);
        self.frame(level.unwrap_or(self.severity), message, &mut datagram);
        match self.way.get_or_init(|| self.choose_way()) {
            // An error is nearer to its cause than any other line, so it does not wait for the end of the turn.
            SyslogWay::Queued(sink) if level.is_some() => sink.write_now(&datagram),
            SyslogWay::Queued(sink) => sink.write(&datagram),
            SyslogWay::Direct(socket) => self.send_here(&mut socket.lock(), &datagram),
        }
    }

    fn choose_way(&self) -> SyslogWay {
        if !HAS_LOOPS.load(Relaxed) {
            return SyslogWay::Direct(Mutex::new(None));
        }
        let server = self.server.clone();
        let name = format!("syslog:server={server}");
        SyslogWay::Queued(LogSink::datagrams(&name, move || server.open()))
    }

    fn send_here(&self, socket: &mut Option<OwnedFd>, datagram: &[u8]) {
        if socket.is_none() {
            *socket = self.server.open().ok();
        }
        let Some(open) = socket else { return };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&*open, datagram, flags) {
            Ok(_) | Err(Errno::AGAIN) => {}
            // The server went away; the next line tries again with a fresh socket.
            Err(_) => *socket = None,
        }
    }

    fn frame(&self, level: LogLevel, message: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(format!("<{}>", self.facility * 8 + level.severity()).as_bytes());
        syslog_time(out);
        if let Some(hostname) = &self.hostname {
            out.push(b' ');
            out.extend_from_slice(hostname.as_bytes());
        }
        out.push(b' ');
        out.extend_from_slice(self.tag.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(message);
        out.truncate(MAX_DATAGRAM);
    }
}

/// The parameters as they are read; each may stand once.
#[derive(Default)]
struct SyslogParameters {
    server: Option<SyslogAddress>,
    facility: Option<u8>,
    severity: Option<LogLevel>,
    tag: Option<String>,
    nohostname: bool,
}

impl SyslogParameters {
    fn take(&mut self, word: &str) -> Result<(), String> {
        if let Some(server) = word.strip_prefix("server=") {
            once(&self.server, "server")?;
            self.server = Some(SyslogAddress::parse(server)?);
        } else if let Some(name) = word.strip_prefix("facility=") {
            once(&self.facility, "facility")?;
            let index = FACILITIES.iter().position(|known| *known == name);
            let index = index.and_then(|index| u8::try_from(index).ok());
            self.facility =
                Some(index.ok_or_else(|| format!("unknown syslog facility \"{name}\""))?);
        } else if let Some(name) = word.strip_prefix("severity=") {
            once(&self.severity, "severity")?;
            let level = LogLevel::from_word(name.as_bytes());
            self.severity =
                Some(level.ok_or_else(|| format!("unknown syslog severity \"{name}\""))?);
        } else if let Some(tag) = word.strip_prefix("tag=") {
            once(&self.tag, "tag")?;
            self.tag = Some(checked_tag(tag)?.to_owned());
        } else if word == "nohostname" {
            self.nohostname = true;
        } else {
            return Err(format!("unknown syslog parameter \"{word}\""));
        }
        Ok(())
    }
}

fn once<T>(slot: &Option<T>, name: &str) -> Result<(), String> {
    match slot {
        Some(_) => Err(format!("duplicate syslog \"{name}\"")),
        None => Ok(()),
    }
}

fn checked_tag(tag: &str) -> Result<&str, String> {
    if tag.len() > MAX_TAG {
        return Err("syslog tag length exceeds 32".to_owned());
    }
    if !tag
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        return Err("syslog \"tag\" only allows alphanumeric characters and underscore".to_owned());
    }
    Ok(tag)
}

impl SyslogAddress {
    /// `unix:/path`, `host`, `host:port` or `[::1]:port`.
    fn parse(text: &str) -> Result<SyslogAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(format!(
                    "no path in the unix domain socket in syslog server \"{text}\""
                ));
            }
            return Ok(SyslogAddress::Unix(path.into()));
        }
        if text.is_empty() {
            return Err("no host in syslog server \"\"".to_owned());
        }
        let has_port = match text.rfind(']') {
            Some(end) => text[end..].contains(':'),
            None => text.contains(':'),
        };
        let full = if has_port {
            text.to_owned()
        } else {
            format!("{text}:{DEFAULT_PORT}")
        };
        // A name is resolved once, while the configuration is read, as nginx does.
        let found = full
            .to_socket_addrs()
            .ok()
            .and_then(|mut addresses| addresses.next());
        found
            .map(SyslogAddress::Udp)
            .ok_or_else(|| format!("host not found in syslog server \"{text}\""))
    }

    fn open(&self) -> io::Result<OwnedFd> {
        match self {
            SyslogAddress::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.connect(path)?;
                Ok(socket.into())
            }
            SyslogAddress::Udp(address) => {
                let any: SocketAddr = if address.is_ipv4() {
                    ([0, 0, 0, 0], 0).into()
                } else {
                    ([0u16; 8], 0).into()
                };
                let socket = UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                socket.connect(address)?;
                Ok(socket.into())
            }
        }
    }
}

impl std::fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SyslogAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            SyslogAddress::Udp(address) => write!(f, "{address}"),
        }
    }
}

/// So that the end of the process waits for its lines.
impl LineBuffer for Syslog {
    fn flush_lines(&self) {
        if let Some(SyslogWay::Queued(sink)) = self.way.get() {
            sink.flush_blocking();
        }
    }
}

/// The machine's name in lower case.
fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_rfc_3164_s() {
        let syslog = Syslog::parse(
            b"server=127.0.0.1:5140,facility=local7,tag=SEETAG,nohostname",
            "weir",
        )
        .expect("valid");
        let mut out = Vec::new();
        syslog.frame(LogLevel::Error, b"message", &mut out);
        let text = String::from_utf8(out).expect("text");
        assert!(text.starts_with("<187>"), "{text}");
        assert!(text.ends_with(" SEETAG: message"), "{text}");
        assert_eq!(text.len(), 5 + 15 + " SEETAG: message".len());
    }

    #[test]
    fn a_line_reaches_the_server() {
        let server = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let spec = format!(
            "server={},severity=warn",
            server.local_addr().expect("bound")
        );
        let syslog = Syslog::parse(spec.as_bytes(), "weir").expect("valid");
        syslog.send(None, b"hello");
        let mut buffer = [0; 200];
        let size = server.recv(&mut buffer).expect("a datagram");
        assert!(buffer[..size].starts_with(b"<188>") && buffer[..size].ends_with(b" weir: hello"));
    }

    #[test]
    fn bad_parameters_are_refused_in_nginx_s_words() {
        let error = |text: &str| {
            Syslog::parse(text.as_bytes(), "weir")
                .err()
                .expect("refused")
        };
        assert_eq!(error("tag=a"), "no syslog server specified");
        assert_eq!(
            error("server=127.0.0.1,tag=a-b"),
            "syslog \"tag\" only allows alphanumeric characters and underscore"
        );
        assert_eq!(
            error("server=127.0.0.1,facility=x"),
            "unknown syslog facility \"x\""
        );
        assert_eq!(
            error("server=127.0.0.1,server=127.0.0.1"),
            "duplicate syslog \"server\""
        );
        assert_eq!(
            error("server=127.0.0.1,foo"),
            "unknown syslog parameter \"foo\""
        );
    }
}
