//! `ssl_*` of http: TLS of clients. The directives are in [`crate::shared::tls`], the work is done
//! in [`net::tls`], which the engine calls.
//!
//! ```nginx
//! server {
//!     listen              443 ssl;
//!     ssl_certificate     example.com.crt;
//!     ssl_certificate_key example.com.key;
//! }
//! ```

use conf::directive_contexts::HTTP_SERVER;
use conf::{DirectiveTable, SERVER, Variable};
use http::{HttpModule, Request};
use net::tls::TlsSession;

use crate::shared::tls::build::{self, TlsEngineOptions};
use crate::shared::tls::rows::{self, EngineKind};
use crate::shared::tls::variables::{self, HasTls};
use crate::shared::tls::{self, TlsConf};

pub(crate) static MODULE: HttpModule = HttpModule {
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
    ..HttpModule::EMPTY
};

static ROWS: [conf::Directive<TlsConf>; rows::COUNT] = rows::all(EngineKind::Http, HTTP_SERVER);

static DIRECTIVES: DirectiveTable<TlsConf> = DirectiveTable::new(&ROWS).finish(|conf, _, level| {
    if level.context == SERVER {
        let http1 = || ["http/1.1", "http/1.0", "http/0.9"].map(|name| name.as_bytes().to_vec());
        let wanted = TlsEngineOptions {
            context: "HTTP",
            alpn: http1().to_vec(),
            alpn_http2: [b"h2".to_vec()].into_iter().chain(http1()).collect(),
        };
        conf.service = build::service(conf, wanted, level)?;
    }
    Ok(())
});

static VARIABLES: [Variable<Request>; variables::COUNT] = variables::all();

impl HasTls for Request {
    fn tls(&self) -> Option<&TlsSession> {
        self.client.tls()
    }

    fn server_name(&self) -> Option<String> {
        let asked = self.client.asked_name.borrow();
        asked.as_ref().map(|asked| asked.name.to_string())
    }
}
