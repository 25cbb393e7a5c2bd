//! The local certificate authority of `weir serve --tls`. It is created once per user, and signs a
//! certificate for this machine at each start.
//!
//! A browser that trusts the authority trusts everyone who has its key. So its certificate limits
//! it to this machine and to private networks (name constraints, RFC 5280, section 4.2.1.10), and
//! the key is readable by its user alone.
//!
//! ```text
//! $XDG_DATA_HOME/weir/authority.crt    what a browser is told to trust
//! $XDG_DATA_HOME/weir/authority.key
//! ```

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use proto::date::TimeZone;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rt::file::modes;

const SECONDS_OF_A_DAY: i64 = 86_400;
/// Lifetimes in days. Browsers accept no server certificate that is valid for longer than 398 days;
/// the authority lives longer, because trusting it is manual work.
const LIFE_OF_AUTHORITY: i64 = 3650;
const LIFE_OF_CERTIFICATE: i64 = 397;

/// What the name constraints permit: this machine, `.local` names, and the private and link-local
/// networks (RFC 1918, RFC 3927, RFC 4193).
const NAMES: [&str; 2] = ["localhost", "local"];
const NETWORKS: [(Ipv4Addr, u8); 5] = [
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
];
const NETWORKS_6: [(Ipv6Addr, u8); 3] = [
    (Ipv6Addr::LOCALHOST, 128),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
];

/// The directory for this user's data that outlives the process, as the XDG Base Directory
/// Specification has it.
pub(crate) fn data_folder() -> Result<PathBuf, String> {
    let folder = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let data = folder("XDG_DATA_HOME").or_else(|| Some(folder("HOME")?.join(".local/share")));
    let data = data.filter(|data| modes::could_make(data).is_ok());
    let data = data.ok_or("there is no directory for the keys; set XDG_DATA_HOME")?;
    let folder = data.join("weir");
    modes::make_folders(&folder, modes::PRIVATE_FOLDER)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    Ok(folder)
}

/// What a certificate is issued for.
pub(crate) struct CertificateNames {
    /// Addresses of this machine. Public ones are left out, because the name constraints exclude
    /// them.
    pub(crate) addresses: Vec<IpAddr>,
    /// The machine's name.
    pub(crate) host: Option<String>,
}

/// Writes a certificate and its key into `folder`, signed by the authority in `data`, which is
/// created if it does not exist. Returns the path of the authority's certificate.
pub(crate) fn issue(
    data: &Path,
    names: &CertificateNames,
    folder: &Path,
) -> Result<PathBuf, String> {
    let (certificate, key) = (data.join("authority.crt"), data.join("authority.key"));
    let text = |error: rcgen::Error| format!("the local authority cannot sign: {error}");
    let now = now();
    let key_pair = match std::fs::read_to_string(&key) {
        Ok(pem) => {
            // A damaged key is never replaced silently: every browser that trusts the old authority would have to
            // be told again.
            let unusable = |error| format!("{}: {error}; remove it", key.display());
            KeyPair::from_pem(&pem).map_err(unusable)?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key_pair = KeyPair::generate().map_err(text)?;
            write_file(&key, &key_pair.serialize_pem(), modes::PRIVATE_FILE)?;
            key_pair
        }
        Err(error) => return Err(format!("{}: {error}", key.display())),
    };
    // The certificate is derived from the key anew each time, so only the key has to be kept.
    let params = authority_params(&key_pair, now);
    // Written once: a browser identifies the authority by this file, and another date in it would make it look like
    // a new one.
    if !certificate.exists() {
        let own = params.self_signed(&key_pair).map_err(text)?;
        write_file(&certificate, &own.pem(), modes::PUBLIC_FILE)?;
    }
    // A new key for each start: only the authority's key has to last.
    let leaf_key = KeyPair::generate().map_err(text)?;
    let issuer = Issuer::new(params, key_pair);
    let leaf = leaf_params(names, now).map_err(text)?;
    let leaf = leaf.signed_by(&leaf_key, &issuer).map_err(text)?;
    write_file(&folder.join("serve.crt"), &leaf.pem(), modes::PRIVATE_FILE)?;
    write_file(
        &folder.join("serve.key"),
        &leaf_key.serialize_pem(),
        modes::PRIVATE_FILE,
    )?;
    Ok(certificate)
}

/// The authority's own certificate. Its name contains a part of the key, so that two authorities
/// can be told apart in a browser's list.
fn authority_params(key: &KeyPair, now: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let tail = key.public_key_raw().iter().rev().take(4);
    let mark: String = tail.map(|byte| format!("{byte:02x}")).collect();
    let name = format!("Weir local authority {mark}");
    params.distinguished_name.push(DnType::CommonName, name);
    // No intermediate authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let names = NAMES.map(|name| GeneralSubtree::DnsName(name.to_owned()));
    let networks = NETWORKS.map(|(ip, bits)| (IpAddr::V4(ip), bits));
    let networks_6 = NETWORKS_6.map(|(ip, bits)| (IpAddr::V6(ip), bits));
    let subnet = |(ip, bits)| GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(ip, bits));
    let subnets = networks.into_iter().chain(networks_6).map(subnet);
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: names.into_iter().chain(subnets).collect(),
        excluded_subtrees: Vec::new(),
    });
    set_validity(&mut params, now, LIFE_OF_AUTHORITY);
    params
}

/// The server's certificate: the name under which multicast DNS announces this machine, and its
/// addresses.
fn leaf_params(names: &CertificateNames, now: i64) -> Result<CertificateParams, rcgen::Error> {
    let mut all = vec!["localhost".to_owned(), "127.0.0.1".into(), "::1".into()];
    // A name that is no DNS label would make the certificate invalid as a whole.
    let is_label = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let host = names
        .host
        .as_deref()
        .and_then(|host| host.split('.').next());
    if let Some(host) = host.filter(|host| !host.is_empty() && host.chars().all(is_label)) {
        all.push(format!("{}.local", host.to_ascii_lowercase()));
    }
    let addresses = names.addresses.iter().filter(|ip| is_permitted(**ip));
    all.extend(addresses.map(IpAddr::to_string));
    // An address may be listed twice, such as a loopback address that was added above.
    all.sort();
    all.dedup();
    let mut params = CertificateParams::new(all)?;
    params
        .distinguished_name
        .push(DnType::CommonName, "weir serve");
    // No key encipherment: TLS 1.3, and the ECDHE suites of TLS 1.2, only sign with this key.
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now, LIFE_OF_CERTIFICATE);
    Ok(params)
}

/// Whether the name constraints cover the address. A certificate with one other address would be
/// rejected as a whole.
fn is_permitted(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Sets the validity, from yesterday on, since clocks differ.
fn set_validity(params: &mut CertificateParams, now: i64, days: i64) {
    let date = |days: i64| {
        let mut text = Vec::new();
        proto::date::write_iso8601(now + days * SECONDS_OF_A_DAY, &TimeZone::UTC, &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut parts = text.splitn(3, '-');
        let mut part = |len: usize| {
            let digits = parts.next().and_then(|part| part.get(..len));
            digits
                .and_then(|digits| digits.parse::<u16>().ok())
                .unwrap_or(1)
        };
        let (year, month, day) = (part(4), part(2), part(2));
        let small = |number: u16| u8::try_from(number).unwrap_or(1);
        rcgen::date_time_ymd(i32::from(year), small(month), small(day))
    };
    // One day is added at the start and taken off at the end, so that the lifetime stays within the browsers'
    // limit.
    params.not_before = date(-1);
    params.not_after = date(days - 1);
}

fn now() -> i64 {
    let now = rt::clock::read_wall().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

/// Writes a file. A new one has this mode from its first moment: other users cannot read a key in
/// between.
pub(crate) fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let mut options = std::fs::OpenOptions::new();
    let opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()))
}
