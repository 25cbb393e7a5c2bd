//! `ssl_client_hello_by_lua` and `ssl_certificate_by_lua`: scripts that have a say in handshakes, of http and of stream; and those
//! that keep sessions of http's clients.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use ::stream::Session;
use http::Request;
use net::tls::{Moment, Offer};

use crate::directives::Code;
use crate::phases;
use crate::run::{End, Run};
use crate::scope::Guest;
use crate::stream::{self, StreamCode};

/// What a script decides.
type Decision<'a, E> = Pin<Box<dyn Future<Output = Result<(), E>> + 'a>>;

/// Runs the script of a moment for a client of http.
pub(crate) fn of_http(
    request: &mut Request,
    moment: Moment,
    offer: Rc<RefCell<Offer>>,
) -> Decision<'_, http::module::Objection> {
    Box::pin(async move {
        let code = request.conf::<Code>();
        let chunk = match moment {
            Moment::Hello => code.client_hello.clone(),
            Moment::Certificate => code.certificate.clone(),
            Moment::SessionWanted => code.session_fetch.clone(),
            Moment::SessionMade => code.session_store.clone(),
        };
        drop(code);
        let Some(chunk) = chunk else {
            return Ok(());
        };
        let run = phases::begin(request, &chunk).map_err(|_| http::module::Objection)?;
        match decide(run, request.into(), offer).await {
            true => Ok(()),
            false => Err(http::module::Objection),
        }
    })
}

/// Runs the script of a moment for a client of stream.
pub(crate) fn of_stream(
    session: &mut Session,
    moment: Moment,
    offer: Rc<RefCell<Offer>>,
) -> Decision<'_, ::stream::module::Objection> {
    Box::pin(async move {
        let code = session.conf::<StreamCode>();
        let chunk = match moment {
            Moment::Hello => code.client_hello.clone(),
            Moment::Certificate => code.certificate.clone(),
            Moment::SessionWanted | Moment::SessionMade => None,
        };
        drop(code);
        let Some(chunk) = chunk else {
            return Ok(());
        };
        let run = stream::begin(session, &chunk).map_err(|_| ::stream::module::Objection)?;
        match decide(run, session.into(), offer).await {
            true => Ok(()),
            false => Err(::stream::module::Objection),
        }
    })
}

/// Whether the handshake goes on.
async fn decide(mut run: Run, guest: Guest<'_>, offer: Rc<RefCell<Offer>>) -> bool {
    *run.scope.offer.borrow_mut() = Some(offer);
    let end = phases::to_the_end(&mut run, guest).await;
    matches!(end, End::Through(_) | End::Exit(0))
}
