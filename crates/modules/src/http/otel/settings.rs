//! `otel_exporter { … }`: where spans go, and how many travel together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::{AddressHost, Diagnostic, DirectiveLine, DirectiveNode, HostPort, parse};
use net::tls::{ClientOptions, ClientSettings, TrustStore};
use proto::Fields;
use rt::net::SocketAddress;

use super::wire::BatchHead;

/// The most certificates between the collector's and a trusted one.
const MAX_DEPTH: usize = 10;

/// The path of OTLP/HTTP if the endpoint names none.
const TRACES_PATH: &str = "/v1/traces";

/// How spans travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtlpProtocol {
    /// OTLP/gRPC.
    Grpc,
    /// OTLP/HTTP with binary Protocol Buffers.
    Http,
}

/// The host of the collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CollectorHost {
    /// A name, which may get other addresses.
    Name { name: BString, port: u16 },
    /// An address.
    Address,
}

/// The exporter of a configuration.
#[derive(Clone)]
pub(super) struct ExporterSettings {
    /// As logs show it.
    pub(super) endpoint: String,
    pub(super) protocol: OtlpProtocol,
    pub(super) host: CollectorHost,
    /// What is known of its addresses.
    pub(super) addresses: Vec<SocketAddress>,
    /// `:authority`, or `Host`.
    pub(super) authority: String,
    /// `None`: a plain connection.
    pub(super) tls: Option<ClientSettings>,
    /// The host that the certificate must be for.
    pub(super) tls_name: String,
    /// The certificates that are trusted, to tell one configuration from another.
    trusted: Vec<u8>,
    /// The fields of a gRPC call.
    pub(super) fields: Fields,
    /// The head of an OTLP/HTTP request, up to its length.
    pub(super) request_head: Vec<u8>,
    pub(super) interval: Duration,
    pub(super) batch_size: usize,
    pub(super) batch_count: usize,
    /// What stands before the spans of a batch.
    pub(super) head: BatchHead,
}

impl fmt::Debug for ExporterSettings {
    // The headers have credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExporterSettings")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl ExporterSettings {
    /// Whether an exporter with these settings serves for those, too.
    pub(super) fn is_same(&self, other: &ExporterSettings) -> bool {
        self.endpoint == other.endpoint
            && self.protocol == other.protocol
            && self.addresses == other.addresses
            && self.tls.is_some() == other.tls.is_some()
            && self.trusted == other.trusted
            && self.request_head == other.request_head
            && self.interval == other.interval
            && self.batch_size == other.batch_size
            && self.batch_count == other.batch_count
            && self.head == other.head
    }
}

/// What the lines say, in any order.
#[derive(Clone, Debug)]
pub(super) struct ExporterDraft {
    pub(super) endpoint: BString,
    pub(super) protocol: Option<OtlpProtocol>,
    /// Names in lower case, and values.
    pub(super) headers: Vec<(String, String)>,
    /// The certificates of `trusted_certificate`, and the file.
    pub(super) trusted: Option<(Vec<u8>, String)>,
    pub(super) interval: Duration,
    pub(super) batch_size: usize,
    pub(super) batch_count: usize,
}

impl Default for ExporterDraft {
    fn default() -> ExporterDraft {
        ExporterDraft {
            endpoint: BString::default(),
            protocol: None,
            headers: Vec::new(),
            trusted: None,
            interval: Duration::from_secs(5),
            batch_size: 512,
            batch_count: 4,
        }
    }
}

/// Upper bounds: memory is reserved by them.
pub(super) const MAX_BATCH_SIZE: i64 = 65_536;
pub(super) const MAX_BATCH_COUNT: i64 = 1024;

impl ExporterDraft {
    /// Reads `otel_exporter { … }`.
    pub(super) fn read(line: &mut DirectiveLine) -> Result<ExporterDraft, Diagnostic> {
        let mut draft = ExporterDraft::default();
        for entry in line.entries() {
            draft.read_row(line, &entry)?;
        }
        if draft.endpoint.is_empty() {
            return Err(line.error("\"otel_exporter\" requires \"endpoint\""));
        }
        Ok(draft)
    }

    /// Reads one line of the block.
    fn read_row(
        &mut self,
        line: &mut DirectiveLine,
        entry: &DirectiveNode,
    ) -> Result<(), Diagnostic> {
        let name = entry.name.text.as_bstr();
        let wanted = match name.as_bytes() {
            b"endpoint"
            | b"interval"
            | b"batch_size"
            | b"batch_count"
            | b"protocol"
            | b"trusted_certificate" => 1,
            b"header" => 2,
            _ => {
                let text = format!("unknown directive \"{name}\" in \"otel_exporter\"");
                return Err(entry.error(text));
            }
        };
        if entry.args.len() != wanted {
            return Err(entry.error(format!(
                "invalid number of arguments in \"{name}\" directive of \"otel_exporter\""
            )));
        }
        let value = entry.args[0].text.as_bstr();
        let invalid = |why: &str| {
            let text = format!("\"{name}\" directive of \"otel_exporter\" {why}");
            entry.error_at(&entry.args[0], text)
        };
        let number = |most: i64| {
            parse::number(value)
                .filter(|number| (1..=most).contains(number))
                .and_then(|number| usize::try_from(number).ok())
                .ok_or_else(|| invalid("invalid value").note(format!("a number from 1 to {most}")))
        };
        match name.as_bytes() {
            b"endpoint" if !self.endpoint.is_empty() => return Err(invalid("is duplicate")),
            b"endpoint" => self.endpoint = value.into(),
            b"interval" => {
                let interval = parse::millis(value).filter(|time| !time.is_zero());
                self.interval = interval.ok_or_else(|| invalid("invalid value"))?;
            }
            b"batch_size" => self.batch_size = number(MAX_BATCH_SIZE)?,
            b"batch_count" => self.batch_count = number(MAX_BATCH_COUNT)?,
            b"protocol" => {
                self.protocol = Some(match value.as_bytes() {
                    b"grpc" => OtlpProtocol::Grpc,
                    b"http" | b"http/protobuf" => OtlpProtocol::Http,
                    _ => {
                        return Err(invalid("invalid value")
                            .note("it must be \"grpc\" or \"http/protobuf\""));
                    }
                });
            }
            b"header" => {
                let header = header(value, &entry.args[1].text);
                self.headers.push(header.map_err(invalid)?);
            }
            _ => {
                let path = line.path(conf::PathUse::Opened, &entry.args[0]);
                self.trusted =
                    Some(read_certificates(line, &path).map_err(|why| entry.error(why))?);
            }
        }
        Ok(())
    }

    /// The settings, for a resource with these attributes.
    pub(super) fn build(
        &self,
        head: BatchHead,
        files: &mut dyn conf::FileSource,
    ) -> Result<(ExporterSettings, Option<String>), String> {
        let endpoint = Endpoint::parse(&self.endpoint)?;
        let protocol = match (self.protocol, endpoint.path.as_str()) {
            (Some(OtlpProtocol::Grpc), path) if !path.is_empty() => {
                return Err(format!(
                    "an endpoint with a path is one of HTTP: \"protocol grpc\" has no \"{path}\""
                ));
            }
            (Some(protocol), _) => protocol,
            (None, "") => OtlpProtocol::Grpc,
            (None, _) => OtlpProtocol::Http,
        };
        let port = match protocol {
            OtlpProtocol::Grpc => 4317,
            OtlpProtocol::Http => 4318,
        };
        let found = net::upstream::lookup_configured(&endpoint.address, port);
        let (host, tls_name) = match &endpoint.address.host {
            AddressHost::Name(name) => {
                let host = CollectorHost::Name {
                    name: name.clone(),
                    port: endpoint.address.port.unwrap_or(port),
                };
                (host, name.to_string())
            }
            _ => {
                let ip = endpoint.address.ip().map(|ip| ip.to_string());
                (
                    CollectorHost::Address,
                    ip.unwrap_or_else(|| "localhost".to_owned()),
                )
            }
        };
        let tls = match endpoint.is_secure {
            true => Some(self.tls(protocol, files)?),
            false => None,
        };
        let settings = ExporterSettings {
            endpoint: self.endpoint.to_string(),
            protocol,
            host,
            addresses: found.addresses,
            tls,
            tls_name,
            trusted: self.trusted.clone().unwrap_or_default().0,
            fields: self.grpc_fields(),
            request_head: self.request_head(&endpoint),
            authority: endpoint.authority,
            interval: self.interval,
            batch_size: self.batch_size,
            batch_count: self.batch_count,
            head,
        };
        Ok((settings, found.warning))
    }

    /// The settings of connections that are encrypted: always verified.
    fn tls(
        &self,
        protocol: OtlpProtocol,
        files: &mut dyn conf::FileSource,
    ) -> Result<ClientSettings, String> {
        let (text, file) = match &self.trusted {
            Some(trusted) => trusted.clone(),
            None => {
                let path = net::tls::system_trust().ok_or(
                    "no CA certificates are installed, so the collector cannot be verified: install \
                     ca-certificates, or name a file with \"trusted_certificate\"",
                )?;
                let text = files
                    .read(path)
                    .map_err(|error| open_failed(path, &error))?;
                (text, path.display().to_string())
            }
        };
        let mut trust = TrustStore::without_anchors(MAX_DEPTH);
        trust
            .add_certificates(&text, &file)
            .map_err(|problem| problem.message)?;
        let alpn = match protocol {
            OtlpProtocol::Grpc => b"h2".to_vec(),
            OtlpProtocol::Http => b"http/1.1".to_vec(),
        };
        let options = ClientOptions {
            server_name: true,
            trust: Some(Arc::new(trust)),
            alpn: vec![alpn],
            session_reuse: true,
            ..ClientOptions::default()
        };
        options.build().map_err(|problem| problem.message)
    }

    fn grpc_fields(&self) -> Fields {
        let mut fields = Fields::new();
        fields.push(b"te", b"trailers");
        fields.push(b"content-type", b"application/grpc");
        fields.push(b"user-agent", user_agent().as_bytes());
        for (name, value) in &self.headers {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields
    }

    fn request_head(&self, endpoint: &Endpoint) -> Vec<u8> {
        let path = match endpoint.path.as_str() {
            "" => TRACES_PATH,
            path => path,
        };
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {}\r\nContent-Type: application/x-protobuf\r\n",
            endpoint.authority,
            user_agent()
        );
        for (name, value) in &self.headers {
            head.extend([name.as_str(), ": ", value, "\r\n"]);
        }
        head.into_bytes()
    }
}

fn user_agent() -> String {
    format!("weir/{}", env!("CARGO_PKG_VERSION"))
}

/// A header of `header`, as gRPC takes it: a name in lower case, and printable ASCII.
fn header(name: &[u8], value: &[u8]) -> Result<(String, String), &'static str> {
    let name = name.to_ascii_lowercase();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    // Binary values, which are encoded, and the names that are the protocol's.
    let is_reserved = name.starts_with(b"grpc-")
        || name.ends_with(b"-bin")
        || matches!(
            &name[..],
            b"te"
                | b"content-type"
                | b"content-length"
                | b"host"
                | b"connection"
                | b"transfer-encoding"
        );
    if name.is_empty() || !name.iter().all(is_name) || is_reserved {
        return Err("has invalid header name");
    }
    if !value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return Err("has invalid header value");
    }
    let text = |bytes: &[u8]| bytes.to_str_lossy().into_owned();
    Ok((text(&name), text(value)))
}

/// Reads a file of certificates; gives its name, too.
pub(super) fn read_certificates(
    line: &mut DirectiveLine,
    path: &std::path::Path,
) -> Result<(Vec<u8>, String), String> {
    let text = line
        .files()
        .read(path)
        .map_err(|error| open_failed(path, &error))?;
    Ok((text, path.display().to_string()))
}

fn open_failed(path: &std::path::Path, error: &std::io::Error) -> String {
    let why = base::text::errno_text(error);
    format!("open() \"{}\" failed {why}", path.display())
}

/// An endpoint: `[http://|https://]host[:port][/path]`, or `unix:path`.
struct Endpoint {
    is_secure: bool,
    address: HostPort,
    /// Empty: none was written.
    path: String,
    authority: String,
}

impl Endpoint {
    fn parse(text: &[u8]) -> Result<Endpoint, String> {
        let (is_secure, rest) = match (
            without_scheme(text, "https://"),
            without_scheme(text, "http://"),
        ) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => (false, text),
        };
        let is_unix = rest.starts_with(b"unix:");
        let slash = rest.iter().position(|byte| *byte == b'/');
        let (host, path) = match slash {
            Some(slash) if !is_unix => rest.split_at(slash),
            _ => (rest, &b""[..]),
        };
        if path.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
            return Err("invalid path in \"endpoint\"".to_owned());
        }
        let shown = text.as_bstr();
        let address = HostPort::parse_peer(host)
            .map_err(|why| format!("{why} in \"endpoint\" \"{shown}\""))?;
        let path = match path {
            b"/" => String::new(),
            path => path.to_str_lossy().into_owned(),
        };
        let authority = match is_unix {
            true => "localhost".to_owned(),
            false => host.to_str_lossy().into_owned(),
        };
        Ok(Endpoint {
            is_secure,
            address,
            path,
            authority,
        })
    }
}

fn without_scheme<'a>(text: &'a [u8], scheme: &str) -> Option<&'a [u8]> {
    let (head, rest) = text.split_at_checked(scheme.len())?;
    head.eq_ignore_ascii_case(scheme.as_bytes()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_those_of_both_protocols() {
        for (text, secure, authority, path) in [
            ("localhost:4317", false, "localhost:4317", ""),
            ("HTTPS://collector:443", true, "collector:443", ""),
            (
                "http://[::1]:4318/v1/traces",
                false,
                "[::1]:4318",
                "/v1/traces",
            ),
            ("http://127.0.0.1/", false, "127.0.0.1", ""),
            ("unix:/run/otel.sock", false, "localhost", ""),
        ] {
            let endpoint = Endpoint::parse(text.as_bytes()).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(
                (endpoint.is_secure, &*endpoint.authority, &*endpoint.path),
                (secure, authority, path),
                "{text}"
            );
        }
        for text in ["", "http://", "host:x", "host:99999", "http://h/a b"] {
            assert!(Endpoint::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn headers_are_those_that_grpc_takes() {
        assert_eq!(
            header(b"X-Token", b"a b"),
            Ok(("x-token".to_owned(), "a b".to_owned()))
        );
        for (name, value) in [
            ("", "a"),
            ("a b", "a"),
            ("grpc-timeout", "1"),
            ("te", "x"),
            ("x-bin", "a"),
            ("a", "\u{1}"),
            ("a", "ü"),
        ] {
            assert!(header(name.as_bytes(), value.as_bytes()).is_err(), "{name}");
        }
    }
}
