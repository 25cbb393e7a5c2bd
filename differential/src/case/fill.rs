//! What stands for a case's marks in one start of one server.

use std::path::PathBuf;

/// The places of a case in a start.
#[derive(Clone, Debug)]
pub struct Places {
    /// The server's address, and that of the servers behind it.
    pub address: &'static str,
    /// For `%%PORT0%%` ….
    pub ports: Vec<u16>,
    /// For `%%UP0%%` ….
    pub upstreams: Vec<u16>,
    /// Where the server answers whatever else its cases do.
    pub probe: u16,
    /// For `%%N%%`.
    pub number: usize,
    /// For `%%DIR%%`.
    pub files: PathBuf,
    /// For `%%OWN%%`.
    pub own: PathBuf,
    /// For `%%TLS%%`: certificates and keys.
    pub tls: PathBuf,
}

impl Places {
    /// Puts the places in.
    pub fn fill(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut rest = bytes;
        while let Some(at) = find(rest, b"%%") {
            out.extend_from_slice(&rest[..at]);
            let marked = &rest[at + 2..];
            let mark = find(marked, b"%%").map(|end| &marked[..end]);
            match mark.and_then(|mark| Some((mark, self.place(mark)?))) {
                Some((mark, place)) => {
                    out.extend_from_slice(place.as_bytes());
                    rest = &marked[mark.len() + 2..];
                }
                None => {
                    out.push(b'%');
                    rest = &rest[at + 1..];
                }
            }
        }
        out.extend_from_slice(rest);
        out
    }

    /// The same for text.
    pub fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.fill(text.as_bytes())).into_owned()
    }

    fn place(&self, mark: &[u8]) -> Option<String> {
        let mark = std::str::from_utf8(mark).ok()?;
        let numbered = |prefix: &str, ports: &[u16]| {
            let index: usize = mark.strip_prefix(prefix)?.parse().ok()?;
            ports.get(index).copied()
        };
        if let Some(port) = numbered("PORT", &self.ports) {
            return Some(format!("{}:{port}", self.address));
        }
        if let Some(port) = numbered("NUMBER", &self.ports) {
            return Some(port.to_string());
        }
        if let Some(port) = numbered("UPPORT", &self.upstreams) {
            return Some(port.to_string());
        }
        if let Some(port) = numbered("UP", &self.upstreams) {
            return Some(format!("{}:{port}", self.address));
        }
        match mark {
            "ADDRESS" => Some(self.address.to_owned()),
            "N" => Some(format!("{:03}", self.number)),
            "DIR" => Some(self.files.to_string_lossy().into_owned()),
            "TLS" => Some(self.tls.to_string_lossy().into_owned()),
            "OWN" => Some(self.own.to_string_lossy().into_owned()),
            _ => None,
        }
    }
}

/// Where `needle` begins in `bytes`.
pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, needle)
}

/// `bytes` with every `from` replaced.
pub fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = find(rest, from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_filled_and_other_signs_stay() {
        let places = Places {
            address: "127.0.0.1",
            ports: vec![1, 2],
            upstreams: vec![3],
            probe: 4,
            number: 7,
            files: "/f".into(),
            tls: PathBuf::from("/tls"),
            own: "/o".into(),
        };
        let text = "a%%PORT1%% %%NUMBER0%% %%UP0%% %%N%%%%DIR%% %% %41 %%UP9%% %";
        assert_eq!(
            places.text(text),
            "a127.0.0.1:2 1 127.0.0.1:3 007/f %% %41 %%UP9%% %"
        );
    }
}
