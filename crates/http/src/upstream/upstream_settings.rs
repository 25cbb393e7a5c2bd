//! The directives of an exchange. Their rows are in `modules/shared/upstream_rows`, once for all protocols.

use std::any::Any;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bstr::BString;
use conf::Expression;
use conf::table::BufferSizes;
use net::upstream::{TimeoutOverrides, UpstreamTls};
use proto::KnownField;

use super::no_response::RetryReasons;
use crate::http_site::{ConfSet, HttpSite, LocationId};
use crate::request::Request;
use crate::response::OmittedFields;

/// The settings of a location. Fields have the names of the directives without their prefix.
#[derive(Clone, Debug, Default)]
pub struct UpstreamSettings {
    /// The local address of connections.
    pub bind: Option<UpstreamBind>,
    /// The time limit for connecting.
    pub connect_timeout: Duration,
    /// The time for which the server may accept nothing of the request.
    pub send_timeout: Duration,
    /// The time for which the server may send nothing.
    pub read_timeout: Duration,
    /// The failures after which another server is tried.
    pub next_upstream: RetryReasons,
    /// The maximum number of tries; 0: one per server.
    pub next_upstream_tries: i64,
    /// The time limit for starting further tries; zero: none.
    pub next_upstream_timeout: Duration,
    /// The size of the buffer for the head of the response.
    pub buffer_size: u64,
    /// Whether the response is read ahead of the client.
    pub buffering: bool,
    /// The memory for reading ahead.
    pub buffers: BufferSizes,
    /// How much of that may be busy sending to the client. It is only checked, for nginx's error messages.
    pub busy_buffers_size: Option<u64>,
    /// The maximum size of the temporary file for reading ahead; 0: no file.
    pub max_temp_file_size: Option<u64>,
    /// The number of bytes written to that file at a time.
    pub temp_file_write_size: Option<u64>,
    /// The directory of that file.
    pub temp_path: PathBuf,
    /// Whether the request's body is read before a server is connected to.
    pub request_buffering: bool,
    /// Whether the exchange continues if the client disconnects.
    pub ignore_client_abort: bool,
    /// Whether `error_page` applies to the upstream's statuses.
    pub intercept_errors: bool,
    /// Whether ranges are cut out here, whatever the upstream supports.
    pub force_ranges: bool,
    /// Whether the client's header fields are sent.
    pub pass_request_headers: bool,
    /// Whether the client's body is sent.
    pub pass_request_body: bool,
    /// The parameters of TLS to upstreams.
    pub secure: UpstreamTls,
    /// Whether TCP keep-alive probes are sent.
    pub socket_keepalive: bool,
    /// The size of the socket's receive buffer in bytes; 0: the system's choice.
    pub socket_rcvbuf: u64,
    /// The size of the socket's send buffer in bytes; 0: the system's choice.
    pub socket_sndbuf: u64,
    /// The rate of reading in bytes per second; empty: no limit.
    pub limit_rate: Option<Expression>,
    /// Fields of the response that do not control this server.
    pub ignore_headers: IgnoreHeaders,
    /// Fields of the response that are not passed on. Computed from the two below and the protocol's defaults.
    pub hide: FieldSet,
    /// `hide_header` lines.
    pub hide_header: Vec<BString>,
    /// `pass_header` lines.
    pub pass_header: Vec<BString>,
    /// Fields that are not added here either if the upstream sent none: those that `pass_header` leaves to an HTTP server. An
    /// application behind another protocol leaves them to the server before it.
    pub left_to_upstream: OmittedFields,
    /// Whether responses are stored as files.
    pub store: UpstreamStore,
    /// The permissions of these files.
    pub store_access: u32,
    /// The cache of responses.
    pub cache: crate::cache::CacheSettings,
}

/// The settings of a location, in a struct whose type only its module knows. It keeps the configuration alive, since an
/// exchange may outlast a reload.
#[derive(Clone)]
pub struct SettingsRef {
    site: Rc<HttpSite>,
    location: LocationId,
    position: usize,
    find: fn(&ConfSet, usize) -> &UpstreamSettings,
    /// Replaces them for this exchange, if a script changed timeouts.
    changed: Option<Rc<UpstreamSettings>>,
}

impl SettingsRef {
    /// The settings of the request's current location: `find` finds them in the location's struct of type `C`.
    pub fn new<C: Any>(
        request: &Request,
        find: fn(&ConfSet, usize) -> &UpstreamSettings,
    ) -> SettingsRef {
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

    /// Replaces the configured timeouts for the rest of the exchange.
    pub(super) fn override_timeouts(&mut self, timeouts: &TimeoutOverrides) {
        // The usual case. A copy of all settings is made only if a script has set something.
        if *timeouts == TimeoutOverrides::default() {
            return;
        }
        let mut settings = UpstreamSettings::clone(self);
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

impl SettingsRef {
    /// The settings for an exchange with a member of a cluster instead of the origin. `budget`: within this time it has to
    /// take the connection. How long it may take for an answer is how long the origin behind it may take; whether it is there
    /// at all is watched elsewhere. `tls`: that of the cluster.
    pub(crate) fn for_member(&self, budget: Duration, tls: Option<&UpstreamTls>) -> SettingsRef {
        /// The member gives the origin up first, and tries others.
        const LONGER: u32 = 4;
        /// Room for what the member adds to a head that has filled the buffer of its own, in bytes.
        const ADDED: u64 = 1024;
        let own = &**self;
        let settings = UpstreamSettings {
            bind: None,
            connect_timeout: budget,
            read_timeout: own.read_timeout.saturating_mul(LONGER),
            next_upstream: RetryReasons::ERROR,
            next_upstream_tries: 1,
            next_upstream_timeout: Duration::ZERO,
            buffer_size: own.buffer_size + ADDED,
            limit_rate: None,
            store: UpstreamStore::Off,
            secure: tls.unwrap_or(&own.secure).clone(),
            ..own.clone()
        };
        SettingsRef {
            changed: Some(Rc::new(settings)),
            ..self.clone()
        }
    }
}

impl Deref for SettingsRef {
    type Target = UpstreamSettings;

    fn deref(&self) -> &UpstreamSettings {
        if let Some(changed) = &self.changed {
            return changed;
        }
        (self.find)(&self.site.location(self.location).confs, self.position)
    }
}

/// The local address of connections (`…_bind`).
#[derive(Clone, Debug)]
pub struct UpstreamBind {
    /// The address, with or without port.
    pub address: Expression,
    /// The address need not belong to this machine (`IP_TRANSPARENT`).
    pub transparent: bool,
}

/// The fields of `…_ignore_headers`: bits of [`IgnoreHeaders::WORDS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IgnoreHeaders(pub u32);

impl IgnoreHeaders {
    /// The parameters of the directive; parameter `i` is bit `i`.
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
    pub fn has(self, field: KnownField) -> bool {
        let bit = match field {
            KnownField::XAccelRedirect => 0,
            KnownField::XAccelExpires => 1,
            KnownField::XAccelLimitRate => 2,
            KnownField::XAccelBuffering => 3,
            KnownField::XAccelCharset => 4,
            KnownField::Expires => 5,
            KnownField::CacheControl => 6,
            KnownField::SetCookie => 7,
            KnownField::Vary => 8,
            _ => return false,
        };
        self.0 & 1 << bit != 0
    }
}

/// A set of field names. For names that the server knows by number, a lookup is one test of a bit: it happens for each
/// field of each response.
#[derive(Clone, Debug, Default)]
pub struct FieldSet {
    known: u128,
    /// Sorted, in lower case.
    others: Vec<BString>,
}

impl FieldSet {
    /// Adds a name.
    pub fn insert(&mut self, name: &[u8]) {
        match KnownField::from_name(name) {
            KnownField::Other => {
                let name: BString = name.to_ascii_lowercase().into();
                if let Err(at) = self.others.binary_search(&name) {
                    self.others.insert(at, name);
                }
            }
            known => self.known |= known.bit(),
        }
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) {
        match KnownField::from_name(name) {
            KnownField::Other => self
                .others
                .retain(|other| !other.eq_ignore_ascii_case(name)),
            known => self.known &= !known.bit(),
        }
    }

    /// Whether the set contains a field. `known` is [`KnownField::from_name`] of `name`.
    pub fn contains(&self, known: KnownField, name: &[u8]) -> bool {
        if known != KnownField::Other {
            return self.known & known.bit() != 0;
        }
        self.others
            .iter()
            .any(|other| other.eq_ignore_ascii_case(name))
    }
}

/// `…_store`.
#[derive(Clone, Debug, Default)]
pub enum UpstreamStore {
    /// Responses are not stored.
    #[default]
    Off,
    /// They are stored where `root` or `alias` would look for them.
    On,
    /// They are stored under this path.
    Path(Expression),
}

/// Parses the address of `…_bind`: an IP address with or without a port. `None` if it is invalid.
pub fn parse_local_address(text: &[u8]) -> Option<rt::net::SocketAddress> {
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
    // Port 0: the system chooses one for each connection.
    Some(SocketAddr::new(ip, 0).into())
}
