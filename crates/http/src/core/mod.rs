//! The engine's own directives: those of nginx's `ngx_http_core_module` and `ngx_http_v2_module`.
//!
//! They are rows of tables, like those of a module. The blocks of the configuration (`server`, `location`,
//! `limit_except`) are rows too. What they do is in [`crate::configure`], which is a layer above and hands its
//! functions down (`blocks`).

pub(crate) mod blocks;
mod choices;
pub mod delivery;
mod error_page;
pub mod http2;
pub mod http3;
pub mod location;
pub mod main;
pub mod resolver;
mod root;
mod satisfy;
pub mod server;

pub use choices::{BodyInFile, IfModifiedSince, LingeringClose, ServerTokens};
pub use delivery::{Aio, DeliveryConf, Directio, DisableSymlinks};
pub use error_page::ErrorPage;
pub use http2::Http2Conf;
pub use http3::Http3Conf;
pub use location::LocationConf;
pub use main::{MainConf, ServerIdentity};
pub use resolver::ResolverConf;
pub use root::{LocationRoot, RootKind};
pub use satisfy::Satisfy;
pub use server::ServerConf;
