//! `ssl_*` of stream: TLS of clients. What the directives mean is [`crate::shared::tls`]; what happens is [`net::tls`],
//! called by the engine.

use ::stream::{Module, Session};
use conf::contexts::STREAM_AND_SERVER;
use conf::{STREAM_SERVER, Table, Variable};

use crate::shared::tls::TlsConf;
use crate::shared::tls::build::{self, Wanted};
use crate::shared::tls::rows::{self, Engine};
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
            net::tls::warm_up();
        }
    },
    ..Module::EMPTY
};

static ROWS: [conf::Directive<TlsConf>; rows::COUNT] = rows::all(Engine::Stream, STREAM_AND_SERVER);

static DIRECTIVES: Table<TlsConf> = Table::new(&ROWS).finish(|conf, _, level| {
    if level.context == STREAM_SERVER {
        let wanted = Wanted {
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
