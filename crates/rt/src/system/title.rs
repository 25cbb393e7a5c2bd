//! The title that `ps` shows, and the environment, which stands where it is written.

use std::ffi::OsString;
use std::io;
use std::sync::OnceLock;

use super::require_one_thread;

/// Replaces the whole environment. Fails with `EBUSY` when the process has more than one thread.
pub fn set_environment(variables: &[(OsString, OsString)]) -> io::Result<()> {
    require_one_thread()?;
    let old: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    // SAFETY: the process has exactly one thread (checked above), so no other thread reads the environment
    // at the same time. JUSTIFICATION: `env` lines must reach libraries that call getenv.
    unsafe {
        for name in old {
            std::env::remove_var(name);
        }
        for (name, value) in variables {
            std::env::set_var(name, value);
        }
    }
    Ok(())
}

/// Shows `title` as the command line in `ps`. Best effort: nothing happens where it cannot be done.
///
/// The kernel shows the bytes where the arguments stood at the start, so `std::env::args` must not be
/// called any more after this, and the environment, which stands behind them, is copied away. So the
/// first call needs a process of one thread; later calls do not.
pub fn set_title(title: &str) {
    static AREA: OnceLock<Option<(usize, usize)>> = OnceLock::new();
    let area = AREA.get_or_init(|| {
        let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        title_area().filter(|_| set_environment(&environment).is_ok())
    });
    let Some((start, end)) = *area else { return };
    let length = title.len().min(end - start - 1);
    let area = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: start..end are the argument and environment strings of this process as the kernel
    // reports them: mapped, writable, contiguous (title_area), on the initial stack. The environment
    // was copied to the heap above, the arguments were read before (this function's contract), so
    // nothing in this process looks at these bytes any more.
    // JUSTIFICATION: operators and scripts look for "master process" and "worker process" in `ps`.
    unsafe {
        std::ptr::copy_nonoverlapping(title.as_ptr(), area, length);
        std::ptr::write_bytes(area.add(length), 0, end - start - length);
    }
}

/// Where the kernel keeps the arguments and the environment: start of the first, end of the second.
fn title_area() -> Option<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // proc(5): the name in parentheses may hold anything; fields are counted from behind it.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<usize> = after_name
        .split_ascii_whitespace()
        .map(|word| word.parse().unwrap_or(0))
        .collect();
    // arg_start, arg_end, env_start, env_end are fields 48 to 51; field 3 is the first here.
    let [arg_start, arg_end, env_start, env_end] = *fields.get(45..49)? else {
        return None;
    };
    let sound =
        arg_start > 0 && arg_start < arg_end && arg_end == env_start && env_start <= env_end;
    sound.then_some((arg_start, env_end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_area_is_found() {
        let (start, end) = title_area().expect("proc is mounted");
        assert!(start < end);
    }
}
