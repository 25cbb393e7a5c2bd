//! How much memory the process may still take before the kernel ends it.
//!
//! The bound is that of the control group and the groups around it (version 1 or 2), or that of the machine where no
//! group has one, or what `worker_memory` says. What the kernel can drop at any time, which is the pages of files, does
//! not count as used: a server of files has always filled its group with them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// `worker_memory`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum MemoryBound {
    /// The control group's, or the machine's.
    #[default]
    Auto,
    /// None.
    Off,
    /// This many bytes for the process itself.
    Bytes(u64),
    /// That of the control group with this folder.
    Group(PathBuf),
}

/// Memory in use, and the bound, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryReading {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

/// What is read again and again. The files stay open: a worker in a sandbox may not be able to open them later.
pub(crate) enum MemoryGauge {
    Nothing,
    /// The groups that have a bound, the process's own first.
    Groups(Vec<ControlGroup>),
    /// `/proc/meminfo`
    Machine(File),
    /// `/proc/self/statm`
    Process(File, u64),
}

/// A control group with the memory controller.
pub(crate) struct ControlGroup {
    usage: File,
    limit: File,
    stat: File,
}

/// No file that is read here is larger.
const LARGEST: usize = 16 * 1024;

/// A bound above this is none: version 1 shows one with a number near 2⁶³.
const UNBOUNDED: u64 = 1 << 60;

impl MemoryGauge {
    /// Opens what has to be read for a bound.
    pub(crate) fn open(bound: &MemoryBound) -> MemoryGauge {
        match bound {
            MemoryBound::Off => MemoryGauge::Nothing,
            MemoryBound::Bytes(limit) => File::open("/proc/self/statm")
                .map_or(MemoryGauge::Nothing, |file| {
                    MemoryGauge::Process(file, *limit)
                }),
            MemoryBound::Group(folder) => {
                let group = [VERSION_2, VERSION_1]
                    .into_iter()
                    .find_map(|names| open_group(folder, names));
                MemoryGauge::Groups(group.into_iter().collect())
            }
            MemoryBound::Auto => {
                let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
                let groups = bounded_groups(&membership, Path::new("/sys/fs/cgroup"));
                match groups.is_empty() {
                    false => MemoryGauge::Groups(groups),
                    true => File::open("/proc/meminfo")
                        .map_or(MemoryGauge::Nothing, MemoryGauge::Machine),
                }
            }
        }
    }

    /// The present values of the bound that is nearest; `None` if there is none.
    pub(crate) fn read_gauge(&self) -> Option<MemoryReading> {
        match self {
            MemoryGauge::Nothing => None,
            MemoryGauge::Groups(groups) => groups
                .iter()
                .filter_map(ControlGroup::read_group)
                // Shares of the bounds, compared without division.
                .max_by(|one, other| {
                    let one_share = u128::from(one.used) * u128::from(other.limit);
                    one_share.cmp(&(u128::from(other.used) * u128::from(one.limit)))
                }),
            MemoryGauge::Machine(file) => {
                let text = text_of(file)?;
                let (limit, free) = (
                    kilobytes(&text, "MemTotal:")?,
                    kilobytes(&text, "MemAvailable:")?,
                );
                let used = limit.saturating_sub(free);
                Some(MemoryReading { used, limit })
            }
            MemoryGauge::Process(file, limit) => {
                let text = text_of(file)?;
                let mut pages = text.split_whitespace().skip(1).map(str::parse::<u64>);
                let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
                Some(MemoryReading {
                    used: resident.saturating_sub(shared) * host::process::page_size(),
                    limit: *limit,
                })
            }
        }
    }
}

impl ControlGroup {
    fn read_group(&self) -> Option<MemoryReading> {
        let limit = number_of(&self.limit).filter(|limit| *limit < UNBOUNDED)?;
        let usage = number_of(&self.usage)?;
        let stat = text_of(&self.stat)?;
        Some(MemoryReading {
            used: usage.saturating_sub(droppable(&stat)),
            limit,
        })
    }
}

/// The groups of a process that have a bound. `membership` is `/proc/self/cgroup`.
fn bounded_groups(membership: &str, root: &Path) -> Vec<ControlGroup> {
    let mut groups = Vec::new();
    for line in membership.lines() {
        // `4:memory:/a/b` of version 1, `0::/a/b` of version 2.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, names) = match controllers {
            "" => (root.to_owned(), VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), VERSION_1)
            }
            _ => continue,
        };
        let own = root.join(path.trim_start_matches('/'));
        // In a container the path may be one outside, while the root is the container's own group.
        let own = if own.is_dir() { own } else { root.clone() };
        for folder in own.ancestors().take_while(|one| one.starts_with(&root)) {
            groups.extend(open_group(folder, names));
        }
    }
    groups.retain(|group| group.read_group().is_some());
    groups
}

/// What the files with usage and bound are called.
const VERSION_1: [&str; 2] = ["memory.usage_in_bytes", "memory.limit_in_bytes"];
const VERSION_2: [&str; 2] = ["memory.current", "memory.max"];

fn open_group(folder: &Path, [usage, limit]: [&str; 2]) -> Option<ControlGroup> {
    let open = |name: &str| File::open(folder.join(name)).ok();
    Some(ControlGroup {
        usage: open(usage)?,
        limit: open(limit)?,
        stat: open("memory.stat")?,
    })
}

/// The pages of files in `memory.stat`, in bytes. With version 1 the sums over the groups inside begin with `total_`.
fn droppable(stat: &str) -> u64 {
    let is_first = stat.contains("total_inactive_file ");
    let names = match is_first {
        true => ["total_inactive_file ", "total_active_file "],
        false => ["inactive_file ", "active_file "],
    };
    let value = |name: &str| {
        let found = stat.lines().find_map(|line| line.strip_prefix(name))?;
        found.trim().parse::<u64>().ok()
    };
    names.iter().filter_map(|name| value(name)).sum()
}

fn number_of(file: &File) -> Option<u64> {
    text_of(file)?.trim().parse().ok()
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(number * 1024)
}

/// The text of a small file of the kernel's, from its beginning.
fn text_of(file: &File) -> Option<String> {
    let mut buffer = vec![0; LARGEST];
    let length = file.read_at(&mut buffer, 0).ok()?;
    buffer.truncate(length);
    String::from_utf8(buffer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Root {
            let name = format!("weir-memory-{name}-{}", std::process::id());
            Root(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn group(folder: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(folder).expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("a file");
        }
    }

    #[test]
    fn the_nearest_bound_counts_and_pages_of_files_do_not() {
        let root = Root::new("nearest");
        group(
            &root.0.join("a"),
            &[
                ("memory.current", "900\n"),
                ("memory.max", "1000\n"),
                (
                    "memory.stat",
                    "anon 300\ninactive_file 100\nactive_file 200\n",
                ),
            ],
        );
        group(
            &root.0.join("a/b"),
            &[
                ("memory.current", "500\n"),
                ("memory.max", "max\n"),
                ("memory.stat", "anon 500\n"),
            ],
        );
        let groups = bounded_groups("1:name=systemd:/x\n0::/a/b\n", &root.0);
        assert_eq!(groups.len(), 1, "the inner one has no bound");
        let reading = MemoryGauge::Groups(groups).read_gauge();
        let (used, limit) = (600, 1000);
        assert_eq!(reading, Some(MemoryReading { used, limit }));
    }

    #[test]
    fn version_1_is_read_too() {
        let root = Root::new("first");
        group(
            &root.0.join("memory"),
            &[
                ("memory.usage_in_bytes", "80\n"),
                ("memory.limit_in_bytes", "100\n"),
                (
                    "memory.stat",
                    "inactive_file 1\ntotal_inactive_file 10\ntotal_active_file 0\n",
                ),
            ],
        );
        // The path is one outside of a container.
        let groups = bounded_groups("4:memory:/outside\n", &root.0);
        let reading = MemoryGauge::Groups(groups).read_gauge();
        let (used, limit) = (70, 100);
        assert_eq!(reading, Some(MemoryReading { used, limit }));
        let groups = bounded_groups("4:memory:/outside\n", &root.0.join("nothing"));
        assert!(groups.is_empty());
    }
}
