//! `auth_request`: another location, or the service behind it, decides about access.
//!
//! ```nginx
//! location /private/ {
//!     auth_request     /auth;
//!     auth_request_set $who $upstream_http_x_user;
//! }
//! location = /auth {
//!     internal;
//!     proxy_pass http://auth.example/check;
//!     proxy_pass_request_body off;
//!     proxy_set_header Content-Length "";
//! }
//! ```
//!
//! The subrequest has no body. 2xx grants access; 401 and 403 deny it, 401 together with the
//! challenges that came with it; anything else is an error of the service and becomes 500.

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, HTTP_SERVER_LOCATION,
    RepeatRule, Setter, VarId, VariableDefinition,
};
use http::ledger::LedgerPhase;
use http::subrequest::{self, SubrequestOptions};
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "auth_request",
    doc: "Restricts access by the result of a subrequest.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Access, check_access)],
    enabled: |location| location.confs.get::<Conf>().path != OFF,
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Access, &["auth_request"])]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "auth_request",
        syntax: "path | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The URI of the subrequest that decides about access: 2xx allows it; 401 and 403 deny it with that \
              status.",
        set: Setter::Text(|c| &mut c.path),
    },
    Directive {
        name: "auth_request_set",
        syntax: "$variable value",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Sets a variable after the subrequest of `auth_request`. The value is evaluated in the subrequest, so it \
              can use the headers of its response.",
        set: Setter::Custom(
            Arity::exactly(2),
            RepeatRule::Fresh(|c| c.variables.clear()),
            auth_request_set,
        ),
    },
]);

/// The subrequest of a location, and the variables to set from its response.
#[derive(Clone, Default)]
struct Conf {
    path: bstr::BString,
    variables: Vec<(VarId, Expression)>,
}

/// The value that disables it.
const OFF: &str = "off";

/// Reads `auth_request_set`. A variable that nothing else defines gets a definition here.
fn auth_request_set(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.variable_name(0)?;
    let Some(registry) = line.level.registry::<Request>() else {
        return Err(line.error("variables are not allowed here"));
    };
    let defined = match registry.is_defined(name) {
        true => registry.settable_id(name),
        // It has no value until the subrequest is done.
        false => registry.define(name, VariableDefinition::dynamic(|_, _| false)),
    };
    let variable = defined.map_err(|message| line.error_at(0, message))?;
    let value = line.expression(1)?;
    conf.variables.push((variable, value));
    Ok(())
}

/// The handler of the access phase.
fn check_access(request: &mut Request) -> HandlerStep<'_> {
    let conf = request.conf::<Conf>();
    HandlerStep::later(async move {
        let options = SubrequestOptions {
            // Only the status and the header matter.
            header_only: true,
            ..SubrequestOptions::get(conf.path.clone(), "")
        };
        let Some(mut question) = subrequest::create_subrequest(request, options) else {
            return HandlerOutcome::Status(500);
        };
        let former = request.ledger.enter(LedgerPhase::Auth);
        subrequest::run_subrequest(&mut question, true).await;
        request.ledger.enter(former);
        // Evaluated in the subrequest, before it ends: `$upstream_http_…` are its own.
        for (variable, value) in &conf.variables {
            let value = question.value(value);
            request.set_variable(*variable, &value);
        }
        subrequest::end_subrequest(&mut question).await;
        access_outcome(request, &question)
    })
}

/// The outcome for the status of the subrequest.
fn access_outcome(request: &mut Request, question: &Request) -> HandlerOutcome {
    match question.out.status {
        200..=299 => HandlerOutcome::Ok,
        // The service has decided; its page is not passed on.
        403 => HandlerOutcome::Status(403),
        401 => {
            // The client has to answer the service's challenge, not one of ours.
            for challenge in question.out.fields.all(b"WWW-Authenticate") {
                request.out.fields.push(b"WWW-Authenticate", challenge);
            }
            HandlerOutcome::Status(401)
        }
        status => {
            request.error(format_args!("auth request unexpected status: {status}"));
            HandlerOutcome::Status(500)
        }
    }
}
