//! `fastcgi_pass`, `scgi_pass`, `uwsgi_pass`, `memcached_pass`, `grpc_pass`: where requests go.

use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::address::{Address, Host};
use conf::{Diagnostic, Expression, Line};
use http::Request;
use http::upstream::Target;
use net::upstream::{Group, Groups, Origin};

use crate::shared::tls_rows;

/// Where requests of a location go.
#[derive(Clone, Debug)]
pub(crate) enum Pass {
    /// To a group: that of an `upstream` block, or of one address.
    Group(Arc<Group>),
    /// To what the value names.
    Variable(Expression),
}

/// The schemes of a protocol, as addresses may begin with them.
pub(crate) struct Schemes {
    /// Without TLS: `uwsgi://`.
    pub(crate) plain: &'static str,
    /// With TLS: `suwsgi://`.
    pub(crate) secure: &'static str,
    /// The prefix of the directives: `uwsgi_`.
    pub(crate) prefix: &'static str,
}

impl Schemes {
    /// Whether an address begins with that of TLS.
    fn is_secure(&self, address: &[u8]) -> bool {
        without(self.secure.as_bytes(), address).len() < address.len()
    }

    /// That of a connection with TLS, or without.
    pub(crate) fn of(&self, secure: bool) -> &'static str {
        match secure {
            true => self.secure,
            false => self.plain,
        }
    }

    /// Whether the address of a line is one with TLS, for whose settings this sees to.
    pub(crate) fn settle(&self, line: &mut Line) -> bool {
        let secure = self.is_secure(line.text(0));
        if secure || Expression::has_variables(line.text(0)) {
            tls_rows::want(line, self.prefix);
        }
        secure
    }
}

impl Pass {
    /// The host that a request is passed on to by TLS; `None`: it is passed on without. `secure` is what
    /// [`Schemes::settle`] said of the line.
    pub(crate) fn secure_host(
        &self,
        request: &mut Request,
        schemes: &Schemes,
        secure: bool,
    ) -> Option<BString> {
        match self {
            Pass::Group(group) => secure.then(|| group.settings.name.clone()),
            Pass::Variable(url) => {
                let url = request.value(url);
                let host = without(schemes.secure.as_bytes(), &url);
                (host.len() < url.len()).then(|| host.into())
            }
        }
    }

    /// Reads the first word of a line, which may begin with `scheme`.
    pub(crate) fn from_line(line: &mut Line, scheme: &[u8]) -> Result<Pass, Diagnostic> {
        if Expression::has_variables(line.text(0)) {
            return Ok(Pass::Variable(line.expression(0)?));
        }
        let text = without(scheme, line.text(0));
        let place = line.sources().place(line.node.span).unwrap_or_default();
        let groups = line.shared::<Groups>().clone();
        let reference = groups
            .refer(text, NO_PORT, &place)
            .map_err(|error| crate::shared::upstream::no_address(line, error))?;
        if reference.group.settings.origin
            == (Origin::Url {
                port: Some(NO_PORT),
            })
        {
            return Err(line.error_at(0, format!("no port in upstream \"{}\"", text.as_bstr())));
        }
        crate::shared::upstream::warn_of(&reference, line);
        Ok(Pass::Group(reference.group))
    }

    /// Where this request goes. The error is the status to answer with; it has been logged.
    pub(crate) fn target(&self, request: &mut Request, scheme: &[u8]) -> Result<Target, u16> {
        let url = match self {
            Pass::Group(group) => return Ok(Target::Group(Arc::clone(group))),
            Pass::Variable(url) => request.value(url),
        };
        let text = without(scheme, &url);
        let address = Address::peer(text).map_err(|why| {
            request.error(format_args!("{why} in upstream \"{}\"", text.as_bstr()));
            500_u16
        })?;
        let is_unix = matches!(address.host, Host::Unix(_));
        let end = if address.port.is_some() {
            text.rfind_byte(b':').unwrap_or(text.len())
        } else {
            text.len()
        };
        let host = BString::from(&text[..end]);
        if address.port.is_none() && !is_unix {
            // Without a port it can only be the name of an upstream block.
            let groups = request.site.main_confs.get::<Groups>();
            return match groups.find_url(&host, None, false) {
                Some(group) => Ok(Target::Group(group)),
                None => {
                    request.error(format_args!("no port in upstream \"{host}\""));
                    Err(500)
                }
            };
        }
        Ok(Target::Host {
            host,
            port: address.port,
            explicit_port: address.port.is_some(),
        })
    }
}

/// Stands for a port that was not written: none of these protocols has a usual one.
const NO_PORT: u16 = 0;

fn without<'a>(scheme: &[u8], url: &'a [u8]) -> &'a [u8] {
    match url.get(..scheme.len()) {
        Some(start) if start.eq_ignore_ascii_case(scheme) => &url[scheme.len()..],
        _ => url,
    }
}
