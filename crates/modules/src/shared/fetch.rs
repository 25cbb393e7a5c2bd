//! One request to a server that is nobody's upstream, and its answer: authorities are asked so, by ACME and OCSP.
//!
//! HTTP/1.1, one request for a connection. Redirects are not followed, nothing is kept.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bstr::ByteSlice;
use net::tls::ocsp::{Asked, MAX_ANSWER, Network, Responder};
use net::{ConnectOptions, Transport};
use proto::h1::body::{ChunkDecoder, ResponseFraming};
use proto::h1::response::{Parser, ResponseHead, Status};
use proto::h1::{Method, Piece};
use rt::net::Address;

/// Bytes of an answer's head that are read.
const MAX_HEAD: usize = 16 * 1024;
/// A question whose text is longer is not put into a path, in bytes.
const LONGEST_GET: usize = 255;
/// Bytes that are read at once.
const READ_SIZE: usize = 16 * 1024;

/// Puts a question to an OCSP responder (RFC 6960, appendix A.1).
pub(crate) fn ask_responder(responder: Responder, question: Vec<u8>, network: Network) -> Asked {
    Box::pin(async move {
        let stream = connect(&responder, &network).await?;
        let host = match responder.host.contains(':') {
            true => format!("[{}]", responder.host),
            false => responder.host.clone(),
        };
        let port = match responder.port {
            80 => String::new(),
            port => format!(":{port}"),
        };
        let lines = format!("HTTP/1.1\r\nHost: {host}{port}\r\nConnection: close\r\n");
        let request = question_to(&responder.path, &lines, &question);
        let cannot = |error: std::io::Error| format!("OCSP responder {host}{port}: {error}");
        stream.write_all(&request).await.map_err(cannot)?;
        stream.flush().await.map_err(cannot)?;
        let (head, content) = answer(&stream, Method::Get, MAX_ANSWER)
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

/// By GET, as nginx does, so that caches on the way can answer; a question that is too long for that is posted.
fn question_to(path: &str, lines: &str, question: &[u8]) -> Vec<u8> {
    let encoded = BASE64.encode(question);
    if encoded.len() > LONGEST_GET {
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
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace('=', "%3D");
    format!("GET {path}{slash}{encoded} {lines}\r\n").into_bytes()
}

async fn connect(responder: &Responder, network: &Network) -> Result<Transport, String> {
    let host = &responder.host;
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
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
        let address = Address::from(SocketAddr::new(ip, responder.port));
        match net::connect(&address, &ConnectOptions::default()).await {
            Ok(stream) => return Ok(Transport::plain(stream)),
            Err(error) => last = format!("connect() to {address} failed: {error}"),
        }
    }
    Err(last)
}

/// Reads the answer to a request that was sent, of at most `most` bytes.
pub(crate) async fn answer(
    stream: &Transport,
    method: Method,
    most: usize,
) -> Result<(ResponseHead, Vec<u8>), String> {
    let (mut parser, mut head) = (Parser::new(), ResponseHead::default());
    let mut input = Vec::new();
    let used = loop {
        if more(stream, &mut input, MAX_HEAD + most).await? == 0 {
            return Err("the connection was closed before the response".to_owned());
        }
        match parser.parse(&input, MAX_HEAD, &mut head) {
            Ok(Status::Complete(used)) => break used,
            Ok(Status::Partial) => {}
            Ok(Status::NotHttp) => return Err("the response is not HTTP".to_owned()),
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
                if more(stream, &mut content, most).await? == 0 {
                    return Err(
                        "the connection was closed before the response was complete".to_owned()
                    );
                }
            }
            // The rest, if there is one, was not asked for.
            content.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        }
        ResponseFraming::Chunked => content = unchunk(stream, content, most).await?,
        ResponseFraming::UntilClose => while more(stream, &mut content, most).await? > 0 {},
    }
    Ok((head, content))
}

async fn more(stream: &Transport, out: &mut Vec<u8>, most: usize) -> Result<usize, String> {
    if out.len() > most {
        return Err("the response is too long".to_owned());
    }
    let read = stream.read_into(out, READ_SIZE).await;
    read.map_err(|error| error.to_string())
}

async fn unchunk(stream: &Transport, mut input: Vec<u8>, most: usize) -> Result<Vec<u8>, String> {
    let mut decoder = ChunkDecoder::new();
    let mut content = Vec::new();
    let mut taken = 0;
    loop {
        match decoder.next(&input[taken..]) {
            Ok(Piece::Data(range)) => {
                content.extend_from_slice(&input[taken + range.start..taken + range.end]);
                taken += range.end;
            }
            Ok(Piece::End(_)) => return Ok(content),
            Ok(Piece::More) => {
                input.clear();
                taken = 0;
                if content.len() > most || more(stream, &mut input, most).await? == 0 {
                    return Err("the response ends prematurely".to_owned());
                }
            }
            Err(_) => return Err("the response has invalid chunks".to_owned()),
        }
    }
}
