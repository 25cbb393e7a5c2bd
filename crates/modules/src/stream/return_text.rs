//! `return` in stream: sends a text and closes the connection.
//!
//! ```nginx
//! server { listen 37; return $time_iso8601; }
//! ```

use std::time::Duration;

use ::stream::module::{Answer, status};
use ::stream::{Module, Outcome, Session, Step, serve};
use conf::{Arity, Directive, Expression, Repeat, STREAM_SERVER, Setter, Table};

pub(crate) static MODULE: Module = Module {
    name: "return",
    doc: "Sends a text to the client and closes.",
    server: &DIRECTIVES,
    answer: Some(Answer {
        when: |server| server.confs.get::<Conf>().text.is_some(),
        handler: send,
    }),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "return",
    syntax: "value",
    default: None,
    contexts: STREAM_SERVER,
    since: "0.1",
    doc: "The text to send, which may contain variables. The connection is then closed.",
    set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
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
fn send(session: &mut Session) -> Step<'_> {
    Step::later(async move {
        session.action = "returning text";
        let conf = session.conf::<Conf>();
        let Some(text) = &conf.text else {
            return Outcome::Declined;
        };
        let text = session.value(text);
        if !text.is_empty() {
            // If the client has left or is too slow, the session ends all the same.
            let _ = serve::send_within(session, &text, SEND_TIMEOUT).await;
        }
        Outcome::Status(status::OK)
    })
}
