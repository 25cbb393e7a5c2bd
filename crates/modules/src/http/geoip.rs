//! `geoip_country`, `geoip_city`, `geoip_org`: variables from MaxMind's old databases, by the client's address.
//!
//! ```nginx
//! geoip_country /usr/share/GeoIP/GeoIP.dat;
//! geoip_proxy   192.0.2.0/24;
//! ```
//!
//! The implementation is [`crate::shared::geoip`].

use ::http::{HttpModule, Request};
use conf::{Arity, Cidr, Directive, DirectiveTable, HTTP, RepeatRule, Setter, Variable};

use crate::shared::forwarded_for::ForwardedDepth;
use crate::shared::geoip::{self, LegacyProxies};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "geoip",
    doc: "Variables from databases in MaxMind's old format, by client address.",
    main: &DIRECTIVES,
    variables: &VARIABLES,
    ..HttpModule::EMPTY
};

static VARIABLES: [Variable<Request>; 16] = geoip::variables();

static ROWS: [Directive<Conf>; 5] = {
    let [country, city, org] = geoip::rows::<Conf, Request>(HTTP);
    [
        country,
        city,
        org,
        Directive {
            name: "geoip_proxy",
            syntax: "address | CIDR",
            default: None,
            contexts: HTTP,
            since: "0.1",
            doc: "A trusted proxy: the client address is taken from its `X-Forwarded-For`.",
            set: Setter::Custom(Arity::ONE, RepeatRule::Many, |c, line| {
                c.trusted.push(line.cidr(0)?);
                Ok(())
            }),
        },
        Directive {
            name: "geoip_proxy_recursive",
            syntax: "on | off",
            default: Some("off"),
            contexts: HTTP,
            since: "0.1",
            doc: "`on` takes the last address in the header that is not itself a trusted proxy, `off` the last address.",
            set: Setter::Flag(|c| &mut c.recursive),
        },
    ]
};

static DIRECTIVES: DirectiveTable<Conf> =
    DirectiveTable::<Conf>::new(&ROWS).finish(|conf, _, level| {
        let depth = match conf.recursive {
            true => ForwardedDepth::Recursive,
            false => ForwardedDepth::Last,
        };
        let trusted = std::mem::take(&mut conf.trusted);
        level.shared::<LegacyProxies>().0.set(trusted, depth);
        Ok(())
    });

/// The proxies, until they are handed over. Databases belong to the definitions of their variables.
#[derive(Clone, Default)]
struct Conf {
    trusted: Vec<Cidr>,
    recursive: bool,
}
