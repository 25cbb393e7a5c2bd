//! The user that workers run as if the configuration names none and the master is root.

use host::process::{self, SystemUser};

/// nginx's default, too.
const NAME: &str = "nobody";
/// The group that goes with it: Debian's name first, then that of other systems.
const GROUPS: [&str; 2] = ["nogroup", "nobody"];

/// The user with the first of the groups that exists.
pub(crate) fn find() -> Result<SystemUser, String> {
    let [first, second] = GROUPS.map(|group| process::lookup_user(NAME, group));
    first.or(second)
}
