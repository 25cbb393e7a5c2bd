//! `resolver` and `resolver_timeout` in http.

use conf::contexts::HTTP_SERVER_LOCATION;
use conf::{Directive, Table};
use net::resolver::directives;

pub use net::resolver::ResolverConf;

static ROWS: [Directive<ResolverConf>; 2] = directives::rows(HTTP_SERVER_LOCATION);

/// The directives.
pub static DIRECTIVES: Table<ResolverConf> = Table::new(&ROWS);
