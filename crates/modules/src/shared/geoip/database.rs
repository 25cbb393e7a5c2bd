//! The database format of nginx's original `geoip`: `GeoIP.dat`, `GeoLiteCity.dat`, `GeoIPASNum.dat` and their IPv6 editions.
//!
//! ```text
//! ┌────────────────────────────┬───────────────────────┬────────┬──────────┬──────────┬────────────┬──────┐
//! │ nodes, root first          │ records               │ notice │ FF FF FF │ edition  │ nodes' own │ rest │
//! │ left, right: 3 or 4 bytes  │ (not in countries)    │        │          │ (1 byte) │ count (3)  │      │
//! └────────────────────────────┴───────────────────────┴────────┴──────────┴──────────┴────────────┴──────┘
//! ```
//!
//! Numbers are little-endian. The address's bits, the highest first, select left (0) or right (1) in each node, until a value
//! is not below the number of nodes: such a value is no node any more, but the answer. What is left of it is a country's number
//! (the count is then a constant, and is not in the file), or leads to a record behind the nodes.
//!
//! The marker at the end is searched backwards, at most [`MARKER_STEPS`] bytes. A file without one has countries.
//!
//! Files come from anywhere. Every read is checked; what points out of the file is an address that is not known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::countries::Country;

/// How far from the end the marker may be.
const MARKER_STEPS: usize = 20;

/// Where the numbers of countries begin in databases of countries.
const FIRST_COUNTRY: u32 = 0xff_ff00;

/// A name of an organisation is not longer.
const LONGEST_NAME: usize = 300;

/// What a database is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GeoipKind {
    Country,
    City,
    Organisation,
}

/// A database file.
#[derive(Debug)]
pub(crate) struct LegacyDatabase {
    content: Vec<u8>,
    /// As the file has it: [`LegacyDatabase::kind`] tells what it stands for.
    edition: u8,
    /// Values from here on are answers.
    nodes: u32,
    /// Bytes of one side of a node.
    width: usize,
}

/// What a database of cities has of an address.
#[derive(Debug, PartialEq)]
pub(crate) struct CityRecord {
    pub(crate) country: &'static Country,
    pub(crate) region: Vec<u8>,
    pub(crate) city: Vec<u8>,
    pub(crate) postal_code: Vec<u8>,
    pub(crate) latitude: f32,
    pub(crate) longitude: f32,
    /// In the United States only; elsewhere 0.
    pub(crate) dma_code: u32,
    pub(crate) area_code: u32,
}

impl LegacyDatabase {
    /// Takes the contents of a file; `None` if it has no such structure.
    pub(crate) fn new(content: Vec<u8>) -> Option<LegacyDatabase> {
        if content.len() < 3 {
            return None;
        }
        let last = content.len() - 3;
        let marker = (last.saturating_sub(MARKER_STEPS - 1)..=last)
            .rev()
            .find(|at| content[*at..].starts_with(&[0xff; 3]));
        let mut database = LegacyDatabase {
            content,
            edition: 1,
            nodes: FIRST_COUNTRY,
            width: 3,
        };
        let Some(&edition) = marker.and_then(|at| database.content.get(at + 3)) else {
            return Some(database);
        };
        // Old files have numbers from 106 on.
        database.edition = edition
            .checked_sub(105)
            .filter(|_| edition >= 106)
            .unwrap_or(edition);
        if database.kind() != Some(GeoipKind::Country) {
            database.nodes = database.number(marker? + 4, 3)?;
        }
        if matches!(database.edition, 4 | 5 | 11 | 22 | 23 | 24) {
            database.width = 4;
        }
        Some(database)
    }

    /// The number of the edition, for messages.
    pub(crate) fn edition(&self) -> u8 {
        self.edition
    }

    /// What it is about; `None` for editions that no directive reads.
    pub(crate) fn kind(&self) -> Option<GeoipKind> {
        match self.edition {
            1 | 12 => Some(GeoipKind::Country),
            2 | 6 | 30 | 31 => Some(GeoipKind::City),
            // Providers, organisations, networks, domains.
            4 | 5 | 9 | 11 | 21 | 22 | 23 | 24 => Some(GeoipKind::Organisation),
            _ => None,
        }
    }

    /// Whether the nodes are those of IPv6 addresses.
    fn is_ipv6(&self) -> bool {
        matches!(self.edition, 12 | 21 | 22 | 23 | 24 | 30 | 31)
    }

    /// The country of an address in a database of countries.
    pub(crate) fn country(&self, address: Option<IpAddr>) -> Option<&'static Country> {
        let number = self.find(address)?.checked_sub(FIRST_COUNTRY)?;
        // 0 is the entry of addresses that are in no country.
        let country = Country::numbered(usize::try_from(number).ok()?);
        country.filter(|_| number > 0)
    }

    /// What a database of cities has of an address.
    pub(crate) fn city(&self, address: Option<IpAddr>) -> Option<CityRecord> {
        let mut at = self.record(address)?;
        let country = Country::numbered(usize::from(*self.content.get(at)?))?;
        at += 1;
        let mut texts = [const { Vec::new() }; 3];
        for text in &mut texts {
            *text = self.text(at, usize::MAX)?.to_vec();
            at += text.len() + 1;
        }
        let [region, city, postal_code] = texts;
        // Ten thousandths of a degree, from 180 degrees west or south.
        let degrees = |at| Some((f64::from(self.number(at, 3)?) / 10_000.0 - 180.0) as f32);
        let (latitude, longitude) = (degrees(at)?, degrees(at + 3)?);
        let has_codes = matches!(self.edition, 2 | 30) && country.code == "US";
        let codes = match has_codes {
            true => self.number(at + 6, 3)?,
            false => 0,
        };
        Some(CityRecord {
            country,
            region,
            city,
            postal_code,
            latitude,
            longitude,
            dma_code: codes / 1000,
            area_code: codes % 1000,
        })
    }

    /// The name that a database of organisations has for an address.
    pub(crate) fn organisation(&self, address: Option<IpAddr>) -> Option<&[u8]> {
        self.text(self.record(address)?, LONGEST_NAME)
    }

    /// Where the record of an address begins. The value of an address without one is the number of nodes.
    fn record(&self, address: Option<IpAddr>) -> Option<usize> {
        let beyond = self.find(address)?.checked_sub(self.nodes)?;
        let nodes = usize::try_from(self.nodes)
            .ok()?
            .checked_mul(2 * self.width)?;
        nodes
            .checked_add(usize::try_from(beyond).ok()?)
            .filter(|_| beyond > 0)
    }

    /// The value that the bits of an address lead to. A client without an address, and one with an IPv6 address that
    /// is not in an IPv4 database, counts as nginx counts it.
    fn find(&self, address: Option<IpAddr>) -> Option<u32> {
        let (bits, count) = match self.is_ipv6() {
            true => (u128::from(ipv6(address)), 128),
            false => (u128::from(u32::from(ipv4(address))), 32),
        };
        let mut node = 0;
        for bit in (0..count).rev() {
            let side = usize::from(bits >> bit & 1 == 1);
            let at = usize::try_from(node)
                .ok()?
                .checked_mul(2)?
                .checked_add(side)?;
            node = self.number(at.checked_mul(self.width)?, self.width)?;
            if node >= self.nodes {
                return Some(node);
            }
        }
        None
    }

    /// The number of this many bytes.
    fn number(&self, at: usize, width: usize) -> Option<u32> {
        let bytes = self.content.get(at..at.checked_add(width)?)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u32::from(*byte)),
        )
    }

    /// The text up to its NUL, which must be in the file.
    fn text(&self, at: usize, longest: usize) -> Option<&[u8]> {
        let rest = self.content.get(at..)?;
        let rest = &rest[..rest.len().min(longest.saturating_add(1))];
        Some(&rest[..rest.iter().position(|byte| *byte == 0)?])
    }
}

fn ipv4(address: Option<IpAddr>) -> Ipv4Addr {
    match address {
        Some(IpAddr::V4(address)) => address,
        Some(IpAddr::V6(address)) => address.to_ipv4_mapped().unwrap_or(Ipv4Addr::BROADCAST),
        None => Ipv4Addr::BROADCAST,
    }
}

fn ipv6(address: Option<IpAddr>) -> Ipv6Addr {
    match address {
        Some(IpAddr::V4(address)) => address.to_ipv6_mapped(),
        Some(IpAddr::V6(address)) => address,
        None => Ipv6Addr::UNSPECIFIED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database whose nodes all lead to the same value.
    fn flat(value: u32, edition: u8, nodes: u32, records: &[u8]) -> Vec<u8> {
        let mut content = Vec::new();
        for _ in 0..2 * nodes {
            content.extend(&value.to_le_bytes()[..3]);
        }
        content.extend(records);
        content.extend([0xff, 0xff, 0xff, edition]);
        content.extend(&nodes.to_le_bytes()[..3]);
        content
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn countries_are_what_is_left_of_the_value() {
        let mut content = flat(FIRST_COUNTRY + 56, 106, 1, &[]);
        let database = LegacyDatabase::new(content.clone()).expect("a database");
        assert_eq!(database.edition(), 1);
        let country = database.country(address("192.0.2.1")).expect("a country");
        assert_eq!((country.code, country.name), ("DE", "Germany"));
        content[..6].copy_from_slice(&[0, 0xff, 0xff, 0, 0xff, 0xff]);
        let database = LegacyDatabase::new(content).expect("a database");
        assert!(database.country(address("192.0.2.1")).is_none());
    }

    #[test]
    fn cities_have_codes_in_the_united_states_only() {
        let record = |country: u8| {
            let mut record = vec![0, country];
            record.extend(b"CA\0Somewhere\094043\0");
            record.extend(&2_174_000_u32.to_le_bytes()[..3]);
            record.extend(&578_001_u32.to_le_bytes()[..3]);
            record.extend(&807_650_u32.to_le_bytes()[..3]);
            LegacyDatabase::new(flat(2, 2, 1, &record))
                .expect("a database")
                .city(address("192.0.2.1"))
        };
        let city = record(225).expect("a record");
        assert_eq!((city.latitude, city.longitude), (37.4, -122.1999));
        assert_eq!((city.dma_code, city.area_code), (807, 650));
        assert_eq!(
            (&city.city[..], &city.postal_code[..]),
            (&b"Somewhere"[..], &b"94043"[..])
        );
        let city = record(56).expect("a record");
        assert_eq!((city.dma_code, city.area_code), (0, 0));
    }

    /// Whatever the file: no panic, no endless walk, and nothing from outside it.
    #[test]
    fn no_file_is_trusted() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let rounds = 40_000;
        for round in 0..rounds {
            let length = random() as usize % 120;
            let mut content: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            if round % 4 != 0 {
                let nodes = random() as u32 % 12;
                let value = nodes + random() as u32 % 40;
                content = flat(value, (random() % 40) as u8, nodes, &content);
                for _ in 0..random() % 6 {
                    let at = random() as usize % content.len();
                    content[at] = random() as u8;
                }
                content.truncate(content.len() - random() as usize % 3);
            }
            let Some(database) = LegacyDatabase::new(content) else {
                continue;
            };
            for address in [
                None,
                address("0.0.0.0"),
                address("203.0.113.77"),
                address("2001:db8::1"),
            ] {
                let _ = (database.country(address), database.city(address));
                let name = database.organisation(address);
                assert!(name.is_none_or(|name| name.len() <= LONGEST_NAME));
            }
        }
    }
}
