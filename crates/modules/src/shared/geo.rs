//! `geo`: a value that depends on an address.
//!
//! Networks can contain each other, and the smallest one that contains an address counts. When the
//! configuration is read they are flattened into sorted ranges that do not overlap, so that a
//! lookup is one binary search and a range costs 8 bytes (IPv6: 20). A list of all networks of the
//! world fits into a few megabytes.
//!
//! nginx's binary form of such a list (`FILE.bin`) is neither read nor written; the text is always
//! read.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use bstr::{BString, ByteSlice};
use conf::{
    Arity, Cidr, Contexts, Diagnostic, DiagnosticPlace, Directive, DirectiveLine, DirectiveNode,
    DirectiveWord, Expression, RepeatRule, Setter, Severity, VariableDefinition,
};

use super::client_scope::{ClientScope, VariableOnly, define_variable, multi_line_texts};
use super::forwarded_for::{self, ForwardedDepth};

/// The address used for clients without one, such as those of unix sockets, and for variables that
/// do not contain one. nginx's choice, so that `geo` blocks that list 255.255.255.255 for this
/// purpose work.
const NO_ADDRESS: Ipv4Addr = Ipv4Addr::BROADCAST;

/// One `geo` block, ready for lookups.
struct GeoBlock {
    /// The variable with the address; `None`: the client's address.
    address: Option<Expression>,
    /// The `proxy` lines: from these peers, `X-Forwarded-For` is believed.
    trusted: Vec<Cidr>,
    depth: ForwardedDepth,
    /// Each distinct value once. Lists of countries have few values and very many networks.
    values: Vec<BString>,
    table: GeoTable,
}

/// The number of a value in [`GeoBlock::values`].
type ValueId = u32;

/// The empty text: the value of addresses in no network if there is no default.
const EMPTY_VALUE: ValueId = 0;

/// The row of `geo`, whose text for the reference is each engine's own.
pub(crate) const fn row<S: ClientScope>(
    contexts: Contexts,
    doc: &'static str,
) -> Directive<VariableOnly> {
    Directive {
        name: "geo",
        syntax: "[$address] $variable { ... }",
        default: None,
        contexts,
        since: "0.1",
        doc,
        set: Setter::Block(Arity::between(1, 2), RepeatRule::Many, |_, line| {
            read::<S>(line)
        }),
    }
}

/// Reads `geo [$address] $variable { … }`.
fn read<S: ClientScope>(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let last = line.args().len() - 1;
    let address = match last {
        0 => None,
        _ => {
            line.variable_name(0)?;
            Some(line.expression(0)?)
        }
    };
    let mut reader = GeoReader::default();
    let entries = line.entries();
    reader.v4.reserve(entries.count_all());
    for entry in entries {
        match reader.read_entry(&entry) {
            // The reader does not hold the block's `BlockContext`, so it returns warnings.
            Ok(warnings) => warnings
                .into_iter()
                .for_each(|warning| line.level.report(warning)),
            Err(error) => return Err(error),
        }
    }
    let volatile = reader.volatile;
    let geo = reader.finish(address);
    let texts = multi_line_texts(geo.values.iter().map(|text| text.as_bstr()));
    let definition = VariableDefinition::<S>::dynamic(move |session, out| geo.value(session, out));
    define_variable(
        line,
        last,
        if volatile {
            definition.volatile()
        } else {
            definition
        },
        &texts,
    )
}

impl GeoBlock {
    /// The value for a client.
    fn value<S: ClientScope>(&self, session: &mut S, out: &mut Vec<u8>) -> bool {
        let address = self.client(session).unwrap_or(NO_ADDRESS.into());
        out.extend_from_slice(&self.values[self.table.find(address) as usize]);
        true
    }

    /// The address to look up; `None` if there is none.
    fn client<S: ClientScope>(&self, session: &mut S) -> Option<IpAddr> {
        let peer = match &self.address {
            Some(variable) => conf::address::ip(&variable.to_bytes(session))?,
            None => session.client()?,
        };
        if self.trusted.is_empty() {
            return Some(peer);
        }
        Some(forwarded_for::client_address(
            peer,
            &session.forwarded_for(),
            &self.trusted,
            self.depth,
        ))
    }
}

/// The lookup tables of both address families.
struct GeoTable {
    v4: AddressRanges<u32>,
    v6: AddressRanges<u128>,
}

/// Ranges by their first addresses, each reaching up to the next one's. The first begins at zero,
/// so that every address is in one.
struct AddressRanges<A> {
    starts: Vec<A>,
    values: Vec<ValueId>,
}

impl GeoTable {
    /// The value of an address.
    fn find(&self, address: IpAddr) -> ValueId {
        // An IPv4-mapped IPv6 address, as from a dual-stack socket, is looked up as IPv4.
        match address.to_canonical() {
            IpAddr::V4(ip) => self.v4.find(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.find(ip.to_bits()),
        }
    }
}

impl<A: Ord + Copy> AddressRanges<A> {
    /// The value of the range that an address is in.
    fn find(&self, address: A) -> ValueId {
        let after = self.starts.partition_point(|&start| start <= address);
        after
            .checked_sub(1)
            .map_or(EMPTY_VALUE, |at| self.values[at])
    }

    /// Appends a range; one with the same value as the last only continues it.
    fn push(&mut self, start: A, value: ValueId) {
        // The range that began here is empty: an inner network begins at the same address.
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.values.pop();
        }
        if self.values.last() != Some(&value) {
            self.starts.push(start);
            self.values.push(value);
        }
    }
}

/// A network by its first and last address.
type NetworkBounds<A> = (A, A);

/// The values of networks while a block is read.
type NetworkValues<A> = HashMap<NetworkBounds<A>, ValueId>;

/// Flattens networks into ranges. Any two networks are disjoint or nested, so one pass in order of
/// their beginnings suffices, with a stack of the networks around the current one.
fn flatten<A: Ord + Copy>(
    networks: NetworkValues<A>,
    default: ValueId,
    zero: A,
    next: impl Fn(A) -> Option<A>,
) -> AddressRanges<A> {
    let mut sorted: Vec<_> = networks.into_iter().collect();
    // Of two with the same beginning, the larger one contains the other and comes first. No two are equal, so the
    // order need not be stable, and sorting in place needs no second list.
    sorted.sort_unstable_by(|((first_a, last_a), _), ((first_b, last_b), _)| {
        first_a.cmp(first_b).then(last_b.cmp(last_a))
    });
    let mut ranges = AddressRanges {
        starts: vec![zero],
        values: vec![default],
    };
    let mut around: Vec<(A, ValueId)> = Vec::new();
    // At the end of a network, the value of the one around it applies again.
    let close = |ranges: &mut AddressRanges<A>, around: &mut Vec<(A, ValueId)>| {
        let Some((last, _)) = around.pop() else {
            return;
        };
        let outer = around.last().map_or(default, |(_, value)| *value);
        // Nothing follows a network that ends at the last address.
        if let Some(start) = next(last) {
            ranges.push(start, outer);
        }
    };
    for ((first, last), value) in sorted {
        // All networks that end before this one begins are behind us.
        while around.last().is_some_and(|(end, _)| *end < first) {
            close(&mut ranges, &mut around);
        }
        ranges.push(first, value);
        around.push((last, value));
    }
    while !around.is_empty() {
        close(&mut ranges, &mut around);
    }
    ranges.starts.shrink_to_fit();
    ranges.values.shrink_to_fit();
    ranges
}

/// Whether a block lists networks or, after `ranges`, ranges. nginx's rules for duplicates and
/// overlaps differ between the two.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum GeoMode {
    #[default]
    Networks,
    Ranges,
}

/// A `geo` block while it is being read.
#[derive(Default)]
struct GeoReader {
    mode: GeoMode,
    volatile: bool,
    trusted: Vec<Cidr>,
    depth: ForwardedDepth,
    values: Vec<BString>,
    /// To find a value that exists already.
    value_ids: HashMap<BString, ValueId>,
    /// After `ranges`, the value of addresses in none of them. Without, it is that of the whole of a family.
    default: Option<ValueId>,
    /// A network, or a `default` without `ranges`, has been read, or one was to be deleted.
    has_network: bool,
    v4: NetworkValues<u32>,
    v6: NetworkValues<u128>,
    /// After `ranges`, the ranges so far.
    pieces: RangePieces,
}

impl GeoReader {
    /// Reads a line. Returns warnings.
    fn read_entry(&mut self, entry: &DirectiveNode) -> Result<Vec<Diagnostic>, Diagnostic> {
        match (&entry.name.text[..], &entry.args[..]) {
            (b"ranges", []) => {
                // Without ranges a `default` is a network like any other, so it cannot come first
                // either, as in nginx. Repeating `ranges` is harmless.
                if self.mode == GeoMode::Networks && self.has_network {
                    let message =
                        "the \"ranges\" directive must be the first directive inside \"geo\" block";
                    return Err(entry.error(message));
                }
                self.mode = GeoMode::Ranges;
                Ok(Vec::new())
            }
            // Position does not matter for this and the following options.
            (b"proxy_recursive", []) => {
                self.depth = ForwardedDepth::Recursive;
                Ok(Vec::new())
            }
            (b"volatile", []) => {
                self.volatile = true;
                Ok(Vec::new())
            }
            (b"proxy", [network]) => {
                let (network, warnings) = parse_network(entry, network)?;
                self.trusted.push(network);
                Ok(warnings)
            }
            (b"default", [value]) => Ok(match self.mode {
                GeoMode::Networks => self.set_default_networks(entry, value),
                GeoMode::Ranges => self.set_default(entry, value),
            }),
            // For lists that are included and need an exception.
            (b"delete", [network]) => self.set(entry, network, None),
            // Anything else is a network or range, which are told apart by `ranges`.
            (_, [value]) => self.set(entry, &entry.name, Some(value)),
            _ => Err(entry.error("invalid number of the geo parameters")),
        }
    }

    /// Reads `default` among networks: it is the whole of both address families, so that `0.0.0.0/0` replaces it, as in nginx.
    fn set_default_networks(
        &mut self,
        entry: &DirectiveNode,
        value: &DirectiveWord,
    ) -> Vec<Diagnostic> {
        let id = self.value_id(value);
        let whole = [
            Cidr::V4 {
                address: 0,
                mask: 0,
            },
            Cidr::V6 {
                address: 0,
                mask: 0,
            },
        ];
        let warnings = whole.map(|network| {
            let old = self.replace(network, Some(id))?;
            Some(self.repeated_network(entry, &entry.name, id, old))
        });
        warnings.into_iter().flatten().collect()
    }

    /// Reads `default` among ranges. A second one replaces the first with a warning, as in nginx.
    fn set_default(&mut self, entry: &DirectiveNode, value: &DirectiveWord) -> Vec<Diagnostic> {
        let id = self.value_id(value);
        let Some(old) = self.default.replace(id) else {
            return Vec::new();
        };
        let old = &self.values[old as usize];
        let text = format!(
            "duplicate default geo range value: \"{}\", old value: \"{old}\"",
            value.text
        );
        vec![warning(entry, value, text)]
    }

    /// Sets or, without a value, deletes a network or range.
    fn set(
        &mut self,
        entry: &DirectiveNode,
        network: &DirectiveWord,
        value: Option<&DirectiveWord>,
    ) -> Result<Vec<Diagnostic>, Diagnostic> {
        let id = value.map(|value| self.value_id(value));
        match self.mode {
            GeoMode::Networks => self.set_network(entry, network, id),
            GeoMode::Ranges => self.set_range(entry, network, id),
        }
    }

    /// The number of a value, which is added if it is new.
    fn value_id(&mut self, value: &DirectiveWord) -> ValueId {
        // Number 0 is always the empty text, even if no line uses it.
        if self.values.is_empty() {
            self.values.push(BString::default());
            self.value_ids.insert(BString::default(), EMPTY_VALUE);
        }
        if let Some(&id) = self.value_ids.get(&value.text) {
            return id;
        }
        let id = self.values.len() as ValueId;
        self.values.push(value.text.clone());
        self.value_ids.insert(value.text.clone(), id);
        id
    }

    /// Sets or deletes a network.
    fn set_network(
        &mut self,
        entry: &DirectiveNode,
        word: &DirectiveWord,
        id: Option<ValueId>,
    ) -> Result<Vec<Diagnostic>, Diagnostic> {
        let (network, mut warnings) = parse_network(entry, word)?;
        let old = self.replace(network, id);
        match (id, old) {
            (None, None) => warnings.push(warning(
                entry,
                word,
                format!("no network \"{}\" to delete", word.text),
            )),
            (Some(id), Some(old)) => {
                warnings.push(self.repeated_network(entry, word, id, old));
            }
            // An unusual order, but not a mistake: a deletion that found its network, or a new
            // network.
            (None, Some(_)) | (Some(_), None) => {}
        }
        Ok(warnings)
    }

    /// Sets or removes a network and returns its former value.
    fn replace(&mut self, network: Cidr, id: Option<ValueId>) -> Option<ValueId> {
        self.has_network = true;
        match network {
            Cidr::V4 { address, mask } => replace(&mut self.v4, (address, address | !mask), id),
            Cidr::V6 { address, mask } => replace(&mut self.v6, (address, address | !mask), id),
        }
    }

    /// The warning for a network that has a value already.
    fn repeated_network(
        &self,
        entry: &DirectiveNode,
        word: &DirectiveWord,
        id: ValueId,
        old: ValueId,
    ) -> Diagnostic {
        let (shown, value) = (&word.text, &self.values[id as usize]);
        let old = &self.values[old as usize];
        let text =
            format!("duplicate network \"{shown}\", value: \"{value}\", old value: \"{old}\"");
        warning(entry, word, text)
    }

    /// Sets or deletes a range. Unlike networks, ranges must not overlap partly, since neither
    /// would be the smaller one.
    fn set_range(
        &mut self,
        entry: &DirectiveNode,
        word: &DirectiveWord,
        id: Option<ValueId>,
    ) -> Result<Vec<Diagnostic>, Diagnostic> {
        let shown = &word.text;
        let Some((first, last)) = parse_range(shown) else {
            return Err(entry.error_at(word, format!("invalid range \"{shown}\"")));
        };
        let Some(id) = id else {
            let gone = self.pieces.remove(first, last);
            let missing = format!("no address range \"{shown}\" to delete");
            return Ok(if gone {
                Vec::new()
            } else {
                vec![warning(entry, word, missing)]
            });
        };
        match self.pieces.insert(first, last, id) {
            Ok(None) => Ok(Vec::new()),
            Ok(Some(old)) => {
                let (value, old) = (&self.values[id as usize], &self.values[old as usize]);
                let text = format!(
                    "duplicate range \"{shown}\", value: \"{value}\", old value: \"{old}\""
                );
                Ok(vec![warning(entry, word, text)])
            }
            Err((first, last)) => {
                let (first, last) = (Ipv4Addr::from(first), Ipv4Addr::from(last));
                Err(entry.error_at(
                    word,
                    format!("range \"{shown}\" overlaps \"{first}-{last}\""),
                ))
            }
        }
    }

    /// Builds the tables when the block has been read.
    fn finish(mut self, address: Option<Expression>) -> GeoBlock {
        if self.values.is_empty() {
            self.values.push(BString::default());
        }
        let default = self.default.unwrap_or(EMPTY_VALUE);
        let v4 = match self.mode {
            GeoMode::Networks => flatten(self.v4, default, 0, |address| address.checked_add(1)),
            GeoMode::Ranges => self.pieces.flatten(default),
        };
        // Ranges are IPv4 only. IPv6 clients get the value of clients without an address, as in
        // nginx.
        let v6 = match self.mode {
            GeoMode::Networks => flatten(self.v6, default, 0, |address| address.checked_add(1)),
            GeoMode::Ranges => AddressRanges {
                starts: vec![0],
                values: vec![v4.find(NO_ADDRESS.to_bits())],
            },
        };
        GeoBlock {
            address,
            trusted: self.trusted,
            depth: self.depth,
            values: self.values,
            table: GeoTable { v4, v6 },
        }
    }
}

/// Sets or removes a network and returns its former value.
fn replace<A: Eq + std::hash::Hash>(
    networks: &mut NetworkValues<A>,
    network: NetworkBounds<A>,
    id: Option<ValueId>,
) -> Option<ValueId> {
    match id {
        Some(id) => networks.insert(network, id),
        None => networks.remove(&network),
    }
}

/// Parses a network. Host bits that are set cause a warning, as in nginx.
fn parse_network(
    entry: &DirectiveNode,
    word: &DirectiveWord,
) -> Result<(Cidr, Vec<Diagnostic>), Diagnostic> {
    match Cidr::parse(&word.text) {
        Some((network, true)) => Ok((network, Vec::new())),
        Some((network, false)) => {
            let text = format!("low address bits of {} are meaningless", word.text);
            Ok((network, vec![warning(entry, word, text)]))
        }
        None => Err(entry.error_at(word, format!("invalid network \"{}\"", word.text))),
    }
}

/// Parses `192.0.2.1-192.0.2.9`.
fn parse_range(text: &[u8]) -> Option<NetworkBounds<u32>> {
    let (first, last) = text.split_once_str("-")?;
    let first = conf::address::ipv4(first)?.to_bits();
    let last = conf::address::ipv4(last)?.to_bits();
    (first <= last).then_some((first, last))
}

/// A warning, placed at the end of the line as nginx places it.
fn warning(entry: &DirectiveNode, word: &DirectiveWord, text: String) -> Diagnostic {
    let error =
        Diagnostic::error(text, word.span).place(DiagnosticPlace::At(entry.head.last_byte()));
    Diagnostic {
        severity: Severity::Warn,
        ..error
    }
}

/// IPv4 ranges that do not overlap, cut wherever the upper half of the address changes.
///
/// nginx stores them cut like that, and what it considers a duplicate or an overlap is a property
/// of the pieces: equal pieces replace each other, a piece inside another one splits it, and
/// everything else is an error. A configuration must be accepted or refused exactly as there.
#[derive(Default)]
struct RangePieces {
    /// Last address and value by first address.
    pieces: BTreeMap<u32, (u32, ValueId)>,
}

impl RangePieces {
    /// Adds a range. Returns the former value if a piece with the same bounds was replaced; the
    /// error is the piece that overlaps.
    fn insert(
        &mut self,
        first: u32,
        last: u32,
        value: ValueId,
    ) -> Result<Option<ValueId>, NetworkBounds<u32>> {
        let mut replaced = None;
        for (first, last) in split_by_upper_half(first, last) {
            // Pieces do not overlap, so of those that begin before the end of this one only the
            // last can reach into it.
            let Some((&old_first, &(old_last, old))) = self.pieces.range(..=last).next_back()
            else {
                self.pieces.insert(first, (last, value));
                continue;
            };
            if old_last < first {
                self.pieces.insert(first, (last, value));
                continue;
            }
            if old_first > first || old_last < last {
                return Err((old_first, old_last));
            }
            if (old_first, old_last) == (first, last) {
                replaced = Some(old);
            }
            self.pieces.remove(&old_first);
            if old_first < first {
                self.pieces.insert(old_first, (first - 1, old));
            }
            self.pieces.insert(first, (last, value));
            if last < old_last {
                self.pieces.insert(last + 1, (old_last, old));
            }
        }
        Ok(replaced)
    }

    /// Removes a range. Whether all of its pieces existed.
    fn remove(&mut self, first: u32, last: u32) -> bool {
        let mut complete = true;
        for (first, last) in split_by_upper_half(first, last) {
            if self.pieces.get(&first).is_some_and(|(end, _)| *end == last) {
                self.pieces.remove(&first);
            } else {
                complete = false;
            }
        }
        complete
    }

    /// The lookup table: pieces with the default between them.
    fn flatten(self, default: ValueId) -> AddressRanges<u32> {
        let mut ranges = AddressRanges {
            starts: vec![0],
            values: vec![default],
        };
        for (first, (last, value)) in self.pieces {
            ranges.push(first, value);
            if let Some(after) = last.checked_add(1) {
                ranges.push(after, default);
            }
        }
        ranges
    }
}

/// Cuts a range into its pieces.
fn split_by_upper_half(first: u32, last: u32) -> impl Iterator<Item = NetworkBounds<u32>> {
    const LOWER_HALF: u32 = 0xffff;
    (first >> 16..=last >> 16).map(move |upper| {
        (
            (upper << 16).max(first),
            (upper << 16 | LOWER_HALF).min(last),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> NetworkBounds<u32> {
        match Cidr::parse(text.as_bytes()) {
            Some((Cidr::V4 { address, mask }, _)) => (address, address | !mask),
            _ => panic!("not an IPv4 network: {text}"),
        }
    }

    fn address(text: &str) -> u32 {
        text.parse::<Ipv4Addr>().unwrap().to_bits()
    }

    #[test]
    fn the_smallest_network_counts() {
        let networks = [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.0.0/24",
            "10.1.255.0/24",
            "255.255.255.255/32",
            "0.0.0.0/32",
        ];
        let networks = networks
            .iter()
            .zip(1..)
            .map(|(text, id)| (network(text), id))
            .collect();
        let ranges = flatten(networks, 9, 0, |address: u32| address.checked_add(1));
        for (text, value) in [
            ("0.0.0.0", 6),
            ("0.0.0.1", 9),
            ("9.255.255.255", 9),
            ("10.0.0.0", 1),
            ("10.1.0.0", 3),
            ("10.1.0.255", 3),
            ("10.1.1.0", 2),
            ("10.1.255.0", 4),
            ("10.1.255.255", 4),
            ("10.2.0.0", 1),
            ("10.255.255.255", 1),
            ("11.0.0.0", 9),
            ("255.255.255.255", 5),
        ] {
            assert_eq!(ranges.find(address(text)), value, "{text}");
        }
    }

    #[test]
    fn flattening_agrees_with_looking_at_every_network() {
        // All networks within a space of 32 addresses, in many combinations.
        let all: Vec<NetworkBounds<u32>> = (0..=5)
            .flat_map(|bits| {
                (0..32 >> bits).map(move |n| (n << bits, (n << bits) + (1 << bits) - 1))
            })
            .collect();
        let mut seed = 1_u32;
        for _ in 0..2000 {
            let mut networks = HashMap::new();
            for (at, network) in all.iter().enumerate() {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if seed >> 28 == 0 {
                    networks.insert(*network, at as u32 % 5 + 1);
                }
            }
            let ranges = flatten(networks.clone(), 0, 0, |address| address.checked_add(1));
            for address in 0..34 {
                let around = networks
                    .iter()
                    .filter(|((first, last), _)| (*first..=*last).contains(&address));
                let smallest = around
                    .min_by_key(|((first, last), _)| last - first)
                    .map_or(0, |(_, value)| *value);
                assert_eq!(ranges.find(address), smallest);
            }
        }
    }

    #[test]
    fn ranges_split_and_replace_but_do_not_overlap() {
        let mut pieces = RangePieces::default();
        assert_eq!(pieces.insert(10, 20, 1), Ok(None));
        assert_eq!(pieces.insert(12, 14, 2), Ok(None));
        assert_eq!(pieces.insert(12, 14, 3), Ok(Some(2)));
        assert_eq!(pieces.insert(10, 10, 4), Ok(None));
        assert_eq!(pieces.insert(20, 20, 5), Ok(None));
        assert_eq!(pieces.insert(14, 16, 6), Err((15, 19)));
        assert_eq!(pieces.insert(5, 12, 6), Err((12, 14)));
        assert_eq!(
            pieces.insert(30, 0x2_0010, 7),
            Ok(None),
            "over several pieces"
        );
        assert!(pieces.remove(12, 14));
        assert!(!pieces.remove(15, 18));
        assert!(pieces.remove(0x1_0000, 0x1_ffff));
        let ranges = pieces.flatten(0);
        let found: Vec<_> = [
            9, 10, 11, 12, 14, 15, 19, 20, 21, 30, 0xffff, 0x1_0000, 0x2_0000, 0x2_0011,
        ]
        .map(|address| ranges.find(address))
        .into();
        assert_eq!(found, [0, 4, 1, 0, 0, 1, 1, 5, 0, 7, 7, 0, 7, 0]);
    }

    #[test]
    fn texts_of_ranges() {
        assert_eq!(
            parse_range(b"1.0.0.0-1.0.0.9"),
            Some((0x0100_0000, 0x0100_0009))
        );
        assert_eq!(parse_range(b"0.0.0.0-255.255.255.255"), Some((0, u32::MAX)));
        assert_eq!(split_by_upper_half(0, u32::MAX).count(), 0x1_0000);
        for text in [
            "1.0.0.1-1.0.0.0",
            "1.0.0.0",
            "1.0.0.0-",
            "-1.0.0.0",
            "1.0.0.0-1.0.0.0-1.0.0.0",
        ] {
            assert_eq!(parse_range(text.as_bytes()), None, "{text}");
        }
    }
}
