//! Users and groups by name, and becoming another user.

use std::ffi::CString;
use std::io;

use base::ErrnoText;

use super::require_one_thread;

/// The user that the worker runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemUser {
    /// The name, for the supplementary groups.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// Looks up a user and a group by name. The error says which call failed, in nginx's words.
pub fn lookup_user(user: &str, group: &str) -> Result<SystemUser, String> {
    let uid = user_number(user).map_err(|error| failed("getpwnam", user, &error))?;
    let gid = group_number(group).map_err(|error| failed("getgrnam", group, &error))?;
    Ok(SystemUser {
        name: user.to_owned(),
        uid,
        gid,
    })
}

fn failed(call: &str, name: &str, error: &Option<io::Error>) -> String {
    match error {
        Some(error) => format!("{call}(\"{name}\") failed{}", ErrnoText(error)),
        None => format!("{call}(\"{name}\") failed"),
    }
}

/// The most memory a user or group entry may take; a group with that many members is a mistake.
const MAX_ENTRY: usize = 1 << 20;

/// Looks a user up; `Err(None)` means that there is none of this name.
fn user_number(name: &str) -> Result<u32, Option<io::Error>> {
    let name = CString::new(name).map_err(|_| None)?;
    let mut buffer = vec![0; 4096];
    loop {
        let mut entry = std::mem::MaybeUninit::<libc::passwd>::zeroed();
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call and `buffer` has the length that is passed;
        // `entry` is read only when the call says that it was filled (found is not null).
        // JUSTIFICATION: users come from NSS (LDAP, SSSD), not only from /etc/passwd.
        let (code, uid) = unsafe {
            let code = libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            );
            (
                code,
                if found.is_null() {
                    None
                } else {
                    Some((*found).pw_uid)
                },
            )
        };
        if code == libc::ERANGE && buffer.len() < MAX_ENTRY {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        return uid.ok_or_else(|| (code != 0).then(|| io::Error::from_raw_os_error(code)));
    }
}

/// Looks a group up; `Err(None)` means that there is none of this name.
fn group_number(name: &str) -> Result<u32, Option<io::Error>> {
    let name = CString::new(name).map_err(|_| None)?;
    let mut buffer = vec![0; 4096];
    loop {
        let mut entry = std::mem::MaybeUninit::<libc::group>::zeroed();
        let mut found = std::ptr::null_mut();
        // SAFETY: as in user_number.
        // JUSTIFICATION: as in user_number.
        let (code, gid) = unsafe {
            let code = libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            );
            (
                code,
                if found.is_null() {
                    None
                } else {
                    Some((*found).gr_gid)
                },
            )
        };
        if code == libc::ERANGE && buffer.len() < MAX_ENTRY {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        return gid.ok_or_else(|| (code != 0).then(|| io::Error::from_raw_os_error(code)));
    }
}

/// Gives up the super-user for good: group, supplementary groups, user. The error names the call.
///
/// Must run before any thread is started, since the kernel keeps credentials per thread.
pub fn become_user(user: &SystemUser) -> Result<(), String> {
    require_one_thread().map_err(|error| error.to_string())?;
    let name = CString::new(user.name.as_str()).map_err(|_| "invalid user name".to_owned())?;
    // The groups first: without the rights of root neither could be changed any more.
    // SAFETY: setgid and setuid take numbers; initgroups gets a valid C string that it only reads.
    // JUSTIFICATION: the C library's forms are needed for supplementary groups from NSS.
    let steps = unsafe {
        [
            (libc::setgid(user.gid), format!("setgid({})", user.gid)),
            (
                libc::initgroups(name.as_ptr(), user.gid),
                format!("initgroups({}, {})", user.name, user.gid),
            ),
            (libc::setuid(user.uid), format!("setuid({})", user.uid)),
        ]
    };
    for (code, call) in steps {
        if code != 0 {
            return Err(format!(
                "{call} failed{}",
                ErrnoText(&io::Error::last_os_error())
            ));
        }
    }
    Ok(())
}

/// Is this process the super-user?
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The number of this process's (effective) user.
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_nobody_else_is_invented() {
        let root = lookup_user("root", "root").expect("every system has root");
        assert_eq!((root.uid, root.gid), (0, 0));
        let error = lookup_user("no-such-user-here", "root").expect_err("not there");
        assert!(
            error.starts_with("getpwnam(\"no-such-user-here\") failed"),
            "{error}"
        );
    }
}
