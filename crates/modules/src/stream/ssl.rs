//! `ssl_*` of stream: TLS of clients. The directives are in [`crate::shared::tls`], the work is
//! done in [`net::tls`], which the engine calls.
//!
//! ```nginx
//! server {
//!     listen              993 ssl;
//!     ssl_certificate     imap.crt;
//!     ssl_certificate_key imap.key;
//!     proxy_pass          localhost:143;
//! }
//! ```

use ::stream::{StreamModule, StreamSession};
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{DirectiveTable, STREAM_SERVER, Variable};

use crate::shared::tls::build::{self, TlsEngineOptions};
use crate::shared::tls::rows::{self, EngineKind};
use crate::shared::tls::variables::{self, HasTls};
use crate::shared::tls::{self, TlsConf};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "ssl",
    doc: "TLS for clients: certificates, protocols and ciphers, sessions, client certificates.",
    server: &DIRECTIVES,
    tls: |confs| confs.get::<TlsConf>().service.clone(),
    variables: &VARIABLES,
    start: |engine| {
        tls::warm_up(
            engine
                .site()
                .servers
                .iter()
                .any(|server| server.tls.is_some()),
        )
    },
    ..StreamModule::EMPTY
};

static ROWS: [conf::Directive<TlsConf>; rows::COUNT] =
    rows::all(EngineKind::Stream, STREAM_AND_SERVER);

static DIRECTIVES: DirectiveTable<TlsConf> = DirectiveTable::new(&ROWS).finish(|conf, _, level| {
    // In `stream` itself the settings are only defaults; servers may still complete them.
    if level.context == STREAM_SERVER {
        let wanted = TlsEngineOptions {
            context: "STREAM",
            alpn: conf.alpn.iter().map(|name| name.to_vec()).collect(),
            alpn_http2: Vec::new(),
        };
        conf.service = build::service(conf, wanted, level)?;
    }
    Ok(())
});

static VARIABLES: [Variable<StreamSession>; variables::COUNT] = variables::all();

impl HasTls for StreamSession {
    fn tls(&self) -> Option<&net::tls::TlsSession> {
        self.client.stream()?.tls()
    }

    fn server_name(&self) -> Option<String> {
        self.client
            .asked_name
            .borrow()
            .as_deref()
            .map(str::to_owned)
    }
}
