//! The certificates that the system trusts.

use std::path::Path;

/// Where systems keep the certificates that they trust, in one file: Debian and Alpine, Fedora, SUSE, BSD.
const SYSTEM_TRUST: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The file of the certificates that this system trusts; `None`: none is installed.
pub fn system_trust() -> Option<&'static Path> {
    let mut known = SYSTEM_TRUST.iter().map(Path::new);
    known.find(|path| path.is_file())
}
