//! From the lines about OCSP to what the engines use.

use std::sync::Arc;

use bstr::ByteSlice;
use conf::{Diagnostic, Level};
use net::tls::ocsp::{Responder, Staple, StatusCache, StatusCheck};
use net::tls::{Asks, Identity, Trust};

use super::build::{add, read, warn_once};
use super::{TlsConf, Word};
use crate::shared::fetch::ask_responder;

/// `ssl_ocsp`: whether authorities are asked about clients.
pub(super) fn status(conf: &TlsConf) -> Result<Option<StatusCheck>, Diagnostic> {
    let Some(checks) = conf.ocsp else {
        return Ok(None);
    };
    if conf.asks == Asks::OptionalUnsigned {
        return Err(Diagnostic::error(
            "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"",
            None,
        ));
    }
    let responder = conf.ocsp_responder.as_ref().map(responder).transpose()?;
    let cache = conf.ocsp_cache.as_ref();
    Ok(Some(StatusCheck {
        checks,
        responder,
        cache: cache.map(|(name, size)| StatusCache::shared(name, *size)),
        ask: ask_responder,
    }))
}

fn responder(word: &Word) -> Result<Responder, Diagnostic> {
    let url = word.text.to_str_lossy();
    Responder::parse(&url).ok_or_else(|| {
        Diagnostic::error(
            format!("invalid URL prefix in OCSP responder \"{url}\""),
            word.span,
        )
    })
}

/// `ssl_stapling`: has statements sent along with certificates.
pub(super) fn staple(
    conf: &TlsConf,
    identities: &mut [Arc<Identity>],
    level: &mut Level,
) -> Result<(), Diagnostic> {
    if !conf.stapling {
        return Ok(());
    }
    if let Some(file) = &conf.stapling_file {
        let response = read(file, level)?;
        for identity in identities {
            *identity = identity.with_ocsp(response.clone());
        }
        return Ok(());
    }
    let mut trust = Trust::nobody(0);
    let files = [&conf.client_certificate, &conf.trusted_certificate];
    for file in files.into_iter().flatten() {
        add(&mut trust, file, level)?;
    }
    let asked = conf
        .stapling_responder
        .as_ref()
        .map(responder)
        .transpose()?;
    for identity in identities {
        let issuer = trust
            .issuer_of(identity.chain())
            .ok_or_else(|| "issuer certificate not found".to_owned());
        let staple = issuer.and_then(|issuer| {
            let verifies = conf.stapling_verify;
            Staple::new(
                identity.leaf(),
                &issuer,
                asked.clone(),
                verifies,
                ask_responder,
            )
        });
        match staple {
            Ok(staple) => *identity = identity.with_staple(staple),
            // As in nginx the server goes on without.
            Err(why) => warn_once(format!("\"ssl_stapling\" ignored, {why}"), None, level),
        }
    }
    Ok(())
}
