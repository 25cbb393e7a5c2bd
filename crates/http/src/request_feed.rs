//! Requests for those who watch a running server (`weir tail`, `weir top`): a record of each request that has ended, in
//! the server's ring ([`host::request_ring`]).
//!
//! A record is a list of names and values, so that a reader and a server need not be of the same version:
//!
//! ```text
//! name length u8 | name | value length u16 LE | value      again and again
//! ```
//!
//! The names are those of variables, with [`VARIABLES`] first, then the fields of the request (`http_…`) and those of the
//! response (`sent_http_…`). Credentials are blanked here ([`crate::credentials`]): no reader can show them.

use std::cell::RefCell;

use host::request_ring::SLOT_BYTES;

use crate::credentials;
use crate::request::Request;

/// The variables of a record. A variable without a value is left out.
pub const VARIABLES: [&str; 36] = [
    "msec",
    "status",
    "request_time",
    "request_method",
    "request_uri",
    "host",
    "scheme",
    "remote_addr",
    "remote_port",
    "remote_user",
    "server_name",
    "server_port",
    "server_protocol",
    "connection",
    "connection_requests",
    "bytes_sent",
    "body_bytes_sent",
    "request_length",
    "uri",
    "args",
    "upstream_addr",
    "upstream_status",
    "upstream_connect_time",
    "upstream_header_time",
    "upstream_response_time",
    "upstream_response_length",
    "upstream_bytes_received",
    "upstream_bytes_sent",
    "upstream_cache_status",
    "upstream_cache_reason",
    "ssl_protocol",
    "ssl_cipher",
    "ssl_server_name",
    "ssl_session_reused",
    "weir_ledger",
    LOCATION,
];

/// The location in which the request ended, as its block is written. No variable of the configuration has this.
pub const LOCATION: &str = "weir_location";

/// The longest value of a field.
const MAX_FIELD: usize = 400;
/// The longest other value.
const MAX_VALUE: usize = 1000;

rt::local! {
    static RECORD: RefCell<FeedRecord> = const {
        RefCell::new(FeedRecord { bytes: Vec::new(), value: Vec::new(), shown: Vec::new() })
    };
}

/// A record that is being made, with memory for a value.
struct FeedRecord {
    bytes: Vec<u8>,
    value: Vec<u8>,
    shown: Vec<u8>,
}

/// Writes a record of a request that has ended, if there is a reader. One word is looked at otherwise.
#[inline]
pub(crate) fn feed_request(request: &mut Request) {
    if host::request_ring::is_read() {
        write_request(request);
    }
}

#[cold]
fn write_request(request: &mut Request) {
    RECORD.with_borrow_mut(|record| {
        record.bytes.clear();
        for name in VARIABLES {
            record.add_variable(name, request);
        }
        for (name, value) in request.head.wire.fields.iter() {
            record.add_field("http_", name, value);
        }
        for (name, value) in request.out.fields.iter() {
            record.add_field("sent_http_", name, value);
        }
        host::request_ring::write_record(&record.bytes);
    });
}

impl FeedRecord {
    fn add_variable(&mut self, name: &str, request: &mut Request) {
        self.value.clear();
        if name == LOCATION {
            let location = request.site.location(request.location);
            self.value.extend_from_slice(&location.name);
        } else {
            let definition = request.site.variables.find(name);
            let has_value = definition.is_some_and(|it| it.value(request, &mut self.value));
            if !has_value {
                return;
            }
        }
        self.shown.clear();
        match name {
            "request_uri" => credentials::write_url(&self.value, &mut self.shown),
            "args" => credentials::write_arguments(&self.value, &mut self.shown),
            _ => self.shown.extend_from_slice(&self.value),
        }
        self.add(&["", name], MAX_VALUE);
    }

    fn add_field(&mut self, prefix: &str, name: &[u8], value: &[u8]) {
        let Ok(name) = std::str::from_utf8(name) else {
            return;
        };
        let name = name.to_ascii_lowercase().replace('-', "_");
        self.shown.clear();
        // Names with underscores are those of variables; the list knows both.
        match credentials::is_secret_field(name.replace('_', "-").as_bytes()) {
            true => self.shown.extend_from_slice(b"***"),
            false => credentials::write_url(value, &mut self.shown),
        }
        self.add(&[prefix, &name], MAX_FIELD);
    }

    /// Adds what is shown; what does not fit is left out.
    fn add(&mut self, name: &[&str; 2], longest: usize) {
        let value = &self.shown[..self.shown.len().min(longest)];
        let name_length = name[0].len() + name[1].len();
        let (Ok(short), Ok(long)) = (u8::try_from(name_length), u16::try_from(value.len())) else {
            return;
        };
        if value.is_empty() || self.bytes.len() + 3 + name_length + value.len() > SLOT_BYTES {
            return;
        }
        self.bytes.push(short);
        self.bytes.extend_from_slice(name[0].as_bytes());
        self.bytes.extend_from_slice(name[1].as_bytes());
        self.bytes.extend_from_slice(&long.to_le_bytes());
        self.bytes.extend_from_slice(value);
    }
}

/// The names and values of a record, for a reader. Ends where a record makes no sense.
pub fn read_values(record: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let mut rest = record;
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first()?;
        let (name, after) = after.split_at_checked(usize::from(*length))?;
        let (length, after) = after.split_first_chunk()?;
        let (value, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        rest = after;
        Some((std::str::from_utf8(name).ok()?, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_read_again() {
        let mut record = FeedRecord {
            bytes: Vec::new(),
            value: Vec::new(),
            shown: b"200".to_vec(),
        };
        record.add(&["", "status"], 10);
        record.add_field("http_", b"User-Agent", b"curl");
        record.add_field("http_", b"Cookie", b"id=1");
        record.shown = vec![b'x'; SLOT_BYTES];
        record.add(&["", "long"], SLOT_BYTES);
        let values: Vec<_> = read_values(&record.bytes).collect();
        let expected: [(&str, &[u8]); 3] = [
            ("status", b"200"),
            ("http_user_agent", b"curl"),
            ("http_cookie", b"***"),
        ];
        assert_eq!(values, expected);
        for end in 0..record.bytes.len() {
            assert!(read_values(&record.bytes[..end]).count() < 3);
        }
    }
}
