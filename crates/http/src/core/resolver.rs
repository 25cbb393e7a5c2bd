//! `resolver` and `resolver_timeout` in http.

use conf::directive_contexts::HTTP_SERVER_LOCATION;
use conf::{Directive, DirectiveTable};
use net::resolver::directives;

pub use net::resolver::ResolverConf;

static ROWS: [Directive<ResolverConf>; 2] = directives::rows(HTTP_SERVER_LOCATION);

/// The directives.
pub static DIRECTIVES: DirectiveTable<ResolverConf> = DirectiveTable::new(&ROWS);
