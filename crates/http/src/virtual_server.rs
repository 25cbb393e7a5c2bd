//! Selects the virtual server of a request: by its host, among those that share a listening address.
//!
//! The requests of a connection mostly name the same host, and so does the next connection: the last result is kept.

use std::rc::Rc;
use std::sync::Arc;

use proto::KnownField;
use proto::message::{RejectKind, RejectedHead};

use crate::http_site::ServerId;
use crate::request::Request;

/// The host of the last request, and the server that it selected.
#[derive(Default)]
pub(crate) struct LastVirtualServer {
    /// The value of the `Host` field; empty if nothing is kept.
    value: Vec<u8>,
    name: Vec<u8>,
    port: Option<u16>,
    server: ServerId,
    /// The configuration of the server, and the listening address in it. The address's location in memory is enough to
    /// identify it: within one generation it is never freed and reused.
    generation: u64,
    endpoint: usize,
}

impl LastVirtualServer {
    /// Selects the server by the host of a request, and notes the host in its head.
    pub(crate) fn choose_server(&mut self, request: &mut Request) -> Result<(), RejectedHead> {
        if self.is_known(request) {
            let head = Rc::get_mut(&mut request.head).expect(ALONE);
            // The name in lower case and the port are taken over: this spares parsing the field as well as looking it
            // up.
            head.host.extend_from_slice(&self.name);
            head.port = self.port;
            if request.server != self.server {
                request.server = self.server;
                request.enter_server();
            }
            return Ok(());
        }
        read_host(request)?;
        if find_server(request) {
            self.keep(request);
        }
        Ok(())
    }

    fn is_known(&self, request: &Request) -> bool {
        // An absolute target overrides `Host` (RFC 9112, section 3.2.2), and its result is never kept.
        let wire = &request.head.wire;
        let field = wire.fields.get_known(KnownField::Host);
        field.is_some_and(|field| *field == *self.value)
            && !self.value.is_empty()
            && self.generation == request.site.generation
            && self.endpoint == endpoint_key(request)
            && wire.authority().is_none()
    }

    fn keep(&mut self, request: &Request) {
        let head = &request.head;
        let field = match head.wire.authority() {
            None => head.wire.fields.get_known(KnownField::Host),
            Some(_) => None,
        };
        self.value.clear();
        self.value.extend_from_slice(field.unwrap_or_default());
        self.name.clear();
        self.name.extend_from_slice(&head.host);
        self.port = head.port;
        self.server = request.server;
        self.generation = request.site.generation;
        self.endpoint = endpoint_key(request);
    }
}

fn endpoint_key(request: &Request) -> usize {
    Arc::as_ptr(&request.client.endpoint.borrow()).addr()
}

const ALONE: &str = "a request that is being read is alone with its head";

/// Checks the host of the request and notes it in lower case.
fn read_host(request: &mut Request) -> Result<(), RejectedHead> {
    let head = Rc::get_mut(&mut request.head).expect(ALONE);
    let field = head.wire.fields.get_known(KnownField::Host);
    let Some(value) = head.wire.authority().or(field) else {
        return Ok(());
    };
    let mut is_valid = false;
    if let Ok(host) = proto::host::parse(value) {
        host.write_lowercase(&mut head.host);
        head.port = host.port;
        // `Host` is ignored next to an absolute target, but an invalid one is still a 400 (RFC 9112, section 3.2).
        is_valid = head.wire.authority().is_none()
            || field.is_none_or(|field| proto::host::parse(field).is_ok());
    }
    if is_valid {
        return Ok(());
    }
    head.wire.count_to_host();
    Err(RejectedHead::new(RejectKind::InvalidHost))
}

/// Selects the server by the request's host, or the address's default one. The name of the TLS hello has chosen the
/// certificate and does not matter here. Returns whether the result may be kept: a regular expression also sets
/// captures, so it has to be matched each time.
fn find_server(request: &mut Request) -> bool {
    let client = Rc::clone(&request.client);
    let endpoint = client.endpoint.borrow();
    let head = Rc::clone(&request.head);
    let host = head.host.as_slice();
    let Some((server, pattern)) = endpoint.names.find(host.into()) else {
        if request.server != endpoint.default_server {
            request.server = endpoint.default_server;
            request.enter_server();
        }
        return true;
    };
    request.server = server;
    request.enter_server();
    if let Some(pattern) = pattern {
        request.matches(pattern, host);
    }
    pattern.is_none()
}
