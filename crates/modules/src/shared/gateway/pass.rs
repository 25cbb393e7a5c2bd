//! The address of `fastcgi_pass`, `scgi_pass`, `uwsgi_pass`, `memcached_pass` and `grpc_pass`.

use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::address::{AddressHost, HostPort};
use conf::{Diagnostic, DirectiveLine, Expression};
use http::Request;
use http::upstream::ExchangeTarget;
use net::upstream::{GroupOrigin, UpstreamGroup, UpstreamGroups};

use crate::shared::upstream_tls_rows;

/// Where a location's requests go.
#[derive(Clone, Debug)]
pub(crate) enum GatewayPass {
    /// A group known from the configuration: an `upstream` block, or the addresses of one host.
    Group(Arc<UpstreamGroup>),
    /// Whatever the value names when the request comes.
    Variable(Expression),
}

/// The two schemes of a protocol, with which its addresses can begin.
pub(crate) struct GatewaySchemes {
    /// Without TLS: `uwsgi://`.
    pub(crate) plain: &'static str,
    /// With TLS: `suwsgi://`.
    pub(crate) secure: &'static str,
    /// The prefix of the directives: `uwsgi_`.
    pub(crate) prefix: &'static str,
}

impl GatewaySchemes {
    /// Whether an address begins with the TLS scheme.
    fn is_secure(&self, address: &[u8]) -> bool {
        strip_scheme(self.secure.as_bytes(), address).len() < address.len()
    }

    /// The scheme of connections with or without TLS.
    pub(crate) fn for_tls(&self, secure: bool) -> &'static str {
        match secure {
            true => self.secure,
            false => self.plain,
        }
    }

    /// Whether the address in a line asks for TLS. If it does, or may once its variables are known,
    /// the block's `…_ssl_…` settings are prepared; otherwise their files are not even opened.
    pub(crate) fn note_tls(&self, line: &mut DirectiveLine) -> bool {
        let secure = self.is_secure(line.text(0));
        if secure || Expression::has_variables(line.text(0)) {
            upstream_tls_rows::require_tls(line, self.prefix);
        }
        secure
    }
}

impl GatewayPass {
    /// The host to use TLS with, or `None` for a plain connection. `secure` is what
    /// [`GatewaySchemes::note_tls`] returned for the line.
    pub(crate) fn secure_host(
        &self,
        request: &mut Request,
        schemes: &GatewaySchemes,
        secure: bool,
    ) -> Option<BString> {
        match self {
            GatewayPass::Group(group) => secure.then(|| group.settings.name.clone()),
            GatewayPass::Variable(url) => {
                let url = request.value(url);
                let host = strip_scheme(schemes.secure.as_bytes(), &url);
                (host.len() < url.len()).then(|| host.into())
            }
        }
    }

    /// Reads the address in the first word of a line, which may begin with `scheme`.
    pub(crate) fn from_line(
        line: &mut DirectiveLine,
        scheme: &[u8],
    ) -> Result<GatewayPass, Diagnostic> {
        if Expression::has_variables(line.text(0)) {
            return Ok(GatewayPass::Variable(line.expression(0)?));
        }
        let text = strip_scheme(scheme, line.text(0));
        let place = line.sources().place(line.node.span).unwrap_or_default();
        let groups = line.lasting::<UpstreamGroups>().clone();
        let reference = groups
            .group_for_address(text, NO_PORT, &place)
            .map_err(|error| crate::shared::upstream_block::invalid_address(line, error))?;
        // Unlike HTTP these protocols have no default port, so a missing one is an error, unless
        // the name is that of an `upstream` block.
        if reference.group.settings.origin
            == (GroupOrigin::Url {
                port: Some(NO_PORT),
            })
        {
            let text = text.as_bstr();
            return Err(crate::shared::upstream_block::missing_port(
                &reference, line, text,
            ));
        }
        crate::shared::upstream_block::warn_unresolved(&reference, line);
        Ok(GatewayPass::Group(reference.group))
    }

    /// The target of this request. The error is the status to respond with; it has been logged.
    pub(crate) fn target(
        &self,
        request: &mut Request,
        scheme: &[u8],
    ) -> Result<ExchangeTarget, u16> {
        let url = match self {
            GatewayPass::Group(group) => return Ok(ExchangeTarget::Group(Arc::clone(group))),
            GatewayPass::Variable(url) => request.value(url),
        };
        let text = strip_scheme(scheme, &url);
        let address = HostPort::parse_peer(text).map_err(|why| {
            request.error(format_args!("{why} in upstream \"{}\"", text.as_bstr()));
            500_u16
        })?;
        let is_unix = matches!(address.host, AddressHost::Unix(_));
        let end = if address.port.is_some() {
            text.rfind_byte(b':').unwrap_or(text.len())
        } else {
            text.len()
        };
        let host = BString::from(&text[..end]);
        if address.port.is_none() && !is_unix {
            // Without a port it can only name an `upstream` block.
            let groups = request.site.main_confs.get::<UpstreamGroups>();
            return match groups.find_url(&host, None, false) {
                Some(group) => Ok(ExchangeTarget::Group(group)),
                None => {
                    request.error(format_args!("no port in upstream \"{host}\""));
                    Err(500)
                }
            };
        }
        Ok(ExchangeTarget::Host {
            host,
            port: address.port,
            explicit_port: address.port.is_some(),
        })
    }
}

/// Stands for a missing port: none of these protocols has a default one, and 0 cannot be connected
/// to.
const NO_PORT: u16 = 0;

/// The URL without its scheme, in any letter case (RFC 3986, section 3.1).
fn strip_scheme<'a>(scheme: &[u8], url: &'a [u8]) -> &'a [u8] {
    match url.get(..scheme.len()) {
        Some(start) if start.eq_ignore_ascii_case(scheme) => &url[scheme.len()..],
        _ => url,
    }
}
