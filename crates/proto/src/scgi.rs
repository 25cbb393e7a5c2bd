//! The web server's side of SCGI: the beginning of a request.
//!
//! ```text
//! 70:CONTENT_LENGTH\0 27\0 SCGI\0 1\0 REQUEST_METHOD\0 POST\0 …,content      (without the blanks)
//! ```
//!
//! A netstring of names and values, then the content. The response is a CGI response, ended by
//! closing the connection.

/// Appends a name and its value in the format of [`write_head`]. A zero byte would begin another
/// name, so the text is truncated there.
pub fn push_param(name: &[u8], value: &[u8], params: &mut Vec<u8>) {
    for text in [name, value] {
        let end = text
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(text.len());
        params.extend_from_slice(&text[..end]);
        params.push(0);
    }
}

/// Appends the header of a request with this much content. `params` must not contain the length,
/// but should contain `SCGI` with the value 1.
pub fn write_head(content_length: u64, params: &[u8], out: &mut Vec<u8>) {
    let length = format!("CONTENT_LENGTH\0{content_length}\0");
    out.extend_from_slice(format!("{}:{length}", length.len() + params.len()).as_bytes());
    out.extend_from_slice(params);
    out.push(b',');
}

/// The params of a head that [`write_head`] has written, to show them.
pub fn read_params(head: &[u8]) -> Vec<(&[u8], &[u8])> {
    let start = head
        .iter()
        .position(|byte| *byte == b':')
        .map_or(0, |at| at + 1);
    let texts: Vec<&[u8]> = head[start..].split(|byte| *byte == 0).collect();
    // The comma behind the last value is alone.
    texts
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_a_netstring_that_begins_with_the_length() {
        let (mut params, mut out) = (Vec::new(), Vec::new());
        push_param(b"SCGI", b"1", &mut params);
        push_param(b"A", b"b\0C", &mut params);
        write_head(27, &params, &mut out);
        assert_eq!(out, b"29:CONTENT_LENGTH\x0027\0SCGI\x001\0A\0b\0,");
    }
}
