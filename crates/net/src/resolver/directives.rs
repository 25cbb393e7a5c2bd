//! `resolver` and `resolver_timeout`: the resolution of names that are only known at run time, such as those in URLs
//! with variables.

use std::sync::Arc;
use std::time::Duration;

use conf::{Arity, Contexts, Directive, RepeatRule, Setter};
use host::error_log::Logger;

use super::{Resolver, ResolverSettings};

/// Resolving in a location of http or a server of stream.
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
            resolver: Resolver::new(ResolverSettings::default(), Logger::default()),
            timeout: Duration::ZERO,
        }
    }
}

/// The rows.
pub const fn rows(contexts: Contexts) -> [Directive<ResolverConf>; 2] {
    [
        Directive {
            name: "resolver",
            syntax: "address … [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]",
            default: None,
            contexts,
            since: "0.1",
            doc: "The DNS servers used to resolve names at run time. Answers are cached for their TTL, or for `valid`.",
            set: Setter::Custom(Arity::at_least(1), RepeatRule::Once, |c, line| {
                c.resolver = Resolver::from_line(line)?;
                Ok(())
            }),
        },
        Directive {
            name: "resolver_timeout",
            syntax: "time",
            default: Some("30s"),
            contexts,
            since: "0.1",
            doc: "The timeout for resolving a name.",
            set: Setter::Millis(|c| &mut c.timeout),
        },
    ]
}
