//! The structs of one block: one per table, of types that only the modules know.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::sync::Arc;

use base::number_map::NumberHasher;

use crate::directive_contexts::Contexts;
use crate::table::DirectiveRows;

/// A module's struct, whose type is not known here.
pub trait AnyConf: Any + Send + Sync {}

impl<T: Any + Send + Sync> AnyConf for T {}

/// The struct with its type. A table gets back only what it has created, so a mismatch is a bug of
/// the engine.
pub fn downcast<C: 'static>(conf: &dyn AnyConf) -> &C {
    (conf as &dyn Any)
        .downcast_ref()
        .expect("a table is given the struct that it created")
}

/// Like [`downcast`], mutably.
pub fn downcast_mut<C: 'static>(conf: &mut dyn AnyConf) -> &mut C {
    (conf as &mut dyn Any)
        .downcast_mut()
        .expect("a table is given the struct that it created")
}

/// The tables of one group, in module order. The position is the struct's number.
pub type TableSet = Vec<&'static dyn DirectiveRows>;

/// The structs of one block, in groups.
///
/// A group holds the tables that open at the same kind of block. Http has three: those of `http`
/// (0), of `server` (1) and of `location` (2). `http {}` has structs of all three, `server {}` of
/// the last two, and `location {}` of the last one; a directive may stand wherever its group has
/// structs and its row allows the context.
///
/// ```text
/// let mut http = BlockConfs::new(vec![main_tables, server_tables, location_tables]);
/// dispatch(nodes, &mut http, None, &mut level);
/// …in the setter of `server`, which is given `confs`, those of http…
/// let mut server = confs.child(1);
/// dispatch(line.node.block.nodes(), &mut server, Some(confs), &mut line.level.inner_block(SERVER));
/// ```
///
/// A struct is that of the block around it until something changes it here.
pub struct BlockConfs {
    groups: Vec<Vec<ConfSlot>>,
    index: Rc<TableIndex>,
    /// Nothing was inherited, so the defaults of the rows have yet to be applied.
    pub(crate) needs_defaults: bool,
}

/// The struct of one table in one block.
struct ConfSlot {
    conf: Arc<dyn AnyConf>,
    /// It is shared with the block around this one.
    is_shared: bool,
}

impl ConfSlot {
    fn own(conf: Arc<dyn AnyConf>) -> ConfSlot {
        ConfSlot {
            conf,
            is_shared: false,
        }
    }

    /// The struct for a block within this block.
    fn child(&self, table: &dyn DirectiveRows) -> ConfSlot {
        match table.shares(&*self.conf) {
            true => ConfSlot {
                conf: Arc::clone(&self.conf),
                is_shared: true,
            },
            false => ConfSlot::own(table.child(&*self.conf)),
        }
    }

    /// The struct, mutably. Blocks that share it keep theirs unchanged.
    fn change(&mut self, table: &dyn DirectiveRows) -> &mut dyn AnyConf {
        if std::mem::take(&mut self.is_shared) {
            self.conf = table.child(&*self.conf);
        } else if Arc::strong_count(&self.conf) > 1 {
            self.conf = table.copy(&*self.conf);
        }
        Arc::get_mut(&mut self.conf).expect("a struct that was made just now is shared by nobody")
    }
}

/// The tables and an index of their names. Built once per engine and shared by all its blocks.
pub(crate) struct TableIndex {
    groups: Vec<TableSet>,
    by_name: HashMap<&'static str, Vec<RowId>>,
    /// The group and the table of each type of struct.
    by_type: HashMap<TypeId, (usize, usize), BuildHasherDefault<NumberHasher>>,
    /// By group and table: a struct that many blocks inherit, and what its finish function has made of it.
    finished: RefCell<HashMap<(usize, usize), FinishedStruct>>,
}

/// What a finish function has made of a struct that a block inherits and does not change.
struct FinishedStruct {
    outer: Arc<dyn AnyConf>,
    made: Arc<dyn AnyConf>,
}

/// A row of a table of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowId {
    pub(crate) group: usize,
    pub(crate) table: usize,
    pub(crate) row: usize,
}

impl BlockConfs {
    /// New structs for an outermost block. The rows' defaults are applied by [`crate::dispatch()`].
    pub fn new(groups: Vec<TableSet>) -> BlockConfs {
        let create = |tables: &TableSet| -> Vec<ConfSlot> {
            let confs = tables.iter().map(|table| table.create());
            confs.map(ConfSlot::own).collect()
        };
        let created: Vec<Vec<ConfSlot>> = groups.iter().map(create).collect();
        let index = TableIndex::new(groups, &created);
        BlockConfs {
            groups: created,
            index: Rc::new(index),
            needs_defaults: true,
        }
    }

    /// The structs of a block inside this one, inherited. Groups before `first_group` are closed
    /// there: their directives are not allowed, and they have no structs.
    pub fn child(&self, first_group: usize) -> BlockConfs {
        let groups = self.groups.iter().enumerate().map(|(group, slots)| {
            if group < first_group {
                return Vec::new();
            }
            let tables = self.index.groups[group].iter();
            let slots = slots.iter().zip(tables);
            slots.map(|(slot, table)| slot.child(*table)).collect()
        });
        BlockConfs {
            groups: groups.collect(),
            index: self.index.clone(),
            needs_defaults: false,
        }
    }

    /// The struct of type `C`, if this block has one.
    pub fn get<C: 'static>(&self) -> Option<&C> {
        let &(group, table) = self.index.by_type.get(&TypeId::of::<C>())?;
        let slot = self.groups[group].get(table)?;
        Some(downcast(&*slot.conf))
    }

    /// Like [`BlockConfs::get`], mutably. It gives the block a struct of its own, which costs memory, so
    /// a caller that may have nothing to change should ask first: [`BlockConfs::change_if`].
    pub fn get_mut<C: 'static>(&mut self) -> Option<&mut C> {
        let &(group, table) = self.index.by_type.get(&TypeId::of::<C>())?;
        Some(downcast_mut(self.slot(group, table)?))
    }

    /// Changes the struct of type `C` if there is something to change.
    pub fn change_if<C: 'static>(&mut self, is_needed: fn(&C) -> bool, change: fn(&mut C)) {
        if self.get().is_some_and(is_needed)
            && let Some(conf) = self.get_mut()
        {
            change(conf);
        }
    }

    /// Takes the structs of a group when the block is complete. The group is closed afterwards.
    pub fn take_group(&mut self, group: usize) -> Vec<Arc<dyn AnyConf>> {
        let slots = std::mem::take(&mut self.groups[group]);
        slots.into_iter().map(|slot| slot.conf).collect()
    }

    /// The structs of a group, shared: for a block that is read again with other blocks inside.
    pub fn group(&self, group: usize) -> Vec<Arc<dyn AnyConf>> {
        self.groups[group]
            .iter()
            .map(|slot| Arc::clone(&slot.conf))
            .collect()
    }

    /// The tables of a group.
    pub fn tables(&self, group: usize) -> &[&'static dyn DirectiveRows] {
        &self.index.groups[group]
    }

    /// How many groups there are.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The struct of a table, if its group is open here.
    pub(crate) fn conf(&self, group: usize, table: usize) -> Option<&dyn AnyConf> {
        self.groups[group].get(table).map(|slot| &*slot.conf)
    }

    /// Whether the struct of a table is still that of the block around this one; `None` if its
    /// group is closed here.
    pub(crate) fn is_shared(&self, group: usize, table: usize) -> Option<bool> {
        self.groups[group].get(table).map(|slot| slot.is_shared)
    }

    /// The struct of a table, if it is still that of the block around this one.
    pub(crate) fn inherited(&self, group: usize, table: usize) -> Option<Arc<dyn AnyConf>> {
        let slot = self.groups[group].get(table)?;
        slot.is_shared.then(|| Arc::clone(&slot.conf))
    }

    /// The finish function has made the struct of a table from `outer`. It makes the same in every such block, so the blocks
    /// share the first one.
    pub(crate) fn share_finished(&mut self, group: usize, table: usize, outer: Arc<dyn AnyConf>) {
        let Some(slot) = self.groups[group].get_mut(table) else {
            return;
        };
        let mut finished = self.index.finished.borrow_mut();
        let known = finished.get(&(group, table));
        if let Some(known) = known.filter(|known| Arc::ptr_eq(&known.outer, &outer)) {
            slot.conf = Arc::clone(&known.made);
            return;
        }
        let made = Arc::clone(&slot.conf);
        finished.insert((group, table), FinishedStruct { outer, made });
    }

    pub(crate) fn index(&self) -> Rc<TableIndex> {
        self.index.clone()
    }

    pub(crate) fn slot(&mut self, group: usize, table: usize) -> Option<&mut dyn AnyConf> {
        let rows = self.index.groups[group].get(table)?;
        let slot = self.groups[group].get_mut(table)?;
        Some(slot.change(*rows))
    }

    /// The row for `name` in `context`, among the groups that are open here.
    pub(crate) fn find(&self, name: &str, context: Contexts) -> Option<RowId> {
        let rows = self.index.by_name.get(name)?;
        let open = rows.iter().filter(|id| !self.groups[id.group].is_empty());
        open.copied()
            .find(|&id| self.index.info(id).contexts.contains(context))
    }
}

impl TableIndex {
    fn new(groups: Vec<TableSet>, created: &[Vec<ConfSlot>]) -> TableIndex {
        let mut by_type = HashMap::default();
        for (group, slots) in created.iter().enumerate() {
            for (table, slot) in slots.iter().enumerate() {
                let place = by_type.entry((*slot.conf).type_id());
                place.or_insert((group, table));
            }
        }
        let mut index = TableIndex {
            by_type,
            groups,
            by_name: HashMap::new(),
            finished: RefCell::default(),
        };
        for id in index.rows().collect::<Vec<_>>() {
            index
                .by_name
                .entry(index.info(id).name)
                .or_default()
                .push(id);
        }
        index
    }

    /// All rows in the order of groups and tables.
    pub(crate) fn rows(&self) -> impl Iterator<Item = RowId> {
        self.groups.iter().enumerate().flat_map(|(group, tables)| {
            tables.iter().enumerate().flat_map(move |(table, rows)| {
                (0..rows.len()).map(move |row| RowId { group, table, row })
            })
        })
    }

    /// All tables in order.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &'static dyn DirectiveRows> {
        self.groups.iter().flatten().copied()
    }

    pub(crate) fn table(&self, id: RowId) -> &'static dyn DirectiveRows {
        self.rows_of(id.group, id.table)
    }

    pub(crate) fn rows_of(&self, group: usize, table: usize) -> &'static dyn DirectiveRows {
        self.groups[group][table]
    }

    pub(crate) fn info(&self, id: RowId) -> crate::table::RowInfo {
        self.table(id).info(id.row)
    }

    pub(crate) fn group_len(&self, group: usize) -> usize {
        self.groups[group].len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::DirectiveTable;

    #[derive(Clone, Default)]
    struct Plain(u32);

    #[derive(Clone, Default)]
    struct Own(u32);

    static PLAIN: DirectiveTable<Plain> = DirectiveTable::new(&[]);
    static OWN: DirectiveTable<Own> =
        DirectiveTable::<Own>::new(&[]).inherit(|_| Own(0), |outer| outer.0 == 0);

    fn confs() -> BlockConfs {
        BlockConfs::new(vec![vec![&PLAIN, &OWN]])
    }

    fn address<C: 'static>(confs: &BlockConfs) -> *const C {
        confs.get::<C>().expect("there is a table of it")
    }

    #[test]
    fn a_block_shares_a_struct_until_it_changes_it() {
        let mut outer = confs();
        outer.get_mut::<Plain>().expect("there").0 = 7;
        let mut inner = outer.child(0);
        assert_eq!(address::<Plain>(&outer), address::<Plain>(&inner));
        inner.get_mut::<Plain>().expect("there").0 = 8;
        assert_eq!(outer.get::<Plain>().expect("there").0, 7);
        assert_eq!(inner.get::<Plain>().expect("there").0, 8);
    }

    #[test]
    fn what_is_changed_later_does_not_reach_the_blocks_inside() {
        let mut outer = confs();
        let inner = outer.child(0);
        outer.get_mut::<Plain>().expect("there").0 = 7;
        assert_eq!(inner.get::<Plain>().expect("there").0, 0);
    }

    #[test]
    fn what_is_not_inherited_is_shared_only_where_it_is_the_same() {
        let mut outer = confs();
        assert_eq!(address::<Own>(&outer), address::<Own>(&outer.child(0)));
        outer.get_mut::<Own>().expect("there").0 = 7;
        assert_eq!(outer.child(0).get::<Own>().expect("there").0, 0);
        assert_eq!(outer.get::<Own>().expect("there").0, 7);
    }

    #[test]
    fn blocks_share_what_is_made_of_the_struct_that_they_inherit() {
        let outer = confs();
        let finished = |value: u32| {
            let mut block = outer.child(0);
            let inherited = block.inherited(0, 0).expect("it is shared");
            block.get_mut::<Plain>().expect("there").0 = value;
            block.share_finished(0, 0, inherited);
            block
        };
        let (one, mut two) = (finished(7), finished(7));
        assert_eq!(address::<Plain>(&one), address::<Plain>(&two));
        two.get_mut::<Plain>().expect("there").0 = 8;
        assert_eq!(one.get::<Plain>().expect("there").0, 7);
        assert!(two.inherited(0, 0).is_none());
    }

    #[test]
    fn nothing_is_made_where_nothing_is_to_be_changed() {
        let outer = confs();
        let mut inner = outer.child(0);
        inner.change_if::<Plain>(|plain| plain.0 != 0, |plain| plain.0 = 0);
        assert_eq!(address::<Plain>(&outer), address::<Plain>(&inner));
    }
}
