//! Weir: sans-IO codecs and header grammars.
//!
//! Everything here turns bytes into values and values into bytes. There are no sockets, no clock
//! (times are arguments), no configuration, and no allocation in proportion to what a peer merely
//! claims. Any input results in a value or an error, never in a panic.
//!
//! - [`message`]: heads of requests and responses, methods, versions, refusals: what every version
//!   of HTTP has.
//! - [`h1`]: how HTTP/1 writes them, both directions.
//! - [`h2`], [`h3`]: HTTP/2 and HTTP/3 frames, both directions; [`field_section`]: what the two share.
//! - [`qpack`], [`huffman`]: header compression (HPACK is part of [`h2`]).
//! - [`fields`], [`known_fields`]: the header fields of a message, and the names the server acts upon.
//! - [`uri`], [`host`]: the request target and the host name as nginx understands them.
//! - [`range`], [`conditional`], [`etag`], [`date`], [`cache_control`], [`accept_encoding`],
//!   [`connection`], [`cookie`], [`form`], [`mime`], [`list`]: grammars of single fields.
//! - [`status`]: reason phrases.
//! - [`caching`]: the rules of HTTP caches (RFC 9111).
//! - [`cgi`], [`fastcgi`], [`scgi`], [`uwsgi`], [`memcached`]: what applications and caches speak.
//! - [`proxy_protocol`]: the PROXY protocol, versions 1 and 2.
//! - [`client_hello`]: what a TLS client says before anything is encrypted.
#![forbid(unsafe_code)]

pub mod accept_encoding;
pub mod cache_control;
pub mod caching;
pub mod cgi;
pub mod client_hello;
pub mod conditional;
pub mod connection;
pub mod cookie;
pub mod date;
pub mod etag;
pub mod fastcgi;
pub mod field_section;
pub mod fields;
pub mod form;
pub mod h1;
pub mod h2;
pub mod h3;
pub mod host;
pub mod huffman;
pub mod known_fields;
pub mod list;
pub mod memcached;
pub mod message;
pub mod mime;
pub mod proxy_protocol;
pub mod qpack;
pub mod range;
pub mod scgi;
pub mod status;
pub mod tls_cursor;
pub mod uri;
pub mod uwsgi;

pub use fields::Fields;
pub use known_fields::KnownField;
