//! `weir help 502`: what a status means, and which directives affect it.
//!
//! Only statuses that the server itself sends or logs; what an application means by one is its own
//! affair.

use conf::describe::{WIDTH, wrap_text};

/// A status, with the directives that cause or change it.
struct StatusHelp {
    code: u16,
    reason: &'static str,
    doc: &'static str,
    directives: &'static str,
}

const STATUSES: &[StatusHelp] = &[
    row(
        301,
        "Moved Permanently",
        "A `return` or `rewrite`, or the URI of a directory without its trailing slash.",
        "return rewrite absolute_redirect port_in_redirect",
    ),
    row(
        304,
        "Not Modified",
        "The conditional headers of a GET or HEAD request show that the client's copy is current.",
        "etag if_modified_since",
    ),
    row(
        400,
        "Bad Request",
        "The request is malformed; the error log says how, at level `info`. Statuses 494 to 497 are sent as 400, too.",
        "large_client_header_buffers ignore_invalid_headers max_headers",
    ),
    row(
        401,
        "Unauthorized",
        "No valid user name and password were sent, or the subrequest of `auth_request` returned 401.",
        "auth_basic auth_basic_user_file auth_request auth_delay",
    ),
    row(
        403,
        "Forbidden",
        "An access rule denied the request, a directory has neither an index file nor a listing, or the worker's user \
         may not read the file.",
        "allow deny auth_request index autoindex user disable_symlinks",
    ),
    row(
        404,
        "Not Found",
        "There is no such file, or the location is `internal`. The error log names the path that was tried.",
        "root alias try_files internal log_not_found",
    ),
    row(
        405,
        "Not Allowed",
        "The method is not allowed here: static files accept only GET and HEAD.",
        "limit_except dav_methods error_page",
    ),
    row(
        408,
        "Request Time-out",
        "The client did not send its request header or body in time.",
        "client_header_timeout client_body_timeout",
    ),
    row(
        413,
        "Request Entity Too Large",
        "The request body is larger than permitted.",
        "client_max_body_size",
    ),
    row(
        414,
        "Request-URI Too Large",
        "The request line does not fit into one buffer.",
        "large_client_header_buffers",
    ),
    row(
        416,
        "Requested Range Not Satisfiable",
        "The range starts beyond the end of the file.",
        "max_ranges",
    ),
    row(
        421,
        "Misdirected Request",
        "The host of the request is not the server name of the TLS handshake although client certificates are \
         verified, or its server has HTTP/2 disabled.",
        "server_name ssl_verify_client http2",
    ),
    row(
        444,
        "(nginx)",
        "Never sent: `return 444` closes the connection without a response.",
        "return",
    ),
    row(
        494,
        "(nginx) Request Header Too Large",
        "A request header does not fit into one buffer, or there are too many. Sent as 400.",
        "large_client_header_buffers max_headers",
    ),
    row(
        495,
        "(nginx) SSL Certificate Error",
        "The client certificate is invalid. Sent as 400.",
        "ssl_verify_client ssl_client_certificate ssl_crl ssl_ocsp",
    ),
    row(
        496,
        "(nginx) SSL Certificate Required",
        "The client sent no certificate. Sent as 400.",
        "ssl_verify_client",
    ),
    row(
        497,
        "(nginx) HTTP Request Sent to HTTPS Port",
        "The client did not start TLS on a port with `listen … ssl`. Sent as 400.",
        "listen error_page",
    ),
    row(
        499,
        "(nginx) Client Closed Request",
        "Only logged: the client disconnected before the response was sent.",
        "proxy_ignore_client_abort",
    ),
    row(
        500,
        "Internal Server Error",
        "The configuration or a script failed, such as by a cycle of rewrites or redirects; the error log says how.",
        "rewrite error_page",
    ),
    row(
        502,
        "Bad Gateway",
        "The upstream server could not be reached, or its response was invalid or interrupted, or no server of the \
         group is available. The error log says which server, and why.",
        "proxy_pass upstream server proxy_next_upstream proxy_buffer_size",
    ),
    row(
        503,
        "Service Temporarily Unavailable",
        "A limit rejected the request, or the queue of an upstream group is full.",
        "limit_req limit_conn limit_req_status limit_conn_status queue",
    ),
    row(
        504,
        "Gateway Time-out",
        "The upstream server did not accept the connection, or send its response, in time.",
        "proxy_connect_timeout proxy_read_timeout proxy_send_timeout proxy_next_upstream_timeout",
    ),
];

const fn row(
    code: u16,
    reason: &'static str,
    doc: &'static str,
    directives: &'static str,
) -> StatusHelp {
    StatusHelp {
        code,
        reason,
        doc,
        directives,
    }
}

/// The text of `weir help CODE`, if the server itself uses that status.
pub(crate) fn of(code: u16) -> Option<String> {
    let status = STATUSES.iter().find(|status| status.code == code)?;
    Some(format!(
        "{code} {}\n\n{}\n\nSee weir help:\n{}\n",
        status.reason,
        wrap_text(status.doc, "", WIDTH),
        wrap_text(&status.directives.replace(' ', "  "), "  ", WIDTH),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_names_directives_that_are_there() {
        let names: Vec<&str> = crate::reference::directives()
            .iter()
            .map(|row| row.name)
            .collect();
        for status in STATUSES {
            for name in status.directives.split(' ') {
                assert!(names.contains(&name), "{name} of {}", status.code);
            }
        }
        assert!(STATUSES.is_sorted_by_key(|status| status.code));
        assert!(of(502).is_some_and(|text| text.starts_with("502 Bad Gateway\n")));
        assert_eq!(of(299), None);
    }
}
