//! The certificate of the servers of a run.

use std::fs;
use std::io;
use std::path::Path;

/// Writes a certificate and its key. The key is drawn by the library, not by the seed; but with Ed25519 everything that is made
/// with it has one length (RFC 8032, section 5.1), and no more of it is seen by the schedule.
pub(super) fn write_certificate(prefix: &Path) -> io::Result<()> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(io::Error::other)?;
    let mut parameters =
        rcgen::CertificateParams::new(vec!["simulated".to_owned()]).map_err(io::Error::other)?;
    parameters.serial_number = Some(rcgen::SerialNumber::from(1));
    let certificate = parameters.self_signed(&key).map_err(io::Error::other)?;
    fs::write(prefix.join("certificate.pem"), certificate.pem())?;
    fs::write(prefix.join("key.pem"), key.serialize_pem())
}
