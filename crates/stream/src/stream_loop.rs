//! Stream on one loop, as sessions, modules and variables know it: the present configuration, and where to count and
//! log.
//!
//! It knows no session: accepting, counting and ending those is [`crate::engine`]'s, which is above the phases.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use host::engine::{MainSettings, ZoneRegistry};
use host::error_log::Logger;
use net::counters::ConnectionCounters;

use crate::stream_site::StreamSite;

/// Stream on one loop.
pub struct StreamLoop {
    /// The number of the loop, from 0. What must run once in the process runs on loop 0.
    pub index: usize,
    pub(crate) site: RefCell<Rc<StreamSite>>,
    /// The error log and the settings of main, as the present configuration has them.
    pub(crate) log: RefCell<Logger>,
    pub(crate) main: RefCell<MainSettings>,
    /// What lives longer than a configuration.
    pub zones: ZoneRegistry,
    /// This loop's counters.
    pub(crate) counters: Arc<ConnectionCounters>,
}

impl StreamLoop {
    /// The error log of main, for what belongs to no server.
    pub fn log(&self) -> Logger {
        self.log.borrow().clone()
    }

    /// The present configuration.
    pub fn site(&self) -> Rc<StreamSite> {
        Rc::clone(&self.site.borrow())
    }
}
