//! A name server. Its zone is text, a record a line: `a.example A 127.0.0.1`, `b.example CNAME a.example`. A word in place of a
//! record makes it fail for that name: `SERVFAIL`, `REFUSED`, `NODATA`, and `CUT` for a datagram that ends early. A name that has
//! no line does not exist.

use std::net::Ipv4Addr;

const HEAD: usize = 12;
const A: u16 = 1;
const CNAME: u16 = 5;

/// A query: the name as it was written, and the type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Question<'a> {
    bytes: &'a [u8],
    /// The end of the question in the datagram.
    end: usize,
    /// In lower case.
    name: String,
    kind: u16,
}

/// Reads the question of a datagram; `None` for what is none.
pub(super) fn question(bytes: &[u8]) -> Option<Question<'_>> {
    let (mut at, mut labels) = (HEAD, Vec::new());
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        let label = bytes.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]);
    Some(Question {
        bytes,
        end: at + 4,
        name: labels.join("."),
        kind,
    })
}

impl Question<'_> {
    /// What the zone says.
    pub(super) fn answer(&self, zone: &str) -> Option<Vec<u8>> {
        let mut lines = zone.lines().filter_map(|line| line.split_once(' '));
        let of_name: Vec<&str> = lines
            .by_ref()
            .filter(|(name, _)| *name == self.name)
            .map(|(_, record)| record)
            .collect();
        let mut records = Vec::new();
        let mut count = 0_u16;
        // A record belongs to the name that was asked for, or to the one that it stands for.
        let mut owner = vec![0xc0, 0x0c];
        for record in &of_name {
            let (kind, data) = match record.split_once(' ') {
                Some(("CNAME", target)) => (CNAME, labels(target)),
                Some(("A", address)) if self.kind == A => {
                    (A, address.parse::<Ipv4Addr>().ok()?.octets().to_vec())
                }
                _ => continue,
            };
            records.extend(&owner);
            records.extend(kind.to_be_bytes());
            records.extend([0, 1, 0, 0, 0, 60]);
            records.extend(u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
            records.extend(&data);
            count += 1;
            if kind == CNAME {
                owner = data;
            }
        }
        let code = match of_name.first() {
            None => 3,
            Some(&"SERVFAIL") => 2,
            Some(&"REFUSED") => 5,
            Some(_) => 0,
        };
        let mut out = self.bytes.get(..2)?.to_vec();
        out.extend([0x81, 0x80 | code, 0, 1]);
        out.extend(count.to_be_bytes());
        out.extend([0; 4]);
        out.extend(self.bytes.get(HEAD..self.end)?);
        out.extend(records);
        if of_name.first() == Some(&"CUT") {
            out.truncate(HEAD + 3);
        }
        Some(out)
    }
}

fn labels(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap_or(0));
        out.extend(label.bytes());
    }
    out.push(0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_from_the_zone() {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        query.extend(labels("B.x"));
        query.extend([0, 1, 0, 1]);
        let asked = question(&query).expect("it is a query");
        assert_eq!((asked.name.as_str(), asked.kind), ("b.x", A));
        let answer = asked.answer("b.x CNAME a.x\nb.x A 127.0.0.1\n");
        let answer = answer.expect("it is in the zone");
        assert_eq!(answer[..8], [7, 9, 0x81, 0x80, 0, 1, 0, 2]);
        assert!(answer.ends_with(&[0, 4, 127, 0, 0, 1]));
        let none = asked.answer("c.x NODATA\n").expect("it is answered");
        assert_eq!((none[3], none.len()), (0x83, query.len()));
        assert_eq!(question(&query[..14]), None);
    }
}
