//! From the OCSP directives to what the engines use.

use std::sync::Arc;

use bstr::ByteSlice;
use conf::{BlockContext, Diagnostic};
use net::tls::ocsp::{OcspResponder, OcspStaple, StatusCache, StatusCheck};
use net::tls::{TlsIdentity, TrustStore, VerifyClient};

use super::build::{add_certificates, read, warn_once};
use super::{SpannedWord, TlsConf};
use crate::shared::http1_client::query_responder;

/// `ssl_ocsp`: whether client certificates are checked with their CA.
pub(super) fn status_check(conf: &TlsConf) -> Result<Option<StatusCheck>, Diagnostic> {
    let Some(checks) = conf.ocsp else {
        return Ok(None);
    };
    // Without a CA there is no issuer to ask.
    if conf.verify_client == VerifyClient::OptionalUnsigned {
        return Err(Diagnostic::error(
            "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"",
            None,
        ));
    }
    let responder = match &conf.ocsp_responder {
        None => None,
        Some(word) => Some(parse_responder(word).map_err(|why| {
            Diagnostic::error(format!("{why} in \"ssl_ocsp_responder\""), word.span)
        })?),
    };
    let cache = conf.ocsp_cache.as_ref();
    Ok(Some(StatusCheck {
        checks,
        responder,
        cache: cache.map(|(name, size)| StatusCache::shared(name, *size)),
        send: query_responder,
    }))
}

/// Parses the URL of a responder.
fn parse_responder(word: &SpannedWord) -> Result<OcspResponder, String> {
    let url = word.text.to_str_lossy();
    OcspResponder::parse(&url)
        .ok_or_else(|| format!("invalid URL prefix in OCSP responder \"{url}\""))
}

/// `ssl_stapling`: attaches OCSP responses to certificates.
pub(super) fn staple(
    conf: &TlsConf,
    identities: &mut [Arc<TlsIdentity>],
    level: &mut BlockContext,
) -> Result<(), Diagnostic> {
    if !conf.stapling {
        return Ok(());
    }
    // A file replaces the responder for all certificates, as in nginx.
    if let Some(file) = &conf.stapling_file {
        let response = read(file, level)?;
        for identity in identities {
            *identity = identity.with_ocsp(response.clone());
        }
        return Ok(());
    }
    let mut trust = TrustStore::without_anchors(0);
    // The issuer may be in either list, as in nginx.
    let files = [&conf.client_certificate, &conf.trusted_certificate];
    for file in files.into_iter().flatten() {
        add_certificates(&mut trust, file, level)?;
    }
    for (identity, source) in identities.iter_mut().zip(&conf.certificates) {
        match staple_of(conf, &trust, identity) {
            Ok(staple) => *identity = identity.with_staple(staple),
            // As in nginx, stapling that cannot work is a warning: clients can still connect.
            Err(why) => {
                let name = source.name();
                warn_once(
                    format!("\"ssl_stapling\" ignored, {why} \"{name}\""),
                    None,
                    level,
                );
            }
        }
    }
    Ok(())
}

/// The staple of one certificate, or why there is none; the certificate's name follows this text in
/// the warning.
fn staple_of(
    conf: &TlsConf,
    trust: &TrustStore,
    identity: &TlsIdentity,
) -> Result<Arc<OcspStaple>, String> {
    let issuer = trust
        .issuer_of(identity.chain())
        .ok_or_else(|| "issuer certificate not found for certificate".to_owned())?;
    let asked = conf
        .stapling_responder
        .as_ref()
        .map(parse_responder)
        .transpose();
    let verifies = conf.stapling_verify;
    asked
        .and_then(|asked| {
            OcspStaple::new(identity.leaf(), &issuer, asked, verifies, query_responder)
        })
        .map_err(|why| format!("{why} in the certificate"))
}
