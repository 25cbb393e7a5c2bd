//! From the head of an upstream's response to the response that the client gets.

use std::rc::Rc;

use bstr::{BString, ByteSlice};
use proto::Known;
use proto::h1::response::ResponseHead;

use super::content::Reader;
use super::exchange::{Exchange, Plan, record_of};
use super::protocol::ContentLength;
use super::settings::Store;
use super::tunnel::Tunnel;
use crate::body::Body;
use crate::module::Outcome;
use crate::request::{Request, Version};

/// Runs an exchange and makes its response the request's.
pub async fn pass(request: &mut Request, plan: Plan) -> Outcome {
    match Exchange::run(request, plan).await {
        Ok(exchange) => exchange.respond(request),
        Err(stop) => Outcome::Status(stop.status()),
    }
}

/// What an internal redirect keeps of the response that asked for it.
const KEPT_BY_REDIRECT: [Known; 5] = [
    Known::SetCookie,
    Known::ContentDisposition,
    Known::CacheControl,
    Known::Expires,
    Known::AcceptRanges,
];

impl Exchange {
    /// Makes the response `request.out`.
    pub fn respond(mut self: Box<Self>, request: &mut Request) -> Outcome {
        let head = Rc::clone(&record_of(request).head);
        match self.instead(request, &head) {
            Some(outcome) => outcome,
            None => {
                self.copy_head(request, &head);
                request.out.body = self.into_body(request, &head);
                Outcome::Respond
            }
        }
    }

    /// What is done instead of sending the response: its error page, or an internal redirect that it asks for.
    fn instead(&mut self, request: &mut Request, head: &ResponseHead) -> Option<Outcome> {
        if self.settings.intercept_errors
            && head.status >= 300
            && has_error_page(request, head.status)
        {
            if head.status == 401 {
                for value in head.fields.all_known(Known::WwwAuthenticate) {
                    request.out.fields.push_known(Known::WwwAuthenticate, value);
                }
            }
            self.finish_without_content(request);
            return Some(Outcome::Status(head.status));
        }
        if self.settings.ignore_headers.has(Known::XAccelRedirect) {
            return None;
        }
        let target = head.fields.get_known(Known::XAccelRedirect)?.to_owned();
        self.apply_controls(request, head);
        for (known, name, value) in head.fields.iter_known() {
            if KEPT_BY_REDIRECT.contains(&known) {
                self.copy_field(request, known, name, value);
            }
        }
        if let Some(value) = head.fields.get_known(Known::ContentType) {
            set_content_type(request, value);
        }
        self.finish_without_content(request);
        Some(redirect(request, &target))
    }

    /// Ends the exchange without looking at the content, if there is any.
    fn finish_without_content(&mut self, request: &mut Request) {
        let none = matches!(
            self.protocol.content_length(),
            ContentLength::None | ContentLength::Known(0)
        );
        let reusable = none && self.rest.is_empty();
        self.finish(request, reusable);
    }

    fn copy_head(&mut self, request: &mut Request, head: &ResponseHead) {
        self.apply_controls(request, head);
        let out = &mut request.out;
        out.status = head.status;
        let usual = proto::status::reason(head.status).as_bytes();
        out.reason = match head.status_text().get(4..) {
            Some(reason) if reason != usual => Some(reason.into()),
            _ => None,
        };
        let settings = self.settings.clone();
        let settings = &*settings;
        for (known, name, value) in head.fields.iter_known() {
            if !settings.hide.contains(known, name) {
                self.copy_field(request, known, name, value);
            }
        }
        let out = &mut request.out;
        out.content_length = match self.protocol.content_length() {
            ContentLength::Known(length) => Some(length),
            ContentLength::None => head
                .fields
                .get_known(Known::ContentLength)
                .and_then(proto::h1::body::parse_length),
            ContentLength::Unknown => None,
        };
        if self.settings.force_ranges {
            out.transforms.ranges = true;
            out.transforms.single_range = true;
        }
    }

    fn copy_field(&mut self, request: &mut Request, known: Known, name: &[u8], value: &[u8]) {
        match known {
            Known::ContentLength
            | Known::TransferEncoding
            | Known::Connection
            | Known::KeepAlive => {}
            Known::ContentType => set_content_type(request, value),
            Known::LastModified => copy_last_modified(request, name, value),
            Known::Etag => request.out.etag = Some(value.into()),
            Known::Location => {
                let mut mapped = Vec::new();
                if self.protocol.map_field(request, known, value, &mut mapped) {
                    request.out.location = Some(mapped.into());
                } else {
                    request.out.fields.push(name, value);
                }
            }
            Known::Refresh | Known::SetCookie => {
                let mut mapped = Vec::new();
                if self.protocol.map_field(request, known, value, &mut mapped) {
                    request.out.fields.push(name, &mapped);
                } else {
                    request.out.fields.push(name, value);
                }
            }
            Known::Upgrade if request.head.version() >= Version::Http2 => {}
            Known::AcceptRanges if self.settings.force_ranges => {}
            _ => request.out.fields.push(name, value),
        }
    }

    /// What fields of the response ask of the server itself.
    fn apply_controls(&mut self, request: &mut Request, head: &ResponseHead) {
        let ignored = self.settings.ignore_headers;
        let wanted = |known| head.fields.get_known(known).filter(|_| !ignored.has(known));
        if let Some(value) = wanted(Known::XAccelLimitRate)
            && let Some(rate) = value.to_str().ok().and_then(|text| text.parse().ok())
        {
            request.flow.limit_rate = Some(rate);
        }
        if let Some(value) = wanted(Known::XAccelBuffering) {
            if value.eq_ignore_ascii_case(b"no") {
                self.buffering = false;
            } else if value.eq_ignore_ascii_case(b"yes") {
                self.buffering = true;
            }
        }
        if let Some(value) = wanted(Known::XAccelCharset) {
            request.out.charset = value.into();
        }
    }

    fn into_body(mut self: Box<Self>, request: &mut Request, head: &ResponseHead) -> Body {
        let upgrades =
            self.protocol.is_tunnel() || head.status == 101 && self.protocol.may_upgrade();
        if upgrades && !request.is_subrequest() {
            request.flow.upgraded = true;
            return Body::stream(Tunnel::new(self));
        }
        if head.status == 101 {
            request.flow.close = true;
        }
        if request.flow.header_only || self.protocol.content_length() == ContentLength::None {
            self.finish_without_content(request);
            return Body::Empty;
        }
        if let Some(body) = self.whole_body(request) {
            return body;
        }
        Reader::new(self, request).into_body(request)
    }

    /// The content, if all of it came with the head: most responses end here, without a reader.
    fn whole_body(&mut self, request: &mut Request) -> Option<Body> {
        let length = self.protocol.plain_content()?;
        if self.rest.len() as u64 != length || !matches!(self.settings.store, Store::Off) {
            return None;
        }
        if !self.buffering {
            request.flow.limit_rate = Some(0);
        }
        record_of(request).current().response_length = length;
        let content = std::mem::take(&mut self.rest);
        self.finish(request, true);
        Some(Body::bytes(content))
    }
}

fn has_error_page(request: &Request, status: u16) -> bool {
    let core = &request.site.location(request.location).core;
    core.error_pages.iter().any(|page| page.status == status)
}

/// Follows `X-Accel-Redirect`.
fn redirect(request: &mut Request, target: &[u8]) -> Outcome {
    if target.starts_with(b"@") {
        return request.redirect_named(target.as_bstr());
    }
    let mut path = Vec::new();
    let Ok(args) = proto::uri::parse_internal(target, &mut path) else {
        request.error(format_args!(
            "unsafe URI \"{}\" was detected",
            target.as_bstr()
        ));
        return Outcome::Status(404);
    };
    if request.method != proto::h1::Method::Head {
        request.method = proto::h1::Method::Get;
    }
    request.redirect(path, &target[args])
}

/// Takes `; charset=` off a media type, so that charset filters see both.
fn set_content_type(request: &mut Request, value: &[u8]) {
    let (media_type, charset) = split_charset(value);
    request.out.content_type = media_type.into();
    if !charset.is_empty() {
        request.out.charset = charset;
    }
}

fn split_charset(value: &[u8]) -> (&[u8], BString) {
    let mut at = 0;
    while let Some(semicolon) = value[at..].find_byte(b';') {
        let end = at + semicolon;
        let parameter = value[end + 1..].trim_start_with(|c| c == ' ');
        if parameter.len() >= 8 && parameter[..8].eq_ignore_ascii_case(b"charset=") {
            let charset = parameter[8..]
                .strip_prefix(b"\"")
                .unwrap_or(&parameter[8..]);
            let charset = charset.strip_suffix(b"\"").unwrap_or(charset);
            return (&value[..end], charset.into());
        }
        at = end + 1;
    }
    (value, BString::default())
}

/// A date that is written as we write it becomes the response's; any other is passed on as it is.
fn copy_last_modified(request: &mut Request, name: &[u8], value: &[u8]) {
    let Some(time) = proto::date::parse(value) else {
        return request.out.fields.push(name, value);
    };
    let mut canonical = Vec::new();
    proto::date::write_http(time, &mut canonical);
    if canonical == value {
        request.out.last_modified = Some(time);
    } else {
        request.out.fields.push(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::split_charset;

    #[test]
    fn charsets_are_taken_off_media_types() {
        for (value, media_type, charset) in [
            ("text/html", "text/html", ""),
            ("text/html; charset=utf-8", "text/html", "utf-8"),
            ("text/html;charset=\"utf-8\"", "text/html", "utf-8"),
            (
                "multipart/x; boundary=a; charset=b",
                "multipart/x; boundary=a",
                "b",
            ),
            ("text/html;", "text/html;", ""),
            ("text/html; CHARSET=", "text/html", ""),
        ] {
            let (found, text) = split_charset(value.as_bytes());
            assert_eq!(
                (found, text.as_slice()),
                (media_type.as_bytes(), charset.as_bytes()),
                "{value}"
            );
        }
    }
}
