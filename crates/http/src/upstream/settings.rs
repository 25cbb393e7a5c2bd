//! What directives say about an exchange. The rows are in `modules/shared/upstream_rows`, once for all protocols.

use std::any::Any;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bstr::BString;
use conf::Expression;
use conf::table::Buffers;
use net::upstream::{Secure, TimeoutOverrides};
use proto::Known;

use super::no_response::RetryReasons;
use crate::request::Request;
use crate::site::{ConfSet, LocationId, Site};

/// The settings of a location. Names are those of the directives without their prefix.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The local address to connect from.
    pub bind: Option<Bind>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the peer may take nothing of the request.
    pub send_timeout: Duration,
    /// How long the peer may be silent.
    pub read_timeout: Duration,
    /// When the next peer is tried.
    pub next_upstream: RetryReasons,
    /// How many peers are tried; 0 is all.
    pub next_upstream_tries: i64,
    /// For how long peers are tried; zero is without limit.
    pub next_upstream_timeout: Duration,
    /// The buffer for the head of the response.
    pub buffer_size: u64,
    /// The response is read ahead of the client.
    pub buffering: bool,
    /// How far it is read ahead in memory.
    pub buffers: Buffers,
    /// How much of that may wait for the client; only checked.
    pub busy_buffers_size: Option<u64>,
    /// How far it is read ahead into a file; 0 is not at all.
    pub max_temp_file_size: Option<u64>,
    /// How much is written to that file at a time.
    pub temp_file_write_size: Option<u64>,
    /// Where that file is.
    pub temp_path: PathBuf,
    /// The content of the request is read before the peer is connected to.
    pub request_buffering: bool,
    /// The exchange goes on when the client leaves.
    pub ignore_client_abort: bool,
    /// Statuses that have an error page get it.
    pub intercept_errors: bool,
    /// Ranges are made here, whatever the peer says.
    pub force_ranges: bool,
    /// The client's fields are sent.
    pub pass_request_headers: bool,
    /// The client's content is sent.
    pub pass_request_body: bool,
    /// TLS to peers.
    pub secure: Secure,
    /// TCP keep-alive probes.
    pub socket_keepalive: bool,
    /// The socket's receive buffer in bytes; 0 is the system's choice.
    pub socket_rcvbuf: u64,
    /// The socket's send buffer in bytes; 0 is the system's choice.
    pub socket_sndbuf: u64,
    /// Bytes per second that are read; empty is no limit.
    pub limit_rate: Option<Expression>,
    /// Fields of the response that have no effect here.
    pub ignore_headers: IgnoreHeaders,
    /// Fields that are not passed on.
    pub hide: FieldSet,
    /// `hide_header` lines.
    pub hide_header: Vec<BString>,
    /// `pass_header` lines.
    pub pass_header: Vec<BString>,
    /// Whether responses are saved as files.
    pub store: Store,
    /// The permissions of such files.
    pub store_access: u32,
    /// Where responses are cached, and how.
    pub cache: crate::cache::Settings,
}

/// The struct of a location whose type only its module knows.
#[derive(Clone)]
pub struct SettingsRef {
    site: Rc<Site>,
    location: LocationId,
    position: usize,
    find: fn(&ConfSet, usize) -> &Settings,
    /// What counts in their place.
    changed: Option<Rc<Settings>>,
}

impl SettingsRef {
    /// The settings of the request's present location that stand in its struct of type `C`, where `find` finds them.
    pub fn new<C: Any>(request: &Request, find: fn(&ConfSet, usize) -> &Settings) -> SettingsRef {
        let position = request
            .site
            .location(request.location)
            .confs
            .position_of::<C>();
        SettingsRef {
            site: Rc::clone(&request.site),
            location: request.location,
            position,
            find,
            changed: None,
        }
    }

    /// Puts other timeouts in the place of configured ones, for the rest of the exchange.
    pub(super) fn override_timeouts(&mut self, timeouts: &TimeoutOverrides) {
        if *timeouts == TimeoutOverrides::default() {
            return;
        }
        let mut settings = Settings::clone(self);
        for (time, place) in [
            (timeouts.connect, &mut settings.connect_timeout),
            (timeouts.send, &mut settings.send_timeout),
            (timeouts.read, &mut settings.read_timeout),
        ] {
            *place = time.unwrap_or(*place);
        }
        self.changed = Some(Rc::new(settings));
    }
}

impl Deref for SettingsRef {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        if let Some(changed) = &self.changed {
            return changed;
        }
        (self.find)(&self.site.location(self.location).confs, self.position)
    }
}

/// The local address of connections.
#[derive(Clone, Debug)]
pub struct Bind {
    /// The address, with or without port.
    pub address: Expression,
    /// The address need not be one of this machine.
    pub transparent: bool,
}

/// Fields of a response that have no effect: bits of [`IgnoreHeaders::WORDS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IgnoreHeaders(pub u32);

impl IgnoreHeaders {
    /// The words of the directive; word `i` is bit `i`.
    pub const WORDS: &'static [&'static str] = &[
        "X-Accel-Redirect",
        "X-Accel-Expires",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
        "Expires",
        "Cache-Control",
        "Set-Cookie",
        "Vary",
    ];

    /// Whether a field is ignored.
    pub fn has(self, field: Known) -> bool {
        let bit = match field {
            Known::XAccelRedirect => 0,
            Known::XAccelExpires => 1,
            Known::XAccelLimitRate => 2,
            Known::XAccelBuffering => 3,
            Known::XAccelCharset => 4,
            Known::Expires => 5,
            Known::CacheControl => 6,
            Known::SetCookie => 7,
            Known::Vary => 8,
            _ => return false,
        };
        self.0 & 1 << bit != 0
    }
}

/// A set of field names. Names that the server knows by number cost one test.
#[derive(Clone, Debug, Default)]
pub struct FieldSet {
    known: u128,
    /// Sorted, in lower case.
    others: Vec<BString>,
}

impl FieldSet {
    /// Adds a name.
    pub fn insert(&mut self, name: &[u8]) {
        match Known::from_name(name) {
            Known::Other => {
                let name: BString = name.to_ascii_lowercase().into();
                if let Err(at) = self.others.binary_search(&name) {
                    self.others.insert(at, name);
                }
            }
            known => self.known |= known.bit(),
        }
    }

    /// Takes a name out.
    pub fn remove(&mut self, name: &[u8]) {
        match Known::from_name(name) {
            Known::Other => self
                .others
                .retain(|other| !other.eq_ignore_ascii_case(name)),
            known => self.known &= !known.bit(),
        }
    }

    /// Whether a field is in the set. `known` is what [`Known::from_name`] says of `name`.
    pub fn contains(&self, known: Known, name: &[u8]) -> bool {
        if known != Known::Other {
            return self.known & known.bit() != 0;
        }
        self.others
            .iter()
            .any(|other| other.eq_ignore_ascii_case(name))
    }
}

/// `store`.
#[derive(Clone, Debug, Default)]
pub enum Store {
    /// Responses are not saved.
    #[default]
    Off,
    /// They are saved where `root` or `alias` would look for them.
    On,
    /// They are saved under this name.
    Path(Expression),
}

/// The address of `bind`: an IP address with or without port. `None` when it is none.
pub fn parse_local_address(text: &[u8]) -> Option<rt::net::Address> {
    use std::net::{IpAddr, SocketAddr};
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.into());
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    let ip: IpAddr = bare.parse().ok()?;
    Some(SocketAddr::new(ip, 0).into())
}
