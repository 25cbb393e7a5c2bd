//! `split_clients`: splits clients into groups by a hash of some text.
//!
//! The hash function and the bounds are nginx's, so that a site that moves from nginx keeps every
//! client in its group.

use base::hash::murmur2;
use bstr::{BString, ByteSlice};
use conf::{
    Arity, Contexts, Diagnostic, Directive, DirectiveLine, DirectiveNode, Expression, RepeatRule,
    Setter, VariableDefinition,
};

use super::client_scope::{ClientScope, VariableOnly, define_variable, multi_line_texts};

/// The whole, as percentages have two decimals.
const WHOLE: u32 = 10_000;

/// One `split_clients` block.
struct ClientSplit {
    /// The text that is hashed.
    text: Expression,
    parts: Vec<SplitPart>,
}

/// A value and the end of its range of hashes; `None`: the end of all hashes. The bounds, like the
/// hash, have 32 bits, and 100 % does not fit into them.
type SplitPart = (Option<u32>, BString);

/// The row of `split_clients`.
pub(crate) const fn row<S: ClientScope>(contexts: Contexts) -> Directive<VariableOnly> {
    Directive {
        name: "split_clients",
        syntax: "text $variable { ... }",
        default: None,
        contexts,
        since: "0.1",
        doc: "Defines a variable by a hash of the text: each line has a percentage, or `*` for the rest, and a value.",
        set: Setter::Block(Arity::exactly(2), RepeatRule::Many, |_, line| {
            read::<S>(line)
        }),
    }
}

/// Reads `split_clients TEXT $variable { … }`.
fn read<S: ClientScope>(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let text = line.expression(0)?;
    let mut shares = Vec::new();
    for entry in line.entries() {
        shares.push(parse_share(&entry)?);
    }
    let parts = hash_bounds(shares)
        .ok_or_else(|| line.error_after_block("percent total is greater than 100%"))?;
    let texts = multi_line_texts(parts.iter().map(|(_, value)| value.as_bstr()));
    let division = ClientSplit { text, parts };
    define_variable(
        line,
        1,
        VariableDefinition::<S>::dynamic(move |session, out| division.value(session, out)),
        &texts,
    )
}

/// Reads a line: its share in hundredths of a percent, 0 for the rest (`*`), and its value.
fn parse_share(entry: &DirectiveNode) -> Result<(u32, BString), Diagnostic> {
    let percent = &entry.name.text;
    let [value] = &entry.args[..] else {
        return Err(entry.error("invalid number of the split_clients parameters"));
    };
    let share = if percent == "*" {
        Some(0)
    } else {
        hundredths(percent).filter(|share| *share > 0)
    };
    match share {
        Some(share) => Ok((share, value.text.clone())),
        None => Err(entry.error_at(&entry.name, format!("invalid percent value \"{percent}\""))),
    }
}

/// Parses `12.5%` as 1250.
fn hundredths(text: &[u8]) -> Option<u32> {
    let number = text.strip_suffix(b"%")?;
    let (whole, places) = number.split_once_str(".").unwrap_or((number, b""));
    if whole.is_empty() && places.is_empty() || places.len() > 2 {
        return None;
    }
    let digits = whole.iter().chain(places).copied();
    let zeros = std::iter::repeat_n(b'0', 2 - places.len());
    digits.chain(zeros).try_fold(0_u32, |value, digit| {
        let digit = char::from(digit).to_digit(10)?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// The bounds of all groups; `None` if the shares exceed the whole.
fn hash_bounds(shares: Vec<(u32, BString)>) -> Option<Vec<SplitPart>> {
    let (mut sum, mut last) = (0_u32, 0_u32);
    let mut parts = Vec::with_capacity(shares.len());
    for (share, value) in shares {
        sum = if share == 0 {
            WHOLE
        } else {
            sum.checked_add(share)?
        };
        if sum > WHOLE {
            return None;
        }
        if sum == WHOLE {
            parts.push((None, value));
        } else {
            // Rounded down for each share, as in nginx: computing the sum first would move some
            // clients to another group.
            last += (u64::from(share) * u64::from(u32::MAX) / u64::from(WHOLE)) as u32;
            parts.push((Some(last), value));
        }
    }
    Some(parts)
}

impl ClientSplit {
    /// Evaluates the variable.
    fn value<S: ClientScope>(&self, session: &mut S, out: &mut Vec<u8>) -> bool {
        let hash = murmur2(&self.text.to_bytes(session));
        let part = self
            .parts
            .iter()
            .find(|(bound, _)| bound.is_none_or(|bound| hash < bound));
        if let Some((_, value)) = part {
            out.extend_from_slice(value);
        }
        // Hashes beyond all shares have an empty value.
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        for (text, value) in [
            ("1%", 100),
            ("12.5%", 1250),
            ("0.01%", 1),
            (".5%", 50),
            ("100%", 10_000),
            ("5.%", 500),
        ] {
            assert_eq!(hundredths(text.as_bytes()), Some(value), "{text}");
        }
        for text in [
            "1",
            "%",
            ".%",
            "1.234%",
            "x%",
            "1x%",
            "99999999999%",
            "-1%",
            "",
        ] {
            assert_eq!(hundredths(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn bounds_add_up() {
        let of = |shares: &[u32]| {
            let parts = hash_bounds(shares.iter().map(|share| (*share, "".into())).collect());
            parts.map(|parts| {
                parts
                    .into_iter()
                    .map(|(bound, _)| bound)
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(
            of(&[50, 250, 0]),
            Some(vec![Some(21_474_836), Some(128_849_018), None])
        );
        assert_eq!(of(&[5000, 5000]), Some(vec![Some(2_147_483_647), None]));
        assert_eq!(of(&[5000, 5001]), None);
        assert_eq!(of(&[0, 1]), None);
    }
}
