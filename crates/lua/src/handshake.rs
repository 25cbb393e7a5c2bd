//! `ssl_client_hello_by_lua` and `ssl_certificate_by_lua`, in http and in stream, and in http the
//! two that keep TLS sessions: `ssl_session_fetch_by_lua` and `ssl_session_store_by_lua`.
//!
//! The handshake is suspended while such a script waits, so it may query a database for the
//! certificate. There is no request yet; http lends the script one that stands for the connection.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use ::stream::StreamSession;
use http::Request;
use net::tls::{HandshakeOffer, HandshakePhase};

use crate::begin_run;
use crate::run::{self, RunEnd, ScriptRun};
use crate::run_owner::RunOwner;
use crate::scripts::{HttpScripts, StreamScripts};

/// Resolves when the script has decided: an error aborts the handshake.
type HandshakeDecision<'a, E> = Pin<Box<dyn Future<Output = Result<(), E>> + 'a>>;

/// Runs the script of one moment of a handshake in http.
pub(crate) fn on_http_handshake(
    request: &mut Request,
    moment: HandshakePhase,
    offer: Rc<RefCell<HandshakeOffer>>,
) -> HandshakeDecision<'_, http::module::HandshakeRefused> {
    Box::pin(async move {
        let code = request.conf::<HttpScripts>();
        let chunk = match moment {
            HandshakePhase::Hello => code.client_hello.clone(),
            HandshakePhase::Certificate => code.certificate.clone(),
            HandshakePhase::SessionWanted => code.session_fetch.clone(),
            HandshakePhase::SessionMade => code.session_store.clone(),
        };
        // The configuration is borrowed from the request, which the script is about to get mutably.
        drop(code);
        let Some(chunk) = chunk else {
            return Ok(());
        };
        // Without the script the handshake must not go on: it may be what keeps clients out.
        let run =
            begin_run::for_request(request, &chunk).map_err(|_| http::module::HandshakeRefused)?;
        match run_to_decision(run, request.into(), offer).await {
            true => Ok(()),
            false => Err(http::module::HandshakeRefused),
        }
    })
}

/// Runs the script of one moment of a handshake in stream, where sessions are not kept by scripts.
pub(crate) fn on_stream_handshake(
    session: &mut StreamSession,
    moment: HandshakePhase,
    offer: Rc<RefCell<HandshakeOffer>>,
) -> HandshakeDecision<'_, ::stream::module::HandshakeRefused> {
    Box::pin(async move {
        let code = session.conf::<StreamScripts>();
        let chunk = match moment {
            HandshakePhase::Hello => code.client_hello.clone(),
            HandshakePhase::Certificate => code.certificate.clone(),
            HandshakePhase::SessionWanted | HandshakePhase::SessionMade => None,
        };
        // As above.
        drop(code);
        let Some(chunk) = chunk else {
            return Ok(());
        };
        let run = begin_run::for_session(session, &chunk)
            .map_err(|_| ::stream::module::HandshakeRefused)?;
        match run_to_decision(run, session.into(), offer).await {
            true => Ok(()),
            false => Err(::stream::module::HandshakeRefused),
        }
    })
}

/// Whether the handshake goes on: not after `ngx.exit(ngx.ERROR)` or an error.
async fn run_to_decision(
    mut run: ScriptRun,
    guest: RunOwner<'_>,
    offer: Rc<RefCell<HandshakeOffer>>,
) -> bool {
    *run.scope.offer.borrow_mut() = Some(offer);
    let end = run::run_to_end(&mut run, guest).await;
    matches!(end, RunEnd::Completed(_) | RunEnd::Exit(0))
}
