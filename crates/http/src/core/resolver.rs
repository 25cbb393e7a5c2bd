//! `resolver` and `resolver_timeout`: the resolution of names that are only known at run time, such as those in URLs
//! with variables.

use std::sync::Arc;
use std::time::Duration;

use conf::contexts::HTTP_SERVER_LOCATION;
use conf::{Arity, Directive, Repeat, Setter, Table};
use host::error_log::Logger;
use net::resolver::{Resolver, Settings};

/// The resolver of a location.
#[derive(Clone)]
pub struct ResolverConf {
    /// Resolves names. Without `resolver` it has no servers, and each lookup fails with a message that says so.
    pub resolver: Arc<Resolver>,
    /// The time limit for a name.
    pub timeout: Duration,
}

impl Default for ResolverConf {
    fn default() -> Self {
        ResolverConf {
            resolver: Resolver::new(Settings::default(), Logger::default()),
            timeout: Duration::ZERO,
        }
    }
}

/// The directives.
pub static DIRECTIVES: Table<ResolverConf> = Table::new(&[
    Directive {
        name: "resolver",
        syntax: "address … [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The DNS servers used to resolve names at run time. Answers are cached for their TTL, or for `valid`.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Once, |c, line| {
            c.resolver = Resolver::from_line(line)?;
            Ok(())
        }),
    },
    Directive {
        name: "resolver_timeout",
        syntax: "time",
        default: Some("30s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The timeout for resolving a name.",
        set: Setter::Millis(|c| &mut c.timeout),
    },
]);
