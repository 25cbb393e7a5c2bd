//! The engine's own directives: what nginx's `ngx_http_core_module` reads.
//!
//! They are rows of three tables, like a module's. The blocks that make up the configuration (`server`, `location`,
//! `if`, `limit_except`) are rows too; what they do is in [`crate::configure`], which is above them ([`blocks`]).

pub(crate) mod blocks;
mod choices;
pub mod delivery;
mod error_page;
pub mod http2;
pub mod location;
pub mod main;
pub mod resolver;
mod root;
mod satisfy;
pub mod server;

pub use choices::{BodyInFile, IfModifiedSince, Lingering, ServerTokens};
pub use delivery::{Aio, DeliveryConf, Directio, Symlinks};
pub use error_page::ErrorPage;
pub use http2::Http2Conf;
pub use location::LocationConf;
pub use main::{Identity, MainConf};
pub use resolver::ResolverConf;
pub use root::{Root, RootKind};
pub use satisfy::Satisfy;
pub use server::ServerConf;
