//! The memory that the process may use.

use std::fs;

/// The limit of the process's cgroup, in version 2 and in version 1. Without a limit, version 1 has
/// a huge number.
const CGROUP_LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// The memory of this machine or the limit of the process's cgroup, whichever is less, in bytes;
/// `None` if neither can be read.
pub fn usable() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total(&text));
    let limit = |file: &str| fs::read_to_string(file).ok()?.trim().parse().ok();
    machine.into_iter().chain(CGROUP_LIMITS.into_iter().filter_map(limit)).min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mem_total_is_parsed_in_bytes() {
        let text = "MemTotal:       24576000 kB\nMemFree:         1 kB\n";
        assert_eq!(mem_total(text), Some(24_576_000 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB"), None);
        assert_eq!(mem_total("MemTotal: many kB"), None);
    }
}
