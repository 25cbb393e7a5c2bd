//! `return` in stream: sends a text and closes the connection.
//!
//! ```nginx
//! server { listen 37; return $time_iso8601; }
//! ```

use std::time::Duration;

use ::stream::module::{StreamContentHandler, status};
use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamSession, serve_session};
use conf::{Arity, Directive, DirectiveTable, Expression, RepeatRule, STREAM_SERVER, Setter};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "return",
    doc: "Sends a text to the client and closes.",
    server: &DIRECTIVES,
    content_handler: Some(StreamContentHandler {
        when: |server| server.confs.get::<Conf>().text.is_some(),
        handler: send,
    }),
    ..StreamModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "return",
    syntax: "value",
    default: None,
    contexts: STREAM_SERVER,
    since: "0.1",
    doc: "The text to send, which may contain variables. The connection is then closed.",
    set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
        conf.text = Some(line.expression(0)?);
        Ok(())
    }),
}]);

#[derive(Clone, Default)]
struct Conf {
    text: Option<Expression>,
}

/// The timeout for sending the text; nginx's value.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The handler.
fn send(session: &mut StreamSession) -> SessionStep<'_> {
    SessionStep::later(async move {
        session.action = "returning text";
        let conf = session.conf::<Conf>();
        let Some(text) = &conf.text else {
            return SessionOutcome::Declined;
        };
        let text = session.value(text);
        if !text.is_empty() {
            // If the client has left or is too slow, the session ends all the same.
            let _ = serve_session::send_within(session, &text, SEND_TIMEOUT).await;
        }
        SessionOutcome::Status(status::OK)
    })
}
