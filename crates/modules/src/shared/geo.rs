//! `geo`: a value that depends on an address.
//!
//! Networks may contain each other, and the smallest that an address is in counts. They are flattened when the
//! configuration is read into ranges that do not overlap, sorted, so that a request costs one binary search and a
//! range costs 8 bytes (IPv6: 20): a list of all networks of the world fits in a few megabytes.
//!
//! nginx's binary form of a list of ranges (`FILE.bin`) is neither read nor written; the text is always read.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use bstr::{BString, ByteSlice};
use conf::{Cidr, Definition, Diagnostic, Expression, Line, Node, Place, Severity, Word};

use super::forwarded::{self, Depth};
use super::session::{Session, define, of_several_lines};

/// What a client without an IP address, and a variable that is none, count as.
const NO_ADDRESS: Ipv4Addr = Ipv4Addr::BROADCAST;

struct Geo {
    /// The variable with the address; `None` for that of the client.
    address: Option<Expression>,
    trusted: Vec<Cidr>,
    depth: Depth,
    values: Vec<BString>,
    table: Table,
}

/// The number of a value in [`Geo::values`].
type ValueId = u32;

/// An empty text: what an address gets that is in no network when there is no default.
const NOTHING: ValueId = 0;

/// Reads `geo [$address] $variable { … }`.
pub(crate) fn read<S: Session>(line: &mut Line) -> Result<(), Diagnostic> {
    let last = line.args().len() - 1;
    let address = match last {
        0 => None,
        _ => {
            line.variable_name(0)?;
            Some(line.expression(0)?)
        }
    };
    let mut reader = Reader::default();
    for entry in line.entries() {
        match reader.entry(entry) {
            Ok(warnings) => warnings
                .into_iter()
                .for_each(|warning| line.level.report(warning)),
            Err(error) => return Err(error),
        }
    }
    let volatile = reader.volatile;
    let geo = reader.finish(address);
    let texts = of_several_lines(geo.values.iter().map(|text| text.as_bstr()));
    let definition = Definition::<S>::dynamic(move |session, out| geo.value(session, out));
    define(
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

impl Geo {
    fn value<S: Session>(&self, session: &mut S, out: &mut Vec<u8>) -> bool {
        let address = self.client(session).unwrap_or(NO_ADDRESS.into());
        out.extend_from_slice(&self.values[self.table.find(address) as usize]);
        true
    }

    fn client<S: Session>(&self, session: &mut S) -> Option<IpAddr> {
        let peer = match &self.address {
            Some(variable) => conf::address::ip(&variable.to_bytes(session))?,
            None => session.client()?,
        };
        if self.trusted.is_empty() {
            return Some(peer);
        }
        Some(forwarded::client(
            peer,
            &session.forwarded_for(),
            &self.trusted,
            self.depth,
        ))
    }
}

/// Ranges by their first addresses, each up to the next.
struct Table {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

struct Ranges<A> {
    starts: Vec<A>,
    values: Vec<ValueId>,
}

impl Table {
    fn find(&self, address: IpAddr) -> ValueId {
        match address.to_canonical() {
            IpAddr::V4(ip) => self.v4.find(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.find(ip.to_bits()),
        }
    }
}

impl<A: Ord + Copy> Ranges<A> {
    fn find(&self, address: A) -> ValueId {
        let after = self.starts.partition_point(|&start| start <= address);
        after.checked_sub(1).map_or(NOTHING, |at| self.values[at])
    }

    /// Adds the next range; one with the value of the last continues it.
    fn push(&mut self, start: A, value: ValueId) {
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
type Network<A> = (A, A);

/// Flattens networks, of which any two are apart or one is inside the other.
fn flatten<A: Ord + Copy>(
    networks: HashMap<Network<A>, ValueId>,
    default: ValueId,
    zero: A,
    next: impl Fn(A) -> Option<A>,
) -> Ranges<A> {
    let mut sorted: Vec<_> = networks.into_iter().collect();
    // Of two that begin together the larger one is around the other.
    sorted.sort_by(|((first_a, last_a), _), ((first_b, last_b), _)| {
        first_a.cmp(first_b).then(last_b.cmp(last_a))
    });
    let mut ranges = Ranges {
        starts: vec![zero],
        values: vec![default],
    };
    let mut around: Vec<(A, ValueId)> = Vec::new();
    let close = |ranges: &mut Ranges<A>, around: &mut Vec<(A, ValueId)>| {
        let Some((last, _)) = around.pop() else {
            return;
        };
        let outer = around.last().map_or(default, |(_, value)| *value);
        if let Some(start) = next(last) {
            ranges.push(start, outer);
        }
    };
    for ((first, last), value) in sorted {
        while around.last().is_some_and(|(end, _)| *end < first) {
            close(&mut ranges, &mut around);
        }
        ranges.push(first, value);
        around.push((last, value));
    }
    while !around.is_empty() {
        close(&mut ranges, &mut around);
    }
    ranges
}

/// How the lines of a block name addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Mode {
    #[default]
    Networks,
    Ranges,
}

/// A block while it is read.
#[derive(Default)]
struct Reader {
    mode: Mode,
    volatile: bool,
    trusted: Vec<Cidr>,
    depth: Depth,
    values: Vec<BString>,
    value_ids: HashMap<BString, ValueId>,
    default: Option<ValueId>,
    v4: HashMap<Network<u32>, ValueId>,
    v6: HashMap<Network<u128>, ValueId>,
    pieces: Pieces,
}

impl Reader {
    /// Reads a line. What it gives back are warnings.
    fn entry(&mut self, entry: &Node) -> Result<Vec<Diagnostic>, Diagnostic> {
        match (&entry.name.text[..], &entry.args[..]) {
            (b"ranges", []) => {
                if !self.v4.is_empty()
                    || !self.v6.is_empty()
                    || self.default.is_some() && self.mode == Mode::Networks
                {
                    let message =
                        "the \"ranges\" directive must be the first directive inside \"geo\" block";
                    return Err(entry.error(message));
                }
                self.mode = Mode::Ranges;
                Ok(Vec::new())
            }
            (b"proxy_recursive", []) => {
                self.depth = Depth::Recursive;
                Ok(Vec::new())
            }
            (b"volatile", []) => {
                self.volatile = true;
                Ok(Vec::new())
            }
            (b"proxy", [network]) => {
                let (network, warnings) = cidr(entry, network)?;
                self.trusted.push(network);
                Ok(warnings)
            }
            (b"default", [value]) => Ok(self.set_default(entry, value)),
            (b"delete", [network]) => self.set(entry, network, None),
            (_, [value]) => self.set(entry, &entry.name, Some(value)),
            _ => Err(entry.error("invalid number of the geo parameters")),
        }
    }

    fn set_default(&mut self, entry: &Node, value: &Word) -> Vec<Diagnostic> {
        let id = self.value_id(value);
        let Some(old) = self.default.replace(id) else {
            return Vec::new();
        };
        let old = &self.values[old as usize];
        let text = match self.mode {
            Mode::Networks => format!(
                "duplicate network \"default\", value: \"{}\", old value: \"{old}\"",
                value.text
            ),
            Mode::Ranges => {
                format!(
                    "duplicate default geo range value: \"{}\", old value: \"{old}\"",
                    value.text
                )
            }
        };
        vec![warning(entry, value, text)]
    }

    fn set(
        &mut self,
        entry: &Node,
        network: &Word,
        value: Option<&Word>,
    ) -> Result<Vec<Diagnostic>, Diagnostic> {
        let id = value.map(|value| self.value_id(value));
        match self.mode {
            Mode::Networks => self.set_network(entry, network, id),
            Mode::Ranges => self.set_range(entry, network, id),
        }
    }

    fn value_id(&mut self, value: &Word) -> ValueId {
        if self.values.is_empty() {
            self.values.push(BString::default());
            self.value_ids.insert(BString::default(), NOTHING);
        }
        if let Some(&id) = self.value_ids.get(&value.text) {
            return id;
        }
        let id = self.values.len() as ValueId;
        self.values.push(value.text.clone());
        self.value_ids.insert(value.text.clone(), id);
        id
    }

    fn set_network(
        &mut self,
        entry: &Node,
        word: &Word,
        id: Option<ValueId>,
    ) -> Result<Vec<Diagnostic>, Diagnostic> {
        let (network, mut warnings) = cidr(entry, word)?;
        let old = match network {
            Cidr::V4 { address, mask } => replace(&mut self.v4, (address, address | !mask), id),
            Cidr::V6 { address, mask } => replace(&mut self.v6, (address, address | !mask), id),
        };
        let shown = &word.text;
        match (id, old) {
            (None, None) => warnings.push(warning(
                entry,
                word,
                format!("no network \"{shown}\" to delete"),
            )),
            (Some(id), Some(old)) => {
                let (value, old) = (&self.values[id as usize], &self.values[old as usize]);
                let text = format!(
                    "duplicate network \"{shown}\", value: \"{value}\", old value: \"{old}\""
                );
                warnings.push(warning(entry, word, text));
            }
            (None, Some(_)) | (Some(_), None) => {}
        }
        Ok(warnings)
    }

    fn set_range(
        &mut self,
        entry: &Node,
        word: &Word,
        id: Option<ValueId>,
    ) -> Result<Vec<Diagnostic>, Diagnostic> {
        let shown = &word.text;
        let Some((first, last)) = range(shown) else {
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

    fn finish(mut self, address: Option<Expression>) -> Geo {
        if self.values.is_empty() {
            self.values.push(BString::default());
        }
        let default = self.default.unwrap_or(NOTHING);
        let v4 = match self.mode {
            Mode::Networks => flatten(self.v4, default, 0, |address| address.checked_add(1)),
            Mode::Ranges => self.pieces.flatten(default),
        };
        // Lists of ranges know no IPv6: such an address is none.
        let v6 = match self.mode {
            Mode::Networks => flatten(self.v6, default, 0, |address| address.checked_add(1)),
            Mode::Ranges => Ranges {
                starts: vec![0],
                values: vec![v4.find(NO_ADDRESS.to_bits())],
            },
        };
        Geo {
            address,
            trusted: self.trusted,
            depth: self.depth,
            values: self.values,
            table: Table { v4, v6 },
        }
    }
}

/// Sets or removes; gives what was there.
fn replace<A: Eq + std::hash::Hash>(
    networks: &mut HashMap<Network<A>, ValueId>,
    network: Network<A>,
    id: Option<ValueId>,
) -> Option<ValueId> {
    match id {
        Some(id) => networks.insert(network, id),
        None => networks.remove(&network),
    }
}

fn cidr(entry: &Node, word: &Word) -> Result<(Cidr, Vec<Diagnostic>), Diagnostic> {
    match Cidr::parse(&word.text) {
        Some((network, true)) => Ok((network, Vec::new())),
        Some((network, false)) => {
            let text = format!("low address bits of {} are meaningless", word.text);
            Ok((network, vec![warning(entry, word, text)]))
        }
        None => Err(entry.error_at(word, format!("invalid network \"{}\"", word.text))),
    }
}

/// `192.0.2.1-192.0.2.9`
fn range(text: &[u8]) -> Option<Network<u32>> {
    let (first, last) = text.split_once_str("-")?;
    let first = conf::address::ipv4(first)?.to_bits();
    let last = conf::address::ipv4(last)?.to_bits();
    (first <= last).then_some((first, last))
}

fn warning(entry: &Node, word: &Word, text: String) -> Diagnostic {
    let error = Diagnostic::error(text, word.span).place(Place::At(entry.head.last_byte()));
    Diagnostic {
        severity: Severity::Warn,
        ..error
    }
}

/// Ranges of IPv4 addresses that do not overlap, cut where the upper half of the address changes.
///
/// nginx keeps them cut like that, and its rules for what may overlap what are about the pieces: equal pieces replace
/// each other, a piece inside another one splits it, everything else is an error.
#[derive(Default)]
struct Pieces {
    /// Last address and value by first address.
    pieces: BTreeMap<u32, (u32, ValueId)>,
}

impl Pieces {
    /// Adds a range. The answer is the value of a piece that was there before with the same bounds; the error is the
    /// piece that is in the way.
    fn insert(
        &mut self,
        first: u32,
        last: u32,
        value: ValueId,
    ) -> Result<Option<ValueId>, Network<u32>> {
        let mut replaced = None;
        for (first, last) in cut(first, last) {
            // Those before it end before it, unless it is the last of them.
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

    /// Removes a range; whether all of its pieces were there.
    fn remove(&mut self, first: u32, last: u32) -> bool {
        let mut complete = true;
        for (first, last) in cut(first, last) {
            if self.pieces.get(&first).is_some_and(|(end, _)| *end == last) {
                self.pieces.remove(&first);
            } else {
                complete = false;
            }
        }
        complete
    }

    fn flatten(self, default: ValueId) -> Ranges<u32> {
        let mut ranges = Ranges {
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

/// The pieces of a range.
fn cut(first: u32, last: u32) -> impl Iterator<Item = Network<u32>> {
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

    fn network(text: &str) -> Network<u32> {
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
        let all: Vec<Network<u32>> = (0..=5)
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
        let mut pieces = Pieces::default();
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
        assert_eq!(range(b"1.0.0.0-1.0.0.9"), Some((0x0100_0000, 0x0100_0009)));
        assert_eq!(range(b"0.0.0.0-255.255.255.255"), Some((0, u32::MAX)));
        assert_eq!(cut(0, u32::MAX).count(), 0x1_0000);
        for text in [
            "1.0.0.1-1.0.0.0",
            "1.0.0.0",
            "1.0.0.0-",
            "-1.0.0.0",
            "1.0.0.0-1.0.0.0-1.0.0.0",
        ] {
            assert_eq!(range(text.as_bytes()), None, "{text}");
        }
    }
}
