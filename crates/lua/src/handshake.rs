//! `ssl_client_hello_by_lua` and `ssl_certificate_by_lua`: scripts that have a say in handshakes, of http and of stream.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use ::stream::Session;
use http::Request;
use net::tls::{Moment, Offer};

use crate::chunk::Chunk;
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
        let Some(chunk) = choose(moment, &code.client_hello, &code.certificate) else {
            return Ok(());
        };
        drop(code);
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
        let Some(chunk) = choose(moment, &code.client_hello, &code.certificate) else {
            return Ok(());
        };
        drop(code);
        let run = stream::begin(session, &chunk).map_err(|_| ::stream::module::Objection)?;
        match decide(run, session.into(), offer).await {
            true => Ok(()),
            false => Err(::stream::module::Objection),
        }
    })
}

fn choose(
    moment: Moment,
    hello: &Option<Arc<Chunk>>,
    certificate: &Option<Arc<Chunk>>,
) -> Option<Arc<Chunk>> {
    match moment {
        Moment::Hello => hello.clone(),
        Moment::Certificate => certificate.clone(),
    }
}

/// Whether the handshake goes on.
async fn decide(mut run: Run, guest: Guest<'_>, offer: Rc<RefCell<Offer>>) -> bool {
    *run.scope.offer.borrow_mut() = Some(offer);
    let end = phases::to_the_end(&mut run, guest).await;
    matches!(end, End::Through(_) | End::Exit(0))
}
