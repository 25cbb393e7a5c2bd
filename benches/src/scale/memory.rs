//! What the kernel says of processes: memory, CPU time, and whether they have ended.

use std::fs;

use crate::server::children_of;

/// A process and its children.
pub(super) fn family(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    all.extend(children_of(process));
    all
}

/// The sum of a field of `smaps_rollup` over processes, in bytes. One that has ended has nothing.
pub(super) fn rollup(processes: &[u32], field: &str) -> u64 {
    let of = |process: &u32| {
        let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
        kilobytes(&text, field)
    };
    processes.iter().filter_map(of).sum()
}

/// The value of a line such as `Pss:   12 kB`, in bytes.
fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let number: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(number * 1024)
}

/// The most memory that a process has had so far, in bytes; `None` once it has ended.
pub(super) fn peak(process: u32) -> Option<u64> {
    kilobytes(
        &fs::read_to_string(format!("/proc/{process}/status")).ok()?,
        "VmHWM",
    )
}

/// The CPU time of a process that has ended and has not been waited for, in seconds; `None` while it runs.
pub(super) fn cpu_time_at_end(process: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() != Some(&"Z") {
        return None;
    }
    // Fields 14 to 17 of proc(5), in hundredths of a second: its own time, and that of children it has waited for.
    let ticks = fields
        .get(11..15)?
        .iter()
        .filter_map(|text| text.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::kilobytes;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "Pss_Dirty:  4 kB\nPss:       12 kB\n";
        assert_eq!(kilobytes(text, "Pss"), Some(12 * 1024));
        assert_eq!(kilobytes(text, "Rss"), None);
    }
}
