//! nginx's original `geoip`: variables from databases in the format that MaxMind made until 2019.
//!
//! The format is no longer made, but such files are still built by others from newer data, and packaged by distributions.
//! A database is read together with the configuration, as nginx does: a changed file takes a reload.
//!
//! The variables exist in every configuration, and are empty without a database. A configuration may define them itself, as
//! many do who have them from `geoip2` or a `map`, because nginx's module is seldom built in.

mod countries;
mod database;
mod regions;

use std::net::IpAddr;
use std::sync::Arc;

use conf::{
    Arity, Contexts, Diagnostic, Directive, DirectiveLine, RepeatRule, Setter, Variable,
    VariableDefinition, VariableGet,
};

use super::client_scope::ClientScope;
use super::geoip2::GeoipProxies;
use database::{CityRecord, GeoipKind, LegacyDatabase};

/// The trusted proxies of `geoip_proxy`.
#[derive(Clone, Debug, Default)]
pub(crate) struct LegacyProxies(pub(crate) GeoipProxies);

/// The rows that http and stream share.
pub(crate) const fn rows<C, S: ClientScope>(contexts: Contexts) -> [Directive<C>; 3] {
    [
        Directive {
            name: "geoip_country",
            syntax: "file [utf8]",
            default: None,
            contexts,
            since: "0.1",
            doc: "A database of countries in MaxMind's old format (`GeoIP.dat`): sets `$geoip_country_code`, \
                  `$geoip_country_code3`, `$geoip_country_name`. With `utf8`, names are converted from ISO 8859-1.",
            set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |_, line| {
                read::<S>(line, GeoipKind::Country)
            }),
        },
        Directive {
            name: "geoip_city",
            syntax: "file [utf8]",
            default: None,
            contexts,
            since: "0.1",
            doc: "A database of cities in MaxMind's old format (`GeoLiteCity.dat`).",
            set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |_, line| {
                read::<S>(line, GeoipKind::City)
            }),
        },
        Directive {
            name: "geoip_org",
            syntax: "file [utf8]",
            default: None,
            contexts,
            since: "0.1",
            doc: "A database of organisations, providers, networks or domains in MaxMind's old format \
                  (`GeoIPASNum.dat`): sets `$geoip_org`.",
            set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |_, line| {
                read::<S>(line, GeoipKind::Organisation)
            }),
        },
    ]
}

/// The variables as they are without a database.
pub(crate) const fn variables<S: ClientScope>() -> [Variable<S>; 16] {
    [
        row("geoip_country_code", "The country's two letters."),
        row("geoip_country_code3", "The country's three letters."),
        row("geoip_country_name", "The country's name."),
        row(
            "geoip_org",
            "The organisation, provider, network or domain.",
        ),
        row(
            "geoip_city_continent_code",
            "The continent's two letters, from `geoip_city`.",
        ),
        row(
            "geoip_city_country_code",
            "The country's two letters, from `geoip_city`.",
        ),
        row(
            "geoip_city_country_code3",
            "The country's three letters, from `geoip_city`.",
        ),
        row(
            "geoip_city_country_name",
            "The country's name, from `geoip_city`.",
        ),
        row("geoip_region", "The region's code."),
        row(
            "geoip_region_name",
            "The region's name, in Australia, Brazil, Canada, China, France, Germany, Italy, Russia, Spain and the United \
             States.",
        ),
        row("geoip_city", "The city's name."),
        row("geoip_postal_code", "The postal code."),
        row("geoip_latitude", "The latitude."),
        row("geoip_longitude", "The longitude."),
        row(
            "geoip_dma_code",
            "The designated market area, in the United States.",
        ),
        row(
            "geoip_area_code",
            "The telephone area code, in the United States.",
        ),
    ]
}

const fn row<S: ClientScope>(name: &'static str, doc: &'static str) -> Variable<S> {
    Variable {
        name,
        get: VariableGet::Plain(|_, _| false),
        set: None,
        cache: true,
        changeable: true,
        lines: false,
        doc,
    }
}

/// A database as one directive names it.
struct NamedDatabase {
    content: LegacyDatabase,
    /// Names are converted to UTF-8.
    utf8: bool,
    proxies: LegacyProxies,
}

/// Reads one of the three directives and defines its variables.
fn read<S: ClientScope>(line: &mut DirectiveLine, kind: GeoipKind) -> Result<(), Diagnostic> {
    let path = line.path(conf::PathUse::Opened, line.arg(0));
    let content = line.files().read(&path).map_err(|error| {
        let why = base::text::errno_text(&error);
        line.error_at(
            0,
            format!("GeoIP_open(\"{}\") failed: {why}", path.display()),
        )
    })?;
    let content = LegacyDatabase::new(content).ok_or_else(|| {
        let message = format!(
            "GeoIP_open(\"{}\") failed: no such database",
            path.display()
        );
        line.error_at(0, message)
    })?;
    let utf8 = match line.args().get(1) {
        None => false,
        Some(word) if word.is("utf8") => true,
        Some(word) => {
            return Err(line.error_at(1, format!("invalid parameter \"{}\"", word.text)));
        }
    };
    if content.kind() != Some(kind) {
        let name = match kind {
            GeoipKind::City => "GeoIP City",
            GeoipKind::Country | GeoipKind::Organisation => "GeoIP",
        };
        let (path, edition) = (path.display(), content.edition());
        let message = format!("invalid {name} database \"{path}\" type:{edition}");
        return Err(line.error_at(0, message));
    }
    let proxies = line.shared::<LegacyProxies>().clone();
    let database = Arc::new(NamedDatabase {
        content,
        utf8,
        proxies,
    });
    let fields: &[(&str, GeoipField)] = match kind {
        GeoipKind::Country => &COUNTRY_FIELDS,
        GeoipKind::City => &CITY_FIELDS,
        GeoipKind::Organisation => &[("geoip_org", GeoipField::Organisation)],
    };
    for (name, field) in fields {
        let (database, field) = (Arc::clone(&database), *field);
        let definition = VariableDefinition::<S>::dynamic(move |session, out| {
            let address = database.proxies.0.client_of(session);
            database.write(field, address, out).is_some()
        });
        let registry = line.level.registry::<S>().expect(ITS_ENGINE);
        let defined = registry.define(name, definition);
        defined.map_err(|message| line.error_at(0, message))?;
    }
    Ok(())
}

/// Why the registry of this type exists.
const ITS_ENGINE: &str = "the row stands in the engine whose sessions it is for";

/// What a variable shows.
#[derive(Clone, Copy)]
enum GeoipField {
    CountryCode,
    CountryCode3,
    CountryName,
    Organisation,
    OfCity(CityField),
}

#[derive(Clone, Copy)]
enum CityField {
    Continent,
    CountryCode,
    CountryCode3,
    CountryName,
    Region,
    RegionName,
    City,
    PostalCode,
    Latitude,
    Longitude,
    DmaCode,
    AreaCode,
}

const COUNTRY_FIELDS: [(&str, GeoipField); 3] = [
    ("geoip_country_code", GeoipField::CountryCode),
    ("geoip_country_code3", GeoipField::CountryCode3),
    ("geoip_country_name", GeoipField::CountryName),
];

const CITY_FIELDS: [(&str, GeoipField); 12] = [
    (
        "geoip_city_continent_code",
        GeoipField::OfCity(CityField::Continent),
    ),
    (
        "geoip_city_country_code",
        GeoipField::OfCity(CityField::CountryCode),
    ),
    (
        "geoip_city_country_code3",
        GeoipField::OfCity(CityField::CountryCode3),
    ),
    (
        "geoip_city_country_name",
        GeoipField::OfCity(CityField::CountryName),
    ),
    ("geoip_region", GeoipField::OfCity(CityField::Region)),
    (
        "geoip_region_name",
        GeoipField::OfCity(CityField::RegionName),
    ),
    ("geoip_city", GeoipField::OfCity(CityField::City)),
    (
        "geoip_postal_code",
        GeoipField::OfCity(CityField::PostalCode),
    ),
    ("geoip_latitude", GeoipField::OfCity(CityField::Latitude)),
    ("geoip_longitude", GeoipField::OfCity(CityField::Longitude)),
    ("geoip_dma_code", GeoipField::OfCity(CityField::DmaCode)),
    ("geoip_area_code", GeoipField::OfCity(CityField::AreaCode)),
];

impl NamedDatabase {
    /// Appends the field of an address; `None` if there is none.
    fn write(&self, field: GeoipField, address: Option<IpAddr>, out: &mut Vec<u8>) -> Option<()> {
        match field {
            GeoipField::CountryCode => self.text(self.content.country(address)?.code, out),
            GeoipField::CountryCode3 => self.text(self.content.country(address)?.code3, out),
            GeoipField::CountryName => {
                let country = self.content.country(address)?;
                let name = match self.utf8 {
                    true => country.utf8_name(),
                    false => country.name,
                };
                self.text(name, out);
            }
            GeoipField::Organisation => self.name(self.content.organisation(address)?, out),
            GeoipField::OfCity(field) => {
                return self.write_city(field, &self.content.city(address)?, out);
            }
        }
        Some(())
    }

    fn write_city(&self, field: CityField, city: &CityRecord, out: &mut Vec<u8>) -> Option<()> {
        // Empty texts are no values.
        let some = |text: &Vec<u8>| (!text.is_empty()).then(|| text.clone());
        match field {
            CityField::Continent => self.text(city.country.continent, out),
            CityField::CountryCode => self.text(city.country.code, out),
            CityField::CountryCode3 => self.text(city.country.code3, out),
            CityField::CountryName => {
                let name = match self.utf8 {
                    true => city.country.utf8_name(),
                    false => city.country.name,
                };
                self.text(name, out);
            }
            CityField::Region => out.extend(some(&city.region)?),
            CityField::RegionName => {
                self.text(regions::region_name(city.country.code, &city.region)?, out);
            }
            CityField::City => self.name(&some(&city.city)?, out),
            CityField::PostalCode => out.extend(some(&city.postal_code)?),
            CityField::Latitude => self.text(&format!("{:.4}", city.latitude), out),
            CityField::Longitude => self.text(&format!("{:.4}", city.longitude), out),
            CityField::DmaCode => self.text(&city.dma_code.to_string(), out),
            CityField::AreaCode => self.text(&city.area_code.to_string(), out),
        }
        Some(())
    }

    fn text(&self, text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(text.as_bytes());
    }

    /// Appends a name that the file has in ISO 8859-1.
    fn name(&self, name: &[u8], out: &mut Vec<u8>) {
        if !self.utf8 {
            out.extend_from_slice(name);
            return;
        }
        let mut buffer = [0; 2];
        for byte in name {
            out.extend_from_slice(char::from(*byte).encode_utf8(&mut buffer).as_bytes());
        }
    }
}
