//! The entries of a `keyval_zone`: lookups by requests, changes by the API, and the file that keeps them.
//!
//! Requests only read, so they share the lock. The file is a JSON object, `{"key": {"value": "…", "until": 1764150000000}}`,
//! written as a whole after each change: first beside the former one, then in its place.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;

use base::sync::{Mutex, RwLock};
use serde_json::{Map, Value, json};

use super::super::upstream_state::replace_file;
use super::super::zones::ZoneState;
use crate::shared::shared_map::MapProgress;

/// What an entry costs its zone besides key and value, in bytes.
const FIXED_COST: u64 = 96;

/// How keys are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyMatch {
    /// The key is the same.
    #[default]
    String,
    /// The key is an address, or a network that the address is in: the smallest one.
    Ip,
    /// The key is a beginning of the text: the longest one.
    Prefix,
}

impl KeyMatch {
    /// The words of `type=`.
    pub(crate) const WORDS: [(&'static str, KeyMatch); 3] = [
        ("string", KeyMatch::String),
        ("ip", KeyMatch::Ip),
        ("prefix", KeyMatch::Prefix),
    ];

    /// Its word.
    pub(crate) fn word(self) -> &'static str {
        let mut words = Self::WORDS.iter();
        words
            .find(|(_, kind)| *kind == self)
            .map_or("string", |(word, _)| word)
    }
}

/// The entries of a zone.
pub(crate) struct KeyvalTable {
    size: u64,
    /// How keys are found.
    pub(crate) kind: KeyMatch,
    entries: RwLock<KeyvalEntries>,
    /// With `sync=redis`: how far the changes have been read.
    pub(crate) progress: MapProgress,
    /// Held while the file is written, so that an older content never replaces a newer one.
    saving: Mutex<()>,
}

#[derive(Default)]
struct KeyvalEntries {
    by_key: HashMap<String, KeyvalEntry>,
    /// The lengths of keys, and how many keys have each: a text is looked up once for each length, the longest first.
    lengths: BTreeMap<usize, usize>,
    /// With `type=ip`: the key of each network.
    by_network: HashMap<AddressBlock, String>,
    /// The prefix lengths of networks, and how many have each.
    network_lengths: BTreeMap<(bool, u8), usize>,
    /// The sum of the costs; at most the size of the zone.
    used: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyvalEntry {
    value: String,
    /// In milliseconds since 1970; `None`: it stays.
    until: Option<u64>,
}

/// An address without the bits that do not matter, how many matter, and whether it is an IPv6 one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AddressBlock {
    bits: u128,
    length: u8,
    is_v6: bool,
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyvalRefusal {
    /// The key is there.
    Exists,
    /// It is not.
    Missing,
    /// The zone is full.
    NoRoom,
    /// The key of a zone with `type=ip` is neither an address nor a network.
    NoAddress,
}

impl AddressBlock {
    fn new(ip: IpAddr, length: u8) -> AddressBlock {
        let (bits, width, is_v6) = match ip.to_canonical() {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32, false),
            IpAddr::V6(ip) => (u128::from(ip), 128, true),
        };
        let length = length.min(width);
        let mask = u128::MAX
            .checked_shl(u32::from(width - length))
            .unwrap_or(0);
        AddressBlock {
            bits: bits & mask,
            length,
            is_v6,
        }
    }

    /// An address, or an address and the number of bits that matter.
    fn parse(text: &str) -> Option<AddressBlock> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let ip = conf::address::ip(address.as_bytes())?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => width,
            Some(text) => text.parse().ok().filter(|length| *length <= width)?,
        };
        Some(AddressBlock::new(ip, length))
    }
}

impl ZoneState for KeyvalTable {
    fn size(&self) -> u64 {
        self.size
    }
}

impl KeyvalTable {
    /// An empty zone of `size` bytes.
    pub(crate) fn new(size: u64, kind: KeyMatch) -> KeyvalTable {
        KeyvalTable {
            size,
            kind,
            entries: RwLock::default(),
            progress: MapProgress::default(),
            saving: Mutex::default(),
        }
    }

    /// How many bytes are used.
    pub(crate) fn used(&self) -> u64 {
        self.entries.read().used
    }

    /// Appends the value for a text; `false`: there is none.
    pub(crate) fn look_up(&self, text: &[u8], now_ms: u64, out: &mut Vec<u8>) -> bool {
        let entries = self.entries.read();
        let found = std::str::from_utf8(text)
            .ok()
            .and_then(|text| match self.kind {
                KeyMatch::String => entries.present(text, now_ms),
                KeyMatch::Ip => entries.network_of(text, now_ms),
                KeyMatch::Prefix => entries.prefix_of(text, now_ms),
            });
        match found {
            Some(entry) => {
                out.extend_from_slice(entry.value.as_bytes());
                true
            }
            None => false,
        }
    }

    /// All entries, or one.
    pub(crate) fn list(&self, key: Option<&str>, now_ms: u64) -> Map<String, Value> {
        let entries = self.entries.read();
        let listed = entries.by_key.iter().filter(|(known, entry)| {
            entry.is_present(now_ms) && key.is_none_or(|key| key == known.as_str())
        });
        listed
            .map(|(key, entry)| (key.clone(), json!(entry.value)))
            .collect()
    }

    /// Whether there are no entries.
    pub(crate) fn is_empty(&self, now_ms: u64) -> bool {
        let entries = self.entries.read();
        !entries
            .by_key
            .values()
            .any(|entry| entry.is_present(now_ms))
    }

    /// Adds an entry.
    pub(crate) fn insert(
        &self,
        key: &str,
        value: &str,
        until: Option<u64>,
        now_ms: u64,
    ) -> Result<(), KeyvalRefusal> {
        let mut entries = self.entries.write();
        if entries.present(key, now_ms).is_some() {
            return Err(KeyvalRefusal::Exists);
        }
        self.put(&mut entries, key, value, until, now_ms)
    }

    /// Changes an entry.
    pub(crate) fn change(
        &self,
        key: &str,
        value: &str,
        until: Option<u64>,
        now_ms: u64,
    ) -> Result<(), KeyvalRefusal> {
        let mut entries = self.entries.write();
        if entries.present(key, now_ms).is_none() {
            return Err(KeyvalRefusal::Missing);
        }
        self.put(&mut entries, key, value, until, now_ms)
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, key: &str, now_ms: u64) -> Result<(), KeyvalRefusal> {
        let mut entries = self.entries.write();
        let found = entries.present(key, now_ms).is_some();
        entries.remove(key);
        match found {
            true => Ok(()),
            false => Err(KeyvalRefusal::Missing),
        }
    }

    /// Whether an entry could be put.
    pub(crate) fn check(&self, key: &str, value: &str) -> Result<(), KeyvalRefusal> {
        if self.kind == KeyMatch::Ip && AddressBlock::parse(key).is_none() {
            return Err(KeyvalRefusal::NoAddress);
        }
        let entries = self.entries.read();
        let former = entries.by_key.get(key).map_or(0, |entry| entry.cost(key));
        let cost = FIXED_COST + (key.len() + value.len()) as u64;
        match entries.used - former + cost > self.size {
            true => Err(KeyvalRefusal::NoRoom),
            false => Ok(()),
        }
    }

    /// Puts an entry, or removes it, whatever there was.
    pub(crate) fn take(
        &self,
        key: &str,
        entry: Option<(&str, Option<u64>)>,
        now_ms: u64,
    ) -> Result<(), KeyvalRefusal> {
        let mut entries = self.entries.write();
        match entry {
            Some((value, until)) => self.put(&mut entries, key, value, until, now_ms),
            None => {
                entries.remove(key);
                Ok(())
            }
        }
    }

    /// These are all entries from now on. How many of them do not fit, or are none.
    pub(crate) fn replace(&self, list: &[(String, String, Option<u64>)], now_ms: u64) -> usize {
        // Aside, so that no request finds half of it.
        let mut entries = KeyvalEntries::default();
        let mut put = |(key, value, until): &(String, String, Option<u64>)| {
            self.put(&mut entries, key, value, *until, now_ms).is_err()
        };
        let refused = list.iter().filter(|one| put(one)).count();
        *self.entries.write() = entries;
        refused
    }

    /// Removes all entries.
    pub(crate) fn clear(&self) {
        *self.entries.write() = KeyvalEntries::default();
    }

    fn put(
        &self,
        entries: &mut KeyvalEntries,
        key: &str,
        value: &str,
        until: Option<u64>,
        now_ms: u64,
    ) -> Result<(), KeyvalRefusal> {
        let network = match self.kind {
            KeyMatch::Ip => Some(AddressBlock::parse(key).ok_or(KeyvalRefusal::NoAddress)?),
            KeyMatch::String | KeyMatch::Prefix => None,
        };
        let former = entries.by_key.get(key).map_or(0, |entry| entry.cost(key));
        let new = KeyvalEntry {
            value: value.to_owned(),
            until,
        };
        if entries.used - former + new.cost(key) > self.size {
            // What has ended is only removed when room is needed: nobody sees it.
            entries.drop_ended(now_ms);
        }
        let former = entries.by_key.get(key).map_or(0, |entry| entry.cost(key));
        if entries.used - former + new.cost(key) > self.size {
            return Err(KeyvalRefusal::NoRoom);
        }
        entries.remove(key);
        entries.insert(key, new, network);
        Ok(())
    }

    /// Reads the file of a zone that has just been made. What does not fit any more is an error: half of a list may be
    /// worse than none.
    pub(crate) fn load(&self, content: &[u8], now_ms: u64) -> Result<(), String> {
        let read: Map<String, Value> =
            serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let mut entries = self.entries.write();
        for (key, entry) in &read {
            let value = entry["value"]
                .as_str()
                .ok_or_else(|| format!("no value of \"{key}\""))?;
            let until = entry["until"].as_u64();
            if until.is_some_and(|until| until <= now_ms) {
                continue;
            }
            self.put(&mut entries, key, value, until, now_ms)
                .map_err(|refusal| format!("{} \"{key}\"", refusal.text()))?;
        }
        Ok(())
    }

    /// Writes the file. Blocks on the disk.
    pub(crate) fn save(&self, path: &Path, now_ms: u64) -> std::io::Result<()> {
        let _saving = self.saving.lock();
        let content = {
            let entries = self.entries.read();
            let present = entries.by_key.iter();
            let present = present.filter(|(_, entry)| entry.is_present(now_ms));
            let object: Map<String, Value> = present
                .map(|(key, entry)| {
                    let mut value = json!({ "value": entry.value });
                    if let Some(until) = entry.until {
                        value["until"] = json!(until);
                    }
                    (key.clone(), value)
                })
                .collect();
            Value::Object(object).to_string()
        };
        replace_file(path, content.as_bytes())
    }
}

impl KeyvalRefusal {
    /// What it says of a key.
    pub(crate) fn text(self) -> &'static str {
        match self {
            KeyvalRefusal::Exists => "key already exists:",
            KeyvalRefusal::Missing => "key not found:",
            KeyvalRefusal::NoRoom => "no room in the zone for",
            KeyvalRefusal::NoAddress => "neither an address nor a network:",
        }
    }
}

impl KeyvalEntry {
    fn is_present(&self, now_ms: u64) -> bool {
        self.until.is_none_or(|until| until > now_ms)
    }

    fn cost(&self, key: &str) -> u64 {
        FIXED_COST + (key.len() + self.value.len()) as u64
    }
}

impl KeyvalEntries {
    fn present(&self, key: &str, now_ms: u64) -> Option<&KeyvalEntry> {
        self.by_key
            .get(key)
            .filter(|entry| entry.is_present(now_ms))
    }

    fn prefix_of(&self, text: &str, now_ms: u64) -> Option<&KeyvalEntry> {
        let lengths = self.lengths.range(..=text.len()).rev();
        let mut keys = lengths.filter_map(|(length, _)| text.get(..*length));
        keys.find_map(|key| self.present(key, now_ms))
    }

    fn network_of(&self, text: &str, now_ms: u64) -> Option<&KeyvalEntry> {
        if text.contains('/') {
            let key = self.by_network.get(&AddressBlock::parse(text)?)?;
            return self.present(key, now_ms);
        }
        let ip = conf::address::ip(text.as_bytes())?.to_canonical();
        let lengths = self
            .network_lengths
            .range((ip.is_ipv6(), 0)..=(ip.is_ipv6(), u8::MAX));
        let mut networks = lengths
            .rev()
            .filter_map(|((_, length), _)| self.by_network.get(&AddressBlock::new(ip, *length)));
        networks.find_map(|key| self.present(key, now_ms))
    }

    fn insert(&mut self, key: &str, entry: KeyvalEntry, network: Option<AddressBlock>) {
        self.used += entry.cost(key);
        *self.lengths.entry(key.len()).or_default() += 1;
        if let Some(network) = network {
            // Two spellings of one network are one: the newer one counts.
            if let Some(other) = self.by_network.get(&network).cloned() {
                self.remove(&other);
            }
            let length = (network.is_v6, network.length);
            *self.network_lengths.entry(length).or_default() += 1;
            self.by_network.insert(network, key.to_owned());
        }
        self.by_key.insert(key.to_owned(), entry);
    }

    fn remove(&mut self, key: &str) {
        let Some(entry) = self.by_key.remove(key) else {
            return;
        };
        self.used -= entry.cost(key);
        count_down(&mut self.lengths, key.len());
        if let Some(network) = AddressBlock::parse(key)
            && self
                .by_network
                .get(&network)
                .is_some_and(|known| known == key)
        {
            self.by_network.remove(&network);
            count_down(&mut self.network_lengths, (network.is_v6, network.length));
        }
    }

    fn drop_ended(&mut self, now_ms: u64) {
        let ended = self
            .by_key
            .iter()
            .filter(|(_, entry)| !entry.is_present(now_ms));
        let ended: Vec<String> = ended.map(|(key, _)| key.clone()).collect();
        for key in ended {
            self.remove(&key);
        }
    }
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(table: &KeyvalTable, text: &str) -> Option<String> {
        let mut out = Vec::new();
        let found = table.look_up(text.as_bytes(), 100, &mut out);
        found.then(|| String::from_utf8(out).expect("it is text"))
    }

    #[test]
    fn keys_are_found_by_their_type() {
        let table = KeyvalTable::new(1 << 20, KeyMatch::Prefix);
        for key in ["/a", "/a/b", "/ä"] {
            table.insert(key, key, None, 100).expect("there is room");
        }
        assert_eq!(found(&table, "/a/bc").as_deref(), Some("/a/b"));
        assert_eq!(found(&table, "/a/").as_deref(), Some("/a"));
        assert_eq!(found(&table, "/é"), None);
        table.remove("/a/b", 100).expect("it is there");
        assert_eq!(found(&table, "/a/bc").as_deref(), Some("/a"));
        let table = KeyvalTable::new(1 << 20, KeyMatch::Ip);
        for key in ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "::/0", "fe80::1"] {
            table.insert(key, key, None, 100).expect("there is room");
        }
        for (text, key) in [
            ("10.2.2.3", Some("10.0.0.0/8")),
            ("10.1.2.4", Some("10.1.0.0/16")),
            ("10.1.2.3", Some("10.1.2.3")),
            ("::ffff:10.1.2.3", Some("10.1.2.3")),
            ("11.0.0.1", None),
            ("fe80::1", Some("fe80::1")),
            ("fe80::2", Some("::/0")),
            ("10.1.0.0/16", Some("10.1.0.0/16")),
            ("10.1.0.0/17", None),
            ("x", None),
        ] {
            assert_eq!(found(&table, text).as_deref(), key, "{text}");
        }
        assert_eq!(
            table.insert("x", "", None, 100),
            Err(KeyvalRefusal::NoAddress)
        );
        assert_eq!(
            table.insert("10.0.0.0/33", "", None, 100),
            Err(KeyvalRefusal::NoAddress)
        );
    }

    #[test]
    fn entries_end_and_make_room() {
        let table = KeyvalTable::new(2 * (FIXED_COST + 2), KeyMatch::String);
        table
            .insert("a", "1", Some(150), 100)
            .expect("there is room");
        table.insert("b", "2", None, 100).expect("there is room");
        assert_eq!(
            table.insert("c", "3", None, 149),
            Err(KeyvalRefusal::NoRoom)
        );
        assert_eq!(
            table.insert("a", "3", None, 149),
            Err(KeyvalRefusal::Exists)
        );
        assert_eq!(
            table.change("a", "3", None, 150),
            Err(KeyvalRefusal::Missing)
        );
        table
            .insert("c", "3", None, 150)
            .expect("another one has ended");
        assert_eq!(
            table.change("c", "33", None, 150),
            Err(KeyvalRefusal::NoRoom)
        );
        assert_eq!(table.used(), 2 * (FIXED_COST + 2));
        table.clear();
        assert!(table.is_empty(0) && table.used() == 0);
    }

    #[test]
    fn a_file_has_what_was_there() {
        let table = KeyvalTable::new(1 << 20, KeyMatch::String);
        let text = br#"{"a": {"value": "1"}, "b": {"value": "2", "until": 200}, "c": {"value": "3", "until": 100}}"#;
        table.load(text, 100).expect("it is valid");
        let listed = Value::Object(table.list(None, 100));
        assert_eq!(listed, json!({ "a": "1", "b": "2" }));
        assert_eq!(Value::Object(table.list(Some("b"), 200)), json!({}));
        for wrong in ["", "[]", "{\"a\": 1}"] {
            assert!(table.load(wrong.as_bytes(), 100).is_err(), "{wrong}");
        }
    }
}
