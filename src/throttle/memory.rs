//! Memory that is available for filters.

use std::fs;

/// The memory of this machine or the limit of the control group, whichever is less, in bytes; `None` if
/// neither can be read.
pub fn usable() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
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
        assert_eq!(total(text), Some(24_576_000 * 1024));
        assert_eq!(total("MemFree: 1 kB"), None);
        assert_eq!(total("MemTotal: many kB"), None);
    }
}
