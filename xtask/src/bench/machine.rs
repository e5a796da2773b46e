//! What the figures were taken on: without it they mean nothing.

use crate::shell;
use serde_json::{Value, json};
use std::process::Command;

/// The machine, the system and the versions of the programs.
pub fn facts() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(':').nth(1)).map(|value| value.trim().to_string())
    };
    let version = |program: &str| {
        let text = shell::output(Command::new(program).arg("--version")).unwrap_or_default();
        text.lines().next().map(str::to_string)
    };
    json!({
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "cpu": field(&read("/proc/cpuinfo"), "model name"),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": read("/proc/loadavg").split(' ').next(),
        "fio": version("fio"),
        "qemu-nbd": version("qemu-nbd"),
        "nbdkit": version("nbdkit"),
        "commit": shell::output(&mut shell::command("git", ["rev-parse", "HEAD"])).ok().map(|line| line.trim().to_string()),
    })
}

/// The facts on one line, for people.
pub fn line(facts: &Value) -> String {
    let text = |name: &str| facts[name].as_str().unwrap_or("?").to_string();
    format!(
        "{} cores of {}, {} memory, Linux {}, load {} at the start; {}; {}; {}; commit {}",
        facts["cores"],
        text("cpu"),
        text("memory"),
        text("kernel"),
        text("load_before"),
        text("fio"),
        text("qemu-nbd"),
        text("nbdkit"),
        text("commit").chars().take(12).collect::<String>()
    )
}
