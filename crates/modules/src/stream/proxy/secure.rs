//! `proxy_ssl` and its kin: TLS to upstream servers. The directives are those of http
//! ([`crate::shared::upstream_tls_rows`]) and two that only stream has.
//!
//! ```nginx
//! server {
//!     listen                        5433;
//!     proxy_ssl                     on;
//!     proxy_ssl_verify              on;
//!     proxy_ssl_trusted_certificate ca.crt;
//!     proxy_pass                    db;
//! }
//! ```

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::stream::module::status;
use ::stream::{StreamModule, StreamSession};
use base::ErrnoText;
use bstr::BStr;
use conf::block_confs::downcast_mut;
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{
    AnyConf, Arity, BlockConfs, BlockContext, Diagnostic, Directive, DirectiveLine, DirectiveRows,
    DirectiveTable, RepeatRule, RowInfo, Setter,
};
use net::Transport;
use net::upstream::{UpstreamTls, UpstreamTlsError};

use super::ConnectFailure;
use crate::shared::upstream_tls_rows;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "proxy_ssl",
    doc: "TLS for upstream connections.",
    server: &AllRows,
    ..StreamModule::EMPTY
};

/// The directives that http does not have.
static OWN: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "proxy_ssl",
        syntax: "on | off",
        default: Some("off"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Whether to use TLS to upstream servers. A PROXY protocol header is sent before it.",
        set: Setter::Flag(|c| &mut c.enabled),
    },
    Directive {
        name: "proxy_ssl_alpn",
        syntax: "protocol …",
        default: None,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The protocols to offer by ALPN to upstream servers, in order of preference.",
        set: Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.secure.alpn.clear()),
            |c, line| {
                for index in 0..line.args().len() {
                    if line.text(index).len() > 255 {
                        return Err(line.error_at(index, "protocol too long"));
                    }
                    c.secure.alpn.push(line.expression(index)?);
                }
                Ok(())
            },
        ),
    },
]);

/// The prefix of the shared directives.
const PREFIX: &str = "proxy_";

#[derive(Clone, Default)]
pub(super) struct Conf {
    /// `proxy_ssl`.
    pub(super) enabled: bool,
    secure: UpstreamTls,
}

/// Stream's own directives and the shared ones, over the same struct.
struct AllRows;

impl DirectiveRows for AllRows {
    fn len(&self) -> usize {
        OWN.len() + upstream_tls_rows::ROWS.len()
    }

    fn info(&self, row: usize) -> RowInfo {
        match row.checked_sub(OWN.len()) {
            None => OWN.info(row),
            Some(row) => upstream_tls_rows::in_stream(row),
        }
    }

    fn create(&self) -> Arc<dyn AnyConf> {
        OWN.create()
    }

    fn shares(&self, parent: &dyn AnyConf) -> bool {
        OWN.shares(parent)
    }

    fn child(&self, parent: &dyn AnyConf) -> Arc<dyn AnyConf> {
        OWN.child(parent)
    }

    fn copy(&self, conf: &dyn AnyConf) -> Arc<dyn AnyConf> {
        OWN.copy(conf)
    }

    fn apply(
        &self,
        row: usize,
        conf: &mut dyn AnyConf,
        line: &mut DirectiveLine,
    ) -> Result<(), Diagnostic> {
        match row.checked_sub(OWN.len()) {
            None => OWN.apply(row, conf, line),
            Some(row) => {
                upstream_tls_rows::ROWS.apply(row, &mut downcast_mut::<Conf>(conf).secure, line)
            }
        }
    }

    fn apply_deferred(
        &self,
        _: usize,
        _: &mut DirectiveLine,
        _: &mut BlockConfs,
    ) -> Result<(), Diagnostic> {
        Ok(())
    }

    fn finishes(&self, _: bool, _: &mut BlockContext) -> bool {
        // `stream` itself cannot know what its servers use.
        true
    }

    fn finish(
        &self,
        conf: &mut dyn AnyConf,
        parent: Option<&dyn AnyConf>,
        level: &mut BlockContext,
    ) -> Result<(), Diagnostic> {
        let conf = downcast_mut::<Conf>(conf);
        // Nothing is passed on in `stream` itself, so missing settings may still come in a server.
        conf.secure.is_used = conf.enabled && parent.is_some();
        upstream_tls_rows::finish(&mut conf.secure, PREFIX, level)
    }
}

/// Whether TLS is used for upstream servers.
pub(super) fn uses_tls(session: &StreamSession) -> bool {
    session.conf::<Conf>().enabled
}

/// Starts TLS on a new connection to a server of `group`, after the PROXY protocol header if that
/// is on.
pub(super) async fn handshake(
    session: &mut StreamSession,
    proxy: &super::Conf,
    transport: &mut Transport,
    group: &BStr,
) -> Result<(), ConnectFailure> {
    let conf = session.conf::<Conf>();
    let patience = proxy.connect_timeout;
    session.action = "SSL handshaking to upstream";
    let header = super::proxy_header(session, proxy.proxy_protocol);
    if !header.is_empty()
        && let Err(error) = send(transport, &header, patience).await
    {
        session.error(format_args!("send() failed{}", ErrnoText(&error)));
        return Err(ConnectFailure::Server);
    }
    let asked = conf.secure.handshake_parameters(session, group, "");
    let line = match conf.secure.handshake(transport, &asked, patience).await {
        Ok(()) => return Ok(()),
        // A mistake on our side, such as a certificate that cannot be loaded: other servers would
        // fail as well.
        Err(UpstreamTlsError::Ours(line)) => {
            session.error(format_args!("{line}"));
            return Err(ConnectFailure::Final(status::INTERNAL_SERVER_ERROR));
        }
        Err(UpstreamTlsError::TimedOut) => {
            "upstream timed out (110: Connection timed out)".to_owned()
        }
        Err(UpstreamTlsError::Peer(line)) => line,
    };
    session.error(format_args!("{line}"));
    Err(ConnectFailure::Server)
}

/// Sends the header before the handshake.
async fn send(transport: &Transport, bytes: &[u8], patience: Duration) -> io::Result<()> {
    rt::timeout(patience, transport.write_all(bytes))
        .await
        .map_err(io::Error::from)?
}
