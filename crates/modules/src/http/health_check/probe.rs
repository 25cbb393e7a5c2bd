//! One probe of one server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::{VarId, VariableScope};
use net::upstream::{UpstreamTls, UpstreamTlsError};
use net::{ConnectSettings, Transport};
use proto::h1::response::{ResponseParser, ResponseProgress};
use proto::message::ResponseHead;
use rt::net::SocketAddress;

use super::match_block::MatchCondition;

/// The time limit for a probe, everything included.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of the response header, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// How much of a response is read, including the header; of a longer one, the beginning is tested.
const MAX_ANSWER: usize = 256 * 1024;

/// What a probe needs. It does not refer to the check, since it runs as a task of its own.
pub(super) struct HealthProbe {
    /// With the port of `port=`, if there is one.
    pub(super) address: SocketAddress,
    pub(super) host: BString,
    /// The TLS settings and the host to verify; `None`: a plain connection.
    pub(super) secure: Option<Arc<(UpstreamTls, BString)>>,
    pub(super) uri: BString,
    /// `None`: any status from 200 to 399.
    pub(super) condition: Option<Arc<MatchCondition>>,
}

/// A probe has no request, so variables in the TLS settings are empty.
struct ProbeScope;

impl VariableScope for ProbeScope {
    fn variable(&mut self, _: VarId, _: &mut Vec<u8>) -> bool {
        false
    }

    fn capture(&mut self, _: usize, _: &mut Vec<u8>) -> bool {
        false
    }
}

/// The address with another port, if one is given; unix sockets have none.
pub(super) fn with_port(address: &SocketAddress, port: Option<u16>) -> SocketAddress {
    match (address, port) {
        (SocketAddress::Inet(inet), Some(port)) => SocketAddr::new(inet.ip(), port).into(),
        _ => address.clone(),
    }
}

impl HealthProbe {
    /// Runs the probe. The error says what is wrong.
    pub(super) async fn run(self) -> Result<(), String> {
        match rt::timeout(PROBE_TIMEOUT, self.exchange()).await {
            Ok(result) => result,
            Err(_) => Err("timed out waiting for the response".to_owned()),
        }
    }

    /// Connects, sends the request and tests the response. HTTP/1.0 because its responses are not
    /// chunked, so the body can be tested as received.
    async fn exchange(&self) -> Result<(), String> {
        let mut stream = self.connect().await?;
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
        let (response, body) = self.read_response(&mut stream).await?;
        match &self.condition {
            Some(condition) => condition.test(&response, &body),
            // nginx's default.
            None if (200..400).contains(&response.status) => Ok(()),
            None => Err(format!("status {}", response.status)),
        }
    }

    /// Opens a connection, with TLS if the location uses it.
    async fn connect(&self) -> Result<Transport, String> {
        let options = ConnectSettings {
            timeout: PROBE_TIMEOUT,
            ..ConnectSettings::default()
        };
        let stream = net::connect(&self.address, &options)
            .await
            .map_err(|error| format!("connect() failed: {error}"))?;
        let mut stream = Transport::plain(stream);
        if let Some(secure) = &self.secure {
            let (secure, host) = &**secure;
            let asked = secure.handshake_parameters(&mut ProbeScope, host.as_bstr(), "");
            secure
                .handshake(&mut stream, &asked, PROBE_TIMEOUT)
                .await
                .map_err(|why| match why {
                    UpstreamTlsError::Peer(line) | UpstreamTlsError::Ours(line) => line,
                    UpstreamTlsError::TimedOut => "the TLS handshake took too long".to_owned(),
                })?;
        }
        Ok(stream)
    }

    /// Reads the head of the response, and its body as far as the condition looks at it.
    async fn read_response(
        &self,
        stream: &mut Transport,
    ) -> Result<(ResponseHead, Vec<u8>), String> {
        let needs_body = self
            .condition
            .as_ref()
            .is_some_and(|condition| condition.needs_body());
        let (mut parser, mut response) = (ResponseParser::new(), ResponseHead::default());
        let mut answer = Vec::new();
        let mut head_length = None;
        loop {
            // Never 0: the loop ends when the limit is reached.
            let room = MAX_ANSWER - answer.len();
            let read = stream.read_into(&mut answer, room.min(16 * 1024)).await;
            let count = read.map_err(|error| format!("the response could not be read: {error}"))?;
            if head_length.is_none() {
                match parser.parse(&answer, MAX_HEAD, &mut response) {
                    Ok(ResponseProgress::Complete(length)) => head_length = Some(length),
                    Ok(ResponseProgress::Partial) => {}
                    Ok(ResponseProgress::NotHttp) => {
                        return Err("the response is not HTTP".to_owned());
                    }
                    Err(bad) => return Err(bad.log_line().as_bstr().to_string()),
                }
            }
            // Without a test of the body there is no reason to wait for it.
            let enough = head_length.is_some() && !needs_body || answer.len() >= MAX_ANSWER;
            if count == 0 || enough {
                break;
            }
        }
        let length =
            head_length.ok_or("the connection was closed before the response was complete")?;
        Ok((response, answer.split_off(length)))
    }
}
