//! Which protocol versions, cipher suites and groups are allowed, in OpenSSL's notation.
//!
//! The notation comes from a time with hundreds of cipher suites. Nine are supported here, which are those that a
//! server should use today. A configuration that names others keeps working with the rest of its list, and a
//! warning names what is not available.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{cipher_suite as suite, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::config_error::TlsConfigError;
use super::names;
use super::provider::provider;

/// The versions of TLS that are enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsProtocols {
    /// Version 1.2.
    pub tls12: bool,
    /// Version 1.3.
    pub tls13: bool,
}

impl Default for TlsProtocols {
    fn default() -> TlsProtocols {
        TlsProtocols {
            tls12: true,
            tls13: true,
        }
    }
}

impl TlsProtocols {
    /// The words of `ssl_protocols`, oldest first: the index is the number of their bit.
    pub const WORDS: &'static [&'static str] =
        &["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];

    /// The index of a version in [`Self::WORDS`], named as OpenSSL's commands do; `None` in their sense is the
    /// oldest.
    pub fn version_index(word: &str) -> Option<usize> {
        if word.eq_ignore_ascii_case("none") {
            return Some(0);
        }
        let mut words = Self::WORDS.iter();
        words.position(|known| known.eq_ignore_ascii_case(word))
    }

    /// Applies OpenSSL's command `Protocol` to a set of [`Self::WORDS`]; `None` if it names an unknown version.
    pub fn apply_protocol_command(text: &str, mut bits: u32) -> Option<u32> {
        for word in text.split(',').map(str::trim) {
            let (on, word) = match word.strip_prefix('-') {
                Some(word) => (false, word),
                None => (true, word.strip_prefix('+').unwrap_or(word)),
            };
            let named = match word {
                "ALL" => (1 << Self::WORDS.len()) - 1,
                word => 1 << Self::version_index(word)?,
            };
            bits = match on {
                true => bits | named,
                false => bits & !named,
            };
        }
        Some(bits)
    }

    /// The versions as a set of [`Self::WORDS`].
    pub fn bits(self) -> u32 {
        u32::from(self.tls12) << 4 | u32::from(self.tls13) << 5
    }

    /// The versions that a set of [`Self::WORDS`] contains and that are supported.
    pub fn from_bits(bits: u32) -> TlsProtocols {
        TlsProtocols {
            tls12: bits & 1 << 4 != 0,
            tls13: bits & 1 << 5 != 0,
        }
    }

    /// The words of a set that name versions which are not supported (RFC 8996 deprecates them).
    pub fn unsupported_versions(bits: u32) -> Vec<&'static str> {
        let old = Self::WORDS[..4].iter().enumerate();
        old.filter(|(bit, _)| bits & 1 << bit != 0)
            .map(|(_, word)| *word)
            .collect()
    }

    /// Whether no version is enabled.
    pub fn is_none(self) -> bool {
        !self.tls12 && !self.tls13
    }

    pub(super) fn speaks_1_3(self) -> bool {
        self.tls13
    }

    pub(super) fn versions(self) -> Vec<&'static SupportedProtocolVersion> {
        let mut versions = Vec::new();
        if self.tls13 {
            versions.push(&rustls::version::TLS13);
        }
        if self.tls12 {
            versions.push(&rustls::version::TLS12);
        }
        versions
    }
}

/// The chosen cipher suites and groups, and the names that are not available.
#[derive(Clone)]
pub struct CipherChoice {
    tls13: Vec<SupportedCipherSuite>,
    tls12: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn SupportedKxGroup>,
    /// Names in the configuration that are not available.
    pub missing: Vec<String>,
}

impl Default for CipherChoice {
    fn default() -> CipherChoice {
        CipherChoice {
            tls13: TLS13.iter().map(|(_, suite)| *suite).collect(),
            tls12: TLS12.iter().map(|entry| entry.suite).collect(),
            groups: vec![
                kx_group::X25519MLKEM768,
                kx_group::X25519,
                kx_group::SECP256R1,
                kx_group::SECP384R1,
            ],
            missing: Vec::new(),
        }
    }
}

static TLS13: [(&str, SupportedCipherSuite); 3] = [
    ("TLS_AES_256_GCM_SHA384", suite::TLS13_AES_256_GCM_SHA384),
    (
        "TLS_CHACHA20_POLY1305_SHA256",
        suite::TLS13_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_AES_128_GCM_SHA256", suite::TLS13_AES_128_GCM_SHA256),
];

/// A TLS 1.2 cipher suite, with the words that select it besides its name.
struct Tls12Suite {
    name: &'static str,
    words: &'static [&'static str],
    suite: SupportedCipherSuite,
}

/// In OpenSSL's order, which is the order of preference when the list says only `HIGH`.
static TLS12: [Tls12Suite; 6] = [
    Tls12Suite {
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        words: &["ECDSA", "AECDSA", "AES", "AES256", "AESGCM", "SHA384"],
        suite: suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    },
    Tls12Suite {
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        words: &["ARSA", "AES", "AES256", "AESGCM", "SHA384"],
        suite: suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    },
    Tls12Suite {
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        words: &["ECDSA", "AECDSA", "CHACHA20"],
        suite: suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    },
    Tls12Suite {
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        words: &["ARSA", "CHACHA20"],
        suite: suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    },
    Tls12Suite {
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        words: &["ECDSA", "AECDSA", "AES", "AES128", "AESGCM", "SHA256"],
        suite: suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    },
    Tls12Suite {
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        words: &["ARSA", "AES", "AES128", "AESGCM", "SHA256"],
        suite: suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    },
];

/// Words that select all six TLS 1.2 suites.
const ALL: [&str; 13] = [
    "HIGH",
    "ALL",
    "DEFAULT",
    "TLSV1.2",
    "ECDHE",
    "EECDH",
    "KECDHE",
    "KEECDH",
    "ECDH",
    "AEAD",
    "FIPS",
    "TLSV1.0",
    "SUITEB128",
];

/// Words that select only suites which are not available. They give no warning: lists mostly have them to exclude
/// such suites (`!aNULL:!MD5`).
const NONE: [&str; 52] = [
    "MEDIUM",
    "LOW",
    "EXP",
    "EXPORT",
    "EXPORT40",
    "EXPORT56",
    "ANULL",
    "ENULL",
    "NULL",
    "COMPLEMENTOFALL",
    "COMPLEMENTOFDEFAULT",
    "KRSA",
    "RSA",
    "DH",
    "DHE",
    "EDH",
    "KDHE",
    "KEDH",
    "ADH",
    "AECDH",
    "KDH",
    "ADSS",
    "DSS",
    "DES",
    "3DES",
    "RC4",
    "RC2",
    "MD5",
    "SHA",
    "SHA1",
    "IDEA",
    "SEED",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "ARIA",
    "ARIA128",
    "ARIA256",
    "ARIAGCM",
    "PSK",
    "KPSK",
    "APSK",
    "KECDHEPSK",
    "KDHEPSK",
    "KRSAPSK",
    "SRP",
    "GOST",
    "SSLV2",
    "SSLV3",
    "TLSV1",
    "AESCCM",
    "AESCCM8",
];

impl CipherChoice {
    /// Parses `ssl_ciphers`, which chooses and orders the suites of TLS 1.2. As in OpenSSL, those of 1.3 are not
    /// affected.
    pub fn set_ciphers(&mut self, text: &str) -> Result<(), TlsConfigError> {
        let mut chosen: Vec<&'static Tls12Suite> = Vec::new();
        let mut killed: Vec<&'static str> = Vec::new();
        let mut any_known = false;
        for token in text
            .split([':', ',', ' ', ';'])
            .filter(|token| !token.is_empty())
        {
            // `@STRENGTH` and `@SECLEVEL=…`: the available suites are all strong enough.
            let token = token.split('@').next().unwrap_or_default();
            if token.is_empty() {
                any_known = true;
                continue;
            }
            let (sign, words) = match token.as_bytes()[0] {
                sign @ (b'!' | b'-' | b'+') => (sign, &token[1..]),
                _ => (0, token),
            };
            let selected = select(words);
            let Some(selected) = selected else {
                // An excluded name that is unknown needs no warning.
                if sign == 0 && !words.is_empty() {
                    self.missing.push(words.to_owned());
                }
                any_known |= names_known(words);
                continue;
            };
            any_known = true;
            if selected.is_empty() && sign == 0 && words.contains('-') {
                self.missing.push(words.to_owned());
            }
            let is_selected = |entry: &Tls12Suite| selected.iter().any(|s| s.name == entry.name);
            match sign {
                b'!' => {
                    // `!` is final: a later token cannot bring the suite back. `-` only removes it for now.
                    killed.extend(selected.iter().map(|entry| entry.name));
                    chosen.retain(|entry| !is_selected(entry));
                }
                b'-' => chosen.retain(|entry| !is_selected(entry)),
                b'+' => {
                    let (moved, mut kept): (Vec<_>, Vec<_>) =
                        chosen.into_iter().partition(|entry| is_selected(entry));
                    kept.extend(moved);
                    chosen = kept;
                }
                _ => {
                    for entry in selected {
                        let known = chosen.iter().any(|known| known.name == entry.name);
                        if !known && !killed.contains(&entry.name) {
                            chosen.push(entry);
                        }
                    }
                }
            }
        }
        // OpenSSL's rule: an error only if not a single word means anything.
        if !any_known {
            return Err(TlsConfigError::new(format!(
                "SSL_CTX_set_cipher_list(\"{text}\") failed (SSL: error:0A0000B9:SSL routines::no cipher match)"
            )));
        }
        self.tls12 = chosen.iter().map(|entry| entry.suite).collect();
        Ok(())
    }

    /// Drops the warnings about finite-field Diffie-Hellman: wherever ECDHE is available, such suites are in lists
    /// only for clients that no longer exist.
    pub fn forget_needless(&mut self) {
        if self.has_tls12() {
            self.missing.retain(|name| !name.starts_with("DHE-"));
        }
    }

    /// Parses a list of TLS 1.3 suites (`ssl_conf_command Ciphersuites`).
    pub fn set_ciphersuites(&mut self, text: &str) -> Result<(), TlsConfigError> {
        let mut chosen = Vec::new();
        for name in text.split([':', ',', ' ']).filter(|name| !name.is_empty()) {
            match TLS13
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
            {
                Some((_, suite)) => chosen.push(*suite),
                None if names_known(name) => self.missing.push(name.to_owned()),
                None => {
                    return Err(TlsConfigError::new(format!(
                        "SSL_CONF_cmd(\"Ciphersuites\", \"{text}\") failed (SSL: error:0A0000B9:SSL routines::no cipher match)"
                    )));
                }
            }
        }
        self.tls13 = chosen;
        Ok(())
    }

    /// Parses `ssl_ecdh_curve`.
    pub fn set_curves(&mut self, text: &str) -> Result<(), TlsConfigError> {
        if text == "auto" {
            return Ok(());
        }
        let mut groups: Vec<&'static dyn SupportedKxGroup> = Vec::new();
        for name in text.split([':', ',', '/']).filter(|name| !name.is_empty()) {
            // OpenSSL 3.5: `?` ignores an unknown group, `*` asks for a key share, which the library chooses by
            // itself.
            let (optional, bare) = match name.strip_prefix('?') {
                Some(bare) => (true, bare),
                None => (false, name.trim_start_matches('*')),
            };
            match group(bare) {
                Some(Some(group)) => groups.push(group),
                Some(None) => self.missing.push(bare.to_owned()),
                None if optional => {}
                None => {
                    return Err(TlsConfigError::new(format!(
                        "SSL_CTX_set1_curves_list(\"{text}\") failed (SSL: error:0A0000AE:SSL routines::unsupported elliptic curve)"
                    )));
                }
            }
        }
        // All names are known but none is available: better refused at the start than in every handshake.
        if groups.is_empty() {
            return Err(TlsConfigError::new(format!(
                "none of the curves \"{text}\" is supported"
            )));
        }
        self.groups = groups;
        Ok(())
    }

    /// The enabled versions that have at least one suite.
    pub(super) fn usable(&self, protocols: TlsProtocols) -> TlsProtocols {
        TlsProtocols {
            tls12: protocols.tls12 && !self.tls12.is_empty(),
            tls13: protocols.tls13 && !self.tls13.is_empty(),
        }
    }

    /// Whether suites of TLS 1.2 were chosen.
    pub fn has_tls12(&self) -> bool {
        !self.tls12.is_empty()
    }

    /// The numbers of the cipher suites and of the groups.
    pub(super) fn numbers(&self) -> (Vec<u16>, Vec<u16>) {
        let suites = self.tls13.iter().chain(&self.tls12);
        let suites = suites.map(|suite| u16::from(suite.suite()));
        let groups = self.groups.iter().map(|group| u16::from(group.name()));
        (suites.collect(), groups.collect())
    }

    /// The cryptography provider, limited to these suites and groups.
    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        let mut provider = CryptoProvider::clone(provider());
        provider.cipher_suites = [&self.tls13[..], &self.tls12[..]].concat();
        provider.kx_groups = self.groups.clone();
        Arc::new(provider)
    }
}

/// The suites selected by words joined with `+`; `None` if a word is unknown.
fn select(words: &str) -> Option<Vec<&'static Tls12Suite>> {
    if let Some(entry) = TLS12
        .iter()
        .find(|entry| entry.name.eq_ignore_ascii_case(words))
    {
        return Some(vec![entry]);
    }
    let mut selected: Vec<&'static Tls12Suite> = TLS12.iter().collect();
    for word in words.split('+') {
        let word = word.to_ascii_uppercase();
        if ALL.contains(&word.as_str()) {
            continue;
        }
        if NONE.contains(&word.as_str()) {
            selected.clear();
            continue;
        }
        let meant = TLS12
            .iter()
            .any(|entry| entry.words.contains(&word.as_str()));
        if !meant {
            return None;
        }
        selected.retain(|entry| entry.words.contains(&word.as_str()));
    }
    Some(selected)
}

/// Whether OpenSSL would know the name: then it is missing here, and otherwise a typing error.
fn names_known(name: &str) -> bool {
    names::is_cipher(name) || name.contains("WITH") || name.starts_with("TLS_")
}

/// A group by its name; `Some(None)`: OpenSSL has it, and it is not available here.
fn group(name: &str) -> Option<Option<&'static dyn SupportedKxGroup>> {
    let name = name.to_ascii_lowercase();
    Some(match name.as_str() {
        "x25519" => Some(kx_group::X25519),
        "prime256v1" | "secp256r1" | "p-256" => Some(kx_group::SECP256R1),
        "secp384r1" | "p-384" => Some(kx_group::SECP384R1),
        "x25519mlkem768" => Some(kx_group::X25519MLKEM768),
        "secp256r1mlkem768" => Some(kx_group::SECP256R1MLKEM768),
        "mlkem768" => Some(kx_group::MLKEM768),
        "mlkem1024" => Some(kx_group::MLKEM1024),
        "secp521r1"
        | "p-521"
        | "x448"
        | "mlkem512"
        | "secp384r1mlkem1024"
        | "x448mlkem1024"
        | "ffdhe2048"
        | "ffdhe3072"
        | "ffdhe4096"
        | "ffdhe6144"
        | "ffdhe8192"
        | "secp224r1"
        | "p-224"
        | "secp256k1"
        | "brainpoolp256r1"
        | "brainpoolp384r1"
        | "brainpoolp512r1"
        | "brainpoolp256r1tls13"
        | "brainpoolp384r1tls13"
        | "brainpoolp512r1tls13"
        | "default" => None,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str) -> (Vec<&'static str>, Vec<String>) {
        let mut choice = CipherChoice::default();
        choice.set_ciphers(text).expect("a list of ciphers");
        let names = choice.tls12.iter().map(|suite| {
            let entry = TLS12
                .iter()
                .find(|entry| entry.suite.suite() == suite.suite());
            entry.expect("a suite of the table").name
        });
        (names.collect(), choice.missing)
    }

    #[test]
    fn usual_lists() {
        assert_eq!(chosen("HIGH:!aNULL:!MD5").0.len(), 6);
        assert_eq!(chosen("DEFAULT@SECLEVEL=0").0.len(), 6);
        assert_eq!(chosen("DEFAULT:@SECLEVEL=0").0.len(), 6);
        assert_eq!(chosen("EECDH+AESGCM:EDH+AESGCM").0.len(), 4);
        assert_eq!(
            chosen("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-SHA:!aNULL"),
            (
                vec!["ECDHE-RSA-AES128-GCM-SHA256"],
                vec!["ECDHE-RSA-AES128-SHA".to_owned()]
            )
        );
        assert_eq!(
            chosen("HIGH:!aRSA:+AES256").0,
            [
                "ECDHE-ECDSA-CHACHA20-POLY1305",
                "ECDHE-ECDSA-AES128-GCM-SHA256",
                "ECDHE-ECDSA-AES256-GCM-SHA384"
            ]
        );
        assert!(CipherChoice::default().set_ciphers("nonsense").is_err());
    }

    #[test]
    fn curves() {
        let mut choice = CipherChoice::default();
        choice.set_curves("X25519:secp521r1").expect("one is known");
        assert_eq!((choice.groups.len(), choice.missing.len()), (1, 1));
        assert!(choice.set_curves("nonsense").is_err());
    }
}
