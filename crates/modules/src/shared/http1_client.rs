//! A minimal HTTP/1.1 client for servers outside any upstream group: certificate authorities, which
//! ACME and OCSP have to ask.
//!
//! One request per connection. Redirects are not followed and connections are not reused, so there
//! is no state to manage.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bstr::ByteSlice;
use net::tls::ocsp::{MAX_ANSWER, OcspResolver, OcspResponder, OcspResponseFuture};
use net::{ConnectSettings, Transport};
use proto::h1::ChunkPiece;
use proto::h1::body::ChunkDecoder;
use proto::h1::response::{ResponseParser, ResponseProgress};
use proto::message::{Method, ResponseFraming, ResponseHead};
use rt::net::SocketAddress;

/// The maximum length of a response head, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// The longest request that goes into the path of a GET, in bytes after base64; RFC 6960, appendix
/// A.1, allows GET up to 255.
const MAX_GET_REQUEST: usize = 255;
/// How much is read at a time, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// Sends a request to an OCSP responder (RFC 6960, appendix A.1) and returns the content of the
/// response.
pub(crate) fn query_responder(
    responder: OcspResponder,
    question: Vec<u8>,
    resolver: OcspResolver,
) -> OcspResponseFuture {
    Box::pin(async move {
        let stream = connect(&responder, &resolver).await?;
        let host = match responder.host.contains(':') {
            true => format!("[{}]", responder.host),
            false => responder.host.clone(),
        };
        let port = match responder.port {
            80 => String::new(),
            port => format!(":{port}"),
        };
        let lines = format!("HTTP/1.1\r\nHost: {host}{port}\r\nConnection: close\r\n");
        let request = ocsp_request(&responder.path, &lines, &question);
        let cannot = |error: std::io::Error| format!("OCSP responder {host}{port}: {error}");
        stream.write_all(&request).await.map_err(cannot)?;
        stream.flush().await.map_err(cannot)?;
        let (head, content) = read_response(&stream, Method::Get, MAX_ANSWER)
            .await
            .map_err(|why| format!("OCSP responder {host}{port}: {why}"))?;
        match head.status {
            200 => Ok(content),
            status => Err(format!(
                "OCSP responder {host}{port} returned status {status}"
            )),
        }
    })
}

/// The request as bytes. GET where it fits, as in nginx, so that caches in front of the responder
/// can answer; otherwise POST.
fn ocsp_request(path: &str, lines: &str, question: &[u8]) -> Vec<u8> {
    let encoded = BASE64.encode(question);
    if encoded.len() > MAX_GET_REQUEST {
        let length = question.len();
        let mut request = format!(
            "POST {path} {lines}Content-Type: application/ocsp-request\r\nContent-Length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend_from_slice(question);
        return request;
    }
    let slash = if path.ends_with('/') { "" } else { "/" };
    let encoded = encoded
        // Base64 has three characters that a path must escape: `+`, `/` and `=`.
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace('=', "%3D");
    format!("GET {path}{slash}{encoded} {lines}\r\n").into_bytes()
}

/// Connects to the first address of the responder that accepts.
async fn connect(responder: &OcspResponder, network: &OcspResolver) -> Result<Transport, String> {
    let host = &responder.host;
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    // nginx words it the same way. The usual cause of failing OCSP is a missing `resolver`, and
    // this line is what people search for.
    if !is_address && network.resolver.is_empty() {
        return Err(format!("no resolver defined to resolve {host}"));
    }
    let found = network
        .resolver
        .lookup_host(host.as_bytes(), network.timeout);
    let addresses = found
        .await
        .map_err(|error| format!("{host} could not be resolved ({error})"))?;
    let mut last = String::new();
    for ip in addresses {
        let address = SocketAddress::from(SocketAddr::new(ip, responder.port));
        match net::connect(&address, &ConnectSettings::default()).await {
            Ok(stream) => return Ok(Transport::plain(stream)),
            Err(error) => last = format!("connect() to {address} failed: {error}"),
        }
    }
    Err(last)
}

/// Reads the response to a request that has been sent; `most` bounds its content, in bytes.
pub(crate) async fn read_response(
    stream: &Transport,
    method: Method,
    most: usize,
) -> Result<(ResponseHead, Vec<u8>), String> {
    let (mut parser, mut head) = (ResponseParser::new(), ResponseHead::default());
    let mut input = Vec::new();
    let used = loop {
        // The same buffer may already hold the beginning of the content, so it is allowed both
        // limits.
        if read_more(stream, &mut input, MAX_HEAD + most).await? == 0 {
            return Err("the connection was closed before the response".to_owned());
        }
        match parser.parse(&input, MAX_HEAD, &mut head) {
            Ok(ResponseProgress::Complete(used)) => break used,
            Ok(ResponseProgress::Partial) => {}
            Ok(ResponseProgress::NotHttp) => return Err("the response is not HTTP".to_owned()),
            Err(bad) => return Err(bad.log_line().as_bstr().to_string()),
        }
    };
    let mut content = input.split_off(used);
    let framing = ResponseFraming::of_response(method, head.status, &head.fields)
        .map_err(|_| "the response has an invalid length")?;
    match framing {
        ResponseFraming::None => content.clear(),
        ResponseFraming::Length(length) => {
            while (content.len() as u64) < length {
                if read_more(stream, &mut content, most).await? == 0 {
                    return Err(
                        "the connection was closed before the response was complete".to_owned()
                    );
                }
            }
            // Bytes beyond the announced length are not part of this response, and there is no
            // further one.
            content.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        }
        ResponseFraming::Chunked => content = unchunk(stream, content, most).await?,
        ResponseFraming::UntilClose => while read_more(stream, &mut content, most).await? > 0 {},
    }
    Ok((head, content))
}

/// Reads once, appending to `out`; 0 at the end of the stream. Checked before the read, so that a
/// server cannot make the buffer grow without bound.
async fn read_more(stream: &Transport, out: &mut Vec<u8>, most: usize) -> Result<usize, String> {
    if out.len() > most {
        return Err("the response is too long".to_owned());
    }
    let read = stream.read_into(out, READ_SIZE).await;
    read.map_err(|error| error.to_string())
}

/// Decodes a chunked response, of which `input` is the beginning. The decoder consumes all of its
/// input before it asks for more, so the buffer can be reused.
async fn unchunk(stream: &Transport, mut input: Vec<u8>, most: usize) -> Result<Vec<u8>, String> {
    let mut decoder = ChunkDecoder::new();
    let mut content = Vec::new();
    let mut taken = 0;
    loop {
        match decoder.next_piece(&input[taken..]) {
            Ok(ChunkPiece::Data(range)) => {
                content.extend_from_slice(&input[taken + range.start..taken + range.end]);
                taken += range.end;
            }
            Ok(ChunkPiece::End(_)) => return Ok(content),
            Ok(ChunkPiece::More) => {
                input.clear();
                taken = 0;
                if content.len() > most || read_more(stream, &mut input, most).await? == 0 {
                    return Err("the response ends prematurely".to_owned());
                }
            }
            Err(_) => return Err("the response has invalid chunks".to_owned()),
        }
    }
}
