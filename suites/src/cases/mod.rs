//! The cases: applications of the guide, clients that people really use, and what runs beside a server.

mod beside;
mod web;
mod wire;

use crate::case::Case;

/// A file of the folder `clients`.
macro_rules! client {
    ($name:literal) => {
        ($name, include_str!(concat!("../../clients/", $name)))
    };
}
pub(crate) use client;

/// All of them, in the order of the table.
pub(crate) fn all() -> Vec<Case> {
    vec![
        web::wordpress(),
        web::django(),
        web::uwsgi(),
        web::socketio(),
        wire::grpc(),
        web::git(),
        web::s3(),
        web::registry(),
        web::webdav(),
        web::http3(),
        web::http3_browser(),
        wire::redis(),
        wire::mysql(),
        wire::dns(),
        beside::init(),
        beside::logrotate(),
        beside::fail2ban(),
        beside::status(),
        beside::exporter(),
        beside::logs(),
        beside::crossplane(),
        beside::certbot(),
    ]
}
