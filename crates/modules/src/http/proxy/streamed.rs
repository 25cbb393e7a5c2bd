//! `proxy_http_version 2` and `3`: what to request on a stream. How is in [`crate::shared::http2`] and
//! [`crate::shared::http3`].

use std::sync::Arc;

use bstr::{BStr, ByteSlice};
use http::Request;
use http::http_site::ConfRef;
use http::upstream::{NoResponse, RequestLength, SettingsRef};
use proto::KnownField;

use super::{Conf, http1, url};
use crate::shared::streamed_request::{StreamProfile, StreamedRequest};

/// One request to a server of HTTP/2 or HTTP/3.
pub(super) struct ProxyStreamProfile {
    conf: ConfRef<Conf>,
    settings: SettingsRef,
    /// For the scheme, the host and the path.
    address: Arc<url::ProxyAddress>,
}

impl ProxyStreamProfile {
    /// What a request to `address` asks for.
    pub(super) fn new(
        conf: ConfRef<Conf>,
        settings: SettingsRef,
        address: Arc<url::ProxyAddress>,
    ) -> ProxyStreamProfile {
        ProxyStreamProfile {
            conf,
            settings,
            address,
        }
    }
}

impl StreamProfile for ProxyStreamProfile {
    fn scheme(&self) -> &'static str {
        self.address.scheme_prefix()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.address.tls_host.as_deref().map(BStr::new)
    }

    fn fill_request(
        &mut self,
        request: &mut Request,
        content: RequestLength,
        wanted: &mut StreamedRequest,
    ) -> Result<(), NoResponse> {
        wanted.scheme = self.address.scheme();
        http1::write_method(request, &self.conf, &mut wanted.method)?;
        url::write_target(request, &self.conf, &self.address, &mut wanted.path);
        // A value with variables can turn out empty.
        if wanted.path.is_empty() {
            request.error(format_args!("zero length URI to proxy"));
            return Err(NoResponse::new(500));
        }
        // `proxy_set_body` replaces the client's.
        wanted.content = self
            .conf
            .set_body
            .as_ref()
            .map(|body| request.value(body).into());
        let content = wanted
            .content
            .as_ref()
            .map_or(content, |body| RequestLength::Length(body.len() as u64));
        let mut lines = Vec::new();
        let host = &self.address.host_header;
        let pass = self.settings.pass_request_headers;
        self.conf
            .fields
            .write(request, content, host, false, pass, &mut lines)?;
        // The same fields as for HTTP/1, written as lines and taken apart again: one implementation
        // of `proxy_set_header` is worth more than the copy.
        for line in lines.split_str(b"\r\n") {
            if let Some((name, value)) = line.split_once_str(b": ") {
                wanted.add(name, value);
            }
        }
        Ok(())
    }

    fn passes_trailers(&self) -> bool {
        self.conf.pass_trailers
    }

    fn map_field(
        &mut self,
        request: &mut Request,
        field: KnownField,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        http1::map_field(request, &self.conf, field, value, out)
    }
}
