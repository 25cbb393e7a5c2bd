//! What is asked for on a stream: what HTTP/2 and HTTP/3 as upstream protocols share of the request, and the module's side of
//! it. What they share of the response is in [`super::stream_response`]; they differ in frames, in the compression of fields,
//! and in how a request ends.

use bstr::{BStr, BString};
use http::Request;
use http::upstream::{NoResponse, RequestLength, RequestTraits, ShownFields};
use proto::KnownField;
use proto::fields::Fields;
use proto::h2::rules;

/// A request as a section of fields, independent of a connection. It is written anew for each try, because in HTTP/2 the
/// compression of fields depends on the connection.
#[derive(Debug, Default)]
pub(crate) struct StreamedRequest {
    pub(crate) method: BString,
    /// `:scheme`, `http` or `https`.
    pub(crate) scheme: &'static str,
    pub(crate) authority: BString,
    pub(crate) path: BString,
    /// The regular fields. [`StreamedRequest::add`] leaves out those that concern a connection (RFC 9113, section 8.2.2; RFC
    /// 9114, section 4.2).
    pub(crate) fields: Fields,
    /// A fixed body in place of the client's (`proxy_set_body`).
    pub(crate) content: Option<Vec<u8>>,
}

impl StreamedRequest {
    /// Adds a field, unless it concerns a connection. `Host` becomes `:authority` (RFC 9113, section 8.3.1).
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) {
        let known = KnownField::from_name(name);
        if known == KnownField::Host {
            self.authority = value.into();
        } else if !rules::is_connection_specific(known, value) {
            self.fields.push(name, value);
        }
    }

    /// Has the module fill it in, and returns what content it announces.
    pub(crate) fn fill(
        &mut self,
        profile: &mut impl StreamProfile,
        request: &mut Request,
        content: RequestLength,
    ) -> Result<RequestLength, NoResponse> {
        profile.fill_request(request, content, self)?;
        // For the error log, which shows the request to the server.
        let record = request.upstream.get_or_make();
        record.target.extend_from_slice(&self.path);
        Ok(match &self.content {
            Some(content) => RequestLength::Length(content.len() as u64),
            None => content,
        })
    }

    /// Whether the response has no content whatever its head says: `proxy_method` can make it a HEAD, and so can the client.
    pub(crate) fn is_head(&self, request: &Request) -> bool {
        self.method == "HEAD" || request.method.is_head()
    }

    /// What the response must fit. There is no `Upgrade` on a stream (RFC 9113, section 8.6; RFC 9114, section 4.5).
    pub(crate) fn traits(&self) -> RequestTraits {
        RequestTraits {
            upgrade: false,
            part: self.fields.has(KnownField::Range),
        }
    }

    /// What the server gets, for `weir explain`.
    pub(crate) fn shown_fields(&self) -> ShownFields {
        let pseudo = [
            (":method", self.method.clone()),
            (":scheme", self.scheme.into()),
            (":authority", self.authority.clone()),
            (":path", self.path.clone()),
        ];
        let pseudo = pseudo.into_iter().map(|(name, value)| (name.into(), value));
        let fields = self.fields.iter();
        let fields = fields.map(|(name, value)| (name.into(), value.into()));
        pseudo.chain(fields).collect()
    }
}

/// The module's side of an exchange: what to request, and how to rewrite the response's fields.
pub(crate) trait StreamProfile {
    /// The prefix of the peer's name in logs, such as `grpc://`.
    fn scheme(&self) -> &'static str;

    /// The host to use TLS with; `None`: a plain connection.
    fn secure_host(&self) -> Option<&BStr> {
        None
    }

    /// Fills in the request. The error is the status to respond with; it has been logged.
    fn fill_request(
        &mut self,
        request: &mut Request,
        content: RequestLength,
        wanted: &mut StreamedRequest,
    ) -> Result<(), NoResponse>;

    /// Whether trailers are passed on to the client.
    fn passes_trailers(&self) -> bool;

    /// Rewrites a field of the response; `false` leaves it unchanged.
    fn map_field(
        &mut self,
        _request: &mut Request,
        _field: KnownField,
        _value: &[u8],
        _out: &mut Vec<u8>,
    ) -> bool {
        false
    }
}
