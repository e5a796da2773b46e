//! What made a result: the program's commit and the machine.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The commit this program was built from. `-dirty-` and a digest follow where the sources differed from it; `unknown-` and
/// a digest where they came without a history.
pub const COMMIT: &str = env!("KURA_COMMIT");

/// A machine, as far as it may matter to a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Threads that can run at the same time.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// This machine; what it does not tell is "unknown" or 0.
    pub fn this() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let unknown = || "unknown".to_owned();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let kernel = Some(read("/proc/sys/kernel/osrelease").trim().to_owned()).filter(|kernel| !kernel.is_empty());
        let memory = field(&read("/proc/meminfo"), "MemTotal").and_then(|text| {
            let kib: u64 = text.strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib * 1024)
        });
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            cores,
            memory_bytes: memory.unwrap_or(0),
            kernel: kernel.unwrap_or_else(unknown),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = self.memory_bytes as f64 / (1_u64 << 30) as f64;
        write!(f, "{}, {} cores, {gib:.0} GiB, Linux {}", self.cpu, self.cores, self.kernel)
    }
}

/// The value of the first `name: value` line.
fn field(text: &str, name: &str) -> Option<String> {
    let mut values = text.lines().filter_map(|line| line.split_once(':'));
    values.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_tells_what_it_is() {
        let machine = Machine::this();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20, "{machine}");
        assert!(machine.kernel.starts_with(|c: char| c.is_ascii_digit()), "{machine}");
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nmodel name\t: Another\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU @ 3 GHz"));
        assert_eq!(field(text, "bogomips"), None);
    }

    #[test]
    fn the_commit_is_a_name_or_unknown() {
        let name = COMMIT.split('-').next().unwrap_or_default();
        let is_name = name.len() >= 7 && name.chars().all(|c| c.is_ascii_hexdigit());
        assert!(is_name || COMMIT.starts_with("unknown-"), "{COMMIT}");
    }
}
