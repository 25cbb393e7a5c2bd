//! One request as the ring has it: names of variables and their values.

use base::ByteSlice as _;
use http::request_feed;

/// A request that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TailRecord {
    /// As the server has written them: some are cut, and those without a value are missing.
    pub(super) values: Vec<(String, Vec<u8>)>,
}

/// One try of a request with an upstream server; a value that is not known is `-`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShownTry<'a> {
    /// The server that was tried, or the group if none could be.
    pub(super) address: &'a [u8],
    /// The status of its response, or of its failure.
    pub(super) status: &'a [u8],
    /// Seconds until the connection was there, ...
    pub(super) connect: &'a [u8],
    /// ... until the head of the response was, ...
    pub(super) header: &'a [u8],
    /// ... and until the try was over.
    pub(super) response: &'a [u8],
}

/// Names that are computed here, from the value of another one.
pub(super) const ARGUMENT: &str = "arg_";
pub(super) const COLUMN: &str = "weir_time_";

impl TailRecord {
    /// Takes a record of the ring apart. Damaged ones have fewer values, and do no harm.
    pub(super) fn parse(record: &[u8]) -> TailRecord {
        let values = request_feed::read_values(record);
        TailRecord {
            values: values
                .map(|(name, value)| (name.to_owned(), value.to_vec()))
                .collect(),
        }
    }

    /// The value of a variable; empty if it has none.
    pub(super) fn value(&self, name: &str) -> &[u8] {
        let found = self.values.iter().find(|(known, _)| known == name);
        if let Some((_, value)) = found {
            return value;
        }
        // The server writes all arguments as one value.
        match name.strip_prefix(ARGUMENT) {
            Some(argument) => self.argument(argument),
            None => b"",
        }
    }

    /// The value of a variable as text that a terminal can show.
    pub(super) fn shown(&self, name: &str) -> String {
        let value = base::text::visible(self.value(name));
        String::from_utf8_lossy(&value).into_owned()
    }

    /// A number; 0 if the value is none.
    pub(super) fn number(&self, name: &str) -> f64 {
        let text = std::str::from_utf8(self.value(name)).unwrap_or_default();
        text.parse().unwrap_or(0.0)
    }

    /// The first argument of this name, as in nginx not decoded.
    fn argument(&self, name: &str) -> &[u8] {
        let arguments = self.value("args").split(|byte| *byte == b'&');
        let mut pairs = arguments.filter_map(|argument| argument.split_once_str("="));
        pairs
            .find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()))
            .map_or(&b""[..], |(_, value)| value)
    }

    /// The columns of the ledger, with their milliseconds.
    pub(super) fn columns(&self) -> Vec<(&str, f64)> {
        let ledger = std::str::from_utf8(self.value("weir_ledger")).unwrap_or_default();
        let parts = ledger.split('/').filter_map(|part| part.split_once('='));
        parts
            .filter_map(|(name, millis)| Some((name, millis.parse().ok()?)))
            .collect()
    }

    /// The tries, oldest first.
    pub(super) fn tries(&self) -> Vec<ShownTry<'_>> {
        let lists = [
            "upstream_addr",
            "upstream_status",
            "upstream_connect_time",
            "upstream_header_time",
            "upstream_response_time",
        ]
        .map(|name| list_items(self.value(name)));
        let at = |list: usize, index: usize| lists[list].get(index).copied().unwrap_or(b"-");
        // The addresses decide how many there are: before the first one there is one empty item.
        let count = lists[0].iter().filter(|item| !item.is_empty()).count();
        (0..count)
            .map(|index| ShownTry {
                address: at(0, index),
                status: at(1, index),
                connect: at(2, index),
                header: at(3, index),
                response: at(4, index),
            })
            .collect()
    }
}

/// The items of a value of `$upstream_…`: separated by commas and, between two exchanges, by colons.
pub(super) fn list_items(value: &[u8]) -> Vec<&[u8]> {
    value
        .split_str(", ")
        .flat_map(|part| part.split_str(" : "))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_and_columns_are_parts_of_values() {
        let values = [
            ("upstream_addr", "10.0.0.1:80, 10.0.0.2:80 : unix:/s"),
            ("upstream_status", "502, 200 : 304"),
            ("upstream_header_time", "-, 0.012 : 0.000"),
            (
                "weir_ledger",
                "--/15.204/connect=2.100/first_byte=12.900/new",
            ),
            ("args", "a=1&token=***"),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value.into()));
        let record = TailRecord {
            values: values.into(),
        };
        let tries = record.tries();
        assert_eq!(tries.len(), 3);
        assert_eq!(tries[2].address, b"unix:/s");
        assert_eq!((tries[0].header, tries[1].connect), (&b"-"[..], &b"-"[..]));
        assert_eq!(record.columns(), [("connect", 2.1), ("first_byte", 12.9)]);
        assert_eq!(record.value("arg_token"), b"***");
        assert_eq!(record.value("arg_b"), b"");
    }
}
