//! `geoip2`: variables from a MaxMind database, by the client's address.
//!
//! ```nginx
//! geoip2 /usr/share/GeoIP/GeoLite2-Country.mmdb {
//!     auto_reload 1h;
//!     $country         default=ZZ country iso_code;
//!     $continent       source=$http_x_client_ip continent names en;
//!     $database_built  metadata build_epoch;
//! }
//! ```
//!
//! The directives are those of the well-known third-party module; nginx's own `geoip_*` read an
//! older format ([`super::geoip`]). The mechanism is [`crate::shared::geoip2`].

use ::http::{HttpModule, Request};
use conf::{Arity, Cidr, Directive, DirectiveTable, HTTP, RepeatRule, Setter};

use crate::shared::forwarded_for::ForwardedDepth;
use crate::shared::geoip2::{self, GeoipProxies};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "geoip2",
    doc: "Variables from a MaxMind database, by client address.",
    main: &DIRECTIVES,
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    geoip2::row::<Conf, Request>(HTTP),
    Directive {
        name: "geoip2_proxy",
        syntax: "address | network",
        default: None,
        contexts: HTTP,
        since: "0.2",
        doc: "A trusted proxy: the client address is taken from its `X-Forwarded-For`.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Many, |c, line| {
            c.trusted.push(line.cidr(0)?);
            Ok(())
        }),
    },
    Directive {
        name: "geoip2_proxy_recursive",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP,
        since: "0.2",
        doc: "`on` takes the last address in the header that is not itself a trusted proxy, `off` the last address.",
        set: Setter::Flag(|c| &mut c.recursive),
    },
])
.finish(|conf, _, level| {
    let depth = match conf.recursive {
        true => ForwardedDepth::Recursive,
        false => ForwardedDepth::Last,
    };
    let trusted = std::mem::take(&mut conf.trusted);
    level.shared::<GeoipProxies>().set(trusted, depth);
    Ok(())
});

/// The proxies, until they are handed over. Databases belong to the definitions of their variables.
#[derive(Clone, Default)]
struct Conf {
    trusted: Vec<Cidr>,
    recursive: bool,
}
