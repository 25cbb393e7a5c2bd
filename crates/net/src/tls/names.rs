//! OpenSSL's names of cipher suites, groups and signature schemes, which configurations, variables and logs use.

/// Cipher suites that clients offer, with their names. Most are not supported here; variables show them all the
/// same.
const CIPHERS: [(u16, &str); 58] = [
    (0x1301, "TLS_AES_128_GCM_SHA256"),
    (0x1302, "TLS_AES_256_GCM_SHA384"),
    (0x1303, "TLS_CHACHA20_POLY1305_SHA256"),
    (0x1304, "TLS_AES_128_CCM_SHA256"),
    (0x1305, "TLS_AES_128_CCM_8_SHA256"),
    (0xc02b, "ECDHE-ECDSA-AES128-GCM-SHA256"),
    (0xc02c, "ECDHE-ECDSA-AES256-GCM-SHA384"),
    (0xc02f, "ECDHE-RSA-AES128-GCM-SHA256"),
    (0xc030, "ECDHE-RSA-AES256-GCM-SHA384"),
    (0xcca8, "ECDHE-RSA-CHACHA20-POLY1305"),
    (0xcca9, "ECDHE-ECDSA-CHACHA20-POLY1305"),
    (0xccaa, "DHE-RSA-CHACHA20-POLY1305"),
    (0xc009, "ECDHE-ECDSA-AES128-SHA"),
    (0xc00a, "ECDHE-ECDSA-AES256-SHA"),
    (0xc013, "ECDHE-RSA-AES128-SHA"),
    (0xc014, "ECDHE-RSA-AES256-SHA"),
    (0xc023, "ECDHE-ECDSA-AES128-SHA256"),
    (0xc024, "ECDHE-ECDSA-AES256-SHA384"),
    (0xc027, "ECDHE-RSA-AES128-SHA256"),
    (0xc028, "ECDHE-RSA-AES256-SHA384"),
    (0xc0ac, "ECDHE-ECDSA-AES128-CCM"),
    (0xc0ad, "ECDHE-ECDSA-AES256-CCM"),
    (0xc0ae, "ECDHE-ECDSA-AES128-CCM8"),
    (0xc0af, "ECDHE-ECDSA-AES256-CCM8"),
    (0xc05c, "ECDHE-ECDSA-ARIA128-GCM-SHA256"),
    (0xc05d, "ECDHE-ECDSA-ARIA256-GCM-SHA384"),
    (0xc060, "ECDHE-ARIA128-GCM-SHA256"),
    (0xc061, "ECDHE-ARIA256-GCM-SHA384"),
    (0x009c, "AES128-GCM-SHA256"),
    (0x009d, "AES256-GCM-SHA384"),
    (0x009e, "DHE-RSA-AES128-GCM-SHA256"),
    (0x009f, "DHE-RSA-AES256-GCM-SHA384"),
    (0x002f, "AES128-SHA"),
    (0x0033, "DHE-RSA-AES128-SHA"),
    (0x0035, "AES256-SHA"),
    (0x0039, "DHE-RSA-AES256-SHA"),
    (0x003c, "AES128-SHA256"),
    (0x003d, "AES256-SHA256"),
    (0x0067, "DHE-RSA-AES128-SHA256"),
    (0x006b, "DHE-RSA-AES256-SHA256"),
    (0x000a, "DES-CBC3-SHA"),
    (0xc008, "ECDHE-ECDSA-DES-CBC3-SHA"),
    (0xc012, "ECDHE-RSA-DES-CBC3-SHA"),
    (0x0016, "DHE-RSA-DES-CBC3-SHA"),
    (0x0004, "RC4-MD5"),
    (0x0005, "RC4-SHA"),
    (0xc007, "ECDHE-ECDSA-RC4-SHA"),
    (0xc011, "ECDHE-RSA-RC4-SHA"),
    (0xc09c, "AES128-CCM"),
    (0xc09d, "AES256-CCM"),
    (0xc0a0, "AES128-CCM8"),
    (0xc0a1, "AES256-CCM8"),
    (0xc09e, "DHE-RSA-AES128-CCM"),
    (0xc09f, "DHE-RSA-AES256-CCM"),
    (0x0041, "CAMELLIA128-SHA"),
    (0x0084, "CAMELLIA256-SHA"),
    (0x00ff, "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"),
    (0x5600, "TLS_FALLBACK_SCSV"),
];

/// The name of a cipher suite, if it has one.
pub(super) fn cipher_name(number: u16) -> Option<&'static str> {
    let found = CIPHERS.iter().find(|(known, _)| *known == number);
    found.map(|(_, name)| *name)
}

/// Whether there is a cipher suite of this name.
pub(super) fn is_cipher(name: &str) -> bool {
    CIPHERS
        .iter()
        .any(|(_, known)| known.eq_ignore_ascii_case(name))
}

/// The name of a group.
pub(super) fn group_name(number: u16) -> String {
    match number {
        0x0017 => "prime256v1",
        0x0018 => "secp384r1",
        0x0019 => "secp521r1",
        0x001d => "X25519",
        0x001e => "X448",
        0x0100 => "ffdhe2048",
        0x0101 => "ffdhe3072",
        0x0102 => "ffdhe4096",
        0x0103 => "ffdhe6144",
        0x0104 => "ffdhe8192",
        0x11eb => "SecP256r1MLKEM768",
        0x11ec => "X25519MLKEM768",
        0x11ed => "SecP384r1MLKEM1024",
        0x6399 => "X25519Kyber768Draft00",
        number => return format!("0x{number:04x}"),
    }
    .to_owned()
}

/// The name of a signature scheme.
pub(super) fn scheme_name(number: u16) -> String {
    match number {
        0x0201 => "rsa_pkcs1_sha1",
        0x0203 => "ecdsa_sha1",
        0x0401 => "rsa_pkcs1_sha256",
        0x0403 => "ecdsa_secp256r1_sha256",
        0x0501 => "rsa_pkcs1_sha384",
        0x0503 => "ecdsa_secp384r1_sha384",
        0x0601 => "rsa_pkcs1_sha512",
        0x0603 => "ecdsa_secp521r1_sha512",
        0x0804 => "rsa_pss_rsae_sha256",
        0x0805 => "rsa_pss_rsae_sha384",
        0x0806 => "rsa_pss_rsae_sha512",
        0x0807 => "ed25519",
        0x0808 => "ed448",
        0x0809 => "rsa_pss_pss_sha256",
        0x080a => "rsa_pss_pss_sha384",
        0x080b => "rsa_pss_pss_sha512",
        0x0904 => "mldsa44",
        0x0905 => "mldsa65",
        0x0906 => "mldsa87",
        number => return format!("0x{number:04x}"),
    }
    .to_owned()
}

/// The names of a list, separated by colons, and the numbers of what has no name, such as the GREASE values that
/// clients insert (RFC 8701).
pub(super) fn list(numbers: &[u16], name: impl Fn(u16) -> Option<String>) -> String {
    let mut out = String::new();
    for &number in numbers {
        if !out.is_empty() {
            out.push(':');
        }
        match name(number) {
            Some(name) => out.push_str(&name),
            None => out.push_str(&format!("0x{number:04x}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_what_is_known() {
        let text = list(&[0x1301, 0x2a2a, 0xffee, 0x00ff], |number| {
            cipher_name(number).map(str::to_owned)
        });
        let all = "TLS_AES_128_GCM_SHA256:0x2a2a:0xffee:TLS_EMPTY_RENEGOTIATION_INFO_SCSV";
        assert_eq!(text, all);
        assert_eq!(group_name(0x001d), "X25519");
    }
}
