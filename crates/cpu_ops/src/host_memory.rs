//! How much memory this process can still get from the system.
//!
//! Three bounds, of which the least counts: what the machine has without swapping, what the
//! process's control groups allow (containers, systemd, batch systems; versions 1 and 2), and its
//! own limits (`ulimit -v`, `ulimit -d`). A process beyond the second is killed, and beyond the
//! third its allocations fail: both are to be known before.

use crate::OutOfMemory;
use bytemuck::Zeroable;
use std::fs;
use std::path::Path;

/// `len` zeros for `what`; pages that are not touched take no memory.
///
/// # Errors
/// [`OutOfMemory`] where `vec![0; len]` would end the process.
pub fn zeroed<T: Zeroable>(what: &str, len: usize) -> Result<Vec<T>, OutOfMemory> {
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| OutOfMemory {
        what: what.to_owned(),
        needed_bytes: len.saturating_mul(size_of::<T>()),
        free_bytes: available_bytes().unwrap_or(0),
    })
}

/// Has the allocator return large buffers when they are freed, for processes that load and unload
/// models. glibc learns from the first one that is freed to keep up to 64 MiB of each arena, and to
/// take buffers of up to 32 MiB from them: 60 swaps of three models left 170 MiB, and leave 2 with
/// this. To be called before there are threads.
pub fn return_large_buffers() {
    // A step's own buffers are smaller.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    const MMAP_THRESHOLD_BYTES: i32 = 4 << 20;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    const TRIM_THRESHOLD_BYTES: i32 = 1 << 20;
    // SAFETY: it takes no pointer; both are parameters of glibc's (mallopt(3)), and their values are in range.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
    }
}

/// Gives memory that was freed back to the system: glibc keeps it for later allocations of the same
/// threads, which after a model was unloaded may never come.
pub fn give_back() {
    // SAFETY: it takes no pointer, and any thread may call it at any time (malloc_trim(3): MT-Safe).
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes that can be allocated; `None` where the system does not say (`/proc` is Linux's).
pub fn available_bytes() -> Option<usize> {
    available_in(Path::new("/"))
}

/// As [`available_bytes`], with `/proc` and `/sys` under `root`.
fn available_in(root: &Path) -> Option<usize> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let machine = kib(&meminfo, "MemAvailable:")?;
    [Some(machine), cgroups(root), limits(root)].into_iter().flatten().min()
}

/// What the process's control groups, and the groups that these are in, leave.
fn cgroups(root: &Path) -> Option<usize> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    // `0::/path` in version 2, `4:memory:/path` in version 1.
    let groups = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let left = groups.filter_map(|(controllers, path)| {
        let (mount, files) = match controllers {
            "" => (root.join("sys/fs/cgroup"), &V2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("sys/fs/cgroup/memory"), &V1)
            }
            _ => return None,
        };
        // In a container the path may be the host's, of which only the container's own group can be
        // seen: the mount.
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        groups.filter_map(|group| files.left(&mount.join(group))).min()
    });
    left.min()
}

/// The files of a control group.
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Keys of `memory.stat` for what is dropped when memory runs short: pages of files.
    reclaimable: [&'static str; 2],
}

const V2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file ", "active_file "],
};

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file ", "total_active_file "],
};

impl Files {
    /// Bytes that the group at `dir` may still take; `None` without a limit.
    fn left(&self, dir: &Path) -> Option<usize> {
        let number = |file| fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok();
        let (limit, usage): (usize, usize) = (number(self.limit)?, number(self.usage)?);
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let reclaimable = self.reclaimable.iter().filter_map(|key| field(&stat, key));
        let used = usage.saturating_sub(reclaimable.filter_map(|n| n.parse::<usize>().ok()).sum());
        Some(limit.saturating_sub(used))
    }
}

/// What the process's own limits leave.
fn limits(root: &Path) -> Option<usize> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let left = |limit, used| {
        // The soft limit; `unlimited` is no number.
        let limit: usize = field(&limits, limit)?.split_whitespace().next()?.parse().ok()?;
        Some(limit.saturating_sub(kib(&status, used)?))
    };
    let left = [left("Max address space", "VmSize:"), left("Max data size", "VmData:")];
    left.into_iter().flatten().min()
}

/// The rest of the line of `text` that starts with `key`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// The same in bytes, of a number in kB, which are KiB.
fn kib(text: &str, key: &str) -> Option<usize> {
    field(text, key)?.strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A root with 8000 MiB available, and these files.
    fn available(files: &[(&str, &str)]) -> Option<usize> {
        let root = tempfile::tempdir().unwrap();
        let write = |(path, text): (&str, &str)| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    8192000 kB\n"));
        files.iter().copied().for_each(write);
        available_in(root.path()).map(|bytes| bytes / MIB)
    }

    #[test]
    fn without_limits_all_that_the_machine_has_is_available() {
        assert_eq!(available(&[]), Some(8000));
        let unlimited = [
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.current", "1048576\n"),
            ("proc/self/limits", "Max address space    unlimited  unlimited  bytes\n"),
            ("proc/self/status", "VmSize:\t 1024 kB\nVmData:\t 1024 kB\n"),
        ];
        assert_eq!(available(&unlimited), Some(8000));
        assert_eq!(available_in(Path::new("/no such root")), None);
    }

    #[test]
    fn a_control_group_limits_what_is_available() {
        // 512 MiB, of which 300 are used, of which 100 are pages of files.
        let group = |limit, usage, stat, dir: &str| {
            [(limit, "536870912\n"), (usage, "314572800\n"), ("memory.stat", stat)]
                .map(|(file, text)| (format!("{dir}/{file}"), text))
        };
        let v2_stat = "anon 5\nfile 9\ninactive_file 52428800\nactive_file 52428800\n";
        let v1_stat = "inactive_file 7\ntotal_inactive_file 104857600\ntotal_active_file 0\n";
        let v2 = |dir| group("memory.max", "memory.current", v2_stat, dir);
        let v1 = |dir| group("memory.limit_in_bytes", "memory.usage_in_bytes", v1_stat, dir);
        let cases = [
            // The group itself, one around it, and the root of a container.
            ("0::/a/b\n", v2("sys/fs/cgroup/a/b")),
            ("0::/a/b\n", v2("sys/fs/cgroup/a")),
            ("0::/docker/123\n", v2("sys/fs/cgroup")),
            ("9:cpu,cpuacct:/x\n4:memory:/a\n0::/z\n", v1("sys/fs/cgroup/memory/a")),
        ];
        for (groups, files) in &cases {
            let files = files.iter().map(|(path, text)| (path.as_str(), *text));
            let all: Vec<_> = [("proc/self/cgroup", *groups)].into_iter().chain(files).collect();
            assert_eq!(available(&all), Some(312), "{groups}");
        }
    }

    #[test]
    fn the_process_limits_what_is_available() {
        let limits = |address_space: &str, data: &str| {
            format!(
                "Max data size   {data}  unlimited  bytes\nMax address space  {address_space}  unlimited  bytes\n"
            )
        };
        let status = "Name:\thalfwarp\nVmSize:\t  204800 kB\nVmData:\t  102400 kB\n";
        for (address_space, data, expected) in
            [("1073741824", "unlimited", 824), ("unlimited", "1073741824", 924), ("1000", "5", 0)]
        {
            let limits = limits(address_space, data);
            let files = [("proc/self/limits", &*limits), ("proc/self/status", status)];
            assert_eq!(available(&files), Some(expected));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_says_how_much_it_has() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }
}
