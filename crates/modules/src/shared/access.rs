//! Address rules, first match wins: the list behind `allow` and `deny`, in http and in stream.
//!
//! This file only says what a rule list decides about an address. Refusing the request or the
//! session, and logging it, is left to the two modules, because they answer differently.

use bstr::ByteSlice;
use conf::{Arity, Cidr, Contexts, Diagnostic, Directive, DirectiveLine, RepeatRule, Setter};
use rt::net::SocketAddress;

/// The rows of `allow` and `deny`. What a denied client gets, and so the text about `deny`, is each
/// engine's own.
pub(crate) const fn rows(
    contexts: Contexts,
    deny_doc: &'static str,
) -> [Directive<AccessRules>; 2] {
    [
        Directive {
            name: "allow",
            syntax: "address | CIDR | unix: | all",
            default: None,
            contexts,
            since: "0.1",
            doc: "Allows access from this address or network. The first matching `allow` or `deny` decides.",
            set: Setter::Custom(Arity::ONE, RepeatRule::Many, |rules, line| {
                rules.add_line(line, AccessAction::Allow)
            }),
        },
        Directive {
            name: "deny",
            syntax: "address | CIDR | unix: | all",
            default: None,
            contexts,
            since: "0.1",
            doc: deny_doc,
            set: Setter::Custom(Arity::ONE, RepeatRule::Many, |rules, line| {
                rules.add_line(line, AccessAction::Deny)
            }),
        },
    ]
}

/// The rules of one block, in the order of the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessRules {
    rules: Vec<AccessRule>,
    /// They are the outer block's: the first rule of this block replaces them. `allow` and `deny`
    /// are two rows of one list, so that neither row alone can tell which line is the block's
    /// first.
    inherited: bool,
}

/// One `allow` or `deny` line.
#[derive(Clone, Debug)]
struct AccessRule {
    addresses: AddressPattern,
    action: AccessAction,
}

/// Which clients a rule covers.
#[derive(Clone, Debug)]
enum AddressPattern {
    // `all`, which includes clients of unix sockets.
    All,
    // `unix:`. Such a client has no IP address, so no network can cover it.
    Unix,
    Network(Cidr),
}

/// The verdict of a rule on the clients it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessAction {
    /// `allow`
    Allow,
    /// `deny`
    Deny,
}

impl AccessRules {
    /// The list an inner block starts from: everything it inherits, marked so that its first own
    /// line drops it. This is nginx's rule, under which a block that says anything about access
    /// says all of it.
    pub(crate) fn inherited(&self) -> AccessRules {
        AccessRules {
            inherited: true,
            ..self.clone()
        }
    }

    /// Whether the block restricts nothing, in which case the module skips its phase handler.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds one line: `all`, `unix:`, an address or a network.
    pub(crate) fn add_line(
        &mut self,
        line: &mut DirectiveLine,
        judgement: AccessAction,
    ) -> Result<(), Diagnostic> {
        let who = match line.text(0).as_bytes() {
            b"all" => AddressPattern::All,
            b"unix:" => AddressPattern::Unix,
            _ => AddressPattern::Network(line.cidr(0)?),
        };
        if std::mem::take(&mut self.inherited) {
            self.rules.clear();
        }
        self.rules.push(AccessRule {
            addresses: who,
            action: judgement,
        });
        Ok(())
    }

    /// What the first matching rule says. `None` when no rule covers this address, which is not the
    /// same as `Allow`: with `satisfy any` only an explicit `allow` grants access.
    pub(crate) fn action_for(&self, address: &SocketAddress) -> Option<AccessAction> {
        self.rule_for(address).map(|(_, action)| action)
    }

    /// The same with the number of the rule among those of its block.
    pub(crate) fn rule_for(&self, address: &SocketAddress) -> Option<(usize, AccessAction)> {
        let mut rules = self.rules.iter().enumerate();
        let (number, rule) = rules.find(|(_, rule)| rule.addresses.includes(address))?;
        Some((number, rule.action))
    }
}

impl AddressPattern {
    fn includes(&self, address: &SocketAddress) -> bool {
        match (self, address) {
            (AddressPattern::All, _) | (AddressPattern::Unix, SocketAddress::Unix(_)) => true,
            (AddressPattern::Network(network), SocketAddress::Inet(address)) => {
                network.contains(address.ip())
            }
            (AddressPattern::Unix, SocketAddress::Inet(_))
            | (AddressPattern::Network(_), SocketAddress::Unix(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rt::net::UnixPath;

    fn rules(lines: &[(&str, AccessAction)]) -> AccessRules {
        let who = |text: &str| match text {
            "all" => AddressPattern::All,
            "unix:" => AddressPattern::Unix,
            network => {
                AddressPattern::Network(Cidr::parse(network.as_bytes()).expect("a network").0)
            }
        };
        let rule = |&(text, judgement): &(&str, _)| AccessRule {
            addresses: who(text),
            action: judgement,
        };
        AccessRules {
            rules: lines.iter().map(rule).collect(),
            inherited: false,
        }
    }

    fn inet(text: &str) -> SocketAddress {
        SocketAddress::Inet(text.parse().expect("an address"))
    }

    #[test]
    fn the_first_match_decides_and_families_do_not_mix() {
        use AccessAction::{Allow, Deny};
        let rules = rules(&[
            ("10.0.0.0/8", Allow),
            ("unix:", Allow),
            ("10.1.0.0/16", Deny),
            ("2001::/16", Deny),
        ]);
        assert_eq!(rules.action_for(&inet("10.1.2.3:1")), Some(Allow));
        assert_eq!(rules.action_for(&inet("[2001:db8::1]:1")), Some(Deny));
        assert_eq!(rules.action_for(&inet("[::ffff:10.0.0.1]:1")), Some(Allow));
        assert_eq!(
            rules.action_for(&SocketAddress::Unix(UnixPath::default())),
            Some(Allow)
        );
    }

    #[test]
    fn without_a_match_there_is_no_judgement() {
        let only = rules(&[("unix:", AccessAction::Deny)]);
        assert_eq!(only.action_for(&inet("127.0.0.1:1")), None);
        assert_eq!(
            rules(&[("all", AccessAction::Deny)]).action_for(&inet("127.0.0.1:1")),
            Some(AccessAction::Deny)
        );
    }
}
