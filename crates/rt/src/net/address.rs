//! The address of a socket: IPv4, IPv6 or unix.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::net::{SocketAddrAny, SocketAddrUnix};

/// Where a socket is bound or connected to. Printed as nginx prints it: `127.0.0.1:80`, `[::1]:80`,
/// `unix:/run/x.sock`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SocketAddress {
    /// IPv4 or IPv6.
    Inet(SocketAddr),
    /// A unix socket.
    Unix(UnixPath),
}

/// The name of a unix socket: a path; empty for a socket without name, as clients have; in Linux's
/// abstract namespace it begins with a zero byte.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct UnixPath(Box<[u8]>);

impl UnixPath {
    /// A socket at a path.
    pub fn new(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().into())
    }

    /// The path, if the socket has one.
    pub fn path(&self) -> Option<&Path> {
        match self.0.first() {
            None | Some(0) => None,
            Some(_) => Some(Path::new(OsStr::from_bytes(&self.0))),
        }
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl SocketAddress {
    /// A unix socket in Linux's abstract namespace.
    pub fn abstract_name(name: &str) -> Self {
        Self::Unix(UnixPath([&[0], name.as_bytes()].concat().into()))
    }

    /// The IP address, if it is one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Inet(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }

    /// The port, 0 for a unix socket.
    pub fn port(&self) -> u16 {
        match self {
            Self::Inet(address) => address.port(),
            Self::Unix(_) => 0,
        }
    }

    /// Whether it is a unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    pub(crate) fn from_any(any: Option<SocketAddrAny>) -> Self {
        let Some(any) = any else {
            return Self::Unix(UnixPath::default());
        };
        if let Ok(inet) = SocketAddr::try_from(any.clone()) {
            return Self::Inet(inet);
        }
        let Ok(unix) = SocketAddrUnix::try_from(any) else {
            return Self::Unix(UnixPath::default());
        };
        #[cfg(feature = "simulation")]
        if let Some(address) = unix
            .abstract_name()
            .and_then(crate::simulation::network::decoded_name)
        {
            return Self::Inet(address);
        }
        if let Some(name) = unix.abstract_name() {
            return Self::Unix(UnixPath([&[0], name].concat().into()));
        }
        Self::Unix(UnixPath(unix.path_bytes().unwrap_or_default().into()))
    }

    pub(crate) fn family(&self) -> rustix::net::AddressFamily {
        use rustix::net::AddressFamily;
        match self {
            Self::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
            Self::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
            Self::Unix(_) => AddressFamily::UNIX,
        }
    }

    pub(crate) fn to_any(&self) -> io::Result<SocketAddrAny> {
        match self {
            Self::Inet(address) => Ok((*address).into()),
            Self::Unix(UnixPath(name)) => Ok(match name.split_first() {
                None => SocketAddrUnix::new_unnamed(),
                Some((0, rest)) => SocketAddrUnix::new_abstract_name(rest)?,
                Some(_) => SocketAddrUnix::new(&**name)?,
            }
            .into()),
        }
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Inet(address)
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Unix(UnixPath(name)) => match name.split_first() {
                Some((0, rest)) => write!(f, "unix:@{}", String::from_utf8_lossy(rest)),
                _ => write!(f, "unix:{}", String::from_utf8_lossy(name)),
            },
        }
    }
}
