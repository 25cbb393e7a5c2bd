//! `geoip`: variables from databases in MaxMind's old format.
//!
//! Stated about nginx too, where its module is installed.

use weir_tests::{http, skip_on_oracle, whole};

use crate::headers_more::with_modules;

const HTTP: &[&str] = &["ngx_http_geoip_module"];

/// Where values of countries begin.
const FIRST_COUNTRY: u32 = 0xff_ff00;

/// A tree that gives these values to the clients 127.0.0.0/8 and 10.0.0.0/8 and the last one to the rest of IPv4; the
/// answers are behind its nodes. The format is drawn in `crates/modules/src/shared/geoip/database.rs`.
fn tree(width: usize, values: [u32; 3]) -> Vec<u8> {
    // Eight levels for each of the two: both begin with a 0, and part at the second bit.
    let bits = |octet: u32| (0..8).rev().map(move |bit| octet >> bit & 1);
    let mut nodes = vec![[values[2]; 2]];
    for (octet, value) in [(127, values[0]), (10, values[1])] {
        let mut node = 0;
        for (level, bit) in bits(octet).enumerate() {
            let side = bit as usize;
            if level == 7 {
                nodes[node][side] = value;
                break;
            }
            if nodes[node][side] == values[2] {
                nodes.push([values[2]; 2]);
                nodes[node][side] = nodes.len() as u32 - 1;
            }
            node = nodes[node][side] as usize;
        }
    }
    let sides = nodes.iter().flatten();
    sides
        .flat_map(|value| value.to_le_bytes()[..width].to_vec())
        .collect()
}

/// The number of nodes that [`tree`] makes.
const NODES: u32 = 14;

fn marked(mut content: Vec<u8>, edition: u8) -> Vec<u8> {
    content.extend([0, 0, 0, 0xff, 0xff, 0xff, edition]);
    content
}

fn countries() -> Vec<u8> {
    let values = [56, 10, 0].map(|country| FIRST_COUNTRY + country);
    marked(tree(3, values), 106)
}

/// A database with records: at 1 that of 127.0.0.0/8, behind it that of 10.0.0.0/8.
fn records(edition: u8, width: usize, first: &[u8], second: &[u8]) -> Vec<u8> {
    let behind = NODES + 1 + first.len() as u32;
    let mut content = tree(width, [NODES + 1, behind, NODES]);
    assert_eq!(content.len(), NODES as usize * 2 * width);
    content.push(0);
    content.extend([first, second].concat());
    let mut content = marked(content, edition);
    content.extend(&NODES.to_le_bytes()[..3]);
    content
}

fn city(country: u8, texts: &[u8], numbers: [u32; 3]) -> Vec<u8> {
    let numbers = numbers
        .iter()
        .flat_map(|number| number.to_le_bytes()[..3].to_vec());
    [country]
        .into_iter()
        .chain(texts.iter().copied())
        .chain(numbers)
        .collect()
}

fn cities() -> Vec<u8> {
    let first = city(
        225,
        b"CA\0Mountain View\094043\0",
        [2_173_860, 579_161, 807_650],
    );
    let second = city(56, b"02\0M\xfcnchen\0\0", [2_281_500, 1_915_000, 0]);
    records(2, 3, &first, &second)
}

#[test]
fn countries_by_the_address_of_the_client_or_behind_a_proxy() {
    let conf = "geoip_country geo.dat; geoip_proxy 127.0.0.1;
        server { listen 127.0.0.1:%%PORT%%;
            location / { return 200 '$geoip_country_code|$geoip_country_code3|$geoip_country_name|$geoip_city'; } }";
    let Some(site) = with_modules(conf, HTTP) else {
        return;
    };
    let server = site.file("geo.dat", countries()).start();
    assert_eq!(server.get("/").expect(200).text(), "DE|DEU|Germany|");
    for (forwarded, expected) in [
        ("10.1.2.3", "CW|CUW|Curacao|"),
        ("1.1.1.1, 10.0.0.1", "CW|CUW|Curacao|"),
        ("::ffff:10.0.0.1", "CW|CUW|Curacao|"),
        ("192.0.2.1", "|||"),
        ("2001:db8::1", "|||"),
    ] {
        let line = format!("X-Forwarded-For: {forwarded}");
        let text = server.get_with("/", &[&line]).expect(200).text();
        assert_eq!(text, expected, "{forwarded}");
    }
}

#[test]
fn cities_have_places_and_codes() {
    for (parameter, name) in [("", "M\u{fffd}nchen"), (" utf8", "M\u{fc}nchen")] {
        let conf = format!(
            "geoip_city geo.dat{parameter}; geoip_proxy 127.0.0.0/8; geoip_proxy_recursive on;
            server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200
                '$geoip_city_continent_code|$geoip_city_country_code|$geoip_city_country_code3|$geoip_city_country_name|$geoip_region|$geoip_region_name|$geoip_city|$geoip_postal_code|$geoip_latitude|$geoip_longitude|$geoip_dma_code|$geoip_area_code|$geoip_org|$geoip_country_code'; }} }}"
        );
        let Some(site) = with_modules(&conf, HTTP) else {
            return;
        };
        let server = site.file("geo.dat", cities()).start();
        assert_eq!(
            server.get("/").expect(200).text(),
            "NA|US|USA|United States|CA|California|Mountain View|94043|37.3860|-122.0839|807|650||"
        );
        let lines = ["X-Forwarded-For: 10.0.0.1, 127.0.0.9"];
        let reply = server.get_with("/", &lines).expect(200);
        assert_eq!(
            String::from_utf8_lossy(&reply.body),
            format!("EU|DE|DEU|Germany|02|Bayern|{name}||48.1500|11.5000|0|0||")
        );
        let lines = ["X-Forwarded-For: 192.0.2.1"];
        let text = server.get_with("/", &lines).expect(200).text();
        assert_eq!(text, "|||||||||||||");
    }
}

#[test]
fn organisations_have_a_name_each() {
    // Organisations have four bytes a side, networks three.
    for (edition, width) in [(110, 4), (9, 3)] {
        let conf = "geoip_org geo.dat; geoip_proxy 127.0.0.1;
            server { listen 127.0.0.1:%%PORT%%; location / { return 200 '$geoip_org'; } }";
        let Some(site) = with_modules(conf, HTTP) else {
            return;
        };
        let content = records(edition, width, b"AS64496 Example\0", b"Other\0");
        let server = site.file("geo.dat", content).start();
        assert_eq!(server.get("/").expect(200).text(), "AS64496 Example");
        for (forwarded, name) in [("10.0.0.1", "Other"), ("192.0.2.1", "")] {
            let line = format!("X-Forwarded-For: {forwarded}");
            let text = server.get_with("/", &[&line]).expect(200).text();
            assert_eq!(text, name, "{edition} {forwarded}");
        }
    }
}

#[test]
fn streams_have_it_too() {
    if skip_on_oracle("its module for streams needs another one to be loaded first") {
        return;
    }
    let conf = "events {} stream { geoip_country geo.dat;
        server { listen 127.0.0.1:%%PORT%%; return $geoip_country_name; } }";
    let server = whole(conf).file("geo.dat", countries()).start();
    assert_eq!(server.connect().rest(), b"Germany");
}

#[test]
fn a_file_of_another_kind_is_refused() {
    for (line, message) in [
        ("geoip_country %%DIR%%/none.dat;", "GeoIP_open(\""),
        ("geoip_country %%DIR%%/short.dat;", "GeoIP_open(\""),
        (
            "geoip_country %%DIR%%/city.dat;",
            "invalid GeoIP database \"",
        ),
        (
            "geoip_city %%DIR%%/geo.dat;",
            "invalid GeoIP City database \"",
        ),
        ("geoip_org %%DIR%%/geo.dat;", "type:1"),
        (
            "geoip_country %%DIR%%/geo.dat latin1;",
            "invalid parameter \"latin1\"",
        ),
        (
            "geoip_country %%DIR%%/geo.dat; geoip_country geo.dat;",
            "\"geoip_country\" directive is duplicate",
        ),
    ] {
        let conf = format!("{line} server {{ listen 127.0.0.1:%%PORT%%; }}");
        let Some(site) = with_modules(&conf, HTTP) else {
            return;
        };
        let site = site.file("geo.dat", countries()).file("city.dat", cities());
        let finished = site.file("short.dat", "no").run(&["-t"]);
        let told = finished.code != 0 && finished.stderr.contains(message);
        assert!(told, "{line}: {}", finished.stderr);
    }
}

#[test]
fn without_a_database_the_variables_are_free() {
    if skip_on_oracle("with the module built in, its variables cannot be defined") {
        return;
    }
    let conf = "map $arg_from $geoip_country_code { default ZZ; de DE; }
        server { listen 127.0.0.1:%%PORT%%; location / { return 200 '$geoip_country_code|$geoip_city'; } }";
    let server = http(conf).start();
    assert_eq!(server.get("/?from=de").expect(200).text(), "DE|");
}
