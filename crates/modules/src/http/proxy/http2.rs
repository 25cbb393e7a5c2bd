//! `proxy_http_version 2`: what is asked for by HTTP/2. How, [`crate::shared::http2`] knows.

use std::sync::Arc;

use bstr::{BStr, ByteSlice};
use http::Request;
use http::site::ConfRef;
use http::upstream::{Content, SettingsRef};
use proto::Known;

use super::{Conf, protocol, url};
use crate::shared::http2::{Speaker, Wanted};

/// One request.
pub(super) struct Asker {
    conf: ConfRef<Conf>,
    settings: SettingsRef,
    address: Arc<url::Address>,
}

impl Asker {
    pub(super) fn new(
        conf: ConfRef<Conf>,
        settings: SettingsRef,
        address: Arc<url::Address>,
    ) -> Asker {
        Asker {
            conf,
            settings,
            address,
        }
    }
}

impl Speaker for Asker {
    fn scheme(&self) -> &'static str {
        self.address.scheme_prefix()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.address.secure.as_deref().map(BStr::new)
    }

    fn ask(
        &mut self,
        request: &mut Request,
        content: Content,
        wanted: &mut Wanted,
    ) -> Result<(), u16> {
        wanted.scheme = self.address.scheme();
        protocol::write_method(request, &self.conf, &mut wanted.method)?;
        url::write_target(request, &self.conf, &self.address, &mut wanted.path);
        if wanted.path.is_empty() {
            request.error(format_args!("zero length URI to proxy"));
            return Err(500);
        }
        wanted.content = self
            .conf
            .set_body
            .as_ref()
            .map(|body| request.value(body).into());
        let content = wanted
            .content
            .as_ref()
            .map_or(content, |body| Content::Length(body.len() as u64));
        let mut lines = Vec::new();
        let host = &self.address.host_header;
        let pass = self.settings.pass_request_headers;
        self.conf
            .fields
            .write(request, content, host, false, pass, &mut lines)?;
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
        field: Known,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        protocol::map_field(request, &self.conf, field, value, out)
    }
}
