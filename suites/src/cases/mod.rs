//! The cases: applications of the guide, and clients that people really use.

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
        wire::redis(),
        wire::mysql(),
        wire::dns(),
    ]
}
