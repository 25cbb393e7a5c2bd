//! The structs of one block: one per table, of types that only the modules know.

use std::any::Any;
use std::collections::HashMap;
use std::rc::Rc;

use crate::contexts::Contexts;
use crate::table::Rows;

/// A module's struct of which the type is not known here.
pub trait AnyConf: Any + Send + Sync {}

impl<T: Any + Send + Sync> AnyConf for T {}

/// The struct as what it is. A table gets back only what it made, so a mismatch is a defect of the engine.
pub fn downcast<C: 'static>(conf: &dyn AnyConf) -> &C {
    (conf as &dyn Any)
        .downcast_ref()
        .expect("a table is given the struct that it created")
}

/// As [`downcast`], to change.
pub fn downcast_mut<C: 'static>(conf: &mut dyn AnyConf) -> &mut C {
    (conf as &mut dyn Any)
        .downcast_mut()
        .expect("a table is given the struct that it created")
}

/// The tables of one group, in module order. The position is the struct's number.
pub type TableSet = Vec<&'static dyn Rows>;

/// The structs of one block, in groups.
///
/// A group holds the tables that open at the same kind of block. Http has three: those of `http` (0), of
/// `server` (1) and of `location` (2). `http {}` has structs of all three, `server {}` of the last two, and
/// `location {}` of the last one; a directive may stand wherever its group has structs and its row allows the
/// context.
///
/// ```text
/// let mut http = Confs::new(vec![main_tables, server_tables, location_tables]);
/// dispatch(nodes, &mut http, None, &mut level);
/// …in the setter of `server`, which is given `confs`, those of http…
/// let mut server = confs.child(1);
/// dispatch(line.node.block.nodes(), &mut server, Some(confs), &mut line.level.inner(SERVER));
/// ```
pub struct Confs {
    groups: Vec<Vec<Box<dyn AnyConf>>>,
    index: Rc<Index>,
    /// Nothing was inherited: the defaults of the rows have still to be applied.
    pub(crate) needs_defaults: bool,
}

/// The tables and where each name is found in them; made once for an engine and shared by all its blocks.
pub(crate) struct Index {
    groups: Vec<TableSet>,
    by_name: HashMap<&'static str, Vec<RowId>>,
}

/// A row of a table of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowId {
    pub(crate) group: usize,
    pub(crate) table: usize,
    pub(crate) row: usize,
}

impl Confs {
    /// New structs for an outermost block. The rows' defaults are applied by [`crate::dispatch()`].
    pub fn new(groups: Vec<TableSet>) -> Confs {
        let created = groups
            .iter()
            .map(|tables| tables.iter().map(|table| table.create()).collect())
            .collect();
        Confs {
            groups: created,
            index: Rc::new(Index::new(groups)),
            needs_defaults: true,
        }
    }

    /// The structs of a block inside this one, inherited. Groups before `first_group` are closed there: their
    /// directives are not allowed, and they have no structs.
    pub fn child(&self, first_group: usize) -> Confs {
        let groups = self.groups.iter().enumerate().map(|(group, confs)| {
            if group < first_group {
                return Vec::new();
            }
            let tables = &self.index.groups[group];
            confs
                .iter()
                .zip(tables)
                .map(|(conf, table)| table.child(&**conf))
                .collect()
        });
        Confs {
            groups: groups.collect(),
            index: self.index.clone(),
            needs_defaults: false,
        }
    }

    /// The struct of type `C`, if this block has one.
    pub fn get<C: 'static>(&self) -> Option<&C> {
        self.groups
            .iter()
            .flatten()
            .find_map(|conf| (&**conf as &dyn Any).downcast_ref())
    }

    /// As [`Confs::get`], to change.
    pub fn get_mut<C: 'static>(&mut self) -> Option<&mut C> {
        self.groups
            .iter_mut()
            .flatten()
            .find_map(|conf| (&mut **conf as &mut dyn Any).downcast_mut())
    }

    /// The structs of a group in the order of its tables; none if the group is closed here.
    pub fn group(&self, group: usize) -> &[Box<dyn AnyConf>] {
        &self.groups[group]
    }

    /// Takes the structs of a group out, when the block is complete. The group is closed afterwards.
    pub fn take_group(&mut self, group: usize) -> Vec<Box<dyn AnyConf>> {
        std::mem::take(&mut self.groups[group])
    }

    /// The tables of a group.
    pub fn tables(&self, group: usize) -> &[&'static dyn Rows] {
        &self.index.groups[group]
    }

    /// How many groups there are.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn index(&self) -> Rc<Index> {
        self.index.clone()
    }

    pub(crate) fn slot(&mut self, group: usize, table: usize) -> Option<&mut dyn AnyConf> {
        self.groups[group].get_mut(table).map(|conf| &mut **conf)
    }

    /// The row that takes `name` in `context`, among the groups open here.
    pub(crate) fn find(&self, name: &str, context: Contexts) -> Option<RowId> {
        let rows = self.index.by_name.get(name)?;
        let open = rows.iter().filter(|id| !self.groups[id.group].is_empty());
        open.copied()
            .find(|&id| self.index.info(id).contexts.contains(context))
    }
}

impl Index {
    fn new(groups: Vec<TableSet>) -> Index {
        let mut index = Index {
            groups,
            by_name: HashMap::new(),
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
    pub(crate) fn tables(&self) -> impl Iterator<Item = &'static dyn Rows> {
        self.groups.iter().flatten().copied()
    }

    pub(crate) fn table(&self, id: RowId) -> &'static dyn Rows {
        self.groups[id.group][id.table]
    }

    pub(crate) fn info(&self, id: RowId) -> crate::table::RowInfo {
        self.table(id).info(id.row)
    }

    pub(crate) fn group_len(&self, group: usize) -> usize {
        self.groups[group].len()
    }
}
