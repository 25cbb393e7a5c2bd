//! Response heads: written for clients, read from upstream servers.

use crate::fields::Fields;

/// Appends `HTTP/1.1 CODE REASON` and a line end. Clients get 1.1 whatever they asked with
/// (RFC 9112 section 2.3). `reason` replaces the usual phrase.
pub fn write_status_line(status: u16, reason: Option<&[u8]>, out: &mut Vec<u8>) {
    let _ = (status, reason, out);
}

/// Appends one header line.
pub fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let _ = (name, value, out);
}

/// Appends all header lines, without the empty line that ends the head.
pub fn write_fields(fields: &Fields, out: &mut Vec<u8>) {
    for (name, value) in fields.iter() {
        write_field(name, value, out);
    }
}

/// Appends the empty line that ends a head.
pub fn write_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}
