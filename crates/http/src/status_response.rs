//! Responses that the server makes from a status alone: `error_page`, the built-in pages, redirects.
//!
//! The rules are nginx's (<https://nginx.org/en/docs/http/ngx_http_core_module.html#error_page>). A status from 300 on
//! is looked up in the location's `error_page` list; a page there is an internal redirect whose response keeps the
//! status (unless `=` says otherwise); without one a short built-in page is made.

use std::rc::Rc;

use bstr::{BStr, ByteSlice};
use bytes::Bytes;

use crate::core::{ErrorPage, ServerTokens};
use crate::module::{HandlerOutcome, internal_status as internal};
use crate::request::{ErrorPages, HttpVersion, Request};
use crate::response_body::ResponseBody;
use proto::message::Method;

/// The fields that an internal redirect to an error page keeps of the response so far: those that belong to the status,
/// such as `WWW-Authenticate` with a 401 (RFC 9110, section 15.5.2), and the cookies of an application whose
/// `X-Accel-Redirect` named a file that is missing: they are the client's, whatever page it gets.
const KEPT_FIELDS: [&[u8]; 6] = [
    b"WWW-Authenticate",
    b"Proxy-Authenticate",
    b"Retry-After",
    b"Content-Range",
    b"Allow",
    b"Set-Cookie",
];

/// Ends a request with a status: through `error_page`, or with the built-in page.
///
/// Returns `Respond`, or `Jump` if an error page redirected the request.
pub fn respond_status(request: &mut Request, status: u16) -> HandlerOutcome {
    request.debug(format_args!(
        "http special response: {status}, \"{}?{}\"",
        request.uri.path, request.uri.args
    ));
    // As in nginx a client that was too slow with its request (408) gets no response, whatever `error_page` says.
    let is_late = status == 408 && !request.is_subrequest();
    if is_late || status == internal::CLOSE || status == internal::CLIENT_CLOSED {
        request.out.clear();
        request.out.status = status;
        request.delivery.end_silently();
        return HandlerOutcome::Respond;
    }
    if request.flow.error_pages == ErrorPages::Withheld {
        // The target of a redirect is useful even without a page.
        let location = request.out.location.take();
        request.out.clear();
        request.out.location = location;
        request.out.status = status;
        return HandlerOutcome::Respond;
    }
    // From here on the status is settled: a page that is served with 200 does not change it.
    request.flow.forced_status = Some(status);
    if closes_connection(status) {
        request.delivery.close();
    }
    // The charset stays, as in nginx: the page is ASCII, which every charset contains.
    request.out.content_type.clear();
    request.out.content_length = None;
    if status >= 300
        && let Some(outcome) = error_page(request, status)
    {
        return outcome;
    }
    builtin_page(request, status)
}

/// Statuses after which the rest of the connection cannot be trusted (the framing is in doubt) or is not worth having;
/// nginx's list.
fn closes_connection(status: u16) -> bool {
    matches!(
        status,
        400 | 413 | 414 | 500 | 501 | internal::HEADER_TOO_LARGE
    ) || (internal::CERTIFICATE_ERROR..=internal::HTTP_TO_HTTPS).contains(&status)
}

fn error_page(request: &mut Request, status: u16) -> Option<HandlerOutcome> {
    let site = Rc::clone(&request.site);
    let core = &site.location(request.location).core;
    if core.error_pages.is_empty()
        || request.flow.error_pages == ErrorPages::BeingMade
        || request.flow.jumps > crate::request::MAX_JUMPS
    {
        return None;
    }
    // Before the lookup: even a status without a page of its own ends the chain.
    if !core.recursive_error_pages {
        request.flow.error_pages = ErrorPages::BeingMade;
    }
    let page = core.error_pages.iter().find(|page| page.status == status)?;
    Some(send_error_page(request, page))
}

fn send_error_page(request: &mut Request, page: &ErrorPage) -> HandlerOutcome {
    if let Some(status) = page.answer {
        // `=` without a number: the page's own status counts.
        request.flow.forced_status = (status != 0).then_some(status);
    }
    let target = request.value(&page.target);
    match target.first() {
        Some(b'/') => {
            // The target may contain variables, so it is split here and not when the configuration is read.
            let (path, args) = match target.split_once_str("?") {
                Some((path, args)) => (path.as_bstr().to_owned(), args.as_bstr().to_owned()),
                None => (target, "".into()),
            };
            // The page is another resource, which is fetched with GET, as in nginx; a named location, below, keeps the
            // method, because it may be a proxy that continues the request.
            if request.method != Method::Head {
                request.method = Method::Get;
            }
            prepare_jump(request);
            request.redirect(path, args)
        }
        Some(b'@') => {
            prepare_jump(request);
            request.redirect_named(target.as_bstr())
        }
        _ => {
            let status = page
                .answer
                // A full URL is a redirect for the client: 302, unless `=` names another redirecting status.
                .filter(|status| matches!(status, 301 | 302 | 303 | 307 | 308))
                .unwrap_or(302);
            request.flow.forced_status = Some(status);
            request.out.location = Some(target);
            self::builtin_page(request, status)
        }
    }
}

/// Clears the response for the handler of the error page, except what belongs to the status: a redirect keeps its
/// target, whatever page it shows.
fn prepare_jump(request: &mut Request) {
    request.delivery.has_added_fields = false;
    request.out.body = ResponseBody::Empty;
    request.out.identity = None;
    request.out.last_modified = None;
    request.out.last_modified_was_said = false;
    request.out.etag = None;
    request.out.reason = None;
    request.out.is_upstream_status = false;
    request.out.transforms = Default::default();
    request.out.fields.retain(|_, name, _| {
        KEPT_FIELDS
            .iter()
            .any(|kept| kept.eq_ignore_ascii_case(name))
    });
}

/// Makes the built-in page of a status the response. A status without a page gets no content.
pub fn builtin_page(request: &mut Request, status: u16) -> HandlerOutcome {
    request.body.refuse_continue();
    // 494 to 497 exist for `error_page` and logs only; on the wire they are 400.
    let shown = match status {
        internal::HEADER_TOO_LARGE..=internal::HTTP_TO_HTTPS => 400,
        other => other,
    };
    // An answer that `=` chose stays; only the plain status is mapped.
    if request.flow.forced_status == Some(status) {
        request.flow.forced_status = Some(shown);
    }
    let out = &mut request.out;
    out.status = shown;
    // Validators and `Accept-Ranges` described the content that the handler was about to send.
    out.last_modified = None;
    out.last_modified_was_said = false;
    out.etag = None;
    out.identity = None;
    out.content_length = None;
    out.transforms = Default::default();
    out.fields.remove(b"Accept-Ranges");
    // Only these two, as in nginx.
    if matches!(status, 301 | 302) && refreshes(request) {
        return refresh(request);
    }
    let out = &mut request.out;
    match title(status) {
        None => {
            out.content_type.clear();
            out.body = ResponseBody::Empty;
        }
        Some(title) => {
            out.content_type = "text/html".into();
            let text = text(request, title, status);
            request.out.body = ResponseBody::bytes(text);
        }
    }
    HandlerOutcome::Respond
}

/// Whether this redirect is replaced by a page: `msie_refresh`, for Internet Explorer.
fn refreshes(request: &Request) -> bool {
    request.site.location(request.location).core.msie_refresh
        && request.out.location.is_some()
        && request
            .head
            .field(b"User-Agent")
            .is_some_and(crate::text::is_msie)
}

/// Makes a page that redirects by `<meta>`, in place of a redirect.
fn refresh(request: &mut Request) -> HandlerOutcome {
    let target = request.out.location.take().unwrap_or_default();
    let mut text = b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=".to_vec();
    // Escaped, because the target may contain what the client sent: it must not break out of the attribute.
    proto::uri::escape(proto::uri::EscapeClass::Refresh, &target, &mut text);
    text.extend_from_slice(b"\"></head><body></body></html>\r\n");
    request.flow.forced_status = None;
    request.out.status = 200;
    request.out.content_type = "text/html".into();
    request.out.body = ResponseBody::bytes(text);
    HandlerOutcome::Respond
}

fn text(request: &Request, title: &str, status: u16) -> Bytes {
    let core = &request.site.location(request.location).core;
    let token = core.server_tokens.shown_name(&request.site.identity);
    let mut text = String::with_capacity(512);
    let detail = match status {
        internal::CERTIFICATE_ERROR => Some(("400 Bad Request", "The SSL certificate error")),
        internal::NO_CERTIFICATE => {
            Some(("400 Bad Request", "No required SSL certificate was sent"))
        }
        internal::HTTP_TO_HTTPS => Some((
            "400 Bad Request",
            "The plain HTTP request was sent to HTTPS port",
        )),
        internal::HEADER_TOO_LARGE => {
            Some(("400 Bad Request", "Request Header Or Cookie Too Large"))
        }
        _ => None,
    };
    text.push_str("<html>\r\n<head><title>");
    text.push_str(title);
    text.push_str("</title></head>\r\n<body>\r\n<center><h1>");
    text.push_str(detail.map_or(title, |(heading, _)| heading));
    text.push_str("</h1></center>\r\n");
    if let Some((_, line)) = detail {
        text.push_str("<center>");
        text.push_str(line);
        text.push_str("</center>\r\n");
    }
    text.push_str("<hr><center>");
    text.push_str(token);
    text.push_str("</center>\r\n</body>\r\n</html>\r\n");
    if core.msie_padding && status >= 400 && is_padded_browser(request) {
        // Browsers that replace short error pages by their own do so up to 512 bytes.
        for _ in 0..6 {
            text.push_str("<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n");
        }
    }
    Bytes::from(text)
}

fn is_padded_browser(request: &Request) -> bool {
    request.head.version() >= HttpVersion::Http10
        && request
            .head
            .field(b"User-Agent")
            .is_some_and(|agent| agent.contains_str("MSIE ") || agent.contains_str("Chrome/"))
}

/// The title of the built-in page of a status, if it has one.
fn title(status: u16) -> Option<&'static str> {
    Some(match status {
        301 => "301 Moved Permanently",
        302 => "302 Found",
        303 => "303 See Other",
        307 => "307 Temporary Redirect",
        308 => "308 Permanent Redirect",
        400 => "400 Bad Request",
        401 => "401 Authorization Required",
        402 => "402 Payment Required",
        403 => "403 Forbidden",
        404 => "404 Not Found",
        405 => "405 Not Allowed",
        406 => "406 Not Acceptable",
        407 => "407 Proxy Authentication Required",
        408 => "408 Request Time-out",
        409 => "409 Conflict",
        410 => "410 Gone",
        411 => "411 Length Required",
        412 => "412 Precondition Failed",
        413 => "413 Request Entity Too Large",
        414 => "414 Request-URI Too Large",
        415 => "415 Unsupported Media Type",
        416 => "416 Requested Range Not Satisfiable",
        421 => "421 Misdirected Request",
        429 => "429 Too Many Requests",
        internal::HEADER_TOO_LARGE => "400 Request Header Or Cookie Too Large",
        internal::CERTIFICATE_ERROR => "400 The SSL certificate error",
        internal::NO_CERTIFICATE => "400 No required SSL certificate was sent",
        internal::HTTP_TO_HTTPS => "400 The plain HTTP request was sent to HTTPS port",
        // nginx once used 498; this page is what remains of it.
        498 => "404 Not Found",
        500 => "500 Internal Server Error",
        501 => "501 Not Implemented",
        502 => "502 Bad Gateway",
        503 => "503 Service Temporarily Unavailable",
        504 => "504 Gateway Time-out",
        505 => "505 HTTP Version Not Supported",
        507 => "507 Insufficient Storage",
        _ => return None,
    })
}

/// Redirects with 301 to the request's own path with a slash at its end.
pub fn redirect_to_directory(request: &mut Request) -> HandlerOutcome {
    let mut target = Vec::with_capacity(request.uri.path.len() + request.uri.args.len() + 2);
    // The path is decoded: unescaped, a line break in it would end up in the header.
    proto::uri::escape(proto::uri::EscapeClass::Uri, &request.uri.path, &mut target);
    target.push(b'/');
    if !request.uri.args.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&request.uri.args);
    }
    request.out.location = Some(target.into());
    HandlerOutcome::Status(301)
}

/// Makes a redirect to `target` the response.
pub fn respond_redirect(request: &mut Request, status: u16, target: &BStr) -> HandlerOutcome {
    request.out.location = Some(target.to_owned());
    HandlerOutcome::Status(status)
}

impl ServerTokens {
    /// The text of the `Server` field and of the built-in pages.
    pub fn shown_name(self, identity: &crate::core::ServerIdentity) -> &str {
        match self {
            ServerTokens::Off => &identity.name,
            ServerTokens::On => &identity.token,
            ServerTokens::Build => &identity.build_token,
        }
    }
}
