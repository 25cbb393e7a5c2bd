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

use ::stream::{Module, Session};
use conf::contexts::STREAM_AND_SERVER;
use conf::{STREAM_SERVER, Table, Variable};

use crate::shared::tls::TlsConf;
use crate::shared::tls::build::{self, TlsEngineOptions};
use crate::shared::tls::rows::{self, EngineKind};
use crate::shared::tls::variables::{self, HasTls};

pub(crate) static MODULE: Module = Module {
    name: "ssl",
    doc: "TLS for clients: certificates, protocols and ciphers, sessions, client certificates.",
    server: &DIRECTIVES,
    tls: |confs| confs.get::<TlsConf>().service.clone(),
    variables: &VARIABLES,
    start: |engine| {
        if engine
            .site()
            .servers
            .iter()
            .any(|server| server.tls.is_some())
        {
            // The first use takes many milliseconds to collect randomness: better now than while a
            // client waits. Without TLS it is not needed.
            net::tls::warm_up();
        }
    },
    ..Module::EMPTY
};

static ROWS: [conf::Directive<TlsConf>; rows::COUNT] =
    rows::all(EngineKind::Stream, STREAM_AND_SERVER);

static DIRECTIVES: Table<TlsConf> = Table::new(&ROWS).finish(|conf, _, level| {
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

static VARIABLES: [Variable<Session>; variables::COUNT] = variables::all();

impl HasTls for Session {
    fn tls(&self) -> Option<&net::tls::Session> {
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
