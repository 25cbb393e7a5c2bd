//! The certificates that the system trusts.

use std::path::Path;

/// The file of trusted certificates on Debian and Alpine, Fedora, SUSE, and BSD.
const SYSTEM_TRUST: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// This system's file of trusted certificates; `None` if none is installed.
pub fn system_trust() -> Option<&'static Path> {
    let mut known = SYSTEM_TRUST.iter().map(Path::new);
    known.find(|path| path.is_file())
}
