//! Memory that the system lets this process have: what is free, within the limits of the process and its cgroups.

use std::fs;
use std::path::{Path, PathBuf};

/// Address space that is not for weights and buffers: stacks of threads, arenas of the allocator, files.
const RESERVED_BYTES: usize = 64 << 20;

/// Bytes that can be allocated without swapping, or being refused or killed; `None` where the system does not say.
pub(super) fn available_bytes() -> Option<usize> {
    let free = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|meminfo| field_bytes(&meminfo, "MemAvailable:"));
    [free, address_space_left(), cgroups_left()].into_iter().flatten().min()
}

/// The value of a line such as `MemAvailable:  16 kB`.
fn field_bytes(text: &str, name: &str) -> Option<usize> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: usize = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What `ulimit -v` leaves.
fn address_space_left() -> Option<usize> {
    let limit = address_space_limit(&fs::read_to_string("/proc/self/limits").ok()?)?;
    let used = field_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")?;
    Some(limit.saturating_sub(used).saturating_sub(RESERVED_BYTES))
}

/// The soft limit in the table of `/proc/self/limits`; `None` if it is unlimited.
fn address_space_limit(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The least that is left in the cgroups of this process, of version 2 or 1.
fn cgroups_left() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let read = |path: &Path| fs::read_to_string(path).ok();
    groups.lines().flat_map(ancestors).filter_map(|dir| cgroup_left(&dir, read)).min()
}

/// The directories of a line of `/proc/self/cgroup` that can limit memory, from the group to its root. In a container
/// the path can be the host's: the root is where its own limit is.
fn ancestors(line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let root = match parts.next() {
        Some("") => "/sys/fs/cgroup",
        Some(controllers) if controllers.split(',').any(|name| name == "memory") => {
            "/sys/fs/cgroup/memory"
        }
        _ => return Vec::new(),
    };
    let group = Path::new(parts.next().unwrap_or_default().trim_start_matches('/'));
    group.ancestors().map(|group| Path::new(root).join(group)).collect()
}

/// What the limit of one cgroup leaves; `None` if it has none. Cached files that were not used for a while count as free:
/// the kernel drops them first.
fn cgroup_left(dir: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<usize> {
    let number = |name: &str| read(&dir.join(name))?.trim().parse::<usize>().ok();
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = read(&dir.join("memory.stat")).unwrap_or_default();
    let inactive = ["inactive_file ", "total_inactive_file "].iter().find_map(|&name| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name))?;
        value.parse::<usize>().ok()
    });
    Some(limit.saturating_sub(used.saturating_sub(inactive.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_process_are_read() {
        let table = "Limit                     Soft Limit           Hard Limit           Units     \n\
                     Max cpu time              unlimited            unlimited            seconds   \n\
                     Max address space         614400000            unlimited            bytes     \n";
        assert_eq!(address_space_limit(table), Some(614_400_000));
        assert_eq!(address_space_limit(&table.replace("614400000", "unlimited")), None);
        assert_eq!(field_bytes("VmPeak:\t 9 kB\nVmSize:\t  12 kB\n", "VmSize:"), Some(12 << 10));
    }

    #[test]
    fn a_cgroup_and_those_above_it_can_limit() {
        let paths =
            |line| ancestors(line).iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths("0::/a/b"), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"]);
        assert_eq!(paths("4:cpu,memory:/"), ["/sys/fs/cgroup/memory/"]);
        assert!(paths("3:cpuset:/a").is_empty());
    }

    #[test]
    fn inactive_files_of_a_cgroup_are_free() {
        let left = |files: &'static [(&str, &str)]| {
            cgroup_left(Path::new("g"), |path| {
                let name = path.file_name()?.to_str()?;
                files.iter().find(|file| file.0 == name).map(|file| file.1.to_owned())
            })
        };
        let used = ("memory.current", "700\n");
        assert_eq!(left(&[("memory.max", "1000\n"), used]), Some(300));
        let stat = ("memory.stat", "anon 1\ninactive_file 500\n");
        assert_eq!(left(&[("memory.max", "1000\n"), used, stat]), Some(800));
        assert_eq!(left(&[("memory.max", "max\n"), used]), None);
        let version_1 = &[("memory.limit_in_bytes", "100"), ("memory.usage_in_bytes", "400")];
        assert_eq!(left(version_1), Some(0));
    }
}
