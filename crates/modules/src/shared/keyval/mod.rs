//! `keyval_zone` and `keyval`: a variable whose values are set while the server runs, through `api`.
//!
//! http and stream have the same rows; their zones are apart. The entries are in [`table`].

pub(crate) mod sync;
pub(crate) mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BStr, ByteSlice};
use conf::{
    Arity, Contexts, Diagnostic, Directive, DirectiveLine, PathUse, RepeatRule, Setter,
    VariableDefinition, parse,
};

use super::client_scope::{ClientScope, define_variable};
use super::limit_req_sync::{SyncWords, ZoneSync};
use super::status::{StatusView, text};
use super::zones::{self, SharedZone};
use table::{KeyMatch, KeyvalTable};

/// The zones that a configuration declares.
#[derive(Clone, Default)]
pub(crate) struct KeyvalZones(Vec<Arc<KeyvalZone>>);

/// A zone as `keyval_zone` declares it.
pub(crate) type KeyvalZone = SharedZone<KeyvalDeclaration, KeyvalTable>;

/// What a `keyval_zone` line says besides name and size.
pub(crate) struct KeyvalDeclaration {
    kind: KeyMatch,
    /// How long an entry stays; `None`: for ever.
    pub(crate) timeout: Option<Duration>,
    /// The file that keeps the entries.
    pub(crate) state_file: Option<PathBuf>,
    /// The cluster whose Redis keeps them.
    pub(crate) sync: Option<ZoneSync>,
}

/// The rows. `read_zone` and `read_keyval` are [`KeyvalZones::read_zone`] and [`read_keyval`] for the owner of the zones.
pub(crate) const fn rows(
    contexts: Contexts,
    read_zone: fn(&mut KeyvalZones, &mut DirectiveLine) -> Result<(), Diagnostic>,
    read_keyval: fn(&mut KeyvalZones, &mut DirectiveLine) -> Result<(), Diagnostic>,
) -> [Directive<KeyvalZones>; 2] {
    [
        Directive {
            name: "keyval_zone",
            syntax: "zone=name:size [state=file] [timeout=time] [type=string | ip | prefix] [sync=redis cluster=name]",
            default: None,
            contexts,
            since: "0.2",
            doc: "Defines a zone of keys and values that `api` sets while the server runs. With `state`, the file keeps \
                  them over a restart; the worker's user must be able to write to its folder. With `timeout`, an entry \
                  ends after that time. `type=string` finds a key that is the same, `ip` an address or the smallest \
                  network that an address is in, `prefix` the longest key that the text begins with. With `sync=redis`, \
                  the members of the `cluster` have the same entries, which its Redis keeps.",
            set: Setter::Custom(Arity::between(1, 5), RepeatRule::Many, read_zone),
        },
        Directive {
            name: "keyval",
            syntax: "key $variable zone=name",
            default: None,
            contexts,
            since: "0.2",
            doc: "Defines a variable whose value is looked up by the key in the zone; it is empty if there is none.",
            set: Setter::Custom(Arity::exactly(3), RepeatRule::Many, read_keyval),
        },
    ]
}

/// Reads `keyval KEY $VARIABLE zone=NAME`.
pub(crate) fn read_keyval<S: ClientScope>(
    line: &mut DirectiveLine,
    kind: &'static str,
) -> Result<(), Diagnostic> {
    let key = line.expression(0)?;
    let name = parse::parameter(line.text(2), "zone").filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| line.invalid_parameter(2))?;
    let zone = zones::refer_to::<KeyvalDeclaration, KeyvalTable>(line, BStr::new(name), kind)?;
    let definition = VariableDefinition::<S>::dynamic(move |session, out| {
        let key = key.to_bytes(session);
        // No state: the configuration is only tested.
        zone.state()
            .is_some_and(|table| table.look_up(&key, rt::wall_millis(), out))
    });
    define_variable(line, 1, definition, &[])
}

/// Reports zones that no `keyval_zone` declares.
pub(crate) fn report_undeclared(line: &mut DirectiveLine) {
    zones::report_undeclared::<KeyvalDeclaration, KeyvalTable>(line, "keyval_zone");
}

/// Checks what a line says of sharing its zone.
fn check_sync(declared: &KeyvalDeclaration, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let Some(sync) = &declared.sync else {
        return Ok(());
    };
    if !sync.needs_redis() {
        return Err(
            line.error("\"keyval_zone\" has no sync=share: entries are shared by sync=redis")
        );
    }
    if declared.state_file.is_some() {
        return Err(
            line.error("\"state\" and \"sync\" exclude each other: Redis keeps the entries")
        );
    }
    sync.note_need(line);
    Ok(())
}

/// The owner of the zones of http in messages.
pub(crate) const HTTP_KIND: &str = "keyval";

impl KeyvalZones {
    /// Reads `keyval_zone`.
    pub(crate) fn read_zone(
        &mut self,
        line: &mut DirectiveLine,
        kind: &'static str,
    ) -> Result<(), Diagnostic> {
        let mut zone = None;
        let mut declared = KeyvalDeclaration {
            kind: KeyMatch::String,
            timeout: None,
            state_file: None,
            sync: None,
        };
        let mut sync = SyncWords::default();
        for i in 0..line.args().len() {
            let word = line.text(i);
            let invalid = || line.invalid_parameter(i);
            if let Some(value) = parse::parameter(word, "zone") {
                zone = Some(zones::name_and_size(line, i, value)?);
            } else if let Some(value) = parse::parameter(word, "timeout") {
                let timeout = parse::millis(value).filter(|time| !time.is_zero());
                declared.timeout = Some(timeout.ok_or_else(invalid)?);
            } else if let Some(value) = parse::parameter(word, "type") {
                let mut words = KeyMatch::WORDS.iter();
                let found = words.find(|(word, _)| word.as_bytes() == value);
                declared.kind = found.ok_or_else(invalid)?.1;
            } else if let Some(value) = parse::parameter(word, "state") {
                if value.is_empty() {
                    return Err(invalid());
                }
                let build = &line.level.build;
                let path = build.in_prefix(PathUse::Opened, parse::path(value));
                // The worker reads the file, and replaces it, for which it needs the folder.
                if let Some(folder) = path.parent() {
                    build.in_prefix(PathUse::Write, folder);
                }
                declared.state_file = Some(path);
            } else if word == "sync" {
                // To ignore it would leave a list of denied clients empty on all servers but one.
                let error = line.error_at(i, "\"sync\" alone is not supported");
                let note = "members of a cluster share a zone by \"sync=redis cluster=name\"";
                return Err(error.note(note));
            } else if !sync.take(line, i)? {
                return Err(line.invalid_parameter(i));
            }
        }
        declared.sync = sync.finish(line)?;
        check_sync(&declared, line)?;
        let zone =
            zone.ok_or_else(|| line.error("\"keyval_zone\" must have \"zone\" parameter"))?;
        let name = zone.name.clone();
        let twice = |_: &KeyvalDeclaration| format!("keyval_zone \"{name}\" is already defined");
        self.0
            .push(zones::declare(line, zone, kind, declared, twice)?);
        Ok(())
    }

    /// Finds the entries that a previous configuration left, or reads them from the file of the zone.
    pub(crate) fn adopt_states(
        &self,
        zones: &host::engine::ZoneRegistry,
        kind: &str,
    ) -> Result<(), String> {
        for zone in &self.0 {
            let is_new = std::cell::Cell::new(false);
            let table = zone.adopt_state(zones, kind, |size, declared| {
                is_new.set(true);
                KeyvalTable::new(size, declared.kind)
            });
            let Some(declared) = zone.declared() else {
                continue;
            };
            let name = &zone.name;
            if table.kind != declared.kind {
                return Err(format!(
                    "keyval_zone \"{name}\" has the type \"{}\" while previously it had \"{}\"",
                    declared.kind.word(),
                    table.kind.word()
                ));
            }
            if let Some(path) = declared.state_file.as_ref().filter(|_| is_new.get()) {
                let failed = |why: String| {
                    let path = path.display();
                    format!("keyval_zone \"{name}\": cannot read its state from \"{path}\": {why}")
                };
                match std::fs::read(path) {
                    Ok(content) => table.load(&content, rt::wall_millis()).map_err(failed)?,
                    // Nothing was added yet.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(failed(error.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Makes the zones those that later configurations find.
    pub(crate) fn commit_states(&self, zones: &host::engine::ZoneRegistry, kind: &str) {
        for zone in &self.0 {
            zone.commit_state(zones, kind);
        }
    }

    /// Refuses zones of a cluster that no block declares. For stream: http, where clusters are declared, may not be there.
    pub(crate) fn check_clusters(&self) -> Result<(), String> {
        let all = self.0.iter();
        let syncs = all.filter_map(|zone| Some((&zone.name, zone.declared()?.sync.as_ref()?)));
        zones::check_clusters(
            "keyval_zone",
            syncs.map(|(name, sync)| (name, sync.cluster())),
        )
    }

    /// All zones.
    pub(crate) fn list(&self) -> &[Arc<KeyvalZone>] {
        &self.0
    }

    /// The zone of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<KeyvalZone>> {
        self.0.iter().find(|zone| zone.name.as_bstr() == name)
    }
}

/// All zones of both engines, with their names.
pub(crate) fn all_tables(view: &StatusView) -> Vec<(String, Arc<KeyvalTable>)> {
    let stream = view.stream.as_ref().map(|site| site.main_confs.get());
    let engines = [Some(view.site.main_confs.get::<KeyvalZones>()), stream];
    let zones = engines.into_iter().flatten().flat_map(KeyvalZones::list);
    zones
        .filter_map(|zone| Some((text(zone.name.as_bstr()), Arc::clone(zone.state()?))))
        .collect()
}
