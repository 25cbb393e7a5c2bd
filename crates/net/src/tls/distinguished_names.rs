//! Distinguished names as text, in the two forms that OpenSSL writes. Configurations compare them with `map`, so
//! they must be equal to OpenSSL's byte by byte.

use x509_parser::prelude::*;

/// The short names of attribute types, by their object identifiers.
const TYPES: [(&str, &str); 19] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.97", "organizationIdentifier"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
];

fn type_name(attribute: &AttributeTypeAndValue<'_>) -> String {
    let number = attribute.attr_type().to_id_string();
    let known = TYPES.iter().find(|(known, _)| *known == number);
    known.map_or(number.clone(), |(_, name)| (*name).to_owned())
}

fn value(attribute: &AttributeTypeAndValue<'_>) -> Vec<u8> {
    let value = attribute.attr_value();
    // BMPString, two bytes per character, is converted to UTF-8; all other types are shown as they are.
    if value.header.tag().0 == 30 {
        let units = value
            .data
            .chunks_exact(2)
            .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        return char::decode_utf16(units)
            .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect::<String>()
            .into_bytes();
    }
    value.data.to_vec()
}

/// `CN=a,OU=b\, c,O=d`: in reverse order (RFC 2253, section 2.1), also the attributes of one part, which are joined
/// by plus signs. Everything except printable ASCII is escaped.
pub(super) fn rfc2253(name: &X509Name<'_>) -> String {
    let parts: Vec<String> = name
        .iter_rdn()
        .map(|rdn| {
            let attributes: Vec<String> = rdn
                .iter()
                .map(|attribute| format!("{}={}", type_name(attribute), escape(&value(attribute))))
                .collect();
            attributes.into_iter().rev().collect::<Vec<_>>().join("+")
        })
        .collect();
    parts.into_iter().rev().collect::<Vec<_>>().join(",")
}

fn escape(value: &[u8]) -> String {
    let mut out = String::new();
    for (index, &byte) in value.iter().enumerate() {
        // A space is escaped only at either end (RFC 2253, section 2.4).
        let edge = index == 0 || index + 1 == value.len();
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b'#' if index == 0 => out.push_str("\\#"),
            b' ' if edge => out.push_str("\\ "),
            0x20..0x7f => out.push(char::from(byte)),
            byte => out.push_str(&format!("\\{byte:02X}")),
        }
    }
    out
}

/// `/O=d/OU=b, c/CN=a`: the old form, in the order of the certificate. It is ambiguous if a value has a slash.
pub(super) fn oneline(name: &X509Name<'_>) -> String {
    let mut out = String::new();
    let attributes = name.iter_rdn().flat_map(|rdn| rdn.iter().enumerate());
    for (index, attribute) in attributes {
        out.push(if index == 0 { '/' } else { '+' });
        out.push_str(&type_name(attribute));
        out.push('=');
        for byte in value(attribute) {
            match byte {
                0x20..0x7f => out.push(char::from(byte)),
                byte => out.push_str(&format!("\\x{byte:02X}")),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of a name may have several attributes, with a plus between: the old form keeps their order, the other
    /// turns it round like that of the parts.
    #[test]
    fn names_with_two_attributes_in_a_part() {
        let attribute = |number: u8, value: u8| {
            // SEQUENCE { OBJECT IDENTIFIER 2.5.4.number, UTF8String }
            vec![0x30, 8, 6, 3, 0x55, 4, number, 12, 1, value]
        };
        let part = |attributes: &[Vec<u8>]| {
            let content = attributes.concat();
            [&[0x31, content.len() as u8][..], &content].concat()
        };
        let (name, place, unit) = (attribute(3, b'a'), attribute(7, b'b'), attribute(11, b'c'));
        let content = [part(&[name]), part(&[place, unit])].concat();
        let der = [&[0x30, content.len() as u8][..], &content].concat();
        let (_, name) = X509Name::from_der(&der).expect("a good name");
        assert_eq!(rfc2253(&name), "OU=c+L=b,CN=a");
        assert_eq!(oneline(&name), "/CN=a/L=b+OU=c");
    }
}
