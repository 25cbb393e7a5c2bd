//! The URL of `proxy_pass`: what it says, and what is asked for at the server because of it.

use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use conf::address::{Address as ConfAddress, Host};
use conf::{Diagnostic, Expression, Line};
use http::Request;
use http::configure::{Present, present_location};
use http::upstream::Target;
use net::upstream::{Group, Groups};

use super::Conf;
use crate::shared::tls_rows;

/// What `proxy_pass` says.
#[derive(Clone)]
pub(super) enum Pass {
    /// A URL without variables.
    Constant {
        /// Its group.
        group: Arc<Group>,
        /// Its parts.
        address: Arc<Address>,
        /// The text.
        url: BString,
        /// The name of the location.
        location: BString,
    },
    /// One with.
    Variable(Expression),
}

/// The parts of a URL.
#[derive(Debug, Default)]
pub(super) struct Address {
    /// What `$proxy_host` shows, and the `Host` field says.
    pub(super) host_header: BString,
    /// What `$proxy_port` shows; empty for unix sockets.
    pub(super) port: BString,
    /// The path and what follows it; empty when the URL has none.
    pub(super) uri: BString,
    /// The URL was made of variables.
    pub(super) variable: bool,
    /// The host that TLS is spoken to, for `https`.
    pub(super) secure: Option<BString>,
}

impl Address {
    /// `http` or `https`.
    pub(super) fn scheme(&self) -> &'static str {
        match self.secure {
            None => "http",
            Some(_) => "https",
        }
    }

    /// The same as a URL begins.
    pub(super) fn scheme_prefix(&self) -> &'static str {
        match self.secure {
            None => "http://",
            Some(_) => "https://",
        }
    }
}

/// Where a request goes.
pub(super) struct Destination {
    pub(super) address: Arc<Address>,
    pub(super) target: Target,
}

/// What a URL may begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    const ALL: [(&[u8], Scheme); 2] = [(b"https://", Scheme::Https), (b"http://", Scheme::Http)];

    fn port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// The setter of `proxy_pass`.
pub(super) fn set(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let text = line.text(0);
    if Expression::has_variables(text) {
        conf.pass = Some(Pass::Variable(line.expression(0)?));
        // Whether it is `https` shows with each request.
        tls_rows::want(line, PREFIX);
        return Ok(());
    }
    let Some((scheme, rest)) = split_scheme(text) else {
        let error = line.error("invalid URL prefix");
        return Err(match text.contains_str("://") {
            true => error.note("it must start with http:// or https://"),
            false => error.note(format!("the scheme is missing: proxy_pass http://{text};")),
        });
    };
    let (parsed, uri) = ConfAddress::peer_and_uri(rest)
        .map_err(|why| line.error(format!("{why} in upstream \"{}\"", rest.as_bstr())))?;
    let authority = authority(rest, uri, &parsed);
    let place = line.sources().place(line.node.span).unwrap_or_default();
    let groups = line.shared::<Groups>().clone();
    let reference = groups
        .refer(authority, scheme.port(), &place)
        .map_err(|why| line.error(why))?;
    crate::shared::upstream::warn_of(&reference, line);
    let unnamed = line.level.context != conf::LOCATION;
    let location = match present_location(line) {
        Present::Prefix(_) if !unnamed => http::configure::present_location_name(line),
        _ => BString::default(),
    };
    let replaces = !location.is_empty();
    if !uri.is_empty() && !replaces {
        return Err(line.error(
            "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside named location, \
             or inside \"if\" statement, or inside \"limit_except\" block",
        ));
    }
    let address = Arc::new(parts(scheme, &parsed, authority, uri));
    conf.pass = Some(Pass::Constant {
        group: reference.group,
        address,
        url: text.to_owned(),
        location,
    });
    if scheme == Scheme::Https {
        tls_rows::want(line, PREFIX);
    }
    Ok(())
}

/// The prefix of the directives.
const PREFIX: &str = "proxy_";

fn split_scheme(text: &[u8]) -> Option<(Scheme, &[u8])> {
    Scheme::ALL.iter().find_map(|&(name, scheme)| {
        let (start, rest) = text.split_at_checked(name.len())?;
        start.eq_ignore_ascii_case(name).then_some((scheme, rest))
    })
}

/// What stands before the path, as it names a group.
fn authority<'a>(rest: &'a [u8], uri: &[u8], parsed: &ConfAddress) -> &'a [u8] {
    let authority = &rest[..rest.len() - uri.len()];
    match parsed.host {
        Host::Unix(_) => authority.strip_suffix(b":").unwrap_or(authority),
        _ => authority,
    }
}

fn parts(scheme: Scheme, parsed: &ConfAddress, authority: &[u8], uri: &[u8]) -> Address {
    let uri = if uri.starts_with(b"?") {
        [b"/", uri].concat()
    } else {
        uri.to_vec()
    };
    let usual = scheme.port();
    let (host_header, port) = match (&parsed.host, parsed.port.unwrap_or(usual)) {
        (Host::Unix(_), _) => (b"localhost".as_bstr(), BString::default()),
        (_, port) if port == usual => (host_of(authority, parsed), port.to_string().into()),
        (_, port) => (authority.as_bstr(), port.to_string().into()),
    };
    let secure = match (scheme, &parsed.host) {
        (Scheme::Http, _) => None,
        (Scheme::Https, Host::Unix(_)) => Some(authority.into()),
        (Scheme::Https, _) => Some(host_of(authority, parsed).to_owned()),
    };
    Address {
        host_header: host_header.to_owned(),
        port,
        uri: uri.into(),
        variable: false,
        secure,
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

/// Where a request goes. `None`: the URL makes no sense, which was logged.
pub(super) fn destination(request: &mut Request, conf: &Conf) -> Option<Destination> {
    let expression = match conf.pass.as_ref()? {
        Pass::Constant { group, address, .. } => {
            return Some(Destination {
                address: Arc::clone(address),
                target: Target::Group(Arc::clone(group)),
            });
        }
        Pass::Variable(expression) => expression,
    };
    let url = request.value(expression);
    let Some((scheme, rest)) = split_scheme(&url) else {
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
        Host::Unix(_) => (authority.as_bstr(), None),
        _ => (
            host_of(authority, &parsed),
            Some(parsed.port.unwrap_or(scheme.port())),
        ),
    };
    let target = Target::Host {
        host: host.to_owned(),
        port,
        explicit_port: parsed.port.is_some(),
    };
    let address = Address {
        variable: true,
        ..parts(scheme, &parsed, authority, uri)
    };
    Some(Destination {
        address: Arc::new(address),
        target,
    })
}

/// Appends the path and arguments to ask for.
pub(super) fn write_target(request: &Request, conf: &Conf, address: &Address, out: &mut Vec<u8>) {
    if address.variable && !address.uri.is_empty() {
        let start = out.len();
        out.extend_from_slice(&address.uri);
        return proto::uri::make_target(out, start);
    }
    if address.uri.is_empty() && request.uri.original {
        return out.extend_from_slice(request.head.wire.target());
    }
    let path = &request.uri.path;
    let mut replaced = 0;
    // After a rewrite has changed the path, what the location matched is not its beginning any more.
    if !request.flow.rewritten {
        out.extend_from_slice(&address.uri);
        if let (Some(Pass::Constant { location, .. }), false) = (&conf.pass, address.uri.is_empty())
        {
            replaced = location.len().min(path.len());
        }
    }
    request.write_target(replaced, out);
}
