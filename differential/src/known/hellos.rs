//! What rules ask of a ClientHello that a case sends.

/// True when records begin a handshake message that is longer than what they have.
pub(super) fn is_incomplete(bytes: &[u8]) -> bool {
    let Some(message) = message(bytes) else {
        return true;
    };
    match message.first_chunk::<4>() {
        Some(&[_, a, b, c]) => message.len() - 4 < u32::from_be_bytes([0, a, b, c]) as usize,
        None => !message.is_empty(),
    }
}

/// True when a length of its extensions does not fit the next one, or when one that has a value stands there twice.
pub(super) fn is_ambiguous(bytes: &[u8]) -> bool {
    message(bytes).is_some_and(|message| tells_of_extensions(&message) == Some(false))
}

/// What handshake records have, one behind the other; nothing where one of them is not whole.
fn message(bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut message) = (bytes, Vec::new());
    while let Some((&[22, 3, _, high, low], content)) = rest.split_first_chunk::<5>() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (content, after) = content.split_at_checked(length)?;
        message.extend_from_slice(content);
        rest = after;
    }
    Some(message)
}

/// Whether the extensions can be read in one way only; nothing where there are none, or what is before them is wrong.
fn tells_of_extensions(message: &[u8]) -> Option<bool> {
    let mut rest = message.get(4 + 2 + 32..)?;
    for size in [1, 2, 1] {
        vector(&mut rest, size)?;
    }
    let all = rest.get(2..)?;
    let (mut all, length) = (all, rest.split_at(2).0);
    if usize::from(u16::from_be_bytes(length.try_into().ok()?)) != all.len() {
        return Some(false);
    }
    let mut seen = Vec::new();
    while !all.is_empty() {
        let (kind, after) = all.split_at_checked(2)?;
        all = after;
        let mut content = vector(&mut all, 2)?;
        let (size, counts) = match kind {
            [0, 0 | 16] => (2, true),
            [0, 43] => (1, false),
            _ => continue,
        };
        let list = vector(&mut content, size);
        let is_twice = counts && seen.contains(&kind);
        if is_twice || !content.is_empty() || list.is_none_or(<[u8]>::is_empty) {
            return Some(false);
        }
        seen.push(kind);
    }
    Some(true)
}

/// Takes what stands behind a length of this many bytes.
fn vector<'a>(rest: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (length, after) = rest.split_at_checked(size)?;
    let length = length
        .iter()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    let (content, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(content)
}
