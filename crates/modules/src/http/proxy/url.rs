//! The URL of `proxy_pass`, and what to request from the server because of it.

use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::address::{AddressHost, HostPort as ConfAddress};
use conf::{Diagnostic, DirectiveLine, Expression};
use http::Request;
use http::configure::{PresentLocation, present_location};
use http::upstream::ExchangeTarget;
use net::upstream::{UpstreamGroup, UpstreamGroups};

use super::Conf;
use crate::shared::upstream_tls_rows;

/// The value of `proxy_pass`.
#[derive(Clone)]
pub(super) enum ProxyPass {
    /// A URL without variables, parsed once.
    Constant {
        /// Its group.
        group: Arc<UpstreamGroup>,
        /// Its parts.
        address: Arc<ProxyAddress>,
        /// The URL as written, for `proxy_redirect default`.
        url: BString,
        /// The prefix of the location, which the URL's path replaces; empty if the location has
        /// none.
        location: BString,
    },
    /// A URL with variables, parsed per request.
    Variable(Expression),
}

/// The parts of a URL.
#[derive(Debug, Default)]
pub(super) struct ProxyAddress {
    /// `$proxy_host`, and the default `Host` field: without the port if it is the default one.
    pub(super) host_header: BString,
    /// `$proxy_port`; empty for unix sockets.
    pub(super) port: BString,
    /// The path and everything after it; empty if the URL has none. The difference between none and
    /// `/` decides whether the request's path is replaced.
    pub(super) uri: BString,
    /// Whether the URL has variables.
    pub(super) is_variable: bool,
    /// The host to use TLS with, for `https`.
    pub(super) tls_host: Option<BString>,
}

impl ProxyAddress {
    /// `http` or `https`.
    pub(super) fn scheme(&self) -> &'static str {
        match self.tls_host {
            None => "http",
            Some(_) => "https",
        }
    }

    /// The scheme as a URL begins with it.
    pub(super) fn scheme_prefix(&self) -> &'static str {
        match self.tls_host {
            None => "http://",
            Some(_) => "https://",
        }
    }
}

/// Where to send a request.
pub(super) struct ProxyDestination {
    pub(super) address: Arc<ProxyAddress>,
    pub(super) target: ExchangeTarget,
}

/// The schemes of URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UrlScheme {
    Http,
    Https,
}

impl UrlScheme {
    const ALL: [(&[u8], UrlScheme); 2] = [
        (b"https://", UrlScheme::Https),
        (b"http://", UrlScheme::Http),
    ];

    /// The default port.
    fn port(self) -> u16 {
        match self {
            UrlScheme::Http => 80,
            UrlScheme::Https => 443,
        }
    }
}

/// Reads `proxy_pass`.
pub(super) fn proxy_pass(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let text = line.text(0);
    if Expression::has_variables(text) {
        conf.pass = Some(ProxyPass::Variable(line.expression(0)?));
        // It may turn out to be `https`, so TLS has to be prepared.
        upstream_tls_rows::require_tls(line, PREFIX);
        return Ok(());
    }
    let Some((scheme, rest)) = split_scheme(text) else {
        let error = line.error("invalid URL prefix");
        return Err(match text.contains_str("://") {
            true => error.note("it must start with http:// or https://"),
            false => error.note(format!("the scheme is missing: proxy_pass http://{text};")),
        });
    };
    // Parsed while the configuration is read, so that a request costs nothing and a mistake is found at the start.
    let (parsed, uri) = ConfAddress::peer_and_uri(rest)
        .map_err(|why| line.error(format!("{why} in upstream \"{}\"", rest.as_bstr())))?;
    let authority = authority(rest, uri, &parsed);
    let place = line.sources().place(line.node.span).unwrap_or_default();
    let groups = line.lasting::<UpstreamGroups>().clone();
    let reference = groups
        .group_for_address(authority, scheme.port(), &place)
        .map_err(|why| line.error(why))?;
    crate::shared::upstream_block::warn_unresolved(&reference, line);
    // The part of the path to replace is only known in a location with a plain prefix. Elsewhere a
    // path in the URL would have no meaning, and nginx refuses it.
    let unnamed = line.level.context != conf::LOCATION;
    let location = match present_location(line) {
        PresentLocation::Prefix(_) if !unnamed => http::configure::present_location_name(line),
        _ => BString::default(),
    };
    let replaces = !location.is_empty();
    if !uri.is_empty() && !replaces {
        return Err(line.error(
            "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside named location, \
             or inside \"if\" statement, or inside \"limit_except\" block",
        ));
    }
    let address = Arc::new(parse_address(scheme, &parsed, authority, uri));
    conf.pass = Some(ProxyPass::Constant {
        group: reference.group,
        address,
        url: text.to_owned(),
        location,
    });
    if scheme == UrlScheme::Https {
        upstream_tls_rows::require_tls(line, PREFIX);
    }
    Ok(())
}

/// The prefix of the directives.
const PREFIX: &str = "proxy_";

/// Splits off the scheme.
fn split_scheme(text: &[u8]) -> Option<(UrlScheme, &[u8])> {
    UrlScheme::ALL.iter().find_map(|&(name, scheme)| {
        let (start, rest) = text.split_at_checked(name.len())?;
        start.eq_ignore_ascii_case(name).then_some((scheme, rest))
    })
}

/// What precedes the path: the name of a group or an address. In `unix:/path:/uri` a colon
/// separates the two.
fn authority<'a>(rest: &'a [u8], uri: &[u8], parsed: &ConfAddress) -> &'a [u8] {
    let authority = &rest[..rest.len() - uri.len()];
    match parsed.host {
        AddressHost::Unix(_) => authority.strip_suffix(b":").unwrap_or(authority),
        _ => authority,
    }
}

/// The parts of a URL.
fn parse_address(
    scheme: UrlScheme,
    parsed: &ConfAddress,
    authority: &[u8],
    uri: &[u8],
) -> ProxyAddress {
    // A request target must begin with a slash (RFC 9112, section 3.2.1).
    let uri = if uri.starts_with(b"?") {
        [b"/", uri].concat()
    } else {
        uri.to_vec()
    };
    let usual = scheme.port();
    let (host_header, port) = match (&parsed.host, parsed.port.unwrap_or(usual)) {
        // A path is not a host name; nginx sends `localhost`, too.
        (AddressHost::Unix(_), _) => (b"localhost".as_bstr(), BString::default()),
        // The default port is left out, as in nginx's `$proxy_host`.
        (_, port) if port == usual => (host_of(authority, parsed), port.to_string().into()),
        (_, port) => (authority.as_bstr(), port.to_string().into()),
    };
    let secure = match (scheme, &parsed.host) {
        (UrlScheme::Http, _) => None,
        // No host to verify, so the whole address stands in.
        (UrlScheme::Https, AddressHost::Unix(_)) => Some(authority.into()),
        (UrlScheme::Https, _) => Some(host_of(authority, parsed).to_owned()),
    };
    ProxyAddress {
        host_header: host_header.to_owned(),
        port,
        uri: uri.into(),
        is_variable: false,
        tls_host: secure,
    }
}

/// The host without the port.
fn host_of<'a>(authority: &'a [u8], parsed: &ConfAddress) -> &'a BStr {
    let end = match parsed.port {
        Some(_) => authority.rfind_byte(b':').unwrap_or(authority.len()),
        None => authority.len(),
    };
    authority[..end].as_bstr()
}

/// Where to send a request. `None`: the evaluated URL is invalid, which has been logged.
pub(super) fn destination(request: &mut Request, conf: &Conf) -> Option<ProxyDestination> {
    let expression = match conf.pass.as_ref()? {
        ProxyPass::Constant { group, address, .. } => {
            return Some(ProxyDestination {
                address: Arc::clone(address),
                target: ExchangeTarget::Group(Arc::clone(group)),
            });
        }
        ProxyPass::Variable(expression) => expression,
    };
    let url = request.value(expression);
    let Some((scheme, rest)) = split_scheme(&url).filter(|(_, rest)| !rest.is_empty()) else {
        request.error(format_args!("invalid URL prefix in \"{url}\""));
        return None;
    };
    let (parsed, uri) = match ConfAddress::peer_and_uri(rest) {
        Ok(parsed) => parsed,
        Err(why) => {
            request.error(format_args!("{why} in upstream \"{}\"", rest.as_bstr()));
            return None;
        }
    };
    let authority = authority(rest, uri, &parsed);
    let (host, port) = match parsed.host {
        AddressHost::Unix(_) => (authority.as_bstr(), None),
        _ => (
            host_of(authority, &parsed),
            Some(parsed.port.unwrap_or(scheme.port())),
        ),
    };
    let target = ExchangeTarget::Host {
        host: host.to_owned(),
        port,
        explicit_port: parsed.port.is_some(),
    };
    let address = ProxyAddress {
        is_variable: true,
        ..parse_address(scheme, &parsed, authority, uri)
    };
    Some(ProxyDestination {
        address: Arc::new(address),
        target,
    })
}

/// Appends the path and arguments to request. The rules are nginx's.
///
/// - A URL with variables and a path: exactly that path.
/// - A URL without a path: the request's, as it was sent unless rewritten, since decoding and
///   encoding could change its spelling.
/// - Otherwise the URL's path in place of the location's prefix.
pub(super) fn write_target(
    request: &Request,
    conf: &Conf,
    address: &ProxyAddress,
    out: &mut Vec<u8>,
) {
    if address.is_variable && !address.uri.is_empty() {
        let start = out.len();
        out.extend_from_slice(&address.uri);
        return proto::uri::make_target(out, start);
    }
    if address.uri.is_empty() && request.uri.original {
        return out.extend_from_slice(request.head.wire.target());
    }
    let path = &request.uri.path;
    let mut replaced = 0;
    // After a rewrite with `break`, the location's prefix is no longer the beginning of the path,
    // so nothing is replaced.
    if !request.flow.rewritten {
        out.extend_from_slice(&address.uri);
        if let (Some(ProxyPass::Constant { location, .. }), false) =
            (&conf.pass, address.uri.is_empty())
        {
            replaced = location.len().min(path.len());
        }
    }
    request.write_target(replaced, out);
}
