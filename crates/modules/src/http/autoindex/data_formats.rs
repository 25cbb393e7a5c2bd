//! Listings for programs: JSON, JSONP and XML.

use bstr::BString;
use proto::date::TimeZone;
use rt::file::InodeKind;

use super::{ListingEntry, escape};

/// The type of an entry in nginx's words.
fn type_of(entry: &ListingEntry) -> &'static str {
    match entry.kind {
        InodeKind::Directory => "directory",
        InodeKind::Regular => "file",
        InodeKind::Symlink | InodeKind::Other => "other",
    }
}

/// Appends a JSON array, wrapped in a call of `callback` if there is one.
pub(super) fn write_json(entries: &[ListingEntry], callback: Option<&BString>, out: &mut Vec<u8>) {
    if let Some(callback) = callback {
        // The leading comment keeps old browser plug-ins from taking the response for a file of
        // their own format, whose signature a callback name could imitate.
        out.extend_from_slice(b"/* callback */\r\n");
        out.extend_from_slice(callback);
        out.push(b'(');
    }
    out.push(b'[');
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"\r\n{ \"name\":\"");
        escape::json(&entry.name, out);
        out.extend_from_slice(b"\", \"type\":\"");
        out.extend_from_slice(type_of(entry).as_bytes());
        out.extend_from_slice(b"\", \"mtime\":\"");
        proto::date::write_http(entry.modified, out);
        out.push(b'"');
        // The size of anything else has no meaning to a client.
        if entry.kind == InodeKind::Regular {
            out.extend_from_slice(b", \"size\":");
            base::text::write_number(entry.size, out);
        }
        out.extend_from_slice(b" }");
    }
    out.extend_from_slice(b"\r\n]");
    if callback.is_some() {
        out.extend_from_slice(b");");
    }
}

/// Appends an XML document with an element per entry.
pub(super) fn write_xml(entries: &[ListingEntry], out: &mut Vec<u8>) {
    out.extend_from_slice(b"<?xml version=\"1.0\"?>\r\n<list>\r\n");
    for entry in entries {
        let name = type_of(entry).as_bytes();
        out.push(b'<');
        out.extend_from_slice(name);
        out.extend_from_slice(b" mtime=\"");
        proto::date::write_iso8601(entry.modified, &TimeZone::UTC, out);
        // nginx writes the zone as `Z`.
        out.truncate(out.len() - "+00:00".len());
        out.extend_from_slice(b"Z\"");
        if entry.kind == InodeKind::Regular {
            out.extend_from_slice(b" size=\"");
            base::text::write_number(entry.size, out);
            out.push(b'"');
        }
        out.push(b'>');
        escape::html(&entry.name, out);
        out.extend_from_slice(b"</");
        out.extend_from_slice(name);
        out.extend_from_slice(b">\r\n");
    }
    out.extend_from_slice(b"</list>\r\n");
}
