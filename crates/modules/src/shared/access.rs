//! Rules about addresses, of which the first that matches decides: what `allow` and `deny` are made of, in http and in
//! stream.
//!
//! It knows no request and answers no one; it only judges an address.

use bstr::ByteSlice;
use conf::{Cidr, Diagnostic, Line};
use rt::net::Address;

/// The rules of one block, in the order of the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    /// They are the outer block's: the first rule of this block replaces them. `allow` and `deny` are two rows of
    /// one list, so that neither row alone can tell which line is the block's first.
    inherited: bool,
}

#[derive(Clone, Debug)]
struct Rule {
    who: Who,
    judgement: Judgement,
}

#[derive(Clone, Debug)]
enum Who {
    All,
    Unix,
    Network(Cidr),
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// `allow`
    Allow,
    /// `deny`
    Deny,
}

impl Rules {
    /// What an inner block begins with.
    pub(crate) fn inherited(&self) -> Rules {
        Rules {
            inherited: true,
            ..self.clone()
        }
    }

    /// Whether there is no rule.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Reads one line: `all`, `unix:`, an address or a network.
    pub(crate) fn read(&mut self, line: &mut Line, judgement: Judgement) -> Result<(), Diagnostic> {
        let who = match line.text(0).as_bytes() {
            b"all" => Who::All,
            b"unix:" => Who::Unix,
            _ => Who::Network(line.cidr(0)?),
        };
        if std::mem::take(&mut self.inherited) {
            self.rules.clear();
        }
        self.rules.push(Rule { who, judgement });
        Ok(())
    }

    /// What the first matching rule says; `None` when no rule is about this address.
    pub(crate) fn judge(&self, address: &Address) -> Option<Judgement> {
        self.rules
            .iter()
            .find(|rule| rule.who.includes(address))
            .map(|rule| rule.judgement)
    }
}

impl Who {
    fn includes(&self, address: &Address) -> bool {
        match (self, address) {
            (Who::All, _) | (Who::Unix, Address::Unix(_)) => true,
            (Who::Network(network), Address::Inet(address)) => network.contains(address.ip()),
            (Who::Unix, Address::Inet(_)) | (Who::Network(_), Address::Unix(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rt::net::UnixPath;

    fn rules(lines: &[(&str, Judgement)]) -> Rules {
        let who = |text: &str| match text {
            "all" => Who::All,
            "unix:" => Who::Unix,
            network => Who::Network(Cidr::parse(network.as_bytes()).expect("a network").0),
        };
        let rule = |&(text, judgement): &(&str, _)| Rule {
            who: who(text),
            judgement,
        };
        Rules {
            rules: lines.iter().map(rule).collect(),
            inherited: false,
        }
    }

    fn inet(text: &str) -> Address {
        Address::Inet(text.parse().expect("an address"))
    }

    #[test]
    fn the_first_match_decides_and_families_do_not_mix() {
        use Judgement::{Allow, Deny};
        let rules = rules(&[
            ("10.0.0.0/8", Allow),
            ("unix:", Allow),
            ("10.1.0.0/16", Deny),
            ("2001::/16", Deny),
        ]);
        assert_eq!(rules.judge(&inet("10.1.2.3:1")), Some(Allow));
        assert_eq!(rules.judge(&inet("[2001:db8::1]:1")), Some(Deny));
        assert_eq!(rules.judge(&inet("[::ffff:10.0.0.1]:1")), Some(Allow));
        assert_eq!(
            rules.judge(&Address::Unix(UnixPath::default())),
            Some(Allow)
        );
    }

    #[test]
    fn without_a_match_there_is_no_judgement() {
        let only = rules(&[("unix:", Judgement::Deny)]);
        assert_eq!(only.judge(&inet("127.0.0.1:1")), None);
        assert_eq!(
            rules(&[("all", Judgement::Deny)]).judge(&inet("127.0.0.1:1")),
            Some(Judgement::Deny)
        );
    }
}
