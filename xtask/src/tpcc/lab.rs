//! The traces in the lab: each replayed on a node of models, and both looked at as the paper looks at its own.

use crate::shell;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The node: the default one with solid-state disks, which keep up with what was recorded on one.
const NODE: [&str; 4] = ["--layout", "none", "--model", "slow=sata-ssd"];

/// The folder of the report.
pub const REPORT: &str = "lab-report";

/// Replays each of `traces` and runs `array-load` on both, without checkpoints first; tells what came of it. What the lab
/// says is left in `out`.
pub fn replay(binary: &Path, traces: &[PathBuf], out: &Path) -> Result<String> {
    let mut told = String::from("\nIn the lab\n");
    for trace in traces {
        println!("replaying {}", trace.display());
        let result = trace.with_extension("").with_extension("replay.json");
        let mut command = Command::new(binary);
        command.args(["lab", "replay"]).arg(trace).args(NODE).arg("--json").arg("--output").arg(&result);
        let said: Value = serde_json::from_str(&shell::output(&mut command)?).context("what kura lab replay said")?;
        let said = &said["replay"];
        let ms = |kind: &str, of: &str| said[kind][of].as_f64().unwrap_or_default() / 1e6;
        ensure!(said["load"]["reads"] == said["read"]["count"], "{}: not every read was answered", trace.display());
        let name = trace.file_name().unwrap_or_default().to_string_lossy();
        let _ = writeln!(
            told,
            "  {name} on {}: {} requests replayed; reads {:.3} ms on average, {:.3} ms at the 90th percentile, writes {:.3} ms",
            NODE.join(" "),
            said["load"]["requests"],
            ms("read", "mean_ns"),
            ms("read", "p90_ns"),
            ms("write", "mean_ns")
        );
    }
    let report = out.join(REPORT);
    println!("array-load: figures 2 to 4");
    let mut command = Command::new(binary);
    command.args(["lab", "run", "array-load", "--json", "--output"]).arg(&report);
    for trace in traces {
        command.arg("--trace").arg(trace);
    }
    let said: Value = serde_json::from_str(&shell::output(&mut command)?).context("what kura lab run said")?;
    let criteria = said["criteria"].as_array().context("array-load judged nothing")?;
    ensure!(!criteria.is_empty(), "array-load judged nothing");
    let holding = criteria.iter().filter(|criterion| criterion["holds"] == true).count();
    let _ = writeln!(told, "  array-load: {holding} of {} criteria hold", criteria.len());
    for criterion in criteria.iter().filter(|criterion| criterion["holds"] != true) {
        let _ =
            writeln!(told, "    not: {} (ours {}, bound {})", criterion["name"], criterion["ours"], criterion["bound"]);
    }
    let _ = writeln!(told, "  its figures: {}", report.join("index.html").display());
    Ok(told)
}
