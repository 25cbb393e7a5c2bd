//! `geoip2`: variables from a MaxMind database. nginx has no such module in its tree; its `geoip_*` read another format.

use weir_tests::{Server, http, skip_on_oracle, whole};

const NOT_IN_NGINX: &str = "nginx has no such module in its tree";

/// A value of a database, as the format writes it: a control byte with type and length, then the bytes.
enum Value<'a> {
    Text(&'a str),
    Short(u16),
    Number(u32),
    Long(u64),
    Double(f64),
    Bool(bool),
    Map(Vec<(&'a str, Value<'a>)>),
    List(Vec<Value<'a>>),
}

impl Value<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Text(text) => {
                match text.len() {
                    short @ ..29 => out.push(2 << 5 | short as u8),
                    long => out.extend([2 << 5 | 29, (long - 29) as u8]),
                }
                out.extend(text.bytes());
            }
            Value::Short(number) => {
                out.push(5 << 5 | 2);
                out.extend(number.to_be_bytes());
            }
            Value::Number(number) => {
                out.push(6 << 5 | 4);
                out.extend(number.to_be_bytes());
            }
            Value::Double(number) => {
                out.push(3 << 5 | 8);
                out.extend(number.to_be_bytes());
            }
            // Types above 7 are written as 0 and a byte with the type less 7.
            Value::Long(number) => {
                out.extend([8, 9 - 7]);
                out.extend(number.to_be_bytes());
            }
            Value::Bool(yes) => out.extend([u8::from(*yes), 14 - 7]),
            Value::List(values) => {
                out.extend([values.len() as u8, 11 - 7]);
                values.iter().for_each(|value| value.write(out));
            }
            Value::Map(members) => {
                out.push(7 << 5 | members.len() as u8);
                for (name, value) in members {
                    Value::Text(name).write(out);
                    value.write(out);
                }
            }
        }
    }
}

/// A database of IPv4 with a record for each first bit: 0.0.0.0/1, where 127.0.0.1 is, and nothing for 128.0.0.0/1.
pub(crate) fn database(country: &str) -> Vec<u8> {
    let mut out = Vec::new();
    // One node of two records of 24 bits: the first leads to the data (node count + 16 + offset), the second nowhere.
    out.extend([0, 0, 1 + 16, 0, 0, 1]);
    out.extend([0; 16]);
    let names = |name| Value::Map(vec![("en", Value::Text(name))]);
    Value::Map(vec![
        (
            "country",
            Value::Map(vec![
                ("iso_code", Value::Text(country)),
                ("names", names("Examplia")),
                ("geoname_id", Value::Number(42)),
                ("is_in_european_union", Value::Bool(true)),
            ]),
        ),
        (
            "location",
            Value::Map(vec![("latitude", Value::Double(48.5))]),
        ),
        (
            "subdivisions",
            Value::List(vec![Value::Map(vec![("names", names("Northshire"))])]),
        ),
    ])
    .write(&mut out);
    out.extend(b"\xab\xcd\xefMaxMind.com");
    Value::Map(vec![
        ("binary_format_major_version", Value::Short(2)),
        ("binary_format_minor_version", Value::Short(0)),
        ("build_epoch", Value::Long(1_700_000_000)),
        ("database_type", Value::Text("Test-Country")),
        ("description", names("a test")),
        ("ip_version", Value::Short(4)),
        ("languages", Value::List(vec![Value::Text("en")])),
        ("node_count", Value::Number(1)),
        ("record_size", Value::Short(24)),
    ])
    .write(&mut out);
    out
}

fn text(server: &Server, target: &str, lines: &[&str]) -> String {
    server.get_with(target, lines).expect(200).text()
}

#[test]
fn a_path_leads_through_the_record_of_the_client() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let conf = "geoip2 geo.mmdb {
            $country country iso_code; $name country names en; $id country geoname_id; $eu country is_in_european_union;
            $latitude location latitude; $part subdivisions 0 names en;
            $none default=nothing country none; $map country; $built metadata build_epoch; }
        server { listen 127.0.0.1:%%PORT%%;
            location / { return 200 '$country|$name|$id|$eu|$latitude|$part|$none|$map|$built'; } }";
    let server = http(conf).file("geo.mmdb", database("XA")).start();
    assert_eq!(
        text(&server, "/", &[]),
        "XA|Examplia|42|1|48.50000|Northshire|nothing||1700000000"
    );
}

#[test]
fn sources_and_trusted_proxies_say_whose_address_it_is() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let conf = "geoip2 geo.mmdb { $own default=ZZ country iso_code; $named default=ZZ source=$arg_ip country iso_code; }
        geoip2_proxy 127.0.0.0/8; geoip2_proxy_recursive on;
        server { listen 127.0.0.1:%%PORT%%; location / { return 200 '$own $named'; } }";
    let server = http(conf).file("geo.mmdb", database("XA")).start();
    for (target, forwarded, expected) in [
        ("/", "", "XA ZZ"),
        ("/?ip=10.0.0.1", "", "XA XA"),
        ("/?ip=200.0.0.1", "", "XA ZZ"),
        ("/?ip=2001:db8::1", "", "XA ZZ"),
        ("/?ip=junk", "X-Forwarded-For: 200.0.0.1", "ZZ ZZ"),
        (
            "/",
            "X-Forwarded-For: 10.0.0.1, 200.0.0.1, 127.0.0.1",
            "ZZ ZZ",
        ),
    ] {
        let lines: &[&str] = if forwarded.is_empty() {
            &[]
        } else {
            &[forwarded]
        };
        assert_eq!(
            text(&server, target, lines),
            expected,
            "{target} {forwarded}"
        );
    }
}

#[test]
fn a_file_that_changed_is_read_anew() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let conf = "geoip2 geo.mmdb { auto_reload 1s; $country country iso_code; }
        server { listen 127.0.0.1:%%PORT%%; location / { return 200 $country; } }";
    let server = http(conf)
        .tolerate("could not be reloaded")
        .file("geo.mmdb", database("XA"))
        .start();
    assert_eq!(text(&server, "/", &[]), "XA");
    let replace = |content: &[u8], seconds: u64| {
        let path = server.path("geo.mmdb");
        std::fs::write(&path, content).expect("the folder is ours");
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(seconds);
        let file = std::fs::File::options().append(true).open(&path);
        file.and_then(|file| file.set_modified(later))
            .expect("the file is ours");
    };
    replace(&database("XB"), 10);
    let changed = weir_tests::until(|| (text(&server, "/", &[]) == "XB").then_some(()));
    assert!(changed.is_some(), "the new file is read");
    replace(b"no database", 20);
    let told = weir_tests::until(|| {
        assert_eq!(text(&server, "/", &[]), "XB", "the old one stays");
        server
            .read("error.log")
            .contains("could not be reloaded")
            .then_some(())
    });
    assert!(told.is_some(), "the log says so");
}

#[test]
fn streams_have_it_too() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let conf = "events {} stream { geoip2 geo.mmdb { $country country iso_code; }
        server { listen 127.0.0.1:%%PORT%%; return $country; } }";
    let server = whole(conf).file("geo.mmdb", database("XA")).start();
    assert_eq!(server.connect().rest(), b"XA");
}

#[test]
fn what_is_no_database_is_named() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    for (file, variable, message) in [
        ("none.mmdb", "$a country;", "No such file or directory"),
        ("broken.mmdb", "$a country;", "cannot open database"),
        (
            "geo.mmdb",
            "$a;",
            "a path into the database's records is missing",
        ),
        ("geo.mmdb", "a country;", "invalid variable name \"a\""),
        ("geo.mmdb", "$a metadata age;", "unknown metadata \"age\""),
        (
            "geo.mmdb",
            "auto_reload often;",
            "invalid interval \"often\"",
        ),
    ] {
        let conf =
            format!("geoip2 {file} {{ {variable} }} server {{ listen 127.0.0.1:%%PORT%%; }}");
        let finished = http(&conf)
            .file("geo.mmdb", database("XA"))
            .file("broken.mmdb", "broken")
            .test();
        assert!(
            finished.code != 0 && finished.stderr.contains(message),
            "{file} {variable}: {}",
            finished.stderr
        );
    }
}
