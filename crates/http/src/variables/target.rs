//! Variables of the request's target: request line, path, arguments, file.

use std::os::unix::ffi::OsStrExt;

use bstr::BString;
use conf::Variable;
use host::error_log::LogLevel;
use net::tls::TlsSession;

use super::{number, optional, port, text};
use crate::request::{Request, RequestUri};

pub(super) static VARIABLES: &[Variable<Request>] = &[
    Variable::new("request", request_line, "The original request line."),
    Variable::new(
        "request_method",
        request_method,
        "The request method, such as `GET` or `POST`.",
    )
    .volatile(),
    Variable::new(
        "request_uri",
        request_uri,
        "The original request URI, with arguments.",
    ),
    Variable::new(
        "uri",
        |r: &mut Request, out| text(&r.uri.path, out),
        "The current URI: decoded, normalised, and changed by rewrites and internal redirects.",
    )
    .volatile(),
    Variable::new(
        "document_uri",
        |r: &mut Request, out| text(&r.uri.path, out),
        "The same as `$uri`.",
    )
    .volatile(),
    Variable::new(
        "args",
        args,
        "The arguments of the request. Can be changed with `set`.",
    )
    .volatile()
    .settable(set_args),
    Variable::new("query_string", args, "The same as `$args`.").volatile(),
    Variable::new(
        "is_args",
        is_args,
        "`?` if the request has arguments, otherwise empty.",
    )
    .volatile(),
    Variable::prefix("arg_", argument, "A request argument, by name.").volatile(),
    Variable::new(
        "server_protocol",
        server_protocol,
        "The protocol: `HTTP/1.0`, `HTTP/1.1`, `HTTP/2.0`, `HTTP/3.0`.",
    ),
    Variable::new(
        "http2",
        http2,
        "`h2` for HTTP/2 over TLS, `h2c` for HTTP/2 without TLS, otherwise empty.",
    ),
    Variable::new(
        "http3",
        http3,
        "`h3` for HTTP/3, `hq` for HTTP/0.9 over QUIC, otherwise empty.",
    ),
    Variable::new(
        "scheme",
        |r, out| text(r.scheme(), out),
        "`http` or `https`.",
    ),
    Variable::new(
        "https",
        |r, out| !r.is_tls() || text("on", out),
        "`on` over TLS, otherwise empty.",
    ),
    Variable::new(
        "host",
        host,
        "The host of the request line or of the `Host` header, in lower case; if there is none, the server name.",
    ),
    Variable::new(
        "request_port",
        |r, out| port(r.head.port.unwrap_or(0), out),
        "The port in the host of the request.",
    ),
    Variable::new(
        "is_request_port",
        is_request_port,
        "`:` if the host of the request includes a port, otherwise empty.",
    ),
    Variable::new(
        "content_length",
        content_length,
        "The `Content-Length` header of the request.",
    )
    .volatile(),
    Variable::new(
        "content_type",
        |r, out| super::fields::write_joined(&r.head.wire.fields, "content_type", b", ", out),
        "The `Content-Type` header of the request.",
    ),
    Variable::new(
        "request_body",
        request_body,
        "The request body, if it has been read into memory.",
    )
    .volatile(),
    Variable::new(
        "request_body_file",
        request_body_file,
        "The name of the temporary file with the request body.",
    )
    .volatile(),
    Variable::new(
        "request_length",
        request_length,
        "The length of the request: request line, headers and body.",
    )
    .volatile(),
    Variable::new(
        "request_filename",
        request_filename,
        "The path of the file for the current URI, according to `root` or `alias`.",
    )
    .volatile(),
    Variable::new(
        "document_root",
        document_root,
        "The value of `root` or `alias` for the current request.",
    )
    .volatile(),
    Variable::new(
        "realpath_root",
        realpath_root,
        "The value of `root` or `alias` with all symbolic links resolved.",
    )
    .volatile(),
];

/// The request line as the client sent it; no value if it was not received completely.
fn request_line(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let line = request.head.wire.request_line();
    !line.is_empty() && text(line, out)
}

/// The target as the client sent it; no value if it was refused.
fn request_uri(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let target = request.head.wire.target();
    !target.is_empty() && text(target, out)
}

/// The method. An error page is requested with GET, and shows that; a subrequest shows the client's method.
fn request_method(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let wire = &request.head.wire;
    if !request.is_subrequest() && request.method != wire.method {
        return text(request.method.name(), out);
    }
    let method = wire.method_text();
    // The line was none, but its error page is asked for all the same.
    if method.is_empty() && request.flow.jumps > 0 {
        return text("GET", out);
    }
    !method.is_empty() && text(method, out)
}

fn server_protocol(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let protocol = request.head.wire.protocol();
    !protocol.is_empty() && text(protocol, out)
}

/// The name of the protocol as in ALPN; no value for other versions.
fn http2(request: &mut Request, out: &mut Vec<u8>) -> bool {
    request.head.wire.version == proto::message::MessageVersion::HTTP_2
        && text(if request.is_tls() { "h2" } else { "h2c" }, out)
}

/// No value for other protocols. Neither name is ever agreed on over TCP.
fn http3(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.client.tls().and_then(TlsSession::alpn).as_deref() {
        Some(b"h3") => text("h3", out),
        Some(b"hq-interop") => text("hq", out),
        Some(_) | None => false,
    }
}

fn args(request: &mut Request, out: &mut Vec<u8>) -> bool {
    !request.uri.args.is_empty() && text(&request.uri.args, out)
}

/// Replaces the arguments. The path is kept; the target is no longer the one that the client sent.
fn set_args(request: &mut Request, value: &[u8]) {
    request.uri = RequestUri {
        args: value.into(),
        original: false,
        path: std::mem::take(&mut request.uri.path),
    };
}

/// `?` if there are arguments: `$uri$is_args$args` is then a complete target.
fn is_args(request: &mut Request, out: &mut Vec<u8>) -> bool {
    request.uri.args.is_empty() || text("?", out)
}

fn argument(request: &mut Request, name: &str, out: &mut Vec<u8>) -> bool {
    optional(
        proto::form::find(&request.uri.args, name.as_bytes()).filter(|_| !name.is_empty()),
        out,
    )
}

/// The host. A request of HTTP/1.0 may have none, and then gets the server's name.
fn host(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if !request.head.host.is_empty() {
        return text(&request.head.host, out);
    }
    text(&request.site.server(request.server).name, out)
}

/// `:` if the request's host has a port: `$host$is_request_port$request_port` is then a complete authority.
fn is_request_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    request.head.port.is_none_or(|port| port == 0) || text(":", out)
}

/// The length that the client announced. For a chunked body it is what was counted, once the body has been read.
fn content_length(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if let Some(field) = request.head.known(proto::KnownField::ContentLength) {
        return text(field, out);
    }
    // A body that was announced but not sent, or that was empty, has a length of 0; one that was never looked at has none.
    let has_content = request.body.length() > 0 || request.body.has_come();
    let length = match request.body.is_thrown_away() {
        true => 0,
        false => request.body.length(),
    };
    request.body.is_complete() && has_content && number(length, out)
}

/// The body, if all of it is in memory. If it is in a file, the variable has no value, as in nginx.
fn request_body(request: &mut Request, out: &mut Vec<u8>) -> bool {
    optional(
        request.body.in_memory().filter(|body| !body.is_empty()),
        out,
    )
}

fn request_body_file(request: &mut Request, out: &mut Vec<u8>) -> bool {
    optional(
        request
            .body
            .file()
            .map(|file| file.path.as_os_str().as_bytes()),
        out,
    )
}

/// The bytes of the head, and of the body as far as it has been received. A subrequest is not received, so it has none.
fn request_length(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.is_subrequest() {
        return number(0, out);
    }
    number(
        request.head.wire.size() as u64 + request.body.bytes_taken(),
        out,
    )
}

fn request_filename(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let path = request.file_path();
    optional(path, out)
}

fn document_root(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let path = request.document_root();
    text(path, out)
}

/// The directory without symbolic links. A failure is logged, and the variable has no value, as in nginx.
fn realpath_root(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let root = request.document_root();
    match real_path(&root) {
        Ok(path) => text(path, out),
        Err(error) => {
            let why = base::ErrnoText(&error);
            request.log(
                LogLevel::Crit,
                format_args!("realpath() \"{root}\" failed{why}"),
            );
            false
        }
    }
}

/// Resolves symbolic links. The evaluation of a variable cannot wait for a thread pool. As a rule the directory of a
/// site in use is in the kernel's cache, so that the blocking alternative is hardly ever taken.
fn real_path(path: &[u8]) -> std::io::Result<BString> {
    let path = crate::files::as_path(path);
    let real = rt::file::try_real_path(path).unwrap_or_else(|| std::fs::canonicalize(path))?;
    Ok(real.into_os_string().into_encoded_bytes().into())
}
