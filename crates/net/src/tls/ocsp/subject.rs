//! A certificate as a script asks for its status (`ngx.ocsp`): the script talks to the responder itself.
//!
//! The messages are those of lua-nginx-module, which scripts compare.

use super::super::certificate::{Certificate, DerElement};
use super::check::now;
use super::message::{self, CertId, CertStatus, SignerPolicy};

/// A certificate and its issuer's.
pub struct OcspSubject {
    certificate: Certificate,
    issuer: Certificate,
}

impl OcspSubject {
    /// The first two certificates of a chain in DER.
    pub fn of_chain(chain: &[u8]) -> Result<OcspSubject, &'static str> {
        const MALFORMED: &str = "d2i_X509_bio() failed";
        let leaf = DerElement::first(chain).ok_or(MALFORMED)?;
        let certificate = Certificate::parse(leaf.whole).ok_or(MALFORMED)?;
        if leaf.rest.is_empty() {
            return Err("no issuer certificate in chain");
        }
        let next = DerElement::first(leaf.rest).ok_or(MALFORMED)?;
        let issuer = Certificate::parse(next.whole).ok_or(MALFORMED)?;
        Ok(OcspSubject {
            certificate,
            issuer,
        })
    }

    /// The URL of the responder, if the certificate names one. An error if the second certificate is not its issuer's.
    pub fn responder(&self) -> Result<Option<&str>, &'static str> {
        match self.certificate.issuer == self.issuer.subject {
            true => Ok(self.certificate.responder.as_deref()),
            false => Err("issuer certificate not next to leaf"),
        }
    }

    /// The request about it.
    pub fn encode_request(&self) -> Vec<u8> {
        self.id().encode_request()
    }

    /// Verifies a response; the result is until when it is valid, in seconds since 1970, if it says so. Whether its
    /// signer is authorised is up to the client, which verifies what it is shown.
    pub fn verify(&self, response: &[u8]) -> Result<Option<i64>, String> {
        let signer = SignerPolicy::Anybody;
        let verdict = message::verify_response(response, &self.id(), &self.issuer, signer, now())?;
        match verdict.status {
            CertStatus::Good => Ok(verdict.until),
            other => {
                let name = other.name();
                Err(format!(
                    "certificate status \"{name}\" in the OCSP response"
                ))
            }
        }
    }

    fn id(&self) -> CertId {
        CertId::of(&self.certificate, &self.issuer)
    }
}
