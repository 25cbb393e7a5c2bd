//! `set_random`, `set_secure_random_*` and `set_rotate`: random numbers and texts, and numbers in
//! turn.

use ::http::Request;
use bstr::{BStr, BString};
use host::error_log::LogLevel;

use super::{Conf, InvalidText};

/// The letters of `set_secure_random_lcalpha`.
pub(super) const LCALPHA: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
/// The letters of `set_secure_random_alphanum`.
pub(super) const ALPHANUM: &[u8] =
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// The maximum length of a random text.
const MAX_LENGTH: i64 = 64;

/// `set_random`. The bounds may come in either order.
pub(super) fn number(inputs: &[BString]) -> Result<Vec<u8>, InvalidText> {
    let bad = |name: &str, text: &BStr| format!("set_random: bad \"{name}\" argument: {text}");
    let (from, to) = bounds(inputs, bad)?;
    let random = rt::random::number().map_err(|error| InvalidText::new(error.to_string()))?;
    // Both are not negative, so that there are at most 2^63 numbers.
    let count = (to - from) as u64 + 1;
    // With 64 random bits the bias of the remainder is below `count` / 2^64.
    let number = from as u64 + random % count;
    Ok(number.to_string().into())
}

/// The two bounds, the smaller one first.
fn bounds(inputs: &[BString], bad: fn(&str, &BStr) -> String) -> Result<(i64, i64), InvalidText> {
    let read = |at: usize, name: &str| {
        let text = inputs.get(at).map(|text| text.as_slice());
        let text = BStr::new(text.unwrap_or_default());
        base::text::decimal(text).ok_or_else(|| InvalidText::new(bad(name, text)))
    };
    let (from, to) = (read(0, "from")?, read(1, "to")?);
    Ok((from.min(to), from.max(to)))
}

/// A random text, unpredictable since the bytes come from the kernel.
pub(super) fn text(length: &[u8], alphabet: &[u8]) -> Result<Vec<u8>, InvalidText> {
    let number = base::text::decimal(length).filter(|length| (1..=MAX_LENGTH).contains(length));
    let Some(number) = number else {
        let length = BStr::new(length);
        return Err(InvalidText::new(format!(
            "set_random: bad \"length\" argument: {length}"
        )));
    };
    let mut out = Vec::with_capacity(number as usize);
    let mut bytes = [0; MAX_LENGTH as usize];
    // Bytes from the last, incomplete round of the alphabet are dropped: they would favour its
    // first letters.
    // The third-party module does not do that.
    let fair = u8::MAX - u8::MAX % alphabet.len() as u8;
    while out.len() < number as usize {
        rt::random::fill(&mut bytes).map_err(|error| InvalidText::new(error.to_string()))?;
        let left = number as usize - out.len();
        let fair = bytes.iter().filter(|byte| **byte < fair).take(left);
        out.extend(fair.map(|byte| alphabet[*byte as usize % alphabet.len()]));
    }
    Ok(out)
}

/// `set_rotate`: the number after the variable's current value, or after the one given out last in
/// this location; the first one after the last.
pub(super) fn rotate(request: &mut Request, inputs: Vec<BString>) -> Result<Vec<u8>, InvalidText> {
    let bad =
        |name: &str, text: &BStr| format!("set_rotate: bad \"{name}\" argument value: \"{text}\"");
    let (from, to) = bounds(&inputs[1..], bad)?;
    let said = &inputs[0];
    let current = base::text::decimal(said);
    if current.is_none() && !said.is_empty() {
        request.log(
            LogLevel::Error,
            format_args!("set_rotate: bad current value: \"{said}\""),
        );
    }
    // The variable is usually unset: then the count continues from one request to the next.
    let place = request.location;
    let conf = request.conf::<Conf>();
    let mut known = conf.last.lock();
    let current = current.or_else(|| known.get(&place).copied().filter(|last| *last >= 0));
    let next = current.and_then(|current| current.checked_add(1));
    let next = next.filter(|next| (from..=to).contains(next));
    let next = next.unwrap_or(from);
    known.insert(place, next);
    Ok(next.to_string().into())
}
