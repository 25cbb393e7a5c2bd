//! One question to one server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::{Scope, VarId};
use net::upstream::{NotSecure, Secure};
use net::{ConnectOptions, Transport};
use proto::h1::response::{Parser, ResponseHead, Status};
use rt::net::Address;

use super::condition::Condition;

/// How long a probe may take altogether.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the answer's head that are read.
const MAX_HEAD: usize = 16 * 1024;
/// Bytes of the answer that are read, the head included; of a longer one the beginning is looked at.
const MAX_ANSWER: usize = 256 * 1024;

pub(super) struct Probe {
    pub(super) address: Address,
    pub(super) host: BString,
    /// How TLS is spoken, and the host that the server is taken for.
    pub(super) secure: Option<Arc<(Secure, BString)>>,
    pub(super) uri: BString,
    pub(super) condition: Option<Arc<Condition>>,
}

/// A probe belongs to no request: variables in the settings of TLS are empty.
struct NoVariables;

impl Scope for NoVariables {
    fn variable(&mut self, _: VarId, _: &mut Vec<u8>) -> bool {
        false
    }

    fn capture(&mut self, _: usize, _: &mut Vec<u8>) -> bool {
        false
    }
}

/// `address` with another port, if one is given.
pub(super) fn with_port(address: &Address, port: Option<u16>) -> Address {
    match (address, port) {
        (Address::Inet(inet), Some(port)) => SocketAddr::new(inet.ip(), port).into(),
        _ => address.clone(),
    }
}

impl Probe {
    /// Asks. The error says what is wrong.
    pub(super) async fn run(self) -> Result<(), String> {
        match rt::timeout(PATIENCE, self.ask()).await {
            Ok(result) => result,
            Err(_) => Err("timed out waiting for the response".to_owned()),
        }
    }

    async fn ask(&self) -> Result<(), String> {
        let options = ConnectOptions {
            timeout: PATIENCE,
            ..ConnectOptions::default()
        };
        let stream = net::connect(&self.address, &options)
            .await
            .map_err(|error| format!("connect() failed: {error}"))?;
        let mut stream = Transport::plain(stream);
        if let Some(secure) = &self.secure {
            let (secure, host) = &**secure;
            let asked = secure.asked(&mut NoVariables, host.as_bstr(), "");
            secure
                .handshake(&mut stream, &asked, PATIENCE)
                .await
                .map_err(|why| match why {
                    NotSecure::Peer(line) | NotSecure::Ours(line) => line,
                    NotSecure::TimedOut => "the TLS handshake took too long".to_owned(),
                })?;
        }
        let head = [
            b"GET ",
            &self.uri[..],
            b" HTTP/1.0\r\nHost: ",
            &self.host[..],
            b"\r\nConnection: close\r\n\r\n",
        ]
        .concat();
        stream
            .write_all(&head)
            .await
            .map_err(|error| format!("the request could not be sent: {error}"))?;
        let needs_body = self
            .condition
            .as_ref()
            .is_some_and(|condition| condition.needs_body());
        let (mut parser, mut response) = (Parser::new(), ResponseHead::default());
        let mut answer = Vec::new();
        let mut head_length = None;
        loop {
            let room = MAX_ANSWER - answer.len();
            let read = stream.read_into(&mut answer, room.min(16 * 1024)).await;
            let count = read.map_err(|error| format!("the response could not be read: {error}"))?;
            if head_length.is_none() {
                match parser.parse(&answer, MAX_HEAD, &mut response) {
                    Ok(Status::Complete(length)) => head_length = Some(length),
                    Ok(Status::Partial) => {}
                    Ok(Status::NotHttp) => return Err("the response is not HTTP".to_owned()),
                    Err(bad) => return Err(bad.log_line().as_bstr().to_string()),
                }
            }
            let enough = head_length.is_some() && !needs_body || answer.len() >= MAX_ANSWER;
            if count == 0 || enough {
                break;
            }
        }
        let length =
            head_length.ok_or("the connection was closed before the response was complete")?;
        match &self.condition {
            Some(condition) => condition.test(&response, &answer[length..]),
            None if (200..400).contains(&response.status) => Ok(()),
            None => Err(format!("status {}", response.status)),
        }
    }
}
