//! `resolver` and `resolver_timeout`: who knows the addresses of names that are only known while running.

use std::sync::Arc;
use std::time::Duration;

use conf::contexts::HTTP_SERVER_LOCATION;
use conf::{Arity, Directive, Repeat, Setter, Table};
use host::error_log::Logger;
use net::resolver::{Resolver, Settings};

/// Resolving in a location.
#[derive(Clone)]
pub struct ResolverConf {
    /// Resolves names; one without servers where no directive says who could.
    pub resolver: Arc<Resolver>,
    /// How long an answer is waited for.
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

/// The rows.
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
