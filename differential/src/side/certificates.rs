//! The certificates that cases may name, as `%%TLS%%/NAME.crt` and `.key`. Made once in a run of the machine.
//!
//! | name | what it is |
//! |---|---|
//! | `ca`, `other` | two authorities that know nothing of each other; `cas.crt` has both |
//! | `middle` | an authority below `ca` |
//! | `a`, `b` | servers, `a.example`, and `b.example` with `*.b.example` |
//! | `rsa` | `a.example` with an RSA key |
//! | `client` | a client of `ca` |
//! | `deep` | a client of `middle`; `deep.crt` holds the chain, `bare.crt` the certificate alone |
//! | `stranger`, `self` | clients of `other`, and of nobody |
//! | `old`, `revoked` | clients of `ca`: of the past, and in `revoked.crl` |
//! | `server-only` | a client of `ca` whose certificate is for servers |
//!
//! `cas.crl` has lists of `ca` and `middle`, `revoked.crl` that of `ca` alone; `staple.der` is an OCSP response that says no more
//! than that there is none.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, Error, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PKCS_RSA_SHA256, RevokedCertParams, RsaKeySize, SerialNumber, date_time_ymd,
};

/// A name with its certificates and its key, in PEM.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) certificates: String,
    pub(super) key: String,
}

struct Made {
    pairs: Vec<Pair>,
    /// Other files: lists and the like.
    files: Vec<(&'static str, Vec<u8>)>,
}

/// Made once: a machine that ends leaves none behind.
fn made() -> Option<&'static Made> {
    static MADE: OnceLock<Option<Made>> = OnceLock::new();
    MADE.get_or_init(|| make().ok()).as_ref()
}

/// All of them.
pub(super) fn pairs() -> &'static [Pair] {
    made().map_or(&[], |made| &made.pairs)
}

/// Writes all of them into a folder.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    let made = made().ok_or_else(|| io::Error::other("no certificates could be made"))?;
    fs::create_dir_all(folder)?;
    for pair in &made.pairs {
        fs::write(
            folder.join(format!("{}.crt", pair.name)),
            &pair.certificates,
        )?;
        fs::write(folder.join(format!("{}.key", pair.name)), &pair.key)?;
    }
    for (name, bytes) in &made.files {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

fn named(common: &str, names: &[&str]) -> Result<CertificateParams, Error> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Machine, \"quoted\"");
    params.distinguished_name.push(DnType::CommonName, common);
    Ok(params)
}

fn authority(common: &str) -> Result<CertificateParams, Error> {
    let mut params = named(common, &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    Ok(params)
}

/// The list of an authority, with this certificate.
fn list(issuer: &Issuer<'_, KeyPair>, revoked: Option<&SerialNumber>) -> Result<String, Error> {
    let revoked = revoked.map(|serial| RevokedCertParams {
        serial_number: serial.clone(),
        revocation_time: date_time_ymd(2020, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(2090, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.into_iter().collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(issuer)?.pem()
}

/// Servers and clients with keys of their own: name, certificate and key.
fn leaves(
    ca: &Issuer<'_, KeyPair>,
    other: &Issuer<'_, KeyPair>,
    middle: &Issuer<'_, KeyPair>,
) -> Result<Vec<(&'static str, String, String)>, Error> {
    let all: [(&str, &[&str], &Issuer<'_, KeyPair>); 7] = [
        ("a", &["a.example"], ca),
        ("b", &["b.example", "*.b.example"], ca),
        ("client", &["client.example"], ca),
        ("deep", &["deep.example"], middle),
        ("stranger", &[], other),
        ("old", &[], ca),
        ("server-only", &[], ca),
    ];
    let mut made = Vec::new();
    for (name, names, issuer) in all {
        let key = KeyPair::generate()?;
        let mut params = named(name, names)?;
        match name {
            "old" => {
                (params.not_before, params.not_after) =
                    (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
            }
            "server-only" => params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth],
            _ => {}
        }
        let certificate = params.signed_by(&key, issuer)?.pem();
        made.push((name, certificate, key.serialize_pem()));
    }
    Ok(made)
}

fn make() -> Result<Made, Error> {
    let ca = CertifiedIssuer::self_signed(authority("ca")?, KeyPair::generate()?)?;
    let other = CertifiedIssuer::self_signed(authority("other")?, KeyPair::generate()?)?;
    let middle = CertifiedIssuer::signed_by(authority("middle")?, KeyPair::generate()?, &ca)?;
    let authorities = [
        ("ca", ca.pem()),
        ("other", other.pem()),
        ("middle", middle.pem()),
    ];
    let mut pairs: Vec<Pair> = Vec::new();
    let mut add = |name: &str, certificates: String, key: String| {
        pairs.push(Pair {
            name: name.to_owned(),
            certificates,
            key,
        });
    };
    for (name, certificate) in &authorities {
        add(name, certificate.clone(), String::new());
    }
    add("cas", format!("{}{}", ca.pem(), other.pem()), String::new());
    for (name, certificate, key) in leaves(&ca, &other, &middle)? {
        if name == "deep" {
            add("bare", certificate.clone(), key.clone());
            add(name, format!("{certificate}{}", middle.pem()), key);
        } else {
            add(name, certificate, key);
        }
    }
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?;
    let rsa = named("rsa", &["a.example"])?.signed_by(&key, &ca)?;
    add("rsa", rsa.pem(), key.serialize_pem());
    let key = KeyPair::generate()?;
    add(
        "self",
        named("self", &[])?.self_signed(&key)?.pem(),
        key.serialize_pem(),
    );
    let key = KeyPair::generate()?;
    let mut params = named("revoked", &[])?;
    let serial = SerialNumber::from(77_u64);
    params.serial_number = Some(serial.clone());
    add(
        "revoked",
        params.signed_by(&key, &ca)?.pem(),
        key.serialize_pem(),
    );
    let of_ca = list(&ca, Some(&serial))?;
    let of_middle = list(&middle, None)?;
    let files = vec![
        ("cas.crl", format!("{of_ca}{of_middle}").into_bytes()),
        ("revoked.crl", of_ca.into_bytes()),
        // OCSPResponse with the status `tryLater` (RFC 6960, section 4.2.1).
        ("staple.der", vec![0x30, 3, 0x0a, 1, 3]),
        ("ticket.key", b"0123456789abcdef".repeat(5)),
    ];
    Ok(Made { pairs, files })
}
