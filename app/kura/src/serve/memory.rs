//! How much memory there is, and what of it is for what.

use std::fs::read_to_string;
use std::path::Path;

/// The cache of objects' content is one part of so many of the memory, and at most so large, unless it is configured.
const CACHE_PART: u64 = 16;
const CACHE_LIMIT_BYTES: u64 = 1 << 30;
/// What there is taken to be where the system does not say.
const UNKNOWN_BYTES: u64 = 4 << 30;
/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes for the cache of objects' content.
pub fn cache_bytes() -> u64 {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    let own = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = limits(&own, |folder| read_to_string(Path::new(GROUPS).join(folder).join("memory.max")).ok());
    (machine.into_iter().chain(groups).min().unwrap_or(UNKNOWN_BYTES) / CACHE_PART).min(CACHE_LIMIT_BYTES)
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The limits of the control group that `own` names, and of those around it; `read` gives what stands in a group's folder.
fn limits(own: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<u64> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let groups = Path::new(path).ancestors();
    // A group without a limit says "max".
    groups.filter_map(|group| read(group)?.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_what_machine_and_control_groups_leave() {
        assert_eq!(of_meminfo("MemTotal:       24576000 kB\nMemFree: 1 kB\n"), Some(24_576_000 << 10));
        assert_eq!(of_meminfo("MemFree: 1 kB\n"), None);
        let read = |group: &Path| match group.to_str()? {
            "system.slice/kura.service" => Some("max\n".to_owned()),
            "system.slice" => Some("1073741824\n".to_owned()),
            _ => None,
        };
        assert_eq!(limits("1:name=x:/y\n0::/system.slice/kura.service\n", read), [1 << 30]);
        assert_eq!(limits("0::/\n", |group| (group == Path::new("")).then(|| "5".to_owned())), [5]);
        assert!(limits("4:memory:/x\n", read).is_empty());
        assert!((1..=CACHE_LIMIT_BYTES).contains(&cache_bytes()));
    }
}
